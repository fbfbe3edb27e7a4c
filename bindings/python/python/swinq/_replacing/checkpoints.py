"""Quantized checkpoints in the places of named modules of a model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._calls.matching import check_type, checked, recorded_on_noise
from .._calls.record import Record, record_calls
from .._common.errors import ArgumentError, Error, ModelError, placed
from .._engine.model import Model
from .._functions.open import open
from .._readers.layers import uncompiled
from .module import Engines, SwinModule
from .options import check_options
from .original import check_architecture, opened_float
from .replace import FoundSwin, described, in_place_of
from .report import Report
from .swins import exchanged, kind_of, none_in, swins_of

#: A checkpoint with less signal to noise in dB, against the module in whose place it comes, has probably other weights.
LEAST_SQNR = 6.0


def replace(
    model: Any,
    checkpoints: Mapping[str, str | os.PathLike[str] | Model],
    calls: Callable[[Any], object] | Iterable[Any] | None = None,
    backend: str = "auto",
    **options: Any,
) -> Report:
    """Replaces named Swins of a float model, in place, by quantized checkpoints, such as ``swinq calibrate`` writes. Nothing is calibrated.

    Args:
        model: any ``torch.nn.Module``, on any device.
        checkpoints: the file of a quantized checkpoint, or an open model, for the module path of each Swin to replace; ``""`` is the
            model itself. Other Swins stay.
        calls: one batch in a list, or a function that is called with the model, as ``calibrate`` of :func:`quantize`. It shows how the
            program calls its Swins; ``None`` calls each alone with an image of noise.
        backend: as for :func:`quantize`.
        options: options of :meth:`swinq.Model.engine`.

    Returns:
        The report of :func:`quantize`. Its signal to noise is that of the checkpoint against the module. A low one is also a warning,
        because the checkpoint then has other weights than the module.

    Raises:
        ArgumentError: for a path at which no Swin is, for a module that :func:`quantize` would leave, and for a checkpoint in float.
        NotFoundError: for a file that does not exist.
        ModelError: for a file that is no checkpoint, or one of another architecture. The model is then as before.
    """
    check_options(replace, backend, options)
    places = _places(model, checkpoints)
    swins = [_found(place, names, path, checkpoints[path]) for path, (place, names) in places.items()]
    if calls is not None:
        records = record_calls(model, calls, {swin.module: () for swin, _ in swins}, 1)
    report, made, engines = Report(model), [], Engines()
    for (swin, quantized), path in zip(swins, places, strict=True):
        try:
            swin.record = recorded_on_noise(uncompiled(swin.module), swin.model) if calls is None else records[swin.module]
            check_type(swin.record)
            swin.outputs = checked(swin.model, swin.record)
        except Error as error:
            raise ArgumentError(f"model: {placed(path)}, a {kind_of(swin.module)}, cannot be replaced: {error}") from error
        module = in_place_of(swin, quantized, backend, options, engines)
        module.engine_for(swin.record.device)
        made.append(module)
        report.replaced.append(described(module, swin))
    return _exchanged(report, made)


def _exchanged(report: Report, made: list[SwinModule]) -> Report:
    """The report with the modules in the places of their originals, after a warning of those with little signal."""
    for module, replaced in zip(made, report.replaced, strict=True):
        report.model = exchanged(report.model, module.original, module)
        if replaced.sqnr_db and min(replaced.sqnr_db.values()) < LEAST_SQNR:
            warnings.warn(
                f"model: {placed(replaced.names[0])}: the outputs of the checkpoint have only {min(replaced.sqnr_db.values()):.1f} dB of "
                "signal to noise against the module, so that it probably has other weights",
                stacklevel=3,
            )
    return report


def _places(model: Any, checkpoints: Mapping[str, Any]) -> dict[str, tuple[Any, list[str]]]:
    """For each path, the module and all its paths."""
    swins = swins_of(model)
    by_name = {name: module for module, names in swins.items() for name in names}
    if not isinstance(checkpoints, Mapping) or not checkpoints:
        raise ArgumentError('checkpoints: is no dictionary of files by module paths, such as {"backbone": "backbone.int8.safetensors"}')
    found: dict[str, tuple[Any, list[str]]] = {}
    for path in checkpoints:
        if path not in by_name:
            has = f"its Swins are {', '.join(map(placed, by_name))}" if by_name else none_in(model)
            raise ArgumentError(f"checkpoints: {kind_of(model)} has no Swin in float as {placed(path)}; {has}")
        module = by_name[path]
        if any(module is other for other, _ in found.values()):
            raise ArgumentError(f"checkpoints: {placed(path)} is the module of another path; give one of {', '.join(swins[module])}")
        found[path] = module, swins[module]
    return found


def _found(place: Any, names: list[str], path: str, checkpoint: Any) -> tuple[FoundSwin, Model]:
    """The Swin at a path and the model of its checkpoint, of the same architecture."""
    model = checkpoint if isinstance(checkpoint, Model) else open(os.fspath(checkpoint))
    file = "the model" if isinstance(checkpoint, Model) else os.fspath(checkpoint)
    if not model.is_quantized:
        raise ArgumentError(f"checkpoints: {file}, for {placed(path)}, is in float; quantize it by swinq calibrate or swinq.quantize")
    float_model = opened_float(place)
    try:
        check_architecture(float_model, model)
    except ModelError as error:
        raise ModelError(f"{file}, for {placed(path)}: {error}") from error
    return FoundSwin(place, names, float_model, Record(1), None), model
