"""Creates the files in checkpoints/: one small Swin in every dialect and format, and malicious pickles.

Needs torch, timm, torchvision, transformers, safetensors and numpy. Run from this folder: python make_checkpoints.py
Every conversion is checked with the library of its dialect: the library's model must load it strictly and give the logits
of timm's model.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import types

import numpy as np
import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file

SHAPE = dict(patch_size=4, embed_dim=6, num_heads=(2, 3), window_size=3, mlp_ratio=1.5, num_classes=5)
IMAGE, DEPTHS = 24, (1, 2)
LABELS = ["ant", "bee", "cat", "dog", "eel"]
OUT = pathlib.Path("checkpoints")


def draw(model):
    """Redraws every parameter, so that none has the library's initial value."""
    generator = torch.Generator().manual_seed(20)
    normal = lambda p: torch.randn(p.shape, generator=generator)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1 and name.endswith("weight"):
                p.copy_(0.7 + 0.6 * torch.rand(p.shape, generator=generator))
            elif p.ndim == 1 or name.endswith("table"):
                p.copy_(0.5 * normal(p))
            else:
                p.copy_(normal(p) / p[0].numel() ** 0.5)


def to_microsoft(state):
    """Converts timm's names to Microsoft's."""
    moved = lambda m: f"layers.{int(m.group(1)) - 1}.downsample"
    return {re.sub(r"layers\.(\d+)\.downsample", moved, k).replace("head.fc.", "head."): v for k, v in state.items()}


def microsoft_buffers(tables):
    """The buffers that Microsoft's checkpoints hold; their values are never read."""
    buffers = {}
    for name in tables:
        block = name.removesuffix("attn.relative_position_bias_table")
        buffers[block + "attn.relative_position_index"] = torch.zeros(9, 9, dtype=torch.int64)
        if block == "layers.0.blocks.1.":
            buffers[block + "attn_mask"] = torch.zeros(4, 9, 9)
    return buffers


def to_torchvision(state):
    out = {}
    for k, v in state.items():
        k = k.replace("patch_embed.proj", "features.0.0").replace("patch_embed.norm", "features.0.2")
        k = re.sub(r"layers\.(\d+)\.blocks", lambda m: f"features.{2 * int(m.group(1)) + 1}", k)
        k = re.sub(r"layers\.(\d+)\.downsample", lambda m: f"features.{2 * int(m.group(1)) + 2}", k)
        out[k.replace("mlp.fc1", "mlp.0").replace("mlp.fc2", "mlp.3")] = v
    return out


def to_hugging_face(state):
    renames = [
        ("patch_embed.proj", "swin.embeddings.patch_embeddings.projection"), ("patch_embed.norm", "swin.embeddings.norm"),
        ("attn.relative", "attention.self.relative"), ("attn.proj", "attention.output.dense"),
        ("norm1", "layernorm_before"), ("norm2", "layernorm_after"), ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"), ("head.", "classifier."),
    ]
    out = {}
    for k, v in state.items():
        k = re.sub(r"^layers", "swin.encoder.layers", re.sub(r"^norm", "swin.layernorm", k))
        for ours, theirs in renames:
            k = k.replace(ours, theirs)
        if "attn.qkv" in k:
            for part, name in zip(v.chunk(3), ("query", "key", "value")):
                out[k.replace("attn.qkv", "attention.self." + name)] = part.clone()
        else:
            out[k] = v
    return out


def check_logits(name, model, image, wanted):
    with torch.no_grad():
        got = model.eval()(image)
    got = got.logits if hasattr(got, "logits") else got
    assert torch.allclose(got, wanted, atol=1e-4), (name, (got - wanted).abs().max())


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def training_extras():
    """The objects that training scripts of Microsoft and others save beside the weights."""
    module = types.ModuleType("yacs.config")
    exec("class CfgNode(dict):\n    def __init__(self, *a):\n        super().__init__(*a)\n        self.frozen = True", module.__dict__)
    module.CfgNode.__module__ = "yacs.config"
    sys.modules["yacs"], sys.modules["yacs.config"] = types.ModuleType("yacs"), module
    config = module.CfgNode({"MODEL": module.CfgNode({"TYPE": "swin", "DEPTHS": [1, 2]}), "LR": 1e-8})
    circle = []
    circle.append(circle)
    return {
        "config": config, "args": argparse.Namespace(lr=0.1, out=pathlib.PurePosixPath("runs")), "epoch": 3,
        "max_accuracy": np.float64(81.2), "best": np.arange(3), "scaler": {"scale": 65536.0, "growth": None},
        "circle": circle, "seen": {1, 2}, "big": 1 << 80,
    }


def views(state):
    """The same weights as transposed, offset, shared and half-precision tensors. Also returns the rounded values."""
    out, rounded = dict(state), dict(state)
    flat = torch.cat([torch.zeros(7)] + [state[k].flatten() for k in ("head.weight", "head.bias")])
    size = state["head.weight"].numel()
    out["head.weight"] = flat[7 : 7 + size].view(state["head.weight"].shape)
    out["head.bias"] = flat[7 + size :]
    fc1 = "layers.1.blocks.0.mlp.fc1.weight"
    out[fc1] = state[fc1].t().contiguous().t()
    table = "layers.0.blocks.0.attn.relative_position_bias_table"
    out[table] = torch.stack([state[table], torch.ones_like(state[table])], -1)[..., 0]
    for name, dtype in (("norm.weight", torch.float16), ("norm.bias", torch.bfloat16), (fc1.replace("weight", "bias"), torch.float64)):
        out[name] = state[name].to(dtype)
        rounded[name] = out[name].float()
    out["patch_embed.proj.bias"] = torch.nn.Parameter(state["patch_embed.proj.bias"])
    return out, rounded


