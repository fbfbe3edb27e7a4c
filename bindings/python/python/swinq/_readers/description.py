"""The description of a live module: its architecture and preprocessing, without its parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.errors import ArgumentError

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
    #: ``features`` for a backbone, else ``None``; and the stages whose outputs it has, from 0.
    task: str | None = None
    outputs: list[int] | None = None
    #: The rule for windows of the module's code, where it is not that of the library that reads such names as a backbone.
    windows: str | None = None
    #: The dialect of the names in the state dictionary, where they do not tell it: those of a stack of blocks.
    dialect: str | None = None
    #: New beginnings of names in the state dictionary, by old ones.
    renamed: dict[str, str] = field(default_factory=dict)


#: Reads the description of a module; the other argument is the preprocessing that the caller gives.
Reader = Callable[[Any, Any], Description]


def in_microsoft_keys(
    name: str, version: int, size: int | list[int], classes: int, values: dict[str, Any], transform: dict[str, Any] | None
) -> Description:
    """A description in the keys of Microsoft's configurations."""
    cfg, section = BASES[version]
    opts = {"DATA.IMG_SIZE": size, "MODEL.NUM_CLASSES": classes, "MODEL.NAME": name}
    opts |= {f"{section}.{key}": value for key, value in values.items()}
    return Description(name, transform=transform, cfg=cfg, opts=opts)


def transformers_config(config: Any) -> str:
    """The configuration of a live module of transformers. Its activations are known from the module itself, and are GELU
    (``check_layers``), exact or by tanh. A module that is read runs its float weights, whatever its configuration says of swinq: while
    a model is opened, the field is what its Swins shall become; later, what the saved folder held."""
    fields = json.loads(config.to_json_string(use_diff=False)) | {"hidden_act": "gelu"}
    if is_swinq(fields.get("quantization_config")):
        del fields["quantization_config"]
    return json.dumps(fields)


def is_swinq(config: Any) -> bool:
    """Whether the ``quantization_config`` of a model of transformers is swinq's: an object, or the dictionary of a process that does
    not know the method."""
    method = config.get("quant_method") if isinstance(config, Mapping) else getattr(config, "quant_method", None)
    return method == "swinq"


def forget_method(module: Any) -> None:
    """Takes swinq out of what a model of transformers knows of its quantization, as its ``dequantize`` does."""
    if is_swinq(getattr(module.__dict__.get("hf_quantizer"), "quantization_config", None)):
        module.hf_quantizer.remove_quantization_config(module)
    config = module.__dict__.get("config")
    if is_swinq(getattr(config, "quantization_config", None)):
        del config.quantization_config


def is_a(module: Any, name: tuple[str, str]) -> bool:
    """Whether a module is of a class, by the Python module that defines it and its name, or of one that derives from it."""
    return any((each.__module__, each.__name__) == name for each in type(module).__mro__)


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
        raise ArgumentError(f"model: {tuple(size)} is not square; swinq takes this size of this library only with equal sides")
    return int(first)


def extent(size: Any) -> int | list[int]:
    """A height and a width, from a number or a pair: one number if they are equal."""
    height, width = pair(size)
    return height if height == width else [height, width]


def pair(size: Any) -> list[int]:
    """A height and a width, from a number or a pair."""
    return [size, size] if isinstance(size, int) else [int(side) for side in size]


def windows_of(blocks: list[Any]) -> int | list[int] | list[list[int]]:
    """The windows of a Swin of timm whose stages begin with ``blocks``: that of the first, if the others are the same where their grids
    are as large; else a pair for each stage."""
    windows = [pair(block.window_size) for block in blocks]

    def expected(block: Any) -> list[int]:
        shrunk = [min(sides) for sides in zip(windows[0], block.input_resolution, strict=True)]
        return windows[0] if always_partitions(block) else shrunk

    return extent(windows[0]) if windows == [expected(block) for block in blocks] else windows


def always_partitions(block: Any) -> bool:
    """Whether a block of timm keeps its window and its shift on every grid."""
    return bool(getattr(block, "always_partition", False))


def in_timm_keys(module: Any, stages: list[Any], more: dict[str, Any]) -> Description:
    """A Swin of timm with the layers ``stages``: the attributes of the module, the preprocessing of its ``pretrained_cfg``, and the
    arguments ``more``."""
    version, blocks, patches = version_of(module), [layer.blocks[0] for layer in stages], module.patch_embed
    block = blocks[0]
    if getattr(patches, "dynamic_img_pad", False):
        raise ArgumentError("model: dynamic_img_pad is not supported; pad the images to whole patches")
    pretrained = dict(getattr(module, "pretrained_cfg", None) or {})
    architecture = pretrained.get("architecture") or BASES[version][0].replace("v2_tiny_patch4", "v2_tiny")
    height, width = patches.img_size
    arguments = {
        "img_size": extent(patches.img_size),
        "patch_size": side(patches.patch_size),
        "embed_dim": patches.proj.out_channels,
        "depths": [len(layer.blocks) for layer in stages],
        "num_heads": [block.attn.num_heads for block in blocks],
        "window_size": windows_of(blocks),
        "mlp_ratio": block.mlp.fc1.out_features / block.mlp.fc1.in_features,
        "qkv_bias": has_bias(block.attn),
        "always_partition": always_partitions(block),
        "strict_img_size": bool(getattr(patches, "strict_img_size", True)),
        "in_chans": patches.proj.in_channels,
        **more,
    }
    if version == 2:
        arguments["pretrained_window_sizes"] = [side(block.attn.pretrained_window_size) for block in blocks]
    keys = ["crop_pct", "crop_mode", "interpolation", "label_names"] + ["mean", "std"] * (arguments["in_chans"] == 3)
    data = {key: pretrained[key] for key in keys if pretrained.get(key) is not None}
    data["input_size"] = [arguments["in_chans"], height, width]
    config = {"architecture": architecture, "model_args": arguments, "pretrained_cfg": data}
    return Description(f"timm {architecture}", json.dumps(config))
