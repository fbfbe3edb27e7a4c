"""A detector whose Swin has the modules and the names of parameters of OpenMMLab's, without its packages."""

import torch
from torch import nn


def windows_of(x, side):
    """The windows ``[n windows, side side, c]`` of maps ``[n, height, width, c]``."""
    n, height, width, c = x.shape
    x = x.reshape(n, height // side, side, width // side, side, c).transpose(2, 3)
    return x.reshape(-1, side * side, c)


class WindowMSA(nn.Module):
    """Attention in windows."""

    def __init__(self, channels, heads, side):
        super().__init__()
        self.heads, self.scale = heads, (channels // heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * side - 1) ** 2, heads))
        place = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        apart = place[:, None] - place[None] + side - 1
        self.register_buffer("relative_position_index", apart[..., 0] * (2 * side - 1) + apart[..., 1])
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.attn_drop, self.proj_drop, self.softmax = nn.Dropout(0.0), nn.Dropout(0.0), nn.Softmax(dim=-1)

    def forward(self, x, mask):
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        logits = self.scale * query @ key.transpose(-2, -1) + self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        if mask is not None:
            logits = (logits.unflatten(0, (-1, len(mask))) + mask[:, None]).flatten(0, 1)
        return self.proj((self.softmax(logits) @ value).transpose(1, 2).flatten(2))


class ShiftWindowMSA(nn.Module):
    """Attention in windows that may be shifted, of maps that are padded to whole windows."""

    def __init__(self, channels, heads, window_size, shift_size):
        super().__init__()
        self.window_size, self.shift_size = window_size, shift_size
        self.w_msa, self.drop = WindowMSA(channels, heads, window_size), nn.Identity()

    def forward(self, x, size):
        (height, width), side, shift = size, self.window_size, self.shift_size
        n, _, c = x.shape
        x = nn.functional.pad(x.reshape(n, height, width, c), (0, 0, 0, -width % side, 0, -height % side))
        padded, mask = x.shape[1:3], None
        if shift:
            x, mask = x.roll((-shift, -shift), (1, 2)), self.mask(*padded)
        x = self.w_msa(windows_of(x, side), mask)
        x = x.reshape(n, padded[0] // side, padded[1] // side, side, side, c).transpose(2, 3).reshape(n, *padded, c)
        x = x.roll((shift, shift), (1, 2)) if shift else x
        return self.drop(x[:, :height, :width].flatten(1, 2))

    def mask(self, height, width):
        """What is added to logits between tokens that a shift has brought together, ``[windows, tokens, tokens]``."""
        side, shift = self.window_size, self.shift_size
        rows, columns = (sum((torch.arange(extent) >= extent - edge).long() for edge in (side, shift)) for extent in (height, width))
        region = windows_of((3 * rows[:, None] + columns)[None, ..., None], side).squeeze(-1)
        return -100.0 * (region[:, :, None] != region[:, None]).float()


class FFN(nn.Module):
    """The MLP of a block, with the residual."""

    def __init__(self, channels):
        super().__init__()
        first = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Dropout(0.0))
        self.layers = nn.Sequential(first, nn.Linear(4 * channels, channels), nn.Dropout(0.0))

    def forward(self, x, identity):
        return identity + self.layers(x)


class SwinBlock(nn.Module):
    """A block."""

    def __init__(self, channels, heads, window, shift):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(channels), ShiftWindowMSA(channels, heads, window, shift)
        self.norm2, self.ffn = nn.LayerNorm(channels), FFN(channels)

    def forward(self, x, size):
        x = x + self.attn(self.norm1(x), size)
        return self.ffn(self.norm2(x), x)


class PatchMerging(nn.Module):
    """Patch merging, whose channels are in the order of ``torch.nn.Unfold``."""

    def __init__(self, channels):
        super().__init__()
        self.sampler = nn.Unfold(2, stride=2)
        self.norm, self.reduction = nn.LayerNorm(4 * channels), nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x, size):
        x = x.transpose(1, 2).unflatten(2, size)
        x = nn.functional.pad(x, (0, size[1] % 2, 0, size[0] % 2))
        return self.reduction(self.norm(self.sampler(x).transpose(1, 2))), [-(-side // 2) for side in size]


class Stage(nn.Module):
    """A stage: blocks, and the merging of patches after them."""

    def __init__(self, channels, depth, heads, window, merges):
        super().__init__()
        self.blocks = nn.ModuleList(SwinBlock(channels, heads, window, window // 2 * (i % 2)) for i in range(depth))
        self.downsample = PatchMerging(channels) if merges else None

    def forward(self, x, size):
        for block in self.blocks:
            x = block(x, size)
        return (x, *((x, size) if self.downsample is None else self.downsample(x, size)))


class PatchEmbed(nn.Module):
    """The embedding of patches."""

    def __init__(self, channels):
        super().__init__()
        self.projection, self.norm = nn.Conv2d(3, channels, 4, 4), nn.LayerNorm(channels)

    def forward(self, x):
        x = self.projection(nn.functional.pad(x, (0, -x.shape[3] % 4, 0, -x.shape[2] % 4)))
        return self.norm(x.flatten(2).transpose(1, 2)), list(x.shape[2:])


class SwinTransformer(nn.Module):
    """A backbone: a tuple of maps ``[n, channels, height, width]``, each after a norm of its own."""

    def __init__(self, embed_dims=32, depths=(2, 2), num_heads=(1, 2), window_size=4, out_indices=(0, 1)):
        super().__init__()
        self.out_indices, self.num_features = out_indices, [embed_dims << stage for stage in range(len(depths))]
        self.patch_embed, self.drop_after_pos = PatchEmbed(embed_dims), nn.Dropout(0.0)
        last = len(depths) - 1
        shapes = enumerate(zip(self.num_features, depths, num_heads, strict=True))
        self.stages = nn.ModuleList(Stage(*shape, window_size, index < last) for index, shape in shapes)
        for index in out_indices:
            self.add_module(f"norm{index}", nn.LayerNorm(self.num_features[index]))

    def forward(self, images):
        x, size = self.patch_embed(images)
        x, maps = self.drop_after_pos(x), []
        for index, stage in enumerate(self.stages):
            grid = size
            out, x, size = stage(x, size)
            if index in self.out_indices:
                out = getattr(self, f"norm{index}")(out)
                maps.append(out.transpose(1, 2).unflatten(2, grid).contiguous())
        return tuple(maps)


class Detector(nn.Module):
    """A detector of one stage: a pyramid of features, and a head that all its levels share."""

    def __init__(self, channels=16, classes=3):
        super().__init__()
        self.backbone = SwinTransformer()
        self.neck = nn.ModuleList(nn.Conv2d(features, channels, 1) for features in self.backbone.num_features)
        self.bbox_head = nn.ModuleDict({"cls": nn.Conv2d(channels, classes, 3, padding=1), "reg": nn.Conv2d(channels, 4, 3, padding=1)})

    def extract_feat(self, images):
        """The levels of the pyramid, the finest first."""
        maps = [lateral(part) for lateral, part in zip(self.neck, self.backbone(images), strict=True)]
        for fine in reversed(range(len(maps) - 1)):
            maps[fine] = maps[fine] + nn.functional.interpolate(maps[fine + 1], size=maps[fine].shape[2:])
        return maps

    def forward(self, images):
        levels = self.extract_feat(images)
        return tuple([head(level) for level in levels] for head in self.bbox_head.values())
