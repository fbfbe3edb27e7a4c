"""Models, engines, predictions and exceptions. The tests need numpy only."""

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from support import MICRO, PHOTO, ROOT, SAMPLES, Quantized, noise, normalised

import swinq


class Logits(Quantized):
    def test_floats_and_bytes_of_the_same_images_have_the_same_logits(self):
        pixels = noise(self.int8, 5)
        expected = self.int8(pixels)
        self.assertEqual((expected.shape, expected.dtype), ((5, 10), np.float32))
        self.assertGreater(np.ptp(expected), 0.1)
        values = normalised(pixels, self.int8)
        np.testing.assert_array_equal(self.int8(values), expected)
        np.testing.assert_array_equal(self.int8(values, layout="NCHW"), expected)
        np.testing.assert_array_equal(self.int8(values.transpose(0, 2, 3, 1), layout="NHWC"), expected)
        np.testing.assert_array_equal(self.int8(pixels.transpose(0, 3, 1, 2), layout="NCHW"), expected)
        np.testing.assert_array_equal(self.int8(pixels, layout="NHWC"), expected)

    def test_floats_need_not_be_pixels(self):
        # Neither in the range nor at the steps of 8-bit pixels, and halves have the logits of the floats that they are.
        rng = np.random.default_rng(3)
        halves = rng.normal(0, 2, (5, 3, 56, 112)).astype(np.float16)
        for model in (self.float, self.int8):
            found = model(halves)
            self.assertEqual((found.shape, found.dtype), ((5, 10), np.float32))
            self.assertGreater(np.ptp(found, axis=0).max(), 0.01)
            np.testing.assert_array_equal(model(halves.astype(np.float32)), found)
            np.testing.assert_array_equal(model(halves.transpose(0, 2, 3, 1), layout="NHWC"), found)
            np.testing.assert_array_equal(model.engine(threads=2, max_batch=1).run(halves)["logits"], found)
            other = model(halves.astype(np.float32) * 1.25)
            self.assertGreater(np.abs(other - found).max(), 0.01)

    def test_arrays_that_are_not_contiguous_are_read_right(self):
        pixels = noise(self.int8, 6)
        np.testing.assert_array_equal(self.int8(pixels[::2]), self.int8(pixels)[::2])

    def test_read_only_and_empty_batches(self):
        pixels = noise(self.int8, 2)
        expected = self.int8(pixels)
        pixels.flags.writeable = False
        np.testing.assert_array_equal(self.int8(pixels), expected)
        self.assertEqual(self.int8(pixels[:0]).shape, (0, 10))
        self.assertEqual(self.int8(normalised(pixels, self.int8)[:0]).shape, (0, 10))

    def test_wrong_arrays_are_refused(self):
        pixels = noise(self.int8, 1)
        for wrong in [pixels[0], pixels[..., :1], pixels.transpose(0, 3, 1, 2)]:
            with self.assertRaisesRegex(swinq.ArgumentError, r"the model takes uint8 \[n, height, width, 3\], or with layout=\"NCHW\""):
                self.int8(wrong)
        values = normalised(noise(self.int8, 40), self.int8)
        with self.assertRaisesRegex(swinq.ArgumentError, r"the model takes float32 \[n, 3, height, width\], or with layout=\"NHWC\""):
            self.int8(values.transpose(0, 2, 3, 1))
        for dtype in (np.float64, np.int16, np.dtype(np.float32).newbyteorder(">"), bool):
            with self.assertRaisesRegex(swinq.ArgumentError, "the model takes uint8, float16 and float32"):
                self.int8(values.astype(dtype))
        for wrong, way in [
            (values.astype(np.float64), r"images\.astype\(numpy\.float32\)"),
            (noise(self.int8, 1).astype(np.int64), r"images\.astype\(numpy\.uint8\) for pixels of 0 to 255"),
            ("cat.png", "a str is no array of pixels; `predict` takes files"),
            (None, "a NoneType is no array of pixels"),
        ]:
            with self.assertRaisesRegex(swinq.ArgumentError, way):
                self.int8(wrong)
        with self.assertRaisesRegex(swinq.ArgumentError, r"the model takes float32 \[n, 3, height, width\]$"):
            self.int8(values.transpose(0, 2, 3, 1), layout="NCHW")
        for memory, problem in [
            (np.empty((40, 10)), "`logits` is float64; give float32 or float16"),
            (np.empty((10, 40), np.float32).T, "`logits` must be contiguous memory that can be written"),
            (np.broadcast_to(np.float32(0), (40, 10)), "`logits` must be contiguous memory that can be written"),
        ]:
            with self.assertRaisesRegex(swinq.ArgumentError, problem):
                self.int8.engine(threads=1).run(values, out={"logits": memory})
        with self.assertRaisesRegex(swinq.ArgumentError, "max_batch: is 0; it must be at least 1"):
            self.int8.engine(max_batch=0)
        with self.assertRaisesRegex(swinq.ArgumentError, "layout: `CHWN` is unknown; give NHWC or NCHW"):
            self.int8(values, layout="CHWN")
        # The last image is in another batch than the first.
        for number, text in [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")]:
            values[38, 1, 2, 3] = number
            for given in (values, values.astype(np.float16)):
                with self.assertRaisesRegex(
                    swinq.ArgumentError, f"image 38 of the batch: the pixel at row 2, column 3 is {text} in channel 1"
                ):
                    self.int8(given)

    def test_float_and_quantized_models_agree(self):
        pixels = noise(self.int8, 8)
        exact, coded = self.float(pixels), self.int8(pixels)
        self.assertFalse(np.array_equal(exact, coded))
        self.assertLess(np.abs(exact - coded).max(), 0.2 * np.abs(exact).max())

    def test_threads_with_engines_of_their_own_give_the_same_logits(self):
        pixels = noise(self.int8, 4)
        expected, found = self.int8(pixels), {}

        def work(index):
            engine = self.int8.engine(threads=1, backend="cpu")
            found[index] = [engine(pixels) for _ in range(5)]

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(found), 8)
        for logits in sum(found.values(), []):
            np.testing.assert_array_equal(logits, expected)

    def test_other_threads_run_while_an_engine_works(self):
        engine, pixels = self.int8.engine(threads=1, backend="cpu"), noise(self.int8, 512)
        counted, done = 0, threading.Event()
        thread = threading.Thread(target=lambda: (engine(pixels), done.set()))
        # Without a switch of threads inside the interpreter, only a released lock lets this thread go on.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        try:
            thread.start()
            while not done.is_set() and counted < 10_000_000:
                counted += 1
        finally:
            sys.setswitchinterval(interval)
        thread.join()
        self.assertGreater(counted, 1000)


