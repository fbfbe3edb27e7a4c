"""Classifies image files with Ray Data, on all processes and machines of a Ray cluster.

    pip install swinq "ray[data]" pillow
    python ray_predict.py swin_t.int8.safetensors *.jpg [--workers 8]

Each worker holds a core. At least one core must be left to read the data, or Ray waits forever.
"""

import argparse

import numpy as np
import ray

import swinq


class Predictor:
    """Opens the checkpoint once in each process; the path must exist on every machine."""

    def __init__(self, checkpoint: str) -> None:
        self.engine = swinq.open(checkpoint).engine(threads=1)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = self.engine.predict(batch["path"].tolist(), top_k=1)
        batch["class"] = np.array([best[0].index for best in found])
        batch["probability"] = np.array([best[0].probability for best in found])
        return batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("images", nargs="+", help="image files")
    parser.add_argument("--workers", type=int, default=1, help="processes with an engine; fewer than the cluster has cores")
    arguments = parser.parse_args()
    paths = ray.data.from_items([{"path": path} for path in arguments.images])
    found = paths.map_batches(
        Predictor, fn_constructor_args=(arguments.checkpoint,), batch_size=8, concurrency=arguments.workers
    )
    for row in found.take_all():
        print(f"{row['path']}: class {row['class']} ({row['probability']:.3f})")


if __name__ == "__main__":
    main()
