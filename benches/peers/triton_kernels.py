"""Measures Triton kernels on a GPU: vector addition, row softmax and an FP16 matrix product, the peers of
`swinq bench elementwise`, `swinq bench softmax` and `swinq bench gemm`.

    python benches/peers/triton_kernels.py --json triton.json

The kernels are written in the manner of Triton's tutorials. As in `swinq bench`, the L2 cache is overwritten
before every run, results are compared with PyTorch's first, and the figure is the median.
"""

import argparse
import json

import torch
import triton
import triton.language as tl


@triton.jit
def scale_add_kernel(x, y, out, count, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside) * scale + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def copy_kernel(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    at = row[:, None].to(tl.int64) * columns + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    logits = tl.load(x + at, mask=inside, other=float("-inf"))
    exps = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    tl.store(out + at, exps / tl.sum(exps, axis=1)[:, None], mask=inside)


def tile(m, n, k, stages, warps):
    return triton.Config({"M": m, "N": n, "K": k, "GROUP": 8}, num_stages=stages, num_warps=warps)


@triton.autotune(
    configs=[
        tile(128, 256, 64, 3, 8),
        tile(128, 256, 64, 4, 8),
        tile(128, 128, 64, 4, 4),
        tile(128, 128, 64, 4, 8),
        tile(64, 256, 64, 4, 4),
        tile(128, 64, 64, 4, 4),
    ],
    key=["m", "n", "k"],
)
@triton.jit
def product_kernel(
    a, b, out, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr
):
    # Blocks run in groups of GROUP rows of tiles, which share the columns of b in the L2 cache.
    tiles_n = tl.cdiv(n, N)
    group, within = tl.program_id(0) // (GROUP * tiles_n), tl.program_id(0) % (GROUP * tiles_n)
    height = min(tl.cdiv(m, M) - group * GROUP, GROUP)
    tile_m, tile_n = group * GROUP + within % height, within // height
    row = (tile_m * M + tl.arange(0, M)) % m
    column = (tile_n * N + tl.arange(0, N)) % n
    depth = tl.arange(0, K)
    a_at = a + row[:, None] * k + depth[None, :]
    b_at = b + depth[:, None] * n + column[None, :]
    sums = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, k, K):
        left = depth < k - first
        sums = tl.dot(
            tl.load(a_at, mask=left[None, :], other=0.0), tl.load(b_at, mask=left[:, None], other=0.0), sums
        )
        a_at += K
        b_at += K * n
    row = tile_m * M + tl.arange(0, M)
    column = tile_n * N + tl.arange(0, N)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(out + row[:, None].to(tl.int64) * n + column[None, :], sums.to(tl.float16), mask=inside)


def timed(run):
    """Median microseconds of `run`, with a cold L2 cache."""
    return 1e3 * triton.testing.do_bench(run, warmup=50, rep=300, return_mode="median")


def best(name, candidates, check, bytes_moved=None, operations=None):
    """Checks every candidate, and reports the fastest."""
    figures = []
    for label, run in candidates:
        run()
        check(label)
        figures.append((timed(run), label))
    us, label = min(figures)
    rate = f"{bytes_moved / us / 1e6:.2f} TB/s" if bytes_moved else f"{operations / us / 1e6:.0f} TFLOP/s"
    print(f"{name}: {us:.1f} us, {rate} ({label})", flush=True)
    return {"name": name, "median_us": us, "bytes": bytes_moved, "operations": operations, "choice": label}


def elementwise(count):
    x, y = (torch.rand(count, device="cuda") * 16 - 8 for _ in range(2))
    out = torch.empty_like(x)
    grid = lambda block: (triton.cdiv(count, block),)
    blocks = [1024, 2048, 4096]
    copies = [(f"block {b}", lambda b=b: copy_kernel[grid(b)](x, out, count, BLOCK=b)) for b in blocks]
    yield best("copy f32", copies, lambda label: torch.testing.assert_close(out, x), 8 * count)
    adds = [(f"block {b}", lambda b=b: scale_add_kernel[grid(b)](x, y, out, count, 23.75, BLOCK=b)) for b in blocks]
    near = lambda label: torch.testing.assert_close(out, x * 23.75 + y, rtol=1e-5, atol=1e-5)
    yield best("scale + add f32", adds, near, 12 * count)


def softmax(rows, columns):
    x = torch.rand(rows, columns, device="cuda") * 16 - 8
    out = torch.empty_like(x)
    width = triton.next_power_of_2(columns)
    candidates = []
    for height in [1, 2, 4, 8, 16, 32]:
        for warps in [1, 2, 4, 8]:
            if 32 * warps <= height * width <= 64 * 32 * warps:
                run = lambda h=height, w=warps: softmax_kernel[(triton.cdiv(rows, h),)](
                    x, out, rows, columns, ROWS=h, COLUMNS=width, num_warps=w
                )
                candidates.append((f"{height} rows a block, {warps} warps", run))
    near = lambda label: torch.testing.assert_close(out, torch.softmax(x, dim=1), rtol=1e-5, atol=1e-6)
    return best(f"softmax {rows} x {columns}", candidates, near, 8 * rows * columns)


def product(m, n, k):
    a, b = (torch.rand(*shape, device="cuda", dtype=torch.float16) - 0.5 for shape in [(m, k), (k, n)])
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    grid = lambda meta: (triton.cdiv(m, meta["M"]) * triton.cdiv(n, meta["N"]),)
    run = lambda: product_kernel[grid](a, b, out, m, n, k)
    near = lambda label: torch.testing.assert_close(out, a @ b, rtol=2e-2, atol=2e-2)
    return best(f"FP16 product {m} x {n} x {k}", [("autotuned", run)], near, operations=2 * m * n * k)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 26)
    parser.add_argument("--rows", type=int, default=1 << 19)
    parser.add_argument("--columns", type=int, nargs="+", default=[49, 64, 1024])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096])
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.manual_seed(0)
    results = list(elementwise(args.elements))
    results += [softmax(args.rows * 49 // max(columns, 49), columns) for columns in args.columns]
    results += [product(size, size, size) for size in args.sizes]
    if args.json:
        versions = {"torch": torch.__version__, "triton": triton.__version__, "gpu": torch.cuda.get_device_name()}
        with open(args.json, "w") as file:
            json.dump({"versions": versions, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
