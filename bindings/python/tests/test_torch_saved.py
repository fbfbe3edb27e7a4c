"""Models as folders: saved, loaded in a fresh process with the same bits, trained on, and checkpoints in the place of modules."""

import copy
import subprocess
import sys
import unittest
import warnings
from pathlib import Path

from needed import need

need("timm", "torch", "transformers", "safetensors.torch")

import torch
import transformers
from safetensors.torch import load_file
from torch_models import of_timm, randomise
from torch_saved import (
    MADE,
    OPTIMIZERS,
    OPTIONS,
    STEPS,
    STOP,
    Case,
    X,
    images_for,
    made,
    quantized,
    small,
    train,
    values,
)

import swinq.torch
from swinq.transformers import SwinqConfig, attach

HERE = Path(__file__).resolve().parent


def in_a_fresh_process(work, folder, names):
    """Runs ``torch_saved.py``."""
    done = subprocess.run([sys.executable, "torch_saved.py", work, str(folder), *names], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Programs(Case):
    def test_a_fresh_process_gives_the_same_bits(self):
        expected = {}
        for name in MADE:
            model, x = made(name), images_for(name)
            exact = values(model, x)
            model = swinq.torch.quantize(model, [x]).model
            expected[name] = values(model, x)
            self.assertFalse(all(torch.equal(one, other) for one, other in zip(exact, expected[name], strict=True)), name)
            swinq.torch.save(model, self.folder / name)
            torch.save(x, self.folder / f"{name}.pt")
        in_a_fresh_process("outputs", self.folder, MADE)
        for name, tensors in expected.items():
            with self.subTest(name):
                self.assert_equal(torch.load(self.folder / f"{name}.out"), tensors)

    def test_the_folder_has_files_that_other_programs_read(self):
        model = quantized()
        swinq.torch.save(model, self.folder / "saved")
        names = sorted(path.name for path in (self.folder / "saved").iterdir())
        self.assertEqual(names, ["backbone.int8.safetensors", "rest.safetensors", "swinq.json"])
        rest = load_file(self.folder / "saved/rest.safetensors")
        self.assertEqual(rest.keys(), model.state_dict().keys())
        opened = swinq.open(self.folder / "saved/backbone.int8.safetensors").engine(backend="cpu")
        for one, other in zip(opened.run(X).values(), values(model, X), strict=True):
            self.assertTrue(torch.equal(one.permute(0, 2, 3, 1), other))
        # Files of its own kind make another folder with the same bytes.
        swinq.torch.save(swinq.torch.load(small(1), self.folder / "saved"), self.folder / "again")
        for name in names:
            self.assertEqual((self.folder / "again" / name).read_bytes(), (self.folder / "saved" / name).read_bytes())

    def test_a_model_of_transformers_that_runs_in_place_loads_in_place(self):
        name = "transformers"
        made(name).save_pretrained(self.folder / "float")
        x, config = images_for(name), SwinqConfig(calibrate=[images_for(name)])
        model = transformers.AutoModelForImageClassification.from_pretrained(self.folder / "float", quantization_config=config)
        swinq.torch.save(model, self.folder / "saved")
        self.assertEqual(load_file(self.folder / "saved/rest.safetensors"), {})
        fresh = made(name, seed=1)
        self.assertIs(swinq.torch.load(fresh, self.folder / "saved"), fresh)
        self.assert_equal(values(fresh, x), values(model, x))
        with self.assertRaisesRegex(swinq.ArgumentError, "the folder would lack them"):
            fresh.save_pretrained(self.folder / "lost")
        with self.assertRaisesRegex(swinq.ArgumentError, "float parameters of the model itself are missing"):
            swinq.torch.restore(fresh)
        # With the weights that were quantized nothing is missing.
        whole = transformers.AutoModelForImageClassification.from_pretrained(self.folder / "float")
        exact = values(whole, x)
        swinq.torch.load(whole, self.folder / "saved")
        attach(whole).save_pretrained(self.folder / "int8")
        again = transformers.AutoModelForImageClassification.from_pretrained(self.folder / "int8")
        self.assert_equal(values(again, x), values(model, x))
        self.assert_equal(values(swinq.torch.restore(whole), x), exact)

    def test_a_program_in_half_precision_and_under_torch_compile(self):
        model = quantized(small().bfloat16(), X.bfloat16())
        swinq.torch.save(torch.nn.DataParallel(torch.compile(model, backend="eager")), self.folder / "saved")
        with self.assertRaisesRegex(swinq.ModelError, r"`conv.weight` is torch.bfloat16, and torch.float32 in Inside.*to\(torch.bfloat16\)"):
            swinq.torch.load(small(1), self.folder / "saved")
        fresh = small(1).to(torch.bfloat16)
        fresh.backbone = torch.compile(fresh.backbone, backend="eager")
        swinq.torch.load(fresh, self.folder / "saved")
        self.assert_equal(values(fresh, X.bfloat16()), values(model, X.bfloat16()))


class Modules(Case):
    def test_tied_and_repeated_modules_are_written_once(self):
        def program(seed):
            found = small(seed)
            found.again, found.other = found.backbone, randomise(of_timm(**OPTIONS), seed + 7)
            found.head = torch.nn.Linear(4, 4)
            found.tied = torch.nn.Linear(4, 4)
            found.tied.weight = found.head.weight
            found.last = found.head
            return found

        model = program(0)
        swinq.torch.quantize(model, lambda model: (model(X), model.other(X)))
        swinq.torch.save(model, self.folder / "saved")
        names = sorted(path.name for path in (self.folder / "saved").glob("*.int8.safetensors"))
        self.assertEqual(names, ["backbone.int8.safetensors", "other.int8.safetensors"])
        rest = load_file(self.folder / "saved/rest.safetensors")
        self.assertEqual(sorted(rest), ["conv.bias", "conv.weight", "head.bias", "head.weight", "tied.bias"])
        fresh = program(1)
        swinq.torch.load(fresh, self.folder / "saved")
        self.assertIs(fresh.again, fresh.backbone)
        self.assertIs(fresh.tied.weight, fresh.head.weight)
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(fresh.state_dict()[name], tensor), name)
        self.assert_equal(values(fresh.again, X) + values(fresh.other, X), values(model.again, X) + values(model.other, X))
        apart = program(1)
        apart.again = randomise(of_timm(**OPTIONS))
        with self.assertRaisesRegex(swinq.ModelError, "has one module at `backbone`, `again`, and Inside has it at `backbone`; build"):
            swinq.torch.load(apart, self.folder / "saved")

    def test_names_of_modules_that_no_file_has(self):
        names = ["aux", "a/b", "\\c", "Swin", "sWIN", "x" * 300, "\u00fc*?", "nul:"]
        model, fresh = torch.nn.Module(), torch.nn.Module()
        for program, seed in ((model, 0), (fresh, 1)):
            for name in names:
                program.add_module(name, randomise(of_timm(**OPTIONS), seed))
        model.eval()
        swinq.torch.quantize(model, lambda model: [swin(X) for swin in model.children()])
        swinq.torch.save(model, self.folder / "saved")
        files = {path.name for path in (self.folder / "saved").glob("*.int8.safetensors")}
        self.assertEqual(len({file.lower() for file in files}), len(names))
        self.assertLess(max(map(len, files)), 200)
        self.assertIn("%61ux.int8.safetensors", files)
        self.assertIn("%5Cc.int8.safetensors", files)
        for file in files:
            self.assertRegex(file, r"^[A-Za-z0-9_%~-][A-Za-z0-9_.%~-]*$")
        swinq.torch.load(fresh, self.folder / "saved").eval()
        for name in names:
            self.assert_equal(values(getattr(fresh, name), X), values(getattr(model, name), X))

    def test_what_a_folder_cannot_hold_is_refused(self):
        with self.assertRaisesRegex(swinq.ArgumentError, "has no quantized and no prepared Swin; call swinq.torch.quantize"):
            swinq.torch.save(small(), self.folder / "saved")
        model = quantized()
        model.register_buffer("sparse", torch.eye(3).to_sparse())
        with self.assertRaisesRegex(swinq.ArgumentError, "`sparse` of its state dictionary is a Tensor of float32, sparse_coo"):
            swinq.torch.save(model, self.folder / "saved")
        del model.sparse
        model.conv = type("Counting", (torch.nn.Conv2d,), {"get_extra_state": lambda self: {"step": 1}})(3, 3, 1)
        with self.assertRaisesRegex(swinq.ArgumentError, "`conv._extra_state` of its state dictionary is a dict"):
            swinq.torch.save(model, self.folder / "saved")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_copies_and_options(self):
        model = swinq.torch.quantize(small(), [X], threads=2, backend="cpu").model
        swinq.torch.save(model, self.folder / "saved")
        loaded = swinq.torch.load(small(1), self.folder / "saved")
        self.assertEqual((loaded.backbone._backend, loaded.backbone._options), ("cpu", {"threads": 2}))
        changed = swinq.torch.load(small(1), self.folder / "saved", backend="auto", threads=1)
        self.assertEqual((changed.backbone._backend, changed.backbone._options), ("auto", {"threads": 1}))
        copied = copy.deepcopy(changed)
        torch.save(copied, self.folder / "pickled")
        for program in (loaded, changed, copied, torch.load(self.folder / "pickled", weights_only=False)):
            self.assert_equal(values(program, X), values(model, X))
            with self.assertRaisesRegex(swinq.ArgumentError, "float parameters of `backbone` are missing"):
                swinq.torch.restore(program)
        whole = swinq.torch.load(small(0), self.folder / "saved")
        self.assert_equal(values(swinq.torch.restore(whole), X), values(small(0), X))
        with self.assertRaisesRegex(swinq.ArgumentError, "did you mean threads"):
            swinq.torch.load(small(1), self.folder / "saved", thread=1)


