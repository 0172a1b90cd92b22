"""Molecules: SMILES tokens, GenMol's sampling step in a form that can be captured, and a model that is trained."""

import csv
import random
import re
from collections.abc import Callable, Sequence
from importlib import resources

import torch

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

    The rule is ``MDLM.step_confidence`` of NVIDIA's bionemo-moco, which GenMol samples with (both Apache-2.0). That one
    uses boolean indexing and draws its own noise, so shapes depend on values and the host has to wait; here shapes are
    fixed and noise comes in as tensors, so one capture serves all steps.
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


def sampling_step(model: GenMol, temperature: float = 0.5, randomness: float = 0.5) -> Callable[..., torch.Tensor]:
    """``step(ids, mask, expo, gumbel, keep) -> ids``: one forward and one confidence_step, ready to capture."""

    def step(ids, mask, expo, gumbel, keep):
        return confidence_step(model(ids, mask), ids, expo, gumbel, keep, temperature, randomness)

    return step


def masked_rows(lengths: Sequence[int], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where sampling begins: ids [len(lengths), tokens] with ``lengths[i]`` masks in row i, and the rows' mask."""
    ids = torch.full((len(lengths), tokens), PAD)
    for row, n in zip(ids, lengths, strict=True):
        if not 0 < n <= tokens - 2:
            raise ValueError(f"{n} masks and 2 ends do not fit into {tokens} tokens")
        row[0], row[1 : n + 1], row[n + 1] = CLS, MASK, SEP
    return ids, ids != PAD


def draw_noise(batch: int, tokens: int, vocab: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """expo and gumbel of one step, as confidence_step takes them, drawn on the CPU."""
    expo = torch.empty(batch, tokens, vocab).exponential_(generator=generator)
    gumbel = -torch.empty(batch, tokens).exponential_(generator=generator).log()
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
