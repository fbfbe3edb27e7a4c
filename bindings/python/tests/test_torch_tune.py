"""Recipes by a metric of the program's own: what is kept, what an interrupted search keeps, and what is refused."""

import copy
import json
import re
import tempfile
import unittest
import warnings
from pathlib import Path

from needed import need

need("timm", "torch", "torchvision", "transformers")

import torch

from torch_models import LISTS, images, of_timm

import swinq
import swinq.torch

#: The images of the calibration, and those on which the metric is evaluated.
SEEN, HELD = images(3, 64, 96), images(6, 64, 96, seed=1)
CLASSES = 6


def swin():
    """A backbone with two outputs, in whose second stage a layer has an outlier channel: the same function, worse in INT8."""
    module = of_timm(**LISTS, strict_img_size=False, depths=(1, 2))
    block = module.layers_1.blocks[0]
    with torch.no_grad():
        block.norm2.weight[5] *= 64
        block.norm2.bias[5] *= 64
        block.mlp.fc1.weight[:, 5] /= 64
    return module


class Segmenter(torch.nn.Module):
    """A program that gives classes of pixels."""

    def __init__(self, backbone):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = backbone
        self.heads = torch.nn.ModuleList(torch.nn.Conv2d(channels, CLASSES, 1) for channels in (48, 96))
        self.eval()

    def forward(self, x):
        maps = [head(map.permute(0, 3, 1, 2)) for head, map in zip(self.heads, self.backbone(x), strict=True)]
        return sum(torch.nn.functional.interpolate(map, x.shape[-2:], mode="bilinear") for map in maps)


class Metric:
    """Minus the distance of the scores from those of the float model, relative to their norm. It counts its calls."""

    def __init__(self, model, fail=None):
        with torch.no_grad():
            self.expected = model(HELD)
        self.calls, self.fail = 0, fail

    def __call__(self, model):
        self.calls += 1
        if self.fail is not None:
            found = self.fail(self.calls)
            if found is not None:
                return found
        if torch.is_grad_enabled() or model.training:
            raise AssertionError("the model is to be in evaluation mode, without gradients")
        return -((model(HELD) - self.expected).norm() / self.expected.norm()).item()


