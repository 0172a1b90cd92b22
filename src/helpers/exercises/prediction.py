"""Checks of the exercises of notebook 7, *Predict before you measure*."""

import math
import numbers
import random

import ascend_sim

import torch

from .. import bench
from .checking import Wrong, exercise


@exercise
def exact_ms(answer) -> str:
    draw = random.Random(0)
    cases = [([1.0, 0.5], 50.0), ([0.01] * 100 + [1.0], 20.0), ([1.0] + [0.01] * 100, 20.0)]
    cases += [
        ([draw.choice((0.005, 0.1)) for _ in range(draw.randrange(2, 60))], draw.uniform(2, 80)) for _ in range(50)
    ]
    for kernels, launch_us in cases:
        said, right = _number(answer(list(kernels), launch_us)), _exact_ms(kernels, launch_us)
        if not math.isclose(said, right, rel_tol=1e-6):
            raise Wrong(f"{_shown(kernels)}, a launch of {launch_us:.3g} µs: yours is {said:.4g} ms. "
                        + _why_not_exact(said, kernels, launch_us))  # fmt: skip
    bound, exact, run = _run_small_before_large(answer)
    return (
        f"200 small kernels before two large ones: the longer side says {bound:.2f} ms, your rule {exact:.2f} ms, and "
        f"the run on the paced clock took {run:.2f} ms. The longer side is a lower bound: a large kernel can't start "
        "before it is launched"
    )


def _exact_ms(kernels, launch_us) -> float:
    end = 0.0
    for i, kernel in enumerate(kernels):
        end = max(end, i * launch_us / 1e3) + kernel
    return end


def _why_not_exact(said, kernels, launch_us) -> str:
    launches_ms, kernels_ms = len(kernels) * launch_us / 1e3, sum(kernels)
    alike = {
        "That is the longer of the two sides: it forgets that a kernel cannot start before its launch": max(
            launches_ms, kernels_ms
        ),
        "That is the sum of both sides: the host launches while the device computes": launches_ms + kernels_ms,
        "That leaves the launches out: they come one after the other, too": kernels_ms,
        "You take the first kernel as launched after one launch: it is number 0, launched at 0": _exact_ms(
            [0.0, *kernels], launch_us
        ),
        "The result is in ms, as the kernels are; a launch is in µs": _exact_ms(kernels, launch_us * 1e3),
    }
    for text, value in alike.items():
        if math.isclose(said, value, rel_tol=1e-6):
            return text
    exact = _exact_ms(kernels, launch_us)
    return f"Kernel i starts when it is launched and the one before has ended: that gives {exact:.4g} ms"


def _run_small_before_large(answer) -> tuple[float, float, float]:
    """ms by the longer side, by the answer, and by a run on the paced clock."""
    card = ascend_sim.Card.load()
    with ascend_sim.paced(card):
        counter, matrix = torch.zeros(16, device="npu"), torch.empty(4096, 4096, device="npu")

        def call():
            for _ in range(200):
                counter.add_(1)
            for _ in range(2):
                matrix @ matrix

        kernels = [card.kernel_seconds(span) * 1e3 for span in ascend_sim.work(call, card)]
        launch_us = bench.launch_us(call)
        run = bench.measure(call, seconds=0.1).median_ms
    return max(len(kernels) * launch_us / 1e3, sum(kernels)), _number(answer(kernels, launch_us)), run


