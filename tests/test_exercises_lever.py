"""Exercises of notebook 6: what each wrong answer is told."""

import dataclasses

import ascend_sim

import pytest
import torch
import torch_npu
from torch.nn import functional as F


def by_the_longer_side(launches, launch_us, kernels_ms, waits):
    if launches * launch_us / 1e3 <= kernels_ms:
        return "kernels"
    return "no-waits" if waits else "graph"


def in_wrong_units(launches, launch_us, kernels_ms, waits):
    return "no-waits" if waits else "graph" if launches * launch_us > kernels_ms else "kernels"


def waits_first(launches, launch_us, kernels_ms, waits):
    return "no-waits" if waits else "graph" if launches * launch_us / 1e3 > 1.1 * kernels_ms else "kernels"


def a_graph_in_spite_of_waits(launches, launch_us, kernels_ms, waits):
    return "graph" if launches * launch_us / 1e3 > 1.1 * kernels_ms else "kernels"


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda *_: ..., "to do: "),
        (
            lambda *_: "task-queue",
            "not yet: the answer is one of 'graph', 'no-waits', 'kernels'; yours is 'task-queue'",
        ),
        (lambda *_: "graph", "not yet: lever_for(215, 25, 58, 0) gives 'graph'. But the launches take 5.38 ms"),
        (in_wrong_units, "not yet: lever_for(215, 25, 58, 0) gives 'graph'"),
        (waits_first, "not yet: lever_for(1300, 20, 1900, 30) gives 'no-waits'"),
        (a_graph_in_spite_of_waits, "not yet: lever_for(600, 30, 9, 48) gives 'graph'"),
        (by_the_longer_side, "not yet: lever_for(500, 20, 9.8, 0) gives 'graph'"),
    ],
)
def test_lever_for(answer, says, verdict):
    assert verdict(answer, "lever_for").startswith(says)


def test_lever_for_says_why(verdict):
    assert verdict(by_the_longer_side, "lever_for").endswith(
        "a lever of the host's side makes it 1.02 times as fast at most, not 1.1"
    )


def doubled(card, *names, range_too=True):
    def twice(c):
        more = dict(low=2 * c.low, high=2 * c.high) if range_too else {}
        return dataclasses.replace(c, value=2 * c.value, **more)

    return dataclasses.replace(card, **{name: twice(getattr(card, name)) for name in names})


HOST = ("plan_us", "launch_us")


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda card: ..., "to do: "),
        (lambda card: None, "not yet: give back a card; yours is a NoneType"),
        (lambda card: card, "not yet: plan_us is "),
        (lambda card: doubled(card, "launch_us"), "not yet: plan_us is "),
        (lambda card: doubled(card, *HOST, "kernel_us"), "not yet: kernel_us has changed too"),
        (lambda card: doubled(card, *HOST, "replay_us"), "not yet: replay_us has changed too"),
        (lambda card: doubled(card, *HOST, range_too=False), "not yet: the clock does not take this card: "),
        (lambda card: dataclasses.replace(card, plan_us=10.0), "not yet: plan_us is "),
        (lambda card: doubled(ascend_sim.Card.load(), *HOST), "not yet: "),  # not of the card that was given
        (lambda card: doubled(card, *HOST), "solved: "),
    ],
)
def test_slower_host(answer, says, verdict):
    assert verdict(answer, "slower_host").startswith(says)


def npu_gelu(x, approximate="none"):
    return torch_npu.npu_gelu(x, approximate=approximate)


def in_place(x, weight, bias):
    return npu_gelu(F.linear(x, weight, bias.add_(1)))


def on_the_host(x, weight, bias):
    return F.gelu(F.linear(x.cpu(), weight.cpu(), bias.cpu())).npu()


def kept_from_the_first_call():
    kept = []

    def fused_layer(x, weight, bias):
        kept.append(kept[0] if kept else npu_gelu(F.linear(x, weight, bias)))
        return kept[0]

    return fused_layer


def half_on_the_host(x, weight, bias):
    return F.gelu(F.linear(x, weight, bias).cpu()).npu()


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda x, w, b: ..., "to do: "),
        (on_the_host, "not yet: the layer was not computed on the device alone"),
        (kept_from_the_first_call(), "not yet: no kernel ran in a second call"),
        (half_on_the_host, "not yet: the layer was not computed on the device alone"),
        (lambda x, w, b: x, "not yet: the layer gives a tensor of shape [64, 48] on the NPU; yours is [64, 32] on npu"),
        (lambda x, w, b: npu_gelu(F.linear(x, w, b)).cpu(), "not yet: the layer gives a tensor of shape"),
        (lambda x, w, b: npu_gelu(F.linear(x, w, b), "tanh"), "not yet: at most "),
        (lambda x, w, b: npu_gelu(F.linear(x, w)) + b, "not yet: the results differ by up to "),
        (lambda x, w, b: F.linear(x, w, b) * float("nan"), "not yet: the results differ by up to nan"),
        (in_place, "not yet: your function changes what it was given"),
        (
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
            "not yet: F.gelu is equal here, on the simulated device. On an Asc",
        ),
        (lambda x, w, b: npu_gelu(x @ w.t() + b), "not yet: 3 kernels (aclnnMatmul, aclnnAdd, aclnnGeluV2)"),
        (lambda x, w, b: npu_gelu(torch.addmm(b, x, w.t())), "solved: 2 kernels in the place of 7"),
    ],
)
def test_fused_layer(answer, says, verdict):
    assert verdict(answer, "fused_layer").startswith(says)
