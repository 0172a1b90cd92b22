"""Microsoft's Aurora itself (package microsoft-aurora 2.0.1, extra ``aurora``), patched from outside until it captures.

As published, the host waits for the device 46 + batch times a forward pass, and a capture is refused at the first of
them. ``without_guards`` takes them out: four patches. A capture is then refused where a tensor is made on the device
from Python numbers, 23 times a forward pass; ``HeldConstants`` makes each of these once. And a replay would keep the
date of the capture: ``as_function`` makes the date an input.

    forward, inputs = as_function(model, batch)
    with without_guards(model), HeldConstants():
        captured = helpers.capture(forward, *inputs)
    surface, air = captured(*as_function(model, another_batch)[1])

None of this changes a bit of the output. What the guards check is unchecked then: let one eager pass run with them.

On an NPU the output is not that of a CPU, patched or not: the Fourier expansions ask for float64, torch_npu gives
float32 and warns once, and what they make of short wavelengths is another number.

Import this before ``aurora``. pip's default torchvision belongs to the CUDA build of torch: beside a CPU build its
operators do not load, and importing it (``aurora`` does, through timm) fails. Here it is imported without them.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

try:
    import torchvision  # noqa: F401
except RuntimeError:  # "operator torchvision::nms does not exist": it is described, and was not loaded
    sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")

from aurora import Aurora, Batch, Metadata
from aurora.model import fourier, posencoding

# ---- the four patches. Each is a context: what it changes is as before afterwards.


def grid_unchecked(model: Aurora):
    """batch.py:46-55, six waits for each of the five batches that a forward pass makes, four without a crop."""
    return mock.patch.object(Metadata, "__post_init__", lambda self: None)


@contextlib.contextmanager
def range_unchecked(model: Aurora):
    """model/fourier.py:69, seven waits. The package has a switch for it, on each of its expansions."""
    with contextlib.ExitStack() as stack:
        for expansion in vars(fourier).values():
            if isinstance(expansion, fourier.FourierExpansion):
                stack.enter_context(mock.patch.object(expansion, "assert_range", False))
        yield


def area_unchecked(model: Aurora):
    """model/posencoding.py:45-57, nine waits in ``assert``. They are left out as ``python -O`` leaves them out."""
    original = posencoding.patch_root_area
    scope = dict(vars(posencoding))
    exec(compile(inspect.getsource(original), original.__code__.co_filename, "exec", optimize=1), scope)
    return mock.patch.object(posencoding, "patch_root_area", scope["patch_root_area"])


@contextlib.contextmanager
def lead_time_on_host(model: Aurora):
    """model/decoder.py:267, one wait a sample: it reads back from the device a number that Python had."""
    if model.variable_lead_time:
        raise ValueError("this model takes its lead times as a tensor, and its decoder reads them from the device")

    def on_host(module, args, kwargs):
        hours = model.timestep / timedelta(hours=1)
        return args, kwargs | {"lead_times": [hours] * len(kwargs["lead_times"])}

    hook = model.decoder.register_forward_pre_hook(on_host, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


PATCHES = (grid_unchecked, range_unchecked, area_unchecked, lead_time_on_host)


@contextlib.contextmanager
def without_guards(model: Aurora):
    """A context in which a forward pass of ``model`` on the device never makes the host wait for it."""
    with contextlib.ExitStack() as stack:
        for patch in PATCHES:
            stack.enter_context(patch(model))
        yield


# ---- constants and the date


@functools.cache  # for good: a graph reads these tensors, and does not keep them alive
def _held(values: tuple, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


class HeldConstants(TorchFunctionMode):
    """A context in which ``torch.tensor(numbers, device=...)`` copies the same numbers to a device only once.

    Such a copy is refused in a capture. The warm-up before it makes them all: normalisation.py:67-68 (twenty),
    model/encoder.py:331 and :369, model/decoder.py:221.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is not torch.tensor or kwargs.get("device") is None:
            return func(*args, **kwargs)
        on_host = func(*args, **kwargs | {"device": "cpu"})
        return _held(tuple(on_host.tolist()), on_host.dtype, torch.device(kwargs["device"]))


def as_function(model: Aurora, batch: Batch) -> tuple[Callable, list[torch.Tensor]]:
    """``model`` as a function of tensors, and the tensors of ``batch``, as ``helpers.capture`` takes them.

    The last of them is the date: hours since 1970 [batch]. The function returns the predicted surface variables
    [batch, 1, height, width] and those of the air [batch, 1, levels, height, width], two dicts by name. Levels and
    step of a rollout are those of ``batch`` for good. The date of the prediction is for the caller to know: the
    package computes it in Python. Raises ValueError for a model with ``dynamic_vars``.
    """
    if model.encoder.dynamic_vars:
        raise ValueError("this model makes fields of the date from Python numbers: a replay would keep those")
    metadata = batch.metadata
    fields, structure = tree_flatten((batch.surf_vars, batch.static_vars, batch.atmos_vars, metadata.lat, metadata.lon))
    hours = torch.tensor([time.timestamp() / 3600 for time in metadata.time], dtype=torch.float32)

    def forward(*tensors: torch.Tensor) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        *fields, hours = tensors
        surface, static, air, lat, lon = tree_unflatten(fields, structure)

        def of_this_date(embed, args):  # in place of the encoding of the date that the encoder has as Python numbers
            return fourier.absolute_time_expansion(hours, embed.in_features).to(args[0].dtype)

        hook = model.encoder.absolute_time_embed.register_forward_pre_hook(of_this_date)
        try:
            prediction = model(Batch(surface, static, air, replace(metadata, lat=lat, lon=lon)))
        finally:
            hook.remove()
        return prediction.surf_vars, prediction.atmos_vars

    return forward, [*fields, hours]
