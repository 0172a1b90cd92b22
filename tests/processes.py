"""Run Python in a process of its own, for what can happen only once in a process: imports, and the environment."""

import os
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
UNSET = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "TASK_QUEUE_ENABLE", "ASCEND_LAUNCH_BLOCKING", "ASCEND_SIM_CHECK")

# Put before a program: no module of these names can be found.
BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Blocker())
"""


def python(code: str, *args: str, **env: str) -> subprocess.CompletedProcess:
    """Run ``code`` with a plain environment and ``env`` on top."""
    return subprocess.run([sys.executable, "-c", code, *args], **_options(env))


def helpers(*args: str, **env: str) -> subprocess.CompletedProcess:
    """Run ``python -m helpers``."""
    return subprocess.run([sys.executable, "-m", "helpers", *args], **_options(env))


def _options(env: dict[str, str]) -> dict:
    plain = {key: value for key, value in os.environ.items() if key not in UNSET}
    plain["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(SRC)]))
    return dict(env=plain | env, capture_output=True, text=True, timeout=300)


def last_line(done: subprocess.CompletedProcess) -> str:
    """The error of a failed program: the last line of a traceback, or the only line of a command."""
    assert done.returncode != 0, done.stdout
    return done.stderr.strip().splitlines()[-1]