@exercise
def cost_of_waits_ms(answer) -> str:
    draw = random.Random(0)
    cases = [([(100, 5.0), (200, 0.5)], 20.0, 10.0), ([(100, 0.5)], 20.0, 10.0), ([(50, 3.0)] * 4, 20.0, 10.0)]
    for _ in range(50):
        stretches = [(draw.randrange(1, 300), draw.uniform(0.1, 6)) for _ in range(draw.randrange(1, 8))]
        cases.append((stretches, draw.uniform(5, 60), draw.uniform(0, 30)))
    for stretches, launch_us, sync_us in cases:
        said = _number(answer(list(stretches), launch_us, sync_us))
        with_waits = _eager_ms(stretches, launch_us, sync_us)
        without = _eager_ms([tuple(map(sum, zip(*stretches, strict=True)))], launch_us, sync_us)
        if not math.isclose(said, with_waits - without, rel_tol=1e-6, abs_tol=1e-9):
            between = (len(stretches) - 1) * sync_us / 1e3
            if math.isclose(said, with_waits, rel_tol=1e-6):
                why = "That is the whole call: how much longer is it than the same work with one wait, at its end?"
            elif math.isclose(said, between, rel_tol=1e-6, abs_tol=1e-9):
                why = "That is the waking up alone: the host also could not launch meanwhile"
            elif math.isclose(said, with_waits - without + sync_us / 1e3, rel_tol=1e-6):
                why = "Without the waits in between there still is one at the end: that of the measurement"
            else:
                why = f"With its waits the call takes {with_waits:.4g} ms, and with the last one alone {without:.4g} ms"
            shown = ", ".join(f"({n}, {ms:.3g})" for n, ms in stretches)
            raise Wrong(f"stretches {shown}, a launch of {launch_us:.3g} µs, {sync_us:.3g} µs to wake up: yours is "
                        f"{said:.4g} ms. {why}")  # fmt: skip
    uneven, even = ([(100, 5.0), (200, 0.5)], [(150, 2.75), (150, 2.75)])
    a, b = (_number(answer(stretches, 20.0, 10.0)) for stretches in (uneven, even))
    return (
        f"one wait between few large kernels and many small ones costs {a:.2f} ms, and between two equal halves of the "
        f"same work {b:.2f} ms. A wait costs what the host could have launched meanwhile"
    )


def _eager_ms(stretches, launch_us, sync_us) -> float:
    return sum(max(n * launch_us / 1e3, kernels) + sync_us / 1e3 for n, kernels in stretches)


@exercise
def bend(answer) -> str:
    draw = random.Random(0)
    cases = [(5.0, {8: 2.0, 16: 4.0}, 1.5), (5.0, {8: 2.5, 16: 4.5}, 1.5), (5.0, {8: 2.5, 32: 8.5}, 1.25)]
    for _ in range(50):
        first, per_sample = draw.uniform(0.1, 1), draw.uniform(0.05, 0.5)
        rows = {batch: first + per_sample * batch for batch in draw.sample((2, 4, 8, 16, 32), 2)}
        cases.append((draw.uniform(8, 20), rows, draw.uniform(1.1, 3)))
    for launches_ms, rows, speedup in cases:
        batch = _number(answer(launches_ms, dict(rows), speedup))
        (b1, k1), (b2, k2) = rows.items()
        kernels = k1 + (k2 - k1) / (b2 - b1) * (batch - b1)
        if kernels <= 0 or not math.isclose(got := max(launches_ms, kernels) / kernels, speedup, rel_tol=1e-3):
            shown = ", ".join(f"batch {b} {k:.3g} ms" for b, k in rows.items())
            then = f"kernels of {kernels:.3g} ms"
            then += f", so a speed-up of {got:.3g}" if kernels > 0 else ", which can't be"
            raise Wrong(f"launches of {launches_ms:.3g} ms, kernels: {shown}; asked is a speed-up of {speedup:.3g}. At "
                        f"batch {batch:.3g}, which is yours, the line through both rows gives {then}")  # fmt: skip
    return (
        "launches of 5 ms, kernels of 2.5 ms at batch 8 and of 4.5 ms at 16: a speed-up of 1.5 at batch "
        f"{_number(answer(5.0, {8: 2.5, 16: 4.5}, 1.5)):.1f}. Two rows are enough as long as the kernels lie on a line"
    )


def _number(said) -> float:
    if isinstance(said, bool) or not isinstance(said, numbers.Real):
        raise Wrong(f"give back a number; yours is a {type(said).__name__}")
    return float(said)


def _shown(kernels) -> str:
    few = ", ".join(f"{ms:g}" for ms in kernels[:3])
    return f"{len(kernels)} kernels of {few}{' ...' if len(kernels) > 3 else ''} ms"
