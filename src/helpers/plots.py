"""Every figure of the course. Colour and marker say where a number comes from; filled or open says replay or eager.

Each function returns a matplotlib Figure. English labels, units on every axis, and the source in the figure itself.
"""

import math
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from textwrap import fill
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

from . import gallery, levers, models


class Style(NamedTuple):
    color: str
    marker: str


# Okabe-Ito colours that reach a contrast of 3:1 on white. A source has one, and no other source shares it.
SOURCES = {
    "measured on Ascend": Style("#D55E00", "D"),
    "measured on the simulated device": Style("#0072B2", "o"),
    "modelled": Style("#CC79A7", "s"),
    "reported": Style("#000000", "^"),
}
HOST = "#009E73"  # the host's side of a timeline; no source has it

# What an article on AI-for-science models on Ascend reports, measured by its authors: model, change, speed-up.
REPORTED = tuple((levers.WORKLOADS[case.model].original, case.said, case.reported) for case in levers.ARTICLE)


class Picture(Figure):
    """A Figure that a notebook stores as a sharp and small PNG: twice the pixels, 64 colours, and a text for those who
    do not see it."""

    def _ipython_display_(self):
        # Not _repr_mimebundle_, which IPython overwrites with the PNG that it makes of any Figure.
        from IPython.display import publish_display_data

        publish_display_data(*self.stored())

    def stored(self) -> tuple[dict, dict]:
        """Data and metadata, by MIME type, as a notebook keeps them."""
        drawn, small = BytesIO(), BytesIO()
        self.savefig(drawn, format="png", dpi=2 * self.dpi)
        Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, "png", optimize=True)
        width, height = (round(inches * self.dpi) for inches in self.get_size_inches())
        said = f"{self.get_suptitle()}. {', '.join(text.get_text() for text in self.legends[0].get_texts())}."
        return (
            {"image/png": b64encode(small.getvalue()).decode(), "text/plain": f"<figure: {self.get_suptitle()}>"},
            {"image/png": {"alt": said, "width": width, "height": height}},
        )


def timeline(
    traces: Mapping[str, Sequence], source: str = "measured on the simulated device", note: str = ""
) -> Figure:
    """When the host launched and when the device computed: one panel per trace, on one time axis.

    traces: {"eager": spans, "replay": spans}, spans as ``ascend_sim.trace`` gives them (seconds). A trace of at most
    20 kernels gets their names too.
    """
    for name, spans in traces.items():
        if not spans:
            raise ValueError(f"trace {name!r} holds no kernel")
    streams = {name: sorted({span.stream for span in spans}) for name, spans in traces.items()}
    # A stream with names below its kernels needs twice the height of one without.
    pitch = {name: 2 if len(spans) <= 20 else 1 for name, spans in traces.items()}
    rows = [1 + pitch[name] * len(streams[name]) for name in traces]
    size = (8, 1 + 0.7 * len(traces) + 0.42 * sum(rows))
    fig, panels = plt.subplots(
        len(traces), 1, FigureClass=Picture, figsize=size, sharex=True, squeeze=False, height_ratios=rows
    )
    ends = [max(s.ended for s in spans) - min(s.enqueued for s in spans) for spans in traces.values()]
    for ax, height, (name, spans) in zip(panels[:, 0], rows, traces.items(), strict=True):
        few = pitch[name] > 1
        zero = min(span.enqueued for span in spans)
        launches = sorted({(span.enqueued - zero) * 1e3 for span in spans})
        ax.vlines(launches, 0.1, 0.9, color=HOST, linewidth=2 if few else 0.6)
        tops = [1 + pitch[name] * i for i in range(len(streams[name]))]
        for top, stream in zip(tops, streams[name], strict=True):
            own = [span for span in spans if span.stream == stream]
            bars = [((s.started - zero) * 1e3, (s.ended - s.started) * 1e3) for s in own]
            ax.broken_barh(bars, (top + 0.1, 0.8), color=SOURCES[source].color, linewidth=0)
            if few:
                _name_bars(ax, [short_name(s.name) for s in own], bars, top + 0.9, max(ends) * 1e3)
        total = (max(span.ended for span in spans) - zero) * 1e3
        busy = sum(span.ended - span.started for span in spans) * 1e3
        ax.set_yticks([0.5, *(top + 0.5 for top in tops)])
        ax.set_yticklabels(["host launches", *(f"device, stream {s}" for s in streams[name])])
        ax.set_ylim(height, 0)
        ax.set_title(
            f"{name}: {len(spans)} kernels in {total:.2f} ms, device busy {min(busy / total, 1):.0%}",
            loc="left",
            fontsize=10,
        )
    panels[-1, 0].set_xlabel("time since the first launch (ms)")
    return _finish(fig, "Host launches and device kernels", [source], note)


