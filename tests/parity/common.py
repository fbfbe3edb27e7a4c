"""Functions that the parity scripts share: random parameters, and conversion of timm's names to Microsoft's."""

import math
import re

import torch


def redraw(model: torch.nn.Module, seed: int) -> None:
    """Replaces every parameter by random numbers.

    A library's initialisation has zero biases, which would hide mistakes.

    Weights of products: N(0, 1 / fan-in). Weights of norms: N(1, 0.3). Biases and tables: N(0, 0.5). Logarithms of the
    factors of Swin V2: uniform from ln 5 to ln 120, so that some are clamped and some logits pass the mask.
    """
    generator = torch.Generator().manual_seed(seed)
    norms = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.LayerNorm)}
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("logit_scale"):
                parameter.copy_(1.6 + 3.2 * torch.rand(parameter.shape, generator=generator))
            elif id(parameter) in norms:
                parameter.copy_(1 + 0.3 * noise)
            elif name.endswith("weight"):
                parameter.copy_(noise / math.sqrt(parameter[0].numel()))
            else:
                parameter.copy_(0.5 * noise)


def images(count: int, size: int, seed: int) -> torch.Tensor:
    """Normalised images of independent pixels: f32 [count, 3, size, size]."""
    return torch.randn((count, 3, size, size), generator=torch.Generator().manual_seed(seed))


def microsoft_name(name: str) -> str:
    """Microsoft's name of the parameter that timm calls `name`."""
    name = re.sub(r"^layers\.(\d+)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", name)
    return name.replace("head.fc.", "head.")


def microsoft_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a timm Swin in Microsoft's naming."""
    return {microsoft_name(name): p.detach().clone().contiguous() for name, p in model.named_parameters()}


HF_NAMES = [
    (r"^swin\.embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^swin\.embeddings\.norm\.", "patch_embed.norm."),
    (r"^swin\.embeddings\.position_embeddings$", "absolute_pos_embed"),
    (r"^swin\.layernorm\.", "norm."),
    (r"^classifier\.", "head."),
    (r"^swin\.encoder\.", ""),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    (r"\.attention\.relative_position_bias\.", ".attn."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
]


def microsoft_state_of_hf(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a transformers Swin (5.23's module names) in Microsoft's naming; q, k and v are joined."""
    state, thirds = {}, {}
    for name, parameter in model.named_parameters():
        for pattern, replacement in HF_NAMES:
            name = re.sub(pattern, replacement, name)
        value = parameter.detach().clone()
        if third := re.match(r"(.*)\.attention\.([qkv])_proj\.(\w+)$", name):
            thirds.setdefault(f"{third[1]}.attn.qkv.{third[3]}", {})[third[2]] = value
        else:
            state[name] = value.contiguous()
    return state | {name: torch.cat([parts[p] for p in "qkv"]) for name, parts in thirds.items()}


def joined_bias(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Joins the biases of queries and values of a Swin V2 to one of queries, keys (zeros) and values."""
    out = {}
    for name, value in state.items():
        if name.endswith(".q_bias"):
            block = name.removesuffix("q_bias")
            out[f"{block}qkv.bias"] = torch.cat([value, torch.zeros_like(value), state[f"{block}v_bias"]])
        elif not name.endswith(".v_bias"):
            out[name] = value
    return out


def swinq_state_v2(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a timm Swin V2 in swinq's naming."""
    return joined_bias(microsoft_state(model))


HF_V2_NAMES = [
    (r"^swinv2\.embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^swinv2\.embeddings\.norm\.", "patch_embed.norm."),
    (r"^swinv2\.embeddings\.position_embeddings$", "absolute_pos_embed"),
    (r"^swinv2\.layernorm\.", "norm."),
    (r"^classifier\.", "head."),
    (r"^swinv2\.encoder\.", ""),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.attention\.self\.logit_scale$", ".attn.logit_scale"),
    (r"\.attention\.self\.continuous_position_bias_mlp\.", ".attn.cpb_mlp."),
    (r"\.attention\.self\.query\.bias$", ".attn.q_bias"),
    (r"\.attention\.self\.value\.bias$", ".attn.v_bias"),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
]


def swinq_state_v2_of_hf(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a transformers Swin V2 in swinq's naming."""
    state, thirds = {}, {}
    for name, parameter in model.named_parameters():
        for pattern, replacement in HF_V2_NAMES:
            name = re.sub(pattern, replacement, name)
        value = parameter.detach().clone()
        if third := re.match(r"(.*)\.attention\.self\.(query|key|value)\.weight$", name):
            thirds.setdefault(f"{third[1]}.attn.qkv.weight", {})[third[2]] = value
        else:
            state[name] = value.contiguous()
    joined = {name: torch.cat([parts[p] for p in ("query", "key", "value")]) for name, parts in thirds.items()}
    return joined_bias(state) | joined
