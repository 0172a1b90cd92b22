"""A simulated Ascend device: the C interface of CANN, with PyTorch's CPU kernels behind it.

``ascend_sim.load()`` makes ``import torch_npu`` work on a machine without CANN. Call it before torch is imported,
because torch imports torch_npu by itself. Where a real CANN loads, it does nothing and says so.
"""

from .build import LoadError
from .loading import Device, load, operators
from .pacing import CARD, Card, CardError, clock, fit, paced, work
from .tracing import Span, trace

__all__ = [
    "CARD", "Card", "CardError", "Device", "LoadError", "Span",
    "clock", "fit", "load", "operators", "paced", "trace", "work",
]  # fmt: skip
