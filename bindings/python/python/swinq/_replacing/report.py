"""The report of a replacement: the Swins that were replaced, and the modules that were left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._calls.share import Share


@dataclass(frozen=True)
class Replaced:
    """A Swin that was replaced."""

    #: The names of its places in the model; empty for the model itself.
    names: tuple[str, ...]
    #: ``timm``, ``torchvision``, ``transformers``, or the package of its class.
    library: str
    #: The class of the original.
    kind: str
    parameters: int
    #: Sites in INT8 and in float.
    int8_sites: int
    float_sites: int
    #: Images on which it was calibrated.
    images: int
    #: The ratio of signal to noise in dB of each tensor among its outputs, against the original, on the first image.
    sqnr_db: dict[str, float]

    def __str__(self) -> str:
        place = ", ".join(name or "the model itself" for name in self.names)
        noise = f"{min(self.sqnr_db.values()):.1f} dB at least" if self.sqnr_db else "no outputs"
        sites = f"{self.int8_sites} sites INT8, {self.float_sites} float"
        return f"{place}: {self.kind} of {self.library}, {self.parameters:,} parameters, {sites}, {self.images} images, {noise}"


@dataclass(frozen=True)
class Left:
    """A module that looks like a Swin and was left as it is."""

    name: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name or 'the model itself'}: {self.kind} left as it is: {self.reason}"


@dataclass
class Report:
    """What :func:`swinq.torch.quantize` did."""

    #: The model with the Swins replaced: the model that was given, unless that is a Swin itself.
    model: Any
    replaced: list[Replaced] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    #: The Swin's part of the program's time before and after; ``None`` if it was not measured.
    share: Share | None = None
    #: Why ``share`` could not be measured; ``None`` if it was, or was not asked for.
    no_share: str | None = None

    def __str__(self) -> str:
        own = "the model itself is a Swin: use `report.model`, because the module that was given stays as it is"
        itself = own if any("" in each.names for each in self.replaced) else None
        share = f"the Swin's share was not measured: {self.no_share}" if self.no_share else self.share
        return "\n".join(str(line) for line in [*self.replaced, *self.left, itself, share] if line is not None)
