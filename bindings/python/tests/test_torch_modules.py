"""Live modules of timm, torchvision and transformers against the command, and against PyTorch.

The tests need torch, timm, torchvision, transformers and pillow.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
from support import PHOTO, normalised

import swinq

from needed import need

need("timm", "torch", "torchvision", "transformers", "PIL")

import timm
import torch
import torchvision
import transformers
from PIL import Image

from torch_models import randomise

FILES = [PHOTO, PHOTO.with_suffix(".png"), PHOTO.with_suffix(".webp")]


def same_as_torch(test: unittest.TestCase, module: torch.nn.Module, model: swinq.Model, call=None) -> None:
    """The float model's logits equal those of the module, up to rounding in f32."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, *model.input_size, 3), np.uint8)
    values = torch.from_numpy(normalised(pixels, model))
    with torch.no_grad():
        expected = (call or module)(values).numpy()
    found = model(pixels)
    test.assertLess(np.abs(found - expected).max(), 1e-4 * np.abs(expected).max())
    test.assertIsInstance(model(values), torch.Tensor)
    np.testing.assert_array_equal(model(values).numpy(), found)


class Timm(unittest.TestCase):
    def test_ten_lines_give_the_bits_of_the_command(self):
        module = randomise(timm.create_model("swin_tiny_patch4_window7_224", num_classes=10))
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            model = swinq.quantize(module, [str(file) for file in FILES])
            model.save(folder / "python.safetensors")
            timm.models.save_for_hf(module, folder / "timm")
            images = folder / "images"
            images.mkdir()
            for index, file in enumerate(FILES):
                (images / f"{index}{file.suffix}").write_bytes(file.read_bytes())
            swinq_command("calibrate", folder / "timm", "--data-path", images, "--batches", 1, "-o", folder / "c.safetensors")
            logits = folder / "logits.safetensors"
            swinq_command("predict", folder / "c.safetensors", *FILES, "--logits", logits)
            expected = tensor_of(logits.read_bytes(), "logits")
            opened = swinq.open(folder / "python.safetensors")
        pixels = prepared(model)
        np.testing.assert_array_equal(model(pixels), expected)
        np.testing.assert_array_equal(opened(pixels), expected)

    def test_modules_of_both_versions_equal_torch(self):
        for name, options in [
            ("swin_tiny_patch4_window7_224", {"img_size": 256, "window_size": 8, "num_classes": 7}),
            ("swin_tiny_patch4_window7_224", {"embed_dim": 64, "depths": (1, 2, 1, 1), "num_heads": (2, 4, 8, 16)}),
            ("swinv2_tiny_window8_256", {"num_classes": 5}),
            ("swinv2_cr_tiny_224", None),
            ("swin_s3_tiny_224", {"num_classes": 5}),
        ]:
            with self.subTest(name=name, options=options):
                module = randomise(timm.create_model(name, **(options or {})))
                if options is None:
                    with self.assertRaises((swinq.ModelError, swinq.ArgumentError)):
                        swinq.open(module)
                    continue
                model = swinq.open(module)
                self.assertEqual(model.preprocessing["family"], "timm")
                same_as_torch(self, module, model)

    def test_wrappers_and_half_precision(self):
        module = randomise(timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), num_heads=(3, 6)))
        pixels = np.zeros((1, 224, 224, 3), np.uint8)
        expected = swinq.open(module)(pixels)
        np.testing.assert_array_equal(swinq.open(torch.nn.DataParallel(module))(pixels), expected)
        state = {name: tensor.bfloat16() for name, tensor in module.state_dict().items()}
        rounded = swinq.open(randomised_as(module, state))(pixels)
        np.testing.assert_array_equal(swinq.open(module.bfloat16())(pixels), rounded)

    def test_a_data_loader_gives_the_bits_of_the_files(self):
        module = randomise(timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), num_heads=(3, 6)))
        config = timm.data.resolve_model_data_config(module)
        transform = timm.data.create_transform(**config, is_training=False)

        class Files(torch.utils.data.Dataset):
            def __len__(self):
                return len(FILES)

            def __getitem__(self, index):
                return transform(Image.open(FILES[index]).convert("RGB")), index

        loader = torch.utils.data.DataLoader(Files(), batch_size=2)
        expected = swinq.quantize(module, FILES)
        for found in [
            swinq.quantize(module, loader),
            swinq.quantize(module, [Image.open(file) for file in FILES]),
            swinq.quantize(module, loader, preprocessing=config),
        ]:
            self.assertEqual(found.sites, expected.sites)
            np.testing.assert_array_equal(found(prepared(found)), expected(prepared(expected)))
        evaluated = swinq.evaluate([swinq.open(module), expected], loader)
        self.assertEqual([model["images"] for model in evaluated.models], [len(FILES)] * 2)


