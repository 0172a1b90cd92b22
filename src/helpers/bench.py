"""Time a function on the device, compare eager with replay, and keep the results."""

import datetime
import fcntl
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ascend_sim

import torch
from torch.utils._pytree import tree_leaves

from . import device
from .capture import Seconds, capture


@dataclass(frozen=True)
class Measurement:
    """Times of one function. A run's time is the median of its calls, each of them synchronised."""

    runs_ms: tuple[float, ...]
    repeats: int  # calls per run

    @property
    def median_ms(self) -> float:
        return statistics.median(self.runs_ms)

    @property
    def spread(self) -> float:
        """(slowest run - fastest run) / median: 0.05 means that the runs lie within 5 %."""
        return (max(self.runs_ms) - min(self.runs_ms)) / self.median_ms

    def __str__(self) -> str:
        runs = ", ".join(f"{ms:.3f}" for ms in self.runs_ms)
        return f"{self.median_ms:.3f} ms, median of {runs} (spread {self.spread:.0%}, {self.repeats} calls per run)"


@dataclass(frozen=True)
class Comparison:
    """Eager against replay. Both read inputs that are already on the device, so neither time holds a copy."""

    eager: Measurement
    graph: Measurement
    cost: Seconds
    cosine: float | None  # of the outputs on inputs that were not captured; None if not finite
    max_abs: float | None  # largest absolute difference of the same
    kernels: int | None  # kernels in a replay; None on an Ascend, where a replay is one opaque task
    kernels_ms: float | None  # sum of their times

    @property
    def speedup(self) -> float:
        return self.eager.median_ms / self.graph.median_ms

    @property
    def cost_ms(self) -> float:
        """What a graph costs before its first replay: warm-up and capture, in ms."""
        return sum(self.cost) * 1e3

    @property
    def break_even(self) -> int | None:
        """Calls after which the graph has paid for itself; None if a replay is not faster."""
        return break_even(self.eager.median_ms, self.graph.median_ms, self.cost_ms)

    @property
    def lossless(self) -> bool:
        """True if a replay gives exactly what eager gives."""
        return self.max_abs == 0.0

    def records(self, model: str, batch: int, shape: dict[str, int]) -> list[dict]:
        """The two records for results.json: eager, then graph."""
        same = dict(model=model, batch=batch, shape=shape, kernels=self.kernels)
        return [
            record(measurement=self.eager, mode="eager", **same),
            record(
                measurement=self.graph,
                mode="graph",
                speedup=self.speedup,
                cosine=self.cosine,
                max_abs=self.max_abs,
                **same,
            ),
        ]

    def __str__(self) -> str:
        pays = "never pays" if self.break_even is None else f"pays after {self.break_even} calls"
        kernels = "" if self.kernels is None else f"\nkernels   {self.kernels}, {self.kernels_ms:.3f} ms in all"
        return (
            f"eager     {self.eager}\nreplay    {self.graph}\nspeed-up  {self.speedup:.2f}\n"
            f"outputs   cosine {self.cosine}, max_abs {self.max_abs}\n"
            f"capture   {self.cost_ms:.1f} ms with warm-up, {pays}{kernels}"
        )


def break_even(eager_ms: float, replay_ms: float, cost_ms: float) -> int | None:
    """Calls after which a graph that costs ``cost_ms`` has paid for itself; None if a replay is not faster."""
    return math.ceil(cost_ms / (eager_ms - replay_ms)) if replay_ms < eager_ms else None


def measure(
    fn: Callable[[], object], repeats: int | None = None, runs: int = 3, warmup: int = 5, seconds: float = 0.3
) -> Measurement:
    """Time ``fn()``: ``runs`` runs of ``repeats`` calls, after ``warmup`` calls that do not count.

    repeats: by default as many calls as fit into ``seconds``, at least 3.
    """
    _warm_up(fn, warmup)
    repeats = repeats or _that_fit(fn, seconds)
    return Measurement(tuple(_run_ms(fn, repeats) for _ in range(runs)), repeats)


