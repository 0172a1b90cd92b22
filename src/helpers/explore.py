"""Sliders that measure the molecule model at the size they say, and draw it beside the records of a file."""

from collections.abc import Sequence
from typing import NamedTuple

import ascend_sim

import torch
from IPython.display import display
from ipywidgets import Dropdown, Label, SelectionSlider, VBox, dlink

from . import bench, device, models, plots
from .capture import capture

LAYERS = 12
WIDTHS, TOKENS, BATCHES = (32, 64, 128, 256, 768), (4, 8, 16, 32), (1, 2, 4)
MOVE = "drag, or the arrow keys left and right"
COMPUTED_WIDTH = 256  # at most, where a CPU core computes the kernels: a comparison there takes at most 3 s


class Controls(NamedTuple):
    """What can be moved, and the line that says what came of it."""

    width: SelectionSlider
    tokens: SelectionSlider
    batch: SelectionSlider
    clock: Dropdown
    status: Label


def explore(
    records: Sequence[dict], width: int = 64, tokens: int = 16, batch: int = 1, seconds: float = 0.1
) -> Controls:
    """Measure the chosen size, draw it beside ``records``, and again whenever a slider is moved.

    records: those of a results file. seconds: length of one run of the six that a comparison has.
    The picture is an ordinary output, redrawn in place: where nobody can move a slider it is that of the first size.
    An error is said in the status line, and the picture stays as it was.
    """
    simulated = device.activate(threads=None, verbose=False).kind == "simulated"
    clocks = ("computed", "paced") if simulated else ("hardware",)

    def slider(name, options, value):
        # Its own readout would be one more stop of the Tab key, which looks as if one could type there.
        made = SelectionSlider(options=options, value=value, continuous_update=False, readout=False, tooltip=MOVE)
        dlink((made, "value"), (made, "description"), lambda value: f"{name} {value}")
        return made

    controls = Controls(
        slider("width", WIDTHS, width),
        slider("tokens", TOKENS, tokens),
        slider("batch", BATCHES, batch),
        Dropdown(options=clocks, description="clock", tooltip="who tells the time"),
        Label("measuring ..."),
    )
    controls.status.add_class("explore-status")
    *inputs, status = controls
    display(VBox(controls))
    picture = display({"text/plain": "measuring ..."}, raw=True, display_id=True)

    def show(_=None) -> None:
        status.value = "measuring ..."
        try:
            found, said = measured(*(one.value for one in inputs), seconds)
            data, metadata = plots.sizes([*others(records, found), *found], chosen=found[0]).stored()
        except Exception as error:  # whatever it is, the sliders go on
            status.value = f"{type(error).__name__}: {device.brief(error)}"
            return
        picture.update(data, metadata=metadata, raw=True)
        status.value = said

    show()
    for one in inputs:
        one.observe(show, "value")
    return controls


def measured(width: int, tokens: int, batch: int, clock: str, seconds: float) -> tuple[list[dict], str]:
    """The eager and the graph record of one size, and what to say of them. Raises ValueError for a size too large."""
    if clock == "computed" and width > COMPUTED_WIDTH:
        raise ValueError(f"width {width} takes a CPU core too long: take the paced clock, or {COMPUTED_WIDTH} at most")
    shape = {"width": width, "layers": LAYERS, "tokens": tokens}
    if clock == "paced":
        found, outputs = _paced(shape, batch, seconds), "outputs not computed"
    else:
        net = models.genmol(width, LAYERS).to("npu")
        compared = bench.compare(net, *models.sample_inputs(net, batch, tokens), seconds=seconds)
        found, outputs = compared.records("genmol", batch, shape), f"max_abs {compared.max_abs}"
    eager_ms, replay_ms = (r["median_ms"] for r in found)
    return found, (
        f"{width}×{tokens}×{batch}: eager {eager_ms:.2f} ms, replay {replay_ms:.2f} ms, speed-up "
        f"{eager_ms / replay_ms:.2f}, {plots.source_of(found[0])}, {outputs}"
    )


def _paced(shape: dict, batch: int, seconds: float) -> list[dict]:
    """Modelled: on the paced clock of the default card, where no output exists that could be compared."""
    with ascend_sim.paced(), torch.no_grad():
        with torch.device("npu"):  # born there: nobody draws and copies weights that nobody reads
            net = models.genmol(shape["width"], shape["layers"])
        captured = capture(net, *models.sample_inputs(net, batch, shape["tokens"]), warmup=1)
        runs = {
            "eager": bench.measure(lambda: net(*captured.inputs), seconds=seconds),
            "graph": bench.measure(captured.graph.replay, seconds=seconds),
        }
    same = dict(model="genmol", batch=batch, shape=shape, kernels=models.kernels(shape["layers"]), clock="paced")
    return [bench.record(mode=mode, measurement=run, **same) for mode, run in runs.items()]


def others(records: Sequence[dict], found: Sequence[dict]) -> list[dict]:
    """``records`` without those that ``found`` measures anew."""
    new = {bench.kind_of(r) for r in found}
    return [r for r in records if bench.kind_of(r) not in new]
