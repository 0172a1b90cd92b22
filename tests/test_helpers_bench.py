"""helpers.bench: times that wait for the device, an honest comparison, a results file that is never half-written."""

import dataclasses
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time

import ascend_sim
import helpers
from helpers import bench
from helpers.bench import Comparison, Measurement, ResultsError, add_results, load_results
from helpers.capture import Seconds

import pytest
import torch

here = helpers.activate(verbose=False)
simulated = pytest.mark.skipif(here.kind == "ascend", reason="a replay is one opaque task on an Ascend")

pytestmark = pytest.mark.timed


@pytest.fixture(scope="module")
def layer():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16)).to("npu")


# ---- measure


def test_measure_calls_as_often_as_it_says():
    calls = itertools.count()
    measured = helpers.measure(lambda: next(calls), repeats=7, runs=3, warmup=4)
    assert next(calls) == 4 + 3 * 7
    assert (len(measured.runs_ms), measured.repeats) == (3, 7)


def test_measure_fits_a_run_into_the_time_it_has():
    measured = helpers.measure(lambda: time.sleep(0.01), runs=1, warmup=1, seconds=0.1)
    assert 5 <= measured.repeats <= 10
    assert helpers.measure(lambda: time.sleep(0.01), runs=1, warmup=1, seconds=0.001).repeats == 3


def test_measure_waits_for_the_device():
    x = torch.randn(600, 600).npu()

    def launch():
        return x @ x

    def launch_ms():
        start = time.perf_counter()
        launch()
        return (time.perf_counter() - start) * 1e3

    measured = helpers.measure(launch, repeats=5)
    torch.npu.synchronize()
    assert measured.median_ms > 3 * min(launch_ms() for _ in range(5)), "that is the time of the launch"


def test_median_and_spread():
    measured = Measurement((1.0, 4.0, 2.0), repeats=3)
    assert measured.median_ms == 2
    assert measured.spread == 1.5
    assert "2.000 ms" in str(measured) and "150%" in str(measured)


# ---- compare


def test_compare_measures_both_and_finds_them_equal(layer):
    result = helpers.compare(layer, torch.randn(2, 16), seconds=0.02)
    assert result.lossless and result.max_abs == 0 and result.cosine == 1
    assert len(result.eager.runs_ms) == len(result.graph.runs_ms) == 3
    assert result.speedup == result.eager.median_ms / result.graph.median_ms
    assert result.cost_ms > 0


@simulated
def test_compare_counts_kernels(layer):
    result = helpers.compare(layer, torch.randn(2, 16), seconds=0.02)
    assert result.kernels == 3
    assert result.kernels_ms > 0
    twice = helpers.compare(lambda x: layer(layer(x)), torch.randn(2, 16), seconds=0.02)
    assert twice.kernels == 6


@simulated
def test_kernel_spans_are_those_of_the_least_disturbed_try(layer):
    x, calls = torch.randn(2, 16, device="npu"), itertools.count()

    def slow_at_first():
        for _ in range(50 if next(calls) == 0 else 1):
            layer(x)

    assert [span.name for span in bench.kernel_spans(slow_at_first, tries=3)] == [
        "aclnnAddmm",
        "aclnnGelu",
        "aclnnAddmm",
    ]


@simulated
def test_a_launch_costs_the_host_what_a_slow_card_makes_it_cost(layer):
    x = torch.randn(3, 16, device="npu")
    card = ascend_sim.Card.load()
    slow = dataclasses.replace(card, launch_us=ascend_sim.pacing.Constant(500.0, 500.0, 500.0, "a slow host"))
    with ascend_sim.paced(slow), torch.no_grad():
        assert 500 < bench.launch_us(lambda: layer(x)) < 1000


def test_a_timeline_without_gaps_is_said_to_be_disturbed(capsys):
    def spans(n, host, kernel, first=0.0):
        out, free = [], first
        for i in range(n):
            start = max(free, i * host + 1e-6)
            out.append(ascend_sim.Span(0, "aclnnAdd", i * host, start, free := start + kernel))
        return out

    beside = spans(100, 15e-6, 4e-6)
    late = spans(100, 15e-6, 4e-6, first=100 * 15e-6)  # the device got a core after all launches
    replay = [span._replace(enqueued=0.0) for span in beside]
    assert (bench.side_by_side(beside), bench.side_by_side(late), bench.side_by_side(replay)) == (1, 0, 1)
    for quiet in (beside, replay):
        bench.say_if_disturbed(quiet)
    assert capsys.readouterr().out == ""
    for busy in (late, spans(100, 15e-6, 40e-6), spans(100, 15e-6, 12e-6)):
        bench.say_if_disturbed(busy)
        assert capsys.readouterr().out.startswith("other programs use the cores: ")


def test_compare_catches_a_frozen_scalar():
    """Python runs at capture only. Eager sees a new number in every call, a replay the one of the capture."""
    scale = itertools.count(1)
    result = helpers.compare(lambda x: x * next(scale), torch.randn(8), seconds=0.02)
    assert not result.lossless
    assert result.max_abs > 0


def test_compare_refuses_a_check_that_proves_nothing(layer):
    with pytest.raises(ValueError, match="pass others as fresh="):
        helpers.compare(layer, torch.ones(2, 16), seconds=0.02)  # any order of ones is the same
    assert helpers.compare(layer, torch.ones(2, 16), fresh=[torch.zeros(2, 16)], seconds=0.02).lossless
    with pytest.raises(TypeError, match="at least one input"):
        helpers.compare(lambda: torch.ones(1).npu())


def comparison(eager, graph, warmup=0.25, capture=0.75, max_abs=0.0):
    return Comparison(
        Measurement((eager,) * 3, 5), Measurement((graph,) * 3, 5), Seconds(warmup, capture), 1.0, max_abs, 9, 0.1
    )


