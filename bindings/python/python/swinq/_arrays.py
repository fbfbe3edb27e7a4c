"""Arrays of numpy and PyTorch, without importing PyTorch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ._errors import ArgumentError


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor of PyTorch. Without PyTorch there is none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_array(value: Any) -> bool:
    """Whether ``value`` is an array of numpy or a tensor of PyTorch."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """``value`` as an array of numpy: the same memory, if it is in host memory."""
    if is_tensor(value):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            # numpy has no bfloat16, whose values f32 holds exactly.
            value = value.float()
        value = value.numpy()
    return np.asarray(value)


def not_pixels(error: ArgumentError, array: np.ndarray[Any, Any], given: Any) -> ArgumentError:
    """The error for floats that are not normalised pixels, with the cause if it is a frequent one."""
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        image, channel, row, column = bad[0]
        return ArgumentError(f"images: image {image} holds {array[tuple(bad[0])]} (channel {channel}, row {row}, column {column})")
    if str(getattr(given, "dtype", "")) == "torch.bfloat16":
        return ArgumentError("images: bfloat16 cannot tell neighbouring pixel values apart; give uint8, float16 or float32")
    return ArgumentError(
        f"{error}. Resize images before they become floats, because resized floats are no 8-bit values; for a test with "
        "random input, give uint8"
    )


def images_of(value: Any, channels: int, size: tuple[int, int] | None = None) -> np.ndarray[Any, Any]:
    """``value`` as contiguous images: ``uint8 [n, height, width, channels]`` or ``float32 [n, channels, height, width]``.
    ``size`` is the height and width that they must have; ``None`` for any.

    Copies only if the array is not contiguous, or has floats of another width.
    """
    array = to_numpy(value)
    if array.ndim == 4:
        if array.dtype == np.uint8 and array.shape[3] == channels and size in (None, array.shape[1:3]):
            return np.ascontiguousarray(array)
        if array.dtype.kind == "f" and array.shape[1] == channels and size in (None, array.shape[2:]):
            return np.ascontiguousarray(array, dtype=np.float32)
    height, width = size or ("height", "width")
    raise ArgumentError(
        f"images: an array of {array.dtype} {list(array.shape)}; the model takes uint8 [n, {height}, {width}, {channels}] "
        f"(preprocessed) or float [n, {channels}, {height}, {width}] (normalised)"
    )
