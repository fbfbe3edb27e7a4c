"""The calibrators and the quantization of weights of docs/calibration.md in numpy.

    python weights.py float.safetensors model.safetensors weights.safetensors

`float` holds the float weights under the names of the quantized checkpoint `model`. `weights` receives the codes and scales
of every weight that the site table of `model` turns on: the same bits as in a `model` of `--ptq basic`.
"""

import json
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

f32 = np.float32


class Histogram:
    """Counts of magnitudes in bins of width `w`, up to the bin of the largest magnitude `m`."""

    def __init__(self, values):
        x = np.abs(values.astype(np.float64))
        self.m, self.n, self.zeros = x.max(), x.size, np.count_nonzero(x == 0)
        self.w = 2.0 ** max(np.floor(np.log2(self.m)) + 1 - 12, -137)
        self.counts = np.bincount(np.floor(x / self.w).astype(int)).astype(float)

    def upper_edge(self, i):
        return min((i + 1) * self.w, self.m)


def percentile(histogram, p):
    rank = np.ceil((histogram.n - 1) * (p / 100))
    if rank < histogram.zeros:
        return 0.0
    return histogram.upper_edge(np.searchsorted(np.cumsum(histogram.counts), rank, side="right"))


def mse(histogram, q):
    n = histogram.counts.copy()
    n[0] -= histogram.zeros
    edges = [i * histogram.w for i in range(1, len(n)) if i // (i & -i) < 256]  # at most 8 significant bits
    filled = np.flatnonzero(n)
    n, x = n[filled], (filled + 0.5) * histogram.w

    def error(a):
        s = a / q
        return np.sum(n * (x - s * np.rint(np.minimum(x / s, q))) ** 2)

    # Of equal candidates `min` takes the first, which is the largest.
    return min([histogram.m, *reversed(edges)], key=error)


def entropy(histogram, q):
    n = histogram.counts.copy()
    if len(n) <= q + 1:
        return histogram.m
    n[0] = n[1]

    def divergence(i):
        kept, beyond = n[:i], n[i:].sum()
        if kept[-1] == 0 and beyond > 0:
            return np.inf
        group = np.arange(i) * (q + 1) // i
        level = np.bincount(group, kept) / np.maximum(np.bincount(group, kept > 0), 1)
        filled = kept > 0
        p, r = kept.copy(), level[group][filled]
        p[-1] += beyond
        p = p[filled]
        return np.sum(p * np.log(p / r)) / n.sum() + np.log(r.sum() / n.sum())

    return histogram.upper_edge(min(range(len(n), q, -1), key=divergence) - 1)


def amax(values, calibrator, q):
    histogram = Histogram(values)
    if calibrator == "mse":
        return mse(histogram, q)
    if calibrator == "entropy":
        return entropy(histogram, q)
    return histogram.m if calibrator == "max" else percentile(histogram, calibrator["percentile"])


def quantize(weight, entry):
    """Codes and scales of a weight, with the settings in its entry of the site table."""
    q = {4: 7, 7: 63, 8: 127}[entry["bits"]]
    channels = weight.reshape(len(weight), -1) if entry["granularity"] == "channel" else weight.reshape(1, -1)
    scales = np.array([f32(amax(channel, entry["calibrator"], q)) / f32(q) for channel in channels], f32)
    codes = np.rint(np.clip(channels * (f32(1) / scales)[:, None], f32(-q), f32(q)))
    return codes.astype(np.int8).reshape(weight.shape), scales


if __name__ == "__main__":
    weights, model, output = sys.argv[1:]
    with safe_open(model, framework="numpy") as file:
        sites = json.loads(file.metadata()["swinq"])["sites"]
    weights, quantized = load_file(weights), {}
    for site, entry in sites.items():
        if site.endswith(".weight") and entry["enabled"]:
            quantized[site], quantized[f"{site}.scale"] = quantize(weights[site].astype(f32), entry)
    save_file(quantized, output)
