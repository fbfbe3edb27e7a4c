"""Calibration of the Swins in a model of PyTorch, and their replacement."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import _native
from .._common import processes
from .._calls.matching import check_type, checked, of_first_image, relative_error
from .._calls.outputs import made, tensors
from .._calls.record import Record, record_calls
from .._calls.share import ShareOf
from .._calls.timing import FirstCall
from .._common.border import ReadingImages
from .._common.contract import takes_tokens
from .._common.errors import ArgumentError, Error, count
from .._common.progress import Progress
from .._engine.model import Model
from .._functions.quantize import check_recipe, recipe_text
from .._readers.layers import library_of, uncompiled
from .._readers.stacks import foreign_part
from .module import Engines, SwinModule
from .original import opened_float
from .report import Left, Replaced, Report
from .swins import exchanged, is_replaced, kind_of, none_in, stages_of, swins_of


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
    swins, left = find_swins(model, calibration, swins_of(model), backend, first)
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


def find_swins(
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
    for module, float_model in list(opened.items()):
        if backend == "cuda" or backend == "auto" and any(parameter.is_cuda for parameter in module.parameters()):
            try:
                float_model._native.check_cuda()
            except Error as error:
                # A program may have a Swin beside stacks that no GPU runs.
                if not takes_tokens(float_model.config):
                    raise
                left.append(Left(places[module][0], kind_of(module), str(error)))
                del opened[module]
        calibration.check(float_model)
    if opened and backend == "cuda":
        _native.check_gpu()
    if opened:
        inner = {module: list(stages_of(module)) for module in opened}
        records = record_calls(model, calibration.calibrate, inner, calibration.samples, first, calibration.progress)
        processes.start_threads("quantize")
        opened, places = _with_stages(opened, places, records, left)
        for module in opened.keys() - inner.keys():
            calibration.check(opened[module])
    for module, float_model in opened.items():
        try:
            check_type(records[module])
            outputs = checked(float_model, records[module])
        except Error as error:
            left.append(Left(places[module][0], kind_of(module), str(error)))
            continue
        swins.append(FoundSwin(module, places[module], float_model, records[module], outputs))
    return swins, left


def _with_stages(
    opened: Mapping[Any, Model], places: Mapping[Any, list[str]], records: Mapping[Any, Record], left: list[Left]
) -> tuple[dict[Any, Model], dict[Any, list[str]]]:
    """``opened`` and ``places`` with the stages that were called in the place of each Swin that was not. Stages that cannot be read go to
    ``left``."""
    found, all_places = dict(opened), dict(places)
    for swin in opened:
        stages = {stage: name for stage, name in stages_of(swin).items() if records[stage].is_called}
        if records[swin].is_called or not stages:
            continue
        del found[swin]
        for stage, inside in stages.items():
            all_places[stage] = [f"{name}.{inside}" if name else inside for name in places[swin]]
            try:
                found[stage] = opened_float(stage)
            except Error as error:
                left.append(Left(all_places[stage][0], kind_of(stage), str(error)))
    return found, all_places


def quantized(swin: FoundSwin, recipe: Any, ptq: str | None, batch_size: int, progress: Progress | None) -> Model:
    """The model of a Swin, calibrated on the recorded images."""
    if recipe is None:
        return swin.model
    images, text = collected_images(swin), recipe_text(recipe, ptq)
    return Model(_native.quantize(swin.model._native, images, text, ReadingImages(batch_size), progress).model)


def collected_images(swin: FoundSwin) -> _native.Images:
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


def in_place_of(swin: FoundSwin, model: Model, backend: str, options: Mapping[str, Any], engines: Engines) -> SwinModule:
    """The module that runs ``model`` in the place of a Swin. ``engines`` are those of the program."""
    return SwinModule(swin.module, model, swin.outputs, swin.record.arguments, backend, options, engines)


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
    counted = f"({len(found)} modules with windowed attention)"
    block = found[0].rpartition(".")[0]
    part = foreign_part(report.model.get_submodule(block)) if block else None
    if part is not None and hasattr(report.model.get_submodule(block), "norm1"):
        return [Left(found[0], kind, f"`{block}.{part}` is no part of a block of a Swin {counted}")]
    return [Left(found[0], kind, f"its module has not the structure of a Swin that swinq knows {counted}")]
