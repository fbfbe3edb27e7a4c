"""Live modules of timm, torchvision, transformers and Microsoft's repository, and state dictionaries.

A module's parameters are read through its state dictionary, and its architecture from its attributes. The libraries
themselves are not imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _native
from ._arrays import is_array, is_tensor, to_numpy
from ._layers import check_layers, classes_of
from ._errors import ArgumentError

#: ``cfg``, ``opts``, ``dialect``, ``weights``, ``prefix``, the family of the preprocessing, and ``labels`` of ``open``.
Reading = tuple[str | None, list[tuple[str, str]], str | None, str | None, str | None, str | None, str | None]
Tensor = tuple[str, str, list[int], np.ndarray]

#: The shipped configuration whose keys a module's attributes replace, and the section of these keys, by version.
BASES = {
    1: ("swin_tiny_patch4_window7_224", "MODEL.SWIN"),
    2: ("swinv2_tiny_patch4_window8_256", "MODEL.SWINV2"),
}


@dataclass
class Description:
    """A model's description: JSON documents of its library, or a configuration in Microsoft's keys."""

    name: str
    config: str | None = None
    preprocessor: str | None = None
    transform: dict[str, Any] | None = None
    cfg: str | None = None
    opts: dict[str, Any] = field(default_factory=dict)


def load(model: Any, preprocessing: Any, reading: Reading) -> _native.Model:
    """The model with the parameters and the description of a module or a state dictionary."""
    cfg, opts, dialect, weights, prefix, family, labels = reading
    if weights is not None:
        raise ArgumentError("weights: chooses among the dictionaries of a file; pass the dictionary itself")
    if isinstance(model, Mapping):
        state, described = model, Description("state dictionary", transform=transform_of(preprocessing))
    else:
        module = unwrapped(model)
        check_layers(module)
        state, described = module.state_dict(), describe(module, preprocessing)
    if cfg is None and described.cfg is not None:
        cfg, opts = described.cfg, [(key, str(value)) for key, value in described.opts.items()] + opts
    transform = None if described.transform is None else json.dumps(described.transform)
    return _native.Model.from_memory(
        described.name,
        tensors_of(state),
        described.config,
        described.preprocessor,
        transform,
        (cfg, opts, dialect, None, prefix, family, labels),
    )


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


def describe(module: Any, preprocessing: Any) -> Description:
    """The description of a module."""
    for name, reader in READERS.items():
        if any(each.__module__ == name for each in type(module).__mro__):
            return reader(module, preprocessing)
    if hasattr(module, "layers") and hasattr(getattr(module, "patch_embed", None), "patches_resolution"):
        return microsoft(module, preprocessing)
    raise ArgumentError(
        f"model: {type(module).__module__}.{type(module).__name__} is not a Swin of timm, torchvision, transformers or "
        "Microsoft; if it contains one, pass that module. swinq is for Swin V1 and V2 classifiers only"
    )


def timm(module: Any, preprocessing: Any) -> Description:
    """A Swin of timm: the attributes of the module, and the preprocessing of its ``pretrained_cfg``."""
    version = version_of(module)
    block = module.layers[0].blocks[0]
    pretrained = dict(getattr(module, "pretrained_cfg", None) or {})
    architecture = pretrained.get("architecture") or BASES[version][0].replace("v2_tiny_patch4", "v2_tiny")
    patches = module.patch_embed
    arguments = {
        "img_size": side(patches.img_size),
        "patch_size": side(patches.patch_size),
        "num_classes": classes_of(module.head),
        "embed_dim": module.embed_dim,
        "depths": [len(layer.blocks) for layer in module.layers],
        "num_heads": [layer.blocks[0].attn.num_heads for layer in module.layers],
        "window_size": side(block.window_size),
        "mlp_ratio": block.mlp.fc1.out_features / block.mlp.fc1.in_features,
        "qkv_bias": has_bias(block.attn),
        "always_partition": bool(getattr(block, "always_partition", False)),
        "in_chans": patches.proj.in_channels,
    }
    if version == 2:
        windows = [side(layer.blocks[0].attn.pretrained_window_size) for layer in module.layers]
        arguments["pretrained_window_sizes"] = windows
    pool = getattr(getattr(module.head, "global_pool", None), "pool_type", None)
    if pool:
        arguments["global_pool"] = pool
    keys = ("crop_pct", "crop_mode", "interpolation", "mean", "std", "label_names")
    data = {key: pretrained[key] for key in keys if pretrained.get(key) is not None}
    data["input_size"] = [3, arguments["img_size"], arguments["img_size"]]
    config = {"architecture": architecture, "model_args": arguments, "pretrained_cfg": data}
    return Description(f"timm {architecture}", json.dumps(config), transform=transform_of(preprocessing))


def transformers(module: Any, preprocessing: Any) -> Description:
    """A Swin of transformers: its configuration, and its image processor."""
    config = module.config
    name = getattr(config, "_name_or_path", "") or type(module).__name__
    described = Description(f"transformers {name}", config.to_json_string(use_diff=False))
    if preprocessing is None:
        raise ArgumentError(
            "preprocessing: a module of transformers does not contain it; give its image processor "
            '(AutoImageProcessor.from_pretrained), or "hf" for the default'
        )
    if hasattr(preprocessing, "to_json_string"):
        described.preprocessor = preprocessing.to_json_string()
    else:
        described.transform = transform_of(preprocessing)
    return described


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
            raise ArgumentError("preprocessing: torchvision has none for a Swin of this shape; give weights.transforms()")
        transform = json.loads(text)
    elif transform is None:
        raise ArgumentError("preprocessing: give weights.transforms(), which also says the input size")
    mlp = blocks[0].mlp[0]
    values = {
        "EMBED_DIM": stem.out_channels,
        "PATCH_SIZE": stem.kernel_size[0],
        "DEPTHS": depths,
        "NUM_HEADS": [block.attn.num_heads for block in blocks],
        "WINDOW_SIZE": side(blocks[0].attn.window_size),
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


def in_microsoft_keys(
    name: str, version: int, size: int, classes: int, values: dict[str, Any], transform: dict[str, Any] | None
) -> Description:
    """A description in the keys of Microsoft's configurations."""
    cfg, section = BASES[version]
    opts = {"DATA.IMG_SIZE": size, "MODEL.NUM_CLASSES": classes, "MODEL.NAME": name}
    opts |= {f"{section}.{key}": value for key, value in values.items()}
    return Description(name, transform=transform, cfg=cfg, opts=opts)


