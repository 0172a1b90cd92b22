"""Exercises of notebook 8: what each wrong answer is told."""

import helpers
from helpers.models import MASK

import pytest
import torch
from torch.distributions import Categorical


def place(logits, ids, expo):
    """Tokens that are drawn, and the place of the surest."""
    p = logits.softmax(-1)
    drawn = (p / expo).argmax(-1)
    sure = torch.where(ids == MASK, p.gather(-1, drawn.unsqueeze(-1)).squeeze(-1), -1.0)
    return drawn, torch.zeros_like(ids, dtype=torch.bool).scatter(1, sure.argmax(-1, keepdim=True), True)


def right(logits, ids, expo):
    drawn, here = place(logits, ids, expo)
    return torch.where(here & (ids == MASK), drawn, ids)


def by_comparing(logits, ids, expo):
    p = logits.softmax(-1)
    drawn = (p / expo).argmax(-1)
    sure = p.gather(-1, drawn.unsqueeze(-1)).squeeze(-1).masked_fill(ids != MASK, -1)
    return torch.where((sure == sure.amax(-1, keepdim=True)) & (ids == MASK), drawn, ids)


def over_known_tokens(logits, ids, expo):
    drawn, here = place(logits, ids, expo)
    return torch.where(here, drawn, ids)


def all_masks(logits, ids, expo):
    return torch.where(ids == MASK, place(logits, ids, expo)[0], ids)


def likeliest(logits, ids, expo):
    return right(logits, ids, torch.ones_like(expo))


def another_place(logits, ids, expo):
    masked = ids == MASK
    here = torch.zeros_like(masked).scatter(1, masked.float().argmax(-1, keepdim=True), True) & masked
    return torch.where(here, place(logits, ids, expo)[0], ids)


def in_place(logits, ids, expo):
    return ids.copy_(right(logits, ids, expo))


def waiting(logits, ids, expo):
    drawn, here = place(logits, ids, expo)
    ids, here = ids.clone(), here & (ids == MASK)
    ids[here] = drawn[here]
    return ids


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda *_: ..., "to do: "),
        (lambda *_: None, "not yet: give back tokens of shape [4, 12], torch.int64; yours is a NoneType"),
        (
            lambda *given: right(*given).float(),
            "not yet: give back tokens of shape [4, 12], torch.int64; yours is [4, 12]",
        ),
        (lambda *given: right(*given).cpu(), "not yet: the tokens are on the CPU"),
        (lambda logits, ids, expo: ids, "not yet: masks filled in each row: [0, 0, 0, 0]"),
        (over_known_tokens, "not yet: a token that was known has changed"),
        (all_masks, "not yet: masks filled in each row: [0, 12, "),
        (likeliest, "not yet: "),
        (another_place, "not yet: another place differs"),
        (in_place, "not yet: your function changes what it was given"),
        (waiting, "not yet: the tokens are right, but the host waits twice. A capture ends at line "),
        (right, "solved: "),
        (by_comparing, "solved: "),
    ],
)
def test_fill_surest(answer, says, verdict):
    assert verdict(answer, "fill_surest").startswith(says)


def one_launch(fall_first=False, write_back=True, restore=True, lower=True, twice=False):
    def one_launch_a_step(step, ids, keep, fall):
        start = ids.clone(), keep.clone()

        def whole_step():
            if lower and fall_first:
                keep.sub_(fall)
            for _ in range(1 + twice):
                new = step(ids, keep)
                if write_back:
                    ids.copy_(new)
            if lower and not fall_first:
                keep.sub_(fall)

        graph = helpers.capture(whole_step).graph
        if restore:
            ids.copy_(start[0])
            keep.copy_(start[1])
        return graph

    return one_launch_a_step


def without_warm_up(step, ids, keep, fall):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        ids.copy_(step(ids, keep))
        keep -= fall
    return graph


def a_function(step, ids, keep, fall):
    return lambda: (ids.copy_(step(ids, keep)), keep.sub_(fall))


def asks(step, ids, keep, fall):
    return helpers.capture(lambda: ids.copy_(step(ids, torch.ones_like(keep) * keep.item()))).graph


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda *_: ..., "to do: "),
        (a_function, "not yet: give back the torch.npu.NPUGraph, for its replay(); yours is a function"),
        (one_launch(restore=False), "not yet: before the first replay ids or keep is not as it was"),
        (one_launch(lower=False), "not yet: after 1 replay keep does not fall: it should be 0.875"),
        (one_launch(write_back=False), "not yet: a replay leaves ids as it was"),
        (one_launch(fall_first=True), "not yet: after 1 replay ids are not those of as many eager steps"),
        (one_launch(twice=True), "not yet: after "),
        (asks, "not yet: "),
        (lambda *_: torch.npu.NPUGraph(), "not yet: "),
        (without_warm_up, "solved: six replays equal six eager steps"),
        (one_launch(), "solved: six replays equal six eager steps"),
    ],
)
def test_one_launch_a_step(answer, says, verdict):
    assert verdict(answer, "one_launch_a_step").startswith(says)


def test_each_eager_step_changes_ids():
    """Else a replay that does nothing could pass."""
    from helpers.exercises import generation

    step = generation._guess_step()
    states = [generation._eager_steps(step, 0.125, n)[0] for n in range(7)]
    assert not any(torch.equal(a, b) for a, b in zip(states, states[1:], strict=False))


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda *_: ..., "to do: "),
        (
            lambda logits, gumbel, t: Categorical(logits=logits / t).sample(),
            "not yet: the host waits once. A capture en",
        ),
        (lambda logits, gumbel, t: logits.argmax(-1), "not yet: at temperature 1: these are the likeliest tokens"),
        (
            lambda logits, gumbel, t: (logits + gumbel).argmax(-1),
            "not yet: at temperature 0.5: the noise is divided by ",
        ),
        (
            lambda logits, gumbel, t: ((logits + gumbel) / t).argmax(-1),
            "not yet: at temperature 0.5: the noise is divided",
        ),
        (
            lambda logits, gumbel, t: ((logits / t).softmax(-1) + gumbel).argmax(-1),
            "not yet: at temperature 1: the noise is",
        ),
        (
            lambda logits, gumbel, t: (logits / t - gumbel).argmax(-1),
            "not yet: at temperature 1: the noise is subtracted",
        ),
        (
            lambda logits, gumbel, t: (logits * t + gumbel).argmax(-1),
            "not yet: at temperature 0.5: the logits are multip",
        ),
        (
            lambda logits, gumbel, t: (logits.div_(t) + gumbel).argmax(-1),
            "not yet: your function changes logits or gumbel",
        ),
        (lambda logits, gumbel, t: gumbel.argmax(-1), "not yet: at temperature 1: these are not the tokens that"),
        (lambda logits, gumbel, t: logits / t + gumbel, "not yet: give back tokens of shape [4, 64], torch.int64"),
        (lambda logits, gumbel, t: ((logits / t).log_softmax(-1) + gumbel).argmax(-1), "solved: of 20,000 draws"),
    ],
)
def test_draw_tokens(answer, says, verdict):
    assert verdict(answer, "draw_tokens").startswith(says)
