"""Capture a function once, replay it with new inputs."""

import contextlib
import logging
import re
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from .device import brief


class CaptureError(RuntimeError):
    """The function cannot be captured. One line; the error of torch_npu is its ``__cause__``."""


class Seconds(NamedTuple):
    """What making a graph costs, in seconds."""

    warmup: float
    capture: float


class Captured:
    """A captured function. Call it with inputs of the captured shapes and dtypes.

    graph:   the torch.npu.NPUGraph, for ``graph.replay()`` alone
    inputs:  tuple of static tensors on the device; a replay reads them
    outputs: what the function returned; a replay overwrites it
    seconds: cost of warm-up and of capture
    """

    def __init__(self, fn: Callable, graph, inputs: tuple[torch.Tensor, ...], outputs, seconds: Seconds):
        self._fn = fn  # a graph keeps addresses: its weights must live as long as it may replay
        self.graph, self.inputs, self.outputs, self.seconds = graph, inputs, outputs, seconds

    def __call__(self, *inputs: torch.Tensor, clone: bool = False):
        """Copy ``inputs`` (on CPU or NPU) in, replay, return the outputs. Does not wait for the device.

        The outputs are static: **the next call overwrites them**. With ``clone=True`` you get a copy of your own.
        Raises TypeError or ValueError before anything is copied if the inputs do not fit. ``Tensor.copy_`` would
        broadcast a smaller input and convert another dtype without a word.
        """
        self._check(inputs)
        for static, new in zip(self.inputs, inputs, strict=True):
            static.copy_(new.detach())  # else a static buffer would join the autograd graph of each input
        self.graph.replay()
        return tree_map_only(torch.Tensor, torch.clone, self.outputs) if clone else self.outputs

    def _check(self, inputs: tuple) -> None:
        if len(inputs) != len(self.inputs):
            raise TypeError(f"the graph was captured with {len(self.inputs)} inputs, got {len(inputs)}")
        for i, (static, new) in enumerate(zip(self.inputs, inputs, strict=True)):
            if not isinstance(new, torch.Tensor):
                raise TypeError(f"input {i}: expected a tensor, got {type(new).__name__}")
            if new.device.type not in ("cpu", "npu"):
                raise ValueError(f"input {i}: expected a tensor on cpu or npu, got one on {new.device.type}")
            for what, want, got in (
                ("shape", tuple(static.shape), tuple(new.shape)),
                ("dtype", static.dtype, new.dtype),
            ):
                if want != got:
                    raise ValueError(f"input {i}: the graph was captured with {what} {want}, got {got}")


def capture(fn: Callable, *inputs: torch.Tensor, warmup: int = 3, pool=None) -> Captured:
    """Warm ``fn`` up on a side stream, capture ``fn(*inputs)`` and return it as a callable.

    inputs: tensors on CPU or NPU; copies of them become the static inputs. ``fn`` runs ``warmup`` + 1 times without
    gradients, and whatever it changes besides (random state, running statistics) it changes that often.
    pool: a memory pool to share, from ``torch.npu.graph_pool_handle()`` or another graph's ``pool()``. Graphs that
    share one must replay in the order of their capture, and the replay of one may overwrite the outputs of another.
    Raises CaptureError if the capture fails. The graph is dropped then (torch_npu would let it replay, truncated at
    the error) and the current stream is the one before the call.
    """
    for i, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"input {i}: expected a tensor, got {type(x).__name__}")
    static = tuple(x.detach().to("npu", copy=True) for x in inputs)
    before = torch.npu.current_stream()
    with torch.no_grad():
        start = time.perf_counter()
        side = torch.npu.Stream()
        side.wait_stream(before)
        with torch.npu.stream(side):
            for _ in range(warmup):
                fn(*static)
        before.wait_stream(side)
        torch.npu.synchronize()
        warm = time.perf_counter()
        graph, failed = torch.npu.NPUGraph(), None
        try:
            with quiet_log(), torch.npu.graph(graph, pool=pool):
                outputs = fn(*static)
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # nothing to reset if the capture never began
                graph.reset()
            failed = error
            if not isinstance(error, Exception):
                raise
        finally:
            # torch.npu.graph enters its stream before capture_begin and leaves it after capture_end, with no ``try``
            # around either: if one of them raises, the capture stream stays the current one.
            torch.npu.set_stream(before)
        if failed is not None:
            raise CaptureError(_explain(failed) + _queue_state()) from failed
    return Captured(fn, graph, static, outputs, Seconds(warm - start, time.perf_counter() - warm))


_HINTS = (
    (r"TASK_QUEUE_ENABLE", "start the process with TASK_QUEUE_ENABLE=1 or 0"),
    # CANN versions answer a wait inside a capture with different codes.
    (
        r"\b(107027|107030|107041)\b",
        "it waits for the device (.item(), bool(tensor), .cpu(), print), reads from it, or makes a tensor from "
        "Python numbers there (torch.tensor(..., device='npu'))",
    ),
    (r"\b107025\b", "a side stream was not joined with wait_stream"),
    (r"\b107024\b", "it waits for an event recorded outside the capture"),
    (r"aclop", "an operator has no aclnn form"),
)


def first_error(error: BaseException) -> BaseException:
    """The one that made a capture fail: its end fails as well because of it, and a CaptureError has it as its cause."""
    while (first := error.__cause__ or error.__context__) is not None:
        error = first
    return error


def _explain(error: BaseException) -> str:
    error = first_error(error)
    hint = next((f" ({text})" for pattern, text in _HINTS if re.search(pattern, str(error))), "")
    return f"the function cannot be captured{hint}; the graph was dropped. {type(error).__name__}: {brief(error)}"


def _queue_state() -> str:
    """At TASK_QUEUE_ENABLE=1 an error inside torch_npu's queue stops it: what follows is dropped without a word."""
    probe = torch.zeros(1, device="npu")
    with contextlib.suppress(RuntimeError):
        probe.fill_(1)
        torch.npu.synchronize()
        if probe.item() == 1:
            return ""
    return ". torch_npu's task queue has stopped and drops all that follows: start a new process"


@contextlib.contextmanager
def quiet_log():
    """torch_npu logs a failed capture as well as raising it: once is enough."""
    log = logging.getLogger("torch_npu.npugraph")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
