"""Writes the committed parity fixtures, float/tests/fixtures/{swin,swinv2}_{plain,padded}.safetensors.

    python tests/parity/make_fixtures.py        (needs torch, timm, transformers and safetensors)

Each file holds a small Swin of unusual shape in Microsoft's naming, `input` (two images) and `logits`. `rung.SITE` holds
PyTorch's tensor at that site for the second image, so that the test can name the first site where a forward differs.
The metadata `config` is the architecture as JSON. The plain models run in timm, the padded ones in transformers.
"""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2

from common import images, microsoft_state, microsoft_state_of_hf, redraw, swinq_state_v2, swinq_state_v2_of_hf

FOLDER = Path(__file__).resolve().parents[2] / "float" / "tests" / "fixtures"


def config(name: str, size: int, policy: str, **overrides) -> dict:
    fields = dict(
        name=name, image_size=size, patch_size=4, num_classes=7, embed_dim=12, depths=[2, 2], num_heads=[2, 3],
        window_size=5, mlp_ratio=2.5, qkv_bias=True, qk_scale=None, ape=False, patch_norm=True, norm_eps=1e-5,
        window_policy=policy,
    )
    return fields | overrides


def shared(fields: dict) -> dict:
    """The arguments that both libraries name alike."""
    names = ["patch_size", "embed_dim", "depths", "num_heads", "window_size", "mlp_ratio", "qkv_bias"]
    return {name: fields[name] for name in names}


class Ladder:
    """Records activations under the names of our sites."""

    def __init__(self):
        self.rungs: dict[str, torch.Tensor] = {}

    def before(self, module: torch.nn.Module, site: str) -> None:
        module.register_forward_pre_hook(lambda _, inputs: self.record(site, inputs[0]))

    def after(self, module: torch.nn.Module, site: str) -> None:
        module.register_forward_hook(lambda _, inputs, output: self.record(site, output))

    def record(self, site: str, value: torch.Tensor) -> None:
        self.rungs[f"rung.{site}"] = value.detach()[len(value) // 2 :].clone().contiguous()

    def block(self, path: str, block: torch.nn.Module, attention: torch.nn.Module, norm2: torch.nn.Module) -> None:
        self.before(block, f"{path}.attn.add.shortcut")
        self.before(attention, f"{path}.attn.qkv.input")
        self.before(norm2, f"{path}.mlp.add.shortcut")
        self.after(block.mlp, f"{path}.mlp.add.branch")

    def block_v2(self, path: str, block, attention, norms, fc1) -> None:
        """`norms` are the two norms, which follow the branches."""
        self.before(block, f"{path}.attn.add.shortcut")
        self.before(attention, f"{path}.attn.qkv.input")
        self.after(norms[0], f"{path}.attn.add.branch")
        self.before(fc1, f"{path}.mlp.add.shortcut")
        self.after(norms[1], f"{path}.mlp.add.branch")


def plain(fields: dict, seed: int) -> None:
    model = SwinTransformer(
        img_size=fields["image_size"], num_classes=fields["num_classes"], **shared(fields)
    ).eval()
    redraw(model, seed)
    ladder = Ladder()
    for s, stage in enumerate(model.layers):
        if s > 0:
            ladder.after(stage.downsample, f"layers.{s - 1}.downsample.reduction.output")
        for b, block in enumerate(stage.blocks):
            ladder.block(f"layers.{s}.blocks.{b}", block, block.attn, block.norm2)
    ladder.before(model.head.fc, "head.input")
    write(fields, microsoft_state(model), ladder, model, seed)


def padded(fields: dict, seed: int) -> None:
    model = transformers.SwinForImageClassification(
        transformers.SwinConfig(
            image_size=fields["image_size"], num_labels=fields["num_classes"],
            use_absolute_embeddings=fields["ape"], layer_norm_eps=fields["norm_eps"], **shared(fields)
        )
    ).eval()
    redraw(model, seed)
    ladder = Ladder()
    for s, stage in enumerate(model.swin.encoder.layers):
        for b, block in enumerate(stage.blocks):
            ladder.block(f"layers.{s}.blocks.{b}", block, block.attention, block.layernorm_after)
        if stage.downsample is not None:
            ladder.after(stage.downsample, f"layers.{s}.downsample.reduction.output")
    ladder.before(model.classifier, "head.input")
    write(fields, microsoft_state_of_hf(model), ladder, lambda x: model(x).logits, seed)


def plain_v2(fields: dict, seed: int) -> None:
    model = SwinTransformerV2(
        img_size=fields["image_size"], num_classes=fields["num_classes"], **shared(fields)
    ).eval()
    redraw(model, seed)
    ladder = Ladder()
    for s, stage in enumerate(model.layers):
        if s > 0:
            ladder.after(stage.downsample.reduction, f"layers.{s - 1}.downsample.reduction.output")
        for b, block in enumerate(stage.blocks):
            ladder.block_v2(f"layers.{s}.blocks.{b}", block, block.attn, (block.norm1, block.norm2), block.mlp.fc1)
    ladder.before(model.head.fc, "head.input")
    write(fields, swinq_state_v2(model), ladder, model, seed)


def padded_v2(fields: dict, seed: int) -> None:
    model = transformers.Swinv2ForImageClassification(
        transformers.Swinv2Config(
            image_size=fields["image_size"], num_labels=fields["num_classes"],
            use_absolute_embeddings=fields["ape"], layer_norm_eps=fields["norm_eps"],
            pretrained_window_sizes=fields["pretrained_window_sizes"], **shared(fields)
        )
    ).eval()
    redraw(model, seed)
    ladder = Ladder()
    for s, stage in enumerate(model.swinv2.encoder.layers):
        for b, block in enumerate(stage.blocks):
            norms = (block.layernorm_before, block.layernorm_after)
            ladder.block_v2(f"layers.{s}.blocks.{b}", block, block.attention, norms, block.intermediate)
        if stage.downsample is not None:
            ladder.after(stage.downsample.reduction, f"layers.{s}.downsample.reduction.output")
    ladder.before(model.classifier, "head.input")
    write(fields, swinq_state_v2_of_hf(model), ladder, lambda x: model(x).logits, seed)


def write(fields: dict, state: dict, ladder: Ladder, run, seed: int) -> None:
    batch = images(2, fields["image_size"], seed + 1)
    with torch.no_grad():
        logits = run(batch)
    path = FOLDER / f"{fields['name']}.safetensors"
    save_file({**state, **ladder.rungs, "input": batch, "logits": logits}, path, {"config": json.dumps(fields)})
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    plain(config("swin_plain", 40, "microsoft"), seed=1)
    padded(config("swin_padded", 44, "shrink_and_pad", qkv_bias=False, ape=True), seed=2)
    plain_v2(config("swinv2_plain", 40, "microsoft", version="v2"), seed=3)
    second = dict(version="v2", mask=-200.0, pretrained_window_sizes=[7, 0], window_size=4)
    padded_v2(config("swinv2_padded", 44, "shrink_and_pad", **second), seed=4)