def kernels(spans: Sequence, title: str, source: str = "measured on the simulated device", note: str = "") -> Figure:
    """How often each kernel was launched, and the device time of all its launches. spans as in ``timeline``."""
    count = Counter(short_name(span.name) for span in spans)
    micros = dict.fromkeys(count, 0.0)
    for span in spans:
        micros[short_name(span.name)] += (span.ended - span.started) * 1e6
    names = sorted(count, key=lambda name: (count[name], micros[name]))
    fig, panels = plt.subplots(1, 2, FigureClass=Picture, figsize=(8, 1.3 + 0.26 * len(names)), sharey=True)
    for ax, values, label in zip(
        panels, (count, micros), ("launches", "time on the device, all launches (µs)"), strict=True
    ):
        bars = ax.barh(names, [values[name] for name in names], color=SOURCES[source].color)
        ax.bar_label(bars, fmt="{:.0f}", padding=3, fontsize=9)
        ax.set_xlabel(label)
        ax.margins(x=0.12, y=0.02)
        ax.tick_params(axis="y", length=0)
    return _finish(fig, title, [source], note)


def per_launch(
    sweeps: Mapping[str, Sequence[tuple]], source: str = "measured on the simulated device", note: str = ""
) -> Figure:
    """What a kernel costs the host and what it costs the device: launch-bound where the host's line is above.

    sweeps: {axis label: [(tick, host, kernel), ...]}, one panel each; times in µs of one launch, and of one kernel.
    """
    fig, panels = plt.subplots(
        1, len(sweeps), FigureClass=Picture, figsize=(1 + 3.6 * len(sweeps), 3.7), sharey=True, squeeze=False
    )
    for ax, (axis, points) in zip(panels[0], sweeps.items(), strict=True):
        ticks, host, kernel = zip(*points, strict=True)
        x = range(len(ticks))
        ax.plot(x, host, color=HOST, marker="s", linestyle="--")
        ax.plot(x, kernel, color=SOURCES[source].color, marker=SOURCES[source].marker)
        # A line that is straight on a logarithmic axis is a curve in numbers, so the shading needs points in between.
        dense = [i / 50 for i in range(50 * (len(ticks) - 1) + 1)]
        upper, lower = [_between(host, at) for at in dense], [_between(kernel, at) for at in dense]
        for color, sign in ((HOST, 1), (SOURCES[source].color, -1)):
            where = [sign * (h - k) >= 0 for h, k in zip(upper, lower, strict=True)]
            ax.fill_between(dense, upper, lower, where=where, interpolate=True, color=color, alpha=0.12, linewidth=0)
        ax.set_yscale("log")
        _plain(ax.yaxis)
        ax.set_xticks(x, [str(tick) for tick in ticks])
        ax.set_xlim(-0.4, len(ticks) - 0.6)
        ax.margins(y=0.15)
        ax.set_xlabel(axis)
    ticks, host, kernel = zip(*next(iter(sweeps.values())), strict=True)
    first = panels[0, 0]
    # The host's name is as long as two steps of the axis, so it keeps clear of the first three points.
    if host[0] > kernel[0]:
        low, high = (kernel[0], -14), (max(host[:3]), 8)
    else:
        low, high = (kernel[0], 8), (min(host[:3]), -16)
    for (y, offset), name, color in zip((high, low), ("host: one launch", "device: one kernel"),
                                        (HOST, SOURCES[source].color), strict=True):  # fmt: skip
        first.annotate(name, (0, y), xytext=(-4, offset), textcoords="offset points", fontsize=9, color=color)
    first.set_ylabel("time per kernel (µs, log)")
    return _finish(fig, "Launch-bound where green, compute-bound where blue", [source], note)