class Tune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.table = cls.folder / "latencies.json"
        model = Segmenter(swin())
        cls.metric = Metric(model)
        swinq.torch.quantize(model, [SEEN], ptq="basic")
        with torch.no_grad():
            cls.start = cls.metric(model)
        swinq.torch.restore(model)
        # The layer with the outlier alone costs more, and the rest still too much.
        cls.max_drop = -0.12 * cls.start
        cls.model, cls.metric = model, Metric(model)
        cls.tuned = cls.tune(copy.deepcopy(model), cls.metric, cache="whole")
        print(cls.tuned)
        # Whether other processes disturbed the times, which would be measured again, depends on the machine.
        cls.table.write_text(re.sub(r'"disturbed": .*', '"disturbed": null', cls.table.read_text()))

    @classmethod
    def tune(cls, model, evaluate, cache=None, **options):
        options = {"max_drop": cls.max_drop, "ptq": "basic", "metric": "distance", "latencies": cls.table, **options}
        if cache is not None:
            options["cache"] = cls.folder / cache
        return swinq.torch.tune(model, [SEEN], evaluate, **options)

    def test_the_chosen_recipe_keeps_the_limit_and_is_in_the_model(self):
        tuned = self.tuned
        self.assertEqual((tuned.kept, tuned.end, tuned.metric), (True, "reached", "distance"))
        self.assertAlmostEqual(tuned.float_value, 0.0, places=6)
        self.assertEqual(tuned.start.value, self.start, "the start recipe is what quantize gives")
        self.assertLess(tuned.start.value, -self.max_drop)
        self.assertGreaterEqual(tuned.best.value, tuned.float_value - self.max_drop)
        self.assertIsInstance(tuned.model.backbone, swinq.torch.SwinModule)
        with torch.no_grad():
            self.assertEqual(self.metric(tuned.model), tuned.best.value, "the model is the one that was evaluated")
        kept = [each for each in tuned.candidates if each.value >= tuned.float_value - self.max_drop]
        # A less accurate candidate saves no more than the spread of the latency, and a more accurate one is slower.
        least = max(tuned.results["cost"]["spread"], 0.002)
        for each in kept:
            if (each.value, each.sqnr_db) < (tuned.best.value, tuned.best.sqnr_db):
                self.assertLessEqual(1 - each.predicted_ms / tuned.best.predicted_ms, least)
            elif each is not tuned.best:
                self.assertGreater(each.predicted_ms, tuned.best.predicted_ms)
        self.assertTrue(any("layers.1.blocks.0.mlp.fc1" in change for change in tuned.best.changes), tuned.best)
        self.assertTrue(tuned.best.latency_ms > 0 and tuned.start.latency_ms > 0 and tuned.float_latency_ms > 0)
        self.assertEqual(tuned.replaced.names, ("backbone",))
        lines = str(tuned).splitlines()
        self.assertEqual(lines[2 + len(tuned.candidates) :], [*tuned.warnings, tuned.ending])
        self.assertRegex(tuned.ending, rf"^The search ended after {len(tuned.candidates)} recipes: no further change")
        tuned.save(self.folder / "tuned.json")
        self.assertEqual(json.loads((self.folder / "tuned.json").read_text()), tuned.results)

    def test_the_checkpoint_and_the_recipe_give_the_model_again(self):
        self.tuned.model.backbone.model.save(self.folder / "swin.safetensors")
        opened = swinq.open(self.folder / "swin.safetensors")
        for name, value in opened.engine(backend="cpu").run(HELD).items():
            expected = self.tuned.model.backbone.model.engine(backend="cpu").run(HELD)[name]
            self.assertTrue(torch.equal(value, expected), name)
        model = copy.deepcopy(self.model)
        swinq.torch.quantize(model, [SEEN], self.tuned.best.recipe)
        with torch.no_grad():
            # Without refinement a calibration with the recipe gives the same numbers.
            self.assertEqual(self.metric(model), self.tuned.best.value)

    def test_an_interrupted_search_continues(self):
        # The float model is evaluated twice.
        whole = len(self.tuned.candidates) + 2
        self.assertGreater(whole, 4)
        table = self.table.read_bytes()

        def stop(calls):
            if calls == 4:
                raise KeyboardInterrupt

        model = copy.deepcopy(self.model)
        original, first = model.backbone, Metric(model, stop)
        with self.assertRaises(KeyboardInterrupt):
            self.tune(model, first, "interrupted")
        self.assertIs(model.backbone, original)
        second, third = Metric(model), Metric(model)
        found = self.tune(model, second, "interrupted")
        self.assertEqual((first.calls, second.calls), (4, whole - 3))
        self.assertEqual(found.best.recipe, self.tuned.best.recipe)
        self.assertEqual([each.value for each in found.candidates], [each.value for each in self.tuned.candidates])
        self.assertEqual(self.table.read_bytes(), table, "all launches were in the table")
        swinq.torch.restore(model)
        self.tune(model, third, "interrupted")
        self.assertEqual(third.calls, 0)

    def test_a_limit_out_of_reach_is_a_warning(self):
        model = copy.deepcopy(self.model)
        with self.assertWarnsRegex(UserWarning, "no recipe that was tried keeps the limit"):
            found = self.tune(model, Metric(model), max_drop=0.0, budget=0)
        self.assertEqual((found.kept, found.end, len(found.candidates)), (False, "out_of_time", 1))
        self.assertRegex(found.ending, "^The budget of 0 minutes ended the search after 1 recipe; ")
        self.assertIsInstance(model.backbone, swinq.torch.SwinModule)

    def test_values_that_are_no_numbers_and_errors_leave_the_model_as_it_was(self):
        model = copy.deepcopy(self.model)
        original = model.backbone
        for value, text in ((float("nan"), "returned nan"), ("0.5", "returned '0.5'"), (torch.ones(2), "returned tensor")):
            for call in (1, 3):
                with self.subTest(text, call=call):
                    metric = Metric(model, lambda calls, call=call, value=value: value if calls == call else None)
                    with self.assertRaisesRegex(swinq.ArgumentError, f"evaluate: {text}.*no finite number"):
                        self.tune(model, metric)
                    self.assertIs(model.backbone, original)

        def fail(calls):
            if calls == 3:
                raise LookupError("no such class")

        with self.assertRaisesRegex(LookupError, "no such class"):
            self.tune(model, Metric(model, fail))
        self.assertIs(model.backbone, original)
        calibrated = []
        calibrate = lambda model: calibrated.append(model(SEEN))  # noqa: E731
        for search in (swinq.torch.tune, swinq.torch.sensitivity):
            options = {"max_drop": 1.0} if search is swinq.torch.tune else {}
            with self.assertRaisesRegex(swinq.ArgumentError, "evaluate: returned nan"):
                search(model, calibrate, Metric(model, lambda calls: float("nan")), ptq="basic", **options)
        self.assertEqual(calibrated, [], "a metric that fails does so before the calibration")
        nothing = Metric(model)
        for options, text in (
            ({"max_drop": -1}, "max_drop: -1"),
            ({"batch_size": 0}, "batch_size"),
            ({"thread": 2}, "thread: is no argument of swinq.torch.tune, and no option .* did you mean threads"),
            ({"module": "heads"}, "module: `heads` is no Swin.*backbone"),
            ({"ptq": "reconstruct"}, "reconstruct"),
            ({"metric": None, "cache": "unnamed"}, "metric: is missing"),
            ({"metric": "a", "cache": self.folder / "no folder/cache"}, "cache: .*there is no folder"),
            ({"latencies": self.folder}, "latencies: .* is a folder"),
        ):
            with self.subTest(text), self.assertRaisesRegex(swinq.ArgumentError, text):
                self.tune(model, nothing, **options)
        self.assertEqual(nothing.calls, 0)
        self.assertIs(model.backbone, original)

    def test_a_metric_that_differs_from_call_to_call(self):
        def changing(step):
            return lambda calls: -step * calls

        model = copy.deepcopy(self.model)
        original, metric = model.backbone, Metric(model, changing(0.5))
        text = "evaluate: returned -0.5 and -1 for the same float model, which differ by more than max_drop=0.25; give it the same images"
        with self.assertRaisesRegex(swinq.ArgumentError, text):
            self.tune(model, metric, max_drop=0.25)
        self.assertEqual(metric.calls, 2)
        self.assertIs(model.backbone, original)
        text = "evaluate: returned -1e-05 and -2e-05 .* differences of up to 1e-05 say nothing"
        with self.assertWarnsRegex(UserWarning, text) as caught:
            swinq.torch.sensitivity(model, [SEEN], Metric(model, changing(1e-5)), only="layers.1.blocks.0.mlp.fc1", ptq="basic")
        self.assertEqual(caught.filename, __file__)

    def test_a_metric_that_cannot_be_called_with_the_model_alone(self):
        for evaluate in (lambda: 0.0, lambda model, loader: 0.0):
            for call in (self.tune, lambda model, evaluate: swinq.torch.measure_gain(model, [SEEN], evaluate)):
                with self.assertRaisesRegex(swinq.ArgumentError, r"evaluate: is called with the model alone, but its arguments are \("):
                    call(copy.deepcopy(self.model), evaluate)

    def test_values_of_another_metric_or_another_head_are_not_taken(self):
        for change in ("metric", "head"):
            with self.subTest(change):
                model = copy.deepcopy(self.model)
                (self.folder / change).write_bytes((self.folder / "whole").read_bytes())
                options = {"metric": "another"} if change == "metric" else {}
                if change == "head":
                    with torch.no_grad():
                        model.heads[0].weight += 0.01
                metric = Metric(model)
                with self.assertWarnsRegex(UserWarning, "that of another run"):
                    self.tune(model, metric, change, **options)
                self.assertGreater(metric.calls, 2)

    def test_one_of_several_swins_is_chosen_by_its_name(self):
        class Two(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = Segmenter(swin()), Segmenter(swin())
                self.eval()

            def forward(self, x):
                return self.first(x) + self.second(x)

        model = Two()
        metric = Metric(model)
        with self.assertRaisesRegex(swinq.ArgumentError, "2 Swins.*'first.backbone', 'second.backbone'"):
            self.tune(model, metric)
        self.assertEqual(metric.calls, 0)
        found = self.tune(model, metric, module="second.backbone", max_drop=10.0)
        self.assertEqual(found.replaced.names, ("second.backbone",))
        kinds = [isinstance(each.backbone, swinq.torch.SwinModule) for each in (model.first, model.second)]
        self.assertEqual(kinds, [False, True])
        with self.assertRaisesRegex(swinq.ArgumentError, "has no Swin in float. It contains no Swin"):
            self.tune(torch.nn.Linear(2, 2), metric)

    def test_a_model_that_is_a_swin(self):
        module = swin()
        with torch.no_grad():
            expected = module(HELD)[1]

        def near(model):
            return -(model(HELD)[1] - expected).norm().item()

        found = self.tune(module, near, metric=None, max_drop=1e9)
        self.assertIsInstance(found.model, swinq.torch.SwinModule)
        self.assertIs(found.model.original, module)
        self.assertIn("near", found.metric)

    def test_a_classifier_by_its_logits(self):
        module = of_timm(num_classes=5)
        x = images(2)
        with torch.no_grad():
            expected = module(x)

        def near(model):
            return -(model(x) - expected).norm().item()

        found = swinq.torch.tune(module, [x], near, max_drop=1e9, budget=0)
        self.assertTrue(found.kept and found.float_value == 0 and 25 < found.start.sqnr_db < 60, found)
        self.assertEqual((found.start.value, found.results["candidates"][0]["effect"]["top1_changes"]), (near(found.model), 0))


class Sensitivity(unittest.TestCase):
    def test_the_layer_with_the_outlier_gains_most(self):
        model = Segmenter(swin())
        original, metric, steps = model.backbone, Metric(model), []
        with tempfile.TemporaryDirectory() as folder:
            options = {"ptq": "basic", "metric": "distance", "cache": Path(folder) / "cache"}
            found = swinq.torch.sensitivity(
                model, [SEEN], metric, only="**.mlp.*", progress=lambda *step: steps.append(step), **options
            )
            print(found)
            self.assertIs(model.backbone, original)
            names = [part.name for part in found.parts]
            self.assertEqual((names[0], len(names)), ("layers.1.blocks.0.mlp.fc1", 6))
            self.assertEqual(sorted(found.parts, key=lambda part: -part.value), list(found.parts))
            worst = found.parts[0]
            self.assertGreater(worst.gain, 0.3 * -found.whole_value)
            self.assertAlmostEqual(worst.gain, worst.value - found.whole_value)
            self.assertGreater(worst.without_db, found.whole_db + 1)
            self.assertLess(worst.alone_db, min(part.alone_db for part in found.parts[1:]))
            evaluations = [step for step in steps if step[0] == "evaluate"]
            self.assertEqual(evaluations, [("evaluate", done, 8) for done in range(9)])
            self.assertEqual(metric.calls, 9, "the float model is evaluated twice")
            self.assertEqual(len(str(found).splitlines()), 2 + 6 + 1)
            self.assertRegex(str(found), f"\\n{found.warning}$")
            self.assertRegex(found.warning, "^Effects on [0-9]+ images? are rough")
            self.assertTrue(worst.gain_spread_db is None or worst.gain_spread_db >= 0)
            # What is known is not evaluated again, whatever the parts are.
            steps.clear()
            wider = swinq.torch.sensitivity(
                model, [SEEN], metric, only="layers.1.blocks.0.**", progress=lambda *step: steps.append(step), **options
            )
            self.assertEqual(next(step for step in steps if step[0] == "evaluate"), ("evaluate", 4, 8))
            self.assertEqual((metric.calls, wider.whole_value, wider.parts[0]), (13, found.whole_value, worst))
            blocks = swinq.torch.sensitivity(model, [SEEN], metric, parts="blocks", **options)
            self.assertEqual(blocks.parts[0].name, "layers.1.blocks.0")
            self.assertEqual({part.kind for part in blocks.parts}, {"block", "linear"})
            sites = swinq.torch.sensitivity(model, [SEEN], metric, parts="sites", only="layers.1.blocks.0.mlp.*.{input,weight}", **options)
            self.assertEqual({(part.kind, len(part.sites)) for part in sites.parts}, {("site", 1)})
            self.assertEqual(sites.parts[0].name, "layers.1.blocks.0.mlp.fc1.input")
            with self.assertRaisesRegex(swinq.ArgumentError, "matches none of the quantized parts; one of them is"):
                swinq.torch.sensitivity(model, [SEEN], metric, only="layers.7.**", **options)
            with self.assertRaisesRegex(swinq.ArgumentError, r"did you mean `layers\.1\.\*\*`"):
                swinq.torch.sensitivity(model, [SEEN], metric, only="layers.1.*", **options)
            with self.assertRaisesRegex(swinq.ArgumentError, "parts: `heads` is none of layers, blocks, sites"):
                swinq.torch.sensitivity(model, [SEEN], metric, parts="heads", **options)

    def test_a_search_takes_the_values_of_a_sensitivity(self):
        model = Segmenter(swin())
        metric = Metric(model)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("error")
            options = {"ptq": "basic", "metric": "distance", "cache": Path(folder) / "cache"}
            found = swinq.torch.sensitivity(model, [SEEN], metric, only="layers.1.blocks.0.mlp.fc1", **options)
            calls = metric.calls
            tuned = swinq.torch.tune(model, [SEEN], metric, max_drop=10.0, budget=0, **options)
            self.assertEqual((calls, metric.calls), (4, 4))
            self.assertEqual(tuned.start.value, found.whole_value)
            self.assertTrue((Path(folder) / "cache.latencies.json").exists())


if __name__ == "__main__":
    unittest.main()
