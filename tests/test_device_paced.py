"""The paced clock: times against arithmetic, and values that nobody computed."""

import dataclasses
import json
import os
import threading
import time
from pathlib import Path

import ascend_sim
import helpers
from ascend_sim.pacing import Constant

import pytest
import torch
import torch.nn.functional as F

here = helpers.activate(verbose=False)
pytestmark = [
    pytest.mark.skipif(here.kind == "ascend", reason="an Ascend has a clock of its own"),
    pytest.mark.timed,
]

on_a_fast_host = pytest.mark.skipif("ASCEND_SIM_SANITIZE" in os.environ, reason="a sanitizer slows the host")

NOT_COMPUTED = "was not computed: the paced clock counts"


def card(**constants):
    """A card with round constants, no cost on the host, and ``constants`` changed."""
    round_ones = dict(
        kernel_us=5.0, bandwidth_gb_s=1000.0, link_gb_s=10.0, copy_us=5.0, float32_tflop_s=1.0, float16_tflop_s=4.0,
        int8_tflop_s=8.0, plan_us=0.0, launch_us=0.0, replay_us=0.0, sync_us=0.0, memory_gib=64.0,
    )  # fmt: skip
    values = {key: Constant(x, x, x, "round") for key, x in (round_ones | constants).items()}
    return ascend_sim.Card("round", **values)


def not_computed():
    """8 x 8 numbers; on the paced clock nobody knows them."""
    return torch.ones(8, 8, device="npu") @ torch.ones(8, 8, device="npu")


def seconds(fn, card):
    """Device time of ``fn()`` by two events, and the wall time until a synchronise returns."""
    with ascend_sim.paced(card):
        fn()
        torch.npu.synchronize()
        began = time.perf_counter()
        fn()
        torch.npu.synchronize()
        wall = time.perf_counter() - began
        start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
        fn()  # keeps the device busy, so that the events hold no time of the host's
        start.record()
        fn()
        end.record()
        torch.npu.synchronize()
        return start.elapsed_time(end) * 1e-3, wall


def captured(fn, *inputs):
    graph = torch.npu.NPUGraph()
    fn(*inputs)
    torch.npu.synchronize()
    with torch.npu.graph(graph):
        outputs = fn(*inputs)
    return graph, outputs


# ---- times


@pytest.mark.parametrize(
    ("dtype", "rate"), [(torch.float32, 1e12), (torch.float16, 4e12), (torch.bfloat16, 4e12)], ids=str
)
def test_a_product_takes_its_flops(dtype, rate):
    a, b = (torch.empty(2000, 2000, dtype=dtype, device="npu") for _ in range(2))
    device, wall = seconds(lambda: a @ b, card())
    assert device == pytest.approx(2 * 2000**3 / rate, rel=0.02)
    assert 2 * 2000**3 / rate <= wall < 2 * 2000**3 / rate + 0.05


@pytest.mark.parametrize(
    ("make", "flops"),
    [
        (lambda: (torch.nn.functional.linear, ((8, 100, 512), (2048, 512), (2048,))), 2 * 800 * 512 * 2048),
        (lambda: (torch.bmm, ((64, 100, 128), (64, 128, 200))), 2 * 64 * 100 * 128 * 200),
        (lambda: (torch.nn.functional.conv2d, ((8, 16, 64, 64), (32, 16, 3, 3))), 2 * 8 * 32 * 62 * 62 * 16 * 9),
    ],
    ids=["linear", "bmm", "conv2d"],
)
def test_flops_of_the_products(make, flops):
    fn, shapes = make()
    with ascend_sim.paced(card()):
        inputs = [torch.empty(shape, device="npu") for shape in shapes]
        spans = ascend_sim.work(lambda: fn(*inputs), card())
    assert sum(span.flops for span in spans) == flops


def test_an_addition_takes_its_bytes():
    x = torch.empty(100_000_000, device="npu")
    device, wall = seconds(lambda: x + x[0], card())  # x is read and the sum written: 4 bytes each
    assert device == pytest.approx(2 * 4e8 / 1e12, rel=0.02)


