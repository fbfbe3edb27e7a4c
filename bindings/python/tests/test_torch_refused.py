"""Arguments and batches that long calls refuse: before the work, and with the batch at fault.

The tests need torch, timm, tqdm and transformers. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from needed import need

need("timm", "torch", "tqdm", "transformers")

import numpy as np
import torch
import transformers
from torch_models import FOUR, STAGES, images, of_timm, randomise
from torch_support import Case, Inside

import swinq
import swinq.torch
from swinq.transformers import SwinqConfig


def untouched():
    """A loader that nobody may read."""
    raise AssertionError("a batch was taken")
    yield


def metric(model) -> float:
    return 1.0


#: Arguments that no calibration can have, with what the message says.
OF_RECIPES = [
    ({"ptq": "fancy"}, "ptq: "),
    ({"recipe": "mode3"}, "mode3"),
    ({"recipe": {"name": "x", "rules": [{"match": "layers.9.**", "enable": False}]}}, r"layers\.9"),
    ({"recipe": {"name": "x", "rules": [{"match": "**", "enable": False}]}}, "x"),
    ({"samples": 0}, "samples: is 0"),
    ({"samples": 2.5}, "samples: is 2.5; it must be a whole number"),
    ({"progress": 3}, "progress: give True, False"),
]
#: The same of engines.
OF_ENGINES = [
    ({"backend": "gpu"}, "backend: `gpu` is none of auto, cpu, cuda"),
    ({"threads": -1}, "threads: is -1"),
    ({"max_batch": "many"}, "max_batch: is 'many'; it must be a whole number"),
    ({"residual": "f8"}, "residual: `f8` is none of auto, f16, f32"),
    ({"thread": 2}, "thread: .*did you mean threads"),
]


class BeforeTheWork(Case):
    """No batch is taken."""

    def refuse(self, function, cases, *args, **kwargs):
        for options, problem in cases:
            with self.subTest(f"{function.__name__} {options}"), self.assertRaisesRegex(swinq.Error, problem):
                function(Inside(of_timm(num_classes=0)), untouched(), *args, **{**kwargs, **options})

    def test_quantize(self):
        self.refuse(swinq.torch.quantize, [*OF_RECIPES, *OF_ENGINES, ({"batch_size": "8"}, "batch_size: is '8'")])

    def test_prepare(self):
        cases = [({"learned": "some"}, "learned"), ({"drop_path": 1.0}, "drop_path"), ({"drop_path": "0"}, "drop_path"), ({"batch_size": 0}, "batch_size")]
        self.refuse(swinq.torch.prepare, [*OF_RECIPES, *cases])

    def test_tune(self):
        folder = str(Path(tempfile.gettempdir()) / "no such folder" / "a file")
        cases = [
            ({"max_drop": "little"}, "max_drop: 'little' is not a number from 0 on"),
            ({"max_drop": None}, "max_drop: is None"),
            ({"min_speedup": 0}, "min_speedup"),
            ({"budget": float("nan")}, "budget: nan"),
            ({"batch_size": 0}, "batch_size: is 0"),
            ({"module": "neck"}, "module: `neck`"),
            ({"ptq": "reconstruct"}, 'ptq="reconstruct"'),
            ({"cache": folder}, "there is no folder"),
            ({"cache": tempfile.gettempdir()}, "is a folder"),
            ({"cache": __file__}, "holds something else than finished measurements"),
            ({"latencies": folder}, "no such folder"),
        ]
        self.refuse(swinq.torch.tune, [*OF_RECIPES, *OF_ENGINES, *cases], metric, max_drop=0.1)
        fields = {"schema": 3, "ms": {}, "reference_ms": None, "spread": 0.0, "settled": False, "disturbed": None}
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "cache.latencies.json"
            table.write_text(json.dumps({**fields, "machine": "kernels of another, 9 threads", "batch_size": 1}))
            problem = "latencies: .*holds times of kernels of another, 9 threads at batch 1.* name another file, or remove it"
            for options in ({"latencies": table}, {"cache": Path(folder) / "cache"}, {"latencies": table, "backend": "cpu"}):
                self.refuse(swinq.torch.tune, [(options, problem)], metric, max_drop=0.1)

    def test_sensitivity(self):
        cases = [
            ({"parts": "rows"}, "parts: `rows` is none of layers, blocks, sites"),
            ({"only": "layers.7.**"}, "only: `layers.7.\\*\\*`: matches none of the quantized parts"),
            ({"only": "re:("}, "only"),
            ({"ptq": "reconstruct"}, "reconstruct"),
            ({"cache": tempfile.gettempdir()}, "is a folder"),
            ({"cache": __file__}, "holds something else than finished measurements"),
        ]
        self.refuse(swinq.torch.sensitivity, [*OF_RECIPES, *OF_ENGINES, *cases], metric)

    def test_of_models_alone(self):
        module = of_timm(num_classes=5)
        for options, problem in [*OF_RECIPES[:4], ({"batch_size": 0}, "batch_size"), ({"threads": 1.5}, "threads"), ({"progress": 3}, "progress")]:
            with self.subTest(str(options)), self.assertRaisesRegex(swinq.Error, problem):
                swinq.quantize(module, untouched(), **options)
        for options, problem in [({"backend": "gpu"}, "backend: `gpu`"), ({"latency": [0]}, "latency"), ({"progress": 3}, "progress")]:
            with self.subTest(str(options)), self.assertRaisesRegex(swinq.ArgumentError, problem):
                swinq.evaluate(module, untouched(), **options)
        with self.assertRaisesRegex(swinq.ArgumentError, "batches: is 'all'"):
            swinq.torch.measure_gain(Inside(module), untouched(), batches="all")

    def test_of_configurations(self):
        # What a recipe does not fit is known when there is a model.
        for options, problem in [each for each in OF_RECIPES if not isinstance(each[0].get("recipe"), dict)]:
            with self.subTest(str(options)), self.assertRaisesRegex(swinq.Error, problem):
                SwinqConfig(calibrate=untouched(), **options)
        for options, problem in OF_ENGINES:
            backend = options.get("backend", "auto")
            rest = {name: value for name, value in options.items() if name != "backend"}
            with self.subTest(str(options)), self.assertRaisesRegex(swinq.ArgumentError, problem):
                SwinqConfig(calibrate=untouched(), backend=backend, options=rest)
        with self.assertRaisesRegex(swinq.ArgumentError, "recpie: is no argument of SwinqConfig; did you mean recipe?"):
            SwinqConfig(calibrate=untouched(), recpie="mode1")
        with self.assertRaisesRegex(swinq.ArgumentError, "threads: is no argument of SwinqConfig; it is an option of an engine: options={'threads': ...}"):
            SwinqConfig(calibrate=untouched(), threads=2)
        # A saved folder states the recipe by which it was made, which need not exist any more.
        self.assertEqual(SwinqConfig(recipe="gone.yaml").recipe, "gone.yaml")


def backbone():
    config = transformers.SwinConfig(**FOUR, out_features=STAGES)
    return randomise(transformers.SwinBackbone(config))


class Batches(Case):
    """The message names the batch and the way out, and the way out works."""

    def refused(self, loader, problem, program=None, function=swinq.torch.quantize):
        with self.assertRaisesRegex(swinq.ArgumentError, problem) as caught:
            function(program or Inside(backbone()), loader)
        return caught.exception

    def test_an_image_without_a_batch(self):
        image = images(1)[0]
        error = self.refused([images(1), image], r"calibrate: batch 1, a float32 tensor \[3, 224, 224\]: the model raised .* a single image is images\[None\]")
        self.assertIsNotNone(error.__cause__)
        swinq.torch.quantize(Inside(backbone()), [images(1), image[None]])

    def test_numbers_and_texts(self):
        self.refused([[1, 2, 3]], "calibrate: gives a int; it must be an iterable of batches, normalised")
        self.refused([[["a"]]], "calibrate: gives a list of a str; it must")
        self.refused([[]], "calibrate: gives a list of nothing")
        self.refused([np.zeros((1, 3, 8, 8), np.float32)], r"calibrate: gives an array of numpy \(torch.from_numpy makes it a tensor\); it must be")

    def test_half_precision(self):
        program = Inside(backbone()).half()
        self.refused([images(1)], r"batch 0, a float32 tensor .*its parameters are float16: give images.to\(torch.float16\)", program)
        swinq.torch.quantize(program, [images(1).to(torch.float16)])

    def test_nothing(self):
        exhausted = iter([images(1)])
        next(exhausted)
        for loader in ([], exhausted):
            self.refused(loader, "calibrate: gave no batch; a generator that was read before is exhausted")

    def test_pixels(self):
        pixels = torch.zeros(1, 3, 224, 224, dtype=torch.uint8)
        self.refused([pixels], "batch 0, a uint8 tensor .*pixels of uint8 are for swinq.open")
        program = Inside(backbone())
        swinq.torch.quantize(program, [images(1)])
        with self.assertRaisesRegex(swinq.ArgumentError, "images: a uint8 tensor .* no floating-point tensor .* swinq.open"):
            program(pixels)
        with self.assertRaisesRegex(swinq.ArgumentError, "loader: batch 0, a uint8 tensor|images: a uint8 tensor"):
            swinq.torch.measure_gain(program, [pixels])

    def test_dictionaries(self):
        self.refused([{"x": images(1)[0]}], r"batch 0, a dict of x, a float32 tensor \[3, 224, 224\]")

    def test_errors_of_the_program_pass(self):
        class Stop(Exception):
            pass

        class Program(Inside):
            def forward(self, x):
                raise Stop("own")

        with self.assertRaisesRegex(Stop, "own") as caught:
            swinq.torch.quantize(Program(backbone()), [images(1)])
        self.assertIn("calibrate: batch 0, a float32 tensor", caught.exception.__notes__[0])


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Progress(Case):
    def shown(self, stream, **options) -> str:
        with contextlib.redirect_stderr(stream), mock.patch.object(sys, "stderr", stream):
            program = Inside(of_timm(depths=[1, 1], num_classes=0))
            swinq.torch.quantize(program, [images(1)], ptq="basic", share=False, **options)
        return stream.getvalue()

    def test_a_bar_is_shown_on_a_terminal(self):
        shown = self.shown(Terminal())
        self.assertIn("observe", shown)
        self.assertIn("record", shown)
        self.assertEqual(self.shown(io.StringIO()), "")
        self.assertEqual(self.shown(Terminal(), progress=False), "")
        self.assertIn("observe", self.shown(io.StringIO(), progress=True))

    def test_recorded_images_are_counted(self):
        steps = []
        swinq.torch.quantize(Inside(of_timm(num_classes=0)), [images(2)] * 3, samples=5, ptq="basic", share=False,
                             progress=lambda *step: steps.append(step))  # fmt: skip
        recorded = [step for step in steps if step[0] == "record"]
        self.assertEqual(recorded, [("record", 2, 5), ("record", 4, 5), ("record", 5, 5)])


if __name__ == "__main__":
    unittest.main()
