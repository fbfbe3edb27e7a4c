"""Times programs with stacks of Swin blocks on a CPU: the float program beside that with its stacks in INT8, in turn in one process.

    python bindings/python/bench/stacks_on_cpu.py [--threads 2] [--calls 9] [--only TEXT] [--json FILE]

Programs are whole: SwinIR's convolutions and CLAP's embedding and pooling stay in PyTorch, in f32. Weights are random. Each column is the
median of calls that alternate. `SWINQ_ISA` forces the instruction set of the engine; `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` that of
PyTorch. Needs PyTorch, transformers and spandrel.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from spandrel.architectures.SwinIR import SwinIR
from transformers import ClapAudioConfig, ClapAudioModel

import swinq.torch


def swinir(width: int, groups: int, upsampler: str) -> Any:
    """A SwinIR for twice the size, with ``groups`` groups of six blocks of ``width`` channels."""
    return SwinIR(
        depths=[6] * groups, num_heads=[6] * groups, embed_dim=width, window_size=8, mlp_ratio=2, upscale=2, img_size=64, upsampler=upsampler
    )


#: Name, the program, and the keywords of a call.
CASES: list[tuple[str, Callable[[], Any], Callable[[], dict[str, Any]]]] = [
    ("SwinIR light x2, 112x112", lambda: swinir(60, 4, "pixelshuffledirect"), lambda: {"x": torch.rand(1, 3, 112, 112)}),
    ("SwinIR M x2, 64x64", lambda: swinir(180, 6, "pixelshuffle"), lambda: {"x": torch.rand(1, 3, 64, 64)}),
    (
        "CLAP tiny, audio encoder",
        lambda: ClapAudioModel(ClapAudioConfig(enable_fusion=False)),
        lambda: {"input_features": torch.randn(1, 1, 1001, 64)},
    ),
]


def times(calls: list[Callable[[], object]], count: int) -> list[float]:
    """Milliseconds of each call: medians of ``count``, in turn."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(count + 1):
        for call, values in zip(calls, found, strict=True):
            begin = time.perf_counter()
            call()
            values.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(values[1:]) for values in found]


def case(name: str, program: Any, batch: dict[str, Any], threads: int, count: int) -> dict[str, Any]:
    program = program.eval()
    quantized = copy.deepcopy(program)
    swinq.torch.quantize(quantized, [batch], ptq="basic", threads=threads, share=False, progress=False)
    float_ms, int8_ms = times([lambda: program(**batch), lambda: quantized(**batch)], count)
    print(f"{name:<28} PyTorch f32 {float_ms:8.1f} ms, stacks in INT8 {int8_ms:8.1f} ({int8_ms / float_ms:.2f}x)", flush=True)
    return {"case": name, "float_ms": float_ms, "int8_ms": int8_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    found: dict[str, Any] = {"torch": torch.__version__, "threads": arguments.threads, "cases": []}
    with torch.inference_mode():
        for name, build, batch in CASES:
            if arguments.only in name:
                found["cases"].append(case(name, build(), batch(), arguments.threads, arguments.calls))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
