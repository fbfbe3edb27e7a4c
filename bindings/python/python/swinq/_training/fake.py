"""Fake quantization in PyTorch, with straight-through gradients.

The forward pass is that of the engine (docs/inference.md, "Sites"): ``code * scale`` with ``code = round(clamp(x / scale))``. In the
backward pass rounding passes gradients through and clipping stops them; a learned scale has LSQ's gradient (Esser et al., "Learned
Step Size Quantization", ICLR 2020). Unlike the engine a NaN stays a NaN, so that a scaler of gradients sees it.

On a GPU the passes are Triton's kernels (``_kernels``); elsewhere they are operations of PyTorch. In a graph that PyTorch records
they are those of ``graph``.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from .._calls.exporting import exporting
from .._common.contract import CONTRACT
from .graph import cast, quantized, rows_of, untraced

#: The codes of an activation.
LOW, HIGH = CONTRACT.code_min, CONTRACT.code_max
#: Tolerance at the ends of the range, as a factor: whether the largest value of a range gets a gradient must not depend on the
#: rounding of ``amax * (127 / amax)``.
EDGE = CONTRACT.edge


@functools.cache
def kernels() -> Any:
    """The kernels of Triton; ``None`` without Triton, with a warning."""
    try:
        from .. import _kernels
    except ImportError as error:
        warnings.warn(
            f"swinq.torch: training runs without fused kernels, and slowly, because Triton cannot be imported ({error}); "
            "pip install triton",
            stacklevel=2,
        )
        return None
    return _kernels


#: Whether the kernels run on a CPU, too: tests set it in Triton's interpreter.
interpreted = False


def fused(tensor: Any) -> Any:
    """The kernels, if they take this tensor."""
    return kernels() if (tensor.is_cuda or interpreted) and not exporting() else None


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
    #: The reciprocals of the scales, if they are known.
    recips: Any = None

    def recip(self) -> Any:
        """The reciprocals of the scales."""
        return self.scale.detach().reciprocal() if self.recips is None else self.recips


def fake_quantize(x: Any, quantizer: Quantizer | None, dtype: Any, gelu: Any = None) -> Any:
    """``x`` as the values that its codes represent, in ``dtype``; with ``gelu``, of the engine's GELU of ``x``, whose table ``gelu``
    is. Without a quantizer only the type changes, and GELU is that of the error function."""
    if quantizer is None:
        return cast(x if gelu is None else torch.nn.functional.gelu(x), dtype)
    if exporting():
        x = x if gelu is None else torch.nn.functional.gelu(cast(x, torch.float32))
        return cast(quantized(x, untraced(quantizer.scale.item)), dtype)
    if gelu is not None and fused(x) is None:
        x, gelu = _Gelu.apply(x, gelu), None
    return _Fake.apply(x, quantizer.scale, quantizer, dtype, gelu)


class _Gelu(torch.autograd.Function):
    """GELU as the engine computes it where its result is quantized next (docs/inference.md, section 2), with the gradient of the
    exact one."""

    @staticmethod
    def forward(ctx: Any, x: Any, table: Any) -> Any:
        ctx.save_for_backward(x)
        x = x.float()
        a = x.abs().clamp_max(CONTRACT.gelu_last)
        index = (a * CONTRACT.gelu_per_unit).round().long() & 31
        c0, c1, c2 = (table[power][index].double() for power in range(3))
        h = ((c2 * a + c1).float().double() * a + c0).float()
        return (x.clamp_min(0.0).double() - a.double() * h).float()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        value = x.float()
        slope = 0.5 * (1.0 + torch.erf(value * 0.5**0.5)) + value * 0.3989422804014327 * torch.exp(-0.5 * value * value)
        return (grad * slope).to(x.dtype), None


class _Fake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any, quantizer: Quantizer, dtype: Any, gelu: Any) -> Any:
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
            dx, dscale = found.fake_quantize_gradient(x, scale, recip, quantizer, grad, ctx.gelu is not None, learned)
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


def folded(weight: Any, factors: Any) -> Any:
    """The matrix ``[out, in]`` in ``float32`` whose codes a weight has: times the ``factors`` ``[2, in]`` of its columns, if any."""
    return weight.float() if factors is None else weight.float() * factors[0]


def scales_of(weight: Any, count: int, largest: float) -> Any:
    """The scales of the largest magnitudes of ``count`` equal parts of a weight. Where they cannot be used they are 1."""
    scale = weight.reshape(count, -1).abs().amax(1) / largest
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
        matrix = folded(weight, factors)
        quantizer = Quantizer(scales_of(matrix, scales, largest), None, -largest, largest)
        value = _values(codes_of(matrix, quantizer), quantizer.scale, quantizer).reshape(weight.shape)
        return (value if factors is None else value * factors[1]).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        return grad.to(ctx.dtype), None, None, None, None


def linear(x: Any, weight: Any, bias: Any, scale_x: Any, scale_w: Any, factors: Any) -> Any:
    """A linear layer in ``float32`` whose operands are values of codes, computed as the engine does: the sum of the products of
    codes, which ``float32`` holds exactly, times both scales, plus the bias.

    Args:
        x: ``[..., in]``, values with the scales ``scale_x`` ``[1]``, times ``factors`` ``[2, in]`` where there are some.
        weight: ``[out, in]``, values with the scales ``scale_w``, ``[1]`` or ``[out]``, over these factors.
    """
    return _Linear.apply(x, weight, bias, scale_x, scale_w, factors)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, scale_x: Any, scale_w: Any, factors: Any) -> Any:
        ctx.save_for_backward(x, weight)
        scale_x, scale_w = scale_x.detach(), scale_w.detach()
        codes_x = (x / (scale_x if factors is None else scale_x * factors[0])).round()
        codes_w = (folded(weight, factors) / scale_w[:, None]).round()
        sums, step = codes_x @ codes_w.t(), scale_x * scale_w
        return sums * step if bias is None else torch.addcmul(bias, sums, step)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        none = [None] * (len(ctx.needs_input_grad) - 3)
        return grad @ weight, rows.t() @ x.flatten(0, -2), of_bias, *none


def linear_in_order(x: Any, weight: Any, bias: Any) -> Any:
    """A linear layer in ``float32`` on a GPU, whose sums are in the order of the engine."""
    return _InOrder.apply(x, weight, torch.zeros_like(weight[:, 0]) if bias is None else bias)


class _InOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return kernels().in_order(x, weight, bias)

    backward = _Linear.backward


def norm(x: Any, weight: Any, bias: Any, eps: float, quantizer: Quantizer | None, dtype: Any, rows: Any = None) -> Any:
    """LayerNorm of the rows of ``x`` ``[n, tokens, c]``, then fake quantization, in ``dtype``. ``rows`` is a map of rows with its
    inverse (:func:`gather`): the result is then in their order, and rows of padding are zeros."""
    if fused(x) is not None:
        scale = None if quantizer is None else quantizer.scale
        return _Norm.apply(x, weight, bias, scale, eps, quantizer, dtype, rows)
    with torch.autocast(x.device.type, enabled=False):
        found = torch.nn.functional.layer_norm(cast(x, torch.float32), weight.shape, weight.float(), bias.float(), eps)
    found = fake_quantize(found, quantizer, dtype)
    # A quantizer does not change zeros, so that rows of padding may be added behind it.
    return found if rows is None else gather(found, *rows)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, scale: Any, eps: float, quantizer: Any, dtype: Any, rows: Any
    ) -> Any:
        ctx.quantizer, ctx.rows = quantizer, rows
        x, recip = x.contiguous(), None if quantizer is None else quantizer.recip()
        out, means = fused(x).norm(x, weight, bias, eps, scale, recip, dtype, rows)
        ctx.save_for_backward(x, weight, bias, recip, means)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        x, weight, bias, recip, means = ctx.saved_tensors
        learned = ctx.needs_input_grad[3]
        gradients = fused(x).norm_gradient(x, weight, bias, recip, means, grad.contiguous(), ctx.rows, learned)
        dx, dweight, dbias, dscale = gradients
        dscale = (dscale * ctx.quantizer.factor).reshape(1) if learned else None
        return dx, dweight.to(weight.dtype), dbias.to(bias.dtype), dscale, None, None, None, None


def gather(x: Any, rows: Any, back: Any) -> Any:
    """Rows ``[n, len(rows), c]`` of ``x`` ``[n, tokens, c]``; -1 gives a row of zeros. ``back`` is the inverse: for each token the
    place of its row, or -1."""
    if exporting():
        return rows_of(x, rows)
    return _Gather.apply(x, rows, back)


def add_rows(x: Any, branch: Any, rows: Any, back: Any) -> Any:
    """``x`` ``[n, tokens, c]`` plus the rows ``back`` of ``branch``, whose rows are those of the map ``rows``."""
    if exporting():
        return x + rows_of(branch, back)
    return _AddRows.apply(x, branch, rows, back)


class _AddRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, branch: Any, rows: Any, back: Any) -> Any:
        ctx.save_for_backward(rows)
        ctx.dtype, found = branch.dtype, fused(x)
        if found is not None:
            return found.gather(branch.contiguous(), back, x.contiguous())
        return x + _rows(branch, back)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        (rows,) = ctx.saved_tensors
        return grad, _rows(grad.contiguous(), rows, ctx.dtype), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, rows: Any, back: Any) -> Any:
        ctx.save_for_backward(rows, back)
        return _rows(x.contiguous(), rows)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        rows, back = ctx.saved_tensors
        return _rows(grad.contiguous(), back), None, None


def _rows(x: Any, rows: Any, dtype: Any = None) -> Any:
    found = fused(x)
    if found is not None:
        return found.gather(x, rows, None, dtype)
    taken = x.index_select(1, rows.clamp_min(0))
    return (taken * (rows >= 0)[:, None].to(x.dtype)).to(dtype or x.dtype)
