"""INT8 Swins inside models of PyTorch.

>>> import swinq.torch
>>> report = swinq.torch.quantize(detector, calibrate=loader)
>>> print(report)
>>> detector(images)

:func:`quantize` finds every Swin in a model, classifier or backbone, runs the calibration through the float model, and puts a
:class:`SwinModule` with the same signature and outputs in the place of each. :func:`restore` undoes it.

>>> swinq.torch.prepare(detector, calibrate=loader)
>>> train(detector)
>>> swinq.torch.convert(detector)

:func:`prepare` puts a :class:`PreparedSwin` there, which a loop of PyTorch trains for INT8, and :func:`convert` a :class:`SwinModule`
with the trained parameters. This module needs PyTorch (``pip install torch``), which the rest of the package does not.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("swinq.torch needs PyTorch: pip install torch") from error

from . import _native, _process
from ._errors import ArgumentError, Error, PreprocessingError, count
from ._layers import library_of
from ._model import Model
from ._modules import Reading, describe, load, reader_of
from ._progress import Progress, close, observer
from ._torch_module import InPlace, SwinModule
from ._torch_outputs import made, matched, relative_error, tensors
from ._torch_prepared import PreparedSwin, Template, start_from
from ._torch_record import Record, run
from ._torch_report import Left, Replaced, Report

__all__ = ["Left", "PreparedSwin", "Replaced", "Report", "SwinModule", "convert", "prepare", "quantize", "restore", "scales"]

#: The values of ``learned`` of :func:`prepare`: whether the scales of activations and of weights are learned.
LEARNED = {"none": (False, False), "activations": (True, False), "weights": (False, True), "all": (True, True)}

#: A preprocessing for classifiers of torchvision whose own is not known.
NORMALISED = {"family": "torchvision", "size": 224, "resize": "direct", "filter": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3}


def quantize(
    model: Any,
    calibrate: Callable[[Any], object] | Iterable[Any],
    recipe: str | os.PathLike[str] | Mapping[str, Any] | None = "default",
    backend: str = "auto",
    *,
    samples: int = 64,
    ptq: str | None = None,
    batch_size: int = 8,
    progress: bool | Progress | None = None,
    **options: Any,
) -> Report:
    """Replaces every Swin in ``model``, in place, by one that swinq's engine runs.

    Args:
        model: any ``torch.nn.Module``, on any device.
        calibrate: a function that is called with the model, and calls it as in use; or an iterable of batches, with each of which
            the model is called: a tensor, a tuple or list whose first element is one, or a dictionary of keyword arguments. They
            are moved to the device of the model. The model is in evaluation mode, without gradients.
        recipe: as for :func:`swinq.quantize`. ``None`` quantizes nothing: the engine runs the Swins in float, for comparisons.
        backend: ``cpu``, ``cuda``, or ``auto`` for that of the device of the images at each call.
        samples: the most images on which a Swin is calibrated, the first that it is called with. They are kept in host memory,
            ``float32``, of any sizes.
        ptq: as for :func:`swinq.quantize`.
        batch_size: images per batch of the float forward.
        progress: as for :func:`swinq.quantize`.
        options: options of :meth:`swinq.Model.engine`, such as ``threads`` or ``max_pixels``.

    Returns:
        What was replaced and what was left. A module that is left although it looks like a Swin is also a warning.

    Raises:
        ArgumentError: if nothing was replaced, with the reasons; for images that are not finite.
        NotFoundError, ModelError: for a recipe that does not exist or does not fit.
        CalibrationError, EngineError: if a calibration or an engine fails. The model is then as before. Heads that are not 32 wide,
            which no GPU runs, are refused before the calibration.
    """
    if backend not in ("auto", "cpu", "cuda"):
        raise ArgumentError(f"backend: `{backend}` is none of auto, cpu, cuda")

    def engine(module: Any, float_model: Model, record: Record, outputs: Any) -> Any:
        found = _quantized(float_model, record, recipe, ptq, batch_size, progress)
        swin = SwinModule(module, found, outputs, record.arguments, backend, options)
        swin.engine_for(record.device)
        return swin, swin

    return _replaced(model, calibrate, (samples, batch_size), engine, backend)


def prepare(
    model: Any,
    calibrate: Callable[[Any], object] | Iterable[Any],
    recipe: str | os.PathLike[str] | Mapping[str, Any] = "default",
    *,
    learned: str = "none",
    ptq: str | None = "basic",
    drop_path: float = 0.0,
    checkpointing: bool = False,
    samples: int = 64,
    batch_size: int = 8,
    progress: bool | Progress | None = None,
) -> Report:
    """Replaces every Swin in ``model``, in place, by one with fake quantization, for quantization-aware training.

    A :class:`PreparedSwin` computes what the engine will, and has gradients. It has the parameters of the original, the same
    tensors under the same names, and beside them the scales of its sites (``swinq.*``; :func:`scales`). Train the model in a loop
    of your own, then call :func:`convert`.

    Args:
        model: any ``torch.nn.Module``, on any device. Optimizers that have its parameters keep them.
        calibrate: as for :func:`quantize`.
        recipe: as for :func:`quantize`.
        learned: the scales that are trained: ``none``, ``activations``, ``weights`` or ``all``. Scales of weights that are not
            learned follow the weights where the recipe has the calibrator ``max``, and stay elsewhere.
        ptq: as for :func:`swinq.quantize`. Any other than ``basic`` refines the weights, and the training starts from those: the
            parameters of the module are written.
        drop_path: the rate of stochastic depth of the last block; it grows from 0 with the blocks. That of the original, and its
            dropout, do not apply.
        checkpointing: whether blocks are computed again in the backward pass, which saves most of the memory.
        samples, batch_size, progress: as for :func:`quantize`.

    Returns:
        What was replaced and what was left.

    Raises:
        The errors of :func:`quantize`.
    """
    if learned not in LEARNED:
        raise ArgumentError(f"learned: `{learned}` is none of {', '.join(LEARNED)}")
    if not 0.0 <= drop_path < 1.0:
        raise ArgumentError(f"drop_path: {drop_path} is not in [0, 1)")

    def training(module: Any, float_model: Model, record: Record, outputs: Any) -> Any:
        found = _quantized(float_model, record, recipe, ptq, batch_size, progress)
        names = describe(module, _stand_in(module)).renamed
        stored = _native.stored_parameters(float_model._native)
        swin = PreparedSwin(
            module, Template(found), names, stored, outputs, record.arguments, LEARNED[learned], drop_path, checkpointing
        )
        if ptq != "basic":
            start_from(swin, found)
        return swin, swin.converted("cpu")

    return _replaced(model, calibrate, (samples, batch_size), training)


def convert(model: Any, backend: str = "auto", **options: Any) -> Any:
    """Replaces every :class:`PreparedSwin`, in place, by the :class:`SwinModule` that runs its current parameters on the engine.
    :attr:`SwinModule.model` saves the checkpoint.

    Args:
        model: a model that :func:`prepare` was called with.
        backend: as for :func:`quantize`.
        options: options of :meth:`swinq.Model.engine`.

    Returns:
        The model, or the module if the model itself is a :class:`PreparedSwin`.

    Raises:
        ArgumentError: for a model without prepared modules.
        ModelError: for parameters that are not finite. The model is then as before.
    """
    swins = [module for module in model.modules() if isinstance(module, PreparedSwin)]
    if not swins:
        raise ArgumentError("model: has no prepared Swin; call swinq.torch.prepare first")
    converted = [(swin, swin.converted(backend, options)) for swin in swins]
    for swin, engine in converted:
        engine.train(swin.training)
        model = _exchanged(model, swin, engine)
    return model


def scales(model: Any) -> list[Any]:
    """The parameters of the scales of a prepared model. They need a group of their own in the optimizer, without weight decay, and
    are relative to the calibrated scales: a learning rate of 1e-3 with Adam changes them by about 0.1 % per step."""
    swins = [module for module in model.modules() if isinstance(module, PreparedSwin)]
    return [parameter for swin in swins for parameter in swin.swinq.parameters()]


def restore(model: Any) -> Any:
    """Puts the original modules back, in place, those of trained modules with the trained parameters; a model of
    :mod:`swinq.transformers` that is a Swin itself runs its own code again. Returns the model, or the original if the model itself is
    one of the modules that :func:`quantize` and :func:`prepare` make."""
    for swin in [module for module in model.modules() if isinstance(module, SwinModule | PreparedSwin)]:
        swin.original.train(swin.training)
        model = _exchanged(model, swin, swin.original)
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), InPlace):
            del module.forward
    return model


def _replaced(
    model: Any, calibrate: Any, counts: tuple[int, int], make: Callable[..., Any], backend: str = "cpu"
) -> Report:
    """Replaces the Swins of a model by what ``make`` gives, with the engine's module that describes each. ``counts`` are those of
    images and of images in a batch; ``backend`` must run the Swins."""
    samples, batch_size = counts
    count("samples", samples, 1)
    count("batch_size", batch_size, 1)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model: a {type(model).__name__} is no torch.nn.Module")
    report, opened, places = Report(model), {}, _swins(model)
    for module, names in places.items():
        try:
            _check_hooks(module)
            opened[module] = _opened(module)
        except Error as error:
            report.left.append(Left(names[0], type(module).__name__, str(error)))
    for module, float_model in opened.items():
        if backend == "cuda" or backend == "auto" and any(parameter.is_cuda for parameter in module.parameters()):
            float_model._native.check_cuda()
    if opened:
        records = run(model, calibrate, opened, samples)
        _process.start_threads("quantize")
    swins = []
    for module, float_model in opened.items():
        names = places[module]
        try:
            outputs = _checked(float_model, records[module])
        except Error as error:
            report.left.append(Left(names[0], type(module).__name__, str(error)))
            continue
        swin, engine = make(module, float_model, records[module], outputs)
        swins.append(swin)
        report.replaced.append(_described(engine, names, records[module]))
    for swin in swins:
        report.model = _exchanged(report.model, swin.original, swin)
    for left in report.left if report.replaced else ():
        warnings.warn(f"model: {left}", stacklevel=3)
    report.left.extend(_others(report))
    if not report.replaced:
        raise ArgumentError(f"model: no Swin of {type(model).__name__} can be replaced. {report}".rstrip())
    return report


def _swins(model: Any) -> dict[Any, list[str]]:
    """The outermost Swins, with the names of the places of each."""
    found: dict[Any, list[str]] = {}

    def visit(module: Any, name: str) -> None:
        if isinstance(module, SwinModule | PreparedSwin):
            return
        if reader_of(module) is not None:
            found.setdefault(module, []).append(name)
            return
        for part, child in module._modules.items():
            if child is not None:
                visit(child, f"{name}.{part}" if name else part)

    visit(model, "")
    return found


def _check_hooks(module: Any) -> None:
    """Refuses a module in which hooks observe or change what is computed, but for those of transformers, which collect outputs."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    for name, part in module.named_modules():
        hooks = [hook for kind in kinds for hook in getattr(part, kind).values()]
        if any(not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks):
            place = f"`{name}`" if name else "it"
            raise ArgumentError(f"{place} has hooks, which an engine does not call; remove them")


