"""Capture and replay: what a graph records, what it refuses and with which code, and what a replay does."""

import gc
import json
import threading

import pytest
import torch


@pytest.fixture(autouse=True)
def leave_no_capture_stream():
    # torch.npu.graph enters its stream before capture_begin, which may raise: then nobody leaves it.
    yield
    torch.npu.set_stream(torch.npu.default_stream())


def captured(function, **options):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, **options):
        out = function()
    return graph, out


@pytest.fixture
def x():
    return torch.arange(8.0).npu()


# What a replay does.


def test_capture_records_and_does_not_run(x):
    y = torch.zeros(8, device="npu")
    graph, _ = captured(lambda: y.copy_(x + 1))
    torch.npu.synchronize()
    assert y.tolist() == [0.0] * 8
    graph.replay()
    assert y.tolist() == [i + 1.0 for i in range(8)]


def test_replay_reads_the_captured_addresses(x):
    graph, y = captured(lambda: x * 2)
    x.copy_(torch.full((8,), 5.0))
    graph.replay()
    assert y.tolist() == [10.0] * 8


def test_replay_equals_eager_bit_for_bit():
    w = torch.randn(64, 64, device="npu")
    static = torch.randn(16, 64, device="npu")

    def step(t):
        return (t @ w * 0.1 + t).sum(1)

    graph, out = captured(lambda: step(static))
    for _ in range(3):
        fresh = torch.randn(16, 64)
        static.copy_(fresh)
        graph.replay()
        assert torch.equal(out.cpu(), step(fresh.npu()).cpu())


def test_replay_on_any_stream(x):
    graph, y = captured(lambda: x + 1)
    with torch.npu.stream(torch.npu.Stream()):
        graph.replay()
        torch.npu.current_stream().synchronize()
    assert y.tolist() == [i + 1.0 for i in range(8)]


def test_manual_capture(x):
    stream = torch.npu.Stream()
    stream.wait_stream(torch.npu.current_stream())
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(stream):
        graph.capture_begin()
        y = x * 3
        graph.capture_end()
    torch.npu.current_stream().wait_stream(stream)
    graph.replay()
    assert y.tolist() == [3.0 * i for i in range(8)]


def test_accelerator_graph(x):
    graph = torch.accelerator.Graph()
    with torch.npu.stream(torch.npu.Stream()):
        graph.capture_begin()
        y = x - 1
        graph.capture_end()
    graph.replay()
    torch.npu.synchronize()
    assert y.tolist() == [i - 1.0 for i in range(8)]


def test_replays_queue_up_in_order(x):
    total = torch.zeros(8, device="npu")
    graph, _ = captured(lambda: total.add_(x))
    for _ in range(50):
        graph.replay()
    assert total.tolist() == [50.0 * i for i in range(8)]


def side_by_side(x):
    """8 x, of which a side stream computes 3."""
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        a = x * 3
    b = x * 5
    torch.npu.current_stream().wait_stream(side)
    return a + b


def test_fork_and_join(x):
    graph, y = captured(lambda: side_by_side(x))
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [8 * value] * 8


def test_fork_of_a_fork(x):
    one, two = torch.npu.Stream(), torch.npu.Stream()

    def forked():
        main = torch.npu.current_stream()
        one.wait_stream(main)
        with torch.npu.stream(one):
            a = x + 1
            two.wait_stream(one)
            with torch.npu.stream(two):
                b = a * 2
            one.wait_stream(two)
            c = b + a
        main.wait_stream(one)
        return c * 10

    graph, y = captured(forked)
    x.fill_(1.0)
    graph.replay()
    assert y.tolist() == [60.0] * 8


def test_kernels_of_a_fork_run_on_streams_of_their_own(x):
    import ascend_sim

    graph, _ = captured(lambda: side_by_side(x))
    with ascend_sim.trace() as spans:
        graph.replay()
    assert len(spans) == 3
    assert len({s.stream for s in spans}) == 2


def test_external_event_in_a_graph_waits_in_every_replay(x):
    event = torch.npu.ExternalEvent()

    def waits():
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        return x + 1

    graph, y = captured(waits)
    for value in (1.0, 2.0):
        with torch.npu.stream(torch.npu.Stream()):
            x.fill_(value)
            torch.npu.current_stream().synchronize()
        graph.replay()
        assert not torch.npu.current_stream().query()
        event.record(torch.npu.Stream())
        torch.npu.synchronize()
        assert y.tolist() == [value + 1] * 8


def test_make_graphed_callables_trains():
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8).npu()
    eager = torch.nn.Linear(8, 8).npu()
    eager.load_state_dict(layer.state_dict())
    graphed = torch.npu.make_graphed_callables(layer, (torch.randn(4, 8, device="npu"),))
    for _ in range(3):
        data = torch.randn(4, 8, device="npu")
        for model, call in ((layer, graphed), (eager, eager)):
            model.zero_grad(set_to_none=True)
            call(data).sum().backward()
        assert torch.equal(layer.weight.grad.cpu(), eager.weight.grad.cpu())


# What a capture refuses. A set of codes, as public sources differ.


@pytest.mark.parametrize(
    ("call", "codes"),
    [
        (lambda x: (x * 2).sum().item(), {107027}),
        (lambda x: torch.npu.current_stream().synchronize(), {107027}),
        (lambda x: torch.npu.current_stream().query(), {107027}),
        (lambda x: torch.npu.synchronize(), {107027, 107030}),
        (lambda x: x.cpu(), {107027, 107030}),
        (lambda x: torch.ones(3).npu(), {107027, 107030}),
        (lambda x: torch.ones(3).to("npu", non_blocking=True), {107027, 107030}),
    ],
    ids=[
        "item",
        "stream synchronise",
        "stream query",
        "device synchronise",
        "to the host",
        "from the host",
        "pageable",
    ],
)
def test_capture_refuses(x, code_of, call, codes):
    assert code_of(lambda: captured(lambda: call(x))) <= codes


