"""Models from live modules and state dictionaries.

A module's parameters are read through its state dictionary, and its architecture from its attributes. The libraries themselves are not
imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _native
from .._common.arrays import is_array, is_tensor, to_numpy
from .._common.errors import ArgumentError, ModelError
from .description import Description
from .layers import check_hooks, check_layers
from .preprocessing import transform_of
from .recognition import describe

#: ``cfg``, ``opts``, ``dialect``, ``weights``, ``prefix``, the family of the preprocessing, ``labels``, ``task``, ``outputs``,
#: ``orientation`` and ``channels`` of ``open``. Outputs are numbers of stages, from 0.
Reading = tuple[
    str | None,
    list[tuple[str, str]],
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    list[int] | None,
    str | None,
    str | None,
]
Tensor = tuple[str, str, list[int], np.ndarray]


def load(model: Any, preprocessing: Any, reading: Reading, values: Mapping[str, Any] | None = None) -> _native.Model:
    """The model with the parameters and the description of a module or a state dictionary; ``values`` stands for the state dictionary
    of a module."""
    cfg, opts, dialect, weights, prefix, family, labels, task, outputs, orientation, channels = reading
    if weights is not None:
        raise ArgumentError("weights: chooses among the dictionaries of a file; pass the dictionary itself")
    if isinstance(model, Mapping):
        state, described = model, Description("state dictionary", transform=transform_of(preprocessing))
    else:
        module = unwrapped(model)
        described = describe(module, preprocessing)
        check_layers(module)
        check_hooks(module)
        state = renamed(module.state_dict() if values is None else values, described.renamed)
        if task not in (None, described.task or "classification"):
            raise ArgumentError(f"task: the module {type(module).__name__} is {_what(described)}; leave task out")
        if described.task is None and outputs is not None:
            raise ArgumentError(f"outputs: the module {type(module).__name__} is {_what(described)}")
        task, outputs = described.task, described.outputs if outputs is None else outputs
    if cfg is None:
        cfg, opts = described.cfg, [(key, str(value)) for key, value in described.opts.items()] + opts
    transform = None if described.transform is None else json.dumps(described.transform)
    try:
        return _native.Model.from_memory(
            described.name,
            tensors_of(state),
            described.config,
            described.preprocessor,
            transform,
            described.windows,
            (cfg, opts, dialect, None, prefix, family, labels, task, outputs, orientation, channels),
        )
    except ModelError as error:
        if isinstance(model, Mapping):
            raise
        raise ModelError(f"model: {_problem(unwrapped(model), error)}") from error


def _problem(module: Any, error: ModelError) -> str:
    """Why a module cannot be read: the parameter that is not finite, or what was found wrong of its tensors."""
    kind = type(module).__name__
    for name, tensor in module.state_dict().items():
        if is_array(tensor) and not name.endswith("attn_mask") and not np.isfinite(to_numpy(tensor)).all():
            return f"`{name}` of the module {kind} holds a value that is not finite (NaN or infinite)"
    return f"the module {kind}: {error}"


def unwrapped(module: Any) -> Any:
    """The module inside ``torch.compile`` and data-parallel wrappers."""
    for wrapper in ("_orig_mod", "module"):
        inner = getattr(module, wrapper, None)
        if hasattr(inner, "state_dict"):
            return unwrapped(inner)
    if not hasattr(module, "state_dict"):
        raise ArgumentError(
            f"model: {type(module).__name__} is neither a path, a state dictionary nor a module of PyTorch"
        )
    return module


def renamed(state: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """``state`` with new beginnings of names: of each name, the first beginning among ``names`` that it has."""
    found = {}
    for name, tensor in state.items():
        old = next((old for old in names if name.startswith(old)), None)
        found[name if old is None else names[old] + name[len(old) :]] = tensor
    return found


def tensors_of(state: Mapping[str, Any]) -> list[Tensor]:
    """Name, element type, sizes and bytes of each tensor: the memory of the tensor itself, if it is contiguous."""
    tensors = []
    for name, tensor in state.items():
        if not is_array(tensor):
            hint = f"; pass model[{name!r}]" if isinstance(tensor, Mapping) else ""
            raise ArgumentError(
                f"model: `{name}` of the state dictionary is a {type(tensor).__name__}, not a tensor{hint}"
            )
        dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        if dtype == "bfloat16" and is_tensor(tensor):
            # numpy has no bfloat16: its bits are read as integers.
            tensor = tensor.detach().contiguous().view(sys.modules["torch"].int16)
        elif dtype not in ("float16", "bfloat16", "float32", "float64"):
            dtype, tensor = "other", np.empty(0, np.uint8)
        array = np.ascontiguousarray(to_numpy(tensor))
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        tensors.append((str(name), dtype, shape, array.reshape(-1).view(np.uint8)))
    return tensors


def _what(described: Description) -> str:
    """What a module is, and the way to the other task."""
    if described.task:
        return "a backbone, and runs as one"
    return "a classifier, and runs as one; for feature maps open a backbone, such as timm's with features_only=True"
