"""The number contract (docs/inference.md, sections 2 and 6): the constants of the engine, with which training computes, too."""

from __future__ import annotations

from .. import _native

CONTRACT = _native.contract()
