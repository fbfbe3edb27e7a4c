"""Models and engines."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _device, _modules, _native, _process
from ._arrays import check_shape, input_of, is_array, is_tensor
from ._errors import ArgumentError, count
from ._images import PathLike, is_encoded, is_path, is_pil, picture


#: The shapes of outputs that an engine remembers.
MOST_SHAPES = 256


@dataclass(frozen=True, slots=True)
class Class:
    """One class of a prediction."""

    index: int
    #: Class name; ``None`` if the model has no names.
    label: str | None
    #: In 0..1: softmax of the logits, or the sigmoid if an image may be of several classes; of a regression, its number.
    probability: float


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


class Engine:
    """A model that is ready to run, on threads of its own. Engines of one model share its packed weights.

    Threads may share an engine. Calls release the interpreter's lock; on a CPU they run at the same time and share the engine's
    threads, on a GPU they run one after another, except on streams of the caller. In a forked process, which has no threads of
    its parent, an engine is made again at its first call.
    """

    def __init__(self, model: Model, make: Callable[[], _native.Engine]) -> None:
        self._model, self._make = model, make
        native = make()
        self._native: _native.Engine | None = native
        self._channels, self._outputs = native.channels, tuple(native.outputs)
        self._shapes: dict[tuple[str, int, int], list[int]] = {}
        _process.remember(self)

    def _ready(self) -> _native.Engine:
        native = self._native
        if native is None:
            native = self._native = self._make()
        return native

    def __call__(self, images: Any, *, layout: str | None = None) -> Any:
        """Logits of a batch of any number of images of one size, which the network can process.

        What depends on the size is prepared at its first call, and kept for the sizes used last.

        Args:
            images: a numpy array or a torch tensor. ``uint8`` are 8-bit pixels (RGB, preprocessed), which the engine
                normalises; ``float32`` and ``float16`` are values that are normalised already, and finite. A contiguous
                array in host memory is read in place, and must not be written to during the call; others are copied. A
                tensor of bfloat16 is converted to ``float32``.
            layout: ``NHWC`` for ``[n, height, width, channels]``, or ``NCHW`` for ``[n, channels, height, width]``; ``None``
                is ``NHWC`` for ``uint8`` and ``NCHW`` for floats.

        Returns:
            ``float32 [n, classes]``, of the kind and on the device of ``images``.

        Raises:
            ArgumentError: for another shape or type, for images that the network cannot process or that need more memory than
                ``max_pixels`` allows, and for values that are not finite.
            EngineError: if the engine fails.
        """
        self._check_classifies()
        return self.run(images, ["logits"], layout=layout)["logits"]

    def _check_classifies(self) -> None:
        """Refuses a backbone, which has no classes."""
        if "logits" not in self._outputs:
            outputs = ", ".join(self._outputs)
            raise ArgumentError(
                f"the model is a backbone with the outputs {outputs}, and has no classes; call engine().run(images)"
            )

    def run(
        self,
        images: Any,
        outputs: Iterable[str] | None = None,
        *,
        layout: str | None = None,
        out_layout: str = "NCHW",
        dtype: str = "float32",
        out: Mapping[str, Any] | None = None,
        stream: int | None = None,
    ) -> dict[str, Any]:
        """Outputs of a batch, by name.

        On a GPU, images in its memory are read there: tensors of PyTorch, and arrays with ``__dlpack__`` or
        ``__cuda_array_interface__``. The work is put on a stream after what is there, and the call returns without waiting for
        it. Streams run at the same time. While the caller records a graph on the stream (``torch.cuda.graph``), the work becomes
        a part of it; height, width and number of images must be prepared (:meth:`prepare`, or a call). A value that is not finite
        makes all outputs NaN there, and the next call of the engine, or :meth:`check`, raises.

        Args:
            images: as for :meth:`__call__`.
            outputs: names of outputs, each once; ``None`` is all of :attr:`outputs`, or those of ``out``.
            layout: as for :meth:`__call__`.
            out_layout: that of feature maps: ``NCHW`` for ``[n, channels, height, width]``, or ``NHWC``.
            dtype: the type of the outputs, ``float32`` or ``float16``, to which values are rounded; on a GPU also ``bfloat16``.
            out: arrays for outputs, by name, contiguous, in the memory of ``images``; their own types count, not ``dtype``. Others
                are made: by PyTorch's allocator for its tensors on a GPU.
            stream: ``cudaStream_t`` on which images in memory of a GPU run. ``None`` is the current stream of PyTorch for its
                tensors, else the default stream. Arrays must live until the work is done; PyTorch sees to that for its tensors.

        Returns:
            The outputs in the order of ``outputs``, of the kind and on the device of ``images``: ``logits`` is
            ``[n, classes]``, a feature map ``[n, channels, height, width]``, or in the order of ``out_layout``.

        Raises:
            ArgumentError: for an output that the network does not have or that is asked for twice, for another ``dtype``, for
                arrays of another shape or on another device, for a CUDA tensor that requires grad outside ``torch.no_grad()``,
                for a graph with a size that is not prepared, and as :meth:`__call__`.
            EngineError: if the engine fails, also if ``float16`` cannot hold a value.
        """
        native = self._ready()
        on_gpu = native.gpu is not None and _device.is_on_gpu(images)
        types = ("float32", "float16", "bfloat16") if on_gpu else ("float32", "float16")
        if dtype not in types:
            raise ArgumentError(f"dtype: {dtype!r} is none of {', '.join(types)}")
        if out_layout not in ("NCHW", "NHWC"):
            raise ArgumentError(f"out_layout: `{out_layout}` is unknown; give NHWC or NCHW")
        names = _names((out or self._outputs) if outputs is None else outputs)
        shape_of = self._shape if out_layout == "NCHW" else self._shape_in_nhwc
        if on_gpu:
            layouts = (layout, out_layout)
            return _device.run(native, images, names, shape_of, self._channels, layouts=layouts, dtype=dtype, out=out, stream=stream)
        if stream is not None:
            raise ArgumentError("stream: the images are not in the memory of the engine's GPU")
        array, layout, (number, height, width) = input_of(images, self._channels, layout)
        given, found, memory = out or {}, {}, []
        for name in names:
            shape = (number, *shape_of(name, height, width))
            found[name] = given[name] if name in given else np.empty(shape, dtype)
            memory.append((name, _bits(_host(found[name], name, shape))))
        native.run(_bits(array), layout, memory, out_layout)
        if not is_tensor(images):
            return found
        torch = sys.modules["torch"]
        return {name: values if name in given else torch.from_numpy(values).to(images.device) for name, values in found.items()}

    def _shape(self, name: str, height: int, width: int) -> list[int]:
        """The shape of an output for one image of a height and a width."""
        key = (name, height, width)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._ready().output_shape(name, height, width)
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            self._shapes[key] = shape
        return shape

    def _shape_in_nhwc(self, name: str, height: int, width: int) -> list[int]:
        """As :meth:`_shape`, for feature maps with the channels last."""
        channels, *grid = self._shape(name, height, width)
        return [*grid, channels]

    def prepare(self, height: int, width: int, images: int = 1, *, stream: int | None = None) -> None:
        """Prepares for ``images`` images of a size; otherwise the first call does so, which takes far longer than later calls.

        Args:
            height: of the images, in pixels.
            width: of the images, in pixels.
            images: number of images of a batch.
            stream: ``cudaStream_t`` for images in memory of a GPU, such as ``torch.cuda.current_stream().cuda_stream``; ``None``
                prepares for images in host memory. A graph takes over what any stream has prepared.
        """
        for name, value in (("height", height), ("width", width), ("images", images)):
            count(name, value, 1)
        if stream is None:
            _native.prepare(self._ready(), height, width, images)
        else:
            _native.prepare_on(self._ready(), height, width, images, stream)

    def check(self) -> None:
        """Raises if an earlier call on memory of a GPU, or a graph that holds one, met a value that is not finite.

        It does not wait: synchronize the stream first. An error is raised once.

        Raises:
            EngineError: with the launch or the output of the value.
        """
        _native.check(self._ready())

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in the order in which the network computes them: ``logits``, or ``stage1`` and so on."""
        return self._outputs

    def predict(self, images: Any, top_k: int = 5) -> list[list[Class]]:
        """Classifies images: the best ``top_k`` classes of each, best first.

        Args:
            images: paths, or images in memory: ``bytes``, ``bytearray`` or ``memoryview`` of an encoded file (JPEG, PNG,
                WebP, ...), PIL images, or decoded images (``uint8 [height, width, 3]``); or one of these. They are
                preprocessed as the model says, with the pixels that Pillow gives.

        Raises:
            NotFoundError: for a file that does not exist.
            ArgumentError, DataError: for an empty list, for an image that cannot be read, and for a backbone.
        """
        self._check_classifies()
        if is_path(images) or is_encoded(images) or is_pil(images) or (is_array(images) and images.ndim == 3):
            images = [images]
        images, native = list(images), self._ready()
        if not images:
            raise ArgumentError("images: there is no image")
        count("top_k", top_k, 1)
        if all(is_path(image) for image in images):
            found = native.predict([os.fspath(image) for image in images], top_k)
        elif any(is_path(image) for image in images):
            raise ArgumentError("images: paths and images in memory are mixed; give one kind")
        else:
            turns = self._model.preprocessing.get("orientation") == "exif"
            found = native.classify([picture(image, turns) for image in images], top_k)
        return [[Class(*each) for each in classes] for classes in found]

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    @property
    def threads(self) -> int:
        """Number of threads, including the caller's; 1 on a GPU."""
        return self._ready().threads

    @property
    def backend(self) -> str:
        """Name of the backend: ``cpu``, ``cuda``, ..."""
        return self._ready().backend

    def __repr__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"<swinq.Engine of {self._model.name} on {self.backend}, {threads}>"

    def __reduce__(self) -> Any:
        raise TypeError("an Engine cannot be copied or pickled; make one of a model that the other process opens")


