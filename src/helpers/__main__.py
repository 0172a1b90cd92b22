"""``python -m helpers doctor | run MODEL | compare [MODEL]``. Exit code 0: fine, 1: a check failed, 2: bad usage.

compare without a model runs the article's table: four models and their levers, modelled at full size, measured small.
"""

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import ascend_sim

from . import device

# The models, and how many layers each has by default: as many as the original.
LAYERS = {"genmol": 12, "nucleotide-transformer": 24, "climax": 8, "aurora-stand-in": 8}
SIZES = {"batch": 1, "width": 64, "tokens": 16}
CARD = "ascend_910b2"
NOISY = 0.2  # a spread of the runs above this says more about the machine than about the model


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m helpers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what is on this machine, one line per fact")
    for name, text in (
        ("run", "time a model, three runs"),
        ("compare", "eager x3, replay x3, and are they equal; with levers: before and after; no model: the table"),
    ):
        command = commands.add_parser(name, help=text)
        several = dict(nargs="?") if name == "compare" else {}
        command.add_argument("model", metavar="MODEL", choices=LAYERS, help=f"one of: {', '.join(LAYERS)}", **several)
        for option, default in SIZES.items():
            command.add_argument(f"--{option}", type=_positive, metavar="N", help=f"default {default}")
        command.add_argument("--layers", type=_positive, metavar="N", help="default: as many as the original has")
        command.add_argument("--json", type=Path, metavar="FILE", help="merge the records into this results file")
        if name == "run":
            command.add_argument("--use-graph", action="store_true", help="capture the model and time its replay")
        else:
            command.add_argument(
                "--lever", action="append", dest="levers", metavar="LEVER",
                help="graph, task-queue, task-queue-2, no-waits, fused-gelu or batch; may be repeated",
            )  # fmt: skip
            command.add_argument(
                "--modelled", action="store_true", help="with levers: at full size on the paced clock, not computed"
            )
            command.add_argument(
                "--card", default=CARD, metavar="CARD", help=f"profile for the paced clock, a name or a file: {CARD}"
            )
    args = parser.parse_args(argv)
    if args.command == "doctor":
        return doctor()
    if not device.found("torch"):
        return _fail("torch is not installed: pip install -e '.[npu]' brings the pair that fits together")
    import torch

    from .bench import ResultsError
    from .capture import CaptureError

    if args.command == "compare" and (args.levers or not args.model):
        try:
            return _compare_levers(args)
        except ascend_sim.CardError as error:
            parser.error(str(error))
    if args.command == "compare" and args.modelled:
        parser.error("--modelled needs a --lever, or no model")
    for option, default in (SIZES | {"layers": LAYERS[args.model]}).items():
        setattr(args, option, getattr(args, option) or default)
    try:
        model, shape, inputs = _workload(args)
        inputs(seed=0)
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:  # the machine's memory, for one
        return _fail(device.brief(error))
    try:
        return _time(args, model, shape, inputs)
    except (device.DeviceError, ascend_sim.LoadError, CaptureError, ResultsError, OSError) as error:
        return _fail(error)
    except torch.OutOfMemoryError:
        return _fail(
            "the device is out of memory: take a smaller --width, --tokens or --batch; for the simulated device, "
            "ASCEND_SIM_MEMORY=<GiB> raises its limit"
        )
    except RuntimeError as error:
        return _fail(device.brief(error))


def _workload(args):
    """The model in a form that captures, its shape for the records, and a function that makes its inputs."""
    from functools import partial

    from . import models

    shape = {"width": args.width, "layers": args.layers}
    if args.model in ("genmol", "nucleotide-transformer"):
        make = models.genmol if args.model == "genmol" else models.nucleotide_transformer
        model = make(args.width, args.layers)
        return model, shape | {"tokens": args.tokens}, partial(model.inputs, args.batch, args.tokens)
    rows, columns = size = (16, 32)  # the grid: --tokens is for models of text
    if args.model == "climax":
        model = models.climax(args.width, args.layers, size=size, device_index=False)
    else:
        model = models.aurora_stand_in(args.width, [args.layers] * 3, size=size, levels=(100, 500, 850), guards=False)
    return model, shape | {"rows": rows, "columns": columns}, partial(model.inputs, args.batch)


