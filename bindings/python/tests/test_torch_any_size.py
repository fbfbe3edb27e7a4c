"""Graphs for images of any size in ONNX Runtime, against the engine and against graphs for one size. The tests need numpy and
onnxruntime only; without it they are skipped, unless ``REQUIRE_IMPL`` names ``onnx``.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from functools import cache
from pathlib import Path

import numpy as np
from needed import need

need("onnxruntime", name="onnx")

import onnxruntime
from support import MICRO, ROOT, SAMPLES, noise, normalised

import swinq

#: The relative L2 of float graphs, and the dB that an INT8 graph may have less than the graph for one size.
SAME, LOSS = 1e-5, 1.0
V2 = SAMPLES / "swinv2_micro_cifar10"

def of_detectors(positions: bool = False) -> swinq.Model:
    """The sample as a backbone by the rule of detectors: its tensors in Microsoft's names. With an absolute position embedding, if
    that is wanted, for the grid of its own size."""
    file = (MICRO / "model.safetensors").read_bytes()
    length = int.from_bytes(file[:8], "little")
    header, state = json.loads(file[8 : 8 + length]), {}
    for name, entry in header.items():
        if name == "__metadata__" or name.startswith(("head", "norm.")):
            continue
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        name = name.replace("layers.1.downsample", "layers.0.downsample")
        values = np.frombuffer(file[start:end], {"F16": np.float16, "F32": np.float32}[entry["dtype"]])
        state[name] = values.astype(np.float32).reshape(entry["shape"])
    if positions:
        height, width = (side // 4 for side in sample(MICRO).input_size)
        shape = (1, len(state["patch_embed.proj.weight"]), height, width)
        state["absolute_pos_embed"] = np.random.default_rng(2).normal(0, 0.3, shape).astype(np.float32)
    opts = {"MODEL.SWIN.APE": positions}
    return swinq.open(state, cfg=str(MICRO / "cfg.yaml"), opts=opts, dialect="microsoft", task="features")


def sample(folder, **reading) -> swinq.Model:
    return swinq.open(folder / "model.safetensors", cfg=str(folder / "cfg.yaml"), **reading)


#: Networks by the rules of several libraries, sizes, and sizes that are refused.
NETWORKS = {
    "timm's classifier": (lambda: sample(MICRO), [(56, 84), (100, 60), (64, 132)], [(28, 56), (48, 52), (57, 60)]),
    "timm's backbone": (lambda: sample(MICRO, task="features"), [(56, 84), (100, 60), (64, 132)], [(28, 56)]),
    "a backbone of detectors": (of_detectors, [(64, 96), (29, 50), (97, 131), (3, 5)], []),
    "Microsoft's Swin V2": (lambda: sample(V2), [(64, 64), (128, 64), (64, 192)], [(32, 64), (96, 96), (65, 64)]),
}


@cache
def models(name):
    """The network of a name in float and in INT8."""
    model = NETWORKS[name][0]()
    return model, swinq.quantize(model, [noise(model, 4)], ptq="basic")


class Graph:
    """A graph in ONNX Runtime."""

    def __init__(self, model, **options):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            model.export(path, **options)
            session = onnxruntime.SessionOptions()
            # Sums of processors without VNNI are exact in the kernels of this option; refusals are no errors here.
            session.add_session_config_entry("session.x64quantprecision", "1")
            session.log_severity_level, session.intra_op_num_threads = 4, 1
            self.session = onnxruntime.InferenceSession(path, session, providers=["CPUExecutionProvider"])
        self.metadata = self.session.get_modelmeta().custom_metadata_map
        self.names = [output.name for output in self.session.get_outputs()]

    def __call__(self, images):
        name = self.session.get_inputs()[0].name
        return dict(zip(self.names, self.session.run(None, {name: images}), strict=True))


def error(found, expected):
    """The relative L2 of the difference, the worst of all outputs."""
    assert {name: x.shape for name, x in found.items()} == {name: x.shape for name, x in expected.items()}
    return max(np.linalg.norm(found[name] - x) / np.linalg.norm(x) for name, x in expected.items())


class AnySize(unittest.TestCase):
    def test_float_graphs_are_the_engine_and_int8_ones_those_for_one_size(self):
        for name, (_, sizes, _) in NETWORKS.items():
            for model in models(name):
                graph, engine = Graph(model, size="any"), model.engine(backend="cpu", threads=1)
                for size, batch in zip(sizes, (1, 2, 5, 1), strict=False):
                    with self.subTest(name, quantized=model.is_quantized, size=size):
                        images = normalised(noise(model, batch, size=size), model)
                        expected = engine.run(images)
                        found = error(graph(images), expected)
                        if not model.is_quantized:
                            self.assertLess(found, SAME)
                            continue
                        fixed = error(Graph(model, size=size)(images), expected)
                        self.assertLess(found, max(fixed, SAME) * 10 ** (LOSS / 20))
                        self.assertLess(found, 0.1)

    def test_graphs_for_one_size_hold_interpolated_position_embeddings(self):
        float_model = of_detectors(positions=True)
        for model in (float_model, swinq.quantize(float_model, [normalised(noise(float_model, 4, size=(64, 96)), float_model)], ptq="basic")):
            engine = model.engine(backend="cpu", threads=1)
            for size in (float_model.input_size, (64, 96), (29, 50)):
                with self.subTest(quantized=model.is_quantized, size=size):
                    images = normalised(noise(model, 2, size=size), model)
                    found = error(Graph(model, size=size)(images), engine.run(images))
                    self.assertLess(found, 0.1 if model.is_quantized else SAME)
            with self.assertRaisesRegex(swinq.ArgumentError, "absolute_pos_embed is interpolated for the size of the image.*take one size"):
                model.export("any.onnx", size="any")

    def test_sizes_that_the_network_refuses_fail_by_a_node_that_names_the_limit(self):
        for name, (_, sizes, refused) in NETWORKS.items():
            model = models(name)[0]
            graph = Graph(model, size="any")
            stated = json.loads(graph.metadata["swinq.sizes"])
            smallest = tuple(stated["smallest"])
            found = graph(normalised(noise(model, 1, size=smallest), model))
            self.assertTrue(all(np.isfinite(x).all() for x in found.values()))
            self.assertLessEqual(smallest, min(sizes))
            for size in refused:
                images = normalised(noise(model, 1, size=size), model)
                with self.assertRaises(swinq.ArgumentError):
                    model.engine(backend="cpu", threads=1).run(images)
                with self.subTest(name, size=size), self.assertRaisesRegex(Exception, "must_be"):
                    graph(images)

    def test_the_example_compares_a_graph_with_the_engine(self):
        model, script = models("timm's backbone")[1], ROOT / "docs/examples/check_onnx.py"
        with tempfile.TemporaryDirectory() as folder:
            graph, file = Path(folder) / "any.onnx", Path(folder) / "model.safetensors"
            model.export(graph, size="any", input="pixels")
            model.save(file)
            command = [sys.executable, str(script), str(graph), str(file), "56x84"]
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            self.assertIn("the smallest is 52x52", found)
            self.assertRegex(found, r"56x84 stage2 \[1, 128, 7, 11\]: [\d.]+ dB")
            refused = subprocess.run([*command, "28x56"], capture_output=True, text=True, check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("28x56: images of 28x56", refused.stdout)

    def test_pixels_opsets_and_a_fixed_batch(self):
        model = models("a backbone of detectors")[0]
        pixels = noise(model, 2, size=(45, 70))
        expected = model.engine(backend="cpu", threads=1).run(pixels)
        forms = [{"opset": opset} for opset in range(18, 24)] + [{"batch": 2}, {"target": "openvino"}, {"target": "tensorrt"}]
        for options in forms:
            graph = Graph(model, size="any", input="pixels", **options)
            self.assertLess(error(graph(pixels), expected), SAME)
        halves = Graph(model, size="any", input="pixels", fp16=True)(pixels)
        self.assertLess(error(halves, expected), 0.02)


if __name__ == "__main__":
    unittest.main()
