"""helpers.waits: which line waits, how often, and that nothing is left behind."""

import os
import sys

import helpers
from helpers.waits import host_waits

import pytest
import torch

helpers.activate(verbose=False)
HERE = sys.modules[__name__]


def test_each_wait_is_found_at_its_line():
    x, known = torch.arange(6.0).npu(), torch.arange(6).npu() > 2

    def program():
        for _ in range(3):
            x.sum().item()
        x[known]
        x.cpu()
        torch.ones(2).to("npu")
        x.add(1).mul(2)

    assert host_waits(program, HERE) == {
        "x.sum().item()": 3,
        "x[known]": 1,
        "x.cpu()": 1,
        'torch.ones(2).to("npu")': 1,
    }


def test_a_wait_in_another_file_counts_where_it_was_called():
    p = torch.full((2, 3), 1 / 3).npu()

    def program():
        torch.distributions.Categorical(probs=p)

    assert host_waits(program, HERE) == {"torch.distributions.Categorical(probs=p)": 1}
    assert host_waits(program, os) == {"elsewhere": 1}


def test_what_a_program_writes_and_an_error_leave_nothing_behind(capfd):
    def broken():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        host_waits(broken, HERE)
    assert torch.npu.get_sync_debug_mode() == 0
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"