class Torchvision(unittest.TestCase):
    def test_modules_of_both_versions_equal_torch(self):
        weights = torchvision.models.Swin_T_Weights.DEFAULT
        for module, preprocessing in [
            (torchvision.models.swin_t(num_classes=9), None),
            (torchvision.models.swin_t(), weights.transforms()),
            (torchvision.models.swin_v2_t(num_classes=4), None),
        ]:
            with self.subTest(module=type(module).__name__):
                model = swinq.open(randomise(module), preprocessing=preprocessing)
                self.assertEqual(model.preprocessing["family"], "torchvision")
                same_as_torch(self, module, model)
        with self.assertRaisesRegex(swinq.ArgumentError, "torchvision has none"):
            swinq.open(torchvision.models.SwinTransformer([4, 4], 48, [1, 1], [2, 4], [7, 7]))


class Transformers(unittest.TestCase):
    def test_a_module_with_its_processor_equals_torch(self):
        for config, kind in [
            (transformers.SwinConfig(num_labels=6), transformers.SwinForImageClassification),
            (transformers.Swinv2Config(num_labels=3, image_size=256, window_size=8), transformers.Swinv2ForImageClassification),
        ]:
            with self.subTest(kind=kind.__name__):
                size = {"height": config.image_size, "width": config.image_size}
                processor = transformers.ViTImageProcessor(size=size, resample=3, image_mean=[0.4, 0.5, 0.6])
                module = randomise(kind(config))
                with self.assertRaisesRegex(swinq.ArgumentError, "image processor"):
                    swinq.open(module)
                model = swinq.open(module, preprocessing=processor)
                self.assertAlmostEqual(model.preprocessing["mean"][0], 0.4, places=6)
                same_as_torch(self, module, model, lambda values, module=module: module(values).logits)

    def test_batches_of_a_processor_calibrate(self):
        config = transformers.SwinConfig(num_labels=6, depths=[1, 1], num_heads=[3, 6])
        processor = transformers.ViTImageProcessor(resample=3)
        module = randomise(transformers.SwinForImageClassification(config))
        batch = processor([Image.open(file).convert("RGB") for file in FILES], return_tensors="pt")
        model = swinq.quantize(module, [dict(batch)], preprocessing=processor)
        self.assertTrue(model.is_quantized)


