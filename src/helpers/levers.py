"""The levers: what can be changed so that a model runs faster, and what each change gives.

A lever is judged by running the model before and after it, each in a process of its own, because TASK_QUEUE_ENABLE is
fixed when torch_npu starts in most versions. A full-size model runs on the paced clock, where its times are modelled;
a small one on the device that is there, where its outputs can be compared.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import ascend_sim

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from . import bench, device, models
from .capture import capture
from .models import aurora
from .waits import ReadBacks


@dataclass(frozen=True)
class Setting:
    """How a model is run. The defaults are the published form of the four models, one kernel after the other."""

    graph: bool = False  # replayed, or eager
    tqe: int = 0  # TASK_QUEUE_ENABLE
    waits: bool = True  # with the places at which the published model waits for the device, if it has some
    fused_gelu: bool = False
    batch: int = 1

    @property
    def name(self) -> str:
        """The levers that were pulled, joined by "+"; "" for none."""
        published = Setting(batch=self.batch)
        changes = {name: change for name, (_, change) in LEVERS.items() if replace(published, **change) != published}
        return "+".join(n for n, change in changes.items() if replace(self, **change) == self and n != "batch")

    def __str__(self) -> str:
        return self.name or "as published"


# Name: what it is, and what it changes in a setting.
LEVERS: dict[str, tuple[str, dict]] = {
    "graph": ("capture the forward pass and replay it", {"graph": True}),
    "task-queue": ("TASK_QUEUE_ENABLE=1: a second thread launches", {"tqe": 1}),
    "task-queue-2": ("TASK_QUEUE_ENABLE=2: it plans, too; eager only", {"tqe": 2}),
    "no-waits": ("remove the places at which the host waits for the device", {"waits": False}),
    "fused-gelu": ("npu_gelu, one kernel, in the place of five", {"fused_gelu": True}),
    "batch": ("eight times the batch; the speed-up is that of a sample", {"batch": 8}),
}


@dataclass(frozen=True)
class Workload:
    """A model of the course, with its sizes in full and small. shape: what a record says of it."""

    original: str  # as the article calls it
    make: Callable[..., nn.Module]  # make(setting, **shape)
    inputs: Callable[..., tuple]  # inputs(model, batch, **shape)
    full: dict
    small: dict
    has_waits: bool = False
    has_gelu: bool = False


def _text_inputs(model, batch, tokens, seed=0, **_):
    return model.inputs(batch, tokens, seed=seed)


def _field_inputs(model, batch, seed=0, **_):
    return model.inputs(batch, seed=seed)


WORKLOADS = {
    "genmol": Workload(
        "GenMol-89M",
        lambda setting, width, layers, **_: models.genmol(width, layers),
        _text_inputs,
        full=dict(width=768, layers=12, tokens=64),
        small=dict(width=64, layers=12, tokens=16),
    ),
    "nucleotide-transformer": Workload(
        "nucleotide-transformer-500m",
        lambda setting, width, layers, **_: models.nucleotide_transformer(width, layers, fused_gelu=setting.fused_gelu),
        _text_inputs,
        full=dict(width=1280, layers=24, tokens=512),
        small=dict(width=64, layers=24, tokens=16),
        has_gelu=True,
    ),
    "climax": Workload(
        "ClimaX",
        lambda setting, width, layers, rows, columns: models.climax(
            width, layers, size=(rows, columns), device_index=setting.waits
        ),
        _field_inputs,
        full=dict(width=1024, layers=8, rows=32, columns=64),
        small=dict(width=64, layers=8, rows=16, columns=32),
        has_waits=True,
    ),
    "aurora-stand-in": Workload(
        "Aurora",
        lambda setting, width, layers, rows, columns, levels: models.aurora_stand_in(
            width,
            (first := max(1, layers // 4), layers - first - layers // 3, layers // 3),  # 24: the original's 6, 10, 8
            size=(rows, columns),
            levels=aurora.LEVELS[:: -(-len(aurora.LEVELS) // levels)],
            guards=setting.waits,
        ),
        _field_inputs,
        full=dict(width=512, layers=24, rows=721, columns=1440, levels=13),
        small=dict(width=64, layers=24, rows=17, columns=32, levels=3),
        has_waits=True,
    ),
}


def capturable(model: str, **more) -> Setting:
    """The published form, or where that waits for the device, the one that does not."""
    return Setting(waits=not WORKLOADS[model].has_waits, **more)


def pull(levers: Sequence[str], setting: Setting) -> Setting:
    """The setting after ``levers``. Raises ValueError for one that does not exist."""
    for lever in levers:
        if lever not in LEVERS:
            raise ValueError(f"no lever {lever!r}; there are {', '.join(LEVERS)}")
        changes = dict(LEVERS[lever][1])
        if lever == "batch":
            changes["batch"] *= setting.batch
        setting = replace(setting, **changes)
    return setting


# ---- one setting, in this process


@dataclass(frozen=True)
class Run(bench.Measurement):
    """A workload in one setting: times of a call, and what host and device did in it."""

    kernels: int | None  # None on an Ascend
    kernels_ms: float | None  # sum of their times
    waits: int  # times that the host waited to read a value from the device
    host_ms: float | None = None  # paced: the time of a call whose kernels take no time
    corners_ms: tuple[float, ...] = ()  # paced: the times with the card's constants at the ends of their ranges

    def __str__(self) -> str:
        kernels = "" if self.kernels is None else f", {self.kernels} kernels of {self.kernels_ms:.3f} ms in all"
        return f"{self.median_ms:.3f} ms, {self.waits} host waits{kernels}"


@dataclass(frozen=True)
class Job:
    """What one process measures. card: a profile's name or file, for the paced clock; "": the device that is there."""

    model: str
    setting: Setting
    shape: tuple[tuple[str, int], ...]
    card: str = ""

    def run(self, outputs: Path, seconds: float) -> Run:
        """Time it in this process. Outputs of a device that computes go to a file, from the CPU.

        Raises CaptureError where a replay is asked for and the model can't be captured.
        """
        if device.task_queue() != self.setting.tqe:
            raise ValueError(f"this process runs at TASK_QUEUE_ENABLE={device.task_queue()}, not {self.setting.tqe}")
        card = ascend_sim.Card.load(self.card) if self.card else None
        with ascend_sim.paced(card) if card else contextlib.nullcontext(), torch.no_grad():
            fn, produced = self._prepare()
            if card:
                began = time.perf_counter()
                with ReadBacks() as waits, ascend_sim.trace() as spans:
                    fn()
                # A long call takes what the clock says: once is enough.
                long = time.perf_counter() - began > seconds
                measured = _steady(fn, repeats=1 if long else None, warmup=0 if long else 5, seconds=seconds)
                kernels, kernels_ms = len(spans), card.seconds(spans) * 1e3
                host = _short_ms(fn, card.host_only(), seconds)
                if long:  # the kernels are its longer side, so the host's two ends would tell the same twice
                    fast, slow = (_short_ms(fn, device, 0) for device in (card.fast(), card.slow()))
                    corners = [fast, fast, slow, slow]
                else:
                    corners = [_short_ms(fn, corner, seconds) for corner in card.corners()]
            else:
                with ReadBacks() as waits:
                    fn()
                measured = _steady(fn, seconds=seconds)
                kernels, kernels_ms = bench.kernel_times(fn)
                host, corners = None, ()
                torch.save([x.cpu() for x in tree_leaves(produced())], outputs)
        return Run(measured.runs_ms, measured.repeats, kernels, kernels_ms, waits.count, host, tuple(corners))

    def _prepare(self) -> tuple[Callable[[], object], Callable[[], object]]:
        """A call of the model, and a function that gives its outputs."""
        workload, shape = WORKLOADS[self.model], dict(self.shape)
        if self.card:
            with torch.device("npu"):  # born there: nobody draws and copies a billion weights that nobody reads
                net = workload.make(self.setting, **shape)
        else:
            net = workload.make(self.setting, **shape).to("npu")
        inputs = workload.inputs(net, self.setting.batch, **shape)
        if self.setting.graph:
            captured = capture(net, *inputs, warmup=1)
            return captured.graph.replay, lambda: captured.outputs
        inputs = [x.to("npu") if isinstance(x, torch.Tensor) else x for x in inputs]
        return (lambda: net(*inputs),) * 2


