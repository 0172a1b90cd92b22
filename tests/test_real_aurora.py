"""Microsoft's Aurora itself, at a tiny size: where it waits for the device, what four patches and held constants change
about that, and that its replay then is what the published forward pass gives, bit for bit.

Needs the extra ``aurora``, which CI does not install: the README has the commands, below its table of models.
"""

import contextlib
import importlib.util
import sys
import traceback
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from unittest import mock

import helpers
from helpers.models import aurora_stand_in
from helpers.waits import ReadBacks

import pytest
import torch
from model_checks import WAIT_CODES, exact, on_device, refused, same, waits_that_torch_npu_sees

if importlib.util.find_spec("aurora") is None:
    pytest.skip("microsoft-aurora is not installed (extra `aurora`)", allow_module_level=True)

from helpers.models.aurora_patches import PATCHES, HeldConstants, as_function, without_guards

import aurora
from aurora import Aurora, Batch, Metadata
from aurora.model import fourier

PACKAGE = Path(aurora.__file__).parent
NOON, NIGHT = (datetime(2020, 6, 1, 12, tzinfo=timezone.utc), datetime(2021, 1, 2, 3, tzinfo=timezone.utc))
SIZES = dict(
    window_size=(2, 4, 4),
    encoder_depths=(2, 2),
    encoder_num_heads=(2, 4),
    decoder_depths=(2, 2),
    decoder_num_heads=(4, 2),
    embed_dim=32,
    num_heads=2,
)


def tiny(**options) -> Aurora:
    torch.manual_seed(0)
    return Aurora(**{**SIZES, "use_lora": False, **options}).eval()


def batch_of(size: int = 1, seed: int = 0, date: datetime = NOON, height: int = 17) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    width, levels = 32, (100, 250, 500, 850)

    def fields(names, *shape):
        return {name: torch.randn(*shape, height, width, generator=generator) for name in names.split()}

    lat, lon = torch.linspace(90, -90, height), torch.arange(width) * (360 / width)
    return Batch(
        fields("2t 10u 10v msl", size, 2),
        fields("lsm z slt"),
        fields("z u v t q", size, 2, len(levels)),
        Metadata(lat, lon, (date,) * size, levels),
    )


def fields_of(prediction: Batch) -> list[torch.Tensor]:
    return [*prediction.surf_vars.values(), *prediction.atmos_vars.values()]


def eager(model: Aurora, batch: Batch) -> list[torch.Tensor]:
    with torch.no_grad():
        return fields_of(model(batch))


def captured(model: Aurora, batch: Batch):
    """The captured model, as a function of a batch."""
    forward, inputs = as_function(model, batch)
    with without_guards(model), HeldConstants():
        graph = helpers.capture(forward, *inputs)

    def replay(batch: Batch) -> list[torch.Tensor]:
        surface, air = graph(*as_function(model, batch)[1], clone=True)
        return [*surface.values(), *air.values()]

    return replay


class Places(ReadBacks):
    """Where in ``package`` the host waits: the innermost frame of each wait."""

    def __init__(self, package: Path):
        super().__init__()
        self.package, self.frames = package, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = self.count
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.count > before:
            frames = (f for f in traceback.extract_stack() if Path(f.filename).is_relative_to(self.package))
            self.frames.append(list(frames)[-1])
        return result


def waits_by_line(model: Aurora, batch: Batch) -> dict[str, int]:
    with Places(PACKAGE) as places, torch.no_grad():
        model(batch)
    return dict(Counter(f"{Path(frame.filename).name}:{frame.lineno}" for frame in places.frames))


# ---- as published

# The six checks of a grid, for each of five batches (four without a crop); the range of seven Fourier expansions; nine
# checks of the patches; and one lead time a sample.
GRID = {"batch.py:46": 2, "batch.py:48": 2, "batch.py:53": 1, "batch.py:55": 1}
RANGE = {"fourier.py:69": 7}
AREA = {f"posencoding.py:{line}": n for line, n in ((45, 1), (46, 1), (47, 2), (48, 2), (49, 2), (57, 1))}


