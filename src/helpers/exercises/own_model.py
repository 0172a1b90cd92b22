"""Checks of the exercises of notebook 9, *Check your own model*."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from .. import check as ask
from ..findings import STOPS, WRONG, Finding, Report
from .checking import Wrong, exercise

WIDTH, LAYERS = 16, 6


class _Reference(nn.Module):
    """What the model of the exercise computes, in the form that a graph can hold."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        x = x - x.mean()
        x = x / x.abs().max()
        for layer in self.layers:
            x = 0.75 * x + 0.25 * F.silu(layer(x))
        return x


@exercise
def repaired_mixer(answer) -> str:
    model = answer()
    if not isinstance(model, nn.Module):
        raise Wrong(f"give back the model, an nn.Module; yours is a {type(model).__name__}")
    draw = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, WIDTH, generator=draw) + 1 for _ in range(3)]
    report = _asked(model, batches[0], fresh=(batches[1],))
    if told := _to_do(report):
        raise Wrong(told)
    reference = _Reference()
    try:
        reference.load_state_dict({k: v for k, v in model.state_dict().items() if k.startswith("layers.")})
    except RuntimeError:
        raise Wrong(f"the model has {LAYERS} linear layers of width {WIDTH}, in self.layers: leave them") from None
    model, reference = model.to("npu"), reference.to("npu")
    with torch.no_grad():
        for x in batches:
            apart = (model(x.to("npu")) - reference(x.to("npu"))).abs().max().item()
            if not apart < 1e-4:
                raise Wrong(f"ready, but it is another model now: its outputs differ from those of the published one "
                            f"by up to {apart:.2g}")  # fmt: skip
    return (
        f"ready, {report.equal} of {report.replays} replays equal eager, and the outputs are those of the published "
        "model. The second half no tool can tell you: compare with what you had"
    )


@exercise
def silent_fault(answer) -> str:
    model, inputs, _ = _given(answer())
    report = ask(model, *inputs)
    stops = [f for f in report.findings if f.severity == STOPS]
    masks = next((f for f in report.findings if f.kind == "masks"), None)
    if masks and not stops:
        return (
            "nothing is refused, and a replay may be right by luck, so it was not tried. The check names "
            f"{_short(masks)}"
        )
    if stops or report.error:
        raise Wrong(f"a capture refuses that one, so it is loud: {_short(stops[0]) if stops else report.error}")
    wrong = [f for f in report.findings if f.severity == WRONG]
    if report.equal == report.replays:
        found = f"; found is {_short(wrong[0])}" if wrong else ""
        raise Wrong(f"{report.equal} of {report.replays} replays equal eager: nothing goes wrong there{found}")
    if not wrong or wrong[0].kind == "differs":
        return f"{report.equal} of {report.replays} replays equal eager, and not even the check can say at which line"
    return (
        f"the capture raises nothing, and {report.equal} of {report.replays} replays equal eager. The check names "
        f"{_short(wrong[0])}"
    )


@exercise
def varied_factory(answer) -> str:
    model, inputs, fresh = _given(answer())
    report = _asked(model, *inputs, fresh=fresh)
    if told := _to_do(report):
        raise Wrong(told)
    single = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.numel() == 1]
    if not single:
        raise Wrong("the exercise asks for a model with an input of one element, beside the batch")
    if fresh is None:
        raise Wrong(f"input {single[0]} has one element, and another order of it is the same: so it was not varied. "
                    "Give fresh inputs, too")  # fmt: skip
    for i, (old, new) in enumerate(zip(inputs, fresh, strict=True)):
        if isinstance(old, torch.Tensor) and torch.equal(old.cpu(), new.cpu()):
            raise Wrong(f"fresh input {i} is the same as the captured one: a model that ignores it would pass")
    for i in single:
        if _ignores(model, inputs, i, fresh[i]):
            raise Wrong(f"the output does not depend on input {i}: a check of it proves nothing")
    return (
        f"ready, {report.equal} of {report.replays} replays equal eager, and every input was varied. In a file, "
        "`python -m helpers check file:varied_factory` asks the same and exits with 0"
    )


def _ignores(model, inputs, i: int, other: torch.Tensor) -> bool:
    """Does the output stay the same where input ``i`` is another?"""
    if isinstance(model, nn.Module):
        model = model.to("npu")
    on_device = [x.to("npu") if isinstance(x, torch.Tensor) else x for x in inputs]
    with torch.no_grad():
        first = model(*on_device).clone()
        on_device[i] = other.to("npu")
        return torch.equal(first, model(*on_device))


def _given(said) -> tuple:
    """(model, inputs, fresh inputs or None) of what a factory gives."""
    if not isinstance(said, tuple) or len(said) not in (2, 3) or not callable(said[0]):
        raise Wrong("give back (model, inputs) or (model, inputs, fresh_inputs)")
    if not all(isinstance(part, tuple) and part for part in said[1:]):
        raise Wrong("inputs are a tuple, also of a single tensor: (x,)")
    return (*said, None)[:3]


def _asked(model, *inputs, fresh) -> Report:
    """The report without its verdict on the gain: that is timed, and not what these exercises are about."""
    return replace(ask(model, *inputs, fresh=fresh), hopeless="")


def _to_do(report: Report) -> str:
    """The verdict and the first finding, or "" for a model that is ready."""
    if report.ready:
        return ""
    first = next((f for f in report.findings if f.severity in (STOPS, WRONG)), None)
    return report.verdict + (f". First, {_short(first)}. Do: {first.how}" if first else f": {report.error}")


def _short(found: Finding) -> str:
    at = f"line {found.place.line}, `{found.place.expression}`, " if found.place else ""
    return f"{at}{found.what} ({found.severity}): {found.why}"