def _steady(fn: Callable[[], object], tries: int = 2, **how) -> bench.Measurement:
    """Measure until the runs lie within 10 % of each other; else the fastest of ``tries``, as noise only adds."""
    found = []
    for _ in range(tries):
        found.append(bench.measure(fn, **how))
        if found[-1].spread < 0.1:
            break
    return min(found, key=lambda measured: measured.median_ms)


def _short_ms(fn: Callable[[], object], card: ascend_sim.Card, seconds: float) -> float:
    """One run on another card, of as many calls as fit into a quarter of ``seconds``; one call for 0."""
    with ascend_sim.paced(card):
        return bench.measure(fn, None if seconds else 1, runs=1, warmup=0, seconds=seconds / 4).median_ms


# ---- many settings, each in a process at its task queue


def run_all(
    jobs: Sequence[Job], seconds: float = 0.3, tell: Callable[[str], None] = print
) -> dict[Job, tuple[Run, list]]:
    """Each job's Run and outputs ([] on the paced clock), measured one after the other.

    tell: is told about each. Raises LeverError, with the job that failed and why.
    """
    done = {}
    with tempfile.TemporaryDirectory() as folder:
        for tqe in sorted({job.setting.tqe for job in jobs}):
            own = [job for job in dict.fromkeys(jobs) if job.setting.tqe == tqe]
            for job, found in zip(own, _worker(own, tqe, Path(folder), seconds), strict=False):
                if "error" in found:
                    raise LeverError(f"{job.model}, {job.setting}: {found['error']}")
                outputs = Path(folder) / found.pop("outputs")
                run = Run(**{key: tuple(v) if isinstance(v, list) else v for key, v in found.items()})
                done[job] = run, torch.load(outputs, weights_only=True) if outputs.exists() else []
                size = "full size, modelled" if job.card else "small"
                tell(f"[{len(done)}/{len(set(jobs))}] {job.model}, {size}, {job.setting}: "
                     f"{run.median_ms:.3f} ms")  # fmt: skip
    return done


