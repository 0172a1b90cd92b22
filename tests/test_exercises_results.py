"""Exercises of notebook 5: what each wrong answer is told."""

import math
from fractions import Fraction

import helpers  # noqa: F401  before torch

import numpy as np
import pytest

SAME = ("model", "device", "clock", "tqe", "batch")


def key(r, names=SAME):
    return (*(r[name] for name in names), tuple(r["shape"].values()))


def paired(records, names=SAME):
    """Right with all of SAME; wrong with fewer."""
    found = {}
    for r in records:
        found.setdefault(key(r, names), {})[r["mode"]] = r
    return [(both["eager"], both["graph"]) for both in found.values() if len(both) == 2]


def without(name):
    return lambda records: paired(records, [n for n in SAME if n != name])


def of_shape(*names):
    """Pairs that compare these sizes alone."""

    def answer(records):
        return [
            (a, b)
            for a in records
            for b in records
            if (a["mode"], b["mode"]) == ("eager", "graph")
            and all(a[name] == b[name] for name in SAME)
            and all(a["shape"][name] == b["shape"][name] for name in names)
        ]

    return answer


def by_loops(records):
    """Another spelling: generators, and pairs as lists."""
    for a in records:
        for b in records:
            if a["mode"] == "eager" and b["mode"] == "graph" and key(a) == key(b):
                yield [a, b]


def zipped(records):
    by_mode = [[r for r in records if r["mode"] == mode] for mode in ("eager", "graph")]
    return list(zip(*by_mode, strict=False))


def swapped(records):
    return [(graph, eager) for eager, graph in paired(records)]


def times_only(records):
    return [(eager["median_ms"], graph["median_ms"]) for eager, graph in paired(records)]


def changed(records):
    records.sort(key=lambda r: r["mode"])
    return paired(records)


def speedups(records):
    return {
        eager["shape"]["width"]: eager["median_ms"] / graph["median_ms"]
        for eager, graph in sorted(paired(records), key=lambda pair: pair[0]["shape"]["width"])
    }


def largest(records):
    return max((width for width, gain in speedups(records).items() if gain >= 1.1), default=None)


def above(records):
    return max((width for width, gain in speedups(records).items() if gain > 1.1), default=None)


def sorts_the_records(records):
    records.sort(key=lambda r: r["median_ms"])
    return largest(records)


def graph_without_eager(records):
    """KeyError where a width has only a graph record."""
    eager, graph = (
        {r["shape"]["width"]: r["median_ms"] for r in records if r["mode"] == mode} for mode in ("eager", "graph")
    )
    return max((width for width in graph if eager[width] / graph[width] >= 1.1), default=None)


def last_graph(records):
    widths = [r["shape"]["width"] for r in records if r["mode"] == "graph"]
    return max(widths) if max(widths) > 256 else largest(records)


def smallest(records):
    return min((width for width, gain in speedups(records).items() if gain >= 1.1), default=None)


def up_to_the_first(records):
    last = None
    for width, gain in speedups(records).items():
        if gain < 1.1:
            break
        last = width
    return last


def a_tenth_of_eager(records):
    return max((width for width, gain in speedups(records).items() if 1 / gain <= 0.9), default=None)


def always(records):
    return max(speedups(records))


def pays_at_all(records):
    return max((width for width, gain in speedups(records).items() if gain > 1), default=None)


