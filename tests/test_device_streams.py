"""Streams, events, copies between host and device."""

import time

import pytest
import torch

pytestmark = pytest.mark.timed


def busy(seconds=0.05, width=256):
    """Enqueue kernels for about this long on the current stream; return the last result."""
    a = torch.ones(width, width, device="npu")
    torch.npu.synchronize()
    started = time.perf_counter()
    (a @ a).sum()
    torch.npu.synchronize()
    once = time.perf_counter() - started
    for _ in range(max(3, int(seconds / once))):
        a = (a @ a) * 0.001
    return a


def test_launches_return_before_their_kernels():
    event = torch.npu.Event()
    busy()
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()


def test_stream_runs_in_order():
    x = torch.zeros(4, device="npu")
    for i in range(200):
        x.fill_(i)
        x.add_(1)
    assert x.tolist() == [200.0] * 4


def test_streams_run_side_by_side_and_wait_stream_orders_them():
    side = torch.npu.Stream()
    x = torch.zeros(8, device="npu")
    torch.npu.synchronize()
    busy()
    x.fill_(3)
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2
    torch.npu.current_stream().wait_stream(side)
    assert (y + 1).tolist() == [7.0] * 8


def test_an_idle_stream_does_not_wait_for_a_busy_one():
    side = torch.npu.Stream()
    busy(0.2)
    with torch.npu.stream(side):
        torch.ones(4, device="npu").add_(1)
    side.synchronize()
    assert not torch.npu.current_stream().query()
    torch.npu.synchronize()
    assert torch.npu.current_stream().query()


def test_event_measures_time():
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    start.record()
    before = time.perf_counter()
    busy(0.05)
    end.record()
    end.synchronize()
    wall = (time.perf_counter() - before) * 1e3
    assert 0 < start.elapsed_time(end) <= wall + 1


def test_event_without_timing_refuses_elapsed_time(code_of):
    event = torch.npu.Event()
    event.record()
    assert code_of(lambda: event.elapsed_time(event)) == {107000}


def test_unrecorded_event_has_no_time(code_of):
    events = [torch.npu.Event(enable_timing=True) for _ in range(2)]
    with pytest.raises(RuntimeError):
        events[0].elapsed_time(events[1])


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_keep_every_bit(pinned, non_blocking):
    host = torch.randn(1000)
    host = host.pin_memory() if pinned else host
    device = host.to("npu", non_blocking=non_blocking)
    back = device.to("cpu", non_blocking=non_blocking)
    torch.npu.synchronize()
    assert torch.equal(back, host)


def test_pinned_memory_is_known_as_such():
    assert torch.ones(3).pin_memory().is_pinned()
    assert not torch.ones(3).is_pinned()


def test_copy_of_a_strided_view():
    host = torch.arange(24.0).reshape(4, 6)
    device = host.npu()
    assert torch.equal(device.t()[1:4, ::2].cpu(), host.t()[1:4, ::2])


def test_threads_each_on_their_stream():
    from threading import Thread

    results = {}

    def work(n):
        torch.npu.set_device(0)
        with torch.npu.stream(torch.npu.Stream()):
            x = torch.full((64,), float(n), device="npu")
            for _ in range(100):
                x = x + 1
            results[n] = x.cpu()

    threads = [Thread(target=work, args=(n,)) for n in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert {n: r.unique().tolist() for n, r in results.items()} == {n: [n + 100.0] for n in range(8)}


def test_copy_of_another_size_is_refused_at_the_call(code_of):
    static = torch.zeros(4, 3, device="npu")
    assert code_of(lambda: static.copy_(torch.ones(2, 3, device="npu"))) == {161002}
    assert static.sum().item() == 0


def failing():
    weights, nowhere = torch.ones(3, 4, device="npu"), torch.tensor([7]).npu()
    return torch.nn.functional.embedding(nowhere, weights)


@pytest.mark.parametrize("wait", ["stream", "other stream", "event", "device"])
def test_whoever_waits_gets_the_error_of_a_kernel(wait):
    side, event = torch.npu.Stream(), torch.npu.Event()
    with torch.npu.stream(side):
        failing()
        event.record()
    torch.npu.current_stream().wait_stream(side)
    with pytest.raises(RuntimeError, match="aclnnEmbedding: index"):
        if wait == "device":
            torch.npu.synchronize()
        elif wait == "event":
            event.synchronize()
        else:
            (side if wait == "stream" else torch.npu.current_stream()).synchronize()
    assert torch.ones(2, device="npu").add(1).tolist() == [2.0, 2.0], "and the device is usable again"


def test_a_host_function_may_differentiate():
    found = []

    def differentiate(_):
        w = torch.ones(3, requires_grad=True)
        (w * 2).sum().backward()
        found.append(w.grad.tolist())

    torch.npu._launch_host_func(torch.npu.current_stream(), differentiate, None)
    torch.npu.synchronize()
    assert found == [[2.0, 2.0, 2.0]]