class Training(Case):
    def test_a_training_that_is_stopped_ends_in_a_fresh_process_with_the_same_bits(self):
        expected = {}
        for name, optimizer_of in OPTIMIZERS.items():
            for stop in (STOP, STEPS):
                program = swinq.torch.prepare(small(), [X], learned="all", drop_path=0.2).model
                optimizer = optimizer_of(program.parameters())
                begin = {key: value.clone() for key, value in program.state_dict().items()}
                train(program, optimizer, range(stop))
                if stop == STOP:
                    swinq.torch.save(program, self.folder / name)
                    torch.save(optimizer.state_dict(), self.folder / f"{name}.pt")
            expected[name] = program.state_dict()
            changed = [key for key, value in expected[name].items() if not torch.equal(value, begin[key])]
            for ending in (".qkv.weight", ".qkv.weight.ratio"):
                self.assertTrue(any(key.endswith(ending) for key in changed), f"{name}: {ending}")
        in_a_fresh_process("training", self.folder, OPTIMIZERS)
        for name, state in expected.items():
            found = torch.load(self.folder / f"{name}.out")
            self.assertEqual(found.keys(), state.keys())
            for key, value in state.items():
                self.assertTrue(torch.equal(found[key], value), f"{name}: {key}")

    def test_a_training_resumes_with_the_same_bits(self):
        for learned in ("none", "all"):
            with self.subTest(learned):
                first = swinq.torch.prepare(small(), [X], learned=learned, drop_path=0.0).model
                optimizer = torch.optim.AdamW(first.parameters(), lr=1e-3)
                train(first, optimizer, range(3))
                swinq.torch.save(first, self.folder / learned)
                resumed = swinq.torch.load(small(1), self.folder / learned)
                other = torch.optim.AdamW(resumed.parameters(), lr=1e-3)
                other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                self.assert_equal(values(resumed.eval(), X), values(first.eval(), X))
                for program, steps in ((first, optimizer), (resumed, other)):
                    train(program, steps, range(3, 6))
                self.assertEqual(first.state_dict().keys(), resumed.state_dict().keys())
                for name, tensor in first.state_dict().items():
                    self.assertTrue(torch.equal(resumed.state_dict()[name], tensor), name)
                converted = [swinq.torch.convert(program.eval()) for program in (first, resumed)]
                self.assert_equal(values(converted[1], X), values(converted[0], X))
                self.assertIs(swinq.torch.restore(converted[1]), resumed)

    def test_arguments_of_prepare_are_kept(self):
        model = swinq.torch.prepare(small(), [X], learned="weights", drop_path=0.25, checkpointing=True).model
        swinq.torch.save(model, self.folder / "saved")
        loaded = swinq.torch.load(small(1), self.folder / "saved").backbone
        self.assertEqual((loaded._learned, loaded._drop_path, loaded.checkpointing), ("weights", 0.25, True))
        self.assertEqual(len(swinq.torch.scales(loaded)), len(swinq.torch.scales(model)))
        for one, other in zip(swinq.torch.scales(loaded), swinq.torch.scales(model), strict=True):
            self.assertEqual(one.requires_grad, other.requires_grad)


