"""Compares exports of backbones with random weights with swinq's maps: sizes that windows do not divide, float and INT8.

    python tests/onnx/backbones.py SWINQ FOLDER [--model CHECKPOINT --images IMAGES --size HxW [OPTIONS OF swinq]]

Writes a backbone by the rule of detectors (tests/parity/detection_swin.py) and pictures to FOLDER, calibrates it, and compares the
maps of `swinq features` with those of ONNX Runtime and OpenVINO for each form of the graph. A float export may differ by 1e-5 of the
largest value of a map. An INT8 export must run every product of codes in INT8 in ONNX Runtime and have 25 dB, because random weights
amplify a code that differs, and with --model 40 dB at stages 1 and 2 and 35 dB at stages 3 and 4. The graphs for TensorRT must obey its rules (tensorrt_rules.py). On a processor without VNNI, where sums
saturate, OpenVINO's dB are printed and not judged. With --model, the checkpoint is compared instead; options follow.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file
from safetensors.torch import save_file

from common import export, feed, has_vnni, openvino_model, ort_products, ort_session, products, sqnr

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "parity"))
from detection_swin import Backbone  # noqa: E402

LEAST = {"stage1": 40, "stage2": 40, "stage3": 35, "stage4": 35}
# name: (options, whether it is for a quantized backbone only)
FORMS = {
    "free": ([], False),
    "pixels, batch 2": (["--input", "pixels", "--batch", "2"], False),
    "softmax": (["--probs", "softmax"], True),
}
CFG = "MODEL:\n  TYPE: swin\n  NAME: micro\n  SWIN: {EMBED_DIM: 32, DEPTHS: [2, 2, 2, 2], NUM_HEADS: [1, 2, 4, 8], WINDOW_SIZE: 7}\n"


def maps(swinq, model, images, size, options):
    """The maps of `swinq features` by output, f32 [images, channels, height, width]."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "maps.safetensors"
        command = [swinq, "features", str(model), *map(str, images), "--size", size, "--backend", "cpu", "--features", str(out)]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        found = load_file(out)
    names = sorted({name.split(".")[1] for name in found})
    return {name: np.stack([found[f"{i}.{name}"] for i in range(len(images))]) for name in names}


def run_ort(path, inputs):
    session = ort_session(path)
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs)))


def run_openvino(path, inputs):
    model = openvino_model(path, "f32")
    found = model.create_infer_request().infer(inputs)
    return {output.get_any_name(): found[output] for output in model.outputs}


def compared(swinq, model, images, size, quantized, least, options):
    """Prints a table, and returns the failures."""
    height, width = map(int, size.split("x"))
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB").resize((width, height), Image.BICUBIC)) for path in images])
    expected, failures = maps(swinq, model, images, size, options), []
    print(f"{model}, {size}, {'INT8' if quantized else 'float'}\n| form | runtime | INT8 products | of | float products | "
          f"{' | '.join(expected)} |\n{'| --- ' * (5 + len(expected))}|")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        for form, (chosen, only_quantized) in FORMS.items():
            if only_quantized and not quantized:
                continue
            for runtime, target, run in [("ORT", "ort", run_ort), ("OpenVINO", "openvino", run_openvino)]:
                metadata = export(swinq, model, path, ["--size", size, "--target", target, *chosen, *options])
                found = run(path, feed(metadata, pixels))
                assert list(found) == list(expected), list(found)
                codes, plain = products(path)
                int8, other = ort_products(path) if runtime == "ORT" else ("", "")
                cells = []
                for name, map_ in expected.items():
                    assert map_.shape == found[name].shape, (name, map_.shape, found[name].shape)
                    db, worst = sqnr(map_, found[name]), np.abs(map_ - found[name]).max() / np.abs(map_).max()
                    cells.append(f"{db:.1f} dB" if quantized else f"{worst:.1e}")
                    if not quantized and not worst <= 1e-5:
                        failures.append(f"{size}, {form}, {runtime}: {name} differs by {worst:.1e}")
                    judged = quantized and form != "softmax" and (runtime == "ORT" or has_vnni())
                    if judged and not db >= least[name]:
                        failures.append(f"{size}, {form}, {runtime}: {name} has {db:.1f} dB")
                if runtime == "ORT" and other > plain:
                    failures.append(f"{size}, {form}: {other} products run in float, expected {plain}")
                print(f"| {form} | {runtime} | {int8} | {codes} | {other} | {' | '.join(cells)} |", flush=True)
        for chosen in (["--batch", "2"], ["--fp16"]):
            export(swinq, model, path, ["--size", size, "--target", "tensorrt", *chosen, *options])
            rules = subprocess.run([sys.executable, str(HERE / "tensorrt_rules.py"), str(path)], capture_output=True, text=True)
            print("TensorRT's rules", *chosen, "hold" if rules.returncode == 0 else rules.stdout + rules.stderr)
            if rules.returncode:
                failures.append(f"{size}: TensorRT's rules, {chosen}")
    return failures


def random_backbone(swinq, folder):
    """A float backbone, its calibrated checkpoint, pictures, and the options that describe the float one."""
    torch.manual_seed(0)
    model = Backbone(32, (2, 2, 2, 2), (1, 2, 4, 8), 7)
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("index")}
    for name, value in state.items():
        if name.endswith("bias") or name.endswith("table"):
            state[name] = 0.1 * torch.randn_like(value)
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "float.safetensors")
    (folder / "cfg.yaml").write_text(CFG)
    random, images = np.random.default_rng(0), folder / "images"
    images.mkdir(exist_ok=True)
    for i in range(8):
        coarse = Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8))
        coarse.resize((160, 120), Image.BICUBIC).save(images / f"{i}.png")
    options = ["--cfg", str(folder / "cfg.yaml"), "--task", "features"]
    command = [swinq, "calibrate", str(folder / "float.safetensors"), *options, "--ptq", "basic", "--data-path", str(images)]
    command += ["--batches", "2", "--batch-size", "4", "-o", str(folder / "int8.safetensors")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [(folder / "float.safetensors", False, options), (folder / "int8.safetensors", True, [])], images


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swinq")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--quantized", action="store_true", help="--model is a quantized checkpoint")
    parser.add_argument("--images", type=pathlib.Path)
    parser.add_argument("--size", default="120x160,95x131")
    args, options = parser.parse_known_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    least = LEAST if args.model else dict.fromkeys(LEAST, 25)
    if args.model:
        models, images = [(args.model, args.quantized, options)], args.images
    else:
        models, images = random_backbone(args.swinq, args.folder)
    images = sorted(path for path in images.iterdir() if path.suffix == ".png" and ".label" not in path.name)[:2]
    failures = []
    for model, quantized, described in models:
        for size in args.size.split(","):
            failures += compared(args.swinq, model, images, size, quantized, least, described)
    for failure in failures:
        print("FAILED", failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
