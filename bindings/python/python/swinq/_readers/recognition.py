"""Which reader a live module has: by its class, a class that it derives from, or its structure."""

from __future__ import annotations

from typing import Any

from .._common.errors import ArgumentError
from .backbones import READERS as BACKBONES
from .backbones import by_structure
from .classifiers import microsoft, timm, torchvision, transformers
from .description import Description, Reader
from .layers import check_code, check_compiled, check_not_replaced
from .stacks import reader_of as stack_reader


def reader_of(module: Any) -> Reader | None:
    """The reader of a module; ``None`` for a module that is no Swin."""
    for each in type(module).__mro__:
        reader = READERS.get((each.__module__, each.__name__))
        if reader is not None:
            return reader
    patches = getattr(module, "patch_embed", None)
    if hasattr(module, "layers") and hasattr(module, "head") and hasattr(patches, "patches_resolution"):
        return microsoft
    return by_structure(module) or stack_reader(module)


def describe(module: Any, preprocessing: Any) -> Description:
    """The description of a module, whose code is that of its library."""
    check_not_replaced(module)
    reader = reader_of(module)
    if reader is None:
        raise ArgumentError(
            f"model: {type(module).__module__}.{type(module).__name__} is not a Swin of timm, torchvision, transformers, "
            "Microsoft, OpenMMLab or detectron2, nor a stage of one, nor a stack of blocks of SwinIR, Swin2SR or CLAP; if it contains one, pass "
            "that module, or the whole to swinq.torch.quantize"
        )
    check_compiled(module)
    check_code(module)
    try:
        return reader(module, preprocessing)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        kind = type(module).__name__
        raise ArgumentError(f"model: {kind} lacks a part of a Swin, or has another in its place: {error}") from error


#: The reader of a module, by its class or a class that it derives from: the Python module that defines it, and its name.
READERS: dict[tuple[str, str], Reader] = {
    ("timm.models.swin_transformer", "SwinTransformer"): timm,
    ("timm.models.swin_transformer_v2", "SwinTransformerV2"): timm,
    ("torchvision.models.swin_transformer", "SwinTransformer"): torchvision,
    ("transformers.models.swin.modeling_swin", "SwinForImageClassification"): transformers,
    ("transformers.models.swinv2.modeling_swinv2", "Swinv2ForImageClassification"): transformers,
    **BACKBONES,
}
