"""Models as folders: saved, loaded in a fresh process with the same bits, killed while they are saved, and damaged."""

import copy
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from pathlib import Path
from unittest import mock

from needed import need

need("timm", "torch", "transformers", "safetensors.torch")

import torch
import transformers
from safetensors.torch import load_file
from torch_models import of_timm, randomise
from torch_saved import MADE, images_for, made, values
from torch_support import Inside

import swinq.torch
from swinq import _folder, _torch_folder
from swinq.transformers import SwinqConfig, attach

HERE = Path(__file__).resolve().parent
OPTIONS = {"img_size": 64, "window_size": 4, "depths": [1, 1], "features_only": True, "out_indices": (0, 1)}


def small(seed=0, **options):
    """A small program with random weights."""
    return randomise(Inside(of_timm(**{**OPTIONS, **options})), seed)


X = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))


def quantized(program=None, x=X):
    return swinq.torch.quantize(program or small(), [x]).model


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        warnings.simplefilter("ignore")
        transformers.utils.logging.set_verbosity_error()
        self.addCleanup(transformers.utils.logging.set_verbosity_warning)

    def assert_equal(self, found, expected):
        self.assertEqual(len(found), len(expected))
        self.assertGreater(len(found), 0)
        for one, other in zip(found, expected, strict=True):
            self.assertEqual((one.shape, one.dtype, one.stride()), (other.shape, other.dtype, other.stride()))
            self.assertTrue(torch.equal(one, other))


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
        done = subprocess.run([sys.executable, "torch_saved.py", str(self.folder), *MADE], cwd=HERE, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
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
    def steps(self, program, optimizer, count):
        generator = torch.Generator().manual_seed(0)
        for _ in range(count):
            program.train()
            loss = sum(value.square().mean() for value in program(torch.randn(2, 3, 64, 64, generator=generator)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def test_a_training_resumes_with_the_same_bits(self):
        for learned in ("none", "all"):
            with self.subTest(learned):
                first = swinq.torch.prepare(small(), [X], learned=learned, drop_path=0.0).model
                optimizer = torch.optim.AdamW(first.parameters(), lr=1e-3)
                self.steps(first, optimizer, 3)
                swinq.torch.save(first, self.folder / learned)
                resumed = swinq.torch.load(small(1), self.folder / learned)
                other = torch.optim.AdamW(resumed.parameters(), lr=1e-3)
                other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                self.assert_equal(values(resumed.eval(), X), values(first.eval(), X))
                for program, steps in ((first, optimizer), (resumed, other)):
                    self.steps(program, steps, 3)
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


class OtherModels(Case):
    """A folder in a model of other code."""

    def setUp(self):
        super().setUp()
        self.saved = self.folder / "saved"
        swinq.torch.save(quantized(), self.saved)

    def check(self, model, message, kind=swinq.ModelError):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        modules = dict(model.named_modules())
        with self.assertRaisesRegex(kind, message):
            swinq.torch.load(model, self.saved)
        self.assertEqual(dict(model.named_modules()), modules)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]))

    def test_each_difference_has_its_name(self):
        self.check(Inside(of_timm(img_size=64, window_size=4, num_classes=5)), "has a FeatureListNet of timm as `backbone`, and Inside has a SwinT")
        self.check(Inside(torch.nn.Identity()), "as `backbone`, and Inside has a Identity there; it has no Swin")
        self.check(small(embed_dim=96), r"backbone.int8.safetensors, for `backbone`: `embed_dim` is 48 in the file, and 96 in the module")
        self.check(small(depths=[1, 2]), r"`depths` is \[1, 1\] in the file, and \[1, 2\]")
        self.check(small(out_indices=(0,)), "`outputs` is ")
        other = small()
        other.conv = torch.nn.Conv2d(3, 5, 1)
        self.check(other, r"`conv.weight` is \[3, 3, 1, 1\], and \[5, 3, 1, 1\] in Inside; build the model as it was")
        other = small()
        other.more = torch.nn.Linear(1, 1)
        self.check(other, r"has no `more.weight`, which Inside has \(2 and 0 such tensors\)")
        other = small()
        del other.conv
        self.check(other, r"has `conv.bias`, which Inside has not")
        self.check(torch.nn.Linear(1, 1), "Linear has no module of this name; it has no Swin")
        self.check(quantized(), r"is no float model. Its Swins \(backbone\) run on the engine.*swinq.torch.restore", swinq.ArgumentError)
        self.check(torch.nn.DataParallel(small()), "is wrapped by DataParallel; load the folder into the model itself", swinq.ArgumentError)
        with self.assertRaisesRegex(swinq.ArgumentError, "on the device meta"):
            swinq.torch.load(small().to("meta"), self.saved)
        with self.assertRaisesRegex(swinq.ArgumentError, "a dict is no torch.nn.Module"):
            swinq.torch.load({}, self.saved)

    def test_remedies_for_module_paths_work(self):
        model = torch.nn.Module()
        model.module = small(1)
        self.check(model, "Module has no module of this name, but one as `module.backbone`")
        swinq.torch.load(model.module, self.saved)
        wrapped = torch.nn.Module()
        wrapped.module = torch.nn.Module()
        wrapped.module.inner = quantized()
        self.saved = self.folder / "wrapped"
        swinq.torch.save(wrapped, self.saved)
        model = small(1)
        with self.assertRaises(swinq.ModelError) as caught:
            swinq.torch.load(model, self.saved)
        call = re.search(r"call (swinq.torch.load\(.*\))", str(caught.exception))[1]
        loaded = eval(call, {"swinq": swinq, "torch": torch, "model": model})
        self.assertIs(loaded["module"]["inner"], model)
        self.assert_equal(values(model.eval(), X), values(wrapped.module.inner, X))


