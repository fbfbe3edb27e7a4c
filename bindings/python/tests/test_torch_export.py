"""Prepared Swins in ONNX: both exporters of PyTorch, against the engine in ONNX Runtime and against TensorRT's rules.

The tests need torch, timm, torchvision, transformers, onnx, onnxruntime and onnxscript. Without them they are skipped, unless
``REQUIRE_IMPL`` names ``onnx``.
"""

import collections
import importlib.util
import io
import os
import tempfile
import unittest
import warnings
from pathlib import Path

from needed import need

need("onnx", "onnxruntime", "onnxscript", "torch", name="onnx")

import onnx
import onnxruntime
import torch

from torch_models import PROGRAMS, SWINS, images, randomise
from torch_support import Inside, error, leaves

import swinq.torch

#: The least dB of a graph against the engine at its first output. Behind it one code that differs moves many others, most of all with
#: random parameters: by how many dB every output is at least nearer to the engine than the engine is to float.
LEAST, NEARER = 40, 1
#: Every site, with the codes of a tensor; the product of `mlp.fc1` runs in float.
EVERYTHING = {
    "name": "everything",
    "rules": [
        {"match": "**", "enable": True, "granularity": "tensor", "calibrator": "max"},
        {"match": "**.probs", "kind": "s8"},
        {"match": "**.mlp.fc1.weight", "enable": False},
    ],
}


