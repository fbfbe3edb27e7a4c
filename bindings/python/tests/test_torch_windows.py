"""Networks of timm and torchvision whose windows have two sides, whose stages have windows of their own, and whose blocks always
partition and shift: live modules, and folders of timm.

The tests need torch, timm, torchvision and onnxruntime. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import json
import tempfile
import unittest
import warnings
from pathlib import Path

from needed import need

need("onnxruntime", "timm", "torch", "torchvision", name="torch")

import numpy as np
import onnxruntime
import timm
import torch
import torchvision
from support import noise
from torch_models import images, redraw
from torch_support import INT8, SAME, Case, error

import swinq.torch
from swinq import ArgumentError, ModelError

V1, V2 = "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"
SMALL = {"embed_dim": 16, "depths": (2, 2, 2), "num_heads": (1, 2, 4), "num_classes": 5}


def of_timm(name=V1, **options):
    return redraw(timm.create_model(name, **{**SMALL, **options}))


def of_torchvision():
    return redraw(torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [1, 2], [4, 6], num_classes=5))


def s3(size):
    """The stages of a Swin-S3 with its windows, and few channels and blocks."""
    return of_timm(f"swin_s3_{size}_224", embed_dim=8, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8))


#: Networks of timm, and sizes of images beside their own.
ANY = {"strict_img_size": False}
CASES = {
    "V1, windows 8x12": (lambda: of_timm(img_size=(128, 192), window_size=(8, 12)), []),
    "V2, windows 8x12": (lambda: of_timm(V2, img_size=(128, 192), window_size=(8, 12)), []),
    "V2, windows 4x6 of 3 before": (
        lambda: of_timm(V2, img_size=(96, 104), window_size=(4, 6), pretrained_window_sizes=(3, 0, 2)),
        [],
    ),
    "V1, a side of one window": (lambda: of_timm(img_size=(32, 208), window_size=(8, 12), **ANY), [(32, 208), (96, 144), (40, 132)]),
    "V2, a side of one window": (lambda: of_timm(V2, img_size=(208, 48), window_size=(8, 12), **ANY), [(208, 48), (96, 144), (132, 40)]),
    "V1, windows of stages": (
        lambda: of_timm(img_size=(128, 96), window_size=((4, 3), (8, 6), (5, 5)), **ANY),
        [(128, 96), (96, 160), (68, 36)],
    ),
    "V2, windows of stages": (lambda: of_timm(V2, img_size=112, window_size=(4, 7, 3), **ANY), [(112, 112), (60, 132)]),
    "V1, always partitioned": (
        lambda: of_timm(img_size=(64, 80), window_size=(7, 5), always_partition=True, **ANY),
        [(64, 80), (20, 24), (112, 60)],
    ),
    "V2, always partitioned": (lambda: of_timm(V2, img_size=64, window_size=8, always_partition=True), []),
    "V1, stages always partitioned": (lambda: of_timm(img_size=64, window_size=(7, 9, 5), always_partition=True, **ANY), [(64, 64), (36, 92)]),
    "Swin-S3 tiny": (lambda: s3("tiny"), []),
    "Swin-S3 small": (lambda: s3("small"), []),
    "Swin-S3 base": (lambda: s3("base"), []),
}


def batches(module, sizes):
    """Images of the size of a network, or of sizes."""
    size = getattr(module, "patch_embed", None)
    return [images(1, *each, seed=seed) for seed, each in enumerate(sizes or [tuple(size.img_size)])]


class Windows(Case):
    def setUp(self):
        warnings.simplefilter("ignore")

    def outputs(self, module, inputs):
        with torch.no_grad():
            return [module(x) for x in inputs]

    def test_float_networks_equal_torch_and_come_back(self):
        cases = {**CASES, "torchvision, windows 4x6": (of_torchvision, [(64, 96), (100, 52)])}
        for name, (build, sizes) in cases.items():
            with self.subTest(name):
                module = build()
                inputs, state = batches(module, sizes), {key: value.clone() for key, value in module.state_dict().items()}
                program = torch.nn.Sequential(module, torch.nn.Identity())
                expected = self.outputs(program, inputs)
                report = swinq.torch.quantize(program, inputs, recipe=None, share=False)
                self.assertEqual(len(report.replaced), 1)
                for found, wanted in zip(self.outputs(program, inputs), expected, strict=True):
                    self.assert_alike(found, wanted, SAME)
                swinq.torch.restore(program)
                self.assertIs(program[0], module)
                for key, value in module.state_dict().items():
                    self.assertTrue(torch.equal(value, state[key]), key)
                for found, wanted in zip(self.outputs(program, inputs), expected, strict=True):
                    self.assertTrue(torch.equal(found, wanted))

    def test_int8_keeps_the_signal(self):
        for name, (build, sizes) in CASES.items():
            with self.subTest(name):
                program = torch.nn.Sequential(build())
                inputs = batches(program[0], sizes)
                expected = self.outputs(program, inputs)
                report = swinq.torch.quantize(program, inputs, ptq="basic", share=False)
                self.assertGreater(report.replaced[0].int8_sites, 0)
                for found, wanted in zip(self.outputs(program, inputs), expected, strict=True):
                    self.assert_alike(found, wanted, 10 ** (-INT8 / 20))

    def test_a_folder_says_what_the_module_says(self):
        for name, (build, _) in CASES.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                module = build()
                live = swinq.open(module)
                # A file states a size as `windows_of` does, or as the user of timm does.
                timm.models.save_for_hf(module, folder, model_args=self.arguments(name, module))
                description = json.loads((Path(folder) / "config.json").read_text())
                description["pretrained_cfg"]["input_size"] = [3, *module.patch_embed.img_size]
                (Path(folder) / "config.json").write_text(json.dumps(description))
                stored = swinq.open(folder)
                always = ["timm_always_partition"] * 2
                policies = [model.config["window_policy"] for model in (stored, live)]
                self.assertEqual(policies == always, "always" in name)
                pixels = np.random.default_rng(0).integers(0, 256, (1, *live.input_size, 3), np.uint8)
                np.testing.assert_array_equal(stored(pixels), live(pixels))
                live.save(Path(folder) / "own.safetensors")
                again = swinq.open(Path(folder) / "own.safetensors")
                self.assertEqual(again.config, live.config)
                np.testing.assert_array_equal(again(pixels), live(pixels))

    def arguments(self, name, module):
        """The arguments of timm, with which its modules do not keep their values."""
        size, block = module.patch_embed.img_size, module.layers[0].blocks[0]
        names = {"embed_dim": module.embed_dim, "img_size": size, "depths": [len(stage.blocks) for stage in module.layers]}
        names |= {"num_heads": [stage.blocks[0].attn.num_heads for stage in module.layers], "num_classes": 5}
        names |= {"always_partition": block.always_partition, "dynamic_img_size": block.dynamic_mask}
        if "S3" not in name:
            names["window_size"] = module._ref_window_sizes
        if name == "V2, windows 4x6 of 3 before":
            names["pretrained_window_sizes"] = [3, 0, 2]
        return names

    def test_one_window_is_stated_as_one(self):
        windows = {name: swinq.open(build()).config["window_size"] for name, (build, _) in CASES.items()}
        self.assertEqual(windows["V1, windows 8x12"], [8, 12])
        self.assertEqual(windows["V2, always partitioned"], 8)
        self.assertEqual(windows["Swin-S3 tiny"], [[7, 7], [7, 7], [14, 14], [7, 7]])
        # The windows of 14 shrink to the grids of 7 of the last stage by timm's own rule.
        self.assertEqual(windows["Swin-S3 small"], 14)
        self.assertEqual(windows["V1, windows of stages"], [[4, 3], [8, 6], [5, 5]])

    def test_they_train_and_are_exported(self):
        for name in ("V1, windows 8x12", "V2, windows 4x6 of 3 before", "Swin-S3 tiny", "V1, always partitioned"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                program = torch.nn.Sequential(CASES[name][0]())
                inputs = batches(program[0], [])
                report = swinq.torch.prepare(program, inputs, ptq="basic")
                self.assertEqual(len(report.replaced), 1)
                engine = self.outputs(program.eval(), inputs)[0]
                found = program.train()(inputs[0])
                found.square().mean().backward()
                self.assertTrue(all(p.grad is not None for key, p in program.named_parameters() if ".swinq." not in key))
                program.eval()
                swinq.torch.convert(program)
                self.assertLess(error(self.outputs(program, inputs)[0], engine), 1e-5)
                model = swinq.open(CASES[name][0]())
                model.export(f"{folder}/net.onnx", input="pixels")
                session = onnxruntime.InferenceSession(f"{folder}/net.onnx", providers=["CPUExecutionProvider"])
                pixels = noise(model, 1)
                (logits,) = session.run(None, {session.get_inputs()[0].name: pixels})
                self.assertLess(error(torch.from_numpy(logits), torch.from_numpy(model(pixels))), 1e-5)

    def test_what_is_refused_is_named(self):
        module = of_timm(img_size=(128, 192), window_size=(8, 12))
        model = swinq.open(module)
        with self.assertRaisesRegex(swinq.Error, "its window of 8x12"):
            model.engine().run(np.zeros((1, 3, 64, 96), np.float32))
        pairs = redraw(timm.create_model(V2, img_size=96, window_size=(4, 6), pretrained_window_sizes=((4, 6), 0, 0), **SMALL))
        with self.assertRaisesRegex(ArgumentError, r"\(4, 6\) is not square"):
            swinq.open(pairs)
        with self.assertRaisesRegex(ModelError, "WINDOW_SIZE .*7, 7"):
            swinq.open({key: value for key, value in s3("tiny").state_dict().items()})


if __name__ == "__main__":
    unittest.main()
