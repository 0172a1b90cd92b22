"""Load the simulated device into the process."""

import ctypes
import os
import sys
from typing import NamedTuple

from .build import LIBRARY, LoadError, library


class Device(NamedTuple):
    """What ``load`` found: kind "ascend" or "simulated", and why, in one line."""

    kind: str
    why: str


_device: Device | None = None
_library: ctypes.CDLL | None = None


def load() -> Device:
    """Make ``import torch_npu`` work: with the CANN of this machine if it has one, else with the simulated device.

    Raises LoadError, with one line that says what to do, where neither is possible.
    """
    global _device
    if _device is None:
        # torch would import torch_npu the moment it is imported itself, and fail if the device is not there yet.
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        _device = _find_cann() or _load_simulated()
    return _device


def _find_cann() -> Device | None:
    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        return None
    return Device("ascend", "libascendcl.so of a CANN installation loads, so nothing is simulated")


def _load_simulated() -> Device:
    global _library
    if "torch_npu" in sys.modules:
        raise LoadError("torch_npu was imported before ascend_sim.load(): restart Python and load the device first")
    _check_settings()
    folder = library()
    import torch  # noqa: F401  (the device is linked to it)

    try:
        # torch_npu asks for these by name, and the loader gives it what is in the process already.
        for path in [folder / LIBRARY, *sorted(p for p in folder.glob("lib*.so") if p.name != LIBRARY)]:
            loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            _library = _library or loaded
    except OSError as e:
        raise LoadError(
            f"the compiled device in {folder} does not load ({e}): delete that folder and try again"
        ) from None
    _library.ascend_sim_forget_cuda_settings()
    _library.ascend_sim_spans.restype = ctypes.c_size_t
    _library.ascend_sim_operators.restype = ctypes.c_char_p
    return Device("simulated", "no CANN on this machine, so operators run on PyTorch's CPU kernels")


def operators() -> list[str]:
    """The aclnn operators that the simulated device has. Raises LoadError where nothing is simulated."""
    return sorted(simulated("to list").ascend_sim_operators().decode().split())


def simulated(purpose: str) -> ctypes.CDLL:
    """The library of the simulated device. Raises LoadError where nothing is simulated, with what it was wanted for."""
    if _library is None:
        raise LoadError(f"no simulated device is loaded, so there is nothing {purpose}")
    return _library


def _check_settings() -> None:
    if (text := os.environ.get("ASCEND_SIM_CHECK", "0")) not in ("0", "1"):
        raise LoadError(f"ASCEND_SIM_CHECK={text!r}: expected 0 or 1")
    for name, unit, kind, most in (
        ("ASCEND_SIM_MEMORY", "GiB", float, 4096),
        ("ASCEND_SIM_THREADS", "threads", int, 1024),
        ("ASCEND_SIM_STREAMS", "streams", int, 1 << 20),
    ):
        text = os.environ.get(name, "1")
        try:
            fits = 0 < kind(text) <= most
        except ValueError:
            fits = False
        if not fits:
            raise LoadError(f"{name}={text!r}: expected a number of {unit} above 0, {most} at most")