def rules_of_tensorrt():
    path = Path(__file__).resolve().parents[3] / "tests/onnx/tensorrt_rules.py"
    spec = importlib.util.spec_from_file_location("tensorrt_rules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def decibels(found, expected) -> float:
    return -20 * torch.log10(torch.tensor(error(found, expected)).clamp_min(1e-30)).item()


def outputs(program, x, **keywords):
    """The tensors of an output with their places."""
    with torch.no_grad():
        return [(place, value) for place, value in leaves(program(x, **keywords)) if value.is_floating_point()]


def prepared(module, x, keywords=None, **options):
    """A program, prepared and in evaluation; and what it gave in float."""
    program, keywords = module if keywords is not None else Inside(module), keywords or {}
    exact = outputs(program, x, **keywords)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = swinq.torch.prepare(program, lambda model: model(x, **keywords), **options)
    assert len(report.replaced) == 1, report
    return program, exact


class Graph:
    """An exported program, as ONNX Runtime computes it without optimisations: QuantizeLinear and DequantizeLinear in float."""

    def __init__(self, program, x, dynamo, free=True, keywords=None):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.path = os.path.join(folder, "model.onnx")
            options = {"dynamo": dynamo, "input_names": ["images"], "kwargs": keywords or {}}
            if free and dynamo:
                options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
            elif free:
                options["dynamic_axes"] = {"images": {0: "batch"}}
            with torch.no_grad():
                torch.onnx.export(program, (x,), self.path, **options, **({"external_data": False} if dynamo else {}))
            self.model = onnx.load(self.path)
            self.rules = rules_of_tensorrt()
            self.graph = self.rules.Graph(self.path)
            session = onnxruntime.SessionOptions()
            session.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            session.intra_op_num_threads, session.log_severity_level = torch.get_num_threads(), 3
            self.session = onnxruntime.InferenceSession(self.path, session, providers=["CPUExecutionProvider"])
            #: The products that ONNX Runtime runs in INT8 with its optimisations.
            self.int8 = self._optimised(os.path.join(folder, "optimised.onnx"))

    def _optimised(self, path):
        session = onnxruntime.SessionOptions()
        session.optimized_model_filepath, session.log_severity_level = path, 3
        onnxruntime.InferenceSession(self.path, session, providers=["CPUExecutionProvider"])
        return sum(node.op_type == "MatMulIntegerToFloat" for node in onnx.load(path).graph.node)

    def __call__(self, x):
        return [torch.from_numpy(value) for value in self.session.run(None, {"images": x.numpy()})]

    def count(self, kind):
        return sum(node.op_type == kind for node in self.model.graph.node)

    def products(self):
        """The products of codes, and the others."""

        def is_code(name):
            node = self.graph.producer.get(name)
            while node is not None and node.op_type == "Transpose":
                node = self.graph.producer.get(node.input[0])
            return node is not None and node.op_type == "DequantizeLinear"

        kinds = collections.Counter(all(map(is_code, node.input)) for node in self.graph.of("MatMul"))
        return kinds[True], kinds[False]


class Export(unittest.TestCase):
    def check(self, name, program, exact, x, dynamo, others=(), least=LEAST, **options):
        """A graph of ``program`` for ``x`` is near to the engine, also for ``others``, and obeys TensorRT."""
        graph = Graph(program, x, dynamo, **options)
        engine = outputs(program, x, **options.get("keywords", {}))
        limits = [decibels(one, two) + NEARER for (_, one), (_, two) in zip(engine, exact, strict=True)]
        limits[0] = max(limits[0], least)
        for batch in (x, *others):
            expected = outputs(program, batch, **options.get("keywords", {}))
            for found, (place, value), limit in zip(graph(batch), expected, limits, strict=True):
                exporter = "dynamo" if dynamo else "TorchScript"
                print(f"{name}, {exporter}: {place}: {decibels(found, value):.1f} dB, limit {limit:.1f}, products {graph.products()}")
                self.assertEqual(found.shape, value.shape)
                self.assertGreater(decibels(found, value), limit, place)
        for rule, _, check in graph.rules.RULES:
            broken = [f"{node.op_type} {node.name}" if hasattr(node, "op_type") else node for node, holds in check(graph.graph) if not holds]
            self.assertEqual(broken, [], rule)
        return graph

    def both(self, name, made, x, others=(), **options):
        graphs = [self.check(name, *made, x, dynamo, others, **options) for dynamo in (True, False)]
        self.assertEqual(graphs[0].products(), graphs[1].products())
        self.assertEqual(graphs[0].int8, graphs[1].int8)
        self.assertEqual(graphs[0].count("QuantizeLinear"), graphs[1].count("QuantizeLinear"))
        return graphs[0]

    def test_a_backbone_of_timm_has_codes_at_every_product(self):
        x = images(2)
        made = program, _ = prepared(SWINS["timm list"](), x)
        before = {key: value.clone() for key, value in program.state_dict().items()}
        graph = self.both("timm", made, x, [images(3, seed=3)])
        # 4 blocks with 6 products each, and merging; the projection of patches is in float. With its optimisations ONNX Runtime runs
        # the former in INT8.
        self.assertEqual(graph.products(), (25, 1))
        self.assertEqual(graph.int8, 25)
        # The module is as before: its parameters, and its passes.
        for key, value in program.state_dict().items():
            self.assertIs(type(value), torch.Tensor)
            self.assertTrue(torch.equal(value, before[key]), key)
        loss = sum(value.square().mean() for _, value in leaves(program.train()(x)))
        loss.backward()
        self.assertTrue(loss.isfinite())

    def test_a_backbone_of_transformers_with_padded_windows_and_odd_grids(self):
        x = images(1, 76, 108)
        made = prepared(SWINS["transformers backbone"](), x)
        graph = self.both("transformers, 76 x 108", made, x, [images(2, 76, 108, seed=3)])
        self.assertGreater(graph.count("Pad"), 0)

    def test_classifiers(self):
        for name in ("timm classifier", "transformers classifier"):
            with self.subTest(name):
                x = images(2)
                self.both(name, prepared(SWINS[name](), x), x)

    def test_a_v2_whose_heads_have_two_codes(self):
        x, module = images(2), SWINS["transformers V2 classifier"]()
        with torch.no_grad():
            for name, value in module.named_parameters():
                if name.endswith("logit_scale"):
                    value.view(-1)[::2] = 4.0
        graph = self.both("V2", prepared(module, x), x, [images(3, seed=3)])
        # 4 blocks with 4 layers, 3 products of queries and keys, and one of values; and merging. The projection and the head are float.
        self.assertEqual(graph.products(), (4 * 8 + 1, 2))

    def test_every_site_and_codes_with_factors_of_channels(self):
        x = images(2, 64, 96)
        for name, options in [("everything", {"recipe": EVERYTHING}), ("factors", {"ptq": None, "learned": "all"})]:
            with self.subTest(name):
                made = program, _ = prepared(SWINS["transformers backbone"](), x, **options)
                with torch.no_grad():
                    for parameter in swinq.torch.scales(program):
                        parameter.mul_(1.03)
                factors = [site for _, site in program.backbone.swinq.sites() if getattr(site, "factors", None) is not None]
                self.assertEqual(bool(factors), name == "factors")
                self.both(name, made, x)

    def test_weights_of_7_bits_are_exported(self):
        x = images(2, 64, 96)
        recipe = {"name": "w7", "rules": [*EVERYTHING["rules"], {"match": "**.weight", "bits": 7}]}
        made = program, _ = prepared(SWINS["transformers backbone"](), x, recipe=recipe)
        largest = {site.largest for _, site in program.backbone.swinq.sites() if hasattr(site, "largest")}
        self.assertEqual(largest, {63.0})
        self.both("7 bits", made, x)

    def test_whole_programs(self):
        # The exporter of TorchScript does not know the pooling of UPerNet.
        for name, exporters in (("UPerNet", [True]), ("DPT with Swin V2", [True, False])):
            with self.subTest(name):
                program, keywords = PROGRAMS[name]()
                randomise(program)
                x = images(2, 128, 128)
                made = prepared(program, x, keywords)
                for dynamo in exporters:
                    self.check(name, *made, x, dynamo, free=False, least=0, keywords=keywords)

    def test_an_exported_program_runs_in_pytorch(self):
        x = images(1, 64, 64)
        program, _ = prepared(SWINS["transformers backbone"](), x)
        with torch.no_grad():
            expected = leaves(program(x))
            exported = torch.export.export(program, (x,), strict=False)
            with tempfile.TemporaryDirectory() as folder:
                # What AOTInductor makes of it runs without Python; here it is called from Python.
                package = torch._inductor.aoti_compile_and_package(exported, package_path=f"{folder}/program.pt2")
                results = [leaves(exported.module()(x)), leaves(torch._inductor.aoti_load_package(package)(x))]
        for found in results:
            for (_, one), (place, two) in zip(found, expected, strict=True):
                self.assertGreater(decibels(one, two), LEAST, place)

    def test_a_strict_export_says_how_to_export(self):
        x = images(1, 64, 64)
        program, _ = prepared(SWINS["transformers backbone"](), x)
        with self.assertRaisesRegex(Exception, "torch.export.export takes it with strict=False"):
            torch.export.export(program, (x,), strict=True)

    def test_what_cannot_be_exported_is_named(self):
        x = images(2)
        program, _ = prepared(SWINS["timm list"](), x)
        free = ({2: torch.export.Dim("height", min=64, max=512)},)
        export = lambda x, **options: torch.export.export(program, (x,), strict=False, **options)
        with self.assertRaisesRegex(Exception, "leave them out of dynamic_shapes"):
            export(x, dynamic_shapes=free)
        with self.assertRaisesRegex(Exception, "export the model in float32"):
            export(x.half())
        older = {"dynamo": False, "input_names": ["images"], "output_names": ["map"]}
        for axes in ({"images": {0: "batch", 2: "height"}}, {"images": [0, 3]}):
            with self.assertRaisesRegex(swinq.ArgumentError, "dynamic_axes: frees the axis [23] of `images`.*leave them out of dynamic_axes"):
                torch.onnx.export(program, (x,), io.BytesIO(), dynamic_axes=axes, **older)
        torch.onnx.export(program, (x,), io.BytesIO(), dynamic_axes={"images": {0: "batch"}, "map": {0: "batch", 1: "height"}}, **older)
        program.backbone._values._held = {}
        program.backbone._values.hold = lambda module: None
        with self.assertRaisesRegex(Exception, r"hides the values of the parameters of FeatureListNet.*dynamo=False"):
            export(x)
        program.train()
        with self.assertRaisesRegex(Exception, r"call eval\(\) on the model"):
            export(x)


if __name__ == "__main__":
    unittest.main()
