"""The workload: GenMol's backbone at any size, its sampling step in a form that can be captured, and SMILES tokens.

GenMol (NVIDIA-Digital-Bio/genmol, Apache-2.0) is a masked diffusion model of molecules: a BERT that fills masks, and a
loop that keeps its most confident token each time. Written anew here for plain torch, with the names of
``transformers.BertForMaskedLM``, so that the weights of the real model load.
"""

import csv
import os
import random
import re
from collections.abc import Callable, Sequence
from importlib import resources

import torch
from torch import nn
from torch.nn import functional as F

UNK, CLS, SEP, PAD, MASK = range(5)  # GenMol's order of special tokens
SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")


# ---- the backbone. Attribute names such as ``LayerNorm`` and ``self.self`` are those of the checkpoint.


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part(x).view(batch, tokens, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        # Written out, not F.scaled_dot_product_attention: torch picks another kernel for that on every device, and
        # the same arithmetic everywhere is what lets the device be compared with the CPU bit for bit.
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5 + bias
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width)


class AddNorm(nn.Module):
    """Project, add the residual, normalise: the end of both halves of a layer."""

    def __init__(self, inner: int, width: int, eps: float):
        super().__init__()
        self.dense = nn.Linear(inner, width)
        self.LayerNorm = nn.LayerNorm(width, eps)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, eps: float):
        super().__init__()
        self.attention = nn.Module()
        self.attention.self = SelfAttention(width, heads)
        self.attention.output = AddNorm(width, width, eps)
        self.intermediate = nn.Module()
        self.intermediate.dense = nn.Linear(width, inner)
        self.output = AddNorm(inner, width, eps)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = self.attention.output(self.attention.self(x, bias), x)
        return self.output(F.gelu(self.intermediate.dense(x)), x)


class GenMol(nn.Module):
    """GenMol's BERT. ids [batch, tokens] int64 and mask [batch, tokens] bool (True: a token, False: padding) give
    logits [batch, tokens, vocab].

    The defaults are GenMol's own size (configs/base.yaml): 87,291,992 parameters. No operator waits for the device.
    """

    def __init__(
        self,
        vocab: int = 1880,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        inner: int = 3072,
        length: int = 256,
        eps: float = 1e-12,
    ):
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.vocab, self.length = vocab, length
        # Modules and parameters are made in the order of BertForMaskedLM: an EMA list in a checkpoint has no names.
        self.bert = nn.Module()
        e = self.bert.embeddings = nn.Module()
        e.word_embeddings = nn.Embedding(vocab, width)
        e.position_embeddings = nn.Embedding(length, width)
        e.token_type_embeddings = nn.Embedding(2, width)
        e.LayerNorm = nn.LayerNorm(width, eps)
        self.bert.encoder = nn.Module()
        self.bert.encoder.layer = nn.ModuleList(Layer(width, heads, inner, eps) for _ in range(layers))
        self.cls = nn.Module()
        head = self.cls.predictions = nn.Module()
        head.bias = nn.Parameter(torch.zeros(vocab))
        head.transform = nn.Module()
        head.transform.dense = nn.Linear(width, width)
        head.transform.LayerNorm = nn.LayerNorm(width, eps)
        head.decoder = nn.Linear(width, vocab)
        head.decoder.weight, head.decoder.bias = e.word_embeddings.weight, head.bias  # tied
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        e, head = self.bert.embeddings, self.cls.predictions
        x = e.word_embeddings(ids) + e.token_type_embeddings.weight[0]
        x = e.LayerNorm(x + e.position_embeddings.weight[: ids.shape[1]])
        # 0 for a token, the lowest number for padding. Always built: asking whether there is any padding, as
        # transformers does, waits for the device and cannot be captured.
        bias = ((mask.to(x.dtype) - 1.0) * torch.finfo(x.dtype).max)[:, None, None, :]
        for layer in self.bert.encoder.layer:
            x = layer(x, bias)
        return head.decoder(head.transform.LayerNorm(F.gelu(head.transform.dense(x))))


