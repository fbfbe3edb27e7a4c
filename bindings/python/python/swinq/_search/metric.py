"""The metric of a user's own."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

from .._common.errors import ArgumentError

#: The user's metric: called with the model, it returns a number, of which more is better.
Evaluate = Callable[[Any], Any]


def check_metric(evaluate: Any) -> None:
    """Refuses what cannot be called with the model.

    Raises:
        ArgumentError: for what is no function, or for one that takes no argument or needs more.
    """
    if not callable(evaluate):
        raise ArgumentError(f"evaluate: a {type(evaluate).__name__} is no function of the model")
    try:
        signature = inspect.signature(evaluate)
    except (TypeError, ValueError):
        return  # Some functions of other languages state none.
    try:
        signature.bind(None)
    except TypeError as error:
        raise ArgumentError(f"evaluate: is called with the model alone, but its arguments are {signature}") from error


def finite(value: Any) -> float:
    """The value that a metric returned.

    Raises:
        ArgumentError: for one that is no finite number.
    """
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentError(f"evaluate: returned {value!r}, which is no finite number")
    return number


def name_of(evaluate: Evaluate) -> str | None:
    """The name of a function; ``None`` for one that has none of its own."""
    module, name = getattr(evaluate, "__module__", None), getattr(evaluate, "__qualname__", None)
    return None if module is None or name is None or name.endswith("<lambda>") else f"{module}.{name}"


def check_repeated(values: tuple[float, float], max_drop: float | None) -> None:
    """Warns if a metric returned two values for the float model.

    Raises:
        ArgumentError: if they differ by more than ``max_drop``, which such a metric cannot decide.
    """
    one, other = values
    if one == other:
        return
    problem = f"evaluate: returned {one:.6g} and {other:.6g} for the same float model"
    remedy = "give it the same images in each call, without random changes of them"
    if max_drop is not None and abs(one - other) > max_drop:
        raise ArgumentError(f"{problem}, which differ by more than max_drop={max_drop:g}; {remedy}")
    warnings.warn(f"{problem}, so that differences of up to {abs(one - other):.2g} say nothing; {remedy}", stacklevel=7)
