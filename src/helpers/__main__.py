"""``python -m helpers doctor | run MODEL | compare [MODEL] | check FACTORY | submit [FILE]``.

Exit code 0: fine, 1: a check failed, 2: bad usage.

compare without a model runs the article's table: four models and their levers, modelled at full size, measured small.
check says whether your own model is ready for a graph. submit puts the results of this machine beside those of others.
"""

import argparse
import contextlib
import importlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import ascend_sim

from . import device

# What --help can say without torch. levers.py has the rest.
MODELS = ("genmol", "nucleotide-transformer", "climax", "aurora-stand-in")
LEVERS = ("graph", "task-queue", "task-queue-2", "no-waits", "fused-gelu", "batch")
NOISY = 0.2  # a spread of the runs above this says more about the machine than about the model


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m helpers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what is on this machine, one line per fact")
    run = commands.add_parser("run", help="time a model, three runs")
    run.add_argument("model", metavar="MODEL", choices=MODELS, help=f"one of: {', '.join(MODELS)}")
    run.add_argument("--use-graph", action="store_true", help="capture the model and time its replay")
    compare = commands.add_parser("compare", help="eager and replay, or before and after levers; no model: the table")
    compare.add_argument("model", metavar="MODEL", choices=MODELS, nargs="?", help=f"one of: {', '.join(MODELS)}")
    compare.add_argument(
        "--lever", action="append", dest="levers", choices=LEVERS, metavar="LEVER",
        help=f"change this, and start from the published form: {', '.join(LEVERS)}; may be repeated",
    )  # fmt: skip
    for command in (run, compare):
        command.add_argument("--batch", type=_positive, metavar="N", help="default 1")
        for name in ("width", "tokens", "layers"):
            command.add_argument(f"--{name}", type=_positive, metavar="N", help="default: the model's, see --clock")
        command.add_argument(
            "--clock", choices=("cpu", "paced"), default="cpu",
            help="cpu: a small model on the device that is there (default); paced: at full size, times by a card's "
            "profile, nothing computed",
        )  # fmt: skip
        command.add_argument("--card", default=ascend_sim.CARD, metavar="CARD",
                             help=f"profile, a name or a file; default {ascend_sim.CARD}")  # fmt: skip
        command.add_argument("--json", type=Path, metavar="FILE", help="merge the records into this results file")
    check = commands.add_parser(
        "check", help="is your model ready for a graph?",
        epilog="Exit code 0: ready, 1: not ready, 2: bad usage, or the model fails without any capture.",
    )  # fmt: skip
    check.add_argument(
        "factory", metavar="package.module:factory",
        help="a function without arguments that gives (model, inputs) or (model, inputs, fresh_inputs)",
    )  # fmt: skip
    check.add_argument("--train", action="store_true", help="forward and backward instead of forward")
    check.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    submit = commands.add_parser("submit", help="put the results of this machine into the folder results/")
    submit.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a results file; default build/results.json")
    submit.add_argument("--name", metavar="WORDS", help="what to call this kind of machine, such as 'Atlas 800T A2'")
    args = parser.parse_args(argv)
    if args.command == "doctor":
        return doctor()
    if not device.found("torch"):
        return _fail("torch is not installed: pip install -e '.[npu]' brings the pair that fits together")
    import torch

    from .bench import ResultsError, load_results
    from .capture import CaptureError
    from .levers import LeverError

    if args.command == "check":
        return _check(args)
    try:
        if args.command == "submit":
            return _submit(args)
        if args.json and args.json.exists():
            load_results(args.json)  # a broken file shows before the work, not after it
        if args.command == "compare" and not args.model:
            if args.levers or args.batch or args.width or args.tokens or args.layers or args.clock == "paced":
                parser.error("the table has its own levers, sizes and clocks: name a model to choose them")
            return _table(args)
        return _one_model(parser, args)
    except (device.DeviceError, ascend_sim.LoadError, CaptureError, LeverError, ResultsError, OSError) as error:
        return _fail(error)
    except torch.OutOfMemoryError:
        return _fail(
            "the device is out of memory: take a smaller --width, --tokens or --batch; for the simulated device, "
            "ASCEND_SIM_MEMORY=<GiB> raises its limit"
        )
    except (RuntimeError, ValueError) as error:
        return _fail(device.brief(error))


def _check(args) -> int:
    import torch

    from .check import CheckError, check

    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is not the report
            device.activate(verbose=False)
            model, inputs, fresh = _made_by(args.factory)
            report = check(model, *inputs, fresh=fresh, train=args.train)
    except (device.DeviceError, ascend_sim.LoadError) as error:
        return _fail(error)
    except torch.OutOfMemoryError:
        return _fail("the device is out of memory: let the factory give a smaller model")
    except CheckError as error:
        return _fail(error, 2)
    print(json.dumps(report.to_dict(), indent=1, allow_nan=False) if args.json else report)
    return 0 if report.ready else 1


def _submit(args) -> int:
    from . import gallery
    from .bench import Measurement, load_results

    file = args.file or gallery.ROOT / "build" / "results.json"
    path, new = gallery.submit(file, args.name)
    print(f"{'wrote' if new else 'it is there already:'} {os.path.relpath(path)}")
    records = load_results(file)
    noisy = sum(Measurement(tuple(r["runs_ms"]), repeats=1).spread > NOISY for r in records)
    if noisy:
        print(f"noisy: the runs of {noisy} of {len(records)} records differ by over {NOISY:.0%}. Other programs used "
              "the cores: delete the file, measure again (`make run`), and submit that")  # fmt: skip
    elif new:
        print("look through it, and send it as a pull request with that one file")
    return 0


