"""helpers.plots: every figure says where its numbers come from, can be read, and stays small."""

from base64 import b64decode
from collections import namedtuple

import helpers  # noqa: F401  before torch
from helpers import gallery, levers, plots
from helpers.bench import _FIELDS

import pytest
from matplotlib.colors import to_rgb

Span = namedtuple("Span", "stream name enqueued started ended")


def spans(n=6, host=15e-6, kernel=4e-6, streams=1):
    out, free = [], 0.0
    for i in range(n):
        start = max(free, i * host + 1e-6)
        out.append(Span(i % streams, "aclnnAdd", i * host, start, free := start + kernel))
    return out


def record(mode, ms, width=64, device="simulated", clock="cpu", **more):
    made = dict(model="genmol", mode=mode, levers=None, device=device, clock=clock, tqe=0, batch=1)
    made |= dict(shape={"width": width, "layers": 12, "tokens": 16}, kernels=200, runs_ms=[ms] * 3, median_ms=ms)
    made |= dict(speedup=None, cosine=None, max_abs=None, torch="2.13.0", torch_npu="2.13.0", cann="simulated")
    return made | {"date": "2026-01-02T03:04:05Z"} | more


def pair(eager, graph, **more):
    return [record("eager", eager, **more), record("graph", graph, **more)]


RECORDS = [r for w, e, g in ((128, 3.0, 2.6), (32, 2.8, 0.7), (64, 2.7, 1.0)) for r in pair(e, g, width=w)]
SWEEP = [(32, 13.0, 3.0), (64, 13.5, 5.0), (128, 14.0, 13.0), (256, 14.0, 46.0)]
RATES = {"published": (5.0, False), "eager": (4.1, False), "forward captured": (13.27, True), "captured": (119.4, True)}


def run(ms, kernels_ms, kernels=200, waits=0, host_ms=None, corners=()):
    return levers.Run((ms, ms, ms), 10, kernels, kernels_ms, waits, host_ms, corners)


def gains(full):
    """Two cases that the article reports and one that it does not, before and after."""
    cases = (*levers.ARTICLE[:2], levers.Case("aurora-stand-in", ("no-waits",)))
    if not full:
        return [levers.Gain(case, {"width": 64}, "cpu", run(4.0, 1.0), run(2.0, 1.0), 1.0, 0.0) for case in cases]
    befores = (
        run(4.8, 1.8, 215, 0, 4.7, (4.5, 7.0)),
        run(8.0, 5.0, 184, 48, 7.5, (7.0, 9.0)),
        run(2e3, 1.9e3, 1600, 47, 60.0, (1e3, 3e3)),
    )
    afters = (
        run(2.0, 1.8, 215, 0, 0.2, (1.5, 3.0)),
        run(5.5, 5.0, 184, 0, 4.0, (5.0, 9.5)),
        run(1.9e3, 1.9e3, 1600, 0, 55.0, (1e3, 3e3)),
    )
    return [levers.Gain(case, {"width": 768}, "paced", b, a) for case, b, a in zip(cases, befores, afters, strict=True)]


