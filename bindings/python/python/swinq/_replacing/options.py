"""The options of engines that functions of :mod:`swinq.torch` take beside their own arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .._common.errors import ArgumentError
from .._engine.model import Model

#: The options of an engine that are numbers, with their values where none are given.
ENGINE_NUMBERS: dict[str, int] = {
    name: option.default for name, option in inspect.signature(Model.engine).parameters.items() if isinstance(option.default, int)
}
#: All options of an engine, but for its backend.
ENGINE_OPTIONS = (*ENGINE_NUMBERS, "residual")


def check_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuses ``options`` that an engine does not have, with the nearest name among these and the arguments of ``function``."""
    known = [name for name in inspect.signature(function).parameters if name != "options"] + list(ENGINE_OPTIONS)
    for name in options:
        if name not in ENGINE_OPTIONS:
            nearest = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise ArgumentError(
                f"{name}: is no argument of swinq.torch.{function.__name__}, and no option of an engine; those are "
                f"{', '.join(ENGINE_OPTIONS)}{hint}"
            )
