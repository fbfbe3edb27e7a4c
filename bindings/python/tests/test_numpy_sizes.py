"""Images of other sizes than the model's own, and outputs by name. The tests need numpy only."""

import unittest

import numpy as np
from support import MICRO, Quantized, models, noise, normalised

import swinq


class Sizes(Quantized):
    """Images of other sizes than the model's own, and outputs by name."""

    def test_logits_do_not_depend_on_the_other_images_of_a_call(self):
        self.assertEqual(self.int8.input_size, (56, 56))
        for model in models():
            engine = model.engine(backend="cpu", threads=2, max_batch=3)
            for size in [(56, 112), (112, 56), (100, 60)]:
                pixels = noise(model, 7, size=size)
                found = engine(pixels)
                self.assertEqual((found.shape, found.dtype), ((7, 10), np.float32))
                self.assertGreater(np.ptp(found, axis=0).max(), 0.01)
                np.testing.assert_array_equal(model(pixels), found)
                np.testing.assert_array_equal(model(pixels[::-1])[::-1], found)
                np.testing.assert_array_equal(np.concatenate([engine(image[None]) for image in pixels]), found)
                np.testing.assert_array_equal(engine(normalised(pixels, model)), found)
            own = noise(model, 2)
            np.testing.assert_array_equal(engine(own), model(own))

    def test_another_size_is_another_image(self):
        # The average over the tokens of two copies side by side is not that of one: borders of windows differ.
        pixels = noise(self.float, 1)
        twice = self.float(np.concatenate([pixels, pixels], axis=2))
        self.assertEqual(twice.shape, (1, 10))
        self.assertLess(np.abs(twice - self.float(pixels)).max(), np.abs(twice).max())
        other = np.concatenate([pixels, noise(self.float, 1, seed=1)], axis=2)
        self.assertFalse(np.array_equal(self.float(other), twice))

    def test_a_model_built_for_the_size_has_the_same_logits(self):
        cfg = str(MICRO / "cfg.yaml")
        model = swinq.open(MICRO / "model.safetensors", cfg=cfg, opts={"DATA.IMG_SIZE": "[56, 112]"})
        self.assertEqual(model.input_size, (56, 112))
        pixels = noise(model, 3)
        self.assertEqual(pixels.shape, (3, 56, 112, 3))
        np.testing.assert_array_equal(self.float(pixels), model(pixels))

    def test_sizes_that_the_network_cannot_process_are_refused(self):
        for size, problem in [
            ((55, 56), "55x56 is not a multiple of PATCH_SIZE 4"),
            ((28, 56), "stage2 are fewer than its window of 7.*use a larger image"),
            ((0, 56), "0 is outside 1..="),
        ]:
            pixels = noise(self.int8, 2, size=size)
            for images in (pixels, normalised(pixels, self.int8), pixels[:0]):
                with self.assertRaisesRegex(swinq.ArgumentError, problem):
                    self.int8(images)

    def test_maps_lie_where_and_in_the_order_that_the_caller_asks_for(self):
        model = swinq.open(MICRO / "model.safetensors", cfg=str(MICRO / "cfg.yaml"), task="features")
        engine, pixels = model.engine(backend="cpu", threads=1), noise(self.float, 2, size=(60, 100))
        for call in (engine, model, engine.predict, model.predict):
            with self.assertRaisesRegex(swinq.ArgumentError, r"a backbone with the outputs stage1, .*call engine\(\)\.run\(images\)"):
                call(pixels)
        first = engine.run(pixels)
        last = engine.run(pixels, out_layout="NHWC")
        for name, value in first.items():
            np.testing.assert_array_equal(last[name], value.transpose(0, 2, 3, 1))
        name = engine.outputs[0]
        memory = np.full(last[name].shape, np.nan, np.float16)
        found = engine.run(pixels, out={name: memory}, out_layout="NHWC")
        self.assertIs(found[name], memory)
        self.assertEqual(list(found), [name])
        np.testing.assert_array_equal(memory, last[name].astype(np.float16))
        for options, problem in [
            ({"out_layout": "rows"}, "out_layout: `rows` is unknown"),
            ({"out": {name: memory}}, "and the output is"),
            ({"out": {name: [1.0]}}, "give an array of numpy"),
            ({"stream": 0}, "stream: the images are not"),
        ]:
            with self.assertRaisesRegex(swinq.ArgumentError, problem):
                engine.run(pixels, **options)

    def test_images_beyond_the_most_pixels_are_refused(self):
        engine = self.int8.engine(backend="cpu", threads=1, max_pixels=56 * 112)
        self.assertEqual(engine(noise(self.int8, 1, size=(56, 112))).shape, (1, 10))
        pixels = noise(self.int8, 1, size=(112, 112))
        for images in (pixels, normalised(pixels, self.int8)):
            with self.assertRaisesRegex(swinq.ArgumentError, "needs ([0-9]+) bytes of buffers, and ([0-9]+) are allowed"):
                engine(images)
        self.assertEqual(self.int8(pixels).shape, (1, 10))

    def test_outputs_have_names(self):
        engine, pixels = self.int8.engine(backend="cpu"), noise(self.int8, 3, size=(56, 112))
        self.assertEqual(engine.outputs, ("logits",))
        expected = engine(pixels)
        for names in (None, ["logits"], iter(["logits"])):
            found = engine.run(pixels, names)
            self.assertEqual(list(found), ["logits"])
            np.testing.assert_array_equal(found["logits"], expected)
        self.assertEqual(engine.run(pixels[:0])["logits"].shape, (0, 10))
        halves = engine.run(pixels, dtype="float16")["logits"]
        self.assertEqual(halves.dtype, np.float16)
        np.testing.assert_array_equal(halves, expected.astype(np.float16))
        with self.assertRaisesRegex(swinq.ArgumentError, "dtype: 'float64' is none of float32, float16"):
            engine.run(pixels, dtype="float64")
        for names, problem in [
            (["stage1"], "output `stage1`: the network has the outputs logits"),
            (["logits", "logits"], "output `logits`: .*may be asked for once"),
            ([], "outputs: there is no name"),
            ("logits", "outputs: `logits` is one name; give a list"),
        ]:
            with self.assertRaisesRegex(swinq.ArgumentError, problem):
                engine.run(pixels, names)


if __name__ == "__main__":
    unittest.main()