MACHINE = {"npu": None, "cpu": "EPYC", "cores": 2, "date": "2026-01-02", "name": None}
MACHINES = [
    gallery.Submission("a.json", MACHINE, RECORDS),
    gallery.Submission("b.json", MACHINE | {"name": "a laptop"}, pair(2.0, 1.0, tqe=1) + pair(2.1, 0.9)),
    gallery.Submission("c.json", MACHINE | {"npu": "910B"}, pair(9.0, 3.0, device="ascend", clock="hardware")),
]
PREDICTED = {1: ((5.0, 5.1), (1.2, 1.2)), 8: ((5.0, 5.6), (1.9, 1.9)), 32: ((6.8, 7.1), (6.8, 6.9))}
SIMULATED = "measured on the simulated device"
FIGURES = {
    "timeline, few": (lambda: plots.timeline({"one layer": spans(17)}, note="torch 2.13.0"), 1),
    "timeline": (lambda: plots.timeline({"eager": spans(200), "replay": spans(200, host=0)}, note="torch 2.13.0"), 1),
    "sizes": (lambda: plots.sizes(RECORDS), 1),
    "speedup": (lambda: plots.speedup(RECORDS), 3),
    "kernels": (lambda: plots.kernels(spans(6), "Six", note="torch 2.13.0"), 1),
    "per_launch": (lambda: plots.per_launch({"width": SWEEP, "batch": SWEEP}, note="torch 2.13.0"), 1),
    "break_even": (lambda: plots.break_even(3.0, 1.0, 40.0, note="torch 2.13.0"), 1),
    "rates": (lambda: plots.rates({"one": RATES, "two": RATES}, "molecules", "Rates", note="torch 2.13.0"), 1),
    "levers": (lambda: plots.levers_figure(gains(full=True), gains(full=False)), 3),
    "machines": (lambda: plots.machines(MACHINES), 2),
    "break_even, never": (lambda: plots.break_even(3.0, 3.1, 40.0, note="torch 2.13.0"), 1),
}


def texts(fig):
    """Everything written in a figure, drawn once so that all of it exists."""
    fig.draw_without_rendering()
    return [t.get_text() for t in fig.findobj(lambda artist: hasattr(artist, "get_text")) if t.get_text()]


def test_the_records_here_are_real_ones():
    assert list(RECORDS[0]) == list(_FIELDS)


def contrast(color):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 1.05 / (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05)


def test_every_source_has_a_colour_and_a_marker_of_its_own_that_show_on_white():
    colors = [style.color for style in plots.SOURCES.values()] + [plots.HOST]
    markers = [style.marker for style in plots.SOURCES.values()]
    assert len(set(colors)) == len(colors) and len(set(markers)) == len(markers)
    assert min(map(contrast, colors)) >= 3
    assert list(plots.SOURCES) == [
        "measured on Ascend",
        "measured on the simulated device",
        "modelled",
        "reported",
    ]


@pytest.mark.parametrize(("draw", "sources"), FIGURES.values(), ids=FIGURES.keys())
def test_a_figure_has_title_axes_units_source_and_is_small(draw, sources):
    fig = draw()
    said = texts(fig)
    assert fig.get_suptitle()
    assert all(ax.get_xlabel() for ax in fig.axes[-1:])
    assert SIMULATED in said
    assert any("torch 2.13.0" in text for text in said)
    assert len(fig.legends[0].get_texts()) == sources
    data, metadata = fig.stored()
    assert len(b64decode(data["image/png"])) < 60_000
    assert fig.get_suptitle() in metadata["image/png"]["alt"]
    assert not __import__("matplotlib.pyplot").pyplot.get_fignums(), "pyplot would show it a second time"


MODELLED = {
    "roofs": lambda: plots.roofs(gains(full=True)),
    "prediction": lambda: plots.prediction(PREDICTED, "batch", "Lines: predicted", note="torch 2.13.0"),
}


@pytest.mark.parametrize("draw", MODELLED.values(), ids=MODELLED.keys())
def test_a_modelled_figure_says_so_and_nothing_else(draw):
    fig = draw()
    said = texts(fig)
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["modelled"]
    assert any("torch 2.13.0" in text for text in said)
    assert fig.axes[0].get_xlabel() and "log)" in fig.axes[0].get_ylabel()
    assert len(b64decode(fig.stored()[0]["image/png"])) < 60_000


EVERY = {name: draw for name, (draw, _) in FIGURES.items()} | MODELLED


@pytest.mark.parametrize("draw", EVERY.values(), ids=EVERY.keys())
def test_nothing_drawn_is_cut_off(draw):
    fig = draw()
    fig.draw_without_rendering()
    box = fig.get_tightbbox()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= fig.get_figwidth() and box.y1 <= fig.get_figheight(), box