def _made_by(name: str) -> tuple:
    """Model, inputs and fresh inputs (or None) of a factory. Raises CheckError."""
    from .check import CheckError

    module, _, function = name.partition(":")
    if not function:
        raise CheckError(f"{name!r} is not of the form package.module:factory")
    try:
        made = getattr(importlib.import_module(module), function)()
    except ModuleNotFoundError as error:
        where = "in the current folder and in PYTHONPATH; a module is named as in an import, not as a file"
        raise CheckError(f"{name}: {error}: it is looked for {where}") from None
    except (Exception, SystemExit) as error:  # whatever the user's code raises; an exit would look like an answer
        raise CheckError(f"{name}: {type(error).__name__}: {device.brief(error)}") from None
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise CheckError(f"{name} gave {_shape_of(made)}, expected (model, inputs) or (model, inputs, fresh_inputs)")
    model, *both = made
    both = [x if isinstance(x, (tuple, list)) else (x,) for x in both]
    return model, both[0], both[1] if len(both) == 2 else None


def _shape_of(made) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(x).__name__ for x in made)})"
    return f"a {type(made).__name__}"


def _table(args) -> int:
    from . import levers

    print(_device_alone())
    modelled, measured = (levers.gains(full=full, card=args.card) for full in (True, False))
    print("\n" + levers.table(modelled, measured))
    _write(args, [record for gain in modelled + measured for record in gain.records()])
    return 0


def _one_model(parser, args) -> int:
    from . import levers

    workload, full = levers.WORKLOADS[args.model], args.clock == "paced"
    chosen = {name: getattr(args, name) for name in ("width", "tokens", "layers") if getattr(args, name)}
    shape = workload.full if full else workload.small
    if unknown := [name for name in chosen if name not in shape]:
        parser.error(f"{args.model} has no --{unknown[0]}; it has {', '.join(shape)}")
    try:
        ascend_sim.Card.load(args.card)
        if full or args.command == "compare" and args.levers:
            return _in_processes(args, chosen)
        # What is timed eager is what is replayed.
        setting = levers.capturable(args.model, batch=args.batch or 1)
        model = workload.make(setting, **shape | chosen)
        workload.inputs(model, setting.batch, **shape | chosen)
    except (ValueError, ascend_sim.CardError) as error:
        parser.error(str(error))
    return _in_this_process(args, model, shape | chosen)


def _in_processes(args, chosen) -> int:
    """Full size, or with levers: each setting in a process at its task queue."""
    from . import bench, levers

    print(_device_alone())
    full, batch = args.clock == "paced", args.batch or 1
    if args.command == "run":
        setting = levers.capturable(args.model, graph=args.use_graph, tqe=device.task_queue(), batch=batch)
        shape = levers.WORKLOADS[args.model].full | chosen
        job = levers.Job(args.model, setting, tuple(shape.items()), args.card)
        run, _ = levers.run_all([job])[job]
        print(f"modelled    {run}")
        mode = "graph" if args.use_graph else "eager"
        records = [bench.record(model=args.model, mode=mode, batch=batch, shape=shape, tqe=setting.tqe, clock="paced",
                                measurement=run, kernels=run.kernels)]  # fmt: skip
    else:
        before = levers.Setting(batch=batch)
        if not args.levers:
            before = levers.capturable(args.model, tqe=device.task_queue(), batch=batch)
        case = levers.Case(args.model, tuple(args.levers or ["graph"]), before)
        (gain,) = levers.gains([case], full=full, card=args.card, **chosen)
        print(gain)
        records = gain.records()
    _write(args, records)
    return 0


def _device_alone() -> str:
    """Without the task queue of this process: each setting has its own."""
    return str(device.activate(verbose=False)).partition("\ntask queue")[0]


def _in_this_process(args, model, shape) -> int:
    import torch

    from .bench import compare, measure, record
    from .capture import capture
    from .levers import WORKLOADS

    print(device.activate(verbose=False))
    batch = args.batch or 1
    print(f"model       {args.model} {shape}, batch {batch}")
    model, make_inputs = model.to("npu"), WORKLOADS[args.model].inputs
    inputs = make_inputs(model, batch, seed=0, **shape)
    ok = True
    with torch.no_grad():
        if args.command == "compare":
            result = compare(model, *inputs, fresh=make_inputs(model, batch, seed=1, **shape))
            print(result)
            spread = max(result.eager.spread, result.graph.spread)
            records = result.records(args.model, batch, shape)
            ok = result.lossless
            if not ok:
                print("[FAIL] a replay does not give what eager gives")
        else:
            if args.use_graph:
                captured = capture(model, *inputs)
                fn = captured.graph.replay
            else:
                inputs = [x.to("npu") for x in inputs]
                fn = lambda: model(*inputs)  # noqa: E731
            result = measure(fn)
            mode = "graph" if args.use_graph else "eager"
            print(f"{mode:<12}{result}")
            spread = result.spread
            records = [record(model=args.model, mode=mode, batch=batch, shape=shape, measurement=result)]
    if spread > NOISY:
        print("noisy       other programs use the cores; run it again")
    _write(args, records)
    return 0 if ok else 1


def _write(args, records) -> None:
    if args.json:
        from .bench import add_results

        add_results(args.json, records)
        print(f"wrote       {args.json}")


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


def _fail(error, code: int = 1) -> int:
    print(f"helpers: {error}", file=sys.stderr)
    return code


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