def _compare_levers(args) -> int:
    from . import levers
    from .bench import ResultsError, add_results, load_results

    try:
        if args.json and args.json.exists():
            load_results(args.json)
        print(device.activate(verbose=False))
        if not args.model:
            modelled, measured = (levers.gains(full=full, card=args.card) for full in (True, False))
            print("\n" + levers.table(modelled, measured))
            found = modelled + measured
        else:
            case = levers.Case(args.model, tuple(args.levers), levers.Setting(batch=args.batch or 1))
            sizes = {name: getattr(args, name) for name in ("width", "tokens", "layers") if getattr(args, name)}
            found = levers.gains([case], full=args.modelled, card=args.card, **sizes)
            print(*found, sep="\n")
        if args.json:
            add_results(args.json, [record for gain in found for record in gain.records()])
            print(f"wrote       {args.json}")
    except (device.DeviceError, ascend_sim.LoadError, ResultsError, levers.LeverError, OSError, ValueError) as error:
        if isinstance(error, ascend_sim.CardError):
            raise
        return _fail(error)
    return 0


def _time(args, model, shape, make_inputs) -> int:
    import torch

    from .bench import add_results, compare, load_results, measure, record
    from .capture import capture

    if args.json and args.json.exists():
        load_results(args.json)  # a broken file shows before the work, not after it
    print(device.activate(verbose=False))
    print(f"model       {args.model} {shape}, batch {args.batch}")
    model, inputs = model.to("npu"), make_inputs(seed=0)
    ok = True
    with torch.no_grad():
        if args.command == "compare":
            result = compare(model, *inputs, fresh=make_inputs(seed=1))
            print(result)
            spread = max(result.eager.spread, result.graph.spread)
            records = result.records(args.model, args.batch, shape)
            ok = result.lossless
            if not ok:
                print("[FAIL] a replay does not give what eager gives")
        else:
            if args.use_graph:
                fn = capture(model, *inputs).graph.replay
            else:
                inputs = [x.to("npu") for x in inputs]
                fn = lambda: model(*inputs)  # noqa: E731
            result = measure(fn)
            mode = "graph" if args.use_graph else "eager"
            print(f"{mode:<12}{result}")
            spread = result.spread
            records = [record(model=args.model, mode=mode, batch=args.batch, shape=shape, measurement=result)]
    if spread > NOISY:
        print("noisy       other programs use the cores; run it again")
    if args.json:
        add_results(args.json, records)
        print(f"wrote       {args.json}")
    return 0 if ok else 1


def doctor() -> int:
    """Print one line per fact. 1 if something that the course needs is missing."""
    failed = False
    for level, text in _facts():
        print(f"[{level}] {text}", flush=True)
        failed |= level == "FAIL"
    return int(failed)


def _facts() -> Iterator[tuple[str, str]]:
    fits = sys.version_info >= (3, 10) and sys.platform == "linux"
    yield "OK" if fits else "FAIL", f"Python {platform.python_version()} on {platform.system()} (3.10+ on Linux needed)"
    named = os.environ.get("CXX", "").split()[:1]  # it may carry options; without it, what ascend_sim takes
    compiler = next(filter(None, map(shutil.which, named or ("g++", "c++"))), None)
    if compiler:
        yield "OK", f"C++ compiler {compiler}"
    else:
        what = f"CXX names {named[0]}, which is not there" if named else "none (apt install g++)"
        yield "WARN", f"C++ compiler: {what}; only a real NPU, or a device compiled before, works without"
    for name in ("torch", "torch_npu"):
        try:
            yield "OK" if device.found(name) else "FAIL", f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield "FAIL", f"{name} is not installed: pip install -e '.[npu]'"
    try:
        here = device.activate(verbose=False)
    except Exception as error:  # whatever it is, the doctor says it in one line
        yield "FAIL", f"device: {device.brief(error)}"
        return
    real = here.kind == "ascend"
    yield "OK" if real else "WARN", f"CANN {here.cann}" if real else "CANN: none, so the device is simulated"
    yield "OK", f"device: {here.kind} ({here.why})"
    queue = f"TASK_QUEUE_ENABLE={here.tqe} ({here.tqe_why})"
    if here.tqe == 2:
        yield "FAIL", f"{queue}: torch_npu refuses to capture with 2; set TASK_QUEUE_ENABLE=1 (or 0) and run this again"
        return
    yield "OK", queue
    try:
        yield _captures()
    except Exception as error:
        yield "FAIL", f"capture and replay: {device.brief(error)}"


def _captures() -> tuple[str, str]:
    import torch

    from .capture import capture

    add = capture(lambda x: x + 1, torch.zeros(4))
    equal = torch.equal(add(torch.arange(4.0)).cpu(), torch.arange(4.0) + 1)
    return "OK" if equal else "FAIL", f"capture and replay: {'exact' if equal else 'a wrong result'}"


def _fail(error) -> int:
    print(f"helpers: {error}", file=sys.stderr)
    return 1


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return int(text)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("helpers: interrupted; the next run goes on from here", file=sys.stderr)
        sys.exit(130)