class KeepFloat(Case):
    """Folders of transformers without the float parameters of the Swins."""

    def check(self, name, kind):
        x, float_folder = images_for(name), self.folder / f"{name} float"
        made(name).save_pretrained(float_folder)
        config = SwinqConfig(calibrate=[x], keep_float=False)
        model = kind.from_pretrained(float_folder, quantization_config=config)
        expected = values(model, x)
        for shards in ("5GB", "300KB"):
            folder = self.folder / f"{name} {shards}"
            model.save_pretrained(folder, max_shard_size=shards)
            size, of_float = (sum(path.stat().st_size for path in each.glob("*.safetensors")) for each in (folder, float_folder))
            self.assertLess(size, of_float)
            again, found = kind.from_pretrained(folder, output_loading_info=True)
            self.assertEqual((set(found["missing_keys"]), set(found["unexpected_keys"])), (set(), set()))
            self.assert_equal(values(again, x), expected)
            for undo in (swinq.torch.restore, lambda model: model.dequantize()):
                with self.assertRaisesRegex(swinq.ArgumentError, "the float parameters of .* are missing.*Open the float model"):
                    undo(again)
                self.assert_equal(values(again, x), expected)
        # A second folder has the same files.
        again.save_pretrained(self.folder / "again", max_shard_size="300KB")
        for path in folder.iterdir():
            self.assertEqual((self.folder / "again" / path.name).read_bytes(), path.read_bytes(), path.name)
        exact = values(kind.from_pretrained(float_folder), x)
        self.assert_equal(values(swinq.torch.restore(model), x), exact)
        # swinq.torch.load into a float model with these parameters gives them back.
        swinq.torch.save(again, self.folder / f"{name} saved")
        whole = swinq.torch.load(kind.from_pretrained(float_folder), self.folder / f"{name} saved")
        self.assert_equal(values(whole, x), expected)
        self.assert_equal(values(swinq.torch.restore(whole), x), exact)

    def test_a_program_with_a_backbone(self):
        self.check("UPerNet", transformers.UperNetForSemanticSegmentation)

    def test_a_model_that_is_a_swin(self):
        self.check("transformers", transformers.AutoModelForImageClassification)


