#!/usr/bin/env python3
"""Makes the images of `tests/it/pillow.rs` and the results of Pillow, torchvision and timm on them.

    make_fixtures.py                       the committed fixtures, in tests/fixtures
    make_fixtures.py --large FOLDER        200 images of random sizes and every mode; run the test on them with
                                           SWINQ_PARITY=FOLDER
        --photos PHOTOS...                 and 200 photographs (folders or zip archives of JPEG files) as lossy WebP

A folder of fixtures holds the images; `pixels.tsv`, lines `file<TAB>width<TAB>height<TAB>sha256 of convert("RGB")`;
and `inputs.tsv`, lines `file<TAB>size<TAB>shorter side or "direct"<TAB>filter<TAB>sha256 of the input`.
JPEG files of further kinds come from ../jpeg/tests/make_jpegs.py; with arithmetic coding if `jpegtran` is found.
"""
import argparse
import hashlib
import io
import pathlib
import random
import shutil
import struct
import sys
import zlib

import numpy as np
import timm.data
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "jpeg/tests"))
import make_jpegs  # noqa: E402

FILTERS = {"bicubic": InterpolationMode.BICUBIC, "bilinear": InterpolationMode.BILINEAR}
# Size, shorter side (None: direct), filter. The first five are those of Microsoft, timm, torchvision (V1 tiny, V2 base)
# and Hugging Face. The others test the bilinear filter, a crop larger than the resized image, and a small direct resize.
TRANSFORMS = [
    (224, 256, "bicubic"),
    (224, 248, "bicubic"),
    (224, 232, "bicubic"),
    (256, 272, "bicubic"),
    (224, None, "bicubic"),
    (65, 80, "bilinear"),
    (48, 33, "bicubic"),
    (16, None, "bicubic"),
]


