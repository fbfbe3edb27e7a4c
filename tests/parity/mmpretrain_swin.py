"""Swin classifiers as mmpretrain computes them, for parity tests: V1 and V2 with the names of its checkpoints.

`Classifier(fields)` is `ImageClassifier` with the backbone `SwinTransformer` or `SwinTransformerV2`, the neck
`GlobalAveragePooling` and the head `LinearClsHead`, for square images. Its state_dict has their names, shapes and buffers.
These rules of mmpretrain differ from Microsoft's:

- Merging gathers the channels with `nn.Unfold`: channel 4c + 2 row + column, not m C + c with m = row + 2 column.
- V2 merges at the start of a stage: `stages.1.downsample` stands before `stages.1.blocks`. V1 merges at the end of a stage.
- A grid that the window does not divide is padded with zeros to the right and below, after norm1 and before the shift; so
  are images for the patches and odd grids for merging.
- Windows do not shrink. A grid smaller than its window is refused (`pad_small_map=False`); a grid of one window is not
  shifted. V2 takes a window for each stage instead.
- The last norm is called after its stage: `norm3` of a model with four stages.

`python tests/parity/mmpretrain_swin.py` compares the module with the installed mmpretrain (package mmpretrain with
mmengine and mmcv-lite): every parameter is redrawn, both must have the same state_dict, and the logits must agree within
a relative L2 distance of 1e-5.
"""

import torch
import torch.nn.functional as F
from torch import nn

from common import images, redraw
from microsoft_v2 import coordinates, position_index, shift_mask, unwindowed, windows_of