def _opened(module: Any) -> Model:
    """The float model of a module. Its images are normalised, so that a preprocessing that is not known is not needed."""
    try:
        return _read(module, None)
    except PreprocessingError:
        return _read(module, _stand_in(module))


def _stand_in(module: Any) -> Any:
    """A preprocessing for a module whose own is not known."""
    return "hf" if library_of(module) == "transformers" else NORMALISED


def _read(module: Any, preprocessing: Any) -> Model:
    """The model of a module. Remarks on what its state dictionary has beside it are of no interest, because its outputs are
    checked."""
    family = preprocessing if isinstance(preprocessing, str) else None
    reading: Reading = (None, [], None, None, None, family, None, None, None)
    return Model(load(module, preprocessing, reading))


def _checked(model: Model, record: Record) -> Any:
    """The structure of the outputs of a module, which are those of the float engine on the first image.

    Raises:
        ArgumentError: for a module that was not called, or that computes something else.
    """
    if record.problem is not None:
        raise ArgumentError(record.problem)
    if not record.batches:
        problem = "the calibration did not call it; if the model calls another method of it, such as forward_features"
        raise ArgumentError(f"{problem}, it cannot be replaced")
    return matched(record.outputs, _first(model, record), record.tolerance)


def _first(model: Model, record: Record) -> dict[str, Any]:
    """The outputs of a model on the first image of a record, on the CPU."""
    found: dict[str, Any] = model.engine(backend="cpu").run(record.batches[0][:1], layout="NCHW")
    return found


