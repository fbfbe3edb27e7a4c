"""Fake quantization in graphs that PyTorch records: codes, as the nodes that exporters know (docs/pytorch.md, "Export").

``torch.export`` and ``torch.jit.trace`` record the operations ``quantized_decomposed``, and both exporters to ONNX write them as
QuantizeLinear and DequantizeLinear. Every code is signed, with zero point 0, and activations have one scale.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from .._common.contract import CONTRACT

#: The step of unsigned codes of exponentials, and the value that a signed code of theirs has less.
STEP = 1.0 / (CONTRACT.code_max - CONTRACT.code_min)
MIDDLE = -CONTRACT.code_min / (CONTRACT.code_max - CONTRACT.code_min)
#: The codes and their type, as operations have them.
SIGNED = (int(CONTRACT.code_min), int(CONTRACT.code_max), torch.int8)
#: The least operator set with codes by channel.
OPSET = 13


def cast(x: Any, dtype: Any) -> Any:
    """``x`` in a type; a graph would hold the node even where it has that type."""
    return x if x.dtype == dtype else x.to(dtype)


def untraced(function: Callable[..., Any], *args: Any) -> Any:
    """What a function gives, as constants of a graph: in a thread of its own, which no tracer watches."""

    def without_gradients() -> Any:
        with torch.no_grad():
            return function(*args)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(without_gradients).result()


@functools.cache
def operations() -> Any:
    """The operations of codes. Exporters know those that are declared before they begin."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.ao.quantization.fx._decomposed  # noqa: F401 (it declares them)

    for name, symbolic in _symbolics().items():
        torch.onnx.register_custom_op_symbolic(f"quantized_decomposed::{name}", symbolic, OPSET)
    return torch.ops.quantized_decomposed


def quantized(x: Any, scale: float) -> Any:
    """``x`` as the values of its codes."""
    codes = operations().quantize_per_tensor(cast(x, torch.float32), scale, 0, *SIGNED)
    return operations().dequantize_per_tensor(codes, scale, 0, *SIGNED)


def dequantized(codes: Any, scales: Any) -> Any:
    """The values of the codes ``int8 [out, in]`` of a weight, with one scale or with one for each row."""
    if scales.numel() == 1:
        scales = untraced(lambda: scales.reshape([]))
    if torch.onnx.is_in_onnx_export() and torch.jit.is_tracing():
        return _Constant.apply(codes, scales)
    return _dequantized(codes, scales)


def _dequantized(codes: Any, scales: Any) -> Any:
    if scales.ndim == 0:
        return operations().dequantize_per_tensor(codes, untraced(scales.item), 0, *SIGNED)
    # ONNX Runtime makes products of codes of those weights only that have zero points.
    zeros = untraced(lambda: torch.zeros_like(scales, dtype=torch.int8))
    return operations().dequantize_per_channel(codes, scales, zeros, 0, *SIGNED)


class _Constant(torch.autograd.Function):
    """:func:`dequantized` for TorchScript's exporter to ONNX, which writes the results of operations on constants, but keeps
    functions."""

    @staticmethod
    def forward(ctx: Any, codes: Any, scales: Any) -> Any:
        return _dequantized(codes, scales)

    @staticmethod
    def symbolic(graph: Any, codes: Any, scales: Any) -> Any:
        """The node in ONNX."""
        sizes = scales.type().sizes()
        zeros = graph.op("Constant", value_t=torch.zeros(sizes, dtype=torch.int8))
        return graph.op("DequantizeLinear", codes, scales, zeros, **({"axis_i": 0} if sizes else {}))


def weighted(logits: Any, values: Any) -> Any:
    """The values weighted with probabilities in unsigned codes ``c = round(255 exp(logit - max))``, divided by their sum.

    Signed codes ``c - 128`` have the same steps, so that the product runs on them; 128 times the sum of the values is added.
    """
    exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
    # ONNX Runtime makes a product of codes on x86 only if nothing else reads the first operand.
    total = (exponentials / STEP).round().sum(-1, keepdim=True) * STEP
    codes = quantized(exponentials - MIDDLE, STEP)
    return (codes @ values + MIDDLE * values.sum(-2, keepdim=True)) / total


def rows_of(x: Any, rows: Any) -> Any:
    """Rows ``[n, len(rows), c]`` of ``x`` ``[n, tokens, c]``; -1 gives a row of zeros."""
    if untraced(lambda: bool((rows < 0).any())):
        tokens = int(x.shape[1])
        x = torch.nn.functional.pad(x, (0, 0, 0, 1))
        rows = untraced(lambda: torch.where(rows < 0, tokens, rows))
    return x.index_select(1, rows)


def _symbolics() -> dict[str, Any]:
    """The operations in TorchScript's exporter, by their names."""
    helper = torch.onnx.symbolic_helper

    def node(kind: str, *rest: str) -> Any:
        @helper.parse_args("v", "f", "i", "i", "i", "i", *rest)  # type: ignore[untyped-decorator]
        def symbolic(graph: Any, x: Any, scale: float, *_: Any) -> Any:
            constants = (torch.tensor(scale), torch.tensor(0, dtype=torch.int8))
            return graph.op(kind, x, *(graph.op("Constant", value_t=value) for value in constants))

        return symbolic

    return {"quantize_per_tensor": node("QuantizeLinear"), "dequantize_per_tensor": node("DequantizeLinear", "v")}