@on_a_fast_host
def test_a_small_kernel_takes_the_shortest_time():
    x = torch.zeros(16, device="npu")
    graph, _ = captured(lambda: [x.add_(1) for _ in range(400)])
    device, _ = seconds(graph.replay, card())
    assert device == pytest.approx(400 * 5e-6, rel=0.02)


def test_a_copy_from_the_host_takes_the_link():
    x, host = torch.empty(10_000_000, device="npu"), torch.empty(10_000_000).pin_memory()
    device, _ = seconds(lambda: x.copy_(host, non_blocking=True), card(link_gb_s=1.0))  # slower than this machine
    assert device == pytest.approx(4e7 / 1e9, rel=0.02)


@on_a_fast_host
def test_a_replay_is_one_launch_and_its_kernels():
    with ascend_sim.paced(card(replay_us=3000.0)):
        x = torch.empty(1 << 20, device="npu")  # unknown, so nothing is computed
        graph, _ = captured(lambda: [x[:16].add_(1) for _ in range(1000)])
        began = time.perf_counter()
        graph.replay()
        launched = time.perf_counter()
        torch.npu.synchronize()
        ended = time.perf_counter()
    assert 3e-3 <= launched - began < 0.05
    assert 8e-3 <= ended - began < 0.1  # the kernels start when the launch has ended


def test_eager_is_never_faster_than_its_kernels_and_a_slow_launch_shows():
    x = torch.zeros(16, device="npu")

    def fn():
        for _ in range(100):
            x.add_(1)

    for kernel_us in (1.0, 500.0):
        device, wall = seconds(fn, card(kernel_us=kernel_us))
        assert wall >= 100 * kernel_us * 1e-6
    assert device == pytest.approx(100 * 500e-6, rel=0.05)  # the host is ahead: compute-bound
    device, wall = seconds(fn, card(kernel_us=1.0, launch_us=100.0, plan_us=50.0))
    assert wall >= 100 * 150e-6  # the device waits for the host: launch-bound


TASK_QUEUE = """
import helpers, statistics, time
helpers.activate(verbose=False)
import ascend_sim, torch
from test_device_paced import card
x = torch.zeros(16, device="npu")
times = []
with ascend_sim.paced(card(kernel_us=1.0, plan_us=3000.0, launch_us=2000.0)):
    for _ in range(3):
        torch.npu.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            x.add_(1)
        torch.npu.synchronize()
        times.append((time.perf_counter() - began) / 20 * 1e6)
print(min(times))
"""


