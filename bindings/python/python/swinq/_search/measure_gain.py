"""Float against INT8 for a whole program, on the same batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch

from .. import _native
from .._calls.record import BATCHES, NO_BATCH, arguments_of, device_of, evaluating, is_iterable, running
from .._calls.timing import Call, clock_of, devices_of, times_of
from .._common.errors import ArgumentError, count
from .._readers.layers import uncompiled
from .._replacing.in_place import InPlace
from .._replacing.module import SwinModule
from .._replacing.swins import kind_of, none_in, swins_of
from .gain import Gain, Noise
from .metric import Evaluate, check_metric, finite, name_of


def measure_gain(
    model: Any,
    loader: Iterable[Any],
    evaluate: Evaluate | None = None,
    *,
    batches: int = 8,
    metric: str | None = None,
) -> Gain:
    """Compares a program whose Swins run in INT8 with the same program whose Swins are the float originals: the time of its calls and
    of its Swins in them, the noise of its outputs, and a metric of your own. The model is afterwards as it was.

    Both run each batch twice, in turn: the first call gives the outputs that are compared, the second one is timed. The program runs in
    evaluation mode, without gradients and without ``torch.compile``.

    Args:
        model: a model that :func:`quantize`, :func:`tune` or :func:`convert` was called with, or the module that it returned.
        loader: an iterable of batches, as ``calibrate`` of :func:`quantize`, but no function. Times are medians of calls, so give
            batches of one number and size of images.
        evaluate: a function of the model that returns a finite number, such as box AP or mean IoU. It is called twice.
        batches: the most batches that are taken.
        metric: the name of the metric in the result; by default that of the function.

    Returns:
        The comparison. ``str`` gives a table, and :meth:`Gain.save` writes JSON.

    Raises:
        ArgumentError: for a model without INT8 Swins, a loader that is no iterable or gives nothing, and a metric that is no finite
            number.
        Whatever the model and ``evaluate`` raise. The model is then as it was, too.
    """
    count("batches", batches, 1)
    if evaluate is not None:
        check_metric(evaluate)
    if not is_iterable(loader):
        raise ArgumentError(f"loader: a {type(loader).__name__} is no iterable of {BATCHES}")
    pair, noise, meter = Pair(model), Noise(), _native.LoadMeter()
    calls: list[tuple[tuple[float, float], tuple[float, float]]] = []
    found: list[float | None] = [None, None]
    for index, batch in enumerate(islice(loader, batches)):
        calls.append(_compared(pair, index, batch, noise))
        if index == 0 and evaluate is not None:
            # A metric that fails does so before the other batches.
            found[0] = _evaluated(pair, False, evaluate)
    if not calls:
        raise ArgumentError(f"loader: {NO_BATCH}")
    other_cores = meter.disturbance()
    if evaluate is not None:
        found[1] = _evaluated(pair, True, evaluate)
    name = "metric" if evaluate is None else metric or name_of(evaluate) or "metric"
    return Gain(
        float_times=times_of(each for each, _ in calls),
        int8_times=times_of(each for _, each in calls),
        sqnr_db=noise.sqnr_db(),
        equal=noise.equal(),
        incomparable=noise.incomparable,
        metric=name,
        float_value=found[0],
        int8_value=found[1],
        program=pair.program,
        batches=len(calls),
        device=", ".join(sorted(map(str, pair.devices))),
        threads=torch.get_num_threads(),
        other_cores=other_cores,
    )


class Pair:
    """A model whose Swins run on engines, and the same one with their originals in their places."""

    def __init__(self, model: Any) -> None:
        """
        Raises:
            ArgumentError: for a model without Swins on engines.
        """
        self.model = model
        #: Places of Swins: the parent, the name, and the module there.
        self.places = [
            (parent, name, child)
            for parent in model.modules()
            for name, child in parent._modules.items()
            if isinstance(uncompiled(child), SwinModule) and not isinstance(uncompiled(parent), SwinModule)
        ]
        #: Models whose forward is the engine's.
        self.held = [module for module in model.modules() if isinstance(module.__dict__.get("forward"), InPlace)]
        top = [uncompiled(model)] if isinstance(uncompiled(model), SwinModule) else []
        swins = list(dict.fromkeys([*top, *(uncompiled(child) for _, _, child in self.places)]))
        self.swins = {True: [*swins, *self.held], False: [*(swin.original for swin in swins), *self.held]}
        if not self.swins[True]:
            raise ArgumentError(f"model: has no Swin in INT8. {_state_of(model)}")
        kinds = dict.fromkeys(kind_of(swin) for swin in self.swins[False])
        #: The class of the model, and those of its Swins where they are parts of it.
        self.program = ", ".join(dict.fromkeys([type(uncompiled(model)).__name__ if self.places else "", *kinds])).strip(", ")
        with self.state(False) as original:
            #: The device of the images, and all devices of the model.
            self.device = device_of(original)
            self.devices = devices_of(original) | {self.device}
        self.clock = clock_of(self.devices)

    @contextmanager
    def state(self, quantized: bool) -> Iterator[Any]:
        """The model in INT8, or in float until the context ends, in evaluation mode."""
        held = [] if quantized else [(module, {name: module.__dict__.pop(name) for name in ENGINE}) for module in self.held]
        for parent, name, child in self.places:
            parent._modules[name] = child if quantized else uncompiled(child).original
        inner = uncompiled(self.model)
        model = inner.original if isinstance(inner, SwinModule) and not quantized else self.model
        try:
            with evaluating(model):
                yield model
        finally:
            for parent, name, child in self.places:
                parent._modules[name] = child
            for module, attributes in held:
                module.__dict__.update(attributes)


#: The attributes of a model whose forward is the engine's.
ENGINE = ("forward", "_apply")


def _state_of(model: Any) -> str:
    """Why a model has no Swin in INT8."""
    names = [name or "the model itself" for places in swins_of(model).values() for name in places]
    return f"Its Swins ({', '.join(names)}) are in float; call swinq.torch.quantize first" if names else none_in(model)


def _compared(pair: Pair, index: int, batch: Any, noise: Noise) -> tuple[tuple[float, float], tuple[float, float]]:
    """The seconds of a call with the batch ``index``, and of its Swins, in float and in INT8. ``noise`` gets the outputs of calls before."""
    args, kwargs = arguments_of(batch, pair.device, "loader")
    call = Call(args, kwargs)

    def run(quantized: bool) -> tuple[Any, float, float]:
        with pair.state(quantized) as model:
            return call.timed(model, pair.swins[quantized], pair.clock)

    with running("loader", index, args or kwargs, pair.model):
        noise.add(run(False)[0], run(True)[0])
        return run(False)[1:], run(True)[1:]


def _evaluated(pair: Pair, quantized: bool, evaluate: Evaluate) -> float:
    """The metric of the model in INT8, or in float."""
    with pair.state(quantized) as model, torch.no_grad(), torch.compiler.set_stance("force_eager"):
        return finite(evaluate(model))
