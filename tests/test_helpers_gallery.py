"""helpers.gallery: what a submission holds, what it does not, and what is said of a wrong one."""

import getpass
import json
import platform
import re
import socket
from pathlib import Path

from helpers import __main__, device, gallery  # before torch
from helpers.bench import ResultsError

import pytest
from test_helpers_plots import pair

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results"


@pytest.fixture
def here():
    return device.activate(verbose=False)


@pytest.fixture
def records(here):
    return pair(3.0, 1.0, torch=here.torch, torch_npu=here.torch_npu, cann=here.cann)


@pytest.fixture
def clone(tmp_path, monkeypatch, records):
    """A clone with a results file, and no submission."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "pyproject.toml").write_text('version = "7.8.9"\n')
    (tmp_path / "build" / "results.json").write_text(json.dumps(records))
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_submit_writes_records_and_machine(clone, records, here, capsys):
    assert __main__.main(["submit"]) == 0
    said = capsys.readouterr().out.splitlines()
    (one,) = gallery.load_submissions(clone / "results")
    assert said[0] == f"wrote results/{one.file}" and "pull request with that one file" in said[1]
    assert one.records == records
    assert re.fullmatch(r"simulated-[a-z0-9-]+-2026-01-02\.json", one.file)
    machine = one.machine
    assert (machine["device"], machine["npu"], machine["date"], machine["course"]) == (
        here.kind, None, "2026-01-02", "7.8.9",
    )  # fmt: skip
    assert (machine["python"], machine["torch"]) == (platform.python_version(), here.torch)
    assert machine["cores"] > 0 and machine["cpu"] and platform.machine() in machine["os"]


def test_the_same_twice_is_one_file_and_another_run_is_another(clone, capsys):
    results = clone / "build" / "results.json"
    first, new = gallery.submit(results)
    assert (gallery.submit(results), new) == ((first, False), True)
    assert __main__.main(["submit", str(results)]) == 0
    assert capsys.readouterr().out == f"it is there already: results/{first.name}\n"
    before = first.read_bytes()
    results.write_text(re.sub(r"(?<![\d.])3\.0", "3.5", results.read_text()))
    second, new = gallery.submit(results)
    assert new and second.name == first.name.replace(".json", "-2.json") and first.read_bytes() == before


def test_what_cannot_be_written_leaves_nothing(clone, records):
    results = clone / "build" / "results.json"
    records[0]["shape"] = {"width": float("inf")}
    results.write_text(json.dumps(records))
    with pytest.raises(ResultsError, match="results.json: Out of range float values"):
        gallery.submit(results)
    assert gallery.load_submissions(clone / "results") == [] and not (clone / "results").exists()


def test_noisy_records_are_said_to_be_so(clone, records, capsys):
    records[0]["runs_ms"] = [3.0, 3.0, 4.0]
    (clone / "build" / "results.json").write_text(json.dumps(records))
    assert __main__.main(["submit"]) == 0
    assert "noisy: the runs of 1 of 2 records differ by over 20%" in capsys.readouterr().out


def test_nothing_says_whose_machine_it_is(clone, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "weathercock")
    monkeypatch.setenv("USER", "rosalind")
    path, _ = gallery.submit(clone / "build" / "results.json", "Atlas 800T A2")
    text = path.read_text()
    for secret in ("weathercock", "rosalind", str(clone), str(Path.home()), platform.release()):
        assert secret not in text, secret
    assert getpass.getuser() not in re.findall(r"\w+", text) and "Atlas 800T A2" in text
    assert gallery.load_submissions(path.parent)[0].label.startswith("Atlas 800T A2, ")


@pytest.mark.parametrize("name", ["card of rosalind", "Weathercock 2", "me@example.org", "~/mine", "see /data/x"])
def test_a_name_of_a_person_or_host_is_refused(name, clone, monkeypatch, capsys):
    monkeypatch.setattr(socket, "gethostname", lambda: "weathercock")
    monkeypatch.setenv("USER", "rosalind")
    assert __main__.main(["submit", "--name", name]) == 1
    assert capsys.readouterr().err.startswith(f"helpers: the name {name!r} says whose machine")
    assert not (clone / "results").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "notebook 3 makes it"),
        ("[", "not valid JSON"),
        ("[]", "no records"),
        ('[{"model": 3}]', "record 0: model is 3, expected str"),
    ],
)
def test_a_bad_results_file_is_one_line(content, says, clone, capsys):
    results = clone / "build" / "results.json"
    results.unlink() if content is None else results.write_text(content)
    assert __main__.main(["submit"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "results.json" in line and says in line
    assert not (clone / "results").exists()


def test_records_of_another_machine_are_refused(clone, records, capsys):
    records[1]["torch"] = "1.0"
    (clone / "build" / "results.json").write_text(json.dumps(records))
    assert __main__.main(["submit"]) == 1
    assert "record 1 was measured with torch 1.0, and the machine's is" in capsys.readouterr().err


def test_without_a_clone_there_is_no_gallery(tmp_path):
    with pytest.raises(ResultsError, match="not a clone of the course"):
        gallery.submit(tmp_path / "results.json", folder=tmp_path / "results")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda made: made.pop("machine"), "not a submission"),
        (lambda made: made["machine"].pop("cpu"), "machine: cpu is missing"),
        (lambda made: made["machine"].update(host="a"), "machine: unknown key host"),
        (lambda made: made["machine"].update(cores="2"), "machine: cores is '2', expected int"),
        (lambda made: made["machine"].update(device="gpu"), "machine: device is 'gpu', expected ascend or simulated"),
        (lambda made: made["machine"].update(npu="Ascend910B2"), "npu is 'Ascend910B2', and the device is simulated"),
        (lambda made: made["machine"].update(name="/home" + "/me"), "looks like a path"),
        (lambda made: made["records"][1].update(model="of me@here"), "looks like a path or an address"),
        (lambda made: made["records"][1].pop("mode"), "record 1: mode is missing"),
        (lambda made: made["records"][0].update(device="ascend"), "record 0 was measured with device ascend"),
    ],
)
def test_the_first_wrong_file_is_named(change, says, clone):
    path, _ = gallery.submit(clone / "build" / "results.json")
    made = json.loads(path.read_text())
    change(made)
    wrong = path.with_name("zz-wrong.json")
    wrong.write_text(json.dumps(made))
    with pytest.raises(ResultsError) as caught:
        gallery.load_submissions(path.parent)
    assert str(caught.value).startswith(str(wrong)) and says in str(caught.value) and "\n" not in str(caught.value)


def test_an_empty_gallery_has_nothing(tmp_path):
    assert gallery.load_submissions(tmp_path / "results") == []


def test_an_arm_cpu_is_named_by_its_numbers(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nCPU implementer\t: 0x48\nCPU part\t: 0xd01\n")
    assert gallery._cpu(info) == f"{platform.machine()} CPU implementer 0x48 CPU part 0xd01"
    info.write_text("processor\t: 0\nmodel name\t: AMD EPYC 7 @ 2.4GHz\n")
    assert gallery._cpu(info) == "AMD EPYC 7 @ 2.4GHz"
    assert gallery._cpu(tmp_path / "none") == platform.machine()


def test_the_committed_gallery_is_right_and_the_pages_say_what_is_in_it():
    submissions = gallery.load_submissions(FOLDER)
    assert submissions
    real = [one.file for one in submissions if one.machine["device"] == "ascend"]
    pages = [(ROOT / "README.md").read_text(), (ROOT / "notebooks" / "05_plot_the_results.ipynb").read_text()]
    for page in pages:
        assert ("no submission from an Ascend yet" in page) == (not real), real
