"""Runs every file of tests of PyTorch, two at a time, each in a process of its own:

    python run_torch.py [NAME...]

With ``REQUIRE_IMPL=torch`` a test that is skipped is a failure, but for those whose reason is in :data:`ELSEWHERE`: they need a GPU or
packages that are not installed for the gate, and CONTRIBUTING.md says by what command they run. The last line counts the tests.
"""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: The longest first, so that no processor waits for one at the end.
LONGEST = ["test_torch_states", "test_torch_export", "test_torch_backbones", "test_torch_tune", "test_torch_prepared", "test_torch_modules"]
#: Reasons to skip a test that the gate accepts, as regular expressions.
ELSEWHERE = [r"no GPU", r"no two GPUs", r"No module named '(mmdet|mmseg|mmpretrain|mmcv|groundingdino|detectron2)", r"full size"]
JOBS = 2


def run(name: str) -> tuple[str, int, int, list[str], bool]:
    """A file's name, its tests, those that were skipped with reasons that count, and whether it passed; prints what it printed if not."""
    threads = str(max(1, (os.cpu_count() or 1) // JOBS))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONDONTWRITEBYTECODE": "1"}
    start = time.monotonic()
    command = [sys.executable, "-m", "unittest", "--verbose", name]
    done = subprocess.run(command, cwd=HERE, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    counted = re.findall(r"^Ran (\d+) tests? in", done.stdout, re.MULTILINE)
    tests = int(counted[-1]) if counted else 0
    skipped = re.findall(r"skipped ['\"](.*)['\"]$", done.stdout, re.MULTILINE)
    unexpected = [reason for reason in skipped if not any(re.search(known, reason) for known in ELSEWHERE)]
    required = "torch" in os.environ.get("REQUIRE_IMPL", "").split(",")
    # A file without tests passes if all of it is skipped.
    passed = done.returncode in (0, 5) and bool(counted) and not (required and unexpected)
    print(f"{name}: {'passed' if passed else 'FAILED'}, {tests} tests, {len(skipped)} skipped, {time.monotonic() - start:.0f} s", flush=True)
    if not passed:
        print(done.stdout, flush=True)
    for reason in unexpected:
        print(f"{name}: SKIPPED: {reason}", file=sys.stderr, flush=True)
    return name, tests, len(skipped), unexpected, passed


def main() -> int:
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("test_torch_*.py"))
    names.sort(key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
    with ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(run, names))
    failed = [name for name, _, _, _, passed in results if not passed]
    tests, skipped = (sum(result[place] for result in results) for place in (1, 2))
    print(f"{len(names) - len(failed)} of {len(names)} files of tests of PyTorch passed: {tests} tests, {skipped} skipped{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
