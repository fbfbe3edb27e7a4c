"""The engine of docs/inference.md in numpy: outputs of a quantized checkpoint, bit for bit those of the CPU engine.

    python engine.py model.safetensors pixels.safetensors outputs.safetensors

`pixels` holds the tensor `pixels`, u8 [images, height, width, channels] after resize and crop; three channels are RGB. If it also
holds `orientations`, u8 [images], the images are turned as these values of the tag Orientation say, where the checkpoint states that.
For a stack of blocks it holds `tokens`, f32 [images, height, width, channels]. `outputs` receives the tensor `logits`, f32
[images, classes], or the maps of a backbone by their names, f32 [images, height, width, channels]. Section numbers refer to
docs/inference.md.
"""

import json
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

f32, f64 = np.float32, np.float64


# 2. Scalar functions


def fma(a, b, c):
    """a * b + c in f32, rounded once."""
    product = np.multiply(a, b, dtype=f64)  # exact: two f32 have 48 significant bits together
    c = np.asarray(c, dtype=f64)
    total = product + c
    # Knuth's two-sum: `error` is exactly the rounding error of `total`.
    back = total - product
    error = (product - (total - back)) + (c - back)
    # Round to odd: of the two f64 around the exact sum, take the one whose last bit is 1. Rounding it to f32
    # gives the correctly rounded result, because f64 has at least two more bits than f32.
    bits = total.view(np.int64)
    even = (error != 0) & (bits & 1 == 0)
    return np.where(even, bits + np.where((error > 0) == (total > 0), 1, -1), bits).view(f64).astype(f32)


def code(scaled):
    """Codes, as f32, of values that are already multiplied by the reciprocal of the scale."""
    return np.rint(np.clip(scaled, f32(-128), f32(127)))


def taps(there, wanted):
    """The four places that give each of `wanted` places on an axis of `there` places, and their weights: `[wanted, 4]` each."""
    place = f32(there) / f32(wanted) * (np.arange(wanted, dtype=f32) + f32(0.5)) - f32(0.5)
    first = np.floor(place)
    t, a = (place - first).astype(f64), -0.75
    near = lambda x: ((a + 2) * x - (a + 3)) * x * x + 1
    far = lambda x: ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    places = np.clip(first.astype(int)[:, None] + np.arange(-1, 3), 0, there - 1)
    return places, np.stack([far(t + 1), near(t), near(1 - t), far(2 - t)], 1)


def weighted(values, weights, axis):
    """The sum of four values along an axis, in their order."""
    parts = [np.take(values, tap, axis) * np.take(weights, tap, 1) for tap in range(4)]
    return parts[0] + parts[1] + parts[2] + parts[3]


EXP = np.array([1.0, 1.0, 0.4999999, 0.1666642, 0.04166823, 0.008374857, 0.0013836792], f32)


def exp(x):
    x = np.clip(x, f32(-104), f32(89))
    n = np.rint(x * f32(1.4426950408889634))
    r = fma(-n, f32(-0.00021219444), fma(-n, f32(0.6933594), x))
    p = np.full_like(x, EXP[6])
    for c in EXP[5::-1]:
        p = fma(p, r, c)
    half = n.astype(np.int32) >> 1
    return np.ldexp(np.ldexp(p, half), n.astype(np.int32) - half)


EXP_255 = np.array([254.99982, 176.74606, 61.2631, 14.259054, 2.440376], f32)


def exp_255(x):
    per_unit, rounder = f32(1.4426950408889634), f32(12582912)
    n = fma(x, per_unit, np.full_like(x, rounder)) - rounder
    f = fma(x, per_unit, -n)
    p = np.full_like(x, EXP_255[4])
    for c in EXP_255[3::-1]:
        p = fma(p, f, c)
    return np.ldexp(p, n.astype(np.int32))