def compare(
    fn: Callable,
    *inputs: torch.Tensor,
    fresh: Sequence[torch.Tensor] | None = None,
    runs: int = 3,
    seconds: float = 0.3,
) -> Comparison:
    """Capture ``fn(*inputs)``, time it eager and replayed, and check a replay on inputs it was not captured with.

    inputs: tensors on CPU or NPU. fn: takes them on the device, where its own weights are too.
    fresh: inputs for the check; by default the elements of each input in another order.
    seconds: length of one run. The runs alternate between eager and replay, so that a drift of the machine meets both.
    Raises CaptureError, or ValueError if the fresh inputs give the output of the captured ones and so prove nothing.
    """
    if not inputs:
        raise TypeError("compare() needs at least one input: without one there is nothing to check a replay with")
    captured = capture(fn, *inputs)
    with torch.no_grad():
        cosine, max_abs = _check(fn, captured, fresh or [_shuffled(x) for x in inputs])

        def eager():
            return fn(*captured.inputs)

        functions = (eager, captured.graph.replay)
        for f in functions:
            _warm_up(f, 5)
        repeats = [_that_fit(f, seconds) for f in functions]
        times: tuple[list[float], ...] = ([], [])
        for _ in range(runs):
            for f, n, kept in zip(functions, repeats, times, strict=True):
                kept.append(_run_ms(f, n))
        kernels, kernels_ms = kernel_times(captured.graph.replay)
    measured = [Measurement(tuple(kept), n) for kept, n in zip(times, repeats, strict=True)]
    return Comparison(*measured, captured.seconds, cosine, max_abs, kernels, kernels_ms)


def kernel_spans(fn: Callable[[], object], tries: int = 20, seconds: float = 1.0) -> list:
    """The kernels of ``fn()``, as ``ascend_sim.trace`` gives them: of the try in which host and device worked side by
    side best, so that what else runs on the machine does not show. At least ``tries`` tries, and more, for at most
    ``seconds``, while the best one looks disturbed. Empty on an Ascend, which has its own profiler
    (``torch_npu.profiler``).
    """
    if device.activate(threads=None, verbose=False).kind == "ascend":
        return []
    best, least, start = [], math.inf, time.perf_counter()
    for done in itertools.count():
        if done >= tries and (not _disturbed(best) or time.perf_counter() - start > seconds):
            return best
        with ascend_sim.trace() as spans:
            fn()
        if not spans:
            return []
        if (score := _whole(spans) / max(side_by_side(spans), 0.1)) < least:  # short, and side by side
            best, least = spans, score


def side_by_side(spans: Sequence) -> float:
    """Share of the launches that came when the kernel before had started: near 1 if the device waits for the host and
    both have a core, near 0 if kernels queue up, or if the host launched all before the device got a core. 1 for a
    single launch, such as a replay.
    """
    pairs = [(a, b) for a, b in itertools.pairwise(spans) if a.enqueued < b.enqueued]
    return sum(a.started < b.enqueued for a, b in pairs) / len(pairs) if pairs else 1.0


def say_if_disturbed(spans: Sequence) -> None:
    """Print a line if the timeline of a launch-bound call does not show that the device waits for the host."""
    if _disturbed(spans):
        print("other programs use the cores: this picture does not show the gaps; run the cell again")


def _disturbed(spans: Sequence) -> bool:
    """True if a launch-bound call does not look like one, or if the host stood still for long."""
    launches = sorted({s.enqueued for s in spans})
    if len(launches) == 1:
        return False  # a replay has no gaps to show
    hole = max(b - a for a, b in itertools.pairwise(launches))
    busy, whole = sum(s.ended - s.started for s in spans), _whole(spans)
    return side_by_side(spans) < 0.5 or busy > 0.6 * whole or (len(launches) > 20 and hole > 0.2 * whole)


def _whole(spans: Sequence) -> float:
    return max(s.ended for s in spans) - min(s.enqueued for s in spans)


