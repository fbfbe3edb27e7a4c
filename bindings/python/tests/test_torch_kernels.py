"""The kernels of training in Triton's interpreter, against operations of PyTorch."""

import os
import unittest

os.environ["TRITON_INTERPRET"] = "1"
from needed import need

need("torch", "transformers", "triton")

import torch
import transformers

from torch_kernels import CASES, attention_case, quantizer_case
from torch_models import images, randomise
from torch_support import error

import swinq.torch
from swinq import _kernels, _native
from swinq._training import attention, fake


def table() -> torch.Tensor:
    return torch.frombuffer(bytearray(_native.gelu_table()), dtype=torch.float32).reshape(3, 32)


class Kernels(unittest.TestCase):
    def test_fake_quantization(self):
        for kind in ("tensor", "rows", "columns"):
            for gelu in (False, True):
                with self.subTest(kind=kind, gelu=gelu):
                    x, quantizer = quantizer_case(kind)
                    of_gelu = table() if gelu else None
                    grad, recip = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)), quantizer.recip()
                    found = _kernels.fake_quantize(x, quantizer.scale, recip, quantizer, torch.float32, of_gelu)
                    dx, dscale = _kernels.fake_quantize_gradient(x, quantizer.scale, recip, quantizer, grad, gelu, True)
                    x.requires_grad_()
                    scale = quantizer.scale.clone().requires_grad_()
                    learned = fake.Quantizer(scale, quantizer.zero_points, quantizer.low, quantizer.high)
                    expected = fake.fake_quantize(x, learned, torch.float32, of_gelu)
                    expected.backward(grad)
                    self.assertEqual(int((found != expected).sum()), 0)
                    self.assertLess(error(dx, x.grad), 1e-5)
                    self.assertLess(error(dscale, scale.grad), 1e-4)

    def test_rows(self):
        x, rows = torch.randn(2, 10, 24), torch.tensor([3, -1, 0, 9, 5, -1, 1, 2, 4, 6, 7, 8])
        self.assertTrue(torch.equal(_kernels.gather(x, rows), fake._rows(x, rows)))

    def test_weights(self):
        for dtype in (torch.float32, torch.float16):
            weight = torch.randn(7, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
            weight[3] = 0
            factors = torch.rand(40, generator=torch.Generator().manual_seed(1)) + 0.5
            for of_columns in (None, torch.stack([factors, factors.reciprocal()])):
                expected = fake.fake_weight(weight, 7, 7.0, of_columns, torch.float32)
                found = _kernels.fake_weight(weight, 7.0, of_columns, torch.float32)
                self.assertTrue(torch.equal(found, expected))

    def test_layer_norm(self):
        generator = torch.Generator().manual_seed(0)
        rows = torch.tensor([3, -1, 0, 9, 5, -1, 1, 2, 4, 6, 7, 8])
        back = torch.tensor([2, 6, 7, 0, 8, 4, 9, 10, 11, 3])
        for width in (24, 48):
            for maps in (None, (rows, back)):
                for site in (None, torch.tensor([0.02])):
                    results = []
                    for kernels in (False, True):
                        generator.manual_seed(1)
                        x = torch.randn(2, 10, width, generator=generator).requires_grad_()
                        weight, bias = (torch.randn(width, generator=generator).requires_grad_() for _ in range(2))
                        scale = None if site is None else site.clone().requires_grad_()
                        quantizer = None if site is None else fake.Quantizer(scale)
                        fake.interpreted = kernels
                        try:
                            found = fake.norm(x, weight, bias, 1e-5, quantizer, torch.float32, maps)
                            found.backward(torch.randn(found.shape, generator=generator))
                        finally:
                            fake.interpreted = False
                        leaves = [value for value in (x, weight, bias, scale) if value is not None]
                        results.append([found.detach(), *(value.grad for value in leaves)])
                    for one, other in zip(*results, strict=True):
                        self.assertLess(error(other, one), 2e-3)

    def test_the_whole_pass_has_the_bits_of_the_engine(self):
        sizes = {"embed_dim": 32, "depths": [1, 2], "num_heads": [1, 2], "window_size": 4, "image_size": 64}
        config = transformers.SwinConfig(**sizes, out_features=["stage1", "stage2"])
        swin = swinq.torch.prepare(randomise(transformers.SwinBackbone(config)), [images(2, 48, 64)]).model
        x = images(1, 36, 48)
        with torch.no_grad():
            engine = swin.eval()(x).feature_maps
            composed = swin.train()(x).feature_maps
            fake.interpreted = True
            try:
                kernels = swin(x).feature_maps
            finally:
                fake.interpreted = False
        for one, two, three in zip(engine, composed, kernels, strict=True):
            self.assertTrue(torch.equal(one, three))
            self.assertLess(error(two, one), 1e-5)

    def test_attention(self):
        for case in CASES:
            with self.subTest(case):
                expected = attention_case(case, attention.composed, "cpu", torch.float32)
                found = attention_case(case, _kernels.attention, "cpu", torch.float32)
                self.assertEqual(list(found), list(expected))
                for name, value in expected.items():
                    self.assertLess(error(found[name], value), 1e-4, name)


if __name__ == "__main__":
    unittest.main()
