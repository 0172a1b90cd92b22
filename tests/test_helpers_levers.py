"""The levers: settings, what a process measures, before and after. Times are not judged here."""

import json
import re
from dataclasses import replace

import helpers
from helpers import bench, levers, models
from helpers.levers import Case, Job, LeverError, Setting

import pytest
import torch
from processes import helpers as command

here = helpers.activate(verbose=False)
simulated = pytest.mark.skipif(here.kind == "ascend", reason="an Ascend has no paced clock, and counts no kernels")

TINY = {
    "genmol": dict(width=32, layers=1, tokens=4),
    "nucleotide-transformer": dict(width=32, layers=2, tokens=4),
    "climax": dict(width=32, layers=1, rows=4, columns=8),
    "aurora-stand-in": dict(width=32, layers=3, rows=9, columns=16, levels=2),
}


def quiet(_):
    pass


CASES = {
    "graph": Case("genmol", ("graph",), Setting(batch=2)),
    "batch": Case("genmol", ("batch",)),
    "waits": Case("climax", ("no-waits", "task-queue")),
    "no waits": Case("climax", ("no-waits",)),
    "guards": Case("aurora-stand-in", ("no-waits", "graph")),
    "gelu": Case("nucleotide-transformer", ("fused-gelu", "task-queue-2")),
}


def run_tiny(cases):
    with pytest.MonkeyPatch.context() as patch:
        small = {name: replace(workload, small=TINY[name]) for name, workload in levers.WORKLOADS.items()}
        patch.setattr(levers, "WORKLOADS", small)
        # The processes have the models' own sizes, and are given these.
        return levers.gains(cases, full=False, seconds=0.01, tell=quiet)


@pytest.fixture(scope="module")
def tiny():
    """All cases, each before and after, in one process for each task queue."""
    return dict(zip(CASES, run_tiny(CASES.values()), strict=True))


# ---- settings


def test_each_lever_has_a_name_for_the_setting_after_it():
    for lever in levers.LEVERS:
        after = levers.pull([lever], Setting())
        assert after != Setting()
        assert after.name == ("" if lever == "batch" else lever)
    assert levers.pull(["no-waits", "task-queue"], Setting()).name == "task-queue+no-waits"
    assert levers.pull(["batch"], Setting(batch=2)).batch == 16
    with pytest.raises(ValueError, match="no lever 'crowbar'; there are graph, task-queue"):
        levers.pull(["crowbar"], Setting())


def test_the_command_offers_the_models_and_levers_that_there_are():
    from helpers import __main__

    assert tuple(levers.WORKLOADS) == __main__.MODELS
    assert tuple(levers.LEVERS) == __main__.LEVERS


def test_full_size_is_the_published_size():
    with torch.device("meta"):
        genmol = models.genmol(768, 12)
    sizes = {name: levers.WORKLOADS[name].full for name in levers.WORKLOADS}
    assert sum(p.numel() for p in genmol.parameters()) == 87_291_992
    assert (sizes["genmol"]["width"], sizes["genmol"]["layers"]) == (768, 12)
    assert (sizes["nucleotide-transformer"]["width"], sizes["nucleotide-transformer"]["layers"]) == (1280, 24)
    assert (sizes["climax"]["width"], sizes["climax"]["layers"]) == (1024, 8)
    aurora = models.aurora_stand_in
    assert aurora.__defaults__[:3] == (512, (6, 10, 8), (721, 1440))
    assert sizes["aurora-stand-in"] == dict(width=512, layers=24, rows=721, columns=1440, levels=13)


# ---- before and after, small and computed


@simulated
def test_a_graph_is_lossless(tiny):
    gain = tiny["graph"]
    assert (gain.max_abs, gain.cosine) == (0.0, 1.0)
    assert gain.before.kernels == gain.after.kernels == models.kernels(1)
    assert gain.clock == "cpu" and gain.band is None


@simulated
def test_waits_are_counted_and_removed(tiny):
    gain = tiny["waits"]
    assert (gain.before.waits, gain.after.waits) == (48, 0)
    assert gain.max_abs == 0.0
    gain = tiny["guards"]
    assert (gain.before.waits, gain.after.waits) == (47, 0)
    assert gain.max_abs == 0.0


@simulated
def test_a_fused_gelu_saves_four_kernels_of_five_and_rounds_otherwise(tiny):
    gain = tiny["gelu"]
    assert gain.before.kernels - gain.after.kernels == 4 * 3  # in two layers and the head
    assert 0 <= gain.max_abs < 1e-5
    assert gain.cosine > 0.999999


def test_a_batch_is_judged_by_the_sample(tiny):
    gain = tiny["batch"]
    assert gain.case.after.batch == 8
    assert gain.speedup == pytest.approx(8 * gain.before.median_ms / gain.after.median_ms)
    assert gain.max_abs is None, "other inputs have other outputs"


def test_the_records_of_a_gain_fit_results_json(tiny, tmp_path):
    gain = tiny["no waits"]
    before, after = bench.add_results(tmp_path / "results.json", gain.records())
    assert (before["levers"], after["levers"]) == ("", "no-waits")
    assert (before["mode"], before["tqe"], before["clock"]) == ("eager", 0, here.clock)
    assert after["speedup"] == gain.speedup and before["speedup"] is None
    assert len(before["runs_ms"]) == 3


# ---- full size, modelled


