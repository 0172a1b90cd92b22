"""Find the device: a real Ascend NPU where CANN loads, else the simulated one. This file does not import torch."""

import builtins
import html
import importlib.util
import os
import platform
import re
import sys
import tempfile
import warnings
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from io import StringIO

import ascend_sim


class DeviceError(RuntimeError):
    """No device can be made ready here. The message is one line that says why and what to do."""


@dataclass(frozen=True)
class Device:
    """What runs the kernels, and what a record says about it."""

    kind: str  # "ascend" or "simulated"
    why: str  # one line
    python: str
    torch: str
    torch_npu: str
    cann: str  # CANN's version, or "simulated"
    tqe: int  # effective TASK_QUEUE_ENABLE: 0, 1 or 2
    tqe_why: str
    quieted: tuple[str, ...] = ()

    @property
    def clock(self) -> str:
        return "hardware" if self.kind == "ascend" else "cpu"

    @property
    def source(self) -> str:
        return SOURCE[self.kind]

    @property
    def versions(self) -> str:
        """One line for the foot of a figure."""
        return f"torch {self.torch}, torch_npu {self.torch_npu}, CANN {self.cann}, TASK_QUEUE_ENABLE {self.tqe}"

    def __str__(self) -> str:
        name = "Ascend NPU" if self.kind == "ascend" else "simulated Ascend NPU"
        lines = [
            f"device      {name} ({self.why})",
            f"versions    Python {self.python}, torch {self.torch}, torch_npu {self.torch_npu}, CANN {self.cann}",
            f"task queue  TASK_QUEUE_ENABLE={self.tqe} ({self.tqe_why})",
        ]
        if self.quieted:
            lines.append(f"quieted     torch_npu's start-up warnings about {', '.join(self.quieted)}")
        return "\n".join(lines)


SOURCE = {"ascend": "measured on Ascend", "simulated": "measured on the simulated device"}

# What torch_npu writes at start-up that is expected here, and the short name under which activate() mentions it.
_EXPECTED = {
    "ASCEND_HOME_PATH environment variable is not set": "ASCEND_HOME_PATH",
    "require processing for 32 padding size": "32-byte padding",
    "Device do not support double dtype now": "float64",
}
_active: Device | None = None


