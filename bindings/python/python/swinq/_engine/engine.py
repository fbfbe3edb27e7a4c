"""Engines: calls with images in host memory or on a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from .._common import processes
from .._common.arrays import check_shape, input_of, is_array, is_tensor
from .._common.errors import ArgumentError, count
from .device import is_on_gpu, run_on_gpu
from .images import is_encoded, is_path, is_pil, picture

if TYPE_CHECKING:
    from .model import Model

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
        processes.remember(self)

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
        on_gpu = native.gpu is not None and is_on_gpu(images)
        types = ("float32", "float16", "bfloat16") if on_gpu else ("float32", "float16")
        if dtype not in types:
            raise ArgumentError(f"dtype: {dtype!r} is none of {', '.join(types)}")
        if out_layout not in ("NCHW", "NHWC"):
            raise ArgumentError(f"out_layout: `{out_layout}` is unknown; give NHWC or NCHW")
        names = output_names((out or self._outputs) if outputs is None else outputs)
        shape_of = self._shape if out_layout == "NCHW" else self._shape_in_nhwc
        if on_gpu:
            layouts = (layout, out_layout)
            return run_on_gpu(native, images, names, shape_of, self._channels, layouts=layouts, dtype=dtype, out=out, stream=stream)
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


def output_names(outputs: Iterable[str]) -> list[str]:
    """The names of outputs to compute."""
    if isinstance(outputs, str):
        raise ArgumentError(f"outputs: `{outputs}` is one name; give a list of names")
    names = list(outputs)
    if not names:
        raise ArgumentError("outputs: there is no name")
    return names
