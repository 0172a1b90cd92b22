"""Checks of the exercises of notebook 5, *Plot the results*."""

import copy
import math
import numbers
import random

from ..plots import source_of
from .checking import Wrong, exercise


@exercise
def predict_speedup(answer) -> str:
    for launch, kernel in ((13.0, 2.0), (13.0, 5.2), (9.0, 9.0), (13.0, 46.0)):
        got, case = answer(launch, kernel), f"launches of {launch:g} µs and kernels of {kernel:g} µs"
        if isinstance(got, bool) or not isinstance(got, numbers.Real):
            raise Wrong(f"a speed-up is a number; for {case} yours is a {type(got).__name__}")
        got = float(got)
        if math.isclose(got, max(1.0, launch / kernel), rel_tol=1e-9):
            continue
        if math.isclose(got, kernel / launch) or math.isclose(got, max(1.0, kernel / launch)):
            raise Wrong(
                f"for {case} yours is {got:.3g}: that is the wrong way round. Light kernels gain most, because it is "
                "the launches that a replay saves"
            )
        if math.isclose(got, (launch + kernel) / kernel):
            raise Wrong(
                f"for {case} yours is {got:.3g}: that adds launches and kernels. They overlap: eager takes the longer"
            )
        if got < 1:
            raise Wrong(
                f"for {case} yours is {got:.3g}: a replay would be slower than eager. Where the kernels are longer "
                "than the launches, eager takes the kernels and a replay takes the kernels"
            )
        raise Wrong(f"for {case} yours is {got:.3g}. What does eager take for each kernel, and what does a replay?")
    return "13 µs by 2 µs gives 6.5. From kernels as long as a launch on it is 1, and never less"


# ---- records as a results file has them, made up

_WHY = {
    "model": "they are two models",
    "device": "a measurement on an Ascend says nothing of one on the simulated device",
    "clock": "one is measured and the other modelled",
    "tqe": "a task queue changes eager, so the gain would be that of two changes",
    "batch": "they are two amounts of work",
    "shape": "they are two models or two amounts of work",
}


def _record(mode: str, ms: float, width: int = 64, batch: int = 1, layers: int = 12, tokens: int = 16, **more) -> dict:
    shape = {"width": width, "layers": layers, "tokens": tokens}
    made = dict(model="genmol", mode=mode, levers=None, device="simulated", clock="cpu", tqe=0, batch=batch)
    made |= dict(shape=shape, kernels=215, runs_ms=[ms] * 3, median_ms=ms, speedup=None, cosine=None, max_abs=None)
    return made | dict(torch="2.13.0", torch_npu="2.13.0", cann="simulated", date="2026-01-02T03:04:05Z") | more


def _both(eager_ms: float, replay_ms: float, **more) -> list[dict]:
    return [_record("eager", eager_ms, **more), _record("graph", replay_ms, **more)]


def _named(r: dict) -> str:
    size = f"{r['shape']['width']}×{r['shape']['tokens']}×{r['batch']}"
    return f"{r['mode']} of {r['model']} {size} ({source_of(r)}, clock {r['clock']}, tqe {r['tqe']})"


def _shuffled(records: list[dict], seed: int = 0) -> list[dict]:
    return random.Random(seed).sample(records, len(records))


@exercise
def pair_records(answer) -> str:
    ascend = dict(device="ascend", clock="hardware")
    alone = [  # two and two that differ in one thing: model, layers, tokens
        _record("eager", 2.9, tqe=1),
        _record("eager", 5.0, clock="paced"),
        _record("graph", 0.5, layers=6, clock="paced"),
        _record("eager", 3.3, batch=8, tokens=32),
        _record("graph", 1.6, batch=8),
        _record("graph", 1.2, model="climax", tqe=1),
    ]
    kinds = [{}, {"width": 32}, {"width": 32, "tqe": 1}, {"batch": 4}, ascend]
    wanted = [tuple(_both(3.0 + i, 1.0 + i / 10, **kind)) for i, kind in enumerate(kinds)]
    records = _shuffled([*alone, *(r for pair in wanted for r in pair)])
    given = copy.deepcopy(records)
    pairs = answer(given)
    if given != records:
        raise Wrong("the records are changed: whoever draws them next gets yours")
    try:
        pairs = [tuple(pair) for pair in pairs]
        wrong = next((pair for pair in pairs if len(pair) != 2 or any(r not in records for r in pair)), None)
    except TypeError:
        raise Wrong(f"the result is a list of pairs of records; yours is {_short(pairs)}") from None
    if wrong is not None:
        raise Wrong(f"a pair is (eager record, graph record), both as they were given; one of yours is {_short(wrong)}")
    for eager, graph in pairs:
        if (eager["mode"], graph["mode"]) != ("eager", "graph"):
            raise Wrong(f"a pair is eager first, then graph; one of yours is {eager['mode']}, {graph['mode']}")
        for key, why in _WHY.items():
            if eager[key] != graph[key]:
                keys = [k for k in eager[key] if eager[key][k] != graph[key][k]] if key == "shape" else []
                named = ", ".join([key, *keys])
                raise Wrong(f"do not compare {_named(eager)} with {_named(graph)}: {why} ({named})")
    if missing := [pair for pair in wanted if pair not in pairs]:
        raise Wrong(f"{_named(missing[0][0])} has its graph record, and you leave the pair out")
    if len(pairs) > len(wanted):
        raise Wrong("one pair is there twice")
    return f"{len(pairs)} pairs. {len(alone)} records stay alone: what they would be compared with was never measured"


@exercise
def largest_that_pays(answer) -> str:
    def times(gains: dict[int, float], seed: int = 0) -> list[dict]:
        # All widths are powers of two, so that eager / graph is the gain in every bit.
        pairs = (_both(gain * width / 64, width / 64, width=width) for width, gain in gains.items())
        return _shuffled([r for pair in pairs for r in pair], seed)

    cases = [
        ({32: 3.7, 64: 2.6, 128: 1.3, 256: 1.02}, 128, "the speed-up falls with the width"),
        ({32: 3.7, 64: 1.04, 128: 1.4, 256: 0.98}, 128, "one in the middle is noisy: look at all, not up to the first"),
        ({32: 2.0, 64: 1.105, 128: 1.0}, 64, "10 % means eager / replay of at least 1.1, not a tenth of eager saved"),
        ({32: 2.0, 64: 1.1, 128: 1.0}, 64, "at least 10 %, so exactly 1.1 pays"),
        ({32: 1.05, 64: 1.09, 128: 0.9}, None, "none pays by 10 %"),
    ]
    for gains, wanted, why in cases:
        records = times(gains)
        given = copy.deepcopy(records)
        got = answer(given)
        if given != records:
            raise Wrong("the records are changed: whoever draws them next gets yours")
        said = ", ".join(f"{width}: {gain:g}" for width, gain in gains.items())
        if got is not None and not (isinstance(got, numbers.Integral) and got in gains):
            raise Wrong(f"the result is a width of the records, or None; yours is {_short(got)}")
        if got != wanted:
            raise Wrong(f"the speed-ups are {said}, and you say {got}: {why}")
        for mode, other in (("eager", "graph"), ("graph", "eager")):
            if answer([*given, _record(mode, 90.0, width=512)]) != wanted:
                raise Wrong(f"the speed-ups are {said}, and a width 512 without {other} record changes your answer")
    return "a noisy size in the middle does not mislead you, nor one that was measured only once"


def _short(x) -> str:
    text = repr(x)
    return text if len(text) <= 60 else f"a {type(x).__name__}"
