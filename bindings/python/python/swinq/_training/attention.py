"""Window attention in training, as the engine computes it (docs/inference.md, section 6), with straight-through gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .._calls.exporting import exporting
from .._common.contract import CONTRACT
from .fake import Quantizer, fake_quantize, fused
from .graph import cast, untraced, weighted

#: From this factor of ``q k^T`` on, a head of a Swin V2 has a second code for its queries and keys.
SECOND_CODES = CONTRACT.hi_lo_from
#: Values of a second code in one code.
PARTS = CONTRACT.lo_steps


@dataclass(frozen=True)
class Sites:
    """The quantizers of attention; ``None`` for a site that is off."""

    q: Quantizer | None = None
    k: Quantizer | None = None
    v: Quantizer | None = None
    scores: Quantizer | None = None
    #: The quantizer of signed codes of probabilities.
    probs: Quantizer | None = None
    #: Whether probabilities have unsigned codes.
    unsigned: bool = False


@dataclass(frozen=True)
class Windows:
    """What a block's windows have in common, and which mask each of an image has."""

    #: Tokens of a window, and heads.
    tokens: int
    heads: int
    #: What is added to a logit whose tokens lie in different regions, ``[masks, n, n]``; ``None`` without a shift.
    masks: Any
    #: ``int64 [windows of an image]``: the mask of each.
    mask: Any


def attention(qkv: Any, scale: Any, bias: Any, windows: Windows, sites: Sites, second_codes: bool, dtype: Any) -> Any:
    """Attention in every window.

    Args:
        qkv: queries, keys and values: ``[windows, n, 3 c]``, or three tensors ``[windows, n, c]``.
        scale: the factor of ``q k^T``, ``float32 [heads]``.
        bias: ``float32 [heads, n, n]``.
        second_codes: whether heads with a factor from :data:`SECOND_CODES` on have a second code for queries and keys.
        dtype: the type of products and of the result.

    Returns:
        ``[windows, n, c]`` in ``dtype``.
    """
    found = fused(bias)
    if found is not None and found.takes_attention(qkv, windows, sites):
        return found.attention(qkv, scale, bias, windows, sites, second_codes, dtype)
    return composed(qkv, scale, bias, windows, sites, second_codes, dtype)


def composed(qkv: Any, scale: Any, bias: Any, windows: Windows, sites: Sites, second_codes: bool, dtype: Any) -> Any:
    """:func:`attention` in operations of PyTorch, in ``float32``."""
    qkv = qkv.split(int(qkv.shape[-1]) // 3, -1) if isinstance(qkv, torch.Tensor) else qkv
    n, heads, channels = windows.tokens, windows.heads, int(qkv[0].shape[-1])
    # Products of f32 must not become products of half precision by the caller's autocast.
    with torch.autocast(qkv[0].device.type, enabled=False):
        q, k, v = (_of_heads(part, n, heads, channels) for part in qkv)
        second_codes = second_codes and sites.q is not None and sites.k is not None
        large = (scale.detach() >= SECOND_CODES)[:, None, None] if second_codes else None
        scores = _products(_faked(q, sites.q, large), _faked(k, sites.k, large))
        scores = fake_quantize(scores, sites.scores, torch.float32)
        logits = scores * scale[:, None, None] + bias
        if windows.masks is not None:
            masks = windows.masks.index_select(0, windows.mask)
            logits = logits.reshape(-1, len(windows.mask), heads, n, n) + masks.reshape(-1, 1, n, n)
            logits = logits.reshape(-1, heads, n, n)
        found = _weighted(logits, fake_quantize(v, sites.v, torch.float32), sites)
        return cast(found.transpose(1, 2).reshape(-1, n, channels), dtype)


def _of_heads(x: Any, tokens: int, heads: int, channels: int) -> Any:
    """Rows ``[windows, tokens, channels]`` as ``float32 [windows, heads, tokens, channels of a head]``."""
    return cast(x, torch.float32).reshape(-1, tokens, heads, channels // heads).transpose(1, 2)


def _faked(x: Any, quantizer: Quantizer | None, large: Any) -> tuple[Any, Any]:
    """Queries or keys behind their site, and what their second codes add to the first."""
    found = fake_quantize(x, quantizer, torch.float32)
    if quantizer is None or large is None:
        return found, None
    if exporting():
        step = Quantizer(untraced(torch.div, quantizer.scale, PARTS))
        return found, fake_quantize((x - found) * large, step, torch.float32)
    with torch.no_grad():
        scaled = x * quantizer.recip()
        code = scaled.clamp(quantizer.low, quantizer.high).round()
        rest = ((scaled - code) * PARTS).clamp(-CONTRACT.code_max, CONTRACT.code_max).round() / PARTS * quantizer.scale
        rest = torch.where(large, rest, 0.0)
    return found, rest


def _products(q: tuple[Any, Any], k: tuple[Any, Any]) -> Any:
    """``q k^T``. The engine leaves out the product of two second codes."""
    (first_q, rest_q), (first_k, rest_k) = q, (part if part is None else part.transpose(-1, -2) for part in k)
    scores = first_q @ first_k
    return scores if rest_q is None or rest_k is None else scores + (first_q @ rest_k + rest_q @ first_k)


def _weighted(logits: Any, values: Any, sites: Sites) -> Any:
    """The values weighted with the probabilities of the logits."""
    if not sites.unsigned:
        return fake_quantize(logits.softmax(-1), sites.probs, torch.float32) @ values
    return weighted(logits, values) if exporting() else _Unsigned.apply(logits) @ values


def exp_255(x: Any) -> Any:
    """``255 e^x`` for ``-11 <= x <= 0``, as the engine computes it but for the rounding of the sums."""
    t = x.double() * CONTRACT.log2_e
    n = t.round()
    f, p = t - n, torch.full_like(t, CONTRACT.exp_255[0])
    for coefficient in CONTRACT.exp_255[1:]:
        p = p * f + coefficient
    return torch.ldexp(p, n.int()).float()


class _Unsigned(torch.autograd.Function):
    """Probabilities as unsigned codes of the exponentials, divided by their own sum. The gradient is that of the exponentials
    divided by that sum."""

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        values = exp_255((logits - logits.amax(-1, keepdim=True)).clamp_min(CONTRACT.code_floor))
        codes = values.round()
        total = codes.sum(-1, keepdim=True)
        probs = codes / total
        ctx.save_for_backward(values / total, probs)
        return probs

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        slope, probs = ctx.saved_tensors
        return slope * (grad - (probs * grad).sum(-1, keepdim=True))
