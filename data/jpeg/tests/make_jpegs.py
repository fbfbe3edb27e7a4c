#!/usr/bin/env python3
"""Writes JPEG files of every kind, made from photographs, and the hashes of Pillow's pixels, for `pillow.rs`:

    python data/jpeg/tests/make_jpegs.py FOLDER PHOTOS... [--count 200] [--jpegtran PATH]
    SWINQ_JPEGS=FOLDER cargo test -p swinq-jpeg pillow::
    SWINQ_JPEGS=FOLDER cargo test -p swinq-jpeg pillow:: --no-default-features     # without vector code

PHOTOS are folders or zip archives of JPEG files. Each photograph is kept as it is, and encoded again by Pillow in the
kinds of `variants`. Arithmetic coding needs libjpeg-turbo's jpegtran. `pixels.tsv` has lines
`file<TAB>width<TAB>height<TAB>sha256 of the pixels of convert("RGB")`. Needs numpy and Pillow.
"""
import argparse
import hashlib
import io
import pathlib
import random
import shutil
import subprocess
import zipfile

import numpy as np
from PIL import Image, features


def encode(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return bytearray(out.getvalue())


def frame_at(data):
    """Offset of the frame header's segment (SOF0 or SOF2)."""
    at = 2
    while data[at + 1] not in (0xC0, 0xC2):
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at


def declare(data, size, sampling):
    """The same entropy-coded blocks in another arrangement: with another size and sampling of the first component."""
    at = frame_at(data)
    data[at + 5 : at + 9] = size[1].to_bytes(2, "big") + size[0].to_bytes(2, "big")
    data[at + 11] = sampling
    return data


def as_440(image, **options):
    """Pillow writes no 4:4:0. A 4:2:2 file with width and height exchanged has the same number of blocks."""
    data = encode(image, subsampling="4:2:2", **options)
    return declare(data, (image.height, image.width), 0x12)


def as_411(image, sampling, **options):
    """A 4:2:0 file with as many blocks as a 4:1:1 (0x41) or 4:1:0 turned by a quarter (0x14) file."""
    width, height = image.width // 32 * 32, image.height // 32 * 32
    data = encode(image.crop((0, 0, width, height)), subsampling="4:2:0", **options)
    size = (2 * width, height // 2) if sampling == 0x41 else (width // 2, 2 * height)
    return declare(data, size, sampling)


def as_ycck(image, **options):
    """The transform byte of the Adobe segment declares the samples as YCCK."""
    data = encode(image, **options)
    data[data.index(b"Adobe") + 11] = 2
    return data


def variants(image, draw):
    """Pairs of a kind and a file."""
    quality = lambda: draw.choice([30, 60, 75, 85, 92, 95, 100])
    rgb, grey = image.convert("RGB"), image.convert("L")
    cmyk = Image.merge("CMYK", (*rgb.split(), grey))
    for name in ("4:4:4", "4:2:2", "4:2:0"):
        yield name.replace(":", ""), encode(rgb, subsampling=name, quality=quality())
    yield "440", as_440(rgb, quality=quality())
    if min(image.size) >= 32:
        yield "411", as_411(rgb, 0x41, quality=quality())
        yield "114", as_411(rgb, 0x14, quality=quality())
    yield "grey", encode(grey, quality=quality())
    yield "cmyk", encode(cmyk, quality=quality())
    yield "ycck", as_ycck(cmyk, quality=quality())
    yield "stored_rgb", encode(rgb, keep_rgb=True, quality=quality())
    yield "progressive", encode(rgb, progressive=True, quality=quality())
    yield "progressive_440", as_440(rgb, progressive=True, quality=quality())
    yield "progressive_cmyk", encode(cmyk, progressive=True, quality=quality())
    yield "restart", encode(rgb, restart_marker_blocks=draw.randint(1, 9), quality=quality())
    yield "restart_rows", encode(rgb, restart_marker_rows=1, quality=quality(), progressive=True)
    crop = (0, 0, draw.randint(1, image.width), draw.randint(1, image.height))
    yield "odd", encode(rgb.crop(crop), quality=quality(), subsampling=draw.choice(["4:4:4", "4:2:2", "4:2:0"]))
    tiny = (0, 0, draw.randint(1, 9), draw.randint(1, 9))
    yield "tiny", encode(rgb.crop(tiny), quality=quality(), subsampling=draw.choice(["4:2:2", "4:2:0"]))
    yield "tiny_440", as_440(rgb.crop(tiny), quality=quality())


def arithmetic(jpegtran, data):
    """The same coefficients with arithmetic coding, sequential and progressive. Pillow passes on 64 KiB at a time, and
    libjpeg-turbo cannot wait for more in the middle of arithmetic codes, so Pillow decodes smaller files only."""
    for name, options in [("arithmetic", []), ("arithmetic_progressive", ["-progressive"])]:
        command = [jpegtran, "-arithmetic", *options]
        coded = subprocess.run(command, input=bytes(data), stdout=subprocess.PIPE, check=True).stdout
        if len(coded) < 65536:
            yield name, coded


def photographs(sources):
    for source in map(pathlib.Path, sources):
        if source.is_dir():
            for path in sorted(source.iterdir()):
                if path.suffix.lower() in (".jpg", ".jpeg"):
                    yield path.read_bytes()
        else:
            with zipfile.ZipFile(source) as archive:
                names = sorted(n for n in archive.namelist() if n.lower().endswith((".jpg", ".jpeg")))
                random.Random(5).shuffle(names)
                yield from map(archive.read, names)


def row(name, data):
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    digest = hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()
    return f"{name}\t{pixels.shape[1]}\t{pixels.shape[0]}\t{digest}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("photos", nargs="+")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jpegtran", default=shutil.which("jpegtran"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    draw, rows = random.Random(3), []
    for index, data in zip(range(arguments.count), photographs(arguments.photos)):
        files = [("original", data), *variants(Image.open(io.BytesIO(data)), draw)]
        if arguments.jpegtran:
            files += arithmetic(arguments.jpegtran, files[1 + index % 4][1])
        for kind, file in files:
            name = f"{index:03}_{kind}.jpg"
            (arguments.folder / name).write_bytes(file)
            rows.append(row(name, file))
    (arguments.folder / "pixels.tsv").write_text("".join(rows))
    print(f"{len(rows)} files of {index + 1} photographs; libjpeg-turbo {features.version('libjpeg_turbo')}")


if __name__ == "__main__":
    main()
