"""Checks of the exercises of notebook 8, *Capture a generation loop*."""

import sys
import traceback
from collections.abc import Callable
from functools import partial

import ascend_sim

import torch
from torch.nn import functional as F

from ..capture import CaptureError, capture, first_error
from ..models import MASK
from ..records import place_in
from ..waits import host_waits
from .checking import Wrong, exercise

ROWS, TOKENS, VOCAB = 4, 12, 27


@exercise
def fill_surest(answer) -> str:
    for seed in range(20):
        logits, ids, expo = _state(seed)
        given = [x.clone() for x in (logits, ids, expo)]
        made = _tokens(answer(logits, ids, expo), ids.shape)
        if not all(map(torch.equal, given, (logits, ids, expo))):
            raise Wrong("your function changes what it was given: it must work on new tensors")
        right = _fill_surest(*given)
        masked = (given[1] == MASK).cpu()
        if not torch.equal(made[~masked], given[1].cpu()[~masked]):
            raise Wrong("a token that was known has changed: only a place with a mask may get another token")
        filled = (made != given[1].cpu()).sum(-1)
        if not torch.equal(filled, masked.any(-1).long()):
            raise Wrong(f"masks filled in each row: {filled.tolist()}, and with masks left are the rows "
                        f"{masked.any(-1).tolist()}: it is one mask in each row that has one")  # fmt: skip
        if not torch.equal(made, right):
            wrong = "another place" if not torch.equal(made != given[1].cpu(), right != given[1].cpu()) else "a token"
            raise Wrong(f"{wrong} differs from that of the given step with the same noise (state {seed})")
    logits, ids, expo = _state(0)
    waits = sum(host_waits(partial(answer, logits, ids, expo), within=sys.modules[__name__]).values())
    refused = _refusal(partial(answer, logits, ids, expo))
    if waits or refused:
        raise Wrong(f"the tokens are right, but the host waits {_times(waits)}{refused}")
    return "the same tokens in 20 states with the same noise, no wait, and a capture takes it"


