"""The arguments of the calls of a stack of blocks: its tokens, and their grid."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tokens:
    """How the calls of a stack of blocks give its tokens and their grid."""

    #: The parameters that take the grid: one takes rows and columns, two take one of them each. Without any, the tokens have the grid
    #: as their shape, or it is always the same.
    grid: tuple[str, ...] = ()
    #: Whether the tokens are ``[n, rows, columns, channels]``; else they are ``[n, rows * columns, channels]``.
    in_rows: bool = False
    #: The only grid that the stack takes; ``None`` for any.
    only: tuple[int, int] | None = None
    #: The parameter that makes the stack another network, if it is true.
    other_network: str | None = None
    #: The heads of the attention that the stack gives behind its tokens; 0 for none.
    heads: int = 0
