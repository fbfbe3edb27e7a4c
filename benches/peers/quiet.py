"""Times INT8 Swins in swinq and OpenVINO, each inference alone, on a machine whose cores other programs share.

    python benches/peers/quiet.py [--model swin_tiny_patch4_window7_224] [--batch 1] [--threads 2] [--seconds 60] [--cache DIR]

On a virtual machine the other hardware thread of a core may work for somebody else, and then an inference takes up to twice
its time. This program looks for cores that are quiet, moves all threads there, and counts an inference only if the cores were
quiet before and after it. For each thread, a process counts for 3 ms how often it can run a short loop on its core. The cores
are quiet if the least count is at least --quiet of the most that was seen. A disturbance between the two checks is not seen;
a long inference is more likely to have one. The engines get their turns by the number of inferences that counted. Prints
quantiles of these inferences, and swinq's ratio to the fastest peer in each. If few inferences counted, run it longer.

Needs the modules of `latency.py`, swinq's wheel, and a cache that `latency.py` has filled (or --swinq, the release binary).
"""
import argparse
import multiprocessing
import os
import pathlib
import random
import time

import numpy as np
from PIL import Image

import swinq
from latency import OURS as ENGINES, openvino_peers
from peer_models import Models

OURS = ENGINES[0]
QUANTILES = (0, 0.1, 0.25, 0.5, 0.75)


def count(pipe):
    """For each CPU received, sends how often a short loop ran there in 3 ms."""
    for cpu in iter(pipe.recv, None):
        os.sched_setaffinity(0, {cpu})
        loops, end = 0, time.perf_counter() + 3e-3
        while time.perf_counter() < end:
            sum(range(100))
            loops += 1
        pipe.send(loops)


class Cores:
    """Finds quiet cores."""

    def __init__(self, threads, quiet):
        self.quiet, self.most, self.pipes = quiet, 0, []
        for _ in range(threads):
            ours, theirs = multiprocessing.Pipe()
            multiprocessing.Process(target=count, args=(theirs,), daemon=True).start()
            theirs.close()
            self.pipes.append(ours)
        self.all = sorted(os.sched_getaffinity(0))
        for cpu in 3 * self.all:
            self.loops([cpu])

    def loops(self, cpus):
        """The fewest loops on one of these CPUs while all are counted."""
        for pipe, cpu in zip(self.pipes, cpus):
            pipe.send(cpu)
        least = min(pipe.recv() for pipe, _ in zip(self.pipes, cpus))
        self.most = max(self.most, least)
        return least

    def are_quiet(self, cpus):
        return self.loops(cpus) >= self.quiet * self.most

    def pick(self, end):
        """Moves all threads of this process to CPUs that are quiet now, and returns these; None after `end`."""
        while time.monotonic() < end:
            cpus = random.sample(self.all, len(self.pipes))
            if self.are_quiet(cpus):
                move(cpus)
                return cpus
        return None


def move(cpus):
    """Moves all threads of this process."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:  # it has ended
            pass


def engines(models, batch, threads):
    """A function that runs each engine once."""
    images = np.stack([np.asarray(Image.open(p).convert("RGB")) for p in sorted(models.images().iterdir())])
    ours = swinq.open(str(models.swinq_int8())).engine(threads=threads, backend="cpu", max_batch=batch)
    return {**openvino_peers(models, batch, threads, pinned=False), OURS: lambda: ours(images[:batch])}


def measure(cores, runs, seconds):
    """The times in ms of the inferences that counted, and the number of checks that found other programs, by engine."""
    times, disturbed = {name: [] for name in runs}, dict.fromkeys(runs, 0)
    end = time.monotonic() + seconds
    while cpus := cores.pick(end):
        name = min(runs, key=lambda name: (len(times[name]), disturbed[name]))
        runs[name]()  # its weights come to these cores
        for _ in range(4):
            if not cores.are_quiet(cpus):
                disturbed[name] += 1
                break
            start = time.perf_counter()
            runs[name]()
            took = 1e3 * (time.perf_counter() - start)
            if cores.are_quiet(cpus):
                times[name].append(took)
    return times, disturbed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swinq", default="swinq")
    parser.add_argument("--model", default="swin_tiny_patch4_window7_224")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quiet", type=float, default=0.9)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("target/peers"))
    args = parser.parse_args()
    if args.threads > len(os.sched_getaffinity(0)):
        parser.error(f"--threads {args.threads}: this process may use {len(os.sched_getaffinity(0))} CPUs")
    cores = Cores(args.threads, args.quiet)  # its processes start before this one has the threads of engines
    runs = engines(Models(args.model, args.cache, args.swinq), args.batch, args.threads)
    times, disturbed = measure(cores, runs, args.seconds)
    rows = {name: np.quantile(of or [np.nan], QUANTILES) for name, of in times.items()}
    print(f"{args.model}, batch {args.batch}, {args.threads} threads, ms")
    print("| engine | counted | checks that found others |", " | ".join(f"{q:.0%}" for q in QUANTILES), "|")
    print("|" + " --- |" * (3 + len(QUANTILES)))
    for name, row in rows.items():
        print(f"| {name} | {len(times[name])} | {disturbed[name]} |", " | ".join(f"{ms:.2f}" for ms in row), "|")
    best = np.fmin.reduce([row for name, row in rows.items() if name != OURS])
    print(f"| {OURS}, of the fastest peer | | |", " | ".join(f"{a / b:.2f}x" for a, b in zip(rows[OURS], best)), "|")
    if not all(times.values()):
        parser.exit(1, "an engine has no inference that counted: the cores were quiet too seldom; use more --seconds\n")


if __name__ == "__main__":
    main()
