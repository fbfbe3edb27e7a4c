"""What a model of transformers is, and what can be done with it then: a table of states by operations, each cell a test."""

import json
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

from needed import need

need("torch", "transformers")

import torch
import transformers
from torch_models import FOUR, PROGRAMS, SMALL, STAGES, images, randomise
from torch_support import leaves
from transformers.models.maskformer.modeling_maskformer_swin import MaskFormerSwinBackbone
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

import swinq.torch
from swinq.transformers import SwinqConfig, attach

X = images(2, 128, 128)
PLAIN = {**FOUR, "depths": [1, 1], "num_heads": [1, 2]}
LOAD = {"UPerNet": transformers.UperNetForSemanticSegmentation, "classifier": transformers.AutoModelForImageClassification}


def upernet():
    return randomise(PROGRAMS["UPerNet"]()[0])


def classifier():
    return randomise(transformers.SwinForImageClassification(transformers.SwinConfig(**PLAIN)))


def tensors(model):
    """The tensors that a model gives, with its parameters in aligned memory: PyTorch's convolutions depend on where a file is mapped."""
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.clone()
    with torch.no_grad():
        return [value for _, value in leaves(model(X))]


def equal(found, expected):
    return len(found) == len(expected) > 0 and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def without_the_method():
    """A process that does not know the method, as transformers sees it."""
    known = {name: kind for name, kind in AUTO_QUANTIZATION_CONFIG_MAPPING.items() if name != "swinq"}
    return mock.patch.dict(AUTO_QUANTIZATION_CONFIG_MAPPING, known, clear=True)


class States:
    """A model in each state: each function makes a new one."""

    def __init__(self, name, folder):
        self.kind, self.folder, self.made = LOAD[name], Path(folder), 0
        self.path, self.int8 = self.folder / "float", self.folder / "int8"
        (upernet if name == "UPerNet" else classifier)().save_pretrained(self.path)
        self.quantized().save_pretrained(self.int8)

    def new(self):
        """A folder that does not exist."""
        self.made += 1
        return self.folder / str(self.made)

    def float(self):
        return self.kind.from_pretrained(self.path)

    def prepared(self):
        return swinq.torch.prepare(self.float(), [X]).model

    def quantized(self):
        return self.kind.from_pretrained(self.path, quantization_config=SwinqConfig(calibrate=[X]))

    def opened(self):
        return self.kind.from_pretrained(self.int8)

    def restored(self):
        return swinq.torch.restore(self.opened())

    def dequantized(self):
        model = self.opened()
        model.dequantize()
        return model

    def saved(self):
        self.restored().save_pretrained(folder := self.new())
        return self.kind.from_pretrained(folder)

    def unknown(self):
        with without_the_method():
            return self.kind.from_pretrained(self.int8)


class Operations:
    """What is done with a model; each gives what runs, or is to be opened, afterwards."""

    def __init__(self, states):
        self.states = states

    def run(self, model):
        return model

    def quantize(self, model):
        return swinq.torch.quantize(model, [X]).model

    def prepare(self, model):
        return swinq.torch.convert(swinq.torch.prepare(model, [X]).model)

    def convert(self, model):
        return swinq.torch.convert(model)

    def tune(self, model):
        folder = self.states.folder
        found = swinq.torch.tune(
            model, [X], lambda model: 0.5, max_drop=0.0, metric="none", ptq="basic", cache=folder / "cache", latencies=folder / "latencies"
        )
        assert found.candidates, found
        # The chosen Swin is in the model, perhaps one in float.
        return swinq.torch.restore(model)

    def restore(self, model):
        return swinq.torch.restore(model)

    def dequantize(self, model):
        model.dequantize()
        return model

    def open(self, model):
        """The engine of swinq.open, in float, on the Swin itself."""
        swin = getattr(model, "backbone", model)
        found = swinq.open(swin, preprocessing="hf").engine(backend="cpu")
        assert found.run(X) is not None
        return model

    def save(self, model):
        model.save_pretrained(folder := self.states.new())
        config = json.loads((folder / "config.json").read_text())
        found = self.states.kind.from_pretrained(folder)
        # A folder of float weights says nothing of INT8.
        if equal(tensors(found), tensors(self.states.float())):
            assert "quantization_config" not in config, config
        return found

    def attach(self, model):
        return self.save(attach(model))


ALREADY = "run on the engine already; swinq.torch.restore"
PREPARED = "are prepared for training already"
TRAINED = "has no prepared Swin; call swinq.torch.prepare first"
NO_INT8 = "has no quantized Swin; call"
IN_FLOAT = {
    "run": "float", "quantize": "INT8", "prepare": "trained", "convert": TRAINED, "tune": "float", "restore": "float",
    "dequantize": "first quantize your model", "open": "float", "save": "float", "attach": NO_INT8,
}  # fmt: skip
IN_INT8 = {
    "run": "INT8", "quantize": ALREADY, "prepare": ALREADY, "convert": TRAINED, "tune": ALREADY, "restore": "float",
    "dequantize": "float", "open": "runs on the engine already", "save": "INT8", "attach": "INT8",
}  # fmt: skip
#: What comes of each operation in each state: the bits of the float model, of the INT8 model, or of that without refined weights, from
#: which a training starts; or an error.
TABLE = {
    "float": IN_FLOAT,
    "prepared": {
        "run": "trained", "quantize": PREPARED, "prepare": PREPARED, "convert": "trained", "tune": PREPARED, "restore": "float",
        "dequantize": "first quantize your model", "open": "is prepared for training", "save": "float", "attach": NO_INT8,
    },
    "quantized": IN_INT8,
    "opened": IN_INT8,
    "restored": IN_FLOAT,
    "dequantized": IN_FLOAT,
    "saved": IN_FLOAT,
    "unknown": {**IN_FLOAT, "save": "swinq_int8: .*remove `quantization_config` from its config.json"},
}  # fmt: skip


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        warnings.simplefilter("ignore")
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.addCleanup(transformers.utils.logging.set_verbosity_warning)


