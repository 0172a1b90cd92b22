"""Exercises of notebook 9: what each wrong answer is told."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class Mixer(nn.Module):
    """The model of the exercise, with the faults that are asked for."""

    def __init__(self, in_place=False, item=False, constant=False, share=0.25, width=16):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.faults, self.share = (in_place, item, constant), share

    def forward(self, x):
        in_place, item, constant = self.faults
        x = x.sub_(x.mean()) if in_place else x - x.mean()
        largest = x.abs().max()
        x = x / (largest.item() if item else largest)
        share = torch.tensor(self.share, device=x.device) if constant else self.share
        for layer in self.layers:
            x = (1 - share) * x + share * F.silu(layer(x))
        return x


class OtherNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)))

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize(
    "answer, says, why",
    [
        (lambda: ..., "to do: ", ""),
        (lambda: Mixer, "not yet: give back the model, an nn.Module; yours is a type", ""),
        (lambda: Mixer(True, True, True), "not yet: ready after 3 changes. First, line ", "`largest.item()`"),
        (lambda: Mixer(True, False, True), "not yet: ready after 2 changes. First, line ", "`torch.tensor("),
        (lambda: Mixer(True), "not yet: ready after 1 change. First, line ", "it changes its input in place"),
        (lambda: Mixer(share=0.3), "not yet: ready, but it is another model now", ""),
        (OtherNames, "not yet: the model has 6 linear layers of width 16, in self.layers", ""),
        (Mixer, "solved: ready, 8 of 8 replays equal eager", ""),
    ],
)
def test_repaired_mixer(answer, says, why, verdict):
    def repaired_mixer():
        return answer()

    said = verdict(repaired_mixer)
    assert said.startswith(says) and why in said


def on_values(x):
    return x * 2 if x.sum() > 0 else x - 1


def by_chance(x):
    return x * random.random()


class Counts(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class OnlyCounts(Counts):
    def forward(self, x):
        self.calls += 1
        return x * 2


def attends(x):
    return F.dropout(F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), 0.5)


def attends_and_reads(x):
    return attends(x) * x.sum().item()


X = torch.arange(8.0)
HEADS = torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0)).half()


@pytest.mark.parametrize(
    "given, says",
    [
        (..., "to do: "),
        (Counts(), "not yet: give back (model, inputs)"),
        ((Counts(), X), "not yet: inputs are a tuple"),
        ((lambda x: x * 2, (X,)), "not yet: 8 of 8 replays equal eager: nothing goes wrong there"),
        ((OnlyCounts(), (X,)), "not yet: 8 of 8 replays equal eager: nothing goes wrong there; found is line "),
        ((on_values, (X,)), "not yet: a capture refuses that one, so it is loud: line "),
        ((Counts(), (X,)), "solved: the capture raises nothing, and "),
        ((by_chance, (X,)), "solved: the capture raises nothing, and 0 of 8 replays equal eager"),
        ((attends, (HEADS,)), "solved: nothing is refused, and a replay may be right by luck, so it was not tried"),
        ((attends_and_reads, (HEADS,)), "not yet: a capture refuses that one, so it is loud: line "),
    ],
)
def test_silent_fault(given, says, verdict):
    def silent_fault():
        return given

    assert verdict(silent_fault).startswith(says)


class Scaled(nn.Module):
    def __init__(self, reads=True):
        super().__init__()
        self.layers, self.reads = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12))), reads

    def forward(self, x, scale):
        return self.layers(x) * (scale if self.reads else 2)


A, B = torch.randn(2, 4, 16)
ONE, TWO = torch.tensor([1.0]), torch.tensor([2.0])


@pytest.mark.parametrize(
    "given, says",
    [
        (..., "to do: "),
        ((Scaled(), (A, TWO)), "not yet: input 1 has one element"),
        ((Scaled(), (A, TWO), (B, TWO)), "not yet: fresh input 1 is the same as the captured one"),
        ((Scaled(), (A, TWO), (A, ONE)), "not yet: fresh input 0 is the same as the captured one"),
        ((Scaled(), A, TWO), "not yet: inputs are a tuple"),
        ((Scaled(), (A, TWO), (B,)), "not yet: "),
        ((Scaled(), (A, TWO), (B[:2], ONE)), "not yet: "),
        ((Scaled(False), (A, TWO), (B, ONE)), "not yet: the output does not depend on input 1"),
        ((lambda x, scale: Scaled().npu()(x, scale).relu() * scale.item(), (A, TWO), (B, ONE)), "not yet: "),
        ((Scaled().layers, (A,), (B,)), "not yet: the exercise asks for a model with an input of one element"),
        ((Scaled(), (A, TWO), (B, ONE)), "solved: ready, 8 of 8 replays equal eager"),
    ],
)
def test_varied_factory(given, says, verdict):
    def varied_factory():
        return given

    assert verdict(varied_factory).startswith(says)
