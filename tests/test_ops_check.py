"""ASCEND_SIM_CHECK=1: kernels read and write what their operators say."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def run_checked(run_python):
    def run(code: str):
        load = "import ascend_sim; ascend_sim.load(); import torch, torch_npu"
        return run_python(f"{load}\n{code}", ASCEND_SIM_CHECK="1", TASK_QUEUE_ENABLE="0")

    return run


def test_kernels_do_what_their_operators_say(tmp_path):
    """The fixed part of the report; all operators are `ASCEND_SIM_CHECK=1 python -m ascend_sim ops`."""
    pytest.importorskip("expecttest")
    done = subprocess.run(
        [sys.executable, "-m", "ascend_sim", "ops", "--quick", "--json"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "ASCEND_SIM_CHECK": "1"},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert not found["wrong"], {name: found["why"][name] for name in found["wrong"]}
    assert len(found["right"]) >= 110, found["why"]


# What PyTorch's samples do not have: lists, optimizers, layers, attention.
@pytest.mark.parametrize("tests", ["test_ops.py -k lists or optimizer or scaling", "test_ops_nn.py"])
def test_kernels_of_layers_and_lists_do_what_their_operators_say(tests):
    name, *choice = tests.split(" ", 2)
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", os.path.join(here, name), *choice],
        capture_output=True, text=True, env={**os.environ, "ASCEND_SIM_CHECK": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


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
