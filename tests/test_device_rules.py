"""The rules of capture: what is refused, with which code, and what is left of the capture then.

The codes are those of CANN's runtime, whose sources are public: github hicann/runtime, tag v9.0.1 (02522b7ab), under
src/runtime/feature/src. The C functions that torch_npu guards are called directly.
"""

import ctypes
import threading
import time

import pytest
import torch
import torch_npu
from test_device_capture import another_stream, captured

GLOBAL, THREAD_LOCAL, RELAXED = range(3)  # aclmdlRICaptureMode
acl = ctypes.CDLL("libascendcl.so")


@pytest.fixture
def stream():
    return torch.npu.Stream()


def handle(stream):
    return ctypes.c_void_p(stream.npu_stream)


class Capture:
    """A capture by the C interface, on a stream of its own."""

    begun = []

    def __init__(self, mode=GLOBAL):
        self.stream, self.model = another_stream(*(c.stream for c in self.begun)), ctypes.c_void_p()
        assert acl.aclmdlRICaptureBegin(handle(self.stream), mode) == 0
        self.begun.append(self)

    def end(self, stream=None):
        return acl.aclmdlRICaptureEnd(handle(stream or self.stream), ctypes.byref(self.model))


@pytest.fixture(autouse=True)
def end_every_capture():
    torch.npu.synchronize()
    yield
    while Capture.begun:
        Capture.begun.pop().end()


def on_a_thread(function):
    results = []

    def run():
        torch.npu.set_device(0)
        results.append(function())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


# Synchronise, query and copy.


@pytest.mark.parametrize(
    "call",
    [
        lambda x: (x * 2).sum().item(),
        lambda x: bool(x.any()),
        lambda x: torch.npu.current_stream().synchronize(),
        lambda x: torch.npu.current_stream().query(),
        lambda x: torch.npu.synchronize(),
        lambda x: torch.ones(3).to("npu", non_blocking=True),
        lambda x: x.to("cpu", non_blocking=True).numpy() if torch.npu.synchronize() else None,
    ],
    ids=[
        "item",
        "bool",
        "stream synchronise",
        "stream query",
        "device synchronise",
        "from pageable memory",
        "to the host",
    ],
)
def test_what_waits_is_refused(x, code_of, call):
    assert code_of(lambda: captured(lambda: call(x))) == {107027}


@pytest.mark.parametrize("call", [lambda x: x.cpu(), lambda x: torch.ones(3).npu()], ids=["to", "from"])
def test_a_blocking_copy_is_refused(x, code_of, call):
    assert code_of(lambda: captured(lambda: call(x))) <= {107027, 107030}  # the first step of torch_npu's that fails


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_nobody_may_wait_for_the_device(x, code_of, mode):
    def wait():
        return code_of(torch.npu.synchronize)

    graph, stream = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.stream(stream):
        graph.capture_begin(capture_error_mode=mode)
        x + 1
        answers = wait(), on_a_thread(wait)
        graph.capture_end()
    assert answers == ({107027}, {107027})


def test_another_stream_may_be_waited_for(x, stream):
    graph, capturing = torch.npu.NPUGraph(), another_stream(stream)
    with torch.npu.stream(capturing):
        graph.capture_begin()
        y = x + 1
        with torch.npu.stream(stream):
            z = x * 2
        stream.synchronize()
        graph.capture_end()
    assert z.tolist() == [2.0 * i for i in range(8)]
    graph.replay()
    assert y.tolist() == [i + 1.0 for i in range(8)]


# Context::IsCaptureModeSupport
@pytest.mark.parametrize(
    ("mode", "exchanged", "here", "elsewhere"),
    [
        (GLOBAL, GLOBAL, 107030, 107030),
        (GLOBAL, THREAD_LOCAL, 107030, 0),
        (GLOBAL, RELAXED, 0, 0),
        (THREAD_LOCAL, GLOBAL, 107030, 0),
        (THREAD_LOCAL, THREAD_LOCAL, 107030, 0),
        (RELAXED, GLOBAL, 0, 0),
        (RELAXED, THREAD_LOCAL, 0, 0),
    ],
)
def test_modes_say_who_may_copy(x, mode, exchanged, here, elsewhere):
    def copy():
        own = ctypes.c_int(exchanged)
        acl.aclmdlRICaptureThreadExchangeMode(ctypes.byref(own))
        word = ctypes.c_int64()
        code = acl.aclrtMemcpy(ctypes.byref(word), 8, ctypes.c_void_p(x.data_ptr()), 8, 2)
        acl.aclmdlRICaptureThreadExchangeMode(ctypes.byref(own))
        return code

    capture = Capture(mode)
    answers = copy(), on_a_thread(copy)
    assert capture.end() == 0
    assert answers == (here, elsewhere)


