"""The results of live modules, against those of swinq's float engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ._errors import ArgumentError, Error
from ._model import Model
from ._torch_outputs import matched
from ._torch_record import Record, run


@dataclass
class Masked:
    """A batch with a mask of its padding, as DETR and its relatives pass them."""

    tensors: Any
    mask: Any

    def decompose(self) -> tuple[Any, Any]:
        return self.tensors, self.mask


def checked(model: Model, record: Record) -> Any:
    """The structure of the outputs of a module, which are those of the float engine on the first image.

    Raises:
        ArgumentError: for a module that was not called, or that computes something else.
    """
    if record.problem is not None:
        raise ArgumentError(record.problem)
    if not record.batches:
        raise ArgumentError(
            "the calibration did not call it; see that it has images; if the model calls another method of it, such as "
            "forward_features, it cannot be replaced"
        )
    return matched(record.outputs, first(model, record), record.tolerance)


def first(model: Model, record: Record) -> dict[str, Any]:
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
        checked(model, _recorded(module, _noise(module, model)))
    except Error as error:
        raise ArgumentError(f"model: {kind}, on an image of noise: {error}") from error


def _noise(module: Any, model: Model) -> Any:
    """A normalised image of the size and the channels of a network, on the device and of the type of its module."""
    channels, parameter = model.config.get("in_chans", 3), next(module.parameters())
    image = torch.randn(1, channels, *model.input_size, generator=torch.Generator().manual_seed(0))
    return image.to(parameter.device, parameter.dtype)


#: What code that was made for other calls raises.
FAILURES = (AttributeError, AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def _recorded(module: Any, image: Any) -> Record:
    """What a module gives for an image, alone or with a mask."""
    mask = torch.zeros(1, *image.shape[2:], dtype=torch.bool, device=image.device)
    failures = []
    for given in (image, Masked(image, mask)):
        try:
            return run(module, [given], [module], 1)[module]
        except FAILURES as error:
            failures.append(error)
    size, kind = "x".join(map(str, image.shape[2:])), type(failures[0]).__name__
    raise ArgumentError(f"its code fails at {size} pixels: {kind}: {failures[0]}") from failures[0]