class Kills(Case):
    def setUp(self):
        super().setUp()
        self.saved = self.folder / "saved"
        self.first, self.second = quantized(small(0)), quantized(small(5))
        swinq.torch.save(self.first, self.saved)
        self.expected = [values(model, X) for model in (self.first, self.second)]

    def check(self):
        """The folder is whole; the number of the model in it."""
        found = values(swinq.torch.load(small(1), self.saved), X)
        same = [all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)) for expected in self.expected]
        self.assertIn(True, same)
        return same.index(True)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_kill_leaves_the_older_folder_or_the_new_one(self):
        start = time.monotonic()
        swinq.torch.save(self.first, self.saved)
        duration, kills = time.monotonic() - start, int(os.environ.get("SWINQ_KILLS", "8"))
        for kill in range(kills):
            before, inode = self.check(), self.saved.stat().st_ino
            process = os.fork()
            if process == 0:
                swinq.torch.save((self.second, self.first)[before], self.saved)
                time.sleep(60)
            end = time.monotonic() + (60 if kill == kills - 1 else duration * (kill % 8) / 4)
            while time.monotonic() < end and self.saved.stat().st_ino == inode:
                time.sleep(duration / 500)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            self.assertEqual(self.check() != before, self.saved.stat().st_ino != inode)
        # The last one was killed after it had put the new folder there.
        self.assertNotEqual(self.saved.stat().st_ino, inode)
        # The next one removes what the killed ones left.
        swinq.torch.save(self.second, self.saved)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["saved"])
        self.assertEqual(self.check(), 1)

    def test_each_step_may_fail(self):
        for step in ("_torch_tensors.write", "write_index", "_folder._synchronize", "_folder._put"):
            place = "_torch_save" if step == "write_index" else step.rpartition(".")[0]
            with self.subTest(step), mock.patch(f"swinq.{place}.{step.rpartition('.')[2]}", side_effect=OSError("no space")):
                with self.assertRaisesRegex(swinq.FileError, "saved: cannot be written: no space"):
                    swinq.torch.save(self.second, self.saved)
                self.assertEqual((self.check(), [path.name for path in self.folder.iterdir()]), (0, ["saved"]))

    def test_a_system_that_cannot_exchange_folders(self):
        with mock.patch.object(_folder, "_exchange", return_value=False):
            swinq.torch.save(self.second, self.saved)
        self.assertEqual((self.check(), [path.name for path in self.folder.iterdir()]), (1, ["saved"]))
        self.saved.rename(self.folder / ".saved.old")
        with self.assertRaisesRegex(swinq.NotFoundError, r"saved: is no folder.*/\.saved\.old is its older state"):
            self.check()

    def test_folders_of_others_stay(self):
        (self.saved / "optimizer.pt").write_text("")
        with self.assertRaisesRegex(swinq.ArgumentError, "also has `optimizer.pt`, which save did not write and would remove"):
            swinq.torch.save(self.second, self.saved)
        other = self.folder / "other"
        other.mkdir()
        swinq.torch.save(self.second, other)
        (other / "swinq.json").write_text("{}")
        with self.assertRaisesRegex(swinq.ArgumentError, "Remove this folder to save there"):
            swinq.torch.save(self.second, other)
        (other / "swinq.json").unlink()
        with self.assertRaisesRegex(swinq.ArgumentError, "is a folder of something else, without swinq.json"):
            swinq.torch.save(self.second, other)
        with self.assertRaisesRegex(swinq.NotFoundError, "missing: does not exist; make this folder first"):
            swinq.torch.save(self.second, self.folder / "missing/saved")
        with self.assertRaisesRegex(swinq.ArgumentError, "is a file"):
            swinq.torch.save(self.second, other / "rest.safetensors")
        self.assertTrue((self.saved / "optimizer.pt").exists())


