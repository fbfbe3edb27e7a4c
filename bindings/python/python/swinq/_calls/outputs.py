"""The outputs of a module: their structure, and the outputs of an engine in the same structure and types."""

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
class Sides:
    """The rows and columns of the grids of outputs, one after another; before :func:`matched`, the numbers for the first image."""

    values: tuple[int, ...] = ()
    outputs: tuple[str, ...] = ()
    #: Which of them it is, if a module gives a single number: 0 for the rows of a grid, 1 for its columns.
    axis: int | None = None

    def of(self, outputs: Mapping[str, Any], first: int) -> tuple[int, ...] | int:
        """The numbers for ``outputs`` of the engine, whose rows are their axis ``first``."""
        return self._chosen(tuple(int(side) for name in self.outputs for side in outputs[name].shape[first : first + 2]))

    @property
    def recorded(self) -> tuple[int, ...] | int:
        """The numbers for the first image."""
        return self._chosen(self.values)

    def _chosen(self, sides: tuple[int, ...]) -> tuple[int, ...] | int:
        return sides if self.axis is None else sides[self.axis]


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


def recorded(value: Any, path: str = "output", heads: int = 0) -> Any:
    """The structure of what a module gave, with the tensors of the first image in host memory. A last part that is attention of
    ``heads`` heads is no output."""
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
    if isinstance(value, tuple) and value and all(type(side) is int for side in value):
        return Sides(value)
    if isinstance(value, tuple | list):
        sides = _single_sides(value)
        parts = {index: sides.get(index) or recorded(part, f"{path}[{index}]") for index, part in enumerate(value)}
        if len(value) > 1 and heads and _is_attention(value[-1], heads):
            parts[len(value) - 1] = Absent(f"{path}[{len(value) - 1}]")
        return Structure(type(value), parts)
    raise ArgumentError(f"{path}: a {type(value).__name__}, which an engine does not give")


def _single_sides(values: Any) -> dict[int, Sides]:
    """The rows and the columns of grids that stand one after another among other outputs, by place."""
    found: dict[int, Sides] = {}
    for place in range(len(values) - 1):
        pair = values[place : place + 2]
        if place not in found and all(type(side) is int for side in pair):
            found |= {place + axis: Sides(tuple(pair), axis=axis) for axis in (0, 1)}
    return found


def _is_attention(value: Any, heads: int) -> bool:
    """Whether a tensor is attention in windows, ``[windows, heads, tokens, tokens]``."""
    return isinstance(value, torch.Tensor) and value.ndim == 4 and value.shape[1] == heads and value.shape[2] == value.shape[3]


def is_nested(value: Any) -> bool:
    """Whether ``value`` is a batch with a mask of its padding, as DETR and its relatives pass them."""
    return hasattr(value, "tensors") and hasattr(value, "mask") and hasattr(value, "decompose")


def tensors(structure: Any) -> list[tuple[str, Tensor]]:
    """The tensors of a structure, with their places."""
    return [(path, leaf) for path, leaf in leaves(structure) if isinstance(leaf, Tensor)]


def leaves(structure: Any, path: str = "output") -> list[tuple[str, Tensor | Sides]]:
    """The tensors and the sizes of grids in a structure, with their places."""
    if isinstance(structure, Tensor | Sides):
        return [(path, structure)]
    if not isinstance(structure, Structure):
        return []
    named = [(f".{key}" if isinstance(key, str) else f"[{key}]", part) for key, part in structure.parts.items()]
    return [found for name, part in named for found in leaves(part, path + name)]


def made(
    structure: Any, outputs: Mapping[str, Any], dtype: Any, source: Any, layouts: Mapping[str, Callable[[Any], Any]] = LAYOUTS
) -> Any:
    """The outputs of the engine as the module gives its own: in its structure, as tensors of ``dtype``. ``source`` is the input of the
    module; ``layouts`` are ``CHANNELS_LAST`` if the engine wrote maps so."""
    if isinstance(structure, Tensor):
        value = layouts[structure.layout](outputs[structure.output])
        return value if value.dtype == dtype else value.to(dtype)
    if isinstance(structure, Sides):
        return structure.of(outputs, 1 if layouts is CHANNELS_LAST else 2)
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