class Models(Quantized):
    def test_a_saved_model_has_the_same_logits(self):
        pixels = noise(self.int8, 2)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "q.safetensors"
            self.int8.save(path)
            opened = swinq.open(path)
        np.testing.assert_array_equal(opened(pixels), self.int8(pixels))
        self.assertTrue(opened.is_quantized)
        self.assertEqual((opened.recipe, opened.config, opened.labels), ("default", self.int8.config, self.int8.labels))

    def test_the_sites_are_a_table(self):
        sites = {site.name: site for site in self.int8.sites}
        weight = sites["layers.0.blocks.0.attn.qkv.weight"]
        self.assertEqual((weight.quantized, weight.bits, weight.kind, weight.granularity), (True, 8, "s8", "channel"))
        self.assertFalse(sites["head.weight"].quantized)
        inputs = [sites[f"layers.0.blocks.0.{name}.input"].granularity for name in ("attn.qkv", "mlp.fc2")]
        self.assertEqual((inputs, weight.amax, weight.scale), (["tensor", "channel"], None, None))
        ranged = [site for site in sites.values() if site.amax is not None]
        self.assertTrue(ranged)
        for site in ranged:
            self.assertAlmostEqual(site.scale, site.amax / 127, delta=1e-6 * site.amax)
        self.assertFalse(any(site.quantized for site in self.float.sites))

    def test_a_state_dictionary_is_the_same_model(self):
        pixels = noise(self.float, 2)
        state = state_of(MICRO / "model.safetensors")
        model = swinq.open(state, cfg=str(MICRO / "cfg.yaml"))
        np.testing.assert_array_equal(model(pixels), self.float(pixels))
        wide = {name: tensor.astype(np.float64) for name, tensor in state.items()}
        np.testing.assert_array_equal(swinq.open(wide, cfg=str(MICRO / "cfg.yaml"))(pixels), self.float(pixels))
        name = next(name for name in state if name.endswith("fc1.weight"))
        del state[name]
        with self.assertRaisesRegex(swinq.ModelError, name):
            swinq.open(state, cfg=str(MICRO / "cfg.yaml"))

    def test_a_module_of_microsoft_describes_itself(self):
        pixels = noise(self.float, 2)
        module = as_microsoft(state_of(MICRO / "model.safetensors"))
        cropped = swinq.open(module)
        self.assertEqual(cropped.preprocessing["resize"], {"shorter_side": 64})
        model = swinq.open(module, preprocessing=self.float.preprocessing)
        self.assertEqual(model.preprocessing, self.float.preprocessing)
        self.assertEqual({**model.config, "name": self.float.name}, self.float.config)
        np.testing.assert_array_equal(model(pixels), self.float(pixels))
        with self.assertRaisesRegex(swinq.ModelError, "gives images of 32 pixels"):
            swinq.open(module, preprocessing={**self.float.preprocessing, "size": 32})
        with self.assertRaisesRegex(swinq.ArgumentError, "the activation `layers.0.blocks.0.mlp.act` is ReLU"):
            swinq.open(as_microsoft(state_of(MICRO / "model.safetensors"), "ReLU"))
        module.layers[0].blocks[0].window_size = 14
        with self.assertRaisesRegex(swinq.ModelError, "relative_position_bias_table"):
            swinq.open(module)

    def test_a_model_of_version_2_runs(self):
        model = swinq.open(random_swin_v2(), cfg=str(SAMPLES / "swinv2_micro_cifar10/cfg.yaml"))
        coded = swinq.quantize(model, noise(model, 4))
        pixels = noise(model, 2, seed=1)
        exact, found = model(pixels), coded(pixels)
        self.assertFalse(np.array_equal(exact, found))
        self.assertLess(np.abs(exact - found).max(), 0.2 * np.ptp(exact))

    def test_missing_files_are_errors_of_the_system(self):
        pixels = noise(self.float, 1)
        weights = MICRO / "model.safetensors"
        for call in [
            lambda: swinq.open("missing.safetensors"),
            lambda: swinq.open(weights, cfg="missing.yaml"),
            lambda: swinq.open(weights, cfg=str(MICRO / "cfg.yaml"), labels="missing.txt"),
            lambda: swinq.quantize(self.float, "missing"),
            lambda: swinq.quantize(self.float, ["missing.jpg"]),
            lambda: swinq.quantize(self.float, pixels, recipe="missing.yaml"),
            lambda: swinq.evaluate(self.int8, "missing"),
            lambda: self.int8.predict("missing.jpg"),
            lambda: self.int8.save("missing/q.safetensors"),
        ]:
            with self.assertRaisesRegex(FileNotFoundError, "missing.*([nN]o such file|os error 2|folder missing does not exist)") as caught:
                call()
            self.assertIsInstance(caught.exception, swinq.NotFoundError)

    def test_truncated_files_have_one_wording(self):
        wording = ".safetensors: is a truncated or damaged safetensors file .*; copy or download it again"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cut.safetensors"
            self.int8.save(path)
            for file in (path.read_bytes(), (MICRO / "model.safetensors").read_bytes()):
                path.write_bytes(file[:-1000])
                with self.assertRaisesRegex(ValueError, wording) as caught:
                    swinq.open(path, cfg=str(MICRO / "cfg.yaml"))
                self.assertIsInstance(caught.exception, swinq.ModelError)

    def test_errors_are_those_of_the_program(self):
        with self.assertRaisesRegex(swinq.NotFoundError, "no such file or folder") as caught:
            swinq.open("missing.safetensors")
        self.assertIsInstance(caught.exception, FileNotFoundError)
        with self.assertRaisesRegex(swinq.ModelError, "safetensors"):
            swinq.open(PHOTO)
        with self.assertRaisesRegex(swinq.ArgumentError, "quantized already"):
            swinq.quantize(self.int8, noise(self.int8, 1))
        with self.assertRaisesRegex(swinq.ModelError, "default, mode1, mode2"):
            swinq.quantize(self.float, noise(self.float, 1), recipe="mode9")
        with self.assertRaisesRegex(swinq.ArgumentError, "backend"):
            self.int8.engine(backend="tpu")
        with self.assertRaisesRegex(swinq.ArgumentError, "neither a path"):
            swinq.open(3)


