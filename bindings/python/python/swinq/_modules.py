"""Live modules of timm, torchvision, transformers and Microsoft's repository, and state dictionaries: classifiers.

A module's parameters are read through its state dictionary, and its architecture from its attributes. The libraries
themselves are not imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import _backbones, _native
from ._arrays import is_array, is_tensor, to_numpy
from ._description import (
    Description,
    has_bias,
    in_microsoft_keys,
    in_timm_keys,
    side,
    transformers_config,
    version_of,
)
from ._errors import ArgumentError, ModelError, PreprocessingError
from ._layers import check_code, check_compiled, check_hooks, check_layers, check_not_replaced, classes_of
from ._preprocessing import transform_of

#: ``cfg``, ``opts``, ``dialect``, ``weights``, ``prefix``, the family of the preprocessing, ``labels``, ``task``, ``outputs``,
#: ``orientation`` and ``channels`` of ``open``. Outputs are numbers of stages, from 0.
Reading = tuple[
    str | None,
    list[tuple[str, str]],
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    str | None,
    list[int] | None,
    str | None,
    str | None,
]
Tensor = tuple[str, str, list[int], np.ndarray]
#: Reads the description of a module; the other argument is the preprocessing that the caller gives.
Reader = Callable[[Any, Any], Description]


def load(model: Any, preprocessing: Any, reading: Reading, values: Mapping[str, Any] | None = None) -> _native.Model:
    """The model with the parameters and the description of a module or a state dictionary; ``values`` stands for the state dictionary
    of a module."""
    cfg, opts, dialect, weights, prefix, family, labels, task, outputs, orientation, channels = reading
    if weights is not None:
        raise ArgumentError("weights: chooses among the dictionaries of a file; pass the dictionary itself")
    if isinstance(model, Mapping):
        state, described = model, Description("state dictionary", transform=transform_of(preprocessing))
    else:
        module = unwrapped(model)
        described = describe(module, preprocessing)
        check_layers(module)
        check_hooks(module)
        state = renamed(module.state_dict() if values is None else values, described.renamed)
        if task not in (None, described.task or "classification"):
            raise ArgumentError(f"task: the module {type(module).__name__} is {_what(described)}; leave task out")
        if described.task is None and outputs is not None:
            raise ArgumentError(f"outputs: the module {type(module).__name__} is {_what(described)}")
        task, outputs = described.task, described.outputs if outputs is None else outputs
    if cfg is None:
        cfg, opts = described.cfg, [(key, str(value)) for key, value in described.opts.items()] + opts
    transform = None if described.transform is None else json.dumps(described.transform)
    try:
        return _native.Model.from_memory(
            described.name,
            tensors_of(state),
            described.config,
            described.preprocessor,
            transform,
            described.windows,
            (cfg, opts, dialect, None, prefix, family, labels, task, outputs, orientation, channels),
        )
    except ModelError as error:
        if isinstance(model, Mapping):
            raise
        raise ModelError(f"model: {_problem(unwrapped(model), error)}") from error


def _problem(module: Any, error: ModelError) -> str:
    """Why a module cannot be read: the parameter that is not finite, or what was found wrong of its tensors."""
    kind = type(module).__name__
    for name, tensor in module.state_dict().items():
        if is_array(tensor) and not name.endswith("attn_mask") and not np.isfinite(to_numpy(tensor)).all():
            return f"`{name}` of the module {kind} holds a value that is not finite (NaN or infinite)"
    return f"the module {kind}: {error}"


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


def renamed(state: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """``state`` with new beginnings of names: of each name, the first beginning among ``names`` that it has."""
    found = {}
    for name, tensor in state.items():
        old = next((old for old in names if name.startswith(old)), None)
        found[name if old is None else names[old] + name[len(old) :]] = tensor
    return found


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


def reader_of(module: Any) -> Reader | None:
    """What reads a module's description; ``None`` for a module that is no Swin."""
    for each in type(module).__mro__:
        reader = READERS.get((each.__module__, each.__name__))
        if reader is not None:
            return reader
    patches = getattr(module, "patch_embed", None)
    if hasattr(module, "layers") and hasattr(module, "head") and hasattr(patches, "patches_resolution"):
        return microsoft
    return _backbones.reader_of(module)


def describe(module: Any, preprocessing: Any) -> Description:
    """The description of a module, whose code is that of its library."""
    check_not_replaced(module)
    reader = reader_of(module)
    if reader is None:
        raise ArgumentError(
            f"model: {type(module).__module__}.{type(module).__name__} is not a Swin of timm, torchvision, transformers, "
            "Microsoft, OpenMMLab or detectron2; if it contains one, pass that module, or the whole to swinq.torch.quantize"
        )
    check_compiled(module)
    check_code(module)
    try:
        return reader(module, preprocessing)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        kind = type(module).__name__
        raise ArgumentError(f"model: {kind} lacks a part of a Swin, or has another in its place: {error}") from error


def timm(module: Any, preprocessing: Any) -> Description:
    """A classifier of timm; without a head it is a backbone whose only output has the final norm."""
    if not any(hasattr(part, "out_features") for part in module.head.modules()):
        return _backbones.timm_headless(module, preprocessing)
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


def _what(described: Description) -> str:
    """What a module is, and the way to the other task."""
    if described.task:
        return "a backbone, and runs as one"
    return "a classifier, and runs as one; for feature maps open a backbone, such as timm's with features_only=True"


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


#: The reader of a module, by its class or a class that it derives from: the Python module that defines it, and its name.
READERS: dict[tuple[str, str], Reader] = {
    ("timm.models.swin_transformer", "SwinTransformer"): timm,
    ("timm.models.swin_transformer_v2", "SwinTransformerV2"): timm,
    ("torchvision.models.swin_transformer", "SwinTransformer"): torchvision,
    ("transformers.models.swin.modeling_swin", "SwinForImageClassification"): transformers,
    ("transformers.models.swinv2.modeling_swinv2", "Swinv2ForImageClassification"): transformers,
    **_backbones.READERS,
}
