"""Folders of saved models, and checkpoints of Swins, in float models of PyTorch."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from .._calls.arguments import CallParameters
from .._calls.outputs import Sides, leaves, tensors
from .._common.errors import ArgumentError, Error, ModelError, placed
from .._engine.model import ENGINE_NUMBERS, Model
from .._readers.layers import library_of, uncompiled
from .._replacing.in_place import in_place
from .._replacing.module import Engines, SwinModule, opened
from .._replacing.options import check_options
from .._replacing.original import check_architecture, opened_float
from .._replacing.replacement import Unsaved
from .._replacing.swins import exchanged, kind_of, none_in, stages_of, swins_of
from .._training.prepared import LEARNED, prepared_of
from . import safetensors
from .index import IN_PLACE, PREPARED, REST, Index, SavedSwin, read_file, read_index
from .save import PARALLEL, hash_of_parameters, is_in, plain, swins_in
from .structure import arguments_from_json, structure_from_json


def load(model: Any, folder: str | os.PathLike[str], backend: str | None = None, **options: Any) -> Any:
    """Puts the Swins of a folder that :func:`save` has written into a float model of the same code, in place, and the other tensors of
    its state dictionary. It needs no images, and the outputs have the bits of the saved model. Nothing of the folder is executed.

    Args:
        model: the model as the program builds it, with any weights, on any device but ``meta``.
        folder: the folder.
        backend: as for :func:`quantize`; ``None`` is that of the saved model.
        options: options of :meth:`swinq.Model.engine`, beside or in the place of those of the saved model.

    Returns:
        The model, or the module in its place if the model itself is a Swin.

    Raises:
        ArgumentError: for a model that has quantized Swins already, that is wrapped or that is on the device ``meta``; for an unknown option.
        NotFoundError: for a folder or a file that does not exist.
        ModelError: for a model of other code, with the class, the module path or the tensor that differs; for a folder that is damaged
            or of a newer version, and for links in it. The model is then as before.
        EngineError: if an engine cannot be made.
    """
    check_options(load, backend or "auto", options)
    _check_float(model)
    path = Path(folder)
    index = read_index(path)
    places = _places(model, index, path)
    rest = _rest(path, index)
    made, engines = [], Engines()
    for saved, place in zip(index.swins, places, strict=True):
        made.append((saved, place, _made(saved, place, read_file(path, index, saved.file), backend, options, engines)))
    return _put(model, made, rest)


def _check_float(model: Any) -> None:
    """Refuses anything else than a float model that is not wrapped and has memory."""
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model: a {type(model).__name__} is no torch.nn.Module")
    if isinstance(uncompiled(model), PARALLEL):
        kind = type(uncompiled(model)).__name__
        raise ArgumentError(f"model: is wrapped by {kind}; load the folder into the model itself, and wrap it afterwards")
    if swins_in(model):
        raise ArgumentError(f"model: is no float model. {none_in(model)}")
    if any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()]):
        raise ArgumentError("model: is on the device meta and has no memory; build it on a CPU or a GPU")


def _places(model: Any, index: Index, folder: Path) -> list[Any]:
    """The float Swin in the place of each saved one."""
    named: dict[str, Any] = {}
    for module, names in swins_of(model).items():
        named |= {plain(name): module for name in names}
        for stage, inside in stages_of(module).items():
            named |= {plain(f"{name}.{inside}" if name else inside): stage for name in names}
    found = [_place(model, named, saved, (folder, index)) for saved in index.swins]
    if len(set(found)) != len(found):
        raise ModelError(f"{folder}: has two Swins for one module of {kind_of(model)}; save the model again")
    return found


def _place(model: Any, named: Mapping[str, Any], saved: SavedSwin, source: tuple[Path, Index]) -> Any:
    """The float Swin in the place of a saved one of a folder with its index.

    Raises:
        ModelError: if the model has another class, another module or none there.
    """
    folder, found = source[0], named.get(saved.names[0])
    if found is None:
        there = {plain(name): module for name, module in model.named_modules(remove_duplicate=False)}.get(saved.names[0])
        state = "no module of this name" if there is None else f"a {kind_of(there)} there"
        hint = _hint(named, saved, source)
        raise ModelError(f"{folder}: has a {saved.original_kind} as {saved.place}, and {kind_of(model)} has {state}{hint}")
    kind, library = kind_of(found), library_of(uncompiled(found)) or ""
    if (kind, library) != (saved.kind, saved.library):
        raise ModelError(
            f"{folder}: has a {saved.original_kind} as {saved.place}, and {kind_of(model)} has a {kind} of {library or 'its own'} there; "
            "build the model as it was when it was saved"
        )
    at = [name for name, module in named.items() if module is found]
    if set(at) != set(saved.names):
        raise ModelError(
            f"{folder}: has one module at {_list(saved.names)}, and {kind_of(model)} has it at {_list(at)}; build the model with the same "
            "modules shared"
        )
    return found


def _list(names: list[str]) -> str:
    return ", ".join(map(placed, names))


def _hint(named: Mapping[str, Any], saved: SavedSwin, source: tuple[Path, Index]) -> str:
    """How a saved Swin is found if the module paths differ by a prefix, such as that of a wrapper."""
    folder, path = source[0], saved.names[0]
    for name, module in named.items():
        if kind_of(module) != saved.kind or not _fits(module, saved, source):
            continue
        if not path:
            call = f"model.{name} = swinq.torch.load(model.{name}, {str(folder)!r})"
            return f", but one as `{name}`; call {call}"
        if name.endswith(f".{path}"):
            return f", but one as `{name}`; call swinq.torch.load(model.{name.removesuffix(f'.{path}')}, {str(folder)!r})"
        if not name and saved.state != PREPARED:
            return f", but is one itself; call swinq.torch.replace(model, {{'': {str(folder / saved.file)!r}}}).model"
        if not name or path.endswith(f".{name}"):
            return f", but one as {placed(name)}; save it without the modules around it, or call {_wrapped(path.removesuffix(name), folder)}"
    others = f"its Swins are {_list(list(named))}" if named else "it has no Swin"
    return f"; {others}. Build the model as it was when it was saved"


def _fits(module: Any, saved: SavedSwin, source: tuple[Path, Index]) -> bool:
    """Whether a float Swin has the architecture of a saved one."""
    try:
        check_architecture(opened_float(module, _blank(uncompiled(module))), opened(read_file(*source, saved.file)))
    except Error:
        return False
    return True


def _wrapped(prefix: str, folder: Path) -> str:
    """The call that loads a folder into ``model``, whose modules have a prefix there."""
    parts = prefix.rstrip(".").split(".")
    wrapped = "model"
    for part in reversed(parts):
        wrapped = f"torch.nn.ModuleDict({{{part!r}: {wrapped}}})"
    return f"swinq.torch.load({wrapped}, {str(folder)!r})" + "".join(f"[{part!r}]" for part in parts)


def _made(saved: SavedSwin, place: Any, file: bytearray, backend: str | None, options: Mapping[str, Any], engines: Engines) -> Any:
    """The module that stands in the place of a float Swin."""
    try:
        float_model, model = opened_float(place, _blank(uncompiled(place))), opened(file)
        check_architecture(float_model, model)
        outputs, arguments = structure_from_json(saved.outputs), arguments_from_json(saved.arguments)
        _check_calls(outputs, arguments, model, uncompiled(place))
        if saved.state == PREPARED:
            if saved.learned not in LEARNED or not 0.0 <= saved.drop_path < 1.0:
                raise ModelError(f"learned `{saved.learned}` and drop_path {saved.drop_path} are not allowed")
            return prepared_of(place, float_model, model, outputs, arguments, saved.learned, saved.drop_path, saved.checkpointing)
        _check_options(saved.backend, saved.options)
        swin = SwinModule(place, model, outputs, arguments, backend or saved.backend, {**saved.options, **options}, engines)
    except (Error, RecursionError) as error:
        raise ModelError(f"{saved.file}, for {saved.place}: {error}") from error
    if hash_of_parameters(uncompiled(place)) != saved.original:
        swin._missing_float = saved.original
    swin.engine_for(next(place.parameters()).device)
    return swin


def _check_options(backend: str, options: Mapping[str, Any]) -> None:
    """Refuses options of an engine that no call has."""
    for name, value in options.items():
        if not isinstance(value, int if name in ENGINE_NUMBERS else str):
            raise ModelError(f"the option {name} is {value!r}; save the model again")
    check_options(load, backend, options)


def _blank(module: Any) -> dict[str, Any]:
    """The state dictionary of a module with zeros for parameters, whose values may be those of memory that nothing has written."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return {name: torch.zeros_like(value, device="cpu") if name in parameters else value for name, value in module.state_dict().items()}