class Exports(Quantized):
    def test_an_export_is_the_file_of_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path, own, other = (Path(folder) / name for name in ("q.safetensors", "own.onnx", "other.onnx"))
            self.int8.save(path)
            model = swinq.open(path)
            self.assertRegex(" ".join(model.export(own)), "^zero points of mlp.fc2.input are")
            command = [sys.executable, "-m", "swinq", "export", str(path), "--onnx", str(other)]
            subprocess.run(command, check=True, capture_output=True)
            self.assertEqual(own.read_bytes(), other.read_bytes())
            remarks = model.export(own, opset=21, target="openvino", fp16=True, batch=2, probs="softmax", input="pixels")
            command += "--opset 21 --target openvino --fp16 --batch 2 --probs softmax --input pixels".split()
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stderr
            self.assertEqual(own.read_bytes(), other.read_bytes())
            self.assertTrue(remarks)
            for remark in remarks:
                self.assertIn(remark, printed)
            self.float.export(own)
            self.assertGreater(own.stat().st_size, 3 * other.stat().st_size)

    def test_options_that_contradict_are_refused(self):
        for options, problem in [
            ({"opset": 12}, "^opset: 12 is not supported; use 18 to 23$"),
            ({"opset": 18, "fp16": True}, "^fp16: f16 needs opset 19"),
            ({"target": "tensorrt", "probs": "exact"}, "^probs: exact needs"),
            ({"target": "tpu"}, "^target: `tpu` is none of ort, openvino, tensorrt$"),
            ({"probs": "fast"}, "^probs: `fast` is none of exact, softmax$"),
            ({"batch": 0}, "^batch: give a number of images"),
            ({"size": (64, 95)}, "^size: .* cannot process 64x95"),
            ({"size": "all"}, r"^size: `all` is no size; give \(height, width\)"),
        ]:
            with self.assertRaisesRegex(swinq.ArgumentError, problem):
                self.int8.export("never.onnx", **options)
        with self.assertRaises(swinq.NotFoundError):
            self.int8.export("no/such/folder/m.onnx")
        self.assertFalse(Path("never.onnx").exists())


