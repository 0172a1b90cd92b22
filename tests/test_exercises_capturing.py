"""Exercises of notebook 3: what each wrong answer is told."""

import helpers

import pytest
import torch


def captured_with(static, fits, copy, give, replay=True):
    """An answer to capture_safely, in parts."""

    def capture_safely(function, example):
        x = static(example)
        function(x)
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            y = function(x)

        def call(new):
            if not fits(x, new):
                raise ValueError("another shape or dtype")
            copy(x, new)
            graph.replay()
            return give(y)

        return call

    return capture_safely


def same(x, new):
    return x.shape == new.shape and x.dtype == new.dtype


def as_it_is(x):
    return x


RIGHT = dict(static=torch.clone, fits=same, copy=torch.Tensor.copy_, give=torch.clone)


@pytest.mark.parametrize(
    "changed, says",
    [
        ({}, "solved: "),
        (dict(static=as_it_is), "not yet: a call overwrites the example"),
        (dict(copy=lambda x, new: new.npu()), "not yet: the answer is not that to the new input"),
        (dict(give=as_it_is), "not yet: the second call changed what the first one returned"),
        (dict(give=lambda y: None), "not yet: your function returns something else"),
        (dict(fits=lambda x, new: True), "not yet: an input of shape [1, 4] instead of [3, 4] is taken"),
        (
            dict(fits=lambda x, new: x.shape == new.shape),
            "not yet: an input of dtype int64 instead of float32 is taken",
        ),
        (
            dict(fits=lambda x, new: x.copy_(new) is x and same(x, new)),
            "not yet: an input of shape [2, 4] instead of [3, 4] raises RuntimeError",
        ),
    ],
)
def test_capture_safely(changed, says, verdict):
    assert verdict(captured_with(**{**RIGHT, **changed})).startswith(says)


def test_capture_safely_compares_before_it_copies(verdict):
    def capture_safely(function, example):
        captured = helpers.capture(function, example)
        last = captured(example, clone=True)

        def call(x):
            nonlocal last
            if not same(example, x):
                captured.graph.replay = lambda: None  # the worst case: nothing works any more
                raise ValueError("too late")
            return captured(x, clone=True)

        return call

    assert verdict(capture_safely).startswith("not yet: after an input that was refused the answers are wrong")


def eager(function, example):
    return function


def eager_after_one_call(function, example):
    function(example)
    return function


def past_the_count(function, example):
    function(example)
    return lambda x: function.function(x.npu())


def by_its_own_formula(function, example):
    helpers.capture(function, example)
    return lambda x: (x.npu() * 3).sum(-1)


def twice(function, example):
    captured = helpers.capture(function, example)
    return lambda x: (captured(x), captured(x, clone=True))[1]


def not_a_function(function, example):
    return torch.npu.NPUGraph()


@pytest.mark.parametrize(
    "answer, says",
    [
        (eager, "not yet: nothing was captured"),
        (eager_after_one_call, "not yet: a call goes through Python again"),
        (past_the_count, "not yet: a call replays no graph"),
        (by_its_own_formula, "not yet: a call replays no graph"),
        (twice, "not yet: a call replays it 2 times"),
        (not_a_function, "not yet: return a function that replays; yours is a NPUGraph"),
    ],
)
def test_capture_safely_wants_a_replay(answer, says, verdict):
    assert verdict(answer, "capture_safely").startswith(says)


def test_capture_safely_may_use_the_helper(verdict):
    def capture_safely(function, example):
        captured = helpers.capture(function, example)
        return lambda x: captured(x, clone=True)

    assert verdict(capture_safely).startswith("solved: ")


def captured_in(order, pool):
    """An answer to capture_batches: the order of the examples, and what makes the pool of each."""

    def capture_batches(function, examples):
        pools = pool()
        return {len(x): helpers.capture(function, x, warmup=1, pool=next(pools)) for x in order(examples)}

    return capture_batches


def shared():
    handle = torch.npu.graph_pool_handle()
    while True:
        yield handle


def apart():
    while True:
        yield None


def largest_first(examples):
    return sorted(examples, key=len, reverse=True)


@pytest.mark.parametrize(
    "order, pool, says",
    [
        (largest_first, shared, "solved: "),
        (lambda examples: sorted(examples, key=len), shared, "the pool is shared, but a graph cannot use"),
        (list, shared, "the pool is shared, but a graph cannot use"),
        (largest_first, apart, "as much as with a pool for each"),
        (lambda examples: examples[:2], shared, "return a dict from each batch size"),
    ],
)
def test_capture_batches(order, pool, says, verdict):
    said = verdict(captured_in(order, pool))
    assert says in said and said.startswith("solved: " if says == "solved: " else "not yet: ")


def test_capture_batches_wants_replays(verdict):
    def capture_batches(function, examples):
        return {len(x): lambda new: function(new.npu()) for x in examples if function(x.npu()) is not None}

    assert verdict(capture_batches).startswith("not yet: batch 768: a call goes through Python again")


def test_capture_batches_counts_replays_on_the_device(verdict):
    def capture_batches(function, examples):
        return {len(x): lambda new: function.function(new.npu()) for x in examples if function(x.npu()) is not None}

    assert verdict(capture_batches).startswith("not yet: batch 768: a call replays no graph")


def unrolled(make):
    """An answer to unroll, from ``make(step, ids, mask, noise of all steps) -> result``."""

    def unroll(step):
        def steps(ids, mask, expo, gumbel, keep):
            return make(step, ids, mask, [*zip(expo, gumbel, keep, strict=True)])

        return steps

    return unroll


def right(step, ids, mask, noise):
    for own in noise:
        ids = step(ids, mask, *own)
    return ids


def one_noise(step, ids, mask, noise):
    for _ in noise:
        ids = step(ids, mask, *noise[0])
    return ids


def from_the_first(step, ids, mask, noise):
    for own in noise:
        result = step(ids, mask, *own)
    return result


def all_of_them(step, ids, mask, noise):
    return [ids := step(ids, mask, *own) for own in noise]


def too_few(step, ids, mask, noise):
    return right(step, ids, mask, noise[1:])


def backwards(step, ids, mask, noise):
    return right(step, ids, mask, noise[::-1])


def over_the_input(step, ids, mask, noise):
    return ids.copy_(right(step, ids, mask, noise))


def until_no_mask_is_left(step, ids, mask, noise):
    for own in noise:
        if (ids == 4).sum() == 0:
            break
        ids = step(ids, mask, *own)
    return ids


@pytest.mark.parametrize(
    "make, says",
    [
        (right, "solved: "),
        (one_noise, "not yet: each step gets the noise of the first"),
        (from_the_first, "not yet: each step begins at the first ids"),
        (all_of_them, "not yet: return the ids after the last step"),
        (too_few, "not yet: expo has 4 steps in its first dimension, and your function made 3"),
        (backwards, "not yet: the tokens are not those of four single steps"),
        (over_the_input, "not yet: your function overwrites ids"),
        (until_no_mask_is_left, "not yet: line "),
    ],
)
def test_unroll(make, says, verdict):
    assert verdict(unrolled(make)).startswith(says)
