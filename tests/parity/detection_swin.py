"""The backbone of Microsoft's detection repository, which detectron2, Mask2Former, Grounding DINO and BiRefNet copy.

`Backbone(fields)` has the names of its state_dict: those of Microsoft's classifier, `norm{i}` for the outputs, and
`absolute_pos_embed` [1, c, h, w]. These rules differ from the classifier's:

- The image is padded with zeros to a multiple of the patch, to the right and below.
- The window never shrinks. Each block pads its grid after norm1 with zeros to a multiple of the window, and shifts after it.
- Odd blocks are always shifted, also where one window covers the grid. The mask is drawn on the padded grid.
- Odd grids are padded with zeros before merging.
- Outputs are those of the stages before merging, after their own norms. There is no final norm.
"""

import torch
import torch.nn.functional as F
from torch import nn


def padded_to(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Zeros to the right of and below [n, h, w, c], so that `multiple` divides both."""
    h, w = x.shape[1:3]
    return F.pad(x, (0, 0, 0, -w % multiple, 0, -h % multiple))


def windows_of(x: torch.Tensor, window: int) -> torch.Tensor:
    """[n, h, w, c] to [n * windows, window^2, c]."""
    n, h, w, c = x.shape
    x = x.view(n, h // window, window, w // window, window, c)
    return x.transpose(2, 3).reshape(-1, window * window, c)


class Attention(nn.Module):
    def __init__(self, channels: int, heads: int, window: int):
        super().__init__()
        self.heads, self.window = heads, window
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        distance = at[:, :, None] - at[:, None, :] + window - 1
        self.register_buffer("relative_position_index", distance[0] * (2 * window - 1) + distance[1])
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        rows, n, c = x.shape
        q, k, v = self.qkv(x).view(rows, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = q * (c // self.heads) ** -0.5 @ k.transpose(-2, -1)
        logits = logits + self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        if mask is not None:
            logits = (logits.unflatten(0, (-1, len(mask))) + mask.to(logits.device)[:, None]).flatten(0, 1)
        return self.proj((logits.softmax(-1) @ v).transpose(1, 2).reshape(rows, n, c))


class Mlp(nn.Module):
    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, channels: int, heads: int, window: int, shift: int, hidden: int):
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.attn = nn.LayerNorm(channels), Attention(channels, heads, window)
        self.norm2, self.mlp = nn.LayerNorm(channels), Mlp(channels, hidden)

    def mask(self, h: int, w: int) -> torch.Tensor:
        """-100 between the regions of the padded grid, [windows, window^2, window^2]."""
        edges = [slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None)]
        regions = torch.zeros(1, h, w, 1)
        for row, rows in enumerate(edges):
            for column, columns in enumerate(edges):
                regions[:, rows, columns] = 3 * row + column
        regions = windows_of(regions, self.window).squeeze(-1)
        return (regions[:, :, None] != regions[:, None, :]).float() * -100.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, h, w, c = x.shape
        y = padded_to(self.norm1(x), self.window)
        padded = y.shape
        if self.shift:
            y = y.roll((-self.shift, -self.shift), (1, 2))
        y = self.attn(windows_of(y, self.window), self.mask(*padded[1:3]) if self.shift else None)
        y = y.view(n, padded[1] // self.window, padded[2] // self.window, self.window, self.window, c)
        y = y.transpose(2, 3).reshape(padded)
        if self.shift:
            y = y.roll((self.shift, self.shift), (1, 2))
        x = x + y[:, :h, :w]
        return x + self.mlp(self.norm2(x))


class Merging(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * channels), nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x):
        x = padded_to(x, 2)
        parts = [x[:, row::2, column::2] for row, column in [(0, 0), (1, 0), (0, 1), (1, 1)]]
        return self.reduction(self.norm(torch.cat(parts, -1)))


class Stage(nn.Module):
    def __init__(self, channels: int, depth: int, heads: int, window: int, ratio: float, merges: bool):
        super().__init__()
        shift = window // 2
        blocks = [Block(channels, heads, window, b % 2 * shift, int(ratio * channels)) for b in range(depth)]
        self.blocks, self.downsample = nn.ModuleList(blocks), Merging(channels) if merges else None


class PatchEmbed(nn.Module):
    def __init__(self, patch: int, channels: int):
        super().__init__()
        self.proj, self.norm = nn.Conv2d(3, channels, patch, patch), nn.LayerNorm(channels)

    def forward(self, x):
        x = padded_to(x.permute(0, 2, 3, 1), self.proj.stride[0]).permute(0, 3, 1, 2)
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class Backbone(nn.Module):
    """Images [n, 3, h, w] to {stage: features [n, c, h, w]} of the stages `out`, from 0."""

    def __init__(self, embed_dim, depths, num_heads, window_size, mlp_ratio=4.0, patch_size=4, out=(0, 1, 2, 3), places=None):
        super().__init__()
        self.patch_embed = PatchEmbed(patch_size, embed_dim)
        self.absolute_pos_embed = nn.Parameter(torch.zeros(1, embed_dim, *places)) if places else None
        dims = [embed_dim << stage for stage in range(len(depths))]
        last = len(depths) - 1
        self.layers = nn.ModuleList(
            Stage(dim, depth, heads, window_size, mlp_ratio, stage < last)
            for stage, (dim, depth, heads) in enumerate(zip(dims, depths, num_heads))
        )
        self.out = out
        for stage in out:
            self.add_module(f"norm{stage}", nn.LayerNorm(dims[stage]))

    def forward(self, images: torch.Tensor) -> dict[int, torch.Tensor]:
        x, features = self.patch_embed(images), {}
        if self.absolute_pos_embed is not None:
            places = F.interpolate(self.absolute_pos_embed, size=x.shape[1:3], mode="bicubic")
            x = x + places.permute(0, 2, 3, 1)
        for stage, layer in enumerate(self.layers):
            for block in layer.blocks:
                x = block(x)
            if stage in self.out:
                features[stage] = getattr(self, f"norm{stage}")(x).permute(0, 3, 1, 2)
            if layer.downsample is not None:
                x = layer.downsample(x)
        return features
