"""Stages of Swins by themselves: those of libraries in programs that call one after another, and small networks in the manners of
Microsoft's detectors, HTSAT and Swin-Unet. Parameters are random."""

import sys

import timm
import torch
import torchvision
import transformers
from support import ROOT
from torch_models import redraw

sys.path.append(str(ROOT / "tests/parity"))
from detection_swin import Attention, Block, Merging  # noqa: E402


class OfTimm(torch.nn.Module):
    """The stem and the stages of a network of timm, whose maps a detector reads."""

    def __init__(self, name, **options):
        super().__init__()
        arguments = {"embed_dim": 16, "depths": (2, 2, 1), "num_heads": (1, 2, 4), "img_size": 64, "window_size": 4, **options}
        network = timm.create_model(name, num_classes=0, **arguments)
        self.stem, self.stages = network.patch_embed, torch.nn.ModuleList(network.layers)

    def forward(self, x):
        x, maps = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x.permute(0, 3, 1, 2))
        return maps


class OneByOne(torch.nn.Module):
    """A whole network of timm, torchvision or transformers, whose parts a program calls instead of the network."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        kept = []
        if hasattr(self.network, "features"):
            for part in self.network.features:
                x = part(x)
                kept.append(x)
        elif hasattr(self.network, "encoder"):
            x, sides = self.network.embeddings(x)[:2]
            for stage in self.network.encoder.layers:
                found = stage(x, sides)
                x, sides = found[0], tuple(-(-side // 2) for side in sides) if stage.downsample is not None else sides
                kept += found[:2]
        else:
            x = self.network.patch_embed(x)
            for stage in self.network.layers:
                x = stage(x)
                kept.append(x)
        return kept


class OfTransformers(torch.nn.Module):
    """The stages of transformers, called with and without the tokens before the merging."""

    def __init__(self, kind, config, **options):
        super().__init__()
        arguments = {"embed_dim": 16, "depths": [2, 2, 1], "num_heads": [1, 2, 4], "image_size": 64, "window_size": 4, **options}
        network = kind(config(**arguments))
        self.embeddings, self.stages = network.embeddings, network.encoder.layers

    def forward(self, x):
        x, sides = self.embeddings(x)[:2]
        outputs = []
        for stage in self.stages:
            found = stage(x, sides)
            x, sides = found[0], tuple(-(-side // 2) for side in sides) if stage.downsample is not None else sides
            outputs.append(found[:2])
        return outputs


class Blocks(Block):
    """A block of tokens ``[n, rows * columns, channels]`` for one grid, as in Microsoft's classifier: its window is not larger than it."""

    def __init__(self, channels, grid, heads, window, shifted, attention=Attention):
        window = min(window, *grid)
        super().__init__(channels, heads, window, window // 2 if shifted and min(grid) > window else 0, 4 * channels)
        self.attn = attention(channels, heads, window)
        self.attn.scale = (channels // heads) ** -0.5
        self.input_resolution, self.num_heads, self.window_size = grid, heads, window

    def forward(self, x):
        return super().forward(x.unflatten(1, self.input_resolution)).flatten(1, 2)


class Layer(torch.nn.Module):
    """A layer of tokens of one grid, with the merging behind its blocks."""

    def __init__(self, channels, grid, depth, heads, window, merges, block=Blocks):
        super().__init__()
        self.input_resolution = grid
        self.blocks = torch.nn.ModuleList(block(channels, grid, heads, window, index % 2 == 1) for index in range(depth))
        self.downsample = Merging(channels) if merges else None

    def merged(self, x):
        return x if self.downsample is None else self.downsample(x.unflatten(1, self.input_resolution)).flatten(1, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.merged(x)


class Stem(torch.nn.Module):
    """Tokens of patches of 4 pixels."""

    def __init__(self, channels, inputs=3):
        super().__init__()
        self.proj = torch.nn.Conv2d(inputs, channels, 4, 4)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class SwinUnet(torch.nn.Module):
    """An encoder with merging, and a decoder whose layers end with an expansion, as in Swin-Unet."""

    def __init__(self, channels=16, side=16, depths=(2, 2), heads=(1, 2), window=4):
        super().__init__()
        self.stem, (down, up) = Stem(channels), ((side, side), (side // 2, side // 2))
        self.layers = torch.nn.ModuleList(
            [Layer(channels, down, depths[0], heads[0], window, True), Layer(2 * channels, up, depths[1], heads[1], window, False)]
        )
        self.layers_up = torch.nn.ModuleList([Up(2 * channels, up, depths[1], heads[1], window), Up(channels, down, depths[0], heads[0], window)])
        self.concat = torch.nn.Linear(2 * channels, channels)

    def forward(self, x):
        x, skips = self.stem(x), []
        for layer in self.layers:
            skips.append(x)
            x = layer(x)
        x = self.layers_up[0](x)
        return self.layers_up[1](self.concat(torch.cat([x, skips[0]], -1)))


class Up(torch.nn.Module):
    """A layer of a decoder."""

    def __init__(self, channels, grid, depth, heads, window):
        super().__init__()
        self.input_resolution = grid
        self.blocks = torch.nn.ModuleList(Blocks(channels, grid, heads, window, index % 2 == 1) for index in range(depth))
        self.upsample = Expansion(channels, grid)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.upsample(x)


class Expansion(torch.nn.Module):
    """Four tokens of half the channels for each."""

    def __init__(self, channels, grid):
        super().__init__()
        self.grid, self.expand, self.norm = grid, torch.nn.Linear(channels, 2 * channels, bias=False), torch.nn.LayerNorm(channels // 2)

    def forward(self, x):
        x = self.expand(x).unflatten(1, self.grid)
        n, h, w, c = x.shape
        x = x.view(n, h, w, 2, 2, c // 4).transpose(2, 3).reshape(n, 4 * h * w, c // 4)
        return self.norm(x)


class SeenAttention(Attention):
    """Attention that keeps its probabilities."""

    def forward(self, x, mask):
        rows, n, c = x.shape
        q, k, _ = self.qkv(x).view(rows, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = q * self.scale @ k.transpose(-2, -1) + self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        if mask is not None:
            logits = (logits.unflatten(0, (-1, len(mask))) + mask[:, None]).flatten(0, 1)
        self.seen = logits.softmax(-1)
        return super().forward(x, mask)


class PairBlocks(Blocks):
    """A block that gives its attention, too."""

    def __init__(self, channels, grid, heads, window, shifted):
        super().__init__(channels, grid, heads, window, shifted, SeenAttention)

    def forward(self, x):
        return super().forward(x), self.attn.seen


class PairLayer(Layer):
    """A layer that gives tokens and the mean attention of its blocks, as in HTSAT."""

    def __init__(self, *arguments):
        super().__init__(*arguments, PairBlocks)

    def forward(self, x):
        attentions = []
        for block in self.blocks:
            x, attention = block(x)
            attentions.append(attention)
        return self.merged(x), torch.stack(attentions).mean(0)


class Htsat(torch.nn.Module):
    """Layers whose attention nobody reads, on a spectrogram."""

    def __init__(self, channels=48, side=16, window=4):
        super().__init__()
        self.stem = Stem(channels, 1)
        grids = [(side >> index, side >> index) for index in range(3)]
        self.layers = torch.nn.ModuleList(PairLayer(channels << i, grid, 2, 2 << i, window, i < 2) for i, grid in enumerate(grids))
        self.norm, self.head = torch.nn.LayerNorm(4 * channels), torch.nn.Linear(4 * channels, 5)

    def forward(self, x, layer=None):
        x, attention = self.stem(x), None
        for each in self.layers:
            x, attention = each(x)
        return self.head(self.norm(x).mean(1)) if layer is None else attention.mean()


class DetectionBlock(Block):
    """A block of tokens for any grid, which a layer states before each call."""

    def __init__(self, channels, _, heads, window, shifted):
        super().__init__(channels, heads, window, window // 2 if shifted else 0, 4 * channels)
        self.num_heads, self.window_size = heads, window

    def forward(self, x):
        return super().forward(x.unflatten(1, (self.H, self.W))).flatten(1, 2)


class DetectionLayer(Layer):
    """A layer for any grid, which gives the tokens before and behind the merging with the sides of their grids."""

    def __init__(self, *arguments):
        super().__init__(*arguments, DetectionBlock)

    def forward(self, x, H, W):
        for block in self.blocks:
            block.H, block.W = H, W
            x = block(x)
        if self.downsample is None:
            return x, H, W, x, H, W
        return x, H, W, self.downsample(x.unflatten(1, (H, W))).flatten(1, 2), (H + 1) // 2, (W + 1) // 2


class Detector(torch.nn.Module):
    """Layers as a detector's backbone has them, in a network of another structure."""

    def __init__(self, channels=16, window=4):
        super().__init__()
        self.stem = Stem(channels)
        self.levels = torch.nn.ModuleList(DetectionLayer(channels << i, None, 2, 1 << i, window, i < 1) for i in range(2))

    def forward(self, x):
        h, w = x.shape[2] // 4, x.shape[3] // 4
        x, maps = self.stem(x), []
        for level in self.levels:
            out, rows, columns, x, h, w = level(x, h, w)
            maps.append(out.transpose(1, 2).unflatten(2, (rows, columns)))
        return maps


def of_torchvision(version=1):
    swin = torchvision.models.swin_transformer
    kinds = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2} if version == 2 else {}
    return torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [1, 2], [4, 4], num_classes=5, **kinds)


def of_images(*sizes, channels=3):
    random = torch.Generator().manual_seed(0)
    return [((torch.randn(2, channels, *size, generator=random),), {}) for size in sizes]


V1, V2 = "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"
SWIN, SWIN_V2 = (transformers.SwinModel, transformers.SwinConfig), (transformers.Swinv2Model, transformers.Swinv2Config)
ANY = {"strict_img_size": False}
SIZES = of_images((64, 64), (52, 100), (16, 64))
#: A network, calls of it, and the number of its stages.
STAGES = {
    "stages of timm, V1": (lambda: OfTimm(V1), of_images((64, 64)), 3),
    "stages of timm, V2": (lambda: OfTimm(V2), of_images((64, 64)), 3),
    "stages of timm for any size, V1": (lambda: OfTimm(V1, **ANY), SIZES, 3),
    "stages of timm for any size, V2, windows 4x6": (lambda: OfTimm(V2, window_size=(4, 6), pretrained_window_sizes=(3, 0, 2), **ANY), SIZES, 3),
    "stages of timm, always partitioned": (lambda: OfTimm(V1, window_size=(5, 3), always_partition=True, **ANY), SIZES, 3),
    "a network of timm called stage by stage": (lambda: OneByOne(timm.create_model(V1, **{"embed_dim": 16, "depths": (2, 1), "num_heads": (1, 2), "img_size": 64, "window_size": 4})), of_images((64, 64)), 2),
    "stages of transformers, V1": (lambda: OfTransformers(*SWIN), of_images((64, 64), (68, 100)), 3),
    "stages of transformers, V1, with attention": (lambda: OfTransformers(*SWIN, attn_implementation="eager"), of_images((64, 64)), 3),
    "stages of transformers, V2": (lambda: OfTransformers(*SWIN_V2), of_images((64, 64), (52, 100), (16, 40)), 3),
    "a network of transformers called stage by stage": (lambda: OneByOne(OfWhole(SWIN_V2)), of_images((64, 64)), 2),
    "torchvision's children, V1": (lambda: OneByOne(of_torchvision()), of_images((64, 64), (52, 100), (16, 40)), 2),
    "torchvision's children, V2": (lambda: OneByOne(of_torchvision(2)), of_images((64, 64), (52, 100)), 2),
    "layers in a detector": (Detector, of_images((64, 64), (36, 100), (16, 44)), 2),
    "Swin-Unet": (SwinUnet, of_images((64, 64)), 4),
    "Swin-Unet of one window": (lambda: SwinUnet(side=8), of_images((32, 32)), 4),
    "HTSAT": (Htsat, of_images((64, 64), channels=1), 3),
}


def OfWhole(kind):
    return kind[0](kind[1](embed_dim=16, depths=[2, 1], num_heads=[1, 2], image_size=64, window_size=4))


def built(name):
    """The network of a name, in evaluation mode."""
    return redraw(STAGES[name][0]().eval())
