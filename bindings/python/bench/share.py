"""The Swin's share that ``swinq.torch.quantize`` reports, against that of PyTorch's profiler, before and after.

    python share.py [--device cpu|cuda] [--only TEXT] [--rounds N] [--calls N] [--threads N] [--limit 0.15]

Each program has random weights. The profiler gives the time of its ranges: one around each call of the program, one around each call of
the Swin, on a GPU with the wait for its work. It slows every operator that it records, so that a Swin of one operator seems to have a
smaller share: its cost for an event, from the same calls without it, is taken off. Each round quantizes the program, profiles some calls,
restores it, and profiles some more; medians of the rounds are compared. The script ends with status 1 if a share differs by more than the limit, relative to the
profiler's. Other work on the machine disturbs small shares most. It needs torch, transformers and timm, and the folder of tests beside it.
"""

import argparse
import sys
import time
import warnings
from bisect import bisect_left
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile, record_function

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from programs import made
from torch_models import images

import swinq.torch

#: Rows: the program, the number of images and their size.
ROWS = {
    "timm Swin-T features_only with a head, 224x224": ("head", 1, (224, 224)),
    "UPerNet Swin-T, 512x512": ("UPerNet, Swin-T", 1, (512, 512)),
    "DPT Swin V2-B, 384x384": ("DPT, Swin V2-B", 1, (384, 384)),
}


def profiled(program, swin, batch: dict, device: str, count: int) -> float:
    """The Swin's share by the medians of the profiler's ranges in ``count`` calls, without the profiler's own cost."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    ranges = []

    def begin(*_):
        wait()
        ranges.append(record_function("the Swin").__enter__())

    def end(*_):
        wait()
        ranges.pop().__exit__(None, None, None)

    def calls() -> float:
        """The median of the calls, in microseconds."""
        found = []
        for _ in range(count):
            start = time.perf_counter()
            with record_function("the program"):
                program(**batch)
                wait()
            found.append(1e6 * (time.perf_counter() - start))
        return median(found)

    handles = [swin.register_forward_pre_hook(begin), swin.register_forward_hook(end)]
    with torch.no_grad():
        calls()
        alone = calls()
        with profile(activities=[ProfilerActivity.CPU]) as found:
            calls()
    for handle in handles:
        handle.remove()
    everything = found.events()
    starts = sorted(event.time_range.start for event in everything)
    times, events = {}, {}
    for name in ("the Swin", "the program"):
        parts = [event for event in everything if event.name == name]
        times[name] = median(part.cpu_time_total for part in parts)
        within = (bisect_left(starts, part.time_range.end) - bisect_left(starts, part.time_range.start) for part in parts)
        events[name] = sum(within) / len(parts)
    cost = max(0.0, times["the program"] - alone) / events["the program"]
    return (times["the Swin"] - cost * events["the Swin"]) / min(alone, times["the program"])


def compared(row: str, device: str, rounds: int, count: int, threads: int) -> list[tuple[str, float, float]]:
    """The share of a program that is reported and that of the profiler, before and after."""
    name, number, size = ROWS[row]
    dtype = torch.float16 if device == "cuda" else torch.float32
    program, batch = made(name, images(number, *size).to(dtype))
    program = program.to(device, dtype).eval()
    batch = {key: value.to(device) for key, value in batch.items()}
    found = []
    for _ in range(rounds):
        report = swinq.torch.quantize(program, [batch], ptq="basic", samples=number, threads=threads)
        if report.share is None:
            raise RuntimeError(f"{row}: {report.no_share}")
        (place,) = report.replaced[0].names
        after = profiled(program, program.get_submodule(place), batch, device, count)
        swinq.torch.restore(program)
        before = profiled(program, program.get_submodule(place), batch, device, count)
        found.append((report.share.before.share, before, report.share.after.share, after))
    shares = [median(each) for each in zip(*found, strict=True)]
    return [("before", *shares[:2]), ("after", *shares[2:])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=3, help="calls of a round that are profiled")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch and of the engine")
    parser.add_argument("--limit", type=float, default=0.15)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    worst = 0.0
    for row in [row for row in ROWS if arguments.only in row]:
        for when, reported, profiler in compared(row, arguments.device, arguments.rounds, arguments.calls, arguments.threads):
            difference = reported / profiler - 1
            worst = max(worst, abs(difference))
            print(f"{row}, {when}: {reported:.3f}, the profiler {profiler:.3f}, {100 * difference:+.1f} %", flush=True)
    return 1 if worst > arguments.limit else 0


if __name__ == "__main__":
    sys.exit(main())
