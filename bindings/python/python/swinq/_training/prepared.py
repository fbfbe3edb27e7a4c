"""The module that stands in the place of a Swin in training: fake quantization at the sites of the engine."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .. import _native
from .._calls.arguments import CallParameters, check_arguments, check_batch
from .._calls.exporting import exporting
from .._calls.outputs import CHANNELS_LAST, made, tensors
from .._common.border import ChannelScales, TrainedTensor
from .._common.errors import ArgumentError
from .._engine.model import Model
from .._readers.layers import uncompiled
from .._readers.recognition import describe
from .._readers.stacks import called
from .._replacing.module import Engines, SwinModule, file_of, opened
from .._replacing.original import stand_in
from .._replacing.replacement import Replacement, with_signature
from .export import Values, exported
from .graph import operations
from .network import Forward, Network
from .parameters import ParameterPart, Parameters, parts_of, read
from .scales import Scale, Scales, WeightScale

#: The values of ``learned`` of :func:`swinq.torch.prepare`: whether the scales of activations and of weights are learned.
LEARNED = {"none": (False, False), "activations": (True, False), "weights": (False, True), "all": (True, True)}


class Template:
    """The calibrated model, which copies of a module share."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __deepcopy__(self, memo: Any) -> Template:
        return self

    def __reduce__(self) -> Any:
        return template, (file_of(self.model),)


def template(file: bytes) -> Template:
    """The template that was pickled; ``file`` is the checkpoint of its model."""
    return Template(opened(file))


