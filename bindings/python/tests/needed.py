"""Packages that a file of tests needs."""

import importlib
import os
import unittest


def need(*packages: str, name: str = "torch") -> None:
    """Skips the file that calls it if a package is missing; raises if ``REQUIRE_IMPL`` names ``name``."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as missing:
            if name in os.environ.get("REQUIRE_IMPL", ""):
                raise
            raise unittest.SkipTest(f"{missing}") from missing
