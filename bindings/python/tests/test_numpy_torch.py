"""PyTorch is optional: what the package does without it. The tests need numpy only."""

import subprocess
import sys
import unittest

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


if __name__ == "__main__":
    unittest.main()
