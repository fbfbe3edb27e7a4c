"""Times a graph for images of any size against graphs for one size, in ONNX Runtime and OpenVINO.

    python benches/peers/free_sizes.py MODEL [--sizes 800x1344,512x640] [--rounds 7] [--runtime ort|openvino] [--batch free|1]

MODEL is a checkpoint of a backbone, quantized or float, as `swinq.open` reads it. For each runtime and size three programs run in turn,
one inference of one image a round, each time another one first: the graph for this size, the graph for any size, and the latter with the size fixed by the session
(free-dimension overrides, `reshape`). Prints the median and the least of the rounds, and the median of the rounds' ratios to the graph
for this size. Needs the packages swinq, onnxruntime and openvino.
"""
import argparse
import pathlib
import tempfile
import time

import numpy as np

import swinq


def of_ort(path, threads, size=None):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if size:
        for name, side in zip(("batch", "height", "width"), (1, *size), strict=True):
            options.add_free_dimension_override_by_name(name, side)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images})


def of_openvino(path, threads, size=None):
    import openvino

    core = openvino.Core()
    model = core.read_model(str(path))
    if size:
        model.reshape([1, 3, *size])
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    return lambda images: request.infer([images])


RUNTIMES = {"ort": of_ort, "openvino": of_openvino}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sizes", default="800x1344,512x640")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runtime", choices=RUNTIMES)
    parser.add_argument("--batch", default="free", help="of both graphs: free, or 1")
    args = parser.parse_args()
    model, random = swinq.open(args.model), np.random.default_rng(0)
    sizes = [tuple(map(int, size.split("x"))) for size in args.sizes.split(",")]
    print("| runtime | size | graph | median ms | least ms | ratio |\n" + "| --- " * 6 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for runtime in [args.runtime] if args.runtime else RUNTIMES:
            make, free = RUNTIMES[runtime], pathlib.Path(folder) / "any.onnx"
            model.export(free, size="any", target=runtime, batch=args.batch)
            for size in sizes:
                fixed = pathlib.Path(folder) / "fixed.onnx"
                model.export(fixed, size=size, target=runtime, batch=args.batch)
                programs = {
                    "this size": make(fixed, args.threads),
                    "any size": make(free, args.threads),
                    "any size, fixed by the session": make(free, args.threads, size),
                }
                images = random.standard_normal((1, 3, *size)).astype(np.float32)
                times = {name: [] for name in programs}
                order = list(programs)
                for round_ in range(args.rounds + 1):
                    order = order[1:] + order[:1]
                    for name in order:
                        run = programs[name]
                        start = time.perf_counter()
                        run(images)
                        if round_:
                            times[name].append(1e3 * (time.perf_counter() - start))
                for name, found in times.items():
                    ratio = np.median(np.array(found) / np.array(times["this size"]))
                    text = f"{np.median(found):.0f} | {min(found):.0f} | {ratio:.3f}"
                    print(f"| {runtime} | {size[0]}x{size[1]} | {name} | {text} |", flush=True)


if __name__ == "__main__":
    main()
