"""A Swin that stays where it is while the engine runs it, and ``save_pretrained`` of models with Swins on engines."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from .._common.errors import ArgumentError, placed
from .._readers.layers import uncompiled
from .module import SwinModule
from .replacement import ON_THE_ENGINE, Unsaved, check_type_is_kept


class Applied:
    """The ``_apply`` of a module that stays where it is while the engine runs it: moves it, and refuses another type."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        check_type_is_kept(fn)
        return type(self.module)._apply(self.module, fn, recurse)


class InPlace:
    """The ``forward`` of a module that the engine runs as a whole and that stays where it is, for those who hold it."""

    REPLACES_A_SWIN = ON_THE_ENGINE

    def __init__(self, module: Any, swin: SwinModule) -> None:
        self.module, self.swin = module, swin
        self.__signature__ = inspect.signature(swin.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.swin.training = self.module.training
        return self.swin(*args, **kwargs)

    def __reduce__(self) -> Any:
        return InPlace, (self.module, self.swin)


def guard(model: Any) -> None:
    """Lets ``save_pretrained`` refuse in the models within ``model`` that have Swins on engines, and in no others."""
    for part in model.modules():
        if not hasattr(type(part), "save_pretrained"):
            continue
        unguard(part)
        if any(isinstance(module, SwinModule) for module in part.modules()):
            part.__dict__["save_pretrained"] = Unsaved()


def unguard(model: Any) -> None:
    """Lets ``model`` save again."""
    model.__dict__.pop("save_pretrained", None)


def check_float_is_there(model: Any) -> None:
    """Refuses a model with a Swin on an engine whose original has not the parameters that were quantized.

    Raises:
        ArgumentError: with the place of the Swin.
    """
    for name, module in model.named_modules():
        forward = module.__dict__.get("forward")
        swin = forward.swin if isinstance(forward, InPlace) else module
        if isinstance(swin, SwinModule) and swin._missing_float:
            raise ArgumentError(
                f"model: the float parameters of {placed(name)} are missing: the folder that was "
                "opened holds the INT8 Swin only. Open the float model, or call swinq.torch.load with a float model that has the parameters "
                "which were quantized"
            )


def in_place(swin: SwinModule) -> Any:
    """The original of ``swin``, which now runs it. Its parameters are also those of a shallow copy, the new original of ``swin``."""
    module = uncompiled(swin.original)
    inner = copy.copy(module)
    for kind in ("_parameters", "_buffers", "_modules"):
        inner.__dict__[kind] = dict(inner.__dict__[kind])
    swin.__dict__["_original"] = inner
    module.forward, module._apply = InPlace(module, swin), Applied(module)
    return module
