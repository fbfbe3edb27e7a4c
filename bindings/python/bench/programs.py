"""Whole programs with random weights: eager, compiled, with the Swin in INT8, and with the rest compiled, in turn in one process.

    python programs.py [--device cuda|cpu] [--only TEXT] [--json FILE] [--calls N]

A row is a program in a published size. Columns are medians in milliseconds of rounds that make each call once: the original, it under
``torch.compile``, after ``swinq.torch.quantize``, and that under ``torch.compile``; on a GPU in f16 (OpenMMLab's programs and
MaskFormer, which need f32 parameters, under autocast), and "compiled" is the mode reduce-overhead with ``fullgraph=True`` where the
program compiles so.
It also prints how many graphs were compiled, how many CUDA graphs were recorded or skipped, and whether the compiled program has the bits
of the uncompiled module. "Swin" are times of the Swin alone. It needs torch, transformers and timm, and the folder of tests beside it;
rows of OpenMMLab's packages need these (CONTRIBUTING.md), and are errors without them.
"""

import argparse
import copy
import json
import statistics
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import timm
import torch_full
import torch_openmmlab
from torch_models import images, redraw
from torch_support import Inside, leaves

import swinq.torch

#: Rows: the program, the number of images and their size.
ROWS = {
    "timm Swin-T features_only with a head, 224x224": ("head", 1, (224, 224)),
    "Segmenter with a pyramid, Swin-T, 512x640": ("pyramid", 1, (512, 640)),
    "UPerNet Swin-T, 512x512": ("UPerNet, Swin-T", 1, (512, 512)),
    "UPerNet Swin-T, 512x512, batch 8": ("UPerNet, Swin-T", 8, (512, 512)),
    "DPT Swin V2-B, 384x384": ("DPT, Swin V2-B", 1, (384, 384)),
    "Mask2Former Swin-T, 800x1344": ("Mask2Former, Swin-T", 1, (800, 1344)),
    "Mask2Former Swin-L, 1024x1024": ("Mask2Former, Swin-L", 1, (1024, 1024)),
    "Grounding DINO Swin-T, 800x1344": ("Grounding DINO, Swin-T", 1, (800, 1344)),
    "mmsegmentation UPerNet Swin-T, 512x512": ("mmsegmentation, UPerNet", 1, (512, 512)),
    "mmdet RetinaNet Swin-T, 800x1344": ("mmdet, RetinaNet", 1, (800, 1344)),
    "mmdet Mask2Former Swin-T, 800x1344": ("mmdet, Mask2Former", 1, (800, 1344)),
    "MaskFormer Swin-B, 640x640": ("MaskFormer, Swin-B", 1, (640, 640)),
    "OneFormer Swin-T, 512x512": ("OneFormer, Swin-T", 1, (512, 512)),
    "timm Swin-S features_only, 512x512": ("timm, Swin-S features_only", 1, (512, 512)),
    "timm Swin V2-B features_only, 256x256": ("timm, Swin V2-B features_only", 1, (256, 256)),
    "torchvision Swin-B features, 512x512": ("torchvision, Swin-B features", 1, (512, 512)),
    "torchvision Swin V2-S, 256x256": ("torchvision, Swin V2-S", 1, (256, 256)),
    "mmpretrain Swin-T classifier, 224x224": ("mmpretrain, Swin classifier", 1, (224, 224)),
    "mmpretrain Swin V2-T classifier, 256x256": ("mmpretrain, Swin V2 classifier", 1, (256, 256)),
    "Donut's encoder, 2560x1920": ("Donut, donut-base", 1, (2560, 1920)),
}


class Head(torch.nn.Module):
    """A segmenter: features of a Swin-T of timm, and one convolution on each."""

    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("swin_tiny_patch4_window7_224", features_only=True)
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(96 << stage, 16, 1) for stage in range(4))

    def forward(self, pixel_values):
        maps = [conv(x.permute(0, 3, 1, 2)) for conv, x in zip(self.convs, self.backbone(pixel_values), strict=True)]
        return sum(torch.nn.functional.interpolate(x, maps[0].shape[-2:]) for x in maps)


class Pyramid(torch.nn.Module):
    """A segmenter: features of a Swin-T of timm, a feature pyramid of 128 channels, and two convolutions."""

    def __init__(self, size: tuple[int, int]):
        super().__init__()
        options = {"features_only": True, "img_size": size, "strict_img_size": False}
        self.backbone = timm.create_model("swin_tiny_patch4_window7_224", **options)
        self.lateral = torch.nn.ModuleList(torch.nn.Conv2d(96 << stage, 128, 1) for stage in range(4))
        self.conv, self.out = torch.nn.Conv2d(128, 128, 3, padding=1), torch.nn.Conv2d(128, 10, 1)

    def forward(self, pixel_values):
        found = None
        for lateral, x in reversed([*zip(self.lateral, self.backbone(pixel_values), strict=True)]):
            y = lateral(x.permute(0, 3, 1, 2))
            found = y if found is None else y + torch.nn.functional.interpolate(found, y.shape[-2:], mode="bilinear")
        return self.out(torch.relu(self.conv(found)))


