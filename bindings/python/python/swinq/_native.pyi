"""The extension module. It is private; the public functions are those of the package."""

import os
from collections.abc import Callable, Sequence
from typing import Any

__version__: str

_Reading = tuple[
    str | None,
    Sequence[tuple[str, str]],
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    Sequence[int] | None,
]
_Tensor = tuple[str, str, Sequence[int], Any]
_Class = tuple[int, str | None, float]
_Progress = Callable[[str, int, int], object]

#: An image in memory: width, height and ``uint8 [height, width, 3]``, or the bytes of a file.
Picture = tuple[int, int, Any] | bytes | bytearray

def run_command(arguments: Sequence[str]) -> int: ...
def shipped_configs() -> list[str]:
    """The names of the shipped configurations, for ``cfg``."""

def family_transform(name: str) -> str | None: ...
def quantize(
    model: Model,
    images: Images,
    recipe: str,
    is_text: bool,
    ptq: str | None,
    batch_size: int,
    threads: int,
    skip_corrupt: int,
    progress: _Progress | None,
) -> tuple[Model, list[str]]: ...
def evaluate(
    models: Sequence[tuple[str, Model]],
    images: Images,
    backend: str,
    threads: int,
    batch_size: int,
    latency: Sequence[int],
    skip_corrupt: int,
    progress: _Progress | None,
) -> tuple[str, str, list[str]]: ...
def export(
    model: Model,
    path: str | os.PathLike[str],
    opset: int,
    target: str,
    fp16: bool,
    batch: str,
    probs: str | None,
    input: str,
) -> list[str]: ...

class Model:
    @staticmethod
    def open(path: str | os.PathLike[str], reading: _Reading) -> Model: ...
    @staticmethod
    def from_memory(
        name: str,
        tensors: Sequence[_Tensor],
        config: str | None,
        preprocessor: str | None,
        transform: str | None,
        windows: str | None,
        reading: _Reading,
    ) -> Model: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
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
    def sites(self) -> list[tuple[str, bool, int, str, str, float | None, float | None]]: ...

class Engine:
    def __new__(cls, model: Model, backend: str, numbers: dict[str, int], residual: str) -> Engine: ...
    def run(self, images: Any, layout: str, outputs: Sequence[tuple[str, Any]]) -> None: ...
    @property
    def outputs(self) -> list[str]: ...
    def output_shape(self, name: str, height: int, width: int) -> list[int]: ...
    def predict(self, paths: Sequence[str], k: int) -> list[list[_Class]]: ...
    def classify(self, images: Sequence[Picture], k: int) -> list[list[_Class]]: ...
    @property
    def channels(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def backend(self) -> str: ...

class Images:
    @staticmethod
    def open(path: str | os.PathLike[str], split: str, limit: int | None, seed: int) -> Images: ...
    @staticmethod
    def from_files(paths: Sequence[str]) -> Images: ...
    def __len__(self) -> int: ...

class Collector:
    def __new__(cls, model: Model) -> Collector: ...
    @property
    def image(self) -> tuple[int, int, int]: ...
    @property
    def any_values(self) -> bool: ...
    def add_image(self, image: Picture) -> None: ...
    def add_pixels(self, pixels: Any) -> None: ...
    def add_normalized(self, values: Any) -> None: ...
    def add_values(self, values: Any, height: int, width: int) -> None: ...
    def add_labels(self, labels: Sequence[int]) -> None: ...
    def finish(self) -> Images: ...