def last_eager(records):
    """The last width is what a record without its other half has."""
    widths = [r["shape"]["width"] for r in records if r["mode"] == "eager"]
    return max(widths) if max(widths) > 256 else largest(records)


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda launch, kernel: ..., "to do: "),
        (lambda launch, kernel: max(1, launch / kernel), "solved: "),
        (lambda launch, kernel: launch / kernel if kernel < launch else 1.0, "solved: "),
        (lambda launch, kernel: np.float64(max(1, launch / kernel)), "solved: "),
        (lambda launch, kernel: max(Fraction(1), Fraction(launch) / Fraction(kernel)), "solved: "),
        (lambda launch, kernel: None, "not yet: a speed-up is a number"),
        (lambda launch, kernel: True, "not yet: a speed-up is a number; for launches of 13 µs and kernels of 2 µs"),
        (lambda launch, kernel: kernel / launch, "not yet: for launches of 13 µs and kernels of 2 µs yours is 0.154: "
         "that is the wrong way round"),
        (lambda launch, kernel: launch / kernel, "not yet: for launches of 13 µs and kernels of 46 µs yours is 0.283: "
         "a replay would be slower"),
        (lambda launch, kernel: (launch + kernel) / kernel, "not yet: for launches of 13 µs and kernels of 2 µs yours "
         "is 7.5: that adds"),
        (lambda launch, kernel: 6.5, "not yet: for launches of 13 µs and kernels of 5.2 µs yours is 6.5. What"),
        (lambda launch, kernel: round(launch / kernel) or 1, "not yet: "),
        (lambda launch, kernel: math.nan, "not yet: "),
    ],
)  # fmt: skip
def test_predict_speedup(answer, says, verdict):
    assert verdict(answer, "predict_speedup").startswith(says)


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda records: ..., "to do: "),
        (lambda records: paired(records), "solved: 5 pairs. 6 records stay alone"),
        (by_loops, "solved: "),
        (lambda records: None, "not yet: the result is a list of pairs of records; yours is None"),
        (lambda records: [], "not yet: eager of genmol"),
        (lambda records: paired(records)[1:], "not yet: eager of genmol"),
        (lambda records: paired(records) * 2, "not yet: one pair is there twice"),
        (zipped, "not yet: do not compare eager of"),
        (without("device"), "solved: "),  # the clock tells an Ascend, too
        (without("clock"), "not yet: do not compare eager of genmol 64×16×1"),
        (without("tqe"), "not yet: do not compare eager of genmol"),
        (without("model"), "not yet: do not compare eager of genmol"),
        (without("batch"), "not yet: do not compare eager of genmol"),
        (of_shape("width"), "not yet: do not compare eager of genmol"),
        (of_shape("width", "layers"), "not yet: do not compare eager of genmol 64×32×8"),
        (of_shape("width", "tokens"), "not yet: do not compare eager of genmol 64×16×1"),
        (of_shape("width", "layers", "tokens"), "solved: "),
        (swapped, "not yet: a pair is eager first"),
        (times_only, "not yet: a pair is (eager record, graph record)"),
        (changed, "not yet: the records are changed"),
    ],
)
def test_pair_records(answer, says, verdict):
    assert verdict(answer, "pair_records").startswith(says)


def test_the_sizes_that_differ_are_named(verdict):
    answer = of_shape("width", "tokens")
    assert verdict(answer, "pair_records").endswith("(shape, layers)")


def test_what_must_not_be_compared_is_said_with_its_reason(verdict):
    answer = without("clock")
    said = verdict(answer, "pair_records")
    assert "measured on the simulated device" in said and "modelled" in said
    assert said.endswith("one is measured and the other modelled (clock)")


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda records: ..., "to do: "),
        (largest, "solved: "),
        (lambda records: largest(records) and np.int64(largest(records)), "solved: "),
        (above, "not yet: the speed-ups are 32: 2, 64: 1.1, 128: 1, and you say 32: at least 10 %"),
        (sorts_the_records, "not yet: the records are changed"),
        (smallest, "not yet: the speed-ups are 32: 3.7, 64: 2.6, 128: 1.3, 256: 1.02, and you say 32"),
        (always, "not yet: the speed-ups are 32: 3.7, 64: 2.6, 128: 1.3, 256: 1.02, and you say 256"),
        (pays_at_all, "not yet: the speed-ups are 32: 3.7, 64: 2.6, 128: 1.3, 256: 1.02, and you say 256"),
        (up_to_the_first, "not yet: the speed-ups are 32: 3.7, 64: 1.04, 128: 1.4, 256: 0.98, and you say 32: one in"),
        (a_tenth_of_eager, "not yet: the speed-ups are 32: 2, 64: 1.105, 128: 1, and you say 32: 10 %"),
        (lambda records: largest(records) or 128, "not yet: the speed-ups are 32: 1.05, 64: 1.09, 128: 0.9, and you"),
        (last_eager, "not yet: the speed-ups are 32: 3.7, 64: 2.6, 128: 1.3, 256: 1.02, and a width 512 without graph"),
        (last_graph, "not yet: the speed-ups are 32: 3.7, 64: 2.6, 128: 1.3, 256: 1.02, and a width 512 without eager"),
        (graph_without_eager, "not yet: line "),
        (lambda records: 1.3, "not yet: the result is a width"),
        (lambda records: [largest(records)], "not yet: the result is a width"),
    ],
)
def test_largest_that_pays(answer, says, verdict):
    assert verdict(answer, "largest_that_pays").startswith(says)
