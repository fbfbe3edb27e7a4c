"""The parameters of a module in swinq's names, as functions of those that the module has, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .. import _native
from .._readers.reading import renamed

#: The channels of a merged patch in the module's order (``torch.nn.Unfold``: channel by channel the tokens (0, 0), (0, 1), (1, 0),
#: (1, 1)) for each in ours (token by token: (0, 0), (1, 0), (0, 1), (1, 1)).
UNFOLDED = (0, 2, 1, 3)


class Parameters:
    """The parameters of ``module`` in swinq's names."""

    def __init__(self, module: Any, names: Mapping[str, str], stored: list[tuple[str, str, str]], keys_without_bias: bool) -> None:
        """
        Args:
            module: the module.
            names: new beginnings of the names of its state dictionary, as the model was read.
            stored: see ``_native.stored_parameters``.
            keys_without_bias: whether the third of each bias that belongs to keys is 0, as in Swin V2.
        """
        back = renamed({name: name for name in module.state_dict()}, names)
        self._keys_without_bias = keys_without_bias
        #: Of each parameter, the names of its parts in the module and what they are.
        self._parts: dict[str, list[tuple[str, str]]] = {}
        for name, parameter, values in stored:
            self._parts.setdefault(parameter, []).append((back[name], values))
        self._module = module

    def names(self) -> list[str]:
        """The names of all parameters."""
        return list(self._parts)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def parts(self, name: str) -> list[Any]:
        """The tensors of the module that are a parameter or its parts."""
        return [_tensor(self._module, part) for part, _ in self._parts[name]]

    def __getitem__(self, name: str) -> Any:
        parts = self._parts[name]
        if parts[0][1].startswith("third"):
            thirds = {values: _tensor(self._module, part) for part, values in parts}
            first = next(iter(thirds.values()))
            return torch.cat([thirds.get(f"third {i}", torch.zeros_like(first)) for i in range(3)])
        ((part, values),) = parts
        tensor = _tensor(self._module, part)
        if values == "unfolded":
            return tensor.unflatten(-1, (-1, 4))[..., UNFOLDED].transpose(-1, -2).flatten(-2)
        if values == "map" and tensor.ndim == 4:
            return tensor.flatten(2).transpose(1, 2)
        if self._keys_without_bias and name.endswith(".attn.qkv.bias"):
            query, _, value = tensor.chunk(3)
            return torch.cat([query, torch.zeros_like(query), value])
        return tensor

    def assign(self, name: str, value: Any) -> None:
        """Writes the value of a parameter into the module."""
        with torch.no_grad():
            for part, values in self._parts[name]:
                tensor = _tensor(self._module, part)
                new = value.chunk(3)[int(values[-1])] if values.startswith("third") else value
                if values == "unfolded":
                    back = torch.tensor(UNFOLDED, device=new.device).argsort()
                    new = new.unflatten(-1, (4, -1))[..., back, :].transpose(-1, -2).flatten(-2)
                elif values == "map" and tensor.ndim == 4:
                    new = new.transpose(1, 2)
                tensor.copy_(new.reshape(tensor.shape))


def _tensor(module: Any, name: str) -> Any:
    """A parameter of a module, whose children may have the names of methods."""
    *parents, last = name.split(".")
    for part in parents:
        module = module._modules[part]
    return module._parameters[last] if last in module._parameters else module._buffers[last]


def read(model: _native.Model) -> dict[str, Any]:
    """The float values of the parameters of a model."""
    return {
        name: torch.frombuffer(bytearray(values), dtype=torch.float32).reshape(shape)
        for name, shape, values in _native.parameters(model)
    }
