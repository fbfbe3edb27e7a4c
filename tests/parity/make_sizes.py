"""Writes the fixtures of image sizes: small models of timm, transformers, torchvision and mmpretrain with images that are not
square, of several sizes, or with one or four channels, and the logits of these libraries.

    python tests/parity/make_sizes.py     (needs torch, timm, transformers, torchvision, mmpretrain and safetensors)

float/tests/fixtures/sizes/NAME.safetensors holds the library's state dictionary under `model.`, and for each image size
`logits.HxW` of two images. The metadata `model` has the library's description of the model (`config`, and for transformers
`preprocessor`), or what a configuration must state (`opts`). The value at flat index i of the images is
`((i * 2654435761 mod 2^32) >> 8) / 2^22 - 2`, which f32 holds exactly.
"""

import json
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from torchvision.models.swin_transformer import PatchMerging, PatchMergingV2, SwinTransformer as TorchVision
from torchvision.models.swin_transformer import SwinTransformerBlock, SwinTransformerBlockV2
from transformers import SwinConfig, SwinForImageClassification, Swinv2Config, Swinv2ForImageClassification

from common import redraw
from mmpretrain_swin import defaults, installed

FIXTURES = Path(__file__).resolve().parents[2] / "float" / "tests" / "fixtures" / "sizes"
CLASSES = 5
SMALL = dict(embed_dim=6, depths=[2, 2, 2], num_heads=[1, 2, 3], mlp_ratio=2.0)


def images(channels: int, size: tuple[int, int]) -> torch.Tensor:
    index = np.arange(2 * channels * size[0] * size[1], dtype=np.uint64)
    values = ((index * 2654435761) % 2**32 >> 8).astype(np.float64) / 2**22 - 2
    return torch.tensor(values, dtype=torch.float32).reshape(2, channels, *size)


def write(name: str, model: torch.nn.Module, seed: int, description: dict, sizes: list, channels: int = 3, fresh=None):
    """Redraws the parameters of `model`. `fresh` makes a new model for an image size, where what the model keeps of it matters."""
    redraw(model.eval(), seed)
    state = model.state_dict()
    tensors = {f"model.{key}": value.clone().contiguous() for key, value in state.items() if value.is_floating_point()}
    for size in sizes:
        runs = model
        if fresh is not None:
            runs = fresh(size).eval()
            runs.load_state_dict(state, strict=False)
        with torch.no_grad():
            logits = runs(images(channels, size))
        tensors[f"logits.{size[0]}x{size[1]}"] = getattr(logits, "logits", logits).contiguous()
    FIXTURES.mkdir(exist_ok=True)
    save_file(tensors, FIXTURES / f"{name}.safetensors", metadata={"model": json.dumps(description)})
    print(name, (FIXTURES / f"{name}.safetensors").stat().st_size)


def of_timm(name: str, version: str, window, built, sizes=None, channels=3, strict=True, seed=1):
    base = {"v1": "swin_tiny_patch4_window7_224", "v2": "swinv2_tiny_window8_256"}[version]
    args = dict(SMALL, img_size=list(built), window_size=window, in_chans=channels, num_classes=CLASSES)
    if not strict:
        args["strict_img_size"] = False
    mean = [0.5] * channels
    cfg = dict(input_size=[channels, *built], crop_pct=1.0, crop_mode="squash", mean=mean, std=mean)
    config = dict(architecture=base, num_classes=CLASSES, model_args=args, pretrained_cfg=cfg)

    def build(size):
        return timm.create_model(base, pretrained=False, **dict(args, img_size=tuple(size)))

    # A strict model at another size is what `create_model` gives for that size.
    write(name, build(built), seed, dict(config=config), sizes or [built], channels, build if strict else None)


def of_transformers(name: str, version: str, window: int, built, sizes=None, channels=3, seed=2):
    kinds = {"v1": (SwinConfig, SwinForImageClassification), "v2": (Swinv2Config, Swinv2ForImageClassification)}
    config_of, model_of = kinds[version]
    config = config_of(image_size=tuple(built), window_size=window, num_channels=channels, num_labels=CLASSES, **SMALL)
    mean = [0.5] * channels
    size = dict(height=built[0], width=built[1])
    preprocessor = dict(do_resize=True, size=size, image_mean=mean, image_std=mean, do_normalize=True)
    description = dict(config=config.to_dict(), preprocessor=preprocessor)
    fresh = lambda _: model_of(config)  # noqa: E731
    write(name, model_of(config), seed, description, sizes or [built], channels, fresh)


