"""Creates the files in checkpoints/v2/: one small Swin V2 in every dialect.

Needs torch, timm, torchvision, transformers and safetensors. Run from this folder: python make_checkpoints_v2.py
Every conversion is checked with the library of its dialect: the library's model must load it strictly and give the logits
of timm's model. Microsoft's names are those of its `models/swin_transformer_v2.py`, with the buffers that it saves.
"""

import pathlib

import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

from make_checkpoints import IMAGE, LABELS, SHAPE, check_logits, draw, to_microsoft, to_torchvision, write_json

DEPTHS = (2, 1)
OUT = pathlib.Path("checkpoints/v2")


def joined(state):
    """The parameters as swinq names them: one bias for queries, keys (zeros) and values."""
    out = {}
    for name, value in state.items():
        if name.endswith("q_bias"):
            block = name.removesuffix("q_bias")
            out[f"{block}qkv.bias"] = torch.cat([value, torch.zeros_like(value), state[f"{block}v_bias"]])
        elif not name.endswith("v_bias"):
            out[name] = value
    return out


def microsoft_buffers(model):
    """The buffers that Microsoft's checkpoints hold; of their values only the coordinates are read."""
    buffers = {}
    for name, value in model.named_buffers():
        if name.endswith("relative_coords_table"):
            buffers[name.replace("coords_table", "position_index")] = torch.zeros(9, 9, dtype=torch.int64)
            buffers[name] = value.view(1, 5, 5, 2).clone()
    buffers["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 9, 9)
    return buffers


def to_hugging_face(state):
    renames = [
        ("patch_embed.proj", "swinv2.embeddings.patch_embeddings.projection"),
        ("patch_embed.norm", "swinv2.embeddings.norm"), ("attn.logit_scale", "attention.self.logit_scale"),
        ("attn.cpb_mlp", "attention.self.continuous_position_bias_mlp"), ("attn.proj", "attention.output.dense"),
        ("attn.q_bias", "attention.self.query.bias"), ("attn.v_bias", "attention.self.value.bias"),
        ("norm1", "layernorm_before"), ("norm2", "layernorm_after"), ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"), ("head.", "classifier."),
    ]
    out = {}
    for name, value in state.items():
        if name.startswith("layers"):
            name = f"swinv2.encoder.{name}"
        elif name.startswith("norm"):
            name = f"swinv2.layer{name}"
        for ours, theirs in renames:
            name = name.replace(ours, theirs)
        if "attn.qkv" in name:
            for part, which in zip(value.chunk(3), ("query", "key", "value")):
                out[name.replace("attn.qkv", f"attention.self.{which}")] = part.clone()
        else:
            out[name] = value
    return out


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    model = timm.create_model("swinv2_tiny_window8_256", img_size=IMAGE, depths=DEPTHS, **SHAPE)
    draw(model)
    image = torch.randn(2, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = model.eval()(image)
    timm_state = {k: v.clone() for k, v in model.state_dict().items()}
    state = to_microsoft(timm_state)
    save_file(joined(state), OUT / "expected.safetensors")
    torch.save({"model": {**state, **microsoft_buffers(model)}}, OUT / "ms.pth")

    mean, std = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
    arguments = dict(SHAPE, img_size=IMAGE, depths=DEPTHS)
    arguments.pop("num_classes")
    pretrained = dict(input_size=[3, IMAGE, IMAGE], crop_pct=0.9, interpolation="bicubic", mean=mean, std=std, num_classes=5)
    write_json(OUT / "timm/config.json", {
        "architecture": "swinv2_tiny_window8_256", "num_classes": 5, "num_features": 12, "label_names": LABELS,
        "model_args": arguments, "pretrained_cfg": pretrained,
    })
    save_file(timm_state, OUT / "timm/model.safetensors")

    folder = OUT / "hf"
    folder.mkdir(exist_ok=True)
    config = transformers.Swinv2Config(
        image_size=IMAGE, patch_size=4, embed_dim=6, depths=list(DEPTHS), num_heads=[2, 3], window_size=3, mlp_ratio=1.5,
        pretrained_window_sizes=[0, 0], id2label=dict(enumerate(LABELS)), label2id={l: i for i, l in enumerate(LABELS)},
    )
    save_file(to_hugging_face(state), folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", {
        "do_resize": True, "do_normalize": True, "image_mean": mean, "image_std": std, "resample": 2, "size": IMAGE,
    })
    hf, report = transformers.Swinv2ForImageClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    check_logits("hf", hf, image, wanted)

    tv = torchvision.models.SwinTransformer(
        [4, 4], 6, list(DEPTHS), [2, 3], [3, 3], 1.5, num_classes=5, block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    )
    # torchvision stores a bias of the keys, which it does not use.
    stored = to_torchvision(joined(state))
    for name in stored:
        if name.endswith("qkv.bias"):
            stored[name][len(stored[name]) // 3 : -len(stored[name]) // 3] = 7.0
    missing, unexpected = tv.load_state_dict(stored, strict=False)
    assert not unexpected and all("relative_" in k for k in missing), (missing, unexpected)
    check_logits("torchvision", tv, image, wanted)
    torch.save(tv.state_dict(), OUT / "torchvision.pth")


if __name__ == "__main__":
    main()