def _between(values: Sequence[float], at: float) -> float:
    """The value at ``at``, between two indices, on a line that is straight on a logarithmic axis."""
    i = min(int(at), max(len(values) - 2, 0))
    return values[i] if at == i else values[i] ** (1 - at + i) * values[i + 1] ** (at - i)


def sizes(records: Sequence[dict], chosen: dict | None = None) -> Figure:
    """Time of a call, eager and replayed, at each size in ``records`` (results.json), and the ratio between the two.

    One panel per source. The size of the record ``chosen`` is marked.
    """
    pairs = paired(records)
    shown, (labels, axis) = _sources(pairs), _labels(pairs)
    fig, panels = plt.subplots(
        1, len(shown), FigureClass=Picture, figsize=(3.8 + 2.9 * len(shown), 3.6), sharey=True, squeeze=False
    )
    for ax, source in zip(panels[0], shown, strict=True):
        style = SOURCES[source]
        own = sorted((pair for pair in pairs if pair.source == source), key=lambda pair: pair.eager["tqe"])
        e, g = ([getattr(pair, mode)["median_ms"] for pair in own] for mode in ("eager", "graph"))
        for level in dict.fromkeys(pair.eager["tqe"] for pair in own):  # no line from one task queue to another
            at = [x for x, pair in enumerate(own) if pair.eager["tqe"] == level]
            ax.plot(at, [e[x] for x in at], linestyle="--", color=style.color, marker=style.marker,
                    markerfacecolor="white")  # fmt: skip
            ax.plot(at, [g[x] for x in at], linestyle="-", color=style.color, marker=style.marker)
        for x, (a, b) in enumerate(zip(e, g, strict=True)):
            # To the left of a rise, which would cross the number.
            ax.annotate(f"{a / b:.2f}×", (x, a), xytext=(4, 8), textcoords="offset points", ha="right", fontsize=9)
            if own[x].eager is chosen:
                ax.axvspan(x - 0.35, x + 0.35, color="black", alpha=0.08, linewidth=0)
                ax.text(x, 0.02, "chosen", transform=ax.get_xaxis_transform(), ha="center", fontsize=8)
        for y, name in _apart([(e[0], "eager"), (g[0], "replay")], 1.25):
            ax.annotate(name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=9)
        ax.set_xticks(range(len(own)), [labels[pair.size] for pair in own], fontsize=8)
        ax.set_xlim(-0.9, len(own) - 0.5)
        ax.set_yscale("log")
        _plain(ax.yaxis)
        ax.margins(y=0.2)
        ax.set_xlabel(axis)
    panels[0, 0].set_ylabel("time of a call (ms, log)")
    return _finish(fig, "Eager against replay: the number is the speed-up", shown, _stamp(records))


def machines(submissions: Sequence[gallery.Submission]) -> Figure:
    """The speed-up on each machine of a gallery over the sizes of the molecule model: a line for a machine and a level
    of its task queue, a panel for a source. Raises ValueError if there is nothing to compare.
    """
    found = by_machine(submissions)
    if not found:
        raise ValueError("no machine has a size with both an eager and a graph record")
    labels, axis = _labels(sorted((p for lines in found.values() for own in lines.values() for p in own),
                                  key=lambda pair: pair.size))  # fmt: skip
    names = [
        "\n".join(fill(f"{n}: {name}", 60, subsequent_indent="    ") for n, name in enumerate(lines, 1))
        for lines in found.values()
    ]
    size = 3.8 + 2.9 * len(found), 3.3 + 0.17 * max(name.count("\n") for name in names)
    fig, panels = plt.subplots(1, len(found), FigureClass=Picture, figsize=size, sharey=True, squeeze=False)
    for ax, name, (source, lines) in zip(panels[0], names, found.items(), strict=True):
        style = SOURCES[source]
        shown = [label for size, label in labels.items() if any(p.size == size for own in lines.values() for p in own)]
        for number, pairs in enumerate(lines.values(), 1):
            x = [shown.index(labels[pair.size]) for pair in pairs]
            y = [pair.eager["median_ms"] / pair.graph["median_ms"] for pair in pairs]
            ax.plot(x, y, color=style.color, marker=style.marker, linewidth=1)
            ax.annotate(str(number), (x[0], y[0]), xytext=(-8, 0), textcoords="offset points", ha="right",
                        va="center", fontsize=9)  # fmt: skip
        ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
        ax.set_xticks(range(len(shown)), shown, fontsize=8)
        ax.set_xlim(-0.6, len(shown) - 0.5)
        ax.margins(y=0.15)
        ax.set_xlabel(f"{axis}, tqe: TASK_QUEUE_ENABLE")
        ax.set_title(name, loc="left", fontsize=8)
    panels[0, 0].set_ylabel("speed-up, eager / replay")
    stamp = _stamp([r for lines in found.values() for own in lines.values() for p in own for r in (p.eager, p.graph)])
    return _finish(fig, "The speed-up on each machine of the gallery", list(found), stamp)


