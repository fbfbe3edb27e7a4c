"""Programs of installed packages in their published sizes, before and after ``swinq.torch.quantize``, on the CPU.

    python full_programs.py [--exact] [NAME...]

Each program has random parameters and runs in a process of its own, on two images. A line has the largest relative differences with no
site quantized, at all tensors of the program, with the original's choices by score (``torch_choices.py``); the ratios of signal to
noise in INT8, of the Swin's worst output and of the worst floating-point tensor of the result, with the same choices; the seconds of the
float and of the INT8 program, each with all that it does after its outputs; and the peak memory. It ends with 1 if a difference is above
1e-5. Programs whose package is missing are reported.

With --exact, two lines have the largest relative differences from the program in float64, with its choices: those of the program itself
in float32, and those after the replacement with no site quantized.
"""

import math
import resource
import subprocess
import sys
import time
import warnings

import torch
from torch.utils._pytree import tree_map_only
from torch_choices import compared, observed
from torch_full import PROGRAMS
from torch_support import SAME

import swinq.torch


def measure(name: str) -> None:
    """Prints the line of one program, and leaves with 1 if it differs."""
    warnings.simplefilter("ignore")
    try:
        program, (calibrate, call) = PROGRAMS[name](name)
    except ImportError as problem:
        print(f"{name} | not run: {problem}", flush=True)
        return
    with torch.no_grad():
        call(program)
        start = time.perf_counter()
        call(program)
        seconds = time.perf_counter() - start
    same, int8 = compared(program, calibrate, call)
    errors = ", ".join(f"{kind} {value:.1e}" for kind, value in same.errors.items())
    swin = min(value for replaced in int8.report.replaced for value in replaced.sqnr_db.values())
    result = -20 * math.log10(max(int8.errors["result"], 1e-30))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name} | {sum(replaced.parameters for replaced in int8.report.replaced) / 1e6:.0f} M | {errors} | {same.choices} choices | "
        f"INT8 {swin:.1f} dB, result {result:.1f} dB | {seconds:.2f} s float, {int8.seconds:.2f} s INT8 | {memory:.1f} GiB",
        flush=True,
    )
    if max(same.errors.values()) > SAME or same.report.left:
        sys.exit(1)


def exact(name: str) -> None:
    """Prints how far a program and its replacement are from the program in float64."""
    warnings.simplefilter("ignore")
    program, (calibrate, call) = PROGRAMS[name](name)
    names = {name for replaced in swinq.torch.quantize(program, calibrate, None).replaced for name in replaced.names}
    swinq.torch.restore(program)

    def in_double(_, *given):
        return tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, given)

    hook = program.register_forward_pre_hook(in_double, with_kwargs=True)
    expected = observed(program.double(), names, call)
    hook.remove()
    program.float()
    for what in ("float32", "replaced"):
        if what == "replaced":
            swinq.torch.quantize(program, calibrate, None)
        found = observed(program, names, call, expected).differences()
        print(f"{name} | {what} | " + ", ".join(f"{kind} {value:.1e}" for kind, value in found.items()), flush=True)


def main(names: list[str]) -> int:
    one = "exact" if "--exact" in names else "measure"
    names = [name for name in names if name != "--exact"]
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        sys.exit(f"{unknown}: there are {list(PROGRAMS)}")
    ended = [subprocess.run([sys.executable, "-W", "ignore", __file__, f"--{one}-here", name]).returncode for name in names or PROGRAMS]
    return int(any(ended))


if __name__ == "__main__":
    here = {"--measure-here": measure, "--exact-here": exact}.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if here is None:
        sys.exit(main(sys.argv[1:]))
    here(sys.argv[2])
