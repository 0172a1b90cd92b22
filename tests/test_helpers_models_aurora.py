"""helpers.models: the stand-in for Aurora waits where the package does, a capture refuses that, and without the guards
nothing else changes.
"""

from dataclasses import replace
from datetime import datetime, timedelta

import helpers
from helpers.models import AuroraStandIn, CheckpointError, aurora, aurora_stand_in, load

import pytest
import torch
from model_checks import WAIT_CODES, exact, on_device, refused, same, waits, waits_that_torch_npu_sees, weights

SMALL = dict(width=32, layers=(2, 2), size=(17, 32), levels=(100, 500, 850), window=(2, 2, 4))
# Every part of the U-net: three stages, one of a single block, padding in each axis but levels, whole latitudes kept.
DEEP = dict(width=32, layers=(2, 3, 1), size=(28, 36), levels=(500,), window=(2, 3, 4))


def test_the_parameters_are_those_of_the_package():
    """405,232 is what ``Aurora`` of microsoft-aurora 2.0.1 has at these sizes without LoRA. The planes of the clock are
    those of a variant.
    """

    def parameters(**sizes):
        with torch.device("meta"):
            model = AuroraStandIn(**sizes)
        clock = len(aurora.CLOCK) * model.width * aurora.HISTORY * model.patch**2
        return sum(p.numel() for p in model.parameters()) - clock

    tiny = dict(width=32, layers=(2, 2), heads=2, size=(17, 32), window=(2, 4, 4), perceiver_heads=2)
    assert parameters(**tiny) == 405_232
    assert parameters() == 1_256_300_176


@pytest.mark.parametrize("sizes", [SMALL, DEEP], ids=["small", "deep"])
def test_outputs_are_the_same_without_guards(sizes):
    guarded, plain = (aurora_stand_in(**sizes, guards=guards) for guards in (True, False))
    assert same(weights(guarded), weights(plain))
    with torch.no_grad():
        found = guarded(*guarded.inputs(2))
        assert same(found, plain(*plain.inputs(2)))
    height, width = sizes["size"][0] // 4 * 4, sizes["size"][1]
    assert [tuple(x.shape) for x in found] == [(2, 4, height, width), (2, 5, len(sizes["levels"]), height, width)]
    assert all(x.isfinite().all() for x in found)


@pytest.mark.parametrize(
    ("sizes", "batch", "expected"), [(SMALL, 1, 47), (SMALL, 3, 49), (DEEP, 1, 41)], ids=["one", "three", "no crop"]
)
def test_the_guards_wait_as_often_as_the_package(sizes, batch, expected, capfd):
    guarded, plain = (aurora_stand_in(**sizes, guards=guards) for guards in (True, False))
    assert waits(guarded, guarded.inputs(batch)) == expected
    assert waits(plain, plain.inputs(batch)) == 0
    assert waits_that_torch_npu_sees(guarded.to("npu"), guarded.inputs(batch), capfd) == expected
    assert waits_that_torch_npu_sees(plain.to("npu"), plain.inputs(batch), capfd) == 0


def test_the_guards_make_constants_from_lists_as_often_as_the_package(monkeypatch):
    made, tensor = [], torch.tensor
    guarded = aurora_stand_in(**SMALL)
    inputs = guarded.inputs(1)
    monkeypatch.setattr(torch, "tensor", lambda *args, **kwargs: made.append(args) or tensor(*args, **kwargs))
    with torch.no_grad():
        guarded(*inputs)
    assert len(made) == 23 and all(isinstance(values, list) for (values,) in made)


@exact
@pytest.mark.parametrize("guards", [True, False])
@pytest.mark.parametrize("sizes", [SMALL, DEEP], ids=["small", "deep"])
def test_the_device_gives_what_the_cpu_gives(sizes, guards):
    model = aurora_stand_in(**sizes, guards=guards)
    inputs = model.inputs(2)
    with torch.no_grad():
        on_cpu = model(*inputs)
        assert same(model.to("npu")(*on_device(inputs)), on_cpu)


@pytest.mark.parametrize("sizes", [SMALL, DEEP], ids=["small", "deep"])
def test_a_replay_gives_what_eager_gives_at_another_date(sizes):
    model = aurora_stand_in(**sizes, guards=False).to("npu")
    captured = helpers.capture(model, *model.inputs(2, seed=1))
    with torch.no_grad():
        for seed in (2, 3):
            inputs = model.inputs(2, seed=seed)
            assert same(captured(*inputs), model(*on_device(inputs)))


# ---- what a capture refuses, one construct at a time


def test_a_capture_refuses_the_guarded_model():
    model = aurora_stand_in(**SMALL).to("npu")
    *fields, dates = model.inputs(1)
    codes, line = refused(lambda *fields: model(*fields, dates), *fields)
    assert codes and codes <= WAIT_CODES and "torch.all(lat <= 90)" in line, "where it refuses the package"


def test_a_capture_refuses_a_constant_from_a_list():
    model = aurora_stand_in(**SMALL).to("npu")
    codes, line = refused(lambda: model._constant("levels"))
    assert codes and codes <= WAIT_CODES and "torch.tensor(self.constants[name], device=held.device)" in line


DATES = (datetime(2020, 6, 1, 12), datetime(2020, 6, 1, 18))
LAT, LON = torch.linspace(90, -90, 17), torch.arange(32) * 360 / 32


