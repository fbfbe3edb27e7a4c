"""Paths and images of the tests."""

import io
import os
import unittest
import zipfile
from functools import cache
from pathlib import Path

import numpy as np

import swinq

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "samples"
MICRO = SAMPLES / "swin_micro_cifar10"
#: Photographs of the repository.
PHOTO = ROOT / "tests/data/airplane.jpg"


def micro() -> swinq.Model:
    """The float model of the sample."""
    return swinq.open(MICRO / "model.safetensors", cfg=str(MICRO / "cfg.yaml"))


@cache
def models() -> tuple[swinq.Model, swinq.Model]:
    """The sample in float, and calibrated."""
    model = micro()
    return model, swinq.quantize(model, SAMPLES / "cifar10", limit=16)


class Quantized(unittest.TestCase):
    """Tests of the sample, which is calibrated once in a process."""

    @classmethod
    def setUpClass(cls):
        cls.float, cls.int8 = models()


def noise(model: swinq.Model, images: int, seed: int = 0, size: tuple[int, int] | None = None) -> np.ndarray:
    """Random pixels for ``model``, ``uint8 [images, height, width, 3]``, of its own size unless ``size`` states another."""
    return np.random.default_rng(seed).integers(0, 256, (images, *(size or model.input_size), 3), np.uint8)


def normalised(pixels: np.ndarray, model: swinq.Model) -> np.ndarray:
    """``pixels`` as torchvision's ``ToTensor`` and ``Normalize`` give them, ``float32 [images, 3, height, width]``."""
    mean, std = (np.array(model.preprocessing[key], np.float32) for key in ("mean", "std"))
    return np.ascontiguousarray(((pixels.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2))
