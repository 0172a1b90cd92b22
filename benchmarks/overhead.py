"""What the simulated device itself costs, on a model whose kernels are so small that it would show.

``python benchmarks/overhead.py [--size 64x16x1] [--layers 12] [--rounds 9]``. The ways run in turn, a round is the
median of its calls, and a figure is the median over the rounds of the ratio within a round. Exit code 1 if a figure is
out of its bound.

    kernels / replay   sum of the kernels' times by a replay's: the rest is what the device adds
    traced / replay    a replay while its kernels are traced, by one without
    eager / dispatch   a forward, by the same forward on a stream that drops its work: torch_npu's dispatch alone
"""

import argparse
import ctypes
import os
import statistics
import sys

os.environ.setdefault("TASK_QUEUE_ENABLE", "0")

import ascend_sim
import helpers
from helpers import bench
from helpers.models import genmol, sample_inputs

import torch
from replay import size

CALLS = 40


def median_ms(fn) -> float:
    return bench.measure(fn, repeats=CALLS, runs=1, warmup=2).median_ms


def dropping_stream():
    """A stream that takes work and never runs it: the device has destroyed it."""
    stream = torch.npu.Stream()
    torch.npu.synchronize()
    ctypes.CDLL("libascendcl.so").aclrtDestroyStreamForce(ctypes.c_void_p(stream.npu_stream))
    return stream


def measure(width: int, tokens: int, batch: int, layers: int, rounds: int) -> dict[str, list[float]]:
    """The three ratios, one of each for a round."""
    model = genmol(width, layers).to("npu")
    inputs = [x.to("npu") for x in sample_inputs(model, batch, tokens)]
    captured = helpers.capture(model, *inputs)
    dropping = dropping_stream()
    ratios: dict[str, list[float]] = {"kernels / replay": [], "traced / replay": [], "eager / dispatch": []}
    for _ in range(rounds):
        replay = median_ms(captured.graph.replay)
        with ascend_sim.trace():
            traced = median_ms(captured.graph.replay)
        _, kernels = bench.kernel_times(captured.graph.replay, runs=CALLS)
        eager = median_ms(lambda: model(*inputs))
        with torch.npu.stream(dropping):
            dispatch = median_ms(lambda: model(*inputs))
        ratios["kernels / replay"].append(kernels / traced)
        ratios["traced / replay"].append(traced / replay)
        ratios["eager / dispatch"].append(eager / dispatch)
    return ratios


BOUNDS = {
    "kernels / replay": (">=", 0.85),
    "traced / replay": ("<=", 1.03),
    "eager / dispatch": ("<=", 1.05),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size, default=size("64x16x1"), metavar="WxTxB")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, choices=range(1, 100), default=9, metavar="N")
    args = parser.parse_args()
    try:
        here = helpers.activate(verbose=False)
    except RuntimeError as error:
        print(f"overhead.py: {error}", file=sys.stderr)
        return 1
    if here.kind != "simulated":
        print("overhead.py: this measures the simulated device, and a real CANN is in use", file=sys.stderr)
        return 1
    print(f"{here}\n{'figure':<20}{'median':>8}{'lowest':>8}{'highest':>9}  bound")
    missed = False
    with torch.no_grad():
        try:
            ratios = measure(*args.size, args.layers, args.rounds)
        except ValueError as error:  # of the model: its width, its tokens
            parser.error(str(error))
    for name, values in ratios.items():
        relation, bound = BOUNDS[name]
        middle = statistics.median(values)
        holds = middle >= bound if relation == ">=" else middle <= bound
        missed |= not holds
        print(
            f"{name:<20}{middle:>8.3f}{min(values):>8.3f}{max(values):>9.3f}  {relation} {bound}"
            + ("" if holds else "  missed")
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
