"""Writes Swins of every official shape, in every dialect, with PyTorch's logits, for `float/examples/parity.rs`.

    python tests/parity/full.py FOLDER [--only SUBSTRING]       (about 8 GB; needs torch, timm, transformers, torchvision)

Every parameter is drawn from a seed. Files of Swin V1 in Microsoft's naming hold timm's weights under Microsoft's names,
because both compute the same function; the logits expected of a Swin V2 in Microsoft's naming are those of
`microsoft_v2.py`, those of mmpretrain's files of `mmpretrain_swin.py`. FOLDER/cases.json lists the models and their
expected logits.
"""

import argparse
import json
from pathlib import Path

import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

from common import images, microsoft_state, redraw
from microsoft_v2 import swinv2
from mmpretrain_swin import Classifier, defaults, windows

OFFICIAL = [
    # name, image size, window, channels, depth of stage 2, heads of stage 0
    ("swin_tiny_patch4_window7_224", 224, 7, 96, 6, 3),
    ("swin_small_patch4_window7_224", 224, 7, 96, 18, 3),
    ("swin_base_patch4_window7_224", 224, 7, 128, 18, 4),
    ("swin_large_patch4_window7_224_22k", 224, 7, 192, 18, 6),
    ("swin_base_patch4_window12_384_finetune", 384, 12, 128, 18, 4),
]


OFFICIAL_V2 = [
    # name, image size, window, channels, depth of stage 2, heads of stage 0, pretrained windows
    ("swinv2_tiny_patch4_window8_256", 256, 8, 96, 6, 3, [0, 0, 0, 0]),
    ("swinv2_tiny_patch4_window16_256", 256, 16, 96, 6, 3, [0, 0, 0, 0]),
    ("swinv2_small_patch4_window8_256", 256, 8, 96, 18, 3, [0, 0, 0, 0]),
    ("swinv2_small_patch4_window16_256", 256, 16, 96, 18, 3, [0, 0, 0, 0]),
    ("swinv2_base_patch4_window8_256", 256, 8, 128, 18, 4, [0, 0, 0, 0]),
    ("swinv2_base_patch4_window16_256", 256, 16, 128, 18, 4, [0, 0, 0, 0]),
    ("swinv2_base_patch4_window12to24_192to384_22kto1k_ft", 384, 24, 128, 18, 4, [12, 12, 12, 6]),
    ("swinv2_large_patch4_window12to24_192to384_22kto1k_ft", 384, 24, 192, 18, 6, [12, 12, 12, 6]),
]


