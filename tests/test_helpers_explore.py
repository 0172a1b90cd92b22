"""helpers.explore: a moved slider measures and redraws, and no error stops the sliders."""

from helpers import bench, explore  # before torch

import pytest
import torch
from test_helpers_plots import RECORDS

SIMULATED = "measured on the simulated device"


class Shown:
    """Stands for IPython's display: keeps what was shown, and what each update showed in its place."""

    def __init__(self):
        self.widgets, self.pictures = [], []

    def __call__(self, what, **how):
        if not how:
            self.widgets.append(what)
            return None
        assert how == {"raw": True, "display_id": True} and what == {"text/plain": "measuring ..."}
        return self

    def update(self, what, metadata, raw):
        self.pictures.append(what | metadata)


@pytest.fixture
def shown(monkeypatch):
    found = Shown()
    monkeypatch.setattr(explore, "display", found)
    return found


@pytest.fixture
def drawn(monkeypatch):
    """The records of each drawing."""
    found, sizes = [], explore.plots.sizes

    def draw(records, chosen):
        found.append((records, chosen))
        return sizes(records, chosen)

    monkeypatch.setattr(explore.plots, "sizes", draw)
    return found


def test_each_control_measures_and_redraws(shown, drawn):
    controls = explore.explore(RECORDS, seconds=0.01)
    assert len(shown.widgets) == len(shown.pictures) == 1 and "image/png" in shown.pictures[0]
    assert controls.status.value.startswith("64×16×1: eager ") and SIMULATED in controls.status.value
    assert controls.status.value.endswith("max_abs 0.0")
    controls.width.value = 32
    controls.tokens.value = 8
    controls.batch.value = 2
    assert [chosen["shape"]["width"] for _, chosen in drawn] == [64, 32, 32, 32]
    assert [chosen["shape"]["tokens"] for _, chosen in drawn] == [16, 16, 8, 8]
    assert drawn[-1][1]["batch"] == 2 and controls.status.value.startswith("32×8×2: ")
    assert len(shown.pictures) == 4 and len(shown.widgets) == 1


def test_the_paced_clock_is_modelled_and_computes_nothing(shown, drawn):
    controls = explore.explore(RECORDS, seconds=0.01)
    controls.clock.value = "paced"
    assert "modelled, outputs not computed" in controls.status.value
    records, chosen = drawn[-1]
    assert (chosen["clock"], chosen["kernels"]) == ("paced", 215)
    assert "modelled" in shown.pictures[-1]["image/png"]["alt"] and SIMULATED in shown.pictures[-1]["image/png"]["alt"]
    controls.width.value = 768
    assert controls.status.value.startswith("768×16×1: eager ")
    assert (torch.ones(2, device="npu") + 1)[0] == 2, "the clock that computes is back"


def test_an_error_is_one_line_and_the_picture_stays(shown, monkeypatch):
    controls = explore.explore(RECORDS, seconds=0.01)
    controls.width.value = 768
    assert controls.status.value.startswith("ValueError: width 768 takes a CPU core too long")
    assert len(shown.pictures) == 1
    controls.width.value = 32
    assert controls.status.value.startswith("32×16×1: ") and len(shown.pictures) == 2

    def broken(*_, **__):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(bench, "compare", broken)
    controls.batch.value = 2
    assert controls.status.value == "RuntimeError: first line"


def test_sliders_are_there_though_the_first_size_fails(shown):
    controls = explore.explore([], width=768, seconds=0.01)
    assert controls.status.value.startswith("ValueError: ") and shown.pictures == []
    controls.width.value = 32
    assert controls.status.value.startswith("32×16×1: ") and "image/png" in shown.pictures[0]


def test_a_size_that_is_measured_anew_replaces_the_old_one():
    new = [r | {"median_ms": 9.0} for r in RECORDS[2:4]]
    assert explore.others(RECORDS, new) == RECORDS[:2] + RECORDS[4:]


def test_controls_are_named_in_the_order_of_the_tab_key(shown):
    controls = explore.explore(RECORDS, seconds=0.01)
    (box,) = shown.widgets
    assert box.children == tuple(controls)
    assert [one.description for one in controls[:4]] == ["width 64", "tokens 16", "batch 1", "clock"]
    controls.width.value = 32
    assert controls.width.description == "width 32"
