"""Nucleotide Transformer 500m at any size, and its tokens of six letters of DNA.

InstaDeep's nucleotide-transformer-500m-human-ref is the architecture ESM of the transformers library (modeling_esm.py,
Apache-2.0): a BERT that normalises before each half of a layer, with learned positions. Written anew here for plain
torch, with the names of ``transformers.EsmForMaskedLM``. The weights are published under CC BY-NC-SA 4.0.
"""

import itertools
import math
import re

import torch
from torch import nn
from torch.nn import functional as F

from .attention import attend, check_heads, padding_bias, split_heads
from .tokens import Tokenizer
from .weights import Layout, draw_normal, seeded

UNK, PAD, MASK, CLS = range(4)
SPECIAL = ("<unk>", "<pad>", "<mask>", "<cls>")
MASKED_IN_TRAINING = 0.15 * 0.8  # share of tokens that training replaced by <mask>, the same for all ESM models


def gelu(x: torch.Tensor) -> torch.Tensor:
    """ESM's own, written out: five kernels."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def one_kernel_gelu(x: torch.Tensor) -> torch.Tensor:
    """The same function, which rounds elsewhere: results differ by about 1e-6.

    On an NPU it is ``torch_npu.npu_gelu``. Of ``F.gelu`` Ascend's documentation says that it takes the approximation by
    tanh there, which is up to 5e-4 away.
    """
    if x.device.type == "npu":
        return torch.ops.npu.npu_gelu(x, approximate="none")
    return F.gelu(x)


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        return attend(q * q.shape[-1] ** -0.5, k, v, bias, scale=1.0)  # ESM scales q, not the scores


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, eps: float, gelu):
        super().__init__()
        self.gelu = gelu
        self.attention = nn.Module()
        self.attention.self = SelfAttention(width, heads)
        self.attention.output = nn.Module()
        self.attention.output.dense = nn.Linear(width, width)
        self.attention.LayerNorm = nn.LayerNorm(width, eps)
        self.intermediate = nn.Module()
        self.intermediate.dense = nn.Linear(width, inner)
        self.output = nn.Module()
        self.output.dense = nn.Linear(inner, width)
        self.LayerNorm = nn.LayerNorm(width, eps)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = self.attention.output.dense(self.attention.self(self.attention.LayerNorm(x), bias)) + x
        return self.output.dense(self.gelu(self.intermediate.dense(self.LayerNorm(x)))) + x


class NucleotideTransformer(nn.Module):
    """ids [batch, tokens] int64 and mask [batch, tokens] bool (True: a token, False: padding) give logits
    [batch, tokens, vocab].

    The defaults are the published size: 485,699,306 parameters, of which the contact head (481) has no part in the
    logits. No operator waits for the device.
    fused_gelu: compute gelu as one kernel instead of five, 25 times a forward pass at full size.
    """

    layout = Layout(unused=("esm.embeddings.position_ids",))  # 0, 1, 2..., saved by transformers before 4.31

    def __init__(
        self,
        vocab: int = 4105,
        width: int = 1280,
        layers: int = 24,
        heads: int = 20,
        inner: int = 5120,
        length: int = 1002,
        eps: float = 1e-12,
        fused_gelu: bool = False,
    ):
        super().__init__()
        check_heads(width, heads)
        self.vocab, self.length, self.gelu = vocab, length, one_kernel_gelu if fused_gelu else gelu
        self.esm = nn.Module()
        e = self.esm.embeddings = nn.Module()
        e.word_embeddings = nn.Embedding(vocab, width)
        e.position_embeddings = nn.Embedding(length, width)
        self.esm.encoder = nn.Module()
        self.esm.encoder.layer = nn.ModuleList(Layer(width, heads, inner, eps, self.gelu) for _ in range(layers))
        self.esm.encoder.emb_layer_norm_after = nn.LayerNorm(width, eps)
        self.esm.contact_head = nn.Module()
        self.esm.contact_head.regression = nn.Linear(layers * heads, 1)
        self.lm_head = nn.Module()
        self.lm_head.dense = nn.Linear(width, width)
        self.lm_head.layer_norm = nn.LayerNorm(width, eps)
        self.lm_head.decoder = nn.Linear(width, vocab, bias=False)
        self.lm_head.bias = nn.Parameter(torch.zeros(vocab))
        draw_normal(self)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        e, head = self.esm.embeddings, self.lm_head
        # Where tokens are masked the others count more, so that the sum is what training saw.
        masked = ids == MASK
        x = e.word_embeddings(ids).masked_fill(masked[..., None], 0.0)
        share = masked.sum(-1).float() / mask.sum(-1)
        x = x * (1 - MASKED_IN_TRAINING) / (1 - share)[:, None, None]
        # Positions count from PAD + 1, and padding is at PAD.
        token = ids.ne(PAD).int()
        x = x + e.position_embeddings((token.cumsum(1).type_as(token) * token).long() + PAD)
        x = x * mask[..., None]
        bias = padding_bias(mask, x.dtype)
        for layer in self.esm.encoder.layer:
            x = layer(x, bias)
        x = self.esm.encoder.emb_layer_norm_after(x)
        return head.decoder(head.layer_norm(self.gelu(head.dense(x)))) + head.bias

    def inputs(self, batch: int, tokens: int = 64, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [batch, tokens] int64, random tokens of six letters after <cls>, and a full mask, on the CPU."""
        if tokens > self.length - PAD - 1:
            raise ValueError(f"{tokens} tokens, but the model has {self.length - PAD - 1} positions")
        ids = torch.randint(len(SPECIAL), self.vocab, (batch, tokens), generator=torch.Generator().manual_seed(seed))
        ids[:, 0] = CLS
        return ids, torch.ones(batch, tokens, dtype=torch.bool)


def nucleotide_transformer(
    width: int = 1280,
    layers: int = 24,
    heads: int | None = None,
    vocab: int = 4105,
    length: int = 1002,
    fused_gelu: bool = False,
    seed: int = 0,
) -> NucleotideTransformer:
    """Nucleotide Transformer at any size with random weights, on the CPU, for timing. The full size is the default.

    heads: 20 as in the original where that divides ``width``, else 4. The seed fixes the weights.
    """
    heads = heads or (20 if width % 20 == 0 else 4)
    return seeded(NucleotideTransformer, seed, vocab, width, layers, heads, 4 * width, length, fused_gelu=fused_gelu)


class DnaTokenizer(Tokenizer):
    """DNA to ids and back, six letters a token, from left to right.

    What is left at the end, and what stands beside an N, is one letter a token. The order of the vocabulary is that of
    InstaDeep's code (tokenizers.py): special tokens, the 4096 six-letter words over A, T, C, G, then A, T, C, G, N.
    """

    name = "DNA"
    pattern = re.compile(r"[ACGT]{6}|[ACGTN]")
    special, begin, pad = len(SPECIAL), CLS, PAD

    def __init__(self):
        super().__init__([*SPECIAL, *map("".join, itertools.product("ATCG", repeat=6)), *"ATCGN"])
