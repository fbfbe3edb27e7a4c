"""Exceptions of swinq. Each message is the one that the program ``swinq`` prints."""

import difflib
import math
from collections.abc import Iterable

__all__ = [
    "Error",
    "NotFoundError",
    "FileError",
    "ArgumentError",
    "ModelError",
    "DataError",
    "EngineError",
    "CalibrationError",
    "EvaluationError",
]


class Error(Exception):
    """Base of all exceptions of this package."""


class NotFoundError(Error, FileNotFoundError):
    """A file or folder does not exist: a model, a configuration, a recipe, class names, images. An ``OSError``."""


class FileError(Error, OSError):
    """A file cannot be read or written, as the operating system says."""


class ArgumentError(Error, ValueError):
    """An argument has a value that the call cannot work with."""


class PreprocessingError(ArgumentError):
    """A classifier does not contain its preprocessing, and none was given. It is not public."""


class ModelError(Error, ValueError):
    """A model, its configuration or its recipe cannot be used."""


class DataError(Error, ValueError):
    """Images or labels cannot be used."""


class EngineError(Error, RuntimeError):
    """An engine cannot be made, or failed."""


class CalibrationError(Error, RuntimeError):
    """A calibration failed."""


class EvaluationError(Error, RuntimeError):
    """Models cannot be evaluated or compared."""


def count(name: str, value: int, least: int) -> None:
    """Refuses what is no whole number, and a number below ``least``."""
    if not hasattr(type(value), "__index__"):
        raise ArgumentError(f"{name}: is {value!r}; it must be a whole number of at least {least}")
    if value < least:
        raise ArgumentError(f"{name}: is {value}; it must be at least {least}")


def amount(name: str, value: float | None) -> None:
    """Refuses what is neither ``None`` nor a finite number from 0 on."""
    if value is None:
        return
    is_number = not isinstance(value, bool | str) and hasattr(value, "__float__")
    if not (is_number and math.isfinite(float(value)) and float(value) >= 0):
        raise ArgumentError(f"{name}: {value!r} is not a number from 0 on")


def placed(path: str) -> str:
    """A module path of a model, which is empty for the model itself, in a message."""
    return f"`{path}`" if path else "the model itself"


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint at the nearest of the known names, as the end of a message."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""