def test_task_queue_levels_share_the_work_as_their_threads_do(run_python):
    """0: one thread plans and launches. 1: the other launches meanwhile. 2: the other does both."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    us = [float(run_python(TASK_QUEUE, TASK_QUEUE_ENABLE=str(n), PYTHONPATH=path).stdout) for n in (0, 1, 2)]
    assert us[0] >= 5000
    assert 3000 <= us[1] < 4500
    assert 5000 <= us[2] < us[0] + 500


# ---- values


def test_reading_what_was_not_computed_is_refused_by_name():
    with ascend_sim.paced():
        a = torch.randn(64, 64, device="npu")
        product = a @ a
        for read in (
            lambda: product.cpu(),
            lambda: product.sum().item(),
            lambda: str(product),
            lambda: product[1, 2:5].tolist(),
            lambda: bool(product.any()),
        ):
            with pytest.raises(RuntimeError, match=NOT_COMPUTED):
                read()
        with pytest.raises(RuntimeError, match="aclnn(Mm|Matmul)"):
            product.cpu()
        with pytest.raises(RuntimeError, match="nothing was written there"):
            torch.empty(5 << 20, device="npu").cpu()
        assert torch.arange(4, device="npu").sum().item() == 6  # and the device goes on


@pytest.mark.parametrize(
    "follow",
    [
        lambda x: x + 1,
        lambda x: x.clone(),
        lambda x: x.t().contiguous(),
        lambda x: torch.cat((torch.zeros(1, 8, device="npu"), x)),
        lambda x: torch.zeros(8, 8, device="npu").copy_(x),
        lambda x: torch.zeros(8, 8, device="npu").add_(x),
        lambda x: torch.zeros(8, 8, device="npu").index_put_((torch.tensor([1], device="npu"),), x[0]),
        lambda x: torch.where(torch.ones(8, 8, dtype=torch.bool, device="npu"), x, x),
    ],
)
def test_what_follows_is_not_known_either(follow):
    with ascend_sim.paced():
        x = not_computed()
        with pytest.raises(RuntimeError, match=NOT_COMPUTED):
            follow(x).cpu()


def test_small_kernels_on_known_inputs_are_computed():
    lat = torch.linspace(90, -90, 721)
    with ascend_sim.paced():
        on = lat.to("npu")
        assert torch.all(on <= 90) and not torch.any(on[1:] - on[:-1] >= 0)
        assert torch.equal(torch.arange(10, device="npu").flip(0).cpu(), torch.arange(10).flip(0))
        assert torch.equal((on > 0).nonzero().cpu(), (lat > 0).nonzero())
        mask = torch.ones(8, 64, dtype=torch.bool, device="npu")
        assert torch.equal(mask.cumsum(1).cpu(), torch.ones(8, 64, dtype=torch.bool).cumsum(1))


def test_a_part_that_is_overwritten_is_known():
    with ascend_sim.paced():
        x = not_computed()
        x[:, 2:4] = 7
        assert x[:, 2:4].sum().item() == 7 * 16
        with pytest.raises(RuntimeError, match=NOT_COMPUTED):
            x[:, 1:4].sum().item()
        x.fill_(3)
        assert x.sum().item() == 3 * 64


def test_an_output_whose_size_depends_on_unknown_values_is_refused():
    with ascend_sim.paced():
        x = not_computed()
        with pytest.raises(RuntimeError, match="decides the size of the output of aclnnNonzero was not computed"):
            x.nonzero()
        assert torch.zeros(1, device="npu").item() == 0


def test_a_graph_keeps_what_is_known_apart():
    with ascend_sim.paced():
        ids = torch.arange(8, device="npu")
        weight = torch.randn(8, 8, device="npu")
        graph, (known, unknown) = captured(lambda: (ids * 2, (ids * 2.0) @ weight))
        graph.replay()
        assert known.tolist() == [2 * i for i in range(8)]
        ids.add_(1)
        graph.replay()
        assert known.tolist() == [2 * i + 2 for i in range(8)]
        with pytest.raises(RuntimeError, match=NOT_COMPUTED):
            unknown.cpu()


def test_what_is_known_before_is_known_inside_and_what_is_skipped_stays_unknown_after():
    a = torch.ones(8, 8, device="npu")
    with ascend_sim.paced():
        assert a.sum().item() == 64
        product = a @ a
    with pytest.raises(RuntimeError, match=NOT_COMPUTED):
        product.cpu()
    with pytest.raises(RuntimeError, match="was not computed"):
        product.add_(1)
        torch.npu.synchronize()
    assert torch.equal((a @ a).cpu(), torch.full((8, 8), 8.0))
    product.fill_(2)
    assert product.sum().item() == 128


def test_the_clock_computes_again_after_an_error_inside():
    with pytest.raises(KeyError):
        with ascend_sim.paced():
            raise KeyError
    assert ascend_sim.clock() == "cpu"
    assert (torch.ones(4, device="npu") @ torch.ones(4, device="npu")).item() == 4


def test_paced_inside_paced_gives_back_the_outer_one():
    x = torch.zeros(16, device="npu")
    with ascend_sim.paced(card(kernel_us=100.0)):
        with ascend_sim.paced(card(kernel_us=1.0)):
            x.add_(1)
        assert ascend_sim.clock() == "paced"
        assert ascend_sim.pacing.work(lambda: x.add_(1), card(kernel_us=50.0))[0].computed
        with ascend_sim.trace() as spans:
            x.add_(1)
        assert spans[0].ended - spans[0].started == pytest.approx(100e-6)


REFUSED = """
import helpers
helpers.activate(verbose=False)
import ascend_sim, torch
x, host = torch.zeros(4, device="npu"), torch.empty(8, 8).pin_memory()
with ascend_sim.paced():
    product = torch.ones(8, 8, device="npu") @ torch.ones(8, 8, device="npu")
    for refused in (product.nonzero, lambda: host.copy_(product, non_blocking=True), product.cpu):
        try:
            refused()
            torch.npu.synchronize()
            print("not refused")
        except RuntimeError as error:
            assert "was not computed" in str(error)
        x.add_(5)
    print(x.tolist())
