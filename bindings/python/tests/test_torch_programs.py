"""``swinq.torch.quantize`` in programs of transformers: every tensor, and what the programs do after their outputs.

The tests need torch, torchvision, transformers and timm. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import math
import os
import unittest

try:
    import torch
    import transformers  # noqa: F401
    import timm  # noqa: F401
    import torchvision  # noqa: F401
except ImportError as missing:
    if "torch" in os.environ.get("REQUIRE_IMPL", ""):
        raise
    raise unittest.SkipTest(f"{missing}") from missing

from torch_choices import Choices, differences, observed, result_difference, swins_of
from torch_models import PROGRAMS, images, redraw
from torch_processing import check, process
from torch_support import INT8, SAME

import swinq.torch


class Programs(unittest.TestCase):
    def test_models_of_transformers(self):
        for name, make in PROGRAMS.items():
            with self.subTest(name=name):
                program, more = make()
                redraw(program, seed=1)
                if name.startswith("DPT"):
                    # A depth of zero everywhere would hide mistakes.
                    torch.nn.init.constant_(program.head.head[4].bias, 5.0)
                self.check(name, program, more, images(2, 128, 128))

    def check(self, name, program, more, batch):
        def call(model):
            outputs = model(pixel_values=batch, **more)
            return {"outputs": outputs, **process(name, model, outputs, batch)}

        def calibrate(model):
            model(pixel_values=batch, **more)

        report = swinq.torch.quantize(program, calibrate, None)
        self.assertEqual((len(report.replaced), report.left), (1, []))
        swins = swins_of(report)
        expected = observed(swinq.torch.restore(program), swins, call)
        check(self, _results(expected))
        for recipe in (None, "default"):
            report = swinq.torch.quantize(program, calibrate, recipe)
            found = observed(program, swins, call, expected)
            errors = {**differences(found, expected), "result": result_difference(found.result, expected.result)}
            if recipe is None:
                self.assertLess(max(errors.values()), SAME, errors)
            free = observed(program, swins, call)
            check(self, _results(free))
            self.assertGreater(min(report.replaced[0].sqnr_db.values()), 100 if recipe is None else INT8)
            shown = ", ".join(f"{kind} {-20 * math.log10(max(value, 1e-30)):.1f} dB" for kind, value in errors.items())
            print(f"{name}: {report}; {len(found.choices.made)} choices held; {shown}")
            swinq.torch.restore(program)


def _results(run):
    return {kind: part for kind, part in run.result.items() if kind != "outputs"}


class Held(unittest.TestCase):
    def test_choices_of_another_run_are_taken_at_other_scores(self):
        def choose(scores):
            values, indices = scores.topk(2)
            largest, place = scores.max(0)
            return [values, indices, largest, place, scores.sort(-1)[0], scores > 0.5, scores.argmax(), scores.max()]

        first, second = torch.tensor([0.1, 0.9, 0.6]), torch.tensor([0.8, 0.2, 0.7])
        recording = Choices()
        with recording:
            expected = choose(first)
        with Choices(recording) as held:
            found = choose(second)
        self.assertEqual([name for name, _, _ in recording.made][:2], ["aten::topk", "aten::max"])
        for place in (1, 3, 5, 6):
            self.assertTrue(torch.equal(found[place], expected[place]))
        self.assertEqual(found[0].tolist(), second[[1, 2]].tolist())
        self.assertEqual((found[2].item(), found[7].item()), (second[1].item(), second[0].item()))
        self.assertEqual(found[4].tolist(), second[[0, 2, 1]].tolist())
        self.assertEqual(len(held.made), len(recording.made))
        with self.assertRaisesRegex(AssertionError, "instead of"), Choices(recording):
            choose(torch.zeros(4))


if __name__ == "__main__":
    unittest.main()
