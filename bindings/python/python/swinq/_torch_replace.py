"""Swins in models of PyTorch: where they are, what they are called with, and others in their places."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from . import _native, _process
from ._errors import ArgumentError, Error, PreprocessingError, count
from ._layers import library_of, uncompiled
from ._model import Model
from ._modules import Reading, describe, load, reader_of
from ._progress import Progress
from ._quantize import check_recipe, recipe_text
from ._torch_module import InPlace, SwinModule, guard
from ._torch_outputs import made, relative_error, tensors
from ._torch_prepared import PreparedSwin, Template
from ._torch_record import Record, run
from ._torch_report import Left, Replaced, Report
from ._torch_results import check_type, checked, of_first_image
from ._torch_share import ShareOf
from ._torch_timing import FirstCall

#: A preprocessing for classifiers of torchvision whose own is not known.
NORMALISED = {"family": "torchvision", "size": 224, "resize": "direct", "filter": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3}


@dataclass
class FoundSwin:
    """A Swin that can be replaced."""

    #: What stands in the model: the Swin, or what ``torch.compile`` made of it.
    module: Any
    #: The names of its places in the model.
    names: list[str]
    #: The float model.
    model: Model
    record: Record
    #: The structure of its outputs.
    outputs: Any


@dataclass(frozen=True)
class Calibration:
    """The calibration of the user's."""

    #: The function or the iterable.
    calibrate: Any
    #: The most images that are recorded.
    samples: int
    #: Refuses what is asked for a float model, before the calibration runs.
    check: Callable[[Model], object]
    #: Is called with the progress, if it is there.
    progress: Progress | None

    @classmethod
    def for_recipe(
        cls, calibrate: Any, counts: tuple[int, int], recipe: Any, ptq: str | None, progress: Progress | None
    ) -> Calibration:
        """That for a recipe, which is refused if it cannot be read. ``counts`` are those of images and of images in a batch."""
        samples, batch_size = counts
        count("batch_size", batch_size, 1)

        def check(model: Model | None) -> None:
            if recipe is not None:
                check_recipe(model, recipe, ptq)

        check(None)
        return cls(calibrate, samples, check, progress)


def replaced(
    model: Any, calibration: Calibration, make: Callable[[FoundSwin], Any], backend: str = "cpu", share: bool = False
) -> Report:
    """Replaces the Swins of a model by what ``make`` gives, with the engine's module that describes each. ``backend`` must run the
    Swins; with ``share`` their part of the program's time is measured."""
    first = FirstCall() if share else None
    swins, left = found(model, calibration, swins_of(model), backend, first)
    report, made = Report(model, left=left), []
    share_of = ShareOf(first, model, {swin.module: swin.record.device for swin in swins}) if first and swins else None
    for swin in swins:
        module, engine = make(swin)
        made.append(module)
        report.replaced.append(described(engine, swin))
    for module in made:
        report.model = exchanged(report.model, module.original, module)
    if share_of is not None:
        try:
            report.share, report.no_share = share_of.after(report.model, made)
        except BaseException:
            for module in made:
                exchanged(report.model, module, module.original)
            raise
    for each in report.left if report.replaced else ():
        warnings.warn(f"model: {each}", stacklevel=3)
    report.left.extend(_others(report))
    if not report.replaced:
        raise ArgumentError(f"model: no Swin of {kind_of(model)} can be replaced. {report if report.left else none_in(model)}")
    return report


def found(
    model: Any, calibration: Calibration, places: Mapping[Any, list[str]], backend: str, first: FirstCall | None = None
) -> tuple[list[FoundSwin], list[Left]]:
    """The Swins among ``places`` that can be replaced, with what the calibration called them with, and the others. ``backend`` must run
    the former. ``first`` gets the first call of the model with a Swin."""
    count("samples", calibration.samples, 1)
    opened, left, swins = {}, [], []
    for module, names in places.items():
        try:
            opened[module] = opened_float(module)
        except Error as error:
            left.append(Left(names[0], kind_of(module), str(error)))
    for module, float_model in opened.items():
        if backend == "cuda" or backend == "auto" and any(parameter.is_cuda for parameter in module.parameters()):
            float_model._native.check_cuda()
        calibration.check(float_model)
    if opened:
        records = run(model, calibration.calibrate, opened, calibration.samples, first, calibration.progress)
        _process.start_threads("quantize")
    for module, float_model in opened.items():
        try:
            check_type(records[module])
            outputs = checked(float_model, records[module])
        except Error as error:
            left.append(Left(places[module][0], kind_of(module), str(error)))
            continue
        swins.append(FoundSwin(module, places[module], float_model, records[module], outputs))
    return swins, left


def swins_of(model: Any) -> dict[Any, list[str]]:
    """The outermost Swins of a model, with the names of the places of each. A Swin that ``torch.compile`` wrapped is the wrapper,
    whose compiled code stays bound to what it wraps."""
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model: a {type(model).__name__} is no torch.nn.Module")
    found: dict[Any, list[str]] = {}

    def visit(module: Any, name: str) -> None:
        if is_replaced(module):
            return
        inner = uncompiled(module)
        if reader_of(inner) is not None:
            found.setdefault(module, []).append(name)
            return
        for part, child in inner._modules.items():
            if child is not None:
                visit(child, f"{name}.{part}" if name else part)

    visit(model, "")
    return found


