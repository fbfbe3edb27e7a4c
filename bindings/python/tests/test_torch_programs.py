"""``swinq.torch.quantize`` in programs of transformers: every tensor, and what the programs do after their outputs.

The tests need torch, torchvision, transformers and timm. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import math
import unittest

from needed import need

need("torch", "transformers", "timm", "torchvision")

import torch

import torch_openmmlab
from torch_choices import Choices, compared
from torch_models import PROGRAMS, images, redraw
from torch_processing import calls, check
from torch_support import INT8, SAME, leaves

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
                self.check(name, program, calls(name, images(2, 128, 128), more))

    def test_they_compile_in_one_graph_as_their_originals(self):
        """Programs call their Swins with keywords, and some with arguments of the calibration."""
        for name, make in PROGRAMS.items():
            program, more = make()
            redraw(program, seed=1)
            batch = {"pixel_values": images(2, 128, 128), **more}
            report = swinq.torch.quantize(program, [batch], ptq="basic")
            torch.compiler.reset()
            with self.subTest(name=name), torch.no_grad():
                self.assertIsNotNone(report.share, report.no_share)
                compiled = torch.compile(program, backend="eager", fullgraph=True)
                for other in (batch, {**batch, "pixel_values": images(2, 96, 160)}):
                    found, expected = leaves(compiled(**other)), leaves(program(**other))
                    self.assertGreater(len(expected), 0)
                    for (place, one), (_, two) in zip(found, expected, strict=True):
                        self.assertTrue(torch.equal(one, two), place)

    def test_openmmlab(self):
        for name, (package, config, changes, size) in torch_openmmlab.PROGRAMS.items():
            if changes is None:
                continue
            with self.subTest(name=name):
                try:
                    program = redraw(torch_openmmlab.built(package, config, changes), seed=1)
                except ImportError as problem:
                    self.skipTest(f"{problem}")
                self.check(name, program, torch_openmmlab.calls(name, images(2, *size)), torch_openmmlab.check)

    def check(self, name, program, calls, check=check):
        """Every tensor is that of the original with no site quantized, and the results are well-formed in INT8, too."""
        for found in compared(program, *calls):
            self.assertEqual((len(found.report.replaced), found.report.left), (1, []))
            if found.recipe is None:
                self.assertLess(max(found.errors.values()), SAME, found.errors)
            check(self, {kind: part for kind, part in found.result.items() if kind != "outputs"})
            self.assertGreater(min(found.report.replaced[0].sqnr_db.values()), 100 if found.recipe is None else INT8)
            shown = ", ".join(f"{kind} {-20 * math.log10(max(value, 1e-30)):.1f} dB" for kind, value in found.errors.items())
            print(f"{name}: {found.report}; {found.choices} choices held; {shown}")


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
        self.assertEqual([name for name, _ in recording.scores.kept][:2], ["aten::topk", "aten::max"])
        self.assertGreater(held.scores.end(), 0.1)
        for place in (1, 3, 5, 6):
            self.assertTrue(torch.equal(found[place], expected[place]))
        self.assertEqual(found[0].tolist(), second[[1, 2]].tolist())
        self.assertEqual((found[2].item(), found[7].item()), (second[1].item(), second[0].item()))
        self.assertEqual(found[4].tolist(), second[[0, 2, 1]].tolist())
        self.assertEqual((held.scores.count, recording.scores.count), (5, 5))
        with self.assertRaisesRegex(AssertionError, "instead of"), Choices(recording):
            choose(torch.zeros(4))


if __name__ == "__main__":
    unittest.main()
