"""Models with quantized or prepared Swins as folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .._common.errors import ArgumentError
from .._readers.layers import library_of, uncompiled
from .._replacing.in_place import InPlace
from .._replacing.module import SwinModule
from .._replacing.swins import is_replaced, kind_of, outermost
from .._training.prepared import PreparedSwin
from . import folders, safetensors
from .index import INDEX, INT8, IN_PLACE, PREPARED, REST, Index, SavedSwin, file_name, hashed, listed, write_index
from .structure import arguments_as_json, structure_as_json

#: Wrappers of a whole model, which the names in a folder do not show.
PARALLEL = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


def save(model: Any, folder: str | os.PathLike[str]) -> None:
    """Writes a model whose Swins :func:`quantize`, :func:`tune`, :func:`convert` or :func:`prepare` has replaced, as a folder that
    :func:`load` reads.

    The folder has the quantized checkpoint of each Swin, ``NAME.int8.safetensors`` with its module path as the name, which
    :func:`swinq.open` and the program ``swinq`` read; ``rest.safetensors`` with the other tensors of the state dictionary, those of
    prepared Swins included; and ``swinq.json``, which says where each stands and has the hash of each file. The float parameters of
    INT8 Swins are not in it. It is written whole or not at all: until it is complete, an older folder stays as it is. On several
    processes, one of them saves.

    Args:
        model: the model, on any device. Of ``DistributedDataParallel``, ``DataParallel`` and ``torch.compile`` the model inside is saved.
        folder: the folder; an older one that this function has written is replaced. Its parent must exist.

    Raises:
        ArgumentError: for a model without such Swins, for a state dictionary with anything but dense tensors, for an output whose class
            cannot be found by its name, and for a folder that this function did not write or that has other files.
        NotFoundError, FileError: if the folder cannot be written.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model: a {type(model).__name__} is no torch.nn.Module")
    model = _inside(model)
    swins = swins_in(model)
    if not swins:
        raise ArgumentError(
            f"model: {kind_of(model)} has no quantized and no prepared Swin; call swinq.torch.quantize or swinq.torch.prepare first, or "
            "save a float model by torch.save(model.state_dict(), ...)"
        )
    taken: set[str] = set()
    saved = {module: _described(module, names, file_name(names[0], taken)) for module, names in swins.items()}
    rest, tied = _untied(rest_of(model, swins))
    for name, value in rest.items():
        safetensors.check(name, value)

    def write(new: Path) -> None:
        for module, swin in saved.items():
            _checkpoint_of(module).save(new / swin.file)
        safetensors.write(new / REST, rest)
        write_index(new, Index(kind_of(model), list(saved.values()), {}, tied))

    folders.replaced(Path(folder), INDEX, listed, write)


def _inside(model: Any) -> Any:
    """The model inside of the wrappers around it."""
    while isinstance(inner := uncompiled(model), PARALLEL):
        model = inner.module
    return inner


def swins_in(model: Any) -> dict[Any, list[str]]:
    """The modules of a model that stand in the place of a Swin or run as one, with all their module paths, in which wrappers of
    ``torch.compile`` do not show."""
    found: dict[Any, list[str]] = {}
    for place, name in outermost(model, lambda place: is_replaced(uncompiled(place))):
        found.setdefault(uncompiled(place), []).append(name)
    return found


def plain(name: str) -> str:
    """The name of a tensor or module without wrappers of ``torch.compile``."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def rest_of(model: Any, swins: Mapping[Any, list[str]]) -> dict[str, Any]:
    """The state dictionary of a model, by plain names, without those parameters of Swins that an engine runs."""
    places = [name for module, names in swins.items() if isinstance(module.__dict__.get("forward"), InPlace) for name in names]
    state = {plain(name): value for name, value in model.state_dict().items()}
    return {name: value for name, value in state.items() if not any(is_in(name, place) for place in places)}


def is_in(name: str, place: str) -> bool:
    """Whether a tensor belongs to the module at a path."""
    return not place or name.startswith(f"{place}.")


def _untied(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors, each once, and the names of those that have further names."""
    first: dict[Any, str] = {}
    kept, tied = {}, {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.numel() and not value.is_meta:
            memory = (value.device, value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
            if (known := first.setdefault(memory, name)) != name:
                tied[name] = known
                continue
        kept[name] = value
    return kept, tied


def _described(module: Any, names: list[str], file: str) -> SavedSwin:
    """The entry of a Swin in the index."""
    forward = module.__dict__.get("forward")
    swin = forward.swin if isinstance(forward, InPlace) else module
    original = uncompiled(swin.original)
    entry = SavedSwin(
        names=names,
        kind=type(original).__name__,
        library=library_of(original) or "",
        state=PREPARED,
        file=file,
        outputs=structure_as_json(swin._outputs),
        arguments=arguments_as_json(swin._arguments),
    )
    if isinstance(swin, SwinModule):
        entry.state = INT8 if swin is module else IN_PLACE
        entry.backend, entry.options = swin._backend, dict(swin._options)
        entry.original = swin._missing_float or hash_of_parameters(original)
    else:
        entry.learned, entry.drop_path, entry.checkpointing = swin._learned, float(swin._drop_path), bool(swin.checkpointing)
    return entry


def _checkpoint_of(module: Any) -> Any:
    """The quantized model of a Swin; of one in training the calibrated one."""
    if isinstance(module, PreparedSwin):
        return module._template.model
    return module.model if isinstance(module, SwinModule) else module.forward.swin.model


def hash_of_parameters(module: Any) -> str:
    """The hash of the state dictionary of a float module."""
    tensors = [value for value in module.state_dict().values() if isinstance(value, torch.Tensor) and not value.is_meta]
    return hashed([safetensors.bytes_of(value) for value in tensors])
