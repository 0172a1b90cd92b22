"""Is a model ready for a graph? Run it, find what a capture would refuse or freeze, then capture it and compare."""

import contextlib
import copy
import inspect
import random
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from unittest import mock

import ascend_sim

import numpy
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from . import bench, device
from .capture import Captured, CaptureError, capture
from .findings import STOPS, WORTH, WRONG, Finding, Gain, Report
from .records import REFUSED, Call, Place, address, differences, modules_of, place_in, recorded, resolved, state

CARD = "ascend_910b2"
WARM_UP = 3
REPLAYS = 8  # a check of a few would miss what happens every fifth call
DRAWS = 32  # calls that are compared by their statistics


class CheckError(ValueError):
    """The check cannot be made: the model fails in eager, or its inputs do not fit. One line."""


def check(model: Callable, *inputs, fresh: Sequence | None = None, train: bool = False) -> Report:
    """Find what a capture of ``model(*inputs)`` would refuse, freeze or change, then try it.

    model: a module, on CPU or NPU, in the mode it is in, or a function; its own tensors are on the device.
    inputs: tensors on CPU or NPU, or trees of them; anything else in them is fixed by a capture.
    fresh: inputs of the same shapes for the replays; by default the elements of each input in another order.
    train: forward, and backward of the outputs' sum, instead of a forward without gradients.

    All runs are those of copies. The model with its hooks, the variables around a function, the inputs and the random
    generators are afterwards as before; globals of a module are shared, so what a model writes there stays.
    Replays are compared with eager bit for bit, with the same seed before each call. A model that draws on the device
    by operators of several kinds draws other numbers then (fused attention moves the generator otherwise in a capture):
    it is compared by its statistics. What happens once in many calls, and shows in no attribute, is not seen.
    On the simulated device the gain is modelled, for a card's profile; on an Ascend it is measured. Both are at level 0
    of the task queue: at level 1, a script's default, eager is faster.
    Raises CheckError if the model fails without any capture.
    """
    device.activate(threads=None, verbose=False)
    if not callable(model):
        raise CheckError(f"the model is a {type(model).__name__}, which can't be called")
    with _as_before() as level:
        return _Examination(model, inputs, fresh, train).report(level)


@contextlib.contextmanager
def _as_before() -> Iterator[int]:
    """Random generators, stream and task queue are afterwards as before. Within, the task queue is at level 0: an error
    at level 1 would stop it, and would come late. Gives the level before.
    """
    host, numbers, level = random.getstate(), numpy.random.get_state(), device.task_queue()
    stream, settable = torch.npu.current_stream(), hasattr(torch.npu, "set_task_queue_enable")
    with torch.random.fork_rng([torch.npu.current_device()], device_type="npu"):
        if settable:
            torch.npu.set_task_queue_enable(0)
        try:
            yield level
        finally:
            torch.npu.set_stream(stream)
            if settable:
                torch.npu.set_task_queue_enable(level)
            random.setstate(host)
            numpy.random.set_state(numbers)


def _seed(number: int) -> None:
    torch.manual_seed(number)  # host and device
    random.seed(number)
    numpy.random.seed(number)


