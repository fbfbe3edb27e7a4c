"""Live modules that give feature maps: backbones of timm, torchvision, transformers, OpenMMLab, and of detectors in detectron2's
manner.

The modules of installed libraries are known by their classes, all others by their structure. Of the former the architecture
is read from attributes, of the latter from the shapes of their parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._common.errors import ArgumentError
from .description import Description, Reader, extent, has_bias, in_microsoft_keys, in_timm_keys, is_a, side, transformers_config, version_of
from .preprocessing import transform_of


def by_structure(module: Any) -> Reader | None:
    """The reader of a backbone that is known by its structure; ``None`` for any other module."""
    if is_a(module, ("timm.models._features", "FeatureDictNet")):
        return timm_list if "layers_0" in module and _is_timm(module["layers_0"]) else None
    if is_a(module, ("timm.models._features", "FeatureGetterNet")):
        return timm_getter if _is_timm(module.model) else None
    if hasattr(module, "stages") and hasattr(getattr(module, "patch_embed", None), "projection") and _first_msa(module) is not None:
        return openmmlab
    if hasattr(module, "layers") and hasattr(getattr(module, "patch_embed", None), "proj") and norms_of(module):
        return detectron2
    if _is_torchvision_block(module, "1", "0") and hasattr(getattr(getattr(module, "0", None), "0", None), "kernel_size"):
        return torchvision
    if is_a(module, ("torch.fx.graph_module", "GraphModule")) and _is_traced(getattr(module, "features", None)):
        return torchvision_graph
    return None


def norms_of(module: Any) -> list[int]:
    """The stages whose outputs have a norm of their own, ``norm0``, ``norm1``, ..."""
    numbers = (name.removeprefix("norm") for name, _ in module.named_children() if name.startswith("norm"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def _is_timm(part: Any) -> bool:
    """Whether a module is a Swin of timm, or a stage of one."""
    return type(part).__module__ in ("timm.models.swin_transformer", "timm.models.swin_transformer_v2")


def _first_msa(module: Any) -> Any:
    """The attention of the first block in OpenMMLab's structure."""
    try:
        attention = module.stages[0].blocks[0].attn
    except (AttributeError, IndexError, TypeError):
        return None
    return attention if hasattr(attention, "w_msa") else None


def _is_torchvision_block(module: Any, stage: str, block: str) -> bool:
    part = getattr(getattr(module, stage, None), block, None)
    return any(each.__module__ == "torchvision.models.swin_transformer" for each in type(part).__mro__)


def _is_traced(features: Any) -> bool:
    """Whether modules of a graph hold the parameters of a Swin of torchvision."""
    attention = getattr(getattr(getattr(features, "1", None), "0", None), "attn", None)
    return hasattr(attention, "relative_position_bias_table") or hasattr(attention, "logit_scale")


def openmmlab(module: Any, preprocessing: Any) -> Description:
    """A backbone with the structure of OpenMMLab's: a tuple of maps ``[n, channels, height, width]``."""
    if getattr(module, "out_after_downsample", False):
        raise ArgumentError("model: out_after_downsample gives maps after the merging of patches, which the engine does not have")
    if version_of(module) == 2:
        return _openmmlab_v2(module, preprocessing)
    described = _by_shapes(module, preprocessing)
    attention = _first_msa(module)
    if not getattr(attention, "pad_small_map", True):
        described.windows = "mmpretrain"
    size = getattr(module.patch_embed, "init_input_size", None)
    if size is not None:
        described.opts["DATA.IMG_SIZE"] = side(size)
    return described


