"""Exercises of notebook 1: what each wrong answer is told."""

import os
import subprocess
import sys

import pytest
import torch


def without_a_return():
    return None


def a_line_that_is_not_there():
    return {"c", "f"}


def views_too():
    return {"a", "b", "c", "d", "e"}


def operators_only():
    return {"e"}


@pytest.mark.parametrize(
    "answer, says",
    [
        (without_a_return, ["not yet: return a set of letters"]),
        (a_line_that_is_not_there, ["not yet: there is no line 'f'"]),
        (views_too, ["not so: a, x.t(), launches nothing"]),
        (operators_only, ["c, x.t().contiguous(), launches aclnnInplaceCopy"]),
    ],
)
def test_lines_that_launch(answer, says, verdict):
    said = verdict(answer, "lines_that_launch")
    assert said.startswith("not yet: ") and all(line in said for line in says), said
    assert said.count(", launches ") == sum(", launches " in line for line in says), (
        "only the first wrong item is explained"
    )


def test_lines_that_launch_may_be_a_list(verdict):
    def lines_that_launch():
        return ["e", "c"]

    assert verdict(lines_that_launch).startswith("solved: ")


def untouched(x):
    return ...


def nothing(x):
    return None


def library(x):
    return x.softmax(-1)


def on_the_host(x):
    return x.cpu().softmax(-1).npu()


def launched_for_nothing(x):
    x.exp()
    return x.cpu().softmax(-1).npu()


def by_a_number(x):
    e = (x - x.max().item()).exp()
    return e / e.sum(-1, keepdim=True)


def in_place(x):
    x.exp_()
    x /= x.sum(-1, keepdim=True)
    return x


def over_everything(x):
    e = x.exp()
    return e / e.sum()


def over_rows_wrongly(x):
    e = x.exp() * torch.arange(1, 6, device="npu")
    return e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "answer, says",
    [
        (untouched, "to do: "),
        (nothing, "not yet: the result of a softmax has the shape of its input"),
        (library, "not yet: your function still launches the softmax kernel"),
        (on_the_host, "not yet: the result was not computed on the device"),
        (launched_for_nothing, "not yet: your function reads values from the device"),
        (by_a_number, "not yet: your function reads values from the device"),
        (in_place, "not yet: your function overwrites its input"),
        (over_everything, "not yet: the rows do not sum to 1"),
        (over_rows_wrongly, "not yet: the rows sum to 1, but"),
    ],
)
def test_softmax_by_hand(answer, says, verdict):
    assert verdict(answer, "softmax_by_hand").startswith(says)


def test_softmax_by_hand_may_guard_against_overflow(verdict):
    def softmax_by_hand(x):
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    assert verdict(softmax_by_hand).startswith("solved: 5 kernels")


def printed(code: str, environment: dict) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


ASKS_THE_VARIABLE = "import os; print(os.environ['TASK_QUEUE_ENABLE'])"


def without_a_process(variables):
    return int(variables["TASK_QUEUE_ENABLE"])


def that_inherits_all(variables):
    return int(printed(ASKS_THE_VARIABLE, {**os.environ, "TASK_QUEUE_ENABLE": "0"}))


def that_asks_the_variable(variables):
    return int(printed(ASKS_THE_VARIABLE, {**os.environ, **variables}))


def that_returns_text(variables):
    return printed(ASKS_THE_VARIABLE, {**os.environ, **variables})


def in_this_process(variables):
    torch.npu.set_task_queue_enable(1)
    return torch.npu.get_task_queue_enable()


def in_this_environment(variables):
    os.environ.update(variables)
    return int(printed(ASKS_THE_VARIABLE, dict(os.environ)))


@pytest.mark.parametrize(
    "answer, says",
    [
        (without_a_process, "not yet: with ASCEND_LAUNCH_BLOCKING=1 beside it"),
        (that_inherits_all, "not yet: with TASK_QUEUE_ENABLE=1 your process runs at 0"),
        (that_asks_the_variable, "not yet: with ASCEND_LAUNCH_BLOCKING=1 beside it"),
        (that_returns_text, "not yet: return a number"),
        (in_this_process, "not yet: your function changes this process"),
        (in_this_environment, "not yet: your function changes this process"),
    ],
)
def test_queue_of_a_process(answer, says, verdict):
    before = dict(os.environ), torch.npu.get_task_queue_enable()
    assert verdict(answer, "queue_of_a_process").startswith(says)
    assert (dict(os.environ), torch.npu.get_task_queue_enable()) == before
