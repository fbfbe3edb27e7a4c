"""Compares exported graphs in ONNX Runtime and OpenVINO with swinq's engine.

    python tests/onnx/compare.py SWINQ MODEL IMAGES [--limit N] [--float] [-- OPTIONS OF swinq export AND swinq predict]

MODEL is a quantized checkpoint, or a float one with --cfg behind `--`. IMAGES is a folder of image files. For each form of
the graph the script runs onnx.checker, counts the products that each runtime runs in INT8, and prints SQNR and agreement
against `swinq predict --logits`. A form that swinq refuses is named
as such. It fails if a product of codes is not INT8 in a runtime, if the exact form has less than 40
dB in ONNX Runtime or less than 30 dB in OpenVINO, or if a float export differs by more than 1e-5 of the largest logit. On a
processor without VNNI, where OpenVINO's sums saturate, its dB are printed and not judged.
"""
import argparse
import itertools
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from common import (
    agreement,
    export,
    has_vnni,
    in_batches,
    openvino_products,
    openvino_runner,
    ort_products,
    ort_runner,
    pixels,
    products,
    sqnr,
    swinq_logits,
)

FORMS = {
    "exact": ["--batch", "8"],
    "exact, pixels, free": ["--input", "pixels"],
    "softmax": ["--probs", "softmax", "--batch", "8"],
    "tensorrt": ["--target", "tensorrt", "--batch", "8"],
    "fp16": ["--fp16", "--batch", "8"],
}

# name: (target, runner, counter of products, option with the least SQNR)
RUNTIMES = {
    "ORT": ("ort", ort_runner, ort_products, "least_ort"),
    "OpenVINO f32": ("openvino", lambda path: openvino_runner(path, "f32"), openvino_products, "least_openvino"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swinq")
    parser.add_argument("model")
    parser.add_argument("images", type=pathlib.Path)
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--float", action="store_true", help="the model is float")
    parser.add_argument("--forms", default=";".join(FORMS), help="forms to compare, separated by semicolons")
    parser.add_argument("--least-ort", type=float, default=40.0)
    parser.add_argument("--least-openvino", type=float, default=30.0)
    parser.add_argument("--float-in-ort", type=int, default=0, help="products of codes that ONNX Runtime runs in float")
    own = sys.argv[1:]
    more = own[own.index("--") + 1 :] if "--" in own else []
    args = parser.parse_args(own[: own.index("--")] if "--" in own else own)
    images = sorted(path for path in args.images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    images = images[:: max(len(images) // args.limit, 1)][: args.limit]
    reference = swinq_logits(args.swinq, args.model, images, more)
    forms = args.forms.split(";")
    if args.float:
        forms = [form for form in forms if form in ("exact", "exact, pixels, free")]
    failures = []
    print(f"{args.model}: {len(images)} images")
    print("| form | runtime | INT8 products | of | float products | SQNR dB | agreement | largest difference |")
    print("| --- " * 8 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for form, (name, (target, runner, count, least)) in itertools.product(forms, RUNTIMES.items()):
            path = pathlib.Path(folder) / "model.onnx"
            options = FORMS[form] if "--target" in FORMS[form] else [*FORMS[form], "--target", target]
            try:
                metadata = export(args.swinq, args.model, path, [*options, *more])
            except subprocess.CalledProcessError as error:  # swinq prints the refusal
                print(f"| {form} | {name} | refused | | | | | |", flush=True)
                if form not in ("tensorrt", "fp16"):
                    failures.append(f"{form}: {error}")
                continue
            codes, plain = products(path)
            int8, other = count(path)
            logits = in_batches(runner(path), metadata, pixels(metadata, images), 8)
            db, same = sqnr(reference, logits), agreement(reference, logits)
            worst = np.abs(reference - logits).max() / np.abs(reference).max()
            row = f"{int8} | {codes} | {other} | {db:.1f} | {100 * same:.2f} % | {worst:.1e}"
            print(f"| {form} | {name} | {row} |", flush=True)
            # OpenVINO also counts codes of weights with float inputs; ONNX Runtime has no INT8 kernels beside f16.
            expected = plain + (args.float_in_ort if name == "ORT" else 0)
            if other > expected and form not in ("fp16", "tensorrt"):
                failures.append(f"{form}, {name}: {other} products run in float, expected {expected}")
            if args.float and not worst <= 1e-5:
                failures.append(f"{form}, {name}: float logits differ by {worst:.1e}")
            judged = name == "ORT" or has_vnni()
            if not args.float and judged and form.startswith("exact") and not db >= getattr(args, least):
                failures.append(f"{form}, {name}: {db:.1f} dB")
    for failure in failures:
        print("FAILED", failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
