"""Latency of an INT8 backbone on a CPU, batch 1: swinq against OpenVINO and ONNX Runtime, in turn in one process.

    python benches/peers/backbone_latency.py BACKBONE [--sizes 512x640 800x1344] [--threads 2] [--rounds 15] [--cache DIR] [--json FILE]

BACKBONE is a Swin V1 in Microsoft's names with `norm0` to `norm3`, computed by the detectors' rule. Every engine reads one normalised
f32 image [1, 3, height, width] and returns four maps in f32. The peers are OpenVINO with NNCF's INT8 (preset MIXED, model type
TRANSFORMER; the rest in f32 and in bf16), OpenVINO in bf16, and ONNX Runtime's static INT8 of all products. All are calibrated on
noise: times do not depend on it. A round runs every engine once, in another order; the table has the medians and the ratio to the
fastest peer. The peers' models are kept in --cache.

Needs torch, numpy, safetensors, swinq, openvino, nncf, onnx and onnxruntime.
"""
import argparse
import json
import pathlib
import random
import statistics
import time

import numpy as np
import torch

from backbone_task import STAGES, Maps
from peer_models import make_once

NAMES = [f"stage{stage + 1}" for stage in range(STAGES)]


class Peers:
    """The peers' models for images of one size."""

    def __init__(self, path, size, cache, threads):
        self.path, self.size, self.threads = path, size, threads
        self.cache = cache / f"{size[0]}x{size[1]}"
        self.cache.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(0)
        self.images = [noise.standard_normal((1, 3, *size), np.float32) for _ in range(2)]

    def float_onnx(self):
        def make(path):
            from onnxruntime.quantization.shape_inference import quant_pre_process

            raw, image = self.cache / "raw.onnx", torch.from_numpy(self.images[0])
            model = Maps(self.path, self.size)
            torch.onnx.export(model, image, raw, input_names=["images"], output_names=NAMES, opset_version=17, dynamo=False)
            quant_pre_process(raw, path, skip_symbolic_shape=True)
            raw.unlink()

        return make_once(self.cache / "float.onnx", make)

    def ort_int8(self):
        def make(path):
            from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

            class Reader(CalibrationDataReader):
                images = iter(self.images)

                def get_next(self):
                    image = next(self.images, None)
                    return None if image is None else {"images": image}

            types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
            products = ["MatMul", "Gemm"]
            quantize_static(
                self.float_onnx(), path, Reader(), quant_format=QuantFormat.QDQ, op_types_to_quantize=products, per_channel=True, **types
            )

        return make_once(self.cache / "ort.onnx", make)

    def openvino_int8(self):
        def make(path):
            import nncf
            import openvino

            quantized = nncf.quantize(
                openvino.convert_model(self.float_onnx()),
                nncf.Dataset(self.images),
                preset=nncf.QuantizationPreset.MIXED,
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(self.images),
            )
            openvino.save_model(quantized, path)

        return make_once(self.cache / "nncf.xml", make)

    def openvino(self, path, precision):
        import openvino

        options = {"INFERENCE_NUM_THREADS": self.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        compiled = openvino.Core().compile_model(path, "CPU", {**options, "INFERENCE_PRECISION_HINT": precision})
        request = compiled.create_infer_request()
        return lambda image: [*request.infer([image]).values()]

    def onnxruntime(self, path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda image: session.run(None, {"images": image})

    def runs(self):
        """The peers by name: functions of an image."""
        return {
            "OpenVINO INT8, rest f32": self.openvino(self.openvino_int8(), "f32"),
            "OpenVINO INT8, rest bf16": self.openvino(self.openvino_int8(), "bf16"),
            "OpenVINO bf16": self.openvino(self.float_onnx(), "bf16"),
            "ONNX Runtime INT8": self.onnxruntime(self.ort_int8()),
        }


def swinq_run(path, size, threads):
    import swinq

    noise = np.random.default_rng(1)
    images = [noise.integers(0, 256, (*size, 3), dtype=np.uint8) for _ in range(2)]
    model = swinq.quantize(swinq.open(path, task="features"), images, ptq="basic")
    engine = model.engine(backend="cpu", threads=threads, max_batch=1)
    return lambda image: [*engine.run(image).values()]


def milliseconds(run, image):
    begin = time.perf_counter()
    run(image)
    return 1e3 * (time.perf_counter() - begin)


def measure(runs, image, rounds):
    """Median milliseconds of each of `runs`."""
    times = {name: [] for name in runs}
    for run in runs.values():
        run(image)
    for turn in range(rounds):
        for name in random.Random(turn).sample([*runs], len(runs)):
            # The threads of the engine before it have stopped waiting.
            time.sleep(0.2)
            milliseconds(runs[name], image)
            times[name].append(milliseconds(runs[name], image))
    return {name: statistics.median(found) for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", type=pathlib.Path)
    parser.add_argument("--sizes", nargs="+", default=["512x640", "800x1344"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("target/backbone_latency"))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--make", action="store_true", help="make the peers' models, and measure nothing")
    args = parser.parse_args()
    found = {}
    for text in args.sizes:
        size = tuple(map(int, text.split("x")))
        peers = Peers(args.backbone, size, args.cache, args.threads)
        runs = peers.runs()
        if args.make:
            continue
        runs = {"swinq INT8": swinq_run(args.backbone, size, args.threads), **runs}
        image = peers.images[0]
        shapes = [[np.shape(output) for output in run(image)] for run in runs.values()]
        assert all(shape == shapes[0] for shape in shapes), shapes
        found[text] = measure(runs, image, args.rounds)
        own, best = found[text]["swinq INT8"], min(ms for name, ms in found[text].items() if name != "swinq INT8")
        print(f"{text}, {args.threads} threads: {own / best:.3f}x of the fastest peer", flush=True)
        for name, ms in found[text].items():
            print(f"  {name:26} {ms:9.1f} ms", flush=True)
    if args.json and found:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
