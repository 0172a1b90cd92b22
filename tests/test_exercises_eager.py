"""Exercises of notebook 2: what each wrong answer is told."""

import itertools
import statistics

from helpers import bench

import numpy as np
import pytest


def answers(name: str, formula: str):
    """A function of the exercise's name that returns the formula."""
    space = {"np": np}
    exec(f"def {name}(layers):\n    return {formula}", space)
    return space[name]


@pytest.mark.parametrize(
    "formula, says",
    [
        ("...", "to do: "),
        ("215 / 12 * layers", "not yet: return a whole number"),
        ("layers > 0", "not yet: return a whole number"),
        ("np.int64(17 * layers + 11)", "solved: 17 kernels a layer and 11 outside"),
        ("419", "not yet: you say 419 for 2 layers and for 5"),
        ("215 * layers // 12", "not yet: from 2 to 5 layers your number grows by 54, the counted one by 51"),
        ("17 * layers", "not yet: your number grows rightly with the layers, but is 11 too small"),
        ("17 * layers + 15", "not yet: your number grows rightly with the layers, but is 4 too large"),
        ("17 * layers + 11", "solved: 17 kernels a layer and 11 outside, so 24 layers launch 419"),
    ],
)
def test_kernels_of(formula, says, verdict):
    assert verdict(answers("kernels_of", formula)).startswith(says)


@pytest.mark.parametrize(
    "formula, says",
    [
        ("...", "to do: "),
        ("17 * layers + 11", "not yet: these are the numbers with GELU as one kernel"),
        ("22 * layers + 11", "not yet: you add the kernels of the GELU that is written out, and keep the fused one"),
        ("21 * layers + 11", "not yet: one GELU is not in a layer"),
        ("5 * layers", "not yet: from 2 to 5 layers your number grows by 15"),
        ("21 * layers + 15", "solved: written out, a GELU is 5 kernels"),
    ],
)
def test_kernels_unfused(formula, says, verdict):
    assert verdict(answers("kernels_unfused", formula)).startswith(says)


def kernel(spans):
    return statistics.mean(span.ended - span.started for span in spans)


def gaps(spans):
    return [after.enqueued - before.enqueued for before, after in itertools.pairwise(spans)]


def bound(launch, kernel):
    return "launch" if launch > kernel else "compute"


def other_words(spans):
    return True


def always_launch(spans):
    return "launch"


def swapped(spans):
    return bound(kernel(spans), statistics.median(gaps(spans)))


def by_a_number(spans):
    return bound(15e-6, kernel(spans))


def with_the_queue(spans):
    return bound(statistics.median(gaps(spans)), statistics.mean(span.ended - span.enqueued for span in spans))


def with_the_pause(spans):
    return bound(statistics.mean(gaps(spans)), kernel(spans))


def by_busy_share(spans):
    busy = kernel(spans) * len(spans) / (spans[-1].ended - spans[0].enqueued)
    return "launch-bound" if busy < 0.5 else "compute-bound"


@pytest.mark.parametrize(
    "answer, says",
    [
        (other_words, 'return "launch" or "compute"'),
        (always_launch, "these spans are compute-bound: launches are 10 us apart and kernels take 40 us"),
        (swapped, "these spans are launch-bound: launches are 10 us apart and kernels take 3 us"),
        (by_a_number, "these spans are launch-bound: launches are 60 us apart and kernels take 20 us: compare the two"),
        (
            with_the_queue,
            "these spans are launch-bound: launches are 10 us apart and kernels take 3 us, but start 8 us",
        ),
        (with_the_pause, "these spans are compute-bound: launches are 10 us apart and kernels take 40 us, but between"),
        (by_busy_share, "these spans are compute-bound: launches are 10 us apart and kernels take 40 us, but between"),
    ],
)
def test_bound_by(answer, says, verdict):
    assert verdict(answer, "bound_by").startswith(f"not yet: {says}")


def test_bound_by_may_look_at_the_order_of_events(verdict):
    def bound_by(spans):
        return "launch-bound" if bench.side_by_side(spans) > 0.5 else "compute-bound"

    assert verdict(bound_by).startswith("solved: ")