class Predictions(Quantized):
    def test_files_have_the_classes_of_the_command(self):
        found = self.int8.predict(PHOTO, top_k=3)
        self.assertEqual((len(found), len(found[0])), (1, 3))
        self.assertEqual(found[0][0].label, "airplane")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "q.safetensors"
            self.int8.save(path)
            command = [sys.executable, "-m", "swinq", "predict", str(path), str(PHOTO), "--topk", "3", "--json"]
            printed = subprocess.run(command, check=True, capture_output=True, text=True)
        classes = json.loads(printed.stdout)[0]["topk"]
        self.assertEqual([c["class"] for c in classes], [c.index for c in found[0]])
        self.assertEqual([c["probability"] for c in classes], [c.probability for c in found[0]])

    def test_the_command_has_exit_codes(self):
        command = [sys.executable, "-m", "swinq", "inspect", "missing"]
        ended = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("missing", ended.stderr)
        version = subprocess.run([*command[:3], "--version"], capture_output=True, text=True)
        self.assertEqual((version.returncode, version.stdout), (0, f"swinq {swinq.__version__}\n"))

    def test_encoded_bytes_are_images(self):
        expected = self.int8.predict([PHOTO, PHOTO.with_suffix(".png")])
        files = [PHOTO.read_bytes(), PHOTO.with_suffix(".png").read_bytes()]
        for kind in (bytes, bytearray, memoryview):
            self.assertEqual(self.int8.predict([kind(file) for file in files]), expected)
        self.assertEqual(self.int8.predict(files[0]), expected[:1])
        with self.assertRaisesRegex(swinq.DataError, "image 1: truncated"):
            self.int8.predict([files[0], files[0][:-100]])
        with self.assertRaisesRegex(swinq.DataError, "image 0: not an image"):
            self.int8.predict(b"text")
        with self.assertRaisesRegex(swinq.ArgumentError, "mixed"):
            self.int8.predict([PHOTO, files[0]])
        with self.assertRaisesRegex(swinq.ArgumentError, "encoded, give tobytes"):
            self.int8.predict([np.frombuffer(files[0], np.uint8)])
        # Calibration takes them, too.
        encoded, path = (swinq.quantize(self.float, [image], ptq="basic") for image in (files[0], PHOTO))
        self.assertEqual(encoded.sites, path.sites)

    def test_orientation_and_channels_are_options(self):
        photograph = ROOT / "data/tests/fixtures/kind_turned.jpg"
        cfg = str(MICRO / "cfg.yaml")
        opened = {
            rules: swinq.open(MICRO / "model.safetensors", cfg=cfg, orientation=rules[0], channels=rules[1])
            for rules in [("exif", "rgb"), ("stored", "rgb"), ("stored", "bgr")]
        }
        self.assertEqual(opened["exif", "rgb"].preprocessing["orientation"], "exif")
        self.assertEqual(opened["stored", "bgr"].preprocessing["channel_order"], "bgr")
        self.assertEqual(opened["stored", "rgb"].preprocessing, self.float.preprocessing)
        found = {rules: model.predict(photograph) for rules, model in opened.items()}
        self.assertEqual(found["stored", "rgb"], self.float.predict(photograph))
        for rules, model in opened.items():
            self.assertEqual(model.predict(photograph.read_bytes()), found[rules])
            if rules != ("stored", "rgb"):
                self.assertNotEqual(found[rules], found["stored", "rgb"])
        picture = np.random.default_rng(1).integers(0, 256, (40, 60, 3), np.uint8)
        expected = opened["stored", "rgb"].predict(np.ascontiguousarray(picture[..., ::-1]))
        self.assertEqual(opened["stored", "bgr"].predict(picture), expected)
        with tempfile.TemporaryDirectory() as folder:
            quantized = swinq.quantize(opened["exif", "rgb"], SAMPLES / "cifar10", limit=4)
            quantized.save(Path(folder) / "int8.safetensors")
            again = swinq.open(Path(folder) / "int8.safetensors")
            self.assertEqual(again.preprocessing, opened["exif", "rgb"].preprocessing)
        for argument in ("orientation", "channels"):
            with self.assertRaisesRegex(swinq.ArgumentError, f"{argument}: `up` is neither"):
                swinq.open(MICRO / "model.safetensors", cfg=cfg, **{argument: "up"})

    def test_turned_files_are_named(self):
        photograph = ROOT / "data/tests/fixtures/kind_turned.jpg"
        model = swinq.open(MICRO / "model.safetensors", cfg=str(MICRO / "cfg.yaml"), orientation="exif")
        remark = "1 image was turned as the orientation in the file states: .*kind_turned.jpg"
        for call in (
            lambda: model.engine(backend="cpu").predict(photograph),
            lambda: swinq.quantize(model, [photograph, PHOTO], ptq="basic"),
            lambda: swinq.evaluate([model, model], [photograph, PHOTO], backend="cpu"),
        ):
            with self.assertWarnsRegex(UserWarning, remark) as caught:
                call()
            self.assertEqual(caught.filename, __file__)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.float.predict(photograph)
            model.predict(PHOTO)

    def test_images_of_pillow_are_turned(self):
        try:
            from PIL import Image, ImageOps
        except ImportError:
            self.skipTest("Pillow is not installed")
        photograph = ROOT / "data/tests/fixtures/kind_turned.jpg"
        model = swinq.open(MICRO / "model.safetensors", cfg=str(MICRO / "cfg.yaml"), orientation="exif")
        with Image.open(photograph) as image:
            turned = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
            self.assertEqual(model.predict(image), model.predict(photograph))
            self.assertEqual(self.float.predict(image), self.float.predict(np.asarray(image.convert("RGB"))))
        self.assertEqual(model.predict(turned), model.predict(photograph))

    def test_bad_images_are_refused(self):
        with self.assertRaises(swinq.DataError):
            self.int8.predict([str(MICRO / "cfg.yaml")])
        with self.assertRaisesRegex(swinq.ArgumentError, "top_k: is 0"):
            self.int8.predict(PHOTO, top_k=0)
        with self.assertRaises(swinq.Error):
            self.int8.predict([])


