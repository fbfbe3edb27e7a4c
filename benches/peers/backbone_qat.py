"""Quantization-aware training of a segmenter in a plain PyTorch loop: swinq.torch.prepare against NVIDIA ModelOpt.

    python benches/peers/backbone_qat.py BACKBONE HEAD MOSAICS PHOTOGRAPHS --minutes 10 [--tools swinq,modelopt] [--json FILE]

BACKBONE is a Swin V1 in Microsoft's names with `norm0` to `norm3`, computed by the detectors' rule, and HEAD the parameters of a
feature pyramid. MOSAICS is a folder with `mosaics.py` and `score.py`, PHOTOGRAPHS one with `train.zip` and `val.zip`. The settings
of SETTINGS are tried from the mildest on; the first in which post-training quantization loses at least --loss of the mean IoU is
trained: cross entropy of all pixels, AdamW, a cosine, bfloat16 autocast, mosaics of the training photographs. Both tools have
the same loop, seeds, images and number of minutes. swinq's model is then converted, and its engine scored on the same images.

Needs torch with CUDA, pillow, safetensors and swinq; `modelopt` needs nvidia-modelopt.
"""
import argparse
import importlib.util
import json
import math
import pathlib
import random
import sys
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/parity"))
from detection_swin import Backbone

MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
SIZE, BATCH, CLASSES = (512, 640), 16, 10
#: Recipes from the mildest on: the patterns of the weights that have 4 bits beside the INT8 of `default`, and the granularity of
#: their scales.
SETTINGS = {
    "W8": ([], "channel"),
    "W4 fc1": (["fc1"], "channel"),
    "W4 fc1, fc2": (["fc1", "fc2"], "channel"),
    "W4": ([""], "channel"),
    "W4 by tensor, fc1": (["fc1"], "tensor"),
    "W4 by tensor, fc1, fc2": (["fc1", "fc2"], "tensor"),
    "W4 by tensor": ([""], "tensor"),
}


def recipe(setting):
    """The rules of `default` without refinement, and 4 bits for the weights of a setting."""
    layers, granularity = SETTINGS[setting]
    of_layer = [f"**.{layer}.weight" if layer else "**.weight" for layer in layers]
    rules = [
        {"match": "**", "enable": True, "granularity": "channel", "calibrator": {"percentile": 99.99}},
        {"match": "**.weight", "calibrator": "max"},
        *({"match": pattern, "bits": 4, "granularity": granularity} for pattern in of_layer),
        *({"match": pattern, "enable": False} for pattern in ("{patch_embed,head}.**", "**.scores", "**.add.*", "**.output")),
    ]
    return {"name": "qat", "description": "of the training benchmark", "rules": rules}


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Segmenter(torch.nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images):
        return self.head(list(self.backbone(images).values()))


def segmenter(given, score):
    tensors = {name: tensor.float() for name, tensor in load_file(given.backbone).items()}
    backbone = Backbone(96, [2, 2, 6, 2], [3, 6, 12, 24], 7)
    norms = {name: tensor.float() for name, tensor in load_file(given.head).items() if name.startswith("norm")}
    missing, _ = backbone.load_state_dict({**tensors, **norms}, strict=False)
    assert all("relative_position_index" in name for name in missing), missing
    return Segmenter(backbone, score.Head.load(given.head)).eval().cuda()


class Mosaics(torch.utils.data.Dataset):
    def __init__(self, maker, photographs, part, count, seed):
        self.maker, self.count, self.seed = maker, count, seed
        self.photographs = maker.photographs(photographs / f"{part}.zip", photographs / f"{part}_map.txt")

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image, labels = self.maker.mosaic(self.photographs, random.Random(f"{self.seed}/{index}"), *SIZE)
        return torch.from_numpy(image), torch.from_numpy(labels)


def normalised(images):
    return ((images.cuda(non_blocking=True).float() / 255 - MEAN.cuda()) / DEVIATION.cuda()).permute(0, 3, 1, 2).contiguous()


@torch.no_grad()
def iou(model, validation, score, amp=False):
    """Mean IoU on the validation mosaics."""
    model.eval()
    counts = torch.zeros(CLASSES * CLASSES, dtype=torch.int64)
    for images, labels in validation:
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            logits = model(normalised(images)).float()
        predicted = F.interpolate(logits, size=SIZE, mode="bilinear", align_corners=False).argmax(1).cpu()
        counts += torch.bincount(labels.flatten().long() * CLASSES + predicted.flatten(), minlength=CLASSES * CLASSES)
    return score.mean_iou(counts.reshape(CLASSES, CLASSES).numpy())