def test_timeline_shows_launches_kernels_and_how_busy_the_device_is():
    eager, replay = spans(4), [s._replace(enqueued=0.0) for s in spans(4, host=0.0)]
    fig = plots.timeline({"eager": eager, "replay": replay})
    said = texts(fig)
    assert "eager: 4 kernels in 0.05 ms, device busy 32%" in said
    assert "replay: 4 kernels in 0.02 ms, device busy 94%" in said
    assert "time since the first launch (ms)" in said
    launches, kernels = fig.axes[0].collections
    assert len(launches.get_segments()) == 4 and len(kernels.get_paths()) == 4
    assert len(fig.axes[1].collections[0].get_segments()) == 1, "a replay is one launch"


def test_timeline_has_a_row_for_every_stream():
    labels = [t.get_text() for t in plots.timeline({"two": spans(4, streams=2)}).axes[0].get_yticklabels()]
    assert labels == ["host launches", "device, stream 0", "device, stream 1"]


def test_timeline_of_nothing_is_refused():
    with pytest.raises(ValueError, match="trace 'replay' holds no kernel"):
        plots.timeline({"eager": spans(), "replay": []})


def test_sizes_are_in_order_labelled_and_carry_the_ratio():
    fig = plots.sizes(RECORDS)
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == ["32", "64", "128"]
    assert "width, layers 12, tokens 16, batch 1" in texts(fig)
    assert {"4.00×", "2.70×", "1.15×", "eager", "replay"} <= set(texts(fig))
    eager, graph = fig.axes[0].lines
    assert list(eager.get_ydata()) == [2.8, 2.7, 3.0] and list(graph.get_ydata()) == [0.7, 1.0, 2.6]


def test_the_chosen_size_is_marked():
    assert [t.get_text() for t in plots.sizes(RECORDS, chosen=RECORDS[2]).axes[0].texts].count("chosen") == 1
    fig = plots.sizes(RECORDS + pair(9.0, 3.0, clock="paced"), chosen=RECORDS[2])
    measured, modelled = fig.axes
    (mark,) = [t for t in measured.texts if t.get_text() == "chosen"]
    assert mark.get_position()[0] == 0 and "chosen" not in [t.get_text() for t in modelled.texts]


def test_sources_share_no_panel_and_no_colour():
    mixed = RECORDS + pair(0.9, 0.4, device="ascend", clock="hardware") + pair(9.0, 5.0, clock="paced", width=768)
    fig = plots.sizes(mixed)
    colors = [{line.get_color() for line in ax.lines} for ax in fig.axes]
    assert colors == [{plots.SOURCES[s].color} for s in ("measured on Ascend", SIMULATED, "modelled")]
    fig = plots.speedup(mixed)
    measured, reported = fig.axes
    black = plots.SOURCES["reported"].color
    points = [line for line in measured.lines if line.get_marker() not in ("", "None")]
    assert len(points) == 5 and black not in {line.get_color() for line in points}
    rules = [line for line in measured.lines if line.get_color() == plots.SOURCES["modelled"].color]
    assert len(rules) == 3 + 1, "a rule each for three sources, and the modelled point"
    assert {line.get_color() for line in reported.lines if line.get_marker() == "^"} == {black}


def test_machines_have_a_line_each_and_sources_a_panel_and_a_colour_each():
    fig = plots.machines(MACHINES)
    ascend, simulated = fig.axes
    lines = [[line for line in ax.lines if line.get_marker() not in ("", "None")] for ax in fig.axes]
    assert [[list(line.get_ydata()) for line in panel] for panel in lines] == [
        [[3.0]],
        [[4.0, 2.7, 3.0 / 2.6], [pytest.approx(2.1 / 0.9)], [2.0]],
    ]
    colors = [{line.get_color() for line in panel} for panel in lines]
    assert colors == [{plots.SOURCES["measured on Ascend"].color}, {plots.SOURCES[SIMULATED].color}]
    assert ascend.get_title("left") == "1: 910B, EPYC, 2 cores, 2026-01-02, tqe 0"
    assert simulated.get_title("left").splitlines()[1:] == [
        "2: a laptop, 2 cores, 2026-01-02, tqe 0",
        "3: a laptop, 2 cores, 2026-01-02, tqe 1",
    ]
    with pytest.raises(ValueError, match="no machine has a size with both"):
        plots.machines([gallery.Submission("d.json", MACHINE, RECORDS[:1])])


