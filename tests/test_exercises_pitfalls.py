"""Exercises of notebook 4: what each wrong answer is told."""

import random

import helpers

import pytest
import torch


def predictor(static, warm_up, copy, give):
    """An answer to make_predictor, in parts."""

    def make_predictor(model, example):
        x = static(example)
        if warm_up:
            model(x)
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            y = model(x)

        if copy is None:  # then predict does not hold x either

            def predict(batch):
                batch.npu()
                graph.replay()
                return give(y)

        else:

            def predict(batch):
                copy(x, batch)
                graph.replay()
                return give(y)

        return predict

    return make_predictor


def own_copy(example):
    return example.to("npu", copy=True)


def set_data(x, batch):
    x.data = batch.npu()


def as_it_is(y):
    return y


RIGHT = dict(static=own_copy, warm_up=True, copy=torch.Tensor.copy_, give=torch.clone)


@pytest.mark.parametrize(
    "changed, says",
    [
        ({}, "solved: "),
        (dict(static=torch.Tensor.npu, warm_up=False, copy=None, give=as_it_is), "the answer to every batch is that"),
        (dict(copy=None), "the answer is neither that to the batch nor that to the example"),
        (dict(copy=set_data), "the answer to every batch is that to the example"),
        (dict(give=as_it_is), "the second call of predict changed what the first one returned"),
        (dict(give=lambda y: None), "predict returns a tensor of the shape of its batch"),
        (dict(static=torch.Tensor.npu), "predict overwrites the example"),
        (dict(warm_up=False), "with a model that makes a constant on its first call, the capture is refused"),
    ],
)
def test_make_predictor(changed, says, verdict):
    said = verdict(predictor(**{**RIGHT, **changed}))
    assert said.removeprefix("not yet: ").startswith(says), said


def test_make_predictor_with_a_model_that_fills_its_constant(verdict):
    def make_predictor(model, example):
        return predictor(**{**RIGHT, "warm_up": model.lazy != "filled"})(model, example)

    assert verdict(make_predictor).startswith("not yet: a model that fills its constant on its first call is spoilt")


def test_make_predictor_in_eager_mode(verdict):
    def make_predictor(model, example):
        model(example.npu())
        return lambda batch: model(batch.npu())

    assert verdict(make_predictor).startswith("not yet: predict goes through Python again")


def test_make_predictor_past_the_count_of_calls(verdict):
    def make_predictor(model, example):
        model(example.npu())
        return lambda batch: batch.npu() * model.on_device + 1

    assert verdict(make_predictor).startswith("not yet: predict replays no graph")


def test_make_predictor_may_use_the_helper(verdict):
    def make_predictor(model, example):
        captured = helpers.capture(model, example)
        return lambda batch: captured(batch, clone=True)

    assert verdict(make_predictor).startswith("solved: ")


def sampler(noise, frozen=False, static=torch.clone, give=torch.clone):
    """An answer to make_sampler that draws by ``noise(x)``."""

    def make_sampler(model, example):
        static_x, temperature = static(example), torch.ones((), device="npu")
        model(static_x)
        noise(static_x)
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            y = model(static_x) + (1.0 if frozen else temperature) * noise(static_x)

        def sample(x, new_temperature):
            static_x.copy_(x)
            temperature.fill_(new_temperature)
            graph.replay()
            return give(y)

        return sample

    return make_sampler


def python_noise(x):
    return random.gauss(0.0, 1.0)


def number(x):
    return torch.randn((), device="npu")


def not_recorded(x):
    return torch.normal(0.0, 1.0, x.shape, device="npu")


@pytest.mark.parametrize(
    "noise, says",
    [
        (torch.randn_like, "solved: "),
        (python_noise, "not yet: two calls give the same noise"),
        (not_recorded, "not yet: two calls give the same noise"),
        (number, "not yet: all elements get the same number"),
        (torch.rand_like, "not yet: normal noise has mean 0 and deviation 1; yours has 0.5"),
    ],
)
def test_make_sampler(noise, says, verdict):
    assert verdict(sampler(noise)).startswith(says)


@pytest.mark.parametrize(
    "changed, says",
    [
        (dict(give=as_it_is), "not yet: the second call of sample changed what the first one returned"),
        (dict(static=as_it_is), "not yet: sample overwrites the example"),
    ],
)
def test_make_sampler_in_static_memory(changed, says, verdict):
    assert verdict(sampler(torch.randn_like, **changed)).startswith(says)


def test_make_sampler_past_the_count_of_calls(verdict):
    def make_sampler(model, example):
        model(example)
        return lambda x, temperature: x * model.factor + 1 + temperature * torch.randn_like(x)

    assert verdict(make_sampler).startswith("not yet: sample replays no graph")


def test_make_sampler_with_a_temperature_of_the_same_name(verdict):
    def make_sampler(model, example):
        static, temperature = example.clone(), torch.ones((), device="npu")
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            y = model(static) + temperature * torch.randn_like(static)

        def sample(x, new):
            static.copy_(x)
            temperature = torch.tensor(new, device="npu")  # noqa: F841
            graph.replay()
            return y.clone()

        return sample

    assert verdict(make_sampler).startswith("not yet: at temperature 0 the noise is still there")


def test_make_sampler_with_a_frozen_temperature(verdict):
    assert verdict(sampler(torch.randn_like, frozen=True)).startswith(
        "not yet: at temperature 0 the noise is still there"
    )


def test_make_sampler_in_eager_mode(verdict):
    def make_sampler(model, example):
        return lambda x, temperature: model(x) + temperature * torch.randn_like(x)

    assert verdict(make_sampler).startswith("not yet: sample goes through Python again")


