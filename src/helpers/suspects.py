"""What the records of a model's calls show: what a capture would refuse, freeze or change, and at which line."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from . import device
from .findings import Findings
from .records import Call, Place, address, differences, modules_of, resolved, tested_by


@dataclass
class Run:
    """A call of a model, with what was before and after it."""

    call: Call
    outputs: list[torch.Tensor]
    before: dict[str, object]  # state
    held: dict[str, torch.Tensor]  # copies of the tensors in it
    after: dict[str, object]
    moved: bool  # random or numpy.random has drawn


def look_at_operators(found: Findings, *calls: Call) -> None:
    """What a capture refuses, what is random, and what is made anew in each call."""
    for call in calls:
        counts: dict[tuple, list] = {}
        for op in call.ops:
            if op.refused or _made_anew(op):
                counts.setdefault((op.refused or "recomputed", resolved(op.where)), []).append(op)
        for where in map(resolved, call.waits):
            if where:
                counts.setdefault(("waits", where), []).append(SimpleNamespace(name="synchronize", error=""))
        for (kind, where), ops in counts.items():
            names = ", ".join(dict.fromkeys(map(_asked, ops)))
            found.add(kind, f"{names}{f' ({_line(ops[0].error)})' if kind == 'refused' else ''}", where, len(ops))
        for op in _unguarded(call.ops):
            found.add("masks", f"{_plain(op.name)} with dropout, and another dropout after it", resolved(op.where))
        for on_host, raw in call.random:
            found.add("host random" if on_host else "random", "random numbers", resolved(raw))


def look_at_numbers(found: Findings, second: Run, third: Run, other: Run) -> None:
    """What Python gave to operators, in calls with the same inputs and in one with others."""
    moved, told = third.moved, set()
    for earlier, later in ((second, third), (third, other)):
        if later is other and found.any("waits", "shapes"):
            break  # a value of the inputs reaches Python by a wait: that is found, and this is its consequence
        for d in differences(earlier.call, later.call):
            where = resolved(d.op.where)
            if where in told:
                continue
            told.add(where)
            kind = {"number": "number", "shape": "grows", "path": "path"}[d.kind]
            text = f"{_plain(d.op.name)}: {d.before}, then {d.after}"
            found.add("host random" if moved and kind == "number" else kind, text, where)
    if moved and not found.any("host random"):
        found.add("host random", "the state of random or numpy.random moved")


def look_at_state(found: Findings, model: Callable, run: Run, held_after: dict) -> None:
    """What the call has changed, besides its outputs. held_after: the values of the tensors after it."""
    told: tuple[str, ...] = ()
    changed: dict[tuple, list[str]] = {}
    for name in sorted({*run.before, *run.after}, key=lambda name: (len(name), name)):
        old, new = run.before.get(name), run.after.get(name)
        if name.startswith(told):  # a part of something that is told
            continue
        where = resolved(run.call.sets.get(name))
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            read = resolved(run.call.reads.get(name))
            written = resolved(run.call.writes.get(name))
            if old is not new:
                kind = "rebound" if read else "kept"
            elif not equal([run.held[name]], [held_after[name]]):
                kind = "buffers"
            elif written:
                kind = "written"
            else:
                continue
            changed.setdefault((kind, where or written or read or _mention(model, name)), []).append(name)
        elif isinstance(old, torch.Tensor) or isinstance(new, torch.Tensor) or old != new:
            told += f"{name}.", f"{name}["
            found.add("attribute", f"{name}: {_said(old)}, then {_said(new)}", where or _mention(model, name))
    for name, raw in run.call.writes.items():
        if name.startswith("parameter "):
            changed.setdefault(("buffers", resolved(raw)), []).append(name)
    for (kind, where), names in changed.items():
        found.add(kind, ", ".join(names), where)


def why_hopeless(run: Run, other: Run) -> str:
    """Why no graph does without another algorithm, or ""."""
    if run.call.spread or other.call.spread:
        return "it computes with tensors whose shape depends on the data"
    if {*map(address, run.outputs)} & {*map(address, run.call.ragged)}:
        return "the shape of its output depends on the data"
    return ""


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Bit for bit, except that not-a-number equals itself."""
    return len(a) == len(b) and all(
        x.shape == y.shape
        and torch.equal(torch.nan_to_num(x), torch.nan_to_num(y))
        and torch.equal(x.isnan(), y.isnan())
        for x, y in zip(a, b, strict=True)
    )


def _plain(name: str) -> str:
    """aten.sum.dim_IntList is sum for a reader."""
    name = name.split(".")[1] if name.count(".") > 1 else name
    return {"_local_scalar_dense": "item()", "_to_copy": "a copy", "lift_fresh": "torch.tensor",
            "npu_fusion_attention_v3": "a fused attention"}.get(name, name)


def _asked(op) -> str:
    """An operator for a reader, and what Python asked by it where that is not written as a call."""
    asks = tested_by(op.where) if "_local_scalar_dense" in op.name else ""
    return f"{asks} reads the truth value of a tensor" if asks else _plain(op.name)


def _line(error: str) -> str:
    return device.brief(RuntimeError(error))


def _made_anew(op) -> bool:
    return "npu" in " ".join(op.numbers) and _plain(op.name) in (
        "arange", "full", "ones", "zeros", "eye", "linspace", "tril_indices", "triu_indices"
    )  # fmt: skip


def _unguarded(ops: list) -> list:
    """Fused attentions with dropout that are followed by another dropout: see the finding `masks`."""
    drawn = [op for op in ops if op.draws and not op.refused and re.search("dropout|fusion_attention", op.name)]
    return [op for op in drawn[:-1] if "fusion_attention" in op.name]


def _said(x) -> str:
    return f"a tensor {tuple(x.shape)}" if isinstance(x, torch.Tensor) else "nothing" if x is None else f"{x:.40}"


def _mention(model: Callable, name: str) -> Place | None:
    """The first line of a module's forward that names the attribute, where the change itself was not seen."""
    owners = [(owner, module) for owner, module in modules_of(model).items() if name.startswith(owner)]
    if not owners:
        return None
    owner, module = max(owners, key=lambda item: len(item[0]))
    attribute = re.match(r"\w+", name[len(owner) :]).group()
    try:
        lines, start = inspect.getsourcelines(type(module).forward)
        file = inspect.getsourcefile(type(module).forward)
    except (OSError, TypeError):
        return None
    itself = next(iter(inspect.signature(type(module).forward).parameters))
    at = next((n for n, line in enumerate(lines) if re.search(rf"\b{itself}\.{attribute}\b", line)), None)
    return None if at is None else Place(file, start + at, lines[at].strip())