class Evaluations(Quantized):
    def test_a_data_set_gives_accuracy_and_agreement(self):
        seen = []
        found = swinq.evaluate(
            {"float": self.float, "int8": self.int8},
            SAMPLES / "cifar10",
            limit=40,
            progress=lambda phase, done, total: seen.append((phase, done, total)),
        )
        self.assertEqual([model["name"] for model in found.models], ["float", "int8"])
        self.assertIn("int8", str(found))
        self.assertIn(("evaluate", 0, 40), seen)
        self.assertEqual(found.models[0]["images"], 40)
        self.assertGreater(found.models[0]["top1_correct"], 20)
        self.assertGreater(found.models[1]["agreement"], 0.8)

    def test_images_in_memory_are_evaluated(self):
        pixels, labels = noise(self.float, 6), np.arange(6)
        found = swinq.evaluate(self.float, [(pixels, labels)], latency=[1])
        self.assertEqual(found.models[0]["latency_ms"].keys(), {"1"})
        logits = self.float(pixels)
        self.assertEqual(found.models[0]["top1_correct"], int((logits.argmax(1) == labels).sum()))

    def test_without_labels_models_are_compared(self):
        pixels = noise(self.float, 6)
        found = swinq.evaluate([self.float, self.int8], pixels)
        expected, coded = self.float(pixels), self.int8(pixels)
        base, own = found.models
        self.assertEqual((base["images"], own["images"]), (6, 6))
        for key in ("top1_correct", "top5_correct", "top1_difference", "classes"):
            self.assertNotIn(key, own)
        self.assertEqual(own["agreement"], np.mean(expected.argmax(1) == coded.argmax(1)))
        error = np.square(expected - coded, dtype=np.float64).sum()
        self.assertAlmostEqual(own["sqnr_db"], 10 * np.log10(np.square(expected, dtype=np.float64).sum() / error), places=4)
        self.assertNotIn("Acc@1", str(found))
        self.assertRegex(str(found), r"\| *agreement *\|")
        for images in (pixels, [PHOTO, PHOTO]):
            with self.assertRaisesRegex(swinq.DataError, "no labels: without labels.*give a second model"):
                swinq.evaluate(self.int8, images)

    def test_models_have_names_in_the_table(self):
        pixels = noise(self.int8, 2)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "small.int8.safetensors"
            self.int8.save(path)
            given = [self.float, path, self.int8, self.int8]
            found = swinq.evaluate(given, [(pixels, np.arange(2))])
        names = [model["name"] for model in found.models]
        self.assertEqual(names, ["float", "small.int8", "default 3", "default 4"])
        rows = [line.split("|")[1:-1] for line in str(found).splitlines() if line.startswith("| ")]
        # A column per model, below its name; the models may not fit one table.
        heads = [cell.split(" (")[0].strip() for first, *cells in rows if not first.strip() for cell in cells]
        self.assertEqual(heads, names)

    def test_an_exception_stops_the_evaluation(self):
        def stop(*_):
            raise LookupError("enough")

        with self.assertRaisesRegex(LookupError, "enough"):
            swinq.evaluate(self.int8, [(noise(self.int8, 6), np.arange(6))], progress=stop)


