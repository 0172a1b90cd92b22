"""What the tests of several models ask: does the device give what the CPU gives, how often does the host wait for it,
what does a capture refuse and at which line.
"""

import re
import traceback
from pathlib import Path

import helpers
from helpers.capture import CaptureError, first_error
from helpers.waits import ReadBacks

import pytest
import torch

here = helpers.activate(verbose=False)
exact = pytest.mark.skipif(here.kind == "ascend", reason="an Ascend rounds in its own way")

WAIT_CODES = {107027, 107030}  # a wait for a stream that is captured, a synchronous copy


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    a, b = ((x,) if isinstance(x, torch.Tensor) else tuple(x) for x in (a, b))
    return len(a) == len(b) and all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(a, b, strict=True))


def on_device(inputs):
    return [x.npu() if isinstance(x, torch.Tensor) else x for x in inputs]


def waits(model, inputs) -> int:
    with ReadBacks() as seen, torch.no_grad():
        model(*inputs)
    return seen.count


def waits_that_torch_npu_sees(model, inputs, capfd) -> int:
    """Of a model on the device, by torch_npu's own debug mode, which writes a line for each."""
    inputs = on_device(inputs)
    capfd.readouterr()
    torch.npu.set_sync_debug_mode("warn")
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        torch.npu.set_sync_debug_mode("default")
    return capfd.readouterr().err.count("called a synchronizing NPU operation")


def refused(fn, *inputs, within: Path = Path(helpers.__file__).parent / "models") -> tuple[set[int], str]:
    """The error codes with which a capture of ``fn`` is refused, and the line of code ``within`` that caused it."""
    with pytest.raises(CaptureError) as caught:
        helpers.capture(fn, *inputs)
    error = first_error(caught.value)
    lines = [f.line for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(within)]
    return {int(code) for code in re.findall(r"error code is (\d{6})", str(error))}, lines[-1]
