"""Molecules: SMILES tokens, GenMol's sampling step in a form that can be captured, and a model that is trained."""

import csv
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import resources

import torch
from torch.distributions import Categorical

from .genmol import CLS, MASK, PAD, SEP, SPECIAL, GenMol
from .tokens import Tokenizer
from .weights import load

# ---- SMILES


def drugs() -> dict[str, str]:
    """48 well-known drugs: name to SMILES."""
    with resources.files("helpers").joinpath("data/drugs.csv").open(encoding="utf-8") as file:
        return {row["name"]: row["smiles"] for row in csv.DictReader(file)}


class SmilesTokenizer(Tokenizer):
    """SMILES to ids and back. The vocabulary is that of the 48 drugs after GenMol's five special tokens."""

    name = "SMILES"
    pattern = re.compile(r"\[[^\]]+\]|Br|Cl|%\d\d|[BCNOPSFIbcnops]|[-=#$:/\\.+()\d~*]")
    special, begin, end, pad = len(SPECIAL), CLS, SEP, PAD

    def __init__(self):
        kinds = {token for smiles in drugs().values() for token in self.pattern.findall(smiles)}
        super().__init__([*SPECIAL, *sorted(kinds)])


# ---- sampling


def confidence_step(
    logits: torch.Tensor,
    ids: torch.Tensor,
    expo: torch.Tensor,
    gumbel: torch.Tensor,
    keep: torch.Tensor,
    temperature: float = 0.5,
    randomness: float = 0.5,
) -> torch.Tensor:
    """Fill one mask in each row: the one whose drawn token the model is surest of. Rows without a mask stay.

    logits [batch, tokens, vocab], ids [batch, tokens]; noise: expo [batch, tokens, vocab] ~ Exponential(1) draws the
    tokens (argmax of p / expo is a sample of p), gumbel [batch, tokens] disturbs the confidence by randomness * keep,
    and keep [1] falls from 1 to 0 over the steps. Returns ids [batch, tokens].

    The rule is ``MDLM.step_confidence`` of NVIDIA's bionemo-moco, which GenMol samples with (both Apache-2.0). That
    one, ``published_step`` here, uses boolean indexing, so shapes depend on values and the host has to wait. In this
    one shapes are fixed and noise comes in as tensors, so one capture serves all steps. It leaves out a normalisation
    that the softmax undoes: the two may differ in the last bit of a probability, and in a token where two are so close.
    """
    masked = ids == MASK
    logits = logits.clone()
    logits[..., MASK] = -1e6  # never draw a mask
    p = (logits / temperature).softmax(-1)
    drawn = (p / expo).argmax(-1)
    confidence = p.gather(-1, drawn.unsqueeze(-1)).squeeze(-1).log() + gumbel * (randomness * keep)
    surest = confidence.masked_fill(~masked, -torch.inf).argmax(-1, keepdim=True)
    here = torch.zeros_like(masked).scatter(1, surest, True) & masked
    return torch.where(here, drawn, ids)