# ---- before and after


@dataclass(frozen=True)
class Case:
    """A model, what is changed, and the speed-up that the article reports for it, if it does."""

    model: str
    levers: tuple[str, ...]
    before: Setting = Setting()
    reported: float | None = None
    said: str = ""  # what the article says it changed

    @property
    def after(self) -> Setting:
        return pull(self.levers, self.before)


# What the article measured on an Ascend 910, and the same here. It names no sizes and no batch but GenMol's.
ARTICLE = (
    Case("genmol", ("graph",), Setting(batch=8), 2.09, "NPUGraph, batch 8, TASK_QUEUE_ENABLE=0"),
    Case("climax", ("task-queue",), reported=1.004, said="asynchronous dispatch alone"),
    Case("climax", ("no-waits", "task-queue"), reported=1.12, said="a patch for the task queue"),
    Case("nucleotide-transformer", ("fused-gelu", "task-queue"), reported=1.048, said="fused gelu and task queue"),
    Case("aurora-stand-in", ("no-waits", "graph"), reported=1.007, said="no graph: its control flow fails"),
)


@dataclass(frozen=True)
class Gain:
    """A case, run before and after."""

    case: Case
    shape: dict
    clock: str  # "paced": modelled
    before: Run
    after: Run
    cosine: float | None = None  # of the outputs; None on the paced clock, which computes none
    max_abs: float | None = None

    @property
    def speedup(self) -> float:
        """Of a sample, where the batch changes."""
        return self._ratio(self.before.median_ms, self.after.median_ms)

    @property
    def band(self) -> tuple[float, float] | None:
        """Modelled: lowest and highest speed-up with the card's constants at the ends of their ranges."""
        if not self.before.corners_ms:
            return None
        ratios = [self.speedup, *map(self._ratio, self.before.corners_ms, self.after.corners_ms)]
        return min(ratios), max(ratios)

    def _ratio(self, before_ms: float, after_ms: float) -> float:
        return before_ms / after_ms * self.case.after.batch / self.case.before.batch

    def records(self) -> list[dict]:
        """The two records for results.json: before, then after."""
        after = dict(speedup=self.speedup, cosine=self.cosine, max_abs=self.max_abs)
        return [
            bench.record(
                model=self.case.model,
                mode="graph" if setting.graph else "eager",
                levers=setting.name,
                batch=setting.batch,
                shape=self.shape,
                tqe=setting.tqe,
                clock=self.clock,
                measurement=run,
                kernels=run.kernels,
                **more,
            )
            for setting, run, more in ((self.case.before, self.before, {}), (self.case.after, self.after, after))
        ]

    def __str__(self) -> str:
        lines = [
            f"{name:<9} {setting}, batch {setting.batch}, TASK_QUEUE_ENABLE={setting.tqe}: {run}"
            for name, setting, run in (
                ("before", self.case.before, self.before),
                ("after", self.case.after, self.after),
            )
        ]
        band = f", between {self.band[0]:.2f} and {self.band[1]:.2f} by the card's constants" if self.band else ""
        lines.append(f"speed-up  {self.speedup:.3f}{band}")
        if self.max_abs is not None:
            lines.append(f"outputs   cosine {self.cosine:.9g}, max_abs {self.max_abs:.3g}")
        return "\n".join(lines)


