"""Writes the committed parity fixtures, model/tests/fixtures/swin_{plain,padded}.safetensors.

    python tests/parity/make_fixtures.py        (needs torch, timm and safetensors)

Each file holds a small odd Swin in Microsoft's naming, `input` (two images), `logits`, and under `rung.SITE` what
PyTorch has at that site for the second image, for the ladder that shows where a forward first departs. Metadata: `config`, the architecture as JSON.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from timm.models.swin_transformer import SwinTransformer

from common import images, microsoft_state, redraw

FOLDER = Path(__file__).resolve().parents[2] / "model" / "tests" / "fixtures"


def config(name: str, size: int, policy: str, **overrides) -> dict:
    fields = dict(
        name=name, image_size=size, patch_size=4, num_classes=7, embed_dim=12, depths=[2, 2], num_heads=[2, 3],
        window_size=5, mlp_ratio=2.5, qkv_bias=True, qk_scale=None, ape=False, patch_norm=True, norm_eps=1e-5,
        window_policy=policy,
    )
    return fields | overrides


def build(fields: dict) -> SwinTransformer:
    model = SwinTransformer(
        img_size=fields["image_size"], patch_size=fields["patch_size"], num_classes=fields["num_classes"],
        embed_dim=fields["embed_dim"], depths=fields["depths"], num_heads=fields["num_heads"],
        window_size=fields["window_size"], mlp_ratio=fields["mlp_ratio"], qkv_bias=fields["qkv_bias"],
    ).eval()
    if not fields["patch_norm"]:
        model.patch_embed.norm = torch.nn.Identity()
    return model


class Ladder:
    """Records the activations of a timm Swin under the names of our sites."""

    def __init__(self, model: SwinTransformer):
        self.rungs: dict[str, torch.Tensor] = {}
        for s, stage in enumerate(model.layers):
            stage.downsample.register_forward_hook(self.after(f"layers.{s - 1}.downsample.reduction.output"))
            for b, block in enumerate(stage.blocks):
                self.watch_block(f"layers.{s}.blocks.{b}", block)
        model.head.fc.register_forward_pre_hook(self.before("head.input"))

    def watch_block(self, path: str, block: torch.nn.Module) -> None:
        block.register_forward_pre_hook(self.before(f"{path}.attn.add.shortcut"))
        block.attn.register_forward_pre_hook(self.before(f"{path}.attn.qkv.input"))
        block.norm2.register_forward_pre_hook(self.before(f"{path}.mlp.add.shortcut"))
        block.mlp.register_forward_hook(self.after(f"{path}.mlp.add.branch"))

    def before(self, site: str):
        return lambda module, inputs: self.record(site, inputs[0])

    def after(self, site: str):
        return lambda module, inputs, output: self.record(site, output)

    def record(self, site: str, value: torch.Tensor) -> None:
        if not site.startswith("layers.-1"):
            self.rungs[f"rung.{site}"] = value.detach()[len(value) // 2 :].clone().contiguous()


def write(fields: dict, seed: int) -> None:
    model = build(fields)
    redraw(model, seed)
    state = microsoft_state(model)
    if fields["ape"]:
        side = fields["image_size"] // fields["patch_size"]
        generator = torch.Generator().manual_seed(seed + 1)
        position = 0.5 * torch.randn((1, side * side, fields["embed_dim"]), generator=generator)
        state["absolute_pos_embed"] = position
        model.patch_embed.register_forward_hook(
            lambda module, inputs, output: output + position.reshape(1, side, side, -1)
        )
    ladder = Ladder(model)
    batch = images(2, fields["image_size"], seed + 2)
    with torch.no_grad():
        logits = model(batch)
    path = FOLDER / f"{fields['name']}.safetensors"
    save_file({**state, **ladder.rungs, "input": batch, "logits": logits}, path, {"config": json.dumps(fields)})
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    write(config("swin_plain", 40, "microsoft"), seed=1)
    odd = dict(qkv_bias=False, ape=True, patch_norm=False, norm_eps=1e-5)
    write(config("swin_padded", 44, "shrink_and_pad", **odd), seed=2)
