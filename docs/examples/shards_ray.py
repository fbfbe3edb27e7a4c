"""Runs `swinq calibrate` or `swinq eval` in shards on a Ray cluster, and merges the parts.

    pip install ray
    python shards_ray.py --shards 8 -o swin_t.int8.safetensors swinq calibrate swin_t.pth --data-path imagenet
    python shards_ray.py --shards 8 -o results.json swinq eval swin_t.pth swin_t.int8.safetensors --data-path imagenet

The command is that of one run, without `-o`. The program, the models and the images must be at the same paths on every
machine; the parts come back through Ray, so that no folder has to be shared.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import ray


def run(command: list[str]) -> None:
    """Runs a command; an error has the end of what it printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {' '.join(command)}\n{done.stdout[-2000:]}")


@ray.remote(max_retries=2)
def part(command: list[str], shard: int, shards: int) -> bytes:
    """The part of one shard. Ray runs it again if its machine is lost."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part"
        run([*command, "--shard", f"{shard}/{shards}", "-o", str(path)])
        return path.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, required=True, help="number of shards")
    parser.add_argument("--cpus", type=int, default=1, help="cores that Ray reserves for a shard, and threads of its program")
    parser.add_argument("-o", "--output", required=True, help="checkpoint or JSON to write")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="swinq calibrate ... or swinq eval ...")
    arguments = parser.parse_args()
    command = [*arguments.command, "--threads", str(arguments.cpus)]
    ray.init(ignore_reinit_error=True)
    task = part.options(num_cpus=arguments.cpus)
    pending = {task.remote(command, i + 1, arguments.shards): i + 1 for i in range(arguments.shards)}
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{i + 1}.part") for i in range(arguments.shards)]
        while pending:
            [done], _ = ray.wait(list(pending))
            shard = pending.pop(done)
            Path(paths[shard - 1]).write_bytes(ray.get(done))
            print(f"shard {shard}/{arguments.shards} is done, {len(pending)} left", flush=True)
        run([command[0], "merge", *paths, "-o", arguments.output])
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