@pytest.mark.parametrize(
    ("construct", "inputs", "at"),
    [
        (aurora.check_grid, (LAT, LON), "torch.all(lat <= 90)"),
        (lambda x: aurora.fourier(x, aurora.LEVEL, 8, guards=True), (torch.ones(3),), "torch.all(torch.logical_or("),
        (lambda lead: aurora.later(DATES, lead), (torch.full((2,), 6.0),), "float(lead)"),
        (aurora.check_patches, (LAT[1:], LAT[:-1], LON, LON + 1), "assert (north > south).all()"),
        (aurora.check_area, (LON + 1,), "assert (area > 0.0).all()"),
    ],
    ids=["grid", "range", "lead time", "patches", "area"],
)
def test_a_capture_refuses_each_guard(construct, inputs, at):
    codes, line = refused(construct, *inputs)
    assert codes and codes <= WAIT_CODES and at in line


def test_a_date_in_python_is_frozen_by_a_capture():
    dates = [DATES[0]]
    like = torch.zeros(1, 1, 1, 2, 2)
    captured = helpers.capture(lambda x: aurora.clock_planes(dates, x), like)
    at_capture = captured(like, clone=True).cpu()
    dates[0] += timedelta(hours=6)
    assert same(captured(like), at_capture), "the hour of the capture"
    assert not same(aurora.clock_planes(dates, like), at_capture), "the hour that it is"


# ---- the guards do guard


@pytest.mark.parametrize(
    ("lat", "lon", "says"),
    [
        (LAT * 2, LON, "latitudes must be in"),
        (LAT, LON + 20, "longitudes must be in"),
        (LAT.flip(0), LON, "latitudes must fall"),
        (LAT, LON.flip(0), "longitudes must rise"),
    ],
)
def test_a_wrong_grid_is_named(lat, lon, says):
    model = aurora_stand_in(**SMALL)
    surface, static, air, _, _, dates = model.inputs(1)
    with pytest.raises(ValueError, match=says):
        model(surface, static, air, lat, lon, dates)


def test_a_value_out_of_range_is_named():
    with pytest.raises(AssertionError, match=r"not within \[0.01, 720.0\]"):
        aurora.fourier(torch.tensor([800.0]), aurora.POSITION, 8, guards=True)


# ---- parts that can be wrong without a sign


def test_windows_come_back():
    x = torch.randn(2, 2, 5, 7, 3)
    assert torch.equal(aurora.whole_of(aurora.windows_of(x, (2, 3, 4)), (2, 3, 4), (2, 5, 7)), x)


def test_a_shifted_window_sees_only_neighbours():
    """A place sees another of its window where the two were less than a window apart before the roll, or around the
    circle of longitudes.
    """
    res, window, shift = (4, 6, 8), (2, 3, 4), (1, 1, 2)
    mask = aurora.shifted_mask(res, window, shift)
    places = torch.stack(torch.meshgrid(*map(torch.arange, res), indexing="ij"), -1)[None]
    rolled = aurora.windows_of(places.roll([-s for s in shift], (1, 2, 3)), window)
    apart = (rolled[:, :, None] - rolled[:, None, :]).abs()
    near = (apart[..., :2] < torch.tensor(window[:2])).all(-1)
    assert torch.equal(mask == 0, near)


def test_padding_sees_only_padding():
    mask = aurora.shifted_mask((2, 5, 8), (2, 3, 4), (1, 1, 2))
    padding = aurora.windows_of(torch.ones(1, 2, 5, 8, 1), (2, 3, 4))[..., 0] == 0
    assert padding.any() and (mask[padding[:, :, None] != padding[:, None, :]] == -100).all()


def test_a_batch_is_cropped_by_one_latitude():
    model = aurora_stand_in(**SMALL, guards=False)
    batch = aurora.Batch(*model.inputs(1), guards=False)
    assert batch.crop(4).lat.shape == (16,) and batch.crop(4).air.shape[-2] == 16
    even = replace(batch, lat=batch.lat[:-1])
    assert even.crop(4) is even


def test_sizes_seeds_and_kinds_of_time():
    a, b, c = (aurora_stand_in(**SMALL, guards=False, seed=seed) for seed in (1, 1, 2))
    assert same(weights(a), weights(b)) and not same(weights(a), weights(c))
    for i, (x, y, z) in enumerate(zip(a.inputs(2), a.inputs(2), a.inputs(2, seed=1), strict=True)):
        assert same(x, y) and same(x, z) == (i in (3, 4)), "all but the grid is of the seed"
    with pytest.raises(TypeError, match="time is a tuple of dates with guards, and a tensor without"):
        aurora_stand_in(**SMALL)(*a.inputs(1))
    with pytest.raises(ValueError, match="a grid of 18 x 32 does not divide into patches of 4"):
        aurora_stand_in(**{**SMALL, "size": (18, 32)})
    with pytest.raises(ValueError, match="width 10 is not a multiple of 4"):
        aurora_stand_in(10)


def test_its_own_file_loads_and_another_is_named(tmp_path):
    model, other = (aurora_stand_in(**SMALL, seed=seed) for seed in (0, 1))
    torch.save(other.state_dict(), tmp_path / "own.pt")
    load(model, tmp_path / "own.pt")
    assert same(weights(model), weights(other))
    torch.save({f"net.{name}": x for name, x in other.state_dict().items()}, tmp_path / "aurora.ckpt")
    with pytest.raises(CheckpointError, match="encoder.surf_level_encoding is missing"):
        load(model, tmp_path / "aurora.ckpt")
