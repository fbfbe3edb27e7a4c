"""``swinq.torch.measure_gain``: float and INT8 on the same batches, and the model as it was."""

import json
import math
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from needed import need

need("timm", "torch", "torchvision", "transformers")

import torch
import transformers

from torch_models import LISTS, SMALL, images, of_timm, randomise
from torch_support import Inside, error

import swinq
import swinq.torch
from swinq._calls.timing import Times
from swinq._search.gain import Gain, Noise

#: A file as ``gain.save`` writes it, which ``swinq eval --program`` reads (`eval/tests/it/program.rs`).
SAMPLE = Path(__file__).parents[3] / "eval/tests/data/program_gain.json"


class Segmenter(Inside):
    """A program with outputs of several kinds, which notes how its Swin runs."""

    def __init__(self, swin=None):
        super().__init__(of_timm(**LISTS) if swin is None else swin)
        self.seen = []

    def forward(self, x):
        maps = self.backbone(self.conv(x))
        kind = "INT8" if isinstance(self.backbone, swinq.torch.SwinModule) else "float"
        self.seen.append((kind, x.sum().item(), self.training, torch.is_grad_enabled()))
        return {"maps": maps, "classes": maps[0].argmax(-1), "size": x.shape[-1]}


def quantized(program, batch):
    return swinq.torch.quantize(program, [batch], ptq="basic", share=False).model


class Gains(unittest.TestCase):
    def assert_as_before(self, program, swin):
        self.assertIs(program.backbone, swin)
        for module in (program, swin, swin.original):
            self.assertFalse(module._forward_hooks or module._forward_pre_hooks)

    def test_float_and_int8_on_the_same_batches(self):
        program, batches = Segmenter(), [images(2, seed=seed) for seed in range(3)]
        with torch.no_grad():
            expected = [program(batch)["maps"] for batch in batches]
            quantized(program, batches[0])
            found = [program(batch)["maps"] for batch in batches]
        swin = program.backbone
        program.train()
        program.seen.clear()
        values = iter((0.5, 0.25))
        gain = swinq.torch.measure_gain(program, batches + [None], lambda model: next(values), batches=3, metric="mean IoU")
        self.assert_as_before(program, swin)
        self.assertTrue(program.training and swin.training)
        sums = [batch.sum().item() for batch in batches]
        self.assertEqual(program.seen, [(kind, each, False, False) for each in sums for _ in range(2) for kind in ("float", "INT8")])
        self.assertEqual(list(gain.sqnr_db), ["output.maps[0]", "output.maps[1]"])
        for place, ratio in enumerate(gain.sqnr_db.values()):
            one, other = (torch.cat([maps[place] for maps in each]) for each in (expected, found))
            self.assertAlmostEqual(ratio, -20 * math.log10(error(other, one)), places=3)
        self.assertTrue(0 < gain.equal["output.classes"] <= 1)
        self.assertEqual((gain.incomparable, gain.batches, gain.device), ({}, 3, "cpu"))
        self.assertEqual((gain.metric, gain.float_value, gain.int8_value), ("mean IoU", 0.5, 0.25))
        for times in (gain.float_times, gain.int8_times):
            self.assertTrue(0 < times.swin_ms <= times.program_ms)
        self.assertRegex(str(gain), r"(?m)^mean IoU +0\.5 +0\.25 +-0\.25$")
        self.check_json(gain)

    def check_json(self, gain):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "gain.json"
            gain.save(path)
            found = json.loads(path.read_text())
        self.assertEqual(found, gain.results)
        self.assertEqual(found["metric"], {"name": "mean IoU", "float": 0.5, "int8": 0.25})
        self.assertEqual(found["times"]["int8"]["swin_ms"], gain.int8_times.swin_ms)
        self.assertEqual(found["outputs"], gain.sqnr_db)

    def test_the_metric_gets_the_model_in_each_state(self):
        program, batch = Segmenter(), images(1)
        quantized(program, batch)
        states = []

        def evaluate(model):
            states.append((type(model.backbone).__name__, model.training, torch.is_grad_enabled()))
            return len(states)

        gain = swinq.torch.measure_gain(program, [batch], evaluate)
        self.assertEqual(states, [("FeatureListNet", False, False), ("SwinModule", False, False)])
        self.assertEqual((gain.float_value, gain.int8_value), (1.0, 2.0))
        self.assertTrue(gain.metric.endswith("evaluate"))

    def test_errors_leave_the_model_as_it_was(self):
        program, batch = Segmenter(), images(1)
        quantized(program, batch)
        swin = program.backbone

        def fails(kind):
            def evaluate(model):
                if isinstance(model.backbone, swinq.torch.SwinModule) == (kind == "INT8"):
                    raise ValueError(kind)
                return 1.0

            return evaluate

        for kind in ("float", "INT8"):
            with self.assertRaisesRegex(ValueError, kind):
                swinq.torch.measure_gain(program, [batch], fails(kind))
            self.assert_as_before(program, swin)
        with self.assertRaisesRegex(swinq.ArgumentError, "loader: batch 0, a float32 tensor .*: the model raised RuntimeError"):
            swinq.torch.measure_gain(program, [batch[:, :1]])
        self.assert_as_before(program, swin)

    def test_a_module_that_is_the_model_itself(self):
        swin, batch = quantized(of_timm(), images(1)), images(2)
        gain = swinq.torch.measure_gain(swin, [batch])
        self.assertEqual((list(gain.sqnr_db), gain.float_value, gain.results["metric"]), (["output"], None, None))
        self.assertGreater(gain.sqnr_db["output"], 20)

    def test_a_model_of_transformers_that_runs_on_the_engine_itself(self):
        from swinq.transformers import attach

        model, batch = randomise(transformers.SwinForImageClassification(transformers.SwinConfig(**SMALL))), images(1)
        attach(quantized(model, batch))
        held = dict(model.__dict__)
        gain = swinq.torch.measure_gain(model, [{"pixel_values": batch}])
        self.assertEqual(model.__dict__, held)
        self.assertTrue(20 < gain.sqnr_db["output.logits"] < 100)

    def test_a_compiled_program_runs_without_its_graphs(self):
        program, batch = Segmenter(), images(1)
        quantized(program, batch)
        swin, compiled = program.backbone, torch.compile(program, backend="eager")
        gain = swinq.torch.measure_gain(compiled, [batch])
        self.assert_as_before(program, swin)
        self.assertIs(compiled._orig_mod, program)
        self.assertEqual(len(gain.sqnr_db), 2)
        self.assertLess(max(gain.sqnr_db.values()), 100)

    def test_what_is_refused(self):
        program, batch = Segmenter(), images(1)
        with self.assertRaisesRegex(swinq.ArgumentError, r"has no Swin in INT8. Its Swins \(backbone\) are in float; call swinq.torch.quantize"):
            swinq.torch.measure_gain(program, [batch])
        with self.assertRaisesRegex(swinq.ArgumentError, "It contains no Swin"):
            swinq.torch.measure_gain(torch.nn.Linear(2, 2), [batch])
        quantized(program, batch)
        for loader, options, problem in [
            (batch, {}, "loader: a Tensor is no iterable of batches"),
            (lambda model: None, {}, "loader: a function is no iterable"),
            ([], {}, "loader: gave no batch"),
            (["photo.jpg"], {}, "loader: gives a str"),
            ([batch], {"batches": 0}, "batches: is 0"),
            ([batch], {"evaluate": 3}, "evaluate: a int is no function"),
            ([batch], {"evaluate": lambda model: math.nan}, "returned nan, which is no finite number"),
        ]:
            with self.subTest(problem), self.assertRaisesRegex(swinq.ArgumentError, problem):
                swinq.torch.measure_gain(program, loader, **options)