def speedup(records: Sequence[dict], reported: Sequence[tuple] = REPORTED) -> Figure:
    """Left: speed-up against kernel time per launch (replay time / kernels). Right: the reported ones, on their own.

    The line is the rule that a call takes the longer of launching and computing: max(1, launch / kernel), with the
    launch time of the smallest size. An Ascend counts no kernels in a replay; its pairs take the count that the
    simulated device has for the model (``models.kernels``), and are left out where there is none.
    """
    counted = [(pair, _kernels(pair.graph)) for pair in paired(records)]
    points = [(pair.graph["median_ms"] / count * 1e3, pair) for pair, count in counted if count]
    if not points:
        raise ValueError("no size has a count of its kernels")
    pairs = [pair for _, pair in points]
    labels, axis = _labels(pairs)
    fig, (ax, table) = plt.subplots(1, 2, FigureClass=Picture, figsize=(8.4, 3.8), width_ratios=(3, 2))
    for source, level in dict.fromkeys((pair.source, pair.eager["tqe"]) for pair in pairs):
        own = [(x, pair) for x, pair in points if (pair.source, pair.eager["tqe"]) == (source, level)]
        smallest, pair = min(own, key=lambda point: point[0])
        launch = smallest * pair.eager["median_ms"] / pair.graph["median_ms"]
        line = [smallest * (max(x for x, _ in own) / smallest) ** (i / 50) for i in range(51)]
        ax.plot(line, [max(1, launch / x) for x in line], color=SOURCES["modelled"].color, linewidth=1.2, zorder=1)
    places = [(x, pair.eager["median_ms"] / pair.graph["median_ms"]) for x, pair in points]
    for (x, y), (_, pair) in zip(places, points, strict=True):
        style = SOURCES[pair.source]
        ax.plot(x, y, linestyle="", color=style.color, marker=style.marker)
        (dx, dy), side, edge = _beside(x, y, places)
        behind = dict(boxstyle="square,pad=0.05", fc="white", ec="none", alpha=0.8)  # so that no line cuts the label
        ax.annotate(labels[pair.size], (x, y), xytext=(dx, dy), textcoords="offset points", ha=side, va=edge,
                    fontsize=8, color=style.color, bbox=behind, zorder=1.5)  # fmt: skip
    ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
    ax.set_xscale("log")
    _plain(ax.xaxis, 1, 3)
    ax.margins(x=0.35, y=0.25)
    ax.set_xlabel("time of a replay / its kernels (µs, log)")
    ax.set_ylabel("speed-up, eager / replay")
    ax.set_title(axis, loc="left", fontsize=9)
    style = SOURCES["reported"]
    for row, (model, how, gain) in enumerate(reported):
        table.plot(gain, row, linestyle="", color=style.color, marker=style.marker)
        table.annotate(f"{gain:g}×", (gain, row), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9)
        table.text(1.01, row - 0.2, f"{model}: {how}", fontsize=7, va="bottom")
    table.axvline(1, color="black", linewidth=0.8, linestyle=":")
    table.set_xlim(0.9, 2.6)
    table.set_ylim(len(reported) - 0.5, -0.7)
    table.set_yticks([])
    table.set_xlabel("speed-up")
    table.set_title("reported by an article, on Ascend", loc="left", fontsize=9)
    shown = [source for source in SOURCES if source in {*_sources(pairs), "modelled", "reported"}]
    return _finish(fig, "The lighter the kernels, the larger the gain", shown, _stamp(records))