def test_pinned_copy_is_captured(x):
    host = torch.arange(8.0).pin_memory()
    graph, _ = captured(lambda: x.copy_(host, non_blocking=True))
    host.fill_(7)
    graph.replay()
    assert x.tolist() == [7.0] * 8


def test_memory_pinned_inside_a_capture_stays_the_graphs(x):
    def copy():
        x.copy_(torch.full((8,), 7.0).pin_memory(), non_blocking=True)

    graph, _ = captured(copy)
    others = [torch.full((8,), float(i)).pin_memory() for i in range(32)]
    graph.replay()
    assert x.tolist() == [7.0] * 8
    assert others[3].tolist() == [3.0] * 8


def test_refused_synchronise_truncates_the_graph_and_does_not_end_it(x):
    y, z = torch.zeros(8, device="npu"), torch.zeros(8, device="npu")
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError), torch.npu.graph(graph):
        y.copy_(x + 1)
        x.sum().item()
        z.copy_(x + 2)
    graph.replay()  # torch_npu lets it: that is why such a graph must be dropped
    assert y.tolist() == [i + 1.0 for i in range(8)]
    assert z.tolist() == [0.0] * 8


# Streams and events.


def test_event_from_outside(x, code_of):
    event = torch.npu.Event()
    event.record()
    assert code_of(lambda: captured(event.wait)) == {107024}


def test_event_of_a_capture_is_no_point_in_time(x, code_of):
    event = torch.npu.Event()

    def record():
        x + 1
        event.record()
        return code_of(event.query), code_of(event.synchronize)

    assert captured(record)[1] == ({107028}, {107028})
    # Event::IsCapturing holds while the capture runs, so after it the event is as new.
    assert event.query()
    event.record()
    event.synchronize()


def fork(x, then):
    """Draw a side stream in, join it, then go on."""
    main, back = torch.npu.current_stream(), torch.npu.Event()
    side = another_stream(main)
    side.wait_stream(main)
    with torch.npu.stream(side):
        x + 1
        if then != "no record":
            back.record()
    if then in ("joined", "work after"):
        back.wait()
    with torch.npu.stream(side):
        if then == "work after":
            x + 2


@pytest.mark.parametrize("then", ["no record", "nobody waits", "work after"])
def test_unjoined_stream(x, code_of, then):
    assert code_of(lambda: captured(lambda: fork(x, then))) == {107025}
    captured(lambda: fork(x, "joined"))[0].replay()
    assert x.tolist() == list(range(8)), "the streams are free again"


def test_two_captures_do_not_merge(x, code_of):
    event, one, two = torch.npu.Event(), Capture(), Capture()
    with torch.npu.stream(one.stream):
        x + 1
        event.record()
    with torch.npu.stream(two.stream):
        assert code_of(event.wait) == {107032}
    assert (one.end(), two.end()) == (507903, 507903), "neither of them is a graph any more"
    assert (x + 1).tolist() == [i + 1.0 for i in range(8)]


# Context::StreamBeginCapture, StreamEndCapture


def test_modes_that_are_none(stream):
    mode = ctypes.c_int(7)
    assert acl.aclmdlRICaptureThreadExchangeMode(ctypes.byref(mode)) == 107000
    assert acl.aclmdlRICaptureBegin(handle(stream), 7) == 107000


def test_default_stream_is_refused(x):
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        torch.npu.NPUGraph().capture_begin()


def test_implicit_stream_is_refused(x):
    event, capture = torch.npu.Event(), Capture()
    with torch.npu.stream(capture.stream):
        event.record()
    assert acl.aclrtStreamWaitEvent(None, ctypes.c_void_p(event.npu_event)) == 107031
    assert capture.end() == 0


def test_begin_and_end_must_match():
    capture = Capture()
    stream = another_stream(capture.stream)
    assert acl.aclmdlRICaptureBegin(handle(capture.stream), GLOBAL) == 107027, "it is captured already"
    assert capture.end(stream) == 107029, "nobody captures on that stream"
    with torch.npu.stream(capture.stream):
        stream.wait_stream(capture.stream)
    assert capture.end(stream) == 107036, "it was drawn in, and did not begin the capture"
    assert acl.aclrtDestroyStream(handle(capture.stream)) == 107027
    assert capture.end() == 107025
    assert capture.end() == 107029