def _check_calls(outputs: Any, arguments: Mapping[str, Any], model: Model, module: Any) -> None:
    """Refuses outputs that the engine does not have, and arguments that the module does not take."""
    known = [output["name"] for output in model.config.get("outputs", [])] or ["logits"]
    given = [leaf for _, leaf in tensors(outputs)]
    wrong: list[Any] = [leaf for leaf in given if leaf.output not in known or (leaf.output == "logits") != (leaf.layout == "logits")]
    maps = {leaf.output for leaf in given} - {"logits"}
    wrong += [leaf for _, leaf in leaves(outputs) if isinstance(leaf, Sides) and not maps.issuperset(leaf.outputs)]
    if wrong or not given:
        raise ModelError(f"the engine does not give the outputs that the folder names: {wrong or 'none'}; save the model again")
    parameters = CallParameters.of(module)
    for name in arguments:
        if name not in parameters.named and name != f"*{parameters.more}" and not parameters.any_keyword:
            raise ModelError(f"the model calls it with `{name}`, which its forward does not take; build the model with the code that saved it")


def _rest(folder: Path, index: Index) -> dict[str, Any]:
    """The saved tensors by all their names."""
    state = safetensors.read(str(folder / REST), read_file(folder, index, REST))
    for name, first in index.tied.items():
        if name in state or first not in state:
            raise ModelError(f"{folder / REST}: has no `{first}`, or has `{name}` twice; save the model again")
        state[name] = state[first]
    return state