def _bits(array: Any) -> Any:
    """The array; half precision as its bits, because the buffer protocol of the extension module has none."""
    return array.view(np.uint16) if array.dtype == np.float16 else array


def _host(values: Any, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The memory of an output of the caller in host memory."""
    array = values.detach().numpy() if is_tensor(values) and not values.is_cuda else values
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"out: `{name}` is a {type(values).__name__}; give an array of numpy or a tensor in host memory")
    check_shape(name, array.shape, shape)
    if array.dtype not in (np.float32, np.float16):
        raise ArgumentError(f"out: `{name}` is {array.dtype}; give float32 or float16")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ArgumentError(f"out: `{name}` must be contiguous memory that can be written")
    return array


def _names(outputs: Iterable[str]) -> list[str]:
    """The names of outputs to compute."""
    if isinstance(outputs, str):
        raise ArgumentError(f"outputs: `{outputs}` is one name; give a list of names")
    names = list(outputs)
    if not names:
        raise ArgumentError("outputs: there is no name")
    return names


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
        for name, value in numbers.items():
            count(name, value, 1 if name == "max_batch" else 0)
        native = self._native
        return Engine(self, lambda: _native.Engine(native, backend, numbers, residual))

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
        return _native.export(self._native, os.fspath(path), opset, target, fp16, str(batch), probs, input, size)

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
        return [Site(*row) for row in self._native.sites()]

    def __reduce__(self) -> Any:
        raise TypeError("a Model cannot be copied or pickled; save it, and open the file in the other process")

    def __repr__(self) -> str:
        kind = f"INT8, recipe {self.recipe}" if self.is_quantized else "float"
        outputs = [output["name"] for output in self._config.get("outputs", [])]
        what = f"backbone with {', '.join(outputs)}" if outputs else f"{self._config['num_classes']} classes"
        return f"<swinq.Model {self.name}, {what}, {kind}>"


def _stage(output: str) -> int:
    """The stage of an output, from 0."""
    number = output.removeprefix("stage")
    if not number.isdecimal() or int(number) == 0:
        raise ArgumentError(f"outputs: `{output}` is none of stage1, stage2, ...")
    return int(number) - 1


def _check_results(model: Any, preprocessing: Any, reading: _modules.Reading, native: _native.Model) -> None:
    """Refuses a live module of PyTorch that computes something else than the model that its own description makes of it."""
    torch, module = sys.modules.get("torch"), None if isinstance(model, Mapping) else _modules.unwrapped(model)
    if torch is None or not isinstance(module, torch.nn.Module):
        return
    cfg, opts, dialect, weights, prefix, family, labels, task, outputs, *_ = reading
    if outputs is not None or (opts and cfg is None):
        opts = [] if cfg is None else opts
        own: _modules.Reading = (cfg, opts, dialect, weights, prefix, family, labels, task, None, None, None)
        native = _modules.load(model, preprocessing, own)
    from ._torch_results import check_module

    check_module(module, Model(native))


def open(
    model: Any,
    *,
    preprocessing: Any = None,
    cfg: str | None = None,
    opts: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    dialect: str | None = None,
    weights: str | None = None,
    prefix: str | None = None,
    labels: PathLike | None = None,
    task: str | None = None,
    outputs: Iterable[str] | None = None,
    orientation: str | None = None,
    channels: str | None = None,
) -> Model:
    """Opens a model.

    Args:
        model: one of

            - the path of a quantized or float checkpoint, or of a Hugging Face or timm directory;
            - a live Swin: a classifier of timm, torchvision, transformers or Microsoft's repository, or a backbone of these, of
              OpenMMLab or of a detector in detectron2's manner. Its parameters are copied, its architecture is read from the
              module. A module of PyTorch runs one image of noise, and is refused if its outputs are not those of the float
              engine, without what ``opts`` and ``outputs`` change;
            - a state dictionary: a mapping from names to torch tensors or numpy arrays.
        preprocessing: of a model that does not contain it: the image processor of a transformers model, the
            ``weights.transforms()`` of torchvision, a data configuration of timm, ``"ms"``, ``"timm"``,
            ``"torchvision"`` or ``"hf"`` for the default of a family (not for a module of torchvision), or a mapping with the
            keys of :attr:`Model.preprocessing`. Default: timm's ``pretrained_cfg``, torchvision's and Microsoft's own. Of an image
            processor only the settings are taken: images are then prepared with Pillow's pixels. The processors of
            transformers 5 resize with torchvision instead, so their own batches differ a little (see the README).
        cfg: configuration of a bare checkpoint or state dictionary: a name of :func:`shipped_configs`, or a YAML file.
        opts: overrides of keys of the configuration, of ``cfg`` or of what the model itself states, such as
            ``{"MODEL.NUM_CLASSES": 10}``.
        dialect: naming of the tensors: ``microsoft``, ``timm``, ``hf``, ``torchvision``, ``openmmlab``, ``old-timm``, ``ft``;
            default: detected.
        weights: key of the weights in a file of ``torch.save`` that has several, such as ``teacher``; default: an average of
            the weights (``state_dict_ema``, ``model_ema``), else the weights themselves.
        prefix: what the names of the network's tensors begin with, such as ``model.``, if there are other tensors too;
            default: what all names begin with is left out.
        labels: file of class names, one per line.
        task: ``features`` reads a checkpoint as a backbone, ``classification`` as a classifier; default: what the checkpoint
            says. A live module is what it is.
        outputs: outputs of a backbone, such as ``["stage2", "stage3"]``; default: those that the model names, else those for
            which it has norms, else all.
        orientation: ``exif`` turns images as EXIF in their files states, ``stored`` leaves them; default: the rule of the library
            that reads such a checkpoint, or of a quantized checkpoint.
        channels: order of the three channels before the network, ``rgb`` or ``bgr``, also that of mean and deviation; default:
            ``rgb``, or that of a quantized checkpoint. Files and pictures are RGB and are put into this order; arrays that are
            prepared already have it.

    Raises:
        NotFoundError, ModelError, ArgumentError: with the messages of the program.
    """
    if isinstance(model, Model):
        raise ArgumentError("model: is open already")
    pairs = opts.items() if isinstance(opts, Mapping) else opts
    overrides = [(key, str(value)) for key, value in pairs]
    family = preprocessing if isinstance(preprocessing, str) else None
    names = None if labels is None else os.fspath(labels)
    stages = None if outputs is None else [_stage(name) for name in _names(outputs)]
    reading = (cfg, overrides, dialect, weights, prefix, family, names, task, stages, orientation, channels)
    if is_path(model):
        if preprocessing is not None and family is None:
            raise ArgumentError("preprocessing: of a file it is the name of a family: ms, timm, torchvision, hf")
        native = _native.Model.open(os.fspath(model), reading)
    else:
        native = _modules.load(model, preprocessing, reading)
        _check_results(model, preprocessing, reading, native)
    for warning in native.warnings:
        warnings.warn(warning, stacklevel=2)
    return Model(native)