@pytest.mark.parametrize(
    ("size", "height", "batches", "total"), [(1, 17, 5, 47), (3, 17, 5, 49), (1, 16, 4, 41)],
    ids=["one", "three", "no crop"],
)  # fmt: skip
def test_the_published_forward_waits_at_these_lines(size, height, batches, total, capfd):
    model, batch = tiny().to("npu"), batch_of(size, height=height).to("npu")
    found = waits_by_line(model, batch)
    grid = {line: n * batches for line, n in GRID.items()}
    assert found == grid | RANGE | AREA | {"decoder.py:267": size}
    assert sum(found.values()) == total
    assert waits_that_torch_npu_sees(model, [batch], capfd) == total


def test_the_published_forward_makes_these_constants_from_lists(monkeypatch):
    made, tensor = Counter(), torch.tensor
    model, batch = tiny().to("npu"), batch_of().to("npu")

    def noted(*args, **kwargs):
        caller = sys._getframe(1)
        made[f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"] += kwargs["device"].type == "npu"
        return tensor(*args, **kwargs)

    monkeypatch.setattr(torch, "tensor", noted)
    eager(model, batch)
    lines = {"normalisation.py:67": 10, "normalisation.py:68": 10, "encoder.py:331": 1, "encoder.py:369": 1}
    assert made == lines | {"decoder.py:221": 1}


def test_a_capture_refuses_the_published_forward():
    model, batch = tiny().to("npu"), batch_of().to("npu")
    codes, at = refused(lambda: fields_of(model(batch)), within=PACKAGE)
    assert codes and codes <= WAIT_CODES and "torch.all(self.lat <= 90)" in at


# ---- patched


@pytest.mark.parametrize(
    ("patches", "waits", "line"),
    [
        (0, 47, "torch.all(self.lat <= 90)"),
        (1, 17, "if self.assert_range and not in_range_or_zero"),
        (2, 10, "assert (lat_max > lat_min).all()"),
        (3, 1, "timedelta(hours=float(lead_times[i]))"),
        (4, 0, "torch.tensor(level_locations, dtype=x.dtype, device=x.device)"),
    ],
)
def test_each_patch_brings_a_capture_to_the_next_obstacle(patches, waits, line):
    model, batch = tiny().to("npu"), batch_of().to("npu")
    with contextlib.ExitStack() as stack:
        for patch in PATCHES[:patches]:
            stack.enter_context(patch(model))
        assert sum(waits_by_line(model, batch).values()) == waits
        # Constants come first in the forward pass: with them out of the way, the guards show.
        if patches < len(PATCHES):
            stack.enter_context(HeldConstants())
        codes, at = refused(lambda: fields_of(model(batch)), within=PACKAGE)
    assert codes and codes <= WAIT_CODES and line in at


@pytest.mark.parametrize("options", [{}, {"use_lora": True}], ids=["plain", "LoRA"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_replay_is_the_published_forward_bit_for_bit(size, options):
    model, batch = tiny(**options).to("npu"), batch_of(size).to("npu")
    published = eager(model, batch)
    with without_guards(model):
        assert same(eager(model, batch), published)
        with HeldConstants():
            assert same(eager(model, batch), published)
    replay = captured(model, batch)
    assert same(replay(batch), published)
    other = batch_of(size, seed=1, date=NIGHT).to("npu")
    assert same(replay(other), eager(model, other))


def test_a_date_in_python_is_frozen_by_a_capture():
    """Not with ``as_function``: there it is an input, as the test above shows."""
    model, batch = tiny().to("npu"), batch_of().to("npu")
    with without_guards(model), HeldConstants():
        graph = helpers.capture(lambda: fields_of(model(batch)))
    batch.metadata.time = (NIGHT,)
    replayed = graph()
    assert not same(replayed, eager(model, batch)), "the date that it is"
    batch.metadata.time = (NOON,)
    assert same(replayed, eager(model, batch)), "the date of the capture"


def test_a_check_finds_all_of_this_at_once():
    """The waits of the tests above and those of the batch that ``as_function`` makes, and the constants."""
    model = tiny().to("npu")
    forward, inputs = as_function(model, batch_of().to("npu"))
    fresh = as_function(model, batch_of(seed=1, date=NIGHT).to("npu"))[1]
    report = helpers.check(forward, *inputs, fresh=fresh)
    found = Counter()
    for f in report.findings:
        if f.kind in ("waits", "constants"):
            found[f.kind, f"{Path(f.place.file).name}:{f.place.line}"] += f.times
    waits = {line: 6 * n for line, n in GRID.items()} | RANGE | AREA | {"decoder.py:267": 1}
    constants = {"normalisation.py:67": 10, "normalisation.py:68": 10}
    constants |= {"encoder.py:331": 1, "encoder.py:369": 1, "decoder.py:221": 1}
    assert {line: n for (kind, line), n in found.items() if kind == "waits"} == waits
    assert {line: n for (kind, line), n in found.items() if kind == "constants"} == constants
    assert report.verdict.startswith("ready after")
    with without_guards(model), HeldConstants():
        assert helpers.check(forward, *inputs, fresh=fresh).ready


def test_afterwards_the_guards_are_back():
    model, batch = tiny().to("npu"), batch_of().to("npu")
    published = waits_by_line(model, batch)
    captured(model, batch)
    assert waits_by_line(model, batch) == published
    with pytest.raises(ValueError, match="Latitudes must be in the range"):
        Metadata(batch.metadata.lat * 2, batch.metadata.lon, (NOON,), (100,))


def test_a_model_that_needs_more_is_named():
    with pytest.raises(ValueError, match="takes its lead times as a tensor"):
        with without_guards(tiny(variable_lead_time=True)):
            pass
    with pytest.raises(ValueError, match="fields of the date"):
        as_function(tiny(dynamic_vars=True), batch_of())


# ---- float64, which an NPU does not have


@exact
def test_fourier_expansions_are_of_float32_on_the_device():
    """The package asks for float64 "to avoid numerical accuracy shenanigans", and torch_npu gives float32. Short
    wavelengths suffer: no wrong line and no error, only another number.
    """

    def largest_difference(expansion, x):
        on_npu, on_cpu = expansion(x.npu(), 32).cpu(), expansion(x, 32)
        with mock.patch.object(torch.Tensor, "double", torch.Tensor.float):
            assert torch.equal(on_npu, expansion(x, 32))
        return (on_npu - on_cpu).abs().max()

    lead_time = largest_difference(fourier.lead_time_expansion, torch.tensor([6.0]))
    date = largest_difference(fourier.absolute_time_expansion, torch.tensor([NOON.timestamp() / 3600]))
    patch = largest_difference(fourier.scale_expansion, torch.linspace(100.0, 1000.0, 50))
    assert lead_time < 1e-3 < 1e-2 < date and patch > 1


# ---- the course's stand-in


def test_the_stand_in_waits_for_the_same_reasons():
    real, batch = tiny().to("npu"), batch_of(2).to("npu")
    with Places(PACKAGE) as places, torch.no_grad():
        real(batch)
    reasons = {"batch.py": "grid", "fourier.py": "range", "posencoding.py": "patches", "decoder.py": "lead time"}
    published = Counter(reasons[Path(frame.filename).name] for frame in places.frames)

    stand_in = aurora_stand_in(width=32, layers=(2, 2), size=(17, 32), levels=(100, 500), window=(2, 4, 4)).to("npu")
    with Places(Path(helpers.__file__).parent) as places, torch.no_grad():
        stand_in(*on_device(stand_in.inputs(2)))
    functions = {"check_grid": "grid", "check_range": "range", "check_patches": "patches", "check_area": "patches"}
    ours = Counter(functions.get(frame.name, "lead time") for frame in places.frames)
    assert ours == published == {"grid": 30, "range": 7, "patches": 9, "lead time": 2}
