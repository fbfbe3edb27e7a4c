"""Folders of saved models: in other models, in processes that are killed, damaged, and written with intent."""

import dataclasses
import json
import os
import re
import signal
import sys
import time
import unittest
from unittest import mock

from needed import need

need("timm", "torch", "transformers")

import torch
from torch_models import of_timm
from torch_saved import Case, X, quantized, small, values
from torch_support import Inside

import swinq.torch
from swinq._saving import folders, index


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
        self.follow(small(1), wrapped.module.inner, "model")
        # A Swin alone, and inside of a program.
        self.saved = self.folder / "alone"
        swinq.torch.save(quantized().backbone, self.saved)
        self.follow(small(1), quantized(), "model")
        self.saved = self.folder / "inside"
        swinq.torch.save(quantized(), self.saved)
        self.follow(small(1).backbone, quantized(), "found")
        # Of another architecture, which no call would take.
        self.check(small(embed_dim=96).backbone, "has no module of this name; its Swins are the model itself, .*Build the model as it was when")

    def follow(self, model, expected, name):
        """Does what the message says; then ``name`` gives the values of a model."""
        with self.assertRaises(swinq.ModelError) as caught:
            swinq.torch.load(model, self.saved)
        call = re.search(r"call (.*)$", str(caught.exception))[1]
        names = {"swinq": swinq, "torch": torch, "model": model}
        exec(call if " = " in call else f"found = {call}", names)
        self.assert_equal(values(names[name].eval(), X), values(expected, X))


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
        for step in ("safetensors.write", "save.write_index", "folders._synchronize", "folders._put"):
            with self.subTest(step), mock.patch(f"swinq._saving.{step}", side_effect=OSError("no space")):
                with self.assertRaisesRegex(swinq.FileError, "saved: cannot be written: no space"):
                    swinq.torch.save(self.second, self.saved)
                self.assertEqual((self.check(), [path.name for path in self.folder.iterdir()]), (0, ["saved"]))

    def test_a_system_that_cannot_exchange_folders(self):
        with mock.patch.object(folders, "_exchange", return_value=False):
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
        content["hash"] = index._hash_of_index(content)
        (self.saved / "swinq.json").write_text(json.dumps(content))

    def swin(self, **changes):
        self.write(swins=[{**self.index["swins"][0], **changes}])

    def renew(self, name, data):
        """A file with other bytes, whose hash the index has."""
        (self.saved / name).write_bytes(data)
        entry = dataclasses.asdict(index.SavedFile(len(data), index.hash_of(data)))
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
        deep = None
        for _ in range(300):
            deep = {"kind": "list", "parts": [[0, deep]]}
        self.swin(outputs=deep)
        self.refuse("does not give the outputs|is no JSON|recursion")
        for changes in ({"backend": "tpu"}, {"options": {"wrong": 1}}, {"options": {"threads": "2"}}, {"state": "prepared", "learned": "x"}, {"state": "prepared", "drop_path": 2.0}):
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


if __name__ == "__main__":
    unittest.main()
