"""Stacks of Swin blocks in other networks: SwinIR, Swin2SR and CLAP of their libraries, with random parameters.

The tests need torch, spandrel and transformers. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import contextlib
import copy
import importlib
import io
import re
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

from needed import need

need("PIL", "onnxruntime", "spandrel", "timm", "torch", "torchvision", "transformers", name="torch")

import numpy as np
import onnxruntime
import tokenizers
import torch
import transformers
from PIL import Image
from spandrel.architectures.HAT import HAT
from support import ROOT
from torch_models import redraw
from torch_stacks import STACKS, clap, swin2sr, swinir
from torch_support import INT8, SAME, Case, error, every_call, leaves, outputs

import swinq.torch
from swinq import ArgumentError
from swinq._calls import record


class Stacks(Case):
    def setUp(self):
        warnings.simplefilter("ignore")

    def test_programs_give_what_they_gave(self):
        for name, (build, calls, count) in STACKS.items():
            with self.subTest(name):
                self.check_calls(build(), calls, count)

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
                report = swinq.torch.prepare(model, every_call(calls), ptq="basic")
                self.assertEqual(len(report.replaced), count)
                optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
                args, kwargs = calls[0]
                loss = leaves(model.train()(*args, **kwargs))[0][1].square().mean()
                loss.backward()
                self.assertTrue(all(p.grad is not None for key, p in model.named_parameters() if ".swinq." not in key))
                # An engine runs prepared stacks in evaluation mode.
                before = outputs(model.eval(), calls)
                optimizer.step()
                prepared = outputs(model, calls)
                changes = [error(leaves(found)[0][1], leaves(wanted)[0][1]) for found, wanted in zip(prepared, before, strict=True)]
                self.assertGreater(max(changes), 1e-6)
                swinq.torch.convert(model)
                for found, wanted in zip(outputs(model, calls), prepared, strict=True):
                    self.assert_alike(found, wanted, 1e-5)

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

    def test_a_network_with_other_blocks_is_refused_by_their_part(self):
        hat = HAT(upscale=2, img_size=8, window_size=4, embed_dim=12, depths=[1], num_heads=[2], upsampler="pixelshuffle").eval()
        calls = [((torch.rand(1, 3, 8, 8),), {})]
        with self.assertRaisesRegex(ArgumentError, "`layers.0.residual_group.blocks.0.conv_block` is no part of a block of a Swin"):
            swinq.torch.quantize(hat, every_call(calls), ptq="basic")

    def test_the_tokens_that_are_kept_have_a_limit(self):
        group = torch.nn.ModuleDict({"group": swinir().layers[0].residual_group})
        each = 4 * 20 * 16 * 16
        calls = [torch.randn(3, 256, 20, generator=torch.Generator().manual_seed(index)) for index in range(4)]
        def calibrate(model):
            for tokens in calls:
                model["group"](tokens, (16, 16))
            for side in (4, 8, 12):
                model["group"](calls[0][:, : side * side], (side, side))

        with mock.patch.object(record, "MOST_BYTES", 4 * each):
            report = swinq.torch.quantize(group, calibrate, ptq="basic", share=False)
        # Four of the first size, and the first of each other.
        self.assertEqual(report.replaced[0].images, 7)

    def test_code_that_differs_in_the_branches_alone_is_left(self):
        class Unmasked(type(swinir().layers[0].residual_group.blocks[1].attn)):
            def forward(self, x, mask=None):
                return super().forward(x, None)

        for dtype, offset in ((torch.float32, 0.0), (torch.float32, 300.0), (torch.bfloat16, 0.0)):
            group = swinir().layers[0].residual_group.to(dtype)
            group.blocks[1].attn.__class__ = Unmasked
            tokens = torch.randn(1, 256, 20, generator=torch.Generator().manual_seed(0))
            # One channel that is far larger than the branches.
            tokens[..., 3] += offset
            holder = torch.nn.ModuleDict({"group": group})
            with self.assertRaisesRegex(ArgumentError, "is not what swinq computes of its parameters"):
                swinq.torch.quantize(holder, lambda model: model["group"](tokens.to(dtype), (16, 16)), share=False)

    def test_parts_by_the_name_of_blocks_are_no_stacks(self):
        class Body(torch.nn.Module):
            def forward(self, x):
                return x

        class Other(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = Body()

            def forward(self, x):
                return self.blocks(x)

        for other in (Other(), torch.jit.script(Other()), torch.jit.trace(Other(), torch.zeros(1))):
            model = torch.nn.Sequential(swinir(), other)
            report = swinq.torch.quantize(model, every_call(STACKS["SwinIR"][1][:1]), ptq="basic", share=False)
            self.assertEqual(len(report.replaced), 3)

    def test_the_stacks_of_a_program_share_their_threads(self):
        model, calls = swinir(), STACKS["SwinIR"][1][:1]
        swinq.torch.quantize(model, every_call(calls), ptq="basic", share=False)
        (expected,) = outputs(model, calls)
        file = io.BytesIO()
        torch.save(model, file)
        again = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        for program in (model, copy.deepcopy(model), again):
            engines = {id(layer.residual_group.engines) for layer in program.layers}
            self.assertEqual(len(engines), 1)
            self.assertTrue(torch.equal(outputs(program, calls)[0], expected))

    def test_the_stacks_of_a_model_that_transformers_opens_share_their_threads(self):
        from swinq.transformers import SwinqConfig

        build, calls, count = STACKS["Swin2SR of transformers"]
        kind = transformers.Swin2SRForImageSuperResolution
        with tempfile.TemporaryDirectory() as folder:
            build().save_pretrained(f"{folder}/float")
            config = SwinqConfig([calls[0][0][0]], ptq="basic", share=False)
            model = kind.from_pretrained(f"{folder}/float", quantization_config=config)
            model.save_pretrained(f"{folder}/int8")
            again = kind.from_pretrained(f"{folder}/int8")
        for program in (model, again):
            swins = [part for part in program.modules() if isinstance(part, swinq.torch.SwinModule)]
            self.assertEqual((len(swins), len({id(swin.engines) for swin in swins})), (count, 1))
        for found, expected in zip(outputs(again, calls), outputs(model, calls), strict=True):
            self.assertTrue(torch.equal(found.reconstruction, expected.reconstruction))

    def test_stacks_are_searched_and_measured(self):
        model, calls = swinir(depths=[1, 1], num_heads=[2, 2]), STACKS["SwinIR"][1][:1]
        (expected,) = outputs(model, calls)

        def evaluate(model):
            (found,) = outputs(model, calls)
            return -error(found, expected)

        where = {"module": "layers.1.residual_group", "progress": False, "ptq": "basic"}
        table = swinq.torch.sensitivity(model, every_call(calls), evaluate, only="**.mlp.*", **where)
        self.assertEqual(sorted(part.name for part in table.parts), [f"layers.0.blocks.0.mlp.{layer}" for layer in ("fc1", "fc2")])
        self.assertTrue(all(part.value < 0 for part in table.parts))
        tuning = swinq.torch.tune(model, every_call(calls), evaluate, max_drop=1.0, budget=0.1, **where)
        self.assertIsInstance(model.layers[1].residual_group, swinq.torch.SwinModule)
        self.assertLess(tuning.best.value, 0)

    def test_a_stack_of_its_own_opens(self):
        group = swinir().layers[1].residual_group
        model = swinq.open(group)
        self.assertEqual((model.config["input"], model.config["in_chans"], model.config["depths"]), ("tokens", 20, [3]))
        tokens = torch.randn(1, 8 * 12, 20, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            expected = group(tokens, (8, 12))
        found = model.engine().run(tokens.reshape(1, 8, 12, 20).numpy(), layout="NHWC", out_layout="NHWC")["stage1"]
        self.assertLess(error(torch.from_numpy(found).reshape(1, 96, 20), expected), SAME)

    def test_graphs_of_stacks_equal_the_engine(self):
        for name, group in {
            "SwinIR": lambda: swinir().layers[1].residual_group,
            "Swin2SR of transformers": lambda: STACKS["Swin2SR of transformers"][0]().swin2sr.encoder.stages[0].layers,
            "CLAP": lambda: clap().audio_encoder.layers[0],
        }.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model = swinq.open(group())
                channels, sizes = model.config["in_chans"], [(16, 16), (8, 28)]
                random = np.random.default_rng(0)
                tokens = [random.standard_normal((2, channels, *size), dtype=np.float32) for size in sizes]
                quantized = swinq.quantize(model, tokens[:1], ptq="basic")
                for each, least in ((model, 100), (quantized, 30)):
                    each.export(f"{folder}/stack.onnx", size="any")
                    session = onnxruntime.InferenceSession(f"{folder}/stack.onnx", providers=["CPUExecutionProvider"])
                    outputs = [output["name"] for output in each.config["outputs"]]
                    for images in tokens:
                        found = session.run(outputs, {"images": images})
                        expected = each.engine(backend="cpu").run(images)
                        for output, values in zip(outputs, found, strict=True):
                            noise = error(torch.from_numpy(values), torch.from_numpy(expected[output]))
                            self.assertGreater(-20 * np.log10(noise), least, output)
                with self.assertRaisesRegex(swinq.ArgumentError, "is a stack of blocks, which takes tokens"):
                    model.export(f"{folder}/stack.onnx", size="any", input="pixels")


class Examples(Case):
    """docs/examples/upscale.py and clap_sounds.py on small models."""

    def run_example(self, name, *arguments):
        sys.path.insert(0, str(ROOT / "docs/examples"))
        try:
            module = importlib.import_module(name)
        finally:
            sys.path.pop(0)
        printed = io.StringIO()
        with mock.patch.object(sys, "argv", [f"{name}.py", *map(str, arguments)]), contextlib.redirect_stdout(printed):
            module.main()
        return printed.getvalue()

    def test_a_photograph_is_enlarged_in_tiles(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            torch.save(swinir().state_dict(), folder / "model.pth")
            (folder / "images").mkdir()
            random = np.random.default_rng(0)
            for name, size in {"images/a.png": (24, 16), "images/b.png": (16, 16), "photograph.png": (40, 28)}.items():
                Image.fromarray(random.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(folder / name)
            paths = [folder / name for name in ("model.pth", "images", "photograph.png", "enlarged.png")]
            printed = self.run_example("upscale", *paths, "--tile", 16, "--overlap", 4)
            with Image.open(folder / "enlarged.png") as image:
                self.assertEqual(image.size, (80, 56))
            self.assertRegex(printed, r"residual_group: BasicLayer")
            self.assertGreater(float(re.search(r"([\d.]+) dB between both", printed)[1]), 20)

    def test_sounds_are_ranked_before_and_after(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = tokenizers.ByteLevelBPETokenizer()
            texts.train_from_iterator(["a high beep and a low hum"], vocab_size=270, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
            texts.save_model(folder)
            tokenizer = transformers.RobertaTokenizerFast(f"{folder}/vocab.json", f"{folder}/merges.txt")
            text = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
            audio = {"depths": [1, 1, 2, 1], "num_attention_heads": [2, 4, 8, 16], "patch_embeds_hidden_size": 32, "hidden_size": 256}
            config = transformers.ClapConfig(text_config=text, audio_config=audio, projection_dim=16)
            redraw(transformers.ClapModel(config)).save_pretrained(folder)
            transformers.ClapProcessor(transformers.ClapFeatureExtractor(truncation="rand_trunc"), tokenizer).save_pretrained(folder)
            printed = self.run_example("clap_sounds", folder)
            cosines = [float(found) for found in re.findall(r"cosine ([\d.]+)", printed)]
            self.assertEqual(len(cosines), 5)
            self.assertGreater(min(cosines), 0.99)


if __name__ == "__main__":
    unittest.main()