TAIL = np.array([
    [0.5, 0.34967172, 0.2199347, 0.12330542, 0.061193984, 0.026739392, 0.010245292, 0.003431206,
     0.0010019452, 2.5460735e-04, 5.6215587e-05, 1.0771176e-05, 1.7891792e-06, 2.5743756e-07, 3.206436e-08, 0.0],
    [-0.15407425, -0.14300174, -0.114333905, -0.07874649, -0.046720758, -0.023878718, -0.010513192, -0.0039873165,
     -0.0013027145, -3.666404e-04, -8.88902e-05, -1.856479e-05, -3.3400177e-06, -5.1764283e-07, -6.910897e-08, 0.0],
    [-5.627412e-08, 0.010664456, 0.017053215, 0.01761811, 0.013937436, 0.008904283, 0.0047044107, 0.0020815807,
     7.7721174e-04, 2.4606797e-04, 6.627968e-05, 1.5224412e-05, 2.9873802e-06, 5.014201e-07, 7.206368e-08, 0.0],
    [0.0038306334, 0.0030246568, 0.0011465198, -6.702422e-04, -0.0016103124, -0.0016198957, -0.0011420117,
     -6.253324e-04, -2.7676e-04, -1.01001664e-04, -3.0748597e-05, -7.866936e-06, -1.7000258e-06, -3.1141298e-07,
     -4.848494e-08, 0.0],
    [-1.5792099e-06, -3.7457835e-04, -5.05747e-04, -3.616156e-04, -1.0729597e-04, 7.89475e-05, 1.3748322e-04,
     1.1124969e-04, 6.3428706e-05, 2.8007264e-05, 9.954137e-06, 2.905338e-06, 7.0477614e-07, 1.4320635e-07,
     2.4506914e-08, 0.0],
    [-8.356974e-05, -5.609569e-05, 4.554972e-06, 4.707939e-05, 4.847387e-05, 2.4232442e-05, 8.821978e-07,
     -9.192569e-06, -8.873173e-06, -5.2074897e-06, -2.2548954e-06, -7.6691845e-07, -2.1098029e-07, -4.7730254e-08,
     -8.973034e-09, 0.0],
], f32)


def gelu(x):
    a = np.minimum(np.abs(x), f32(5.7931037))
    scaled = fma(a, f32(2.5892856), f32(2**23))
    u = fma(a, f32(2.5892856), -(scaled - f32(2**23)))
    column = scaled.view(np.int32) & 15
    h = TAIL[5][column]
    for row in TAIL[4::-1]:
        h = fma(h, u, row[column])
    return fma(-a, h, np.where(f32(0) > x, f32(0), x))


QUADRATIC = np.array([
    [0.50000554, 0.50022376, 0.501741, 0.5052982, 0.51067734, 0.51658005, 0.5208077, 0.5206933, 0.51367193, 0.49783164,
     0.472317, 0.43750107, 0.3949048, 0.34690863, 0.29634175, 0.2460481, 0.19851631, 0.15563014, 0.11855861,
     0.087774225, 0.063163646, 0.044189293, 0.030061172, 0.019889515, 0.012801541, 0.008016931, 0.0048859143,
     0.0028983855, 0.0016738464, 9.412302e-04, 5.1542406e-04, 0.0],
    [-0.3993793, -0.40371308, -0.41655067, -0.43497327, -0.4549909, -0.47214404, -0.48226738, -0.4821754, -0.4701298,
     -0.44600534, -0.4111638, -0.36810225, -0.31996745, -0.27004775, -0.22133487, -0.17621616, -0.13631904,
     -0.10249828, -0.07493052, -0.053273544, -0.036846496, -0.024798548, -0.01624454, -0.010359449, -0.00643286,
     -0.0038903845, -0.0022918032, -0.0013153115, -7.355476e-04, -4.0085064e-04, -2.1291111e-04, 0.0],
    [0.00980944, 0.031609684, 0.05899371, 0.08292333, 0.10157737, 0.11405103, 0.12011425, 0.120136626, 0.114968985,
     0.10578121, 0.09388406, 0.08056658, 0.06696608, 0.05398427, 0.04225123, 0.032131165, 0.02375826, 0.017089851,
     0.011964408, 0.008155231, 0.005413907, 0.0035013244, 0.0022064913, 0.0013552128, 8.1138103e-04, 4.736108e-04,
     2.6956052e-04, 1.4961728e-04, 8.099251e-05, 4.2764863e-05, 2.2026528e-05, 0.0],
], f32)


