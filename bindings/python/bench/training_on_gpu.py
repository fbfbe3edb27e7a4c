"""A step of training of a Swin-T backbone in float, prepared by swinq, and with NVIDIA ModelOpt's fake quantization.

    python training_on_gpu.py [--height 512] [--width 640] [--batch 16] [--tools float,swinq,modelopt] [--json FILE]
    torchrun --nproc-per-node 2 training_on_gpu.py --tools float,swinq     # DistributedDataParallel, --batch images on each GPU

The steps run side by side in rounds under bfloat16 autocast: forward, the sum of squares of four maps as the loss, backward,
AdamW. Random weights; calibration on two images. Needs torch with CUDA, timm and swinq; `modelopt` needs nvidia-modelopt.
"""

import argparse
import copy
import json
import os
import statistics
import time
import warnings

import timm
import torch
from torch.nn.parallel import DistributedDataParallel

import swinq.torch

warnings.filterwarnings("ignore")
#: Rounds, and steps of each tool in one.
ROUNDS, STEPS = 5, 6
#: The number of this process, and of all processes.
RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("LOCAL_RANK", 0), ("WORLD_SIZE", 1)))


def backbone():
    torch.manual_seed(0)
    name = "swin_tiny_patch4_window7_224"
    return timm.create_model(name, features_only=True, strict_img_size=False, out_indices=(0, 1, 2, 3)).cuda()


def prepared(model, images, **options):
    return swinq.torch.prepare(model, [images[:2]], **options).model


def graphed(model, images):
    """The prepared model, whose forward and backward pass for images of this size are two CUDA graphs."""
    model = prepared(model, images).train()
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        return torch.cuda.make_graphed_callables(model, (images,))


def modelopt(model, images):
    import modelopt.torch.quantization as mtq

    config = copy.deepcopy(mtq.INT8_DEFAULT_CFG)
    return mtq.quantize(model, config, lambda model: model(images[:2]))


TOOLS = {
    "float": lambda model, images: model,
    "swinq": prepared,
    "swinq graphed": graphed,
    "swinq learned": lambda model, images: prepared(model, images, learned="all"),
    "swinq checkpointing": lambda model, images: prepared(model, images, checkpointing=True),
    "modelopt": modelopt,
}


class Step:
    """A model with its optimizer."""

    def __init__(self, name, images):
        self.model, self.images = TOOLS[name](backbone().eval(), images).train(), images
        if WORLD > 1:
            self.model = DistributedDataParallel(self.model, device_ids=[RANK])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def __call__(self):
        with torch.autocast("cuda", torch.bfloat16):
            loss = sum(value.float().square().mean() for value in self.model(self.images))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def milliseconds(self):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            self()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / STEPS * 1e3


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--height", type=int, default=512)
    arguments.add_argument("--width", type=int, default=640)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--tools", default=",".join(TOOLS))
    arguments.add_argument("--json")
    given = arguments.parse_args()
    torch.cuda.set_device(RANK)
    if WORLD > 1:
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    images = torch.randn(given.batch, 3, given.height, given.width, device="cuda")
    steps, memory = {}, {}
    for name in given.tools.split(","):
        steps[name] = Step(name, images)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            loss = float(steps[name]())
        memory[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
        print(f"{name:22} loss {loss:.4f}, {memory[name]:.2f} GiB, process {RANK}", flush=True)
    times = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(step.milliseconds())
    if WORLD > 1:
        torch.distributed.destroy_process_group()
    if RANK:
        return
    found = {name: statistics.median(values) for name, values in times.items()}
    for name, value in found.items():
        ratio = f"{value / found['float']:.3f} of float" if "float" in found else ""
        print(f"{name:22} {value:8.2f} ms  {ratio}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"gpu": torch.cuda.get_device_name(), "milliseconds": times, "GiB": memory, "processes": WORLD, **vars(given)}, file)


if __name__ == "__main__":
    main()
