"""Fake quantization in PyTorch, with straight-through gradients.

The forward pass is that of the engine (docs/inference.md, "Sites"): ``code * scale`` with ``code = round(clamp(x / scale))``. In the
backward pass rounding passes gradients through and clipping stops them; a learned scale has LSQ's gradient (Esser et al., "Learned
Step Size Quantization", ICLR 2020). Unlike the engine a NaN stays a NaN, so that a scaler of gradients sees it.

On a GPU the passes are Triton's kernels (``_torch_kernels``); elsewhere they are operations of PyTorch. In a graph that PyTorch records
they are those of ``_torch_graph``.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from ._torch_graph import cast, exporting, quantized, rows_of, untraced

#: The codes of an activation.
LOW, HIGH = -128.0, 127.0
#: Tolerance at the ends of the range, as a factor: whether the largest value of a range gets a gradient must not depend on the
#: rounding of ``amax * (127 / amax)``.
EDGE = 1.0 + 2.0**-20


@functools.cache
def kernels() -> Any:
    """The kernels of Triton; ``None`` without Triton, with a warning."""
    try:
        from . import _torch_kernels
    except ImportError as error:
        warnings.warn(
            f"swinq.torch: training runs without fused kernels, and slowly, because Triton cannot be imported ({error}); "
            "pip install triton",
            stacklevel=2,
        )
        return None
    return _torch_kernels


def fused(*tensors: Any) -> Any:
    """The kernels, if they take these tensors."""
    return kernels() if all(tensor.is_cuda for tensor in tensors) and not exporting() else None


@dataclass(frozen=True)
class Quantizer:
    """The quantizer of a tensor, of its rows, or of its columns."""

    #: ``float32``: ``[1]``, one of each row of a matrix, or one of each column if there are ``zero_points``.
    scale: Any
    #: ``float32``, as many as scales, or ``None``.
    zero_points: Any = None
    #: The least and the largest code.
    low: float = LOW
    high: float = HIGH
    #: Factor of the gradient of the scales (LSQ): ``1 / sqrt(values * high)``.
    factor: float = 1.0

    def recip(self) -> Any:
        """The reciprocals of the scales."""
        return self.scale.detach().reciprocal()


def fake_quantize(x: Any, quantizer: Quantizer | None, dtype: Any, gelu: bool = False) -> Any:
    """``x`` as the values that its codes represent, in ``dtype``; with ``gelu``, GELU of ``x``. Without a quantizer only the type
    changes."""
    if quantizer is None:
        return cast(torch.nn.functional.gelu(x) if gelu else x, dtype)
    if gelu and fused(x) is None:
        x, gelu = torch.nn.functional.gelu(cast(x, torch.float32)), False
    if exporting():
        return cast(quantized(x, untraced(quantizer.scale.item)), dtype)
    return _Fake.apply(x, quantizer.scale, quantizer, dtype, gelu)


class _Fake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any, quantizer: Quantizer, dtype: Any, gelu: bool) -> Any:
        x, recip = x.contiguous(), quantizer.recip()
        ctx.save_for_backward(x, scale, recip, quantizer.zero_points)
        ctx.quantizer, ctx.gelu = quantizer, gelu
        found = fused(x)
        if found is not None:
            return found.fake_quantize(x, scale, recip, quantizer, dtype, gelu)
        codes, _ = _codes(x, recip, quantizer)
        return _values(codes, scale, quantizer).to(dtype).reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        x, scale, recip, _ = ctx.saved_tensors
        quantizer, learned = ctx.quantizer, ctx.needs_input_grad[1]
        found, grad = fused(x), grad.contiguous()
        if found is not None:
            dx, dscale = found.fake_quantize_gradient(x, scale, recip, quantizer, grad, ctx.gelu, learned)
        else:
            dx, dscale = _gradient(x, scale, recip, quantizer, grad, learned)
        return dx, None if dscale is None else dscale * quantizer.factor, None, None, None


def _matrix(x: Any, scales: Any, quantizer: Quantizer) -> Any:
    """``x`` as a matrix whose rows, or columns, have scales of their own."""
    if quantizer.zero_points is not None:
        return x.reshape(-1, scales.numel())
    return x.reshape(scales.numel(), -1)


def _codes(x: Any, recip: Any, quantizer: Quantizer) -> tuple[Any, Any]:
    """The codes, and the values in steps of the codes."""
    matrix = _matrix(x, recip, quantizer).float()
    if quantizer.zero_points is None:
        scaled = matrix * recip[:, None]
    else:
        # A product of two f32 is exact in f64, so that the sum is rounded to f32 as that of one fma.
        scaled = (matrix.double() * recip.double() + quantizer.zero_points.double()).float()
    return scaled.clamp(quantizer.low, quantizer.high).round(), scaled


def _values(codes: Any, scale: Any, quantizer: Quantizer) -> Any:
    if quantizer.zero_points is None:
        return codes * scale[:, None]
    return (codes - quantizer.zero_points) * scale


def _gradient(x: Any, scale: Any, recip: Any, quantizer: Quantizer, grad: Any, learned: bool) -> tuple[Any, Any]:
    codes, scaled = _codes(x, recip, quantizer)
    inside = (scaled >= quantizer.low * EDGE) & (scaled <= quantizer.high * EDGE)
    matrix = _matrix(grad, recip, quantizer).float()
    dx = (matrix * inside).to(x.dtype).reshape(x.shape)
    if not learned:
        return dx, None
    if quantizer.zero_points is None:
        return dx, (matrix * (codes - torch.where(inside, scaled, 0.0))).sum(1)
    return dx, (matrix * (codes - torch.where(inside, scaled, quantizer.zero_points))).sum(0)


def fake_weight(weight: Any, scales: int, largest: float, factors: Any, dtype: Any) -> Any:
    """A weight ``[out, in]`` as the values that its codes represent, with the scales of its largest magnitudes: one, or one per
    row. ``factors`` ``[2, in]`` are multiplied before and behind it. Nothing is clipped, so that the gradient passes."""
    return _Weight.apply(weight, scales, largest, factors, dtype)


def largest_scales(weight: Any, scales: int, largest: float) -> Any:
    """The scales of the largest magnitudes of a weight: one, or one per row."""
    scale = weight.reshape(scales, -1).abs().amax(1) / largest
    return torch.where(scale.reciprocal().isfinite(), scale, 1.0)


def codes_of(x: Any, quantizer: Quantizer) -> Any:
    """The codes of a tensor, a row for each scale."""
    codes, _ = _codes(x, quantizer.recip(), quantizer)
    return codes


class _Weight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Any, scales: int, largest: float, factors: Any, dtype: Any) -> Any:
        ctx.dtype, weight = weight.dtype, weight.contiguous()
        found = fused(weight)
        if found is not None and scales == len(weight):
            return found.fake_weight(weight, largest, factors, dtype)
        folded = weight.float() if factors is None else weight.float() * factors[0]
        quantizer = Quantizer(largest_scales(folded, scales, largest), None, -largest, largest)
        value = _values(codes_of(folded, quantizer), quantizer.scale, quantizer).reshape(weight.shape)
        return (value if factors is None else value * factors[1]).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        return grad.to(ctx.dtype), None, None, None, None


def gather(x: Any, rows: Any, back: Any) -> Any:
    """Rows ``[n, len(rows), c]`` of ``x`` ``[n, tokens, c]``; -1 gives a row of zeros. ``back`` is the inverse: for each token the
    place of its row, or -1."""
    if exporting():
        return rows_of(x, rows)
    return _Gather.apply(x, rows, back)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, rows: Any, back: Any) -> Any:
        ctx.save_for_backward(rows, back)
        return _rows(x.contiguous(), rows)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        rows, back = ctx.saved_tensors
        return _rows(grad.contiguous(), back), None, None


def _rows(x: Any, rows: Any) -> Any:
    found = fused(x)
    if found is not None:
        return found.gather(x, rows)
    taken = x.index_select(1, rows.clamp_min(0))
    return taken * (rows >= 0)[:, None].to(x.dtype)
