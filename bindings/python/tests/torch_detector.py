"""Swins as detectors have them, in the manners of detectron2 and of Grounding DINO, on the backbone of ``tests/parity``."""

import sys

import torch
from support import ROOT

sys.path.append(str(ROOT / "tests/parity"))
from detection_swin import Backbone  # noqa: E402


class Swin(Backbone):
    """A dictionary of maps by names, and what pyramids of features read of a backbone."""

    size_divisibility = 0

    def __init__(self, channels=48, depths=(2, 2), heads=(3, 6), window=7, out_indices=(0, 1), places=None):
        super().__init__(channels, depths, heads, window, out=out_indices, places=places)
        self.num_features = [channels << stage for stage in range(len(depths))]

    def output_shape(self):
        return {f"p{stage}": self.num_features[stage] for stage in self.out}

    def forward(self, images):
        return {f"p{stage}": part for stage, part in super().forward(images).items()}


class Nested:
    """Images that are padded to one size, with the mask of the padding, as DETR's relatives pass them."""

    def __init__(self, tensors, mask):
        self.tensors, self.mask = tensors, mask

    def decompose(self):
        return self.tensors, self.mask


class MaskedSwin(Swin):
    """Numbers of stages, and maps with masks."""

    def forward(self, nested: Nested):
        found = {}
        for stage, part in Backbone.forward(self, nested.tensors).items():
            mask = torch.nn.functional.interpolate(nested.mask[None].float(), size=part.shape[-2:]).to(torch.bool)[0]
            found[stage] = Nested(part, mask)
        return found
