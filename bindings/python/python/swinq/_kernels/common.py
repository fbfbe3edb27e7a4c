"""What the kernels of training have in common."""

# Triton compiles the source of its kernels: annotations must not be strings, and kernels have no docstrings.
import triton
import triton.language as tl

from .._common.contract import CONTRACT

#: Elements of a program of the kernels over elements.
TILE = 2048
#: Adding and subtracting it rounds to an integer, ties to even.
MAGIC = tl.constexpr(CONTRACT.signed_rounder)
END = tl.constexpr(CONTRACT.edge)
#: The codes of an activation.
LOW, HIGH = tl.constexpr(CONTRACT.code_min), tl.constexpr(CONTRACT.code_max)
#: Triton's interpreter, which runs kernels on a CPU to test them, has no products in bfloat16.
HALF = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def round_even(x):
    return (x + MAGIC) - MAGIC