def test_end_on_another_thread_ends_without_a_graph():
    capture = Capture()
    assert on_a_thread(capture.end) == 107038
    assert not capture.model
    assert capture.end() == 107029
    relaxed = Capture(RELAXED)
    assert on_a_thread(relaxed.end) == 0, "mode relaxed lets any thread end it"


def test_capture_of_a_thread_that_ended_does_not_bind_the_next_thread(run_python):
    """The system may give it the identity of the one that ended."""
    done = run_python(
        "import ascend_sim; ascend_sim.load(); import os, threading, torch, torch_npu\n"
        "graph = torch.npu.NPUGraph()\n"
        "def on_a_thread(function):\n"
        "    def run():\n"
        "        torch.npu.set_device(0)\n"
        "        with torch.npu.stream(torch.npu.Stream()): function()\n"
        "    thread = threading.Thread(target=run); thread.start(); thread.join()\n"
        "on_a_thread(lambda: graph.capture_begin(capture_error_mode='thread_local'))\n"
        "for _ in range(9): on_a_thread(lambda: print(torch.ones(2).npu().tolist(), flush=True))\n"
        "os._exit(0)"
    )
    assert done.stdout.split("\n")[:9] == ["[1.0, 1.0]"] * 9, done.stderr


def test_replay_inside_a_capture(x, code_of):
    inner, _ = captured(lambda: x + 1)
    assert code_of(lambda: captured(inner.replay)) == {107027}


def test_graph_that_is_captured_or_runs_is_not_destroyed(x):
    event, capture = torch_npu.npu.ExternalEvent(), Capture()
    stream = another_stream(capture.stream)
    status, model = ctypes.c_int(), ctypes.c_void_p()
    with torch.npu.stream(capture.stream):
        acl.aclmdlRICaptureGetInfo(handle(capture.stream), ctypes.byref(status), ctypes.byref(model))
        assert acl.aclmdlRIDestroy(model) == 107026
        event.wait(capture.stream)
        event.reset(capture.stream)
    assert capture.end() == 0
    assert acl.aclmdlRIExecuteAsync(capture.model, handle(stream)) == 0
    began = time.monotonic()
    assert acl.aclmdlRIDestroy(capture.model) == 107037
    assert time.monotonic() - began > 9, "Context::ModelDestroy waits 10 s for the graph"
    event.record(capture.stream)
    stream.synchronize()
    assert acl.aclmdlRIDestroy(capture.model) == 0
    assert acl.aclmdlRIDestroy(capture.model) == 107000


def test_used_graph_object_is_refused_until_reset(x):
    graph, _ = captured(lambda: x + 1)
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        with torch.npu.graph(graph):
            x + 2
    torch.npu.set_stream(torch.npu.default_stream())
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with torch.npu.graph(graph):
        y = x + 2
    graph.replay()
    assert y.tolist() == [i + 2.0 for i in range(8)]


def test_task_queue_level_2_is_refused(run_python):
    done = run_python(
        "import ascend_sim; ascend_sim.load(); import torch, torch_npu\n"
        "x = torch.ones(3, device='npu')\n"
        "with torch.npu.graph(torch.npu.NPUGraph()): x + 1",
        TASK_QUEUE_ENABLE="2",
    )
    assert "Do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture" in done.stderr


@pytest.mark.parametrize("level", ["0", "1"])
def test_task_queue_levels_that_capture(run_python, level):
    done = run_python(
        "import ascend_sim; ascend_sim.load(); import torch, torch_npu\n"
        "x = torch.ones(3, device='npu')\ng = torch.npu.NPUGraph()\n"
        "with torch.npu.graph(g): y = x + 1\n"
        "x.fill_(4); g.replay(); print(y.tolist())",
        TASK_QUEUE_ENABLE=level,
    )
    assert done.stdout.strip() == "[5.0, 5.0, 5.0]", done.stderr


# Task groups: operators of a graph that are given other arguments between replays.


@pytest.fixture
def group(x):
    """A graph with one group, y = x + 1."""
    y, handles = torch.zeros(8, device="npu"), []

    def work():
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        torch.add(x, 1, out=y)
        handles.append(torch.npu.graph_task_group_end(stream))

    graph, _ = captured(work)
    return graph, y, handles[0]


