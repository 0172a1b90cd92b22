"""helpers.capture: a captured function gives what the function gives, and refuses what does not fit."""

import helpers
from helpers.capture import Captured, CaptureError

import pytest
import torch

helpers.activate(verbose=False)


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3).to("npu")


@pytest.fixture(autouse=True)
def same_stream():
    """Whatever a test does, the current stream is the one before."""
    before = torch.npu.current_stream()
    yield
    assert torch.npu.current_stream() == before


def test_replay_gives_what_eager_gives_on_fresh_inputs(linear):
    captured = helpers.capture(linear, torch.randn(2, 4))
    fresh = torch.randn(2, 4)
    with torch.no_grad():
        expected = linear(fresh.npu()).cpu()
    for x in (fresh, fresh.npu()):
        assert torch.equal(captured(x).cpu(), expected)
    assert not captured.outputs.requires_grad
    assert captured.seconds.warmup > 0 and captured.seconds.capture > 0


def test_the_next_call_overwrites_outputs_unless_cloned(linear):
    captured = helpers.capture(linear, torch.zeros(2, 4))
    first, second = torch.randn(2, 4), torch.randn(2, 4)
    kept, mine = captured(first), captured(first, clone=True)
    value = kept.cpu()
    captured(second)
    assert kept.data_ptr() == captured.outputs.data_ptr()
    assert not torch.equal(kept.cpu(), value), "a static output must change with the next call"
    assert torch.equal(mine.cpu(), value)


def test_inputs_are_copies_at_fixed_addresses(linear):
    x = torch.randn(2, 4).npu()
    captured = helpers.capture(linear, x)
    address = captured.inputs[0].data_ptr()
    assert address != x.data_ptr()
    captured(torch.randn(2, 4))
    assert captured.inputs[0].data_ptr() == address


def test_trees_of_outputs_are_kept_and_cloned():
    captured = helpers.capture(lambda a, b: {"sum": a + b, "both": (a, b * 2)}, torch.ones(2), torch.ones(2))
    out = captured(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), clone=True)
    captured(torch.zeros(2), torch.zeros(2))
    assert out["sum"].tolist() == [4, 6]
    assert [x.tolist() for x in out["both"]] == [[1, 2], [6, 8]]


def test_warm_up_runs_before_the_capture_and_replay_runs_no_python():
    calls = []

    def fn(x):
        calls.append(torch.npu.is_current_stream_capturing())
        return x + 1

    captured = helpers.capture(fn, torch.zeros(1), warmup=2)
    captured(torch.zeros(1))
    assert calls == [False, False, True]


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ((torch.ones(2, 4),), TypeError, "captured with 2 inputs, got 1"),
        ((torch.ones(2, 4), torch.ones(4), torch.ones(4)), TypeError, "captured with 2 inputs, got 3"),
        ((torch.ones(2, 4), [1.0] * 4), TypeError, "input 1: expected a tensor, got list"),
        ((torch.ones(3, 4), torch.ones(4)), ValueError, r"input 0: .* shape \(2, 4\), got \(3, 4\)"),
        ((torch.ones(1, 4), torch.ones(4)), ValueError, r"input 0: .* shape \(2, 4\), got \(1, 4\)"),  # would broadcast
        ((torch.ones(2, 4), torch.ones(1)), ValueError, r"input 1: .* shape \(4,\), got \(1,\)"),
        ((torch.ones(2, 4), torch.ones(4).double()), ValueError, "input 1: .* torch.float32, got torch.float64"),
        ((torch.ones(2, 4), torch.ones(4, device="meta")), ValueError, "input 1: .* cpu or npu, got one on meta"),
    ],
)
def test_inputs_that_do_not_fit_are_named_and_nothing_is_lost(wrong, error, says):
    captured = helpers.capture(lambda a, b: a + b, torch.zeros(2, 4), torch.zeros(4))
    captured(torch.full((2, 4), 5.0), torch.full((4,), 6.0))
    with pytest.raises(error, match=says) as caught:
        captured(*wrong)
    assert "\n" not in str(caught.value)
    assert captured.inputs[0].cpu().unique().tolist() == [5], "an input was overwritten"
    assert captured.inputs[1].cpu().unique().tolist() == [6], "an input was overwritten"
    assert captured.outputs.cpu().unique().tolist() == [11], "the graph was replayed"


