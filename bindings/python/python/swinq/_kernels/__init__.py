"""Kernels of Triton for training. Each is equal to the operations of PyTorch in ``_training/fake.py`` and
``_training/attention.py``.

Codes are those of the engine, bit for bit, and in ``float32`` so are the results of all layers of a Swin V1. Products of codes
run in bfloat16, which holds them exactly, with sums in ``float32``.
"""

from .attention import attention, takes_attention
from .fake import fake_quantize, fake_quantize_gradient, fake_weight, gather, in_order
from .norm import norm, norm_gradient

__all__ = [
    "attention",
    "fake_quantize",
    "fake_quantize_gradient",
    "fake_weight",
    "gather",
    "in_order",
    "norm",
    "norm_gradient",
    "takes_attention",
]
