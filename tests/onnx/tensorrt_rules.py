"""Checks an exported graph against the rules of TensorRT, without TensorRT.

    python tests/onnx/tensorrt_rules.py FILE.onnx

Prints each rule with its source and the number of nodes that it was checked on, and fails if a node breaks one.
"""
import re
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GUIDE = "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library"
TYPES = f"{GUIDE}/work-quantized-types.html"
EXPLICIT = f"{GUIDE}/quantized-types-explicit-quantization.html"
PROFILES = f"{GUIDE}/work-dynamic-shapes.html"
LAYER = "https://docs.nvidia.com/deeplearning/tensorrt/api/c_api/classnvinfer1_1_1_i_quantize_layer.html"
OPERATORS = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md (Gelu since TensorRT 10)"
IMPORTER = "https://github.com/NVIDIA/TensorRT/issues/2774 and /issues/4698 (assertions of the ONNX importer)"
OPSETS = "https://docs.nvidia.com/deeplearning/tensorrt/latest/reference/onnx-opset-guide.html"

# The operators of our graphs, and of graphs that PyTorch exports with a prepared Swin, that the parser's list has.
PARSED = set(
    "Add Cast DequantizeLinear Div Erf Exp Gather GatherND Gelu LayerNormalization MatMul Max Mul Pad QuantizeLinear ReduceL2 ReduceMax "
    "ReduceMean ReduceSum Reshape Softmax Split Sub Transpose "
    "AveragePool BatchNormalization Clip Concat Constant ConstantOfShape Conv ConvTranspose Expand Flatten Gemm GlobalAveragePool Identity Less Pow "
    "Min Mod Range Reciprocal Relu Resize Round Shape Sigmoid Slice Sqrt Squeeze Unsqueeze Where".split()
)

# The nodes inside a branch, without the layer that ends it.
INSIDE = re.compile(r"\.(attn\.(?!proj\b|add\b)|mlp\.fc1\b)")


class Graph:
    def __init__(self, path):
        self.model = onnx.load(path)
        onnx.checker.check_model(self.model, full_check=True)
        inferred = onnx.shape_inference.infer_shapes(self.model, strict_mode=True, data_prop=True).graph
        self.nodes = self.model.graph.node
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in self.model.graph.initializer}
        # The parser takes nodes as it takes initializers.
        for node in self.of("Constant"):
            value = helper.get_attribute_value(node.attribute[0])
            self.constants[node.output[0]] = numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
        self.producer = {output: node for node in self.nodes for output in node.output}
        self.readers = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        values = [*inferred.value_info, *inferred.input, *inferred.output]
        self.types = {value.name: value.type.tensor_type.elem_type for value in values}
        self.types |= {tensor.name: tensor.data_type for tensor in self.model.graph.initializer}

    def of(self, *ops):
        return [node for node in self.nodes if node.op_type in ops]


def axis(node):
    return next((a.i for a in node.attribute if a.name == "axis"), None)


def symmetric(graph):
    for node in graph.of("QuantizeLinear", "DequantizeLinear"):
        yield node, len(node.input) < 3 or not graph.constants[node.input[2]].any()


def signed(graph):
    for node in graph.of("QuantizeLinear"):
        yield node, graph.types[node.output[0]] == TensorProto.INT8
    for node in graph.of("DequantizeLinear"):
        yield node, graph.types[node.input[0]] == TensorProto.INT8


def constant_scales(graph):
    for node in graph.of("QuantizeLinear", "DequantizeLinear"):
        scale = graph.constants.get(node.input[1])
        yield node, scale is not None and bool((scale > 0).all()) and bool(np.isfinite(scale).all())


def activations_per_tensor(graph):
    for node in graph.of("QuantizeLinear"):
        yield node, graph.constants[node.input[1]].ndim == 0


def weights_per_channel(graph):
    for node in graph.of("DequantizeLinear"):
        codes = graph.constants.get(node.input[0])
        if codes is not None:
            scale = graph.constants[node.input[1]]
            yield node, scale.ndim == 0 or (axis(node) == 0 and scale.shape == codes.shape[:1])


