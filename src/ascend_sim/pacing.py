"""The paced clock: kernels take the time that a card's profile says, and are not computed.

On the ``cpu`` clock, which is the default, a kernel is computed and takes as long as this CPU takes for it. On the
paced clock the host side of torch_npu runs for real and the device is arithmetic: a kernel takes

    max(kernel_us, flops / peak of its data type, bytes / bandwidth)

a replay takes one launch and its kernels, and a synchronise sleeps until the device would be done. So a model of full
size runs at its real number of launches in seconds, and its times are *modelled*. What a kernel would have written
is not there: reading it raises. Small kernels on known inputs are computed, so that control flow runs as it is: up to
16 MB read and written, but no products of matrices and no random weights. The host computes them, at its own speed.
"""

import contextlib
import ctypes
import dataclasses
import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .loading import simulated
from .tracing import Span, trace

PROFILES = Path(__file__).parent / "profiles"
CARD = "ascend_910b2"  # unless another is named


class CardError(ValueError):
    """A profile that can't be used. The message is one line."""


@dataclasses.dataclass(frozen=True)
class Constant:
    """One constant of a card, the range in which it lies, and who says so."""

    value: float
    low: float
    high: float
    source: str


@dataclasses.dataclass(frozen=True)
class Card:
    """What the paced clock knows of a card. Each is a Constant; CONSTANTS has their meaning."""

    name: str
    kernel_us: Constant
    bandwidth_gb_s: Constant
    link_gb_s: Constant
    copy_us: Constant
    float32_tflop_s: Constant
    float16_tflop_s: Constant
    int8_tflop_s: Constant
    plan_us: Constant
    launch_us: Constant
    replay_us: Constant
    sync_us: Constant
    memory_gib: Constant

    @classmethod
    def load(cls, name: str | Path = CARD) -> "Card":
        """A card of ``profiles/``, or the profile in a file of the user's. Raises CardError."""
        path = Path(str(name))
        try:
            if (own := PROFILES / f"{name}.json").exists():
                path = own
            profile = json.loads(path.read_text())
            constants = {key: Constant(**profile["constants"][key]) for key in CONSTANTS}
            card = cls(profile["name"], **constants)
            card.check()
            return card
        except OSError:
            known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.json")))
            raise CardError(f"no profile of a card {str(name)[:80]!r}: take a file, or one of {known}") from None
        except KeyError as error:
            raise CardError(f"{path}: the profile lacks {error}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise CardError(f"{path}: not a profile of a card: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the profile, in the form that ``load`` reads."""
        constants = {key: dataclasses.asdict(getattr(self, key)) for key in CONSTANTS}
        Path(path).write_text(json.dumps({"name": self.name, "constants": constants}, indent=2) + "\n")

    def check(self) -> None:
        """Raise CardError for a constant that can't be used."""
        if not isinstance(self.name, str):
            raise CardError(f"name: expected a text, found {self.name!r}")
        for key in CONSTANTS:
            c = getattr(self, key)
            if not isinstance(c, Constant):
                raise CardError(f"{key}: expected a Constant, found {c!r}")
            numbers = (c.low, c.value, c.high)
            finite = all(type(x) in (int, float) and abs(x) <= _LARGEST for x in numbers)
            if not finite or list(numbers) != sorted(numbers) or c.low < 0:
                raise CardError(f"{key}: expected 0 <= low <= value <= high, found {c.low}, {c.value}, {c.high}")
            if c.low == 0 and CONSTANTS[key].endswith("/s"):
                raise CardError(f"{key}: a rate must be above 0")

    def fast(self) -> "Card":
        """The fastest device that the ranges allow: short kernels, high rates. The host's part stays as it is."""
        return self._at_end(True, _DEVICE)

    def slow(self) -> "Card":
        """The slowest device that the ranges allow."""
        return self._at_end(False, _DEVICE)

    def corners(self) -> list["Card"]:
        """The fastest and the slowest device, each with the fastest and the slowest host: what a band is made of."""
        return [device._at_end(fast, _HOST) for device in (self.fast(), self.slow()) for fast in (True, False)]

    def host_only(self) -> "Card":
        """The same host with a device that takes no time: a call takes its launches and its waits, and no more."""
        changes = {}
        for key in _DEVICE:
            x = _LARGEST if CONSTANTS[key].endswith("/s") else 0.0
            changes[key] = Constant(x, x, x, "no time on the device")
        return dataclasses.replace(self, **changes)

    def _at_end(self, fast: bool, keys: Sequence[str]) -> "Card":
        changes = {}
        for key in keys:
            c = getattr(self, key)
            value = c.high if CONSTANTS[key].endswith("/s") == fast else c.low
            changes[key] = dataclasses.replace(c, value=value, low=value, high=value)
        return dataclasses.replace(self, **changes)

    def seconds(self, work: Sequence[Span]) -> float:
        """The device's time for kernels that a trace on the paced clock has seen, at this card's constants."""
        return sum(self.kernel_seconds(span) for span in work)

    def kernel_seconds(self, span: Span) -> float:
        """The same for one kernel."""
        if span.peak == "link":
            return max(self.copy_us.value * 1e-6, span.bytes / 2 / (self.link_gb_s.value * 1e9))
        return max(
            self.kernel_us.value * 1e-6,
            span.flops / (getattr(self, f"{span.peak}_tflop_s").value * 1e12),
            span.bytes / (self.bandwidth_gb_s.value * 1e9),
        )


# Unit of each constant. Times: shorter is faster. Rates (per second): higher is faster.
CONSTANTS = {
    "kernel_us": "us",  # the shortest kernel, with the gap to the next
    "bandwidth_gb_s": "GB/s",  # of the card's memory
    "link_gb_s": "GB/s",  # between host and card
    "copy_us": "us",  # the shortest copy over the link
    "float32_tflop_s": "TFLOP/s",  # of matrix products
    "float16_tflop_s": "TFLOP/s",  # of matrix products, also in bfloat16
    "int8_tflop_s": "TFLOP/s",
    "plan_us": "us",  # CANN's work on the host to plan an operator: aclnnXxxGetWorkspaceSize
    "launch_us": "us",  # CANN's work on the host to launch it: aclnnXxx
    "replay_us": "us",  # CANN's work on the host to launch a replay: aclmdlRIExecuteAsync
    "sync_us": "us",  # from the end of what the host waits for until it goes on
    "memory_gib": "GiB",
}
_DEVICE = ("kernel_us", "bandwidth_gb_s", "link_gb_s", "copy_us", "float32_tflop_s", "float16_tflop_s", "int8_tflop_s")
_HOST = ("plan_us", "launch_us", "replay_us", "sync_us")
_LARGEST = 1e15  # no constant of a card comes near; above is a mistake, or no number
_SCALE = {"us": 1e-6, "GB/s": 1e9, "TFLOP/s": 1e12, "GiB": 1 << 30}


class _CCard(ctypes.Structure):
    _fields_ = [(key, ctypes.c_double) for key in CONSTANTS]


@contextmanager
def paced(card: Card | str | Path = CARD) -> Iterator[Card]:
    """Inside the ``with``, the device runs on the paced clock of ``card``. It synchronises at both ends.

    It is the clock of the whole device, and of all threads. What was computed before is known inside; a kernel that
    reads, later, what was skipped inside is an error. A ``with`` inside takes another card for its time.
    Raises CardError for a profile that can't be used, LoadError where nothing is simulated, RuntimeError where another
    thread has the paced clock.
    """
    import torch

    global _running
    library = simulated("to pace")
    card = card if isinstance(card, Card) else Card.load(card)
    card.check()
    if not _turn.acquire(blocking=False):
        raise RuntimeError("the paced clock runs for another thread: it is one for the whole device")
    before = _running
    try:
        torch.npu.synchronize()
        torch.npu.empty_cache()  # what is allocated inside begins as unknown
        try:
            library.ascend_sim_set_clock(_c_card(card))
            _running = card
            yield card
            torch.npu.synchronize()
        finally:
            _running = before
            with contextlib.suppress(RuntimeError):  # an error of the device: it was raised above, or another was
                torch.npu.synchronize()
            library.ascend_sim_set_clock(before and _c_card(before))
            torch.npu.empty_cache()
            _forget_free_blocks(library)
    finally:
        _turn.release()


def _forget_free_blocks(library: ctypes.CDLL) -> None:
    """What torch's allocator keeps for later is no tensor's: to be unknown is not what the next one begins with."""
    import torch

    for segment in torch.npu.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                library.ascend_sim_forget(ctypes.c_void_p(address), ctypes.c_size_t(block["size"]))
            address += block["size"]


_running: Card | None = None  # of the paced clock that runs
_turn = threading.RLock()


def clock() -> str:
    """The clock that runs: "cpu" or "paced"."""
    return "paced" if _running else "cpu"


def _c_card(card: Card):
    values = (getattr(card, key).value * _SCALE[unit] for key, unit in CONSTANTS.items())
    return ctypes.byref(_CCard(*values))


def work(fn: Callable[[], object], card: Card | str | Path = CARD) -> list[Span]:
    """The kernels of ``fn()``, each with its flops, bytes and time on the paced clock of ``card``."""
    with paced(card), trace() as spans:
        fn()
    return spans


def fit(card: Card, launch_bound: tuple[Sequence[Span], float], compute_bound: tuple[Sequence[Span], float]) -> Card:
    """A card that gives two measured times: ``kernel_us``, and one factor on all its rates.

    launch_bound, compute_bound: the ``work`` of a replay and its measured time in seconds, of a model of many small
    kernels and of one of few large kernels. Raises CardError if no constants give both times.
    """
    (small, small_time), (large, large_time) = launch_bound, compute_bound
    if not (small and large and small_time > 0 and large_time > 0):
        raise CardError("a measurement needs its kernels and a time above 0")
    kernel_us, slower = card.kernel_us.value, 1.0
    for _ in range(200):
        # Each time rises with both numbers, so a step in turn on each comes nearer.
        new_kernel_us = _solve(lambda x, s=slower: _fitted(card, x, s).seconds(small), small_time, kernel_us)
        new_slower = _solve(lambda x, k=new_kernel_us: _fitted(card, k, x).seconds(large), large_time, slower)
        done = math.isclose(new_kernel_us, kernel_us, rel_tol=1e-6) and math.isclose(new_slower, slower, rel_tol=1e-6)
        kernel_us, slower = new_kernel_us, new_slower
        if done:
            return _fitted(card, kernel_us, slower)
    raise CardError(_NO_FIT)


_NO_FIT = "no constants give both times: is one measurement launch-bound and the other compute-bound?"


def _fitted(card: Card, kernel_us: float, slower: float) -> Card:
    changes = {"kernel_us": kernel_us}
    for key in ("bandwidth_gb_s", "float32_tflop_s", "float16_tflop_s", "int8_tflop_s"):
        changes[key] = getattr(card, key).value / slower
    constants = {key: Constant(x, x, x, "fitted to two measurements") for key, x in changes.items()}
    return dataclasses.replace(card, name=f"{card.name}, fitted", **constants)


def _solve(f: Callable[[float], float], target: float, near: float) -> float:
    """x > 0 with f(x) = target, for an f that rises with x, if only from some x on."""
    low, high = near * 1e-3, near * 1e3
    if not f(low) <= target <= f(high):
        raise CardError(_NO_FIT)
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if f(middle) < target else (low, middle)
    return high
