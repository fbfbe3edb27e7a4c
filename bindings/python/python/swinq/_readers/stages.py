"""Stages of Swins by themselves: those of timm, transformers and torchvision, and layers in Microsoft's manner.

They are read as stacks of blocks, with the merging of patches before or behind their blocks.
"""

from __future__ import annotations

from typing import Any

from .._common.errors import ArgumentError
from .description import Description, always_partitions, extent, has_bias, in_microsoft_keys, side, version_of
from .tokens import Tokens


def stack(
    module: Any, version: int, grid: Any, channels: int, mlp: Any, stages: tuple[list[int], list[int]], values: dict[str, Any]
) -> Description:
    """The description of the stack of a module for a grid of tokens with ``channels`` channels, whose MLPs begin with the layer
    ``mlp``. ``stages`` are their blocks and heads; the stages with blocks, and those behind them, are outputs."""
    depths, heads = stages
    values |= {
        "TAKES_TOKENS": True,
        "IN_CHANS": channels,
        "PATCH_SIZE": 1,
        "PATCH_NORM": False,
        "EMBED_DIM": channels,
        "DEPTHS": depths,
        "NUM_HEADS": heads,
        "MLP_RATIO": mlp.out_features / mlp.in_features,
    }
    kind = type(module)
    name = f"{kind.__module__.partition('.')[0]} {kind.__name__}"
    described = in_microsoft_keys(name, version, [int(length) for length in grid], 1, values, None)
    described.task, described.outputs = "features", list(range(depths[0] == 0, len(depths)))
    return described


def merged_behind(depth: int, heads: int, merges: bool) -> tuple[list[int], list[int]]:
    """The blocks and the heads of a stage, and of the merging of patches behind it."""
    return ([depth, 0], [heads, 2 * heads]) if merges else ([depth], [heads])


def timm(module: Any, _: Any) -> Description:
    """A stage of timm, whose merging of patches lies before its blocks."""
    version, first, merges = version_of(module), module.blocks[0], hasattr(module.downsample, "reduction")
    stages = [0] * merges + [len(module.blocks)], [1] * merges + [first.attn.num_heads]
    values = {"WINDOW_SIZE": extent(first.window_size), "QKV_BIAS": has_bias(first.attn)}
    if version == 2:
        values["PRETRAINED_WINDOW_SIZES"] = [0] * merges + [side(first.attn.pretrained_window_size)]
    described = stack(module, version, module.input_resolution, module.dim, first.mlp.fc1, stages, values)
    described.windows = "timm_always_partition" if always_partitions(first) else "timm_any_size"
    described.dialect, described.renamed = "timm", {"": f"layers.{int(merges)}."}
    return described


def timm_tokens(module: Any) -> Tokens:
    """A stage that computes its masks at each call takes any grid; another has those of its own grid."""
    is_any = getattr(module.blocks[0], "dynamic_mask", False)
    return Tokens(in_rows=True, only=None if is_any else tuple(module.input_resolution))


def transformers(module: Any, _: Any) -> Description:
    """A stage of Swin V1 of transformers, whose window shrinks with the grid of a call."""
    first, merges = module.blocks[0], module.downsample is not None
    attention, channels = first.attention, first.layernorm_before.normalized_shape[0]
    stages = merged_behind(len(module.blocks), attention.num_attention_heads, merges)
    values = {"WINDOW_SIZE": side(module.config.window_size), "QKV_BIAS": attention.q_proj.bias is not None}
    described = stack(module, 1, first.input_resolution, channels, first.mlp.fc1, stages, values)
    described.windows, described.dialect, described.renamed = "hf", "hf", {"": "encoder.layers.0."}
    return described


def transformers_tokens(module: Any) -> Tokens:
    heads = module.blocks[0].attention.num_attention_heads
    return Tokens(("input_dimensions",), other_network="always_partition", heads=heads)


def transformers_v2(module: Any, _: Any) -> Description:
    """A stage of Swin V2 of transformers, which fixed its window when it was built."""
    first, merges = module.blocks[0], module.downsample is not None
    attention = first.attention.self
    stages = merged_behind(len(module.blocks), attention.num_attention_heads, merges)
    values = {
        "WINDOW_SIZE": side(first.window_size),
        "QKV_BIAS": attention.query.bias is not None,
        "PRETRAINED_WINDOW_SIZES": [side(attention.pretrained_window_size)] + [0] * merges,
    }
    described = stack(module, 2, first.input_resolution, module.dim, first.intermediate.dense, stages, values)
    described.dialect, described.renamed = "hf", {"": "encoder.layers.0."}
    return described


def torchvision(module: Any, _: Any) -> Description:
    """The blocks of a stage of torchvision; the merging of patches is a module beside them."""
    first, mlp = module[0], module[0].mlp[0]
    window = first.attn.window_size
    values = {"WINDOW_SIZE": extent(window), "QKV_BIAS": first.attn.qkv.bias is not None}
    stages = [len(module)], [first.attn.num_heads]
    # The windows do not depend on a size for which the blocks were built.
    described = stack(first, version_of(module), window, mlp.in_features, mlp, stages, values)
    described.dialect, described.renamed = "torchvision", {"": "features.1."}
    return described


