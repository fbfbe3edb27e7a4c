"""The outputs of a module, as the outputs of an engine in the same types and the same structure.

What a module gives is recorded once. Each of its tensors is then found among the outputs of the float engine for the same image, by
shape and by value, so that a module whose code computes something else is not replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._common.errors import ArgumentError

#: How a tensor of a module lies in memory, as a function of an output of the engine: a map ``[n, channels, height, width]`` or
#: logits ``[n, classes]``.
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "NCHW": lambda value: value,
    "NHWC": lambda value: value.permute(0, 2, 3, 1).contiguous(),
    "tokens": lambda value: value.flatten(2).transpose(1, 2).contiguous(),
    "mean": lambda value: value.mean((2, 3)),
    "logits": lambda value: value,
}
#: The same for a map ``[n, height, width, channels]``: the layouts whose values lie in memory in its order, or that have no order.
CHANNELS_LAST: dict[str, Callable[[Any], Any]] = {
    "NHWC": lambda value: value,
    "tokens": lambda value: value.flatten(1, 2),
    "logits": lambda value: value,
}


@dataclass(frozen=True)
class Tensor:
    """A tensor: an output of the engine, in a layout; before :func:`matched`, the tensor itself, of the first image."""

    value: Any = None
    output: str = ""
    layout: str = ""


#: Parts of an output of transformers that a caller may ask for and the engine does not have.
INSIDE = ("hidden_states", "attentions", "reshaped_hidden_states")


@dataclass(frozen=True)
class Absent:
    """Stands for tensors inside of a network, which the engine does not give. Programs of transformers ask for them, and read the
    feature maps; whoever reads them gets an error."""

    place: str

    def _refuse(self, *_: Any) -> Any:
        raise ArgumentError(
            f"{self.place}: the engine of a Swin gives its outputs only; swinq.torch.restore(model) to read what is inside"
        )

    __iter__ = __getitem__ = __len__ = __bool__ = _refuse


@dataclass(frozen=True)
class Structure:
    """A container of tensors: its class, and its parts by key."""

    kind: type
    parts: dict[Any, Any]

    @property
    def make(self) -> Callable[[type, dict[Any, Any]], Any]:
        """The function that makes it of its class and its parts."""
        if issubclass(self.kind, Mapping):
            return _keywords if hasattr(self.kind, "to_tuple") else _pairs
        if issubclass(self.kind, tuple | list):
            return _named if hasattr(self.kind, "_fields") else _sequence
        return _nested


def recorded(value: Any, path: str = "output") -> Any:
    """The structure of what a module gave, with the tensors of the first image in host memory."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        if value.ndim == 0:
            raise ArgumentError(f"{path}: a single number, such as a loss, which an engine does not give; leave `labels` out")
        return Tensor(value.detach()[:1].float().cpu().clone())
    if is_nested(value):
        return Structure(type(value), {"tensors": recorded(value.tensors, path)})
    if isinstance(value, Mapping):
        named = hasattr(value, "to_tuple")
        parts = {
            key: Absent(f"{path}.{key}") if named and key in INSIDE and part is not None else recorded(part, f"{path}.{key}")
            for key, part in value.items()
        }
        return Structure(type(value), parts)
    if isinstance(value, tuple | list):
        parts = {index: recorded(part, f"{path}[{index}]") for index, part in enumerate(value)}
        return Structure(type(value), parts)
    raise ArgumentError(f"{path}: a {type(value).__name__}, which an engine does not give")


def is_nested(value: Any) -> bool:
    """Whether ``value`` is a batch with a mask of its padding, as DETR and its relatives pass them."""
    return hasattr(value, "tensors") and hasattr(value, "mask") and hasattr(value, "decompose")


def tensors(structure: Any, path: str = "output") -> list[tuple[str, Tensor]]:
    """The tensors of a structure, with their places."""
    if isinstance(structure, Tensor):
        return [(path, structure)]
    if not isinstance(structure, Structure):
        return []
    named = [(f".{key}" if isinstance(key, str) else f"[{key}]", part) for key, part in structure.parts.items()]
    return [found for name, part in named for found in tensors(part, path + name)]


def made(
    structure: Any, outputs: Mapping[str, Any], dtype: Any, source: Any, layouts: Mapping[str, Callable[[Any], Any]] = LAYOUTS
) -> Any:
    """What the module would give: ``outputs`` of the engine in its structure, as tensors of ``dtype``. ``source`` is the input of
    the module; ``layouts`` are ``CHANNELS_LAST`` if the engine wrote maps so."""
    if isinstance(structure, Tensor):
        value = layouts[structure.layout](outputs[structure.output])
        return value if value.dtype == dtype else value.to(dtype)
    if not isinstance(structure, Structure):
        return structure
    parts = {key: made(part, outputs, dtype, source, layouts) for key, part in structure.parts.items()}
    if structure.make is _nested:
        parts["mask"] = _resized(source.mask, parts["tensors"].shape[-2:])
    return structure.make(structure.kind, parts)


def _resized(mask: Any, size: Any) -> Any:
    """The mask of padding at the size of a map, as detectors resize it."""
    return torch.nn.functional.interpolate(mask[None].float(), size=size).to(torch.bool)[0]


def _nested(kind: type, parts: dict[Any, Any]) -> Any:
    return kind(parts["tensors"], parts["mask"])


def _pairs(kind: type, parts: dict[Any, Any]) -> Any:
    found = kind()
    found.update(parts)
    return found


def _keywords(kind: type, parts: dict[Any, Any]) -> Any:
    return kind(**parts)


def _sequence(kind: type, parts: dict[Any, Any]) -> Any:
    return kind(parts.values())


def _named(kind: type, parts: dict[Any, Any]) -> Any:
    return kind(*parts.values())
