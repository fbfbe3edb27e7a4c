"""INT8 feature maps of a backbone: swinq against NNCF with OpenVINO, ONNX Runtime and NVIDIA ModelOpt, and a segmenter on them.

    python benches/peers/backbone.py BACKBONE HEAD CALIBRATION IMAGES --cache DIR [--tools ort,nncf] [--maps INT8=F.safetensors]

BACKBONE is a Swin V1 in Microsoft's names with `norm0` to `norm3`, computed by the detectors' rule. HEAD has the parameters of
`segment`. CALIBRATION is a folder of PNG files, and IMAGES one of `NAME.png` with the classes of its pixels in `NAME.label.png`.
All images have one size, and their order is that of their names. --maps takes files that swinq wrote for the same images:

    swinq calibrate BACKBONE --task features --data-path CALIBRATION -o Q
    swinq features Q $(ls IMAGES/*.png | grep -v label) --features F.safetensors

Prints the mean IoU, the pixels that are right, and the SQNR of each output: the energy of PyTorch's f32 maps over that of the
difference, both summed over all images. Every tool reads the same calibration images.

Every quantized graph is evaluated with its quantization in float: OpenVINO without its INT8 transformations, so that it computes
each FakeQuantize; ONNX Runtime without optimizations, so that it computes each QuantizeLinear and DequantizeLinear; ModelOpt
simulates in PyTorch. So no result depends on the instruction set: without VNNI, INT8 kernels of both runtimes add pairs of
products in 16 bits, which saturate.

The counts of each image are kept in --cache, and a second run goes on where the first ended. Needs torch, timm, numpy, pillow
and safetensors; `swinq-torch` needs swinq, `ort` and `nncf` need onnx and onnxruntime, `nncf` nncf and openvino, `modelopt`
nvidia-modelopt.
"""
import argparse
import copy
import json
import pathlib

import numpy as np
import torch
from safetensors import safe_open

from backbone_task import STAGES, Task, normalised
from peer_models import make_once

# ModelOpt's configurations quantize the inputs of LayerNorms too, and with them the stream of tokens.
NOT_LINEAR = ("*norm*", "*patch_embed*")


def ort_runner(path):
    """Runs the graph as it is written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda index, image: session.run(None, {"images": image})


def ort_float(task):
    return ort_runner(task.onnx())


def ort_reader(paths):
    """Reads one image at a time: ONNX Runtime keeps the activations of all images that it reads at once."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __len__(self):
            return len(paths)

        def set_range(self, start_index, end_index):
            self.range = iter(paths[start_index:end_index])

        def get_next(self):
            path = next(self.range, None)
            return None if path is None else {"images": normalised(path)}

    return Reader()


def ort(method, *types):
    """ONNX Runtime's static quantization of the operators `types`, or of all that it can quantize.

    QDQ, u8 activations, s8 weights per channel.
    """

    def tool(task):
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        def make(path):
            quantize_static(
                task.onnx(),
                path,
                ort_reader(task.calibration),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=types or None,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod[method],
                extra_options={"CalibStridedMinMax": 1},
            )

        return ort_runner(make_once(task.cache / f"{'.'.join(['ort', method, *types])}.onnx", make))

    return tool


def nncf(kind, smooth=True, left_out=()):
    """NNCF's quantization of the OpenVINO graph: preset MIXED, with SmoothQuant or without, without the operators `left_out`."""

    def tool(task):
        import nncf
        import openvino
        from nncf.quantization.advanced_parameters import AdvancedSmoothQuantParameters

        def make(path):
            alphas = AdvancedSmoothQuantParameters() if smooth else AdvancedSmoothQuantParameters(convolution=-1, matmul=-1)
            quantized = nncf.quantize(
                openvino.convert_model(task.onnx()),
                nncf.Dataset([*task.inputs()]),
                preset=nncf.QuantizationPreset.MIXED,
                model_type=nncf.ModelType[kind] if kind else None,
                subset_size=len(task.calibration),
                ignored_scope=nncf.IgnoredScope(types=[*left_out]),
                advanced_parameters=nncf.AdvancedQuantizationParameters(smooth_quant_alphas=alphas),
            )
            openvino.save_model(quantized, path, compress_to_fp16=False)

        name = [str(kind), *([] if smooth else ["unsmoothed"]), *left_out]
        return openvino_runner(make_once(task.cache / f"{'.'.join(['nncf', *name])}.xml", make))

    return tool


