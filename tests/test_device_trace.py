"""The trace: one span a kernel, in order, on the host's clock."""

import time

import ascend_sim

import pytest
import torch

pytestmark = pytest.mark.timed


def test_spans_have_names_and_ordered_times():
    x = torch.ones(16, device="npu")
    before = time.perf_counter()
    with ascend_sim.trace() as spans:
        (x + 1) * x
    after = time.perf_counter()
    assert [s.name for s in spans] == ["aclnnAdds", "aclnnMul"]
    for span in spans:
        assert before <= span.enqueued <= span.started <= span.ended <= after


def test_replay_has_the_spans_of_eager():
    x = torch.ones(16, device="npu")

    def step():
        return (x + 1) * x - 2

    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        step()
    with ascend_sim.trace() as eager:
        step()
    with ascend_sim.trace() as replay:
        graph.replay()
    assert [s.name for s in replay] == [s.name for s in eager]
    assert len({s.enqueued for s in replay}) == 1, "one launch for all"
    assert len({s.enqueued for s in eager}) == len(eager)


def test_a_trace_forgets_the_one_before():
    x = torch.ones(16, device="npu")
    with ascend_sim.trace() as first:
        x + 1
    with ascend_sim.trace() as second:
        pass
    assert (len(first), len(second)) == (1, 0)
