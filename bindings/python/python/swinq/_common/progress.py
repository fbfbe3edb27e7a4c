"""Progress of long calls: a bar of tqdm, or a function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
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


@contextmanager
def observed(progress: bool | Progress | None) -> Iterator[Any]:
    """The function to call with the progress, whose bar ends with the context; ``None`` for none."""
    function = _observer(progress)
    try:
        yield function
    finally:
        if isinstance(function, Bar):
            function.close()


def check_progress(progress: bool | Progress | None) -> None:
    """Refuses what no call can take."""
    with observed(progress):
        pass


def _observer(progress: bool | Progress | None) -> Any:
    if progress is True or progress is None and _is_shown():
        return Bar()
    if progress and not callable(progress):
        raise ArgumentError("progress: give True, False, or a function (phase, done, total)")
    return progress or None


def _is_shown() -> bool:
    """Whether a bar is shown that nobody asked for: on a terminal, if tqdm is there."""
    return sys.stderr is not None and sys.stderr.isatty() and find_spec("tqdm") is not None
