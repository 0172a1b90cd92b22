"""Checks of the exercises of notebook 6, *Pull the right lever*."""

import random

import ascend_sim

import torch

from .. import bench
from ..models.nucleotide_transformer import gelu
from ..waits import ReadBacks
from .checking import Wrong, exercise

ANSWERS = ("graph", "no-waits", "kernels")
WORTH = 1.1  # the gain that the exercise asks for


@exercise
def lever_for(answer) -> str:
    for case in _cases():
        launches, launch_us, kernels_ms, waits = case
        launches_ms = launches * launch_us / 1e3
        right, why = _lever(launches_ms, kernels_ms, waits)
        said = answer(*case)
        if said not in ANSWERS:
            raise Wrong(f"the answer is one of {', '.join(map(repr, ANSWERS))}; yours is {said!r}")
        if said != right:
            raise Wrong(
                f"lever_for({launches}, {launch_us:g}, {kernels_ms:g}, {waits}) gives {said!r}. But the launches take "
                f"{launches_ms:.2f} ms and the kernels {kernels_ms:.2f} ms: {why}"
            )
    return (
        "the longer side says which lever helps, and the shorter one how far: a host's lever gains at most launches "
        "by kernels. Waits come before the graph, since a capture refuses them"
    )


def _cases() -> list[tuple[int, float, float, int]]:
    """(launches, us of a launch, ms of all kernels, waits): of each kind, then random ones."""
    cases = [
        (215, 25.0, 1.8, 0),  # GenMol with few rows
        (215, 25.0, 58.0, 0),  # and with many
        (600, 30.0, 9.0, 48),  # ClimaX as published
        (1300, 20.0, 1900.0, 30),  # Aurora
        (500, 20.0, 9.8, 0),  # the launches are the longer side, by 2 %
        (500, 20.0, 9.8, 12),
    ]
    draw = random.Random(0)
    while len(cases) < 100:
        launches, launch_us = draw.randrange(5, 2000), round(draw.uniform(2, 60), 1)
        kernels_ms = round(draw.choice((0.03, 0.3, 1, 3)) * launches * launch_us / 1e3, 2)
        waits = draw.choice((0, 0, 7))
        if kernels_ms and not 0.9 < launches * launch_us / 1e3 / kernels_ms / WORTH < 1.1:  # clear ones alone
            cases.append((launches, launch_us, kernels_ms, waits))
    return cases


def _lever(launches_ms: float, kernels_ms: float, waits: int) -> tuple[str, str]:
    """The lever, by the two bounds, and why."""
    if launches_ms <= kernels_ms:
        return "kernels", "a lever of the host's side can't make a call shorter than its kernels"
    gain = launches_ms / kernels_ms
    if gain < WORTH:
        return "kernels", f"a lever of the host's side makes it {gain:.2f} times as fast at most, not {WORTH}"
    if waits:
        return "no-waits", f"the host is the longer side, but it waits {waits} times, and a capture refuses each wait"
    return "graph", "the host is the longer side, and no wait stands in the way of a capture"


@exercise
def slower_host(answer) -> str:
    given = ascend_sim.Card.load()
    for card in (given, given.corners()[1]):
        slow = answer(card)
        if not isinstance(slow, ascend_sim.Card):
            raise Wrong(f"give back a card; yours is a {type(slow).__name__}")
        for name in ascend_sim.pacing.CONSTANTS:
            before, after = getattr(card, name), getattr(slow, name)
            if name in ("plan_us", "launch_us"):
                if getattr(after, "value", None) != 2 * before.value:
                    raise Wrong(f"{name} is {before.value:g} on the given card, so {2 * before.value:g} on a host half "
                                f"as fast; yours has {getattr(after, 'value', after)}")  # fmt: skip
            elif after != before:
                raise Wrong(f"{name} has changed too: take the card that was given, and change plan_us and launch_us "
                            "alone")  # fmt: skip
        try:
            slow.check()
        except ascend_sim.pacing.CardError as error:
            raise Wrong(f"the clock does not take this card: {error}. The range moves with the value") from None
    (eager, replay), (slow_eager, slow_replay) = map(_eager_and_replay_ms, (given, answer(given)))
    return (
        f"100 small kernels, modelled: eager {eager:.2f} ms becomes {slow_eager:.2f} ms, a replay of {replay:.2f} ms "
        f"stays at {slow_replay:.2f} ms. The slower the host, the more a graph gains"
    )


def _eager_and_replay_ms(card: ascend_sim.Card) -> tuple[float, float]:
    with ascend_sim.paced(card):
        x = torch.zeros(16, device="npu")

        def call():
            for _ in range(100):
                x.add_(1)

        call()
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            call()
        return tuple(bench.measure(f, seconds=0.05).median_ms for f in (call, graph.replay))


@exercise
def fused_layer(answer) -> str:
    card = ascend_sim.Card.load()
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=draw).to("npu") / 3 for shape in ((64, 32), (48, 32), (48,)))
    published = _published(x, weight, bias)
    given = [t.clone() for t in (x, weight, bias)]
    with ReadBacks() as reads:
        y = answer(x, weight, bias)
    if not isinstance(y, torch.Tensor) or y.shape != published.shape or y.device != published.device:
        said = f"{list(y.shape)} on {y.device.type}" if isinstance(y, torch.Tensor) else f"a {type(y).__name__}"
        raise Wrong(f"the layer gives a tensor of shape {list(published.shape)} on the NPU; yours is {said}")
    if not all(map(torch.equal, given, (x, weight, bias))):
        raise Wrong("your function changes what it was given: it must leave x, weight and bias as they are")
    apart = (y - published).abs().max().item()
    if 1e-5 < apart < 2e-3:
        raise Wrong(f"at most {apart:.0e} from the published layer: more than a rounding. Which gelu does your kernel "
                    "compute, the one with erf or its approximation by tanh?")  # fmt: skip
    if not apart <= 1e-5:
        raise Wrong(f"the results differ by up to {apart:.2g}, so this is another layer. Is the weight transposed, and "
                    "the bias added before the gelu?")  # fmt: skip
    if reads.count:
        raise Wrong("the layer was not computed on the device alone: your function reads values from it")
    before, after = (ascend_sim.work(lambda f=f: f(x, weight, bias), card) for f in (_published, answer))
    if not after:
        raise Wrong("no kernel ran in a second call: compute the layer in each, from what it is given")
    if any(span.name == "aclnnGelu" for span in after):
        raise Wrong("F.gelu is equal here, on the simulated device. On an Ascend it takes the approximation by tanh, "
                    "its documentation says: which call lets you choose?")  # fmt: skip
    if len(after) > 2:
        names = ", ".join(span.name for span in after)
        raise Wrong(f"{len(after)} kernels ({names}), and two are enough: one for product and bias, one for the gelu")
    return (
        f"{len(after)} kernels in the place of {len(before)}, {card.seconds(after) * 1e6:.1f} µs in that of "
        f"{card.seconds(before) * 1e6:.1f} (modelled), and equal within a rounding. This lever shortens both sides"
    )


def _published(x, weight, bias):
    return gelu(x @ weight.t() + bias)