def test_break_even_counts_the_calls_that_pay_for_the_capture():
    assert comparison(3.0, 1.0).break_even == 500  # 1000 ms / 2 ms a call
    assert comparison(3.0, 2.3).break_even == math.ceil(1000 / 0.7)
    assert comparison(1.0, 1.0).break_even is None
    assert comparison(1.0, 2.0).break_even is None
    assert "never pays" in str(comparison(1.0, 2.0))
    assert "pays after 500 calls" in str(comparison(3.0, 1.0))


@pytest.mark.parametrize(
    ("a", "b", "cosine", "max_abs"),
    [
        ([1.0, 2.0], [1.0, 2.0], 1.0, 0.0),
        ([1.0, 0.0], [0.0, 1.0], 0.0, 1.0),
        ([1.0, 2.0], [2.0, 4.0], 1.0, 2.0),
        ([1.0, -math.inf], [1.0, -math.inf], 1.0, 0.0),  # equal, though their difference is nan
        ([1.0, math.nan], [1.0, math.nan], None, None),
        ([1.0, math.inf], [1.0, 5.0], None, None),
    ],
)
def test_difference(a, b, cosine, max_abs):
    got = bench.difference(torch.tensor(a), (torch.tensor(b),))
    assert got == (pytest.approx(cosine) if cosine else cosine, max_abs)


# ---- results.json


@pytest.fixture
def records():
    return comparison(3.0, 1.0).records("genmol", batch=1, shape={"width": 64, "layers": 12, "tokens": 16})


def test_records_have_the_agreed_keys_and_come_back_as_written(tmp_path, records):
    eager, graph = records
    agreed = "model mode levers device clock tqe batch shape kernels runs_ms median_ms speedup cosine max_abs"
    assert list(eager) == list(graph) == [*agreed.split(), "torch", "torch_npu", "cann", "date"]
    assert (eager["mode"], eager["speedup"]) == ("eager", None)
    assert (graph["mode"], graph["speedup"], graph["max_abs"]) == ("graph", 3.0, 0.0)
    assert (graph["device"], graph["clock"]) == (here.kind, here.clock)
    path = tmp_path / "new" / "results.json"
    assert add_results(path, records) == records == load_results(path) == json.loads(path.read_text())


def test_a_newer_record_replaces_only_its_own_kind(tmp_path, records):
    path = tmp_path / "results.json"
    add_results(path, records)
    newer = records[1] | {"median_ms": 0.5, "runs_ms": [0.5] * 3}
    other = records[1] | {"shape": {"width": 32, "layers": 12, "tokens": 16}}
    assert add_results(path, [newer, other]) == [records[0], newer, other]


def test_a_file_from_before_there_were_levers_is_read(tmp_path, records):
    path = tmp_path / "results.json"
    path.write_text(json.dumps([{key: r[key] for key in r if key != "levers"} for r in records]))
    assert load_results(path) == records


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: "", "not valid JSON"),
        (lambda text: "{}", "expected a list of records, got dict"),
        (lambda text: "[1]", "record 0: expected an object, got int"),
        (lambda text: text.replace('"batch"', '"bach"', 1), "record 0: batch is missing"),
        (
            lambda text: text.replace('"median_ms": 1.0', '"median_ms": "fast"'),
            "record 1: median_ms is 'fast', expected",
        ),
        (lambda text: text.replace('"median_ms": 1.0', '"median_ms": NaN'), "record 1: median_ms is nan, expected"),
        (lambda text: text.replace('"simulated"', '"cuda"', 1), "record 0: device is 'cuda', expected 'ascend' or"),
        (lambda text: text.replace('"date"', '"more": 1, "date"', 1), "record 0: unknown key more"),
        (lambda text: json.dumps([json.loads(text)[0] | {"runs_ms": [1.0]}]), r"record 0: runs_ms is \[1.0\]"),
    ],
)
def test_a_broken_file_is_named_and_not_touched(tmp_path, records, change, says):
    path = tmp_path / "results.json"
    add_results(path, [r | {"device": "simulated"} for r in records])
    path.write_text(text := change(path.read_text()))
    with pytest.raises(ResultsError, match=says) as caught:
        load_results(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    with pytest.raises(ResultsError, match=says):
        add_results(path, records)
    assert path.read_text() == text


def test_a_broken_record_is_not_written(tmp_path, records):
    path = tmp_path / "results.json"
    add_results(path, records)
    with pytest.raises(ResultsError, match="new record: max_abs is inf"):
        add_results(path, [records[0], records[1] | {"max_abs": math.inf}])
    assert load_results(path) == records


WRITER = """
import json, sys
from helpers import bench
path, first = sys.argv[1], json.load(open(sys.argv[2]))[0]
print("ready", flush=True)
for i in range(int(sys.argv[3]), int(sys.argv[4])):
    bench.add_results(path, [first | {"batch": i}])
"""


def writer(tmp_path, records, start, stop):
    seed = tmp_path / "seed.json"
    seed.write_text(json.dumps(records))
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path / "results.json", seed, str(start), str(stop)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_killed_writer_leaves_a_whole_file(tmp_path, records):
    process = writer(tmp_path, records, 1, 10**6)
    path = tmp_path / "results.json"
    while not path.exists():
        time.sleep(0.001)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert load_results(path)
    assert len(add_results(path, records)) > 1, "the file must still take records"


def test_writers_at_once_lose_nothing(tmp_path, records):
    processes = [writer(tmp_path, records, start, start + 20) for start in (100, 200)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(load_results(tmp_path / "results.json")) == 40
