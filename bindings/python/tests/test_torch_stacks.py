"""Stacks of Swin blocks in other networks: SwinIR, Swin2SR and CLAP of their libraries, with random parameters.

The tests need torch, spandrel and transformers. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import tempfile
import unittest
import warnings
from pathlib import Path

from needed import need

need("spandrel", "timm", "torch", "torchvision", "transformers", name="torch")

import torch
from torch_stacks import STACKS, swin2sr, swinir
from torch_support import INT8, SAME, Case, error, leaves

import swinq.torch
from swinq import ArgumentError


def every_call(calls):
    """A calibration with calls."""

    def run(model):
        for args, kwargs in calls:
            model(*args, **kwargs)

    return run


def outputs(model, calls):
    with torch.no_grad():
        return [model(*args, **kwargs) for args, kwargs in calls]


class Stacks(Case):
    def setUp(self):
        warnings.simplefilter("ignore")

    def test_programs_give_what_they_gave(self):
        for name, (build, calls, count) in STACKS.items():
            with self.subTest(name):
                model = build()
                state = {key: value.clone() for key, value in model.state_dict().items()}
                expected = outputs(model, calls)
                report = swinq.torch.quantize(model, every_call(calls), recipe=None, share=False)
                self.assertEqual(len(report.replaced), count)
                for found, wanted in zip(outputs(model, calls), expected, strict=True):
                    self.assert_alike(found, wanted, SAME)
                swinq.torch.restore(model)
                self.assertEqual(list(model.state_dict()), list(state))
                for key, value in model.state_dict().items():
                    self.assertTrue(torch.equal(value, state[key]), key)
                for found, wanted in zip(outputs(model, calls), expected, strict=True):
                    self.assert_alike(found, wanted, 1e-30)

    def test_int8_keeps_the_signal(self):
        for name, (build, calls, count) in STACKS.items():
            with self.subTest(name):
                model = build()
                expected = outputs(model, calls)
                report = swinq.torch.quantize(model, every_call(calls), ptq="basic", share=False)
                self.assertEqual(len(report.replaced), count)
                self.assertTrue(all(replaced.int8_sites > 0 for replaced in report.replaced))
                for found, wanted in zip(outputs(model, calls), expected, strict=True):
                    self.assert_alike(found, wanted, 10 ** (-INT8 / 20))

    def test_a_stack_reads_tokens_by_their_strides_and_gives_memory_of_its_own(self):
        model, (_, calls, _) = swinir(), STACKS["SwinIR"]
        group = model.layers[0].residual_group
        random = torch.Generator().manual_seed(1)
        tokens = torch.randn(2, 16 * 20, 20, generator=random)
        channels_first = tokens.transpose(1, 2).contiguous().transpose(1, 2)
        swinq.torch.quantize(model, every_call(calls), ptq="basic", share=False)
        swin = model.layers[0].residual_group
        self.assertIsNot(swin, group)
        with torch.no_grad():
            kept = tokens.clone()
            found = swin(tokens, (16, 20))
            again = swin(found, x_size=(16, 20))
            self.assertTrue(torch.equal(swin(channels_first, (16, 20)), found))
            self.assertTrue(torch.equal(swin(tokens, (16, 20)), found))
        self.assertTrue(torch.equal(tokens, kept))
        self.assertNotEqual(found.data_ptr(), again.data_ptr())
        # The sides of the grid are an argument: the same tokens in another grid are another image.
        with torch.no_grad():
            self.assertGreater(error(swin(tokens, (20, 16)), found), 1e-2)
        for wrong in ((16, 21), (15, 20)):
            with self.assertRaisesRegex(ArgumentError, rf"\[2, 320, 20\] for a grid of {wrong[0]}x{wrong[1]}"):
                swin(tokens, wrong)
        with self.assertRaisesRegex(ArgumentError, "window 4 does not divide the 10x32 tokens"):
            swin(tokens, (10, 32))
        with self.assertRaisesRegex(TypeError, "misses its argument `x_size`"):
            swin(tokens)

    def test_modules_of_half_precision(self):
        for dtype in (torch.bfloat16, torch.float16):
            model, (_, calls, _) = swinir().to(dtype), STACKS["SwinIR"]
            # Masks of other sizes are f32, so that the original of f16 fails for them.
            tokens = torch.randn(1, 16 * 16, 20, generator=torch.Generator().manual_seed(2)).to(dtype)
            group = model.layers[1].residual_group
            with torch.no_grad():
                expected = group(tokens, (16, 16))
            holder = torch.nn.ModuleDict({"group": group})
            report = swinq.torch.quantize(holder, lambda model: model["group"](tokens, (16, 16)), recipe=None, share=False)
            self.assertEqual(len(report.replaced), 1)
            with torch.no_grad():
                found = holder["group"](tokens, (16, 16))
            self.assertEqual(found.dtype, dtype)
            self.assertLess(error(found, expected), 2e-2)

    def test_a_stack_trains_and_converts(self):
        for name in ("SwinIR", "Swin2SR", "Swin2SR of transformers", "CLAP"):
            with self.subTest(name):
                build, calls, count = STACKS[name]
                model = build()
                expected = outputs(model, calls)
                report = swinq.torch.prepare(model, every_call(calls), ptq="basic")
                self.assertEqual(len(report.replaced), count)
                optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
                args, kwargs = calls[0]
                loss = leaves(model.train()(*args, **kwargs))[0][1].square().mean()
                loss.backward()
                self.assertTrue(all(p.grad is not None for key, p in model.named_parameters() if ".swinq." not in key))
                # An engine runs prepared stacks in evaluation mode.
                prepared = outputs(model.eval(), calls)
                swinq.torch.convert(model)
                for found, wanted, first in zip(outputs(model, calls), prepared, expected, strict=True):
                    self.assert_alike(found, wanted, 1e-5)
                    self.assert_alike(found, first, 10 ** (-INT8 / 20))
                optimizer.zero_grad()

    def test_a_saved_program_gives_equal_bits(self):
        for name in ("SwinIR", "Swin2SR of transformers", "CLAP"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                build, calls, _ = STACKS[name]
                model = build()
                swinq.torch.quantize(model, every_call(calls), ptq="basic", share=False)
                expected = outputs(model, calls)
                swinq.torch.save(model, Path(folder) / "int8")
                loaded = swinq.torch.load(build(), Path(folder) / "int8")
                for found, wanted in zip(outputs(loaded, calls), expected, strict=True):
                    self.assert_alike(found, wanted, 1e-30)

    def test_what_is_no_plain_block_stays(self):
        calls = STACKS["SwinIR"][1][:1]

        def left(change, model=None):
            model = model or swinir()
            change(model.layers[0].residual_group)
            report = swinq.torch.quantize(model, every_call(calls), ptq="basic", share=False)
            self.assertEqual(len(report.replaced), len(model.layers) - 1)
            return str(report.left[0])

        def relu(group):
            group.blocks[1].mlp.act = torch.nn.ReLU()

        def epsilon(group):
            group.blocks[0].norm2.eps = 1e-6

        def hook(group):
            group.blocks[0].register_forward_hook(lambda *_: None)

        def doubled(group):
            forward = group.forward
            group.__class__ = type("Doubled", (type(group),), {"forward": lambda self, x, x_size: 2 * forward(x, x_size)})

        self.assertRegex(left(relu), "`blocks.1.mlp.act` is ReLU")
        self.assertRegex(left(epsilon), "eps=1e-06")
        self.assertRegex(left(hook), "`blocks.0` has hooks")
        self.assertRegex(left(doubled), "is not what swinq computes of its parameters")
        self.assertRegex(left(doubled, swin2sr()), "is not what swinq computes of its parameters")

    def test_a_stack_of_its_own_opens(self):
        group = swinir().layers[1].residual_group
        model = swinq.open(group)
        self.assertEqual((model.config["input"], model.config["in_chans"], model.config["depths"]), ("tokens", 20, [3]))
        tokens = torch.randn(1, 8 * 12, 20, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            expected = group(tokens, (8, 12))
        found = model.engine().run(tokens.reshape(1, 8, 12, 20).numpy(), layout="NHWC", out_layout="NHWC")["stage1"]
        self.assertLess(error(torch.from_numpy(found).reshape(1, 96, 20), expected), SAME)


if __name__ == "__main__":
    unittest.main()
