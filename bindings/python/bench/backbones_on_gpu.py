"""Times backbones on a GPU, engines beside transformers' SwinBackbone in f16 under torch.compile, in one process.

    python bindings/python/bench/backbones_on_gpu.py [--cases 0 1 2 3] [--sizes detector 200] [--json FILE]

Four maps are written to f16 tensors on the device, images come from f16 tensors there; weights are random. Times are those of the
GPU: of engines between two events behind a kernel that keeps the GPU busy, of torch.compile (mode `reduce-overhead`) between two
events around calls that replay its CUDA graph. Then images of many sizes, each waited for, against one size of the mean area:
`detector` is 500 images of the 20 sizes of a detector (short side 800, long side 1056 to 1344, both ways) in random order, and a number
is as many random sizes, each five times in random order. Needs PyTorch, transformers and a GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import time
from typing import Any

import torch
from calls_on_gpu import Program, compiled_ms, gpu_ms
from transformers import SwinBackbone, SwinConfig

import swinq.torch

STAGES = ["stage1", "stage2", "stage3", "stage4"]
TINY = {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24], "window_size": 7, "image_size": 224}
LARGE = {"embed_dim": 192, "depths": [2, 2, 18, 2], "num_heads": [6, 12, 24, 48], "window_size": 12, "image_size": 384}
#: Name, configuration, height, width, images.
CASES = [
    ("Swin-T", TINY, 800, 1344, 1),
    ("Swin-T", TINY, 800, 1344, 8),
    ("Swin-T", TINY, 512, 512, 1),
    ("Swin-L window 12", LARGE, 1024, 1024, 1),
]


def backbone(config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return SwinBackbone(SwinConfig(**config, out_features=STAGES)).eval().cuda()


def engine_of(model: Any, images: Any, recipe: str | None, **options: Any) -> Any:
    program = Program(copy.deepcopy(model))
    swinq.torch.quantize(program, [images[:1].float()], recipe, ptq="basic", backend="cuda", **options)
    return program.swin.engine_for(images.device)


def engine_ms(engine: Any, images: Any) -> float:
    out = engine.run(images, dtype="float16")
    for _ in range(20):
        engine.run(images, out=out)
    return statistics.median(gpu_ms(lambda: engine.run(images, out=out), 30) for _ in range(5))


def case(name: str, config: dict[str, Any], height: int, width: int, batch: int) -> dict[str, Any]:
    model = backbone(config)
    images = torch.randn(batch, 3, height, width, device="cuda").half()
    found: dict[str, Any] = {"case": f"{name} {height}x{width} batch {batch}"}
    found["int8_ms"] = engine_ms(engine_of(model, images, "default", max_batch=batch), images)
    found["fp16_ms"] = engine_ms(engine_of(model, images, None, max_batch=batch), images)
    found["torch_ms"] = compiled_ms(copy.deepcopy(model).half(), lambda run: run(images), 30)
    ratios = [found[key] / found["torch_ms"] for key in ("int8_ms", "fp16_ms")]
    print(
        f"{found['case']:<36} torch.compile {found['torch_ms']:.3f} ms, INT8 {found['int8_ms']:.3f} ({ratios[0]:.3f}x), "
        f"FP16 {found['fp16_ms']:.3f} ({ratios[1]:.3f}x)",
        flush=True,
    )
    return found


Size = tuple[int, int]


def order_of(name: str, rng: random.Random) -> list[Size]:
    """The sizes of the images of a measurement, in their order."""
    if name == "detector":
        sides = [(800, side) for side in range(1056, 1345, 32)]
        sizes = [*sides, *((width, height) for height, width in sides)]
        return [rng.choice(sizes) for _ in range(500)]
    sizes = [(rng.randrange(256, 1025), rng.randrange(256, 1345)) for _ in range(int(name))]
    order = sizes * 5
    rng.shuffle(order)
    return order


def many_sizes(name: str) -> dict[str, Any]:
    """Images of many sizes, against one size of their mean area."""
    order = order_of(name, random.Random(0))
    sizes = list(dict.fromkeys(order))
    area = sum(height * width for height, width in order) / len(order)
    side = round(area**0.5)
    images = {size: torch.randn(1, 3, *size, device="cuda").half() for size in [*sizes, (side, side)]}
    engine = engine_of(backbone(TINY), images[sizes[0]], "default", max_batch=1)

    def seconds(size: Size) -> float:
        begin = time.perf_counter()
        engine.run(images[size], dtype="float16")
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    seconds((side, side))
    same = statistics.median(seconds((side, side)) for _ in range(200))
    times: dict[Size, list[float]] = {}
    for size in order:
        times.setdefault(size, []).append(seconds(size))
    total = sum(sum(values) for values in times.values())
    rate = (area * len(order) / total) / (side * side / same)
    first = sorted(1e3 * (values[0] - statistics.median(values[1:] or values)) for values in times.values())
    late = first[int(0.95 * (len(first) - 1))]
    found = {"sizes": name, "rate": rate, "first_ms": statistics.median(first), "first_ms_95": late, "first_ms_max": first[-1]}
    print(
        f"{len(sizes)} sizes, {len(order)} images: {rate:.3f} of the pixels per second of {side}x{side}; the first image of a size costs "
        f"{found['first_ms']:.2f} ms more ({late:.2f} at 95 %, at most {first[-1]:.2f})",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", type=int, default=range(len(CASES)))
    parser.add_argument("--sizes", nargs="*", default=["detector", "200"])
    parser.add_argument("--json")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    with torch.inference_mode():
        found["many"] = [many_sizes(name) for name in arguments.sizes]
        found["cases"] = [case(*CASES[index]) for index in arguments.cases]
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
