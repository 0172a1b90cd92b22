"""ASCEND_SIM_CHECK=1: kernels read and write what their operators say."""

import os

import pytest


@pytest.fixture
def run_checked(run_python):
    def run(code: str):
        load = "import ascend_sim; ascend_sim.load(); import torch, torch_npu"
        return run_python(f"{load}\n{code}", ASCEND_SIM_CHECK="1", TASK_QUEUE_ENABLE="0")

    return run


def test_the_whole_suite_runs_under_the_check():
    """And with it the fixed part of the OpInfo report. All of it: `ASCEND_SIM_CHECK=1 python -m ascend_sim ops`."""
    assert os.environ["ASCEND_SIM_CHECK"] == "1"


def test_what_is_only_written_is_garbage_before(run_checked):
    # Without training there are no statistics of the batch, and the kernel leaves their tensors alone.
    done = run_checked("""
x, one = torch.ones(2, 3, 4, 4).npu(), torch.ones(3).npu()
print(torch.ops.aten.native_batch_norm(x, one, one, one, one, False, 0.1, 1e-5)[1].view(torch.int32).tolist())
""")
    garbage = int.from_bytes(b"\xa5" * 4, "little", signed=True)
    assert done.stdout.split("\n")[-2] == str([garbage] * 3), done.stdout + done.stderr


def test_a_kernel_whose_operand_changes_raises(run_checked):
    # No operator does it, so another stream does, while a long kernel runs.
    done = run_checked("""
import time
a = torch.ones(2000, 2000).npu()
torch.npu.synchronize()
with torch.npu.stream(torch.npu.Stream()):
    b = a @ a
time.sleep(0.05)
a.fill_(2)
torch.npu.synchronize()
""")
    assert done.returncode and "aclnnMatmul: tensor 1 of those that it was given" in done.stderr, done.stderr
