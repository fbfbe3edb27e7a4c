"""Kernels of Triton for LayerNorm with fake quantization of its result."""

# Triton compiles the source of its kernels: annotations must not be strings, and kernels have no docstrings.
from typing import Any

import torch
import triton
import triton.language as tl

from .common import END, HIGH, LOW, TILE, round_even


@triton.jit
def _fold(p, HEIGHT: tl.constexpr):
    # The sum of sixteen partial sums, in the order of the engine.
    p = tl.sum(tl.reshape(p, (HEIGHT, 2, 8)), 1)
    p = tl.sum(tl.reshape(p, (HEIGHT, 2, 4)), 1)
    p = tl.sum(tl.reshape(p, (HEIGHT, 2, 2)), 1)
    return tl.sum(p, 1)


@triton.jit
def _moments(x_ptr, at, known, width, eps, HEIGHT: tl.constexpr):
    # Mean, shift and reciprocal deviation of rows, in the order of the engine (docs/inference.md, section 3).
    lane = tl.arange(0, 16)
    p = tl.zeros((HEIGHT, 16), tl.float32)
    for begin in range(0, width, 16):
        inside = known[:, None] & (begin + lane < width)[None, :]
        p += tl.load(x_ptr + at[:, None] + begin + lane[None, :], mask=inside, other=0.0).to(tl.float32)
    count = width.to(tl.float32)
    mean = tl.div_rn(_fold(p, HEIGHT), count + 0.0 * _fold(p, HEIGHT))
    p, squares = tl.zeros((HEIGHT, 16), tl.float32), tl.zeros((HEIGHT, 16), tl.float32)
    for begin in range(0, width, 16):
        inside = known[:, None] & (begin + lane < width)[None, :]
        x = tl.load(x_ptr + at[:, None] + begin + lane[None, :], mask=inside, other=0.0).to(tl.float32)
        d = tl.where(inside, x - mean[:, None], 0.0)
        p += d
        squares = tl.fma(d, d, squares)
    rest = tl.div_rn(_fold(p, HEIGHT), count + 0.0 * mean)
    variance = tl.div_rn(_fold(squares, HEIGHT), count + 0.0 * mean)
    inverse = tl.div_rn(1.0 + 0.0 * mean, tl.sqrt_rn(variance + eps))
    return mean, -(rest * inverse), inverse


