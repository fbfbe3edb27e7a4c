"""Times a Swin in ONNX Runtime f32 and in swinq FP32 and INT8, in turn in one run, all cores.

    python benches/peers/latency.py SWINQ FP32_MODEL INT8_MODEL [--model swin_tiny_patch4_window7_224] [--batches 1,8]

SWINQ is the release binary; the models are a float checkpoint or directory (add --cfg NAME where it is bare) and a
quantized checkpoint of the same shape. Needs torch, timm, onnx and onnxruntime. Prints medians of all runs and the
ratios to ONNX Runtime; --json writes them.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnxruntime
import timm
import torch


def export(name, folder):
    """The timm model with random weights as ONNX, opset 17, dynamic batch."""
    path = folder / f"{name}.onnx"
    model = timm.create_model(name, pretrained=False).eval()
    size = model.default_cfg["input_size"][-1]
    sessions = {}
    for batch in ARGS.batches:
        at = path.with_suffix(f".{batch}.onnx")
        torch.onnx.export(model, torch.randn(batch, 3, size, size), at, opset_version=17, dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = ARGS.threads
        sessions[batch] = onnxruntime.InferenceSession(at, options, providers=["CPUExecutionProvider"])
    return sessions, size


def time_ort(session, batch, size, seconds):
    x = np.random.default_rng(0).standard_normal((batch, 3, size, size), dtype=np.float32)
    name = session.get_inputs()[0].name
    for _ in range(3):
        session.run(None, {name: x})
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        session.run(None, {name: x})
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def time_swinq(folder):
    """Median milliseconds of both models by batch size, measured in turn by `swinq bench`."""
    out = folder / "bench.json"
    command = [ARGS.swinq, "bench", ARGS.fp32, ARGS.int8, "--batch-size", ",".join(map(str, ARGS.batches))]
    command += ["--seconds", str(ARGS.seconds), "--threads", str(ARGS.threads), "--json", str(out)]
    command += ["--cfg", ARGS.cfg] if ARGS.cfg else []
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    models = json.loads(out.read_text())["models"]
    return [{int(b): s["median"] for b, s in m["latency_ms"].items()} for m in models]


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        sessions, size = export(ARGS.model, folder)
        samples = {(who, b): [] for who in ("ONNX Runtime f32", "swinq FP32", "swinq INT8") for b in ARGS.batches}
        for _ in range(ARGS.rounds):
            for batch, session in sessions.items():
                samples["ONNX Runtime f32", batch].append(time_ort(session, batch, size, ARGS.seconds))
            for who, latencies in zip(("swinq FP32", "swinq INT8"), time_swinq(folder)):
                for batch in ARGS.batches:
                    samples[who, batch].append(latencies[batch])
    result = {"model": ARGS.model, "threads": ARGS.threads, "onnxruntime": onnxruntime.__version__, "rows": []}
    for batch in ARGS.batches:
        base = statistics.median(samples["ONNX Runtime f32", batch])
        for who in ("ONNX Runtime f32", "swinq FP32", "swinq INT8"):
            median = statistics.median(samples[who, batch])
            result["rows"].append({"engine": who, "batch": batch, "median_ms": median, "ratio": median / base})
            print(f"batch {batch:3}  {who:18} {median:8.2f} ms  {median / base:5.2f}x of ONNX Runtime f32")
    if ARGS.json:
        pathlib.Path(ARGS.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swinq")
    parser.add_argument("fp32")
    parser.add_argument("int8")
    parser.add_argument("--cfg")
    parser.add_argument("--model", default="swin_tiny_patch4_window7_224")
    parser.add_argument("--batches", type=lambda t: [int(b) for b in t.split(",")], default=[1, 8])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json")
    ARGS = parser.parse_args()
    main()
