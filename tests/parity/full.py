"""Writes Swins of every official shape, in every dialect, with PyTorch's logits, for `float/examples/parity.rs`.

    python tests/parity/full.py FOLDER [--only SUBSTRING]       (about 8 GB; needs torch, timm, transformers, torchvision)

Every parameter is drawn from a seed. Files in Microsoft's naming hold timm's weights under Microsoft's names, because
both compute the same function. FOLDER/cases.json lists the models and their expected logits.
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

from common import images, microsoft_state, redraw

OFFICIAL = [
    # name, image size, window, channels, depth of stage 2, heads of stage 0
    ("swin_tiny_patch4_window7_224", 224, 7, 96, 6, 3),
    ("swin_small_patch4_window7_224", 224, 7, 96, 18, 3),
    ("swin_base_patch4_window7_224", 224, 7, 128, 18, 4),
    ("swin_large_patch4_window7_224_22k", 224, 7, 192, 18, 6),
    ("swin_base_patch4_window12_384_finetune", 384, 12, 128, 18, 4),
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
    official(writer)
