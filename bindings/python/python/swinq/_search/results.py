"""The results of sensitivity and tuning inside models of PyTorch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._replacing.report import Replaced


@dataclass(frozen=True)
class Candidate:
    """A recipe that was tried."""

    #: Its differences from the start recipe, such as ``layers.0.blocks.0.mlp.fc2: float``; empty for that itself.
    changes: tuple[str, ...]
    #: The metric.
    value: float
    #: The ratio of signal to noise in dB of the worst output of the Swin, on the images of the calibration.
    sqnr_db: float
    #: The latency that the search predicted in milliseconds, and the median that was measured: of the start and of the chosen one.
    predicted_ms: float
    latency_ms: float | None
    #: The share of the multiply-accumulates of linear layers that run in INT8.
    int8_share: float
    #: The recipe, for :func:`swinq.torch.quantize`.
    recipe: dict[str, Any]

    def __str__(self) -> str:
        measured = "" if self.latency_ms is None else f" (measured {self.latency_ms:.2f})"
        changes = "; ".join(self.changes[:3]) or "the start recipe"
        more = f"; {len(self.changes) - 3} more" if len(self.changes) > 3 else ""
        figures = f"{self.value:.6g}, {self.predicted_ms:.2f} ms{measured}, {100 * self.int8_share:.1f} % INT8, {self.sqnr_db:.1f} dB"
        return f"{figures}: {changes}{more}"


@dataclass(frozen=True)
class Tuning:
    """The result of :func:`swinq.torch.tune`. ``str`` gives a table."""

    #: The model with the chosen Swin: the model that was given, unless that is a Swin itself.
    model: Any
    #: What was replaced.
    replaced: Replaced
    #: The metric's name, its value for the float model, and the most that it may drop.
    metric: str
    float_value: float
    max_drop: float
    #: The latency of the Swin in float on the engine in milliseconds, predicted and measured (median).
    float_predicted_ms: float
    float_latency_ms: float
    #: All recipes that were tried, in their order; the first is the start.
    candidates: tuple[Candidate, ...]
    #: The index of the chosen one, and whether it keeps the limit.
    chosen: int
    kept: bool
    #: Why the search ended: ``reached``; ``drop_impossible`` or ``speedup_impossible``, if no recipe keeps the limit or is fast enough;
    #: ``out_of_time``.
    end: str
    #: The same in a sentence.
    ending: str
    #: Warnings: predicted and measured latencies that differ by more than 1.5x, and other processes that disturbed them.
    warnings: tuple[str, ...]
    #: The results as the program writes them in JSON.
    results: dict[str, Any]

    @property
    def start(self) -> Candidate:
        """The start recipe."""
        return self.candidates[0]

    @property
    def best(self) -> Candidate:
        """The chosen recipe."""
        return self.candidates[self.chosen]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the results in JSON, which ``swinq eval --tuning`` shows in a report."""
        Path(path).write_text(json.dumps(self.results, indent=2) + "\n")

    def __str__(self) -> str:
        head = f"{self.metric}: {self.float_value:.6g} in float, at most {self.max_drop:g} less; float takes {self.float_predicted_ms:.2f} ms (measured {self.float_latency_ms:.2f})"
        lines = [f"{'*' if index == self.chosen else ' '} {each}" for index, each in enumerate(self.candidates)]
        return "\n".join([str(self.replaced), head, *lines, *self.warnings, self.ending])


@dataclass(frozen=True)
class Part:
    """A part of a Swin."""

    #: The name, and what it is: ``site``, ``linear``, ``attention_product`` or ``block``.
    name: str
    kind: str
    #: Its quantized sites.
    sites: tuple[str, ...]
    #: The metric with the whole recipe, but for this part in float, and how much more that is than with the whole recipe.
    value: float
    gain: float
    #: The ratio of signal to noise in dB of the worst output of the Swin, with the same recipe, and with this part alone in INT8.
    without_db: float
    alone_db: float
    #: Half of the 95 % interval over the images of how far the first ratio is above that of the whole recipe; ``None`` for one image.
    gain_spread_db: float | None


@dataclass(frozen=True)
class Sensitivity:
    """The result of :func:`swinq.torch.sensitivity`. ``str`` gives a table."""

    #: The metric's name, its value for the float model, and with the whole recipe.
    metric: str
    float_value: float
    whole_value: float
    #: The ratio of signal to noise in dB of the worst output of the Swin with the whole recipe.
    whole_db: float
    #: The part that gains most is first.
    parts: tuple[Part, ...]
    #: The warning that there were few images; ``None`` for enough.
    warning: str | None

    def __str__(self) -> str:
        width = max(len("in float"), *(len(part.name) for part in self.parts))
        rows = [
            f"{self.metric}: {self.float_value:.6g} in float, {self.whole_value:.6g} with the whole recipe ({self.whole_db:.1f} dB)",
            f"{'in float':{width}}  {'value':>10}  {'gain':>10}  {'dB':>6}  {'alone dB':>8}",
        ]
        for part in self.parts:
            figures = f"{part.value:10.6g}  {part.gain:+10.3g}  {part.without_db:6.1f}  {part.alone_db:8.1f}"
            rows.append(f"{part.name:{width}}  {figures}")
        if self.warning is not None:
            rows.append(self.warning)
        return "\n".join(rows)


def tuning_of(results: dict[str, Any], words: tuple[list[str], str], model: Any, replaced: Replaced) -> Tuning:
    """The result of a search from its JSON; ``words`` are its warnings and the reason of its end."""
    warnings, ending = words
    metric = results["goal"]["metric"]
    return Tuning(
        model=model,
        replaced=replaced,
        metric=metric["name"],
        float_value=metric["float"],
        max_drop=metric["max_drop"],
        float_predicted_ms=results["float_ms"],
        float_latency_ms=results["float_latency_ms"]["median"],
        candidates=tuple(_candidate(candidate) for candidate in results["candidates"]),
        chosen=results["chosen"],
        kept=results["kept"],
        end=results["end"],
        ending=ending,
        warnings=tuple(warnings),
        results=results,
    )


def _candidate(found: dict[str, Any]) -> Candidate:
    latency = found.get("latency_ms")
    return Candidate(
        changes=tuple(found["changes"]),
        value=found["value"],
        sqnr_db=_decibels(found["effect"]),
        predicted_ms=found["predicted_ms"],
        latency_ms=None if latency is None else latency["median"],
        int8_share=found["int8_share"],
        recipe=found["recipe"],
    )


def sensitivity_of(results: dict[str, Any], warning: str | None) -> Sensitivity:
    """The result of a measurement of sensitivity from its JSON and the warning about few images."""
    whole = results["whole"]

    def part(found: dict[str, Any]) -> Part:
        return Part(
            name=found["name"],
            kind=found["kind"],
            sites=tuple(found["sites"]),
            value=found["value"],
            gain=found["value"] - whole,
            without_db=_decibels(found["without"]),
            alone_db=_decibels(found["alone"]),
            gain_spread_db=found.get("gain_spread_db"),
        )

    return Sensitivity(
        metric=results["metric"],
        float_value=results["float"],
        whole_value=whole,
        whole_db=_decibels(results["whole_effect"]),
        parts=tuple(part(found) for found in results["parts"]),
        warning=warning,
    )


def _decibels(effect: dict[str, Any]) -> float:
    """The SQNR of an effect, which is the text ``inf`` for equal outputs."""
    return float(effect["sqnr_db"])
