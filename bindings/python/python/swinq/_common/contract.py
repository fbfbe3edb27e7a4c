"""The number contract (docs/inference.md, sections 2, 6 and 7): the constants of the engine, with which training computes, too, and the
input of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _native

CONTRACT = _native.contract()


def takes_tokens(config: Mapping[str, Any]) -> bool:
    """Whether the input of a network with this architecture is a grid of tokens: it is a stack of blocks."""
    return bool(config.get("input") == "tokens")
