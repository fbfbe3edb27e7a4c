"""Makes the bundled sample: a small trained Swin in f16, 1,000 validation and 256 training images of CIFAR-10.

    python samples/make_samples.py DATA      # DATA holds models/swin_micro_cifar10 and data/cifar10

Images are spread evenly over the ten classes and over the list of each class. Files are copied byte for byte.
"""
import pathlib
import sys
import zipfile

import numpy as np
from safetensors.numpy import load_file, save_file


def spread(count, total):
    """`count` positions spread evenly over `range(total)`."""
    return [i * total // count for i in range(count)]


def write_split(source, target, split, count):
    lines = (source / f"{split}_map.txt").read_text().splitlines()
    classes = {}
    for line in lines:
        classes.setdefault(line.split("\t")[1], []).append(line)
    per_class = [count // len(classes) + (i < count % len(classes)) for i in range(len(classes))]
    chosen = [classes[c][i] for c, n in zip(sorted(classes), per_class) for i in spread(n, len(classes[c]))]
    with zipfile.ZipFile(source / f"{split}.zip") as full, zipfile.ZipFile(target / f"{split}.zip", "w") as part:
        for line in chosen:
            name = line.split("\t")[0]
            part.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), full.read(name))
    (target / f"{split}_map.txt").write_text("".join(line + "\n" for line in chosen))


def main():
    data, here = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parent
    model, images = here / "swin_micro_cifar10", here / "cifar10"
    model.mkdir(exist_ok=True)
    images.mkdir(exist_ok=True)
    weights = load_file(data / "models/swin_micro_cifar10/model.safetensors")
    save_file({k: v.astype(np.float16) for k, v in sorted(weights.items())}, model / "model.safetensors")
    (model / "cfg.yaml").write_bytes((data / "models/swin_micro_cifar10/cfg.yaml").read_bytes())
    (images / "classes.txt").write_bytes((data / "data/cifar10/classes.txt").read_bytes())
    write_split(data / "data/cifar10", images, "train", 256)
    write_split(data / "data/cifar10", images, "val", 1000)


main()
