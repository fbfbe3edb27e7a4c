"""A trained segmenter with its rest in INT8, too, in the runtimes: mean IoU and the time of an image.

    python benches/peers/rest_int8.py DATA [--count 50] [--calls 15]

DATA is the folder of `SWINQ_DATA`, with `data/mosaics`, `data/imagenette` and `models/swin_t_imagenette`: a Swin-T as a backbone, and the
parameters of a feature pyramid. swinq.torch.prepare calibrates the Swin on 16 mosaics of the training photographs, and
docs/examples/rest_int8.py writes the graph with the rest in INT8. Rows: float in PyTorch, compiled and as a graph; the Swin in INT8; all
of it in INT8. Times are medians of rounds that run every row once, on the threads that PyTorch has by default.

Needs torch, timm, pillow, safetensors, onnx, onnxscript, onnxruntime and swinq; with openvino its rows are added.
"""
import argparse
import copy
import importlib.util
import pathlib
import statistics
import sys
import tempfile
import time
import warnings

import numpy as np
import onnxruntime
import timm
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs/examples"))
import rest_int8

import swinq.torch
from backbone_qat import DEVIATION, MEAN, SIZE, module


class Segmenter(torch.nn.Module):
    """Features of a Swin-T of timm with a norm each, and a head on them."""

    def __init__(self, weights, norms, head):
        super().__init__()
        options = {"features_only": True, "img_size": SIZE, "strict_img_size": False}
        self.backbone = timm.create_model("swin_tiny_patch4_window7_224", **options)
        renamed = {name.replace("layers.", "layers_", 1): value.float() for name, value in weights.items()}
        missing, _ = self.backbone.load_state_dict(renamed, strict=False)
        assert all("relative_position_index" in name or "attn_mask" in name for name in missing), missing
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(96 << stage) for stage in range(4))
        self.norms.load_state_dict({name.removeprefix("norm"): value.float() for name, value in norms.items()})
        self.head = head

    def forward(self, images):
        return self.head([norm(x).permute(0, 3, 1, 2) for norm, x in zip(self.norms, self.backbone(images))])


def normalised(image):
    return ((torch.from_numpy(image).float() / 255 - MEAN) / DEVIATION).permute(2, 0, 1)[None].contiguous()


def runtimes(path):
    """Functions of an image by runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = {"ONNX Runtime": lambda images: session.run(None, {"images": images.numpy()})[0]}
    if importlib.util.find_spec("openvino"):
        import openvino

        core = openvino.Core()
        model = core.read_model(path)
        model.reshape([1, 3, *SIZE])
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"})
        found["OpenVINO"] = lambda images: compiled([images.numpy()])[0]
    return found


def main():
    with tempfile.TemporaryDirectory() as folder:
        run(pathlib.Path(folder))


def run(folder):
    """Writes the graphs to `folder`, and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=50, help="mosaics whose IoU is measured")
    parser.add_argument("--calls", type=int, default=15, help="rounds that are timed")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    models, data = given.data / "models/swin_t_imagenette", given.data / "data"
    maker, score = (module(data / "mosaics" / name) for name in ("mosaics.py", "score.py"))
    photographs = data / "imagenette"
    mosaics = lambda part, count, seed: [
        *maker.mosaics(photographs / f"{part}.zip", photographs / f"{part}_map.txt", count, *SIZE, seed)
    ]
    norms = {name: value for name, value in load_file(models / "dense_head.safetensors").items() if name.startswith("norm")}
    head = score.Head.load(models / "dense_head.safetensors")
    segmenter = Segmenter(load_file(models / "model.safetensors"), norms, head).eval()
    calibration = [normalised(image) for image, _ in mosaics("train", 16, 1)]
    compiled = torch.compile(copy.deepcopy(segmenter))
    rest_int8.export(segmenter, calibration[0], str(folder / "float.onnx"))
    rest_int8.whole(segmenter, "backbone", calibration, str(folder / "whole.onnx"))
    swinq.torch.convert(segmenter)
    rows = {"PyTorch, float, compiled": compiled, "PyTorch, the Swin by swinq's engine": segmenter}
    for graph, what in (("float", "float"), ("whole.swin", "the Swin in INT8"), ("whole", "all of it in INT8")):
        rows |= {f"{runtime}, {what}": call for runtime, call in runtimes(str(folder / f"{graph}.onnx")).items()}
    validation = mosaics("val", given.count, 7)
    times = {name: [] for name in rows}
    counts = {name: 0 for name in rows}
    with torch.no_grad():
        for index, (image, labels) in enumerate(validation):
            images = normalised(image)
            for name, call in rows.items():
                start = time.perf_counter()
                logits = torch.as_tensor(np.asarray(call(images)))
                if 0 < index <= given.calls:
                    times[name].append(time.perf_counter() - start)
                counts[name] = counts[name] + score.confusion(logits, labels)
    print(f"{given.count} mosaics of {SIZE[0]}x{SIZE[1]}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    for name in rows:
        print(f"{name}: mean IoU {score.mean_iou(counts[name]):.4f}, {1e3 * statistics.median(times[name]):.0f} ms")


if __name__ == "__main__":
    main()