class Outputs(unittest.TestCase):
    def test_ratios_are_those_of_all_calls(self):
        noise, inf = Noise(), math.inf
        noise.add({"a": torch.tensor([3.0, inf])}, {"a": torch.tensor([3.0, inf])})
        self.assertEqual(noise.sqnr_db(), {"output.a": inf})
        noise.add({"a": torch.tensor([1.0])}, {"a": torch.tensor([2.0])})
        self.assertAlmostEqual(noise.sqnr_db()["output.a"], 10.0)

    def test_outputs_that_cannot_be_compared_have_reasons(self):
        noise = Noise()
        noise.add(
            [torch.ones(2), torch.ones(3), torch.ones(2), torch.tensor([1, 2]), 7],
            [torch.ones(2), torch.ones(2), torch.tensor([1.0, math.nan]), torch.tensor([1, 3]), 7, torch.ones(1)],
        )
        self.assertEqual((list(noise.sqnr_db()), noise.equal()), (["output[0]"], {"output[3]": 0.5}))
        self.assertEqual(
            noise.incomparable,
            {
                "output[1]": "float and INT8 give different shapes, [3] and [2]",
                "output[2]": "values are finite in one of float and INT8 only",
                "output[5]": "only one of float and INT8 gives it",
            },
        )
        noise.add([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.ones(2)])
        self.assertEqual(list(noise.sqnr_db()), ["output[0]"], "one call that cannot be compared leaves the output out")


class Files(unittest.TestCase):
    def test_the_file_is_that_which_the_report_reads(self):
        gain = Gain(
            float_times=Times(41.25, 33.0),
            int8_times=Times(16.5, 8.25),
            sqnr_db={"output.maps[2]": 31.5, "output.maps[10]": math.inf},
            equal={"output.classes": 0.9921875},
            incomparable={"output.boxes": "float and INT8 give different shapes, [3, 4] and [2, 4]"},
            metric="mean IoU",
            float_value=0.4412,
            int8_value=0.4409,
            program="Segmenter, SwinBackbone",
            batches=8,
            device="cpu",
            threads=2,
            other_cores=None,
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "gain.json"
            gain.save(path)
            found = path.read_text().replace(f'"{torch.__version__}"', '"2.15.0"')
        self.assertEqual(found, SAMPLE.read_text())
        disturbed = replace(gain, other_cores=1.25)
        self.assertEqual(disturbed.results["environment"]["other_cores"], 1.25)
        self.assertIn("Other processes used 1.2 cores meanwhile: these times are disturbed.", str(disturbed).splitlines())


if __name__ == "__main__":
    unittest.main()
