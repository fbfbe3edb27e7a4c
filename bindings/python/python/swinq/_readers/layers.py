"""Layers of a live module that decide its results and are not among its parameters."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

from .._common.errors import ArgumentError

#: Ends of the names of activations in the MLPs of timm and Microsoft, of torchvision, of transformers, and of OpenMMLab.
ACTIVATIONS = ("mlp.act", "mlp.1", "intermediate_act_fn", "activation_fn", "act_fn", "ffn.activate", "ffn.layers.0.1")
#: Classes of the exact GELU, and of its approximation by tanh.
EXACT = ("GELU", "GELUActivation")
BY_TANH = ("GELUTanh", "PytorchGELUTanh", "NewGELUActivation")
#: Ends of the names of the classes without parameters in the Swins of the libraries, but for activations: in inference they copy,
#: pool or reorder.
PARTS = ("Dropout", "DropPath", "StochasticDepth", "Identity", "Flatten", "Permute", "Sequential", "ModuleList") + (
    "AdaptiveAvgPool",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "PixelShuffle",
)
#: Ends of the names of norms that every block and every merging of patches has.
NORMS = ("norm1", "norm2", "layernorm_before", "layernorm_after", "downsample.norm")
#: The epsilon of every LayerNorm.
EPSILON = 1e-5


def check_layers(module: Any) -> None:
    """Refuses activations and norms of a live module that swinq does not compute.

    GELU by tanh is allowed, with a warning: it differs from the exact one by less than 5e-4.
    """
    approximate = None
    for name, activation in activations(module):
        kind = type(activation).__name__
        if kind in BY_TANH or (kind in EXACT and getattr(activation, "approximate", "none") == "tanh"):
            approximate = approximate or name
        elif kind not in EXACT:
            raise ArgumentError(f"model: the activation `{name}` is {kind}; swinq computes GELU only")
    for name, part in module.named_modules():
        if name.endswith(NORMS) and type(part).__name__ == "Identity":
            raise ArgumentError(f"model: `{name}` is an Identity, where a Swin has a LayerNorm")
    for name, norm in norms(module):
        for parameter in ("weight", "bias"):
            if getattr(norm, parameter, None) is None:
                raise ArgumentError(f"model: `{name}` is a {type(norm).__name__} without {parameter}, which each norm of a Swin has")
        if type(norm).__name__.endswith("RMSNorm") or norm.eps != EPSILON:
            raise ArgumentError(
                f"model: `{name}` is a {type(norm).__name__} with eps={norm.eps}; swinq computes LayerNorm with eps={EPSILON}"
            )
    if approximate is not None:
        text = f"model: the activation `{approximate}` is GELU by tanh; swinq computes the exact GELU, which differs a little"
        warnings.warn(text, stacklevel=4)


#: Packages whose Swins are read by what their own code computes, and the packages that they use.
LIBRARIES = {"timm": ("timm", "torch"), "torchvision": ("torchvision", "torch"), "transformers": ("transformers", "torch")}


def check_code(module: Any) -> None:
    """Refuses a module of timm, torchvision or transformers, if a part of it does not run the code of its library, or is none of a
    Swin of it.

    Of copies of other code the structure alone is known.
    """
    # The code of a container is that of its parts.
    is_container = type(module).__module__ == "torch.nn.modules.container"
    library = library_of(next(module.children(), module) if is_container else module)
    if library is None:
        return
    activated = [part for _, part in activations(module)]
    for name, part in module.named_modules():
        place = f"`{name}`" if name else type(module).__name__
        own = [key for key in vars(part) if _is_replaced(part, key)]
        if own:
            raise ArgumentError(f"model: {place} has a {own[0]} of its own, which replaces that of {type(part).__name__}{_remedy(name, part, own[0])}")
        if any(each.__name__ == "ScriptModule" for each in type(part).__mro__):
            raise ArgumentError(f"model: {place} is traced or scripted by torch.jit, so that its code is not known to be that of {library}")
        source = type(part).forward.__module__
        # The code of a graph is made from what was traced, and belongs to no module of Python.
        if source is not None and source.partition(".")[0] not in LIBRARIES[library]:
            raise ArgumentError(f"model: {place} is a {type(part).__name__}, whose forward is not that of {library}")
        plain = not any(True for _ in part.children()) and not any(True for _ in part.parameters())
        if plain and all(part is not each for each in activated) and not type(part).__name__.endswith(parts_at(name)):
            raise ArgumentError(f"model: {place} is a {type(part).__name__}, which swinq does not compute there")


def _is_replaced(part: Any, name: str) -> bool:
    """Whether an attribute of a module is another function than the method of its class with that name, which accelerate leaves there
    when it removes a hook."""
    method, attribute = getattr(type(part), name, None), vars(part)[name]
    is_method = getattr(attribute, "__self__", None) is part and getattr(attribute, "__func__", None) is method
    return inspect.isfunction(method) and not is_method


def _remedy(name: str, part: Any, attribute: str) -> str:
    """The way back to the code of a part of a module, which has an attribute in its place."""
    if hasattr(part, "_hf_hook"):
        return (
            ": a hook of accelerate. Call accelerate.hooks.remove_hook_from_module(module, recurse=True), or quantize before accelerate "
            "dispatches the model"
        )
    path = f"module.{name}" if name else "module"
    if hasattr(getattr(part, attribute), "_torchdynamo_orig_callable"):
        return f": code of torch.compile. `del {path}.{attribute}` brings the original back; compile after swinq.torch.quantize"
    return f"; `del {path}.{attribute}` brings the original back"


def uncompiled(module: Any) -> Any:
    """The module that ``torch.compile`` wrapped; any other module itself."""
    while _is_compiled(module):
        module = module._orig_mod
    return module


def _is_compiled(module: Any) -> bool:
    """Whether a module is a wrapper that ``torch.compile`` made."""
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules


def check_not_replaced(module: Any) -> None:
    """Refuses a module that stands in the place of a Swin, or whose ``forward`` is the engine's: their classes say what they are."""
    for part in (module, module.__dict__.get("forward")):
        state = getattr(type(part), "REPLACES_A_SWIN", None)
        if state is not None:
            raise ArgumentError(f"model: {type(module).__name__} {state}")


