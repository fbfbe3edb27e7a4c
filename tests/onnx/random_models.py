"""Compares exports of random models: official sizes, odd grids, rectangles, every recipe, and Swin V2 with two codes in
some heads.

    python tests/onnx/random_models.py SWINQ FOLDER [--only NAME]

Writes timm models with random weights to FOLDER, calibrates them on images of noise, and runs compare.py on each.
"""
import argparse
import pathlib
import subprocess
import sys

import numpy as np
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from timm.models.swin_transformer_v2 import SwinTransformerV2

HERE = pathlib.Path(__file__).parent
RULES = {
    "all": "name: all\nrules:\n  - {match: '**', enable: true, calibrator: max}\n"
    "  - {match: '**.weight', granularity: tensor}\n  - {match: 'layers.0.**.probs', kind: s8}\n",
    "w4": "name: w4\nrules:\n  - {match: '**', enable: true, calibrator: {percentile: 99.99}}\n"
    "  - {match: '**.weight', bits: 4, calibrator: mse}\n  - {match: '{patch_embed,head}.**', enable: false}\n"
    "  - {match: '**.{scores,output}', enable: false}\n",
    "mixed": "name: mixed\nrules:\n  - {match: '**', enable: true, calibrator: max}\n"
    "  - {match: 'layers.*.blocks.0.**.{fc1,proj}.input', enable: false}\n"
    "  - {match: 'layers.*.blocks.1.**.{fc1,proj}.weight', enable: false}\n"
    "  - {match: 'layers.0.blocks.0.attn.q', enable: false}\n  - {match: 'layers.0.blocks.1.attn.{k,v}', enable: false}\n"
    "  - {match: 'layers.1.blocks.1.attn.{q,probs}', enable: false}\n",
}
V1 = "MODEL:\n  TYPE: swin\n  NAME: micro\n  NUM_CLASSES: 10\n  SWIN: {EMBED_DIM: 32, DEPTHS: [2, 2], NUM_HEADS: [2, 4], WINDOW_SIZE: 7}\n"
V2 = V1.replace("TYPE: swin", "TYPE: swinv2").replace("SWIN:", "SWINV2:")
SHAPE = {"patch_size": 4, "num_classes": 10, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 4), "window_size": 7}


def official(name):
    return lambda: timm.create_model(name, pretrained=False)


def micro():
    return timm.models.swin_transformer.SwinTransformer(img_size=56, **SHAPE)


def rectangle(**more):
    """timm's windows: 7 x 7 in stage 1, 4 x 7 with padding and a shift of one axis in stage 2."""
    return timm.models.swin_transformer.SwinTransformer(img_size=WIDE, **SHAPE, **more)


def padded():
    """torchvision pads grids that windows do not divide."""
    return torchvision.models.SwinTransformer([4, 4], 32, [2, 2], [2, 4], [7, 7], num_classes=10)


def second(size=56):
    model = SwinTransformerV2(img_size=size, **SHAPE)
    for name, parameter in model.named_parameters():
        if name.endswith("logit_scale"):
            # Factors of 6 to 90: some heads have one code for each value, some two.
            parameter.data = torch.linspace(1.8, 4.5, parameter.numel()).reshape(parameter.shape)
    return model


# Products of codes that ONNX Runtime runs in float: it merges `mlp.fc1.input` with `mlp.add.shortcut`, which has the same
# range, and then runs `mlp.fc1` of every block in float (docs/deploy.md, "The graph").
FLOAT_IN_ORT = {("v2", "all"): 4}

WIDE = (28, 84)
GRAY = V1.replace("EMBED_DIM", "IN_CHANS: 1, EMBED_DIM")

# name: (model, side of an image or height and width, configuration, recipes)
MODELS = {
    "micro": (micro, 56, V1, ["default", "basic", "mode1", "mode2", "all", "w4", "mixed"]),
    "odd": (padded, 100, V1, ["default", "mode1"]),
    "v2": (second, 56, V2, ["default", "basic", "all"]),
    "wide": (rectangle, WIDE, V1, ["default", "mode1", "all", "w4", "mixed"]),
    "wide gray": (lambda: rectangle(in_chans=1), WIDE, GRAY, ["default"]),
    "wide v2": (lambda: second(WIDE), WIDE, V2, ["default", "basic"]),
    "tiny": (official("swin_tiny_patch4_window7_224"), 224, "swin_tiny_patch4_window7_224", ["basic"]),
    "base384": (official("swin_base_patch4_window12_384"), 384, "swin_base_patch4_window12_384_finetune", ["basic"]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swinq")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only")
    parser.add_argument("--calibrate-with", help="another build of swinq that calibrates")
    args = parser.parse_args()
    failed = []
    for name, (make, size, cfg, recipes) in MODELS.items():
        if args.only and name not in args.only.split(","):
            continue
        height, width = size if isinstance(size, tuple) else (size, size)
        folder = args.folder / name
        images = folder / "images"
        images.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        for i in range(16):
            coarse = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8))
            coarse.resize((width, height), Image.BICUBIC).save(images / f"{i:02}.png")
        torch.manual_seed(0)
        model = make().eval()
        state = {k: v for k, v in model.state_dict().items() if not k.endswith(("index", "attn_mask", "coords_table"))}
        for key, value in state.items():
            if key.endswith("bias") and "logit" not in key:
                state[key] = 0.1 * torch.randn_like(value)
        save_file({k: v.contiguous() for k, v in state.items()}, folder / "float.safetensors")
        if "\n" in cfg:
            (folder / "cfg.yaml").write_text(cfg + f"DATA: {{IMG_SIZE: [{height}, {width}]}}\nTEST: {{CROP: false}}\n")
            cfg = str(folder / "cfg.yaml")
        described = ["--cfg", cfg, "--dialect", "torchvision" if make is padded else "timm"]
        compare = [sys.executable, str(HERE / "compare.py"), args.swinq]
        runs = [([str(folder / "float.safetensors"), str(images), "--limit", "4", "--float", "--", *described], "float")]
        for recipe in recipes:
            quantized = folder / f"{recipe}.safetensors"
            rules = folder / f"{recipe}.yaml"
            if recipe in RULES:
                rules.write_text(RULES[recipe])
            options = ["--recipe", str(rules)] if recipe in RULES else ["--recipe", recipe] if recipe != "basic" else ["--ptq", "basic"]
            command = [args.calibrate_with or args.swinq, "calibrate", str(folder / "float.safetensors"), *described]
            command += ["--data-path", str(images), "--batches", "2", "--batch-size", "4", "-o", str(quantized), *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            limit = "8" if height < 384 else "2"
            bars = ["--least-ort", "25", "--least-openvino", "25", "--float-in-ort", str(FLOAT_IN_ORT.get((name, recipe), 0))]
            runs.append(([str(quantized), str(images), "--limit", limit, *bars], recipe))
        for arguments, what in runs:
            if subprocess.run([*compare, *arguments]).returncode:
                failed.append(f"{name} {what}")
    print("failed:", failed)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
