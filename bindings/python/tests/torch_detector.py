"""A Swin as detectors have it: Microsoft's layers, a norm on each output, windows that keep their size."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, channels: int, heads: int, window: int):
        super().__init__()
        self.heads, self.window = heads, window
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        places = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        distance = places[:, :, None] - places[:, None] + window - 1
        self.register_buffer("relative_position_index", distance[0] * (2 * window - 1) + distance[1])

    def forward(self, x, mask):
        rows, tokens, channels = x.shape
        q, k, v = self.qkv(x).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        logits = q * (channels // self.heads) ** -0.5 @ k.mT + bias
        if mask is not None:
            logits = (logits.view(-1, len(mask), self.heads, tokens, tokens) + mask[None, :, None]).view(logits.shape)
        return self.proj((logits.softmax(-1) @ v).transpose(1, 2).reshape(rows, tokens, channels))


class Mlp(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, channels: int, heads: int, window: int, shift: int):
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.attn = nn.LayerNorm(channels), Attention(channels, heads, window)
        self.norm2, self.mlp = nn.LayerNorm(channels), Mlp(channels)

    def windows(self, x):
        """``[n, height, width, c]`` as ``[n * windows, tokens, c]``."""
        n, height, width, channels = x.shape
        w = self.window
        return x.view(n, height // w, w, width // w, w, channels).transpose(2, 3).reshape(-1, w * w, channels)

    def mask(self, height: int, width: int):
        """What keeps apart tokens that the shift brought together: ``[windows, tokens, tokens]``."""
        if self.shift == 0:
            return None
        region = [torch.zeros(side) for side in (height, width)]
        for part in region:
            part[-self.window : -self.shift], part[-self.shift :] = 1, 2
        number = self.windows((3 * region[0][:, None] + region[1])[None, :, :, None]).squeeze(-1)
        return (number[:, None] != number[:, :, None]) * -100.0

    def forward(self, x):
        n, height, width, channels = x.shape
        w, shift = self.window, self.shift
        padded = functional.pad(self.norm1(x), (0, 0, 0, -width % w, 0, -height % w)).roll((-shift, -shift), (1, 2))
        rows, columns = padded.shape[1:3]
        mixed = self.attn(self.windows(padded), self.mask(rows, columns))
        mixed = mixed.view(n, rows // w, columns // w, w, w, channels).transpose(2, 3).reshape(n, rows, columns, channels)
        x = x + mixed.roll((shift, shift), (1, 2))[:, :height, :width]
        return x + self.mlp(self.norm2(x))


class Merging(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * channels), nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x):
        x = functional.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.reduction(self.norm(torch.cat(parts, -1)))


class Layer(nn.Module):
    def __init__(self, channels: int, depth: int, heads: int, window: int, last: bool):
        super().__init__()
        self.blocks = nn.ModuleList(Block(channels, heads, window, i % 2 * (window // 2)) for i in range(depth))
        self.downsample = None if last else Merging(channels)


class Patches(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.proj, self.norm = nn.Conv2d(3, channels, 4, 4), nn.LayerNorm(channels)

    def forward(self, x):
        x = functional.pad(x, (0, -x.shape[3] % 4, 0, -x.shape[2] % 4))
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class Swin(nn.Module):
    """A backbone in detectron2's manner: a dictionary of maps, and what FPNs read of it."""

    size_divisibility = 0

    def __init__(self, channels=48, depths=(2, 2), heads=(3, 6), window=7, out_indices=(0, 1)):
        super().__init__()
        self.patch_embed, self.out_indices = Patches(channels), out_indices
        last = len(depths) - 1
        self.num_features = [channels << stage for stage in range(len(depths))]
        self.layers = nn.ModuleList(
            Layer(channels << stage, depth, heads[stage], window, stage == last) for stage, depth in enumerate(depths)
        )
        for stage in out_indices:
            self.add_module(f"norm{stage}", nn.LayerNorm(channels << stage))

    def output_shape(self):
        return {f"p{stage}": self.num_features[stage] for stage in self.out_indices}

    def maps(self, x):
        x, found = self.patch_embed(x), []
        for stage, layer in enumerate(self.layers):
            for block in layer.blocks:
                x = block(x)
            if stage in self.out_indices:
                found.append(getattr(self, f"norm{stage}")(x).permute(0, 3, 1, 2).contiguous())
            x = x if layer.downsample is None else layer.downsample(x)
        return found

    def forward(self, x):
        return {f"p{stage}": part for stage, part in zip(self.out_indices, self.maps(x), strict=True)}


class Nested:
    """Images that are padded to one size, with the mask of the padding, as DETR's relatives pass them."""

    def __init__(self, tensors, mask):
        self.tensors, self.mask = tensors, mask

    def decompose(self):
        return self.tensors, self.mask


class MaskedSwin(Swin):
    """The same in the manner of Grounding DINO: numbers of stages, and maps with masks."""

    def forward(self, nested: Nested):
        found = {}
        for stage, part in zip(self.out_indices, self.maps(nested.tensors), strict=True):
            mask = functional.interpolate(nested.mask[None].float(), size=part.shape[-2:]).to(torch.bool)[0]
            found[stage] = Nested(part, mask)
        return found