@triton.jit
def _norm_forward(
    x_ptr, weight_ptr, bias_ptr, scale_ptr, recip_ptr, back_ptr, out_ptr, means_ptr, total, tokens, count, width, eps,
    QUANTIZED: tl.constexpr, MAPPED: tl.constexpr, EXACT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    column, known = tl.arange(0, WIDTH), row < total
    inside = known[:, None] & (column < width)[None, :]
    x = tl.load(x_ptr + row[:, None] * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if EXACT:
        mean, shift, inverse = _moments(x_ptr, row * width, known, width, eps, HEIGHT)
        d = x - mean[:, None]
    else:
        mean = tl.sum(x, 1) / width
        d = tl.where(inside, x - mean[:, None], 0.0)
        inverse = 1.0 / tl.sqrt(tl.sum(d * d, 1) / width + eps)
        shift = 0.0 * mean
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)[None, :] + 0.0 * d
    bias = tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)[None, :] + 0.0 * d
    y = tl.fma(tl.fma(d, inverse[:, None] + 0.0 * d, shift[:, None] + 0.0 * d), weight, bias)
    if QUANTIZED:
        scaled = tl.maximum(y * tl.load(recip_ptr), LOW, propagate_nan=tl.PropagateNan.ALL)
        y = round_even(tl.minimum(scaled, HIGH, propagate_nan=tl.PropagateNan.ALL)) * tl.load(scale_ptr)
    tl.store(means_ptr + 2 * row, mean, mask=known)
    tl.store(means_ptr + 2 * row + 1, inverse, mask=known)
    to = row
    if MAPPED:
        to = row // tokens * count + tl.load(back_ptr + row % tokens, mask=known, other=0)
    tl.store(out_ptr + to[:, None] * width + column[None, :], y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(
    x_ptr, weight_ptr, bias_ptr, recip_ptr, back_ptr, grad_ptr, means_ptr, dx_ptr, parts_ptr, slopes_ptr,
    total, tokens, count, width, steps,
    QUANTIZED: tl.constexpr, MAPPED: tl.constexpr, LEARNED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    bias = tl.load(bias_ptr + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    dweight, dbias = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    slope = 0.0
    for step in range(steps):
        row = (tl.program_id(0).to(tl.int64) * steps + step) * HEIGHT + tl.arange(0, HEIGHT)
        known = row < total
        inside = known[:, None] & (column < width)[None, :]
        x = tl.load(x_ptr + row[:, None] * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
        at = row
        if MAPPED:
            at = row // tokens * count + tl.load(back_ptr + row % tokens, mask=known, other=0)
        grad = tl.load(grad_ptr + at[:, None] * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(means_ptr + 2 * row, mask=known, other=0.0)
        inverse = tl.load(means_ptr + 2 * row + 1, mask=known, other=0.0)
        unit = tl.where(inside, (x - mean[:, None]) * inverse[:, None], 0.0)
        if QUANTIZED:
            scaled = (unit * weight + bias) * tl.load(recip_ptr)
            passes = (scaled >= LOW * END) & (scaled <= HIGH * END)
            if LEARNED:
                code = round_even(tl.minimum(tl.maximum(scaled, LOW), HIGH))
                slope += tl.sum(grad * (code - tl.where(passes, scaled, 0.0)))
            grad = tl.where(passes, grad, 0.0)
        dweight += tl.sum(grad * unit, 0)
        dbias += tl.sum(grad, 0)
        g = grad * weight
        dx = inverse[:, None] * (g - (tl.sum(g, 1) / width)[:, None] - unit * (tl.sum(g * unit, 1) / width)[:, None])
        tl.store(dx_ptr + row[:, None] * width + column[None, :], dx.to(dx_ptr.dtype.element_ty), mask=inside)
    part = parts_ptr + tl.program_id(0) * 2 * width
    tl.store(part + column, dweight, mask=column < width)
    tl.store(part + width + column, dbias, mask=column < width)
    if LEARNED:
        tl.store(slopes_ptr + tl.program_id(0), slope)


#: Programs of the backward pass of LayerNorm, each of which has a part of the gradients of the parameters.
NORM_PARTS = 528


def _norm_shape(x: Any) -> tuple[int, int, int, int]:
    """Rows, channels, and the rows and columns of a tile."""
    width = x.shape[-1]
    columns = triton.next_power_of_2(width)
    return x.numel() // width, width, max(1, TILE // columns), columns


def norm(
    x: Any, weight: Any, bias: Any, eps: float, scale: Any, recip: Any, dtype: Any, rows: Any
) -> tuple[Any, Any]:
    """LayerNorm and fake quantization of a contiguous ``x`` ``[n, tokens, c]``, and the mean and the reciprocal deviation of each
    row. In ``float32`` the values are the engine's."""
    total, width, height, columns = _norm_shape(x)
    images, tokens = x.shape[0], x.shape[1]
    count = tokens if rows is None else len(rows[0])
    make = torch.empty if rows is None or count == tokens else torch.zeros
    out = make((images, count, width) if rows is not None else x.shape, dtype=dtype, device=x.device)
    means = torch.empty((total, 2), dtype=torch.float32, device=x.device)
    some = weight if scale is None else scale
    with torch.cuda.device_of(x):
        _norm_forward[(triton.cdiv(total, height),)](
            x, weight, bias, some, some if recip is None else recip, means if rows is None else rows[1], out, means,
            total, tokens, count, width, eps, QUANTIZED=scale is not None, MAPPED=rows is not None,
            EXACT=dtype == torch.float32, HEIGHT=height, WIDTH=columns,
        )  # fmt: skip
    return out, means


def norm_gradient(
    x: Any, weight: Any, bias: Any, recip: Any, means: Any, grad: Any, rows: Any, learned: bool
) -> tuple[Any, Any, Any, Any]:
    """The gradients of ``x``, the weight, the bias and the scale."""
    total, width, height, columns = _norm_shape(x)
    steps = max(1, triton.cdiv(triton.cdiv(total, height), NORM_PARTS))
    parts = triton.cdiv(total, height * steps)
    dx = torch.empty_like(x)
    sums = torch.empty((parts, 2, width), dtype=torch.float32, device=x.device)
    slopes = torch.empty(parts, dtype=torch.float32, device=x.device) if learned else sums
    count = x.shape[1] if rows is None else len(rows[0])
    with torch.cuda.device_of(x):
        _norm_backward[(parts,)](
            x, weight, bias, weight if recip is None else recip, means if rows is None else rows[1], grad, means, dx, sums, slopes,
            total, x.shape[1], count, width, steps,
            QUANTIZED=recip is not None, MAPPED=rows is not None, LEARNED=learned, HEIGHT=height, WIDTH=columns,
        )  # fmt: skip
    found = sums.sum(0)
    return dx, found[0], found[1], slopes.sum() if learned else None