def gains(
    cases: Sequence[Case] = ARTICLE,
    full: bool = True,
    card: str = ascend_sim.CARD,
    seconds: float = 0.3,
    tell: Callable[[str], None] = print,
    **shape: int,
) -> list[Gain]:
    """Run each case before and after its levers. full: at full size on the paced clock of ``card``; else small, on the
    device that is there, with outputs compared. shape: sizes that replace those of the model.
    """
    jobs = []
    for case in cases:
        workload = WORKLOADS[case.model]
        for lever, there in (("no-waits", workload.has_waits), ("fused-gelu", workload.has_gelu)):
            if lever in case.levers and not there:
                raise ValueError(f"{case.model} has nothing for the lever {lever}")
        sizes = workload.full if full else workload.small
        if unknown := set(shape) - set(sizes):
            raise ValueError(f"{case.model} has no {unknown.pop()}; it has {', '.join(sizes)}")
        same = dict(model=case.model, shape=tuple((sizes | shape).items()), card=card if full else "")
        jobs.append((Job(setting=case.before, **same), Job(setting=case.after, **same)))
    runs = run_all([job for pair in jobs for job in pair], seconds, tell)
    found = []
    for case, pair in zip(cases, jobs, strict=True):
        (before, a), (after, b) = (runs[job] for job in pair)
        equal = bench.difference(a, b) if a and case.before.batch == case.after.batch else (None, None)
        clock = "paced" if full else device.activate(threads=None, verbose=False).clock
        found.append(Gain(case, dict(pair[0].shape), clock, before, after, *equal))
    return found


def table(modelled: Sequence[Gain], measured: Sequence[Gain]) -> str:
    """The article's table, in columns that never mix sources: the same cases at full size and small."""
    lines = [
        f"{'':<24}{'':<22}{'modelled, full size':<22}{'measured, small':<17}{'outputs, small':<26}reported",
        f"{'model':<24}{'levers':<22}{'speed-up (band)':<22}{'speed-up':<17}{'cosine, max_abs':<26}"
        "speed-up, model: what was changed",
    ]
    for big, small in zip(modelled, measured, strict=True):
        case, (low, high) = big.case, big.band
        band = f"{big.speedup:.2f} ({low:.2f}-{high:.2f})"
        equal = f"{small.cosine:.9g}, {small.max_abs:.2g}"
        reported = "" if case.reported is None else f"{case.reported:g}, {WORKLOADS[case.model].original}: {case.said}"
        lines.append(
            f"{case.model:<24}{'+'.join(case.levers):<22}{band:<22}{small.speedup:<17.2f}{equal:<26}{reported}"
        )
    return "\n".join(lines)


class LeverError(RuntimeError):
    """A setting that can't be run. One line: the model, the levers, the cause."""


def _worker(jobs: Sequence[Job], tqe: int, folder: Path, seconds: float) -> Iterator[dict]:
    environment = os.environ | {"TASK_QUEUE_ENABLE": str(tqe)}
    environment.pop("ASCEND_LAUNCH_BLOCKING", None)  # it would force 0
    asked = json.dumps({"jobs": [dataclasses.asdict(job) for job in jobs], "folder": str(folder), "seconds": seconds})
    with subprocess.Popen(
        [sys.executable, "-m", "helpers.levers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment,
    ) as process:  # fmt: skip
        try:
            errors = ThreadPoolExecutor(1).submit(process.stderr.read)
            process.stdin.write(asked)
            process.stdin.close()
            for line in process.stdout:
                if line.startswith(_ANSWER):
                    yield json.loads(line.removeprefix(_ANSWER))
            if process.wait():
                lines = errors.result().strip().splitlines() or [f"exit code {process.returncode}"]
                raise LeverError(f"the process at TASK_QUEUE_ENABLE={tqe} failed: {lines[-1]}")
        finally:
            process.kill()


_ANSWER = "helpers.levers: "  # before each answer: torch_npu prints, too


def _serve() -> None:
    """Run the jobs that stand in stdin and answer with one line each."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the process that asks, however it ends
    asked = json.load(sys.stdin)
    device.activate(verbose=False)
    for i, job in enumerate(asked["jobs"]):
        shape = tuple((name, size) for name, size in job["shape"])
        job = Job(job["model"], Setting(**job["setting"]), shape, job["card"])
        outputs = f"{os.getpid()}-{i}.pt"
        try:
            run = job.run(Path(asked["folder"]) / outputs, asked["seconds"])
            found = dataclasses.asdict(run) | {"outputs": outputs}
        except (RuntimeError, ValueError) as error:
            found = {"error": device.brief(error)}
        print(_ANSWER + json.dumps(found), flush=True)


if __name__ == "__main__":
    _serve()
