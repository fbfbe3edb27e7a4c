"""Sensitivity and tuning of a Swin inside a model of PyTorch, by a metric of the user's own."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .. import _native
from .._calls.record import device_of, evaluating
from .._common.border import Caller, EngineChoice, Goal, Kept, Parts
from .._common.errors import ArgumentError, amount, count
from .._common.progress import Progress, observed
from .._engine.images import PathLike
from .._engine.model import ENGINE_NUMBERS, Model
from .._functions.quantize import recipe_text
from .._replacing.module import Engines, backend_for
from .._replacing.options import check_options
from .._replacing.replace import Calibration, FoundSwin, collected_images, described, find_swins, in_place_of
from .._replacing.swins import exchanged, none_in, swins_of
from .metric import Evaluate, check_metric, check_repeated, finite, name_of
from .results import Sensitivity, Tuning, sensitivity_of, tuning_of

Calibrate = Callable[[Any], object] | Iterable[Any]
Recipe = str | os.PathLike[str] | Mapping[str, Any]


def tune(
    model: Any,
    calibrate: Calibrate,
    evaluate: Evaluate,
    *,
    max_drop: float,
    recipe: Recipe = "default",
    ptq: str | None = None,
    metric: str | None = None,
    module: str | None = None,
    min_speedup: float | None = None,
    budget: float | None = None,
    batch_size: int = 1,
    cache: PathLike | None = None,
    latencies: PathLike | None = None,
    samples: int = 64,
    backend: str = "auto",
    progress: bool | Progress | None = None,
    **options: Any,
) -> Tuning:
    """Searches the fastest recipe for the Swin in ``model`` with which a metric of your own drops by at most ``max_drop``, and puts the
    INT8 Swin in its place, as :func:`swinq.torch.quantize` does. A change must save more than the spread of the measured latency;
    between recipes that differ by less, the metric decides.

    ``evaluate`` is called with the float model, and with the model for each candidate that is tried, with an INT8 Swin in it. The
    noise of changes at the outputs of the Swin, on the images of the calibration, chooses what is tried; the metric alone decides what
    is kept. There is no margin: let ``evaluate`` use so many images that its value does not change by ``max_drop`` by chance, and
    always the same ones.

    Args:
        model: any ``torch.nn.Module``, on any device, with one Swin in float.
        calibrate: as for :func:`swinq.torch.quantize`.
        evaluate: a function of the model that returns a finite number, of which more is better: box AP, mean IoU. The model is in
            evaluation mode, without gradients. For the same model it must return the same number: it is called twice with the float
            model before the calibration, unless the cache exists, and a warning says how far the two numbers are apart.
        max_drop: the most that the metric may be below that of the float model, in its unit: 0.005 for half a point of an IoU in 0..1.
        recipe: the recipe from which the search starts, as for :func:`swinq.quantize`.
        ptq: as for :func:`swinq.quantize`, but for ``reconstruct``, which is refused.
        metric: the name of the metric in the cache and in results; by default that of the function. Values in the cache are taken if
            the metric has the same name, so name another metric, and the same on other images, otherwise.
        module: the name of the Swin in the model, such as ``backbone``; needed if there are several.
        min_speedup: the least speedup over the engine's float Swin.
        budget: minutes that the timing of launches, the search and its evaluations may take together; the calibration is not counted. The
            start recipe is always tried, and an evaluation that has begun ends.
        batch_size: images per inference whose latency counts. On a CPU they have the size that most recorded images have, on a GPU
            the network's own.
        cache: a file that keeps all measurements and values. A search that was interrupted continues from it, and
            :func:`swinq.torch.sensitivity` shares it. The file of another run (another model, recipe, metric, backend, or other
            images of the calibration) is replaced, with a warning.
        latencies: the table of latencies: read if it exists, and extended. By default it is beside the cache, as
            ``CACHE.latencies.json``. Without either it is not kept. A table of another machine,
            engine or batch size is refused before a batch is taken; ``auto`` means the device of the parameters there.
        samples: as for :func:`swinq.torch.quantize`.
        backend: the engine that runs the candidates, and whose latency counts: ``cpu``, ``cuda``, or ``auto`` for that of the device
            of the images.
        progress: as for :func:`swinq.torch.quantize`. How many candidates will be tried is not known: a ``trial`` has its number twice.
        options: options of :meth:`swinq.Model.engine`.

    Returns:
        The candidates with their values and latencies. ``kept`` says whether the chosen one, which is in the model, keeps the limit;
        if not, it is the closest, and a warning says so.

    Raises:
        ArgumentError: for a model with no Swin that can be replaced, or with several; for arguments outside their limits; if
            ``evaluate`` returns something that is no finite number, or two numbers for the float model that differ by more than
            ``max_drop``.
        The errors of :func:`swinq.torch.quantize`, and whatever ``evaluate`` raises. The model is then as before, and everything that
        was measured is in the cache.
    """
    if max_drop is None:
        raise ArgumentError("max_drop: is None; give the most that the metric may drop, in its unit")
    for name, value in (("max_drop", max_drop), ("min_speedup", min_speedup), ("budget", budget)):
        amount(name, value)
    count("batch_size", batch_size, 1)
    check_options(tune, backend, options)
    program = Program(model, evaluate, (metric, cache), backend, options)
    goal, text = Goal(max_drop, min_speedup, budget), recipe_text(recipe, ptq)
    if latencies is None and cache is not None:
        latencies = f"{os.fspath(cache)}.latencies.json"
    kept = Kept(program.cache_path, None if latencies is None else os.fspath(latencies))

    with observed(progress) as function:

        def check(float_model: Model) -> None:
            engine = program.engine(device_of(model))
            _native.check_tune(float_model._native, text, engine, batch_size, goal, kept)
            program.try_metric(function, max_drop)

        swin = program.record(Calibration(calibrate, samples, check, function), module)
        found = _native.tune(
            swin.model._native, collected_images(swin), text, program.engine(), batch_size, goal, kept, program.caller(function)
        )
    engine = in_place_of(swin, Model(found.model), backend, options, Engines())
    engine.engine_for(swin.record.device)
    tuned = tuning_of(json.loads(found.results), (found.warnings, found.ending), exchanged(model, swin.module, engine), described(engine, swin))
    if not tuned.kept:
        warnings.warn(f"no recipe that was tried keeps the limit; the closest is in the model: {tuned.best}", stacklevel=2)
    return tuned


def sensitivity(
    model: Any,
    calibrate: Calibrate,
    evaluate: Evaluate,
    *,
    recipe: Recipe = "default",
    ptq: str | None = None,
    parts: str = "layers",
    only: str = "**",
    metric: str | None = None,
    module: str | None = None,
    cache: PathLike | None = None,
    samples: int = 64,
    backend: str = "auto",
    progress: bool | Progress | None = None,
    **options: Any,
) -> Sensitivity:
    """Measures what a metric of your own gains if a part of the Swin in ``model`` stays in float while the rest is in INT8.

    ``evaluate`` is called twice with the float model, then with the whole recipe, and once for each part. ``progress`` gets the number of
    evaluations before the first. The model stays in float.

    Args:
        model, calibrate, evaluate, recipe, ptq, metric, module, samples, backend, options: as for :func:`tune`.
        parts: ``layers`` (linear layers, and the products ``attn.qk`` and ``attn.pv`` of attention), ``blocks`` (and the layers
            outside of them), or ``sites``.
        only: a pattern of the names of parts, as recipes have it for sites: ``layers.2.**``, ``**.mlp.fc2``, ``re:...``. The names are
            those of the results.
        cache: as for :func:`tune`. It holds the values for all parts and patterns.
        progress: as for :func:`tune`. The phase ``evaluate`` has the numbers of values that are known and of all.

    Returns:
        The parts, that which gains most first, also with the signal to noise at the outputs of the Swin.

    Raises:
        The errors of :func:`tune`; ArgumentError for parts that there are not.
    """
    check_options(sensitivity, backend, options)
    program, text = Program(model, evaluate, (metric, cache), backend, options), recipe_text(recipe, ptq)
    chosen, kept = Parts(parts, only), Kept(program.cache_path)

    with observed(progress) as function:

        def check(float_model: Model) -> None:
            _native.check_sensitivity(float_model._native, text, chosen, kept)
            program.try_metric(function)

        swin = program.record(Calibration(calibrate, samples, check, function), module)
        found = _native.sensitivity(
            swin.model._native, collected_images(swin), text, options.get("threads", 0), chosen, kept, program.caller(function)
        )
    return sensitivity_of(json.loads(found.results), found.warning)


class Program:
    """A model of the user's with one Swin, and the metric."""

    #: The Swin.
    swin: FoundSwin

    def __init__(
        self,
        model: Any,
        evaluate: Evaluate,
        kept: tuple[str | None, PathLike | None],
        backend: str,
        options: Mapping[str, Any],
    ) -> None:
        """``kept`` are the name of the metric and the cache."""
        metric, cache = kept
        check_metric(evaluate)
        name_of_metric = metric or name_of(evaluate)
        if cache is not None and name_of_metric is None:
            raise ArgumentError(f"metric: is missing; {evaluate!r} has no name by which the cache could know its values again")
        self.model, self.evaluate, self.options, self.backend = model, evaluate, options, backend
        self.metric, self.cache = name_of_metric or "metric", cache
        #: The metric of the float model, once it was asked for.
        self.float_value: float | None = None
        #: The options of engines that are numbers, and the other one.
        self.numbers = {name: value for name, value in options.items() if name != "residual"}
        self.residual: str = options.get("residual", "auto")

    @property
    def cache_path(self) -> str | None:
        """The path of the cache."""
        return None if self.cache is None else os.fspath(self.cache)

    def record(self, calibration: Calibration, module: str | None) -> FoundSwin:
        """Finds the Swin, and runs the calibration."""
        swins, left = find_swins(self.model, calibration, one(self.model, module), self.backend)
        if left:
            raise ArgumentError(f"model: {left[0]}")
        self.swin = swins[0]
        return self.swin

    def engine(self, device: Any = None) -> EngineChoice:
        """The engine whose latency counts, for images on ``device``: by default that of the recorded ones."""
        device = self.swin.record.device if device is None else device
        backend = backend_for(self.backend, device)
        numbers = {"device": device.index or 0} if backend == "cuda" else {}
        return EngineChoice(backend, ENGINE_NUMBERS | numbers | self.numbers, self.residual)

    def caller(self, progress: Any) -> Caller:
        """What the extension module calls, and what the values depend on."""
        engine = self.engine()
        context = "" if self.cache is None else " ".join((digest(self.model), *self.swin.names, engine.backend, engine.residual))
        return Caller(self.value, self.metric, context, lambda *what: found_in(self.cache, *what), progress)

    def try_metric(self, progress: Progress | None, max_drop: float | None = None) -> None:
        """Asks for the metric of the float model before the calibration, so that a metric that fails does so at once, and once more, so
        that one that is not repeatable shows. A cache may have it from an earlier run.

        Raises:
            ArgumentError: as :func:`check_repeated`.
        """
        if self.cache is not None and os.path.exists(self.cache):
            return
        report = progress or (lambda *_: None)
        report("float value", 0, 2)
        first = self.value(None)
        report("float value", 1, 2)
        check_repeated((first, self._evaluated(self.model)), max_drop)
        report("float value", 2, 2)

    def value(self, native: _native.Model | None) -> float:
        """The metric of the program with a candidate in the place of its Swin, or as it is."""
        if native is None:
            if self.float_value is None:
                self.float_value = self._evaluated(self.model)
            return self.float_value
        swin = in_place_of(self.swin, Model(native), self.backend, self.options, Engines())
        model = exchanged(self.model, self.swin.module, swin)
        try:
            return self._evaluated(model)
        finally:
            exchanged(model, swin, self.swin.module)

    def _evaluated(self, model: Any) -> float:
        """The metric of a model."""
        with torch.no_grad(), evaluating(model):
            return finite(self.evaluate(model))