def of_torchvision(name: str, version: str, window, built, sizes, seed=3):
    block, merging = {
        "v1": (SwinTransformerBlock, PatchMerging), "v2": (SwinTransformerBlockV2, PatchMergingV2),
    }[version]

    def build(_):
        return TorchVision(
            [4, 4], SMALL["embed_dim"], SMALL["depths"], SMALL["num_heads"], list(window), SMALL["mlp_ratio"],
            num_classes=CLASSES, block=block, downsample_layer=merging,
        )

    write(name, build(built), seed, dict(opts=opts(version, built, window)), sizes, 3, build)


def of_mmpretrain(name: str, version: str, window, built: int, sizes, seed=4):
    windows = {"v1": window, "v2": [window] * 3}[version]
    fields = defaults(version, **SMALL, num_classes=CLASSES, image_size=built, window_size=windows)
    fresh = lambda _: installed(fields)  # noqa: E731
    write(name, installed(fields), seed, dict(opts=opts(version, (built, built), (window, window))), sizes, 3, fresh)


def of_pretrained_windows(name: str, seed=6):
    """A Swin V2 of timm's with windows of an earlier training, which only the values of Microsoft's buffers tell."""
    side, window = (64, 64), (4, 4)
    model = timm.create_model(
        "swinv2_tiny_window8_256", pretrained=False, num_classes=CLASSES, img_size=side, window_size=window,
        pretrained_window_sizes=[2, 3, 4], **SMALL,
    )
    for module in model.modules():
        if "relative_coords_table" in module._non_persistent_buffers_set:
            module._non_persistent_buffers_set.remove("relative_coords_table")
            rows = 2 * module.window_size[0] - 1
            table = module.relative_coords_table
            module.relative_coords_table = table.view(1, rows, -1, 2)
    write(name, model, seed, dict(opts=opts("v2", side, window)), [side])


def opts(version: str, built, window) -> dict:
    """The keys of a configuration."""
    section = {"v1": "MODEL.SWIN", "v2": "MODEL.SWINV2"}[version]
    own = dict(EMBED_DIM=SMALL["embed_dim"], DEPTHS=SMALL["depths"], NUM_HEADS=SMALL["num_heads"], MLP_RATIO=2.0)
    own["WINDOW_SIZE"] = list(window)
    kind = {"v1": "swin", "v2": "swinv2"}[version]
    keys = {"MODEL.TYPE": kind, "DATA.IMG_SIZE": list(built), "MODEL.NUM_CLASSES": CLASSES}
    return keys | {f"{section}.{key}": value for key, value in own.items()}


def main():
    for side in [64, 256, 384]:
        of_timm(f"timm_v1_{side}", "v1", 7, (side, side))
    # Windows of 7x7, 4x7 and 2x7; of 7x7, 7x7 and 3x7, with a stage of 5x9 tokens that timm takes for 4x9.
    of_timm("timm_v1_32x224", "v1", 7, (32, 224))
    of_timm("timm_v1_76x144", "v1", 7, (76, 144))
    of_timm("timm_v1_wide_window", "v1", [4, 6], (64, 96))
    of_timm("timm_v1_gray", "v1", 4, (48, 64), channels=1)
    of_timm("timm_v1_strict", "v1", 4, (64, 64), sizes=[(64, 64), (96, 80), (120, 68)])
    of_timm("timm_v1_any", "v1", 4, (64, 64), sizes=[(64, 64), (96, 80), (120, 68)], strict=False)
    for side in [96, 224]:
        of_timm(f"timm_v2_{side}", "v2", 8, (side, side))
    of_timm("timm_v2_rectangle", "v2", 8, (48, 128))
    of_timm("timm_v2_any", "v2", 4, (64, 64), sizes=[(64, 64), (96, 80), (120, 68)], strict=False)
    of_transformers("hf_v1_rectangle", "v1", 4, (80, 64), sizes=[(80, 64), (64, 112), (70, 90)])
    of_transformers("hf_v1_four", "v1", 4, (64, 72), channels=4)
    of_transformers("hf_v2_rectangle", "v2", 4, (80, 64), sizes=[(80, 64), (64, 112), (70, 90)])
    of_transformers("hf_v2_shrunk", "v2", 8, (64, 80), sizes=[(64, 80), (96, 64)])
    of_transformers("hf_v2_gray", "v2", 4, (64, 72), channels=1)
    of_pretrained_windows("timm_v2_pretrained_windows")
    for version in ["v1", "v2"]:
        of_torchvision(f"torchvision_{version}", version, (4, 6), (48, 64), [(48, 64), (64, 48), (100, 36)])
        of_mmpretrain(f"mmpretrain_{version}", version, 4, 64, [(64, 64), (80, 100), (68, 76)], seed=5)


if __name__ == "__main__":
    main()
