#!/usr/bin/env python3
"""Applies torchvision's crops, flips and colour adjustments to the images of `make_fixtures.py`.

    make_augment_fixtures.py               writes tests/fixtures/{crops,augmented,colours}.tsv

`crops.tsv` has rectangles of RandomResizedCrop: lines `s, width, height, fraction of the area, aspect ratio, 0, 0, w, h`
for a crop of that fraction and ratio, and `c, width, height, minimum ratio, maximum ratio, left, top, w, h` for the
central crop.
`augmented.tsv` has lines `file, size, filter, left, top, w, h, flip, adjustments, sha256 of u8 [size, size, 3]`.
`colours.tsv` has lines `adjustment, sha256 of every 24-bit colour adjusted`: a 4096 x 4096 image, red slowest.
"""
import hashlib
import pathlib

import numpy as np
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

FILTERS = {"bicubic": InterpolationMode.BICUBIC, "bilinear": InterpolationMode.BILINEAR}
ADJUST = {
    "brightness": F.adjust_brightness,
    "contrast": F.adjust_contrast,
    "saturation": F.adjust_saturation,
    "hue": F.adjust_hue,
}
FILES = ["rgb.png", "rgb_portrait.png", "rgb_is_256.png", "rgba.png", "grey.png", "one_pixel.png", "thin.png", "flat.png"]
FOLDER = pathlib.Path(__file__).parent / "fixtures"


def line(*fields):
    return "\t".join(str(field) for field in fields) + "\n"


def sha(image):
    return hashlib.sha256(np.ascontiguousarray(np.asarray(image)).tobytes()).hexdigest()


def crops(rng):
    sizes = [(32, 32), (500, 375), (375, 500), (1, 1), (3, 700), (700, 3), (64, 48), (2, 1)]
    for width, height in sizes:
        image = Image.new("RGB", (width, height))
        for part, ratio in zip(rng.uniform(0.02, 1, 24), np.exp(rng.uniform(-0.6, 0.6, 24))):
            part, ratio = round(float(part), 4), round(float(ratio), 4)
            top, left, h, w = transforms.RandomResizedCrop.get_params(image, [part, part], [ratio, ratio])
            area = width * height * part
            # If the rectangle does not fit, torchvision returns the central crop instead.
            if 1 <= round((area * ratio) ** 0.5) <= width and 1 <= round((area / ratio) ** 0.5) <= height:
                yield line("s", width, height, part, ratio, 0, 0, w, h)
        for low, high in [(0.75, 4 / 3), (1, 1), (0.01, 0.02), (0.3, 0.6), (1.7, 1.7), (2, 9)]:
            try:
                top, left, h, w = transforms.RandomResizedCrop.get_params(image, [1e9, 1e9], [low, high])
            except RuntimeError:
                continue
            if w > 0 and h > 0:
                yield line("c", width, height, repr(low), repr(high), left, top, w, h)


def augmented(rng):
    for index in range(96):
        file = FILES[index % len(FILES)]
        image = Image.open(FOLDER / file).convert("RGB")
        size, name = int(rng.choice([16, 33, 48])), ["bicubic", "bilinear"][index // 8 % 2]
        w, h = (int(rng.integers(1, side + 1)) for side in image.size)
        left, top = int(rng.integers(0, image.width - w + 1)), int(rng.integers(0, image.height - h + 1))
        if index % 3 == 0:  # the whole image, shifted within a border
            (w, h), (left, top) = image.size, (int(rng.integers(-4, 5)) for _ in range(2))
        flip = int(rng.integers(0, 2))
        result = F.resize(F.crop(image, top, left, h, w), [size, size], FILTERS[name])
        if index % 3:
            assert sha(result) == sha(F.resized_crop(image, top, left, h, w, [size, size], FILTERS[name]))
        result = F.hflip(result) if flip else result
        steps = []
        for kind in rng.permutation(list(ADJUST))[: rng.integers(0, 5)]:
            factor = round(float(rng.uniform(-0.5, 0.5) if kind == "hue" else rng.uniform(0, 2)), 6)
            result = ADJUST[kind](result, factor)
            steps.append(f"{kind}={factor}")
        yield line(file, size, name, left, top, w, h, flip, ",".join(steps) or "-", sha(result))


def colours():
    codes = np.arange(1 << 24, dtype=np.uint32)
    cube = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], -1).astype(np.uint8).reshape(4096, 4096, 3)
    image = Image.fromarray(cube)
    for kind, factor in [("brightness", 0.37), ("contrast", 1.83), ("saturation", 1.6), ("saturation", 0.21), ("hue", -0.13), ("hue", 0.5)]:
        yield line(f"{kind}={factor}", sha(ADJUST[kind](image, factor)))


def main():
    rng = np.random.default_rng(11)
    for name, lines in {"crops.tsv": crops(rng), "augmented.tsv": augmented(rng), "colours.tsv": colours()}.items():
        text = "".join(lines)
        (FOLDER / name).write_text(text)
        print(f"{name}: {text.count(chr(10))} lines")


if __name__ == "__main__":
    main()
