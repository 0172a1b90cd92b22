"""Capture and replay: what a graph records, what it refuses and with which code, and what a replay does."""

import gc
import json

import pytest
import torch


def captured(function, **options):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, **options):
        out = function()
    return graph, out


def another_stream(*than):
    """torch_npu hands the streams of a pool out in turn, so a new one may be one of these."""
    return next(s for s in iter(torch.npu.Stream, None) if s not in than)


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
    side = another_stream(torch.npu.current_stream())
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
    def forked():
        main = torch.npu.current_stream()
        one = another_stream(main)
        two = another_stream(main, one)
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


def test_a_thousand_graphs_that_all_live(x):
    kept = [captured(lambda i=i: x + i) for i in range(1000)]
    for graph, _ in kept:
        graph.replay()
    assert [y[0].item() for _, y in kept] == list(range(1000))


def test_an_old_graph_goes_in_the_middle_of_a_capture(x):
    old, _ = captured(lambda: x + 1)
    old.replay()
    kept = [old]
    cycle = [kept]
    cycle.append(cycle)  # only the garbage collector frees it
    del old, kept, cycle

    def work():
        y = x * 2
        gc.collect()
        return y + 1

    graph, y = captured(work)
    graph.replay()
    assert y.tolist() == [2 * i + 1.0 for i in range(8)]


def test_replay_after_its_memory_was_freed_says_so(code_of):
    torch.npu.empty_cache()
    big = 1 << 23
    static = [torch.ones(big, device="npu")]
    graph, y = captured(lambda: static[0] + 1)
    graph.replay()
    assert y[0].item() == 2.0
    static.clear()
    torch.npu.empty_cache()  # before this, torch_npu keeps the memory, and a replay reads what is left in it
    graph.replay()
    assert code_of(torch.npu.synchronize) == {507015}
    assert torch.ones(3, device="npu").tolist() == [1.0] * 3
    del y, graph
    other, z = captured(lambda: torch.ones(4, device="npu") * 3)
    other.replay()
    assert z.tolist() == [3.0] * 4


def test_replay_after_the_end_of_its_memory_was_freed_says_so(code_of):
    torch.npu.empty_cache()
    static = [torch.ones(1 << 24, device="npu")]
    graph, y = captured(lambda: static[0] + 1)
    static.clear()
    torch.npu.empty_cache()
    kept = [torch.ones(1 << 19, device="npu") for _ in range(12)]  # some of it lies where the 64 MiB began
    graph.replay()
    assert code_of(torch.npu.synchronize) == {507015}
    assert all(x[0].item() == 1.0 for x in kept)


def test_graphs_of_one_pool_share_memory_and_the_last_replay_owns_it(x):
    first, a = captured(lambda: (x + 1) * 2)
    second, b = captured(lambda: (x + 2) * 2, pool=first.pool())
    first.replay()
    assert a.tolist() == [2 * i + 2.0 for i in range(8)]
    second.replay()
    assert b.tolist() == [2 * i + 4.0 for i in range(8)]
    del first, a
    gc.collect()
    torch.npu.empty_cache()
    second.replay()
    assert b.tolist() == [2 * i + 4.0 for i in range(8)], "the pool lives as long as one graph of it"


def test_graphs_replay_at_once_on_streams_of_their_own():
    x = [torch.full((64, 64), float(n), device="npu") for n in range(4)]
    graphs = [captured(lambda t=t: (t @ t) + t) for t in x]
    streams = [torch.npu.Stream() for _ in graphs]
    torch.npu.synchronize()
    for _ in range(20):
        for (graph, _), stream in zip(graphs, streams, strict=True):
            with torch.npu.stream(stream):
                graph.replay()
    torch.npu.synchronize()
    assert [y[0, 0].item() for _, y in graphs] == [64.0 * n * n + n for n in range(4)]


def test_replays_of_one_graph_on_two_streams_take_turns(x):
    total = torch.zeros(8, device="npu")
    graph, _ = captured(lambda: total.add_(x))
    streams = [torch.npu.Stream() for _ in range(2)]
    torch.npu.synchronize()
    for _ in range(50):
        for stream in streams:
            with torch.npu.stream(stream):
                graph.replay()
    torch.npu.synchronize()
    assert total.tolist() == [100.0 * i for i in range(8)]


# Random numbers.


def test_dropout_differs_from_replay_to_replay_and_repeats_after_seeding():
    ones = torch.ones(1000, device="npu")
    graph, y = captured(lambda: torch.nn.functional.dropout(ones, 0.5))

    def replays():
        torch.npu.manual_seed(7)
        results = []
        for _ in range(3):
            graph.replay()
            results.append(y.cpu())
        return results

    first, second = replays(), replays()
    assert not torch.equal(first[0], first[1])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    torch.npu.manual_seed(7)
    assert torch.equal(first[0], torch.nn.functional.dropout(ones, 0.5).cpu()), "as eager from the same seed"


def test_rng_state_in_and_out_of_a_capture():
    torch.npu.manual_seed(123)
    before = torch.npu.get_rng_state()
    eager = torch.rand(8, device="npu")
    after = torch.npu.get_rng_state()

    def work():
        state = torch.npu.get_rng_state()
        first = torch.rand(8, device="npu")
        torch.npu.set_rng_state(state)
        return first, torch.rand(8, device="npu")

    torch.npu.set_rng_state(before)
    graph, (first, second) = captured(work)
    torch.npu.set_rng_state(before)
    graph.replay()
    assert torch.equal(first.cpu(), eager.cpu())
    assert torch.equal(second.cpu(), eager.cpu())
    assert torch.equal(torch.npu.get_rng_state(), after), "a replay moves the generator on as eager does"


def test_another_seed_inside_a_capture_is_refused():
    torch.npu.manual_seed(1)
    with pytest.raises(RuntimeError, match="only if new seed is the same as the original seed"):
        captured(lambda: torch.npu.manual_seed(2))


def test_debug_dump_is_a_trace_that_names_the_kernels(x, tmp_path):
    graph, _ = captured(lambda: side_by_side(x))
    graph.debug_dump(str(tmp_path / "graph.json"))
    names = [(task["tid"], task["name"]) for task in json.loads((tmp_path / "graph.json").read_text())]
    assert names == [
        ("stream0", "EVENT_RECORD_0"),
        ("stream0", "aclnnMuls"),
        ("stream0", "EVENT_WAIT_1"),
        ("stream0", "aclnnAdd"),
        ("stream1", "EVENT_WAIT_0"),
        ("stream1", "aclnnMuls"),
        ("stream1", "EVENT_RECORD_1"),
    ]
    assert (tmp_path / "graph.aligned.json").exists(), "torch_npu could read it"