class Hostile(Case):
    """Folders that are damaged, or written with intent."""

    def setUp(self):
        super().setUp()
        self.saved = self.folder / "saved"
        swinq.torch.save(quantized(), self.saved)
        self.index = json.loads((self.saved / "swinq.json").read_text())

    def refuse(self, message, kind=swinq.ModelError):
        model = small(1)
        with self.assertRaisesRegex(kind, message):
            swinq.torch.load(model, self.saved)
        for name, value in small(1).state_dict().items():
            self.assertTrue(torch.equal(model.state_dict()[name], value), name)

    def write(self, **changes):
        """The index with changes, and the hash of it."""
        content = {name: value for name, value in {**self.index, **changes}.items() if name != "hash"}
        content["hash"] = _torch_folder._hash_of_index(content)
        (self.saved / "swinq.json").write_text(json.dumps(content))

    def swin(self, **changes):
        self.write(swins=[{**self.index["swins"][0], **changes}])

    def renew(self, name, data):
        """A file with other bytes, whose hash the index has."""
        (self.saved / name).write_bytes(data)
        entry = dataclasses.asdict(_torch_folder.SavedFile(len(data), _torch_folder.hash_of(data)))
        self.write(files={**self.index["files"], name: entry})

    def test_damaged_files_have_their_names(self):
        for name in ("backbone.int8.safetensors", "rest.safetensors", "swinq.json"):
            path = self.saved / name
            data = path.read_bytes()
            with self.subTest(name):
                path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
                self.refuse(rf"{name}: (has not the hash|is no JSON)")
                path.write_bytes(data[: len(data) // 2])
                self.refuse(rf"{name}: (has \d+ bytes, where|is no JSON)")
                path.unlink()
                self.refuse(rf"{name}: does not exist", swinq.NotFoundError)
            path.write_bytes(data)
        swinq.torch.load(small(1), self.saved)

    def test_files_whose_hash_was_written_with_intent(self):
        for name, message in (("rest", "rest.safetensors: is no file of safetensors"), ("backbone.int8", "backbone.int8.safetensors, for `backbone`: ")):
            path = self.saved / f"{name}.safetensors"
            data = path.read_bytes()
            self.renew(path.name, b"\xff" * 100)
            self.refuse(message)
            self.renew(path.name, data)
        swinq.torch.load(small(1), self.saved)

    def test_nothing_outside_is_read(self):
        secret = self.folder / "secret.safetensors"
        secret.write_bytes((self.saved / "rest.safetensors").read_bytes())
        files = self.index["files"]
        for name in ("../secret.safetensors", str(secret), "a/b", "..\\secret", "C:secret", "..", "", ".hidden", "nul", "COM1.txt", "a\0b", "\u00fc"):
            with self.subTest(name):
                self.write(files={**files, name: files["rest.safetensors"]})
                self.refuse("names the file .* no plain name")
                self.swin(file=name)
                self.refuse("names the file .* and not its hash")
        self.write()
        for name in ("rest.safetensors", "backbone.int8.safetensors", "swinq.json"):
            path, data = self.saved / name, (self.saved / name).read_bytes()
            secret.write_bytes(data)
            path.unlink()
            path.symlink_to(secret)
            self.refuse(f"{name}: is a link or no file")
            path.unlink()
            os.mkfifo(path)
            self.refuse(f"{name}: is a link or no file")
            path.unlink()
            path.write_bytes(data)
        swinq.torch.load(small(1), self.saved)

    def test_nothing_is_executed(self):
        outputs = self.index["swins"][0]["outputs"]
        for kind in ("os.system", "subprocess.Popen", "builtins.eval", "antigravity.x", "torch.nn.modules.linear.Linear", 7, ["x"], None):
            self.swin(outputs={**outputs, "kind": kind})
            self.refuse("is no class of outputs")
        self.assertNotIn("antigravity", sys.modules)
        for wrong in ({}, [], {"output": "stage9", "layout": "NHWC"}, {"output": "stage1", "layout": []}, {"kind": "list", "parts": [[1]]}):
            self.swin(outputs=wrong)
            self.refuse("describes no output|is no part of|does not give the outputs")
        self.swin(arguments={"x": {"class": "antigravity.y"}})
        self.refuse("is no class of outputs or arguments")
        self.swin(arguments={"wrong": 1})
        self.refuse("calls it with `wrong`, which its forward does not take")

    def test_other_values_in_the_index(self):
        self.write(version=2, written_by="9.9.9", more=1)
        self.refuse(r"has version 2 of the format, written by swinq 9.9.9.*reads up to 1; install swinq 9.9.9 or newer")
        self.write(format="other")
        self.refuse("does not say that swinq.torch.save wrote it")
        self.write(more=1)
        self.refuse("has other keys than")
        for changes in ({"names": "backbone"}, {"names": []}, {"state": "x"}, {"bytes": 1}, {"drop_path": 1}, {"options": None}):
            self.swin(**changes)
            self.refuse("swinq.json: .*; copy the folder or save the model again")
        for changes in ({"backend": "tpu"}, {"options": {"wrong": 1}}, {"state": "prepared", "learned": "x"}, {"state": "prepared", "drop_path": 2.0}):
            self.swin(**changes)
            self.refuse("backbone.int8.safetensors, for `backbone`: ")
        self.write(swins=self.index["swins"] * 2)
        self.refuse("has two Swins for one module")
        self.write(tied={"conv.weight": "conv.bias"})
        self.refuse("has no `conv.bias`, or has `conv.weight` twice")
        (self.saved / "swinq.json").write_text("[" * 100000)
        self.refuse("swinq.json: is no JSON")
        self.saved = self.folder / "missing"
        self.refuse("is no folder; give the one that swinq.torch.save has written", swinq.NotFoundError)


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