class PreparedSwin(Replacement):
    """A Swin in training, in the place of the module ``original``, whose parameters it has under the same names.

    Beside them it has ``swinq``, the scales of its sites. In training, and on a GPU, the forward pass is PyTorch's with fake
    quantization. In evaluation on a CPU it is the engine's, so that its outputs are, bit for bit, those of the model that
    :func:`swinq.torch.convert` makes; gradients are then those of the former. What it does not have itself, it reads from the
    original: ``config``, ``channels``, ``feature_info``, and so on.
    """

    #: The Trainer of transformers passes it no arguments of a loss, which it does not compute.
    accepts_loss_kwargs = False

    IS_TRAINED = True
    REPLACES_A_SWIN = "is prepared for training; swinq.torch.restore(model) gives the float module"

    def __init__(
        self,
        original: Any,
        template: Template,
        names: Mapping[str, str],
        stored: list[ParameterPart],
        outputs: Any,
        arguments: Mapping[str, Any],
        learned: str,
        drop_path: float,
        checkpointing: bool,
    ) -> None:
        """
        Args:
            original: the module that it replaces. Both have the same parameters.
            template: the calibrated model.
            names: new beginnings of names of the state dictionary of the original.
            stored: which of its tensors are parameters.
            outputs: the structure of the outputs (``_calls/outputs.py``).
            arguments: the arguments of every call beside the images.
            learned: the scales that are learned, a name of ``LEARNED``.
            drop_path: the rate of stochastic depth of the last block; it grows from 0 with the blocks.
            checkpointing: whether blocks are computed again in the backward pass.
        """
        super().__init__()
        if hasattr(original, "swinq"):
            raise ArgumentError("it has an attribute `swinq`, which the scales need")
        self.__dict__["_original"] = original
        for kind in ("_parameters", "_buffers", "_modules"):
            getattr(self, kind).update(getattr(uncompiled(original), kind))
        self._non_persistent_buffers_set.update(uncompiled(original)._non_persistent_buffers_set)
        self._template, self._names, self._stored = template, dict(names), list(stored)
        self._outputs, self._arguments = outputs, dict(arguments)
        self._learned, self._drop_path, self.checkpointing = learned, drop_path, checkpointing
        self.swinq = Scales(template.model._native, *LEARNED[learned]).to(next(original.parameters()).device)
        self.training = original.training
        self._set_up()

    def _set_up(self) -> None:
        signature = inspect.signature(called(uncompiled(self.original)).forward)
        self._parameters_of_forward = CallParameters.of(uncompiled(self.original))
        config = self._template.model._config
        self._network = Network(self._template.model._native, config)
        self._of_swin = Parameters(self, self._names, self._stored, self._network.is_v2)
        depths = sum(config["depths"])
        self._rates = [self._drop_path * i / max(depths - 1, 1) for i in range(depths)] if self._drop_path else []
        #: A fingerprint of the current parameters, and the engine's module for them.
        self._converted: tuple[Any, SwinModule | None] = (None, None)
        self._values = Values()
        with contextlib.suppress(ImportError):
            operations()
        self.forward = with_signature(self._run, signature)

    def parameters_of_swin(self) -> Parameters:
        """The parameters in swinq's names."""
        return self._of_swin

    def to_model(self) -> Model:
        """The quantized model with the current parameters and scales: :meth:`Model.save` writes it to a file.

        Raises:
            ModelError: for parameters that are not finite.
        """
        parameters = self.parameters_of_swin()
        held = []
        for name in parameters.names():
            tensor = parameters[name].detach().float().cpu().contiguous()
            held.append(TrainedTensor(name, list(tensor.shape), tensor.numpy()))
        ranges, weights = {}, {}
        channels: dict[str, ChannelScales] = {}
        for name, site in self.swinq.sites():
            if isinstance(site, Scale):
                ranges[name] = float(site.amax().detach())
                if site.factors is not None:
                    channels[name] = ChannelScales(site.factors[0].tolist(), [int(z) for z in site.zero_points.tolist()])
            elif isinstance(site, WeightScale) and not site.recomputed:
                weights[name] = site.scales().detach().float().tolist()
        return Model(_native.trained(self._template.model._native, held, ranges, channels, weights))

    def converted(self, backend: str, options: Mapping[str, Any], engines: Engines) -> SwinModule:
        """The engine's module with the current parameters and scales. ``engines`` are those of the program."""
        return SwinModule(self.original, self.to_model(), self._outputs, self._arguments, backend, options, engines)

    def _engine(self) -> SwinModule:
        """The engine's module for the current parameters on a CPU."""
        values = fingerprint([*self.parameters(), *self.buffers()])
        known, module = self._converted
        if module is None or known != values:
            module = self.converted("cpu", {}, Engines()).eval()
            self._converted = (values, module)
        return module

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        given, arguments = self._parameters_of_forward.bound(args, kwargs)
        images = self._parameters_of_forward.images(given, arguments)
        check_arguments(arguments, self._arguments)
        check_batch("images", images)
        if exporting():
            return made(self._outputs, self._exported(images), images.dtype, given)
        exact = None
        if not self.training and images.device.type == "cpu":
            with torch.no_grad():
                exact = self._engine().outputs_of(images.detach())
            if not torch.is_grad_enabled():
                return made(self._outputs, exact, images.dtype, given)
        found = self._forward(images)
        if exact is not None:
            found = {name: _Exact.apply(value, exact[name].to(value.dtype)) for name, value in found.items()}
        if any(leaf.layout not in CHANNELS_LAST for _, leaf in tensors(self._outputs)):
            found = {name: value.contiguous() for name, value in found.items()}
        return made(self._outputs, found, images.dtype, given)

    def _forward(self, images: Any) -> dict[str, Any]:
        device = images.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else images.dtype
        rates = self._rates if self.training else []
        forward = Forward(self._network, self.parameters_of_swin(), self.swinq, dtype, rates, self.checkpointing)
        return forward(images)

    def _exported(self, images: Any) -> dict[str, Any]:
        found = exported(self, self._values, self._network, self.parameters_of_swin(), self.swinq, images)
        return {name: value.contiguous() for name, value in found.items()}

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        """As for every module; an exporter reads the parameters by it, before it calls the module."""
        if "_values" in self.__dict__:
            self._values.hold(self)
        return super().named_modules(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("forward", "_parameters_of_forward", "_network", "_of_swin", "_converted", "_rates", "_values"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._set_up()

    def extra_repr(self) -> str:
        return f"{type(uncompiled(self.original)).__name__} in training"


class _Exact(torch.autograd.Function):
    """Values of one tensor with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, computed: Any, exact: Any) -> Any:
        return exact

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        return grad, None


def fingerprint(held: Iterable[Any]) -> int:
    """A hash of the values of tensors. PyTorch's versions of tensors do not tell what was written through ``.data``, by numpy, or under
    ``inference_mode``."""
    arrays = []
    for tensor in held:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        arrays.append(flat.view(torch.uint8).numpy())
    return _native.fingerprint(arrays)


def start_from(prepared: PreparedSwin, model: Model) -> None:
    """Writes the parameters of a refined model into the module, which trains from them."""
    parameters, values = prepared.parameters_of_swin(), read(model._native)
    for name in parameters.names():
        parameters.assign(name, values[name])


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
    names, stored = describe(swin, stand_in(swin)).renamed, parts_of(float_model._native)
    return PreparedSwin(module, Template(calibrated), names, stored, outputs, arguments, learned, drop_path, checkpointing)
