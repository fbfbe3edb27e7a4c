"""Kernels of Triton for window attention in training, in the manner of FlashAttention (Dao et al., NeurIPS 2022): the backward pass
computes the probabilities again."""

# Triton compiles the source of its kernels: annotations must not be strings, and kernels have no docstrings.
from typing import Any

import torch
import triton
import triton.language as tl

from .._common.contract import CONTRACT
from .common import END, HALF, HIGH, LOW, MAGIC, round_even

#: The most tokens of a window and channels of a head.
MAX_TOKENS, MAX_CHANNELS = 256, 64
E0, E1, E2, E3, E4 = (tl.constexpr(c) for c in CONTRACT.exp_255)
LOG2 = tl.constexpr(CONTRACT.log2_e)
PER_CODE = tl.constexpr(CONTRACT.lo_steps)
FROM = tl.constexpr(CONTRACT.hi_lo_from)
FLOOR = tl.constexpr(CONTRACT.code_floor)


@triton.jit
def _exp_255(x):
    t = tl.fma(x, LOG2, MAGIC)
    n = t - MAGIC
    f = tl.fma(x, LOG2, -n)
    p = tl.fma(f, E0, E1)
    p = tl.fma(p, f, E2)
    p = tl.fma(p, f, E3)
    p = tl.fma(p, f, E4)
    return p * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _load_part(ptr, stride, first, row, rows, column, D: tl.constexpr, n):
    at = ptr + (first + row)[:, None] * stride + column[None, :]
    return tl.load(at, mask=(row < n)[:, None] & (column < D)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _quantized(x, scale_ptr, recip_ptr, ON: tl.constexpr):
    # The codes of a tensor, or the tensor, and what a code stands for.
    if ON:
        scaled = x * tl.load(recip_ptr)
        return round_even(tl.minimum(tl.maximum(scaled, LOW), HIGH)), tl.load(scale_ptr)
    return x, 1.0


@triton.jit
def _second(x, code, recip_ptr, ON: tl.constexpr, large):
    # The second code, in steps of 1 / 256 of a code.
    if ON:
        rest = (x * tl.load(recip_ptr) - code) * PER_CODE
        rest = round_even(tl.minimum(tl.maximum(rest, -HIGH), HIGH))
        return tl.where(large, rest, 0.0)
    return 0.0 * code


@triton.jit
def _inside(x, recip_ptr, ON: tl.constexpr):
    if ON:
        scaled = x * tl.load(recip_ptr)
        return (scaled >= LOW * END) & (scaled <= HIGH * END)
    return x == x


@triton.jit
def _dot(a, b, EXACT: tl.constexpr, PRECISE: tl.constexpr):
    # Codes are exact in bfloat16. Other operands are in the type of the training.
    if (EXACT or not PRECISE) and HALF:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _scores(q, k, ql, kl, ON: tl.constexpr, SECOND: tl.constexpr, PRECISE: tl.constexpr):
    # The products of the codes of queries and keys.
    found = _dot(q, tl.trans(k), ON, PRECISE)
    if SECOND:
        found += (_dot(q, tl.trans(kl), True, PRECISE) + _dot(ql, tl.trans(k), True, PRECISE)) / PER_CODE
    return found


@triton.jit
def _addend(bias_ptr, masks_ptr, mask_ptr, head, window, place, valid, n, MASKED: tl.constexpr):
    # What is added to the logits of a head: the position bias, and the mask of the window.
    add = tl.load(bias_ptr + head * n * n + place, mask=valid, other=0.0)
    if MASKED:
        add += tl.load(masks_ptr + tl.load(mask_ptr + window) * n * n + place, mask=valid, other=0.0)
    return add


@triton.jit
def _weights(logits, keys, UNSIGNED: tl.constexpr, SIGNED: tl.constexpr, probs_scale_ptr, probs_recip_ptr):
    # The slope of the softmax, the weights before they are multiplied by `factor`, the factor of each row, and the softmax in
    # steps of signed codes.
    top = tl.max(logits, 1)
    x = logits - top[:, None]
    if UNSIGNED:
        value = tl.where(keys, _exp_255(tl.maximum(x, FLOOR)), 0.0)
        code = round_even(value)
        total = tl.sum(code, 1)
        factor = 1.0 / total
        return value * factor[:, None], code, factor, value
    value = tl.where(keys, tl.exp(x), 0.0)
    softmax = value * (1.0 / tl.sum(value, 1))[:, None]
    if SIGNED:
        scaled = softmax * tl.load(probs_recip_ptr)
        code = round_even(tl.minimum(scaled, HIGH))
        return softmax, code, 0.0 * top + tl.load(probs_scale_ptr), scaled
    return softmax, softmax, 0.0 * top + 1.0, softmax


@triton.jit
def _attention_forward(
    q_ptr, k_ptr, v_ptr, q_stride, k_stride, v_stride, out_ptr,
    factor_ptr, bias_ptr, masks_ptr, mask_ptr, windows, sites_ptr, recips_ptr,
    n, width,
    D: tl.constexpr, N: tl.constexpr, M: tl.constexpr, CHANNELS: tl.constexpr,
    MASKED: tl.constexpr, SECOND: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    UNSIGNED: tl.constexpr, SIGNED: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    window, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, key, column = tl.program_id(2) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    first = window * n
    x_q = _load_part(q_ptr + head * CHANNELS, q_stride, first, row, M, column, CHANNELS, n)
    x_k = _load_part(k_ptr + head * CHANNELS, k_stride, first, key, N, column, CHANNELS, n)
    x_v = _load_part(v_ptr + head * CHANNELS, v_stride, first, key, N, column, CHANNELS, n)
    q, s_q = _quantized(x_q, sites_ptr, recips_ptr, Q)
    k, s_k = _quantized(x_k, sites_ptr + 1, recips_ptr + 1, K)
    v, s_v = _quantized(x_v, sites_ptr + 2, recips_ptr + 2, V)
    factor = tl.load(factor_ptr + head)
    large = factor >= FROM
    ql, kl = _second(x_q, q, recips_ptr, SECOND, large), _second(x_k, k, recips_ptr + 1, SECOND, large)
    valid = (row < n)[:, None] & (key < n)[None, :]
    place = row[:, None] * n + key[None, :]
    add = _addend(bias_ptr, masks_ptr, mask_ptr, head, window % windows, place, valid, n, MASKED)
    scores = _scores(q, k, ql, kl, Q and K, SECOND, PRECISE)
    logits = tl.fma(scores, (s_q * s_k * factor) + 0.0 * scores, add)
    keys = (key < n)[None, :]
    logits = tl.where(keys, logits, float("-inf"))
    _, p, scale, _ = _weights(logits, keys, UNSIGNED, SIGNED, sites_ptr + 3, recips_ptr + 3)
    scale = tl.div_rn(s_v + 0.0 * scale, tl.sum(p, 1)) if UNSIGNED else s_v * scale
    y = _dot(p, v, (UNSIGNED or SIGNED) and V, PRECISE) * scale[:, None]
    at = out_ptr + (first + row)[:, None] * width + head * CHANNELS + column[None, :]
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=(row < n)[:, None] & (column < CHANNELS)[None, :])


@triton.jit
def _attention_backward(
    q_ptr, k_ptr, v_ptr, q_stride, k_stride, v_stride, grad_ptr, dq_ptr, dk_ptr, dv_ptr, d_stride,
    factor_ptr, bias_ptr, masks_ptr, mask_ptr, windows, sites_ptr, recips_ptr, dbias_ptr, dsites_ptr,
    count, group, n, width, heads,
    D: tl.constexpr, N: tl.constexpr, M: tl.constexpr, CHANNELS: tl.constexpr,
    MASKED: tl.constexpr, SECOND: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    UNSIGNED: tl.constexpr, SIGNED: tl.constexpr, PRECISE: tl.constexpr, LEARNED: tl.constexpr, OF_FACTOR: tl.constexpr,
):  # fmt: skip
    part, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    key, column = tl.arange(0, N), tl.arange(0, D)
    factor = tl.load(factor_ptr + head)
    large = factor >= FROM
    dbias_ptr += (part * heads + head) * n * n
    # The gradients of the scales of queries, keys, values and probabilities, and of the factor.
    g_q, g_k, g_v, g_p, g_f = 0.0, 0.0, 0.0, 0.0, 0.0
    for step in range(group):
        window = part * group + step
        if window < count:
            first = window * n
            x_k = _load_part(k_ptr + head * CHANNELS, k_stride, first, key, N, column, CHANNELS, n)
            x_v = _load_part(v_ptr + head * CHANNELS, v_stride, first, key, N, column, CHANNELS, n)
            k, s_k = _quantized(x_k, sites_ptr + 1, recips_ptr + 1, K)
            v, s_v = _quantized(x_v, sites_ptr + 2, recips_ptr + 2, V)
            kl = _second(x_k, k, recips_ptr + 1, SECOND, large)
            whole_k = (k + kl / PER_CODE) * s_k
            dk, dv = tl.zeros((N, D), tl.float32), tl.zeros((N, D), tl.float32)
            for begin in range(0, N, M):
                if begin < n:
                    row = begin + tl.arange(0, M)
                    x_q = _load_part(q_ptr + head * CHANNELS, q_stride, first, row, M, column, CHANNELS, n)
                    grad = _load_part(grad_ptr + head * CHANNELS, width, first, row, M, column, CHANNELS, n)
                    q, s_q = _quantized(x_q, sites_ptr, recips_ptr, Q)
                    ql = _second(x_q, q, recips_ptr, SECOND, large)
                    valid = (row < n)[:, None] & (key < n)[None, :]
                    place = row[:, None] * n + key[None, :]
                    add = _addend(bias_ptr, masks_ptr, mask_ptr, head, window % windows, place, valid, n, MASKED)
                    product = _scores(q, k, ql, kl, Q and K, SECOND, PRECISE) * (s_q * s_k)
                    keys = (key < n)[None, :]
                    logits = tl.where(keys, product * factor + add, float("-inf"))
                    slope, p, scale, scaled = _weights(
                        logits, keys, UNSIGNED, SIGNED, sites_ptr + 3, recips_ptr + 3
                    )
                    dp = _dot(grad, tl.trans(v), False, PRECISE) * s_v
                    dv += _dot(tl.trans(p), grad * scale[:, None], False, PRECISE)
                    if SIGNED:
                        passes = scaled <= HIGH * END
                        if LEARNED:
                            g_p += tl.sum(tl.where(valid, dp * (p - tl.where(passes, scaled, 0.0)), 0.0))
                        dp = tl.where(passes, dp, 0.0)
                        mean = tl.sum(slope * dp, 1)
                    else:
                        mean = tl.sum(p * dp, 1) * scale
                    dlogits = tl.where(valid, slope * (dp - mean[:, None]), 0.0)
                    held = tl.load(dbias_ptr + place, mask=valid, other=0.0)
                    tl.store(dbias_ptr + place, held + dlogits, mask=valid)
                    if OF_FACTOR:
                        g_f += tl.sum(dlogits * product)
                    dscores = dlogits * factor
                    dq = _dot(dscores, whole_k, False, PRECISE)
                    dk += _dot(tl.trans(dscores), (q + ql / PER_CODE) * s_q, False, PRECISE)
                    passes_q = _inside(x_q, recips_ptr, Q)
                    if LEARNED and Q:
                        g_q += tl.sum(dq * (q - tl.where(passes_q, x_q * tl.load(recips_ptr), 0.0)))
                    at = (first + row)[:, None] * d_stride + head * CHANNELS + column[None, :]
                    within = (row < n)[:, None] & (column < CHANNELS)[None, :]
                    tl.store(dq_ptr + at, tl.where(passes_q, dq, 0.0).to(dq_ptr.dtype.element_ty), mask=within)
            passes_k, passes_v = _inside(x_k, recips_ptr + 1, K), _inside(x_v, recips_ptr + 2, V)
            if LEARNED and K:
                g_k += tl.sum(dk * (k - tl.where(passes_k, x_k * tl.load(recips_ptr + 1), 0.0)))
            if LEARNED and V:
                g_v += tl.sum(dv * (v - tl.where(passes_v, x_v * tl.load(recips_ptr + 2), 0.0)))
            at = (first + key)[:, None] * d_stride + head * CHANNELS + column[None, :]
            within = (key < n)[:, None] & (column < CHANNELS)[None, :]
            tl.store(dk_ptr + at, tl.where(passes_k, dk, 0.0).to(dk_ptr.dtype.element_ty), mask=within)
            tl.store(dv_ptr + at, tl.where(passes_v, dv, 0.0).to(dv_ptr.dtype.element_ty), mask=within)
    out = dsites_ptr + (part * heads + head) * 5
    tl.store(out, g_q)
    tl.store(out + 1, g_k)
    tl.store(out + 2, g_v)
    tl.store(out + 3, g_p)
    tl.store(out + 4, g_f)


#: Windows of a program of the backward pass: it adds their gradients of the bias.
GROUP = 16


def takes_attention(qkv: Any, windows: Any, sites: Any) -> bool:
    """Whether the kernels take these tensors: no site of scores, no more tokens and channels than they hold."""
    whole = isinstance(qkv, torch.Tensor)
    channels = (qkv.shape[-1] // 3 if whole else qkv[0].shape[-1]) // windows.heads
    return sites.scores is None and windows.tokens <= MAX_TOKENS and channels <= MAX_CHANNELS


def attention(qkv: Any, scale: Any, bias: Any, windows: Any, sites: Any, second_codes: bool, dtype: Any) -> Any:
    """Attention in every window; see ``_training/attention.py``."""
    quantizers = (sites.q, sites.k, sites.v, sites.probs)
    scales = [scale[:1].detach() if quantizer is None else quantizer.scale for quantizer in quantizers]
    parts = (qkv, None, None) if isinstance(qkv, torch.Tensor) else qkv
    return _Attention.apply(*parts, scale, bias, *scales, windows, sites, second_codes, dtype)


def _constants(ctx: Any, tokens: int, channels: int, dtype: Any) -> dict[str, Any]:
    """The constants of a kernel."""
    sites, wide = ctx.sites, triton.next_power_of_2(max(tokens, 16))
    return {
        "D": triton.next_power_of_2(max(channels, 16)),
        "N": wide,
        "M": min(wide, 64 if wide <= 64 else 32),
        "CHANNELS": channels,
        "MASKED": ctx.windows.masks is not None,
        "SECOND": ctx.second_codes and sites.q is not None and sites.k is not None,
        "Q": sites.q is not None,
        "K": sites.k is not None,
        "V": sites.v is not None,
        "UNSIGNED": sites.unsigned,
        "SIGNED": sites.probs is not None,
        "PRECISE": dtype == torch.float32,
        "num_warps": 4 if wide <= 64 else 8,
    }


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, factor: Any, bias: Any, *rest: Any) -> Any:
        scales, (windows, sites, second_codes, dtype) = torch.cat([s.detach() for s in rest[:4]]), rest[4:]
        recips = scales.reciprocal()
        ctx.windows, ctx.sites, ctx.second_codes, ctx.dtype = windows, sites, second_codes, dtype
        ctx.is_whole = k is None
        parts = q.contiguous().chunk(3, -1) if ctx.is_whole else (q, k, v)
        q, k, v = (part if part.stride(-1) == 1 else part.contiguous() for part in parts)
        ctx.save_for_backward(q, k, v, factor, bias, scales, recips)
        count, n, c = q.shape
        out = torch.empty((count, n, c), dtype=dtype, device=q.device)
        constants = _constants(ctx, n, c // windows.heads, dtype)
        masks, mask, kinds = _masks(windows, bias)
        grid = (count, windows.heads, triton.cdiv(n, constants["M"]))
        with torch.cuda.device_of(q):
            _attention_forward[grid](
                q, k, v, q.stride(1), k.stride(1), v.stride(1), out, factor, bias, masks, mask, kinds, scales, recips, n, c, **constants
            )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        q, k, v, factor, bias, scales, recips = ctx.saved_tensors
        count, n, c = q.shape
        heads, grad = ctx.windows.heads, grad.contiguous()
        whole = torch.empty((count, n, 3, c), dtype=q.dtype, device=q.device)
        together = whole.permute(2, 0, 1, 3)
        group = min(GROUP, max(count // 256, 1))
        parts = triton.cdiv(count, group)
        dbias = torch.zeros((parts, heads, n, n), device=q.device)
        dsites = torch.empty((parts, heads, 5), device=q.device)
        learned = any(ctx.needs_input_grad[5:9])
        masks, mask, kinds = _masks(ctx.windows, bias)
        with torch.cuda.device_of(q):
            _attention_backward[(parts, heads)](
                q, k, v, q.stride(1), k.stride(1), v.stride(1), grad, *together, together.stride(2),
                factor, bias, masks, mask, kinds, scales, recips, dbias, dsites, count, group, n, c, heads,
                **_constants(ctx, n, c // heads, ctx.dtype), LEARNED=learned, OF_FACTOR=ctx.needs_input_grad[3],
            )  # fmt: skip
        of_factor = dsites[..., 4].sum(0) if ctx.needs_input_grad[3] else None
        of_sites = [_of_site(ctx, index, dsites) for index in range(4)]
        parts = (whole.flatten(2), None, None) if ctx.is_whole else together
        return (*parts, of_factor, dbias.sum(0), *of_sites, None, None, None, None)


def _of_site(ctx: Any, index: int, dsites: Any) -> Any:
    """The gradient of the scale of queries, keys, values or probabilities."""
    quantizer = (ctx.sites.q, ctx.sites.k, ctx.sites.v, ctx.sites.probs)[index]
    if not ctx.needs_input_grad[5 + index] or quantizer is None:
        return None
    return (dsites[..., index].sum() * quantizer.factor).reshape(1)


def _masks(windows: Any, bias: Any) -> tuple[Any, Any, int]:
    """The masks, the number of the mask of each window of an image, and how many windows it has."""
    if windows.masks is None:
        return bias, bias, 1
    return windows.masks, windows.mask, len(windows.mask)
