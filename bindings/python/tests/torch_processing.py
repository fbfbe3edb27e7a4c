"""What the programs of transformers do after their outputs: maps, segments, boxes, depths and words."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import (
    DPTImageProcessor,
    GroundingDinoImageProcessor,
    Mask2FormerImageProcessor,
    MaskFormerImageProcessor,
    OneFormerImageProcessor,
    SegformerImageProcessor,
)

#: The sizes of the two images to which results are resized.
SIZES = [(100, 120), (64, 64)]


class Words:
    """Stands for a tokenizer, which would have to be downloaded: each number is a word."""

    model_input_names = ("input_ids",)

    def batch_decode(self, ids, **_):
        return [" ".join(f"word{int(number)}" for number in one) for one in ids]


def _segments(processor, outputs, found: dict) -> dict:
    """Maps of classes, of instances and of everything. No score of random weights is high, so that every segment counts."""
    found["semantic"] = processor.post_process_semantic_segmentation(outputs, target_sizes=SIZES)
    every = {"threshold": 0.0, "mask_threshold": 0.05, "overlap_mask_area_threshold": 0.0}
    found["instances"] = processor.post_process_instance_segmentation(outputs, **every, target_sizes=SIZES)
    found["panoptic"] = processor.post_process_panoptic_segmentation(outputs, **every, label_ids_to_fuse=set(), target_sizes=SIZES)
    return found


def _boxes(outputs) -> dict:
    found = {"boxes": GroundingDinoImageProcessor().post_process_object_detection(outputs, threshold=0.0, target_sizes=SIZES)}
    grounded = transformers.GroundingDinoProcessor.post_process_grounded_object_detection
    found["phrases"] = grounded(Words(), outputs, threshold=0.0, text_threshold=0.5, target_sizes=SIZES)
    return found


def process(name: str, program: torch.nn.Module, outputs: Any, images: torch.Tensor) -> dict[str, Any]:
    """The results of the program ``name``, by kind."""
    if name.startswith("Donut"):
        words = program.generate(pixel_values=images, max_new_tokens=5, min_new_tokens=5)
        beams = program.generate(pixel_values=images, max_new_tokens=5, min_new_tokens=5, num_beams=2)
        return {"words": words, "words of beams": beams}
    if name.startswith("Mask2Former"):
        return _segments(Mask2FormerImageProcessor(), outputs, {})
    if name.startswith("MaskFormer"):
        return _segments(MaskFormerImageProcessor(), outputs, {})
    if name.startswith("OneFormer"):
        return _segments(OneFormerImageProcessor(class_info_file=""), outputs, {})
    if name.startswith("UPerNet"):
        return {"semantic": SegformerImageProcessor().post_process_semantic_segmentation(outputs, target_sizes=SIZES)}
    if name.startswith("DPT"):
        return {"depths": DPTImageProcessor().post_process_depth_estimation(outputs, target_sizes=SIZES)}
    assert name.startswith("Grounding DINO"), name
    return _boxes(outputs)


def calls(name: str, images: torch.Tensor, more: dict[str, Any]) -> tuple[Callable[[Any], Any], Callable[[Any], dict[str, Any]]]:
    """What calibrates the program ``name`` on two images, and what runs it with all that it does after its outputs."""

    def run(program):
        return program(pixel_values=images, **more)

    def whole(program):
        outputs = run(program)
        return {"outputs": outputs, **process(name, program, outputs, images)}

    return run, whole


def check(test: unittest.TestCase, results: dict[str, Any]) -> None:
    """The results of two images have the types and the shapes that the functions promise."""
    for kind, parts in results.items():
        test.assertEqual(len(parts), 2, kind)
        if kind.startswith("words"):
            test.assertEqual((parts.ndim, parts.dtype), (2, torch.int64), kind)
            continue
        for size, part in zip(SIZES, parts, strict=True):
            _check_one(test, kind, part, size)


def _check_one(test: unittest.TestCase, kind: str, part: Any, size: tuple[int, int]) -> None:
    if kind == "semantic":
        test.assertEqual((tuple(part.shape), part.dtype), (size, torch.int64))
    elif kind == "depths":
        test.assertEqual((tuple(part["predicted_depth"].shape), part["predicted_depth"].dtype), (size, torch.float32))
        test.assertTrue(part["predicted_depth"].isfinite().all())
    elif kind in ("instances", "panoptic"):
        test.assertEqual(tuple(part["segmentation"].shape), size)
        test.assertGreater(len(part["segments_info"]), 0, kind)
        for segment in part["segments_info"]:
            test.assertEqual([type(segment[key]) for key in ("id", "label_id", "score")], [int, int, float])
    else:
        number = len(part["scores"])
        test.assertGreater(number, 0)
        test.assertEqual((tuple(part["boxes"].shape), part["boxes"].dtype), ((number, 4), torch.float32))
        test.assertEqual(len(part["labels" if kind == "boxes" else "text_labels"]), number)
