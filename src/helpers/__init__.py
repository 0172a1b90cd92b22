"""The one module that the notebooks share. Import it before torch: ``import helpers; helpers.activate()``."""

from . import device
from .device import activate, show_error

device.prepare()  # before the first ``import torch``
if device.found("torch"):  # without torch only the doctor works, and activate() says what is missing
    from .bench import compare, measure
    from .capture import capture
    from .check import check

    __all__ = ["activate", "capture", "check", "compare", "device", "measure", "show_error"]