def _quantized(
    model: Model, record: Record, recipe: Any, ptq: str | None, batch_size: int, progress: bool | Progress | None
) -> Model:
    """The model, calibrated on the recorded images."""
    if recipe is None:
        return model
    collector = _native.Collector(model._native)
    for batch in record.batches:
        collector.add_values(batch.numpy(), *batch.shape[2:])
    mapping, function = isinstance(recipe, Mapping), observer(progress)
    text = json.dumps(recipe) if mapping else os.fspath(recipe)
    try:
        found, _ = _native.quantize(model._native, collector.finish(), text, mapping, ptq, batch_size, 0, 0, function)
    finally:
        close(function)
    return Model(found)


def _described(swin: SwinModule, names: list[str], record: Record) -> Replaced:
    original, sites = swin.original, swin.model.sites
    found = _first(swin.model, record)
    noise = {}
    for (place, expected), (_, leaf) in zip(tensors(record.outputs), tensors(swin._outputs), strict=True):
        error = relative_error(made(leaf, found, torch.float32, None), expected.value)
        noise[place] = -20 * torch.log10(torch.tensor(error).clamp_min(1e-30)).item()
    return Replaced(
        names=tuple(names),
        library=library_of(original) or type(original).__module__.partition(".")[0],
        kind=type(original).__name__,
        parameters=sum(parameter.numel() for parameter in original.parameters()),
        int8_sites=sum(site.quantized for site in sites),
        float_sites=sum(not site.quantized for site in sites),
        images=record.images,
        sqnr_db=noise,
    )


def _exchanged(model: Any, old: Any, new: Any) -> Any:
    """The model with ``new`` at every place of ``old``."""
    if model is old:
        return new
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
    return model


def _others(report: Report) -> list[Left]:
    """Modules with the parameters of windowed attention that are in no Swin that was found."""
    replaced = [module for module in report.model.modules() if isinstance(module, SwinModule | PreparedSwin)]
    known = {part for module in [*_swins(report.model), *replaced] for part in module.modules()}
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
