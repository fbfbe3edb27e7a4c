"""A detector whose Swin is a graph for images of any size, joined with the graph of the rest (docs/pytorch.md, "Export").

The tests need torch, onnx, onnxruntime and onnxscript. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``onnx``.
"""

import tempfile
import unittest
import warnings
from pathlib import Path

from needed import need

need("onnx", "onnxruntime", "onnxscript", "torch", name="onnx")

import onnx
import onnx.compose
import onnxruntime
import torch

from torch_detector import Swin
from torch_models import images, randomise
from torch_support import error

import swinq.torch

SIZES = [(800 // 4, 1344 // 4), (97, 131), (64, 40)]


class Rest(torch.nn.Module):
    """What follows the backbone in mmdetection's one-stage detectors: a pyramid, a head, anchors, and the best boxes."""

    def __init__(self, channels=(48, 96), strides=(4, 8), width=32, boxes=20):
        super().__init__()
        self.lateral = torch.nn.ModuleList(torch.nn.Conv2d(c, width, 1) for c in channels)
        self.smooth = torch.nn.ModuleList(torch.nn.Conv2d(width, width, 3, padding=1) for _ in channels)
        self.scores, self.deltas = torch.nn.Conv2d(width, 1, 1), torch.nn.Conv2d(width, 4, 1)
        self.strides, self.boxes = strides, boxes

    def forward(self, p0, p1):
        maps = [lateral(part) for lateral, part in zip(self.lateral, (p0, p1), strict=True)]
        maps[0] = maps[0] + torch.nn.functional.interpolate(maps[1], size=maps[0].shape[-2:], mode="nearest")
        scores, boxes = [], []
        for part, smooth, stride in zip(maps, self.smooth, self.strides, strict=True):
            part = smooth(part).relu()
            y = torch.arange(part.shape[2], device=part.device)[:, None].expand(part.shape[2:])
            x = torch.arange(part.shape[3], device=part.device)[None].expand(part.shape[2:])
            centres = (torch.stack([x, y], -1).flatten(0, 1) + 0.5) * stride
            deltas = self.deltas(part).flatten(2).transpose(1, 2)
            middle, half = centres + stride * deltas[..., :2], 2 * stride * deltas[..., 2:].exp()
            boxes.append(torch.cat([middle - half, middle + half], -1))
            scores.append(self.scores(part).flatten(1))
        scores, best = torch.cat(scores, 1).topk(self.boxes)
        return torch.cat(boxes, 1).gather(1, best[..., None].expand(-1, -1, 4)), scores


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.rest = randomise(Swin()), randomise(Rest(), seed=1)
        self.eval()

    def forward(self, x):
        return self.rest(*self.backbone(x).values())


def joined(model, detector, folder):
    """The graph of a detector, for batches and images of any size, from the Swin's model and the rest of the detector."""
    model.export(folder / "swin.onnx", size="any")
    free = {0: torch.export.Dim("batch"), 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    maps = tuple(torch.randn(2, c, *side) for c, side in ((48, (24, 36)), (96, (12, 18))))
    with torch.no_grad():
        torch.onnx.export(
            detector.rest, maps, folder / "rest.onnx", dynamic_shapes=(free, free), opset_version=20,
            input_names=["p0", "p1"], output_names=["boxes", "scores"], external_data=False,
        )  # fmt: skip
    swin, rest = onnx.load(folder / "swin.onnx"), onnx.load(folder / "rest.onnx")
    rest.ir_version = swin.ir_version
    outputs = [output.name for output in swin.graph.output]
    return onnx.compose.merge_models(
        swin, onnx.compose.add_prefix(rest, "rest."), io_map=[(outputs[0], "rest.p0"), (outputs[1], "rest.p1")]
    )


def run(graph, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(part) for part in session.run(None, {"images": x.numpy()})]


class Joined(unittest.TestCase):
    def test_a_detector_takes_images_of_any_size(self):
        detector = Detector()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            graph = joined(swinq.open(detector.backbone), detector, Path(folder))
            onnx.checker.check_model(graph, full_check=True)
            for (height, width), batch in zip(SIZES, (1, 2, 5), strict=True):
                x = images(batch, height, width)
                for found, expected in zip(run(graph, x), detector(x), strict=True):
                    self.assertLess(error(found, expected), 1e-5)

    def test_a_prepared_detector_is_joined_as_its_refusal_says(self):
        detector, x = Detector(), images(2, 64, 96)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            swinq.torch.prepare(detector, lambda model: model(x))
            with self.assertRaisesRegex(Exception, "swinq export --size any.*onnx.compose"):
                torch.export.export(detector, (x,), strict=False, dynamic_shapes=({2: torch.export.Dim("height", max=512)},))
            graph = joined(detector.backbone.to_model(), detector, Path(folder))
            for (height, width), batch in zip(SIZES, (1, 2, 5), strict=True):
                x = images(batch, height, width)
                # The boxes of the best scores depend on single codes: the scores are compared.
                self.assertLess(error(run(graph, x)[1], detector(x)[1]), 0.03)


if __name__ == "__main__":
    unittest.main()
