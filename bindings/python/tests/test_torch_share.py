"""The Swin's share of a program's time: how calls are timed, by clocks that stand, and what a report has of it."""

import unittest
import warnings
from unittest import mock

from needed import need

need("timm", "torch", "torchvision", "transformers")

import torch

from torch_models import LISTS, images, of_timm
from torch_support import Inside

import swinq
import swinq.torch
from swinq._calls import timing
from swinq._calls.share import REST, SWIN


class Clock:
    """Seconds that only parts of a program move."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class Part(torch.nn.Module):
    """A part of a program that takes the seconds of a list, one after the other, and then the last ones."""

    def __init__(self, clock, *seconds):
        super().__init__()
        self.clock, self.seconds, self.calls = clock, list(seconds), 0

    def forward(self, x):
        self.clock.seconds += self.seconds[min(self.calls, len(self.seconds) - 1)]
        self.calls += 1
        return x


class Medians(unittest.TestCase):
    def timed(self, swin, rest, clock):
        call = timing.Call((torch.zeros(1),), {})
        return timing.medians(call, torch.nn.Sequential(swin, rest, swin), [swin], clock)

    def test_all_calls_of_a_swin_count_and_the_first_call_of_the_program_does_not(self):
        clock = Clock()
        swin, rest = Part(clock, 9.0, 9.0, 0.01, 0.02, 0.03, 0.04, 0.1, 0.2), Part(clock, 9.0, 0.02, 0.06, 0.05)
        times = self.timed(swin, rest, clock)
        self.assertEqual((swin.calls, rest.calls), (8, 4))
        self.assertAlmostEqual(times.swin_ms, 70.0)
        self.assertAlmostEqual(times.program_ms, 130.0)
        self.assertAlmostEqual(times.share, 70 / 130)
        self.assertAlmostEqual(times.rest_ms, 60.0)

    def test_no_call_but_the_first_begins_after_the_seconds(self):
        for seconds, calls in ((0.001, 1 + 21), (0.02, 1 + 7), (0.1, 1 + 3), (0.4, 1 + 2), (30.0, 1 + 1)):
            clock = Clock()
            swin, rest = Part(clock, seconds / 2), Part(clock, seconds / 2)
            times = self.timed(swin, rest, clock)
            self.assertEqual(rest.calls, calls)
            self.assertAlmostEqual(times.share, 2 / 3)
            self.assertFalse(swin._forward_hooks or swin._forward_pre_hooks)

    def test_the_documented_next_step_follows_from_the_share(self):
        before = swinq.torch.Times(10.0, 8.0)
        for after, advice in ((swinq.torch.Times(4.0, 1.0), REST), (swinq.torch.Times(4.0, 3.0), SWIN)):
            share = swinq.torch.Share(before, after, "cpu")
            self.assertEqual(share.advice, advice)
            self.assertIn(f"80 % of 10 ms before, {25 if advice is REST else 75} % of 4 ms after", str(share))
            self.assertTrue(str(share).endswith(advice))
            share = swinq.torch.Share(before, after, "cpu", 1.25)
            self.assertTrue(str(share).endswith(f"{advice}. Other processes used 1.2 cores meanwhile: these times are disturbed."))


class Program(Inside):
    """A program that writes the images it gets, and notes its calls."""

    def __init__(self, fail=None):
        super().__init__(of_timm(**LISTS))
        self.fail, self.seen = fail, []

    def forward(self, x):
        self.seen.append((x.sum().item(), torch.is_autocast_enabled("cpu"), self.training, torch.is_grad_enabled()))
        if self.fail is not None and isinstance(self.backbone, swinq.torch.SwinModule):
            raise self.fail
        return self.backbone(self.conv(x.mul_(2)))


class Reported(unittest.TestCase):
    def quantized(self, program, calibrate, **options):
        return swinq.torch.quantize(program, calibrate, ptq="basic", **options)

    def assert_no_hooks(self, program):
        self.assertEqual([name for name, module in program.named_modules() if module._forward_hooks or module._forward_pre_hooks], [])

    def test_a_report_has_the_share(self):
        program, batch = Program().train(), images(2)
        kept = batch.clone()
        report = self.quantized(program, [batch])
        self.assertIsNone(report.no_share)
        for times in (report.share.before, report.share.after):
            self.assertTrue(0 < times.swin_ms <= times.program_ms)
            self.assertAlmostEqual(times.rest_ms + times.swin_ms, times.program_ms)
        self.assertEqual(report.share.device, "cpu")
        self.assertIn(str(report.share), str(report).splitlines())
        self.assert_no_hooks(program)
        self.assertTrue(program.training)
        self.assertTrue(torch.equal(batch, 2 * kept), "the calibration alone has written them")
        self.assertEqual(len(set(program.seen)), 1, "every call gets the images of the first one, without gradients")
        self.assertLessEqual(len(program.seen), 1 + 2 * (1 + timing.BOUNDS[-1][0]))

    def test_a_model_that_is_a_swin_is_all_of_it(self):
        report = self.quantized(of_timm(), [images(1)])
        self.assertIsInstance(report.model, swinq.torch.SwinModule)
        self.assertGreater(report.share.before.program_ms, 0)
        self.assertGreaterEqual(report.share.after.program_ms, report.share.after.swin_ms)

    def test_it_can_be_turned_off(self):
        program = Program()
        report = self.quantized(program, [images(1)], share=False)
        self.assertEqual((report.share, report.no_share, len(program.seen)), (None, None, 1))
        self.assertNotIn("share", str(report))

    def test_the_call_is_the_first_with_a_swin_and_keeps_autocast(self):
        program = Program()

        def calibrate(model):
            model.conv(images(1))
            with torch.autocast("cpu", torch.bfloat16):
                model(images(1, seed=3))
            model(images(1, seed=4))

        self.assertIsNone(self.quantized(program, calibrate).no_share)
        first, second, *others = program.seen
        self.assertTrue(first[1] and not second[1])
        self.assertEqual(set(others), {first})

    def test_a_calibration_that_does_not_call_the_model_gives_the_reason(self):
        program = Program()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            report = self.quantized(program, lambda model: model.backbone(images(1)))
        self.assertIsNone(report.share)
        self.assertIn("calls no Swin within a call of the model itself", report.no_share)
        self.assertIn(report.no_share, str(report))

    def test_a_call_that_fails_in_int8_is_a_warning(self):
        program = Program(ValueError("no such head"))
        with self.assertWarnsRegex(UserWarning, "with its Swins in INT8 a call .* raises ValueError: no such head"):
            report = self.quantized(program, [images(1)])
        self.assertIsNone(report.share)
        self.assertIn("no such head", report.no_share)
        self.assertIsInstance(program.backbone, swinq.torch.SwinModule)
        self.assert_no_hooks(program)

    def test_a_call_that_is_interrupted_leaves_the_model_as_before(self):
        program = Program(KeyboardInterrupt())
        swin = program.backbone
        with self.assertRaises(KeyboardInterrupt):
            self.quantized(program, [images(1)])
        self.assertIs(program.backbone, swin)
        self.assert_no_hooks(program)

    def test_a_gpu_is_waited_for(self):
        waited = []
        with mock.patch.object(torch.cuda, "synchronize", waited.append):
            clock = timing.clock_of({torch.device("cpu"), torch.device("cuda", 1)})
            clock()
        self.assertEqual(waited, [torch.device("cuda", 1)])


if __name__ == "__main__":
    unittest.main()