def test_an_input_of_capture_must_be_a_tensor():
    with pytest.raises(TypeError, match="input 1: expected a tensor, got int"):
        helpers.capture(lambda a, b: a + b, torch.zeros(1), 3)


def test_a_wait_in_the_capture_is_explained_and_leaves_the_process_usable(capfd):
    def branch(x):
        y = x * 2
        if torch.npu.is_current_stream_capturing():
            y.sum().item()
        return y + 1

    with pytest.raises(CaptureError, match="waits for the device") as caught:
        helpers.capture(branch, torch.ones(2))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert capfd.readouterr().err == "", "the error is raised, so it need not be logged too"
    assert not torch.npu.is_current_stream_capturing()
    assert helpers.capture(lambda x: x + 1, torch.ones(2))(torch.ones(2)).tolist() == [2, 2]


def test_any_error_of_the_function_drops_the_graph(monkeypatch):
    made, new = [], torch.npu.NPUGraph
    monkeypatch.setattr(torch.npu, "NPUGraph", lambda: made.append(new()) or made[-1])

    def broken(x):
        y = x + 1
        if torch.npu.is_current_stream_capturing():
            raise KeyError("weights")
        return y

    with pytest.raises(CaptureError, match="KeyError: 'weights'"):
        helpers.capture(broken, torch.ones(2))
    with pytest.raises(RuntimeError, match="replay without a preceding successful capture"):  # truncated, it would run
        made[0].replay()


def test_an_interrupt_is_not_swallowed():
    def interrupted(x):
        if torch.npu.is_current_stream_capturing():
            raise KeyboardInterrupt
        return x + 1

    with pytest.raises(KeyboardInterrupt):
        helpers.capture(interrupted, torch.ones(2))
    assert not torch.npu.is_current_stream_capturing()


def test_a_capture_that_cannot_begin_leaves_the_stream(linear):
    """torch.npu.graph enters its stream before capture_begin, which refuses TASK_QUEUE_ENABLE=2."""
    before = torch.npu.get_task_queue_enable()
    torch.npu.set_task_queue_enable(2)
    try:
        with pytest.raises(CaptureError, match="TASK_QUEUE_ENABLE=1 or 0"):
            helpers.capture(linear, torch.zeros(2, 4))
    finally:
        torch.npu.set_task_queue_enable(before)
    assert isinstance(helpers.capture(linear, torch.zeros(2, 4)), Captured)


def test_graphs_can_share_a_pool(linear):
    pool = torch.npu.graph_pool_handle()
    a, b = (helpers.capture(linear, torch.zeros(n, 4), pool=pool) for n in (8, 2))
    assert a.graph.pool() == b.graph.pool() == pool
    x = torch.randn(2, 4)
    assert torch.equal(b(x).cpu(), linear(x.npu()).detach().cpu())


def test_inputs_that_require_a_gradient_leave_the_static_ones_alone():
    captured = helpers.capture(lambda x: x + 1, torch.zeros(3))
    captured(torch.ones(3, requires_grad=True))
    assert not captured.inputs[0].requires_grad and captured.inputs[0].grad_fn is None


def test_a_stopped_task_queue_is_said(run_python):
    done = run_python(
        "import helpers; helpers.activate(verbose=False); import torch\n"
        "event = torch.npu.Event(); event.record()\n"
        "try: helpers.capture(lambda x: (event.wait(), x + 1), torch.ones(3))\n"
        "except RuntimeError as e: print(str(e).endswith('start a new process'))",
        TASK_QUEUE_ENABLE="1",
    )
    assert done.stdout.strip() == "True", done.stderr