def _beside(x: float, y: float, places: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], str, str]:
    """Where the label of a point goes, in points, and which of its ends and edges is there.

    Off the line at 1, off the falling line of the rule, and off the labels of the points that lie close in x, which
    are told apart by their order in y.
    """
    reach = 0.25 * math.log(max(x for x, _ in places) / min(x for x, _ in places))
    close = sorted((b for a, b in places if abs(math.log(a / x)) <= reach), reverse=True)
    if y < 1 or (len(close) > 1 and y == close[-1] and y > 1.4):
        return (-6, -4), "right", "top"
    return ((6, 4), "left", "bottom") if y == close[0] or y <= 1.4 else ((-7, 0), "right", "center")


def _kernels(record: dict) -> int | None:
    if record["kernels"] is None and record["model"] == "genmol" and "layers" in record["shape"]:
        return models.kernels(record["shape"]["layers"])
    return record["kernels"]


def break_even(
    eager_ms: float,
    replay_ms: float,
    cost_ms: float,
    source: str = "measured on the simulated device",
    note: str = "",
    unit: str = "calls",
) -> Figure:
    """Time spent after n calls, eager and captured. They cross where the capture has paid for itself.

    unit: what the times are of, if not calls.
    """
    gain = eager_ms - replay_ms
    crossing = cost_ms / gain if gain > 0 else None
    end = 2 * crossing if crossing else 100
    totals = {"eager": (0, end * eager_ms), "capture, then replay": (cost_ms, cost_ms + end * replay_ms)}
    fig, ax = plt.subplots(FigureClass=Picture, figsize=(7, 3.6))
    style = SOURCES[source]
    for linestyle, total in zip(("--", "-"), totals.values(), strict=True):
        ax.plot((0, end), total, color=style.color, linestyle=linestyle)
    for y, name in _apart([(total[1], name) for name, total in totals.items()], 1.12):
        ax.text(end * 1.02, y, name, va="center", fontsize=9)
    if crossing:
        ax.plot(crossing, crossing * eager_ms, color=style.color, marker=style.marker)
    pays = f"pays after {math.ceil(crossing)} {unit}" if crossing else "never pays"
    ax.set_title(f"{cost_ms:.0f} ms before the first replay: {pays}", loc="left", fontsize=10)
    ax.set_xlim(0, end * 1.35)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(unit)
    ax.set_ylabel("time spent (ms)")
    return _finish(fig, "When a capture pays for itself", [source], note)


def levers_figure(modelled: Sequence[levers.Gain], measured: Sequence[levers.Gain]) -> Figure:
    """The speed-up of each case of ``levers.gains``: at full size on the paced clock, with its band; small, on the
    device that is there; and as reported. One panel per source."""
    there = source_of(measured[0].records()[0])
    columns = {
        "modelled": ("full size", [(gain.speedup, *gain.band) for gain in modelled]),
        there: ("small size", [(gain.speedup,) * 3 for gain in measured]),
        "reported": ("by the article", [(gain.case.reported,) * 3 for gain in modelled]),
    }
    fig, panels = plt.subplots(1, 3, FigureClass=Picture, figsize=(9, 1.6 + 0.6 * len(modelled)), sharey=True)
    for ax, (source, (title, points)) in zip(panels, columns.items(), strict=True):
        style = SOURCES[source]
        for row, (value, low, high) in enumerate(points):
            if value is None:
                continue
            ax.plot((low, high), (row, row), color=style.color, linewidth=6, alpha=0.3, solid_capstyle="butt")
            ax.plot(value, row, color=style.color, marker=style.marker)
            ax.annotate(f"{value:.3f}×", (value, row), xytext=(0, 7), textcoords="offset points", ha="center",
                        fontsize=9)  # fmt: skip
        ax.axvline(1, color="black", linewidth=0.8, linestyle=":")
        ax.set_xscale("log")
        reach = [x for point in points if point[0] for x in point]
        ends = min([*reach, 0.9]) / 1.45, max([*reach, 1.4]) * 1.45  # the numbers are wider than their markers
        _plain(ax.xaxis, *((1, 2, 5) if ends[1] / ends[0] > 8 else (1, 1.5, 2, 3, 5, 7)))
        ax.set_xlim(*ends)
        ax.set_title(title, loc="left", fontsize=10)
        ax.set_xlabel("speed-up (log)")
        ax.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(modelled)), map(_case, modelled), fontsize=8)
    panels[0].set_ylim(len(modelled) - 0.5, -0.7)
    stamp = _stamp([record for gain in (*modelled, *measured) for record in gain.records()])
    note = f"bar: the card's constants at the ends of their ranges; {stamp}"
    return _finish(fig, "What each lever gives", list(columns), note)


