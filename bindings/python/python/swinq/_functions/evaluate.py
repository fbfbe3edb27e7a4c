"""Evaluation."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _native
from .._common import processes
from .._common.border import NamedModel, ReadingImages
from .._common.errors import ArgumentError, count
from .._common.progress import Progress, observed
from .._engine.images import PathLike, collect, is_path
from .._engine.model import Model, check_engine
from .open import open


class Evaluation:
    """Results of :func:`evaluate`. ``str`` gives the program's table.

    Attributes:
        results: the results as the program writes them in JSON.
        models: the figures of each model, in order: ``name``, ``images``; ``top1_correct``, ``top5_correct``, which are
            absent for images without labels; against the first model ``agreement``, ``sqnr_db``, ``cosine``; ``latency_ms``
            by batch size.
    """

    def __init__(self, text: str, table: str) -> None:
        self.results: dict[str, Any] = json.loads(text)
        self.models: list[dict[str, Any]] = self.results["models"]
        self._table = table

    def __str__(self) -> str:
        return self._table

    def __repr__(self) -> str:
        return f"<swinq.Evaluation of {', '.join(model['name'] for model in self.models)}>"


def evaluate(
    models: Any | Iterable[Any] | Mapping[str, Any],
    images: PathLike | Iterable[Any],
    *,
    split: str = "val",
    limit: int | None = None,
    seed: int = 0,
    backend: str = "auto",
    threads: int = 0,
    batch_size: int = 8,
    latency: Iterable[int] = (),
    skip_corrupt: int = 0,
    progress: bool | Progress | None = None,
) -> Evaluation:
    """Accuracy of models, agreement of each with the first, and latency.

    Args:
        models: a model, a list of models, or a mapping from names to models; each a :class:`Model` or anything that
            :func:`open` takes. Give the float model first to compare with it. Without a mapping, a model has the name of
            its file, else of its recipe (``float`` for a float model).
        images: as for :func:`quantize`: a data set, or batches in tuples or mappings with their labels. Without labels
            there is no accuracy, but two or more models are compared. Images in memory are preprocessed with the first
            model's preprocessing.
        split, limit, seed, skip_corrupt: as for :func:`quantize`.
        backend: ``auto``, ``cpu`` or ``cuda``.
        threads: threads of the engines and of decoding; 0 is one per core.
        batch_size: images per batch.
        latency: batch sizes whose latency is measured after the accuracy.
        progress: as for :func:`quantize`.

    Raises:
        NotFoundError: for a path at which nothing exists.
        DataError: also for one model and images without labels, which give no figure.
        ArgumentError, ModelError, EngineError, EvaluationError: with the messages of the program.
    """
    processes.start_threads("evaluate")
    if isinstance(latency, str) or not isinstance(latency, Iterable):
        raise ArgumentError(f"latency: is {latency!r}; give a list of batch sizes, such as [1, 8]")
    sizes = list(latency)
    for name, value, least in (
        ("threads", threads, 0),
        ("batch_size", batch_size, 1),
        ("skip_corrupt", skip_corrupt, 0),
        *(("latency", size, 1) for size in sizes),
    ):
        count(name, value, least)
    check_engine(backend, {"threads": threads})
    with observed(progress) as function:
        named = _named(models)
        if not named:
            raise ArgumentError("models: there is no model to evaluate")
        first = named[0][1]
        chosen = collect(first._native, images, split=split, limit=limit, seed=seed)
        candidates = [NamedModel(name, model._native) for name, model in named]
        reading = ReadingImages(batch_size, threads, skip_corrupt)
        found = _native.evaluate(candidates, chosen, backend, reading, sizes, function)
    for message in found.skipped:
        warnings.warn(f"left out: {message}", stacklevel=2)
    if (turned := chosen.turned()) is not None:
        warnings.warn(turned, stacklevel=2)
    return Evaluation(found.results, found.table)


def _named(models: Any) -> list[tuple[str, Model]]:
    """The models, opened, each with a name of its own."""
    if isinstance(models, Mapping):
        return [(str(name), _opened(model)) for name, model in models.items()]
    if not isinstance(models, list | tuple):
        models = [models]
    opened = [_opened(model) for model in models]
    names = [_name(given, model) for given, model in zip(models, opened)]
    repeated = {name for name in names if names.count(name) > 1}
    return [(f"{name} {i}" if name in repeated else name, model) for i, (name, model) in enumerate(zip(names, opened), 1)]


def _opened(model: Any) -> Model:
    return model if isinstance(model, Model) else open(model)


def _name(given: Any, model: Model) -> str:
    """The name of a model that the caller gave no name: of its file, else of its recipe."""
    if is_path(given):
        path: str = os.path.normpath(given)
        name = os.path.basename(path)
        return name if os.path.isdir(path) else os.path.splitext(name)[0]
    return model.recipe