def test_pinned_copy_is_captured(x):
    host = torch.arange(8.0).pin_memory()
    graph, _ = captured(lambda: x.copy_(host, non_blocking=True))
    host.fill_(7)
    graph.replay()
    assert x.tolist() == [7.0] * 8


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


def test_event_from_outside(x, code_of):
    event = torch.npu.Event()
    event.record()
    assert code_of(lambda: captured(event.wait)) == {107024}


def test_event_recorded_inside_has_no_time_outside(x, code_of):
    event = torch.npu.Event()

    def record():
        x + 1
        event.record()

    captured(record)
    assert code_of(event.query) == {107028}
    assert code_of(event.synchronize) == {107028}
    event.record()
    event.synchronize()


def test_unjoined_stream(x, code_of):
    side = torch.npu.Stream()

    def fork():
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            x + 1

    assert code_of(lambda: captured(fork)) == {107025}
    with torch.npu.stream(side):
        assert (x + 1).tolist() == [i + 1.0 for i in range(8)], "the side stream is free again"


def test_default_stream_is_refused(x):
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        torch.npu.NPUGraph().capture_begin()


def test_replay_inside_a_capture(x, code_of):
    inner, _ = captured(lambda: x + 1)
    assert code_of(lambda: captured(inner.replay)) == {107027}


def test_two_captures_do_not_merge(x, code_of):
    one, two = torch.npu.Stream(), torch.npu.Stream()
    graphs = [torch.npu.NPUGraph() for _ in range(2)]
    event = torch.npu.Event()
    with torch.npu.stream(one):
        graphs[0].capture_begin()
        x + 1
        event.record()
    with torch.npu.stream(two):
        graphs[1].capture_begin()
        x + 2
        assert code_of(event.wait) == {107032}
        graphs[1].capture_end()
    with torch.npu.stream(one):
        graphs[0].capture_end()


def test_end_on_another_thread(run_python):
    done = run_python(
        "import ascend_sim; ascend_sim.load(); import torch, torch_npu, threading\n"
        "x = torch.ones(3, device='npu')\n"
        "stream, graph = torch.npu.Stream(), torch.npu.NPUGraph()\n"
        "with torch.npu.stream(stream): graph.capture_begin(); x + 1\n"
        "def end():\n"
        "    torch.npu.set_device(0)\n"
        "    with torch.npu.stream(stream):\n"
        "        try: graph.capture_end()\n"
        "        except RuntimeError as e: print('error code is 107038' in str(e))\n"
        "thread = threading.Thread(target=end); thread.start(); thread.join()"
    )
    assert done.stdout.strip() == "True", done.stderr


def test_modes_say_who_may_copy(x):
    """Mode global stops a copy on any thread; thread_local only on its own; relaxed on none."""

    def copy_on_another_thread():
        result = []

        def copy():
            torch.npu.set_device(0)
            try:
                with torch.npu.stream(torch.npu.Stream()):
                    torch.ones(3).npu()
                result.append("done")
            except RuntimeError:
                result.append("refused")

        thread = threading.Thread(target=copy)
        thread.start()
        thread.join()
        return result[0]

    answers = {}
    for mode in ("global", "thread_local", "relaxed"):
        graph, stream = torch.npu.NPUGraph(), torch.npu.Stream()
        with torch.npu.stream(stream):
            graph.capture_begin(capture_error_mode=mode)
            x + 1
            answers[mode] = copy_on_another_thread()
            graph.capture_end()
    assert answers == {"global": "refused", "thread_local": "done", "relaxed": "done"}


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


# Memory and lifetime.


def test_pool_is_shared_and_freed(x):
    torch.npu.empty_cache()
    before = torch.npu.memory_reserved()
    big = 1 << 22
    first, _ = captured(lambda: torch.ones(big, device="npu").sum())
    alone = torch.npu.memory_reserved() - before
    second, _ = captured(lambda: torch.ones(big, device="npu").sum(), pool=first.pool())
    assert torch.npu.memory_reserved() - before == alone, "the second graph reuses the first one's memory"
    third, _ = captured(lambda: torch.ones(big, device="npu").sum())
    assert torch.npu.memory_reserved() - before > alone
    del first, second, third, _
    gc.collect()
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() <= before


def test_graph_outlives_its_python_object_while_it_runs():
    a = torch.ones(512, 512, device="npu")
    total = torch.zeros(512, 512, device="npu")

    def work():
        b = a
        for _ in range(5):
            b = (b @ a) * 0.001
        total.add_(b)

    graph, _ = captured(work)
    graph.replay()
    del graph
    gc.collect()
    torch.npu.synchronize()
    assert total.sum().item() > 0


def test_many_graphs(x):
    for i in range(300):
        graph, y = captured(lambda i=i: x + i)
    graph.replay()
    assert y.tolist() == [i + 299.0 for i in range(8)]


def test_debug_dump_is_json_and_names_the_kernels(x, tmp_path):
    graph, _ = captured(lambda: (x + 1) * x)
    graph.debug_dump(str(tmp_path / "graph.json"))
    content = (tmp_path / "graph.json").read_text()
    assert [n["kernel"] for n in json.loads(content)["streams"][0]] == ["aclnnAdds", "aclnnMul"]
