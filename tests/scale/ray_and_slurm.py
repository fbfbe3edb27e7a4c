"""The examples of docs/scale.md on one machine: what they write must equal one run of the program.

    pip install ray
    python tests/scale/ray_and_slurm.py target/release/swinq

Ray runs shards as tasks on this machine. Slurm's script runs here with the variable that Slurm sets. The gate does not run
it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples"
SAMPLE = ROOT / "samples/swin_micro_cifar10"
SHARDS = 3

#: Keys of results that depend on the machine and the time.
OTHER = {"environment", "peak_memory_bytes", "notes", "commands"}


def run(*command: object, **variables: str) -> None:
    subprocess.run([str(word) for word in command], check=True, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)


def figures(path: Path) -> dict:
    return {key: value for key, value in json.loads(path.read_text()).items() if key not in OTHER}


def main() -> None:
    swinq = str(Path(sys.argv[1]).resolve())
    sample = ["--cfg", SAMPLE / "cfg.yaml", "--data-path", ROOT / "samples/cifar10"]
    calibrate = [swinq, "calibrate", SAMPLE / "model.safetensors", *sample, "--batches", "6"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, ray, slurm = (folder / f"{how}.safetensors" for how in ("whole", "ray", "slurm"))
        run(*calibrate, "-o", whole)
        run(sys.executable, EXAMPLES / "shards_ray.py", "--shards", SHARDS, "-o", ray, *calibrate)
        assert ray.read_bytes() == whole.read_bytes(), "Ray's checkpoint is another"
        print("Ray: the checkpoint of one run")
        for shard in range(1, SHARDS + 1):
            script = ["bash", EXAMPLES / "shards.sbatch", SHARDS, folder / "calibration", *calibrate]
            run(*script, SLURM_ARRAY_TASK_ID=str(shard))
        run(swinq, "merge", *sorted(folder.glob("calibration.*.part")), "-o", slurm)
        assert slurm.read_bytes() == whole.read_bytes(), "Slurm's checkpoint is another"
        print("Slurm: the checkpoint of one run")
        models = [SAMPLE / "model.safetensors", whole]
        evaluate = [swinq, "eval", *models, *sample, "--limit", "200", "--batch-size", "16"]
        run(*evaluate, "--no-latency", "--json", folder / "whole.json")
        run(sys.executable, EXAMPLES / "shards_ray.py", "--shards", SHARDS, "-o", folder / "ray.json", *evaluate)
        assert figures(folder / "ray.json") == figures(folder / "whole.json"), "Ray's figures are others"
        print("Ray: the figures of one run")


if __name__ == "__main__":
    main()