def gelu_quadratic(x):
    a = np.minimum(np.abs(x), f32(4.769231))
    column = fma(a, f32(6.5), f32(2**23)).view(np.int32) & 31
    h = fma(fma(QUADRATIC[2][column], a, QUADRATIC[1][column]), a, QUADRATIC[0][column])
    return fma(-a, h, np.where(f32(0) > x, f32(0), x))


# 3. Rows: sums, LayerNorm


def partial_sums(x, add=lambda sums, x: sums + x):
    """Sums over the last axis as section 3 orders them: sixteen partial sums, then halves added to halves."""
    rest = -x.shape[-1] % 16
    x = np.concatenate([x, np.zeros((*x.shape[:-1], rest), x.dtype)], axis=-1)
    sums = np.zeros((*x.shape[:-1], 16), x.dtype)
    for first in range(0, x.shape[-1], 16):
        sums = add(sums, x[..., first : first + 16])
    for half in (8, 4, 2, 1):
        sums = sums[..., :half] + sums[..., half:]
    return sums


def layer_norm(x, gamma, beta, eps):
    count = f32(x.shape[-1])
    mean = partial_sums(x) / count
    d = x - mean
    variance = partial_sums(d, lambda sums, d: fma(d, d, sums)) / count
    inverse = f32(1) / np.sqrt(variance + f32(eps))
    return fma(fma(d, inverse, -(partial_sums(d) / count * inverse)), gamma, beta)


class Quantizer:
    """The scale `step` of a site; its channels may have factors of it and zero points. All are f32."""

    def __init__(self, step, factors=f32(1), zero_point=None):
        self.step = f32(step)
        self.scale = self.step * factors
        self.reciprocal = f32(1) / self.scale
        self.zero_point = f32(0) if zero_point is None else zero_point.astype(f32)

    def code(self, x):
        return code(fma(x, self.reciprocal, self.zero_point) if self.zero_point.any() else x * self.reciprocal)

    def steps(self, x):
        """The codes of `x` minus their zero points."""
        return self.code(x) - self.zero_point

    def fake(self, x):
        """The value that the code of `x` represents."""
        return self.steps(x) * self.scale


def fake(quantizer, x):
    return quantizer.fake(x) if quantizer else x


def float_product(a, b):
    """a [..., m, k] times b [..., n, k] transposed, in f32: multiply-adds in the order of k, from 0."""
    total = np.zeros((*a.shape[:-1], b.shape[-2]), f32)
    for k in range(a.shape[-1]):
        total = fma(a[..., :, None, k], b[..., None, :, k], total)
    return total


def code_product(a, b):
    """The same product over codes. Sums of integers below 2^53 are exact in f64; then one rounding to f32."""
    return (a.astype(f64) @ np.swapaxes(b, -1, -2).astype(f64)).astype(f32)


