"""Live modules that are stacks of Swin blocks: they take tokens and the grid of these.

Stages of timm, transformers and torchvision are known by their classes, all others by their structure: SwinIR, Swin2SR in the code of its
authors, and layers in Microsoft's manner. Swin2SR of transformers has no module for a stack alone: there it is the list of its layers,
which are called one after another. So are the decoders of Swin-Unet, whose layers end with an expansion that is no part of a stack.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import stages
from .description import Reader, is_a
from .tokens import Tokens


@dataclass(frozen=True)
class Kind:
    """A kind of stacks."""

    read: Reader
    #: How a stack of this kind takes its tokens.
    tokens: Callable[[Any], Tokens]


def reader_of(module: Any) -> Reader | None:
    """What reads a stack; ``None`` for any other module."""
    kind = kind_of(module)
    return None if kind is None else kind.read


def tokens_of(module: Any) -> Tokens | None:
    """How a stack takes its tokens; ``None`` for any other module."""
    kind = kind_of(module)
    return None if kind is None else kind.tokens(module)


def kind_of(module: Any) -> Kind | None:
    """The kind of a stack; ``None`` for any other module."""
    for name, kind in BY_CLASS.items():
        if is_a(module, name):
            return kind
    if is_a(module, ("torch.nn.modules.container", "Sequential")):
        return TORCHVISION if len(module) > 0 and all(is_a(block, TORCHVISION_BLOCK) for block in module) else None
    if type(module).__name__ == "ModuleList":
        return _kind_of_list(module)
    return _kind_of_layer(module)


def _kind_of_list(module: Any) -> Kind | None:
    if len(module) == 0:
        return None
    if all(is_a(layer, SWIN2SR_LAYER) for layer in module):
        return SWIN2SR
    is_plain = all(_is_block(block) and hasattr(block, "input_resolution") for block in module)
    return MICROSOFT if is_plain and _parameters(module[0]) == ["x"] else None


def _kind_of_layer(module: Any) -> Kind | None:
    blocks: Any = getattr(module, "blocks", None)
    # Other networks have other modules by this name, some of which have no length.
    if type(blocks).__name__ not in ("ModuleList", "Sequential") or not inspect.isfunction(type(module).forward):
        return None
    if len(blocks) == 0 or not all(_is_block(block) for block in blocks):
        return None
    if foreign_part(module, ("blocks", "downsample")) is not None:
        return None
    kind = BY_PARAMETERS.get(tuple(_parameters(module)))
    # Video Swin and others take maps by the same name.
    return None if kind is MICROSOFT and _parameters(module) == ["x"] and not stages.is_built_for_a_grid(module) else kind


def is_list(module: Any) -> bool:
    """Whether a stack is a list of layers, which a program calls itself."""
    return type(module).__name__ == "ModuleList" and _kind_of_list(module) is not None


def lists_in(model: Any) -> Iterator[Any]:
    """The lists of layers in a model that its code calls one after another: those of Swin2SR of transformers, and the blocks of layers
    that end with an expansion of patches."""
    for module in model.modules():
        if is_list(module) and is_a(module[0], SWIN2SR_LAYER):
            yield module
        children = dict(module.named_children())
        if "upsample" in children and is_list(children.get("blocks")) and foreign_part(module, ("blocks", "upsample")) is None:
            yield children["blocks"]


def called(module: Any) -> Any:
    """The module whose ``forward`` has the signature of a call: the first layer of a list."""
    return module[0] if is_list(module) else module


def run(module: Any, *args: Any) -> Any:
    """Calls a module; a list of layers as programs do, one after another."""
    if not is_list(module):
        return module(*args)
    tokens, *others = args
    for layer in module:
        output = layer(tokens, *others)
        tokens = output[0] if isinstance(output, tuple) else output
    return tokens


def _parameters(module: Any) -> list[str]:
    return list(inspect.signature(type(module).forward).parameters)[1:]


def _is_block(block: Any) -> bool:
    """Whether a module has the parts of a Swin block by Microsoft's names, and those of no other."""
    attention = getattr(block, "attn", None)
    if not hasattr(attention, "qkv") or not any(hasattr(attention, part) for part in ("relative_position_bias_table", "logit_scale")):
        return False
    return all(hasattr(block, part) for part in PARTS) and foreign_part(block) is None


#: The parts of a block with parameters, by Microsoft's names.
PARTS = ("norm1", "attn", "norm2", "mlp")


def foreign_part(module: Any, parts: tuple[str, ...] = PARTS) -> str | None:
    """The name of a part with parameters of a module that is not among ``parts``, those of a Swin's; ``None`` if there is none."""
    with_parameters = (name for name, part in module.named_children() if any(True for _ in part.parameters()))
    return next((name for name in with_parameters if name not in parts), None)


def _in_dimensions(_: Any) -> Tokens:
    return Tokens(("input_dimensions",))


CLAP = Kind(stages.clap, lambda _: Tokens(("input_dimensions",), other_network="always_partition"))
SWIN2SR = Kind(stages.swin2sr, _in_dimensions)
TORCHVISION = Kind(stages.torchvision, lambda _: Tokens(in_rows=True))
MICROSOFT = Kind(stages.microsoft, stages.microsoft_tokens)
TIMM = Kind(stages.timm, stages.timm_tokens)
#: The classes of blocks and layers: the Python module that defines each, and its name.
SWIN2SR_LAYER = ("transformers.models.swin2sr.modeling_swin2sr", "Swin2SRLayer")
TORCHVISION_BLOCK = ("torchvision.models.swin_transformer", "SwinTransformerBlock")
#: The kinds of stages that are known by their classes.
BY_CLASS = {
    ("transformers.models.clap.modeling_clap", "ClapAudioStage"): CLAP,
    ("transformers.models.swin.modeling_swin", "SwinStage"): Kind(stages.transformers, stages.transformers_tokens),
    ("transformers.models.swinv2.modeling_swinv2", "Swinv2Stage"): Kind(stages.transformers_v2, _in_dimensions),
    ("timm.models.swin_transformer", "SwinTransformerStage"): TIMM,
    ("timm.models.swin_transformer_v2", "SwinTransformerV2Stage"): TIMM,
}
#: Those that are known by their structure, by the parameters of ``forward``.
BY_PARAMETERS = {
    ("x", "x_size"): Kind(stages.restoration, lambda _: Tokens(("x_size",))),
    ("x", "H", "W"): MICROSOFT,
    ("x",): MICROSOFT,
}