def test_make_sampler_may_draw_on_the_host(verdict):
    def make_sampler(model, example):
        captured = helpers.capture(lambda x, noise: model(x) + noise, example, example)
        return lambda x, temperature: captured(x, temperature * torch.randn(x.shape), clone=True)

    assert verdict(make_sampler).startswith("solved: ")


def best_first(scores, rounds):
    places = torch.arange(len(scores), device=scores.device)
    taken = []
    for _ in range(rounds):
        best = scores.argmax()
        taken.append(torch.where(scores.max() > 0.5, best, -1))
        scores = torch.where(places == best, 0.0, scores)
    return torch.stack(taken)


def sorts(scores, rounds):
    values, places = scores.topk(rounds)
    return torch.where(values > 0.5, places, -1)


def loops(scores, rounds):
    taken = []
    while len(taken) < rounds and scores.max() > 0.5:
        taken.append(scores.argmax())
    return torch.stack(taken)


def indexes(scores, rounds):
    scores = scores.clone()
    best = scores.argmax()
    scores[best] = 0
    return best.expand(rounds)


def always_takes(scores, rounds):
    return scores.topk(rounds).indices


def takes_one_half(scores, rounds):
    values, places = scores.topk(rounds)
    return torch.where(values >= 0.5, places, -1)


def changes_its_input(scores, rounds):
    return sorts(scores.mul_(1.5), rounds)


def of_all_places(scores, rounds):
    return sorts(scores, len(scores))


def as_floats(scores, rounds):
    return sorts(scores, rounds).float()


@pytest.mark.parametrize(
    "answer, says",
    [
        (best_first, "solved: "),
        (sorts, "solved: "),
        (indexes, "not yet: line "),
        (always_takes, "not yet: three of six above 0.5"),
        (takes_one_half, "not yet: one at exactly 0.5"),
        (changes_its_input, "not yet: your function changes its input"),
        (of_all_places, "not yet: return a tensor of 4 places"),
        (as_floats, "not yet: the places are whole numbers"),
    ],
)
def test_greedy_search(answer, says, verdict):
    assert verdict(answer, "greedy_search").startswith(says)


def test_greedy_search_with_while_is_told_the_line(verdict):
    said = verdict(loops, "greedy_search")
    assert said.startswith("not yet: line ") and "`while len(taken) < rounds and scores.max() > 0.5:`" in said


def chosen_by(total, zero=lambda x: x):
    def three_branches(x):
        return torch.where(total(x) > 0, x * 2, torch.where(total(x) < 0, x - 1, zero(x)))

    return three_branches


def by_python(x):
    return x * 2 if x.sum() > 0 else x - 1


@pytest.mark.parametrize(
    "answer, says",
    [
        (chosen_by(torch.sum), "solved: "),
        (chosen_by(torch.clone), "not yet: the sum of [1.0, 2.0, -0.5] is above 0"),
        (chosen_by(torch.sum, lambda x: x - 1), "not yet: the sum of [1.0, -1.0, 0.0] is exactly 0"),
        (lambda x: x.sum(), "not yet: the result has the shape of the input"),
        (by_python, "not yet: line "),
    ],
)
def test_three_branches(answer, says, verdict):
    assert verdict(answer, "three_branches").startswith(says)


def graphs_and(step):
    """An answer to graph_for_each_branch, from ``step(graphs, branches, x)``."""

    def graph_for_each_branch(branches, example):
        graphs = {sign: helpers.capture(branch, example) for sign, branch in branches.items()}
        return lambda x: step(graphs, branches, x)

    return graph_for_each_branch


def by_sign(graphs, branches, x):
    return graphs[int(torch.sign(x.sum()))](x)


def by_two_waits(graphs, branches, x):
    return graphs[1](x) if x.sum() > 0 else graphs[-1](x) if x.sum() < 0 else graphs[0](x)


def by_branch(graphs, branches, x):
    return branches[int(torch.sign(x.sum()))](x)


def without_zero(graphs, branches, x):
    return graphs[1 if x.sum() > 0 else -1](x)


def all_branches(graphs, branches, x):
    below, zero, above = (graphs[sign](x) for sign in (-1, 0, 1))
    return torch.where(x.sum() > 0, above, torch.where(x.sum() < 0, below, zero))


@pytest.mark.parametrize(
    "step, says",
    [
        (by_sign, "solved: one branch runs and the others cost nothing, but to decide, the host waits once"),
        (by_two_waits, "solved: "),
        (by_branch, "not yet: a call goes through a branch in Python again"),
        (without_zero, "not yet: the sum of [1.0, -1.0, 0.0] is exactly 0"),
        (all_branches, "not yet: one call replays 3 branches"),
    ],
)
def test_graph_for_each_branch(step, says, verdict):
    assert verdict(graphs_and(step)).startswith(says)


def test_graph_for_each_branch_leaves_the_example(verdict):
    def graph_for_each_branch(branches, example):
        step = graphs_and(by_sign)(branches, example)

        def over_the_example(x):
            example.copy_(x)
            return step(x)

        return over_the_example

    assert verdict(graph_for_each_branch).startswith("not yet: a call overwrites the example")


def test_graph_for_each_branch_captures_before_the_first_call(verdict):
    def graph_for_each_branch(branches, example):
        graphs = {}

        def step(x):
            sign = int(torch.sign(x.sum()))
            if sign not in graphs:
                graphs[sign] = helpers.capture(branches[sign], example)
            return graphs[sign](x)

        return step

    assert verdict(graph_for_each_branch).startswith("not yet: the branch of the sign 1 was not captured")
