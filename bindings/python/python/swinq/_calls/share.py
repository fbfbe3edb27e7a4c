"""The Swin's part of the time of a program, on a call of the calibration."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import _native
from .record import evaluating
from .timing import FirstCall, Times, clock_of, devices_of, in_words, medians

#: The documented next step, where the rest of the program takes most of the time, and where the Swin does.
REST = (
    "The rest of the program takes most of the time now, and stays in float; half precision, channels last and torch.compile make it "
    "faster: docs/programs.md, The rest of the program"
)
SWIN = "The Swin still takes most of the time; threads, batches and the recipe decide about it: docs/programs.md, Where the Swin dominates"


@dataclass(frozen=True)
class Share:
    """The time of a call of a program, and its Swins' part of it: eager, on the images of the first call of the calibration."""

    #: With the Swins of the program, and with those of the engine.
    before: Times
    after: Times
    #: The device of the images.
    device: str
    #: The cores that other processes kept busy meanwhile, if they were so many that the times are disturbed.
    other_cores: float | None = None

    @property
    def advice(self) -> str:
        """What takes most of the time now, and the documented next step."""
        return SWIN if self.after.share > 0.5 else REST

    def __str__(self) -> str:
        before, after = (f"{100 * part.share:.0f} % of {part.program_ms:.3g} ms" for part in (self.before, self.after))
        text = f"the Swin's share of a call: {before} before, {after} after (eager, {self.device}). {self.advice}"
        return f"{text}. {in_words(self.other_cores)}".removesuffix(". ")


class ShareOf:
    """Measures the share on a call of the calibration: at once before the Swins are replaced, and by :meth:`after` again."""

    def __init__(self, first: FirstCall, model: Any, swins: Mapping[Any, Any]) -> None:
        """``swins`` are the modules that will be replaced, with the devices of their images."""
        self._call, self._before = first.call, None
        self._disturbances: list[float] = []
        self._device = str(next(iter(swins.values())))
        self._clock = clock_of({*swins.values(), *devices_of(model)})
        self._problem: str | None = "the calibration calls no Swin within a call of the model itself"
        if self._call is not None:
            self._before, self._problem = self._measured(model, swins)

    def _measured(self, model: Any, swins: Iterable[Any]) -> tuple[Times | None, str | None]:
        """The times, or why there are none."""
        assert self._call is not None
        meter = _native.LoadMeter()
        try:
            with evaluating(model):
                found = medians(self._call, model, swins, self._clock)
            self._disturbances += filter(None, [meter.disturbance()])
            return found, None
        except Exception as error:  # Whatever the program raises: the share is a remark, and must not undo a replacement.
            return None, f"a call of the calibration, made again, raises {type(error).__name__}: {error}"

    def after(self, model: Any, swins: Iterable[Any]) -> tuple[Share | None, str | None]:
        """The share, or why it could not be measured. A call that only the INT8 Swins fail is a warning, too."""
        if self._before is None:
            return None, self._problem
        after, problem = self._measured(model, swins)
        if after is None:
            warnings.warn(f"model: with its Swins in INT8 {problem}", stacklevel=4)
            return None, problem
        return Share(self._before, after, self._device, max(self._disturbances, default=None)), None
