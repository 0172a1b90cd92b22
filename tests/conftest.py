"""The device is loaded before torch is imported, once for all tests of the process."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

# What a notebook runs at: an error comes from the line that caused it.
os.environ.setdefault("TASK_QUEUE_ENABLE", "0")
# All kernels of these tests read and write what their operators say: see test_ops_check.py.
os.environ.setdefault("ASCEND_SIM_CHECK", "1")

import ascend_sim

ascend_sim.load()

import pytest  # noqa: E402
import run_notebooks  # noqa: E402
import torch  # noqa: E402
import torch_npu  # noqa: E402, F401
from processes import UNSET  # noqa: E402

torch.set_num_threads(1)  # as the device: the bits of a sum depend on it
room = None  # the file that this process has locked


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Where several processes share the tests, those that are marked `timed` run while no other test does."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    global room
    timed, more = (each is not None and each.get_closest_marker("timed") is not None for each in (item, nextitem))
    if room is None:
        kind = fcntl.LOCK_EX if timed else fcntl.LOCK_SH
        room = os.open(Path(__file__).parent / "processes.py", os.O_RDONLY)  # any two files to lock
        with open(__file__) as gate:
            fcntl.flock(gate, kind)  # who waits for the room keeps the gate shut, or others would pass and keep it busy
            fcntl.flock(room, kind)
            fcntl.flock(gate, fcntl.LOCK_UN)
    try:
        return (yield)
    finally:
        if not (timed and more):  # to wait for the others once is enough
            fcntl.flock(room, fcntl.LOCK_UN)  # closing is not enough where a test has forked
            os.close(room)
            room = None


@pytest.fixture
def x():
    return torch.arange(8.0).npu()


@pytest.fixture(autouse=True)
def leave_no_capture_stream():
    # torch.npu.graph enters its stream before capture_begin, which may raise: then nobody leaves it.
    yield
    torch.npu.set_stream(torch.npu.default_stream())


@pytest.fixture
def run_python(tmp_path):
    """Run code in a Python of its own; give back the finished process with its text output."""

    def run(code: str, timeout: float = 60, **environment: str):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, timeout=timeout, env={**os.environ, **environment}, cwd=tmp_path,
        )  # fmt: skip
        # torch_npu prints this one to stdout; the course quiets it in helpers.activate()
        done.stdout = done.stdout.replace("Warning: ASCEND_HOME_PATH environment variable is not set.\n", "")
        return done

    return run


@pytest.fixture
def code_of():
    """The error codes in the text of the exception that a call raises; fails if it raises none."""

    def codes(call) -> set[int]:
        with pytest.raises(RuntimeError) as caught:
            call()
        return {int(c) for c in re.findall(r"error code is (\d{6})", str(caught.value))}

    return codes


@pytest.fixture
def verdict(capsys, monkeypatch):
    """What the check of an exercise says about an answer: to the exercise of its name, or of the one that is given."""
    from helpers import exercises

    def said(answer, name: str | None = None) -> str:
        if name:
            monkeypatch.setattr(answer, "__name__", name)
        capsys.readouterr()
        exercises.check(answer)
        return capsys.readouterr().out.strip()

    return said


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Quiet kernels, whose files go to a temporary folder, and which start as from a user's shell."""
    with pytest.MonkeyPatch.context() as patch:
        for name in UNSET:  # some were set above, for this process
            patch.delenv(name, raising=False)
        patch.setenv("IPYTHONDIR", "")  # quiet_kernels changes it; put it back afterwards
        run_notebooks.quiet_kernels(tmp_path_factory.mktemp("ipython"))
        yield