def published_step(
    logits: torch.Tensor,
    ids: torch.Tensor,
    i: int,
    steps: int,
    temperature: float = 0.5,
    randomness: float = 0.5,
    noise: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """The rule of confidence_step with the constructs of the published one: the host waits, so no capture takes it.

    ``MDLM.step_confidence`` of bionemo-moco 0.0.2.2 (NVIDIA, Apache-2.0), written anew operator by operator. Step ``i``
    of ``steps`` (at least 2). Like that one it draws its own noise and changes ``logits``. With ``noise``, expo and
    gumbel as confidence_step takes them, its tokens can be compared. Returns ids [batch, tokens].
    """
    ids = ids.clone()
    masked = ids == MASK
    logits[..., MASK] += -1e6
    scores = logits - logits.logsumexp(-1, keepdim=True)
    known = ids != MASK
    # A known token is drawn for certain, as itself.
    scores[known] = -1e6
    scores[known, ids[known]] = 0
    p = (scores / temperature).softmax(-1)
    choice = Categorical(probs=p)
    if noise is None:
        drawn = choice.sample()
        gumbel = -(-torch.rand(ids.shape).log()).log()
        gumbel = gumbel.to(ids.device)
    else:
        drawn, gumbel = (choice.probs / noise[0]).argmax(-1), noise[1]
    confidence = p.gather(-1, drawn.unsqueeze(-1)).squeeze(-1).log() + gumbel * randomness * (1 - i / (steps - 1))
    confidence[~masked] = -torch.inf
    surest = confidence.topk(1, dim=-1).values
    here = (masked.float() * (confidence >= surest).float()).bool()
    ids[here] = drawn[here]
    return ids


def sampling_step(model: GenMol, temperature: float = 0.5, randomness: float = 0.5) -> Callable[..., torch.Tensor]:
    """``step(ids, mask, expo, gumbel, keep) -> ids``: one forward and one confidence_step, ready to capture."""

    def step(ids, mask, expo, gumbel, keep):
        return confidence_step(model(ids, mask), ids, expo, gumbel, keep, temperature, randomness)

    return step


def drawing_step(
    model: Callable[..., torch.Tensor], temperature: float = 0.5, randomness: float = 0.5
) -> Callable[..., torch.Tensor]:
    """``step(ids, mask, keep) -> ids``: as sampling_step, but the device draws the noise, so that a replay draws anew.

    model: ``model(ids, mask) -> logits``, captured or not.
    """

    def step(ids, mask, keep):
        logits = model(ids, mask)
        noise = draw_noise(*logits.shape, device=logits.device)
        return confidence_step(logits, ids, *noise, keep, temperature, randomness)

    return step


def masked_rows(lengths: Sequence[int], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where sampling begins: ids [len(lengths), tokens] with ``lengths[i]`` masks in row i, and the rows' mask."""
    ids = torch.full((len(lengths), tokens), PAD)
    for row, n in zip(ids, lengths, strict=True):
        if not 0 < n <= tokens - 2:
            raise ValueError(f"{n} masks and 2 ends do not fit into {tokens} tokens")
        row[0], row[1 : n + 1], row[n + 1] = CLS, MASK, SEP
    return ids, ids != PAD


def draw_noise(
    batch: int, tokens: int, vocab: int, generator: torch.Generator | None = None, device="cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """expo and gumbel of one step, as confidence_step takes them, drawn on ``device``, which is that of the generator.

    Without a generator: from the device's own, the one that a graph keeps up with.
    """
    expo = torch.empty(batch, tokens, vocab, device=device).exponential_(generator=generator)
    gumbel = -torch.empty(batch, tokens, device=device).exponential_(generator=generator).log()
    return expo, gumbel


@torch.no_grad()
def generate(
    step: Callable[..., torch.Tensor], lengths: Sequence[int], tokens: int, vocab: int, seed: int = 0, device="npu"
) -> torch.Tensor:
    """Sample one row of ids a length, with ``step`` eager or captured: same seed, same ids [len(lengths), tokens].

    It takes ``max(lengths)`` steps. The result is on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    ids, mask = (x.to(device) for x in masked_rows(lengths, tokens))
    steps = max(lengths)
    for i in range(steps):
        noise = draw_noise(len(lengths), tokens, vocab, generator)
        keep = torch.tensor([1 - i / max(steps - 1, 1)])
        ids = step(ids, mask, *(x.to(device) for x in (*noise, keep)))
    return ids.cpu()


def in_buckets(lengths: Sequence[int], buckets: Sequence[int], batch: int) -> Iterator[tuple[int, list[int]]]:
    """(tokens, places in ``lengths``) for each call of at most ``batch`` molecules, the shortest molecules first.

    tokens is the smallest of ``buckets`` that holds every molecule of the call with its two ends.
    """
    if max(lengths) + 2 > max(buckets):
        raise ValueError(f"{max(lengths)} masks and 2 ends do not fit into the largest bucket, {max(buckets)} tokens")
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for tokens, group in itertools.groupby(order, lambda at: min(b for b in buckets if lengths[at] + 2 <= b)):
        places = list(group)
        for start in range(0, len(places), batch):
            yield tokens, places[start : start + batch]


@torch.no_grad()
def generate_in_buckets(
    step_for: Callable[[int], Callable[..., torch.Tensor]],
    lengths: Sequence[int],
    buckets: Sequence[int],
    batch: int,
    seed: int = 0,
    device="npu",
) -> torch.Tensor:
    """Sample one row of ids a length, each padded to its bucket: ids [len(lengths), max(buckets)], on the CPU.

    step_for: from a bucket to its ``step(ids, mask, keep)`` (drawing_step), which always gets ``batch`` rows of that
    many tokens, so one capture a bucket serves. Rows that a call does not need hold one mask; their result is dropped.
    The host waits once a call, for its result. Seeds torch's generators: same seed, same ids, eager or captured.
    """
    result = torch.full((len(lengths), max(buckets)), PAD)
    for call, (tokens, places) in enumerate(in_buckets(lengths, buckets, batch)):
        step = step_for(tokens)
        torch.manual_seed(seed + call)  # after step_for: a capture draws too
        own = [lengths[at] for at in places]
        ids, mask = (x.to(device) for x in masked_rows(own + [1] * (batch - len(own)), tokens))
        steps = max(own)
        keep = torch.tensor([[1 - i / max(steps - 1, 1)] for i in range(steps)]).to(device)
        for i in range(steps):
            ids = step(ids, mask, keep[i])
        result[places, :tokens] = ids[: len(own)].cpu()
    return result


@torch.no_grad()
def generate_as_published(
    model: GenMol, lengths: Sequence[int], batch: int, seed: int = 0, device="npu"
) -> torch.Tensor:
    """Sample one row of ids a length with published_step: ids [len(lengths), max(lengths) + 2], on the CPU.

    As GenMol's loop does, it pads a call to its longest row and asks the device for the number of steps.
    """
    whole = max(lengths) + 2
    result = torch.full((len(lengths), whole), PAD)
    for call, (_, places) in enumerate(in_buckets(lengths, (whole,), batch)):
        torch.manual_seed(seed + call)
        own = [lengths[at] for at in places]
        ids, mask = (x.to(device) for x in masked_rows(own, max(own) + 2))
        steps = max((ids == MASK).sum(-1).max().item(), 2)
        for i in range(steps):
            ids = published_step(model(ids, mask), ids, i, steps)
        result[places, : ids.shape[1]] = ids.cpu()
    return result


def drug_lengths(count: int, seed: int = 0) -> list[int]:
    """``count`` lengths drawn from those of the drugs, in tokens without the two ends."""
    tokenizer = SmilesTokenizer()
    return random.Random(seed).choices([len(tokenizer.split(smiles)) for smiles in drugs().values()], k=count)


# ---- the trained model


TINY = dict(width=48, layers=3, heads=4, inner=96, length=64)  # tools/train_tiny.py made its weights


def genmol_tiny() -> tuple[GenMol, SmilesTokenizer]:
    """A small GenMol that knows the 48 drugs by heart: it shows recall, not invention. On the CPU."""
    tokenizer = SmilesTokenizer()
    model = GenMol(len(tokenizer), **TINY).eval()
    with resources.as_file(resources.files("helpers").joinpath("data/genmol_tiny.ckpt")) as path:
        load(model, path)
    return model, tokenizer
