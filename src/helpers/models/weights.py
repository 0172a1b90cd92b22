"""Weights of a model: random ones that a seed fixes, or those of a checkpoint."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


def seeded(make: Callable[..., nn.Module], seed: int, *args, **sizes) -> nn.Module:
    """``make(*args, **sizes)`` with the random weights of ``seed``, for inference. Torch's own seed stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*args, **sizes).eval()


def draw_normal(model: nn.Module) -> None:
    """Random weights as BERT and ESM begin with: normal, with a standard deviation of 0.02."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)


@dataclass(frozen=True)
class Layout:
    """How a published file holds the weights of a model. Its class names it as ``layout``.

    lightning: under ``state_dict``, as Lightning writes it; else the file is the state_dict
    prefix:    what stands before each name
    renamed:   (part of a name in the file, what the model calls it)
    unused:    names in the file that no longer have a use
    """

    lightning: bool = False
    prefix: str = ""
    renamed: tuple[str, str] = ("", "")
    unused: tuple[str, ...] = ()


class CheckpointError(ValueError):
    """A checkpoint that does not fit. One line: file, key, what was expected; the model is as it was."""


def load(model: nn.Module, path: str | os.PathLike, ema: bool = True) -> None:
    """Load a checkpoint in the layout in which the model's authors published theirs (``model.layout``).

    ema: take the averaged weights (``ema.shadow_params``, a list in the order of ``model.parameters()``) where a
    Lightning file has them, as GenMol does to sample.
    No code of the file runs. Raises CheckpointError. Everything is checked before the first weight is written.
    """
    layout: Layout = model.layout
    file = _read(path)
    state = file.get("state_dict") if layout.lightning and isinstance(file, dict) else file
    if not isinstance(state, dict):
        what = "no state_dict, so not a Lightning checkpoint" if layout.lightning else "no weights by name"
        raise CheckpointError(f"{path}: {what}")
    found = {str(key).replace(*layout.renamed): key for key in state if key not in layout.unused}
    expected = {f"{layout.prefix}{name}": value for name, value in model.state_dict(keep_vars=True).items()}
    if missing := [name for name in expected if name not in found]:
        raise CheckpointError(f"{path}: {missing[0]} is missing ({len(missing)} missing keys)")
    if extra := [key for name, key in found.items() if name not in expected]:
        raise CheckpointError(f"{path}: unexpected key {extra[0]} ({len(extra)} unexpected keys)")
    new = [(found[name], parameter, state[found[name]]) for name, parameter in expected.items()]
    if layout.lightning and ema and file.get("ema") is not None:
        new += _averages(model, path, file["ema"])
    for key, parameter, value in new:
        got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        if got != tuple(parameter.shape):
            raise CheckpointError(f"{path}: {key} is {got}, expected {tuple(parameter.shape)}")
        if value.layout != torch.strided or value.device.type != "cpu" or not value.is_floating_point():
            kind = f"{value.dtype}, {value.layout}, on {value.device}"
            raise CheckpointError(f"{path}: {key} is a tensor of {kind}, expected floating point numbers")
    with torch.no_grad():
        for _, parameter, value in new:  # the averaged weights come last, so they hold
            parameter.copy_(value)


def _averages(model, path, ema):
    shadow = ema.get("shadow_params") if isinstance(ema, dict) else None
    parameters = list(model.named_parameters())
    if not isinstance(shadow, (list, tuple)) or len(shadow) != len(parameters):
        found = len(shadow) if isinstance(shadow, (list, tuple)) else "no"
        raise CheckpointError(f"{path}: ema.shadow_params has {found} tensors, expected {len(parameters)}")
    return [
        (f"ema.shadow_params[{i}] ({name})", parameter, value)
        for i, ((name, parameter), value) in enumerate(zip(parameters, shadow, strict=True))
    ]


class _Ignored:
    """Stands in for every class that a checkpoint names besides torch's own, such as GenMol's OmegaConf configuration:
    only the tensors matter here, and no code of the file runs."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        pass


def _read(path):
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    try:
        named = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        stand_ins = [(_Ignored, name) for name in named if name != "collections.defaultdict"]
        stand_ins.append((lambda *args: {}, "collections.defaultdict"))  # must still take items
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, zipfile and pickle each have their own for a broken file
        raise CheckpointError(f"{path}: not a readable checkpoint ({str(error).splitlines()[0]})") from error
