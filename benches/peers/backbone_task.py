"""The model and the images of `backbone.py`: a backbone, a segmenter on its maps, and images with a class for every pixel."""
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/parity"))
from detection_swin import Backbone
from peer_models import DEVIATION, MEAN, make_once

STAGES = 4


class Maps(torch.nn.Module):
    """The backbone with its maps as a tuple, for images of one size: the masks of its shifted windows are constants."""

    def __init__(self, path, size):
        super().__init__()
        tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
        table = tensors["layers.0.blocks.0.attn.relative_position_bias_table"]
        layers = [f"layers.{stage}.blocks" for stage in range(STAGES)]
        depths = [len({name.split(".")[3] for name in tensors if name.startswith(layer)}) for layer in layers]
        heads = [tensors[f"{layer}.0.attn.relative_position_bias_table"].shape[1] for layer in layers]
        window = (int(len(table) ** 0.5) + 1) // 2
        self.backbone = Backbone(tensors["patch_embed.proj.weight"].shape[0], depths, heads, window)
        missing, unexpected = self.backbone.load_state_dict(tensors, strict=False)
        assert not unexpected and all("relative_position_index" in name for name in missing), (missing, unexpected)
        self.eval().fix_masks(size, window)

    def fix_masks(self, size, window):
        grid = [-(-side // 4) for side in size]
        for layer in self.backbone.layers:
            for block in layer.blocks:
                if block.shift:
                    mask = block.mask(*(side + -side % window for side in grid))
                    block.mask = lambda *_, mask=mask: mask
            grid = [-(-side // 2) for side in grid]

    def forward(self, images):
        return tuple(self.backbone(images).values())


def normalised(path):
    """An image file as f32 [1, 3, height, width]."""
    pixels = np.asarray(Image.open(path).convert("RGB"), np.float32) / np.float32(255)
    return np.ascontiguousarray(((pixels - MEAN) / DEVIATION).transpose(2, 0, 1))[None]


def segment(head, maps):
    """Logits [1, classes, height / 4, width / 4]: 1 x 1 convolutions, sums from the last stage to the first, two convolutions."""
    convolve = lambda name, x, **options: F.conv2d(x, head[f"head.{name}.weight"], head[f"head.{name}.bias"], **options)
    x = None
    for stage in reversed(range(STAGES)):
        y = convolve(f"lateral.{stage}", maps[stage])
        x = y if x is None else y + F.interpolate(x, size=y.shape[-2:], mode="bilinear", align_corners=False)
    return convolve("out", F.relu(convolve("conv", x, padding=1)))


def confusion(logits, labels):
    """Counts [class, predicted class]."""
    classes = logits.shape[1]
    predicted = F.interpolate(logits, size=labels.shape, mode="bilinear", align_corners=False).argmax(1)[0].numpy()
    return np.bincount(labels.astype(int).ravel() * classes + predicted.ravel(), minlength=classes**2).reshape(classes, classes)


class Task:
    """The images, the calibration images and the float maps, which are made once."""

    def __init__(self, args):
        self.cache = args.cache
        (self.cache / "float").mkdir(parents=True, exist_ok=True)
        pngs = lambda folder: sorted(path for path in folder.glob("*.png") if not path.name.endswith(".label.png"))
        self.images, self.calibration = pngs(args.images)[: args.count], pngs(args.calibration)
        width, height = Image.open(self.images[0]).size
        self.model, self.head = Maps(args.backbone, (height, width)), load_file(args.head)

    def float_maps(self, index):
        def make(path):
            maps = self.model(torch.from_numpy(normalised(self.images[index])))
            save_file({f"stage{stage + 1}": np.ascontiguousarray(maps[stage][0]) for stage in range(STAGES)}, path)

        tensors = load_numpy(make_once(self.cache / "float" / f"{self.images[index].stem}.safetensors", make))
        return [tensors[f"stage{stage + 1}"][None] for stage in range(STAGES)]

    def inputs(self):
        """The calibration images one by one."""
        return (normalised(path) for path in self.calibration)

    def score(self, index, maps):
        """Energies of the float maps and of the differences, and the confusion, of one image."""
        exact = self.float_maps(index)
        energy = lambda x: float((x.astype(np.float64) ** 2).sum())
        differences = [found.astype(np.float64) - float_map for found, float_map in zip(maps, exact)]
        labels = np.asarray(Image.open(self.images[index].with_suffix(".label.png")))
        counts = confusion(segment(self.head, [torch.from_numpy(found) for found in maps]), labels)
        return {"signal": [*map(energy, exact)], "noise": [*map(energy, differences)], "confusion": counts.tolist()}

    def onnx(self):
        """The float graph, prepared as ONNX Runtime asks before a quantization."""

        def make(path):
            from onnxruntime.quantization.shape_inference import quant_pre_process

            image, raw = torch.from_numpy(normalised(self.images[0])), self.cache / "raw.onnx"
            names = [f"stage{stage + 1}" for stage in range(STAGES)]
            torch.onnx.export(self.model, image, raw, input_names=["images"], output_names=names, opset_version=17, dynamo=False)
            quant_pre_process(raw, path, skip_symbolic_shape=True)
            raw.unlink()

        return make_once(self.cache / "float.onnx", make)
