"""GenMol's backbone at any size.

GenMol (NVIDIA-Digital-Bio/genmol, Apache-2.0) is a masked diffusion model of molecules: a BERT that fills masks, and a
loop that keeps its most confident token each time (molecules.py). Written anew here for plain torch, with the names of
``transformers.BertForMaskedLM``, so that the weights of the real model load.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .attention import attend, check_heads, padding_bias, split_heads
from .weights import Layout, draw_normal, seeded

UNK, CLS, SEP, PAD, MASK = range(5)  # GenMol's order of special tokens
SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")


# Attribute names such as ``LayerNorm`` and ``self.self`` are those of the checkpoint.


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        return attend(q, k, v, bias)


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

    layout = Layout(lightning=True, prefix="backbone.")

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
        check_heads(width, heads)
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
        draw_normal(self)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        e, head = self.bert.embeddings, self.cls.predictions
        x = e.word_embeddings(ids) + e.token_type_embeddings.weight[0]
        x = e.LayerNorm(x + e.position_embeddings.weight[: ids.shape[1]])
        bias = padding_bias(mask, x.dtype)
        for layer in self.bert.encoder.layer:
            x = layer(x, bias)
        return head.decoder(head.transform.LayerNorm(F.gelu(head.transform.dense(x))))

    def inputs(self, batch: int, tokens: int = 64, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Random ids [batch, tokens] int64 and a full mask [batch, tokens] bool, on the CPU."""
        if tokens > self.length:
            raise ValueError(f"{tokens} tokens, but the model has {self.length} positions")
        ids = torch.randint(len(SPECIAL), self.vocab, (batch, tokens), generator=torch.Generator().manual_seed(seed))
        return ids, torch.ones(batch, tokens, dtype=torch.bool)


def genmol(
    width: int = 768, layers: int = 12, heads: int | None = None, vocab: int = 1880, length: int = 256, seed: int = 0
) -> GenMol:
    """GenMol's backbone at any size with random weights, on the CPU, for timing. The full size is the default.

    heads: 12 as in GenMol where that divides ``width``, else 4. The seed fixes the weights.
    """
    heads = heads or (12 if width % 12 == 0 else 4)
    return seeded(GenMol, seed, vocab, width, layers, heads, 4 * width, length)


def sample_inputs(model: GenMol, batch: int, tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """``model.inputs(batch, tokens, seed)``."""
    return model.inputs(batch, tokens, seed)


def kernels(layers: int) -> int:
    """Kernels that a forward pass of GenMol launches, as the simulated device counts them: 17 a layer, 11 for the rest.

    No other size changes it.
    """
    return 17 * layers + 11
