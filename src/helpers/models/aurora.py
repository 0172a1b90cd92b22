"""A stand-in for Aurora: its host guards and its mix of kernels, not its weights.

Aurora (microsoft/aurora, MIT) is a foundation model of the atmosphere: a Perceiver encoder over pressure levels, a 3D
Swin U-net, a Perceiver decoder. This file is written anew, after version 2.0.1 of its package, and leaves out detail:
adapters (LoRA), variants, the real statistics of the variables, the names of the checkpoint. What it keeps is what a
graph capture meets there, construct by construct: all places at which the host waits for a value on the device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import torch
from torch import nn
from torch.nn import functional as F

from .attention import attend, split_heads
from .weights import Layout, seeded

LEVELS = (50, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 925, 1000)  # hPa
# Rough (location, scale) of each variable, made up for this stand-in, in SI units.
SURFACE = {"2t": (280.0, 20.0), "10u": (0.0, 5.0), "10v": (0.0, 5.0), "msl": (1.01e5, 1.3e3)}
STATIC = {"lsm": (0.0, 1.0), "z": (0.0, 6e4), "slt": (0.0, 7.0)}
ATMOSPHERE = {"z": (8e4, 5e4), "u": (5.0, 15.0), "v": (0.0, 10.0), "t": (240.0, 20.0), "q": (1e-3, 2e-3)}
CLOCK = ("tod_cos", "tod_sin")  # two of the planes that the air pollution variant makes from the date
HISTORY = 2  # time steps that go in
TIMESTEP = timedelta(hours=6)
# Shortest and longest wavelength of a Fourier expansion, and the unit of what is expanded.
POSITION = (0.01, 720.0)  # degrees
SCALE = (1e-4, 5.1e8)  # square kilometres
LEAD_TIME = (1 / 60, 504.0)  # hours
LEVEL = (0.01, 1e5)  # hPa
ABSOLUTE_TIME = (1.0, 8766.0)  # hours


# ---- the guards


def check_grid(lat: torch.Tensor, lon: torch.Tensor) -> None:
    """What the package checks each time a batch is made: six waits. Raises ValueError."""
    if not (torch.all(lat <= 90) and torch.all(lat >= -90)):
        raise ValueError("latitudes must be in [-90, 90]")
    if not (torch.all(lon >= 0) and torch.all(lon < 360)):
        raise ValueError("longitudes must be in [0, 360)")
    if not torch.all(lat[1:] - lat[:-1] < 0):
        raise ValueError("latitudes must fall")
    if not torch.all(lon[1:] - lon[:-1] > 0):
        raise ValueError("longitudes must rise")


def check_range(x: torch.Tensor, lower: float, upper: float) -> None:
    """What the package checks before a Fourier expansion: one wait. Raises AssertionError."""
    inside = torch.logical_and(lower <= x.abs(), torch.all(x.abs() <= upper))
    if not torch.all(torch.logical_or(inside, x == 0)):
        raise AssertionError(f"the input is not within [{lower}, {upper}]")


def check_patches(south: torch.Tensor, north: torch.Tensor, west: torch.Tensor, east: torch.Tensor) -> None:
    """What the package checks before it computes the area of patches: eight waits. Raises AssertionError."""
    assert (north > south).all()
    assert (east > west).all()
    assert (abs(north) <= 90.0).all() and (abs(south) <= 90.0).all()
    assert (east <= 360.0).all() and (west <= 360.0).all()
    assert (east >= 0.0).all() and (west >= 0.0).all()


def check_area(area: torch.Tensor) -> None:
    """What the package checks when it has the areas: one wait. Raises AssertionError."""
    assert (area > 0.0).all()


def later(dates: Sequence[datetime], lead_time: torch.Tensor) -> tuple[datetime, ...]:
    """How the package finds the date of a prediction, lead_time [batch] in hours: one wait each."""
    return tuple(date + timedelta(hours=float(lead)) for date, lead in zip(dates, lead_time, strict=True))


# ---- what the guards guard


@dataclass
class Batch:
    """Fields and where and when they are. The package's ``Batch`` with its ``Metadata``.

    surface [batch, variables, time, height, width], static [variables, height, width], air [batch, variables, time,
    levels, height, width], lat [height], lon [width]; time: see AuroraStandIn.
    """

    surface: torch.Tensor
    static: torch.Tensor
    air: torch.Tensor
    lat: torch.Tensor
    lon: torch.Tensor
    time: tuple[datetime, ...] | torch.Tensor
    guards: bool

    def __post_init__(self):
        if self.guards:
            check_grid(self.lat, self.lon)

    def map(self, f: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        fields = {name: f(getattr(self, name)) for name in ("surface", "static", "air", "lat", "lon")}
        return replace(self, **fields)

    def crop(self, patch: int) -> "Batch":
        """Without the last latitude where that is one too many for patches, as on a grid with both poles."""
        if self.lat.shape[0] % patch == 0:
            return self
        fields = {name: getattr(self, name)[..., :-1, :] for name in ("surface", "static", "air")}
        return replace(self, **fields, lat=self.lat[:-1])


def clock_numbers(times: Sequence[datetime]) -> list[tuple[float, float, float]]:
    """For each date: hours since 1970, and cosine and sine of the hour of its day."""
    angles = [2 * math.pi * time.hour / 24 for time in times]
    return [(t.timestamp() / 3600, math.cos(a), math.sin(a)) for t, a in zip(times, angles, strict=True)]


def clock_planes(time: Sequence[datetime] | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Cosine and sine of the hour of the day as fields [batch, 2, 1, height, width], of the size of ``like``.

    With dates they are Python numbers when the kernels are launched: no capture refuses that, and each replay gets the
    hour of the capture.
    """
    ones = torch.ones_like(like[:1, :1, :1])
    if isinstance(time, torch.Tensor):
        return ones * time[:, 1:, None, None, None]
    return torch.cat([torch.cat((ones * cos, ones * sin), dim=1) for _, cos, sin in clock_numbers(time)])


