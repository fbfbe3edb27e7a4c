"""Comparison of the outputs of programs in PyTorch."""

import threading
import unittest

import torch
from torch_models import images

import swinq.torch

#: What the outputs of a replaced Swin with no site quantized may differ by, relative to their norm; and the signal to noise in dB
#: that INT8 keeps.
SAME, INT8 = 1e-5, 25


def leaves(value, path="output"):
    """The tensors of an output, with their places."""
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if hasattr(value, "decompose"):
        return [(f"{path}.tensors", value.tensors), (f"{path}.mask", value.mask)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple | list) else []
    return [found for key, part in items for found in leaves(part, f"{path}.{key}")]


def error(found, expected) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30)).item()


def in_threads(work, count: int) -> None:
    """Calls ``work(index)`` in ``count`` threads, and waits for all."""
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def every_call(calls):
    """A calibration with ``calls``: pairs of arguments and keywords."""

    def run(model):
        for args, kwargs in calls:
            model(*args, **kwargs)

    return run


def outputs(model, calls):
    with torch.no_grad():
        return [model(*args, **kwargs) for args, kwargs in calls]


class Inside(torch.nn.Module):
    """A program with a Swin, and with parameters of its own."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.conv = backbone, torch.nn.Conv2d(3, 3, 1)
        self.eval()

    def forward(self, x):
        return self.backbone(x)


class Case(unittest.TestCase):
    def assert_alike(self, found, expected, limit):
        """Both have the same structure and types, and tensors that differ by ``limit`` at most."""
        self.assertIs(type(found), type(expected))
        found, expected = leaves(found), leaves(expected)
        self.assertGreater(len(expected), 0)
        self.assertEqual([(path, one.shape, one.dtype) for path, one in found], [(path, one.shape, one.dtype) for path, one in expected])
        for (path, one), (_, other) in zip(found, expected, strict=True):
            self.assertLess(error(one, other), limit, path)

    def check_calls(self, model, calls, count):
        """``count`` parts of ``model`` that are replaced in float: its outputs are the same, and afterwards it is as before."""
        state = {key: value.clone() for key, value in model.state_dict().items()}
        expected = outputs(model, calls)
        report = swinq.torch.quantize(model, every_call(calls), recipe=None, share=False)
        self.assertEqual(len(report.replaced), count, report)
        for found, wanted in zip(outputs(model, calls), expected, strict=True):
            self.assert_alike(found, wanted, SAME)
        swinq.torch.restore(model)
        self.assertEqual(list(model.state_dict()), list(state))
        for key, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, state[key]), key)
        for found, wanted in zip(outputs(model, calls), expected, strict=True):
            self.assert_alike(found, wanted, 1e-30)

    def check(self, module, name=""):
        """A Swin inside a program: in float its outputs are the same, in INT8 close; afterwards it is as before."""
        program, small, large = Inside(module), images(3), images(1, 224, 224, seed=1)
        with torch.no_grad():
            expected = [program(batch) for batch in (small, large)]
            state = {key: value.clone() for key, value in program.state_dict().items()}
            for recipe, limit in [(None, SAME), ("default", 10 ** (-INT8 / 20))]:
                report = swinq.torch.quantize(program, [small, (large, 3)], recipe)
                (replaced,) = report.replaced
                self.assertIs(report.model, program)
                self.assertEqual((replaced.names, replaced.images, report.left), (("backbone",), 4, []))
                self.assertEqual(replaced.int8_sites > 0, recipe is not None)
                self.assertGreater(min(replaced.sqnr_db.values()), 100 if recipe is None else INT8)
                self.assertIn("backbone", str(report))
                self.assertNotIn("report.model", str(report))
                self.assertEqual(list(program.state_dict()), ["conv.weight", "conv.bias"])
                for batch, values in zip((small, large), expected, strict=True):
                    self.assert_alike(program(batch), values, limit)
                print(f"{name or type(module).__name__}: {replaced}")
                self.assertIs(swinq.torch.restore(program), program)
                self.assertIs(program.backbone, module)
            self.assert_alike(program(small), expected[0], 1e-30)
        self.assertEqual(list(program.state_dict()), list(state))
