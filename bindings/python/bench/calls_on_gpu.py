"""Times calls with CUDA tensors: of an engine, beside PyTorch's own modules of the same architecture in the same run.

    python bindings/python/bench/calls_on_gpu.py [--size 800x1344 ...] [--json FILE]

Needs PyTorch, timm and a GPU. The model is Swin-T with random weights, calibrated on random images; times do not depend on them.

For each case: the median time until a call returns while the GPU is idle; the GPU's time of a call, between two events behind a kernel
that keeps the GPU busy; the time of 1,000 calls and one synchronisation, relative to 1,000 GPU times. PyTorch's own module makes 50
calls, and the GPU waits for it. Then what a call costs behind a
kernel of about 100 ms, and two streams with such a kernel each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import timm
import torch

import swinq.torch

#: Cycles of a kernel that takes about 100 ms.
SPIN = 180_000_000


class Program(torch.nn.Module):
    def __init__(self, swin: Any) -> None:
        super().__init__()
        self.swin = swin.eval()

    def forward(self, images: Any) -> Any:
        return self.swin(images)


def returns_us(call: Callable[[], object], calls: int = 1000) -> float:
    """Microseconds until a call returns, with nothing on the GPU."""
    times = []
    for _ in range(calls):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def gpu_ms(call: Callable[[], object], calls: int = 50) -> float:
    """Milliseconds of the GPU for a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SPIN)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls


def compiled_ms(program: Any, call: Callable[[Any], object], calls: int) -> float:
    """Milliseconds of a call of ``program`` under torch.compile (mode `reduce-overhead`), between two events around replays of its graph."""
    run = torch.compile(program, mode="reduce-overhead")
    for _ in range(10):
        call(run)
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call(run)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    torch._dynamo.reset()
    return statistics.median(times)


def together_ms(call: Callable[[], object], calls: int = 1000) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def case(name: str, call: Callable[[], object], calls: int = 1000) -> dict[str, Any]:
    for _ in range(20):
        call()
    gpu = statistics.median(gpu_ms(call, min(calls, 50)) for _ in range(5))
    together = statistics.median(together_ms(call, calls) for _ in range(3)) / calls
    found = {"case": name, "returns_us": returns_us(call, calls), "gpu_ms": gpu, "together_ms": together, "ratio": together / gpu}
    print(f"{name:<44} returns in {found['returns_us']:7.1f} us, GPU {gpu:.4f} ms, {calls} calls {found['ratio']:.3f} of that", flush=True)
    return found


def behind_a_spin(call: Callable[[], object]) -> dict[str, Any]:
    """What a call costs behind a long kernel, and two on streams with one each."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(SPIN)
    end.record()
    torch.cuda.synchronize()
    spin, streams, returned = begin.elapsed_time(end), [torch.cuda.Stream() for _ in range(2)], []
    for stream in streams:
        with torch.cuda.stream(stream):
            call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SPIN)
            now = time.perf_counter()
            call()
            returned.append((time.perf_counter() - now) * 1e6)
    torch.cuda.synchronize()
    found = {"spin_ms": spin, "returns_us": returned, "both_ms": (time.perf_counter() - start) * 1e3}
    print(f"behind a kernel of {spin:.1f} ms on each of two streams: {[round(us) for us in returned]} us, all after {found['both_ms']:.1f} ms")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="*", default=["224x224", "800x1344"])
    parser.add_argument("--json")
    arguments = parser.parse_args()
    device, name = torch.device("cuda:0"), "swin_tiny_patch4_window7_224"
    classifier = Program(timm.create_model(name)).to(device)
    backbone = Program(timm.create_model(name, features_only=True, strict_img_size=False)).to(device)
    batch = torch.randn(1, 3, 224, 224, device=device)
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": []}
    with torch.inference_mode():
        for kind, program in (("logits", classifier), ("maps", backbone)):
            for size in ["224x224"] if kind == "logits" else arguments.size:
                height, width = map(int, size.split("x"))
                images = torch.randn(1, 3, height, width, device=device)
                halves = images.half()
                reference = program.half()
                found["cases"].append(case(f"{kind} {size}, PyTorch f16", lambda: reference(halves), 50))
                program.float()
                swinq.torch.quantize(program, [batch], ptq="basic", max_batch=1)
                engine = program.swin.engine_for(device)
                found["cases"].append(case(f"{kind} {size}, module", lambda: program(halves)))
                found["cases"].append(case(f"{kind} {size}, engine", lambda: engine.run(halves, dtype="float16")))
                out = engine.run(halves, dtype="float16")
                found["cases"].append(case(f"{kind} {size}, engine with out=", lambda: engine.run(halves, out=out)))
                if kind == "maps":
                    found["spin"] = behind_a_spin(lambda: engine.run(halves, dtype="float16"))
                swinq.torch.restore(program)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
