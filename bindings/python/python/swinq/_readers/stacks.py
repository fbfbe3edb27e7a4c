"""Live modules that are stacks of Swin blocks in other networks: they take tokens and the grid of these.

Those of transformers are known by their classes, all others by their structure: SwinIR, and Swin2SR in the code of its authors.
Swin2SR of transformers has no module for a stack alone: there it is the list of its layers, which are called one after another.
"""

from __future__ import annotations

import inspect
from typing import Any

from .._common.errors import ArgumentError
from .description import Description, Reader, has_bias, in_microsoft_keys, is_a, side, version_of


def reader_of(module: Any) -> Reader | None:
    """What reads a stack; ``None`` for any other module."""
    if is_a(module, CLAP_STAGE):
        return clap
    if is_list(module):
        return swin2sr
    blocks: Any = getattr(module, "blocks", None)
    # Other networks have other modules by this name, some of which have no length.
    if type(blocks).__name__ not in ("ModuleList", "Sequential") or not inspect.isfunction(type(module).forward):
        return None
    if len(blocks) > 0 and all(_is_block(block) for block in blocks) and _parameters(module) == ["x", "x_size"]:
        return restoration
    return None


def is_list(module: Any) -> bool:
    """Whether a stack is a list of layers, which a program calls itself."""
    return type(module).__name__ == "ModuleList" and len(module) > 0 and all(is_a(layer, SWIN2SR_LAYER) for layer in module)


def called(module: Any) -> Any:
    """The module whose ``forward`` has the signature of a call: the first layer of a list."""
    return module[0] if is_list(module) else module


def run(module: Any, *args: Any) -> Any:
    """Calls a module; a list of layers as programs do, one after another."""
    if not is_list(module):
        return module(*args)
    tokens, *others = args
    for layer in module:
        tokens = layer(tokens, *others)[0]
    return tokens


def grid_parameter(module: Any) -> str | None:
    """The name of the parameter of a stack's ``forward`` that takes the rows and columns of the grid of its tokens; ``None`` for any
    other module."""
    return None if reader_of(module) is None else _parameters(module)[1]


def _parameters(module: Any) -> list[str]:
    return list(inspect.signature(type(called(module)).forward).parameters)[1:]


def _is_block(block: Any) -> bool:
    """Whether a module has the parts of a Swin block by Microsoft's names, and those of no other."""
    attention = getattr(block, "attn", None)
    if not hasattr(attention, "qkv") or not any(hasattr(attention, part) for part in ("relative_position_bias_table", "logit_scale")):
        return False
    return all(hasattr(block, part) for part in PARTS) and foreign_part(block) is None


def foreign_part(block: Any) -> str | None:
    """The name of a part that a block of another network has, and a Swin's has not; ``None`` if there is none."""
    with_parameters = (name for name, part in block.named_children() if any(True for _ in part.parameters()))
    return next((name for name in with_parameters if name not in PARTS), None)


def restoration(module: Any, _: Any) -> Description:
    """The blocks of a group of SwinIR or Swin2SR, which fixed their windows and their shift when they were built."""
    if getattr(module, "downsample", None) is not None:
        raise ArgumentError("model: `downsample` of a stack of blocks is a merging of patches, which these networks have not")
    version, blocks = version_of(module), list(module.blocks)
    first = blocks[0]
    channels, hidden = first.mlp.fc1.in_features, first.mlp.fc1.out_features
    values: dict[str, Any] = {"WINDOW_SIZE": side(first.window_size), "QKV_BIAS": has_bias(first.attn)}
    if version == 2:
        values["PRETRAINED_WINDOW_SIZES"] = [side(first.attn.pretrained_window_size)]
    elif first.attn.scale != (channels // first.num_heads) ** -0.5:
        values["QK_SCALE"] = first.attn.scale
    # A network without shifted blocks may be built for images that it pads.
    grid = [-(-length // side(first.window_size)) * side(first.window_size) for length in first.input_resolution]
    described = _described(module, version, grid, (channels, hidden), [first.num_heads], [len(blocks)], values)
    described.windows, described.dialect, described.renamed = "restoration", "microsoft", {"": "layers.0."}
    return described


def clap(module: Any, _: Any) -> Description:
    """A stage of the audio encoder of CLAP, with the merging of patches behind its blocks, and the tokens before it."""
    first = module.blocks[0]
    heads, hidden = first.attention.self.num_attention_heads, first.intermediate.dense.out_features
    values = {"WINDOW_SIZE": side(first.attention.self.window_size), "QKV_BIAS": first.attention.self.query.bias is not None}
    depths, merges = [len(module.blocks)], module.downsample is not None
    described = _described(
        module, 1, first.input_resolution, (module.dim, hidden), [heads, 2 * heads][: 1 + merges], (depths + [0])[: 1 + merges], values
    )
    described.windows, described.dialect, described.renamed = "hf", "hf", {"": "encoder.layers.0."}
    return described


def swin2sr(module: Any, _: Any) -> Description:
    """The layers of a stage of Swin2SR."""
    first = module[0]
    attention = first.attention.self
    values = {
        "WINDOW_SIZE": side(first.window_size),
        "QKV_BIAS": attention.query.bias is not None,
        "PRETRAINED_WINDOW_SIZES": [side(attention.pretrained_window_size)],
    }
    widths = first.intermediate.dense.in_features, first.intermediate.dense.out_features
    described = _described(module, 2, first.input_resolution, widths, [attention.num_attention_heads], [len(module)], values)
    described.dialect, described.renamed = "hf", {"": "encoder.layers.0.blocks."}
    return described


def _described(
    module: Any, version: int, grid: Any, widths: tuple[int, int], heads: list[int], depths: list[int], values: dict[str, Any]
) -> Description:
    """The description of a stack for a grid of tokens, with ``widths`` channels of them and in the MLP; all its stages are outputs."""
    channels, hidden = widths
    values |= {
        "TAKES_TOKENS": True,
        "IN_CHANS": channels,
        "PATCH_SIZE": 1,
        "PATCH_NORM": False,
        "EMBED_DIM": channels,
        "DEPTHS": depths,
        "NUM_HEADS": heads,
        "MLP_RATIO": hidden / channels,
    }
    kind = type(called(module))
    name = f"{kind.__module__.partition('.')[0]} {kind.__name__}"
    described = in_microsoft_keys(name, version, list(grid), 1, values, None)
    described.task, described.outputs = "features", list(range(len(depths)))
    return described


#: The parts of a block with parameters, by Microsoft's names.
PARTS = ("norm1", "attn", "norm2", "mlp")
#: The classes of CLAP's stages and of Swin2SR's layers: the Python module that defines each, and its name.
CLAP_STAGE = ("transformers.models.clap.modeling_clap", "ClapAudioStage")
SWIN2SR_LAYER = ("transformers.models.swin2sr.modeling_swin2sr", "Swin2SRLayer")
