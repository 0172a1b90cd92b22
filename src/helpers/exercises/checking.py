"""How an exercise is checked. The checks themselves are in the modules beside this one."""

import contextlib
import difflib
import inspect
import traceback
from collections.abc import Callable, Iterator
from unittest import mock

import torch

from ..capture import first_error, quiet_log
from ..device import brief, task_queue


class Wrong(Exception):
    """The answer is not right. The message says what is wrong and why, in a sentence or two, and not the solution."""


class _Untouched(Exception):
    pass


def draw(*shape: int, seed: int) -> torch.Tensor:
    """Normal numbers, on the CPU."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def replayed(counted, call, *inputs, name: str = "a call"):
    """``call(*inputs)``. Raises Wrong if that is not one replay of what was captured of ``counted``.

    counted: its ``calls`` says how often Python went through it, and its ``runs``, on the device, how often that did.
    name: what the message calls the call.
    """
    calls, runs = counted.calls, _count(counted.runs)
    result = call(*inputs)
    if counted.calls != calls:
        raise Wrong(f"{name} goes through Python again: it should copy the input in and replay")
    if (ran := _count(counted.runs) - runs) != 1:
        times = "no graph of what it was given" if ran == 0 else f"it {ran:.0f} times"
        raise Wrong(f"{name} replays {times}: it should copy the input in, and replay the graph once")
    return result


def _count(runs: torch.Tensor) -> float:
    torch.npu.synchronize()  # a warm-up may still run on a stream of its own
    return runs.item()


_CHECKS: dict[str, Callable[[Callable], str]] = {}


def exercise(look: Callable[[Callable], str]) -> Callable[[Callable], str]:
    """Make ``look`` the check of the exercise of its name.

    ``look`` gets the learner's function, calls it, and returns what there is to learn from a right answer, in a
    sentence or two. It raises Wrong for a wrong one. What the learner's function itself raises, it lets through.
    """
    if look.__name__ in _CHECKS:
        raise ValueError(f"two exercises are called {look.__name__}")
    _CHECKS[look.__name__] = look
    return look


def check(answer: Callable) -> None:
    """Try the answer to an exercise, and print *to do*, or *not yet* and why, or *solved* and what it shows.

    answer: the function of the exercise, under its own name. It may raise anything, also in the middle of a capture:
    afterwards stream, gradient mode and task queue are those of before, and no capture is open. Raises ValueError if no
    exercise has that name.
    """
    name = getattr(answer, "__name__", repr(answer))
    if name not in _CHECKS:
        near = difflib.get_close_matches(name, _CHECKS, 1)
        raise ValueError(f"no exercise is called {name}: " + (f"did you mean {near[0]}?" if near else "keep its name"))

    def tried(*args, **kwargs):
        result = answer(*args, **kwargs)
        if result is ...:
            raise _Untouched
        return result

    stream, gradients, level = torch.npu.current_stream(), torch.is_grad_enabled(), task_queue()
    try:
        with quiet_log(), _captures_that_end():
            shown = f"solved: {_CHECKS[name](tried)}"
    except _Untouched:
        shown = f"to do: {name} still returns ..."
    except Wrong as wrong:
        shown = f"not yet: {wrong}"
    except Exception as error:
        shown = f"not yet: {_what_was_raised(answer, error)}"
    finally:
        torch.npu.set_stream(stream)  # torch.npu.graph leaves its own one current if a capture fails
        torch.set_grad_enabled(gradients)
        if task_queue() != level:
            torch.npu.set_task_queue_enable(level)
    print(shown)


@contextlib.contextmanager
def _captures_that_end() -> Iterator[None]:
    """End each capture that the block leaves open: else nobody could wait for the device. Raises Wrong for one."""
    graphs, opened = torch.npu.NPUGraph, {}
    begin, end = graphs.capture_begin, graphs.capture_end

    def begins(graph, *args, **kwargs):
        begin(graph, *args, **kwargs)
        opened[graph] = torch.npu.current_stream()

    def ends(graph):
        opened.pop(graph, None)
        end(graph)

    try:
        with mock.patch.object(graphs, "capture_begin", begins), mock.patch.object(graphs, "capture_end", ends):
            yield
    finally:
        left = list(opened.items())
        for graph, stream in left:
            with contextlib.suppress(RuntimeError), torch.npu.stream(stream):
                end(graph)
        if left:
            raise Wrong("a capture is begun and not ended: capture_end, or `with torch.npu.graph(...)`, which ends it")


def _what_was_raised(answer: Callable, error: BaseException) -> str:
    """The error, and the learner's line that it comes from."""
    error = first_error(error)
    code = getattr(inspect.unwrap(answer), "__code__", None)
    own = [f for f in traceback.extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
    where = f"line {own[-1].lineno}, `{own[-1].line}`, raised " if own else f"{answer.__name__} raised "
    return f"{where}{type(error).__name__}: {brief(error)}"
