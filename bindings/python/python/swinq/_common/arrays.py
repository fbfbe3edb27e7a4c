"""Arrays of numpy and PyTorch, without importing PyTorch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .errors import ArgumentError


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


def other_type(given: Any, array: np.ndarray[Any, Any]) -> ArgumentError:
    """The error for images of a type that no engine reads, with the way to one that it does."""
    if array.dtype.kind not in "fiub":
        return ArgumentError(f"images: a {type(given).__name__} is no array of pixels; `predict` takes files and encoded images")
    tensor = is_tensor(given)
    if array.dtype.kind == "f":
        way = "images.float()" if tensor else "images.astype(numpy.float32)"
    else:
        way = "images.to(torch.uint8)" if tensor else "images.astype(numpy.uint8)"
        way += " for pixels of 0 to 255"
    return ArgumentError(f"images: an array of {array.dtype}; the model takes uint8, float16 and float32: {way}")


#: The types of images that an engine reads, and the layout that they have unless the caller states another.
LAYOUTS = {np.dtype(np.uint8): "NHWC", np.dtype(np.float16): "NCHW", np.dtype(np.float32): "NCHW"}


def input_of(
    value: Any, channels: int, layout: str | None
) -> tuple[np.ndarray[Any, Any], str, tuple[int, int, int]]:
    """``value`` as contiguous images that an engine reads, their layout, and their number, height and width. Copies only if the array
    is not contiguous."""
    array = to_numpy(value)
    if array.dtype not in LAYOUTS:
        raise other_type(value, array)
    stated, layout = layout is not None, layout or LAYOUTS[array.dtype]
    return np.ascontiguousarray(array), layout, extents(str(array.dtype), array.shape, channels, layout, stated)


def extents(dtype: str, shape: tuple[int, ...], channels: int, layout: str, stated: bool) -> tuple[int, int, int]:
    """The number, the height and the width of images of ``shape`` in ``layout``, which the caller has ``stated``, or not."""
    shapes = {"NHWC": f"[n, height, width, {channels}]", "NCHW": f"[n, {channels}, height, width]"}
    if layout not in shapes:
        raise ArgumentError(f"layout: `{layout}` is unknown; give NHWC or NCHW")
    if len(shape) != 4 or shape[layout.index("C")] != channels:
        problem = f"images: an array of {dtype} {list(shape)}; the model takes {dtype} {shapes[layout]}"
        (other,) = shapes.keys() - {layout}
        raise ArgumentError(problem if stated else f'{problem}, or with layout="{other}" {shapes[other]}')
    return shape[0], shape[layout.index("H")], shape[layout.index("W")]


def check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Refuses memory of the caller for the output ``name`` that has another shape than the output."""
    if found != expected:
        raise ArgumentError(f"out: `{name}` is {list(found)}, and the output is {list(expected)}")


def values_of(value: Any, channels: int) -> np.ndarray[Any, Any]:
    """``value`` as contiguous images that a backbone reads, ``float32 [n, channels, height, width]`` of any height and width."""
    array = to_numpy(value)
    if array.ndim != 4 or array.shape[1] != channels:
        raise ArgumentError(
            f"images: an array of {array.dtype} {list(array.shape)}; the backbone takes float [n, {channels}, height, width]"
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def pixels_of(value: Any, channels: int, size: tuple[int, int], any_values: bool) -> np.ndarray[Any, Any]:
    """``value`` as contiguous images for a calibration: ``uint8 [n, height, width, channels]`` or
    ``float32 [n, channels, height, width]``. ``size`` is the height and width that they must have. For a backbone, which reads
    ``any_values``, floats are images of any size (:func:`values_of`).

    Copies only if the array is not contiguous, or has floats of another width.
    """
    array = to_numpy(value)
    if array.ndim == 4:
        if array.dtype == np.uint8 and array.shape[1:] == (*size, channels):
            return np.ascontiguousarray(array)
        if array.dtype.kind == "f" and array.shape[1:] == (channels, *size):
            return np.ascontiguousarray(array, dtype=np.float32)
    height, width = size
    floats = "height, width] of any size" if any_values else f"{height}, {width}]"
    raise ArgumentError(
        f"images: an array of {array.dtype} {list(array.shape)}; the model takes uint8 [n, {height}, {width}, {channels}] "
        f"(preprocessed) or float [n, {channels}, {floats} (normalised)"
    )
