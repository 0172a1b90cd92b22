"""Checks of the exercises of notebook 1, *Set up the environment*."""

import os
from concurrent.futures import ThreadPoolExecutor

import ascend_sim

import torch

from ..device import task_queue
from ..waits import ReadBacks
from .checking import Wrong, draw, exercise

_LINES = {
    "a": ("x.t()", "it is a view: the same memory with other strides"),
    "b": ("x.view(-1)", "it is a view: the same memory with another shape"),
    "c": ("x.t().contiguous()", "a view cannot reorder memory, so the elements are copied"),
    "d": ("x[0]", "one row lies in the same memory, so it is a view"),
    "e": ("x + 0", "nobody looks whether an operator changes anything: the result gets memory of its own"),
}


@exercise
def lines_that_launch(answer) -> str:
    letters = answer()
    if not isinstance(letters, (set, frozenset, list, tuple)):
        raise Wrong('return a set of letters, for example {"a", "b"}')
    if unknown := set(letters) - set(_LINES):
        raise Wrong(f"there is no line {min(map(repr, unknown))}: the lines are a to {max(_LINES)}")
    x = torch.arange(6.0, device="npu").reshape(2, 3)
    wrong, right = [], []
    for letter, (line, why) in _LINES.items():
        with ascend_sim.trace() as spans:
            eval(line, {"x": x})
        found = f"{letter}, {line}, launches {', '.join(span.name for span in spans) or 'nothing'}: {why}"
        (right if bool(spans) == (letter in letters) else wrong).append(found)
    if wrong:
        raise Wrong(f"not so: {wrong[0]}")  # of several the first: all of them would be the solution
    return "\n  ".join(["two launch, three only describe memory", *right])


@exercise
def softmax_by_hand(answer) -> str:
    x = draw(3, 5, seed=0).npu()
    before = x.clone()
    with ascend_sim.trace() as spans, ReadBacks() as reads:
        y = answer(x)
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        said = f"{list(y.shape)}" if isinstance(y, torch.Tensor) else f"a {type(y).__name__}"
        raise Wrong(f"the result of a softmax has the shape of its input, here [3, 5]; yours is {said}")
    if any("oftmax" in span.name for span in spans):
        raise Wrong("your function still launches the softmax kernel: use exp, sum and /")
    if y.device != x.device or not spans:
        raise Wrong("the result was not computed on the device: no kernel ran there that gives it")
    if reads.count:
        raise Wrong("your function reads values from the device, and the host waits for them: leave all of it there")
    if not torch.equal(x, before):
        raise Wrong("your function overwrites its input: exp_() and /= work in place, exp() and / do not")
    if not torch.allclose(y.sum(-1).cpu(), torch.ones(3)):
        raise Wrong("the rows do not sum to 1: sum over the last dimension, and keep it (keepdim=True)")
    if not torch.allclose(y.cpu(), x.cpu().softmax(-1)):
        raise Wrong("the rows sum to 1, but the values are not those of a softmax")
    return f"{len(spans)} kernels, where softmax is 1. Each is a launch of its own: that is what fusing saves"


@exercise
def queue_of_a_process(answer) -> str:
    blocking = {"TASK_QUEUE_ENABLE": "1", "ASCEND_LAUNCH_BLOCKING": "1"}
    own, variables = task_queue(), dict(os.environ)
    try:
        with ThreadPoolExecutor() as pool:  # side by side, as each has to import torch
            found, blocked = pool.map(lambda extra: answer(dict(extra)), ({"TASK_QUEUE_ENABLE": "1"}, blocking))
        changed = task_queue() != own or dict(os.environ) != variables
    finally:
        os.environ.clear()
        os.environ.update(variables)
        if task_queue() != own:
            torch.npu.set_task_queue_enable(own)
    if changed:
        raise Wrong("your function changes this process: give the variables to the new one, by env={**os.environ, ...}")
    if not (isinstance(found, int) and isinstance(blocked, int)):
        raise Wrong(f"return a number; yours is {found!r}. What a process prints is text: int() makes a number of it")
    if found != 1:
        raise Wrong(
            f"with TASK_QUEUE_ENABLE=1 your process runs at {found}. A process inherits this notebook's 0, unless its "
            "own environment says otherwise"
        )
    if blocked != 0:
        raise Wrong(
            f"with ASCEND_LAUNCH_BLOCKING=1 beside it, your function says {blocked}, and such a process runs at 0: a "
            "variable is only a wish, so let the new process ask helpers.device.task_queue()"
        )
    return "it runs at 1. With ASCEND_LAUNCH_BLOCKING=1 beside it the same process runs at 0: ask what is in force"