class Writer:
    def __init__(self, folder: Path, only: str):
        self.folder, self.only, self.cases = folder, only, []

    def path(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def expect(self, name: str, run, size: int, seed: int) -> str:
        """Runs the model and stores its input and logits; returns the file's name."""
        batch = images(2, size, seed)
        with torch.no_grad():
            logits = run(batch)
        save_file({"input": batch, "logits": logits.contiguous()}, self.path(f"{name}/expected.safetensors"))
        return f"{name}/expected.safetensors"

    def case(self, model: str, cfg: str | None, expected: str) -> None:
        self.cases.append({"model": model, "cfg": cfg, "expected": expected})
        (self.folder / "cases.json").write_text(json.dumps(self.cases, indent=1))
        print(model, flush=True)

    def wanted(self, name: str) -> bool:
        return self.only in name


def timm_and_microsoft(out: Writer, name: str, cfg: str, model: SwinTransformer, size: int, seed: int) -> None:
    """Writes one model in timm's and in Microsoft's naming, as .safetensors and as .pth."""
    if not out.wanted(name):
        return
    redraw(model.eval(), seed)
    expected = out.expect(name, model, size, seed + 1)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(state, out.path(f"{name}/timm.safetensors"))
    renamed = microsoft_state(model)
    save_file(renamed, out.path(f"{name}/microsoft.safetensors"))
    torch.save({"model": renamed}, out.path(f"{name}/microsoft.pth"))
    for file in ["timm.safetensors", "microsoft.safetensors", "microsoft.pth"]:
        out.case(f"{name}/{file}", cfg, expected)


def timm_and_microsoft_v2(out: Writer, name: str, cfg: str, fields: dict, seed: int) -> None:
    """Writes one Swin V2 in timm's naming, as .safetensors, and in Microsoft's, as .pth with buffers."""
    if not out.wanted(name):
        return
    arguments = {key: value for key, value in fields.items() if key != "image_size"}
    model = SwinTransformerV2(fields["image_size"], 4, **arguments).eval()
    redraw(model, seed)
    expected = out.expect(f"{name}/timm", model, fields["image_size"], seed + 1)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(state, out.path(f"{name}/timm.safetensors"))
    out.case(f"{name}/timm.safetensors", cfg, expected)
    renamed = microsoft_state(model)
    expected = out.expect(f"{name}/microsoft", lambda x: swinv2(renamed, fields, x), fields["image_size"], seed + 1)
    side = 2 * fields["window_size"] - 1
    name_of_table = "layers.0.blocks.0.attn.relative_coords_table"
    buffers = {name_of_table: model.get_buffer(name_of_table).view(1, side, side, 2)}
    torch.save({"model": renamed | buffers}, out.path(f"{name}/microsoft.pth"))
    out.case(f"{name}/microsoft.pth", cfg, expected)


def hugging_face_v2(out: Writer, name: str, fields: dict, seed: int) -> None:
    """One Swin V2 as a transformers directory."""
    if not out.wanted(name):
        return
    arguments = {key: value for key, value in fields.items() if key != "num_classes"}
    config = transformers.Swinv2Config(num_labels=fields["num_classes"], **arguments)
    model = transformers.Swinv2ForImageClassification(config).eval()
    redraw(model, seed)
    size = fields["image_size"]
    expected = out.expect(name, lambda x: model(x).logits, size, seed + 1)
    model.save_pretrained(out.path(f"{name}/hf"))
    transformers.ViTImageProcessor(size={"height": size, "width": size}).save_pretrained(out.path(f"{name}/hf"))
    out.case(f"{name}/hf", None, expected)


def mmpretrain(out: Writer, name: str, cfg: str | None, fields: dict, seed: int) -> None:
    """One model as mmpretrain's .pth; without `cfg`, a configuration is written."""
    if not out.wanted(name):
        return
    if cfg is None and fields["version"] == "v2":
        cfg = yaml_v2(out, name, fields | dict(window_size=windows(fields)[0]))
    elif cfg is None:
        shape = [fields[key] for key in ["image_size", "window_size", "embed_dim", "depths", "num_heads", "num_classes"]]
        cfg = yaml(out, name, *shape)
    model = Classifier(fields).eval()
    redraw(model, seed)
    expected = out.expect(name, model, fields["image_size"], seed + 1)
    torch.save({"meta": {}, "state_dict": model.state_dict()}, out.path(f"{name}/mmpretrain.pth"))
    out.case(f"{name}/mmpretrain.pth", cfg, expected)


def official_mmpretrain(out: Writer) -> None:
    cases = [
        ("swin_tiny_patch4_window7_224", defaults("v1")),
        ("swin_base_patch4_window12_384_finetune", defaults(
            "v1", image_size=384, window_size=12, embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]
        )),
        ("swinv2_tiny_patch4_window8_256", defaults("v2")),
        ("swinv2_tiny_patch4_window16_256", defaults("v2", window_size=[16, 16, 16, 8])),
    ]
    for seed, (cfg, fields) in enumerate(cases):
        mmpretrain(out, f"mmpretrain_{cfg}", cfg, fields, 800 + 10 * seed)


def odd_mmpretrain(out: Writer) -> None:
    """Small shapes: a last grid of one window, and grids that the dialect pads before it shifts and merges."""
    base = dict(embed_dim=24, depths=[2, 2, 2], num_heads=[2, 3, 6], num_classes=13)
    for seed, version in enumerate(["v1", "v2"]):
        # 20, 10 and 5 tokens a side in windows of 5; then 25, 13 and 7.
        for size in [80, 100]:
            fields = defaults(version, **base, image_size=size, window_size=5, pretrained_window_sizes=[0, 3, 0])
            mmpretrain(out, f"mmpretrain_{version}_{size}", None, fields, 900 + 20 * seed + size)


def torch_vision_v2(fields: dict) -> torch.nn.Module:
    return torchvision.models.SwinTransformer(
        [4, 4], fields["embed_dim"], fields["depths"], fields["num_heads"], [fields["window_size"]] * 2,
        num_classes=fields["num_classes"], block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2,
    )