def with_swinq(model, calibration, setting):
    import swinq.torch

    swinq.torch.prepare(model, calibration, recipe(setting), learned="all")
    return model, swinq.torch.scales(model)


def with_modelopt(model, calibration, setting):
    """The same sites: inputs and weights of linear layers, per-channel weights, fixed ranges; ModelOpt has no learned ones."""
    import modelopt.torch.quantization as mtq

    layers, granularity = SETTINGS[setting]
    config = {"*weight_quantizer": {"num_bits": 8, "axis": 0}, "*input_quantizer": {"num_bits": 8, "axis": None}, "default": {"enable": False}}
    for layer in layers:
        config[f"*{layer}*weight_quantizer"] = {"num_bits": 4, "axis": 0 if granularity == "channel" else None}
    for name in ("*norm*", "*patch_embed*", "head.*"):
        config[name] = {"enable": False}

    def run(model):
        with torch.no_grad():
            for images in calibration:
                model(images)

    return mtq.quantize(model, {"quant_cfg": config, "algorithm": "max"}, run), []


TOOLS = {"swinq": with_swinq, "modelopt": with_modelopt}


def train(model, scales, training, minutes, lr, lr_scales):
    """Trains for so many minutes with cross entropy, and returns the number of steps."""
    own = {id(parameter) for parameter in scales}
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim > 1 and id(p) not in own]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1 and id(p) not in own]
    groups = [{"params": matrices, "lr": lr}, {"params": others, "lr": lr, "weight_decay": 0.0}]
    if scales:
        groups.append({"params": scales, "lr": lr_scales, "weight_decay": 0.0})
    highest = [group["lr"] for group in groups]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01, fused=True)
    model.train()
    begin, steps, losses = time.time(), 0, []
    for images, labels in training:
        done = (time.time() - begin) / (60 * minutes)
        if done >= 1:
            break
        for group, top in zip(optimizer.param_groups, highest):
            group["lr"] = top * min(1.0, (steps + 1) / 50) * 0.5 * (1 + math.cos(math.pi * done))
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(normalised(images))
        full = F.interpolate(logits.float(), size=SIZE, mode="bilinear", align_corners=False)
        loss = F.cross_entropy(full, labels.cuda(non_blocking=True).long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if steps % 100 == 0:
            losses.append(round(float(loss.detach()), 4))
    print(f"  {steps} steps, {1e3 * (time.time() - begin) / steps:.0f} ms each; losses {losses[:3]} ... {losses[-3:]}", flush=True)
    return steps


def main():
    parser = argparse.ArgumentParser()
    for name in ("backbone", "head", "mosaics", "photographs"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tools", default="swinq,modelopt")
    parser.add_argument("--setting", choices=SETTINGS, help="the setting, without a search")
    parser.add_argument("--loss", type=float, default=0.03)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--lr-scales", type=float, default=3e-3)
    parser.add_argument("--json")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    maker, score = module(given.mosaics / "mosaics.py"), module(given.mosaics / "score.py")
    loader = lambda part, count, seed, **options: torch.utils.data.DataLoader(
        Mosaics(maker, given.photographs, part, count, seed), BATCH, num_workers=12, pin_memory=True, **options
    )
    validation = [*loader("val", given.count, 7)]
    calibration = [normalised(images) for images, _ in loader("train", 64, 1)]
    found = {"float": iou(segmenter(given, score), validation, score), "settings": {}, "tools": {}}
    print(f"float {found['float']:.4f}", flush=True)
    for setting in [given.setting] if given.setting else SETTINGS:
        model, _ = with_swinq(segmenter(given, score), calibration, setting)
        found["settings"][setting] = iou(model, validation, score)
        print(f"{setting}: swinq without training {found['settings'][setting]:.4f}", flush=True)
        if found["float"] - found["settings"][setting] >= given.loss:
            break
    for tool in filter(None, given.tools.split(",")):
        torch.manual_seed(0)
        model, scales = TOOLS[tool](segmenter(given, score), calibration, setting)
        before = iou(model, validation, score)
        training = loader("train", 10**6, 3, persistent_workers=True, prefetch_factor=4)
        steps = train(model, scales, training, given.minutes, given.lr, given.lr_scales)
        del training
        after = iou(model, validation, score)
        back = (after - before) / (found["float"] - before)
        print(f"{tool} {setting}: before {before:.4f}, after {after:.4f}: {100 * back:.0f} % of the loss", flush=True)
        found["tools"][tool] = {"before": before, "after": after, "steps": steps}
        if tool == "swinq":
            import swinq.torch

            found["tools"][tool]["engine"] = iou(swinq.torch.convert(model), validation, score)
            print(f"  converted, on the INT8 engine: {found['tools'][tool]['engine']:.4f}", flush=True)
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
