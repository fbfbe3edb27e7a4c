"""Checks an exported graph against swinq's engine: random images of given sizes, in ONNX Runtime.

    python check_onnx.py backbone.onnx backbone.int8.safetensors 800x1344 512x640 97x131 [--batch 2] [--least 30]

The graph is one of `swinq export` or `model.export`; one for any size (`--size any`) takes every size here. The model is the checkpoint
that it was exported from. The script prints how far each output is from the engine's, in dB of signal to noise, and fails below `--least`. A
float graph has 100 dB and more; the figure of an INT8 graph depends on the model, because a value at a tie may be rounded to either side
(docs/deploy.md, "Rounding"). Needs the packages swinq, onnxruntime and numpy.
"""
import argparse
import json
import sys

import numpy as np
import onnxruntime

import swinq


def images_of(session, model, batch, height, width):
    """Smooth random pixels, as the graph takes them and as the engine does: a dictionary and an array."""
    random = np.random.default_rng(height * width)
    channels = len(model.preprocessing["mean"])
    coarse = random.integers(0, 256, (batch, height // 16 + 1, width // 16 + 1, channels))
    pixels = coarse.repeat(16, axis=1).repeat(16, axis=2)[:, :height, :width].astype(np.uint8)
    if session.get_inputs()[0].name == "pixels":
        return {"pixels": pixels}, pixels
    mean, std = (np.array(model.preprocessing[key], np.float32) for key in ("mean", "std"))
    images = np.ascontiguousarray(((pixels.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2))
    return {"images": images}, images


def decibels(found, expected):
    """Signal to noise of `found`."""
    noise = np.square(found.astype(np.float64) - expected).sum()
    return 10 * np.log10(np.square(expected.astype(np.float64)).sum() / max(noise, 1e-300))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("model")
    parser.add_argument("sizes", nargs="+", help="HEIGHTxWIDTH")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--least", type=float, default=30.0, help="dB")
    args = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # A size that the graph refuses is printed below.
    session = onnxruntime.InferenceSession(args.graph, options, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    if "swinq.sizes" in metadata:
        sizes = json.loads(metadata["swinq.sizes"])
        print("sizes:", sizes["rule"] + "; the smallest is", "x".join(map(str, sizes["smallest"])))
    model = swinq.open(args.model)
    engine, names, failed = model.engine(), [output.name for output in session.get_outputs()], False
    for size in args.sizes:
        feed, images = images_of(session, model, args.batch, *map(int, size.split("x")))
        try:
            expected = engine.run(images)
        except swinq.ArgumentError as problem:
            print(f"{size}: {problem}")
            failed = True
            continue
        for name, found in zip(names, session.run(None, feed), strict=True):
            db = decibels(found, expected[name])
            failed |= not db >= args.least
            print(f"{size} {name} {list(found.shape)}: {db:.1f} dB")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