def state_of(path: Path) -> dict:
    """The tensors of a safetensors file."""
    file = path.read_bytes()
    size = int.from_bytes(file[:8], "little")
    header, data = json.loads(file[8 : 8 + size]), file[8 + size :]
    state = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            dtype = {"F16": np.float16, "F32": np.float32}[entry["dtype"]]
            state[name] = np.frombuffer(data[start:end], dtype).reshape(entry["shape"])
    return state


def as_microsoft(state: dict, activation: str = "GELU") -> SimpleNamespace:
    """An object with the attributes of Microsoft's `SwinTransformer` that are read, for the sample, with a class of activations."""
    part = type(activation, (), {})()
    layers = []
    for depth, heads, dim in [(2, 2, 64), (4, 4, 128)]:
        attention = SimpleNamespace(qkv=SimpleNamespace(bias=0), scale=(dim // heads) ** -0.5)
        block = SimpleNamespace(num_heads=heads, window_size=7, dim=dim, attn=attention)
        layers.append(SimpleNamespace(blocks=[block] * depth))
    return SimpleNamespace(
        state_dict=lambda: state,
        named_modules=lambda: [("layers.0.blocks.0.mlp.act", part)],
        head=SimpleNamespace(modules=lambda: [SimpleNamespace(out_features=10)]),
        layers=layers,
        patch_embed=SimpleNamespace(img_size=(56, 56), patch_size=(4, 4), patches_resolution=[14, 14]),
        embed_dim=64,
        num_classes=10,
        mlp_ratio=4.0,
        ape=False,
        patch_norm=True,
    )


def random_swin_v2(width: int = 64, depths: tuple = (2, 4), heads: tuple = (2, 4)) -> dict:
    """A state dictionary of random numbers for the sample's architecture of Swin V2, in Microsoft's names."""
    rng, state = np.random.default_rng(1), {}

    def put(name, *shape, mean=0.0):
        state[name] = (mean + rng.normal(0, 0.1, shape)).astype(np.float32)

    def norm(name, channels):
        put(f"{name}.weight", channels, mean=1.0)
        put(f"{name}.bias", channels)

    put("patch_embed.proj.weight", width, 3, 4, 4)
    put("patch_embed.proj.bias", width)
    norm("patch_embed.norm", width)
    for stage, (depth, head) in enumerate(zip(depths, heads)):
        channels = width << stage
        for name in (f"layers.{stage}.blocks.{block}" for block in range(depth)):
            put(f"{name}.attn.logit_scale", head, 1, 1, mean=2.0)
            put(f"{name}.attn.cpb_mlp.0.weight", 512, 2)
            put(f"{name}.attn.cpb_mlp.0.bias", 512)
            put(f"{name}.attn.cpb_mlp.2.weight", head, 512)
            put(f"{name}.attn.q_bias", channels)
            put(f"{name}.attn.v_bias", channels)
            put(f"{name}.attn.qkv.weight", 3 * channels, channels)
            for layer, rows, columns in [("attn.proj", 1, 1), ("mlp.fc1", 4, 1), ("mlp.fc2", 1, 4)]:
                put(f"{name}.{layer}.weight", rows * channels, columns * channels)
                put(f"{name}.{layer}.bias", rows * channels)
            norm(f"{name}.norm1", channels)
            norm(f"{name}.norm2", channels)
        if stage + 1 < len(depths):
            put(f"layers.{stage}.downsample.reduction.weight", 2 * channels, 4 * channels)
            norm(f"layers.{stage}.downsample.norm", 2 * channels)
    norm("norm", channels)
    put("head.weight", 10, channels)
    put("head.bias", 10)
    return state


class Processes(Quantized):
    """Forked processes, and copies for others."""

    def forked(self, call) -> str:
        """What ``call`` gives in a forked process, as text."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                text = repr(call())
            except swinq.Error as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        self.addCleanup(os.waitpid, child, 0)
        ready, _, _ = select.select([reader], [], [], 60)
        if not ready:
            os.kill(child, signal.SIGKILL)
            self.fail("the forked process hangs")
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read().decode()

    @unittest.skipUnless(hasattr(os, "fork"), "no processes are forked on this system")
    def test_engines_run_in_a_forked_process(self):
        pixels = noise(self.int8, 3)
        engine = self.int8.engine(threads=2)
        expected = repr(self.int8(pixels).tolist())
        self.assertEqual(engine(pixels).tolist(), self.int8(pixels).tolist())
        self.assertEqual(self.forked(lambda: self.int8(pixels).tolist()), expected)
        self.assertEqual(self.forked(lambda: engine(pixels).tolist()), expected)
        self.assertEqual(self.forked(lambda: len(self.int8.predict(PHOTO))), "1")
        self.assertEqual(self.int8(pixels).tolist(), engine(pixels).tolist())

    @unittest.skipUnless(hasattr(os, "fork"), "no processes are forked on this system")
    def test_calibration_in_a_forked_process_is_refused(self):
        text = self.forked(lambda: swinq.quantize(self.float, noise(self.float, 2)))
        self.assertRegex(text, "EngineError: quantize: this process was forked .*spawn")

    def test_copies_are_refused_with_the_remedy(self):
        for value in (self.int8, self.int8.engine(threads=1)):
            with self.assertRaisesRegex(TypeError, "cannot be copied or pickled; (save it|make one)"):
                pickle.dumps(value)


class Arguments(Quantized):
    """Arguments that no call can work with."""

    def test_numbers_below_the_least_are_refused_by_name(self):
        pixels = noise(self.int8, 1)
        for name, call in {
            "top_k": lambda: self.int8.predict(PHOTO, top_k=-1),
            "threads": lambda: self.int8.engine(threads=-1),
            "max_pixels": lambda: self.int8.engine(max_pixels=-1),
            "limit": lambda: swinq.quantize(self.float, pixels, limit=-1),
            "batch_size": lambda: swinq.quantize(self.float, pixels, batch_size=-1),
            "skip_corrupt": lambda: swinq.evaluate(self.int8, pixels, skip_corrupt=-1),
            "latency": lambda: swinq.evaluate(self.int8, pixels, latency=[1, -1]),
        }.items():
            with self.assertRaisesRegex(swinq.ArgumentError, f"{name}: is -1"):
                call()

    def test_messages_name_arguments_of_python(self):
        with self.assertRaisesRegex(swinq.Error, "cfg=") as caught:
            swinq.open(MICRO / "model.safetensors")
        self.assertNotIn("--", str(caught.exception))
        with self.assertRaisesRegex(swinq.ArgumentError, "preprocessing: the mapping lacks size, resize"):
            swinq.open({"a": np.zeros(1, np.float32)}, preprocessing={"mean": [0.5] * 3, "std": [0.5] * 3, "filter": "bicubic"})
        with self.assertRaisesRegex(swinq.ArgumentError, "pass model\\['model'\\]"):
            swinq.open({"model": {"a": np.zeros(1, np.float32)}}, cfg=str(MICRO / "cfg.yaml"))

    def test_arguments_that_no_call_has_are_refused_with_the_nearest(self):
        for name, hint in (("num_samples", "limit= is the number of images"), ("preprocesing", "did you mean preprocessing"), ("x", "$")):
            with self.assertRaisesRegex(swinq.ArgumentError, f"{name}: is no argument of quantize(; )?{hint}"):
                swinq.quantize("no such model", "no such images", **{name: 3})
        for latency in (1, "1"):
            with self.assertRaisesRegex(swinq.ArgumentError, r"latency: is '?1'?; give a list of batch sizes, such as \[1, 8\]"):
                swinq.evaluate(self.int8, noise(self.int8, 1), latency=latency)

    def test_messages_about_images_name_the_argument_that_helps(self):
        with tempfile.TemporaryDirectory() as folder:
            classes = Path(folder) / "train" / "one"
            classes.mkdir(parents=True)
            (classes / "photo.jpg").write_bytes(PHOTO.read_bytes())
            with self.assertRaisesRegex(swinq.DataError, r'split `val` is missing.*; split="train" takes that'):
                swinq.quantize(self.float, folder, split="val")
            (classes / "damaged.jpg").write_bytes(b"\xff\xd8\xffabcabcabc")
            with self.assertRaisesRegex(swinq.Error, "damaged.jpg: .*; skip_corrupt=N leaves out up to N such images"):
                swinq.quantize(self.float, folder)
            with self.assertWarnsRegex(UserWarning, "left out: .*damaged.jpg"):
                swinq.quantize(self.float, folder, skip_corrupt=1)

    def test_a_data_set_of_pytorch_is_read_in_order(self):
        class Mapped:
            """A map-style data set: no iterator."""

            __iter__ = None

            def __len__(self):
                return 4

            def __getitem__(self, index):
                return pixels[index], index

        pixels = noise(self.float, 4)
        mapped = swinq.quantize(self.float, Mapped())
        np.testing.assert_array_equal(mapped(pixels), swinq.quantize(self.float, list(pixels))(pixels))


class Interrupts(Quantized):
    """Ctrl-C during long calls."""

    def seconds(self, call) -> float:
        """Seconds from a signal, half a second after the start of ``call``, to its end."""
        sent = []
        # A process that a shell started in the background ignores the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

        def send():
            sent.append(time.perf_counter())
            signal.raise_signal(signal.SIGINT)

        timer = threading.Timer(0.5, send)
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            call()
        ended = time.perf_counter()
        timer.join()
        return ended - sent[0]

    def test_long_calls_answer_soon(self):
        pixels = noise(self.float, 512)
        many = [PHOTO] * 5000
        # Some steps of these calls take seconds each.
        engine = self.float.engine(threads=1, backend="cpu")
        large = np.concatenate([pixels] * 6)
        for name, call in {
            "quantize": lambda: swinq.quantize(self.float, pixels, batch_size=512, ptq="reconstruct"),
            "evaluate": lambda: swinq.evaluate(self.float, [(pixels, np.zeros(512, int))], threads=1, latency=[512]),
            "engine": lambda: engine(large),
            "predict": lambda: engine.predict(many),
        }.items():
            with self.subTest(call=name):
                # A tenth of this on an idle machine; each call would go on for longer.
                self.assertLess(self.seconds(call), 5)


if __name__ == "__main__":
    unittest.main()
