"""What of a process does not survive ``fork``: threads.

A forked process has only the thread that forked. Engines wait for their threads forever there, so they are made again at
their next call. Calibration and evaluation use threads that cannot be made again, so they are refused instead.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Protocol

from .errors import EngineError


class HasThreads(Protocol):
    """An object whose ``_native`` owns threads, and is made again if it is ``None``."""

    _native: Any


_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_threads_started = False
_threads_lost = False


def remember(owner: HasThreads) -> None:
    """Makes ``owner`` lose its threads in a process that is forked from this one."""
    _owners.add(owner)


def start_threads(what: str) -> None:
    """Refuses ``what`` if this process lost the threads that it needs."""
    global _threads_started
    if _threads_lost:
        raise EngineError(
            f"{what}: this process was forked after swinq had started threads for calibration or evaluation, which a "
            'forked process does not have; start processes with multiprocessing.get_context("spawn")'
        )
    _threads_started = True


def _forked() -> None:
    global _threads_lost
    _threads_lost = _threads_started
    for owner in list(_owners):
        # To free an engine is to wait for its threads, so it is never freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner._native))
        owner._native = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