def one(model: Any, module: str | None) -> dict[Any, list[str]]:
    """The Swin in a model, or the one of a name, with the names of its places."""
    places = swins_of(model)
    if not places:
        raise ArgumentError(f"model: has no Swin in float. {none_in(model)}")
    if module is not None:
        chosen = {swin: names for swin, names in places.items() if module in names}
        if not chosen:
            raise ArgumentError(f"module: `{module}` is no Swin of the model{named(places)}")
        return chosen
    if len(places) > 1:
        raise ArgumentError(f"model: has {len(places)} Swins; `module` chooses one{named(places)}")
    return places


def named(places: Mapping[Any, list[str]]) -> str:
    """The names of Swins, as the end of a message."""
    return f": {', '.join(repr(names[0]) for names in places.values())}"


def digest(model: Any) -> str:
    """A hash of the parameters and buffers of a model."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def found_in(cache: PathLike | None, kept: int, damaged: int, replaced: bool) -> None:
    """Warns about what a cache held."""
    if replaced:
        problem = "was that of another run (another model, recipe, metric, backend, or other images), and is replaced"
        warnings.warn(f"cache: {cache} {problem}", stacklevel=4)
    if damaged:
        warnings.warn(f"cache: {cache} has {damaged} damaged line{'' if damaged == 1 else 's'}, whose measurements are made again", stacklevel=4)