def sha(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def network_input(image, size, shorter, name):
    """u8 [size, size, 3], made by the library that defines the transform."""
    if shorter is None:
        return np.asarray(image.resize((size, size), Image.Resampling[name.upper()]))
    if (size, shorter) == (224, 248):
        steps = timm.data.create_transform(size, interpolation=name, crop_pct=0.9)
        assert type(steps.transforms[0]).__name__ == "Resize" and steps.transforms[0].size == 248, steps
        return np.asarray(steps.transforms[1](steps.transforms[0](image)))
    image = F.center_crop(transforms.Resize(shorter, FILTERS[name])(image), [size, size])
    return np.asarray(image)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def adam7(rows, width, height, bits):
    """Interlaced scan lines without filters of `rows` (lists of pixels, each an int of `bits` bits)."""
    out = b""
    for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
        for y in range(y0, height, dy):
            pixels = rows[y][x0::dx]
            if pixels:
                text = "".join(format(p, f"0{bits}b") for p in pixels)
                text += "0" * (-len(text) % 8)
                out += b"\0" + int(text, 2).to_bytes(len(text) // 8, "big")
    return out


def raw_png(rng, width, height, depth, color, interlaced=False, palette=0, transparent=b""):
    """A PNG of random pixels of any colour type and depth, written directly because Pillow cannot write them all."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    bits = depth * channels
    limit = palette if color == 3 else 1 << bits
    rows = [[int.from_bytes(rng.bytes(8), "big") % limit for _ in range(width)] for _ in range(height)]
    if interlaced:
        data = adam7(rows, width, height, bits)
    else:
        data = b""
        for row in rows:
            text = "".join(format(p, f"0{bits}b") for p in row)
            text += "0" * (-len(text) % 8)
            data += b"\0" + int(text, 2).to_bytes(len(text) // 8, "big")
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    extra = chunk(b"PLTE", rng.bytes(3 * palette)) if palette else b""
    extra += chunk(b"tRNS", transparent) if transparent else b""
    body = chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def picture(rng, width, height, channels):
    """Smooth waves and an edge with some noise, which resemble the content of photographs."""
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for _ in range(channels):
        a, b, c, d = rng.uniform(-1, 1, 4)
        wave = np.sin(x * a * 0.3 + b * 5) + np.cos(y * c * 0.3 + d * 5) + rng.normal(0, 0.15, x.shape)
        edge = ((x * a + y * c) > (width * a + height * c) / 2) * 0.8
        planes.append((wave + edge + 2) * 60)
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8).squeeze()


def pillow_png(rng, mode, width, height):
    """A PNG of this Pillow mode."""
    noise = lambda channels: rng.integers(0, 256, (height, width, channels), dtype=np.uint8).squeeze(-1 if channels == 1 else ())
    if mode == "1":
        image = Image.fromarray((noise(1) > 127).astype(np.uint8) * 255).convert("1")
    elif mode == "P":
        image = Image.fromarray(noise(3)).quantize(200)
    elif mode == "PA":
        image = Image.fromarray(noise(1)).convert("P")
        image.info["transparency"] = bytes(range(256))
    elif mode == "I;16":
        values = rng.integers(0, 65536, (height, width)) >> rng.integers(0, 12)
        image = Image.fromarray(values.astype(np.uint16))
    else:
        array = noise({"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}[mode])
        image = Image.fromarray(array, mode=mode) if mode == "LA" else Image.fromarray(array)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def jpeg(rng, width, height, channels, **options):
    ycck = options.pop("ycck", False)
    array = picture(rng, width, height, channels).reshape(height, width, -1).squeeze(-1 if channels == 1 else ())
    image = Image.fromarray(array, mode="CMYK") if channels == 4 else Image.fromarray(array)
    out = io.BytesIO()
    image.save(out, "JPEG", **{"quality": 90, **options})
    data = out.getvalue()
    if ycck:  # The transform byte of the Adobe segment declares the same samples as YCCK.
        at = data.index(b"Adobe") + 11
        data = data[:at] + b"\2" + data[at + 1 :]
    return data


def small(rng):
    yield from {
        "grey.png": pillow_png(rng, "L", 7, 5),
        "grey_alpha.png": pillow_png(rng, "LA", 5, 9),
        "rgb.png": pillow_png(rng, "RGB", 31, 17),
        "rgb_portrait.png": pillow_png(rng, "RGB", 13, 40),
        "rgb_is_256.png": pillow_png(rng, "RGB", 256, 3),
        "rgba.png": pillow_png(rng, "RGBA", 11, 12),
        "palette.png": pillow_png(rng, "P", 12, 7),
        "palette_alpha.png": pillow_png(rng, "PA", 9, 9),
        "bilevel.png": pillow_png(rng, "1", 19, 6),
        "grey16.png": pillow_png(rng, "I;16", 8, 8),
        "one_pixel.png": pillow_png(rng, "RGB", 1, 1),
        "thin.png": pillow_png(rng, "RGB", 1, 23),
        "flat.png": pillow_png(rng, "L", 400, 1),
        "grey2.png": raw_png(rng, 9, 5, 2, 0, transparent=b"\0\1"),
        "grey4.png": raw_png(rng, 5, 5, 4, 0),
        "rgb16.png": raw_png(rng, 6, 4, 16, 2),
        "grey_alpha16.png": raw_png(rng, 4, 6, 16, 4),
        "rgba16_interlaced.png": raw_png(rng, 9, 10, 16, 6, interlaced=True),
        "palette2_interlaced.png": raw_png(rng, 11, 13, 2, 3, interlaced=True, palette=4),
        "palette4_short.png": raw_png(rng, 6, 6, 4, 3, palette=11, transparent=b"\x10\x80"),
        "bilevel_interlaced.png": raw_png(rng, 17, 3, 1, 0, interlaced=True),
        "rgb_transparent.png": raw_png(rng, 5, 7, 8, 2, transparent=b"\0\1\0\2\0\3"),
        "grey.jpg": jpeg(rng, 33, 21, 1),
        "rgb444.jpg": jpeg(rng, 40, 31, 3, subsampling="4:4:4"),
        "rgb422.jpg": jpeg(rng, 37, 30, 3, subsampling="4:2:2"),
        "rgb420.jpg": jpeg(rng, 51, 47, 3, subsampling="4:2:0"),
        "progressive.jpg": jpeg(rng, 45, 35, 3, progressive=True),
        "restart.jpg": jpeg(rng, 64, 40, 3, restart_marker_blocks=2),
        "stored_rgb.jpg": jpeg(rng, 20, 20, 3, keep_rgb=True),
        "cmyk.jpg": jpeg(rng, 24, 17, 4),
        "ycck.jpg": jpeg(rng, 24, 17, 4, ycck=True),
    }.items()


def jpegs_of_every_kind(rng):
    image = Image.fromarray(picture(rng, 53, 47, 3))
    files = dict(make_jpegs.variants(image, random.Random(1)))
    files |= dict(make_jpegs.arithmetic(shutil.which("jpegtran"), files["420"]))
    for kind, data in files.items():
        yield f"kind_{kind}.jpg", bytes(data)


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def bmp(width, height, bits, compression, masks, data, flipped=False):
    """A BMP that Pillow reads but does not write."""
    fields = struct.pack("<IiiHHIIiiII", 40, width, -height if flipped else height, 1, bits, compression, 0, 0, 0, 0, 0)
    fields += b"".join(struct.pack("<I", mask) for mask in masks)
    return b"BM" + struct.pack("<III", 14 + len(fields) + len(data), 0, 14 + len(fields)) + fields + data


def other_formats(rng):
    """WebP, BMP, TIFF and Netpbm."""
    noise = lambda mode: Image.open(io.BytesIO(pillow_png(rng, mode, 21, 13)))
    rgb, rgba, grey, bilevel, palette = map(noise, ["RGB", "RGBA", "L", "1", "P"])
    cmyk, deep = rgb.convert("CMYK"), noise("I;16")
    photo = Image.fromarray(picture(rng, 53, 47, 3))
    yield "kind_lossless.webp", saved(photo, "WEBP", lossless=True)
    yield "kind_lossless_alpha.webp", saved(rgba, "WEBP", lossless=True, exact=True)
    yield "kind_lossy.webp", saved(photo, "WEBP", quality=80)
    yield "kind_lossy_alpha.webp", saved(Image.merge("RGBA", (*photo.split(), photo.convert("L"))), "WEBP", quality=60)
    for name, image in [("rgb", rgb), ("grey", grey), ("bilevel", bilevel), ("palette", palette), ("rgba", rgba)]:
        yield f"kind_{name}.bmp", saved(image, "BMP")
    row = lambda count: rng.bytes(count * 7)
    yield "kind_565.bmp", bmp(10, 7, 16, 3, [0xF800, 0x7E0, 0x1F], row(20))
    yield "kind_555.bmp", bmp(9, 7, 16, 0, [], row(20), flipped=True)
    yield "kind_masks.bmp", bmp(5, 7, 32, 3, [0xFF000000, 0xFF0000, 0xFF00], row(20))
    yield "kind_core.bmp", b"BM" + struct.pack("<IIIIHHHH", 26 + 7 * 16, 0, 26, 12, 5, 7, 1, 24) + row(16)
    for name, image in [("rgb", rgb), ("grey", grey), ("bilevel", bilevel), ("rgba", rgba), ("cmyk", cmyk), ("deep", deep)]:
        yield f"kind_{name}.tif", saved(image, "TIFF")
    for compression in ("packbits", "tiff_lzw", "tiff_adobe_deflate"):
        yield f"kind_{compression}.tif", saved(photo, "TIFF", compression=compression)
    yield "kind_predictor.tiff", saved(photo, "TIFF", compression="tiff_lzw", tiffinfo={317: 2})
    yield "kind_rows.tiff", saved(photo, "TIFF", tiffinfo={278: 5})
    yield "kind_rgb.ppm", saved(rgb, "PPM")
    yield "kind_grey.pgm", saved(grey, "PPM").replace(b"P5\n", b"P5 # a comment\n")
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: to be turned by a quarter.
    yield "kind_turned.jpg", saved(photo, "JPEG", quality=85, exif=exif)


def lossy_webp(photos):
    for index, data in zip(range(200), make_jpegs.photographs(photos)):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        yield f"kind_{index:03}.webp", saved(image, "WEBP", quality=[50, 75, 80, 90, 100][index % 5])


def large(rng):
    modes = ["L", "LA", "RGB", "RGBA", "P", "PA", "1", "I;16"]
    raw = [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (8, 2), (16, 2), (8, 4), (16, 4), (8, 6), (16, 6)]
    edges = [(1, 1), (1, 700), (700, 1), (2, 500), (500, 375), (375, 500), (224, 224), (256, 256), (257, 255), (699, 499)]
    for index in range(200):
        width, height = edges[index] if index < len(edges) else (int(rng.integers(1, 701)), int(rng.integers(1, 501)))
        kind = index % 5
        if kind == 4:
            options = [
                {"subsampling": "4:2:0"}, {"subsampling": "4:4:4"}, {"subsampling": "4:2:2"}, {"progressive": True},
            ][index // 5 % 4]
            channels = [3, 1, 4, 3, 4][index // 5 % 5]
            options = {} if channels == 1 else options
            ycck = channels == 4 and index % 2 == 0
            yield f"{index:03}.jpg", jpeg(rng, width, height, channels, ycck=ycck, **options)
        elif kind == 3:
            depth, color = raw[index // 5 % len(raw)]
            width, height = min(width, 150), min(height, 150)
            yield f"{index:03}_raw.png", raw_png(rng, width, height, depth, color, interlaced=index % 2 == 0)
        else:
            yield f"{index:03}.png", pillow_png(rng, modes[index % len(modes)], width, height)


def write(folder, images):
    folder.mkdir(parents=True, exist_ok=True)
    pixels, inputs = [], []
    for name, data in images:
        (folder / name).write_bytes(data)
        image = Image.open(io.BytesIO(data)).convert("RGB")
        pixels.append(f"{name}\t{image.width}\t{image.height}\t{sha(np.asarray(image))}\n")
        if name.startswith("kind_"):
            continue
        for size, shorter, filter_name in TRANSFORMS:
            digest = sha(network_input(image, size, shorter, filter_name))
            inputs.append(f"{name}\t{size}\t{shorter or 'direct'}\t{filter_name}\t{digest}\n")
    (folder / "pixels.tsv").write_text("".join(pixels))
    (folder / "inputs.tsv").write_text("".join(inputs))
    print(f"{folder}: {len(pixels)} images, {len(inputs)} inputs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=pathlib.Path)
    parser.add_argument("--photos", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.large:
        write(arguments.large, [*large(np.random.default_rng(20)), *lossy_webp(arguments.photos)])
    else:
        rng = np.random.default_rng(7)
        write(pathlib.Path(__file__).parent / "fixtures", [*small(rng), *jpegs_of_every_kind(rng), *other_formats(rng)])


if __name__ == "__main__":
    main()
