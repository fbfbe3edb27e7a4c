"""Calibration from every source of images. The tests need numpy only."""

import unittest
import warnings

import numpy as np
from support import MICRO, PHOTO, SAMPLES, micro, noise, normalised

import swinq


def table(model):
    """What a calibration decides."""
    return model.sites


class Sources(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.float = micro()
        cls.pixels = noise(cls.float, 10)
        cls.expected = swinq.quantize(cls.float, cls.pixels)

    def check(self, images, **options):
        model = swinq.quantize(self.float, images, **options)
        self.assertEqual(table(model), table(self.expected))
        np.testing.assert_array_equal(model(self.pixels), self.expected(self.pixels))

    def test_batches_of_bytes_and_of_floats_give_the_same_model(self):
        values, labels = normalised(self.pixels, self.float), np.arange(10)
        self.check(iter([self.pixels[:3], self.pixels[3:]]))
        self.check([(values[:4], labels[:4]), (values[4:], labels[4:])])
        self.check([{"pixel_values": values, "labels": labels}])
        self.check(list(values))

    def test_the_limit_counts_images(self):
        more = np.concatenate([self.pixels, noise(self.float, 5, seed=2)])
        self.check([more], limit=10)
        self.check((more[i : i + 4] for i in range(0, 15, 4)), limit=10)

    def test_decoded_images_are_preprocessed(self):
        self.assertEqual(self.pixels.shape[1:3], self.float.input_size)
        # The preprocessing of the sample leaves images of its own size as they are.
        self.assertEqual(self.float.preprocessing["resize"], "direct")
        self.check(list(self.pixels))

    def test_recipes_have_names_and_texts(self):
        rules = [{"match": "**", "enable": True, "calibrator": "max"}, {"match": "{patch_embed,head}.**", "enable": False}]
        rules += [{"match": "**.{scores,output}", "enable": False}, {"match": "**.add.*", "enable": False}]
        own = swinq.quantize(self.float, self.pixels, {"name": "mine", "rules": rules})
        self.assertEqual(own.recipe, "mine")
        self.assertNotEqual(table(own), table(self.expected))
        self.assertEqual(swinq.quantize(self.float, self.pixels, "mode2").recipe, "mode2")

    def test_ptq_overrides_the_recipe(self):
        seen = set()
        # The command gives a recipe that it changed this name. `default` says `refined` already.
        changed = "default (changed: ptq basic)"
        for ptq, phases, name in [("basic", {"observe"}, changed), ("refined", {"observe", "refine"}, "default")]:
            seen.clear()
            model = swinq.quantize(self.float, self.pixels, ptq=ptq, progress=lambda phase, *_: seen.add(phase))
            self.assertEqual((seen, model.recipe), (phases, name))
            self.assertEqual(table(model) == table(self.expected), ptq == "refined")
        with self.assertRaisesRegex(swinq.ArgumentError, "^ptq: `best` is none of basic, refined, reconstruct$"):
            swinq.quantize(self.float, self.pixels, ptq="best")

    def test_files_and_data_sets(self):
        one = swinq.quantize(self.float, [PHOTO])
        two = swinq.quantize(self.float, [str(PHOTO)])
        self.assertEqual(table(one), table(two))
        sample = swinq.quantize(self.float, SAMPLES / "cifar10", limit=8, seed=1)
        self.assertNotEqual(table(sample), table(one))
        self.assertEqual(sample.labels[0], "airplane")

    def test_a_path_is_opened_first(self):
        model = swinq.quantize(MICRO / "model.safetensors", self.pixels, cfg=str(MICRO / "cfg.yaml"))
        self.assertEqual(table(model), table(self.expected))
        with self.assertRaisesRegex(swinq.ArgumentError, "cfg: is no argument"):
            swinq.quantize(self.float, self.pixels, cfg="x")

    def test_progress_is_reported_and_can_stop(self):
        seen = []
        swinq.quantize(self.float, self.pixels, progress=lambda *step: seen.append(step))
        self.assertIn(("observe", 10, 10), seen)
        self.assertIn("refine", {phase for phase, _, _ in seen})

        def stop(*_):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            swinq.quantize(self.float, self.pixels, progress=stop)

    def test_images_that_cannot_be_used_are_refused(self):
        for images, problem in [
            ([], "there is no image"),
            ([3], "neither a path, the bytes of a file"),
            (3, "neither a path nor iterable"),
            ([PHOTO, self.pixels[0]], "mixed"),
            ([{"x": self.pixels}], "none of which is"),
            ([(self.pixels, np.arange(3))], "one class number for each image"),
            ([(self.pixels[:5], np.arange(5)), self.pixels[5:]], "5 labels for 10 images"),
            ([self.pixels[:, :-1]], "the model takes uint8"),
        ]:
            with self.assertRaisesRegex(swinq.ArgumentError, problem):
                swinq.quantize(self.float, images)
        with self.assertRaisesRegex(swinq.ArgumentError, "limit: is 0"):
            swinq.quantize(self.float, [self.pixels], limit=0)


class Backbones(unittest.TestCase):
    def test_floats_of_several_sizes_calibrate(self):
        options = {"cfg": str(MICRO / "cfg.yaml"), "task": "features"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = swinq.open(MICRO / "model.safetensors", outputs=["stage2"], **options)
        self.assertIn("backbone with stage2", repr(model))
        rng = np.random.default_rng(0)
        batches = [rng.standard_normal((2, 3, *size), np.float32) for size in [(64, 96), (72, 64), (64, 96)]]
        batches[1] *= 20
        found = swinq.quantize(model, batches)
        self.assertEqual(table(swinq.quantize(model, [image for batch in batches for image in batch])), table(found))
        self.assertNotEqual(table(swinq.quantize(model, batches, limit=2)), table(found))
        maps = found.engine(backend="cpu").run(batches[1])
        self.assertEqual(list(maps), ["stage2"])
        batches[1][1, 2, 3, 4] = np.inf
        for images, problem in [
            (batches, r"image 3 holds inf \(channel 2, row 3, column 4\)"),
            ([batches[0][:, :2]], "the backbone takes float"),
            ([batches[0], noise(model, 1)], "8-bit images and floats are mixed"),
        ]:
            with self.assertRaisesRegex(swinq.ArgumentError, problem):
                swinq.quantize(model, images)
        for outputs, problem in [(["p2"], "`p2` is none of"), ("stage2", "one name"), (["stage9"], "stage9")]:
            with self.assertRaisesRegex(swinq.Error, problem):
                swinq.open(MICRO / "model.safetensors", outputs=outputs, **options)


if __name__ == "__main__":
    unittest.main()