def weight_codes(graph):
    for node in graph.of("DequantizeLinear"):
        codes = graph.constants.get(node.input[0])
        if codes is not None:
            yield node, codes.min() >= -127


def weights_dequantized(graph):
    for node in graph.of("DequantizeLinear"):
        if node.input[0] in graph.constants:
            readers = graph.readers[node.output[0]]
            moved = [r for reader in readers for r in (graph.readers[reader.output[0]] if reader.op_type == "Transpose" else [reader])]
            yield node, all(reader.op_type == "MatMul" for reader in moved)


def pairs(graph):
    for node in graph.of("QuantizeLinear"):
        yield node, [reader.op_type for reader in graph.readers[node.output[0]]] == ["DequantizeLinear"]


def strongly_typed(graph):
    ops = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Less", "Where", "Range", "Concat", "MatMul", "LayerNormalization", "QuantizeLinear")
    for node in graph.of(*ops):
        operands = {"QuantizeLinear": node.input[:2], "Where": node.input[1:]}.get(node.op_type, node.input)
        yield node, len({graph.types[name] for name in operands}) == 1


def halves(graph):
    """With strong typing, what the graph has in f32 runs in f32. `--fp16` leaves inputs and outputs in it, bytes until they are
    normalised, and a residual stream that f16 does not hold, with the nodes outside the branches."""
    metadata = {entry.key: entry.value for entry in graph.model.metadata_props}
    if metadata.get("swinq.float") != "float16":
        return
    outputs = {output.name for output in graph.model.graph.output}
    outside = metadata.get("swinq.residual") == "float32"
    for node in graph.nodes:
        full = [name for name in node.output if graph.types.get(name) == TensorProto.FLOAT and name not in outputs]
        inside = INSIDE.search(node.name) and node.op_type != "Cast"
        yield node, not full or node.name.startswith("pixels.") or (outside and not inside)


def profiles(graph):
    for value in graph.model.graph.input:
        yield value, all(dim.HasField("dim_value") or dim.dim_param for dim in value.type.tensor_type.shape.dim)


def parsed(graph):
    for node in graph.nodes:
        yield node, node.op_type in PARSED and node.domain == ""


def opset(graph):
    for entry in graph.model.opset_import:
        yield entry, 9 <= entry.version <= 25


def ranks(graph):
    for node in graph.of("Transpose"):
        yield node, len(next(a.ints for a in node.attribute if a.name == "perm")) <= 8


RULES = [
    ("zero points are 0", f"{TYPES}; {OPERATORS}; {IMPORTER}", symmetric),
    ("codes are signed 8-bit integers", TYPES, signed),
    ("scales are constants, positive and finite", LAYER, constant_scales),
    ("activations have one scale", TYPES, activations_per_tensor),
    ("weights have one scale, or one for each output channel", f"{TYPES}; {LAYER}", weights_per_channel),
    ("codes of weights are in -127..=127", TYPES, weight_codes),
    ("pre-quantized weights pass DequantizeLinear before their product", EXPLICIT, weights_dequantized),
    ("QuantizeLinear is followed by its DequantizeLinear", EXPLICIT, pairs),
    ("operands have the same type (strong typing)", EXPLICIT, strongly_typed),
    ("with --fp16, values are f16 between input and outputs, except a residual stream in f32", EXPLICIT, halves),
    ("free sizes of inputs have names, for profiles", PROFILES, profiles),
    ("the parser has every operator", OPERATORS, parsed),
    ("the opset is 9 to 25", OPSETS, opset),
    ("tensors have at most 8 dimensions", "NvInfer.h: Dims::MAX_DIMS", ranks),
]


def main():
    graph, failed = Graph(sys.argv[1]), False
    for rule, source, check in RULES:
        outcomes = list(check(graph))
        broken = [getattr(node, "name", str(node)) for node, holds in outcomes if not holds]
        failed |= bool(broken)
        print(f"{'BROKEN' if broken else 'holds'}: {rule} ({len(outcomes)} checked) [{source}]")
        for name in broken[:5]:
            print(f"    {name}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
