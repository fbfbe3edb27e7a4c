"""Tokens of stacks of blocks as images: a grid of tokens is an image with a pixel for each."""

from __future__ import annotations

from typing import Any

import torch

from .._common.errors import ArgumentError
from .._readers.tokens import Tokens


def images_of(tokens: Tokens, given: Any, arguments: dict[str, Any]) -> Any:
    """The images ``[n, channels, rows, columns]`` that the input of a call of a stack is, in the same memory; their grid leaves the other
    arguments.

    Raises:
        ArgumentError: for tokens that are not those of the grid, for a grid that the stack does not take, and for arguments that make it
            another network.
        TypeError: for a missing grid.
    """
    missing = [name for name in tokens.grid if name not in arguments]
    if missing:
        raise TypeError(f"forward misses its argument `{missing[0]}`")
    stated = [arguments.pop(name) for name in tokens.grid]
    if tokens.other_network is not None and arguments.get(tokens.other_network):
        raise ArgumentError(
            f"{tokens.other_network}: is true, so that windows keep their size and their shift; swinq runs this stage as its default does, "
            "with windows that shrink; leave the argument out"
        )
    return _in_rows(tokens, given) if tokens.in_rows else _flat(tokens, given, stated)


def _in_rows(tokens: Tokens, given: Any) -> Any:
    if not isinstance(given, torch.Tensor) or given.ndim != 4:
        raise ArgumentError(f"tokens: {_kind(given)}; give [n, rows, columns, channels]")
    _check_grid(tokens, int(given.shape[1]), int(given.shape[2]))
    return given.permute(0, 3, 1, 2)


def _flat(tokens: Tokens, given: Any, stated: list[Any]) -> Any:
    sides: Any = stated[0] if len(stated) == 1 else stated or tokens.only
    rows, columns = sides
    if not isinstance(given, torch.Tensor) or given.ndim != 3 or given.shape[1] != rows * columns:
        raise ArgumentError(f"tokens: {_kind(given)} for a grid of {rows}x{columns}; give [n, {rows * columns}, channels]")
    _check_grid(tokens, rows, columns)
    return given.transpose(1, 2).unflatten(2, (rows, columns))


def _kind(given: Any) -> str:
    return f"{list(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__


def _check_grid(tokens: Tokens, rows: int, columns: int) -> None:
    if tokens.only is not None and (rows, columns) != tokens.only:
        own = "x".join(map(str, tokens.only))
        raise ArgumentError(
            f"tokens: a grid of {rows}x{columns}; the stage was built for {own}, and has masks for that grid only: give tokens of it, or build "
            "the model for the size (timm: dynamic_img_size=True for any)"
        )


def arguments_for(tokens: Tokens, image: Any) -> tuple[Any, ...]:
    """The arguments of a call of a stack with the tokens that an image is."""
    size = tuple(int(side) for side in image.shape[2:])
    if tokens.in_rows:
        return (image.permute(0, 2, 3, 1).contiguous(),)
    flat = image.flatten(2).transpose(1, 2)
    return (flat, size) if len(tokens.grid) == 1 else (flat, *size[: len(tokens.grid)])
