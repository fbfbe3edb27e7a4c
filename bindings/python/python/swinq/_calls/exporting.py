"""Whether PyTorch records a graph of a call."""

from __future__ import annotations

import torch


def is_exported() -> bool:
    """Whether ``torch.export`` records this call. In a graph of ``torch.compile`` PyTorch's own ``is_exporting`` is always true in
    PyTorch 2.11 and before, so that the flag behind it is read."""
    return bool(torch.compiler._is_exporting_flag)


def exporting() -> bool:
    """Whether PyTorch records a graph of this call."""
    return is_exported() or bool(torch.jit.is_tracing())
