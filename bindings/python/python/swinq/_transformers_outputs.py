"""The structure of the outputs of a Swin as JSON, for the configuration of a model of transformers."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from transformers.utils import ModelOutput

from ._errors import ArgumentError
from ._torch_outputs import LAYOUTS, Absent, Structure, Tensor

#: Containers that are named as they are; others are classes of outputs of transformers.
PLAIN = {"tuple": tuple, "list": list, "dict": dict, "OrderedDict": OrderedDict}


def described(structure: Any) -> Any:
    """A structure as JSON.

    Raises:
        ArgumentError: for a container that is none of Python's and none of transformers'.
    """
    if structure is None:
        return None
    if isinstance(structure, Tensor):
        return {"output": structure.output, "layout": structure.layout}
    if isinstance(structure, Absent):
        return {"absent": structure.place}
    return {"kind": _name(structure.kind), "parts": [[key, described(part)] for key, part in structure.parts.items()]}


def structure_of(description: Any) -> Any:
    """The structure that :func:`described` gave.

    Raises:
        ArgumentError: for a description that it does not give.
    """
    if description is None:
        return None
    fields = dict(description) if isinstance(description, Mapping) else {}
    if set(fields) == {"output", "layout"} and fields["layout"] in LAYOUTS:
        return Tensor(output=str(fields["output"]), layout=fields["layout"])
    if set(fields) == {"absent"}:
        return Absent(str(fields["absent"]))
    if set(fields) == {"kind", "parts"}:
        return Structure(_kind(fields["kind"]), {key: structure_of(part) for key, part in fields["parts"]})
    raise ArgumentError(f"`{description}` describes no output of a Swin")


def _name(kind: type) -> str:
    for name, plain in PLAIN.items():
        if kind is plain:
            return name
    if issubclass(kind, ModelOutput) and kind.__module__.startswith("transformers."):
        return f"{kind.__module__}.{kind.__qualname__}"
    raise ArgumentError(f"a {kind.__name__}, which a Swin of this model gives, is no output of transformers and cannot be saved")


def _kind(name: Any) -> type:
    """The class of a name. Only transformers is imported for it, because the name comes from a file."""
    if name in PLAIN:
        return PLAIN[name]
    module, _, found = str(name).rpartition(".")
    if module.startswith("transformers."):
        try:
            kind = getattr(importlib.import_module(module), found, None)
        except ImportError:
            kind = None
        if isinstance(kind, type) and issubclass(kind, ModelOutput):
            return kind
    raise ArgumentError(f"`{name}` is no class of outputs of the installed transformers; install the version that wrote the model")
