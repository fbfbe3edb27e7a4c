"""The private sub-packages of the package: what each may import, and the names that pickles have."""

import ast
import importlib
import pickle
import pickletools
import re
import unittest
from graphlib import TopologicalSorter
from pathlib import Path

from support import ROOT

import swinq

PACKAGE = Path(swinq.__file__).parent
#: The public modules, which may import all rooms.
PUBLIC = {"", "__main__", "torch", "transformers", "pickled"}


def sources() -> dict[str, Path]:
    """The files of the package by module, without ``swinq.``."""
    named = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {module.removesuffix("__init__").removesuffix("."): path for module, path in named.items()}


class Imports(ast.NodeVisitor):
    """The modules of the package that a file imports, also within functions: all but those ``if TYPE_CHECKING``, which nothing runs.
    That a module needs the packages around it does not count."""

    def __init__(self, module: str, path: Path, modules: dict[str, Path]) -> None:
        self.package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        self.modules, self.found = modules, set()
        self.visit(ast.parse(path.read_text(encoding="utf-8")))
        self.found.discard(module)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            assert alias.name.partition(".")[0] != "swinq", f"line {node.lineno}: imports within the package are relative"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert (node.module or "").partition(".")[0] != "swinq" or node.level, f"line {node.lineno}: imports within the package are relative"
        if not node.level:
            return
        package = [part for part in self.package if part]
        base = package[: len(package) + 1 - node.level] + (node.module.split(".") if node.module else [])
        for alias in node.names:
            whole = ".".join([*base, alias.name])
            self.found.add(whole if whole in self.modules or whole == "_native" else ".".join(base))


def imports() -> dict[str, set[str]]:
    """The modules of the package that each of them imports."""
    modules = sources()
    return {module: Imports(module, path, modules).found for module, path in modules.items()}


class Rooms(unittest.TestCase):
    def test_no_files_import_each_other(self):
        order = list(TopologicalSorter(imports()).static_order())
        self.assertGreater(len(order), 60)

    def test_a_room_imports_those_only_that_the_table_has_before_it(self):
        text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
        table = text[text.index("| Room |") :].split("\n\n")[0]
        rooms = re.findall(r"^\| `(_\w+)` \|", table, re.MULTILINE)
        self.assertEqual(set(rooms), {module.partition(".")[0] for module in sources()} - PUBLIC)
        for module, found in imports().items():
            room = module.partition(".")[0]
            if room in PUBLIC:
                continue
            for other in {name.partition(".")[0] for name in found} - {"_native"}:
                self.assertIn(other, rooms[: rooms.index(room) + 1], f"{module} imports {other}")

    def test_each_room_says_what_it_has(self):
        for module, path in sources().items():
            self.assertTrue(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), module)


class Pickles(unittest.TestCase):
    def test_results_and_errors_have_public_names(self):
        results = [swinq.Class(1, "cat", 0.5), swinq.Site("head", True, 8, "s8", "tensor", 1.0, 0.1)]
        errors = [getattr(swinq, name)("text") for name in swinq.__all__ if name.endswith("Error")]
        errors.append(importlib.import_module("swinq._common.errors").PreprocessingError("text"))
        for value in results + errors:
            data = pickle.dumps(value, protocol=2)
            named = [argument for op, argument, _ in pickletools.genops(data) if op.name == "GLOBAL"]
            self.assertIn(f"swinq {type(value).__name__}", named)
            self.assertEqual(repr(pickle.loads(data)), repr(value))


if __name__ == "__main__":
    unittest.main()
