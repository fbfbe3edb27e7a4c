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
with the trained parameters.

>>> print(swinq.torch.tune(detector, calibrate=loader, evaluate=box_ap, max_drop=0.002))

:func:`tune` searches the recipe that :func:`quantize` should have, by a metric of the program's own, and :func:`sensitivity` measures
what it gains if a part of the Swin stays in float.

>>> swinq.torch.save(detector, "int8")
>>> detector = swinq.torch.load(build_detector().eval(), "int8")      # in another process

:func:`save` writes a model with :class:`SwinModule` or :class:`PreparedSwin` in it as a folder, and :func:`load` puts them into a float
model of the same code. :func:`replace` puts a checkpoint of ``swinq calibrate`` in the place of a named module.

>>> print(swinq.torch.measure_gain(detector, loader, evaluate=box_ap))

:func:`measure_gain` compares the program in INT8 with its float original: time, noise of the outputs, and the metric.

This module needs PyTorch (``pip install torch``), which the rest of the package does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("swinq.torch needs PyTorch: pip install torch") from error

from . import pickled  # noqa: F401 (names its classes)
from ._calls.share import Share
from ._calls.timing import Times
from ._common.errors import ArgumentError
from ._common.progress import Progress, observed
from ._common.public import name_by
from ._readers.description import forget_method
from ._replacing.checkpoints import replace
from ._replacing.in_place import InPlace, check_float_is_there, unguard
from ._replacing.module import Engines, SwinModule
from ._replacing.options import check_options
from ._replacing.replace import Calibration, FoundSwin, in_place_of, quantized, replaced
from ._replacing.report import Left, Replaced, Report
from ._replacing.swins import exchanged
from ._saving.load import load
from ._saving.save import save
from ._search.gain import Gain
from ._search.measure_gain import measure_gain
from ._search.results import Candidate, Part, Sensitivity, Tuning
from ._search.tune import sensitivity, tune
from ._training.prepared import LEARNED, PreparedSwin, prepared_of, start_from

__all__ = [
    "Candidate",
    "Gain",
    "Left",
    "Part",
    "PreparedSwin",
    "Replaced",
    "Report",
    "Sensitivity",
    "Share",
    "SwinModule",
    "Times",
    "Tuning",
    "convert",
    "load",
    "measure_gain",
    "prepare",
    "quantize",
    "replace",
    "restore",
    "save",
    "scales",
    "sensitivity",
    "tune",
]


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
    share: bool = True,
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
            ``float32``, of any sizes. Of a stack of blocks, 256 MiB of tokens are kept at most, beside the first grid of each size.
        ptq: as for :func:`swinq.quantize`.
        batch_size: images per batch of the float forward.
        progress: as for :func:`swinq.quantize`. The phase ``record`` has the numbers of images that are recorded and of ``samples``.
        share: whether the Swin's part of the time of a call of ``model`` is measured before and after (``report.share``). It runs the
            first call of the calibration again, two to four times with the float Swins and with those in INT8: one that is not timed,
            one that is, and two more that begin within a second only.
        options: options of :meth:`swinq.Model.engine`, such as ``threads`` or ``max_pixels``.

    Returns:
        What was replaced and what was left. A module that is left although it looks like a Swin is also a warning.

    Raises:
        ArgumentError: if nothing was replaced, with the reasons; for images that are not finite; for an unknown option.
        NotFoundError, ModelError: for the file, or the name, of a recipe that does not exist, and for one that does not fit.
        CalibrationError, EngineError: if a calibration or an engine fails. The model is then as before. Heads of more than 32
            channels, which no GPU runs, are refused before the calibration. A recipe, and all other arguments, are refused before it, too.
    """
    check_options(quantize, backend, options)

    engines = Engines()
    with observed(progress) as function:
        calibration = Calibration.for_recipe(calibrate, (samples, batch_size), recipe, ptq, function)

        def engine(found: FoundSwin) -> Any:
            swin = in_place_of(found, quantized(found, recipe, ptq, batch_size, function), backend, options, engines)
            swin.engine_for(found.record.device)
            return swin, swin

        return replaced(model, calibration, engine, backend, share)


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
    if not (isinstance(drop_path, int | float) and 0.0 <= drop_path < 1.0):
        raise ArgumentError(f"drop_path: {drop_path!r} is not in [0, 1)")
    with observed(progress) as function:
        calibration = Calibration.for_recipe(calibrate, (samples, batch_size), recipe, ptq, function)

        def training(found: FoundSwin) -> Any:
            int8 = quantized(found, recipe, ptq, batch_size, function)
            arguments = found.record.arguments
            prepared = prepared_of(found.module, found.model, int8, found.outputs, arguments, learned, drop_path, checkpointing)
            if ptq != "basic":
                start_from(prepared, int8)
            return prepared, prepared.converted("cpu", {}, Engines())

        return replaced(model, calibration, training)


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
    check_options(convert, backend, options)
    swins = [module for module in model.modules() if isinstance(module, PreparedSwin)]
    if not swins:
        raise ArgumentError("model: has no prepared Swin; call swinq.torch.prepare first")
    engines = Engines()
    converted = [(swin, swin.converted(backend, options, engines)) for swin in swins]
    for swin, engine in converted:
        engine.train(swin.training)
        model = exchanged(model, swin, engine)
    return model


def scales(model: Any) -> list[Any]:
    """The parameters of the scales of a prepared model. They need a group of their own in the optimizer, without weight decay, and
    are relative to the calibrated scales: a learning rate of 1e-3 with Adam changes them by about 0.1 % per step."""
    swins = [module for module in model.modules() if isinstance(module, PreparedSwin)]
    return [parameter for swin in swins for parameter in swin.swinq.parameters()]


def restore(model: Any) -> Any:
    """Puts the original modules back, in place, those of trained modules with the trained parameters; a model of
    :mod:`swinq.transformers` that is a Swin itself runs its own code again. Returns the model, or the original if the model itself is
    one of the modules that :func:`quantize` and :func:`prepare` make. What a model of transformers saves then is a float folder.

    Raises:
        ArgumentError: for a module without its float parameters, such as one that :func:`load` has put there. The model is then as before.
    """
    check_float_is_there(model)
    for swin in [module for module in model.modules() if isinstance(module, SwinModule | PreparedSwin)]:
        swin.original.train(swin.training)
        model = exchanged(model, swin, swin.original)
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), InPlace):
            del module.forward, module._apply
            unguard(module)
        forget_method(module)
    return model


name_by(__name__, [globals()[name] for name in __all__])
