"""torch_npu has its own steps for some functions, above all its own gradient of matmul. It takes PyTorch's with a
setting that it reads when it is imported, so tests that need it run in a process of their own.
"""

import os
import subprocess
import sys

import pytest

OWN_STEPS = "TORCH_NPU_USE_COMPATIBLE_IMPL"

# On a test whose name contains own_steps.
pytorchs_own_steps = pytest.mark.skipif(
    os.environ.get(OWN_STEPS) != "1", reason=f"needs {OWN_STEPS}=1: another test of this file runs it again"
)


def run_again(file: str) -> None:
    """Run those tests of a file with PyTorch's own steps, as a test that is not itself among them."""
    command = [sys.executable, "-m", "pytest", "-q", file, "-k", "own_steps and not again"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, OWN_STEPS: "1"})
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
