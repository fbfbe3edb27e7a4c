"""A whole program in INT8 for ONNX Runtime: docs/examples/rest_int8.py, on a small UPerNet.

The tests need torch, timm, torchvision, transformers, onnx, onnxruntime, onnxscript and pillow. Without them they are skipped, unless
``REQUIRE_IMPL`` names ``onnx``.
"""

import contextlib
import io
import sys
import tempfile
import unittest
import warnings
from collections import Counter
from pathlib import Path
from unittest import mock

from needed import need

need("onnx", "onnxruntime", "onnxscript", "PIL", "timm", "torch", "torchvision", "transformers", name="onnx")

import numpy as np
import onnx
import onnxruntime
import transformers
from PIL import Image

from support import ROOT
from torch_models import PROGRAMS, redraw

sys.path.insert(0, str(ROOT / "docs/examples"))
import rest_int8

sys.path.pop(0)


class Rest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        warnings.simplefilter("ignore")
        program, _ = PROGRAMS["UPerNet"]()
        redraw(program, seed=1).save_pretrained(cls.folder / "model")
        transformers.SegformerImageProcessor().save_pretrained(cls.folder / "model")
        random = np.random.default_rng(0)
        (cls.folder / "photos").mkdir()
        for index in range(2):
            pixels = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((160, 128)).save(cls.folder / f"photos/{index}.png")
        cls.graph = cls.folder / "segmenter.onnx"
        command = ["rest_int8.py", str(cls.folder / "model"), str(cls.folder / "photos"), str(cls.graph), "--size", "128"]
        printed = io.StringIO()
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(printed):
            rest_int8.main()
        cls.printed = printed.getvalue().splitlines()[-1]

    def test_the_nodes_of_the_swin_stay_as_they_are(self):
        nodes = self.graph.with_suffix(".nodes.txt").read_text().split("\n")[:-1]
        before, after = (
            {node.name: node.SerializeToString() for node in onnx.load(path).graph.node}
            for path in (self.graph.with_suffix(".swin.onnx"), self.graph)
        )
        self.assertGreater(len(nodes), 100)
        self.assertEqual({name: before[name] for name in nodes}, {name: after[name] for name in nodes})

    def test_the_products_of_both_run_in_int8(self):
        found = []
        for path in (self.graph.with_suffix(".swin.onnx"), self.graph):
            options = onnxruntime.SessionOptions()
            options.optimized_model_filepath, options.log_severity_level = str(self.folder / "optimised.onnx"), 3
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            found.append(Counter(node.op_type for node in onnx.load(self.folder / "optimised.onnx").graph.node))
        swin, whole = found
        self.assertGreater(swin["MatMulIntegerToFloat"], 0)
        self.assertGreaterEqual(whole["MatMulIntegerToFloat"], swin["MatMulIntegerToFloat"])
        self.assertGreater(swin["Conv"] + swin["FusedConv"], 5)
        # The patch embedding is the Swin's.
        self.assertLessEqual(whole["Conv"] + whole["FusedConv"], 1)
        self.assertGreater(whole["QLinearConv"], 5)

    def test_the_noise_of_both_graphs_is_printed(self):
        self.assertRegex(self.printed, r"segmenter\.onnx: \d\d\.\d dB with the Swin in INT8, \d\d\.\d dB with all of it$")


if __name__ == "__main__":
    unittest.main()
