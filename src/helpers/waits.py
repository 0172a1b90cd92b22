"""Find the lines of a program that make the host wait for the device."""

import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WAIT = b"called a synchronizing NPU operation"


def host_waits(fn: Callable[[], object], within: ModuleType) -> dict[str, int]:
    """How often the host waits for the device in ``fn()``: {line of source in the module ``within``: times}.

    torch_npu itself reports the waits (``torch.npu.set_sync_debug_mode``). Copies between host and device are added,
    one wait each: torch_npu 2.13.0 does not report them. Lines are in the order of their first wait.
    """
    with tempfile.TemporaryFile() as heard, _Reading(heard, within) as reading:
        fn()
    return dict(reading.lines)


class ReadBacks(TorchDispatchMode):
    """Counts where a value on the device becomes one of Python, gives a shape, or moves to the CPU: ``count``.

    Cheaper than ``host_waits`` and without lines. It leaves out copies from the host, which wait for themselves.
    """

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        to_host = _crosses(func, args, result) and result.device.type == "cpu"
        self.count += to_host or name in ("_local_scalar_dense", "nonzero")
        return result


class _Reading(TorchDispatchMode):
    """Reads after each operator what torch_npu wrote about it: to file descriptor 2, past sys.stderr."""

    def __init__(self, heard, within: ModuleType):
        super().__init__()
        self.heard, self.file, self.lines = heard, within.__file__, Counter()

    def __enter__(self):
        sys.stderr.flush()
        self.saved = os.dup(2)
        os.dup2(self.heard.fileno(), 2)
        torch.npu.set_sync_debug_mode("warn")
        return super().__enter__()

    def __exit__(self, *error):
        try:
            return super().__exit__(*error)
        finally:
            torch.npu.set_sync_debug_mode("default")
            os.dup2(self.saved, 2)
            os.close(self.saved)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        start = os.lseek(2, 0, os.SEEK_END)
        result = func(*args, **kwargs)
        waits = os.pread(2, os.lseek(2, 0, os.SEEK_END) - start, start).count(_WAIT) + _crosses(func, args, result)
        if waits:
            own = [f.line for f in traceback.extract_stack() if f.filename == self.file]
            self.lines[own[-1] if own else "elsewhere"] += waits
        return result


def copied_from(func, args: tuple) -> str | None:
    """The type of device that an operator copies a tensor from; None if it is no copy."""
    source = {"_to_copy": 0, "copy_": 1}.get(func.overloadpacket.__name__)
    return None if source is None else args[source].device.type


def _crosses(func, args: tuple, result: object) -> bool:
    """True for a copy between the host and the device."""
    source = copied_from(func, args)
    return source is not None and {source, result.device.type} == {"cpu", "npu"}
