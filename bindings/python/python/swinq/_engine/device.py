"""Engines on memory of a GPU: tensors of PyTorch, and arrays that other libraries export. Nothing is copied."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .. import _native
from .._common.arrays import check_shape, extents, is_tensor
from .._common.errors import ArgumentError

#: The layout that images of a type have unless the caller states another.
LAYOUTS = {"uint8": "NHWC", "float16": "NCHW", "float32": "NCHW", "bfloat16": "NCHW"}
#: The names of the types of PyTorch, once PyTorch is used.
TYPES_OF_TORCH: dict[Any, str] = {}
#: ``kDLCUDA`` and ``kDLCUDAManaged`` of DLPack.
CUDA = (2, 13)
#: Type strings of ``__cuda_array_interface__``.
TYPES = {"|u1": "uint8", "<f4": "float32", "<f2": "float16"}


class Array(NamedTuple):
    """A dense array on a GPU. ``held`` keeps its memory."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    device: int
    #: The stream after which the values are there, if the array states one.
    after: int | None
    held: Any


def is_on_gpu(value: Any) -> bool:
    """Whether ``value`` is in memory of a GPU: a tensor of PyTorch, or an object with ``__dlpack__`` or
    ``__cuda_array_interface__``."""
    if is_tensor(value):
        return bool(value.is_cuda)
    if hasattr(value, "__cuda_array_interface__"):
        return True
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and device()[0] in CUDA


def array_of(value: Any, name: str, stream: int, *, written: bool = False) -> Array:
    """The memory of ``value``, whose values are there in the order of ``stream``."""
    if is_tensor(value):
        return tensor_of(value, name)
    if hasattr(value, "__dlpack__"):
        return exported(value, name, stream, written)
    return by_interface(value, name, written)


def types_of(torch: Any) -> dict[Any, str]:
    """The names of the types of PyTorch that engines know."""
    if not TYPES_OF_TORCH:
        TYPES_OF_TORCH.update({getattr(torch, name): name for name in LAYOUTS})
    return TYPES_OF_TORCH


def tensor_of(value: Any, name: str) -> Array:
    """The memory of a tensor of PyTorch."""
    if not value.is_contiguous():
        raise ArgumentError(f"{name}: the tensor is not contiguous; call contiguous()")
    dtype = types_of(sys.modules["torch"]).get(value.dtype) or str(value.dtype).removeprefix("torch.")
    return Array(value.data_ptr(), dtype, tuple(value.shape), value.get_device(), None, value)


def exported(value: Any, name: str, stream: int, written: bool) -> Array:
    """The memory of an array that exports itself by DLPack. For DLPack the default stream is 1."""
    on = stream or 1
    try:
        capsule = value.__dlpack__(stream=on, max_version=(1, 0))
    except TypeError:
        # Libraries before DLPack 1.0 have no ``max_version``.
        capsule = value.__dlpack__(stream=on)
    array = _native.DeviceArray(capsule)
    if not array.is_dense:
        raise ArgumentError(f"{name}: the array is not contiguous; copy it to a contiguous one")
    if written and array.is_read_only:
        raise ArgumentError(f"{name}: the array is read-only")
    return Array(array.data, array.dtype, tuple(array.shape), array.device, None, array)


def by_interface(value: Any, name: str, written: bool) -> Array:
    """The memory of an array with ``__cuda_array_interface__``."""
    found: Mapping[str, Any] = value.__cuda_array_interface__
    shape, (address, read_only) = tuple(found["shape"]), found["data"]
    dtype = TYPES.get(found["typestr"], f"type {found['typestr']}")
    sizes = {"uint8": 1, "float16": 2}
    strides, dense = found.get("strides"), sizes.get(dtype, 4)
    for extent, stride in zip(reversed(shape), reversed(strides or ())):
        if extent > 1 and stride != dense:
            raise ArgumentError(f"{name}: the array is not contiguous; copy it to a contiguous one")
        dense *= extent
    if written and read_only:
        raise ArgumentError(f"{name}: the array is read-only")
    # The interface has no ordinal: the address tells the device. 1 is the default stream, 2 that of the thread.
    return Array(address, dtype, shape, -1, found.get("stream"), value)