def made(name: str, pixels: torch.Tensor):
    """A program, and the arguments of a call with images."""
    batch = {"pixel_values": pixels}
    if name == "head":
        return redraw(Head(), seed=1), batch
    if name == "pyramid":
        return redraw(Pyramid(tuple(pixels.shape[-2:])), seed=1), batch
    if name in torch_openmmlab.PROGRAMS:
        program, _ = torch_full.of_openmmlab(name)
        return program, torch_openmmlab.arguments(name, pixels)
    if name in torch_full.BACKBONES:
        make, _ = torch_full.BACKBONES[name]
        return redraw(Inside(make()), seed=1), {"x": pixels}
    make, _ = torch_full.TRANSFORMERS[name]
    program, more = make()
    program = redraw(program, seed=1)
    if name.startswith("Donut"):
        return program.encoder, batch
    return program, batch | {key: value[:1].repeat(len(pixels), *[1] * (value.ndim - 1)) for key, value in more.items()}


def in_turn(calls: dict, device: str, count: int) -> dict[str, float]:
    """The medians of ``count`` rounds in milliseconds. Each round makes every call once, and waits for each."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            found[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(times) for name, times in found.items()}


def cuda_graphs() -> int:
    """The CUDA graphs that compiled programs have recorded."""
    manager = torch._inductor.cudagraph_trees.get_container(0).tree_manager
    return 0 if manager is None else copy.copy(manager.graph_counter).__reduce__()[1][0]


def compiled(program, call, expected, device: str):
    """The program under ``torch.compile`` after its first calls, and what is known of its graphs."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    facts: dict = {}
    recorded = cuda_graphs() if device == "cuda" else 0
    options = {"mode": "reduce-overhead"} if device == "cuda" else {}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        start = time.perf_counter()
        for full in (True, False):
            try:
                found = torch.compile(program, fullgraph=full, **options)
                for _ in range(4):
                    result = leaves(call(found))
                break
            except Exception as error:  # noqa: BLE001 (whatever a compiler raises is printed)
                facts["fullgraph_error"] = f"{type(error).__name__}: {str(error)[:1500]}"
                if not full:
                    return None, facts
    facts |= {
        "fullgraph": full,
        "seconds": time.perf_counter() - start,
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "cudagraph_skips": counters["inductor"]["cudagraph_skips"],
        "warnings": sorted({str(each.message)[:300] for each in heard if "cuda graph" in str(each.message).lower() or "dynamo" in str(each.message).lower()}),
    }
    if device == "cuda":
        facts["cuda_graphs"] = cuda_graphs() - recorded
    facts["same_bits"] = all(torch.equal(one, two) for (_, one), (_, two) in zip(result, expected, strict=True))
    norm = sum(float((one.double() - two.double()).norm()) for (_, one), (_, two) in zip(result, expected, strict=True))
    facts["distance"] = norm / sum(float(two.double().norm()) for _, two in expected)
    return found, facts


def measured(row: str, device: str, count: int) -> dict:
    name, number, size = ROWS[row]
    mixed = device == "cuda" and (name in torch_openmmlab.PROGRAMS or name == "MaskFormer, Swin-B")
    dtype = torch.float16 if device == "cuda" and not mixed else torch.float32
    program, batch = made(name, images(number, *size).to(dtype))
    program = program.to(device, dtype).eval()
    batch = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
    call = lambda model: model(**batch)  # noqa: E731
    found: dict = {"row": row}
    torch.compiler.reset()
    with torch.no_grad(), torch.autocast(device, torch.float16, enabled=mixed):
        original = copy.deepcopy(program)
        report = swinq.torch.quantize(program, [batch], ptq="basic", samples=number)
        found["sqnr_db"] = min(report.replaced[0].sqnr_db.values())
        timed = {}
        for kind, model in (("float", original), ("INT8", report.model)):
            expected = [(place, value.clone()) for place, value in leaves(call(model))]
            fast, found[f"{kind} graphs"] = compiled(model, call, expected, device)
            timed[f"{kind} eager"] = partial(call, model)
            if fast is not None:
                timed[f"{kind} compiled"] = partial(call, fast)
        (place,) = report.replaced[0].names
        timed |= alone(original.get_submodule(place), report.model.get_submodule(place), partial(call, original), device)
        for each in timed.values():
            each()
        found |= in_turn(timed, device, count)
    return found


def alone(original, swin, call, device: str) -> dict:
    """Calls of the Swin without the rest: of the compiled original, and in INT8."""
    seen = []
    hook = original.register_forward_pre_hook(lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
    call()
    hook.remove()
    args, kwargs = seen[0]
    fast = torch.compile(original, **({"mode": "reduce-overhead"} if device == "cuda" else {}))
    for _ in range(3):
        fast(*args, **kwargs)
    return {"Swin compiled": lambda: fast(*args, **kwargs), "Swin INT8": lambda: swin(*args, **kwargs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="the row of this name, or rows whose name contains it")
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    # The original and its copy are compiled in one process.
    torch._dynamo.config.recompile_limit = 64
    results = []
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name() if arguments.device == 'cuda' else torch.get_num_threads()}")
    for row in [arguments.only] if arguments.only in ROWS else [row for row in ROWS if arguments.only in row]:
        try:
            found = measured(row, arguments.device, arguments.calls)
        except Exception as error:  # noqa: BLE001 (a row that fails must not end the others)
            found = {"row": row, "error": f"{type(error).__name__}: {error}"}
        results.append(found)
        print(json.dumps(found), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1))
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