def found(module: str) -> bool:
    """True if ``module`` can be imported, as far as one can tell without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a finder that refuses, or None in sys.modules
        return False


def prepare() -> None:
    """Keep a later ``import torch`` from loading torch_npu by itself, which fails where there is no CANN.

    Raises DeviceError if torch was imported before and that failure already happened: half of torch stays loaded,
    and only a new process can import it again.
    """
    if "torch" not in sys.modules and "torch._C" in sys.modules:
        raise DeviceError(
            "torch was imported before helpers, and failed half-way (it loads torch_npu by itself, and torch_npu "
            "found no CANN): restart the kernel and import helpers first"
        )
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"


def activate(threads: int | None = 1, verbose: bool = True) -> Device:
    """Make ``npu`` usable and return what it is. Calling it again costs nothing and returns the same object.

    threads: CPU threads of torch, 1 by default, because the simulated device computes with one and a CPU result is
    equal to it bit for bit only at the same number. None leaves torch's setting.
    Raises DeviceError or ascend_sim.LoadError, each with one line.
    """
    global _active
    if _active is None:
        _active = _activate()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    if verbose:
        print(_active)
    return _active


def task_queue() -> int:
    """The effective TASK_QUEUE_ENABLE of this process: 0, 1 or 2. Raises DeviceError before activate()."""
    import torch

    if not hasattr(torch, "npu"):
        raise DeviceError("torch_npu is not loaded yet: call helpers.activate() first")
    if hasattr(torch.npu, "get_task_queue_enable"):
        return torch.npu.get_task_queue_enable()
    if os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
        return 0
    return int(os.environ.get("TASK_QUEUE_ENABLE", "1"))


def _activate() -> Device:
    asked = os.environ.get("TASK_QUEUE_ENABLE")
    if asked is not None and asked.strip() not in ("0", "1", "2"):
        raise DeviceError(f"TASK_QUEUE_ENABLE={asked!r}: torch_npu takes 0, 1 or 2; change it and start a new process")
    for name in ("torch", "torch_npu"):
        if not found(name):
            raise DeviceError(f"{name} is not installed: pip install -e '.[npu]' brings the pair that fits together")
    loaded = ascend_sim.load()
    quieted: list[str] = []
    import torch

    with _quiet_import(quieted):
        import torch_npu
    # The first allocation starts the device, so a broken one fails here and not in the middle of a lesson. Printing a
    # tensor asks for float64, and the first time that is asked for there is a warning.
    with _quiet_stderr(quieted) if loaded.kind == "simulated" else nullcontext():
        torch.empty(1, device="npu").double()
    effective = task_queue()
    return Device(
        kind=loaded.kind,
        why=loaded.why,
        python=platform.python_version(),
        torch=str(torch.__version__),
        torch_npu=str(torch_npu.__version__),
        cann="simulated" if loaded.kind == "simulated" else _cann_version(torch_npu),
        tqe=effective,
        tqe_why=_why(effective, asked),
        quieted=tuple(quieted),
    )


def _interactive() -> bool:
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__") or "ipykernel" in sys.modules


def _why(effective: int, asked: str | None) -> str:
    if effective == 0 and os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
        return "ASCEND_LAUNCH_BLOCKING=1 forces 0"
    if effective == 0 and _interactive():
        return "torch_npu sets it to 0 in Jupyter and IPython"
    return "torch_npu's default" if asked is None else "from the environment"


def _cann_version(torch_npu) -> str:
    try:
        return torch_npu.npu.utils.get_cann_version() or "unknown"
    except (AttributeError, RuntimeError):  # older torch_npu has no such call
        return "unknown"


def brief(error: BaseException) -> str:
    """The line of an error that names the cause: torch_npu's own first lines are the same for most."""
    lines = str(error).splitlines() or [""]
    return next((line for line in lines if line.startswith("[ascend_sim]")), lines[0]) or type(error).__name__


def show_error(error: BaseException | str) -> None:
    """Show an intended error in a notebook: one line, and the full text one click away, without this machine's paths.

    error: an exception, or what a failed process wrote to stderr.
    """
    from IPython.display import display

    if isinstance(error, BaseException):
        short, full = f"{type(error).__name__}: {brief(error)}", str(error)
        while error.__cause__ is not None:
            error = error.__cause__
            full += f"\n\ncaused by {type(error).__name__}: {error}"
    else:
        full = error.strip()
        raised = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .*)", full, re.M)
        short = raised[-1] if raised else full.partition("\n")[0]
    long_path = r"(?<![\w./])/(?:[^\s/'\":]+/)+(?=[^\s/'\":]+/[^\s/'\":]+)"  # all but its last two parts
    short, full = (re.sub(long_path, "…/", text) for text in (short, full))
    page = f"<details><summary><code>{html.escape(short)}</code></summary><pre>{html.escape(full)}</pre></details>"
    display({"text/html": page, "text/plain": short}, raw=True)


def _sort(text: str, quieted: list[str]) -> str:
    """Note the expected lines of ``text`` in ``quieted`` and return the others."""
    rest = []
    for line in text.splitlines(keepends=True):
        name = next((short for long, short in _EXPECTED.items() if long in line), None)
        if name is None:
            rest.append(line)
        elif name not in quieted:
            quieted.append(name)
    return "".join(rest)


@contextmanager
def _quiet_import(quieted: list[str]):
    # A filter, not warnings.catch_warnings: torch_npu replaces warnings.showwarning while it is imported, and leaving
    # catch_warnings would put the old one back.
    warnings.filterwarnings("ignore", message="On the interactive interface, the value of TASK_QUEUE_ENABLE")
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        sys.stdout.write(_sort(printed.getvalue(), quieted))
    if _interactive():
        quieted.append("TASK_QUEUE_ENABLE in Jupyter")


@contextmanager
def _quiet_stderr(quieted: list[str]):
    # torch_npu's C++ warnings go to file descriptor 2, past sys.stderr.
    with tempfile.TemporaryFile("w+") as heard:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(heard.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            heard.seek(0)
            sys.stderr.write(_sort(heard.read(), quieted))