def stream_of(images: Any, stream: int | None) -> int:
    """The stream that the caller states, else PyTorch's current one for its tensors, else the default stream."""
    if stream is not None:
        return stream
    if not is_tensor(images):
        return 0
    torch = sys.modules["torch"]
    # The call that PyTorch's own generated code uses, which makes no object.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(images.get_device()) if raw else torch.cuda.current_stream(images.device).cuda_stream)


def images_on_gpu(value: Any, channels: int, layout: str | None, stream: int) -> tuple[Array, str, tuple[int, int, int]]:
    """The memory of images, their layout, and their number, height and width."""
    stated = layout is not None
    if is_tensor(value):
        torch = sys.modules["torch"]
        if value.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(
                "images: the tensor requires grad, and an engine computes no gradients; call it under torch.no_grad()"
            )
        if not value.is_contiguous():
            channels_last = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)
            if channels_last and layout in (None, "NCHW") and value.dtype != torch.uint8:
                value, layout = value.permute(0, 2, 3, 1), "NHWC"
            else:
                value = value.contiguous()
    array = array_of(value, "images", stream)
    if array.dtype not in LAYOUTS:
        raise ArgumentError(f"images: an array of {array.dtype}; the model takes uint8, float16, bfloat16 and float32")
    layout = layout or LAYOUTS[array.dtype]
    return array, layout, extents(array.dtype, array.shape, channels, layout, stated)


def run_on_gpu(
    native: _native.Engine,
    images: Any,
    names: list[str],
    shape_of: Callable[[str, int, int], list[int]],
    channels: int,
    *,
    layouts: tuple[str | None, str],
    dtype: str,
    out: Mapping[str, Any] | None,
    stream: int | None,
) -> dict[str, Any]:
    """Puts a run of an engine on a stream. ``layouts`` are those of the images and of feature maps, and ``shape_of(name, height, width)`` is the
    shape of an output for one image."""
    on = stream_of(images, stream)
    given, layout, (number, height, width) = images_on_gpu(images, channels, layouts[0], on)
    if given.device not in (-1, native.gpu):
        raise ArgumentError(f"images: they are on GPU {given.device}, and the engine runs on GPU {native.gpu}")
    outputs: dict[str, Any] = {}
    targets, after = [], [] if given.after in (None, on) else [given.after]
    made = memory_beside(images, dtype)
    for name in names:
        shape = (number, *shape_of(name, height, width))
        value = None if out is None else out.get(name)
        if value is None:
            outputs[name] = value = made(shape, name)
            targets.append((name, value.data_ptr(), dtype))
            continue
        array = array_of(value, f"out[{name!r}]", on, written=True)
        check_shape(name, array.shape, shape)
        if array.device not in (-1, native.gpu):
            raise ArgumentError(f"out: `{name}` is on GPU {array.device}, and the engine runs on GPU {native.gpu}")
        if array.after not in (None, on):
            after.append(array.after)
        outputs[name] = value
        targets.append((name, array.address, array.dtype))
    if stream is not None:
        record(on, [images, *outputs.values()])
    if number > 0:
        _native.run_on(native, (given.address, given.dtype), (number, height, width), (layout, layouts[1]), targets, on, after)
    return outputs


def record(stream: int, values: list[Any]) -> None:
    """Tells PyTorch that a stream other than its current one uses the tensors among ``values``."""
    for value in values:
        if is_tensor(value):
            value.record_stream(sys.modules["torch"].cuda.ExternalStream(stream, value.device))


def memory_beside(images: Any, dtype: str) -> Callable[[tuple[int, ...], str], Any]:
    """Makes memory for outputs on the device of ``images``, by PyTorch's allocator."""

    def missing(shape: tuple[int, ...], name: str) -> Any:
        raise ArgumentError(f"out: there is no memory for `{name}`; pass out={{{name!r}: array}}, an array on the GPU")

    if not is_tensor(images):
        return missing
    torch = sys.modules["torch"]
    element, device = getattr(torch, dtype), images.device

    def made(shape: tuple[int, ...], name: str) -> Any:
        return torch.empty(shape, dtype=element, device=device)

    return made
