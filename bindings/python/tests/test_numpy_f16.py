"""Exports in f16 of a network whose residual stream leaves f16, in ONNX Runtime against the engine. The tests need numpy and
onnxruntime only; without it they are skipped, unless ``REQUIRE_IMPL`` names ``onnx``.
"""

import json
import tempfile
import unittest
from functools import cache
from pathlib import Path

import numpy as np
from needed import need

need("onnxruntime", name="onnx")

import onnxruntime
from support import MICRO, SAMPLES, noise, normalised

import swinq

V2 = SAMPLES / "swinv2_micro_cifar10"
#: dB of an f16 graph in INT8 against the engine, whatever its residual is.
LEAST = 25.0


def tensors(folder):
    """The parameters of a sample."""
    file = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(file[:8], "little")
    state = {}
    for name, entry in json.loads(file[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            values = np.frombuffer(file[start:end], {"F16": np.float16, "F32": np.float32}[entry["dtype"]])
            state[name] = values.astype(np.float32).reshape(entry["shape"])
    return state


#: The last layer of each branch, of each merging and of the patch embedding: in Swin V1 a linear layer, in Swin V2 a norm.
ENDS = {
    MICRO: ("patch_embed.norm.", ".attn.proj.", ".mlp.fc2.", ".downsample.reduction."),
    V2: ("patch_embed.norm.", ".norm1.", ".norm2.", ".downsample.norm."),
}


def scaled(folder, factor):
    """The sample with a residual stream that is ``factor`` times as large. Norms read it, so that the outputs are equal."""
    ends = ENDS[folder]
    return {name: x * np.float32(factor if any(end in name for end in ends) else 1) for name, x in tensors(folder).items()}


@cache
def model(folder, factor, **reading):
    float_model = swinq.open(scaled(folder, factor), cfg=str(folder / "cfg.yaml"), **reading)
    return swinq.quantize(float_model, [noise(float_model, 8)], ptq="basic")


def magnitudes(quantized):
    """What the file of a model says about its residual stream."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        quantized.save(path)
        data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return json.loads(header["__metadata__"]["swinq"])["provenance"]["calibration"]["residual"]


def run(quantized, images, fp16=True, **options):
    """Outputs of a graph, its metadata, and the remarks of the export."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        remarks = quantized.export(path, fp16=fp16, **options)
        session = onnxruntime.SessionOptions()
        session.add_session_config_entry("session.x64quantprecision", "1")
        session = onnxruntime.InferenceSession(path, session, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        values = session.run(None, {session.get_inputs()[0].name: images})
        metadata = session.get_modelmeta().custom_metadata_map
    return dict(zip(names, values, strict=True)), metadata, remarks


def sqnr(found, expected):
    """The least dB of all outputs."""
    return min(20 * np.log10(np.linalg.norm(x) / np.linalg.norm(found[name] - x)) for name, x in expected.items())


class F16(unittest.TestCase):
    def test_a_residual_beyond_f16_is_f32_in_the_graph(self):
        small = model(MICRO, 1.0)
        large = model(MICRO, 75_000 / max(map(max, magnitudes(small))))
        reached = max(map(max, magnitudes(large)))
        self.assertAlmostEqual(reached / 75_000, 1, delta=0.01)
        images = normalised(noise(large, 4, seed=9), large)
        expected = large.engine(backend="cpu", threads=1).run(images)
        for options in [{}, {"target": "tensorrt"}, {"size": "any"}]:
            with self.subTest(**options):
                found, metadata, remarks = run(large, images, **options)
                self.assertTrue(all(np.isfinite(x).all() for x in found.values()))
                self.assertGreater(sqnr(found, expected), LEAST)
                self.assertEqual((metadata["swinq.float"], metadata["swinq.residual"]), ("float16", "float32"))
                self.assertRegex(remarks[-1], rf"residual stream reaches {int(reached)}\S* in layers\.\d\.blocks\.\d")
                self.assertEqual(json.loads(metadata["swinq.remarks"]), remarks)
        # The network is that of the small residual, whose graph is f16.
        found, metadata, _ = run(small, images)
        self.assertNotIn("swinq.residual", metadata)
        self.assertGreater(sqnr(found, expected), LEAST)

    def test_a_swin_v2_is_refused_by_a_remedy_that_works(self):
        large = model(V2, 75_000 / max(map(max, magnitudes(model(V2, 1.0)))))
        images = normalised(noise(large, 2, seed=9), large)
        with self.assertRaisesRegex(swinq.ArgumentError, r"fp16: the residual stream reaches .* export without fp16=True"):
            run(large, images)
        found, _, _ = run(large, images, fp16=False)
        self.assertGreater(sqnr(found, large.engine(backend="cpu", threads=1).run(images)), LEAST)

    def test_maps_of_a_backbone_may_be_larger_than_f16(self):
        largest = max(map(max, magnitudes(model(MICRO, 1.0, task="features"))))
        large = model(MICRO, 75_000 / largest, task="features")
        images = normalised(noise(large, 2, seed=9), large)
        expected = large.engine(backend="cpu", threads=1).run(images)
        found, _, _ = run(large, images, size=large.input_size)
        self.assertGreater(max(np.abs(x).max() for x in expected.values()), 40_000)
        self.assertGreater(sqnr(found, expected), LEAST)


if __name__ == "__main__":
    unittest.main()
