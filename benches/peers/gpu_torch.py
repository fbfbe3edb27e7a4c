"""Measures the FP16 latency of a timm Swin with torch.compile on a GPU, the peer of `swinq bench --backend cuda`.

    python benches/peers/gpu_torch.py --models swin_tiny_patch4_window7_224 --batches 1 32 128 --json peers.json

Times are medians over forwards, measured with CUDA events. The input is already on the GPU. In the default mode,
max-autotune, torch.compile replays the forward from a CUDA graph. That mode compiles for minutes; set
TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR to keep its results for the next run.
"""

import argparse
import json
import statistics

import timm
import torch


def measure(model, x, runs):
    for _ in range(20):
        model(x)
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    marks[0].record()
    for mark in marks[1:]:
        model(x)
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["swin_tiny_patch4_window7_224"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 128])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--mode", default="max-autotune")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    results = []
    for name in args.models:
        for batch in args.batches:
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = timm.create_model(name).eval().cuda().half()
            size = timm.get_pretrained_cfg(name).input_size
            x = torch.randn(batch, *size, device="cuda", dtype=torch.float16)
            run = model if args.eager else torch.compile(model, mode=args.mode)
            with torch.inference_mode():
                times = measure(run, x, args.runs)
            median = statistics.median(times)
            results.append({"model": name, "batch": batch, "median_ms": median, "images_per_second": 1e3 * batch / median})
            print(f"{name} batch {batch}: {median:.3f} ms, {1e3 * batch / median:.0f} images/s", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            versions = {"torch": torch.__version__, "timm": timm.__version__, "gpu": torch.cuda.get_device_name()}
            json.dump({"mode": "eager" if args.eager else args.mode, "versions": versions, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
