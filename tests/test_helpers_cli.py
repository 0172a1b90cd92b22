"""python -m helpers: what the commands print, and their exit codes (0 fine, 1 a check failed, 2 bad usage)."""

import json
import re
import subprocess
import sys
from pathlib import Path

from helpers import __main__, bench  # before torch
from helpers.bench import load_results

import pytest
from processes import BLOCK, _options, helpers, last_line, python

SMALL = ("genmol", "--width", "32", "--layers", "1", "--tokens", "4")
ROOT = Path(__file__).resolve().parent.parent
MAIN = "import runpy, sys; sys.argv = ['helpers', {args}]; runpy.run_module('helpers', run_name='__main__')"


def blocked(names, *args):
    """python -m helpers where some packages cannot be found."""
    return python(BLOCK.format(names=names) + MAIN.format(args=", ".join(map(repr, args))))


def test_doctor_says_one_line_per_fact():
    done = helpers("doctor")
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert all(line.startswith(("[OK] ", "[WARN] ")) for line in lines)
    for fact in ("Python", "C++ compiler", "torch ", "torch_npu ", "CANN", "device: ", "TASK_QUEUE_ENABLE=1"):
        assert any(fact in line for line in lines), fact
    assert "[OK] capture and replay: exact" in lines


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"torch_npu"}, "[FAIL] device: torch_npu is not installed: pip install"),
        ({"torch", "torch_npu"}, "[FAIL] device: torch is not installed: pip install"),
    ],
)
def test_doctor_without_a_package(names, says):
    done = blocked(names, "doctor")
    assert done.returncode == 1
    assert says in done.stdout and "Traceback" not in done.stderr
    assert sum(line.startswith("[FAIL]") for line in done.stdout.splitlines()) == 1 + len(names)


def test_doctor_without_a_compiler(tmp_path):
    done = helpers("doctor", PATH=str(tmp_path), CXX="", ASCEND_SIM_CACHE=str(tmp_path / "cache"))
    assert "Traceback" not in done.stderr
    if "CANN: none" in done.stdout or "[FAIL] device" in done.stdout:  # a real NPU needs no compiler
        assert done.returncode == 1
        assert "[WARN] C++ compiler: none" in done.stdout
        assert [line for line in done.stdout.splitlines() if line.startswith("[FAIL]")][0].startswith("[FAIL] device: ")


def test_doctor_fails_at_the_task_queue_that_cannot_capture():
    """Exit code 0 promises that a captured graph replays."""
    done = helpers("doctor", TASK_QUEUE_ENABLE="2")
    assert done.returncode == 1, done.stdout
    (failed,) = [line for line in done.stdout.splitlines() if line.startswith("[FAIL]")]
    assert failed.startswith("[FAIL] TASK_QUEUE_ENABLE=2 (from the environment): torch_npu refuses to capture with 2")
    assert "set TASK_QUEUE_ENABLE=1" in failed


def test_run_and_compare_write_their_records(tmp_path):
    path = tmp_path / "build" / "results.json"
    for args in (("run", *SMALL), ("run", *SMALL, "--use-graph"), ("compare", *SMALL, "--batch", "2")):
        done = helpers(*args, "--json", str(path))
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert "ms, median of" in done.stdout and "device " in done.stdout
    shape = {"width": 32, "layers": 1, "tokens": 4}
    records = load_results(path)
    assert [(r["mode"], r["batch"], r["shape"]) for r in records] == [
        ("eager", 1, shape),
        ("graph", 1, shape),
        ("eager", 2, shape),
        ("graph", 2, shape),
    ]
    compared = records[-1]
    assert (compared["cosine"], compared["max_abs"]) == (1.0, 0.0) and compared["speedup"] > 0
    assert records[0]["tqe"] == 1, "a script has torch_npu's default"


def test_compare_fails_when_a_replay_is_not_eager():
    """The weights change under the graph, between its capture and the check."""
    code = """
    import helpers, torch
    from helpers import bench, __main__
    real = bench._check
    def check(fn, captured, fresh):
        return real(lambda *x: fn(*x) + 1, captured, fresh)
    bench._check = check
    raise SystemExit(__main__.main(["compare", "genmol", "--width", "32", "--layers", "1", "--tokens", "4"]))
    """
    done = python("\n".join(line.strip(" ") if "return" not in line else line for line in code.splitlines()))
    assert done.returncode == 1, done.stderr
    assert "[FAIL] a replay does not give what eager gives" in done.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "required: command"),
        (("run", "bert"), "invalid choice: 'bert' (choose from"),
        (("run", "genmol", "--batch", "0"), "argument --batch: 0 is not a positive whole number"),
        (("run", "genmol", "--width", "wide"), "argument --width: wide is not a positive whole number"),
        (("run", "genmol", "--width", "30"), "width 30 is not a multiple of 4 heads"),
        (
            ("compare", "genmol", "--tokens", "300", "--width", "32", "--layers", "1"),
            "300 tokens, but the model has 256",
        ),
        (("compare", "genmol", "--use-graph"), "unrecognized arguments: --use-graph"),
        (("run", "genmol", "--clock", "slow"), "invalid choice: 'slow' (choose from"),
        (("run", "genmol", "--clock", "paced", "--card", "ascend_1"), "no profile of a card 'ascend_1'"),
        (("compare", "climax", "--tokens", "4"), "climax has no --tokens; it has width, layers, rows, columns"),
        (("compare", "climax", "--lever", "crowbar"), "invalid choice: 'crowbar' (choose from"),
        (("compare", "genmol", "--lever", "no-waits"), "genmol has nothing for the lever no-waits"),
    ],
)
def test_bad_usage(args, says, capsys):
    with pytest.raises(SystemExit) as stop:
        __main__.main(list(args))
    assert stop.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "env", "says"),
    [
        (("run", *SMALL), {"TASK_QUEUE_ENABLE": "7"}, "helpers: TASK_QUEUE_ENABLE='7': torch_npu takes 0, 1 or 2"),
        (
            ("compare", *SMALL),
            {"TASK_QUEUE_ENABLE": "2"},
            "helpers: the function cannot be captured (start the process",
        ),
    ],
)
def test_a_failure_is_one_line(args, env, says):
    done = helpers(*args, **env)
    assert done.returncode == 1
    assert done.stderr.startswith(says) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "compare"])
