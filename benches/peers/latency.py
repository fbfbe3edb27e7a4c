"""Times a Swin in OpenVINO (INT8, bf16), ONNX Runtime (INT8, f32) and swinq (INT8, FP32), interleaved in one run.

    python benches/peers/latency.py SWINQ [--model swin_tiny_patch4_window7_224] [--batches 1,8] [--cache DIR] [--json OUT]

SWINQ is the release binary, --model a name of timm (a Swin V1, or a V2 with one window size). Every engine gets the same random weights (in timm's layout), quantized by the engine's own
tool and calibrated on the same images; the models are kept in --cache. In each round every engine warms up and then runs
for --seconds. Prints the median and the minimum of the rounds' medians and their ratios to the fastest peer. The minimum
is of the round that other processes disturbed least. --json writes these figures with versions and the machine.

Needs torch, timm, onnx, onnxruntime, openvino, nncf, pillow and safetensors.
"""
import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

import onnxruntime
import openvino
import openvino.properties as ov
import openvino.properties.hint as hint

from peer_models import Models

OURS = ("swinq INT8", "swinq FP32")
VERSIONS = ("openvino", "nncf", "onnxruntime", "onnx", "torch", "timm")


def openvino_runner(path, precision, pixels, threads, pinned):
    """A function that runs the graph at `path`. `precision`, f32 or bf16, is that of operations that are not INT8. OpenVINO
    chooses the cores of its threads, or takes those of the process if they are not `pinned`."""
    core = openvino.Core()
    options = {
        hint.performance_mode: hint.PerformanceMode.LATENCY,
        hint.inference_precision: precision,
        ov.num_streams: 1,
        ov.inference_num_threads: threads,
        hint.enable_cpu_pinning: pinned,
    }
    request = core.compile_model(core.read_model(path), "CPU", options).create_infer_request()
    request.set_input_tensor(openvino.Tensor(pixels))
    return request.infer


def ort_runner(path, pixels, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"pixels": pixels})


def openvino_peers(models, batch, threads, pinned=True):
    """OpenVINO's run functions by name."""
    pixels, nncf = models.inputs(batch)[0], models.nncf_int8(batch)
    f32, bf16 = openvino.Type.f32, openvino.Type.bf16
    return {
        "OpenVINO INT8, f32": openvino_runner(nncf, f32, pixels, threads, pinned),
        "OpenVINO INT8, bf16": openvino_runner(nncf, bf16, pixels, threads, pinned),
        "OpenVINO bf16": openvino_runner(models.onnx(batch), bf16, pixels, threads, pinned),
    }


def peers(models, batch, threads):
    """The peers' run functions by name, in the order in which they run."""
    pixels = models.inputs(batch)[0]
    return {
        **openvino_peers(models, batch, threads),
        "ONNX Runtime INT8": ort_runner(models.ort_int8(batch), pixels, threads),
        "ONNX Runtime f32": ort_runner(models.onnx(batch), pixels, threads),
    }


def timed_ms(run):
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def median_ms(run, seconds):
    """The median in milliseconds of runs over `seconds`, after a warm-up of a third of that time."""
    warm = time.perf_counter() + seconds / 3
    while time.perf_counter() < warm:
        run()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        times.append(timed_ms(run))
    return statistics.median(times)


def swinq_ms(args, models, batch):
    """swinq's medians in milliseconds, in the order of `OURS`, from a run of `swinq bench` (which also warms up)."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "bench.json"
        command = [args.swinq, "bench", str(models.swinq_int8()), str(models.weights()), "--cfg", models.config]
        command += ["--batch-size", str(batch), "--seconds", str(args.seconds), "--threads", str(args.threads)]
        command += ["--backend", "cpu", "--json", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        report = json.loads(out.read_text())
    return [m["latency_ms"][str(batch)]["median"] for m in report["models"]]


def measure(args, models, batch):
    """The medians of all rounds, by engine."""
    runners = peers(models, batch, args.threads)
    samples = {name: [] for name in (*runners, *OURS)}
    for _ in range(args.rounds):
        for name, run in runners.items():
            samples[name].append(median_ms(run, args.seconds))
        for name, median in zip(OURS, swinq_ms(args, models, batch)):
            samples[name].append(median)
    return samples


def summary(batch, samples):
    """Prints the figures for one batch size and returns them for `--json`."""
    engines = {name: {"median_ms": statistics.median(ms), "least_ms": min(ms)} for name, ms in samples.items()}
    best = {}
    for figure in ("median_ms", "least_ms"):
        best[figure] = min((name for name in engines if name not in OURS), key=lambda name: engines[name][figure])
        least, ours = engines[best[figure]][figure], engines[OURS[0]][figure]
        for figures in engines.values():
            figures[f"{figure}_of_best_peer"] = figures[figure] / least
            figures[f"swinq_int8_{figure}_of_this"] = ours / figures[figure]
    for name, f in engines.items():
        ratios = f"{f['median_ms_of_best_peer']:.2f}x | {f['least_ms']:.2f} | {f['least_ms_of_best_peer']:.2f}x"
        print(f"| {batch} | {name} | {f['median_ms']:.2f} | {ratios} |", flush=True)
    return {"batch": batch, "best_peer": best, "engines": engines, "rounds_ms": samples}


def environment(args):
    def output(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    cpu = platform.processor()
    if pathlib.Path("/proc/cpuinfo").exists():
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    here = pathlib.Path(__file__).parent
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": args.threads,
        "commit": output("git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"),
        "swinq": output(args.swinq, "--version"),
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swinq")
    parser.add_argument("--model", default="swin_tiny_patch4_window7_224")
    parser.add_argument("--batches", type=lambda text: [int(b) for b in text.split(",")], default=[1, 8])
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("target/peers"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    models = Models(args.model, args.cache, args.swinq)
    for batch in args.batches:  # make all models before the first measurement
        models.ort_int8(batch), models.nncf_int8(batch), models.swinq_int8()
    print(f"{args.model}, {args.threads} threads")
    print("| batch | engine | median ms | of the best peer | least ms | of the best peer |\n|" + " --- |" * 6)
    rows = [summary(batch, measure(args, models, batch)) for batch in args.batches]
    if args.json:
        result = {"model": args.model, **environment(args), "rounds": args.rounds, "seconds": args.seconds, "batches": rows}
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
