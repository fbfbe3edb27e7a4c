"""The Swins in a model of PyTorch: where they are, and other modules in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .._common.errors import ArgumentError
from .._readers.layers import uncompiled
from .._readers.recognition import reader_of
from .._readers.stacks import is_list, lists_in, tokens_of
from .in_place import InPlace, guard
from .replacement import Replacement


def swins_of(model: Any) -> dict[Any, list[str]]:
    """The outermost Swins of a model, with the names of the places of each. A Swin that ``torch.compile`` wrapped is the wrapper,
    whose compiled code stays bound to what it wraps."""
    if not isinstance(model, torch.nn.Module):
        inner = getattr(model, "model", None)
        hint = "; pass its `model`" if isinstance(inner, torch.nn.Module) else ""
        raise ArgumentError(f"model: {type(model).__name__} is no torch.nn.Module{hint}")
    found: dict[Any, list[str]] = {}
    lists = list(lists_in(model))

    def is_swin(module: Any) -> bool:
        # What calls the layers of any other list is not known.
        return reader_of(module) is not None and (module in lists or not is_list(module))

    for module, name in outermost(model, lambda module: is_replaced(module) or is_swin(uncompiled(module))):
        if not is_replaced(module):
            found.setdefault(module, []).append(name)
    return found


def stages_of(swin: Any) -> dict[Any, str]:
    """The stages inside of a Swin that can run by themselves, with their names: a program may call them, and never the whole."""
    inside = {module: name for name, module in uncompiled(swin).named_modules() if name}
    return {module: name for module, name in inside.items() if tokens_of(module) is not None and not is_list(module)}


def outermost(model: Any, is_wanted: Callable[[Any], bool], name: str = "") -> Iterator[tuple[Any, str]]:
    """The outermost modules of a model that are wanted, in every place, with the names of the places. A wrapper of ``torch.compile``
    stands for what it wraps, and does not show in names."""
    if is_wanted(model):
        yield model, name
        return
    for part, child in uncompiled(model)._modules.items():
        if child is not None:
            yield from outermost(child, is_wanted, f"{name}.{part}" if name else part)


def is_replaced(module: Any) -> bool:
    """Whether a module stands in the place of a Swin, or is one whose ``forward`` is the engine's."""
    return isinstance(module, Replacement) or isinstance(module.__dict__.get("forward"), InPlace)


def none_in(model: Any) -> str:
    """Why a model has no Swin in float."""
    found = {name or "the model itself": module for name, module in model.named_modules() if is_replaced(module)}
    if any(isinstance(module, Replacement) and module.IS_TRAINED for module in found.values()):
        state = "are prepared for training already; swinq.torch.convert(model) runs them in INT8, swinq.torch.restore(model) undoes it"
    else:
        state = "run on the engine already; swinq.torch.restore(model) first"
    if found:
        return f"Its Swins ({', '.join(found)}) {state}"
    return (
        "It contains no Swin of timm, torchvision, transformers, Microsoft, OpenMMLab or detectron2, no stage of one, and no stack of blocks "
        "of SwinIR, Swin2SR or CLAP"
    )


def kind_of(module: Any) -> str:
    """The name of the class of a module; ``torch.compile``'s wrapper has that of the module inside."""
    return type(uncompiled(module)).__name__


def exchanged(model: Any, old: Any, new: Any) -> Any:
    """The model with ``new`` at every place of ``old``. What ``torch.compile`` made of a module in the place of a Swin goes with it."""

    def is_place(module: Any) -> bool:
        return module is old or (isinstance(old, Replacement) and uncompiled(module) is old)

    if is_place(model):
        return new
    for parent in list(model.modules()):
        if uncompiled(parent) is old:
            continue
        for name, child in parent._modules.items():
            if is_place(child):
                parent._modules[name] = new
    guard(model)
    return model