x.add_(5)
print(x.tolist())
"""


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_refusal_does_not_stop_the_task_queue(run_python, level):
    done = run_python(REFUSED, TASK_QUEUE_ENABLE=str(level))
    assert done.stdout.splitlines() == [str([15.0] * 4), str([20.0] * 4)], done.stderr


def test_a_copy_to_the_host_is_judged_when_its_turn_comes():
    host = torch.empty(8, 8).pin_memory()
    with ascend_sim.paced():
        product = not_computed()
    product.fill_(2)
    host.copy_(product, non_blocking=True)
    torch.npu.synchronize()
    assert host.sum() == 128


def test_what_follows_on_the_other_clock_is_unknown_too():
    with ascend_sim.paced():
        product = not_computed()
    b = torch.full((8, 8), 3.0, device="npu")
    b.add_(product)
    with pytest.raises(RuntimeError, match="was not computed"):
        torch.npu.synchronize()
    with pytest.raises(RuntimeError, match="was not computed"):
        b.sum().item()
    assert (torch.empty(100, 100, device="npu") @ torch.zeros(100, 100, device="npu")).sum().item() == 0


def test_memory_that_a_tensor_gave_back_is_new_to_the_next():
    with ascend_sim.paced():
        kept, given_back = (torch.ones(100, 100, device="npu") @ torch.ones(100, 100, device="npu") for _ in range(2))
        place = given_back.data_ptr()
        del given_back
    again = [torch.empty(100, 100, device="npu") for _ in range(30)]
    assert place in [x.data_ptr() for x in again], "the allocator has kept it, beside what lives"
    for x in again:
        (x + 1).cpu()
    with pytest.raises(RuntimeError, match=NOT_COMPUTED):
        kept.cpu()


def test_many_pieces_are_known_exactly():
    with ascend_sim.paced():
        x = torch.ones(500, 8, device="npu") @ torch.ones(8, 8, device="npu")
        x[:, 2:4] = 7
        assert x[:, 2:4].sum().item() == 7 * 1000
        with pytest.raises(RuntimeError, match=NOT_COMPUTED):
            x[:, 1:3].sum().item()


# ---- streams, events, host functions


def test_streams_run_side_by_side_and_wait_for_each_other():
    x, y = (torch.zeros(16, device="npu") for _ in range(2))
    other, event = torch.npu.Stream(), torch.npu.Event()
    with ascend_sim.paced(card(kernel_us=20_000.0)):
        began = time.perf_counter()
        for _ in range(5):
            x.add_(1)
            with torch.npu.stream(other):
                y.add_(1)
        torch.npu.synchronize()
        side_by_side = time.perf_counter() - began
        with torch.npu.stream(other):
            y.add_(1)
            event.record()
        assert not event.query() and not other.query()
        torch.npu.current_stream().wait_event(event)
        with ascend_sim.trace() as spans:
            x.add_(1)
        event.synchronize()
        assert event.query()
    assert 0.1 <= side_by_side < 0.18
    assert len(spans) == 1


def test_a_captured_fork_runs_side_by_side():
    x, y = (torch.zeros(16, device="npu") for _ in range(2))
    side = torch.npu.Stream()

    def fork():
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            for _ in range(5):
                y.add_(1)
        for _ in range(5):
            x.add_(1)
        main.wait_stream(side)
        x.add_(y)

    graph, _ = captured(fork)
    device, _ = seconds(graph.replay, card(kernel_us=1000.0))
    assert device == pytest.approx(6e-3, rel=0.02)


def test_a_host_function_has_its_turn():
    x, host = torch.zeros(4, device="npu"), torch.zeros(4).pin_memory()
    stream = torch.npu.current_stream()

    def fill(value):
        time.sleep(0.02)
        host.add_(value)

    with ascend_sim.paced(card(kernel_us=2000.0)):
        began = time.perf_counter()
        y = x + 1
        torch.npu._launch_host_func(stream, fill, 7)
        x.copy_(host, non_blocking=True)
        y.add_(x)
        torch.npu.synchronize()
        wall = time.perf_counter() - began
        assert y.tolist() == [8.0] * 4
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            torch.npu._launch_host_func(torch.npu.current_stream(), fill, 10)
            x.copy_(host, non_blocking=True)
            z = x * 10
        for n in (1, 2):
            graph.replay()
            assert z.tolist() == [(7 + 10 * n) * 10.0] * 4
    assert 0.02 + 2 * 2e-3 <= wall < 0.2  # after the first addition, before the second


def test_an_external_event_holds_a_replay_back():
    x, out = (torch.zeros(4, device="npu") for _ in range(2))
    side, event = torch.npu.Stream(), torch.npu.ExternalEvent()
    with ascend_sim.paced():
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            event.wait()
            event.reset()
            torch.mul(x, 10, out=out)
        for n in (1.0, 2.0):
            graph.replay()
            with torch.npu.stream(side):
                x.fill_(n)
                event.record()
            torch.npu.synchronize()
            assert out.tolist() == [10 * n] * 4


def test_two_threads_on_one_stream_take_turns():
    x = torch.zeros(16, device="npu")

    def launch():
        torch.npu.set_device(0)
        for _ in range(1000):
            x.add_(1)

    with ascend_sim.paced(card(kernel_us=50.0)):
        threads = [threading.Thread(target=launch) for _ in range(2)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.npu.synchronize()
        assert time.perf_counter() - began >= 2000 * 50e-6
        assert x.tolist() == [2000.0] * 16


def test_a_read_takes_its_copy():
    with ascend_sim.paced(card(copy_us=5000.0)):
        x = torch.arange(4, device="npu")
        began = time.perf_counter()
        assert x[2].item() == 2
        assert time.perf_counter() - began >= 5e-3


def test_the_clock_is_one_for_all_threads():
    errors = []

    def enter():
        try:
            with ascend_sim.paced():
                pass
        except RuntimeError as error:
            errors.append(str(error))

    with ascend_sim.paced():
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert ascend_sim.clock() == "paced"
    assert errors == ["the paced clock runs for another thread: it is one for the whole device"]
    enter()
    assert len(errors) == 1


def test_memory_is_the_cards():
    with ascend_sim.paced(card(memory_gib=64.0)):
        assert torch.npu.mem_get_info()[1] == 64 << 30
        big = torch.empty(
            40 << 30, dtype=torch.uint8, device="npu"
        )  # more than this machine has, and nothing is touched
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(40 << 30, dtype=torch.uint8, device="npu")
        del big
    assert torch.npu.mem_get_info()[1] < 64 << 30


# ---- cards


def test_the_profile_has_a_source_for_each_constant():
    found = ascend_sim.Card.load()
    for key in ascend_sim.pacing.CONSTANTS:
        constant = getattr(found, key)
        assert constant.low <= constant.value <= constant.high
        assert len(constant.source) > 20
    assert found.fast().kernel_us.value == found.kernel_us.low
    assert found.slow().bandwidth_gb_s.value == found.bandwidth_gb_s.low
    assert found.fast().plan_us == found.plan_us  # the host is not the card


def test_a_host_alone_is_what_a_call_takes_without_its_kernels():
    a = torch.empty(3000, 3000, device="npu")
    slow_host = card(replay_us=2000.0)
    graph, _ = captured(lambda: a @ a)
    for run_on, least in ((slow_host, 56e-3), (slow_host.host_only(), 2e-3)):
        _, wall = seconds(graph.replay, run_on)
        assert least <= wall < least + 20e-3


def test_a_card_is_saved_and_loaded(tmp_path):
    card().save(tmp_path / "mine.json")
    assert ascend_sim.Card.load(tmp_path / "mine.json") == card()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda p: p["constants"].pop("kernel_us"), "lacks 'kernel_us'"),
        (lambda p: p["constants"]["kernel_us"].update(low=9.0), "kernel_us: expected 0 <= low"),
        (lambda p: p["constants"]["kernel_us"].update(value="5"), "kernel_us: expected 0 <= low"),
        (lambda p: p["constants"]["bandwidth_gb_s"].update(low=0), "a rate must be above 0"),
        (lambda p: p["constants"].update(kernel_us=3), "not a profile"),
        (lambda p: p.pop("name"), "lacks 'name'"),
        (lambda p: p.update(name=3), "name: expected a text"),
        (lambda p: p["constants"]["kernel_us"].update(high=float("nan")), "kernel_us: expected 0 <= low"),
        (lambda p: p["constants"]["kernel_us"].update(high=float("inf")), "kernel_us: expected 0 <= low"),
        (lambda p: p["constants"]["kernel_us"].update(value=True), "kernel_us: expected 0 <= low"),
    ],
)
def test_a_broken_profile_says_what_is_wrong(tmp_path, break_it, message):
    path = tmp_path / "mine.json"
    card().save(path)
    profile = json.loads(path.read_text())
    break_it(profile)
    path.write_text(json.dumps(profile))
    with pytest.raises(ascend_sim.CardError, match=message):
        ascend_sim.Card.load(path)


@pytest.mark.parametrize("name", ["ascend_1", "x" * 5000, None])
def test_an_unknown_card_names_those_there_are(name):
    with pytest.raises(ascend_sim.CardError, match="ascend_910b2"):
        ascend_sim.Card.load(name)


def test_a_card_made_by_hand_is_checked():
    with pytest.raises(ascend_sim.CardError, match="kernel_us: expected a Constant"):
        with ascend_sim.paced(dataclasses.replace(card(), kernel_us=5.0)):
            pass
    assert ascend_sim.clock() == "cpu"


def test_fit_finds_the_card_that_was_measured():
    def small():
        for _ in range(50):
            x.add_(1)

    def large():
        for _ in range(5):
            a @ a
            x.add_(1)

    true = card(kernel_us=7.0, float32_tflop_s=1.7, bandwidth_gb_s=1700.0, float16_tflop_s=6.8, int8_tflop_s=13.6)
    with ascend_sim.paced(card()):
        x, a = torch.zeros(16, device="npu"), torch.empty(1500, 1500, device="npu")
        works = [ascend_sim.work(fn, card()) for fn in (small, large)]
    fitted = ascend_sim.fit(card(), *((w, true.seconds(w)) for w in works))
    assert fitted.kernel_us.value == pytest.approx(7.0, rel=1e-4)
    assert fitted.float32_tflop_s.value == pytest.approx(1.7, rel=1e-4)
    with pytest.raises(ascend_sim.CardError, match="launch-bound and the other compute-bound"):
        ascend_sim.fit(card(), (works[0], 1e-9), (works[1], 1.0))
    with pytest.raises(ascend_sim.CardError, match="needs its kernels and a time"):
        ascend_sim.fit(card(), ([], 1.0), (works[1], 1.0))


def test_python_and_the_device_count_alike():
    with ascend_sim.paced(card()):
        a, host = torch.empty(500, 500, device="npu"), torch.empty(100_000).pin_memory()
        spans = ascend_sim.work(lambda: (a @ a, a + 1, a[:5].half() * 2, host.to("npu", non_blocking=True)), card())
    assert {span.peak for span in spans} >= {"float32", "float16", "link"}
    for span in spans:
        assert card().kernel_seconds(span) == pytest.approx(span.ended - span.started, rel=1e-6)


def test_nothing_is_paced_without_a_simulated_device(run_python):
    done = run_python("import ascend_sim\nwith ascend_sim.paced(): pass")
    assert "nothing to pace" in done.stderr


def test_torch_npu_orders_no_mask_of_a_graph_after_the_attention_before_it():
    """Notebook 10's race, in modelled times. Should a torch_npu order them, `helpers check` must lose its finding."""

    def two(q, x):
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), F.dropout(x, 0.5)

    def attention_and_second_mask(call):
        with ascend_sim.trace() as spans:
            call()
            torch.npu.synchronize()
        (attention,) = (span for span in spans if "FlashAttention" in span.name)
        _, second = (span for span in spans if "DropoutGenMask" in span.name)
        return attention, second

    with ascend_sim.paced():
        q, x = torch.randn(4, 16, 512, 64, device="npu"), torch.ones(1024, device="npu")
        two(q, x)
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            two(q, x)
        attention, second = attention_and_second_mask(lambda: two(q, x))
        assert second.started >= attention.ended
        attention, second = attention_and_second_mask(graph.replay)
        assert second.stream != attention.stream and second.started < attention.ended
