"""Attention, as the models compute it."""

import torch


def check_heads(width: int, heads: int) -> None:
    """Raises ValueError if ``heads`` can't share ``width`` evenly."""
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of {heads} heads")


def padding_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """mask [batch, tokens] bool to [batch, 1, 1, tokens], for ``attend``: 0 for a token, the lowest number for padding.

    Always built: asking whether there is any padding, as transformers does, waits for the device, and a capture refuses
    that.
    """
    return ((mask.to(dtype) - 1.0) * torch.finfo(dtype).max)[:, None, None, :]


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[batch, tokens, width] to [batch, heads, tokens, width / heads], a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None, scale: float | None = None
) -> torch.Tensor:
    """softmax(q k' * scale + bias) v of [batch, heads, tokens, d], back to [batch, tokens, heads * d].

    bias: added to the scores, such as the lowest number for keys not to look at. scale: d ** -0.5 if not given.

    Written out, not F.scaled_dot_product_attention: torch picks another kernel for that on every device, and the same
    arithmetic everywhere is what lets the device be compared with the CPU bit for bit.
    """
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
