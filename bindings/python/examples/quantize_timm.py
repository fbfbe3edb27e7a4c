"""Quantizes a Swin of timm and compares it with PyTorch: agreement and time. Cells are those of a notebook.

    pip install swinq timm pillow
    python quantize_timm.py FOLDER_OF_IMAGES [--model swin_tiny_patch4_window7_224] [--pretrained]
"""

# %% Arguments: a folder of images, and the name of a model.
import argparse
import time
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image

import swinq

parser = argparse.ArgumentParser()
parser.add_argument("images", type=Path)
parser.add_argument("--model", default="swin_tiny_patch4_window7_224")
parser.add_argument("--pretrained", action="store_true", help="download the trained weights; else they are random")
arguments = parser.parse_args()

# %% The float model, with the preprocessing that timm states for it.
module = timm.create_model(arguments.model, pretrained=arguments.pretrained).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(module), is_training=False)
files = sorted(path for path in arguments.images.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg", ".png"})
assert len(files) >= 2, "the folder has fewer than two images"

# %% Calibration on the first half of the images.
calibration, test = files[::2], files[1::2]
model = swinq.quantize(module, calibration, limit=128, progress=lambda *step: print(*step, end="\r"))
print(f"\n{model}: {model.size_bytes / 1e6:.1f} MB")

# %% Which layers are INT8.
weights = [site for site in model.sites if site.name.endswith(".weight")]
print(f"{sum(site.quantized for site in weights)} of {len(weights)} weights are INT8")

# %% Logits of the second half: PyTorch in f32 against INT8.
batch = torch.stack([transform(Image.open(file).convert("RGB")) for file in test[:64]])
with torch.no_grad():
    expected = module(batch).numpy()
found = model(batch).numpy()
noise = 10 * np.log10(np.square(expected).sum() / np.square(expected - found).sum())
print(f"same class: {np.mean(expected.argmax(1) == found.argmax(1)):.1%}, SQNR {noise:.1f} dB")


# %% Time of one image.
def median(call, runs=20):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[runs // 2]


with torch.no_grad():
    slow = median(lambda: module(batch[:1]))
fast = median(lambda: model(batch[:1]))
print(f"PyTorch {slow:.1f} ms, swinq {fast:.1f} ms, {slow / fast:.1f} times faster")
