"""The extension module. It is private; the public functions are those of the package."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from ._common import border as _border

__version__: str

_Progress = Callable[[str, int, int], object]

#: An image in memory: width, height and ``uint8 [height, width, 3]``, or the bytes of a file.
Picture = tuple[int, int, Any] | bytes | bytearray

def run_command(arguments: Sequence[str]) -> int: ...
def shipped_configs() -> list[str]:
    """The names of the shipped configurations, of classifiers and of backbones, for ``cfg``."""

def family_transform(name: str) -> str | None: ...
class Calibrated:
    model: Model
    skipped: list[str]

def quantize(
    model: Model, images: Images, recipe: _border.RecipeText, reading: _border.ReadingImages, progress: _Progress | None
) -> Calibrated: ...
def check_recipe(model: Model | None, recipe: _border.RecipeText) -> None: ...
def check_engine(engine: _border.EngineChoice) -> None: ...
def check_gpu() -> None: ...

class LoadMeter:
    def disturbance(self) -> float | None: ...

def check_tune(
    model: Model, recipe: _border.RecipeText, engine: _border.EngineChoice, batch_size: int, goal: _border.Goal, kept: _border.Kept
) -> None: ...
def check_sensitivity(model: Model, recipe: _border.RecipeText, parts: _border.Parts, kept: _border.Kept) -> None: ...

class Tuned:
    results: str
    model: Model
    warnings: list[str]
    ending: str

def tune(
    model: Model,
    images: Images,
    recipe: _border.RecipeText,
    engine: _border.EngineChoice,
    batch_size: int,
    goal: _border.Goal,
    kept: _border.Kept,
    caller: _border.Caller,
) -> Tuned: ...

class Measured:
    results: str
    warning: str | None

def sensitivity(
    model: Model,
    images: Images,
    recipe: _border.RecipeText,
    threads: int,
    parts: _border.Parts,
    kept: _border.Kept,
    caller: _border.Caller,
) -> Measured: ...

class Evaluated:
    results: str
    table: str
    skipped: list[str]

def evaluate(
    models: Sequence[_border.NamedModel],
    images: Images,
    backend: str,
    reading: _border.ReadingImages,
    latency: Sequence[int],
    progress: _Progress | None,
) -> Evaluated: ...
def export(
    model: Model,
    path: str | os.PathLike[str],
    options: _border.GraphOptions,
) -> list[str]: ...

class SiteRow:
    name: str
    quantized: bool
    bits: int
    kind: str
    granularity: str
    amax: float | None
    scale: float | None

class Model:
    @staticmethod
    def open(path: str | os.PathLike[str], reading: _border.Reading) -> Model: ...
    @staticmethod
    def from_memory(source: _border.Source, reading: _border.Reading) -> Model: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def check_cuda(self) -> None: ...
    @property
    def is_quantized(self) -> bool: ...
    @property
    def config(self) -> str: ...
    @property
    def transform(self) -> str: ...
    @property
    def recipe(self) -> str: ...
    @property
    def labels(self) -> list[str] | None: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def size_bytes(self) -> int: ...
    def sites(self) -> list[SiteRow]: ...

class ClassRow:
    index: int
    label: str | None
    probability: float

class Engine:
    def __new__(cls, model: Model, backend: str, numbers: dict[str, int], residual: str, other: Engine | None = None) -> Engine: ...
    def run(self, images: Any, layout: str, outputs: Sequence[tuple[str, Any]], out_layout: str) -> None: ...
    @property
    def outputs(self) -> list[str]: ...
    def output_shape(self, name: str, height: int, width: int) -> list[int]: ...
    def predict(self, paths: Sequence[str], k: int) -> list[list[ClassRow]]: ...
    def classify(self, images: Sequence[Picture], k: int) -> list[list[ClassRow]]: ...
    @property
    def channels(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def gpu(self) -> int | None: ...
    @property
    def backend(self) -> str: ...

def run_on(
    engine: Engine,
    images: _border.GpuImages,
    outputs: Sequence[_border.GpuOutput],
    out_layout: str,
    stream: int,
    after: Sequence[int],
) -> None: ...
def prepare(engine: Engine, height: int, width: int, images: int) -> None: ...
def prepare_on(engine: Engine, height: int, width: int, images: int, stream: int) -> None: ...
def check(engine: Engine) -> None: ...

class DeviceArray:
    def __new__(cls, capsule: Any) -> DeviceArray: ...
    @property
    def data(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def is_dense(self) -> bool: ...
    @property
    def dtype(self) -> str: ...
    @property
    def is_read_only(self) -> bool: ...

class Images:
    @staticmethod
    def open(path: str | os.PathLike[str], split: str, limit: int | None, seed: int) -> Images: ...
    @staticmethod
    def from_files(paths: Sequence[str]) -> Images: ...
    def __len__(self) -> int: ...
    def turned(self) -> str | None: ...

class Collector:
    def __new__(cls, model: Model) -> Collector: ...
    @property
    def image(self) -> tuple[int, int, int]: ...
    @property
    def any_values(self) -> bool: ...
    @property
    def turns(self) -> bool: ...
    def add_image(self, image: Picture) -> None: ...
    def add_pixels(self, pixels: Any) -> None: ...
    def add_normalized(self, values: Any) -> None: ...
    def add_values(self, values: Any, height: int, width: int) -> None: ...
    def add_labels(self, labels: Sequence[int]) -> None: ...
    def finish(self) -> Images: ...

class Contract:
    code_min: float
    code_max: float
    edge: float
    signed_rounder: float
    rounder: float
    gelu_per_unit: float
    gelu_last: float
    exp_255: tuple[float, float, float, float, float]
    log2_e: float
    code_floor: float
    lo_steps: float
    hi_lo_from: float
    largest_scale: float
    largest_bias: float
    mask: float

def contract() -> Contract: ...
def gelu_table() -> bytes: ...
def fingerprint(arrays: Sequence[Any]) -> int: ...

class StoredParameter:
    name: str
    parameter: str
    values: str

class FloatTensor:
    name: str
    shape: list[int]
    values: bytes

class QuantizedSite:
    name: str
    bits: int
    of_largest: bool
    amax: float | None
    factors: bytes | None
    zero_points: bytes | None
    scales: bytes | None

class Stage:
    depth: int
    channels: int
    heads: int
    window: list[int]
    bias_rows: bytes
    regions: bytes

class Grid:
    size: list[int]
    plain: bytes
    shifted: bytes
    masks: bytes
    merge: bytes

def stored_parameters(model: Model) -> list[StoredParameter]: ...
def parameters(model: Model) -> list[FloatTensor]: ...
def quantized_sites(model: Model) -> list[QuantizedSite]: ...
def stages(model: Model) -> list[Stage]: ...
def grids(model: Model, height: int, width: int) -> list[Grid]: ...
def trained(
    model: Model,
    tensors: Sequence[_border.TrainedTensor],
    ranges: dict[str, float],
    channels: dict[str, _border.ChannelScales],
    weight_scales: dict[str, Sequence[float]],
) -> Model: ...