@simulated
def test_full_size_runs_at_its_real_number_of_launches():
    (gain,) = levers.gains([levers.ARTICLE[0]], seconds=0.05, tell=quiet)
    assert gain.clock == "paced"
    assert gain.before.kernels == gain.after.kernels == 215
    low, high = gain.band
    assert low <= gain.speedup <= high
    assert gain.after.median_ms >= gain.after.kernels_ms, "a replay is never faster than its kernels"
    assert gain.before.median_ms >= gain.before.kernels_ms
    assert gain.max_abs is None and gain.cosine is None, "nothing was computed"
    assert {r["clock"] for r in gain.records()} == {"paced"}


@simulated
def test_a_card_of_ones_own(tmp_path):
    import ascend_sim

    slow = ascend_sim.Card.load().slow()
    slow.save(tmp_path / "slow.json")
    job = Job("genmol", Setting(graph=True), tuple(TINY["genmol"].items()))
    jobs = [replace(job, card=name) for name in ("ascend_910b2", str(tmp_path / "slow.json"))]
    runs = levers.run_all(jobs, 0.01, quiet)
    nominal, slowest = (runs[j][0].kernels_ms for j in jobs)
    assert nominal < slowest


# ---- errors


@simulated
def test_what_cannot_be_captured_is_named():
    with pytest.raises(LeverError, match="climax, graph: the function cannot be captured"):
        run_tiny([Case("climax", ("graph",))])
    with pytest.raises(LeverError, match="genmol, graph.task-queue-2: .*TASK_QUEUE_ENABLE"):
        run_tiny([Case("genmol", ("graph",), Setting(tqe=2))])


@pytest.mark.parametrize(
    ("model", "lever", "sizes", "says"),
    [
        ("genmol", "no-waits", {}, "genmol has nothing for the lever no-waits"),
        ("climax", "fused-gelu", {}, "climax has nothing for the lever fused-gelu"),
        ("climax", "no-waits", {"tokens": 4}, "climax has no tokens; it has width"),
    ],
)
def test_a_lever_or_a_size_that_a_model_lacks(model, lever, sizes, says):
    with pytest.raises(ValueError, match=says):
        levers.gains([Case(model, (lever,))], full=False, tell=quiet, **sizes)


def test_a_process_measures_at_its_own_task_queue_only(tmp_path):
    with pytest.raises(ValueError, match="this process runs at TASK_QUEUE_ENABLE=0, not 1"):
        Job("genmol", Setting(tqe=1), tuple(TINY["genmol"].items())).run(tmp_path / "outputs", 0.01)


def test_a_process_that_dies_is_one_line(monkeypatch):
    monkeypatch.setenv("ASCEND_SIM_THREADS", "none")
    with pytest.raises(LeverError, match="the process at TASK_QUEUE_ENABLE=0 failed: .*ASCEND_SIM_THREADS"):
        run_tiny([CASES["graph"]])


# ---- the table and the command


def made_up(case, full):
    run = levers.Run((2.0, 2.0, 2.0), 3, 10, 1.0, 0, None, (2.0, 3.0, 2.0, 2.0) if full else ())
    faster = replace(run, runs_ms=(1.0, 1.0, 1.0))
    equal = {} if full else dict(cosine=1.0, max_abs=0.0)
    return levers.Gain(case, {"width": 8}, "paced" if full else "cpu", run, faster, **equal)


def test_the_table_keeps_its_sources_apart():
    rows = levers.table(*([made_up(case, full) for case in levers.ARTICLE] for full in (True, False))).splitlines()
    assert re.split(r"\s{2,}", rows[0].strip()) == [
        "modelled, full size", "measured, small", "outputs, small", "reported",
    ]  # fmt: skip
    assert len(rows) == 2 + len(levers.ARTICLE)
    first = re.split(r"\s{2,}", rows[2].strip())
    said = "2.09, GenMol-89M: NPUGraph, batch 8, TASK_QUEUE_ENABLE=0"
    assert first == ["genmol", "graph", "2.00 (1.00-2.00)", "2.00", "1, 0", said]
    assert {case.reported for case in levers.ARTICLE} == {2.09, 1.12, 1.004, 1.048, 1.007}


def test_compare_without_a_model_prints_the_table_and_writes_both(tmp_path, monkeypatch, capsys):
    from helpers import __main__

    monkeypatch.setattr(levers, "gains", lambda full, card: [made_up(case, full) for case in levers.ARTICLE])
    path = tmp_path / "results.json"
    assert __main__.main(["compare", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "modelled, full size" in printed and "aurora-stand-in" in printed
    assert {r["clock"] for r in json.loads(path.read_text())} == {"cpu", "paced"}


@simulated
def test_compare_with_levers(tmp_path):
    path = tmp_path / "results.json"
    done = command("compare", "climax", "--lever", "no-waits", "--width", "32", "--layers", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert "as published, batch 1, TASK_QUEUE_ENABLE=0" in done.stdout
    assert "48 host waits" in done.stdout and "0 host waits" in done.stdout
    assert "cosine 1, max_abs 0" in done.stdout
    assert [r["levers"] for r in json.loads(path.read_text())] == ["", "no-waits"]
    done = command("compare", "climax", "--lever", "graph", "--width", "32", "--layers", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("helpers: climax, graph: the function cannot be captured")
    assert done.stderr.count("\n") == 1


@simulated
@pytest.mark.parametrize("args", [("run", "--use-graph"), ("compare",)], ids=" ".join)
def test_run_and_compare_at_full_size(args, tmp_path):
    path = tmp_path / "results.json"
    done = command(args[0], "genmol", *args[1:], "--clock", "paced", "--batch", "8", "--json", str(path))
    assert done.returncode == 0, done.stderr
    records = json.loads(path.read_text())
    assert {(r["clock"], r["shape"]["width"], r["batch"], r["kernels"]) for r in records} == {("paced", 768, 8, 215)}
