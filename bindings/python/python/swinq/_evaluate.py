"""Evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from . import _native, _process
from ._arrays import count
from ._errors import ArgumentError
from ._images import PathLike, collect
from ._model import Model, open
from ._progress import Progress, close, observer


class Evaluation:
    """Results of :func:`evaluate`. ``str`` gives the program's table.

    Attributes:
        results: the results as the program writes them in JSON.
        models: the figures of each model, in order: ``name``, ``images``, ``top1_correct``, ``top5_correct``; against the
            first model ``agreement``, ``sqnr_db``, ``cosine``; ``latency_ms`` by batch size.
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
            :func:`open` takes. Give the float model first to compare with it.
        images: as for :func:`quantize`, with labels: a data set, or batches in tuples or mappings with their labels.
            Images in memory are preprocessed with the first model's preprocessing.
        split, limit, seed, skip_corrupt: as for :func:`quantize`.
        backend: ``auto``, ``cpu`` or ``cuda``.
        threads: threads of the engines and of decoding; 0 is one per core.
        batch_size: images per batch.
        latency: batch sizes whose latency is measured after the accuracy.
        progress: ``True`` for a bar of tqdm, or a function ``(phase, done, total)``.

    Raises:
        ArgumentError, ModelError, DataError, EngineError, EvaluationError: with the messages of the program.
    """
    _process.start_threads("evaluate")
    count("threads", threads, 0)
    named = [(name, model if isinstance(model, Model) else open(model)) for name, model in _named(models)]
    if not named:
        raise ArgumentError("models: there is no model to evaluate")
    first = named[0][1]
    chosen = collect(first._native, first.config["image_size"], images, split=split, limit=limit, seed=seed)
    function = observer(progress)
    candidates = [(name, model._native) for name, model in named]
    try:
        text, table = _native.evaluate(
            candidates, chosen, backend, threads, batch_size, list(latency), skip_corrupt, function
        )
    finally:
        close(function)
    return Evaluation(text, table)


def _named(models: Any) -> list[tuple[str, Any]]:
    if isinstance(models, Mapping):
        return list(models.items())
    if not isinstance(models, list | tuple):
        models = [models]
    names = ["float" if isinstance(model, Model) and not model.is_quantized else "int8" for model in models]
    single = len(set(names)) == len(names)
    return [(name if single else f"{name} {index}", model) for index, (name, model) in enumerate(zip(names, models))]
