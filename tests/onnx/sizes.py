"""Compares graphs for images of any size with swinq's engine and with graphs for one size, in ONNX Runtime and OpenVINO.

    python tests/onnx/sizes.py [--only 'NAME;NAME']

Needs the Python package swinq, torch, timm, torchvision, transformers, onnx, onnxruntime and openvino. Every network has random
weights, and runs in float and in INT8 at its sizes in batches of 1, 2 and 5. A float graph may differ from
the engine by a relative L2 of 1e-5. An INT8 graph may have 1 dB less than the graph of the same model for this size in the same
runtime, and ONNX Runtime must run every product of codes in INT8. A size that the engine refuses must fail in both runtimes.
"""
import argparse
import itertools
import pathlib
import sys
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime
import openvino
import timm
import torch
import torchvision
import transformers
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torchvision.models._utils import IntermediateLayerGetter
from transformers.models.maskformer.modeling_maskformer_swin import MaskFormerSwinBackbone

import swinq

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "bindings/python/tests"))
from support import normalised  # noqa: E402
from torch_models import randomise  # noqa: E402

from common import INT8_OPS, products as products_of  # noqa: E402

LIMIT, LOSS = 1e-5, 1.0
SMALL = {"embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6]}
STAGES = {"out_features": ["stage1", "stage2"]}
#: Sizes for every network: smaller than a window, odd, no multiples of the patch, of the window or of each other.
SIZES = [(64, 96), (29, 50), (97, 131), (20, 20), (9, 5), (45, 230), (3, 3), (128, 36), (111, 113), (200, 60), (56, 84), (73, 252), (180, 181), (148, 59), (66, 300)]
#: Multiples of a side, for networks that take no other images.
WHOLE = [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (1, 4), (4, 1), (3, 3)]


def timm_list(kind, size, window, **more):
    name = "swinv2_tiny_window8_256" if kind is SwinTransformerV2 else "swin_tiny_patch4_window7_224"
    return timm.create_model(name, img_size=size, window_size=window, features_only=True, out_indices=(0, 1), **SMALL, **more)


def of_transformers(kind, config, window, **more):
    return kind(config(**SMALL, window_size=window, **more))


def of_torchvision(window, second=False):
    swin = torchvision.models.swin_transformer
    blocks = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2} if second else {}
    return torchvision.models.SwinTransformer([4, 4], 48, [2, 2], [3, 6], [window, window], num_classes=5, **blocks)


def classifier_of_torchvision(window, second=False):
    transforms = torchvision.transforms._presets.ImageClassification(crop_size=112, resize_size=112)
    return swinq.open(randomise(of_torchvision(window, second)), preprocessing=transforms)


def classifier_of_transformers(kind, config, window, side):
    return swinq.open(randomise(of_transformers(kind, config, window, image_size=side)), preprocessing={**PREPROCESSING, "size": side})


def sample(name):
    folder = HERE.parents[1] / "samples" / name
    return swinq.open(folder / "model.safetensors", cfg=str(folder / "cfg.yaml"))


def rectangle(second=False):
    """timm's windows at 28 x 84: 7 x 7 in stage 1, 4 x 7 in stage 2, whose height is that of every image then."""
    kind = SwinTransformerV2 if second else SwinTransformer
    model = randomise(kind(img_size=(28, 84), patch_size=4, num_classes=10, window_size=7, **SMALL))
    state = {name: value for name, value in model.state_dict().items() if not name.endswith(("index", "attn_mask", "coords_table"))}
    section = "SWINV2" if second else "SWIN"
    text = f"MODEL:\n  TYPE: {section.lower()}\n  NAME: wide\n  NUM_CLASSES: 10\n"
    text += f"  {section}: {{EMBED_DIM: 48, DEPTHS: [2, 2], NUM_HEADS: [3, 6], WINDOW_SIZE: 7}}\nDATA: {{IMG_SIZE: [28, 84]}}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as cfg:
        cfg.write(text)
        cfg.flush()
        return swinq.open(state, cfg=cfg.name, dialect="timm")


