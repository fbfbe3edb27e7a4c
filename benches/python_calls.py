"""What a call from Python costs over the engine itself, and how engines in threads scale.

    python benches/python_calls.py CHECKPOINT [--threads 8]

The overhead is measured on batches of 0 images, for which the engine returns at once: everything that remains is the way
from Python to the engine and back. A batch of 1 image differs in the address of the pixels only.
"""

import argparse
import statistics
import threading
import time

import numpy as np

import swinq


def seconds(call, runs: int) -> float:
    """Median time of a call."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rate(model: swinq.Model, pixels: np.ndarray, threads: int, each: float) -> float:
    """Images per second of engines with one thread each, in so many Python threads, for ``each`` seconds."""
    engines = [model.engine(threads=1, backend="cpu") for _ in range(threads)]
    for engine in engines:
        engine(pixels)
    counts, end = [0] * threads, time.perf_counter() + each

    def serve(index: int) -> None:
        while time.perf_counter() < end:
            engines[index](pixels)
            counts[index] += len(pixels)

    workers = [threading.Thread(target=serve, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / each


parser = argparse.ArgumentParser()
parser.add_argument("checkpoint")
parser.add_argument("--threads", type=int, default=8)
arguments = parser.parse_args()
model = swinq.open(arguments.checkpoint)
pixels = np.random.default_rng(0).integers(0, 256, (1, *model.input_size, 3), np.uint8)
engine = model.engine(threads=1, backend="cpu")
print(f"one image: {1e6 * seconds(lambda: engine(pixels), 200):.1f} us")
print(f"overhead of a call, numpy: {1e6 * seconds(lambda: engine(pixels[:0]), 5000):.1f} us")
try:
    import torch

    tensor = torch.from_numpy(pixels)
    print(f"overhead of a call, torch: {1e6 * seconds(lambda: engine(tensor[:0]), 5000):.1f} us")
except ImportError:
    pass
single = rate(model, pixels, 1, 3.0)
for threads in [2**n for n in range(arguments.threads.bit_length())]:
    many = rate(model, pixels, threads, 3.0)
    print(f"{threads} threads: {many:.1f} images/s, {many / single:.2f} times one thread")
