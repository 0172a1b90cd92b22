"""Eager against replay on the device, beside three ways to run the same model on the CPU alone. One thread each.

``python benchmarks/replay.py [--sizes 64x16x1 ...] [--json]``. Sizes are width x tokens x batch. Every way runs in
turn, three times, so that a drift of the machine meets all of them; a number is the median of three runs, and a run's
is the median of its calls. With ``--json`` standard output is a list of records and nothing else.
"""

import argparse
import json
import os
import statistics
import sys
import warnings

# Notebooks run at 0 too, and the article measured both sides at 0. Set it to 1 for torch_npu's default in a script.
os.environ.setdefault("TASK_QUEUE_ENABLE", "0")

import helpers
from helpers import bench
from helpers.models import genmol, sample_inputs

import torch

SIZES = ("32x16x1", "64x16x1", "128x16x1", "256x16x1", "256x32x8")


def size(text: str) -> tuple[int, int, int]:
    try:
        width, tokens, batch = map(int, text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not WIDTHxTOKENSxBATCH, such as 64x16x1") from None
    if min(width, tokens, batch) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has a number below 1")
    return width, tokens, batch


def measure(width: int, tokens: int, batch: int, layers: int, seconds: float) -> dict:
    """One record: times in ms, ``kernels`` in a replay and the sum of their times, differences of the outputs."""
    model = genmol(width, layers)
    inputs = sample_inputs(model, batch, tokens)
    other = sample_inputs(model, batch, tokens, seed=1)
    traced = torch.jit.freeze(torch.jit.trace(model, inputs))
    compiled = torch.compile(model)
    on_device = genmol(width, layers).to("npu")
    captured = helpers.capture(on_device, *inputs)
    ways = {
        "eager_ms": lambda: on_device(*captured.inputs),
        "replay_ms": captured.graph.replay,
        "cpu_eager_ms": lambda: model(*inputs),
        "torchscript_ms": lambda: traced(*inputs),
        "compile_ms": lambda: compiled(*inputs),
    }
    runs: dict[str, list[float]] = {way: [] for way in ways}
    repeats = {way: bench.measure(fn, runs=1, seconds=seconds).repeats for way, fn in ways.items()}
    for _ in range(3):
        for way, fn in ways.items():
            runs[way].append(bench.measure(fn, repeats[way], runs=1, warmup=1).median_ms)
    kernels, kernels_ms = bench.kernel_times(captured.graph.replay)
    expected = on_device(*(x.to("npu") for x in other))
    cosine, max_abs = bench.difference(expected, captured(*other))
    return {
        "width": width,
        "tokens": tokens,
        "batch": batch,
        "kernels": kernels,
        **{way: statistics.median(times) for way, times in runs.items()},
        "kernels_ms": kernels_ms,
        "max_abs": max_abs,
        "cosine": cosine,
        "cpu_max_abs": bench.difference(model(*other), captured.outputs)[1],
        "torchscript_max_abs": bench.difference(model(*other), traced(*other))[1],
        "compile_max_abs": bench.difference(model(*other), compiled(*other))[1],
    }


COLUMNS = (  # heading, width, what
    ("width x tokens x batch", 22, lambda r: f"{r['width']} x {r['tokens']} x {r['batch']}"),
    ("kernels", 8, lambda r: "-" if r["kernels"] is None else r["kernels"]),
    ("eager", 8, lambda r: f"{r['eager_ms']:.2f}"),
    ("replay", 8, lambda r: f"{r['replay_ms']:.2f}"),
    ("ratio", 6, lambda r: f"{r['eager_ms'] / r['replay_ms']:.2f}"),
    ("in kernels", 11, lambda r: "-" if r["kernels_ms"] is None else f"{r['kernels_ms']:.2f}"),
    ("CPU eager", 10, lambda r: f"{r['cpu_eager_ms']:.2f}"),
    ("TorchScript", 12, lambda r: f"{r['torchscript_ms']:.2f}"),
    ("compile", 8, lambda r: f"{r['compile_ms']:.2f}"),
    ("max_abs", 8, lambda r: r["max_abs"]),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=size, nargs="+", default=[size(s) for s in SIZES], metavar="WxTxB")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one run (default 0.5)")
    parser.add_argument("--json", action="store_true", help="print a list of records")
    args = parser.parse_args()
    try:
        here = helpers.activate(verbose=False)
    except RuntimeError as error:
        print(f"replay.py: {error}", file=sys.stderr)
        return 1
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of TorchScript
    warnings.filterwarnings("ignore", message="triton-ascend is not installed")  # for compiling to the NPU only
    table = sys.stderr if args.json else sys.stdout
    print(here, file=table)
    print(f"times in ms, {here.source}; CPU columns: torch on this machine's CPU, one thread\n", file=table)
    print("".join(f"{heading:>{width}}" for heading, width, _ in COLUMNS), file=table, flush=True)
    records = []
    with torch.no_grad():
        for chosen in args.sizes:
            try:
                records.append(measure(*chosen, args.layers, args.seconds))
            except ValueError as error:  # of the model: its width, its tokens
                parser.error(str(error))
            print("".join(f"{what(records[-1]):>{w}}" for _, w, what in COLUMNS), file=table, flush=True)
    if args.json:
        print(json.dumps(records, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
