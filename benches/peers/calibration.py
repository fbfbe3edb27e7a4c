"""Times `swinq calibrate` of a Swin on 80 JPEG photographs, from start to end of the process, against the f32
forward of 80 prepared tensors in PyTorch. The two take turns and use the same number of threads. Prints medians and
their ratio.

    python benches/peers/calibration.py SWINQ DATA [--ptq basic] [--rounds 5] [--checkpoint FILE --cfg FILE]

DATA is a folder of JPEG files or any other data set that swinq reads. Without a checkpoint, weights are random. Needs
torch and timm.
"""
import argparse
import pathlib
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


def swinq_seconds(args, output):
    command = [args.swinq, "calibrate"]
    command += [args.checkpoint] if args.checkpoint else ["--random-weights", "0"]
    command += ["--cfg", args.cfg or args.model, "--data-path", args.data, "--ptq", args.ptq, "--batches", str(IMAGES // BATCH)]
    command += ["--batch-size", str(BATCH), "-o", output]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swinq")
    parser.add_argument("data")
    parser.add_argument("--model", default="swin_tiny_patch4_window7_224", help="the name of both libraries")
    parser.add_argument("--checkpoint", help="a checkpoint of this shape")
    parser.add_argument("--cfg", help="the configuration of the checkpoint")
    parser.add_argument("--ptq", default="basic")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    model = timm.create_model(args.model, pretrained=False).eval()
    size = model.default_cfg["input_size"][-1]
    batches = [torch.randn(BATCH, 3, size, size) for _ in range(IMAGES // BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "q.safetensors"
        ours, theirs = [], []
        for _ in range(args.rounds):
            theirs.append(torch_seconds(model, batches))
            ours.append(swinq_seconds(args, output))
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"swinq calibrate {a:.2f} s, PyTorch forward {b:.2f} s ({torch.get_num_threads()} threads): {a / b:.2f}x")
    print("runs:", ", ".join(f"{x:.2f}/{y:.2f}" for x, y in zip(ours, theirs)))


main()