def is_replaced(module: Any) -> bool:
    """Whether a module stands in the place of a Swin, or is one whose ``forward`` is the engine's."""
    return isinstance(module, SwinModule | PreparedSwin) or isinstance(module.__dict__.get("forward"), InPlace)


def none_in(model: Any) -> str:
    """Why a model has no Swin in float."""
    found = {name or "the model itself": module for name, module in model.named_modules() if is_replaced(module)}
    if any(isinstance(module, PreparedSwin) for module in found.values()):
        state = "are prepared for training already; swinq.torch.convert(model) runs them in INT8, swinq.torch.restore(model) undoes it"
    else:
        state = "run on the engine already; swinq.torch.restore(model) first"
    if found:
        return f"Its Swins ({', '.join(found)}) {state}"
    return "It contains no Swin of timm, torchvision, transformers, Microsoft, OpenMMLab or detectron2"


def kind_of(module: Any) -> str:
    """The name of the class of a module, or of that which ``torch.compile`` wrapped."""
    return type(uncompiled(module)).__name__


def opened_float(place: Any, state: Mapping[str, Any] | None = None) -> Model:
    """The float model of a Swin; ``state`` stands for its state dictionary. Its images are normalised, so that a preprocessing that is
    not known is not needed."""
    module = uncompiled(place)
    try:
        return _read(module, None, state)
    except PreprocessingError:
        return _read(module, stand_in(module), state)


def stand_in(module: Any) -> Any:
    """A preprocessing for a module whose own is not known."""
    return "hf" if library_of(module) == "transformers" else NORMALISED


def _read(module: Any, preprocessing: Any, state: Mapping[str, Any] | None) -> Model:
    """The model of a module. Remarks on what its state dictionary has beside it are of no interest, because its outputs are
    checked."""
    family = preprocessing if isinstance(preprocessing, str) else None
    reading: Reading = (None, [], None, None, None, family, None, None, None, None, None)
    return Model(load(module, preprocessing, reading, state))


def quantized(swin: FoundSwin, recipe: Any, ptq: str | None, batch_size: int, progress: Progress | None) -> Model:
    """The model of a Swin, calibrated on the recorded images."""
    if recipe is None:
        return swin.model
    found, _ = _native.quantize(swin.model._native, images_of(swin), *recipe_text(recipe), ptq, batch_size, 0, 0, progress)
    return Model(found)


def images_of(swin: FoundSwin) -> _native.Images:
    """The recorded images."""
    collector = _native.Collector(swin.model._native)
    for batch in swin.record.batches:
        collector.add_values(batch.numpy(), *batch.shape[2:])
    return collector.finish()


def described(engine: SwinModule, swin: FoundSwin) -> Replaced:
    """What is reported about a Swin in whose place is ``engine``, or what trains for it."""
    original, sites, record = uncompiled(swin.module), engine.model.sites, swin.record
    found = of_first_image(engine.model, record)
    noise = {}
    for (place, expected), (_, leaf) in zip(tensors(record.outputs), tensors(engine._outputs), strict=True):
        error = relative_error(made(leaf, found, torch.float32, None), expected.value)
        noise[place] = -20 * torch.log10(torch.tensor(error).clamp_min(1e-30)).item()
    return Replaced(
        names=tuple(swin.names),
        library=library_of(original) or type(original).__module__.partition(".")[0],
        kind=type(original).__name__,
        parameters=sum(parameter.numel() for parameter in original.parameters()),
        int8_sites=sum(site.quantized for site in sites),
        float_sites=sum(not site.quantized for site in sites),
        images=record.images,
        sqnr_db=noise,
    )


def in_place_of(swin: FoundSwin, model: Model, backend: str, options: Mapping[str, Any]) -> SwinModule:
    """The module that runs ``model`` in the place of a Swin."""
    return SwinModule(swin.module, model, swin.outputs, swin.record.arguments, backend, options)


def prepared_of(
    module: Any,
    float_model: Model,
    calibrated: Model,
    outputs: Any,
    arguments: Mapping[str, Any],
    learned: str,
    drop_path: float,
    checkpointing: bool,
) -> PreparedSwin:
    """The module that trains for ``calibrated`` in the place of the Swin ``module``, whose model is ``float_model``."""
    swin = uncompiled(module)
    names, stored = describe(swin, stand_in(swin)).renamed, _native.stored_parameters(float_model._native)
    return PreparedSwin(module, Template(calibrated), names, stored, outputs, arguments, learned, drop_path, checkpointing)


def exchanged(model: Any, old: Any, new: Any) -> Any:
    """The model with ``new`` at every place of ``old``. What ``torch.compile`` made of a module in the place of a Swin goes with it."""

    def is_place(module: Any) -> bool:
        return module is old or (isinstance(old, SwinModule | PreparedSwin) and uncompiled(module) is old)

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


def _others(report: Report) -> list[Left]:
    """Modules with the parameters of windowed attention that are in no Swin that was found."""
    replaced = [module for module in report.model.modules() if is_replaced(module)]
    known = {part for module in [*swins_of(report.model), *replaced] for part in module.modules()}
    marks = ("relative_position_bias_table", "cpb_mlp", "continuous_position_bias_mlp")
    found = []
    for name, module in report.model.named_modules():
        if module not in known and any(hasattr(module, mark) for mark in marks):
            found.append(name)
    if not found:
        return []
    kind = type(report.model.get_submodule(found[0])).__name__
    reason = f"its module has not the structure of a Swin that swinq knows ({len(found)} modules with windowed attention)"
    return [Left(found[0], kind, reason)]
