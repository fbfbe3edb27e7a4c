"""Runs swinq on hostile inputs and checks its manners.

    python3 tests/hostile target/release/swinq                          # 2,000 runs of seed 0
    python3 tests/hostile target/release/swinq --seed 7 --only 123 -v   # repeats run 123 of seed 7

Each run gives one command a damaged checkpoint, image, list, archive or YAML file, or absurd options. A run fails if
swinq dies of a signal, panics, hangs, uses an exit code that it does not document, prints control characters or a long
message to standard error, writes or changes a file other than the requested outputs, writes feature maps that are not
whole, or accepts a damaged quantized checkpoint that then gives other logits. The exit code is 1 if a run failed. Linux and the standard library suffice.
"""
import argparse
import collections
import concurrent.futures
import pathlib
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

from judgement import execute, judge, listing, logits
from runs import KINDS, model_options
from safetensors_files import split_safetensors
from settings import DATA, EXIT_CODES, FLOAT, ROOT, SAMPLE
from torch_files import array_pickle, torch_file, torch_pickle


class Base:
    """The files that are damaged."""

    def __init__(self, binary, folder):
        self.cpu = ["--backend", "cpu", "--threads", "1"]
        self.path, self.picture = folder / "base.safetensors", folder / "picture.jpg"
        with zipfile.ZipFile(DATA / "val.zip") as archive:
            self.picture.write_bytes(archive.read("airplane/0000.jpg"))
        results, found = folder / "base.json", folder / "logits.safetensors"
        self.backbone_path, maps = folder / "backbone.safetensors", folder / "maps.safetensors"
        for arguments in [["calibrate", FLOAT, *model_options(), "--task", "features", "--size", "56x56", "--data-path", DATA, "--ptq", "basic", "--batches", "1", "-o",
                           self.backbone_path],
                          ["features", self.backbone_path, self.picture, "--size", "56x64", *self.cpu, "--features", maps],
                          ["calibrate", FLOAT, *model_options(), "--data-path", DATA, "--ptq", "basic", "--batches", "1", "-o", self.path],
                          ["predict", self.path, self.picture, *self.cpu, "--logits", found],
                          ["eval", self.path, "--data-path", DATA, "--limit", "4", "--no-latency", *self.cpu, "--json", results]]:
            subprocess.run([binary, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.quantized, self.float, self.results = self.path.read_bytes(), FLOAT.read_bytes(), results.read_bytes()
        self.backbone, self.maps = self.backbone_path.read_bytes(), maps.read_bytes()
        self.logits = logits(found)
        folders = [ROOT / "data" / "tests" / "fixtures", ROOT / "tests" / "data"]
        suffixes = {".jpg", ".png", ".webp", ".bmp", ".tif", ".tiff"}
        self.images = {path.name: path.read_bytes() for home in folders for path in home.iterdir() if path.suffix in suffixes}
        header, body = split_safetensors(self.float)
        header.pop("__metadata__", None)
        self.tensors = {name: (about["shape"], (about["data_offsets"][1] - about["data_offsets"][0]) // 2) for name, about in header.items()}
        self.blobs = [body[slice(*about["data_offsets"])] for about in header.values()]
        self.program = torch_pickle(self.tensors)
        self.torch = torch_file(self.program, self.blobs)
        # What is damaged must be whole: the program accepts it.
        for name, data in [("base.pth", self.torch), *((f"base{protocol}.pkl", array_pickle(self.tensors, self.blobs, protocol)) for protocol in (2, 5))]:
            (folder / name).write_bytes(data)
            subprocess.run([binary, "predict", folder / name, self.picture, *map(str, model_options()), *self.cpu], check=True, stdout=subprocess.DEVNULL)


def one(index, options, base, home):
    """Makes, runs and judges run `index`. Returns its kind, exit code, seconds, faults, command and message."""
    rng = random.Random(f"{options.seed}:{index}")
    kind = rng.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
    folder = home / f"run{index}"
    folder.mkdir()
    run = KINDS[kind][0](rng, base, folder)
    before = listing(folder)
    start = time.monotonic()
    code, out, err = execute(options.binary, run, folder)
    seconds = time.monotonic() - start
    faults = judge(run, folder, before, code, out, err, base)
    if not options.keep:
        shutil.rmtree(folder)
    return index, kind, code, seconds, faults, shlex.join(["swinq", *run.arguments]), err.decode("utf-8", "replace")


def main():
    parser = argparse.ArgumentParser(description="Runs swinq on hostile inputs and checks its manners.")
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--only", type=int, help="make this run only")
    parser.add_argument("--keep", action="store_true", help="keep the files of every run, and print where they are")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each run's command and message")
    options = parser.parse_args()
    options.binary = options.binary.resolve(strict=True)
    home = pathlib.Path(tempfile.mkdtemp(prefix="swinq-hostile-"))
    (home / "base").mkdir()
    base = Base(options.binary, home / "base")
    shared = [home / "base", SAMPLE]
    before = [listing(folder) for folder in shared]
    wanted = range(options.runs) if options.only is None else [options.only]
    counts, failures = collections.defaultdict(collections.Counter), []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for index, kind, code, seconds, faults, command, message in pool.map(lambda k: one(k, options, base, home), wanted):
            counts[kind]["accepted" if code == 0 else "hung" if code is None else "refused" if code in EXIT_CODES else "died"] += 1
            counts[kind]["failed"] += bool(faults)
            counts[kind]["slowest"] = max(counts[kind]["slowest"], seconds)
            if options.verbose:
                print(f"{index} {kind}: {code} in {seconds:.2f} s\n  {ascii(command[:2000])}\n  {ascii(message[:600])}")
            if faults:
                failures.append(index)
                print(f"FAILED {index} ({kind}): {'; '.join(faults)}\n  {ascii(command[:1000])}\n  {ascii(message[:300])}\n"
                      f"  repeat: python3 tests/hostile {options.binary.name} --seed {options.seed} --only {index} -v --keep", flush=True)
    if [listing(folder) for folder in shared] != before:
        failures.append(-1)
        print("FAILED: a run changed the sample or the base files")
    print(f"\n{'inputs':22} {'runs':>6} {'accepted':>9} {'refused':>8} {'failed':>7} {'slowest s':>10}")
    for kind, count in sorted(counts.items()):
        total = sum(count[name] for name in ("accepted", "refused", "hung", "died"))
        print(f"{kind:22} {total:6} {count['accepted']:9} {count['refused']:8} {count['failed']:7} {count['slowest']:10.2f}")
    print(f"{len(failures)} of {len(wanted)} runs failed, seed {options.seed}")
    if options.keep:
        print(f"files: {home}")
    else:
        shutil.rmtree(home)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