def fourier(x: torch.Tensor, band: tuple[float, float], width: int, guards: bool) -> torch.Tensor:
    """x [...] to sines and cosines [..., width] of wavelengths in ``band``.

    The package computes it in float64, which is float32 on an NPU: there torch_npu's ``x.double()`` gives float32 and a
    warning. The stand-in takes float32 everywhere, so that the devices agree.
    """
    if guards:
        check_range(x, *band)
    shortest, longest = (math.log10(length) for length in band)
    wavelengths = torch.logspace(shortest, longest, width // 2, base=10, device=x.device, dtype=x.dtype)
    angles = x[..., None] * (2 * math.pi / wavelengths)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def patch_encodings(lat, lon, patch: int, width: int, guards: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Fourier expansions of the middle and of the root of the area of each patch, [patches, width] both."""
    grid = torch.stack(torch.meshgrid(lat, lon, indexing="ij"))
    middle = F.avg_pool2d(grid, patch)
    (north, east), (south, west) = F.max_pool2d(grid, patch), -F.max_pool2d(-grid, patch)
    if guards:
        check_patches(south, north, west, east)
    heights = torch.sin(torch.deg2rad(north)) - torch.sin(torch.deg2rad(south))
    area = 6371**2 * math.pi * heights * (torch.deg2rad(east) - torch.deg2rad(west))
    if guards:
        check_area(area)
    position = [fourier(x.flatten(), POSITION, width // 2, guards) for x in middle]
    return torch.cat(position, dim=-1), fourier(torch.sqrt(area).flatten(), SCALE, width, guards)


# ---- Perceiver


class Mlp(nn.Sequential):
    def __init__(self, width: int, inner: int):
        super().__init__(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class Perceiver(nn.Module):
    """Latents [n, latents, width] look at a context [n, tokens, width]."""

    def __init__(self, width: int, heads: int, inner: int):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.mlp = Mlp(width, inner)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, latents: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(part, self.heads) for part in (self.to_q(latents), *self.to_kv(x).chunk(2, dim=-1)))
        latents = self.ln1(self.to_out(attend(q, k, v))) + latents
        return self.ln2(self.mlp(latents)) + latents


# ---- 3D Swin U-net. A place is (level, latitude, longitude); ``res`` is how many there are of each.


def windows_of(x: torch.Tensor, window: tuple[int, int, int]) -> torch.Tensor:
    """[batch, *res, width] to [batch * windows, places in a window, width], padded at the end of each axis."""
    missing = [-n % w for n, w in zip(x.shape[1:4], window, strict=True)]
    if any(missing):
        x = F.pad(x, (0, 0, 0, missing[2], 0, missing[1], 0, missing[0]))
    x = x.unflatten(3, (-1, window[2])).unflatten(2, (-1, window[1])).unflatten(1, (-1, window[0]))
    return x.permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(0, 3).flatten(1, 3)


def whole_of(windows: torch.Tensor, window: tuple[int, int, int], res: tuple[int, int, int]) -> torch.Tensor:
    """The inverse of windows_of: [batch, *res, width], without the padding."""
    counts = [-(-n // w) for n, w in zip(res, window, strict=True)]
    x = windows.unflatten(1, window).unflatten(0, (-1, *counts)).permute(0, 1, 4, 2, 5, 3, 6, 7)
    return x.flatten(5, 6).flatten(3, 4).flatten(1, 2)[:, : res[0], : res[1], : res[2]]


def shifted_mask(res: tuple[int, int, int], window: tuple[int, int, int], shift: tuple[int, int, int]) -> torch.Tensor:
    """Which places of a shifted window must not look at each other: [windows, places, places], 0 or -100.

    A roll brings the first levels and latitudes behind the last ones, where they are no neighbours. Longitudes are a
    circle: there they are. Padding is a group of its own.
    """
    groups = torch.ones(res)
    for axis in (0, 1):
        n, shape = res[axis], [-1 if i == axis else 1 for i in range(3)]
        place = torch.arange(n).view(shape)
        part = (place >= n - window[axis]).float() + ((place >= n - shift[axis]) & (shift[axis] > 0)).float()
        groups = groups + part * 3**axis
    groups = windows_of(groups[None, ..., None], window)[..., 0]
    return (groups[:, :, None] != groups[:, None, :]).float() * -100.0


class AdaptiveNorm(nn.Module):
    """A layer norm whose scale and shift come from the lead time."""

    def __init__(self, width: int, context: int):
        super().__init__()
        self.ln = nn.LayerNorm(width, elementwise_affine=False)
        self.ln_modulation = nn.Sequential(nn.SiLU(), nn.Linear(context, 2 * width))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift, scale = self.ln_modulation(c).unsqueeze(1).chunk(2, dim=-1)
        return self.ln(x) * scale + shift


class SwinBlock(nn.Module):
    """Attention within windows [batch, places, width], then an MLP. Every other block rolls the windows by half."""

    def __init__(self, width: int, context: int, heads: int, res, window, shifted: bool):
        super().__init__()
        self.heads, self.res = heads, res
        # An axis that fits into one window has no parts and no shift.
        self.window = tuple(min(n, w) for n, w in zip(res, window, strict=True))
        self.shift = tuple(w // 2 if shifted and n > w else 0 for n, w in zip(res, window, strict=True))
        self.attn = nn.Module()
        self.attn.qkv, self.attn.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = AdaptiveNorm(width, context), AdaptiveNorm(width, context)
        self.mlp = Mlp(width, 4 * width)

    def forward(self, x: torch.Tensor, c: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, axes = x.shape[0], (1, 2, 3)
        y = x.unflatten(1, self.res)
        if any(self.shift):
            y = y.roll([-s for s in self.shift], axes)
        y = windows_of(y, self.window)
        q, k, v = (split_heads(part, self.heads) for part in self.attn.qkv(y).chunk(3, dim=-1))
        bias = mask.repeat(batch, 1, 1).unsqueeze(1) if any(self.shift) else None
        y = whole_of(self.attn.proj(attend(q, k, v, bias)), self.window, self.res)
        if any(self.shift):
            y = y.roll(self.shift, axes)
        x = x + self.norm1(y.flatten(1, 3), c)
        return x + self.norm2(self.mlp(x), c)


class Stage(nn.Module):
    """Blocks of one resolution, and the mask that the shifted ones share."""

    def __init__(self, width: int, context: int, depth: int, heads: int, res, window):
        super().__init__()
        self.blocks = nn.ModuleList(SwinBlock(width, context, heads, res, window, i % 2 == 1) for i in range(depth))
        shifted = [block for block in self.blocks if any(block.shift)]
        mask = shifted_mask(res, shifted[0].window, shifted[0].shift) if shifted else None
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, c, self.mask)
        return x


class Merge(nn.Module):
    """Four neighbours become one of twice the width. An odd axis is padded."""

    def __init__(self, width: int, res):
        super().__init__()
        self.res = res
        self.norm, self.reduction = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, height, width = self.res
        x = F.pad(x.unflatten(1, self.res), (0, 0, 0, width % 2, 0, height % 2))
        x = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).transpose(3, 4)
        return self.reduction(self.norm(x.flatten(4).flatten(1, 3)))


class Split(nn.Module):
    """One place becomes four neighbours of half the width, cropped to ``to``."""

    def __init__(self, width: int, res, to):
        super().__init__()
        self.res, self.to = res, to
        self.lin1, self.lin2 = (nn.Linear(n, m, bias=False) for n, m in ((width, 2 * width), (width // 2, width // 2)))
        self.norm = nn.LayerNorm(width // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lin1(x).unflatten(2, (2, 2, -1)).unflatten(1, self.res).transpose(3, 4)
        x = x.flatten(4, 5).flatten(2, 3)[:, :, : self.to[1], : self.to[2]]
        return self.lin2(self.norm(x.flatten(1, 3)))


class Backbone(nn.Module):
    """[batch, places, width] to [batch, places, 2 * width]."""

    def __init__(self, width: int, layers: Sequence[int], heads: int, res, window):
        super().__init__()
        resolutions = [res]
        for _ in layers[1:]:
            level, height, length = resolutions[-1]
            resolutions.append((level, -(-height // 2), -(-length // 2)))
        self.time_mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

        def stage(i: int) -> Stage:
            return Stage(width * 2**i, width, layers[i], heads * 2**i, resolutions[i], window)

        def split(i: int) -> Split:
            return Split(width * 2 ** (i + 1), resolutions[i + 1], resolutions[i])

        n = len(layers)
        self.down, self.up = nn.ModuleList(map(stage, range(n))), nn.ModuleList(map(stage, reversed(range(n))))
        self.merge = nn.ModuleList(Merge(width * 2**i, resolutions[i]) for i in range(n - 1))
        self.split = nn.ModuleList(map(split, reversed(range(n - 1))))

    def forward(self, x: torch.Tensor, lead_time: torch.Tensor) -> torch.Tensor:
        c, seen = self.time_mlp(lead_time), []
        for i, stage in enumerate(self.down):
            x = stage(x, c)
            seen.append(x)
            if i < len(self.merge):
                x = self.merge[i](x)
        for i, stage in enumerate(self.up):
            x = stage(x, c)
            if i < len(self.split):
                x = self.split[i](x)
                if i > 0:  # as in the package: nothing is added at the coarsest
                    x = x + seen[len(self.split) - 1 - i]
        return torch.cat((x, seen[0]), dim=-1)


# ---- the whole


class AuroraStandIn(nn.Module):
    """A stand-in for Aurora, **not Aurora**: see the top of this file. Two time steps of the atmosphere give the next.

    surface [batch, 4, 2, height, width], static [3, height, width], air [batch, 5, 2, levels, height, width], lat
    [height] falling, lon [width] rising in degrees, and time (below) give the predicted surface [batch, 4, height,
    width] and air [batch, 5, levels, height, width]. Where there is one latitude more than patches need (721), the last
    is left out. The defaults are the sizes of the published Aurora of 0.25 degrees, with as many parameters (1.26
    billion), but for LoRA.

    guards: as in the package, time is a tuple of dates, 23 constants are made on the device from Python lists, and the
    host waits for the device 46 + batch times a forward pass: six times to check the grid of each of the five batches
    that are made (four where no latitude is left out), seven times for the range of a Fourier expansion, nine times for
    the patches, and once for each lead time, by ``float``. A capture is refused at the first of them. False leaves all
    of that out and takes time as a tensor, ``clock_numbers`` of the dates: the same results bit for bit, no wait, and a
    date that can change.
    """

    layout = Layout()  # its own; the published checkpoint does not fit

    def __init__(
        self,
        width: int = 512,
        layers: Sequence[int] = (6, 10, 8),
        heads: int = 8,
        size: tuple[int, int] = (721, 1440),
        levels: Sequence[int] = LEVELS,
        patch: int = 4,
        window: tuple[int, int, int] = (2, 6, 12),
        latents: int = 4,
        perceiver_heads: int = 16,
        guards: bool = True,
    ):
        super().__init__()
        if width % 4 or width % heads or width % perceiver_heads:
            raise ValueError(f"width {width} is not a multiple of 4, of {heads} heads and of {perceiver_heads} heads")
        if size[0] % patch > 1 or size[1] % patch:
            raise ValueError(f"a grid of {size[0]} x {size[1]} does not divide into patches of {patch}")
        if latents % window[0]:
            raise ValueError(f"{latents} latent levels do not divide into windows of {window[0]}")
        self.size, self.levels, self.patch, self.width, self.guards = tuple(size), tuple(levels), patch, width, guards
        res = (latents, size[0] // patch, size[1] // patch)
        self.res = res

        e = self.encoder = nn.Module()
        kernel = (HISTORY, patch, patch)
        e.surf_token_embeds = nn.Conv3d(len(SURFACE) + len(STATIC) + len(CLOCK), width, kernel, kernel)
        e.atmos_token_embeds = nn.Conv3d(len(ATMOSPHERE), width, kernel, kernel)
        e.surf_level_encoding = nn.Parameter(torch.randn(width) * 0.02)
        e.surf_mlp, e.surf_norm = Mlp(width, 4 * width), nn.LayerNorm(width)
        e.atmos_latents = nn.Parameter(torch.randn(latents - 1, width) * 0.02)
        e.level_agg = Perceiver(width, perceiver_heads, 4 * width)
        for name in ("pos", "scale", "lead_time", "absolute_time", "atmos_levels"):
            e.add_module(f"{name}_embed", nn.Linear(width, width))
        self.backbone = Backbone(width, layers, heads, res, window)
        d = self.decoder = nn.Module()
        d.atmos_levels_embed = nn.Linear(2 * width, 2 * width)
        d.level_decoder = Perceiver(2 * width, perceiver_heads, 4 * width)
        d.surf_heads = nn.ModuleDict({name: nn.Linear(2 * width, patch**2) for name in SURFACE})
        d.atmos_heads = nn.ModuleDict({name: nn.Linear(2 * width, patch**2) for name in ATMOSPHERE})

        self.constants = {"levels": [float(level) for level in levels]}
        for name, (location, scale) in ATMOSPHERE.items():
            self.constants |= {f"{name}_location": [location] * len(levels), f"{name}_scale": [scale] * len(levels)}
        for name, values in self.constants.items():
            self.register_buffer(f"constant_{name}", torch.tensor(values), persistent=False)

    def forward(
        self,
        surface: torch.Tensor,
        static: torch.Tensor,
        air: torch.Tensor,
        lat: torch.Tensor,
        lon: torch.Tensor,
        time: Sequence[datetime] | torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(time, torch.Tensor) == self.guards:
            raise TypeError("time is a tuple of dates with guards, and a tensor without")
        # Each step makes a new batch, and each new batch checks its grid.
        batch = Batch(surface, static, air, lat, lon, time, self.guards)
        # Not a new one: the package keeps the grid here, and does not check it again.
        batch.surface, batch.static, batch.air = self._normalised(surface, static, air)
        batch = batch.crop(self.patch)
        batch = batch.map(lambda x: x.to(self.encoder.surf_level_encoding.device))
        # Python numbers in a kernel again, as in the package. These never change, so a capture may keep them.
        lead_time = torch.full((surface.shape[0],), TIMESTEP / timedelta(hours=1), device=batch.surface.device)
        x = self._encode(batch, lead_time)
        x = self.backbone(x, fourier(lead_time, LEAD_TIME, self.width, self.guards))
        prediction = self._decode(x, batch, lead_time).map(torch.Tensor.float)
        return self._restored(prediction.surface, prediction.air)

    def _constant(self, name: str) -> torch.Tensor:
        """A row of numbers on the device: as in the package made anew from a list, which copies it from the host."""
        held = getattr(self, f"constant_{name}")
        return torch.tensor(self.constants[name], device=held.device) if self.guards else held

    def _normalised(self, surface, static, air):
        def scaled(x, kinds, axis):
            parts = zip(x.unbind(axis), kinds.values(), strict=True)
            return torch.stack([(part - location) / scale for part, (location, scale) in parts], axis)

        levels = []
        for name, part in zip(ATMOSPHERE, air.unbind(1), strict=True):
            location, scale = self._constant(f"{name}_location"), self._constant(f"{name}_scale")
            levels.append((part - location[:, None, None]) / scale[:, None, None])
        return scaled(surface, SURFACE, 1), scaled(static, STATIC, 0), torch.stack(levels, 1)

    def _restored(self, surface, air):
        parts = zip(surface.unbind(1), SURFACE.values(), strict=True)
        surface = torch.stack([part * scale + location for part, (location, scale) in parts], 1)
        levels = []
        for name, part in zip(ATMOSPHERE, air.unbind(1), strict=True):
            location, scale = self._constant(f"{name}_location"), self._constant(f"{name}_scale")
            levels.append(part * scale[:, None, None] + location[:, None, None])
        return surface, torch.stack(levels, 1)

    def _encode(self, batch: Batch, lead_time: torch.Tensor) -> torch.Tensor:
        """[batch, places, width]: the surface as one level, and what a Perceiver makes of the levels of the air."""
        e, (n, _, steps), levels = self.encoder, batch.surface.shape[:3], len(self.levels)
        static = batch.static[None, :, None].expand(n, -1, steps, -1, -1)
        clock = clock_planes(batch.time, batch.surface).expand(-1, -1, steps, -1, -1)
        ground = e.surf_token_embeds(torch.cat((batch.surface, static, clock), 1)).flatten(2).transpose(1, 2)
        ground = ground + e.surf_level_encoding
        ground = ground + e.surf_norm(e.surf_mlp(ground))

        air = e.atmos_token_embeds(batch.air.permute(0, 3, 1, 2, 4, 5).flatten(0, 1)).flatten(2).transpose(1, 2)
        height = e.atmos_levels_embed(fourier(self._constant("levels"), LEVEL, self.width, self.guards))
        air = air.unflatten(0, (n, levels)) + height[None, :, None]
        air = air.transpose(1, 2).flatten(0, 1)  # each patch on its own
        air = e.level_agg(e.atmos_latents.repeat(air.shape[0], 1, 1), air).unflatten(0, (n, -1)).transpose(1, 2)

        position, scale = patch_encodings(batch.lat, batch.lon, self.patch, self.width, self.guards)
        x = torch.cat((ground.unsqueeze(1), air), 1) + e.pos_embed(position) + e.scale_embed(scale)
        lead = e.lead_time_embed(fourier(lead_time, LEAD_TIME, self.width, self.guards))
        if isinstance(batch.time, torch.Tensor):
            hours = batch.time[:, 0]
        else:
            hours = torch.tensor([h for h, _, _ in clock_numbers(batch.time)], device=x.device)
        absolute_time = e.absolute_time_embed(fourier(hours, ABSOLUTE_TIME, self.width, guards=False))  # nor has theirs
        return x.flatten(1, 2) + lead.unsqueeze(1) + absolute_time.unsqueeze(1)

    def _decode(self, x: torch.Tensor, batch: Batch, lead_time: torch.Tensor) -> Batch:
        d, n = self.decoder, x.shape[0]
        x = x.unflatten(1, (self.res[0], -1)).transpose(1, 2)  # [batch, patches, latent levels, 2 * width]
        ground = x[:, :, :1].contiguous()
        surface = torch.stack([head(ground) for head in d.surf_heads.values()], -1)
        height = d.atmos_levels_embed(fourier(self._constant("levels"), LEVEL, 2 * self.width, self.guards))
        air = x[:, :, 1:].flatten(0, 1)
        air = d.level_decoder(height.repeat(air.shape[0], 1, 1), air).unflatten(0, (n, -1))
        air = torch.stack([head(air) for head in d.atmos_heads.values()], -1)
        time = later(batch.time, lead_time) if self.guards else batch.time
        return replace(batch, surface=self._fields(surface)[:, :, 0], air=self._fields(air), time=time)

    def _fields(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, patches, levels, patch * patch, variables] to [batch, variables, levels, height, width]."""
        x = x.unflatten(3, (self.patch, self.patch)).unflatten(1, self.res[1:])
        return x.permute(0, 6, 3, 1, 4, 2, 5).flatten(5, 6).flatten(3, 4)

    def inputs(self, batch: int, seed: int = 0) -> tuple:
        """Random fields around the rough statistics, a grid from pole to pole, and dates six hours apart, on the CPU.

        Another seed is another time as well.
        """
        generator = torch.Generator().manual_seed(seed)

        def fields(kinds, axis, *shape):
            return torch.stack([torch.randn(shape, generator=generator) * s + m for m, s in kinds.values()], axis)

        surface, static = fields(SURFACE, 1, batch, HISTORY, *self.size), fields(STATIC, 0, *self.size)
        air = fields(ATMOSPHERE, 1, batch, HISTORY, len(self.levels), *self.size)
        lat, lon = torch.linspace(90, -90, self.size[0]), torch.arange(self.size[1]) * (360 / self.size[1])
        start = datetime(2020, 6, 1, 12, tzinfo=timezone.utc)
        time = tuple(start + (seed + i) * TIMESTEP for i in range(batch))
        return surface, static, air, lat, lon, time if self.guards else torch.tensor(clock_numbers(time))


def aurora_stand_in(
    width: int = 512,
    layers: Sequence[int] = (6, 10, 8),
    size: tuple[int, int] = (721, 1440),
    levels: Sequence[int] = LEVELS,
    window: tuple[int, int, int] = (2, 6, 12),
    guards: bool = True,
    seed: int = 0,
) -> AuroraStandIn:
    """The stand-in at any size with random weights, on the CPU, for timing. The full size is the default.

    It has the original's heads where they divide ``width``, else 4. The seed fixes the weights.
    guards: False captures. With them the last input is dates, and ``helpers.capture(lambda *x: model(*x, dates),
    *inputs[:-1])`` is refused at the first construct that needs the host.
    """
    heads, perceiver_heads = (n if width % n == 0 else 4 for n in (8, 16))
    sizes = dict(width=width, layers=layers, heads=heads, size=size, levels=levels, window=window)
    return seeded(AuroraStandIn, seed, **sizes, perceiver_heads=perceiver_heads, guards=guards)