def _put(model: Any, made: list[tuple[SavedSwin, Any, Any]], rest: dict[str, Any]) -> Any:
    """The model with the new modules in it, and with the tensors of ``rest``. If these do not fit, it is as before."""
    standing = [(place, swin) for saved, place, swin in made if saved.state != IN_PLACE]
    inside = [(saved, swin) for saved, _, swin in made if saved.state == IN_PLACE]
    for place, swin in standing:
        model = exchanged(model, place, swin)
    try:
        _fill(model, rest, [name for saved, _ in inside for name in saved.names])
    except BaseException:
        for place, swin in standing:
            model = exchanged(model, swin, place)
        raise
    for _, swin in inside:
        module = in_place(swin)
        if hasattr(type(module), "save_pretrained"):
            module.__dict__["save_pretrained"] = Unsaved()
    return model


def _fill(model: Any, rest: dict[str, Any], without: list[str]) -> None:
    """Writes tensors into a model, but for the modules at the paths ``without``.

    Raises:
        ModelError: if the names, the shapes or the types are not those of the model.
    """
    state = {plain(name): (name, value) for name, value in model.state_dict().items()}
    wanted = {name: value for name, value in state.items() if not any(is_in(name, place) for place in without)}
    _check_names(wanted.keys(), rest.keys(), kind_of(model))
    for name, (_, value) in wanted.items():
        found = rest[name]
        if found.shape != value.shape:
            raise ModelError(
                f"{REST}: `{name}` is {list(found.shape)}, and {list(value.shape)} in {kind_of(model)}; build the model as it was when it "
                "was saved"
            )
        if found.dtype != value.dtype:
            raise ModelError(
                f"{REST}: `{name}` is {found.dtype}, and {value.dtype} in {kind_of(model)}; convert the model before, for example by "
                f"model.to({found.dtype})"
            )
    model.load_state_dict({name: rest[key] for key, (name, _) in wanted.items()}, strict=False)


def _check_names(wanted: Collection[str], found: Collection[str], kind: str) -> None:
    """Refuses tensors that are not those of a model.

    Raises:
        ModelError: with the first name that one has and the other has not.
    """
    missing = [name for name in wanted if name not in found]
    more = [name for name in found if name not in wanted]
    if not missing and not more:
        return
    problems = []
    if missing:
        problems.append(f"has no `{missing[0]}`, which {kind} has")
    if more:
        problems.append(f"has `{more[0]}`, which {kind} has not")
    raise ModelError(
        f"{REST}: {' and '.join(problems)} ({len(missing)} and {len(more)} such tensors); build the model as it was when it was saved"
    )