class Engine:
    def __init__(self, path):
        with safe_open(path, framework="numpy") as file:
            self.document = json.loads(file.metadata()["swinq"])
        self.tensors = load_file(path)
        self.config = self.document["architecture"]
        if self.config.get("version", "v1") != "v1":
            raise SystemExit("this engine runs Swin V1 only")

    def quantizer(self, site):
        """The quantizer of an activation site; None if the site is off or of kind u8."""
        scale = self.tensors.get(f"{site}.scale")
        factors = self.tensors.get(f"{site}.channel_factor", f32(1))
        return None if scale is None else Quantizer(scale, factors, self.tensors.get(f"{site}.zero_point"))

    def parameter(self, name):
        return self.tensors[name].astype(f32)

    # 4. Linear layers

    def linear(self, name, x):
        """[..., k] to [..., n]: product, output site and bias."""
        weight = self.tensors[f"{name}.weight"]
        weight = weight.reshape(weight.shape[0], -1)
        scales = self.tensors.get(f"{name}.weight.scale")
        source, output = self.quantizer(f"{name}.input"), self.quantizer(f"{name}.output")
        bias = self.parameter(f"{name}.bias") if f"{name}.bias" in self.tensors else np.zeros(len(weight), f32)
        rows = x.reshape(-1, x.shape[-1])
        if source and scales is not None:
            total = code_product(source.steps(rows), weight)
            multiplier = source.step * scales
            if output:
                y = fma(code(total * (multiplier * output.reciprocal)), output.scale, bias)
            else:
                y = fma(total, multiplier, bias)
        else:
            weight = weight.astype(f32)
            if scales is not None:
                weight = weight * scales[:, None]
            total = float_product(fake(source, rows), weight)
            y = fma(output.code(total), output.scale, bias) if output else total + bias
        return y.reshape(*x.shape[:-1], -1)

    def norm(self, name, x):
        gamma, beta = self.parameter(f"{name}.weight"), self.parameter(f"{name}.bias")
        return layer_norm(x, gamma, beta, self.config["norm_eps"])

    # 6. Window attention

    def attention(self, block, qkv, heads, bias):
        """qkv [images, windows, n, 3 * c] and bias [windows, heads, n, n] to [images, windows, n, c]."""
        images, windows, n, c = (*qkv.shape[:3], qkv.shape[3] // 3)
        d = c // heads
        q, k, v = np.moveaxis(qkv.reshape(images, windows, n, 3, heads, d), (3, 4), (0, 3))
        on_q, on_k, on_v, on_scores = (self.quantizer(f"{block}.attn.{site}") for site in ("q", "k", "v", "scores"))
        scale = f32(d**-0.5 if self.config["qk_scale"] is None else self.config["qk_scale"])
        if on_q and on_k:
            total, factor = code_product(on_q.code(q), on_k.code(k)), on_q.scale * on_k.scale
            if on_scores:
                logits = fma(on_scores.fake(total * factor), scale, bias)
            else:
                logits = fma(total, factor * scale, bias)
        else:
            logits = fma(fake(on_scores, float_product(fake(on_q, q), fake(on_k, k))), scale, bias)
        weights, divisor, factor = self.probabilities(f"{block}.attn.probs", logits)
        v_transposed = np.swapaxes(v, -1, -2)
        if on_v and self.document["sites"][f"{block}.attn.probs"]["enabled"]:
            total = code_product(weights, on_v.code(v_transposed))
            y = total * (factor * on_v.scale if factor else on_v.scale / divisor)
        else:
            total = float_product(weights, fake(on_v, v_transposed))
            y = total * (factor if factor else f32(1) / divisor)
        return np.moveaxis(y, 2, 3).reshape(images, windows, n, c)

    def probabilities(self, site, logits):
        """The weights of the values, and either the divisor of their product or its factor."""
        below = logits - logits.max(axis=-1, keepdims=True)
        entry = self.document["sites"][site]
        if entry["enabled"] and entry["kind"] == "u8":
            codes = np.rint(exp_255(np.maximum(below, f32(-11))))
            return codes, codes.sum(axis=-1, keepdims=True, dtype=f64).astype(f32), None
        exps = exp(np.maximum(below, f32(-60)))
        total = partial_sums(exps)
        if entry["enabled"]:
            quantizer = self.quantizer(site)
            return quantizer.code(exps * (f32(1) / total)), None, quantizer.scale
        return exps, total, None

    # 5. Windows

    def geometry(self, index, grid):
        """Window, shift of the odd blocks, and padded grid of a stage, each a height and a width."""
        size, policy = window_of(self.config["window_size"], index), self.config["window_policy"]
        image, patch = pair(self.config["image_size"]), self.config["patch_size"]
        own = -(-image // (patch << index))
        if policy in ("detection", "timm_always_partition"):
            window, covered = size, np.array([False, False])
        elif policy in ("timm", "timm_any_size", "pad"):
            deciding = own if policy == "timm_any_size" else grid
            window = np.minimum(size, deciding) if policy.startswith("timm") else size
            covered = deciding <= size
        elif policy == "mmpretrain":
            window = np.minimum(size, own.min())
            covered = grid.min() <= window
        elif policy == "restoration":
            window, covered = np.minimum(size, own.min()), own.min() <= size
        else:
            side = (image[0] // patch) >> index if policy == "hugging_face_v2" else grid.min()
            window, covered = np.minimum(size, side), side <= size
        return window, np.where(covered, 0, window // 2), -(-grid // window) * window

    def shift_and_pad(self, x, shift, padded):
        """[images, height, width, c] to the padded grid, shifted cyclically."""
        rest = [(0, 0), *((0, after) for after in padded - x.shape[1:3]), (0, 0)]
        if self.config["window_policy"].startswith("timm"):
            return np.pad(roll(x, -shift), rest)
        return roll(np.pad(x, rest), -shift)

    def crop_and_unshift(self, x, shift, grid):
        """The inverse of `shift_and_pad`."""
        if self.config["window_policy"].startswith("timm"):
            return roll(x[:, : grid[0], : grid[1]], shift)
        return roll(x, shift)[:, : grid[0], : grid[1]]

    def bias(self, block, window, shift, padded):
        """Relative position bias plus mask: [windows, heads, n, n]."""
        table = self.parameter(f"{block}.attn.relative_position_bias_table")
        if len(table) != np.prod(2 * window - 1):
            raise SystemExit("the network has other windows than this image size needs")
        y, x = np.divmod(np.arange(window.prod()), window[1])
        dy, dx = (p[:, None] - p[None, :] + side - 1 for p, side in zip((y, x), window))
        bias = np.moveaxis(table[dy * (2 * window[1] - 1) + dx], -1, 0)[None]
        if not shift.any():
            return bias
        # Without a shift of an axis, both limits of its last band are its end.
        limits = [(p - w, p - s) if s else (p, p) for p, w, s in zip(padded, window, shift)]
        rows, columns = (np.searchsorted(l, np.arange(p), side="right") for l, p in zip(limits, padded))
        regions = partition((3 * rows[:, None] + columns[None, :])[None, :, :, None], window)[0, :, :, 0]
        masked = np.where(regions[:, :, None] == regions[:, None, :], f32(0), f32(-100))
        return bias + masked[:, None]

    def block(self, name, residual, heads, geometry, shifted):
        """One block of a stage: residual [images, height, width, c] to the same."""
        window, shift, padded = geometry
        if not shifted:
            shift = 0 * shift
        x = partition(self.shift_and_pad(self.norm(f"{name}.norm1", residual), shift, padded), window)
        qkv = self.linear(f"{name}.attn.qkv", x)
        x = self.attention(name, qkv, heads, self.bias(name, window, shift, padded))
        x = reverse(self.linear(f"{name}.attn.proj", x), window, padded)
        x = self.crop_and_unshift(x, shift, residual.shape[1:3])
        residual = self.add(f"{name}.attn.add", residual, x)
        quantized = self.quantizer(f"{name}.mlp.fc2.input") is not None
        activation = gelu_quadratic if quantized and self.document.get("numbers", 1) >= 4 else gelu
        x = activation(self.linear(f"{name}.mlp.fc1", self.norm(f"{name}.norm2", residual)))
        return self.add(f"{name}.mlp.add", residual, self.linear(f"{name}.mlp.fc2", x))

    def add(self, name, shortcut, branch):
        return fake(self.quantizer(f"{name}.shortcut"), shortcut) + fake(self.quantizer(f"{name}.branch"), branch)

    # 7. Patch embedding, merging, head

    def embed(self, pixels):
        if self.config.get("input") == "tokens":
            return pixels
        transform, patch = self.document["transform"], self.config["patch_size"]
        mean, std = np.array(transform["mean"], f32), np.array(transform["std"], f32)
        x = (pixels.astype(f32) / f32(255) - mean) / std
        images, channels = len(x), x.shape[3]
        height, width = -(-np.array(x.shape[1:3]) // patch)
        x = np.pad(x, ((0, 0), (0, height * patch - x.shape[1]), (0, width * patch - x.shape[2]), (0, 0)))
        x = x.reshape(images, height, patch, width, patch, channels).transpose(0, 1, 3, 5, 2, 4)
        x = self.linear("patch_embed.proj", x.reshape(images, height, width, channels * patch * patch))
        if self.config["patch_norm"]:
            x = self.norm("patch_embed.norm", x)
        if self.config["ape"]:
            x = x + self.position(height, width)
        return x

    def position(self, height, width):
        """The absolute position embedding for a grid."""
        table, patch = self.parameter("absolute_pos_embed")[0], self.config["patch_size"]
        size = self.config["image_size"]
        own = [-(-side // patch) for side in (size if isinstance(size, list) else [size, size])]
        table = table.reshape(*own, -1)
        if own == [height, width]:
            return table[None]
        (rows, by_row), (columns, by_column) = taps(own[0], height), taps(own[1], width)
        across = weighted(table.astype(f64)[:, columns], by_column[:, :, None], 2)
        return weighted(across[rows], by_row[:, :, None, None], 1).astype(f32)[None]

    def merge(self, name, residual):
        x = np.pad(residual, ((0, 0), (0, residual.shape[1] % 2), (0, residual.shape[2] % 2), (0, 0)))
        x = np.concatenate([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], axis=-1)
        return self.linear(f"{name}.reduction", self.norm(f"{name}.norm", x))

    def head(self, residual):
        x = self.norm("norm", residual).reshape(len(residual), -1, residual.shape[-1])
        total = np.zeros_like(x[:, 0])
        for token in range(x.shape[1]):
            total = total + x[:, token]
        return self.linear("head", total / f32(x.shape[1]))

    def outputs(self, pixels):
        residual, found = self.embed(pixels), {}
        named = {output["stage"]: output for output in self.config.get("outputs", [])}
        for stage, (depth, heads) in enumerate(zip(self.config["depths"], self.config["num_heads"])):
            geometry = self.geometry(stage, np.array(residual.shape[1:3]))
            for block in range(depth):
                residual = self.block(f"layers.{stage}.blocks.{block}", residual, heads, geometry, block % 2 == 1)
            if stage in named:
                output = named[stage]
                found[output["name"]] = self.norm(f"norm{stage}", residual) if output["norm"] else residual
            if stage + 1 < len(self.config["depths"]):
                residual = self.merge(f"layers.{stage}.downsample", residual)
        return found or {"logits": self.head(residual)}


# 8. From an image to pixels


def turned(stored, value):
    """The image [height, width, channels] that the value of the tag Orientation makes of a stored one."""
    image = stored.transpose(1, 0, 2) if value in (5, 6, 7, 8) else stored
    image = image[::-1] if value in (3, 4, 7, 8) else image
    return image[:, ::-1] if value in (2, 3, 6, 7) else image


def prepared(transform, pixels, orientations):
    """The pixels of the network: of RGB images of one size, square if `orientations` turn them by a quarter."""
    if transform.get("orientation") == "exif":
        pixels = np.stack([turned(image, value) for image, value in zip(pixels, orientations)])
    return pixels[..., ::-1] if transform.get("channel_order") == "bgr" else pixels


def pair(size):
    """A size of the file as a height and a width."""
    return np.array(size if isinstance(size, list) else [size, size])


def window_of(windows, index):
    """The window of a stage as a height and a width: windows of stages are a list of pairs, one for all is a number or a pair."""
    return pair(windows[index] if isinstance(windows, list) and isinstance(windows[0], list) else windows)


def roll(x, shift):
    """Moves the rows and the columns of [images, height, width, c] cyclically."""
    return np.roll(x, tuple(shift), axis=(1, 2))


def partition(x, window):
    """[images, height, width, c] to [images, windows, n, c]."""
    (images, height, width, c), (wh, ww) = x.shape, window
    x = x.reshape(images, height // wh, wh, width // ww, ww, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(images, -1, wh * ww, c)


def reverse(x, window, size):
    """The inverse of `partition`."""
    images, c, (height, width), (wh, ww) = len(x), x.shape[-1], size, window
    x = x.reshape(images, height // wh, width // ww, wh, ww, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(images, height, width, c)


if __name__ == "__main__":
    model, pixels, outputs = sys.argv[1:]
    engine, images = Engine(model), load_file(pixels)
    if "tokens" in images:
        images = images["tokens"]
    else:
        orientations = images.get("orientations", np.ones(len(images["pixels"]), np.uint8))
        images = prepared(engine.document["transform"], images["pixels"], orientations)
    save_file({name: np.ascontiguousarray(values) for name, values in engine.outputs(images).items()}, outputs)