def _openmmlab_v2(module: Any, preprocessing: Any) -> Description:
    """A Swin V2 of mmpretrain, whose attributes describe it: shapes do not tell the windows. Its tables of coordinates tell the
    pretrained ones."""
    blocks, patches = [stage.blocks[0] for stage in module.stages], module.patch_embed
    attentions = [block.attn.w_msa for block in blocks]
    size, patch = side(patches.init_input_size), side(patches.projection.kernel_size)
    windows = [side(attention.window_size) for attention in attentions]
    if any(block.attn.pad_small_map for block in blocks):
        raise ArgumentError("model: pad_small_map shifts every grid of a Swin V2, which the engine does for no Swin V2")
    expected = [min(windows[0], -(-size // (patch << stage))) for stage in range(len(windows))]
    if windows != expected:
        raise ArgumentError(
            f"model: its stages have windows of {windows}; swinq runs a Swin V2 of mmpretrain whose windows are no larger than the grids "
            f"at its own size, and equal otherwise: {expected}"
        )
    values = {
        "EMBED_DIM": patches.projection.out_channels,
        "PATCH_SIZE": patch,
        "DEPTHS": [len(stage.blocks) for stage in module.stages],
        "NUM_HEADS": [attention.num_heads for attention in attentions],
        "WINDOW_SIZE": windows[0],
        "MLP_RATIO": blocks[0].ffn.feedforward_channels / blocks[0].ffn.embed_dims,
        "QKV_BIAS": has_bias(attentions[0]),
        "IN_CHANS": patches.projection.in_channels,
        "APE": bool(module.use_abs_pos_embed),
        "PATCH_NORM": patches.norm is not None,
    }
    name = f"{type(module).__module__.partition('.')[0]} {type(module).__name__}"
    described = in_microsoft_keys(name, 2, size, 1, values, transform_of(preprocessing))
    described.task, described.outputs = "features", counted(module.out_indices, len(module.stages))
    return described


def counted(indices: Iterable[Any], stages: int) -> list[int]:
    """Numbers of stages from 0 in ascending order; a negative one counts from the end."""
    return sorted({int(stage) + (stages if stage < 0 else 0) for stage in indices})


def detectron2(module: Any, preprocessing: Any) -> Description:
    """A backbone with Microsoft's layers and a norm on each output, as detectors have it."""
    return _by_shapes(module, preprocessing)


def _by_shapes(module: Any, preprocessing: Any) -> Description:
    outputs = getattr(module, "out_indices", None)
    outputs = norms_of(module) if outputs is None else counted(outputs, len(getattr(module, "stages", None) or module.layers))
    kind = type(module)
    name = f"{kind.__module__.partition('.')[0]} {kind.__name__}"
    return Description(name, transform=transform_of(preprocessing), task="features", outputs=outputs)


def timm_list(module: Any, preprocessing: Any) -> Description:
    """``features_only`` of timm: a list, or a dictionary, of maps without norms."""
    stages: list[Any] = []
    while f"layers_{len(stages)}" in module:
        stages.append(module[f"layers_{len(stages)}"])
    return _timm(module, stages, counted(module.feature_info.out_indices, len(module.feature_info.info)), preprocessing)


def timm_getter(module: Any, preprocessing: Any) -> Description:
    """``features_only`` with ``feature_cls="getter"``, which calls the network's ``forward_intermediates``."""
    if module.norm:
        raise ArgumentError("model: a getter with norm=True applies the final norm to its last map; use norm=False")
    network = module.model
    described = _timm(network, list(network.layers), counted(module.out_indices, len(network.layers)), preprocessing)
    described.renamed = {"model.": ""}
    return described


def timm_headless(module: Any, preprocessing: Any) -> Description:
    """A Swin of timm without a head: its output is that of the last stage, with the final norm."""
    last = len(module.layers) - 1
    described = _timm(module, list(module.layers), [last], preprocessing)
    described.renamed = {"norm.": f"norm{last}."}
    return described


def _timm(module: Any, stages: list[Any], outputs: list[int], preprocessing: Any) -> Description:
    described = in_timm_keys(module, stages, {"num_classes": 0})
    described.transform = transform_of(preprocessing)
    described.task, described.outputs = "features", outputs
    return described


def transformers_backbone(module: Any, preprocessing: Any) -> Description:
    """A backbone of transformers, which gives the maps that its ``out_features`` name."""
    return _transformers(module, [_stage(name) for name in module.out_features], preprocessing)


def transformers_model(module: Any, preprocessing: Any) -> Description:
    """The network of a classifier of transformers, whose output is that of the last stage with the final norm, if there is one."""
    last = len(module.config.depths) - 1
    described = _transformers(module, [last], preprocessing)
    described.renamed = {"layernorm.": f"norm{last}."}
    described.windows = "hf" if version_of(module) == 1 else None
    return described


def _transformers(module: Any, outputs: list[int], preprocessing: Any) -> Description:
    config = module.config
    name = getattr(config, "_name_or_path", "") or type(module).__name__
    described = Description(f"transformers {name}", transformers_config(config), task="features", outputs=outputs)
    if hasattr(preprocessing, "to_json_string"):
        described.preprocessor = preprocessing.to_json_string()
    else:
        described.transform = transform_of(preprocessing)
    return described


def _stage(name: str) -> int:
    """The number of a stage, from 0, by transformers' name."""
    if not name.startswith("stage"):
        raise ArgumentError(f"model: `{name}` is among its outputs; the engine has those of stages only")
    return int(name.removeprefix("stage")) - 1


def torchvision(module: Any, preprocessing: Any) -> Description:
    """The ``features`` of a Swin of torchvision, or ``IntermediateLayerGetter`` on them: maps ``[n, height, width, channels]``."""
    layers = [layer for _, layer in module.named_children()]
    stem, stages, version = layers[0][0], layers[1::2], version_of(module)
    taken = getattr(module, "return_layers", None)
    places = [2 * len(stages) - 1] if taken is None else sorted(int(name) for name in taken)
    if any(place % 2 == 0 for place in places) or (taken is None and len(layers) % 2):
        raise ArgumentError("model: an output is that of the stem or of a merging of patches, which the engine does not have")
    blocks = [stage[0] for stage in stages]
    mlp = blocks[0].mlp[0]
    values = {
        "EMBED_DIM": stem.out_channels,
        "PATCH_SIZE": stem.kernel_size[0],
        "DEPTHS": [len(stage) for stage in stages],
        "NUM_HEADS": [block.attn.num_heads for block in blocks],
        "WINDOW_SIZE": extent(blocks[0].attn.window_size),
        "MLP_RATIO": mlp.out_features / mlp.in_features,
        "QKV_BIAS": blocks[0].attn.qkv.bias is not None,
        "IN_CHANS": stem.in_channels,
    }
    # The windows of torchvision do not depend on the size for which the network was built.
    smallest = values["PATCH_SIZE"] * 2 ** (len(stages) - 1)
    size = extent([length * smallest for length in blocks[0].attn.window_size])
    name = f"torchvision {type(module).__name__}"
    described = in_microsoft_keys(name, version, size, 1, values, transform_of(preprocessing))
    described.task, described.outputs = "features", [place // 2 for place in places]
    described.renamed = {"": "features."}
    return described


def torchvision_graph(module: Any, preprocessing: Any) -> Description:
    """``create_feature_extractor`` on a Swin of torchvision: maps of any stages, of which the graph does not tell the names."""
    described = _by_shapes(module, preprocessing)
    described.name, described.outputs = "torchvision graph", None
    return described


SWIN, SWIN_V2 = "transformers.models.swin.modeling_swin", "transformers.models.swinv2.modeling_swinv2"
#: The reader of a backbone, by its class: the Python module that defines it, and its name.
READERS: dict[tuple[str, str], Reader] = {
    (SWIN, "SwinBackbone"): transformers_backbone,
    (SWIN_V2, "Swinv2Backbone"): transformers_backbone,
    ("transformers.models.maskformer.modeling_maskformer_swin", "MaskFormerSwinBackbone"): transformers_backbone,
    (SWIN, "SwinModel"): transformers_model,
    (SWIN_V2, "Swinv2Model"): transformers_model,
    ("transformers.models.donut.modeling_donut_swin", "DonutSwinModel"): transformers_model,
}
