"""Checks of the exercises of notebook 2, *Watch eager execution*."""

import numbers
from unittest import mock

import ascend_sim

import torch

from .. import models
from .checking import Wrong, exercise


def _counted(layers: int) -> int:
    """Kernels of one forward pass of a small GenMol."""
    model = models.genmol(32, layers, vocab=64).to("npu")
    inputs = [x.to("npu") for x in model.inputs(1, 8)]
    with torch.no_grad(), ascend_sim.trace() as spans:
        model(*inputs)
    return len(spans)


def _compare(answer, counted: dict[int, int]) -> tuple[int, int]:
    """Kernels of a layer and of the rest, counted. Raises Wrong for an answer that says otherwise.

    counted: kernels for two numbers of layers.
    """
    (few, many), (fewer, more) = counted, counted.values()
    said = {layers: answer(layers) for layers in counted}
    if not all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in said.values()):
        raise Wrong(f"return a whole number for {few} layers; yours is {said[few]!r}")
    layer = (more - fewer) // (many - few)
    rest = fewer - few * layer
    if said == counted:
        return layer, rest
    grows = said[many] - said[few]
    if grows == 0:
        raise Wrong(f"you say {said[few]} for {few} layers and for {many}: each layer launches kernels of its own")
    if grows != more - fewer:
        raise Wrong(
            f"from {few} to {many} layers your number grows by {grows}, the counted one by {more - fewer}: take the "
            "kernels of one layer from the difference of two counts"
        )
    raise Wrong(
        f"your number grows rightly with the layers, but is {abs(said[few] - fewer)} too "
        f"{'small' if said[few] < fewer else 'large'}: what lies outside the layers, embeddings and head, is there once"
    )


@exercise
def kernels_of(answer) -> str:
    layer, rest = _compare(answer, {layers: _counted(layers) for layers in (2, 5)})
    return (
        f"{layer} kernels a layer and {rest} outside, so 24 layers launch {24 * layer + rest}. That model is as "
        "launch-bound as one of 12 layers: both numbers of the rule are those of one launch"
    )


def _written_out(x, approximate: str = "none"):
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


@exercise
def kernels_unfused(answer) -> str:
    x = torch.ones(3, device="npu")
    with ascend_sim.trace() as spans:
        _written_out(x)
    names = [span.name for span in spans]
    fused = {layers: _counted(layers) for layers in (2, 5)}
    with mock.patch("torch.nn.functional.gelu", _written_out):
        counted = {layers: _counted(layers) for layers in fused}
    said = {layers: answer(layers) for layers in counted}
    if said == fused:
        raise Wrong("these are the numbers with GELU as one kernel; written out, each operator is a kernel of its own")
    if said == {layers: fused[layers] + layers * len(names) for layers in fused}:
        raise Wrong("you add the kernels of the GELU that is written out, and keep the fused one that it replaces")
    if said == {layers: fused[layers] + layers * (len(names) - 1) for layers in fused}:
        raise Wrong("one GELU is not in a layer: the head of the model has one, too. Trace the model, or read it")
    _compare(answer, counted)
    return (
        f"written out, a GELU is {len(names)} kernels ({', '.join(names)}), and there is one in each layer and one in "
        f"the head: {answer(12)} kernels for 12 layers, where the fused one makes it {models.kernels(12)}"
    )


def _spans(launch: float, kernel: float, count: int = 20, latency: float = 1.0, pause: float = 0.0) -> list:
    """Spans of two calls of ``count`` kernels, all times in us. Before the second call the host waits for the device.

    latency: from a launch to the start of its kernel on an idle device. pause: what the host does after the wait.
    """
    spans, host, free = [], 0.0, 0.0
    for call in range(2):
        if call:
            host = max(host, free) + pause
        for _ in range(count):
            started = max(host + latency, free)
            free = started + kernel
            spans.append(ascend_sim.Span(0, "aclnnAdd", host * 1e-6, started * 1e-6, free * 1e-6))
            host += launch
    return spans


@exercise
def bound_by(answer) -> str:
    cases = [
        (_spans(launch=10, kernel=3), "launch", "launches are 10 us apart and kernels take 3 us"),
        (_spans(launch=10, kernel=40), "compute", "launches are 10 us apart and kernels take 40 us"),
        (
            _spans(launch=60, kernel=20),
            "launch",
            "launches are 60 us apart and kernels take 20 us: compare the two, and not one of them with a number",
        ),
        (_spans(launch=2, kernel=8), "compute", "launches are 2 us apart and kernels take 8 us: compare the two"),
        (
            _spans(launch=10, kernel=3, latency=8),
            "launch",
            "launches are 10 us apart and kernels take 3 us, but start 8 us after their launch: the time in the queue "
            "is none of the kernel's",
        ),
        (
            _spans(launch=10, kernel=40, pause=3000),
            "compute",
            "launches are 10 us apart and kernels take 40 us, but between two calls the host waits for the device and "
            "then does something else for 3000 us: that is no launch, and a mean counts it as one",
        ),
    ]
    for spans, bound, what in cases:
        said = answer(spans)
        if not isinstance(said, str) or said.removesuffix("-bound") not in ("launch", "compute"):
            raise Wrong(f'return "launch" or "compute"; yours is {said!r}')
        if said.removesuffix("-bound") != bound:
            raise Wrong(f"these spans are {bound}-bound: {what}")
    return "the right word for six lists of spans, one with a pause that is no launch"
