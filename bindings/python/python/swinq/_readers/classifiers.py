"""Live classifiers of timm, torchvision, transformers and Microsoft's repository: their descriptions, from attributes."""

from __future__ import annotations

import json
from typing import Any

from .. import _native
from .._common.errors import ArgumentError, PreprocessingError
from .backbones import timm_headless
from .description import Description, extent, has_bias, in_microsoft_keys, in_timm_keys, side, transformers_config, version_of
from .layers import classes_of
from .preprocessing import transform_of


def timm(module: Any, preprocessing: Any) -> Description:
    """A classifier of timm; without a head it is a backbone whose only output has the final norm."""
    if not any(hasattr(part, "out_features") for part in module.head.modules()):
        return timm_headless(module, preprocessing)
    pool = getattr(getattr(module.head, "global_pool", None), "pool_type", None)
    more = {"num_classes": classes_of(module.head)} | ({"global_pool": pool} if pool else {})
    described = in_timm_keys(module, list(module.layers), more)
    described.transform = transform_of(preprocessing)
    return described


def transformers(module: Any, preprocessing: Any) -> Description:
    """A Swin of transformers: its configuration, and its image processor."""
    config = module.config
    name = getattr(config, "_name_or_path", "") or type(module).__name__
    described = Description(f"transformers {name}", transformers_config(config))
    if preprocessing is None:
        raise PreprocessingError(
            "preprocessing: a module of transformers does not contain it; give its image processor "
            '(AutoImageProcessor.from_pretrained), or "hf" for the default'
        )
    if hasattr(preprocessing, "to_json_string"):
        described.preprocessor = preprocessing.to_json_string()
    else:
        described.transform = transform_of(preprocessing)
    return described


#: What a module of torchvision needs in place of the name of a family.
GIVE_TRANSFORMS = "give weights.transforms(), which also says the input size, or a mapping as Model.preprocessing"


def torchvision(module: Any, preprocessing: Any) -> Description:
    """A Swin of torchvision: the attributes of the module, and the preprocessing of its weights."""
    version = version_of(module)
    stem = module.features[0][0]
    # The stem, then stages of blocks with a merging of patches between them.
    stages = list(module.features[1::2])
    blocks = [stage[0] for stage in stages]
    depths = [len(stage) for stage in stages]
    transform = transform_of(preprocessing)
    if preprocessing is None:
        sizes = {(96, 6): "t", (96, 18): "s", (128, 18): "b"}
        letter = sizes.get((stem.out_channels, depths[2] if len(depths) > 2 else 0), "")
        text = _native.family_transform(f"swin_{'v2_' if version == 2 else ''}{letter}")
        if text is None:
            raise PreprocessingError(f"preprocessing: torchvision has none for a Swin of this shape; {GIVE_TRANSFORMS}")
        transform = json.loads(text)
    elif transform is None:
        raise ArgumentError(f"preprocessing: {GIVE_TRANSFORMS}")
    mlp = blocks[0].mlp[0]
    values = {
        "EMBED_DIM": stem.out_channels,
        "PATCH_SIZE": stem.kernel_size[0],
        "DEPTHS": depths,
        "NUM_HEADS": [block.attn.num_heads for block in blocks],
        "WINDOW_SIZE": extent(blocks[0].attn.window_size),
        "MLP_RATIO": mlp.out_features / mlp.in_features,
        "QKV_BIAS": blocks[0].attn.qkv.bias is not None,
    }
    name = f"torchvision {type(module).__name__}"
    return in_microsoft_keys(name, version, transform["size"], classes_of(module.head), values, transform)


def microsoft(module: Any, preprocessing: Any) -> Description:
    """A Swin of Microsoft's repository."""
    version = version_of(module)
    blocks = [layer.blocks[0] for layer in module.layers]
    first = blocks[0]
    values = {
        "EMBED_DIM": module.embed_dim,
        "PATCH_SIZE": side(module.patch_embed.patch_size),
        "DEPTHS": [len(layer.blocks) for layer in module.layers],
        "NUM_HEADS": [block.num_heads for block in blocks],
        "WINDOW_SIZE": first.window_size,
        "MLP_RATIO": float(module.mlp_ratio),
        "QKV_BIAS": has_bias(first.attn),
        "APE": bool(module.ape),
        "PATCH_NORM": bool(module.patch_norm),
    }
    if version == 2:
        values["PRETRAINED_WINDOW_SIZES"] = [side(block.attn.pretrained_window_size) for block in blocks]
    elif first.attn.scale != (first.dim // first.num_heads) ** -0.5:
        values["QK_SCALE"] = first.attn.scale
    size, transform = side(module.patch_embed.img_size), transform_of(preprocessing)
    return in_microsoft_keys(f"Microsoft {type(module).__name__}", version, size, classes_of(module.head), values, transform)