class Layers(unittest.TestCase):
    def small(self, **options):
        return timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), num_heads=(3, 6), **options)

    def test_activations_and_epsilons_that_swinq_does_not_compute_are_refused(self):
        module = self.small()
        module.layers[1].blocks[0].mlp.act = torch.nn.ReLU()
        with self.assertRaisesRegex(swinq.ArgumentError, r"layers\.1\.blocks\.0\.mlp\.act` is ReLU"):
            swinq.open(module)
        module = torchvision.models.swin_t()
        module.features[1][0].mlp[1] = torch.nn.SiLU()
        with self.assertRaisesRegex(swinq.ArgumentError, "is SiLU"):
            swinq.open(module)
        module = self.small(norm_layer=lambda dim, **_: torch.nn.LayerNorm(dim, eps=1e-6))
        with self.assertRaisesRegex(swinq.ArgumentError, "eps=1e-06"):
            swinq.open(module)

    def test_gelu_by_tanh_is_allowed_and_said(self):
        module = randomise(self.small())
        for layer in module.layers:
            layer.blocks[0].mlp.act = torch.nn.GELU(approximate="tanh")
        with self.assertWarnsRegex(UserWarning, "GELU by tanh"):
            model = swinq.open(module)
        pixels = np.random.default_rng(0).integers(0, 256, (2, *model.input_size, 3), np.uint8)
        with torch.no_grad():
            expected = module(torch.from_numpy(normalised(pixels, model))).numpy()
        error = np.square(model(pixels) - expected).sum() / np.square(expected).sum()
        self.assertLess(10 * np.log10(error), -60)

    def test_gelu_by_tanh_of_a_configuration(self):
        config = transformers.SwinConfig(image_size=56, embed_dim=32, depths=[1, 1], num_heads=[1, 2], hidden_act="gelu_new")
        module = randomise(transformers.SwinForImageClassification(config))
        with self.assertWarnsRegex(UserWarning, "GELU by tanh"):
            swinq.open(module, preprocessing="hf")

    def test_heads_in_a_sequence_are_read_and_others_refused(self):
        module = torchvision.models.swin_t(num_classes=4)
        module.head = torch.nn.Sequential(torch.nn.Dropout(0.1), module.head)
        same_as_torch(self, randomise(module), swinq.open(module))
        module.head = torch.nn.Identity()
        with self.assertRaisesRegex(swinq.ArgumentError, r"\(Identity\) has no linear layer"):
            swinq.open(module)

    def test_overrides_apply_to_modules_that_describe_themselves(self):
        module = self.small(num_classes=3)
        with self.assertRaisesRegex(swinq.ModelError, "MODEL.NUM_CLASES"):
            swinq.open(module, opts={"MODEL.NUM_CLASES": 3})
        with self.assertRaisesRegex(swinq.ModelError, "5"):
            swinq.open(module, opts={"MODEL.NUM_CLASSES": 5})
        self.assertIn("3 classes", repr(swinq.open(module, opts={"MODEL.NUM_CLASSES": 3})))


class Others(unittest.TestCase):
    def test_modules_that_are_no_swins_are_refused(self):
        for module in [torchvision.models.resnet18(), timm.create_model("vit_tiny_patch16_224"), torch.nn.Linear(2, 2)]:
            with self.assertRaises(swinq.ArgumentError):
                swinq.open(module)

    def test_predictions_of_pil_images_are_those_of_files(self):
        module = randomise(timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), num_heads=(3, 6)))
        model = swinq.open(module)
        self.assertEqual(model.predict([Image.open(file) for file in FILES]), model.predict(FILES))
        self.assertEqual(model.predict(np.asarray(Image.open(PHOTO).convert("RGB"))), model.predict(str(PHOTO)))


def randomised_as(module: torch.nn.Module, state: dict) -> torch.nn.Module:
    """A copy of ``module`` with the parameters ``state`` in f32."""
    copy = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1), num_heads=(3, 6))
    copy.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return copy


def prepared(model: swinq.Model) -> np.ndarray:
    """The pixels of the files as torchvision prepares them for ``model``."""
    transform = model.preprocessing
    functional = torchvision.transforms.functional
    bicubic = torchvision.transforms.InterpolationMode.BICUBIC
    images = []
    for file in FILES:
        image = functional.resize(Image.open(file).convert("RGB"), transform["resize"]["shorter_side"], bicubic)
        images.append(np.asarray(functional.center_crop(image, transform["size"])))
    return np.stack(images)


def swinq_command(*arguments: object) -> None:
    """Runs the command of the package."""
    command = [sys.executable, "-m", "swinq", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def tensor_of(file: bytes, name: str) -> np.ndarray:
    """An f32 tensor of a safetensors file."""
    size = int.from_bytes(file[:8], "little")
    entry = json.loads(file[8 : 8 + size])[name]
    start, end = entry["data_offsets"]
    return np.frombuffer(file[8 + size :][start:end], np.float32).reshape(entry["shape"])


if __name__ == "__main__":
    unittest.main()
