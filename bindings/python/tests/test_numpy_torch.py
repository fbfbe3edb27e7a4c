"""PyTorch is optional: what the package does without it. The tests need numpy only."""

import ast
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np

import swinq
from swinq import _native

#: The engine in numpy, whose own imports this test does not need.
ENGINE = Path(__file__).resolve().parents[3] / "docs/examples/engine.py"

#: A process in which no module named torch can be imported, whether or not one is installed.
WITHOUT = "import sys; sys.modules['torch'] = None; "


def run(code: str) -> str:
    """What a process prints that runs ``code``."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


class Optional(unittest.TestCase):
    def test_the_package_does_not_import_it(self):
        self.assertEqual(run("import sys, swinq; print('torch' in sys.modules)"), "False\n")

    def test_the_error_says_how_to_get_it(self):
        code = "\ntry:\n    import swinq.torch\nexcept ImportError as error:\n    print(error)"
        self.assertIn("pip install torch", run(f"{WITHOUT}{code}"))
        self.assertEqual(run(f"{WITHOUT}import swinq; print(swinq.Model.__name__)"), "Model\n")


class Contract(unittest.TestCase):
    """The constants of the number contract have one source, the engine's."""

    def setUp(self):
        self.contract = _native.contract()

    def test_it_equals_the_documented_numbers(self):
        stated = re.search(r"^EXP_255 = np.array\((\[.*\]), f32\)$", ENGINE.read_text(), re.MULTILINE)
        np.testing.assert_array_equal(np.array(self.contract.exp_255[::-1], np.float32), np.array(json.loads(stated[1]), np.float32))
        found = {name: getattr(self.contract, name) for name in dir(self.contract) if not name.startswith("_")}
        del found["exp_255"]
        self.assertEqual(
            found,
            {
                "code_min": -128.0,
                "code_max": 127.0,
                "edge": 1.0 + 2.0**-20,
                "signed_rounder": 1.5 * 2.0**23,
                "rounder": 2.0**23,
                "gelu_per_unit": 6.5,
                "gelu_last": 4.769231,
                "log2_e": np.log2(np.e),
                "code_floor": -11.0,
                "lo_steps": 256.0,
                "hi_lo_from": 16.0,
                "largest_scale": 100.0,
                "largest_bias": 16.0,
                "mask": -100.0,
            },
        )

    def test_no_file_of_training_has_a_constant_of_its_own(self):
        known = {name: getattr(self.contract, name) for name in dir(self.contract) if not name.startswith("_")}
        values = {abs(value) for field in known.values() for value in (field if isinstance(field, list | tuple) else [field])}
        package = Path(swinq.__file__).parent
        sources = [path for path in package.rglob("*.py") if "torch" in path.read_text()]
        self.assertGreater(len(sources), 15)
        for path in sources:
            for number in ast.walk(ast.parse(path.read_text())):
                if isinstance(number, ast.Constant) and type(number.value) is float:
                    self.assertNotIn(number.value, values, f"{path.name}:{number.lineno}: take it from _common/contract.py")


if __name__ == "__main__":
    unittest.main()