class _Examination:
    """One check. Each run has a copy of the model of its own, so that all begin at the same state."""

    def __init__(self, model: Callable, inputs: tuple, fresh: Sequence | None, train: bool):
        self.model, self.train = model, train
        leaves, self.form = tree_flatten(inputs)
        self.inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in leaves]
        self.tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        if not self.tensors:
            raise CheckError("no input is a tensor: there is nothing to check a replay with")
        self.given = fresh is not None
        self.fresh = self._that_fit(tuple(fresh)) if self.given else _shuffled(self.inputs)
        self.found: dict[tuple, Finding] = {}

    def _that_fit(self, fresh: tuple) -> list:
        leaves, form = tree_flatten(fresh)
        if form != self.form:
            raise CheckError(f"the fresh inputs are {form.num_leaves} values, or in another order than the "
                             f"{self.form.num_leaves} of the inputs")  # fmt: skip
        for i in self.tensors:
            want, got = ((tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else type(x).__name__
                         for x in (self.inputs[i], leaves[i]))  # fmt: skip
            if want != got:
                raise CheckError(f"fresh input {i}: expected {want}, got {got}")
        return [x.detach() if isinstance(x, torch.Tensor) else x for x in leaves]

    def report(self, level: int) -> Report:
        if level == 2:
            self._add("task queue", "this process runs at TASK_QUEUE_ENABLE=2")
        try:
            kernels = self._watch()
        except _NoAclnn as stop:
            self._add("aclop", stop.args[0], stop.args[1])
            return Report(
                tuple(self.found.values()), None, 0, 0, False, None, "it does not run here", "", str(stop.args[0])
            )
        error, equal, alike = self._try()
        gain, no_gain = self._gain(captured=not error)
        hopeless = self.hopeless
        if not hopeless and gain and gain.speedup < WORTH:
            hopeless = f"a graph would gain less than {WORTH - 1:.0%}"
        order = {STOPS: 0, WRONG: 1}
        findings = sorted(self.found.values(), key=lambda f: order.get(f.severity, 2))
        return Report(tuple(findings), kernels, 0 if error else REPLAYS, equal, alike, gain, no_gain, hopeless, error)

    # ---- runs

    def _copy(self) -> Callable:
        try:
            return _copied(self.model)
        except (RuntimeError, TypeError) as error:
            raise CheckError(
                f"the model can't be copied, and a check must not change it: {device.brief(error)}"
            ) from None

    def _run(self, model: Callable, leaves: list) -> list[torch.Tensor]:
        """The outputs that are tensors; in training the gradients of the parameters after them."""
        inputs = tree_unflatten(leaves, self.form)
        if not self.train:
            with torch.no_grad():
                return _tensors(model(*inputs))
        parameters = [p for m in modules_of(model).values() for p in m.parameters(recurse=False) if p.requires_grad]
        with torch.enable_grad():
            outputs = _tensors(model(*inputs))
            total = sum(x.sum() for x in outputs if x.requires_grad)
            if not isinstance(total, torch.Tensor):
                raise CheckError("no output has a gradient: it cannot be trained")
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        return [x.detach() for x in (*outputs, *gradients) if x is not None]

    def _eager(self, model: Callable, leaves: list, whose: str = "inputs") -> list[torch.Tensor]:
        try:
            outputs = [x.clone() for x in self._run(model, _on_device(leaves))]
            torch.npu.synchronize()  # an error of the device shows there
            return outputs
        except Exception as error:
            raise _failed(error, whose) from None

    # ---- what can be found without a capture

    def _watch(self) -> int | None:
        """Compare the records of calls: a warm-up, two with the same inputs, one with others. Kernels of a call."""
        model, known, calls = self._copy(), {}, []
        whose = "fresh inputs" if self.given else "shuffled inputs"
        for number, leaves in enumerate((self.inputs, self.inputs, self.inputs, self.fresh)):
            before = state(model)
            held = {key: x.clone() for key, x in before.items() if isinstance(x, torch.Tensor)}
            on_device = _on_device(leaves)
            host = random.getstate(), str(numpy.random.get_state())
            call, outputs = self._recorded(model, before, on_device, known, "inputs" if number < 3 else whose)
            moved = host != (random.getstate(), str(numpy.random.get_state()))
            after = state(model)
            calls.append(SimpleNamespace(call=call, outputs=outputs, before=before, held=held, after=after, moved=moved,
                                         inputs=on_device))  # fmt: skip
        _, second, third, other = calls
        self._operators(third.call, other.call)
        self._python(second, third, other)
        self._state(model, third, other.held)
        self._inputs(third)
        self.hopeless = self._why_hopeless(third, other)
        self.aside = resolved(third.call.aside)
        _seed(0)
        outputs = self._eager(model := self._copy(), self.inputs)
        _seed(0)
        if _equal(outputs, self._eager(self._copy(), self.fresh)):
            self._add("no proof", "the outputs")
        return bench.kernel_times(lambda: self._run(model, on_device), runs=1)[0]

    def _recorded(self, model, before, leaves, known, whose) -> tuple[Call, list[torch.Tensor]]:
        named = {address(leaves[i]): f"input {i}" for i in reversed(self.tensors)}
        named |= {address(p): f"parameter {name}{key}" for name, module in modules_of(model).items()
                  for key, p in module._parameters.items() if p is not None}  # fmt: skip
        named |= {address(x): name for name, x in before.items() if isinstance(x, torch.Tensor)}
        named.pop(0, None)  # no memory at all
        names = {id(module): name for name, module in modules_of(model).items()}
        anomaly = torch.autograd.set_detect_anomaly(self.train, check_nan=False)  # notes the line of each gradient
        with anomaly, recorded(named, names, known) as call:
            try:
                outputs = self._run(model, leaves)
                torch.npu.synchronize()  # an error of the device shows there
                return call, outputs
            except Exception as error:
                if call.ops and call.ops[-1].refused == "aclop":
                    raise _NoAclnn(device.brief(error), resolved(call.ops[-1].where)) from None
                raise _failed(error, whose) from None

    def _operators(self, *calls: Call) -> None:
        for call in calls:
            counts: dict[tuple, list] = {}
            for op in call.ops:
                if op.refused or _made_anew(op):
                    counts.setdefault((op.refused or "recomputed", resolved(op.where)), []).append(op)
            for where in map(resolved, call.waits):
                if where:
                    counts.setdefault(("waits", where), []).append(SimpleNamespace(name="synchronize", error=""))
            for (kind, where), ops in counts.items():
                names = ", ".join(dict.fromkeys(_plain(op.name) for op in ops))
                self._add(kind, f"{names}{f' ({_line(ops[0].error)})' if kind == 'refused' else ''}", where, len(ops))
            for on_host, raw in call.random:
                self._add("host random" if on_host else "random", "random numbers", resolved(raw))

    def _python(self, second, third, other) -> None:
        """What Python gave to operators, in calls with the same inputs and in one with others."""
        moved, told = third.moved, set()
        for earlier, later in ((second, third), (third, other)):
            if later is other and any(f.kind in ("waits", "shapes") for f in self.found.values()):
                break  # a value of the inputs reaches Python by a wait: that is found, and this is its consequence
            for d in differences(earlier.call, later.call):
                where = resolved(d.op.where)
                if where in told:
                    continue
                told.add(where)
                kind = {"number": "number", "shape": "grows", "path": "path"}[d.kind]
                text = f"{_plain(d.op.name)}: {d.before}, then {d.after}"
                self._add("host random" if moved and kind == "number" else kind, text, where)
        if moved and not any(f.kind == "host random" for f in self.found.values()):
            self._add("host random", "the state of random or numpy.random moved")

    def _state(self, model: Callable, run, held_after: dict) -> None:
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
                elif not _equal([run.held[name]], [held_after[name]]):
                    kind = "buffers"
                elif written:
                    kind = "written"
                else:
                    continue
                changed.setdefault((kind, where or written or read or _mention(model, name)), []).append(name)
            elif isinstance(old, torch.Tensor) or isinstance(new, torch.Tensor) or old != new:
                told += f"{name}.", f"{name}["
                self._add("attribute", f"{name}: {_said(old)}, then {_said(new)}", where or _mention(model, name))
        for name, raw in run.call.writes.items():
            if name.startswith("parameter "):
                changed.setdefault(("buffers", resolved(raw)), []).append(name)
        for (kind, where), names in changed.items():
            self._add(kind, ", ".join(names), where)

    def _inputs(self, run) -> None:
        for i in self.tensors:
            if raw := run.call.writes.get(f"input {i}"):
                self._add("writes input", f"input {i}", resolved(raw))
            if self.inputs[i].numel() > 1 and not self.given and torch.equal(self.inputs[i], self.fresh[i]):
                self._add("unchanged", f"input {i}")
        places = [address(self.inputs[i]) for i in self.tensors]
        for i, at in zip(self.tensors, places, strict=True):
            first = self.tensors[places.index(at)]
            if at and first != i:
                self._add("alias", f"inputs {first} and {i}")
        for i, x in enumerate(self.inputs):
            if not isinstance(x, (torch.Tensor, bool, str, type(None))):
                self._add("fixed input", f"input {i}, {x!r:.40}")
            elif not isinstance(x, torch.Tensor) and x != self.fresh[i]:
                self._add("fixed input", f"input {i}, {x!r:.40}, then {self.fresh[i]!r:.40}")

    def _why_hopeless(self, run, other) -> str:
        if run.call.spread or other.call.spread:
            return "it computes with tensors whose shape depends on the data"
        if {*map(address, run.outputs)} & {*map(address, run.call.ragged)}:
            return "the shape of its output depends on the data"
        return ""

    # ---- the attempt

    def _try(self) -> tuple[str, int, bool]:
        """Capture one copy, and let it and another copy take the same calls. Error; how many replays equal eager bit
        for bit; do all, if only by their statistics.
        """
        model, twin = self._copy(), self._copy()
        _seed(0)
        try:
            captured = capture(self._of_tensors(model), *(self.inputs[i] for i in self.tensors), warmup=WARM_UP)
        except CaptureError as error:
            self._refused(error)
            return device.brief(_first(error)), 0, False
        except Exception as error:  # of the warm-up
            raise _failed(error, "inputs, on a side stream") from None
        _seed(0)
        for _ in range(WARM_UP):
            self._eager(twin, self.inputs)
        # One operator, captured alone, may be refused where the whole is not: it has what an eager one gave it.
        self.found = {key: f for key, f in self.found.items() if f.kind != "refused"}
        pairs = self._pairs(twin, captured, [self.fresh, self.inputs] * (REPLAYS // 2))
        equal = [_equal(*pair) for pair in pairs]  # when all are done: some mistakes show only then
        alike = all(equal)
        if not alike and any(f.kind == "random" for f in self.found.values()):
            alike = all(_alike(self._pairs(twin, captured, [x] * DRAWS)) for x in (self.fresh, self.inputs))
        if not alike and not any(f.severity == WRONG for f in self.found.values()):
            self._add("differs", f"replay {equal.index(False) + 1} of {len(equal)}")
        return "", sum(equal), alike

    def _pairs(self, twin: Callable, captured: Captured, calls: list) -> list[tuple]:
        """What eager and a replay give, with the same seed."""
        pairs = []
        for number, leaves in enumerate(calls, 1):
            _seed(number)
            expected = self._eager(twin, leaves)
            _seed(number)
            pairs.append((expected, captured(*(leaves[i] for i in self.tensors), clone=True)))
        return pairs

    def _of_tensors(self, model: Callable) -> Callable:
        def of_tensors(*tensors):
            leaves = list(self.inputs)
            for i, x in zip(self.tensors, tensors, strict=True):
                leaves[i] = x
            return self._run(model, leaves)

        return of_tensors

    def _refused(self, error: CaptureError) -> None:
        """The capture's own error, if it is none of those that are found already."""
        cause = _first(error)
        where = place_in(traceback.format_tb(cause.__traceback__))
        known = {(f.place.file, f.place.line) for f in self.found.values() if f.place and f.severity == STOPS}
        if where is None and known or where and (where.file, where.line) in known:
            return
        if "107025" in str(cause):
            self._add("unjoined", "a side stream", self.aside)
        elif re.search(REFUSED, str(cause)):  # of Python that hides its operators, as printing does
            self._add("waits", device.brief(cause), where)
        else:
            self._add("refused", device.brief(cause), where)

    # ---- the gain

    def _gain(self, captured: bool) -> tuple[Gain | None, str]:
        if device.activate(threads=None, verbose=False).kind == "ascend":
            clock, source = contextlib.nullcontext(), "measured"
        else:
            clock, source = ascend_sim.paced(ascend_sim.Card.load(CARD)), f"modelled for {CARD}"
        source += f", TASK_QUEUE_ENABLE={device.task_queue()}"
        eager, graphed, inputs = self._copy(), self._copy(), _on_device(self.inputs)
        few = dict(repeats=3, warmup=2)  # a model with a state may stand only so many calls
        try:
            with clock:
                eager_ms = bench.measure(lambda: self._run(eager, inputs), **few).median_ms
                if not captured:
                    _, busy = bench.kernel_times(lambda: self._run(eager, inputs), runs=1)
                    return (Gain(eager_ms, busy, None, source, True), "") if busy else (None, "there is no graph")
                graph = capture(self._of_tensors(graphed), *(inputs[i] for i in self.tensors), warmup=WARM_UP)
                replay_ms = bench.measure(graph.graph.replay, **few).median_ms
            return Gain(eager_ms, replay_ms, sum(graph.seconds) * 1e3, source), ""
        except (RuntimeError, ValueError) as error:  # Python asks for a value that the paced clock does not compute
            return None, device.brief(error)

    def _add(self, kind: str, what: str, where: Place | None = None, times: int = 1) -> None:
        self.found.setdefault((kind, where or what), Finding(kind, what, where, times))


def _first(error: CaptureError) -> BaseException:
    """The error that made a capture fail: its end may fail as a consequence."""
    cause = error.__cause__
    while cause.__context__ is not None:
        cause = cause.__context__
    return cause


class _NoAclnn(Exception):
    """An operator that this device runs neither in a capture nor without: text and place."""


def _failed(error: Exception, whose: str) -> CheckError:
    if isinstance(error, CheckError):
        return error
    with contextlib.suppress(RuntimeError):  # what the device still has to say of it would hit the next one to wait
        torch.npu.synchronize()
    hint = ": it does not take their elements in another order, so give it fresh inputs" if "shuffled" in whose else ""
    said = f"{type(error).__name__}: {device.brief(error)}"
    return CheckError(f"the model fails in eager on its {whose}, before any capture{hint}. {said}")


def _copied(model: Callable) -> Callable:
    """A copy on the device. Python copies a module, but not a function with the variables around it: here it does."""
    kinds = {FunctionType: _copied_function, ModuleType: lambda module, memo: module}
    with mock.patch.dict(copy._deepcopy_dispatch, kinds), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is copied
        model = copy.deepcopy(model)
    for module in modules_of(model).values():
        nn.Module.to(module, "npu")  # a model may have an attribute of that name
    return model


def _copied_function(function: FunctionType, memo: dict) -> FunctionType:
    if not function.__closure__:
        return function
    cells = [CellType() for _ in function.__closure__]
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    made.__kwdefaults__ = function.__kwdefaults__
    memo[id(function)] = made  # it may hold itself
    for cell, old in zip(cells, function.__closure__, strict=True):
        with contextlib.suppress(ValueError):  # empty
            cell.cell_contents = copy.deepcopy(old.cell_contents, memo)
    return made


def _on_device(leaves: list) -> list:
    """Copies on the device. What is one tensor stays one."""
    made: dict[tuple, torch.Tensor] = {}
    return [made.setdefault(_view(x), x.to("npu", copy=True)) if isinstance(x, torch.Tensor) else x for x in leaves]


def _view(x: torch.Tensor) -> tuple:
    return (x.data_ptr() or id(x), x.dtype, x.shape, x.stride()) if x.layout is torch.strided else (id(x),)


def _shuffled(leaves: list) -> list:
    made: dict[tuple, torch.Tensor] = {}
    return [made.setdefault(_view(x), bench._shuffled(x)) if isinstance(x, torch.Tensor) else x for x in leaves]


def _tensors(outputs) -> list[torch.Tensor]:
    """All tensors of the outputs, and all numbers of Python as tensors: a replay would keep those."""
    leaves = tree_leaves(outputs)
    if not any(isinstance(x, torch.Tensor) for x in leaves):
        raise CheckError(f"the model gives a {type(outputs).__name__} without tensors: there is nothing to compare")
    found = (torch.tensor(float(x), dtype=torch.float64) if isinstance(x, (int, float)) else x for x in leaves)
    return [x for x in found if isinstance(x, torch.Tensor)]


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Bit for bit, except that not-a-number equals itself."""
    return len(a) == len(b) and all(
        x.shape == y.shape
        and torch.equal(torch.nan_to_num(x), torch.nan_to_num(y))
        and torch.equal(x.isnan(), y.isnan())
        for x, y in zip(a, b, strict=True)
    )


def _alike(pairs: list[tuple]) -> bool:
    """Are eager calls and replays draws of the same distribution? Means of each element within the noise, spreads
    within a factor of two, and what is not random equal.
    """
    eager, replayed = (
        torch.stack([torch.cat([x.cpu().double().reshape(-1) for x in outputs]) for outputs in side])
        for side in zip(*pairs, strict=True)
    )
    apart, noise = eager.mean(0) - replayed.mean(0), eager.var(0) + replayed.var(0)
    drawn = noise > 0
    if not drawn.any() or not torch.equal(eager[0, ~drawn], replayed[0, ~drawn]):
        return False
    spreads = eager.var(0)[drawn].mean() / replayed.var(0)[drawn].mean()
    return 0.5 < spreads < 2 and bool((apart[drawn] ** 2 / noise[drawn] * len(pairs)).mean() < 9)  # 1 is expected


def _plain(name: str) -> str:
    """aten.sum.dim_IntList is sum for a reader."""
    name = name.split(".")[1] if name.count(".") > 1 else name
    return {"_local_scalar_dense": "item()", "_to_copy": "a copy", "lift_fresh": "torch.tensor"}.get(name, name)


def _line(error: str) -> str:
    return device.brief(RuntimeError(error))


def _made_anew(op) -> bool:
    return "npu" in " ".join(op.numbers) and _plain(op.name) in (
        "arange", "full", "ones", "zeros", "eye", "linspace", "tril_indices", "triu_indices"
    )  # fmt: skip


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
    except (OSError, TypeError):
        return None
    itself = next(iter(inspect.signature(type(module).forward).parameters))
    at = next((n for n, line in enumerate(lines) if re.search(rf"\b{itself}\.{attribute}\b", line)), None)
    return None if at is None else Place(inspect.getsourcefile(type(module)), start + at, lines[at].strip())
