"""The levers: what can be changed so that a model runs faster, and what each change gives.

A lever is judged by running the model before and after it, each in a process of its own, because TASK_QUEUE_ENABLE is
fixed when torch_npu starts in most versions. A full-size model runs on the paced clock, where its times are modelled;
a small one on the device that is there, where its outputs can be compared.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import ascend_sim

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import bench, device, models
from .capture import capture


@dataclass(frozen=True)
class Setting:
    """How a model is run. The defaults are the published form of the four models, one kernel after the other."""

    graph: bool = False  # replayed, or eager
    tqe: int = 0  # TASK_QUEUE_ENABLE
    waits: bool = True  # with the places at which the published model waits for the device, if it has some
    fused_gelu: bool = False
    batch: int = 1

    @property
    def name(self) -> str:
        """The levers that were pulled, joined by "+"; "" for none."""
        pulled = (self.graph, self.tqe == 1, self.tqe == 2, not self.waits, self.fused_gelu)
        return "+".join(name for name, on in zip(LEVERS, pulled, strict=True) if on)


# Name: what it is, and the setting after it.
LEVERS: dict[str, tuple[str, dict]] = {
    "graph": ("capture the forward pass and replay it", {"graph": True}),
    "task-queue": ("TASK_QUEUE_ENABLE=1: a second thread launches", {"tqe": 1}),
    "task-queue-2": ("TASK_QUEUE_ENABLE=2: it plans, too; eager only", {"tqe": 2}),
    "no-waits": ("remove the places at which the host waits for the device", {"waits": False}),
    "fused-gelu": ("npu_gelu, one kernel, in the place of five", {"fused_gelu": True}),
}


@dataclass(frozen=True)
class Workload:
    """A model of the course, with its sizes in full and small. shape: what a record says of it."""

    make: Callable[..., nn.Module]  # make(setting, **shape)
    inputs: Callable[..., tuple]  # inputs(model, batch, **shape)
    full: dict
    small: dict
    has_waits: bool = False
    has_gelu: bool = False


def _text_inputs(model, batch, tokens, seed=0, **_):
    return model.inputs(batch, tokens, seed=seed)


def _field_inputs(model, batch, seed=0, **_):
    return model.inputs(batch, seed=seed)


WORKLOADS = {
    "genmol": Workload(
        lambda setting, width, layers, **_: models.genmol(width, layers),
        _text_inputs,
        full=dict(width=768, layers=12, tokens=64),
        small=dict(width=64, layers=12, tokens=16),
    ),
    "nucleotide-transformer": Workload(
        lambda setting, width, layers, **_: models.nucleotide_transformer(width, layers, fused_gelu=setting.fused_gelu),
        _text_inputs,
        full=dict(width=1280, layers=24, tokens=512),
        small=dict(width=64, layers=24, tokens=16),
        has_gelu=True,
    ),
    "climax": Workload(
        lambda setting, width, layers, rows, columns: models.climax(
            width, layers, size=(rows, columns), device_index=setting.waits
        ),
        _field_inputs,
        full=dict(width=1024, layers=8, rows=32, columns=64),
        small=dict(width=64, layers=8, rows=16, columns=32),
        has_waits=True,
    ),
    "aurora-stand-in": Workload(
        lambda setting, width, layers, rows, columns, levels: models.aurora_stand_in(
            width,
            (6, 10, 8) if layers == 24 else [layers // 3] * 3,
            size=(rows, columns),
            levels=models.LEVELS[:: -(-len(models.LEVELS) // levels)],
            guards=setting.waits,
        ),
        _field_inputs,
        full=dict(width=512, layers=24, rows=721, columns=1440, levels=13),
        small=dict(width=64, layers=24, rows=17, columns=32, levels=3),
        has_waits=True,
    ),
}


def pull(levers: Sequence[str], setting: Setting) -> Setting:
    """The setting after ``levers``. Raises ValueError for one that does not exist."""
    for lever in levers:
        if lever not in LEVERS:
            raise ValueError(f"no lever {lever!r}; there are {', '.join(LEVERS)}")
        setting = replace(setting, **LEVERS[lever][1])
    return setting
