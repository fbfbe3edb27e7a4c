"""Programs of OpenMMLab's packages by the configurations in them, with random parameters.

mmpretrain, mmsegmentation and mmdet run beside ``mmcv-lite==2.1.0``, which has no compiled operators; a stand-in has that which
the programs need, by torchvision.
"""

import contextlib
import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import torch
import torchvision

#: Heads of a backbone of 32 channels.
TINY = {"embed_dims": 32, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 4, 8]}
CHANNELS = [32, 64, 128, 256]


def _nms(boxes, scores, iou_threshold, offset):
    assert offset == 0
    return torchvision.ops.nms(boxes, scores, iou_threshold)


class _Operators(types.ModuleType):
    """Stands for ``mmcv._ext``."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "nms":
            return _nms

        def missing(*_, **__):
            raise RuntimeError(f"mmcv-lite has no operator {name}")

        return missing


def package(name: str):
    """The package, ready to build its models.

    Raises:
        ImportError: if it is not installed.
    """
    importlib.import_module("mmcv")
    if importlib.util.find_spec("mmcv._ext") is None:
        module = _Operators("mmcv._ext")
        module.__spec__ = ModuleSpec("mmcv._ext", None)
        sys.modules["mmcv._ext"] = module
    if importlib.util.find_spec("mmpretrain") is not None:
        # mmdet imports it, too. Its multimodal models need transformers 4.
        importlib.import_module("mmpretrain.utils.dependency").WITH_MULTIMODAL = False
    importlib.import_module(f"{name}.models")
    return importlib.import_module(name)


def built(name: str, config: str, changes: dict) -> torch.nn.Module:
    """The model of a configuration of a package, without the weights that it would download, with ``changes`` in it."""
    from mmengine import Config
    from mmengine.registry import DefaultScope

    found = package(name)
    file = Path(found.__file__).parent / ".mim/configs" / config
    described = Config.fromfile(file).model
    for key, value in {"backbone.init_cfg": None, **changes}.items():
        part, _, last = key.rpartition(".")
        described[part][last] = value
    registry = importlib.import_module(f"{name}.registry").MODELS
    with contextlib.ExitStack() as stack:
        stack.enter_context(DefaultScope.overwrite_default_scope(name))
        return registry.build(described).eval()


#: Programs by name: the package, the configuration, what is changed for a tiny one (``None``: there is none), and the size of images.
PROGRAMS = {
    "mmpretrain, Swin classifier": (
        "mmpretrain", "swin_transformer/swin-tiny_16xb64_in1k.py",
        {"backbone.arch": TINY, "head.in_channels": 256}, (224, 224),
    ),
    "mmpretrain, Swin V2 classifier": (
        "mmpretrain", "swin_transformer_v2/swinv2-tiny-w8_16xb64_in1k-256px.py",
        {"backbone.arch": {**TINY, "extra_norm_every_n_blocks": 0}, "head.in_channels": 256}, (256, 256),
    ),
    "mmsegmentation, UPerNet": (
        "mmseg", "swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py",
        {**{f"backbone.{key}": value for key, value in TINY.items()}, "decode_head.in_channels": CHANNELS,
         "decode_head.channels": 32, "auxiliary_head.in_channels": 128, "auxiliary_head.channels": 32}, (256, 320),
    ),
    "mmdet, RetinaNet": (
        "mmdet", "swin/retinanet_swin-t-p4-w7_fpn_1x_coco.py",
        {**{f"backbone.{key}": value for key, value in TINY.items()}, "neck.in_channels": CHANNELS[1:], "neck.out_channels": 32,
         "bbox_head.in_channels": 32, "bbox_head.feat_channels": 32, "bbox_head.stacked_convs": 1}, (256, 320),
    ),
    "mmdet, Mask2Former": (
        "mmdet", "mask2former/mask2former_swin-t-p4-w7-224_8xb2-lsj-50e_coco-panoptic.py", None, (256, 320),
    ),
}  # fmt: skip


def samples(kind: str, images: torch.Tensor) -> list:
    """The descriptions of images that a package's programs take beside them."""
    size = tuple(images.shape[-2:])
    meta = {"img_shape": size, "ori_shape": size, "pad_shape": size, "batch_input_shape": size, "scale_factor": (1.0, 1.0)}
    sample = {"mmpretrain": "DataSample", "mmseg": "SegDataSample", "mmdet": "DetDataSample"}[kind]
    made = getattr(importlib.import_module(f"{kind}.structures"), sample)
    return [made(metainfo=dict(meta)) for _ in images]


def arguments(name: str, images: torch.Tensor) -> dict:
    """The arguments of a call of the program ``name`` that gives tensors."""
    kind = PROGRAMS[name][0]
    more = {"data_samples": samples(kind, images)} if kind == "mmdet" else {}
    return {"inputs": images, "mode": "tensor", **more}


def calls(name: str, images: torch.Tensor):
    """What calibrates the program ``name`` on images, and what runs it with its own predictions."""
    kind = PROGRAMS[name][0]

    def run(program):
        return program(**arguments(name, images))

    def whole(program):
        return {"outputs": run(program), "predictions": [one.to_dict() for one in program.predict(images, samples(kind, images))]}

    return run, whole


def check(test, results) -> None:
    """Predictions of two images: classes, maps or boxes."""
    test.assertEqual(len(results["predictions"]), 2)
    for one in results["predictions"]:
        if "pred_label" in one:
            test.assertEqual((tuple(one["pred_label"].shape), one["pred_score"].ndim), ((1,), 1))
        elif "pred_sem_seg" in one:
            test.assertEqual(tuple(one["pred_sem_seg"]["data"].shape), (1, *one["img_shape"]))
        else:
            found = one["pred_instances"]
            test.assertGreater(len(found["scores"]), 0)
            test.assertEqual(tuple(found["bboxes"].shape), (len(found["labels"]), 4))
            if "pred_panoptic_seg" in one:
                test.assertEqual(tuple(one["pred_panoptic_seg"]["sem_seg"].shape)[-2:], one["img_shape"])
