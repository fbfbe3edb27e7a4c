"""What the scripts of this folder share: exports, images, and the two runtimes."""
import collections
import json
import pathlib
import subprocess
import tempfile

import numpy as np
import onnx
import onnxruntime
import openvino
import openvino.properties.hint as hint
from PIL import Image
from safetensors.numpy import load_file

INT8_OPS = ("MatMulIntegerToFloat", "QLinearMatMul", "MatMulInteger", "QGemm", "DynamicQuantizeMatMul")
FLOAT_OPS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulNBits")


def swinq_logits(swinq, model, images, more=()):
    """The engine's logits, f32 [images, classes]."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "logits.safetensors"
        command = [swinq, "predict", "--backend", "cpu", "--json", "--logits", str(out), str(model), "-", *more]
        names = "\n".join(map(str, images))
        subprocess.run(command, input=names, text=True, check=True, stdout=subprocess.DEVNULL)
        return load_file(out)["logits"]


def export(swinq, model, path, options=()):
    """Runs `swinq export`, and checks the file with ONNX's own checker and shape inference. Returns the metadata."""
    command = [swinq, "export", str(model), "--onnx", str(path), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    onnx.checker.check_model(str(path), full_check=True)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(str(path)), check_type=True, strict_mode=True, data_prop=True)
    inner = sum(len(node.output) for node in inferred.graph.node) - len(inferred.graph.output)
    assert len(inferred.graph.value_info) >= inner
    return {entry.key: entry.value for entry in inferred.metadata_props}


def pixels(metadata, images):
    """The images as the metadata's preprocessing has them, u8 [images, height, width, channels]."""
    transform = json.loads(metadata["swinq.preprocessing"])
    height, width = both_sides(transform["size"])
    method = {"bicubic": Image.BICUBIC, "bilinear": Image.BILINEAR}[transform["filter"]]
    mode = {1: "L", 3: "RGB"}[len(transform["mean"])]
    result = np.empty((len(images), height, width, len(transform["mean"])), np.uint8)
    for i, path in enumerate(images):
        image = Image.open(path).convert("RGB").convert(mode)
        if transform["resize"] == "direct":
            image = image.resize((width, height), method)
        else:
            image = image.resize(resized(image, **transform["resize"]), method)
            left, top = round((image.width - width) / 2), round((image.height - height) / 2)
            image = image.crop((left, top, left + width, top + height))
        result[i] = np.asarray(image).reshape(result.shape[1:])
    return result


def both_sides(size):
    """A size of the metadata as a height and a width."""
    return size if isinstance(size, list) else [size, size]


def resized(image, shorter_side=None, cover=None):
    """Width and height of an image before its centre is cropped."""
    width, height = image.size
    if cover:
        covered = both_sides(cover)
        ratio = min(height / covered[0], width / covered[1])
        return round(width / ratio), round(height / ratio)
    long = lambda side, other: int(shorter_side * side / other)
    return (shorter_side, long(height, width)) if width <= height else (long(width, height), shorter_side)


def feed(metadata, pixels):
    """The graph's input by name."""
    if metadata["swinq.input"].startswith("pixels"):
        return {"pixels": pixels}
    transform = json.loads(metadata["swinq.preprocessing"])
    mean, std = (np.array(transform[key], np.float32) for key in ("mean", "std"))
    normalised = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    return {"images": np.ascontiguousarray(normalised.transpose(0, 3, 1, 2))}


def in_batches(run, metadata, pixels, batch):
    """The logits of all images, in batches of `batch`; the last batch is filled up."""
    parts = []
    for start in range(0, len(pixels), batch):
        part = pixels[start : start + batch]
        full = np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)])
        parts.append(run(feed(metadata, full))[: len(part)].copy())
    return np.concatenate(parts)


def has_vnni():
    """Whether the processor sums INT8 products in 32 bits. Without that, runtimes add pairs of products in 16 bits, which
    saturate (docs/deploy.md, "Rounding")."""
    return "vnni" in pathlib.Path("/proc/cpuinfo").read_text()


def ort_session(path, threads=0, optimized=None):
    options = onnxruntime.SessionOptions()
    if not has_vnni():
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if optimized:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def ort_runner(path, threads=0):
    session = ort_session(path, threads)
    return lambda inputs: session.run(None, inputs)[0]


def ort_products(path):
    """How ONNX Runtime runs the products: the number of INT8 operators and of float ones in the graph it optimized."""
    with tempfile.TemporaryDirectory() as folder:
        optimized = pathlib.Path(folder) / "optimized.onnx"
        ort_session(path, optimized=optimized)
        ops = collections.Counter(node.op_type for node in onnx.load(str(optimized), load_external_data=False).graph.node)
    return sum(ops[op] for op in INT8_OPS), sum(ops[op] for op in FLOAT_OPS)


def openvino_model(path, precision, threads=0):
    core = openvino.Core()
    options = {
        hint.performance_mode: hint.PerformanceMode.LATENCY,
        hint.inference_precision: {"f32": openvino.Type.f32, "bf16": openvino.Type.bf16}[precision],
        openvino.properties.num_streams: 1,
        openvino.properties.inference_num_threads: threads,
    }
    return core.compile_model(core.read_model(path), "CPU", options)


def openvino_runner(path, precision, threads=0):
    request = openvino_model(path, precision, threads).create_infer_request()
    return lambda inputs: request.infer(inputs)[0]


def openvino_products(path, precision="f32"):
    """How OpenVINO runs the products: the number of those in INT8 and of others, from its runtime model."""
    int8 = other = 0
    for op in openvino_model(path, precision).get_runtime_model().get_ops():
        info = op.get_rt_info()
        if info["layerType"].astype(str) in ("FullyConnected", "MatMul", "Convolution"):
            if info["runtimePrecision"].astype(str) in ("i8", "u8"):
                int8 += 1
            else:
                other += 1
    return int8, other


def products(path):
    """The products of the file: those whose operands both are behind DequantizeLinear, and the others."""
    graph = onnx.load(str(path)).graph
    producer = {output: node for node in graph.node for output in node.output}
    moves = ("Transpose", "Reshape", "Gather")

    def is_code(name):
        node = producer.get(name)
        while node is not None and node.op_type in moves:
            node = producer.get(node.input[0])
        return node is not None and node.op_type == "DequantizeLinear"

    kinds = collections.Counter(all(map(is_code, node.input)) for node in graph.node if node.op_type == "MatMul")
    return kinds[True], kinds[False]


def sqnr(reference, found):
    """Signal to noise in dB: 10 log10 of the energies of the reference and of the difference."""
    difference = reference.astype(np.float64) - found.astype(np.float64)
    return 10 * np.log10((reference.astype(np.float64) ** 2).sum() / max((difference**2).sum(), 1e-300))


def agreement(reference, found):
    return float((reference.argmax(1) == found.argmax(1)).mean())
