"""Accuracy and speed of one model in swinq, ONNX Runtime and OpenVINO: swinq's exports beside the runtimes' own INT8.

    python benches/peers/deploy.py SWINQ FLOAT QUANTIZED CALIBRATION IMAGES --cfg CFG [--batches 1,8] [--limit 500] [--cache DIR]

FLOAT and QUANTIZED are checkpoints of the same model, CALIBRATION and IMAGES folders of image files. ONNX Runtime's own
quantization (static, QDQ, per channel) and NNCF start from swinq's float export and the calibration images. Prints SQNR and
agreement with the float logits, and latencies in milliseconds that are measured in turn in one run. `--make` only makes the
files: then SWINQ may be another build than the one that is measured.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np

from latency import median_ms
from peer_models import make_once

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/onnx"))
from common import agreement, export, feed, in_batches, openvino_runner, ort_runner, pixels, sqnr, swinq_logits


class Files:
    """The exported files and those of the runtimes' own tools, made once."""

    def __init__(self, args):
        self.args, self.folder = args, args.cache
        self.folder.mkdir(parents=True, exist_ok=True)

    def exported(self, name, model, batch, *options):
        def make(path):
            metadata = export(self.args.swinq, model, path, ["--batch", str(batch), *options])
            path.with_name(f"{name}.json").write_text(json.dumps(metadata))

        return make_once(self.folder / f"{name}.{batch}.onnx", make)

    def metadata(self):
        return json.loads((self.folder / "float.json").read_text())

    def float(self, batch):
        return self.exported("float", self.args.float, batch, "--cfg", self.args.cfg)

    def exact(self, batch):
        return self.exported("exact", self.args.quantized, batch)

    def softmax(self, batch):
        return self.exported("softmax", self.args.quantized, batch, "--probs", "softmax")

    def calibration(self):
        paths = sorted(p for p in self.args.calibration.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
        paths = paths[:: max(len(paths) // self.args.calibration_images, 1)][: self.args.calibration_images]
        return [feed(self.metadata(), pixels(self.metadata(), [path])) for path in paths]

    def ort_static(self, batch):
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Reader(CalibrationDataReader):
            def __init__(self, inputs):
                self.inputs = iter(inputs)

            def get_next(self):
                return next(self.inputs, None)

        def make(path):
            prepared = path.with_name(f"prepared.{path.name}")
            quant_pre_process(self.float(batch), prepared, skip_symbolic_shape=True)
            inputs = [{k: np.repeat(v, batch, axis=0) for k, v in x.items()} for x in self.calibration()]
            quantize_static(
                prepared,
                path,
                Reader(inputs),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
            prepared.unlink()

        return make_once(self.folder / f"ort_static.{batch}.onnx", make)

    def nncf(self, batch):
        import nncf
        import openvino

        def make(path):
            model = openvino.convert_model(self.float(batch))
            inputs = [[np.repeat(v, batch, axis=0) for v in x.values()] for x in self.calibration()]
            preset, kind = nncf.QuantizationPreset.PERFORMANCE, nncf.ModelType.TRANSFORMER
            quantized = nncf.quantize(model, nncf.Dataset(inputs), preset=preset, model_type=kind, subset_size=len(inputs))
            openvino.save_model(quantized, path)

        return make_once(self.folder / f"nncf.{batch}.xml", make)


def engines(files, batch, threads):
    """The runtimes' run functions by name."""
    ort = lambda path: ort_runner(path, threads)
    ov = lambda path, precision="f32": openvino_runner(path, precision, threads)
    return {
        "ORT float": ort(files.float(batch)),
        "ORT, swinq exact": ort(files.exact(batch)),
        "ORT, swinq softmax": ort(files.softmax(batch)),
        "ORT, its own INT8": ort(files.ort_static(batch)),
        "OpenVINO float": ov(files.float(batch)),
        "OpenVINO, swinq exact": ov(files.exact(batch)),
        "OpenVINO, swinq softmax": ov(files.softmax(batch)),
        "OpenVINO, NNCF INT8": ov(files.nncf(batch)),
        "OpenVINO bf16, swinq exact": ov(files.exact(batch), "bf16"),
    }


def accuracy(args, files):
    images = sorted(p for p in args.images.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    images = images[:: max(len(images) // args.limit, 1)][: args.limit]
    reference = swinq_logits(args.swinq, args.float, images, ["--cfg", args.cfg])
    found = {"swinq INT8": swinq_logits(args.swinq, args.quantized, images)}
    inputs = pixels(files.metadata(), images)
    for name, run in engines(files, 8, args.threads).items():
        found[name] = in_batches(run, files.metadata(), inputs, 8)
    print(f"| engine, {len(images)} images | SQNR against float, dB | agreement with float |\n| --- | --- | --- |")
    for name, logits in found.items():
        print(f"| {name} | {sqnr(reference, logits):.1f} | {100 * agreement(reference, logits):.2f} % |", flush=True)


def swinq_ms(args, batch):
    """swinq's medians in milliseconds: INT8 and float."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "bench.json"
        command = [args.swinq, "bench", args.quantized, args.float, "--cfg", args.cfg, "--batch-size", str(batch)]
        command += ["--seconds", str(args.seconds), "--threads", str(args.threads), "--backend", "cpu", "--json", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [m["latency_ms"][str(batch)]["median"] for m in json.loads(out.read_text())["models"]]


def speed(args, files, batch):
    size = json.loads(files.metadata()["swinq.preprocessing"])["size"]
    noise = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), dtype=np.uint8)
    inputs = feed(files.metadata(), noise)
    runners = engines(files, batch, args.threads)
    times = {name: [] for name in ("swinq INT8", "swinq float", *runners)}
    for _ in range(args.rounds):
        for name, run in runners.items():
            times[name].append(median_ms(lambda: run(inputs), args.seconds))
        for name, median in zip(("swinq INT8", "swinq float"), swinq_ms(args, batch)):
            times[name].append(median)
    print(f"| engine, batch {batch}, {args.threads} threads | median ms | least ms |\n| --- | --- | --- |")
    for name, ms in times.items():
        print(f"| {name} | {statistics.median(ms):.2f} | {min(ms):.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("swinq", "float", "quantized"):
        parser.add_argument(name)
    for name in ("calibration", "images"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--cfg", required=True)
    parser.add_argument("--batches", type=lambda text: [int(b) for b in text.split(",")], default=[1, 8])
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--calibration-images", type=int, default=100)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("target/deploy"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--no-accuracy", action="store_true")
    args = parser.parse_args()
    files = Files(args)
    for batch in {*args.batches, 8}:
        for make in (files.float, files.exact, files.softmax, files.ort_static, files.nncf):
            make(batch)
    if args.make:
        return
    if not args.no_accuracy:
        accuracy(args, files)
    for batch in args.batches:
        speed(args, files, batch)


if __name__ == "__main__":
    main()
