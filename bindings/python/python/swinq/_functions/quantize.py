"""Calibration."""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _native
from .._common import processes
from .._common.border import ReadingImages, RecipeText
from .._common.errors import ArgumentError, count, nearest
from .._common.progress import Progress, observed
from .._engine.images import PathLike, collect
from .._engine.model import Model
from .open import open


def quantize(
    model: Any,
    images: PathLike | Iterable[Any],
    recipe: str | os.PathLike[str] | Mapping[str, Any] = "default",
    *,
    ptq: str | None = None,
    split: str = "train",
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 8,
    threads: int = 0,
    skip_corrupt: int = 0,
    progress: bool | Progress | None = None,
    **reading: Any,
) -> Model:
    """Quantizes a float model to INT8: finds the range of every site on ``images`` and applies the recipe.

    The result depends on the model, the recipe and the images in their order alone, and equals that of
    ``swinq calibrate`` for the same images.

    Args:
        model: a :class:`Model`, or anything that :func:`open` takes, with its keyword arguments ``reading``: a live
            module of timm, torchvision, transformers or Microsoft, a path, a state dictionary.
        images: the path of a data set (a folder with `train` and `val`, each with a folder per class or as zip archives of
            Swin; a folder of images; a list file), a map-style data set of PyTorch, or an iterable of

            - paths, or the bytes of image files, PIL images, or ``uint8 [height, width, 3]`` arrays, which are
              preprocessed as the model says;
            - batches that are preprocessed, ``uint8 [n, height, width, 3]`` or ``float [n, 3, height, width]``, alone, in a
              tuple with their labels, or in a mapping under ``pixel_values``, as a DataLoader gives them.
              Floats for a classifier are those of 8-bit pixels. Floats for a backbone are any finite values, and batches may
              have different heights and widths.
        recipe: ``default``, ``mode1``, ``mode2``, a YAML file, or a mapping with the keys of such a file (`name`, `rules`).
        ptq: how the numbers of every layer are found: ``basic`` (the calibrators of the recipe choose ranges, weights are
            rounded to the nearest code), ``refined`` (layers are rewritten and ranges searched so that the error of the
            layers' outputs falls) or ``reconstruct`` (also the rounding of weights; takes minutes). ``None``: as the recipe
            states for each layer; the shipped recipes say ``refined`` where it helps.
        split: part of the data set at a path, ``train`` or ``val``.
        limit: number of images; of a data set at a path a seeded sample spread over the classes, else the first.
        seed: seed of that sample.
        batch_size: images per batch of the float forward.
        threads: decoding threads; 0 is one per core.
        skip_corrupt: number of corrupt files that are left out, with a warning; one more is an error.
        progress: ``True`` for a bar of tqdm, ``False`` for none, or a function ``(phase, done, total)``; ``None`` shows the bar if
            stderr is a terminal and tqdm is installed. An exception that it raises stops the calibration.

    A model without class names takes those of a data set with as many classes, with a warning.

    Ctrl-C ends the call within half a second. A layer in work is finished first, in another thread.

    Raises:
        NotFoundError: for a path at which nothing exists.
        ArgumentError, ModelError, DataError, CalibrationError: with the messages of the program.
    """
    check_reading(reading)
    check_recipe(None, recipe, ptq)
    for name, value, least in (("threads", threads, 0), ("batch_size", batch_size, 1), ("skip_corrupt", skip_corrupt, 0)):
        count(name, value, least)
    with observed(progress) as function:
        if not isinstance(model, Model):
            model = open(model, **reading)
        elif reading:
            raise ArgumentError(f"{next(iter(reading))}: is no argument for a model that is open already")
        check_recipe(model, recipe, ptq)
        processes.start_threads("quantize")
        chosen = collect(model._native, images, split=split, limit=limit, seed=seed)
        reading_images = ReadingImages(batch_size, threads, skip_corrupt)
        found = _native.quantize(model._native, chosen, recipe_text(recipe, ptq), reading_images, function)
    for message in found.skipped:
        warnings.warn(f"left out: {message}", stacklevel=2)
    if (turned := chosen.turned()) is not None:
        warnings.warn(turned, stacklevel=2)
    quantized = Model(found.model)
    if model.labels is None and quantized.labels is not None:
        first = ", ".join(quantized.labels[:3])
        warnings.warn(
            f"the model has no class names, so those of the images are taken ({first}, ...); if they are not the model's, "
            "open it with labels=",
            stacklevel=2,
        )
    return quantized


def check_reading(reading: Mapping[str, Any]) -> None:
    """Refuses an argument that neither :func:`quantize` nor :func:`open` has."""
    known = [name for name in (inspect.signature(open).parameters | inspect.signature(quantize).parameters) if name != "reading"]
    for name in reading:
        if name not in known:
            hint = "; limit= is the number of images" if name in ("samples", "num_samples") else nearest(name, known)
            raise ArgumentError(f"{name}: is no argument of quantize{hint}")


def recipe_text(recipe: Any, ptq: str | None) -> RecipeText:
    """A recipe for the extension module."""
    if recipe is None:
        raise ArgumentError("recipe: is None; give a name, a file or a mapping, such as 'default'")
    mapping = isinstance(recipe, Mapping)
    return RecipeText(json.dumps(recipe) if mapping else os.fspath(recipe), mapping, ptq)


def check_recipe(model: Model | None, recipe: Any, ptq: str | None) -> None:
    """Refuses a recipe or ``ptq`` that cannot be read, or that does not fit ``model``, if there is one.

    Raises:
        ArgumentError, NotFoundError, ModelError, CalibrationError: as :func:`quantize`.
    """
    _native.check_recipe(None if model is None else model._native, recipe_text(recipe, ptq))
