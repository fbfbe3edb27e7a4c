"""Stages of Swins that programs call by themselves: those of timm, transformers and torchvision, and layers in the manners of Microsoft's
detectors, HTSAT and Swin-Unet, with random parameters.

The tests need torch, timm, torchvision and transformers. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import tempfile
import unittest
import warnings
from pathlib import Path

from needed import need

need("timm", "torch", "torchvision", "transformers", name="torch")

import torch
from torch_models import redraw
from torch_stages import STAGES, SWIN, V1, Htsat, Layer, OfTimm, OfTransformers, SwinUnet, built, of_images, of_torchvision
from torch_support import INT8, SAME, Case, error, every_call, leaves, outputs

import swinq.torch
from swinq import ArgumentError


class Stages(Case):
    def setUp(self):
        warnings.simplefilter("ignore")

    def test_programs_give_what_they_gave(self):
        for name, (_, calls, count) in STAGES.items():
            with self.subTest(name):
                self.check_calls(built(name), calls, count)

    def test_int8_keeps_the_signal_and_is_saved(self):
        for name, (_, calls, count) in STAGES.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model = built(name)
                expected = outputs(model, calls)
                report = swinq.torch.quantize(model, every_call(calls), ptq="basic", share=False)
                self.assertEqual(len(report.replaced), count, report)
                self.assertTrue(all(replaced.int8_sites > 0 for replaced in report.replaced))
                found = outputs(model, calls)
                for one, wanted in zip(found, expected, strict=True):
                    self.assert_alike(one, wanted, 10 ** (-(INT8 - 3 * ("V2" in name)) / 20))
                swinq.torch.save(model, Path(folder) / "int8")
                loaded = swinq.torch.load(built(name), Path(folder) / "int8")
                for one, other in zip(outputs(loaded, calls), found, strict=True):
                    self.assert_alike(one, other, 1e-30)

    def test_a_stage_trains_and_converts(self):
        for name in ("stages of timm, V1", "stages of transformers, V2", "torchvision's children, V1", "layers in a detector", "Swin-Unet", "HTSAT"):
            with self.subTest(name):
                model, (_, calls, count) = built(name), STAGES[name]
                report = swinq.torch.prepare(model, every_call(calls), ptq="basic")
                self.assertEqual(len(report.replaced), count)
                args, kwargs = calls[0]
                sum(leaf.square().mean() for _, leaf in leaves(model.train()(*args, **kwargs))).backward()
                self.assertTrue(any(p.grad is not None for key, p in model.named_parameters() if "attn" in key or "attention" in key))
                prepared = outputs(model.eval(), calls)
                swinq.torch.convert(model)
                for found, wanted in zip(outputs(model, calls), prepared, strict=True):
                    self.assert_alike(found, wanted, 1e-5)

    def test_grids_and_calls_that_are_refused(self):
        model, calls = built("stages of timm, V1"), STAGES["stages of timm, V1"][1]
        swinq.torch.quantize(model, every_call(calls), ptq="basic", share=False)
        with torch.no_grad():
            with self.assertRaisesRegex(ArgumentError, "a grid of 8x32; the stage was built for 16x16.*dynamic_img_size"):
                model.stages[0](torch.zeros(1, 8, 32, 16))
            with self.assertRaisesRegex(ArgumentError, r"tokens: \[1, 256, 16\]; give \[n, rows, columns, channels\]"):
                model.stages[0](torch.zeros(1, 256, 16))
        layer = redraw(Layer(16, (8, 8), 2, 2, 4, True).eval())
        holder = torch.nn.ModuleDict({"layer": layer})
        tokens = torch.randn(1, 64, 16, generator=torch.Generator().manual_seed(0))
        swinq.torch.quantize(holder, lambda model: model["layer"](tokens), share=False)
        with torch.no_grad(), self.assertRaisesRegex(ArgumentError, r"\[1, 32, 16\] for a grid of 8x8"):
            holder["layer"](tokens[:, :32])

    def test_always_partition_is_refused(self):
        model = redraw(OfTransformers(*SWIN).eval())
        holder = torch.nn.ModuleDict({"stage": model.stages[0]})
        tokens = torch.randn(1, 64, 16, generator=torch.Generator().manual_seed(0))
        with self.assertRaisesRegex(ArgumentError, "always_partition: is true"):
            swinq.torch.quantize(holder, lambda model: model["stage"](tokens, (8, 8), always_partition=True), share=False)

    def test_a_small_call_that_turns_the_shift_off_is_named(self):
        model = redraw(OfTransformers(*SWIN).eval())
        holder = torch.nn.ModuleDict({"stage": model.stages[0]})
        tokens = torch.randn(1, 64, 16, generator=torch.Generator().manual_seed(0))

        def calibrate(model):
            model["stage"](tokens, (8, 8))
            model["stage"](tokens[:, :32], (4, 8))

        with self.assertRaisesRegex(ArgumentError, "`?blocks.1`? has lost its shift"):
            swinq.torch.quantize(holder, calibrate, share=False)

    def test_the_attention_of_a_layer_is_read_by_nobody(self):
        model, calls = built("HTSAT"), STAGES["HTSAT"][1]
        swinq.torch.quantize(model, every_call(calls), ptq="basic", share=False)
        with torch.no_grad(), self.assertRaises((ArgumentError, AttributeError)):
            model(*calls[0][0], layer=2)
        # A norm that is no module, as HTSAT has it with norm_before_mlp="bn".
        other = redraw(Htsat().eval())
        for block in other.layers[0].blocks:
            norm = block.norm2
            del block.norm2
            block.norm2 = lambda x, norm=norm: norm(x)
        report = swinq.torch.quantize(other, every_call(calls), ptq="basic", share=False)
        self.assertEqual(len(report.replaced), 2)
        self.assertRegex(str(report.left[0]), "norm2")

    def test_a_layer_that_computes_something_else_is_left(self):
        class Doubled(Layer):
            def forward(self, x):
                return 2 * super().forward(x)

        model, calls = built("Swin-Unet"), STAGES["Swin-Unet"][1]
        model.layers[0].__class__ = Doubled
        report = swinq.torch.quantize(model, every_call(calls), ptq="basic", share=False)
        self.assertEqual(len(report.replaced), 3)
        self.assertRegex(str(report.left[0]), "is not what swinq computes of its parameters")

    def test_a_list_of_blocks_whose_caller_is_unknown_is_left(self):
        class Collecting(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks, self.last = Layer(16, (8, 8), 2, 2, 4, False).blocks, torch.nn.Linear(16, 16)

            def forward(self, x):
                found = []
                for block in self.blocks:
                    x = block(x)
                    found.append(x)
                return self.last(torch.stack(found).sum(0))

        model = redraw(Collecting().eval())
        with self.assertRaisesRegex(ArgumentError, "no Swin of Collecting can be replaced"):
            swinq.torch.quantize(model, lambda model: model(torch.zeros(1, 64, 16)), share=False)

    def test_code_that_is_not_the_library_s_is_left(self):
        network = redraw(of_torchvision().eval())
        program = torch.nn.ModuleList([network.features[1], network.features[3]])
        block = program[0][1]
        block.forward = lambda x: type(block).forward(block, x)
        tokens = torch.randn(1, 8, 12, 16, generator=torch.Generator().manual_seed(0))
        merge = network.features[2]
        report = swinq.torch.quantize(program, lambda model: model[1](merge(model[0](tokens))), recipe=None, share=False)
        self.assertEqual([replaced.names for replaced in report.replaced], [("1",)])
        self.assertRegex(str(report.left[0]), "`1` has a forward of its own, .*`del module.1.forward`")

    def test_a_whole_network_stays_one_replacement(self):
        model = torch.nn.Sequential(redraw(of_torchvision().eval()))
        calls = of_images((64, 64))
        report = swinq.torch.quantize(model, every_call(calls), recipe=None, share=False)
        self.assertEqual([replaced.kind for replaced in report.replaced], ["SwinTransformer"])

    def test_a_stage_of_its_own_opens(self):
        stage = redraw(OfTimm(V1).eval()).stages[1]
        model = swinq.open(stage)
        self.assertEqual((model.config["depths"], model.config["in_chans"], model.config["window_policy"]), ([0, 2], 16, "timm_any_size"))
        tokens = torch.randn(1, 16, 16, 16, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            expected = stage(tokens)
        found = model.engine().run(tokens.numpy(), layout="NHWC", out_layout="NHWC")["stage2"]
        self.assertLess(error(torch.from_numpy(found), expected), SAME)
        self.assertEqual(swinq.open(SwinUnet().layers_up[0].blocks).config["window_policy"], "microsoft")


if __name__ == "__main__":
    unittest.main()
