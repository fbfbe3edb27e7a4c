"""Times INT8 Swins in swinq and OpenVINO, each inference alone, on a machine whose cores other programs share.

    python benches/peers/quiet.py [--model swin_tiny_patch4_window7_224] [--batch 1] [--threads 2] [--seconds 60] [--cache DIR]

On a virtual machine the other hardware thread of a core may work for somebody else, and then an inference takes up to twice
its time. This program looks for cores that are quiet, moves all threads there, and runs --burst inferences of one engine, which
count only if the cores were quiet before and after them. For each thread, a process multiplies small matrices on its core for
3 ms. The cores are quiet if the lowest rate is at least --quiet of the highest that was seen. A disturbance between the two
checks is not seen.

The engine with the fewest inferences has the next turn: --burst inferences that do not count, because its weights come from
memory after the turns of others, and up to four bursts. Prints quantiles of the inferences, and swinq's ratio to the fastest
peer in each. If few inferences counted, run it longer.

Needs the modules of `latency.py`, swinq's wheel, and a cache that `latency.py` has filled (or --swinq, the release binary).
"""
import argparse
import multiprocessing
import os
import pathlib
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for `rate`; numpy reads it when it is imported

import numpy as np
from PIL import Image

import swinq
from latency import OURS as ENGINES, openvino_peers, timed_ms
from peer_models import Models

OURS = ENGINES[0]
QUANTILES = (0, 0.1, 0.25, 0.5, 0.75)


def rate(pipe):
    """For each CPU received, sends how many products a second of matrices in the second-level cache it computes in 3 ms."""
    a = np.ones((128, 128), np.float32)
    for cpu in iter(pipe.recv, None):
        os.sched_setaffinity(0, {cpu})
        products, start = 0, time.perf_counter()
        while (took := time.perf_counter() - start) < 3e-3:
            a @ a
            products += 1
        pipe.send(products / took)


class Cores:
    """Finds quiet cores."""

    def __init__(self, threads, quiet):
        self.quiet, self.most, self.pipes = quiet, 0, []
        for _ in range(threads):
            ours, theirs = multiprocessing.Pipe()
            multiprocessing.Process(target=rate, args=(theirs,), daemon=True).start()
            theirs.close()
            self.pipes.append(ours)
        self.all = sorted(os.sched_getaffinity(0))
        for cpu in 3 * self.all:
            self.rate([cpu])

    def rate(self, cpus):
        """The lowest rate of these CPUs while all are measured."""
        for pipe, cpu in zip(self.pipes, cpus):
            pipe.send(cpu)
        least = min(pipe.recv() for pipe, _ in zip(self.pipes, cpus))
        self.most = max(self.most, least)
        return least

    def are_quiet(self, cpus):
        return self.rate(cpus) >= self.quiet * self.most

    def pick(self, end):
        """Moves all threads of this process to the CPUs that are fastest now, once these are quiet, and returns them; None
        after `end`."""
        while time.monotonic() < end:
            cpus = sorted(self.all, key=lambda cpu: self.rate([cpu]))[-len(self.pipes) :]
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
    """By name, functions that run an engine once."""
    images = np.stack([np.asarray(Image.open(p).convert("RGB")) for p in sorted(models.images().iterdir())])
    ours = swinq.open(str(models.swinq_int8())).engine(threads=threads, backend="cpu", max_batch=batch)
    return {**openvino_peers(models, batch, threads, pinned=False), OURS: lambda: ours(images[:batch])}


def measure(cores, runs, seconds, burst):
    """The times in ms of the inferences that counted, and the number of checks that found other programs, by engine."""
    times, disturbed = {name: [] for name in runs}, dict.fromkeys(runs, 0)
    end = time.monotonic() + seconds
    while cpus := cores.pick(end):
        name = min(runs, key=lambda name: (len(times[name]), disturbed[name]))
        for counts in (False, True, True, True, True):
            took = [timed_ms(runs[name]) for _ in range(burst)]
            # Also the check before the next burst.
            if not cores.are_quiet(cpus):
                disturbed[name] += 1
                break
            if counts:
                times[name] += took
    return times, disturbed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swinq", default="swinq")
    parser.add_argument("--model", default="swin_tiny_patch4_window7_224")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--burst", type=int, default=4)
    parser.add_argument("--quiet", type=float, default=0.9)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("target/peers"))
    args = parser.parse_args()
    if args.threads > len(os.sched_getaffinity(0)):
        parser.error(f"--threads {args.threads}: this process may use {len(os.sched_getaffinity(0))} CPUs")
    cores = Cores(args.threads, args.quiet)  # its processes start before this one has the threads of engines
    runs = engines(Models(args.model, args.cache, args.swinq), args.batch, args.threads)
    times, disturbed = measure(cores, runs, args.seconds, args.burst)
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
