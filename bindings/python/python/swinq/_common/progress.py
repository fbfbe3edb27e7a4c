"""Progress of long calls: a bar of tqdm, or a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import ArgumentError

#: Called with the phase, the number of images or layers done, and the number of all.
Progress = Callable[[str, int, int], object]


class Bar:
    """A bar of tqdm for each phase."""

    def __init__(self) -> None:
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise ArgumentError(
                "progress: True needs tqdm (pip install tqdm); or pass a function (phase, done, total)"
            ) from error
        self.tqdm: Any = tqdm
        self.bar: Any = None
        self.phase = ""

    def __call__(self, phase: str, done: int, total: int) -> None:
        if self.bar is None or phase != self.phase or done < self.bar.n:
            self.close()
            self.phase, self.bar = phase, self.tqdm(total=total, desc=phase)
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        """Ends the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def observer(progress: bool | Progress | None) -> Any:
    """The function to call with the progress; ``None`` for none."""
    if progress is True:
        return Bar()
    if progress and not callable(progress):
        raise ArgumentError("progress: give True, or a function (phase, done, total)")
    return progress or None


def close(function: Any) -> None:
    """Ends the bar, if ``function`` is one."""
    if isinstance(function, Bar):
        function.close()