def test_out_of_memory_names_what_to_set(command):
    done = helpers(command, "genmol", "--width", "256", ASCEND_SIM_MEMORY="0.01")
    assert done.returncode == 1, done.stdout
    assert last_line(done).startswith("helpers: the device is out of memory") and "Traceback" not in done.stderr
    assert "ASCEND_SIM_MEMORY=<GiB>" in done.stderr


@pytest.mark.parametrize(("runs_ms", "noisy"), [((1.0, 1.1, 1.15), False), ((1.0, 1.1, 1.4), True)])
def test_run_says_when_its_times_are_noisy(runs_ms, noisy, monkeypatch, capsys):
    monkeypatch.setattr(bench, "measure", lambda fn: bench.Measurement(runs_ms, 1))
    assert __main__.main(["run", *SMALL]) == 0
    assert ("other programs use the cores; run it again" in capsys.readouterr().out) == noisy


def test_eager_runs_with_the_task_queue_that_cannot_capture():
    assert helpers("run", *SMALL, TASK_QUEUE_ENABLE="2").returncode == 0


@pytest.mark.parametrize("names", [{"torch"}, {"torch_npu"}])
def test_run_without_a_package_is_one_line(names):
    done = blocked(names, "run", *SMALL)
    assert done.returncode == 1
    assert (
        done.stderr.startswith(f"helpers: {max(names)} is not installed: pip install") and done.stderr.count("\n") == 1
    )


def test_a_broken_results_file_is_found_before_the_work(tmp_path):
    path = tmp_path / "results.json"
    path.write_text('[{"model": "gen')
    done = helpers("run", *SMALL, "--json", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"helpers: {path}: not valid JSON") and done.stderr.count("\n") == 1
    assert path.read_text() == '[{"model": "gen'


@pytest.mark.parametrize("model", ["nucleotide-transformer", "climax", "aurora-stand-in"])
def test_compare_knows_the_other_models_in_a_form_that_captures(model, tmp_path):
    path = tmp_path / "results.json"
    done = helpers("compare", model, "--width", "32", "--layers", "2", "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert "max_abs 0.0" in done.stdout
    eager, graph = load_results(path)
    assert (eager["model"], eager["mode"], graph["mode"], graph["shape"]["layers"]) == (model, "eager", "graph", 2)


def benchmark(name, *args):
    return subprocess.run([sys.executable, ROOT / "benchmarks" / f"{name}.py", *args], **_options({}))


def test_the_benchmark_prints_records():
    done = benchmark("replay", "--json", "--sizes", "32x4x1", "--layers", "1", "--seconds", "0.02")
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)
    keys = "width tokens batch kernels eager_ms replay_ms kernels_ms cpu_eager_ms torchscript_ms compile_ms max_abs"
    assert set(keys.split()) <= set(record)
    assert (record["width"], record["tokens"], record["batch"], record["max_abs"]) == (32, 4, 1, 0.0)
    assert all(record[key] > 0 for key in keys.split() if key.endswith("_ms") and record[key] is not None)


def test_the_benchmark_refuses_a_size_that_is_none():
    done = benchmark("replay", "--sizes", "64x16")
    assert done.returncode == 2
    assert "'64x16' is not WIDTHxTOKENSxBATCH" in done.stderr


def test_the_benchmark_of_the_overhead_compares_each_figure_with_its_bound():
    done = benchmark("overhead", "--size", "32x4x1", "--layers", "1", "--rounds", "1")
    figures = re.findall(r"^(\w+ / \w+) +([\d.]+) .*([<>]=) ([\d.]+)( +missed)?$", done.stdout, re.M)
    assert [name for name, *_ in figures] == ["kernels / replay", "traced / replay", "eager / dispatch"], done.stderr
    for _, median, relation, bound, missed in figures:
        inside = float(median) >= float(bound) if relation == ">=" else float(median) <= float(bound)
        assert inside == (not missed)
    assert done.returncode == any(missed for *_, missed in figures)