def update(stream, group, *calls):
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, group)
        try:
            for call in calls:
                call()
        finally:
            torch.npu.graph_task_update_end(stream)
    stream.synchronize()


def test_update_changes_what_a_group_does(x, stream, group):
    graph, y, handle = group
    for n in (1, 2, 3):
        graph.replay()
        assert y.tolist() == [i + float(n) for i in range(8)]
        before = y.tolist()
        update(stream, handle, lambda n=n: torch.add(x, n + 1, out=y))
        assert y.tolist() == before, "an update runs nothing"


def test_update_beside_a_replay(x, stream):
    """The way of torch.npu.NPUGraph.update: the replay waits for the update, by an external event."""
    event, y, handles = torch.npu.ExternalEvent(), torch.zeros(8, device="npu"), []

    def work():
        main = torch.npu.current_stream()
        event.wait(main)
        event.reset(main)
        torch.npu.graph_task_group_begin(main)
        torch.add(x, 1, out=y)
        handles.append(torch.npu.graph_task_group_end(main))

    graph, _ = captured(work)
    for n in range(20):
        graph.replay()
        with torch.npu.stream(stream):
            torch.npu.graph_task_update_begin(stream, handles[0])
            torch.add(x, n, out=y)
            torch.npu.graph_task_update_end(stream)
            event.record(stream)
        assert y.tolist() == [i + float(n) for i in range(8)]


def test_update_with_other_operators_than_the_group_has(x, stream, group, code_of):
    graph, y, handle = group
    one = lambda: torch.add(x, 5, out=y)  # noqa: E731
    assert code_of(lambda: update(stream, handle)) == {507000}, "none"
    assert code_of(lambda: update(stream, handle, one, one)) == {507000}, "too many"
    update(stream, handle, one)
    graph.replay()
    assert y.tolist() == [i + 5.0 for i in range(8)]


def test_update_takes_operators_only(x, stream, group, code_of):
    graph, y, group_handle = group
    event = torch.npu.Event()
    event.record()
    for call in (event.record, event.wait, graph.replay):
        with torch.npu.stream(stream):
            torch.npu.graph_task_update_begin(stream, group_handle)
            refused = code_of(call)
            torch.add(x, 1, out=y)
            torch.npu.graph_task_update_end(stream)
        assert refused == {507009}


def test_group_in_the_wrong_state(x, stream, group, code_of):
    _, _, group_handle = group
    begin, end = torch.npu.graph_task_group_begin, torch.npu.graph_task_group_end
    assert code_of(lambda: begin(stream)) == {107029}
    assert code_of(lambda: end(stream)) == {107029}

    def states():
        main = torch.npu.current_stream()
        codes = [code_of(lambda: end(main))]
        begin(main)
        codes.append(code_of(lambda: begin(main)))
        codes.append(code_of(lambda: torch.npu.graph_task_update_begin(main, group_handle)))
        end(main)
        return codes

    assert captured(states)[1] == [{107033}, {107033}, {107027}]
    assert code_of(lambda: captured(lambda: begin(torch.npu.current_stream()))) == {107033}, "it was left open"


def test_update_in_the_wrong_state(stream, group, code_of):
    graph, _, group_handle = group
    begin, end = torch.npu.graph_task_update_begin, torch.npu.graph_task_update_end
    assert code_of(lambda: end(stream)) == {107033}
    begin(stream, group_handle)
    assert code_of(lambda: begin(stream, group_handle)) == {107033}
    assert code_of(lambda: begin(torch.npu.Stream(), group_handle)) == {107033}
    assert code_of(lambda: end(stream)) == {507000}
    graph.reset()
    assert code_of(lambda: begin(stream, group_handle)) == {107000}, "its graph is gone"


def test_group_interrupted_by_another_stream(x, code_of):
    y = torch.zeros(8, device="npu")
    capture = Capture()
    side = another_stream(capture.stream)
    side.wait_stream(capture.stream)
    group = ctypes.c_void_p()
    assert acl.aclmdlRICaptureTaskGrpBegin(handle(capture.stream)) == 0
    with torch.npu.stream(side):
        assert code_of(lambda: torch.add(x, 1, out=y)) == {107034}
    assert acl.aclmdlRICaptureTaskGrpEnd(handle(capture.stream), ctypes.byref(group)) == 107034
    assert not group
    assert capture.end() == 507903


