"""The module that stands in the place of a Swin."""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from . import _torch_compile
from ._errors import ArgumentError, EngineError
from ._layers import uncompiled
from ._model import Engine, Model, open
from ._torch_calls import CallParameters, check_arguments, images_of, not_images
from ._torch_graph import exporting, is_exported
from ._torch_outputs import CHANNELS_LAST, LAYOUTS, made, tensors


#: The types in which an engine writes outputs for images of these types; others are converted.
TYPES = {torch.float16: "float16"}
TYPES_ON_GPU = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


#: Why a module cannot be traced or exported.
NO_GRAPH = (
    "a quantized Swin runs on swinq's engine, which a graph of PyTorch cannot hold; export a model of swinq.torch.prepare, whose graph "
    "has its codes, or the float model (swinq.torch.restore)"
)


def backend_for(backend: str, device: Any) -> str:
    """``backend``, or for ``auto`` that of images on ``device``."""
    return backend if backend != "auto" else "cuda" if device.type == "cuda" else "cpu"


class Replacement(torch.nn.Module):
    """A module in the place of a Swin, ``original``. What it does not have itself, it reads from the original."""

    #: The parameters of the original's ``forward``.
    _parameters_of_forward: CallParameters

    @property
    def original(self) -> Any:
        """The module that this one replaces."""
        return self.__dict__["_original"]

    def forward_with_filtered_kwargs(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module with those arguments that it knows, as backbones of transformers have it."""
        return self(*args, **{name: value for name, value in kwargs.items() if name in self._parameters_of_forward.named})

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith(("__", "forward")) or "_original" not in self.__dict__:
                reason = "; the engine of a Swin runs its forward only" if name.startswith("forward") else ""
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{reason}") from None
        return getattr(self.original, name)


#: What is said of a module that an engine runs, where a float module is needed.
ON_THE_ENGINE = "runs on the engine already; swinq.torch.restore(model) gives the float module"


class SwinModule(Replacement):
    """A Swin that swinq's engine runs, in the place of the module ``original``, which it keeps but does not register.

    It has no parameters and no entries of a state dictionary. What it does not have itself, it reads from the original:
    ``config``, ``channels``, ``feature_info``, ``output_shape()``, and so on.
    """

    REPLACES_A_SWIN = ON_THE_ENGINE

    def __init__(
        self,
        original: Any,
        model: Model,
        outputs: Any,
        arguments: Mapping[str, Any],
        backend: str,
        options: Mapping[str, Any],
    ) -> None:
        """
        Args:
            original: the module that it replaces.
            model: what the engine runs.
            outputs: the structure of the outputs (see ``_torch_outputs``).
            arguments: the arguments of every call beside the images.
            backend: ``cpu``, ``cuda``, or ``auto`` for that of the device of the images.
            options: the other options of :meth:`Model.engine`.
        """
        super().__init__()
        self.__dict__["_original"] = original
        self._model, self._outputs, self._arguments = model, outputs, dict(arguments)
        self._backend, self._options = backend, dict(options)
        #: The hash of the float parameters, if ``original`` does not have them, as after :func:`swinq.torch.load`; else empty.
        self._missing_float = ""
        leaves = [leaf for _, leaf in tensors(outputs)]
        self._names = list(dict.fromkeys(leaf.output for leaf in leaves))
        #: Maps are computed with the channels last if no output has them first.
        self._out_layout = "NHWC" if all(leaf.layout in CHANNELS_LAST for leaf in leaves) else "NCHW"
        self._engines: dict[tuple[str, int], Engine] = {}
        signature = inspect.signature(uncompiled(original).forward)
        self._parameters_of_forward = CallParameters.of(signature)
        self.training = original.training
        self._number = _torch_compile.registered(self)
        self.forward = with_signature(self._run, signature, self._compiled)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return Unsaved() if name == "save_pretrained" else found

    @property
    def model(self) -> Model:
        """The model that the engine runs; :meth:`Model.save` writes it to a file."""
        return self._model

    def engine_for(self, device: Any) -> Engine:
        """The engine for images on ``device``."""
        backend, index = backend_for(self._backend, device), device.index or 0
        key = (backend, index if backend == "cuda" else 0)
        engine = self._engines.get(key)
        if engine is None:
            options = {"device": index, **self._options} if backend == "cuda" else self._options
            engine = self._engines[key] = self._model.engine(backend=backend, **options)
        return engine

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if len(args) == 1 and not kwargs and not self._arguments:
            # Most calls are of this kind, and to bind their arguments would cost half of their time.
            given = args[0]
        else:
            given, arguments = self._parameters_of_forward.bound(args, kwargs)
            check_arguments(arguments, self._arguments)
        images = images_of(given)
        self.check_images(images)
        return self._made(self.computed(images), images.dtype, given)

    def _compiled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """:meth:`_run` in a graph of ``torch.compile``, which holds the engine as an operator."""
        if is_exported():
            raise EngineError(NO_GRAPH)
        given, arguments = self._parameters_of_forward.bound(args, kwargs)
        check_arguments(arguments, self._arguments)
        images = images_of(given)
        found = dict(zip(self._names, _torch_compile.run(images, self._number), strict=True))
        return self._made(found, images.dtype, given)

    def outputs_of(self, images: Any) -> dict[str, Any]:
        """The outputs of the engine by name; maps are ``[n, channels, height, width]``."""
        found = self.computed(images)
        if self._out_layout == "NCHW":
            return found
        return {name: value.permute(0, 3, 1, 2) if value.ndim == 4 else value for name, value in found.items()}

    def _made(self, found: dict[str, Any], dtype: Any, given: Any) -> Any:
        """The outputs of :meth:`computed` as the original gives them for the input ``given``."""
        return made(self._outputs, found, dtype, given, LAYOUTS if self._out_layout == "NCHW" else CHANNELS_LAST)

    def computed(self, images: Any) -> dict[str, Any]:
        """The outputs of the engine by name, as it writes them."""
        return self.engine_for(images.device).run(
            images, self._names, layout="NCHW", out_layout=self._out_layout, dtype=self._type_of(images)
        )

    def computed_shapes(self, images: Any) -> list[tuple[list[int], Any]]:
        """The shape and the type of each output of :meth:`computed`."""
        number, _, height, width = (int(side) for side in images.shape)
        engine, dtype = self.engine_for(images.device), getattr(torch, self._type_of(images))
        found = []
        for name in self._names:
            shape = engine._shape(name, height, width)
            if self._out_layout == "NHWC" and len(shape) == 3:
                shape = [*shape[1:], shape[0]]
            found.append(([number, *shape], dtype))
        return found

    def _type_of(self, images: Any) -> str:
        """The type in which the engine writes outputs for images."""
        on_gpu = images.is_cuda and self._backend != "cpu"
        return (TYPES_ON_GPU if on_gpu else TYPES).get(images.dtype, "float32")

    def check(self) -> None:
        """Raises if an earlier call on a GPU, or a recorded graph, met a value that is not finite (see :meth:`Engine.check`).

        Raises:
            EngineError: with the launch or the output of the value.
        """
        for engine in self._engines.values():
            engine.check()

    def check_images(self, images: Any) -> None:
        """Refuses images that the engine cannot run, and calls in which it cannot run."""
        if self.training:
            raise EngineError(
                "a quantized Swin cannot be trained; call eval() on the model, or swinq.torch.restore(model) to train it"
            )
        if not isinstance(images, torch.Tensor) or not images.is_floating_point():
            raise ArgumentError(f"images: {not_images(images)}")
        if exporting():
            raise EngineError(NO_GRAPH)
        if images.requires_grad and torch.is_grad_enabled():
            raise EngineError(
                "a quantized Swin gives no gradients, and its input requires them; call the model under torch.no_grad() or "
                "torch.inference_mode(), or swinq.torch.restore(model) to train it"
            )

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        check_type_is_kept(fn)
        self.original._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def __deepcopy__(self, memo: dict[int, Any]) -> SwinModule:
        parts = (copy.deepcopy(part, memo) for part in (self.original, self._arguments, self._options))
        original, arguments, options = parts
        module = type(self)(original, self._model, self._outputs, arguments, self._backend, options)
        module.training, module._missing_float = self.training, self._missing_float
        memo[id(self)] = module
        return module

    def __reduce__(self) -> Any:
        file = file_of(self._model)
        parts = (self.original, file, self._outputs, self._arguments, self._backend, self._options, self.training, self._missing_float)
        return _loaded, parts

    def extra_repr(self) -> str:
        sites = self._model.sites
        quantized = sum(site.quantized for site in sites)
        return f"{type(uncompiled(self.original)).__name__}, {quantized} of {len(sites)} sites INT8"


def _loaded(
    original: Any, file: bytes, outputs: Any, arguments: Any, backend: str, options: Any, training: bool, missing_float: str
) -> SwinModule:
    """The module whose parts were pickled; ``file`` is its checkpoint."""
    module = SwinModule(original, opened(file), outputs, arguments, backend, options)
    module.training, module._missing_float = training, missing_float
    return module


def file_of(model: Model) -> bytes:
    """The checkpoint of a model, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "swin.safetensors"
        model.save(path)
        return path.read_bytes()


def opened(file: bytes | bytearray) -> Model:
    """The model whose checkpoint ``file`` is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "swin.safetensors"
        path.write_bytes(file)
        return open(path)


def check_type_is_kept(fn: Callable[[Any], Any]) -> None:
    """Refuses to convert a module on an engine to another type."""
    if fn(torch.empty(0)).dtype != torch.float32:
        raise TypeError(
            "a quantized Swin has no parameters whose type could change; convert the model before swinq.torch.quantize. Its "
            "outputs have the type of its input"
        )


class Applied:
    """The ``_apply`` of a module that stays where it is while the engine runs it: moves it, and refuses another type."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        check_type_is_kept(fn)
        return type(self.module)._apply(self.module, fn, recurse)


class InPlace:
    """The ``forward`` of a module that the engine runs as a whole and that stays where it is, for those who hold it."""

    REPLACES_A_SWIN = ON_THE_ENGINE

    def __init__(self, module: Any, swin: SwinModule) -> None:
        self.module, self.swin = module, swin
        self.__signature__ = inspect.signature(swin.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.swin.training = self.module.training
        return self.swin(*args, **kwargs)

    def __reduce__(self) -> Any:
        return InPlace, (self.module, self.swin)


class Unsaved:
    """The ``save_pretrained`` of a model of transformers that has Swins on engines: its folder would lack their weights, and
    ``from_pretrained`` would draw them at random."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentError(
            "save_pretrained: the weights of the quantized Swin are in its engine, and the folder would lack them; call "
            "swinq.transformers.attach(model).save_pretrained(...), or swinq.torch.restore(model) to save the float model"
        )


def guard(model: Any) -> None:
    """Lets ``save_pretrained`` refuse in the models within ``model`` that have Swins on engines, and in no others."""
    for part in model.modules():
        if not hasattr(type(part), "save_pretrained"):
            continue
        unguard(part)
        if any(isinstance(module, SwinModule) for module in part.modules()):
            part.__dict__["save_pretrained"] = Unsaved()


def unguard(model: Any) -> None:
    """Lets ``model`` save again."""
    model.__dict__.pop("save_pretrained", None)


def check_float_is_there(model: Any) -> None:
    """Refuses a model with a Swin on an engine whose original has not the parameters that were quantized.

    Raises:
        ArgumentError: with the place of the Swin.
    """
    for name, module in model.named_modules():
        forward = module.__dict__.get("forward")
        swin = forward.swin if isinstance(forward, InPlace) else module
        if isinstance(swin, SwinModule) and swin._missing_float:
            raise ArgumentError(
                f"model: the float parameters of {f'`{name}`' if name else 'the model itself'} are missing: the folder that was "
                "opened holds the INT8 Swin only. Open the float model, or call swinq.torch.load with a float model that has the parameters "
                "which were quantized"
            )


def in_place(swin: SwinModule) -> Any:
    """The original of ``swin``, which now runs it. Its parameters are also those of a shallow copy, the new original of ``swin``."""
    module = uncompiled(swin.original)
    inner = copy.copy(module)
    for kind in ("_parameters", "_buffers", "_modules"):
        inner.__dict__[kind] = dict(inner.__dict__[kind])
    swin.__dict__["_original"] = inner
    module.forward, module._apply = InPlace(module, swin), Applied(module)
    return module


Call = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]


def with_signature(run: Call, signature: inspect.Signature, compiled: Call | None = None) -> Any:
    """A function with a signature, of whose arguments ``run`` gets a tuple and a dictionary; in graphs of ``torch.compile``
    ``compiled`` gets them. Without ``compiled`` it stays outside of graphs."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        if compiled is not None and torch.compiler.is_compiling():
            return compiled(args, kwargs)
        return run(args, kwargs)

    found: Any = torch.compiler.disable(forward) if compiled is None else forward
    found.__signature__ = signature
    return found
