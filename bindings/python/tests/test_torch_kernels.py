"""The kernels of training in Triton's interpreter, against operations of PyTorch."""

import os
import unittest

os.environ["TRITON_INTERPRET"] = "1"
try:
    import torch
    import triton  # noqa: F401
except ImportError as error:
    if "torch" in os.environ.get("REQUIRE_IMPL", ""):
        raise
    raise unittest.SkipTest(f"{error}") from error

from torch_kernels import CASES, attention_case, quantizer_case
from torch_support import error

from swinq import _torch_attention, _torch_fake, _torch_kernels


class Kernels(unittest.TestCase):
    def test_fake_quantization(self):
        for kind in ("tensor", "rows", "columns"):
            for gelu in (False, True):
                with self.subTest(kind=kind, gelu=gelu):
                    x, quantizer = quantizer_case(kind)
                    grad, recip = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)), quantizer.recip()
                    found = _torch_kernels.fake_quantize(x, quantizer.scale, recip, quantizer, torch.float32, gelu)
                    dx, dscale = _torch_kernels.fake_quantize_gradient(x, quantizer.scale, recip, quantizer, grad, gelu, True)
                    x.requires_grad_()
                    scale = quantizer.scale.clone().requires_grad_()
                    learned = _torch_fake.Quantizer(scale, quantizer.zero_points, quantizer.low, quantizer.high)
                    expected = _torch_fake.fake_quantize(x, learned, torch.float32, gelu)
                    expected.backward(grad)
                    self.assertEqual(int((found != expected).sum()), 0)
                    self.assertLess(error(dx, x.grad), 1e-5)
                    self.assertLess(error(dscale, scale.grad), 1e-4)

    def test_rows(self):
        x, rows = torch.randn(2, 10, 24), torch.tensor([3, -1, 0, 9, 5, -1, 1, 2, 4, 6, 7, 8])
        self.assertTrue(torch.equal(_torch_kernels.gather(x, rows), _torch_fake._rows(x, rows)))

    def test_attention(self):
        for case in CASES:
            with self.subTest(case):
                expected = attention_case(case, _torch_attention.composed, "cpu", torch.float32)
                found = attention_case(case, _torch_kernels.attention, "cpu", torch.float32)
                self.assertEqual(list(found), list(expected))
                for name, value in expected.items():
                    self.assertLess(error(found[name], value), 1e-4, name)


if __name__ == "__main__":
    unittest.main()
