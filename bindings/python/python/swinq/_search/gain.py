"""The result of a comparison of float and INT8 for a whole program."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._calls.outputs import is_nested
from .._calls.timing import Times, in_words


@dataclass(frozen=True)
class Gain:
    """The result of :func:`swinq.torch.measure_gain`. ``str`` gives a table."""

    #: Medians of the calls with the batches.
    float_times: Times
    int8_times: Times
    #: The ratio of signal to noise in dB of each tensor of floating point among the outputs of the program, over all batches; ``inf`` for
    #: equal ones. Values that are not finite in both are left out.
    sqnr_db: dict[str, float]
    #: The share of equal values of each other tensor, 0 to 1.
    equal: dict[str, float]
    #: The outputs that could not be compared, with the reasons.
    incomparable: dict[str, str]
    #: The metric's name and values; ``None`` without one.
    metric: str
    float_value: float | None
    int8_value: float | None
    #: The class of the program, and those of its Swins.
    program: str
    #: The batches, the devices of the model, and PyTorch's threads.
    batches: int
    device: str
    threads: int
    #: The cores that other processes kept busy meanwhile, if they were so many that the times are disturbed.
    other_cores: float | None

    @property
    def results(self) -> dict[str, Any]:
        """The results as :meth:`save` writes them. An infinite ratio is the text ``inf``."""
        times = {
            kind: {"program_ms": times.program_ms, "swin_ms": times.swin_ms, "share": times.share}
            for kind, times in (("float", self.float_times), ("int8", self.int8_times))
        }
        load = {} if self.other_cores is None else {"other_cores": self.other_cores}
        value = {"name": self.metric, "float": self.float_value, "int8": self.int8_value}
        return {
            "program_gain": 1,
            "program": self.program,
            "times": times,
            "outputs": {name: ratio if math.isfinite(ratio) else "inf" for name, ratio in self.sqnr_db.items()},
            "equal": self.equal,
            "incomparable": self.incomparable,
            "metric": None if self.float_value is None else value,
            "batches": self.batches,
            "environment": {"device": self.device, "torch_threads": self.threads, "torch": torch.__version__} | load,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the results in JSON, which ``swinq eval --program`` shows in a report."""
        Path(path).write_text(json.dumps(self.results, indent=2) + "\n")

    def __str__(self) -> str:
        one, other = self.float_times, self.int8_times
        rows = [
            _row("a call, ms", one.program_ms, other.program_ms),
            _row("its Swin, ms", one.swin_ms, other.swin_ms),
            _row("the rest, ms", one.rest_ms, other.rest_ms),
            f"{'the share of the Swin':24}{one.share:>12.0%}{other.share:>12.0%}",
        ]
        if self.float_value is not None and self.int8_value is not None:
            difference = self.int8_value - self.float_value
            rows.append(f"{self.metric:24}{self.float_value:>12.6g}{self.int8_value:>12.6g}{difference:>+12.3g}")
        rows += [f"{name}: {ratio:.1f} dB" for name, ratio in self.sqnr_db.items()]
        rows += [f"{name}: {share:.2%} of the values are equal" for name, share in self.equal.items()]
        rows += [f"{name}: {reason}" for name, reason in self.incomparable.items()]
        if not (self.sqnr_db or self.equal or self.incomparable):
            rows.append("no tensors in tuples, lists and dictionaries among the outputs, so that none is compared")
        rows += filter(None, [in_words(self.other_cores)])
        head = f"{f'medians, {self.device}':24}{'float':>12}{'INT8':>12}{'INT8/float':>12}"
        return "\n".join([head, *rows])


def _row(name: str, one: float, other: float) -> str:
    return f"{name:24}{one:>12.4g}{other:>12.4g}{other / one if one > 0 else math.nan:>11.2f}x"


class Noise:
    """The distances of the outputs of programs, added over batches."""

    def __init__(self) -> None:
        #: For each output: the squares of the signal and of the difference; or the values and those that are equal.
        self._squares: dict[str, list[float]] = {}
        self._counts: dict[str, list[int]] = {}
        self.incomparable: dict[str, str] = {}

    def add(self, expected: Any, found: Any) -> None:
        """Adds the outputs of a call in float and in INT8."""
        ones, others = dict(leaves(expected)), dict(leaves(found))
        for place in dict.fromkeys([*ones, *others]):
            if place not in ones or place not in others:
                self.incomparable[place] = "only one of float and INT8 gives it"
            elif ones[place].shape != others[place].shape:
                shapes = " and ".join(str(list(each[place].shape)) for each in (ones, others))
                self.incomparable[place] = f"float and INT8 give different shapes, {shapes}"
            elif ones[place].is_floating_point():
                self._add_floats(place, ones[place].double(), others[place].double())
            else:
                _added(self._counts, place, [ones[place].numel(), int((ones[place] == others[place]).sum())])

    def _add_floats(self, place: str, one: Any, other: Any) -> None:
        finite = one.isfinite() & other.isfinite()
        if not bool((finite | (one == other) | (one.isnan() & other.isnan())).all()):
            self.incomparable[place] = "values are finite in one of float and INT8 only"
            return
        one, other = one[finite], other[finite]
        _added(self._squares, place, [float(one.square().sum()), float((one - other).square().sum())])

    def sqnr_db(self) -> dict[str, float]:
        """The ratios of those outputs that every call could compare."""
        kept = {place: sums for place, sums in self._squares.items() if place not in self.incomparable}
        return {
            place: 10 * math.log10(max(signal, 1e-300) / noise) if noise > 0 else math.inf
            for place, (signal, noise) in kept.items()
        }

    def equal(self) -> dict[str, float]:
        """The shares of equal values of those outputs that every call could compare."""
        kept = {place: sums for place, sums in self._counts.items() if place not in self.incomparable}
        return {place: same / values if values else 1.0 for place, (values, same) in kept.items()}


def _added(sums: dict[str, list[Any]], place: str, values: list[Any]) -> None:
    """Adds values to the sums of a place."""
    sums[place] = [old + new for old, new in zip(sums.get(place, [0] * len(values)), values, strict=True)]


def leaves(value: Any, path: str = "output") -> Iterator[tuple[str, Any]]:
    """The tensors in tuples, lists and dictionaries, with their places."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif is_nested(value):
        yield f"{path}.tensors", value.tensors
    else:
        parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple | list) else ()
        for key, part in parts:
            yield from leaves(part, f"{path}.{key}" if isinstance(key, str) else f"{path}[{key}]")
