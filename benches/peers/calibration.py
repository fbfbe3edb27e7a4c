"""Times `swinq calibrate` of a Swin on 80 JPEG photographs, from start to end of the process, against the f32
forward of 80 prepared tensors in PyTorch. The two take turns and use the same number of threads. Prints medians and
their ratio.

    python benches/peers/calibration.py SWINQ PHOTOS [--model swin_tiny_patch4_window7_224] [--rounds 3]

PHOTOS is a folder of JPEG files. If it holds fewer than 80, files are used more than once. Needs torch and timm.
"""
import argparse
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import timm
import torch

IMAGES, BATCH = 80, 8


def torch_seconds(model, batches):
    with torch.inference_mode():
        model(batches[0])
        start = time.perf_counter()
        for batch in batches:
            model(batch)
        return time.perf_counter() - start


def swinq_seconds(args, folder):
    command = [args.swinq, "calibrate", "--random-weights", "0", "--cfg", args.model, "--data-path", str(folder / "photos")]
    command += ["--batches", str(IMAGES // BATCH), "--batch-size", str(BATCH), "-o", str(folder / "q.safetensors")]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swinq")
    parser.add_argument("photos", type=pathlib.Path)
    parser.add_argument("--model", default="swin_tiny_patch4_window7_224")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    files = sorted(p for p in args.photos.iterdir() if p.suffix.lower() in (".jpg", ".jpeg"))
    model = timm.create_model(args.model, pretrained=False).eval()
    size = model.default_cfg["input_size"][-1]
    batches = [torch.randn(BATCH, 3, size, size) for _ in range(IMAGES // BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "photos").mkdir()
        for i in range(IMAGES):
            shutil.copy(files[i % len(files)], folder / "photos" / f"{i:03}.jpg")
        ours, theirs = [], []
        for _ in range(args.rounds):
            theirs.append(torch_seconds(model, batches))
            ours.append(swinq_seconds(args, folder))
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"swinq calibrate {a:.2f} s, PyTorch forward {b:.2f} s ({torch.get_num_threads()} threads): {a / b:.2f}x")
    print("runs:", ", ".join(f"{x:.2f}/{y:.2f}" for x, y in zip(ours, theirs)))


main()
