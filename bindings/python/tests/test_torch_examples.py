"""The examples of training in docs/examples on tiny models. An example whose package is not installed is skipped, and says so."""

import contextlib
import importlib
import io
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

from needed import need

need("torch", "transformers")

import torch
import transformers

from support import ROOT
from torch_models import SWINS, images, of_timm

import swinq.torch

LABELS = torch.tensor([0, 1])


def example(name):
    """The module of an example. Without the package that it needs, the test is skipped with a line on standard error."""
    sys.path.insert(0, str(ROOT / "docs/examples"))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if "torch" in os.environ.get("REQUIRE_IMPL", ""):
            raise
        print(f"\nSKIPPED: docs/examples/{name}.py was not run: {error}", file=sys.stderr)
        raise unittest.SkipTest(str(error)) from error
    finally:
        sys.path.pop(0)


class Classifier(torch.nn.Module):
    """A head on the last map of a backbone."""

    def __init__(self):
        super().__init__()
        self.backbone = of_timm(features_only=True, out_indices=(1,))
        self.head = torch.nn.Linear(96, 2)

    def forward(self, x):
        return self.head(self.backbone(x)[0].mean((1, 2)))


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        warnings.simplefilter("ignore")
        transformers.utils.logging.disable_progress_bar()
        torch.manual_seed(0)

    def run_and_check(self, model, train, swin=lambda model: model.backbone):
        """The training changes weights and scales, and the saved file has the bits of the converted module."""
        before = {name: value.clone() for name, value in model.state_dict().items()}
        taken = []
        convert = swinq.torch.convert

        def watched(prepared, *rest):
            taken.append({name: value.clone() for name, value in prepared.state_dict().items()})
            return convert(prepared, *rest)

        swinq.torch.convert = watched
        try:
            file = train()
        finally:
            swinq.torch.convert = convert
        (trained,) = taken
        moved = [name for name, value in before.items() if not torch.equal(value, trained[name])]
        self.assertGreater(len(moved), 0.5 * len([name for name in before if "index" not in name]))
        ratios = [value for name, value in trained.items() if name.endswith("ratio")]
        self.assertGreater(sum(bool((value != 1).any()) for value in ratios), 0.5 * len(ratios))
        x = images(1)
        found = swinq.open(file).engine().run(x.numpy(), layout="NCHW")
        expected = swin(model).engine_for(x.device).run(x, layout="NCHW")
        self.assertEqual(list(found), list(expected))
        for name, value in expected.items():
            self.assertTrue(torch.equal(torch.as_tensor(found[name]), value), name)

    def test_the_trainer_of_transformers(self):
        module = example("train_transformers")
        model = SWINS["transformers classifier"]()
        dataset = [{"pixel_values": image, "labels": int(label)} for image, label in zip(images(2), LABELS, strict=True)]
        result = []

        def train():
            options = {"max_steps": 2, "per_device_train_batch_size": 2, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
            result.append(module.train(model, [images(2)], dataset, self.folder, **options))
            return f"{self.folder}/swin.int8.safetensors"

        self.run_and_check(model, train, lambda _: result[0])
        again = transformers.AutoModelForImageClassification.from_pretrained(self.folder)
        with torch.no_grad():
            self.assertTrue(torch.equal(again(images(2)).logits, result[0](images(2)).logits))

    def test_lightning(self):
        module, model = example("train_lightning"), Classifier()
        file, loader = f"{self.folder}/backbone.safetensors", torch.utils.data.DataLoader([*zip(images(2), LABELS, strict=True)], 2)
        options = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

        def train():
            module.train(model, [images(2)], loader, file, default_root_dir=self.folder, **options)
            return file

        self.run_and_check(model, train)

    def test_mmengine(self):
        module = example("train_mmengine")
        from mmengine.model import BaseModel

        class Model(Classifier, BaseModel):
            def __init__(self):
                BaseModel.__init__(self)
                made = Classifier()
                self.backbone, self.head = made.backbone, made.head

            def forward(self, inputs, labels=None, mode="tensor"):
                logits = Classifier.forward(self, inputs)
                return {"loss": torch.nn.functional.cross_entropy(logits, labels)} if mode == "loss" else logits

        model = Model()
        data = [{"inputs": image, "labels": label} for image, label in zip(images(2), LABELS, strict=True)]

        def train():
            # The Runner logs a line for each parameter.
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                module.train(model, lambda model: model(images(2)), torch.utils.data.DataLoader(data, batch_size=2), self.folder)
            return f"{self.folder}/backbone.int8.safetensors"

        self.run_and_check(model, train)

    def test_the_example_of_detectron2_is_python(self):
        compile((ROOT / "docs/examples/train_detectron2.py").read_text(), "train_detectron2.py", "exec")


if __name__ == "__main__":
    unittest.main()