def _case(gain: levers.Gain) -> str:
    return f"{gain.case.model}\n{' + '.join(gain.case.levers)}"


def roofs(gains: Sequence[levers.Gain]) -> Figure:
    """Where each case of ``levers.gains`` stands between the two bounds of a call, before and after its levers.

    All by the number of kernels before. Across: the time of the kernels before. Up: the time of a call. A call takes
    at least its kernels (the diagonal) and at least what the host needs (a green dash, before the levers).
    """
    fig, ax = plt.subplots(FigureClass=Picture, figsize=(7.5, 4.6))
    style = SOURCES["modelled"]
    places = []
    for gain in gains:
        each = 1e3 / gain.before.kernels
        times = gain.before.kernels_ms, gain.before.host_ms, gain.before.median_ms, gain.after.median_ms
        places.append([ms * each for ms in times])
    reach = [x for place in places for x in place]
    low, high = min(reach) / 2, max(reach) * 2
    ax.plot((low, high), (low, high), color="black", linewidth=1)
    for gain, (x, host, before, after) in zip(gains, places, strict=True):
        ax.plot((x / 1.25, x * 1.25), (host, host), color=HOST, linewidth=2)
        if max(before, after) > 1.1 * min(before, after):
            ax.annotate("", (x, after), (x, before), arrowprops=dict(arrowstyle="->", color=style.color))
        ax.plot(x, before, color=style.color, marker=style.marker, markerfacecolor="white", markersize=8)
        ax.plot(x, after, color=style.color, marker=style.marker, markersize=5)
        # Above the diagonal there is room above, and on it only to the right and below.
        offset, side, edge = ((0, 9), "center", "bottom") if before > 1.3 * x else ((10, -4), "left", "top")
        ax.annotate(_case(gain), (x, before), xytext=offset, textcoords="offset points", fontsize=8, ha=side, va=edge)
    x, host, *_ = min(places, key=lambda place: place[1] / place[0])  # the dash that is farthest from a point
    ax.annotate("the host's launches and waits", (x, host), xytext=(0, -6), textcoords="offset points", fontsize=9,
                color=HOST, ha="center", va="top")  # fmt: skip
    middle = (low * high) ** 0.5
    ax.annotate("the kernels", (middle, middle), xytext=(8, -2), textcoords="offset points", fontsize=9, va="top")
    ax.set_xscale("log")
    ax.set_yscale("log")
    _plain(ax.xaxis)
    _plain(ax.yaxis)
    ax.set_xlim(low, 4 * high)
    ax.set_ylim(low, high)
    ax.set_xlabel("time of the published model's kernels / their number (µs, log)")
    ax.set_ylabel("time of a call / the same number (µs, log)")
    stamp = _stamp([record for gain in gains for record in gain.records()])
    return _finish(fig, "Two bounds of a call: open as published, filled after the levers", ["modelled"], stamp)


