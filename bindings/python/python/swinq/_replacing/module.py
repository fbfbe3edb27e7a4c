"""The module in the place of a Swin that swinq's engine runs."""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .._calls.arguments import CallParameters, check_arguments, check_batch, images_in
from .._calls.exporting import exporting, is_exported
from .._calls.outputs import CHANNELS_LAST, LAYOUTS, made, tensors
from .._common.errors import ArgumentError, EngineError
from .._engine.engine import Engine
from .._engine.model import Model
from .._functions.open import open
from .._readers.layers import uncompiled
from .._readers.stacks import called
from .compiled import registered, run_in_graph
from .replacement import ON_THE_ENGINE, Replacement, Unsaved, check_type_is_kept, with_signature

#: The types in which an engine writes outputs for images of these types; others are converted.
TYPES = {torch.float16: "float16"}
TYPES_ON_GPU = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
#: Why a module cannot be traced or exported.
NO_GRAPH = (
    "a quantized Swin runs on swinq's engine, which an exported graph cannot hold (torch.export, AOTInductor, TorchScript); export a model "
    "of swinq.torch.prepare, whose graph has its codes, or the float model (swinq.torch.restore)"
)


def backend_for(backend: str, device: Any) -> str:
    """``backend``, or for ``auto`` that of images on ``device``."""
    return backend if backend != "auto" else "cuda" if device.type == "cuda" else "cpu"


class Engines:
    """The engines of the Swins of one program. Those of one backend with the same options share threads and memory."""

    def __init__(self) -> None:
        self._first: dict[Any, Engine] = {}

    def make(self, model: Model, options: Mapping[str, Any]) -> Engine:
        """An engine of a model with the options of :meth:`Model.engine`."""
        key = tuple(sorted(options.items()))
        engine = model.engine(**options, beside=self._first.get(key))
        self._first.setdefault(key, engine)
        return engine

    def __deepcopy__(self, memo: dict[int, Any]) -> Engines:
        return Engines()

    def __reduce__(self) -> Any:
        return Engines, ()


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
        engines: Engines,
    ) -> None:
        """
        Args:
            original: the module that it replaces.
            model: what the engine runs.
            outputs: the structure of the outputs (see ``_calls/outputs.py``).
            arguments: the arguments of every call beside the images.
            backend: ``cpu``, ``cuda``, or ``auto`` for that of the device of the images.
            options: the other options of :meth:`Model.engine`.
            engines: makes the engines; the Swins of a program have one.
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
        self.engines = engines
        signature = inspect.signature(called(uncompiled(original)).forward)
        self._parameters_of_forward = CallParameters.of(uncompiled(original))
        self.training = original.training
        self._number = registered(self)
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
            engine = self._engines[key] = self.engines.make(self._model, {"backend": backend, **options})
        return engine

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        parameters = self._parameters_of_forward
        if len(args) == 1 and not kwargs and not self._arguments and parameters.tokens is None:
            # Most calls are of this kind, and to bind their arguments would cost half of their time.
            given = args[0]
            images = images_in(given)
        else:
            given, arguments = parameters.bound(args, kwargs)
            images = parameters.images(given, arguments)
            check_arguments(arguments, self._arguments)
        self.check_images(images)
        return self._made(self.computed(images), images.dtype, given)

    def _compiled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """:meth:`_run` in a graph of ``torch.compile``, which holds the engine as an operator."""
        if is_exported():
            raise EngineError(NO_GRAPH)
        given, arguments = self._parameters_of_forward.bound(args, kwargs)
        images = self._parameters_of_forward.images(given, arguments)
        check_arguments(arguments, self._arguments)
        found = dict(zip(self._names, run_in_graph(images, self._number), strict=True))
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
        """The outputs of the engine by name, as it writes them. Images are read in the order in which they lie in memory."""
        layout, read = "NCHW", images
        if not images.is_contiguous() and (last := images.permute(0, 2, 3, 1)).is_contiguous():
            layout, read = "NHWC", last
        return self.engine_for(images.device).run(
            read, self._names, layout=layout, out_layout=self._out_layout, dtype=self._type_of(images)
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
        check_batch("images", images)
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
        engines = copy.deepcopy(self.engines, memo)
        module = type(self)(original, self._model, self._outputs, arguments, self._backend, options, engines)
        module.training, module._missing_float = self.training, self._missing_float
        memo[id(self)] = module
        return module

    def __reduce__(self) -> Any:
        file = file_of(self._model)
        parts = (self.original, file, self._outputs, self._arguments, self._backend, self._options, self.training, self._missing_float)
        return swin_module, (*parts, self.engines)

    def extra_repr(self) -> str:
        sites = self._model.sites
        quantized = sum(site.quantized for site in sites)
        return f"{type(uncompiled(self.original)).__name__}, {quantized} of {len(sites)} sites INT8"


def swin_module(
    original: Any, file: bytes, outputs: Any, arguments: Any, backend: str, options: Any, training: bool, missing_float: str, engines: Engines
) -> SwinModule:
    """The module whose parts were pickled; ``file`` is its checkpoint."""
    module = SwinModule(original, opened(file), outputs, arguments, backend, options, engines)
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
