"""What the kernels of training have in common."""

# Triton compiles the source of its kernels: annotations must not be strings, and kernels have no docstrings.
import triton
import triton.language as tl

from ._torch_fake import EDGE

#: Elements of a program of the kernels over elements.
TILE = 2048
#: Adding and subtracting it rounds to an integer, ties to even.
MAGIC = tl.constexpr(12582912.0)
END = tl.constexpr(EDGE)
#: Triton's interpreter, which runs kernels on a CPU to test them, has no products in bfloat16.
HALF = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def round_even(x):
    return (x + MAGIC) - MAGIC
