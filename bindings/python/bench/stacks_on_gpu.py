"""Times stacks of Swin blocks on a GPU, beside the same stacks under torch.compile in bf16, in one process.

    python bindings/python/bench/stacks_on_gpu.py [--json FILE]

SwinIR-M is one of its six groups of blocks on a grid of 256 x 256 tokens, and CLAP is the audio encoder of the tiny model, whose stages
are its stacks; weights are random. Times are those of the GPU, between two events behind a kernel that keeps the GPU busy; of
torch.compile (mode `reduce-overhead`) between two events around calls that replay its CUDA graph. The engine keeps the residual of SwinIR
in f32, because f16 needs a multiple of 8 channels. Needs PyTorch, transformers, spandrel and a GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from typing import Any

import torch
from calls_on_gpu import compiled_ms, gpu_ms
from spandrel.architectures.SwinIR import SwinIR
from transformers import ClapAudioConfig, ClapAudioModel

import swinq.torch

#: Tokens of a side of SwinIR's grid.
SIDE = 256


class Group(torch.nn.Module):
    """The blocks of one group of SwinIR-M."""

    def __init__(self) -> None:
        super().__init__()
        network = SwinIR(depths=[6], num_heads=[6], embed_dim=180, window_size=8, mlp_ratio=2, upscale=2, img_size=SIDE, upsampler="pixelshuffle")
        self.blocks = network.layers[0].residual_group

    def forward(self, tokens: Any) -> Any:
        return self.blocks(tokens, (SIDE, SIDE))


def case(name: str, program: Any, tensors: Any) -> dict[str, Any]:
    halves = {key: value.bfloat16() for key, value in tensors.items()}
    found = {"case": name, "torch_ms": compiled_ms(copy.deepcopy(program).bfloat16(), lambda run: run(**halves), 20)}
    images = [{key: value[:1] for key, value in tensors.items()}]
    swinq.torch.quantize(program, images, ptq="basic", backend="cuda", max_batch=next(iter(tensors.values())).shape[0])
    compiled = torch.compile(program, mode="reduce-overhead")
    for _ in range(10):
        compiled(**tensors)
    found["swinq_ms"] = statistics.median(gpu_ms(lambda: compiled(**tensors), 20) for _ in range(5))
    for _ in range(5):
        program(**tensors)
    found["eager_ms"] = statistics.median(gpu_ms(lambda: program(**tensors), 20) for _ in range(5))
    torch._dynamo.reset()
    print(
        f"{name:<34} torch.compile bf16 {found['torch_ms']:.3f} ms, swinq {found['eager_ms']:.3f} ({found['eager_ms'] / found['torch_ms']:.2f}x), "
        f"rest compiled {found['swinq_ms']:.3f} ({found['swinq_ms'] / found['torch_ms']:.2f}x)",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": []}
    with torch.no_grad():
        group, tokens = Group().eval().cuda(), torch.randn(1, SIDE * SIDE, 180, device="cuda")
        found["cases"].append(case(f"SwinIR-M group, {SIDE}x{SIDE} tokens", group, {"tokens": tokens}))
        for batch in (1, 32):
            encoder = ClapAudioModel(ClapAudioConfig(enable_fusion=False)).eval().cuda()
            mel = {"input_features": torch.randn(batch, 1, 1001, 64, device="cuda")}
            found["cases"].append(case(f"CLAP tiny, batch {batch}", encoder, mel))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
