"""Calls of a module: its input, and the other arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._common.errors import ArgumentError
from .._readers.stacks import called, tokens_of
from .._readers.tokens import Tokens
from .outputs import is_nested
from .tokens import images_of


@dataclass(frozen=True)
class CallParameters:
    """The parameters of a ``forward``, as far as calls are bound to them: by functions that ``torch.compile`` can trace, unlike those of
    :class:`inspect.Signature`."""

    #: Those that take a value by position, in order; the first takes the input.
    positional: tuple[str, ...]
    #: All that have a name.
    named: frozenset[str]
    #: The name of ``*args``, and whether there are ``**kwargs``.
    more: str | None
    any_keyword: bool
    #: How a stack of blocks takes its tokens; ``None`` for a module that takes images.
    tokens: Tokens | None

    @classmethod
    def of(cls, module: Any) -> CallParameters:
        """Those of a module."""
        signature = inspect.signature(called(module).forward)
        kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        more = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), None)
        return cls(
            tuple(name for name, kind in kinds.items() if kind in by_position),
            frozenset(name for name, kind in kinds.items() if kind not in unnamed),
            more,
            inspect.Parameter.VAR_KEYWORD in kinds.values(),
            tokens_of(module),
        )

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The input of a call, which is the first parameter, and the other arguments by name.

        Raises:
            TypeError: for arguments that the ``forward`` does not take.
        """
        count = len(self.positional)
        arguments = dict(zip(self.positional, args, strict=False))
        if len(args) > count:
            if self.more is None:
                raise TypeError(f"forward takes {count} arguments by position but {len(args)} were given")
            arguments[f"*{self.more}"] = args[count:]
        for name, value in kwargs.items():
            if name in arguments:
                raise TypeError(f"forward got several values for `{name}`")
            if name not in self.named and not self.any_keyword:
                raise TypeError(f"forward got an unexpected argument `{name}`")
            arguments[name] = value
        if not self.positional:
            return None, arguments
        first = self.positional[0]
        if first not in arguments:
            raise TypeError(f"forward misses its argument `{first}`")
        return arguments.pop(first), arguments

    def images(self, given: Any, arguments: dict[str, Any]) -> Any:
        """The images in the input of a call, ``[n, channels, height, width]``. Tokens are such images in another order, in the same
        memory; their grid leaves the other arguments.

        Raises:
            ArgumentError, TypeError: as :func:`images_of`.
        """
        return images_in(given) if self.tokens is None else images_of(self.tokens, given, arguments)


@dataclass(frozen=True)
class OfClass:
    """Stands for an argument of a saved model that was an object of a class: calls are compared by the class alone."""

    kind: type


def images_in(value: Any) -> Any:
    """The tensor of images in the input of a module."""
    return value if isinstance(value, torch.Tensor) or not is_nested(value) else value.tensors


def check_batch(name: str, value: Any) -> None:
    """Refuses a value that is no batch of images of a model."""
    if not isinstance(value, torch.Tensor) or value.ndim != 4 or not value.is_floating_point():
        raise ArgumentError(f"{name}: {_not_images(value)}")


def _not_images(value: Any) -> str:
    wanted = "is no floating-point tensor [n, channels, height, width]"
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__} {wanted}"
    return f"{named_tensor(value)} {wanted}{OF_PIXELS if value.dtype == torch.uint8 else ''}"


#: What follows on a tensor of uint8.
OF_PIXELS = "; the model wants normalised floats, and pixels of uint8 are for swinq.open and swinq.quantize, which normalise them"


def named_tensor(value: Any) -> str:
    """The type and the shape of a tensor."""
    return f"a {str(value.dtype).removeprefix('torch.')} tensor {list(value.shape)}"


def check_arguments(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuses arguments that ask for something else than the call on which the outputs were recorded."""
    for name in given.keys() | known.keys():
        one, other = (_plain(name, values.get(name)) for values in (given, known))
        if one is not other and (isinstance(one, type) or isinstance(other, type) or one != other):
            value = given.get(name)
            shown = repr(value) if isinstance(value, bool | int | float | str) or value is None else type(value).__name__
            if name == "return_dict":
                raise ArgumentError(f"{name}: is {shown}; calls must ask for the class of outputs of the calls of the calibration")
            raise ArgumentError(
                f"{name}: is {shown}, which the module was not called with during calibration; the engine of a Swin has its "
                "outputs only, no hidden states, attentions or losses"
            )


def _plain(name: str, value: Any) -> Any:
    """A value that compares: that of an option, or the class of an object. Options that are off equal those left out."""
    if name == "return_dict":
        return value if value is False else None
    if value is None or value is False:
        return None
    if isinstance(value, bool | int | float | str):
        return value
    return value.kind if isinstance(value, OfClass) else type(value)
