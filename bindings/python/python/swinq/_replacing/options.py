"""The options of engines that functions of :mod:`swinq.torch` take beside their own arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .._common.errors import ArgumentError, nearest
from .._engine.model import ENGINE_NUMBERS, check_engine

#: All options of an engine, but for its backend.
ENGINE_OPTIONS = (*ENGINE_NUMBERS, "residual")


def check_options(function: Callable[..., Any], backend: str, options: Mapping[str, Any]) -> None:
    """Refuses ``options`` that an engine does not have, with the nearest name among these and the arguments of ``function``, and a
    backend and values that no engine can have."""
    known = [name for name in inspect.signature(function).parameters if name != "options"] + list(ENGINE_OPTIONS)
    for name in options:
        if name not in ENGINE_OPTIONS:
            raise ArgumentError(
                f"{name}: is no argument of swinq.torch.{function.__name__}, and no option of an engine; those are "
                f"{', '.join(ENGINE_OPTIONS)}{nearest(name, known)}"
            )
    check_engine(backend, options)