def prediction(points: Mapping[object, tuple[tuple, tuple]], axis: str, title: str, note: str = "") -> Figure:
    """Predicted times as lines and those of the run on the paced clock as points.

    points: {tick: ((eager predicted, eager run), (replay predicted, replay run))}, times in ms.
    """
    fig, ax = plt.subplots(FigureClass=Picture, figsize=(7, 4))
    style = SOURCES["modelled"]
    x = range(len(points))
    lines = [list(zip(*pairs, strict=True)) for pairs in zip(*points.values(), strict=True)]
    looks = (HOST, "--", "white"), ("black", "-", style.color)
    for (predicted, run), (color, linestyle, face) in zip(lines, looks, strict=True):
        ax.plot(x, predicted, color=color, linestyle=linestyle, linewidth=1.2)
        ax.plot(x, run, linestyle="", color=style.color, marker=style.marker, markerfacecolor=face)
    (eager, _), (replay, _) = lines
    for y, name in _apart([(eager[0], "eager"), (replay[0], "replay")], 1.25):
        color = HOST if name == "eager" else "black"
        ax.annotate(name, (0, y), xytext=(-8, 0), textcoords="offset points", ha="right", va="center", fontsize=9,
                    color=color)  # fmt: skip
    ax.set_xticks(x, [str(tick) for tick in points])
    ax.set_xlim(-0.7, len(points) - 0.7)
    ax.set_yscale("log")
    _plain(ax.yaxis)
    ax.margins(y=0.15)
    ax.set_xlabel(axis)
    ax.set_ylabel("time of a call (ms, log)")
    return _finish(fig, title, ["modelled"], note)


def rates(
    panels: Mapping[str, Mapping[str, tuple[float, bool]]],
    unit: str,
    title: str,
    source: str = "measured on the simulated device",
    note: str = "",
) -> Figure:
    """How many ``unit`` per second each way of doing the same gives: filled bars where it replays a graph.

    panels: {name: {way: (rate, replays)}}; the number behind a bar is its ratio to the first way of the panel.
    """
    size = (2.4 + 2.9 * len(panels), 1.4 + 0.42 * len(next(iter(panels.values()))))
    fig, axes = plt.subplots(1, len(panels), FigureClass=Picture, figsize=size, sharey=True, squeeze=False)
    color = SOURCES[source].color
    for ax, (name, rows) in zip(axes[0], panels.items(), strict=True):
        first, _ = next(iter(rows.values()))
        for way, (rate, replays) in rows.items():
            ax.barh(way, rate, height=0.6, color=color if replays else "white", edgecolor=color, linewidth=1.5)
            shown = f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
            ax.annotate(f"{shown} ({rate / first:.1f}×)", (rate, way), xytext=(5, 0), textcoords="offset points",
                        va="center", fontsize=9)  # fmt: skip
        ax.set_title(name, loc="left", fontsize=10)
        ax.set_xlim(0, 1.45 * max(rate for rate, _ in rows.values()))
        ax.set_xlabel(f"{unit} per second")
        ax.tick_params(axis="y", length=0)
    axes[0, 0].invert_yaxis()
    return _finish(fig, title, [source], note)


def _name_bars(ax, names: Sequence[str], bars: Sequence[tuple[float, float]], y: float, whole: float) -> None:
    """Write the names below the bars, but none so close to the one before that they would overlap."""
    last = -whole
    for name, (start, width) in zip(names, bars, strict=True):
        at = start + width / 2
        if at - last < 0.035 * whole:
            continue
        last = at
        ax.annotate(
            name,
            (at, y),
            xytext=(4, -3),
            textcoords="offset points",
            rotation=30,
            rotation_mode="anchor",
            ha="right",
            va="top",
            fontsize=8,
        )


def short_name(kernel: str) -> str:
    """``aclnnAddmm`` as ``Addmm``."""
    return kernel.removeprefix("aclnn")