def hugging_face(out: Writer, name: str, size: int, window: int, channels: int, depths, heads, classes, seed) -> None:
    """One model as a transformers directory."""
    if not out.wanted(name):
        return
    model = transformers.SwinForImageClassification(
        transformers.SwinConfig(
            image_size=size, window_size=window, embed_dim=channels, depths=depths, num_heads=heads, num_labels=classes
        )
    ).eval()
    redraw(model, seed)
    expected = out.expect(name, lambda x: model(x).logits, size, seed + 1)
    model.save_pretrained(out.path(f"{name}/hf"))
    transformers.ViTImageProcessor(size={"height": size, "width": size}).save_pretrained(out.path(f"{name}/hf"))
    out.case(f"{name}/hf", None, expected)


def torch_vision(out: Writer, name: str, cfg: str, model: torch.nn.Module, size: int, seed: int) -> None:
    """One model as torchvision's .pth."""
    if not out.wanted(name):
        return
    redraw(model.eval(), seed)
    expected = out.expect(name, model, size, seed + 1)
    torch.save(model.state_dict(), out.path(f"{name}/torchvision.pth"))
    out.case(f"{name}/torchvision.pth", cfg, expected)


def yaml_v2(out: Writer, name: str, fields: dict) -> str:
    """A configuration of a Swin V2 in Microsoft's keys; returns its name in the folder."""
    section = {
        "EMBED_DIM": "embed_dim", "DEPTHS": "depths", "NUM_HEADS": "num_heads", "WINDOW_SIZE": "window_size",
        "PRETRAINED_WINDOW_SIZES": "pretrained_window_sizes",
    }
    values = ", ".join(f"{key}: {fields[field]}" for key, field in section.items())
    lines = [
        f"DATA: {{IMG_SIZE: {fields['image_size']}}}", "MODEL:", "  TYPE: swinv2", f"  NAME: {name}",
        f"  NUM_CLASSES: {fields['num_classes']}", f"  SWINV2: {{{values}}}",
    ]
    out.path(f"{name}.yaml").write_text("\n".join(lines) + "\n")
    return f"{name}.yaml"


def official_v2(out: Writer) -> None:
    for seed, (name, size, window, channels, middle, heads, pretrained) in enumerate(OFFICIAL_V2):
        fields = dict(
            image_size=size, window_size=window, embed_dim=channels, depths=[2, 2, middle, 2],
            num_heads=[heads, 2 * heads, 4 * heads, 8 * heads], num_classes=1000, pretrained_window_sizes=pretrained,
        )
        timm_and_microsoft_v2(out, f"timm_{name}", name, fields, 400 + 10 * seed)
        hugging_face_v2(out, f"hf_{name}", fields, 402 + 10 * seed)
    for seed, (name, cfg) in enumerate([("swin_v2_t", "tiny"), ("swin_v2_s", "small"), ("swin_v2_b", "base")]):
        model = getattr(torchvision.models, name)() if out.wanted(f"torchvision_{name}") else None
        torch_vision(out, f"torchvision_{name}", f"swinv2_{cfg}_patch4_window8_256", model, 256, 500 + 10 * seed)


def odd_v2(out: Writer) -> None:
    """Small shapes of Swin V2: sizes that the windows divide, and sizes where the dialect pads."""
    base = dict(embed_dim=24, depths=[2, 2, 2], num_heads=[2, 3, 6], num_classes=13)
    even = base | dict(image_size=80, window_size=5, pretrained_window_sizes=[0, 3, 0])
    timm_and_microsoft_v2(out, "v2_even", yaml_v2(out, "v2_even", even), even, 600)
    hugging_face_v2(out, "hf_v2_even", even, 610)
    # 25, 13 and 7 tokens a side in windows of 5: padded, shifted, merged with padding.
    wide = base | dict(image_size=100, window_size=5, pretrained_window_sizes=[0, 3, 0])
    hugging_face_v2(out, "hf_v2_odd", wide, 620)
    for size, window in [(80, 5), (100, 5), (60, 7)]:
        fields = base | dict(image_size=size, window_size=window, pretrained_window_sizes=[0, 0, 0])
        name = f"torchvision_v2_{size}"
        torch_vision(out, name, yaml_v2(out, name, fields), torch_vision_v2(fields), size, 630 + size)
    # timm pads after it shifts, so it fits only where no padded stage is shifted.
    unshifted = base | dict(image_size=100, window_size=7, depths=[1, 1, 1], pretrained_window_sizes=[0, 0, 0])
    name = "timm_v2_odd"
    if out.wanted(name):
        arguments = {key: value for key, value in unshifted.items() if key != "image_size"}
        model = SwinTransformerV2(100, 4, **arguments).eval()
        redraw(model, 700)
        expected = out.expect(name, model, 100, 701)
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, out.path(f"{name}/timm.safetensors"))
        out.case(f"{name}/timm.safetensors", yaml_v2(out, name, unshifted), expected)