def check_compiled(module: Any) -> None:
    """Refuses a module with parts that ``torch.compile`` wrapped, whose compiled code stays bound to them."""
    for name, part in module.named_modules():
        if name and _is_compiled(part):
            raise ArgumentError(
                f"model: `{name}` is compiled by torch.compile; pass the module without it, and compile the whole model after "
                "swinq.torch.quantize"
            )


def check_hooks(module: Any) -> None:
    """Refuses a module in which hooks observe or change what is computed, but for those of transformers, which collect outputs."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    for name, part in module.named_modules():
        hooks = [hook for kind in kinds for hook in getattr(part, kind, {}).values()]
        if any(not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks):
            place = f"`{name}`" if name else type(module).__name__
            raise ArgumentError(f"model: {place} has hooks, which an engine does not call; remove them")


def parts_at(name: str) -> tuple[str, ...]:
    """Ends of the names of classes without parameters that a Swin has at the place ``name``, but for the activations of MLPs."""
    if is_of_positions(name):
        return ("ReLU", "Dropout", "Identity")
    return ("Softmax",) if name.endswith("attn.softmax") else PARTS


def is_of_positions(name: str) -> bool:
    """Whether the module ``name`` belongs to the MLP of a Swin V2 that computes the bias of positions."""
    return "cpb_mlp" in name or "position_bias" in name


def library_of(module: Any) -> str | None:
    """The library that defines the class of a module, or a class that it derives from; ``None`` for none of the known ones."""
    packages = (each.__module__.partition(".")[0] for each in type(module).__mro__)
    return next((package for package in packages if package in LIBRARIES), None)


def activations(module: Any) -> Iterator[tuple[str, Any]]:
    """The activations of MLPs, by name."""
    for name, part in module.named_modules():
        if name.endswith(ACTIVATIONS) and not is_of_positions(name):
            yield name, part


def norms(module: Any) -> Iterator[tuple[str, Any]]:
    """The norms of rows, by name."""
    for name, part in module.named_modules():
        if hasattr(part, "normalized_shape") and hasattr(part, "eps"):
            yield name, part


def classes_of(head: Any) -> int:
    """The number of classes of a head: the outputs of its only linear layer."""
    linear = [part for part in head.modules() if hasattr(part, "out_features")]
    if len(linear) == 1:
        return int(linear[0].out_features)
    what = "no linear layer" if not linear else f"{len(linear)} linear layers"
    raise ArgumentError(f"model: its head ({type(head).__name__}) has {what}; swinq runs classifiers with one")