def genmol(
    width: int = 768, layers: int = 12, heads: int | None = None, vocab: int = 1880, length: int = 256, seed: int = 0
) -> GenMol:
    """GenMol's backbone at any size with random weights, on the CPU, for timing. The full size is the default.

    heads: 12 as in GenMol where that divides ``width``, else 4. The seed fixes the weights.
    """
    heads = heads or (12 if width % 12 == 0 else 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GenMol(vocab, width, layers, heads, 4 * width, length).eval()


def sample_inputs(model: GenMol, batch: int, tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids [batch, tokens] int64 and a full mask [batch, tokens] bool for ``model``, on the CPU."""
    if tokens > model.length:
        raise ValueError(f"{tokens} tokens, but the model has {model.length} positions")
    ids = torch.randint(len(SPECIAL), model.vocab, (batch, tokens), generator=torch.Generator().manual_seed(seed))
    return ids, torch.ones(batch, tokens, dtype=torch.bool)


def kernels(layers: int) -> int:
    """Kernels that a forward pass of GenMol launches, as the simulated device counts them: 17 a layer, 11 for the rest.

    No other size changes it.
    """
    return 17 * layers + 11


# ---- checkpoints


class CheckpointError(ValueError):
    """A checkpoint that does not fit. One line: file, key, what was expected; the model is as it was."""


class _Ignored:
    """Stands in for every class that a checkpoint names besides torch's own, such as GenMol's OmegaConf configuration:
    only the tensors matter here, and no code of the file runs."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        pass


def load_checkpoint(model: GenMol, path: str | os.PathLike, ema: bool = True) -> None:
    """Load a Lightning checkpoint as GenMol writes it: ``state_dict`` with prefix ``backbone.`` and ``ema``.

    ema: take the averaged weights (``ema.shadow_params``, a list in the order of ``model.parameters()``) where the
    file has them, as GenMol does to sample.
    Raises CheckpointError. Everything is checked before the first weight is written.
    """
    file = _read(path)
    state = file.get("state_dict") if isinstance(file, dict) else None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: no state_dict, so not a Lightning checkpoint")
    expected = {f"backbone.{name}": value for name, value in model.state_dict(keep_vars=True).items()}
    if missing := [key for key in expected if key not in state]:
        raise CheckpointError(f"{path}: {missing[0]} is missing ({len(missing)} missing keys)")
    if extra := [key for key in state if key not in expected]:
        raise CheckpointError(f"{path}: unexpected key {extra[0]} ({len(extra)} unexpected keys)")
    new = [(key, parameter, state[key]) for key, parameter in expected.items()]
    if ema and file.get("ema") is not None:
        shadow = file["ema"].get("shadow_params") if isinstance(file["ema"], dict) else None
        parameters = list(model.named_parameters())
        if not isinstance(shadow, (list, tuple)) or len(shadow) != len(parameters):
            found = len(shadow) if isinstance(shadow, (list, tuple)) else "no"
            raise CheckpointError(f"{path}: ema.shadow_params has {found} tensors, expected {len(parameters)}")
        new += [
            (f"ema.shadow_params[{i}] ({name})", parameter, value)
            for i, ((name, parameter), value) in enumerate(zip(parameters, shadow, strict=True))
        ]
    for key, parameter, value in new:
        got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        if got != tuple(parameter.shape):
            raise CheckpointError(f"{path}: {key} is {got}, expected {tuple(parameter.shape)}")
        if value.layout != torch.strided or value.device.type != "cpu" or not value.is_floating_point():
            kind = f"{value.dtype}, {value.layout}, on {value.device}"
            raise CheckpointError(f"{path}: {key} is a tensor of {kind}, expected floating point numbers")
    with torch.no_grad():
        for _, parameter, value in new:  # the averaged weights come last, so they hold
            parameter.copy_(value)


def _read(path):
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    try:
        named = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        stand_ins = [(_Ignored, name) for name in named if name != "collections.defaultdict"]
        stand_ins.append((lambda *args: {}, "collections.defaultdict"))  # must still take items
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, zipfile and pickle each have their own for a broken file
        raise CheckpointError(f"{path}: not a readable checkpoint ({str(error).splitlines()[0]})") from error


# ---- SMILES


class TokenError(ValueError):
    """A SMILES string that has no tokens here. One line: which, where, what."""


_TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|%\d\d|[BCNOPSFIbcnops]|[-=#$:/\\.+()\d~*]")


def drugs() -> dict[str, str]:
    """48 well-known drugs: name to SMILES."""
    with resources.files("helpers").joinpath("data/drugs.csv").open(encoding="utf-8") as file:
        return {row["name"]: row["smiles"] for row in csv.DictReader(file)}


class SmilesTokenizer:
    """SMILES to ids and back. The vocabulary is that of the 48 drugs after GenMol's five special tokens."""

    def __init__(self):
        kinds = {token for smiles in drugs().values() for token in _TOKEN.findall(smiles)}
        self.tokens = [*SPECIAL, *sorted(kinds)]
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def split(self, smiles: str) -> list[str]:
        """The tokens of one SMILES. Raises TokenError."""
        tokens, at = [], 0
        while at < len(smiles):
            match = _TOKEN.match(smiles, at)
            token = match.group() if match else smiles[at]
            if token not in self.ids:
                raise TokenError(f"SMILES {smiles!r}: unknown token {token!r} at position {at}")
            tokens.append(token)
            at += len(token)
        return tokens

    def encode(self, smiles: Sequence[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [n, length] int64 as [CLS] tokens [SEP] [PAD]..., and mask [n, length] bool, False on padding."""
        ids = torch.full((len(smiles), length), PAD)
        for row, text in zip(ids, smiles, strict=True):
            tokens = self.split(text)
            if len(tokens) + 2 > length:
                raise TokenError(f"SMILES {text!r}: {len(tokens)} tokens and 2 ends do not fit into {length}")
            row[: len(tokens) + 2] = torch.tensor([CLS, *(self.ids[token] for token in tokens), SEP])
        return ids, ids != PAD

    def decode(self, ids: torch.Tensor) -> list[str]:
        """SMILES of ids [n, length], each up to its [SEP], without special tokens."""
        texts = []
        for row in ids.tolist():
            row = row[: row.index(SEP)] if SEP in row else row
            texts.append("".join(self.tokens[i] for i in row if i >= len(SPECIAL)))
        return texts


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
        load_checkpoint(model, path)
    return model, tokenizer