def microsoft(module: Any, _: Any) -> Description:
    """A layer in Microsoft's manner, ``forward(x)`` for the grid that it was built for, or ``forward(x, H, W)`` for any, with the merging
    of patches behind it; also the list of the blocks of one."""
    version, blocks = version_of(module), blocks_of(module)
    first, merges, is_fixed = blocks[0], getattr(module, "downsample", None) is not None, is_built_for_a_grid(module)
    window = side(first.window_size)
    values: dict[str, Any] = {"WINDOW_SIZE": window, "QKV_BIAS": has_bias(first.attn)}
    if version == 2:
        values["PRETRAINED_WINDOW_SIZES"] = [side(first.attn.pretrained_window_size)] + [0] * merges
    elif is_fixed:
        values |= scale_of(first)
    grid = first.input_resolution if is_fixed else [window, window]
    stages = merged_behind(len(blocks), first.num_heads, merges)
    named = module if hasattr(module, "blocks") else first
    described = stack(named, version, grid, first.mlp.fc1.in_features, first.mlp.fc1, stages, values)
    described.windows, described.dialect = "microsoft" if is_fixed else "detection", "microsoft"
    described.renamed = {"": "layers.0." if hasattr(module, "blocks") else "layers.0.blocks."}
    return described


def microsoft_tokens(module: Any) -> Tokens:
    """Layers of HTSAT give the mean attention of their blocks, too."""
    first = blocks_of(module)[0]
    if not is_built_for_a_grid(module):
        return Tokens(("H", "W"))
    rows, columns = first.input_resolution
    return Tokens(only=(int(rows), int(columns)), heads=first.num_heads)


def blocks_of(module: Any) -> list[Any]:
    """The blocks of a layer, or of a list of them."""
    return list(getattr(module, "blocks", module))


def is_built_for_a_grid(module: Any) -> bool:
    """Whether a layer in Microsoft's manner, or a list of blocks, takes the grid that it was built for only."""
    return hasattr(blocks_of(module)[0], "input_resolution")


def scale_of(block: Any) -> dict[str, float]:
    """The factor of ``q k^T`` of a block of Swin V1 in Microsoft's manner, if it is not the usual one."""
    usual = (block.mlp.fc1.in_features // block.num_heads) ** -0.5
    return {} if block.attn.scale == usual else {"QK_SCALE": block.attn.scale}


def restoration(module: Any, _: Any) -> Description:
    """The blocks of a group of SwinIR or Swin2SR, which fixed their windows and their shift when they were built."""
    if getattr(module, "downsample", None) is not None:
        raise ArgumentError("model: `downsample` of a stack of blocks is a merging of patches, which these networks have not")
    version, first = version_of(module), module.blocks[0]
    window = side(first.window_size)
    values: dict[str, Any] = {"WINDOW_SIZE": window, "QKV_BIAS": has_bias(first.attn)}
    if version == 2:
        values["PRETRAINED_WINDOW_SIZES"] = [side(first.attn.pretrained_window_size)]
    else:
        values |= scale_of(first)
    # A network without shifted blocks may be built for images that it pads.
    grid = [-(-length // window) * window for length in first.input_resolution]
    stages = [len(module.blocks)], [first.num_heads]
    described = stack(module, version, grid, first.mlp.fc1.in_features, first.mlp.fc1, stages, values)
    described.windows, described.dialect, described.renamed = "restoration", "microsoft", {"": "layers.0."}
    return described


def clap(module: Any, _: Any) -> Description:
    """A stage of the audio encoder of CLAP, with the merging of patches behind its blocks, and the tokens before it."""
    first, merges = module.blocks[0], module.downsample is not None
    attention = first.attention.self
    stages = merged_behind(len(module.blocks), attention.num_attention_heads, merges)
    values = {"WINDOW_SIZE": side(attention.window_size), "QKV_BIAS": attention.query.bias is not None}
    described = stack(module, 1, first.input_resolution, module.dim, first.intermediate.dense, stages, values)
    described.windows, described.dialect, described.renamed = "hf", "hf", {"": "encoder.layers.0."}
    return described


def swin2sr(module: Any, _: Any) -> Description:
    """The layers of a stage of Swin2SR."""
    first, attention = module[0], module[0].attention.self
    values = {
        "WINDOW_SIZE": side(first.window_size),
        "QKV_BIAS": attention.query.bias is not None,
        "PRETRAINED_WINDOW_SIZES": [side(attention.pretrained_window_size)],
    }
    mlp, stages = first.intermediate.dense, ([len(module)], [attention.num_attention_heads])
    described = stack(first, 2, first.input_resolution, mlp.in_features, mlp, stages, values)
    described.dialect, described.renamed = "hf", {"": "encoder.layers.0.blocks."}
    return described