def padded_to(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Zeros to the right of and below [..., h, w], so that `multiple` divides both."""
    h, w = x.shape[-2:]
    return F.pad(x, (0, -w % multiple, 0, -h % multiple))


def grid_of(x: torch.Tensor) -> torch.Tensor:
    """Tokens [n, l, c] of a square grid to [n, c, h, w]."""
    side = int(x.shape[1] ** 0.5)
    assert side * side == x.shape[1], "the grid must be square"
    return x.transpose(1, 2).unflatten(2, (side, side))


def tokens_of(x: torch.Tensor) -> torch.Tensor:
    """The inverse of `grid_of`."""
    return x.flatten(2).transpose(1, 2)


class PatchEmbed(nn.Module):
    def __init__(self, patch: int, channels: int):
        super().__init__()
        self.projection = nn.Conv2d(3, channels, patch, patch)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x):
        return self.norm(tokens_of(self.projection(padded_to(x, self.projection.stride[0]))))


class WindowMSA(nn.Module):
    """Attention of Swin V1 in windows [n, window^2, channels]."""

    def __init__(self, channels: int, heads: int, window: int, qkv_bias: bool):
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.register_buffer("relative_position_index", position_index(window))
        self.qkv = nn.Linear(channels, 3 * channels, bias=qkv_bias)
        self.proj = nn.Linear(channels, channels)

    def qkv_of(self, x):
        return self.qkv(x)

    def similarity(self, q, k):
        return (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)

    def position_bias(self):
        """[window^2, window^2, heads]"""
        return self.relative_position_bias_table[self.relative_position_index]

    def forward(self, x, mask):
        n, length, channels = x.shape
        q, k, v = self.qkv_of(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = self.similarity(q, k) + self.position_bias().permute(2, 0, 1)
        if mask is not None:
            logits = (logits.unflatten(0, (-1, len(mask))) + mask[:, None]).flatten(0, 1)
        return self.proj((logits.softmax(-1) @ v).transpose(1, 2).reshape(n, length, channels))


class WindowMSAV2(WindowMSA):
    """Attention of Swin V2. `pretrained` is the window of the pretraining, 0 for the same."""

    def __init__(self, channels: int, heads: int, window: int, qkv_bias: bool, pretrained: int):
        super().__init__(channels, heads, window, False)
        del self.relative_position_bias_table
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, heads, bias=False))
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), 10.0).log())
        side = 2 * window - 1
        self.register_buffer("relative_coords_table", coordinates(window, pretrained).view(1, side, side, 2))
        self.q_bias = nn.Parameter(torch.zeros(channels)) if qkv_bias else None
        self.v_bias = nn.Parameter(torch.zeros(channels)) if qkv_bias else None

    def qkv_of(self, x):
        if self.q_bias is None:
            return F.linear(x, self.qkv.weight)
        return F.linear(x, self.qkv.weight, torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias]))

    def similarity(self, q, k):
        cosine = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        return cosine * self.logit_scale.clamp(max=torch.tensor(100.0).log()).exp()

    def position_bias(self):
        table = self.cpb_mlp(self.relative_coords_table).flatten(0, 2)
        return 16 * torch.sigmoid(table[self.relative_position_index])


class ShiftWindowMSA(nn.Module):
    def __init__(self, w_msa: WindowMSA, window: int, shift: int):
        super().__init__()
        self.w_msa, self.window, self.shift = w_msa, window, shift

    def forward(self, x):
        grid = grid_of(x)
        side = grid.shape[-1]
        assert side >= self.window, f"a grid of {side} is smaller than the window of {self.window}"
        shift = 0 if side == self.window else self.shift
        grid = padded_to(grid, self.window)
        padded = grid.shape[-1]
        grid = grid.permute(0, 2, 3, 1).roll((-shift, -shift), (1, 2))
        mask = shift_mask(padded, self.window, shift) if shift else None
        grid = unwindowed(self.w_msa(windows_of(grid, self.window), mask), self.window, padded)
        return grid.roll((shift, shift), (1, 2))[:, :side, :side].flatten(1, 2)


class FFN(nn.Module):
    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Sequential(nn.Linear(channels, hidden), nn.GELU()), nn.Linear(hidden, channels)
        )

    def forward(self, x):
        return self.layers(x)


class Block(nn.Module):
    def __init__(self, fields: dict, stage: int, index: int):
        super().__init__()
        channels, window = fields["embed_dim"] << stage, windows(fields)[stage]
        arguments = channels, fields["num_heads"][stage], window, fields["qkv_bias"]
        self.second = fields["version"] == "v2"
        if self.second:
            w_msa = WindowMSAV2(*arguments, fields["pretrained_window_sizes"][stage])
        else:
            w_msa = WindowMSA(*arguments)
        self.norm1 = nn.LayerNorm(channels)
        self.attn = ShiftWindowMSA(w_msa, window, window // 2 * (index % 2))
        self.norm2 = nn.LayerNorm(channels)
        self.ffn = FFN(channels, int(channels * fields["mlp_ratio"]))

    def forward(self, x):
        if self.second:
            x = x + self.norm1(self.attn(x))
            return x + self.norm2(self.ffn(x))
        x = x + self.attn(self.norm1(x))
        return x + self.ffn(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, channels: int, norm_last: bool):
        super().__init__()
        self.norm_last = norm_last
        self.reduction = nn.Linear(4 * channels, 2 * channels, bias=False)
        self.norm = nn.LayerNorm((2 if norm_last else 4) * channels)

    def forward(self, x):
        x = F.unfold(padded_to(grid_of(x), 2), 2, stride=2).transpose(1, 2)
        return self.norm(self.reduction(x)) if self.norm_last else self.reduction(self.norm(x))


class Stage(nn.Module):
    def __init__(self, fields: dict, stage: int):
        super().__init__()
        last = len(fields["depths"]) - 1
        self.second = fields["version"] == "v2"
        self.blocks = nn.ModuleList(Block(fields, stage, b) for b in range(fields["depths"][stage]))
        merges = stage > 0 if self.second else stage < last
        channels = fields["embed_dim"] << (stage - 1 if self.second else stage) if merges else 0
        self.downsample = PatchMerging(channels, self.second) if merges else nn.Identity()

    def forward(self, x):
        if self.second:
            x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        return x if self.second else self.downsample(x)


class Backbone(nn.Module):
    def __init__(self, fields: dict):
        super().__init__()
        last = len(fields["depths"]) - 1
        self.last_norm = f"norm{last}"
        self.patch_embed = PatchEmbed(fields["patch_size"], fields["embed_dim"])
        side = -(-fields["image_size"] // fields["patch_size"])
        if fields["ape"]:
            self.absolute_pos_embed = nn.Parameter(torch.zeros(1, side * side, fields["embed_dim"]))
        self.stages = nn.Sequential(*(Stage(fields, s) for s in range(last + 1)))
        self.add_module(self.last_norm, nn.LayerNorm(fields["embed_dim"] << last))

    def forward(self, x):
        x = self.patch_embed(x)
        if hasattr(self, "absolute_pos_embed"):
            x = x + self.absolute_pos_embed
        return self.get_submodule(self.last_norm)(self.stages(x))


class Head(nn.Module):
    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        return self.fc(x)


class Classifier(nn.Module):
    """`fields` are those of `defaults`; images [n, 3, size, size] to logits [n, classes]."""

    def __init__(self, fields: dict):
        super().__init__()
        self.backbone = Backbone(fields)
        self.head = Head(fields["embed_dim"] << (len(fields["depths"]) - 1), fields["num_classes"])

    def forward(self, x):
        return self.head(self.backbone(x).mean(1))


def defaults(version: str, **overrides) -> dict:
    """The fields of a Swin-T, in swinq's names. `window_size` of a V2 may be a list with the window of every stage."""
    fields = dict(
        version=version, image_size=256 if version == "v2" else 224, patch_size=4, num_classes=1000, embed_dim=96,
        depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=8 if version == "v2" else 7, mlp_ratio=4.0,
        qkv_bias=True, ape=False, pretrained_window_sizes=[0, 0, 0, 0],
    )
    return fields | overrides


def windows(fields: dict) -> list[int]:
    """The window of every stage."""
    window = fields["window_size"]
    return window if isinstance(window, list) else [window] * len(fields["depths"])


def installed(fields: dict) -> nn.Module:
    """The same model in the installed mmpretrain."""
    from mmpretrain.models import build_classifier

    block = dict(ffn_ratio=fields["mlp_ratio"], attn_cfgs=dict(qkv_bias=fields["qkv_bias"]))
    arch = dict(embed_dims=fields["embed_dim"], depths=fields["depths"], num_heads=fields["num_heads"])
    second = fields["version"] == "v2"
    special = dict(pretrained_window_sizes=fields["pretrained_window_sizes"]) if second else {}
    backbone = dict(
        type="SwinTransformerV2" if second else "SwinTransformer",
        arch=arch | (dict(extra_norm_every_n_blocks=0) if second else {}),
        img_size=fields["image_size"], patch_size=fields["patch_size"], window_size=fields["window_size"],
        use_abs_pos_embed=fields["ape"], out_indices=(len(fields["depths"]) - 1,),
        stage_cfgs=dict(block_cfgs=block), **special,
    )
    channels = fields["embed_dim"] << (len(fields["depths"]) - 1)
    head = dict(type="LinearClsHead", num_classes=fields["num_classes"], in_channels=channels)
    return build_classifier(
        dict(type="ImageClassifier", backbone=backbone, neck=dict(type="GlobalAveragePooling"), head=head)
    )


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative L2 distance."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def compare(fields: dict, seed: int) -> float:
    """The distance of the logits of both implementations; fails if their state_dicts differ in names or buffers."""
    theirs, ours = installed(fields).eval(), Classifier(fields).eval()
    redraw(theirs, seed)
    buffers = dict(ours.named_buffers())
    for name, buffer in theirs.named_buffers():
        assert name.startswith("data_preprocessor") or torch.equal(buffer, buffers[name]), name
    ours.load_state_dict(theirs.state_dict(), strict=True)
    batch = images(2, fields["image_size"], seed + 1)
    with torch.no_grad():
        return distance(ours(batch), theirs(batch))


SMALL = dict(embed_dim=12, depths=[2, 2, 2], num_heads=[2, 3, 4], mlp_ratio=2.5, num_classes=7)

COMPARED = [
    defaults("v1"),
    defaults("v1", image_size=384, window_size=12),
    defaults("v1", **SMALL, image_size=80, window_size=5),
    defaults("v1", **SMALL, image_size=99, window_size=5, qkv_bias=False, ape=True),
    defaults("v2"),
    defaults("v2", window_size=[16, 16, 16, 8]),
    defaults("v2", **SMALL, image_size=48, window_size=[4, 4, 3], pretrained_window_sizes=[3, 0, 2]),
    defaults("v2", **SMALL, image_size=99, window_size=5, pretrained_window_sizes=[0, 0, 0], qkv_bias=False),
]


if __name__ == "__main__":
    for seed, fields in enumerate(COMPARED):
        shape = {name: fields[name] for name in ["version", "image_size", "window_size", "depths", "embed_dim"]}
        found = compare(fields, 10 * seed)
        assert found <= 1e-5, (shape, found)
        print(f"relative L2 {found:.1e}  {shape}")