def _state(seed: int) -> list[torch.Tensor]:
    """logits, ids and noise on the device; row 0 has no mask, and in row 1 all are masks."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(MASK + 1, VOCAB, (ROWS, TOKENS), generator=draw)
    ids[torch.rand(ROWS, TOKENS, generator=draw) < 0.5] = MASK
    ids[0], ids[1], ids[2:, 0] = MASK + 1, MASK, MASK
    logits = 4 * torch.randn(ROWS, TOKENS, VOCAB, generator=draw)
    logits[..., MASK] = -1e6  # a mask is never drawn
    expo = torch.empty(ROWS, TOKENS, VOCAB).exponential_(generator=draw)
    return [x.to("npu") for x in (logits, ids, expo)]


def _fill_surest(logits, ids, expo) -> torch.Tensor:
    """The rule, on the CPU, where boolean indexing costs nothing. The device rounds as the CPU does."""
    logits, ids, expo = logits.cpu(), ids.cpu(), expo.cpu()
    p = logits.softmax(-1)
    drawn = (p / expo).argmax(-1)
    sure = p.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    sure[ids != MASK] = -1
    for row, drawn_row, at in zip(ids, drawn, sure.argmax(-1), strict=True):
        row[at] = drawn_row[at] if row[at] == MASK else row[at]
    return ids


def _tokens(made, shape) -> torch.Tensor:
    if not isinstance(made, torch.Tensor) or made.shape != shape or made.dtype != torch.int64:
        said = f"{list(made.shape)}, {made.dtype}" if isinstance(made, torch.Tensor) else f"a {type(made).__name__}"
        raise Wrong(f"give back tokens of shape {list(shape)}, torch.int64; yours is {said}")
    if made.device.type != "npu":
        raise Wrong("the tokens are on the CPU: the step must stay on the device")
    return made.cpu()


def _refusal(call) -> str:
    """Where a capture of ``call`` ends; "" if it does not."""
    try:
        capture(call, warmup=0)
        return ""
    except CaptureError as error:
        where = place_in(traceback.format_tb(first_error(error).__traceback__))
        return f". A capture ends at line {where.line}, `{where.expression}`" if where else ". A capture refuses it"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


@exercise
def one_launch_a_step(answer) -> str:
    fall = 0.125
    step = _guess_step()
    ids, keep = _start()
    before = ids.clone(), keep.clone()
    graph = answer(step, ids, keep, fall)
    if not isinstance(graph, torch.npu.NPUGraph):
        raise Wrong(f"give back the torch.npu.NPUGraph, for its replay(); yours is a {type(graph).__name__}")
    if not torch.equal(ids, before[0]) or not torch.equal(keep, before[1]):
        raise Wrong("before the first replay ids or keep is not as it was: the warm-up has run the step for real, so "
                    "put both back after the capture")  # fmt: skip
    for number in range(1, 7):
        expected_ids, expected_keep = _eager_steps(step, fall, number)
        graph.replay()
        if not torch.equal(keep, expected_keep):
            moved = "does not fall" if torch.equal(keep, before[1]) else f"is {keep.item():g}"
            raise Wrong(f"after {number} replay{'s' * (number > 1)} keep {moved}: it should be "
                        f"{expected_keep.item():g}, one fall less for each step")  # fmt: skip
        if not torch.equal(ids, expected_ids):
            if torch.equal(ids, before[0]):
                raise Wrong("a replay leaves ids as it was: the step's result is a new tensor. Write it back into ids")
            raise Wrong(f"after {number} replay{'s' * (number > 1)} ids are not those of as many eager steps: is "
                        "keep lowered after the step, and the step taken once?")  # fmt: skip
    with ascend_sim.trace() as spans:
        graph.replay()
    launches = len({span.enqueued for span in spans})
    if launches != 1:
        raise Wrong(f"a replay is {launches} launches: all of the step belongs into one graph")
    return f"six replays equal six eager steps, bit for bit, and each is one launch of {len(spans)} kernels"


def _guess_step() -> Callable:
    """``step(ids, keep) -> ids`` without random numbers, whose result depends on ids and on keep."""
    draw = torch.Generator().manual_seed(1)
    weight = torch.randn(VOCAB, VOCAB, generator=draw).to("npu")
    noise = torch.randn(ROWS, TOKENS, VOCAB, generator=draw).to("npu") * 4

    def step(ids, keep):
        return (F.embedding(ids, weight) + noise * keep).argmax(-1)

    return step


def _start() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    return torch.randint(VOCAB, (ROWS, TOKENS), generator=draw).to("npu"), torch.ones(1, device="npu")


def _eager_steps(step, fall: float, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids, keep = _start()
    for _ in range(number):
        ids = step(ids, keep)
        keep -= fall
    return ids, keep


@exercise
def draw_tokens(answer) -> str:
    noise = torch.Generator().manual_seed(0)
    for temperature in (1.0, 0.5, 2.0):
        logits = 2 * torch.randn(ROWS, 64, VOCAB, generator=noise)
        gumbel = -torch.empty(ROWS, 64, VOCAB).exponential_(generator=noise).log()
        on_device = logits.to("npu"), gumbel.to("npu")
        given = [x.clone() for x in on_device]
        waits = sum(host_waits(partial(answer, *on_device, temperature), within=sys.modules[__name__]).values())
        if refused := _refusal(partial(answer, *on_device, temperature)):
            raise Wrong(f"the host waits {_times(waits)}{refused}")
        made = _tokens(answer(*on_device, temperature), logits.shape[:-1])
        if not all(map(torch.equal, given, on_device)):
            raise Wrong("your function changes logits or gumbel: it must work on new tensors")
        if not torch.equal(made, (logits / temperature + gumbel).argmax(-1)):
            raise Wrong(_why_not_drawn(made, logits, gumbel, temperature))
    return f"{_frequencies(answer)}. No wait, so a capture takes it"


def _why_not_drawn(made, logits, gumbel, temperature) -> str:
    alike = (
        (logits, "these are the likeliest tokens, whatever the noise: nothing is drawn"),
        (logits + gumbel, "the noise is divided by the temperature, too, so that the temperature changes nothing"),
        ((logits / temperature).softmax(-1) + gumbel, "the noise is added to probabilities: it belongs to logarithms"),
        (logits / temperature - gumbel, "the noise is subtracted: its long tail is above, and it is added"),
        (logits * temperature + gumbel, "the logits are multiplied by the temperature: a low one makes a draw surer"),
    )
    told = (text for scores, text in alike if torch.equal(made, scores.argmax(-1)))
    why = next(told, "these are not the tokens that the noise draws from softmax(logits / temperature)")
    return f"at temperature {temperature:g}: {why}"


def _frequencies(answer) -> str:
    """How often each token is drawn, beside its probability: a check of the rule itself."""
    draws, temperature = 20_000, 0.5
    logits = torch.tensor([1.0, 0.5, 0.0, -1.0])
    noise = -torch.empty(1, draws, 4).exponential_(generator=torch.Generator().manual_seed(3)).log()
    made = answer(logits.expand(1, draws, 4).contiguous().to("npu"), noise.to("npu"), temperature)
    found = torch.bincount(made.cpu().reshape(-1), minlength=4) / draws
    wanted = (logits / temperature).softmax(-1)
    pairs = ", ".join(f"{a:.3f} ({b:.3f})" for a, b in zip(found.tolist(), wanted.tolist(), strict=True))
    return f"of {draws:,} draws from four tokens the shares are, with the softmax in brackets: {pairs}"
