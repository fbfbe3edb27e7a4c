"""The scales of a Swin in training, as a module: its parameters are the learned ratios, its buffers what the calibration found.

The names in the state dictionary are ``swinq.SITE.range``, ``swinq.SITE.ratio`` and so on, with the names of sites of
:attr:`swinq.Model.sites`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import _native
from .._common.contract import CONTRACT
from .fake import Quantizer, codes_of, fake_quantize, fake_weight, folded, scales_of

#: A learned scale stays within this factor of its calibrated value, in both directions.
LIMIT = 64.0


class Scale(torch.nn.Module):
    """The scale of an activation: ``range * ratio / 127``."""

    def __init__(self, amax: float, factors: Any, zero_points: Any, learned: bool) -> None:
        super().__init__()
        self.register_buffer("range", torch.tensor([amax]))
        #: The factors of the channels and their reciprocals, ``[2, channels]``.
        self.register_buffer("factors", None if factors is None else torch.stack([factors, factors.reciprocal()]))
        self.register_buffer("zero_points", zero_points)
        self.ratio = torch.nn.Parameter(torch.ones(1), requires_grad=learned)

    def amax(self) -> Any:
        """The current range, ``[1]``."""
        return self.range * self.ratio.clamp(1 / LIMIT, LIMIT)

    def quantizer(self, scale: Any, recip: Any, values: int) -> Quantizer:
        """The quantizer of a tensor with so many values per image, for the current scale and its reciprocal."""
        factor = (values * CONTRACT.code_max) ** -0.5
        if self.factors is None:
            return Quantizer(scale, factor=factor, recips=recip)
        return Quantizer(scale * self.factors[0], self.zero_points, factor=factor)


class WeightScale(torch.nn.Module):
    """The scales of a weight, ``[1]`` or one per output channel: ``base * ratio``, or those of its largest magnitudes."""

    def __init__(self, base: Any, bits: int, recomputed: bool, learned: bool) -> None:
        super().__init__()
        self.largest = 2.0 ** (bits - 1) - 1.0
        self.count, self.recomputed = base.numel(), recomputed
        self.register_buffer("base", None if recomputed else base)
        self.ratio: Any = None if recomputed else torch.nn.Parameter(torch.ones_like(base), requires_grad=learned)

    def scales(self, weight: Any = None, factors: Any = None) -> Any:
        """The current scales; if they are recomputed, those of ``weight`` with the factors of its columns."""
        if not self.recomputed:
            return self.base * self.ratio.clamp(1 / LIMIT, LIMIT)
        return scales_of(folded(weight.detach(), factors), self.count, self.largest)

    def fake(self, weight: Any, factors: Any, dtype: Any) -> Any:
        """A weight ``[out, in]`` as the values that its codes represent. ``factors`` ``[2, in]`` are those of the channels of the
        input, which the codes include, and their reciprocals."""
        if self.recomputed:
            return fake_weight(weight, self.count, self.largest, factors, dtype)
        factor = (weight.numel() // self.count * self.largest) ** -0.5
        quantizer = Quantizer(self.scales(), None, -self.largest, self.largest, factor)
        if factors is None:
            return fake_quantize(weight, quantizer, dtype)
        return (fake_quantize(folded(weight, factors), quantizer, torch.float32) * factors[1]).to(dtype)

    def codes(self, weight: Any, factors: Any) -> tuple[Any, Any]:
        """The codes ``int8 [out, in]`` of a weight, as :meth:`fake` has them, and their scales."""
        scales = self.scales(weight, factors)
        codes = codes_of(folded(weight, factors), Quantizer(scales, None, -self.largest, self.largest))
        return codes.reshape(weight.shape).to(torch.int8), scales


class Codes(torch.nn.Module):
    """A site whose codes need no scale: attention probabilities in unsigned codes."""


class Scales(torch.nn.Module):
    """The scales of all sites that are on, in a tree by the parts of their names."""

    def __init__(self, model: _native.Model, activations: bool, weights: bool) -> None:
        """``activations`` and ``weights`` say whether their scales are learned."""
        super().__init__()
        #: The sites by their names; the modules of the tree.
        self.__dict__["_sites"] = {}
        for name, _, bits, of_largest, amax, factors, zero_points, scales in _native.quantized_sites(model):
            if scales is not None:
                recomputed = of_largest and not weights
                site: Any = WeightScale(_floats(scales), bits, recomputed, weights)
            elif amax is None:
                site = Codes()
            else:
                site = Scale(amax, _floats(factors), _floats(zero_points), activations)
            self._add(name, site)
        self._register_load_state_dict_pre_hook(self._say_what_is_missing)

    def _add(self, name: str, site: Any) -> None:
        *parents, last = name.split(".")
        module: Any = self
        for part in parents:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]
        module.add_module(last, site)

    def sites(self) -> Iterator[tuple[str, Any]]:
        """The sites with their names."""
        return ((name, part) for name, part in self.named_modules() if isinstance(part, Scale | WeightScale | Codes))

    def named(self) -> Iterable[tuple[str, Any]]:
        """:meth:`sites`, found once."""
        found = self.__dict__["_sites"]
        if not found:
            found.update(self.sites())
        items: Iterable[tuple[str, Any]] = found.items()
        return items

    def site(self, name: str) -> Any:
        """A site; ``None`` if it is off."""
        self.named()
        return self.__dict__["_sites"].get(name)

    def current(self) -> dict[str, tuple[Any, Any]]:
        """The scale of each activation and its reciprocal, ``[1]`` each, computed together."""
        named = [(name, site) for name, site in self.named() if isinstance(site, Scale)]
        if not named:
            return {}
        ranges, ratios = (torch.cat([getattr(site, part) for _, site in named]) for part in ("range", "ratio"))
        scales = ranges * ratios.clamp(1 / LIMIT, LIMIT) / CONTRACT.code_max
        recips = scales.detach().reciprocal()
        pairs = zip(scales.split(1), recips.split(1), strict=True)
        return {name: pair for (name, _), pair in zip(named, pairs, strict=True)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sites": {}}

    def _say_what_is_missing(self, state: Any, prefix: str, *_: Any) -> None:
        if not any(name.startswith(prefix) for name in state) and any(True for _ in self.sites()):
            place = prefix.removesuffix(".")
            warnings.warn(
                f"{place}: the state dictionary has no scales, so those of the calibration stay; it is that of a float model. If "
                "its weights are not those that were calibrated, call swinq.torch.prepare after loading",
                stacklevel=2,
            )

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """Scales move to other devices, and stay ``float32``."""

        def moved(tensor: Any) -> Any:
            found = fn(tensor)
            same = found.dtype == tensor.dtype or not found.is_floating_point()
            return found if same else tensor.to(found.device)

        return super()._apply(moved, recurse)

    def extra_repr(self) -> str:
        sites = [part for _, part in self.sites()]
        learned = sum(parameter.requires_grad for parameter in self.parameters())
        return f"{len(sites)} sites, {learned} with learned scales"


def _floats(values: bytes | None) -> Any:
    return None if values is None else torch.frombuffer(bytearray(values), dtype=torch.float32)
