"""Images from Python: paths, PIL images, arrays, and batches of a DataLoader."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .. import _native
from .._common.arrays import is_array, not_pixels, pixels_of, to_numpy, values_of
from .._common.errors import ArgumentError, count

PathLike = str | os.PathLike[str]

#: Keys of a batch that is a mapping, as data sets of transformers give it.
PIXELS = ("pixel_values", "image", "images")
LABELS = ("labels", "label")


def is_path(value: Any) -> bool:
    """Whether ``value`` is a path."""
    return isinstance(value, str | os.PathLike)


def is_pil(value: Any) -> bool:
    """Whether ``value`` is an image of Pillow."""
    return hasattr(value, "convert") and hasattr(value, "size") and hasattr(value, "tobytes")


def is_encoded(value: Any) -> bool:
    """Whether ``value`` holds the bytes of an image file."""
    return isinstance(value, bytes | bytearray | memoryview)


def turned(image: Any) -> Any:
    """An image of Pillow, turned as its EXIF states. Pillow raises errors of many kinds for damaged
    EXIF, which turns nothing."""
    try:
        from PIL import ImageOps

        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def picture(image: Any, turns: bool) -> _native.Picture:
    """An image of Pillow or an array as width, height and ``uint8 [height, width, 3]``; the bytes of a file as they are. ``turns``
    says whether images of Pillow are turned as EXIF states."""
    if is_encoded(image):
        return image if isinstance(image, bytes | bytearray) else image.tobytes()
    if is_pil(image):
        image = (turned(image) if turns else image).convert("RGB")
        return (*image.size, image.tobytes())
    if not is_array(image):
        raise ArgumentError(f"images: {type(image).__name__} is neither a path, the bytes of a file, a PIL image nor an array")
    array = to_numpy(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        hint = "; for an image that is encoded, give tobytes()" if array.dtype == np.uint8 and array.ndim < 3 else ""
        raise ArgumentError(f"images: an array of {array.dtype} {list(array.shape)} is not uint8 [height, width, 3]{hint}")
    return array.shape[1], array.shape[0], np.ascontiguousarray(array)


def collect(
    model: _native.Model,
    images: Any,
    *,
    split: str,
    limit: int | None,
    seed: int,
) -> _native.Images:
    """The images that ``images`` names or holds, in its order.

    A path is opened as by the program. Of any other source at most ``limit`` images are taken. Only their
    preprocessed pixels stay in memory, ``height * width * channels`` bytes each.
    """
    if limit is not None:
        count("limit", limit, 1)
    if isinstance(images, _native.Images):
        return images
    if is_path(images):
        return _native.Images.open(os.fspath(images), split, limit, seed)
    if is_array(images) or is_pil(images) or is_encoded(images):
        images = [images]
    if not isinstance(images, Iterable) and hasattr(images, "__getitem__") and hasattr(images, "__len__"):
        # A map-style data set of PyTorch.
        images = map(images.__getitem__, range(len(images)))
    if not isinstance(images, Iterable):
        raise ArgumentError(f"images: {type(images).__name__} is neither a path nor iterable")
    return _Collection(model, limit).of(images)


class _Collection:
    """Images that are being collected, at most ``limit``."""

    def __init__(self, model: _native.Model, limit: int | None) -> None:
        self.collector = _native.Collector(model)
        self.paths: list[str] = []
        self.limit = limit
        self.images = self.labelled = 0

    def of(self, items: Iterable[Any]) -> _native.Images:
        """The images of ``items``."""
        for item in items:
            self.add(item)
            if self.limit is not None and self.images >= self.limit:
                break
        if self.images == 0:
            raise ArgumentError("images: there is no image")
        if self.paths:
            if len(self.paths) != self.images:
                raise ArgumentError("images: paths and decoded images are mixed; give one kind")
            return _native.Images.from_files(self.paths)
        if self.labelled not in (0, self.images):
            raise ArgumentError(f"images: {self.labelled} labels for {self.images} images")
        return self.collector.finish()

    def add(self, item: Any) -> None:
        """Adds one item of the iterable: an image, a batch, or either with labels."""
        if isinstance(item, Mapping):
            pixels = next((item[key] for key in PIXELS if key in item), None)
            if pixels is None:
                raise ArgumentError(f"images: a batch with the keys {list(item)}, none of which is {' or '.join(PIXELS)}")
            return self.add_labelled(pixels, next((item[key] for key in LABELS if key in item), None))
        if isinstance(item, tuple | list) and len(item) == 2 and not is_path(item[0]):
            return self.add_labelled(item[0], item[1])
        if isinstance(item, tuple | list) and len(item) == 1:
            return self.add_labelled(item[0], None)
        self.add_labelled(item, None)

    def add_labelled(self, pixels: Any, labels: Any) -> None:
        """Adds an image or a batch, with its labels if there are any."""
        before = self.images
        if is_path(pixels):
            self.paths.append(os.fspath(pixels))
            self.images += 1
        elif is_array(pixels) and pixels.ndim == 4:
            self.add_batch(pixels)
        elif is_array(pixels) and pixels.ndim == 3 and to_numpy(pixels).dtype.kind == "f":
            self.add_batch(pixels[None])
        elif is_array(pixels) or is_pil(pixels) or is_encoded(pixels):
            self.collector.add_image(picture(pixels, self.collector.turns))
            self.images += 1
        else:
            what = type(pixels).__name__
            if isinstance(pixels, tuple | list):
                what = f"a {what} of {len(pixels)} (expected are images, or images and labels)"
            raise ArgumentError(f"images: {what} is neither a path, the bytes of a file, a PIL image, an array nor a batch")
        if labels is not None:
            self.add_labels(labels, self.images - before)

    def add_batch(self, batch: Any) -> None:
        """Adds images that are preprocessed."""
        height, width, channels = self.collector.image
        if self.collector.any_values and to_numpy(batch).dtype.kind == "f":
            values = values_of(batch, channels)
            if self.limit is not None:
                values = values[: self.limit - self.images]
            self.collector.add_values(values, *values.shape[2:])
            self.images += len(values)
            return
        given, batch = batch, pixels_of(batch, channels, (height, width), self.collector.any_values)
        if self.limit is not None:
            batch = batch[: self.limit - self.images]
        if batch.dtype == np.uint8:
            self.collector.add_pixels(batch)
        else:
            try:
                self.collector.add_normalized(batch)
            except ArgumentError as error:
                raise not_pixels(error, batch, given) from None
        self.images += len(batch)

    def add_labels(self, labels: Any, count: int) -> None:
        """Adds the labels of the last ``count`` images."""
        found = np.atleast_1d(to_numpy(labels) if is_array(labels) else np.asarray(labels))
        if found.dtype.kind not in "iu" or found.ndim != 1 or len(found) < count or (found < 0).any():
            raise ArgumentError("images: labels are one class number for each image")
        self.collector.add_labels(found[:count].tolist())
        self.labelled += count
