"""Runs of a program whose choices by score are recorded, and taken again in another run.

A program that differs in its last bits may choose another query, box, class or pixel, and everything behind such a choice then
differs by as much as it likes. With the choices of the first run in the second one, every tensor can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torchvision  # noqa: F401  defines torchvision::nms
from torch.utils._python_dispatch import TorchDispatchMode
from torch_support import error, leaves

import swinq.torch

#: Operators that give a choice, and operators that give values with the indices that they chose; all of floating-point tensors.
WHOLE = {"aten::argmax", "aten::argmin", "aten::gt", "aten::ge", "aten::lt", "aten::le", "torchvision::nms"}
INDEXED = {"aten::topk", "aten::sort", "aten::max", "aten::min"}


class Trace:
    """Tensors of a run in the order in which they came, or the largest difference from those of an ``earlier`` trace, which are then
    not kept twice."""

    def __init__(self, earlier: Trace | None = None):
        self.earlier = earlier
        self.kept: list[tuple[str, torch.Tensor]] = []
        self.count, self.error = 0, 0.0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        if self.earlier is None:
            self.kept.append((name, tensor.detach().clone()))
        else:
            assert self.count < len(self.earlier.kept), f"{name} is one tensor more"
            self.error = max(self.error, _difference((name, tensor), self.earlier.kept[self.count]))
        self.count += 1

    def end(self) -> float:
        """The largest relative difference. Both traces have as many tensors."""
        assert self.earlier is None or self.count == len(self.earlier.kept), f"{self.count} tensors instead of {len(self.earlier.kept)}"
        return self.error


class Choices(TorchDispatchMode):
    """Records every choice by score and the scores; with those of an ``earlier`` run, takes the same choices."""

    def __init__(self, earlier: Choices | None = None):
        super().__init__()
        self.earlier = earlier
        self.made: list[torch.Tensor] = []
        self.scores = Trace(earlier.scores if earlier else None)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found, name = func(*args, **kwargs), func._schema.name
        indexed = name in INDEXED and isinstance(found, tuple | list)
        if not (indexed or name in WHOLE) or not any(isinstance(one, torch.Tensor) and one.is_floating_point() for one in args):
            return found
        self.scores.add(name, args[0])
        if self.earlier is None:
            self.made.append((found[1] if indexed else found).clone())
            return found
        choice = self.earlier.made[self.scores.count - 1]
        return (_taken(func, args, kwargs, choice), choice.clone()) if indexed else choice.clone()


def _taken(func, args, kwargs, indices):
    """The values of the first argument at the indices that an operator chose."""
    names = [argument.name for argument in func._schema.arguments]
    dim = dict(zip(names, args), **kwargs).get("dim", -1)
    if indices.ndim == args[0].ndim:
        return args[0].gather(dim, indices)
    return args[0].gather(dim, indices.unsqueeze(dim)).squeeze(dim)


class Run:
    """A run of a program; with an ``earlier`` one, its choices and the differences from it."""

    def __init__(self, earlier: Run | None = None):
        self.choices = Choices(earlier.choices if earlier else None)
        #: The floating-point tensors that the Swins, and that each other module gave, by the module's name.
        self.swins, self.modules = Trace(earlier.swins if earlier else None), Trace(earlier.modules if earlier else None)
        #: What the program gave.
        self.result: Any = None

    def differences(self) -> dict[str, float]:
        """The largest relative difference of each kind of tensor; ``scores`` are those before a choice."""
        return {"swin": self.swins.end(), "modules": self.modules.end(), "scores": self.choices.scores.end()}


def observed(program: torch.nn.Module, swins: set[str], call: Callable[[torch.nn.Module], Any], earlier: Run | None = None) -> Run:
    """Runs ``call(program)``, with the choices of an ``earlier`` run. ``swins`` are the names of the Swins."""
    names, run = {module: name for name, module in program.named_modules()}, Run(earlier)

    def hook(module, _, output):
        name = names.get(module)
        if name is None or any(name.startswith(f"{swin}.") for swin in swins):
            return
        for path, one in leaves(output, ""):
            # The hidden states of a Swin are read by no program, and the engine does not have them.
            if one.is_floating_point() and not (name in swins and path.startswith(".hidden_states")):
                (run.swins if name in swins else run.modules).add(f"{name}{path}", one)

    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        with torch.no_grad(), run.choices:
            run.result = call(program)
    finally:
        handle.remove()
    return run


def _difference(found: tuple[str, torch.Tensor], expected: tuple[str, torch.Tensor]) -> float:
    """The relative difference of two tensors, where they are finite; both have infinities at the same places."""
    (name, one), (place, other) = found, expected
    finite = other.isfinite()
    assert (name, one.shape) == (place, other.shape), f"{name} {one.shape} instead of {place} {other.shape}"
    assert torch.equal(one.isfinite(), finite), f"{name}: other values are finite"
    return error(one[finite], other[finite]) if other[finite].any() else one[finite].abs().sum().item()


@dataclass
class Comparison:
    """A program whose Swins were replaced, against the original with its choices."""

    recipe: str | None
    report: swinq.torch.Report
    #: The largest relative differences: those of :meth:`Run.differences`, and of what the program gave (``result``).
    errors: dict[str, float]
    #: The number of choices by score.
    choices: int
    #: What the program gave with its own choices, and the seconds that this took.
    result: Any
    seconds: float


def compared(program: torch.nn.Module, calibrate: Callable[[Any], Any], call: Callable[[Any], Any]) -> Iterator[Comparison]:
    """Replaces the Swins of a program with no site quantized, and in INT8, and restores them."""
    names = {name for replaced in swinq.torch.quantize(program, calibrate, None, share=False).replaced for name in replaced.names}
    swinq.torch.restore(program)
    expected = observed(program, names, call)
    for recipe in (None, "default"):
        report = swinq.torch.quantize(program, calibrate, recipe, share=False)
        found = observed(program, names, call, expected)
        errors = {**found.differences(), "result": result_difference(found.result, expected.result)}
        start = time.perf_counter()
        with torch.no_grad():
            result = call(program)
        yield Comparison(recipe, report, errors, found.choices.scores.count, result, time.perf_counter() - start)
        swinq.torch.restore(program)


def result_difference(found: Any, expected: Any, path: str = "result") -> float:
    """The largest relative difference of what two runs gave. Types, shapes, integers, texts and truths must be equal."""
    assert type(found) is type(expected), f"{path}: {type(found)} instead of {type(expected)}"
    if isinstance(expected, torch.Tensor):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), f"{path}: {found.shape} instead of {expected.shape}"
        if expected.is_floating_point():
            return _difference((path, found), (path, expected))
        assert torch.equal(found, expected), path
        return 0.0
    if isinstance(expected, float):
        # Scores of segments are rounded to six digits.
        return max(abs(found - expected) - 1.01e-6, 0.0) / max(abs(expected), 1e-30)
    if isinstance(expected, dict) or hasattr(expected, "items"):
        assert list(found.keys()) == list(expected.keys()), path
        return max((result_difference(found[key], part, f"{path}.{key}") for key, part in expected.items()), default=0.0)
    if isinstance(expected, tuple | list):
        assert len(found) == len(expected), f"{path}: {len(found)} instead of {len(expected)}"
        return max((result_difference(one, other, f"{path}[{i}]") for i, (one, other) in enumerate(zip(found, expected))), default=0.0)
    if isinstance(expected, str | int | None):
        assert found == expected, f"{path}: {found!r} instead of {expected!r}"
    return 0.0
