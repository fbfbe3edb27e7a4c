"""Models, float or quantized."""

from __future__ import annotations

import inspect
import json
import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _native
from .._common.border import EngineChoice, GraphOptions
from .._common.errors import count
from .engine import Class, Engine
from .images import PathLike


class Site(NamedTuple):
    """A named place where a tensor may be quantized, as a row of :attr:`Model.sites`.

    A value is stored as the code ``round(value / scale)``, at most 127 in magnitude, which stands for ``code * scale``.
    Calibration chooses ``amax = 127 * scale`` for each quantized activation; larger values are clipped to it. ``amax`` and
    ``scale`` are ``None`` elsewhere: a weight has a scale for each output channel, computed from the weight itself (the
    tensor ``NAME.scale`` of the checkpoint); codes of attention probabilities have a fixed step; a site in float has none.
    Where channels of ``mlp.fc2.input`` have scales of their own, these are ``scale`` times the channel's factor (the
    tensor ``NAME.channel_factor``).
    """

    name: str
    quantized: bool
    bits: int
    #: ``s8``, or ``u8`` for attention probabilities.
    kind: str
    #: ``tensor``: one scale for all values, or ``channel``: one for each channel.
    granularity: str
    #: Largest magnitude that has a code, the range that calibration found; ``None`` at weights and sites in float.
    amax: float | None
    #: Difference between neighbouring codes, ``amax / 127``.
    scale: float | None


