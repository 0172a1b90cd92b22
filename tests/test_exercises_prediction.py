"""Exercises of notebook 7: what each wrong answer is told."""

import itertools
from fractions import Fraction

import numpy as np
import pytest


def exact(kernels, launch_us, first=0):
    end = 0.0
    for i, kernel in enumerate(kernels, first):
        end = max(end, i * launch_us / 1e3) + kernel
    return end


def by_sums(kernels, launch_us):
    """The same in another spelling: the kernels after the last time that the device waited for a launch."""
    rest = list(itertools.accumulate(reversed(kernels)))[::-1]
    return max(i * launch_us / 1e3 + after for i, after in enumerate(rest))


@pytest.mark.parametrize(
    "answer, says, why",
    [
        (lambda kernels, us: ..., "to do: ", ""),
        (lambda kernels, us: None, "not yet: give back a number; yours is a NoneType", ""),
        (
            lambda kernels, us: max(len(kernels) * us / 1e3, sum(kernels)),
            "not yet: 101 kernels",
            "the longer of the two",
        ),
        (lambda kernels, us: len(kernels) * us / 1e3 + sum(kernels), "not yet: 2 kernels", "the sum of both sides"),
        (lambda kernels, us: sum(kernels), "not yet: 101 kernels", "That leaves the launches out"),
        (lambda kernels, us: exact(kernels, us, first=1), "not yet: 2 kernels", "it is number 0"),
        (lambda kernels, us: exact(kernels, 1e3 * us), "not yet: 2 kernels", "a launch is in µs"),
        (lambda kernels, us: exact(sorted(kernels), us), "not yet: 101 kernels", "that gives 2.01 ms"),
        (by_sums, "solved: ", "a lower bound"),
        (lambda kernels, us: np.float64(exact(kernels, us)), "solved: ", "a lower bound"),
        (lambda kernels, us: Fraction(exact(kernels, us)), "solved: ", "a lower bound"),
        (lambda kernels, us: True, "not yet: give back a number; yours is a bool", ""),
    ],
)
def test_exact_ms(answer, says, why, verdict):
    said = verdict(answer, "exact_ms")
    assert said.startswith(says) and why in said


def eager(stretches, launch_us, sync_us):
    return sum(max(n * launch_us / 1e3, kernels) + sync_us / 1e3 for n, kernels in stretches)


def whole(stretches):
    return [(sum(n for n, _ in stretches), sum(kernels for _, kernels in stretches))]


@pytest.mark.parametrize(
    "answer, says, why",
    [
        (lambda *_: ..., "to do: ", ""),
        (lambda *_: "much", "not yet: give back a number", ""),
        (eager, "not yet: stretches (100, 5), (200, 0.5), a launch of 20 µs", "That is the whole call"),
        (lambda s, us, sync: (len(s) - 1) * sync / 1e3, "not yet: stretches (100, 5)", "the waking up alone"),
        (lambda s, us, sync: eager(s, us, sync) - eager(whole(s), us, 0), "not yet: ", "there still is one at the end"),
        (lambda s, us, sync: eager(s, us, 0) - eager(whole(s), us, 0), "not yet: ", "with the last one alone 6.01 ms"),
        (lambda s, us, sync: eager(s, us, sync) - eager(whole(s), us, sync), "solved: ", "could have launched"),
    ],
)
def test_cost_of_waits_ms(answer, says, why, verdict):
    said = verdict(answer, "cost_of_waits_ms")
    assert said.startswith(says) and why in said


def proportional(launches_ms, rows, speedup):
    batch, kernels = next(iter(rows.items()))
    return launches_ms / speedup / kernels * batch


def by_halving(launches_ms, rows, speedup):
    (b1, k1), (b2, k2) = rows.items()
    low, high = -1e3, 1e4
    for _ in range(100):
        batch = (low + high) / 2
        kernels = k1 + (k2 - k1) / (b2 - b1) * (batch - b1)
        low, high = (batch, high) if kernels < launches_ms / speedup else (low, batch)
    return batch


def of_the_launches(launches_ms, rows, speedup):
    return by_halving(launches_ms, rows, 1.0)


@pytest.mark.parametrize(
    "answer, says, why",
    [
        (lambda *_: ..., "to do: ", ""),
        (lambda *_: [8], "not yet: give back a number; yours is a list", ""),
        (proportional, "not yet: launches of 5 ms, kernels: batch 8 2.5 ms, batch 16 4.5 ms", "a speed-up of "),
        (of_the_launches, "not yet: launches of 5 ms, kernels: batch 8 2 ms", "so a speed-up of 1"),
        (lambda launches_ms, rows, speedup: -50, "not yet: launches of 5 ms", "which can't be"),
        (by_halving, "solved: ", "at batch 11.3"),
    ],
)
def test_bend(answer, says, why, verdict):
    said = verdict(answer, "bend")
    assert said.startswith(says) and why in said