class Table(Case):
    def check(self, name):
        states = States(name, self.folder)
        trained = swinq.torch.quantize(states.float(), [X], ptq="basic").model
        bits = {"float": tensors(states.float()), "INT8": tensors(states.quantized()), "trained": tensors(trained)}
        self.assertFalse(equal(bits["float"], bits["INT8"]) or equal(bits["INT8"], bits["trained"]))
        for state, row in TABLE.items():
            for operation, expected in row.items():
                with self.subTest(f"{name}: {operation} of a {state} model"):
                    model, act = getattr(states, state)(), getattr(Operations(states), operation)
                    if expected in bits:
                        self.assertTrue(equal(tensors(act(model)), bits[expected]))
                        continue
                    with self.assertRaisesRegex((swinq.Error, ValueError), expected):
                        act(model)
                    # What was refused left the model as it was.
                    if row["run"] in bits and operation != "save":
                        self.assertTrue(equal(tensors(model), bits[row["run"]]))

    def test_a_program_with_a_backbone(self):
        self.check("UPerNet")

    def test_a_model_that_is_a_swin(self):
        self.check("classifier")


#: Every class of transformers that is a Swin, and the class that opens it.
CLASSES = {
    "classifier": (transformers.AutoModelForImageClassification, transformers.SwinForImageClassification, transformers.SwinConfig, {}),
    "V2 classifier": (
        transformers.AutoModelForImageClassification, transformers.Swinv2ForImageClassification, transformers.Swinv2Config, {},
    ),
    "model": (transformers.AutoModel, transformers.SwinModel, transformers.SwinConfig, {}),
    "V2 model": (transformers.AutoModel, transformers.Swinv2Model, transformers.Swinv2Config, {}),
    "Donut": (transformers.AutoModel, transformers.DonutSwinModel, transformers.DonutSwinConfig, {}),
    "backbone": (transformers.SwinBackbone, transformers.SwinBackbone, transformers.SwinConfig, {"out_features": STAGES[:2]}),
    "V2 backbone": (transformers.Swinv2Backbone, transformers.Swinv2Backbone, transformers.Swinv2Config, {"out_features": STAGES[:2]}),
    "MaskFormer backbone": (
        MaskFormerSwinBackbone, MaskFormerSwinBackbone, transformers.MaskFormerSwinConfig, {"out_features": STAGES[:2]},
    ),
}  # fmt: skip


class Classes(Case):
    def test_every_swin_is_quantized_when_it_is_opened(self):
        for name, (load, kind, config, options) in CLASSES.items():
            with self.subTest(name):
                folder = Path(self.folder) / name
                randomise(kind(config(**{**SMALL, "image_size": 128, "window_size": 4, **options}))).save_pretrained(folder)
                exact = load.from_pretrained(str(folder))
                self.assertIs(type(exact), kind)
                model = load.from_pretrained(str(folder), quantization_config=SwinqConfig(calibrate=[X]))
                self.assertIs(type(model), kind)
                found, expected = tensors(model), tensors(exact)
                self.assertFalse(equal(found, expected))
                self.assertTrue(equal(found, tensors(swinq.torch.quantize(load.from_pretrained(str(folder)), [X]).model)))
                model.save_pretrained(folder / "int8")
                again = load.from_pretrained(str(folder / "int8"))
                self.assertTrue(equal(tensors(again), found))
                swinq.torch.restore(again).save_pretrained(folder / "restored")
                restored = load.from_pretrained(str(folder / "restored"))
                self.assertTrue(equal(tensors(restored), expected))
                self.assertEqual(swinq.torch.quantize(restored, [X]).left, [])

    def test_a_process_without_the_method_opens_and_quantizes_the_float_model(self):
        states = States("classifier", self.folder)
        torch.save(X, states.folder / "x.pt")
        code = (
            "import sys, torch, transformers, swinq.torch\n"
            "x = torch.load('x.pt')\n"
            "model = transformers.AutoModelForImageClassification.from_pretrained('int8')\n"
            "assert 'swinq.transformers' not in sys.modules\n"
            "with torch.no_grad():\n"
            "    exact = model(x).logits\n"
            "    int8 = swinq.torch.quantize(model, [x]).model(x).logits\n"
            "torch.save([exact, int8], 'found.pt')\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=states.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        exact, int8 = torch.load(states.folder / "found.pt")
        self.assertTrue(torch.equal(exact, tensors(states.float())[0]))
        self.assertTrue(torch.equal(int8, tensors(states.quantized())[0]))

    def test_a_swin_that_another_method_quantized_is_refused_by_its_name(self):
        model = classifier()
        model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
        with self.assertRaisesRegex(swinq.Error, "quantized by `gptq`; give the float model"):
            swinq.torch.quantize(model, [X])


if __name__ == "__main__":
    unittest.main()