class Model:
    """A Swin, classifier or backbone, float or quantized. Call a classifier with images to get logits. Made by :func:`open` and
    :func:`quantize`; threads may share it."""

    def __init__(self, native: _native.Model) -> None:
        self._native = native
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._config: dict[str, Any] = json.loads(native.config)
        self._transform: dict[str, Any] = json.loads(native.transform)

    def engine(
        self,
        *,
        backend: str = "auto",
        threads: int = 0,
        image_threads: int = 0,
        max_batch: int = 8,
        max_memory: int = 0,
        max_pixels: int = 0,
        max_streams: int = 4,
        device: int = 0,
        residual: str = "auto",
        beside: Engine | None = None,
    ) -> Engine:
        """A new engine of this model.

        Args:
            backend: ``auto`` (the GPU if one can be used, else the CPU), ``cpu`` or ``cuda``.
            threads: threads of the CPU engine; 0 is one per core.
            image_threads: threads of the CPU engine that work on one image; 0 is as many as make it faster.
            max_batch: images that run at a time, on a CPU at most 2 on each thread; larger batches are split.
            max_memory: the most bytes for the tensors of images of one size, which the CPU engine runs side by side; 0 is a
                quarter of the machine's memory.
            max_pixels: the most pixels, height times width, of an image; 0 is as many as half of the free memory holds. Images
                of :attr:`input_size`, and smaller ones, are always accepted.
            max_streams: the most streams of a GPU on which the engine runs at the same time, each with memory of its own; a
                recorded graph counts as one as long as it lives.
            device: ordinal of the GPU.
            residual: type of the residual stream on a GPU: ``f16``, ``f32`` (the CPU's bits), or ``auto``, which is f16 unless the
                calibration's images show that f16 does not hold the stream.
            beside: an engine of another model of the same program. On a CPU, engines with as many ``threads`` share these and the memory
                for tensors: their calls take turns as those of one engine do.

        Raises:
            ArgumentError: for a negative number, and for a ``max_batch`` of 0.
            EngineError: if the backend cannot be used, or cannot run the model.
        """
        numbers = {
            "threads": threads,
            "image_threads": image_threads,
            "max_batch": max_batch,
            "max_memory": max_memory,
            "max_pixels": max_pixels,
            "max_streams": max_streams,
            "device": device,
        }
        check_engine(backend, {**numbers, "residual": residual})
        native = self._native
        return Engine(self, lambda: _native.Engine(native, backend, numbers, residual, None if beside is None else beside._ready()))

    def _default(self) -> Engine:
        if self._engine is None:
            with self._lock:
                if self._engine is None:
                    self._engine = self.engine()
        return self._engine

    def __call__(self, images: Any, *, layout: str | None = None) -> Any:
        """Logits of ``images``, by an engine with a thread per core that is made at the first call.

        The arguments, results and errors are those of :meth:`Engine.__call__`.
        """
        return (self._engine or self._default())(images, layout=layout)

    def predict(self, images: Any, top_k: int = 5) -> list[list[Class]]:
        """Classifies images; see :meth:`Engine.predict`."""
        return self._default().predict(images, top_k)

    def save(self, path: PathLike) -> None:
        """Writes a checkpoint that :func:`open` and the program ``swinq`` read; completely, or not at all."""
        self._native.save(os.fspath(path))

    def export(
        self,
        path: PathLike,
        *,
        opset: int = 20,
        target: str = "ort",
        fp16: bool = False,
        batch: int | str = "free",
        probs: str | None = None,
        input: str = "normalized",
        size: tuple[int, int] | str | None = None,
    ) -> list[str]:
        """Writes the model, float or quantized, as an ONNX file; completely, or not at all. It is the file that
        ``swinq export`` writes.

        Args:
            path: the file, ``.onnx``.
            opset: version of ONNX's operators, 18 to 23.
            target: the runtime that will run the graph: ``ort`` (ONNX Runtime), ``openvino`` or ``tensorrt``.
            fp16: whether float tensors are f16 inside the graph; inputs and outputs stay f32.
            batch: images of one inference: a number, or ``free``.
            probs: form of attention probabilities of kind ``u8``: ``exact``, the engine's arithmetic, or ``softmax``,
                which runtimes fuse and which loses some precision. ``None``: ``softmax`` for TensorRT, else ``exact``.
            input: ``normalized``, ``float32 [batch, 3, height, width]``, or ``pixels``, ``uint8 [batch, height, width, 3]``.
            size: height and width of a backbone's images, or ``any``, also for a classifier: height and width of the input
                are then free, and the graph takes every size that the network takes. The maps of a backbone have their own
                names, and are ``float32 [batch, channels, height, width]``.

        Returns:
            Remarks on the file, such as what an option costs; the command prints them.

        Raises:
            ArgumentError: for options that contradict each other or the model.
            ModelError: for a site that the target has no faithful form of.
            NotFoundError, FileError: if the file cannot be written.
        """
        options = GraphOptions(opset, target, fp16, str(batch), probs, input, size)
        return _native.export(self._native, os.fspath(path), options)

    @property
    def name(self) -> str:
        """Name of the architecture."""
        return str(self._config["name"])

    @property
    def config(self) -> dict[str, Any]:
        """The architecture: ``image_size`` (a number, or ``[height, width]``), ``embed_dim``, ``depths``, ``num_heads``,
        ``window_size``, ..."""
        return dict(self._config)

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the images for which the network was built, in pixels."""
        size = self._config["image_size"]
        return (size, size) if isinstance(size, int) else (size[0], size[1])

    @property
    def preprocessing(self) -> dict[str, Any]:
        """The preprocessing of images: ``family`` (``ms``, ``timm``, ``torchvision`` or ``hf``, whose manner it is), ``size``
        (side of the input, or ``[height, width]``), ``resize`` (``direct``, or ``{"shorter_side": n}`` before a center crop),
        ``filter`` (``bicubic`` or ``bilinear``), ``mean`` and ``std`` of the channels, and ``size_divisor`` where a processor rounds
        the sides of resized images up to its multiples. ``orientation`` is ``exif`` where images are turned as their files state,
        ``channel_order`` is ``bgr`` where that is the order of the channels; otherwise these keys are absent."""
        return dict(self._transform)

    @property
    def labels(self) -> list[str] | None:
        """Class names by class index; ``None`` if they are not known."""
        return self._native.labels

    @property
    def is_quantized(self) -> bool:
        """Whether any site is quantized."""
        return self._native.is_quantized

    @property
    def recipe(self) -> str:
        """Name of the recipe; ``float`` for a float model."""
        return self._native.recipe

    @property
    def size_bytes(self) -> int:
        """Bytes of the parameters."""
        return self._native.size_bytes

    @property
    def sites(self) -> list[Site]:
        """The sites, in the model's order: a table, as in ``pandas.DataFrame(model.sites)``.

        A row is a :class:`Site`: its name, whether it is quantized, the bits and kind of its codes, ``amax`` (the largest
        magnitude that has a code) and ``scale`` (``amax / 127``, the step between codes). A weight has a scale for each
        output channel, which the checkpoint holds beside its codes, and no ``amax`` here.
        """
        rows = self._native.sites()
        return [Site(row.name, row.quantized, row.bits, row.kind, row.granularity, row.amax, row.scale) for row in rows]

    def __reduce__(self) -> Any:
        raise TypeError("a Model cannot be copied or pickled; save it, and open the file in the other process")

    def __repr__(self) -> str:
        kind = f"INT8, recipe {self.recipe}" if self.is_quantized else "float"
        outputs = [output["name"] for output in self._config.get("outputs", [])]
        what = f"backbone with {', '.join(outputs)}" if outputs else f"{self._config['num_classes']} classes"
        return f"<swinq.Model {self.name}, {what}, {kind}>"


#: The options of an engine that are numbers, with their values where none are given.
ENGINE_NUMBERS: dict[str, int] = {
    name: option.default for name, option in inspect.signature(Model.engine).parameters.items() if isinstance(option.default, int)
}


def check_engine(backend: str, options: Mapping[str, Any]) -> None:
    """Refuses a backend, and values of options of :meth:`Model.engine`, that no engine can have.

    Raises:
        ArgumentError: with the name of the option.
    """
    numbers = {name: options.get(name, value) for name, value in ENGINE_NUMBERS.items()}
    for name, value in numbers.items():
        count(name, value, 1 if name == "max_batch" else 0)
    _native.check_engine(EngineChoice(backend, numbers, options.get("residual", "auto")))
