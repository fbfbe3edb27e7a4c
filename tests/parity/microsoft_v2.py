"""Swin V2 as Microsoft's `models/swin_transformer_v2.py` computes it, for parity tests: one function of the parameters.

It follows that file in the order of its operations and in what it does at the edges: a window that is larger than the
feature map is clamped and not shifted, the mask of -100 is added, sizes that do not divide are refused.
"""

import math

import torch
import torch.nn.functional as F


def windows_of(x: torch.Tensor, window: int) -> torch.Tensor:
    """[batch, h, w, c] to [batch * windows, window * window, c]."""
    batch, h, w, c = x.shape
    x = x.view(batch, h // window, window, w // window, window, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window * window, c)


def unwindowed(x: torch.Tensor, window: int, side: int) -> torch.Tensor:
    """The inverse of `windows_of` for a square grid."""
    count = side // window
    x = x.view(-1, count, count, window, window, x.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, side, side, x.shape[-1])


def position_index(window: int) -> torch.Tensor:
    grid = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
    relative = grid[:, :, None] - grid[:, None, :] + window - 1
    return relative[0] * (2 * window - 1) + relative[1]


def coordinates(window: int, pretrained: int) -> torch.Tensor:
    """The inputs of the position MLP, [(2 window - 1)^2, 2]."""
    line = torch.arange(-(window - 1), window, dtype=torch.float32)
    table = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1)
    table = table / ((pretrained if pretrained > 0 else window) - 1) * 8
    return (torch.sign(table) * torch.log2(table.abs() + 1.0) / math.log2(8)).reshape(-1, 2)


def shift_mask(side: int, window: int, shift: int) -> torch.Tensor:
    """[windows, n, n]: -100 between tokens that are not neighbours in the image."""
    regions, region = torch.zeros(1, side, side, 1), 0
    parts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for rows in parts:
        for columns in parts:
            regions[:, rows, columns, :] = region
            region += 1
    regions = windows_of(regions, window).squeeze(-1)
    return torch.where(regions.unsqueeze(1) != regions.unsqueeze(2), -100.0, 0.0)


def attention(x: torch.Tensor, p: dict, window: int, pretrained: int, mask: torch.Tensor | None) -> torch.Tensor:
    rows, n, c = x.shape
    heads = p["logit_scale"].shape[0]
    bias = torch.cat([p["q_bias"], torch.zeros(c), p["v_bias"]]) if "q_bias" in p else None
    qkv = F.linear(x, p["qkv.weight"], bias).reshape(rows, n, 3, heads, -1).permute(2, 0, 3, 1, 4)
    logits = F.normalize(qkv[0], dim=-1) @ F.normalize(qkv[1], dim=-1).transpose(-2, -1)
    logits = logits * torch.clamp(p["logit_scale"], max=math.log(1.0 / 0.01)).exp()
    hidden = F.relu(F.linear(coordinates(window, pretrained), p["cpb_mlp.0.weight"], p["cpb_mlp.0.bias"]))
    table = F.linear(hidden, p["cpb_mlp.2.weight"])[position_index(window).flatten()]
    logits = logits + 16 * torch.sigmoid(table.view(n, n, heads).permute(2, 0, 1)).unsqueeze(0)
    if mask is not None:
        logits = logits.view(-1, len(mask), heads, n, n) + mask[None, :, None]
        logits = logits.view(-1, heads, n, n)
    mixed = (logits.softmax(dim=-1) @ qkv[2]).transpose(1, 2).reshape(rows, n, c)
    return F.linear(mixed, p["proj.weight"], p["proj.bias"])


def swinv2(state: dict, fields: dict, images: torch.Tensor) -> torch.Tensor:
    """Logits of normalised images [n, 3, size, size]. `state` has Microsoft's names, `fields` the names of its YAML."""

    def part(prefix: str) -> dict:
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])

    x = F.conv2d(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=4)
    side = x.shape[-1]
    x = norm(x.flatten(2).transpose(1, 2), "patch_embed.norm")
    for s, depth in enumerate(fields["depths"]):
        window, covered = min(fields["window_size"], side), side <= fields["window_size"]
        assert side % window == 0, "windows must divide the grid"
        for b in range(depth):
            block = f"layers.{s}.blocks.{b}"
            shift = 0 if covered or b % 2 == 0 else fields["window_size"] // 2
            y = torch.roll(x.view(len(x), side, side, -1), (-shift, -shift), dims=(1, 2))
            mask = shift_mask(side, window, shift) if shift else None
            pretrained = fields.get("pretrained_window_sizes", [0] * 8)[s]
            y = attention(windows_of(y, window), part(f"{block}.attn."), window, pretrained, mask)
            y = torch.roll(unwindowed(y, window, side), (shift, shift), dims=(1, 2))
            x = x + norm(y.reshape(x.shape), f"{block}.norm1")
            mlp = part(f"{block}.mlp.")
            hidden = F.gelu(F.linear(x, mlp["fc1.weight"], mlp["fc1.bias"]))
            x = x + norm(F.linear(hidden, mlp["fc2.weight"], mlp["fc2.bias"]), f"{block}.norm2")
        if s + 1 < len(fields["depths"]):
            assert side % 2 == 0, "merging needs an even side"
            x = x.view(len(x), side, side, -1)
            x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
            side //= 2
            x = F.linear(x.reshape(len(x), side * side, -1), state[f"layers.{s}.downsample.reduction.weight"])
            x = norm(x, f"layers.{s}.downsample.norm")
    x = norm(x, "norm").mean(dim=1)
    return F.linear(x, state["head.weight"], state["head.bias"])
