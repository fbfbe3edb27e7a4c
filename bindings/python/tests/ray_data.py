"""Ray Data over the package, on one machine: the examples of the README and of `examples/ray_predict.py`.

    pip install swinq "ray[data]" pillow
    python ray_data.py [IMAGE...]

Every row's result must be that of one engine in this process. The gate does not run it.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import ray

import swinq

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bindings/python/examples"))
from ray_predict import Predictor as FilePredictor  # noqa: E402

#: Processes of Ray.
WORKERS = 2


class Predictor:
    """The class of the README."""

    def __init__(self, checkpoint):
        self.engine = swinq.open(checkpoint).engine(threads=1)

    def __call__(self, batch):
        batch["logits"] = self.engine(batch.pop("image"))
        return batch


def arrays(model: swinq.Model, checkpoint: str) -> None:
    """Logits of a Parquet file of images."""
    pixels = np.random.default_rng(0).integers(0, 256, (203, *model.input_size, 3), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        images = [{"id": i, "image": image} for i, image in enumerate(pixels)]
        ray.data.from_items(images, override_num_blocks=4).write_parquet(folder)
        start = time.perf_counter()
        found = ray.data.read_parquet(folder).map_batches(
            Predictor, fn_constructor_args=(checkpoint,), batch_size=8, concurrency=WORKERS
        )
        rows = sorted(found.take_all(), key=lambda row: row["id"])
    np.testing.assert_array_equal(np.stack([row["logits"] for row in rows]), model(pixels))
    print(f"{len(rows)} arrays in {time.perf_counter() - start:.1f} s with the start of {WORKERS} processes: the engine's logits")


def files(model: swinq.Model, checkpoint: str, images: list[str]) -> None:
    """Classes of files."""
    paths = ray.data.from_items([{"path": path} for path in images], override_num_blocks=4)
    rows = paths.map_batches(FilePredictor, fn_constructor_args=(checkpoint,), batch_size=8, concurrency=WORKERS)
    found = {row["path"]: (row["class"], row["probability"]) for row in rows.take_all()}
    expected = {path: (best[0].index, best[0].probability) for path, best in zip(images, model.predict(images, top_k=1))}
    assert found == expected, f"{found} is not {expected}"
    print(f"{len(found)} files: the engine's classes and probabilities")


def main() -> None:
    # Each worker holds a core; reading needs another.
    ray.init(num_cpus=WORKERS + 2, include_dashboard=False)
    sample = ROOT / "samples/swin_micro_cifar10"
    images = sys.argv[1:] or [str(path) for path in sorted((ROOT / "tests/data").glob("airplane.*"))]
    model = swinq.quantize(sample / "model.safetensors", ROOT / "samples/cifar10", limit=16, cfg=str(sample / "cfg.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = str(Path(folder) / "q.safetensors")
        model.save(checkpoint)
        arrays(model, checkpoint)
        files(model, checkpoint, images)


if __name__ == "__main__":
    main()