def kernel_times(fn: Callable[[], object], runs: int = 10) -> tuple[int | None, float | None]:
    """Number of kernels in ``fn()`` and the sum of their times in ms (median of ``runs``); (None, None) on Ascend.

    The calls follow each other as in a measurement: a first call after a pause finds cold caches.
    """
    if device.activate(threads=None, verbose=False).kind == "ascend":
        return None, None
    fn()
    torch.npu.synchronize()
    with ascend_sim.trace() as spans:
        for _ in range(runs):
            fn()
            torch.npu.synchronize()
    spans.sort(key=lambda span: span.started)
    kernels = len(spans) // runs
    sums = [sum(s.ended - s.started for s in spans[i * kernels : (i + 1) * kernels]) * 1e3 for i in range(runs)]
    return kernels, statistics.median(sums)


def launch_us(fn: Callable[[], object], runs: int = 20) -> float:
    """What a launch of ``fn()`` costs the host, in us: from its first launch to its last, by their number.

    Of the fastest of ``runs``, because what else runs on the machine only adds to it. fn: launches at least two kernels
    and does not wait for the device. Raises LoadError on an Ascend.
    """
    found = []
    for _ in range(runs):
        with ascend_sim.trace() as spans:
            fn()
        found.append((spans[-1].enqueued - spans[0].enqueued) / (len(spans) - 1))
    return min(found) * 1e6


