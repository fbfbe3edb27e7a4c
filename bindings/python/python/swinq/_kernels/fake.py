"""Kernels of Triton for fake quantization, rows of tensors, and sums in the order of the engine."""

# Triton compiles the source of its kernels: annotations must not be strings, and kernels have no docstrings.
from typing import Any

import torch
import triton
import triton.language as tl

from .._common.contract import CONTRACT
from .common import END, TILE, round_even

#: The table of GELU: its last argument, its intervals per unit, and what rounds a place in it.
LAST, PER_UNIT = tl.constexpr(CONTRACT.gelu_last), tl.constexpr(CONTRACT.gelu_per_unit)
ROUNDER = tl.constexpr(CONTRACT.rounder)


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _gelu_quadratic(x, table_ptr):
    a = tl.minimum(tl.abs(x), LAST)
    place = tl.fma(a, PER_UNIT + 0.0 * a, ROUNDER + 0.0 * a).to(tl.int32, bitcast=True) & 31
    c0, c1, c2 = tl.load(table_ptr + place), tl.load(table_ptr + 32 + place), tl.load(table_ptr + 64 + place)
    return tl.fma(-a, tl.fma(tl.fma(c2, a, c1), a, c0), tl.maximum(x, 0.0))


@triton.jit
def _gelu_slope(x):
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _tile(row, column, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # The places of a tile's scales, and which of them exist. One return: Triton compiles what follows a return, too, and all returns
    # must have one type.
    if COLUMNS:
        place, known = column[None, :], (column < columns)[None, :]
    else:
        place, known = row[:, None] if ROWS else row[:, None] * 0, (row < rows)[:, None]
    return place, known


@triton.jit
def _fake_forward(
    x_ptr, out_ptr, scale_ptr, recip_ptr, zero_ptr, table_ptr, rows, columns, low, high,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if GELU:
        x = _gelu_quadratic(x, table_ptr)
    place, known = _tile(row, column, rows, columns, ROWS, COLUMNS)
    recip, scale = tl.load(recip_ptr + place, mask=known, other=1.0), tl.load(scale_ptr + place, mask=known, other=1.0)
    zero = tl.load(zero_ptr + place, mask=known, other=0.0) if COLUMNS else 0.0 * recip
    scaled = tl.fma(x, recip + 0.0 * x, zero + 0.0 * x) if COLUMNS else x * recip
    scaled = tl.maximum(scaled, low, propagate_nan=tl.PropagateNan.ALL)
    code = round_even(tl.minimum(scaled, high, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + at, ((code - zero) * scale).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _fake_backward(
    x_ptr, grad_ptr, dx_ptr, slope_ptr, recip_ptr, zero_ptr, rows, columns, low, high,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr, LEARNED: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    raw = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
    x = _gelu(raw) if GELU else raw
    place, known = _tile(row, column, rows, columns, ROWS, COLUMNS)
    recip = tl.load(recip_ptr + place, mask=known, other=1.0)
    zero = tl.load(zero_ptr + place, mask=known, other=0.0) if COLUMNS else 0.0 * recip
    scaled = tl.fma(x, recip + 0.0 * x, zero + 0.0 * x) if COLUMNS else x * recip
    inside = (scaled >= low * END) & (scaled <= high * END)
    dx = tl.where(inside, grad, 0.0)
    if GELU:
        dx = dx * _gelu_slope(raw)
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if LEARNED:
        # The gradient of the scales, summed over the tile as far as its values share one.
        code = round_even(tl.minimum(tl.maximum(scaled, low), high))
        slope = tl.where(mask, grad * (code - tl.where(inside, scaled, zero)), 0.0)
        if COLUMNS:
            tl.store(slope_ptr + tl.program_id(0) * columns + column, tl.sum(slope, 0), mask=column < columns)
        else:
            tl.store(slope_ptr + row * tl.num_programs(1) + tl.program_id(1), tl.sum(slope, 1), mask=row < rows)


def _shape(x: Any, scale: Any, quantizer: Any) -> tuple[int, int, dict[str, Any]]:
    """``x`` as a matrix, and the constants of its kernels."""
    by_columns, by_rows = quantizer.zero_points is not None, quantizer.zero_points is None and scale.numel() > 1
    columns = scale.numel() if by_columns else x.numel() // scale.numel() if by_rows else x.shape[-1]
    width = min(triton.next_power_of_2(columns), 256)
    height = max(1, TILE // width)
    return x.numel() // columns, columns, {"ROWS": by_rows, "COLUMNS": by_columns, "HEIGHT": height, "WIDTH": width}


def _grid(rows: int, columns: int, constants: dict[str, Any]) -> tuple[int, int]:
    return triton.cdiv(rows, constants["HEIGHT"]), triton.cdiv(columns, constants["WIDTH"])


def fake_quantize(x: Any, scale: Any, recip: Any, quantizer: Any, dtype: Any, gelu: Any) -> Any:
    """The forward pass of fake quantization of a contiguous tensor; ``gelu`` is the table of the engine's GELU, or ``None``."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    rows, columns, constants = _shape(x, scale, quantizer)
    zero = recip if quantizer.zero_points is None else quantizer.zero_points
    with torch.cuda.device_of(x):
        _fake_forward[_grid(rows, columns, constants)](
            x, out, scale, recip, zero, recip if gelu is None else gelu, rows, columns, quantizer.low, quantizer.high,
            GELU=gelu is not None, **constants,
        )  # fmt: skip
    return out


def fake_quantize_gradient(
    x: Any, scale: Any, recip: Any, quantizer: Any, grad: Any, gelu: bool, learned: bool
) -> tuple[Any, Any]:
    """The gradients of the tensor and, if they are learned, of the scales."""
    dx = torch.empty_like(x)
    rows, columns, constants = _shape(x, scale, quantizer)
    zero = recip if quantizer.zero_points is None else quantizer.zero_points
    grid, slope = _grid(rows, columns, constants), recip
    if learned:
        sizes = (grid[0], columns) if constants["COLUMNS"] else (rows, grid[1])
        slope = torch.empty(sizes, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _fake_backward[grid](
            x, grad, dx, slope, recip, zero, rows, columns, quantizer.low, quantizer.high,
            GELU=gelu, LEARNED=learned, **constants,
        )  # fmt: skip
    if not learned:
        return dx, None
    return dx, slope.sum(0) if constants["COLUMNS"] else slope.reshape(scale.numel(), -1).sum(1)


@triton.jit
def _fake_weight(w_ptr, out_ptr, factors_ptr, columns, largest, FACTORS: tl.constexpr, WIDTH: tl.constexpr):
    row, top = tl.program_id(0).to(tl.int64), 0.0
    for begin in range(0, columns, WIDTH):
        column = begin + tl.arange(0, WIDTH)
        w = tl.load(w_ptr + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
        if FACTORS:
            w = w * tl.load(factors_ptr + column, mask=column < columns, other=1.0)
        top = tl.maximum(top, tl.max(tl.abs(w), 0))
    scale = tl.div_rn(top, largest)
    recip = tl.div_rn(1.0, scale)
    # A scale that is 0, or so small that its reciprocal is not finite, is 1.
    usable = (scale > 0.0) & (recip < float("inf"))
    scale, recip = tl.where(usable, scale, 1.0), tl.where(usable, recip, 1.0)
    for begin in range(0, columns, WIDTH):
        column = begin + tl.arange(0, WIDTH)
        w = tl.load(w_ptr + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
        if FACTORS:
            w = w * tl.load(factors_ptr + column, mask=column < columns, other=1.0)
        code = round_even(tl.minimum(tl.maximum(w * recip, -largest), largest))
        value = code * scale
        if FACTORS:
            value = value * tl.load(factors_ptr + columns + column, mask=column < columns, other=1.0)
        tl.store(out_ptr + row * columns + column, value.to(out_ptr.dtype.element_ty), mask=column < columns)


def fake_weight(weight: Any, largest: float, factors: Any, dtype: Any) -> Any:
    """Fake quantization of the rows of a contiguous matrix by their largest magnitudes. ``factors`` ``[2, columns]`` are multiplied
    before and behind it."""
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    rows, columns = weight.shape
    with torch.cuda.device_of(weight):
        _fake_weight[(rows,)](weight, out, out if factors is None else factors, columns, largest, factors is not None, 1024)
    return out


@triton.jit
def _gather_rows(x_ptr, rows_ptr, add_ptr, out_ptr, count, tokens, width, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    image, place = row // count, row % count
    source = tl.load(rows_ptr + place)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = column < tl.where(source >= 0, width, 0)
    value = tl.load(x_ptr + (image * tokens + source) * width + column, mask=known, other=0.0)
    if ADD:
        value = value.to(tl.float32) + tl.load(add_ptr + row * width + column, mask=column < width, other=0.0)
    tl.store(out_ptr + row * width + column, value.to(out_ptr.dtype.element_ty), mask=column < width)


def gather(x: Any, rows: Any, add: Any = None, dtype: Any = None) -> Any:
    """Rows ``[n, len(rows), c]`` of a contiguous ``x`` ``[n, tokens, c]``, plus ``add``; -1 gives zeros. The result has ``dtype``,
    else the type of ``add``, else that of ``x``."""
    images, tokens, width = x.shape
    dtype = dtype or (x.dtype if add is None else add.dtype)
    out = torch.empty((images, len(rows), width), dtype=dtype, device=x.device)
    block = min(triton.next_power_of_2(width), 1024)
    with torch.cuda.device_of(x):
        _gather_rows[(images * len(rows), triton.cdiv(width, block))](
            x, rows, x if add is None else add, out, len(rows), tokens, width, add is not None, block
        )
    return out


@triton.jit
def _in_order(x_ptr, weight_ptr, bias_ptr, out_ptr, rows, columns, depth, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    sums = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for k in range(depth):
        x = tl.load(x_ptr + row.to(tl.int64) * depth + k, mask=row < rows, other=0.0)
        w = tl.load(weight_ptr + column * depth + k, mask=column < columns, other=0.0)
        sums = tl.fma(x[:, None] + 0.0 * sums, w[None, :] + 0.0 * sums, sums)
    sums += tl.load(bias_ptr + column, mask=column < columns, other=0.0)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out_ptr + at, sums, mask=(row < rows)[:, None] & (column < columns)[None, :])


def in_order(x: Any, weight: Any, bias: Any) -> Any:
    """A linear layer in ``float32`` whose sums are in the order of the engine, for small layers."""
    rows, columns = x.numel() // x.shape[-1], len(weight)
    out = torch.empty((*x.shape[:-1], columns), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _in_order[(triton.cdiv(rows, 32), triton.cdiv(columns, 64))](
            x.contiguous(), weight.contiguous(), bias, out, rows, columns, x.shape[-1], 32, 64
        )
    return out
