"""Quantization-aware training on a GPU: the kernels against operations of PyTorch, and prepared Swins against the engine."""

import copy
import os
import unittest

from needed import need

need("torch")

import torch

from torch_kernels import CASES, attention_case, quantizer_case
from torch_models import SWINS, images
from torch_support import Inside, error, leaves

import swinq.torch
from swinq._training import attention, fake

#: By how many dB the pass is at least nearer to the engine than the engine is to float, and the most that it may be farther from
#: float.
NEARER, FARTHER = 2, 0.5


def decibels(found, expected) -> float:
    return -20 * torch.log10(torch.tensor(error(found, expected)).clamp_min(1e-30)).item()


def loss_of(output):
    return sum(value.float().square().mean() for _, value in leaves(output))


@unittest.skipUnless(torch.cuda.is_available() or "cuda" in os.environ.get("REQUIRE_IMPL", ""), "no GPU")
class Gpu(unittest.TestCase):
    def test_codes_are_those_of_the_cpu(self):
        for kind in ("tensor", "rows", "columns"):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                x, quantizer = quantizer_case(kind, dtype)
                on_gpu = fake.Quantizer(
                    quantizer.scale.cuda(),
                    None if quantizer.zero_points is None else quantizer.zero_points.cuda(),
                    quantizer.low,
                    quantizer.high,
                )
                expected = fake.fake_quantize(x, quantizer, torch.float32)
                found = fake.fake_quantize(x.cuda(), on_gpu, torch.float32)
                self.assertTrue(torch.equal(found.cpu(), expected), (kind, dtype))

    def test_attention_is_that_of_operations(self):
        for case in CASES:
            with self.subTest(case):
                results = []
                for kind, device in ((attention.composed, "cpu"), (attention.attention, "cuda")):
                    results.append(attention_case(case, kind, device, torch.float32))
                for name in results[0]:
                    self.assertLess(error(results[1][name].cpu(), results[0][name]), 5e-3, name)
                half = attention_case(case, attention.attention, "cuda", torch.bfloat16)
                for name in results[0]:
                    self.assertLess(error(half[name].float().cpu(), results[0][name]), 5e-2, name)

    def test_every_library_trains_what_the_engine_runs(self):
        for name, make in SWINS.items():
            with self.subTest(name):
                module, x = Inside(make()).cuda(), images(2).cuda()
                with torch.no_grad():
                    exact = leaves(module(x))
                swinq.torch.prepare(module, [x])
                with torch.no_grad():
                    found = leaves(module(x))
                loss_of(module.train()(x)).backward()
                on_gpu = {key: value.grad for key, value in module.named_parameters() if value.grad is not None}
                on_cpu = copy.deepcopy(module).cpu()
                on_cpu.zero_grad()
                loss_of(on_cpu(x.cpu())).backward()
                for key, value in on_cpu.named_parameters():
                    if value.grad is not None and value.grad.norm() > 1e-6:
                        self.assertLess(error(on_gpu[key].cpu(), value.grad), 0.1, key)
                # The engine on a CPU has the bits of that on a GPU with a residual stream in f32, and takes heads of any width.
                swinq.torch.convert(module.eval(), backend="cpu")
                with torch.no_grad():
                    engine = leaves(module(x))
                for (_, one), (_, two), (_, four) in zip(engine, found, exact, strict=True):
                    differ = int((one.cpu() != two.cpu()).sum())
                    print(f"{name}: {decibels(two, one):.1f} dB from the engine ({differ} of {one.numel()} differ), {decibels(one, four):.1f} from float")
                    self.assertGreater(decibels(two, one), decibels(one, four) + NEARER)
                    self.assertGreater(decibels(two, four), decibels(one, four) - FARTHER)

    def test_half_precision_trains(self):
        for dtype in (torch.bfloat16, torch.float16):
            module, x = Inside(SWINS["timm any size"]()).cuda(), images(2).cuda()
            swinq.torch.prepare(module, [x], learned="all")
            optimizer, scaler = torch.optim.AdamW(module.parameters(), lr=1e-3), torch.amp.GradScaler(enabled=dtype == torch.float16)
            losses = []
            for _ in range(12):
                with torch.autocast("cuda", dtype):
                    loss = loss_of(module.train()(x))
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                losses.append(loss.item())
            self.assertLess(losses[-1], 0.8 * losses[0])

    def test_graphs_compute_what_the_module_computes(self):
        module, x = Inside(SWINS["timm any size"]()).cuda(), images(2).cuda()
        swinq.torch.prepare(module, [x], learned="all")
        graphed = copy.deepcopy(module).train()
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            graphed.backbone = torch.cuda.make_graphed_callables(graphed.backbone, (x,))
        for model in (module.train(), graphed):
            for _ in range(2):
                model.zero_grad()
                with torch.autocast("cuda", torch.bfloat16):
                    loss_of(model(x)).backward()
        gradients = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
        found = {name: parameter.grad for name, parameter in graphed.named_parameters() if parameter.grad is not None}
        self.assertEqual(set(gradients), set(found))
        for name, gradient in gradients.items():
            if gradient.norm() > 1e-6:
                self.assertLess(error(found[name], gradient), 0.02, name)

    def test_heads_of_other_sizes_take_operations(self):
        q = torch.randn(3, 4, 600, 8, device="cuda")
        self.assertFalse(fake.kernels().takes_attention((q[0],), attention.Windows(600, 1, None, None), attention.Sites()))


if __name__ == "__main__":
    unittest.main()