def test_an_update_mends_a_graph_whose_memory_was_freed(stream, code_of):
    torch.npu.empty_cache()
    static, other = [torch.ones(1 << 23, device="npu")], torch.full((1 << 23,), 3.0, device="npu")
    y, handles = torch.zeros(1 << 23, device="npu"), []

    def work():
        main = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(main)
        torch.add(static[0], 1, out=y)
        handles.append(torch.npu.graph_task_group_end(main))

    graph, _ = captured(work)
    static.clear()
    torch.npu.empty_cache()
    graph.replay()
    assert code_of(torch.npu.synchronize) == {507015}
    update(stream, handles[0], lambda: torch.add(other, 1, out=y))
    graph.replay()
    assert y[-1].item() == 4.0


def memset(x, stream):
    n = ctypes.c_size_t(8)
    return acl.aclrtMemsetAsync(ctypes.c_void_p(x.data_ptr()), n, 0, n, handle(stream))


def record(x, stream):
    event = torch.npu.Event()
    event.record(torch.npu.Stream())
    return acl.aclrtRecordEvent(ctypes.c_void_p(event.npu_event), handle(stream))


@pytest.mark.parametrize("task", [memset, record])
def test_group_takes_operators_only(x, task):
    capture, group = Capture(), ctypes.c_void_p()
    assert acl.aclmdlRICaptureTaskGrpBegin(handle(capture.stream)) == 0
    assert task(x, capture.stream) == 507009
    assert acl.aclmdlRICaptureTaskGrpEnd(handle(capture.stream), ctypes.byref(group)) == 507009
    assert capture.end() == 507903


@pytest.fixture
def attention():
    """A graph with one attention over the first 5 of 8 keys, captured so that torch_npu can update the 5."""
    q, k, v = (torch.randn(1, 4, rows, 16, dtype=torch.float16, device="npu") for rows in (1, 8, 8))

    def infer(columns):
        return torch_npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=4, input_layout="BNSD", scale=0.25, actual_seq_lengths_kv=[columns]
        )[0]

    graph, out = captured(lambda: infer(5), auto_dispatch_capture=True)
    return graph, out, infer


def test_npugraph_update_changes_the_lengths_of_attention(attention):
    graph, out, infer = attention
    for columns in (8, 3, 5):
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": [columns]}])
        graph.replay()
        assert torch.equal(out.cpu(), infer(columns).cpu())


def test_npugraph_update_may_follow_the_replay_that_waits_for_it(attention):
    graph, out, infer = attention
    graph.replay()
    assert not torch.npu.current_stream().query(), "the replay waits in front of the attention"
    graph.update(cpu_update_input=[{"actual_seq_lengths_kv": [7]}])
    assert torch.equal(out.cpu(), infer(7).cpu())


def test_npugraph_update_with_what_does_not_fit(attention, x, code_of):
    graph, _, infer = attention
    with pytest.raises(RuntimeError, match="there are 1 operators .* only 2 elements"):
        graph.update(cpu_update_input=[{}, {}])
    plain, _ = captured(lambda: x + 1)
    with pytest.raises(RuntimeError, match="auto_dispatch_capture=True"):
        plain.update(cpu_update_input=[{"actual_seq_lengths_kv": [5]}])


# Budgets.


def test_stream_budget(run_python):
    done = run_python(
        "import ascend_sim; ascend_sim.load(); import torch, torch_npu\n"
        "x = torch.ones(3, device='npu')\n"
        "graphs = []\n"
        "def capture():\n"
        "    g = torch.npu.NPUGraph()\n"
        "    with torch.npu.graph(g): y = x + 1\n"
        "    graphs.append(g)\n"
        "    return y\n"
        "try:\n"
        "    while len(graphs) < 300: capture()\n"
        "except RuntimeError as e:\n"
        "    print(len(graphs), 'error code is 207008' in str(e), 'ASCEND_SIM_STREAMS' in str(e))\n"
        "torch.npu.set_stream(torch.npu.default_stream())\n"
        "graphs.pop(0).reset()\n"
        "y = capture(); graphs[-1].replay(); print(y.tolist())",
        ASCEND_SIM_STREAMS="200",
    )
    first, second = done.stdout.strip().splitlines()
    count, *said = first.split()
    assert 100 < int(count) < 200 and said == ["True", "True"], done.stderr
    assert second == "[2.0, 2.0, 2.0]"