def _plain(axis, *subs: int) -> None:
    """1, 2, 5, 10 on a logarithmic axis, or other ``subs``, not powers of ten."""
    axis.set_major_locator(LogLocator(subs=subs or (1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def source_of(record: dict) -> str:
    if record["clock"] == "paced":
        return "modelled"
    return "measured on Ascend" if record["device"] == "ascend" else "measured on the simulated device"


class Pair(NamedTuple):
    source: str
    size: tuple[tuple[str, int], ...]
    eager: dict
    graph: dict


def paired(records: Sequence[dict], empty: bool = False) -> list[Pair]:
    """Every size that has both modes, smallest first. A pair never mixes models, devices, clocks or task queues.

    Raises ValueError if there is none, unless that is allowed (``empty``).
    """
    found: dict[tuple, dict[str, dict]] = {}
    several = len({r["tqe"] for r in records if r["levers"] is None}) > 1
    for r in records:
        if r["levers"] is not None:
            continue
        size = (*r["shape"].items(), ("batch", r["batch"]), *([("task queue", r["tqe"])] if several else []))
        found.setdefault((source_of(r), size, r["model"], r["tqe"]), {})[r["mode"]] = r
    pairs = [Pair(*key[:2], **modes) for key, modes in found.items() if len(modes) == 2]
    if not pairs and not empty:
        raise ValueError("no size has both an eager and a graph record")
    return sorted(pairs, key=lambda pair: pair.size)


def by_machine(submissions: Sequence[gallery.Submission], model: str = "genmol") -> dict[str, dict[str, list[Pair]]]:
    """{source: {machine and task queue: its pairs, smallest size first}}: what may share a table, and what a line."""
    found: dict[str, dict[str, list[Pair]]] = {}
    for one in submissions:
        for level in sorted({r["tqe"] for r in one.records}):
            # Alone, so that a pair has no other machine's half and no task queue in its size.
            own = [r for r in one.records if r["model"] == model and r["tqe"] == level]
            for pair in paired(own, empty=True):
                found.setdefault(pair.source, {}).setdefault(f"{one.label}, tqe {level}", []).append(pair)
    return {source: found[source] for source in SOURCES if source in found}


def _labels(pairs: Sequence[Pair]) -> tuple[dict[tuple, str], str]:
    """A short label for each size, such as 64×16×1, and what its numbers are. Numbers that never change go there.

    A task queue that varies is named in a second line of the label, unless nothing else varies.
    """
    names = list(dict.fromkeys(name for pair in pairs for name, _ in pair.size))
    values = {name: {dict(pair.size).get(name) for pair in pairs} for name in names}
    vary = [name for name in names if len(values[name]) > 1] or names
    queue = "task queue" in vary and len(vary) > 1
    short = [name for name in vary if not (queue and name == "task queue")]
    labels = {pair.size: "×".join(str(dict(pair.size).get(name, "-")) for name in short) for pair in pairs}
    if queue:
        labels = {size: f"{label}\ntqe {dict(size)['task queue']}" for size, label in labels.items()}
    fixed = "".join(f", {name} {values[name].pop()}" for name in names if name not in vary)
    return labels, " × ".join(short) + fixed + (", tqe: TASK_QUEUE_ENABLE" if queue else "")


def _sources(pairs: Sequence[Pair]) -> list[str]:
    return [source for source in SOURCES if any(source == pair.source for pair in pairs)]


def _stamp(records: Sequence[dict]) -> str:
    """The versions behind ``records``, each once."""

    def every(key):
        return "/".join(dict.fromkeys(str(r[key]) for r in records))

    return (
        f"torch {every('torch')}, torch_npu {every('torch_npu')}, CANN {every('cann')}, "
        f"TASK_QUEUE_ENABLE {every('tqe')}, {max(r['date'] for r in records)[:10]}"
    )


def _apart(labels: list[tuple[float, str]], near: float) -> list[tuple[float, str]]:
    """Move two labels apart if they lie within a factor of ``near`` of each other."""
    (low, a), (high, b) = sorted(labels)
    return [(low / near**0.5, a), (high * near**0.5, b)] if high < low * near else [(low, a), (high, b)]


def _finish(fig: Figure, title: str, sources: Sequence[str], note: str) -> Figure:
    """Title, and a foot that says where the numbers come from."""
    fig.set_dpi(100)
    fig.suptitle(title, x=0.01, ha="left", fontsize=12)
    for ax in fig.axes:
        ax.spines[["top", "right"]].set_visible(False)
    handles = [Line2D([], [], color=SOURCES[s].color, marker=SOURCES[s].marker, linestyle="", label=s) for s in sources]
    inch = 1 / fig.get_figheight()
    fig.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 0.16 * inch), ncols=4, fontsize=8, frameon=False)
    fig.text(0.01, 0.05 * inch, note, fontsize=7)
    fig.tight_layout(rect=(0, 0.42 * inch, 1, 1))
    plt.close(fig)  # the notebook shows what a cell returns; pyplot would show it a second time
    return fig
