"""swinq as a quantization method of transformers: models that are quantized when they are opened, saved, and opened again."""

import copy
import json
import os
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

from needed import need

need("torch", "transformers")

import torch
import transformers

from safetensors.torch import load_file, save_file
from torch_models import PROGRAMS, SWINS, images, randomise
from torch_support import leaves
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

import swinq.torch
from swinq.transformers import SwinqConfig, attach

#: Models by name: the class that opens them, and how they are made.
MODELS = {
    "classifier": (transformers.AutoModelForImageClassification, lambda: SWINS["transformers classifier"]()),
    "UPerNet": (transformers.UperNetForSemanticSegmentation, lambda: randomise(PROGRAMS["UPerNet"]()[0])),
    "Mask2Former": (transformers.AutoModelForUniversalSegmentation, lambda: randomise(PROGRAMS["Mask2Former"]()[0])),
}
SIZES = {"classifier": 224}


def outputs(model, x):
    """What ``model`` gives, with its parameters in aligned memory: PyTorch's convolutions depend on where transformers maps a file."""
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.clone()
    return model(x)


class Transformers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        warnings.simplefilter("ignore")
        transformers.utils.logging.disable_progress_bar()

    def made(self, name):
        """The class, the folder of a float model, and images for it."""
        kind, make = MODELS[name]
        make().save_pretrained(self.folder / "float")
        return kind, self.folder / "float", images(2, SIZES.get(name, 128), SIZES.get(name, 128))

    def assert_equal(self, found, expected):
        self.assertIs(type(found), type(expected))
        self.assertGreater(len(leaves(expected)), 0)
        for (place, one), (_, two) in zip(leaves(found), leaves(expected), strict=True):
            self.assertTrue(torch.equal(one, two), place)

    def test_a_saved_model_opens_again_with_the_same_bits(self):
        for name in MODELS:
            with self.subTest(name), torch.no_grad():
                kind, path, x = self.made(name)
                exact = kind.from_pretrained(path)
                model = kind.from_pretrained(path, quantization_config=SwinqConfig(calibrate=[{"pixel_values": x}]))
                (replaced,) = model.hf_quantizer.report.replaced
                self.assertGreater(replaced.int8_sites, 10)
                expected, difference = outputs(model, x), outputs(exact, x)
                self.assertFalse(torch.equal(leaves(expected)[0][1], leaves(difference)[0][1]))
                whole = kind.from_pretrained(path)
                self.assert_equal(outputs(swinq.torch.quantize(whole, [x]).model, x), expected)
                model.save_pretrained(self.folder / "int8")
                again = kind.from_pretrained(self.folder / "int8")
                self.assert_equal(outputs(again, x), expected)
                self.assertNotIn("swinq_int8", "".join(again.state_dict()))
                # A second save holds the same files.
                again.save_pretrained(self.folder / "second")
                for file in ("config.json", "model.safetensors"):
                    self.assertEqual((self.folder / "second" / file).read_bytes(), (self.folder / "int8" / file).read_bytes())
                self.assert_equal(outputs(copy.deepcopy(again), x), expected)
                # The float model is in the folder, too.
                again.dequantize()
                self.assert_equal(outputs(again, x), difference)
                self.assertEqual(list(again.state_dict()), list(exact.state_dict()))
                print(f"{name}: {replaced}")

    def test_the_float_model_opens_where_the_method_is_not_known(self):
        kind, path, x = self.made("UPerNet")
        model = kind.from_pretrained(path, quantization_config=SwinqConfig(calibrate=[x]))
        model.save_pretrained(self.folder / "int8")
        known = {name: kind for name, kind in AUTO_QUANTIZATION_CONFIG_MAPPING.items() if name != "swinq"}
        with mock.patch.dict(AUTO_QUANTIZATION_CONFIG_MAPPING, known, clear=True), torch.no_grad():
            found, exact = (kind.from_pretrained(folder) for folder in (self.folder / "int8", path))
            self.assert_equal(outputs(found, x), outputs(exact, x))

    def test_a_classifier_stays_the_object_that_it_is(self):
        kind, path, x = self.made("classifier")
        labelled = [{"pixel_values": x, "labels": torch.tensor([1, 0])}]
        with self.assertRaisesRegex(swinq.ArgumentError, "a single number, such as a loss.*leave `labels` out"):
            kind.from_pretrained(path, quantization_config=SwinqConfig(calibrate=labelled))
        model = kind.from_pretrained(path, quantization_config=SwinqConfig(calibrate=lambda model: model(x)))
        self.assertIs(type(model), transformers.SwinForImageClassification)
        self.assertEqual((model.device.type, model.dtype), ("cpu", torch.float32))
        with torch.no_grad():
            expected = model(pixel_values=x)
            with self.assertRaisesRegex(swinq.Error, "cannot be trained"):
                model.train()(x)
            self.assert_equal(model.eval()(x), expected)
            with self.assertRaisesRegex(swinq.Error, "labels"):
                model(x, labels=torch.zeros(2, dtype=torch.long))
            self.assert_equal(copy.deepcopy(model)(x), expected)
            for change in (lambda each: each.half(), lambda each: each.to(torch.bfloat16), lambda each: copy.deepcopy(each).double()):
                with self.assertRaisesRegex((TypeError, ValueError), "no parameters whose type could change|not supported for quantized model"):
                    change(model)
            self.assert_equal(model.to("cpu")(x), expected)
            self.assertIs(swinq.torch.restore(model), model)
            self.assertEqual(copy.deepcopy(model).half().dtype, torch.float16)
            self.assert_equal(model(x), kind.from_pretrained(path)(x))

    def test_options_are_those_of_quantize_and_are_saved(self):
        kind, path, x = self.made("UPerNet")
        config = SwinqConfig([x], "default", "cpu", samples=1, ptq="basic", share=False, options={"threads": 1})
        model = kind.from_pretrained(path, quantization_config=config)
        report = model.hf_quantizer.report
        self.assertEqual((report.replaced[0].images, report.share, report.no_share), (1, None, None))
        model.save_pretrained(self.folder / "int8")
        saved = json.loads((self.folder / "int8/config.json").read_text())["quantization_config"]
        self.assertEqual((saved["backend"], saved["samples"], saved["ptq"], saved["options"]), ("cpu", 1, "basic", {"threads": 1}))
        self.assertFalse({"calibrate", "progress", "share"} & set(saved))
        # The same configuration serves again, and a generator needs no copy.
        self.assertIsNotNone(config.calibrate)
        model = kind.from_pretrained(path, quantization_config=SwinqConfig(batch for batch in [x]))
        self.assertIsNotNone(model.hf_quantizer.report.share)

    def test_a_folder_that_would_lack_the_swins_is_not_written(self):
        kind, path, x = self.made("UPerNet")
        model = kind.from_pretrained(path)
        swinq.torch.quantize(model, [x])
        with self.assertRaisesRegex(swinq.Error, r"attach\(model\)"):
            model.save_pretrained(self.folder / "lost")
        with self.assertRaisesRegex(swinq.Error, r"attach\(model\)"):
            copy.deepcopy(model).save_pretrained(self.folder / "lost")
        self.assertFalse((self.folder / "lost").exists())
        # Both remedies of the message.
        attach(copy.deepcopy(model)).save_pretrained(self.folder / "int8")
        with torch.no_grad():
            self.assert_equal(outputs(kind.from_pretrained(self.folder / "int8"), x), outputs(model, x))
            swinq.torch.restore(model).save_pretrained(self.folder / "restored")
            found, exact = (kind.from_pretrained(folder) for folder in (self.folder / "restored", path))
            self.assert_equal(outputs(found, x), outputs(exact, x))

    def test_a_swin_in_place_of_the_whole_model_is_not_saved_in_float(self):
        kind, path, x = self.made("classifier")
        replaced = swinq.torch.quantize(kind.from_pretrained(path), [x]).model
        with self.assertRaisesRegex(swinq.Error, r"attach\(model\)"):
            replaced.save_pretrained(self.folder / "lost")
        self.assertFalse((self.folder / "lost").exists())
        with torch.no_grad():
            expected = replaced(x)
            attach(replaced).save_pretrained(self.folder / "int8")
            self.assert_equal(kind.from_pretrained(self.folder / "int8")(x), expected)

    def test_trained_and_replaced_models_are_saved_when_they_are_attached(self):
        for name in ("UPerNet", "classifier"):
            kind, path, x = self.made(name)
            model = swinq.torch.prepare(kind.from_pretrained(path), [x]).model
            with self.subTest(name), torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.01)
                model = attach(swinq.torch.convert(model))
                self.assertIs(type(model), type(kind.from_pretrained(path)))
                expected = outputs(model, x)
                model.save_pretrained(self.folder / name)
                again = kind.from_pretrained(self.folder / name)
                self.assert_equal(outputs(again, x), expected)
                trained = outputs(model.dequantize(), x)
                self.assert_equal(outputs(again.dequantize(), x), trained)
                with self.assertRaisesRegex(swinq.ArgumentError, "has no quantized Swin"):
                    attach(model)
        with self.assertRaisesRegex(swinq.ArgumentError, "is no model of transformers"):
            attach(torch.nn.Identity())

    def test_mistakes_are_named(self):
        kind, path, x = self.made("classifier")
        with self.assertRaisesRegex(swinq.ArgumentError, r"`calibrate` is missing.*SwinqConfig\(calibrate=loader\)"):
            kind.from_pretrained(path, quantization_config=SwinqConfig())
        model = kind.from_pretrained(path, quantization_config=SwinqConfig(calibrate=[x]))
        folder = self.folder / "int8"
        model.save_pretrained(folder)
        with self.assertRaisesRegex(swinq.ModelError, "holds a quantized SwinForImageClassification.*open the folder with the class"):
            transformers.AutoModel.from_pretrained(folder)
        weights = load_file(folder / "model.safetensors")
        weights["swinq_int8"][100] ^= 1
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        with self.assertRaisesRegex(swinq.ModelError, "swinq_int8: .*save the quantized model again"):
            kind.from_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"]["swins"][0]["outputs"]["kind"] = "os.path.join"
        (folder / "config.json").write_text(json.dumps(config))
        model.save_pretrained(self.folder / "again")
        save_file(load_file(self.folder / "again/model.safetensors"), folder / "model.safetensors", {"format": "pt"})
        with self.assertRaisesRegex(swinq.ArgumentError, "`os.path.join` is no class of outputs"):
            kind.from_pretrained(folder)
        config["quantization_config"]["swins"] = []
        (folder / "config.json").write_text(json.dumps(config))
        with self.assertRaisesRegex(swinq.ArgumentError, "has no `swins`"):
            kind.from_pretrained(folder)


if __name__ == "__main__":
    unittest.main()