def yaml(out: Writer, name: str, size: int, window: int, channels: int, depths, heads, classes: int) -> str:
    """A configuration in Microsoft's keys; returns its name in the folder."""
    lines = [
        f"DATA: {{IMG_SIZE: {size}}}", "MODEL:", "  TYPE: swin", f"  NAME: {name}", f"  NUM_CLASSES: {classes}",
        f"  SWIN: {{EMBED_DIM: {channels}, DEPTHS: {depths}, NUM_HEADS: {heads}, WINDOW_SIZE: {window}}}",
    ]
    out.path(f"{name}.yaml").write_text("\n".join(lines) + "\n")
    return f"{name}.yaml"


def official(out: Writer) -> None:
    for seed, (name, size, window, channels, middle, heads) in enumerate(OFFICIAL):
        classes = 21841 if name.endswith("22k") else 1000
        model = timm.create_model(timm_name(name), num_classes=classes)
        timm_and_microsoft(out, f"timm_{name}", name, model, size, 10 * seed)
        depths, all_heads = [2, 2, middle, 2], [heads, 2 * heads, 4 * heads, 8 * heads]
        hugging_face(out, f"hf_{name}", size, window, channels, depths, all_heads, classes, 10 * seed + 2)
    for seed, (name, cfg) in enumerate([("swin_t", "tiny"), ("swin_s", "small"), ("swin_b", "base")]):
        model = getattr(torchvision.models, name)()
        torch_vision(out, f"torchvision_{name}", f"swin_{cfg}_patch4_window7_224", model, 224, 100 + 10 * seed)


def timm_name(name: str) -> str:
    return name.removesuffix("_22k").removesuffix("_finetune")


def odd(out: Writer) -> None:
    """Small shapes: a size that the windows divide, and one that they do not divide, so that the dialect pads."""
    depths, heads, classes = [2, 2, 2], [2, 3, 6], 13
    for size, label in [(80, "even"), (100, "odd")]:
        shape = (size, 5, 24, depths, heads, classes)
        if size == 80:
            model = SwinTransformer(size, 4, num_classes=classes, embed_dim=24, depths=depths, num_heads=heads, window_size=5)
            name = f"timm_{label}"
            timm_and_microsoft(out, name, yaml(out, name, *shape), model, size, 200)
        hugging_face(out, f"hf_{label}", size, 5, 24, depths, heads, classes, 210 + size)
        name = f"torchvision_{label}"
        model = torchvision.models.SwinTransformer([4, 4], 24, depths, heads, [5, 5], num_classes=classes)
        torch_vision(out, name, yaml(out, name, *shape), model, size, 220 + size)
    # timm pads after it shifts, so it fits only where no padded stage is shifted: here one unshifted block each.
    name, depths = "timm_odd", [1, 1, 1]
    model = SwinTransformer(100, 4, num_classes=classes, embed_dim=24, depths=depths, num_heads=heads, window_size=7)
    if out.wanted(name):
        redraw(model.eval(), 300)
        expected = out.expect(name, model, 100, 301)
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, out.path(f"{name}/timm.safetensors"))
        out.case(f"{name}/timm.safetensors", yaml(out, name, 100, 7, 24, depths, heads, classes), expected)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="write only the cases whose name holds this")
    arguments = parser.parse_args()
    writer = Writer(arguments.folder, arguments.only)
    odd(writer)
    odd_v2(writer)
    odd_mmpretrain(writer)
    official(writer)
    official_v2(writer)
    official_mmpretrain(writer)
