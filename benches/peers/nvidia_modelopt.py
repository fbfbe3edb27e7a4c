"""Fidelity of INT8 Swins: swinq's recipe `default` against NVIDIA ModelOpt's INT8 and INT8 SmoothQuant.

    python benches/peers/nvidia_modelopt.py SWINQ MODEL DATA [--plant norms,values --factor 32] [--calibrate 80] [--every N]

--every N evaluates every N-th image of `val` only, in every tool.

SWINQ is the program. MODEL is a folder with `model.safetensors` in timm's names and `cfg.yaml`, and DATA a
folder with `train.zip`, `val.zip` and their maps. Every tool calibrates the same images and quantizes the same linear
layers: those of the blocks and of patch merging. ModelOpt simulates INT8 in PyTorch and leaves attention in float;
swinq computes in integers and quantizes attention as well. Prints correct images, agreement with float, and the SQNR
of the logits, each against the float logits of the same tool.

--plant multiplies a few channels of the norms before linear layers, or of the values, and divides the weights that read
them, which leaves the network's function as it is. It is run once without and once with each.

Needs torch, timm, nvidia-modelopt, numpy, pillow, pyyaml and safetensors. A GPU is used if there is one.
"""
import argparse
import copy
import io
import json
import pathlib
import re
import subprocess
import tempfile
import zipfile

import modelopt.torch.quantization as mtq
import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models.swin_transformer import SwinTransformer

MEAN = torch.tensor([0.485, 0.456, 0.406])
DEVIATION = torch.tensor([0.229, 0.224, 0.225])
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH = 64
CHANNELS = 3


def network(cfg, tensors):
    data, swin = cfg.get("DATA", {}), cfg["MODEL"].get("SWIN", {})
    model = SwinTransformer(
        img_size=data.get("IMG_SIZE", 224),
        patch_size=swin.get("PATCH_SIZE", 4),
        num_classes=cfg["MODEL"]["NUM_CLASSES"],
        embed_dim=swin.get("EMBED_DIM", 96),
        depths=swin.get("DEPTHS", [2, 2, 6, 2]),
        num_heads=swin.get("NUM_HEADS", [3, 6, 12, 24]),
        window_size=swin.get("WINDOW_SIZE", 7),
    )
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and all("relative_position_index" in k or "attn_mask" in k for k in missing), (missing, unexpected)
    return model.eval().to(DEVICE)


class Split:
    """The images of `train` or `val`, as the program reads them: by the names in the map."""

    def __init__(self, data, split, size):
        self.archive = zipfile.ZipFile(data / f"{split}.zip")
        lines = [line.rstrip("\n").split("\t") for line in open(data / f"{split}_map.txt")]
        self.labels = {name: int(label) for name, label in lines}
        self.size = size

    def batches(self, names):
        for start in range(0, len(names), BATCH):
            part = names[start : start + BATCH]
            images = torch.stack([self.image(name) for name in part])
            yield images.to(DEVICE), torch.tensor([self.labels[name] for name in part])

    def image(self, name):
        image = Image.open(io.BytesIO(self.archive.read(name))).convert("RGB")
        image = image.resize((self.size, self.size), Image.BICUBIC)
        return ((torch.from_numpy(np.array(image)).float() / 255 - MEAN) / DEVIATION).permute(2, 0, 1)


@torch.inference_mode()
def logits(model, split, names):
    return torch.cat([model(images).float().cpu() for images, _ in split.batches(names)])


def report(name, found, exact, labels):
    sqnr = 10 * torch.log10(exact.pow(2).sum() / (found - exact).pow(2).sum()).item()
    agreement = (found.argmax(1) == exact.argmax(1)).float().mean().item()
    correct = (found.argmax(1) == labels).sum().item()
    print(f"  {name:28} {correct} of {len(labels)} correct, agreement {100 * agreement:.2f} %, SQNR {sqnr:.2f} dB", flush=True)


def quantized(model, config, split, names):
    """ModelOpt's quantization of the linear layers between the patch embedding and the head."""
    config = copy.deepcopy(config)
    off = {"enable": False}
    if isinstance(config["quant_cfg"], list):
        config["quant_cfg"] += [{"quantizer_name": f"*{part}*", **off} for part in ("patch_embed", "head")]
    else:
        config["quant_cfg"].update({f"*{part}*": off for part in ("patch_embed", "head")})

    def calibrate(model):
        for images, _ in split.batches(names):
            model(images)

    with torch.no_grad():
        return mtq.quantize(copy.deepcopy(model), config, calibrate)