FLOAT_QUANTIZATION = {"LP_TRANSFORMS_MODE": False, "INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


def openvino_runner(path):
    """Computes the FakeQuantize operations and everything else in f32."""
    import openvino

    check_openvino()
    core = openvino.Core()
    model = core.read_model(path)
    assert any(op.get_type_name() == "FakeQuantize" for op in model.get_ops())
    compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": torch.get_num_threads(), **FLOAT_QUANTIZATION})
    request = compiled.create_infer_request()
    return lambda index, image: [*request.infer([image]).values()]


def check_openvino():
    """A product whose sums of pairs need 17 bits has the result of f32, and the activations are rounded."""
    import openvino
    import openvino.opset13 as ops

    random = np.random.default_rng(0)
    codes, x = random.integers(64, 128, (64, 8), dtype=np.int8), random.uniform(0.5, 1, (4, 64)).astype(np.float32)
    images, scale = ops.parameter(x.shape, np.float32), np.float32(1 / 127)
    quantized = ops.fake_quantize(images, *(np.float32(bound) for bound in (0, 1, 0, 1)), 256)
    weights = ops.multiply(ops.convert(ops.constant(codes), np.float32), ops.constant(scale))
    graph = openvino.Model([ops.matmul(quantized, weights, False, False)], [images])
    found = openvino.Core().compile_model(graph, "CPU", FLOAT_QUANTIZATION)([x])[0]
    rounded, exact = (values @ (codes * scale) for values in (np.rint(x * 255) / 255, x))
    assert np.abs(found - rounded).max() < 1e-4 < np.abs(found - exact).max(), "OpenVINO does not compute FakeQuantize in f32"


def modelopt(name, *left_out):
    """ModelOpt's configuration `name` without the quantizers whose names match `left_out`. It leaves attention in float."""

    def tool(task):
        import modelopt.torch.opt as mto
        import modelopt.torch.quantization as mtq

        def calibrate(model):
            for image in task.inputs():
                model(torch.from_numpy(image))

        def make(path):
            mto.save(mtq.quantize(copy.deepcopy(task.model), copy.deepcopy(getattr(mtq, name)), calibrate), path)

        model = mto.restore(copy.deepcopy(task.model), make_once(task.cache / f"modelopt.{name}.pth", make))
        for pattern in left_out:
            mtq.disable_quantizer(model, pattern)
        return lambda index, image: [found.numpy() for found in model(torch.from_numpy(image))]

    return tool


def swinq_torch(task):
    """The module with its Swin replaced by `swinq.torch`, as a program in PyTorch runs it. Its maps have the bits of `swinq features`."""
    import swinq.torch

    program = torch.nn.Sequential(copy.deepcopy(task.model)).eval()
    images = (torch.from_numpy(image) for image in task.inputs())
    print(swinq.torch.quantize(program, images, backend="cpu", samples=len(task.calibration)))
    return lambda index, image: [found.numpy() for found in program(torch.from_numpy(image))]


def written(path):
    """The maps of a file that `swinq features` wrote."""
    file = safe_open(path, "numpy")
    return lambda task: lambda index, image: [file.get_tensor(f"{index}.stage{stage + 1}")[None] for stage in range(STAGES)]


TOOLS = {
    "torch": ("PyTorch, f32", lambda task: lambda index, image: task.float_maps(index)),
    "swinq-torch": ("swinq.torch, INT8", swinq_torch),
    "ort-float": ("ONNX Runtime, f32", ort_float),
    "ort": ("ONNX Runtime, MinMax", ort("MinMax")),
    "ort-products": ("ONNX Runtime, MinMax, products only", ort("MinMax", "MatMul", "Gemm")),
    "ort-percentile": ("ONNX Runtime, Percentile, products only", ort("Percentile", "MatMul", "Gemm")),
    "nncf": ("NNCF + OpenVINO, TRANSFORMER", nncf("TRANSFORMER")),
    "nncf-products": ("NNCF + OpenVINO, products only, no SmoothQuant", nncf("TRANSFORMER", False, ["Convolution"])),
    "nncf-plain": ("NNCF + OpenVINO, no model type", nncf(None)),
    "modelopt": ("ModelOpt INT8", modelopt("INT8_DEFAULT_CFG")),
    "modelopt-linear": ("ModelOpt INT8, linear layers only", modelopt("INT8_DEFAULT_CFG", *NOT_LINEAR)),
    "modelopt-smooth": ("ModelOpt INT8 SmoothQuant", modelopt("INT8_SMOOTHQUANT_CFG")),
    "modelopt-smooth-linear": ("ModelOpt INT8 SmoothQuant, linear layers only", modelopt("INT8_SMOOTHQUANT_CFG", *NOT_LINEAR)),
}


def scores(task, name, tool):
    """The scores of all images, each kept in the cache."""
    folder, run = task.cache / "scores" / name, None
    folder.mkdir(parents=True, exist_ok=True)
    for index, path in enumerate(task.images):
        kept = folder / f"{path.stem}.json"
        if not kept.exists():
            run = run or tool(task)
            score = task.score(index, run(index, normalised(path)))
            kept.write_text(json.dumps(score))
        yield json.loads(kept.read_text())


def row(title, scores):
    total = {key: sum(np.array(score[key]) for score in scores) for key in scores[0]}
    counts = total["confusion"]
    hits = np.diag(counts)
    iou = (hits / (counts.sum(0) + counts.sum(1) - hits)).mean()
    sqnr = [f"{10 * np.log10(signal / noise):.1f}" if noise else "equal" for signal, noise in zip(total["signal"], total["noise"])]
    return f"| {title} | {iou:.4f} | {hits.sum() / counts.sum():.4f} | {', '.join(sqnr)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("backbone", "head", "calibration", "images"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("target/backbone"))
    parser.add_argument("--count", type=int, help="evaluate the first images only")
    parser.add_argument("--tools", type=lambda text: text.split(","), default=[*TOOLS], help=", ".join(TOOLS))
    parser.add_argument("--maps", nargs="*", default=[], help="NAME=FILE of `swinq features`")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    task = Task(args)
    tools = {name: TOOLS[name] for name in args.tools}
    tools |= {name: (name, written(path)) for name, path in (pair.split("=", 1) for pair in args.maps)}
    with torch.no_grad():
        rows = [row(title, [*scores(task, name, tool)]) for name, (title, tool) in tools.items()]
    print(f"{len(task.calibration)} images of calibration, {len(task.images)} evaluated\n")
    print("| | mean IoU | pixels right | SQNR of stages 1 to 4, dB |\n| --- | --- | --- | --- |", *rows, sep="\n")


if __name__ == "__main__":
    main()
