"""helpers.device: which device, what is effective, and one clear line where there is none."""

import helpers
from helpers import device

import pytest
import torch
from processes import BLOCK, last_line, python

ACTIVATE = "import helpers; here = helpers.activate(verbose=False)\n"
here = helpers.activate(verbose=False)
simulated = pytest.mark.skipif(here.kind == "ascend", reason="CANN loads here, so torch_npu does not fail without it")


def test_activate_makes_npu_usable_and_says_what_it_is(capsys):
    first = helpers.activate()
    said = capsys.readouterr().out
    assert (torch.ones(2, device="npu") + 1).tolist() == [2, 2]
    assert first.kind in ("ascend", "simulated")
    assert first.source == device.SOURCE[first.kind]
    for fact in (torch.__version__, first.torch_npu, first.cann, first.why, f"TASK_QUEUE_ENABLE={first.tqe}"):
        assert fact in said
    if first.kind == "simulated":
        assert "simulated" in said and first.cann == "simulated" and first.clock == "cpu"
    assert helpers.activate() is first
    assert capsys.readouterr().out == said, "the second call must say the same"


def test_activate_sets_the_threads_that_it_is_told():
    before = torch.get_num_threads()
    try:
        helpers.activate(threads=2, verbose=False)
        helpers.activate(threads=None, verbose=False)
        assert torch.get_num_threads() == 2
        helpers.activate(verbose=False)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_start_up_is_quiet_and_what_was_quieted_is_said_once():
    done = python("import helpers; helpers.activate(); import torch; print(torch.ones(2).npu() + 1)")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()][:3] == ["device", "versions", "task"]
    assert done.stdout.count("quieted") <= 1


def test_quieting_passes_on_what_is_not_expected():
    quieted = []
    rest = device._sort(
        "one\n[W1130] Warning: The versions require processing for 32 padding size, with\ntwo\n", quieted
    )
    assert rest == "one\ntwo\n"
    assert quieted == ["32-byte padding"]


@simulated
def test_torch_imported_first_and_broken():
    done = python("try:\n    import torch\nexcept RuntimeError:\n    pass\nimport helpers")
    assert "restart the kernel and import helpers first" in last_line(done)


def test_torch_imported_first_with_autoload_off_is_fine():
    done = python(f"import torch\n{ACTIVATE}print(torch.ones(1).npu().item())", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (done.returncode, done.stdout) == (0, "1.0\n"), done.stderr


def test_torch_npu_imported_by_hand_after_the_device_is_fine():
    done = python("import ascend_sim; ascend_sim.load(); import torch, torch_npu\n" + ACTIVATE + "print(here.kind)")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, here.kind), done.stderr


@pytest.mark.parametrize("name", ["torch", "torch_npu"])
def test_a_missing_package_is_named(name):
    done = python(BLOCK.format(names={name}) + ACTIVATE)
    assert last_line(done).startswith(f"helpers.device.DeviceError: {name} is not installed: pip install")


@pytest.mark.parametrize("value", ["7", "-1", "on", ""])
def test_task_queue_enable_must_be_known(value):
    said = last_line(python(ACTIVATE, TASK_QUEUE_ENABLE=value))
    assert said.startswith(f"helpers.device.DeviceError: TASK_QUEUE_ENABLE={value!r}: torch_npu takes 0, 1 or 2")


@pytest.mark.parametrize(
    ("env", "before", "effective", "why"),
    [
        ({}, "", 1, "torch_npu's default"),
        ({"TASK_QUEUE_ENABLE": "0"}, "", 0, "from the environment"),
        ({"TASK_QUEUE_ENABLE": "2"}, "", 2, "from the environment"),
        ({"TASK_QUEUE_ENABLE": "1", "ASCEND_LAUNCH_BLOCKING": "1"}, "", 0, "ASCEND_LAUNCH_BLOCKING=1 forces 0"),
        (
            {"TASK_QUEUE_ENABLE": "1"},
            "import sys; sys.ps1 = '>>> '\n",
            0,
            "torch_npu sets it to 0 in Jupyter and IPython",
        ),
    ],
)
def test_effective_task_queue_enable_and_why(env, before, effective, why):
    done = python(before + ACTIVATE + "print(here.tqe, helpers.device.task_queue(), here.tqe_why)", **env)
    assert (done.returncode, done.stdout) == (0, f"{effective} {effective} {why}\n"), done.stderr
    assert done.stderr == ""


def test_task_queue_before_activate_says_what_to_call():
    said = last_line(python("import helpers; helpers.device.task_queue()"))
    assert said == "helpers.device.DeviceError: torch_npu is not loaded yet: call helpers.activate() first"


@pytest.fixture
def shown(monkeypatch):
    """What show_error gives a notebook to display, by kind."""
    displays = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: displays.append(data))

    def show(error) -> dict[str, str]:
        helpers.show_error(error)
        return displays.pop()

    return show


def test_show_error_is_one_line_with_the_full_text_behind_it(shown):
    cause = RuntimeError("first <line>\n[ascend_sim] why\n/a/long/way/to/torch/module.py, line 7")
    shows = shown(cause)
    assert shows["text/plain"] == "RuntimeError: [ascend_sim] why"
    assert "<summary><code>RuntimeError: [ascend_sim] why</code>" in shows["text/html"]
    assert "first &lt;line&gt;" in shows["text/html"]
    assert "…/torch/module.py, line 7" in shows["text/html"] and "/long/" not in shows["text/html"]

    outer = ValueError("short")
    outer.__cause__ = cause
    assert shown(outer)["text/plain"] == "ValueError: short"
    assert "caused by RuntimeError: first" in shown(outer)["text/html"]


def test_show_error_finds_the_error_in_what_a_process_wrote(shown):
    done = python("def f():\n    raise ValueError('two\\nlines')\nf()")
    assert shown(done.stderr)["text/plain"] == "ValueError: two"
    assert shown("only a word")["text/plain"] == "only a word"