def planted(tensors, place, factor):
    """Multiplies CHANNELS channels of every norm before a linear layer, or of the values, by up to `factor`."""
    tensors = {name: tensor.float().clone() for name, tensor in tensors.items()}
    random = np.random.default_rng(0)
    for name in [name for name in tensors if re.search(r"(qkv|fc1|reduction|proj)\.weight$", name) and tensors[name].dim() == 2]:
        width = tensors[name].shape[1]
        channels = torch.from_numpy(random.choice(width, CHANNELS, replace=False))
        factors = torch.from_numpy(random.uniform(factor / 2, factor, CHANNELS)).float()
        if name.endswith("proj.weight"):
            if place != "values":
                continue
            for part in ("weight", "bias"):
                rows = tensors[name.replace("proj.weight", f"qkv.{part}")][2 * width :]
                rows[channels] *= factors.reshape(-1, *[1] * (rows.dim() - 1))
        else:
            if place != "norms":
                continue
            norm = {"qkv": "attn.qkv>norm1", "fc1": "mlp.fc1>norm2", "reduction": "reduction>norm"}[name.split(".")[-2]]
            layer, norm = norm.split(">")
            for part in ("weight", "bias"):
                tensors[name.replace(f"{layer}.weight", f"{norm}.{part}")][channels] *= factors
        tensors[name][:, channels] /= factors
    return tensors


def extract(split, names, folder):
    """Writes the images `names` as `val` of an ImageFolder."""
    for name in names:
        path = folder / "val" / f"{split.labels[name]:04}" / name.replace("/", "_").replace("@", "_")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(split.archive.read(name.split("@")[-1].removeprefix("/")))
    return folder


def swinq(args, folder, weights, images):
    """Runs `swinq calibrate`, and `swinq eval` on `images`; prints the figures, and returns the names of the calibration images."""
    cfg, int8, results = str(args.model / "cfg.yaml"), folder / "int8.safetensors", folder / "results.json"
    command = [args.swinq, "calibrate", str(weights), "--cfg", cfg, "--data-path", str(args.data), "-o", str(int8)]
    command += ["--batches", str(args.calibrate // 8), "--batch-size", "8", *args.options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command = [args.swinq, "eval", str(weights), str(int8), "--cfg", cfg, "--data-path", str(images), "--no-latency"]
    command += ["--backend", "cpu", "--json", str(results)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = json.loads(results.read_text())["models"][1]
    print(
        f"  {'swinq default':28} {found['top1_correct']} of {found['images']} correct, "
        f"agreement {100 * found['agreement']:.2f} %, SQNR {found['sqnr_db']:.2f} dB",
        flush=True,
    )
    with open(int8, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return json.loads(header["__metadata__"]["swinq"])["provenance"]["calibration"]["images"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swinq")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--plant", default="", help="places, separated by commas: norms, values")
    parser.add_argument("--factor", type=float, default=32)
    parser.add_argument("--calibrate", type=int, default=80)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--options", nargs="*", default=[], help="more options of `swinq calibrate`")
    args = parser.parse_args()
    cfg = yaml.safe_load((args.model / "cfg.yaml").read_text())
    tensors = {name: tensor.float() for name, tensor in load_file(args.model / "model.safetensors").items()}
    size = cfg.get("DATA", {}).get("IMG_SIZE", 224)
    train, val = Split(args.data, "train", size), Split(args.data, "val", size)
    names = list(val.labels)[:: args.every]
    labels = torch.tensor([val.labels[name] for name in names])
    for place in [None, *filter(None, args.plant.split(","))]:
        print(f"{args.model.name}, " + (f"{place} x{args.factor:g}" if place else "untouched"))
        weights = planted(tensors, place, args.factor) if place else tensors
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
            evaluated = args.data if args.every == 1 else extract(val, names, folder / "images")
            images = [name.split("@")[-1].removeprefix("/") for name in swinq(args, folder, folder / "model.safetensors", evaluated)]
        model = network(cfg, weights)
        exact = logits(model, val, names)
        for name, config in (("INT8", mtq.INT8_DEFAULT_CFG), ("INT8 SmoothQuant", mtq.INT8_SMOOTHQUANT_CFG)):
            found = logits(quantized(model, config, train, images), val, names)
            report(f"ModelOpt {name}", found, exact, labels)


main()
