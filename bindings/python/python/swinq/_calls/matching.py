"""The outputs of live modules, matched with those of swinq's float engine.

The outputs of a module are recorded once. Each of their tensors is then found among the outputs of the float engine for the same image,
by shape and by value, so that a module whose code computes something else is not replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import _native
from .._common.contract import takes_tokens
from .._common.errors import ArgumentError, Error
from .._engine.model import Model
from .._readers.layers import uncompiled
from .._readers.stacks import run
from .arguments import CallParameters
from .outputs import LAYOUTS, Sides, Structure, Tensor, leaves, tensors
from .record import Record, record_calls
from .tokens import arguments_for

#: Layouts of a map; logits have their own only.
OF_MAPS = ("NCHW", "NHWC", "tokens", "mean")


@dataclass(frozen=True)
class Limit:
    """The most that an output may differ from that of the engine, relative to its norm."""

    #: One of ``TOLERANCES``.
    tolerance: float
    #: The input of a stack of blocks, ``[1, channels, rows, columns]``. Its outputs are the input and what the branches add, which may be
    #: far less.
    tokens: Any = None

    def of(self, value: Any) -> float:
        """The limit for an output."""
        views = () if self.tokens is None else (LAYOUTS[layout](self.tokens) for layout in OF_MAPS)
        stream = next((view for view in views if view.shape == value.shape), None)
        if stream is None:
            return self.tolerance
        of_branches, of_stream = OF_STACKS[self.tolerance]
        return of_branches * relative_error(stream, value) + of_stream


#: Of stacks of blocks, the most that the part of the branches may differ, and the rounding of the whole, by the tolerance.
OF_STACKS = {2e-3: (2e-4, 1e-6), 1e-2: (1e-2, 1e-3), 5e-2: (5e-2, 8e-3)}


def matched(structure: Any, outputs: Mapping[str, Any], limit: Limit, path: str = "output") -> Any:
    """The structure with each tensor as that of ``outputs`` which equals it.

    Raises:
        ArgumentError: for a tensor that differs from every output by more than ``limit``, relative to its norm.
    """
    if isinstance(structure, Tensor):
        return _nearest(structure.value, outputs, limit, path)
    if isinstance(structure, Sides):
        return _grids(structure, outputs, path)
    if not isinstance(structure, Structure):
        return structure
    parts = {key: matched(part, outputs, limit, f"{path}.{key}") for key, part in structure.parts.items()}
    return Structure(structure.kind, parts)


def _nearest(value: Any, outputs: Mapping[str, Any], limit: Limit, path: str) -> Tensor:
    """The output and the layout that equal ``value`` best."""
    if not torch.isfinite(value).all():
        raise ArgumentError(f"its {path} holds values that are not finite")
    errors = {}
    for name, output in outputs.items():
        for layout in OF_MAPS if output.ndim == 4 else ("logits",):
            candidate = LAYOUTS[layout](output)
            if candidate.shape == value.shape:
                errors[name, layout] = relative_error(candidate, value)
    if not errors:
        shapes = ", ".join(f"{name} {list(output.shape)}" for name, output in outputs.items())
        raise ArgumentError(f"its {path}, {list(value.shape)}, has the shape of no output of the engine ({shapes})")
    (name, layout), error = min(errors.items(), key=lambda item: item[1])
    most = limit.of(value)
    if not error <= most:
        otherwise = ", or half precision costs it as much" if limit.tolerance > 2e-3 else ""
        raise ArgumentError(
            f"its {path} is not what swinq computes of its parameters: {name} differs by {error:.1e} of its norm, more than "
            f"{most:.0e}; its code is not that of a Swin that swinq knows{otherwise}"
        )
    return Tensor(output=name, layout=layout)


def _grids(recorded: Sides, outputs: Mapping[str, Any], path: str) -> Sides:
    """The outputs whose grids have these sides."""
    sides = recorded.values
    sizes = {name: tuple(output.shape[2:]) for name, output in outputs.items() if output.ndim == 4}
    grids = [sides[at : at + 2] for at in range(0, len(sides), 2)]
    names = [next((name for name, size in sizes.items() if size == grid), None) for grid in grids]
    found = tuple(name for name in names if name is not None)
    if len(found) < len(names):
        raise ArgumentError(f"its {path}, {sides}, are not the rows and columns of its outputs ({sizes})")
    return Sides(outputs=found, axis=recorded.axis)


def relative_error(found: Any, expected: Any) -> float:
    """The norm of the difference, relative to that of ``expected``."""
    norm = float(expected.double().norm())
    difference = float((found.double() - expected.double()).norm())
    return difference / norm if norm > 0 else difference


@dataclass
class Masked:
    """A batch with a mask of its padding, as DETR and its relatives pass them."""

    tensors: Any
    mask: Any

    def decompose(self) -> tuple[Any, Any]:
        return self.tensors, self.mask


def checked(model: Model, record: Record) -> Any:
    """The structure of the outputs of a module, which are those of the float engine on the first image of each size.

    Raises:
        ArgumentError: for a module that was not called, that computes something else, or that calls have changed.
    """
    if record.problem is not None:
        raise ArgumentError(record.problem)
    if not record.batches:
        raise ArgumentError(
            "the calibration did not call it; see that it has images; if the model calls another method of it, such as "
            "forward_features, it cannot be replaced"
        )
    structure, engine, of_tokens = None, model.engine(backend="cpu"), takes_tokens(model.config)
    for (height, width), (batch, expected) in record.sizes.items():
        image = record.batches[batch][:1]
        found = engine.run(image, layout="NCHW")
        limit = Limit(record.tolerance, image if of_tokens else None)
        try:
            if structure is None:
                structure = matched(expected, found, limit)
            else:
                _check_alike(structure, expected, found, limit)
        except ArgumentError as error:
            kind = "grids of {}x{} tokens" if of_tokens else "images of {}x{} pixels"
            place = f"on {kind.format(height, width)} {error}" if len(record.sizes) > 1 else str(error)
            raise ArgumentError(f"{place}{_shifts(record.lost_shifts)}") from error
    _check_shifts(model, record)
    return structure


def check_type(record: Record) -> None:
    """Refuses images of a type that no engine takes."""
    if record.dtype is not None and record.dtype not in TYPES:
        kind = str(record.dtype).removeprefix("torch.")
        raise ArgumentError(
            f"its images are {kind}, and an engine takes float32, float16 and bfloat16; convert the program, model.float(), and its images"
        )


def _check_alike(structure: Any, expected: Any, found: dict[str, Any], limit: Limit) -> None:
    """Refuses outputs ``expected`` of a module that are not ``found``, those of the engine, in ``structure``."""
    known, others = leaves(structure), leaves(expected)
    other_structure = ArgumentError("its outputs have another structure than on the first image")
    if [place for place, _ in known] != [place for place, _ in others]:
        raise other_structure
    for (place, leaf), (_, tensor) in zip(known, others, strict=True):
        if isinstance(leaf, Sides) and isinstance(tensor, Sides):
            if leaf.of(found, 2) != tensor.recorded:
                raise ArgumentError(f"its {place} is {tensor.recorded}, where the engine gives {leaf.of(found, 2)}")
            continue
        if isinstance(leaf, Sides) or isinstance(tensor, Sides):
            raise other_structure
        value, wanted = LAYOUTS[leaf.layout](found[leaf.output]), tensor.value
        if value.shape != wanted.shape:
            raise ArgumentError(f"its {place} is {list(wanted.shape)}, where the engine gives {list(value.shape)}")
        error, most = relative_error(value, wanted), limit.of(wanted)
        if not error <= most:
            raise ArgumentError(
                f"its {place} differs by {error:.1e} of its norm from what swinq computes of its parameters, more than {most:.0e}, "
                "although it agrees on the first image"
            )


def _shifts(lost: list[str]) -> str:
    """What is said of blocks that have lost their shift."""
    if not lost:
        return ""
    return (
        f". During the calibration {lost[0]} has lost its shift, as {len(lost)} blocks: transformers sets `shift_size` to 0 for good at the "
        "first image whose grid is not larger than the window, so that the outputs for larger ones depend on what came before. Make the "
        "model anew, and call it with images of one size, or with none that is smaller than a window"
    )


def _check_shifts(model: Model, record: Record) -> None:
    """Refuses a module whose blocks have lost their shift where the network shifts for one of the recorded sizes: its outputs for that
    size are no longer those that were recorded.

    Raises:
        ArgumentError: with the block.
    """
    windows, of_stack = [stage.window for stage in _native.stages(model._native)], takes_tokens(model.config)
    shifted = set()
    for height, width in record.sizes:
        grids = _native.grids(model._native, height, width)
        shifted |= {stage for stage, (grid, window) in enumerate(zip(grids, windows, strict=True)) if min(grid.size) > min(window)}
    # The blocks of a stack are those of one stage.
    lost = [name for name in record.lost_shifts if of_stack and shifted or (found := STAGE.search(name)) and int(found[1]) in shifted]
    if lost:
        raise ArgumentError(f"its outputs are no longer those of its first images{_shifts(lost)}")


#: The types of images that engines take.
TYPES = (torch.float32, torch.float16, torch.bfloat16)
#: The stage of a block, in its name.
STAGE = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def of_first_image(model: Model, record: Record) -> dict[str, Any]:
    """The outputs of a model on the first image of a record, on the CPU."""
    found: dict[str, Any] = model.engine(backend="cpu").run(record.batches[0][:1], layout="NCHW")
    return found


def check_module(module: Any, model: Model) -> None:
    """Refuses a module whose outputs for an image of noise, of the network's own size, are not those of ``model``.

    Raises:
        ArgumentError: also for a module that cannot run such an image.
    """
    kind = type(module).__name__
    try:
        checked(model, recorded_on_noise(module, model))
    except Error as error:
        raise ArgumentError(f"model: {kind}, on an image of noise: {error}") from error


def recorded_on_noise(module: Any, model: Model) -> Record:
    """What a module gives for an image of noise, of the size of the network ``model``.

    Raises:
        ArgumentError: for a module that cannot run such an image.
    """
    return _recorded(module, _noise(module, model))


def _noise(module: Any, model: Model) -> Any:
    """A normalised image of the size and the channels of a network, on the device and of the type of its module."""
    channels, parameter = model.config.get("in_chans", 3), next(module.parameters())
    image = torch.randn(1, channels, *model.input_size, generator=torch.Generator().manual_seed(0))
    return image.to(parameter.device, parameter.dtype)


def _arguments(module: Any, image: Any) -> list[tuple[Any, ...]]:
    """The arguments of calls with an image that a module may take."""
    tokens = CallParameters.of(uncompiled(module)).tokens
    if tokens is not None:
        return [arguments_for(tokens, image)]
    mask = torch.zeros(1, *image.shape[2:], dtype=torch.bool, device=image.device)
    return [(image,), (Masked(image, mask),)]


#: What code that was made for other calls raises.
FAILURES = (AttributeError, AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def _recorded(module: Any, image: Any) -> Record:
    """What a module gives for an image, alone or with a mask; a stack of blocks for the tokens of it."""
    failures = []
    for args in _arguments(module, image):
        try:
            return record_calls(module, lambda model, args=args: run(model, *args), {module: ()}, 1)[module]
        except FAILURES as error:
            failures.append(error)
    size, kind = "x".join(map(str, image.shape[2:])), type(failures[0]).__name__
    raise ArgumentError(f"its code fails at {size} pixels: {kind}: {failures[0]}") from failures[0]
