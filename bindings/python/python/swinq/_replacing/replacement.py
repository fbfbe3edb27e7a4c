"""Modules in the places of Swins: the common base."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .._calls.arguments import CallParameters
from .._common.errors import ArgumentError
from .._readers.stacks import is_list


class Replacement(torch.nn.Module):
    """A module in the place of a Swin, ``original``. What it does not have itself, it reads from the original."""

    #: Whether it trains for the engine; else the engine runs it.
    IS_TRAINED = False
    #: The parameters of the original's ``forward``.
    _parameters_of_forward: CallParameters

    @property
    def original(self) -> Any:
        """The module that this one replaces."""
        return self.__dict__["_original"]

    def forward_with_filtered_kwargs(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module with those arguments that it knows, as backbones of transformers have it: a ``forward`` with ``**kwargs``
        takes all, but no request for attentions of a network that has none."""
        known = self._parameters_of_forward
        asks = {name: value for name, value in kwargs.items() if known.any_keyword or name in known.named}
        if not getattr(self.original, "has_attentions", True):
            asks.pop("output_attentions", None)
        return self(*args, **asks)

    def __iter__(self) -> Iterator[Replacement]:
        """In the place of a list of layers, which a program calls one after another, this is the only one."""
        if not is_list(self.original):
            raise TypeError(f"'{type(self).__name__}' object is not iterable")
        return iter([self])

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith(("__", "forward")) or "_original" not in self.__dict__:
                reason = "; the engine of a Swin runs its forward only" if name.startswith("forward") else ""
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{reason}") from None
        return getattr(self.original, name)


#: What is said of a module that an engine runs, where a float module is needed.
ON_THE_ENGINE = "runs on the engine already; swinq.torch.restore(model) gives the float module"


def check_type_is_kept(fn: Callable[[Any], Any]) -> None:
    """Refuses to convert a module on an engine to another type."""
    if fn(torch.empty(0)).dtype != torch.float32:
        raise TypeError(
            "a quantized Swin has no parameters whose type could change; convert the model before swinq.torch.quantize. Its "
            "outputs have the type of its input"
        )


class Unsaved:
    """The ``save_pretrained`` of a model of transformers that has Swins on engines: its folder would lack their weights, and
    ``from_pretrained`` would draw them at random."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentError(
            "save_pretrained: the weights of the quantized Swin are in its engine, and the folder would lack them; call "
            "swinq.transformers.attach(model).save_pretrained(...), or swinq.torch.restore(model) to save the float model"
        )


Call = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]

#: Why a module stays outside of graphs, for PyTorch's messages.
OUTSIDE = "swinq runs this module outside of graphs of torch.compile; torch.export.export takes it with strict=False"


def with_signature(run: Call, signature: inspect.Signature, compiled: Call | None = None) -> Any:
    """A function with the signature ``signature``. It passes its positional and its keyword arguments to ``run``, and in graphs of
    ``torch.compile`` to ``compiled``; without ``compiled`` it stays outside of graphs."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        if compiled is not None and torch.compiler.is_compiling():
            return compiled(args, kwargs)
        return run(args, kwargs)

    found: Any = torch.compiler.disable(forward, reason=OUTSIDE) if compiled is None else forward
    found.__signature__ = signature
    return found
