"""Names by which pickles find classes: those of public modules, so that private ones may move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def name_by(module: str, values: Iterable[Any]) -> None:
    """Says that the classes and functions ``values`` are those of the public module ``module``, which has them under their names."""
    for value in values:
        value.__module__ = module
