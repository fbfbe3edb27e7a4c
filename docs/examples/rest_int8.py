"""A whole segmenter in INT8 for ONNX Runtime: the Swin by swinq, the rest by ONNX Runtime's static quantization.

    python rest_int8.py MODEL PHOTOS segmenter.onnx [--size 512] [--images 32]

MODEL is a folder or a name of a UPerNet of transformers with a Swin, PHOTOS a folder of images. `swinq.torch.prepare` calibrates the Swin, whose
graph has QuantizeLinear and DequantizeLinear of its own. ONNX Runtime then quantizes the convolutions and linear layers around it, and
leaves the nodes of the Swin as they are; `segmenter.nodes.txt` lists them. The script prints how far the logits of both graphs are from the
float model's, in dB of signal to noise. Needs swinq, torch, transformers, pillow, onnx, onnxscript and onnxruntime.
"""

import argparse
import ast
import math
from pathlib import Path

import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import swinq.torch

#: The operators that are quantized. Others compute in float between them.
TYPES = ["Conv", "Gemm", "MatMul"]


class Logits(torch.nn.Module):
    """A segmenter whose output is a tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model(images).logits


class Batches(CalibrationDataReader):
    """Batches of images, as ONNX Runtime's calibration reads them."""

    def __init__(self, batches):
        self.rest = iter(batches)

    def get_next(self):
        batch = next(self.rest, None)
        return None if batch is None else {"images": batch.numpy()}


def export(program, images, path):
    """Writes a prepared program as a graph whose batch is free. PyTorch takes a batch of one for a constant, so it sees two."""
    options = {"input_names": ["images"], "dynamic_shapes": ({0: torch.export.Dim("batch")},), "external_data": False}
    with torch.no_grad():
        torch.onnx.export(program, (torch.cat([images, images]),), path, **options)


def nodes_of(path, swin):
    """The names of the nodes of the module `swin`: the exporter notes the modules of each node. Nodes without a note are optimisations
    of it, and are listed, too."""
    found = []
    for node in onnx.load(path).graph.node:
        notes = [note.value for note in node.metadata_props if note.key == "pkg.torch.onnx.name_scopes"]
        if not notes or swin in ast.literal_eval(notes[0]):
            found.append(node.name)
    return found


def quantize_rest(path, nodes, batches, quantized):
    """Quantizes the graph of `path` but for `nodes`, on batches `[n, 3, height, width]`, and writes it to `quantized`."""
    quantize_static(
        path, quantized, Batches(batches), quant_format=QuantFormat.QDQ, op_types_to_quantize=TYPES, nodes_to_exclude=nodes,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True,
    )  # fmt: skip


def decibels(path, batches, expected):
    """Signal to noise of the output of a graph."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = torch.cat([torch.from_numpy(session.run(None, {"images": batch.numpy()})[0]) for batch in batches])
    return 20 * math.log10(expected.norm() / (found - expected).norm())


def whole(program, swin, batches, path):
    """Writes the program, whose Swin has the name `swin`, with all of it in INT8; returns the dB with the Swin alone, and with all of it."""
    with torch.no_grad():
        expected = torch.cat([program(batch) for batch in batches])
    swinq.torch.prepare(program, calibrate=batches, ptq="basic")
    program.eval()
    part = str(Path(path).with_suffix(".swin.onnx"))
    export(program, batches[0], part)
    nodes = nodes_of(part, swin)
    Path(path).with_suffix(".nodes.txt").write_text("\n".join(nodes) + "\n")
    quantize_rest(part, nodes, batches, path)
    return decibels(part, batches, expected), decibels(path, batches, expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("photos", type=Path)
    parser.add_argument("out")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--images", type=int, default=32)
    args = parser.parse_args()
    from PIL import Image
    from transformers import AutoImageProcessor, UperNetForSemanticSegmentation

    processor = AutoImageProcessor.from_pretrained(args.model)
    program = Logits(UperNetForSemanticSegmentation.from_pretrained(args.model)).eval()
    paths = sorted(path for path in args.photos.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))[: args.images]
    size = {"height": args.size, "width": args.size}
    batches = [processor(Image.open(path).convert("RGB"), size=size, return_tensors="pt")["pixel_values"] for path in paths]
    swin, all_of_it = whole(program, "model.backbone", batches, args.out)
    print(f"{args.out}: {swin:.1f} dB with the Swin in INT8, {all_of_it:.1f} dB with all of it")


if __name__ == "__main__":
    main()
