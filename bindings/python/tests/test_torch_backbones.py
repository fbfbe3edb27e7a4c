"""``swinq.torch``: Swins of every library inside of programs, against PyTorch.

The tests need torch, timm, torchvision and transformers. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import unittest

from needed import need

need("timm", "torch", "torchvision", "transformers")

import torch
import transformers

import torch_detector
import torch_openmmlab
from torch_models import SMALL, SWINS, images, of_timm, randomise
from torch_support import INT8, SAME, Case, Inside

import swinq
import swinq.torch


class Interpolating(Inside):
    """A program that asks transformers to interpolate position embeddings."""

    def forward(self, x):
        return self.backbone(x, interpolate_pos_encoding=True)


class EveryLibrary(Case):
    def test_outputs_are_those_of_the_module(self):
        for name, make in SWINS.items():
            with self.subTest(name=name):
                self.check(make(), name)

    def test_copies_of_detectors_are_known_by_their_structure(self):
        self.check(randomise(torch_detector.Swin()))
        # A detector reads one of two outputs only, at sizes that neither windows nor patches divide.
        program = Inside(randomise(torch_detector.Swin(out_indices=(1,))))
        shape, batches = program.backbone.output_shape(), [images(1, 101, 150), images(2, 64, 90)]
        expected = program(batches[0])
        report = swinq.torch.quantize(program, batches, None)
        self.assertEqual(report.replaced[0].images, 3)
        self.assert_alike(program(batches[0]), expected, SAME)
        self.assertEqual((program.backbone.output_shape(), program.backbone.size_divisibility), (shape, 0))

    def test_position_embeddings_of_detectors_are_interpolated(self):
        module = randomise(torch_detector.Swin(places=(40, 32)))
        self.check(module)
        program, batches = Inside(module), [images(2, 160, 128), images(1, 101, 150), images(1, 64, 300)]
        with torch.no_grad():
            expected = [program(batch) for batch in batches]
            swinq.torch.quantize(program, batches, None)
            for batch, values in zip(batches, expected, strict=True):
                self.assert_alike(program(batch), values, SAME)
        swinq.torch.restore(program)
        # In training PyTorch interpolates, with gradients for the places of the own size.
        swinq.torch.prepare(program, batches)
        for batch, values in zip(batches, expected, strict=True):
            self.assert_alike(program.train()(batch), values, 0.1)
            program(batch)["p1"].square().mean().backward()
        places = dict(program.named_parameters())["backbone.absolute_pos_embed"]
        self.assertEqual(places.grad.shape, (1, 48, 40, 32))
        self.assertGreater(places.grad.norm(), 0)

    def test_position_embeddings_of_transformers_are_interpolated(self):
        """As ``interpolate_pos_encoding=True`` asks for; images that are not whole patches are refused there, too."""
        config = transformers.SwinConfig(**SMALL, image_size=112, use_absolute_embeddings=True, out_features=["stage1", "stage2"])
        batches = [images(2, 112, 112), images(1, 128, 144), images(1, 80, 204)]
        for kind in (transformers.SwinBackbone, transformers.SwinModel, transformers.SwinForImageClassification):
            program = Interpolating(randomise(kind(config)))
            with self.subTest(kind.__name__), torch.no_grad():
                expected = [program(batch) for batch in batches]
                swinq.torch.quantize(program, batches, None)
                for batch, values in zip(batches, expected, strict=True):
                    self.assert_alike(program(batch), values, SAME)
                with self.assertRaisesRegex(swinq.Error, "110x144 is not a multiple of PATCH_SIZE 4"):
                    program(images(1, 110, 144))

    def test_masks_of_padding_pass_through(self):
        program, masks = Inside(randomise(torch_detector.MaskedSwin())), torch.zeros(2, 100, 150, dtype=torch.bool)
        masks[0, 80:], masks[1, :, 100:] = True, True
        nested = torch_detector.Nested(images(2, 100, 150), masks)
        with torch.no_grad():
            expected = program(nested)
            swinq.torch.quantize(program, lambda model: model(nested), None)
            found = program(nested)
        self.assert_alike(found, expected, SAME)
        for stage, part in expected.items():
            self.assertTrue(torch.equal(found[stage].mask, part.mask))

    def test_openmmlab(self):
        backbones = self.backbones_of_mmpretrain()
        small = {"arch": {"embed_dims": 48, "depths": [2, 2], "num_heads": [3, 6]}, "out_indices": (0, 1)}
        for options in [{"pad_small_map": True}, {}, {"use_abs_pos_embed": True}]:
            with self.subTest(options=options):
                self.check(randomise(backbones.SwinTransformer(**small, **options)))

    def test_openmmlab_v2(self):
        backbones = self.backbones_of_mmpretrain()
        arch = {"embed_dims": 48, "depths": [2, 2], "num_heads": [3, 6], "extra_norm_every_n_blocks": 0}
        small = {"arch": arch, "img_size": 64, "out_indices": (0, 1), "pretrained_window_sizes": [0, 0]}
        for options in [{}, {"window_size": [16, 8]}, {"use_abs_pos_embed": True}, {"pretrained_window_sizes": [4, 4]}]:
            program = Inside(randomise(backbones.SwinTransformerV2(**{**small, **options})))
            batches = [images(1, 64, 64), *([] if "use_abs_pos_embed" in options else [images(2, 100, 150), images(1, 224, 96)])]
            with self.subTest(options=options), torch.no_grad():
                expected = [program(batch) for batch in batches]
                swinq.torch.quantize(program, batches, None)
                for batch, values in zip(batches, expected, strict=True):
                    self.assert_alike(program(batch), values, SAME)
                swinq.torch.restore(program)
                report = swinq.torch.quantize(program, batches)
                self.assertGreater(min(report.replaced[0].sqnr_db.values()), INT8)
        for options, reason in [({"pad_small_map": True}, "pad_small_map"), ({"window_size": [8, 4]}, "windows of")]:
            program = Inside(randomise(backbones.SwinTransformerV2(**{**small, **options})))
            with self.subTest(options=options), self.assertRaisesRegex(swinq.ArgumentError, reason):
                swinq.torch.quantize(program, [images(1, 64, 64)])

    def backbones_of_mmpretrain(self):
        try:
            return torch_openmmlab.package("mmpretrain").models.backbones
        except ImportError as problem:
            self.skipTest(f"{problem}")

    def test_outputs_are_counted_from_the_end(self):
        for kind in ("list", "dict", "getter"):
            for indices in ((-1, -2), (-2,), (0, -1)):
                with self.subTest(kind, indices=indices), torch.no_grad():
                    module, x = of_timm(features_only=True, out_indices=indices, feature_cls=kind), images(2)
                    program = Inside(module)
                    expected = program(x)
                    swinq.torch.quantize(program, [x], None)
                    self.assert_alike(program(x), expected, 1e-5)
                    self.assertIsInstance(swinq.open(module).engine(backend="cpu").run(x), dict)

    def test_other_channels_and_sizes(self):
        module = of_timm(features_only=True, out_indices=(0, 1), in_chans=5, strict_img_size=False)
        program, batches = Inside(module), [images(1, 224, 256, 5), images(2, 256, 224, 5, seed=3)]
        with torch.no_grad():
            expected = [program(batch) for batch in batches]
            swinq.torch.quantize(program, batches, None)
            for batch, values in zip(batches, expected, strict=True):
                self.assert_alike(program(batch), values, SAME)
            with self.assertRaisesRegex(swinq.ArgumentError, "5"):
                program(images(1))

    def test_half_precision_comes_back(self):
        for dtype in (torch.float16, torch.bfloat16):
            program = Inside(of_timm(features_only=True, out_indices=(0, 1)).to(dtype))
            program.conv.to(dtype)
            batch = images(2).to(dtype)
            with torch.no_grad():
                expected = program(batch)
                report = swinq.torch.quantize(program, [batch])
                self.assert_alike(program(batch), expected, 0.05)
            self.assertGreater(min(report.replaced[0].sqnr_db.values()), INT8)


if __name__ == "__main__":
    unittest.main()