class Attack:
    def __init__(self, function, *arguments):
        self.parts = (function, arguments)

    def __reduce__(self):
        return self.parts


def main():
    OUT.mkdir(exist_ok=True)
    model = timm.create_model("swin_tiny_patch4_window7_224", img_size=IMAGE, depths=DEPTHS, **SHAPE)
    draw(model)
    image = torch.randn(2, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = model.eval()(image)
    timm_state = {k: v.clone() for k, v in model.state_dict().items()}
    state = to_microsoft(timm_state)
    save_file(state, OUT / "expected.safetensors")

    # Microsoft, in each format, and the other objects that training scripts save in the file.
    buffers = microsoft_buffers(k for k in state if k.endswith("table"))
    full = {**state, **buffers}
    torch.save({"model": full}, OUT / "ms.pth")
    torch.save({"model": full}, OUT / "ms_legacy.pth", _use_new_zipfile_serialization=False)
    torch.save({"model": full}, OUT / "ms_protocol5.pth", pickle_protocol=5)
    torch.save({"state_dict": {"module." + k: v for k, v in full.items()}, "epoch": 1}, OUT / "ms_ddp.pth")
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    extras = {"optimizer": optimizer.state_dict(), **training_extras()}
    torch.save({**extras, "model": full}, OUT / "ms_training.pth")
    torch.save({**extras, "model": full}, OUT / "ms_training_legacy.pth", _use_new_zipfile_serialization=False)
    odd, rounded = views(state)
    torch.save(odd, OUT / "ms_views.pth")
    torch.save(odd, OUT / "ms_views_legacy.pth", _use_new_zipfile_serialization=False)
    save_file({k: v.contiguous() for k, v in rounded.items()}, OUT / "expected_views.safetensors")

    # timm.
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
    folder = OUT / "timm"
    arguments = dict(SHAPE, img_size=IMAGE, depths=DEPTHS)
    arguments.pop("num_classes")
    pretrained = dict(input_size=[3, IMAGE, IMAGE], crop_pct=0.9, interpolation="bicubic", mean=mean, std=std, num_classes=5)
    write_json(folder / "config.json", {
        "architecture": "swin_tiny_patch4_window7_224", "num_classes": 5, "num_features": 12, "label_names": LABELS,
        "model_args": arguments, "pretrained_cfg": pretrained,
    })
    save_file(timm_state, folder / "model.safetensors")

    # Hugging Face transformers.
    folder = OUT / "hf"
    config = transformers.SwinConfig(
        image_size=IMAGE, patch_size=4, embed_dim=6, depths=list(DEPTHS), num_heads=[2, 3], window_size=3, mlp_ratio=1.5,
        id2label=dict(enumerate(LABELS)), label2id={l: i for i, l in enumerate(LABELS)},
    )
    hf_state = to_hugging_face(state)
    folder.mkdir(exist_ok=True)
    save_file(hf_state, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", {
        "do_resize": True, "do_normalize": True, "image_mean": mean, "image_std": std, "resample": 2, "size": IMAGE,
    })
    hf = transformers.SwinForImageClassification.from_pretrained(folder)
    check_logits("hf", hf, image, wanted)
    torch.save(hf.state_dict(), OUT / "hf_modules.bin")

    # torchvision.
    tv = torchvision.models.SwinTransformer([4, 4], 6, list(DEPTHS), [2, 3], [3, 3], 1.5, num_classes=5)
    missing, unexpected = tv.load_state_dict(to_torchvision(state), strict=False)
    assert not unexpected and all(k.endswith("relative_position_index") for k in missing)
    check_logits("torchvision", tv, image, wanted)
    torch.save(tv.state_dict(), OUT / "torchvision.pth")

    # FasterTransformer's calibrated checkpoint: a range for every quantizer.
    ranges = {}
    for k in state:
        if k.endswith(".weight") and state[k].ndim == 2 and k != "head.weight":
            for i, quantizer in enumerate(("input", "weight", "aftergemm")):
                ranges[k.replace("weight", f"_{quantizer}_quantizer._amax")] = torch.tensor(1.0 + i)
        if k.endswith("attn.qkv.weight"):
            block = k.removesuffix("attn.qkv.weight")
            names = ["attn.matmul_q_input", "attn.matmul_k_input", "attn.matmul_v_input", "attn.matmul_a_input", "attn.softmax_input"]
            names += ["add1_local_input", "add1_residual_input", "add2_local_input", "add2_residual_input"]
            names += ["layernorm_input1", "layernorm_input2"]
            for i, name in enumerate(names):
                ranges[f"{block}{name}_quantizer._amax"] = torch.tensor(4.0 + i)
    torch.save({**full, **ranges}, OUT / "ft_calib.pth")

    # Attacks. They are written here and never loaded by Python.
    marker = "touch attacked"
    torch.save({"model": Attack(os.system, marker)}, OUT / "attack_system.pth")
    torch.save({"model": Attack(os.system, marker)}, OUT / "attack_system_legacy.pth", _use_new_zipfile_serialization=False)
    torch.save({"model": full, "epoch": Attack(eval, "1+1")}, OUT / "attack_eval.pth", pickle_protocol=4)
    torch.save({"model": {**state, "head.bias": Attack(np.zeros, 5)}}, OUT / "attack_array.pth")
    torch.save(torch.nn.Linear(2, 2), OUT / "whole_module.pth")


if __name__ == "__main__":
    main()