#: The reader of a module, by the Python module that defines its class or a class that it derives from.
READERS: dict[str, Callable[[Any, Any], Description]] = {
    "timm.models.swin_transformer": timm,
    "timm.models.swin_transformer_v2": timm,
    "torchvision.models.swin_transformer": torchvision,
    "transformers.models.swin.modeling_swin": transformers,
    "transformers.models.swinv2.modeling_swinv2": transformers,
}


def version_of(module: Any) -> int:
    """1 or 2: the version of Swin, which cosine attention marks."""
    return 2 if any(key.endswith("logit_scale") for key in module.state_dict()) else 1


def has_bias(attention: Any) -> bool:
    """Whether queries and values have a bias."""
    return attention.qkv.bias is not None or getattr(attention, "q_bias", None) is not None


def side(size: Any) -> int:
    """The side of a square, from a number or a pair."""
    if isinstance(size, int):
        return size
    first, *others = size
    if any(other != first for other in others):
        raise ArgumentError(f"model: {tuple(size)} is not square; only square images, patches and windows are supported")
    return int(first)


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
    missing, unknown = [key for key in keys if key not in found], [key for key in found if key not in keys]
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
    size = side(data["input_size"][1:])
    resized = int(size / data.get("crop_pct", 0.9))
    mode = data.get("crop_mode", "center")
    if mode != "center" and not (mode == "squash" and resized == size):
        raise ArgumentError(f"preprocessing: crop_mode `{mode}` is not supported; use center")
    return {
        "family": "timm",
        "size": size,
        "resize": "direct" if mode == "squash" else {"shorter_side": resized},
        "filter": data.get("interpolation", "bicubic"),
        "mean": list(data.get("mean", (0.485, 0.456, 0.406))),
        "std": list(data.get("std", (0.229, 0.224, 0.225))),
    }
