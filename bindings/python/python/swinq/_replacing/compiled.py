"""Engines in the graphs of ``torch.compile``: the operator ``swinq::run``."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

#: The modules that graphs run, by the numbers that their graphs hold.
_modules: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def registered(module: Any) -> int:
    """The number of a module, by which graphs find it as long as it lives."""
    number = next(_numbers)
    _modules[number] = module
    return number


def _run(images: torch.Tensor, module: int) -> list[torch.Tensor]:
    swin = _modules[module]
    swin.check_images(images)
    return list(swin.computed(images).values())


def _shapes(images: torch.Tensor, module: int) -> list[torch.Tensor]:
    swin = _modules[module]
    return [images.new_empty(shape, dtype=dtype) for shape, dtype in swin.computed_shapes(images)]


#: Runs the module of a number on images ``[n, channels, height, width]``, and gives its outputs as the engine writes them. A graph
#: is made for each size of images.
_operator = torch.library.custom_op("swinq::run", _run, mutates_args=(), schema="(Tensor images, int module) -> Tensor[]")
_operator.register_fake(_shapes)


def run_in_graph(images: Any, module: int) -> list[Any]:
    """The outputs of the module of a number, as an operator of a graph."""
    found: list[Any] = torch.ops.swinq.run(images, module)
    return found
