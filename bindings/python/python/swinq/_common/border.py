"""Arguments of the extension module that have several parts, by name. Rust reads them by these names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Reading(NamedTuple):
    """How a model is read: the arguments of :func:`swinq.open`."""

    cfg: str | None = None
    opts: Sequence[tuple[str, str]] = ()
    dialect: str | None = None
    weights: str | None = None
    prefix: str | None = None
    #: The family of the preprocessing.
    family: str | None = None
    labels: str | None = None
    task: str | None = None
    #: Numbers of stages, from 0.
    outputs: Sequence[int] | None = None
    orientation: str | None = None
    channels: str | None = None


class StoredTensor(NamedTuple):
    """A tensor of a state dictionary."""

    name: str
    #: ``float16``, ``bfloat16``, ``float32``, ``float64``, or ``other`` for types that no parameter has.
    element: str
    shape: Sequence[int]
    #: Its memory, ``uint8``; empty for ``other``.
    bytes: Any


class Source(NamedTuple):
    """A float model in memory."""

    name: str
    tensors: Sequence[StoredTensor]
    #: JSON documents of its library.
    config: str | None = None
    preprocessor: str | None = None
    #: A preprocessing in JSON.
    transform: str | None = None
    #: The name of the rule for windows.
    windows: str | None = None


class GpuImages(NamedTuple):
    """Images in memory of a GPU."""

    address: int
    dtype: str
    layout: str
    number: int
    height: int
    width: int


class GpuOutput(NamedTuple):
    """Memory of a GPU for an output."""

    name: str
    address: int
    dtype: str


class GraphOptions(NamedTuple):
    """How a model is exported: the arguments of :meth:`swinq.Model.export`."""

    opset: int
    target: str
    fp16: bool
    #: A number, or ``free``.
    batch: str
    probs: str | None
    input: str
    size: tuple[int, int] | str | None


class TrainedTensor(NamedTuple):
    """A trained parameter."""

    name: str
    shape: Sequence[int]
    #: ``float32``.
    values: Any


class ChannelScales(NamedTuple):
    """The channels of a quantized activation."""

    factors: Sequence[float]
    zero_points: Sequence[int]


class RecipeText(NamedTuple):
    """A recipe."""

    #: Its name, its file, or its text.
    recipe: str
    is_text: bool
    #: How the numbers of each layer are found, where it is not as the recipe says.
    ptq: str | None = None


class ReadingImages(NamedTuple):
    """How images are read."""

    batch_size: int
    #: 0 is one per core.
    threads: int = 0
    skip_corrupt: int = 0


class EngineChoice(NamedTuple):
    """An engine: the arguments of :meth:`swinq.Model.engine`."""

    backend: str
    numbers: Mapping[str, int]
    residual: str


class Goal(NamedTuple):
    """What a search looks for, and for how many minutes."""

    max_drop: float
    min_speedup: float | None
    budget: float | None


class Kept(NamedTuple):
    """The files that a search keeps."""

    cache: str | None
    #: The table of latencies.
    latencies: str | None = None


class Parts(NamedTuple):
    """The parts that are left in float one by one: of a kind, with names that a pattern matches."""

    kind: str
    pattern: str


class Caller(NamedTuple):
    """What a search calls, and what the values of its metric depend on."""

    #: Called with a model of the extension module, or ``None`` for the caller's own; returns a float.
    evaluate: Callable[[Any], float]
    metric: str
    context: str
    #: Called with what the cache held: numbers of measurements that are kept and of damaged lines, and whether it was another run's.
    on_cache: Callable[[int, int, bool], object]
    progress: Callable[[str, int, int], object] | None


class NamedModel(NamedTuple):
    """A model that is evaluated."""

    name: str
    #: Of the extension module.
    model: Any
