"""The preprocessing that the objects of other libraries state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._common.errors import ArgumentError
from .description import extent, side


def transform_of(preprocessing: Any) -> dict[str, Any] | None:
    """The preprocessing that an object of a library states; ``None`` for none, and for the name of a family."""
    if preprocessing is None or isinstance(preprocessing, str):
        return None
    if hasattr(preprocessing, "crop_size") and hasattr(preprocessing, "resize_size"):
        return of_torchvision(preprocessing)
    if isinstance(preprocessing, Mapping):
        return of_timm(preprocessing) if "input_size" in preprocessing else of_mapping(preprocessing)
    raise ArgumentError(
        f"preprocessing: {type(preprocessing).__name__} is not known; give an image processor to a transformers model, "
        "weights.transforms() of torchvision, a data configuration of timm, or a mapping as Model.preprocessing"
    )


def of_mapping(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of :attr:`Model.preprocessing`; ``family`` may be absent."""
    found = {"family": "ms", **preprocessing}
    keys = ("family", "size", "resize", "filter", "mean", "std")
    missing = [key for key in keys if key not in found]
    unknown = [key for key in found if key not in (*keys, "size_divisor", "orientation", "channel_order")]
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has the unknown key {unknown[0]}"
        raise ArgumentError(f"preprocessing: the mapping {wrong}; its keys are those of Model.preprocessing")
    return found


def of_torchvision(preset: Any) -> dict[str, Any]:
    """torchvision's ``ImageClassification``: a resize of the shorter side, and a center crop."""
    return {
        "family": "torchvision",
        "size": side(preset.crop_size),
        "resize": {"shorter_side": side(preset.resize_size)},
        "filter": str(getattr(preset.interpolation, "value", preset.interpolation)),
        "mean": list(preset.mean),
        "std": list(preset.std),
    }


def of_timm(data: Mapping[str, Any]) -> dict[str, Any]:
    """timm's data configuration, as ``timm.data.resolve_model_data_config`` gives it."""
    size = extent(data["input_size"][1:])
    resized = [int(length / data.get("crop_pct", 0.9)) for length in data["input_size"][1:]]
    is_kept = resized == list(data["input_size"][1:])
    mode = data.get("crop_mode", "center")
    if mode != "center" and not (mode == "squash" and is_kept):
        raise ArgumentError(f"preprocessing: crop_mode `{mode}` is not supported; use center")
    return {
        "family": "timm",
        "size": size,
        "resize": "direct" if mode == "squash" else {"shorter_side": resized[0]} if isinstance(size, int) else {"cover": resized},
        "filter": data.get("interpolation", "bicubic"),
        "mean": list(data.get("mean", (0.485, 0.456, 0.406))),
        "std": list(data.get("std", (0.229, 0.224, 0.225))),
    }