class Checkpoints(Case):
    def setUp(self):
        super().setUp()
        self.model = quantized()
        self.file = self.folder / "backbone.int8.safetensors"
        self.model.backbone.model.save(self.file)

    def test_a_checkpoint_takes_the_place_of_a_named_module(self):
        program = small()
        program.other = randomise(of_timm(**OPTIONS))
        report = swinq.torch.replace(program, {"backbone": self.file})
        self.assertGreater(min(report.replaced[0].sqnr_db.values()), 20)
        self.assert_equal(values(program, X), values(self.model, X))
        self.assertNotIsInstance(program.other, swinq.torch.SwinModule)
        self.assert_equal(values(swinq.torch.restore(program), X), values(small(), X))
        alone = swinq.torch.replace(small().backbone, {"": swinq.open(self.file)}, backend="cpu", threads=1).model
        self.assert_equal(values(alone, X), values(self.model, X))

    def test_calls_show_the_arguments(self):
        program = made("DPT")
        x = images_for("DPT")
        model = swinq.torch.quantize(made("DPT"), [x]).model
        model.backbone.model.save(self.file)
        swinq.torch.replace(program, {"backbone": self.file}, calls=[x])
        self.assert_equal(values(program, x), values(model, x))

    def test_mistakes_are_named(self):
        def refuse(program, checkpoints, message, kind=swinq.ArgumentError):
            with self.assertRaisesRegex(kind, message):
                swinq.torch.replace(program, checkpoints)
            self.assertNotIsInstance(getattr(program, "backbone", None), swinq.torch.SwinModule)

        refuse(small(), {"module.backbone": self.file}, "Inside has no Swin in float as `module.backbone`; its Swins are `backbone`")
        refuse(small(), {}, "checkpoints: is no dictionary")
        refuse(torch.nn.Linear(1, 1), {"": self.file}, "Linear has no Swin in float as the model itself; It contains no Swin")
        refuse(small(embed_dim=96), {"backbone": self.file}, "for `backbone`: `embed_dim` is 48 in the file, and 96", swinq.ModelError)
        refuse(small(), {"backbone": self.folder / "none"}, "none", swinq.NotFoundError)
        swinq.open(small().backbone).save(self.folder / "float.safetensors")
        refuse(small(), {"backbone": self.folder / "float.safetensors"}, "is in float; quantize it by swinq calibrate")
        with self.assertWarnsRegex(UserWarning, "only .* dB of signal to noise against the module"):
            warnings.simplefilter("always")
            swinq.torch.replace(small(4), {"backbone": self.file})
        with self.assertRaisesRegex(swinq.ArgumentError, "run on the engine already"):
            swinq.torch.replace(self.model, {"backbone": self.file})


if __name__ == "__main__":
    unittest.main()