def test_a_pair_never_mixes_devices_or_task_queues():
    lone = [record("eager", 3.0), record("graph", 1.0, device="ascend", clock="hardware"), record("graph", 1.0, tqe=1)]
    with pytest.raises(ValueError, match="no size has both"):
        plots.sizes(lone)


def test_task_queues_are_told_apart_where_they_differ():
    fig = plots.sizes(pair(3.0, 1.0) + pair(2.0, 1.0, tqe=1))
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == ["0", "1"]
    assert fig.axes[0].get_xlabel() == "task queue, width 64, layers 12, tokens 16, batch 1"
    fig = plots.sizes(RECORDS + pair(2.0, 1.0, tqe=1))
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()][-2:] == ["128\ntqe 0", "64\ntqe 1"]
    assert "64\ntqe 1" in texts(plots.speedup(RECORDS + pair(2.0, 1.0, tqe=1)))


def test_speedup_is_drawn_against_kernel_time():
    fig = plots.speedup(RECORDS)
    points = [line for line in fig.axes[0].lines if line.get_marker() == "o"]
    assert [(p.get_xdata()[0], p.get_ydata()[0]) for p in points] == [
        pytest.approx((0.7e3 / 200, 4.0)),
        pytest.approx((1.0e3 / 200, 2.7)),
        pytest.approx((2.6e3 / 200, 3.0 / 2.6)),
    ]
    assert "time of a replay / its kernels (µs, log)" in texts(fig)


def test_the_reported_figures():
    assert [(model, gain) for model, _, gain in plots.REPORTED] == [
        ("GenMol-89M", 2.09),
        ("ClimaX", 1.004),
        ("ClimaX", 1.12),
        ("nucleotide-transformer-500m", 1.048),
        ("Aurora", 1.007),
    ]
    assert {"2.09×", "1.004×", "1.12×", "1.048×", "1.007×"} <= set(texts(plots.speedup(RECORDS)))


def test_records_of_a_lever_are_no_pair():
    single = [record("eager", 9.0, levers=""), record("graph", 1.0, levers="graph", tqe=1)]
    assert len(plots.paired(RECORDS + single)) == 3
    with pytest.raises(ValueError, match="no size has both"):
        plots.paired(single)


def test_levers_keep_sources_apart_and_show_the_band():
    modelled, measured = gains(full=True), gains(full=False)
    fig = plots.levers_figure(modelled, measured)
    points = []
    for ax, source in zip(fig.axes, ("modelled", SIMULATED, "reported"), strict=True):
        drawn = [line for line in ax.lines if line.get_linestyle() != ":"]
        assert {line.get_color() for line in drawn} == {plots.SOURCES[source].color}
        points.append([line.get_xdata()[0] for line in drawn if line.get_marker() != "None"])
    points = [
        [x for line in ax.lines if line.get_marker() not in ("", "None") for x in line.get_xdata()] for ax in fig.axes
    ]
    assert points[0] == [gain.speedup for gain in modelled]
    assert points[1] == [2.0, 2.0, 2.0]
    assert points[2] == [2.09, 1.004], "nobody reports the third"
    band = next(line for line in fig.axes[0].lines if line.get_linewidth() > 2)
    assert tuple(band.get_xdata()) == modelled[0].band == pytest.approx((7 / 3, 3.0))
    assert {"genmol\ngraph", "climax\ntask-queue", "2.400×", "2.090×"} <= set(texts(fig))