PREPROCESSING = sample("swin_micro_cifar10").preprocessing
T = transformers
OF_4 = [tuple(-(-side // 4) * 4 for side in size) for size in SIZES] + [(30, 32), (64, 65)]
OF_64 = [(64 * a, 64 * b) for a, b in WHOLE] + SIZES[:3]
WIDE = [(28, 84), (28, 56), (28, 100), (28, 160), (28, 52), (28, 132), (28, 244), (28, 72), (32, 84), (24, 84), (28, 86)]
#: name: (network, sizes)
NETWORKS = {
    "transformers backbone, 7": (lambda: of_transformers(T.SwinBackbone, T.SwinConfig, 7, **STAGES), SIZES),
    "transformers backbone, 12": (lambda: of_transformers(T.SwinBackbone, T.SwinConfig, 12, **STAGES), SIZES),
    "MaskFormer, 8": (lambda: of_transformers(MaskFormerSwinBackbone, T.MaskFormerSwinConfig, 8, **STAGES), SIZES),
    "transformers V2 backbone, 8": (lambda: of_transformers(T.Swinv2Backbone, T.Swinv2Config, 8, **STAGES), SIZES),
    "transformers V2 backbone, 12": (lambda: of_transformers(T.Swinv2Backbone, T.Swinv2Config, 12, **STAGES), SIZES),
    "timm, 7": (lambda: timm_list(SwinTransformer, 112, 7), OF_4),
    "timm, (4, 7)": (rectangle, WIDE),
    "timm V2, (4, 7)": (lambda: rectangle(second=True), WIDE),
    "timm V2, 8": (lambda: timm_list(SwinTransformerV2, 128, 8), OF_4),
    "timm, any size, 7": (lambda: timm_list(SwinTransformer, 112, 7, strict_img_size=False), OF_4),
    "timm, any size, 12": (lambda: timm_list(SwinTransformer, 112, 12, strict_img_size=False), OF_4),
    "torchvision classifier, 7": (lambda: classifier_of_torchvision(7), SIZES),
    "torchvision V2 classifier, 8": (lambda: classifier_of_torchvision(8, second=True), SIZES),
    "torchvision backbone, 7": (lambda: IntermediateLayerGetter(of_torchvision(7).features, {"1": "p2", "3": "p3"}), SIZES),
    "transformers classifier, 7": (lambda: classifier_of_transformers(T.SwinForImageClassification, T.SwinConfig, 7, 112), SIZES),
    "transformers V2 classifier, 8": (lambda: classifier_of_transformers(T.Swinv2ForImageClassification, T.Swinv2Config, 8, 128), SIZES),
    "timm classifier, 7": (lambda: sample("swin_micro_cifar10"), OF_4),
    "Microsoft's V2 classifier, 8": (lambda: sample("swinv2_micro_cifar10"), OF_64),
}


def noise(images, size, seed):
    """Smooth pixels, uint8 [images, height, width, 3]."""
    random = np.random.default_rng(seed)
    coarse = torch.from_numpy(random.standard_normal((images, 3, size[0] // 16 + 2, size[1] // 16 + 2)).astype(np.float32))
    fine = torch.nn.functional.interpolate(coarse, size=size, mode="bicubic") * 50 + 128
    return np.ascontiguousarray(fine.clamp(0, 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())


class Ort:
    name = "ONNX Runtime"

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 2
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [output.name for output in self.session.get_outputs()]

    def __call__(self, images):
        return dict(zip(self.names, self.session.run(None, {"images": images}), strict=True))


class OpenVino:
    name = "OpenVINO"

    def __init__(self, path):
        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2}
        self.model = openvino.Core().compile_model(str(path), "CPU", options)
        self.request = self.model.create_infer_request()

    def __call__(self, images):
        found = self.request.infer([images])
        return {output.get_any_name(): found[output].copy() for output in self.model.outputs}


def all_of(run, calls):
    """The outputs of several calls, one behind the other."""
    found = [run(images) for images in calls]
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def error(found, expected):
    """The relative L2 of the difference, the worst of all outputs."""
    distance = lambda a, b: np.linalg.norm(a.astype(np.float64) - b) / max(np.linalg.norm(b.astype(np.float64)), 1e-30)
    assert {name: value.shape for name, value in found.items()} == {name: value.shape for name, value in expected.items()}
    return max(distance(found[name], value) for name, value in expected.items())


def decibels(relative):
    return -20 * np.log10(max(relative, 1e-10))


def products(path):
    """Products of codes of a graph, and those that ONNX Runtime runs in INT8."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = f"{folder}/optimized.onnx", 4
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        nodes = onnx.load(options.optimized_model_filepath).graph.node
    return products_of(path)[0], sum(node.op_type in INT8_OPS for node in nodes)


def compared(name, model, sizes, folder):
    """Prints a row for each size, and returns the failures and how many sizes were compared and refused."""
    failures, taken, refused = [], 0, 0
    engine, quantized = model.engine(backend="cpu", threads=2), model.is_quantized
    path, fixed = folder / "any.onnx", folder / "fixed.onnx"
    model.export(path, size="any")
    onnx.checker.check_model(str(path), full_check=True)
    onnx.shape_inference.infer_shapes(onnx.load(path), check_type=True, strict_mode=True, data_prop=True)
    graphs = [Ort(path), OpenVino(path)]
    if quantized:
        codes, int8 = products(path)
        print(f"{name}: {int8} of {codes} products in INT8", flush=True)
        if int8 != codes:
            failures.append(f"{name}: {int8} of {codes} products in INT8")
    for size, batch in zip(sizes, itertools.cycle((1, 2, 5))):
        where = f"{name}, {size[0]}x{size[1]}, batch {batch}"
        # One quantized value that a runtime rounds to the other side says little: at least eight images are compared.
        calls = [normalised(noise(batch, size, seed=call), model) for call in range(-(-8 // batch))]
        try:
            expected = all_of(engine.run, calls)
        except swinq.ArgumentError:
            for graph in graphs:
                try:
                    graph(calls[0])
                except Exception:  # noqa: BLE001, S110, each runtime has exceptions of its own
                    pass
                else:
                    failures.append(f"{where}: the engine refuses it, {graph.name} does not")
            refused += 1
            continue
        taken += 1
        if quantized:
            model.export(fixed, size=size)
        for graph in graphs:
            found = error(all_of(graph, calls), expected)
            row = f"{where}, {graph.name}: {found:.1e}"
            if not quantized and not found <= LIMIT:
                failures.append(row)
            if quantized:
                loss = decibels(error(all_of(type(graph)(fixed), calls), expected)) - decibels(found)
                row = f"{where}, {graph.name}: {decibels(found):.1f} dB, {loss:+.2f} dB less than for one size"
                if not loss <= LOSS:
                    failures.append(row)
            print(row, flush=True)
    return failures, taken, refused


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of networks, separated by semicolons")
    args = parser.parse_args()
    failures, counts = [], {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (make, sizes) in NETWORKS.items():
            if args.only and name not in args.only.split(";"):
                continue
            torch.manual_seed(0)
            made = make()
            float_model = made if isinstance(made, swinq.Model) else swinq.open(randomise(made))
            quantized = swinq.quantize(float_model, [noise(8, float_model.input_size, seed=1)])
            for model in (float_model, quantized):
                kind = f"{name}, {'INT8' if model.is_quantized else 'float'}"
                found, taken, refused = compared(kind, model, sizes, pathlib.Path(folder))
                failures += found
                counts[kind] = (taken, refused)
    for kind, (taken, refused) in counts.items():
        print(f"{kind}: {taken} sizes compared, {refused} refused by engine and runtimes")
    for failure in failures:
        print("FAILED", failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
