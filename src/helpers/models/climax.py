"""ClimaX at any size, with the device index that makes the host wait, or without.

ClimaX (microsoft/ClimaX, MIT) is a vision transformer over the variables of weather and climate. Written anew here for
plain torch, for inference, after its ``climax/arch.py`` and the blocks of timm 0.6.12 (Apache-2.0) that it uses; the
names are theirs.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from .attention import attend, check_heads
from .weights import Layout, seeded

LEVELS = (50, 250, 500, 600, 700, 850, 925)  # hPa
SURFACE = ("2m_temperature", "10m_u_component_of_wind", "10m_v_component_of_wind")
PROFILES = (
    "geopotential",
    "u_component_of_wind",
    "v_component_of_wind",
    "temperature",
    "relative_humidity",
    "specific_humidity",
)
# The 48 of the published checkpoints, in their order and spelling.
VARIABLES = (
    *("land_sea_mask", "orography", "lattitude"),
    *SURFACE,
    *(f"{name}_{level}" for name in PROFILES for level in LEVELS),
)
OUT = ("geopotential_500", "temperature_850", *SURFACE)  # what the published forecast predicts


class PatchEmbed(nn.Module):
    """One variable [batch, 1, height, width] to tokens [batch, patches, model width]."""

    def __init__(self, width: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(1, width, patch, patch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.Module()
        self.attn.qkv, self.attn.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Module()
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attn.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.attn.proj(attend(q, k, v))
        return x + self.mlp.fc2(F.gelu(self.mlp.fc1(self.norm2(x))))


class ClimaX(nn.Module):
    """Fields [batch, variables, height, width], normalised, and lead times [batch] (hours / 100) give the predicted
    fields [batch, out, height, width].

    The defaults are the published model for a grid of 5.625 degrees: 108,088,512 parameters. That for 1.40625 degrees
    has ``size=(128, 256), patch=4``.
    variables, out: names of what goes in and what comes out; ``out`` are some of ``variables``.
    device_index: as published, a tensor on the device says which embedding belongs to which variable, and indexing a
    ModuleList with it reads it back: the host waits for the device once a variable, 48 times a forward pass, and a
    capture is refused. False takes Python integers: it never waits, and the result is the same bit for bit.
    """

    layout = Layout(lightning=True, prefix="net.", renamed=("channel", "var"))

    def __init__(
        self,
        variables: Sequence[str] = VARIABLES,
        out: Sequence[str] = OUT,
        size: tuple[int, int] = (32, 64),
        patch: int = 2,
        width: int = 1024,
        layers: int = 8,
        head_layers: int = 2,
        heads: int = 16,
        device_index: bool = True,
    ):
        super().__init__()
        check_heads(width, heads)
        if size[0] % patch or size[1] % patch:
            raise ValueError(f"a grid of {size[0]} x {size[1]} does not divide into patches of {patch}")
        if unknown := [name for name in out if name not in variables]:
            raise ValueError(f"{unknown[0]} is not among the variables")
        self.variables, self.out, self.size, self.patch = tuple(variables), tuple(out), tuple(size), patch
        self.device_index = device_index
        n, patches = len(variables), size[0] * size[1] // patch**2
        self.token_embeds = nn.ModuleList(PatchEmbed(width, patch) for _ in variables)
        self.var_embed = nn.Parameter(torch.randn(1, n, width) * 0.02)
        self.var_query = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.var_agg = nn.MultiheadAttention(width, heads, batch_first=True)
        self.pos_embed = nn.Parameter(torch.randn(1, patches, width) * 0.02)
        self.lead_time_embed = nn.Linear(1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        hidden = [layer for _ in range(head_layers) for layer in (nn.Linear(width, width), nn.GELU())]
        self.head = nn.Sequential(*hidden, nn.Linear(width, n * patch**2))
        self.register_buffer("var_ids", torch.arange(n), persistent=False)
        self.register_buffer("out_ids", torch.tensor([self.variables.index(name) for name in out]), persistent=False)

    def forward(self, x: torch.Tensor, lead_times: torch.Tensor) -> torch.Tensor:
        which = self.var_ids if self.device_index else range(len(self.variables))
        # With a tensor, a_list[which[i]] is a_list[which[i].item()].
        embeds = [self.token_embeds[which[i]](x[:, i : i + 1]) for i in range(len(which))]
        x = torch.stack(embeds, dim=1) + self.var_embed[:, self.var_ids].unsqueeze(2)
        # Each patch looks at its variables with one learned query.
        batch, _, patches, _ = x.shape
        x = x.transpose(1, 2).flatten(0, 1)
        x, _ = self.var_agg(self.var_query.repeat_interleave(x.shape[0], dim=0), x, x)
        x = x.squeeze(1).unflatten(0, (batch, patches))
        x = x + self.pos_embed + self.lead_time_embed(lead_times.unsqueeze(-1)).unsqueeze(1)
        for block in self.blocks:
            x = block(x)
        return self._fields(self.head(self.norm(x)))[:, self.out_ids]

    def _fields(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, patches, patch * patch * variables] to [batch, variables, height, width]."""
        p, (height, width) = self.patch, self.size
        x = x.reshape(x.shape[0], height // p, width // p, p, p, len(self.variables))
        return x.permute(0, 5, 1, 3, 2, 4).reshape(x.shape[0], len(self.variables), height, width)

    def inputs(self, batch: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Random fields [batch, variables, height, width], and a lead time of 72 hours for each, on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, len(self.variables), *self.size, generator=generator), torch.full((batch,), 0.72)


def climax(
    width: int = 1024,
    layers: int = 8,
    variables: Sequence[str] = VARIABLES,
    out: Sequence[str] = OUT,
    size: tuple[int, int] = (32, 64),
    patch: int = 2,
    heads: int | None = None,
    device_index: bool = True,
    seed: int = 0,
) -> ClimaX:
    """ClimaX at any size with random weights, on the CPU, for timing. The full size is the default.

    device_index: as published, which waits for the device once per variable; False captures.

    heads: 16 as in the original where that divides ``width``, else 4. The seed fixes the weights.
    """
    heads = heads or (16 if width % 16 == 0 else 4)
    sizes = dict(variables=variables, out=out, size=size, patch=patch, width=width, layers=layers, heads=heads)
    return seeded(ClimaX, seed, **sizes, device_index=device_index)
