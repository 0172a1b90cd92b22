"""Record the kernels that run."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .loading import simulated


class Span(NamedTuple):
    """One kernel on one stream of the simulated device; times in seconds on the clock of time.perf_counter().

    The paced clock fills the rest: floating point operations of matrix products, bytes read and written, the rate that
    bounds the arithmetic ("float32", "float16", "int8", or "link" for a copy between host and card), and whether the
    kernel was small enough to be computed all the same.
    """

    stream: int
    name: str
    enqueued: float
    started: float
    ended: float
    flops: float | None = None
    bytes: float | None = None
    peak: str | None = None
    computed: bool = True


class _CSpan(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("stream", ctypes.c_int),
        *((name, ctypes.c_double) for name in ("enqueued", "started", "ended", "flops", "bytes")),
        ("roof", ctypes.c_int),
        ("computed", ctypes.c_bool),
    ]

    def span(self) -> Span:
        times = (self.stream, self.name.decode(), self.enqueued, self.started, self.ended)
        return Span(*times) if self.roof < 0 else Span(*times, self.flops, self.bytes, _PEAKS[self.roof], self.computed)


_PEAKS = ("float32", "float16", "int8", "link")  # enum Roof of csrc/pace.h


@contextmanager
def trace() -> Iterator[list[Span]]:
    """Record the kernels that run inside the ``with``. The list is filled at its end, which synchronises.

    One trace at a time in a process. Raises LoadError where nothing is simulated: CANN has a profiler of its own.
    """
    library = simulated("to trace")
    import torch

    torch.npu.synchronize()
    spans: list[Span] = []
    library.ascend_sim_trace(1)
    try:
        yield spans
        torch.npu.synchronize()
    finally:
        library.ascend_sim_trace(0)
        buffer = (_CSpan * library.ascend_sim_spans(None, ctypes.c_size_t(0)))()
        library.ascend_sim_spans(buffer, ctypes.c_size_t(len(buffer)))
        spans += (s.span() for s in buffer)