def _warm_up(fn: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        fn()
    torch.npu.synchronize()


def _that_fit(fn: Callable[[], object], seconds: float) -> int:
    """How many calls of ``fn`` fit into ``seconds``, at least 3."""
    return max(3, int(seconds * 1e3 / _run_ms(fn, 1)))


def _run_ms(fn: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        fn()
        torch.npu.synchronize()  # a launch and a replay return before the device is done
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _shuffled(x: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(1))
    return x.cpu().reshape(-1)[order].reshape(x.shape)


def _check(fn, captured, fresh) -> tuple[float | None, float | None]:
    captured.graph.replay()
    old = _flat(captured.outputs)
    new = _flat(captured(*fresh))
    if torch.equal(old, new):
        raise ValueError("the fresh inputs give the same output as the captured ones: pass others as fresh=")
    return difference(fn(*(x.to("npu") for x in fresh)), new)


def _flat(outputs) -> torch.Tensor:
    return torch.cat([x.detach().cpu().double().reshape(-1) for x in tree_leaves(outputs)])


def difference(a, b) -> tuple[float | None, float | None]:
    """Cosine and largest absolute difference of two outputs (tensors, or trees of them); None where not finite."""
    a, b = _flat(a), _flat(b)
    max_abs = torch.where(a == b, 0.0, (a - b).abs()).max().item()  # equal infinities differ by 0, not by nan
    cosine = 1.0 if max_abs == 0 else (torch.dot(a, b) / (a.norm() * b.norm())).item()
    return tuple(x if math.isfinite(x) else None for x in (cosine, max_abs))


# ---- results.json: a list of records


class ResultsError(ValueError):
    """A results file that cannot be used. One line: file, record, key, what is wrong."""


_NUMBER = (int, float)
_FIELDS: dict[str, tuple] = {  # key: allowed types, or allowed values
    "model": (str,),
    "mode": ("eager", "graph"),
    "levers": (str, type(None)),
    "device": ("ascend", "simulated"),
    "clock": ("cpu", "paced", "hardware"),
    "tqe": (0, 1, 2),
    "batch": (int,),
    "shape": (dict,),
    "kernels": (int, type(None)),
    "runs_ms": (list,),
    "median_ms": _NUMBER,
    "speedup": (*_NUMBER, type(None)),
    "cosine": (*_NUMBER, type(None)),
    "max_abs": (*_NUMBER, type(None)),
    "torch": (str,),
    "torch_npu": (str,),
    "cann": (str,),
    "date": (str,),
}
# A newer record that has these in common with an older one replaces it.
_SAME = ("model", "mode", "levers", "device", "clock", "tqe", "batch", "shape")


def record(
    *,
    model: str,
    mode: str,
    batch: int,
    shape: dict[str, int],
    measurement: Measurement,  # or what else has runs_ms and median_ms
    kernels: int | None = None,
    speedup: float | None = None,
    cosine: float | None = None,
    max_abs: float | None = None,
    levers: str | None = None,
    tqe: int | None = None,
    clock: str | None = None,
) -> dict:
    """One measurement as results.json keeps it. shape: sizes by name, such as {"width": 64, "tokens": 16}.

    levers: what was changed against the published form ("" for nothing), None for a plain comparison of eager and
    replay. tqe, clock: those of the process that measured, by default this one's.
    """
    here = device.activate(threads=None, verbose=False)
    return {
        "model": model,
        "mode": mode,
        "levers": levers,
        "device": here.kind,
        "clock": clock or here.clock,
        "tqe": device.task_queue() if tqe is None else tqe,
        "batch": batch,
        "shape": shape,
        "kernels": kernels,
        "runs_ms": list(measurement.runs_ms),
        "median_ms": measurement.median_ms,
        "speedup": speedup,
        "cosine": cosine,
        "max_abs": max_abs,
        "torch": here.torch,
        "torch_npu": here.torch_npu,
        "cann": here.cann,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def load_results(path: str | os.PathLike) -> list[dict]:
    """Read and check a results file. Raises ResultsError, or FileNotFoundError."""
    return checked(read_json(path), path)


def read_json(path: str | os.PathLike):
    """What a JSON file holds. Raises ResultsError, or FileNotFoundError."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path}: not valid JSON ({error})") from None


def checked(records, path: str | os.PathLike) -> list[dict]:
    """``records`` of the file ``path``, if they are such. Raises ResultsError, which names the first wrong one."""
    if not isinstance(records, list):
        raise ResultsError(f"{path}: expected a list of records, got {type(records).__name__}")
    for i, found in enumerate(records):
        if isinstance(found, dict):
            found.setdefault("levers", None)  # a file from before there were levers
        problem = _problem(found)
        if problem:
            raise ResultsError(f"{path}: record {i}: {problem}")
    return records


def _problem(found) -> str | None:
    if not isinstance(found, dict):
        return f"expected an object, got {type(found).__name__}"
    for key, allowed in _FIELDS.items():
        if key not in found:
            return f"{key} is missing"
        value = found[key]
        fits = type(value) in allowed if isinstance(allowed[0], type) else value in allowed
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            names = " or ".join(a.__name__ if isinstance(a, type) else repr(a) for a in allowed)
            return f"{key} is {value!r}, expected {names}"
    extra = sorted(set(found) - set(_FIELDS))
    if extra:
        return f"unknown key {extra[0]}"
    runs = found["runs_ms"]
    if len(runs) != 3 or not all(type(ms) in _NUMBER and 0 < ms < 1e12 for ms in runs):
        return f"runs_ms is {runs!r}, expected three positive numbers"
    if not math.isclose(found["median_ms"], statistics.median(runs)):
        return f"median_ms is {found['median_ms']!r}, and the median of its runs is {statistics.median(runs)!r}"
    return None


def add_results(path: str | os.PathLike, records: Sequence[dict]) -> list[dict]:
    """Merge ``records`` into the results file and return all of them. A newer record of a kind replaces the older.

    The file is replaced as a whole, so a process that is killed leaves the old one or the new one. Raises ResultsError
    if the file is there and broken, or a record is; the file stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for new in records:
        if problem := _problem(new):
            raise ResultsError(f"new record: {problem}")
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes that merge at once would lose records
        kept = {kind_of(r): r for r in load_results(path)} if path.exists() else {}
        kept |= {kind_of(r): r for r in records}
        merged = list(kept.values())
        whole = path.with_name(path.name + ".tmp")
        with open(whole, "w", encoding="utf-8") as file:
            json.dump(merged, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(whole, path)
    return merged


def kind_of(r: dict) -> str:
    """What two records have in common if the newer one replaces the older."""
    return json.dumps([r[key] for key in _SAME], sort_keys=True)
