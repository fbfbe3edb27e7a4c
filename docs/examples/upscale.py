"""Super-resolution in INT8: a file that spandrel loads, calibrated on a folder of images, and a photograph that is enlarged in tiles.

    python upscale.py MODEL IMAGES PHOTOGRAPH enlarged.png [--tile 256] [--overlap 16] [--samples 32]

MODEL is a `.pth` or `.safetensors` of SwinIR or Swin2SR, IMAGES a folder of images as the model gets them (small), of which pieces of a
tile are taken. The stacks of Swin blocks become INT8, and the convolutions stay in float. The script prints what was replaced, the seconds
of the photograph before and after, and the PSNR between both results (peak 1, not rounded to bytes). Needs swinq, torch, spandrel, pillow.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from spandrel import ModelLoader

import swinq.torch

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def pixels(path, channels):
    """An image as `[1, channels, height, width]` of 0 to 1."""
    image = np.asarray(Image.open(path).convert("RGB" if channels == 3 else "L"), np.float32) / 255
    return torch.from_numpy(image).reshape(*image.shape[:2], channels).permute(2, 0, 1)[None]


def starts(length, tile, overlap):
    """Where tiles begin that cover a length; neighbours share at least the overlap."""
    if length <= tile:
        return [0]
    count = math.ceil((length - overlap) / (tile - overlap))
    return [round(index * (length - tile) / (count - 1)) for index in range(count)]


def enlarged(model, image, scale, tile, overlap):
    """The enlarged image. Where tiles share pixels, their mean is taken."""
    height, width = image.shape[2:]
    total = torch.zeros(1, image.shape[1], scale * height, scale * width)
    weight = torch.zeros(1, 1, scale * height, scale * width)
    with torch.no_grad():
        for top in starts(height, tile, overlap):
            for left in starts(width, tile, overlap):
                found = model(image[:, :, top : top + tile, left : left + tile]).float()
                place = (..., slice(scale * top, scale * top + found.shape[2]), slice(scale * left, scale * left + found.shape[3]))
                total[place] += found
                weight[place] += 1
    return total / weight


def timed(*arguments):
    """The enlarged image, and the seconds that it took."""
    start = time.perf_counter()
    found = enlarged(*arguments)
    return found, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model"), parser.add_argument("images"), parser.add_argument("photograph"), parser.add_argument("output")
    parser.add_argument("--tile", type=int, default=256, help="side of a tile in pixels")
    parser.add_argument("--overlap", type=int, default=16, help="pixels that neighbouring tiles share")
    parser.add_argument("--samples", type=int, default=32, help="pieces on which the model is calibrated")
    given = parser.parse_args()
    if not 0 <= given.overlap < given.tile:
        parser.error(f"--overlap {given.overlap} must be less than --tile {given.tile}")
    descriptor = ModelLoader().load_from_file(given.model)
    # The descriptor is no module of PyTorch: its model is quantized.
    model, scale, channels = descriptor.model.eval().float(), descriptor.scale, descriptor.input_channels
    files = sorted(path for path in Path(given.images).iterdir() if path.suffix.lower() in SUFFIXES)[: given.samples]
    if not files:
        raise SystemExit(f"{given.images}: there is no image ({', '.join(SUFFIXES)})")
    pieces = [pixels(path, channels)[:, :, : given.tile, : given.tile] for path in files]
    arguments = (pixels(given.photograph, channels), scale, given.tile, given.overlap)
    before, seconds = timed(model, *arguments)
    report = swinq.torch.quantize(model, pieces)
    print(report)
    after, faster = timed(model, *arguments)
    psnr = -10 * math.log10(max((after - before).square().mean().item(), 1e-20))
    values = (after[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(values if channels == 3 else values[..., 0]).save(given.output)
    size = "x".join(map(str, after.shape[2:]))
    print(f"{given.output}: {size} pixels, {seconds:.2f} s in float, {faster:.2f} s in INT8, {psnr:.1f} dB between both")


if __name__ == "__main__":
    main()