def test_roofs_show_both_bounds_of_each_model():
    modelled = gains(full=True)
    fig = plots.roofs(modelled)
    lines = fig.axes[0].lines
    hosts = [line.get_ydata()[0] for line in lines if line.get_color() == plots.HOST]
    assert hosts == [pytest.approx(g.before.host_ms / g.before.kernels * 1e3) for g in modelled]
    squares = [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines if line.get_marker() == "s"]
    expected = [
        pytest.approx((g.before.kernels_ms / g.before.kernels * 1e3, run.median_ms / g.before.kernels * 1e3))
        for g in modelled
        for run in (g.before, g.after)
    ]
    assert squares == expected
    assert {"the kernels", "the host's launches and waits", "genmol\ngraph"} <= set(texts(fig))


def test_prediction_has_lines_and_points_of_both_modes():
    fig = plots.prediction(PREDICTED, "batch", "Lines: predicted")
    assert [list(line.get_ydata()) for line in fig.axes[0].lines] == [
        [5.0, 5.0, 6.8],
        [5.1, 5.6, 7.1],
        [1.2, 1.9, 6.8],
        [1.2, 1.9, 6.9],
    ]
    assert [t.get_text() for t in fig.axes[0].get_xticklabels()] == ["1", "8", "32"]
    assert {"eager", "replay"} <= set(texts(fig))


def test_break_even_marks_the_crossing():
    fig = plots.break_even(3.0, 1.0, 40.0)
    crossing = next(line for line in fig.axes[0].lines if line.get_marker() == "o")
    assert (crossing.get_xdata()[0], crossing.get_ydata()[0]) == (20, 60)
    assert "40 ms before the first replay: pays after 20 calls" in texts(fig)
    assert "41 ms before the first replay: pays after 21 calls" in texts(plots.break_even(3.0, 1.0, 40.5 + 0.1))
    assert "40 ms before the first replay: never pays" in texts(plots.break_even(1.0, 1.0, 40.0))


def test_break_even_counts_what_the_times_are_of():
    said = texts(plots.break_even(3.0, 1.0, 40.0, unit="molecules"))
    assert "molecules" in said and any("pays after 20 molecules" in text for text in said)


def test_an_ascend_takes_the_kernel_count_of_the_model():
    ascend = dict(device="ascend", clock="hardware", kernels=None)
    fig = plots.speedup(pair(0.9, 0.4, **ascend))
    (point,) = (line for line in fig.axes[0].lines if line.get_marker() == plots.SOURCES["measured on Ascend"].marker)
    assert (point.get_xdata()[0], point.get_ydata()[0]) == pytest.approx((0.4e3 / 215, 2.25))
    with pytest.raises(ValueError, match="no size has a count of its kernels"):
        plots.speedup(pair(0.9, 0.4, model="another", **ascend))


def test_kernels_are_counted_and_summed_by_name():
    fig = plots.kernels([*spans(3), *(s._replace(name="aclnnGelu") for s in spans(1))], "Four")
    launches, times = ({bar.get_y() + 0.4: bar.get_width() for bar in ax.patches} for ax in fig.axes)
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["Gelu", "Add"]
    assert launches == {0: 1, 1: 3} and list(times.values()) == [pytest.approx(4), pytest.approx(12)]


def test_per_launch_has_a_panel_a_sweep_and_says_which_line_is_which():
    fig = plots.per_launch({"width": SWEEP, "batch": SWEEP})
    assert [ax.get_xlabel() for ax in fig.axes] == ["width", "batch"]
    assert {"host: one launch", "device: one kernel"} <= set(texts(fig))


def test_rates_carry_their_ratio_to_the_first_and_fill_what_replays():
    fig = plots.rates({"one": RATES}, "molecules", "Rates")
    said = texts(fig)
    assert {"5 (1.0×)", "4.1 (0.8×)", "13.3 (2.7×)", "119 (23.9×)", "molecules per second"} <= set(said)
    filled = [bar.get_facecolor() == bar.get_edgecolor() for bar in fig.axes[0].patches]
    assert filled == [replays for _, replays in RATES.values()]
