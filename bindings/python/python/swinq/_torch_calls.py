"""Calls of a module: its input, and the other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ._errors import ArgumentError
from ._torch_outputs import is_nested


def bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The input of a call, which is the first parameter, and the other arguments by name."""
    arguments = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name, {})
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            arguments |= {f"*{parameter.name}": given for given in [arguments.pop(parameter.name, ())] if given}
    first = next(iter(signature.parameters), "")
    return arguments.pop(first, None), arguments


def images_of(value: Any) -> Any:
    """The tensor of images in the input of a module."""
    return value if isinstance(value, torch.Tensor) or not is_nested(value) else value.tensors


def check_arguments(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuses arguments that ask for something else than the call on which the outputs were recorded."""
    for name in given.keys() | known.keys():
        one, other = (_plain(name, values.get(name)) for values in (given, known))
        if one is not other and (isinstance(one, type) or isinstance(other, type) or one != other):
            value = given.get(name)
            shown = repr(value) if isinstance(value, bool | int | float | str) or value is None else type(value).__name__
            raise ArgumentError(
                f"{name}: is {shown}, which the module was not called with during calibration; the engine of a Swin has its "
                "outputs only, no hidden states, attentions or losses"
            )


def _plain(name: str, value: Any) -> Any:
    """A value that compares: that of an option, or the class of an object. Options that are off equal those left out."""
    if value is None or value is False or (name == "return_dict" and value is True):
        return None
    if isinstance(value, bool | int | float | str):
        return value
    return type(value)
