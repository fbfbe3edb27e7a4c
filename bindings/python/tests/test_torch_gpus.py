"""Modules and engines on several GPUs of a machine: each GPU has an engine, and calls leave the current device as it is.

The tests need PyTorch and two NVIDIA GPUs. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch`` and ``gpus``.
"""

import os
import unittest

import swinq

try:
    import torch

    FEW = not torch.cuda.is_available() or torch.cuda.device_count() < 2
    WITHOUT = "there are no two GPUs" if FEW and "gpus" not in os.environ.get("REQUIRE_IMPL", "") else None
except ImportError:
    if "torch" in os.environ.get("REQUIRE_IMPL", ""):
        raise
    WITHOUT = "PyTorch is not installed"

if WITHOUT is None:
    import swinq.torch
    from test_torch_gpu import GPU, backbone
    from torch_models import images, of_timm
    from torch_support import Inside, in_threads


@unittest.skipIf(WITHOUT is not None, f"{WITHOUT}")
class Gpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        cls.batch = images(2, 224, 256)
        cls.model = backbone()
        cls.expected = cls.model.engine(backend="cpu").run(cls.batch)

    def assert_equal(self, found, device):
        for name, value in self.expected.items():
            self.assertEqual(found[name].device, device)
            self.assertTrue(torch.equal(found[name].cpu(), value), name)

    def test_an_engine_of_each_gpu_has_the_bits_of_the_cpu(self):
        for device in self.devices:
            engine = self.model.engine(backend="cuda", device=device.index, residual="f32")
            found = engine.run(self.batch.to(device))
            self.assertEqual(torch.cuda.current_device(), 0)
            self.assert_equal(found, device)
            with torch.cuda.device(self.devices[-1]):
                self.assert_equal(engine.run(self.batch.to(device)), device)
                self.assertEqual(torch.cuda.current_device(), self.devices[-1].index)
            other = self.devices[device.index - 1]
            with self.assertRaisesRegex(swinq.ArgumentError, f"on GPU {other.index}, and the engine runs on GPU {device.index}"):
                engine.run(self.batch.to(other))
            with self.assertRaisesRegex(swinq.ArgumentError, f"on GPU {other.index}"):
                engine.run(self.batch.to(device), out={name: value.to(other) for name, value in found.items()})
            del engine
            self.assertEqual(torch.cuda.current_device(), 0, "after the engine's end")

    def test_threads_with_a_gpu_each(self):
        engines = [self.model.engine(backend="cuda", device=device.index, residual="f32") for device in self.devices]
        batches, found = [self.batch.to(device) for device in self.devices], {}

        def work(index):
            with torch.cuda.device(index), torch.cuda.stream(torch.cuda.Stream(index)):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                found[index] = [engines[index].run(batches[index]) for _ in range(20)]
                torch.cuda.current_stream().synchronize()

        in_threads(work, len(engines))
        for device in self.devices:
            for outputs in found[device.index]:
                self.assert_equal(outputs, device)

    def test_a_module_follows_its_images(self):
        program = Inside(of_timm(**GPU, features_only=True, out_indices=(0, 1)))
        batch = images(2)
        with torch.no_grad():
            swinq.torch.quantize(program, [batch], residual="f32")
            found = []
            for device in [*self.devices, self.devices[0]]:
                program.to(device)
                found.append(program(batch.to(device)))
                self.assertTrue(all(value.device == device for value in found[-1]))
            for outputs in found[1:]:
                for one, other in zip(outputs, found[0], strict=True):
                    self.assertTrue(torch.equal(one.cpu(), other.cpu()))
            replicas = torch.nn.parallel.replicate(program, self.devices)
            parts = torch.nn.parallel.parallel_apply(replicas, [(batch.to(device),) for device in self.devices])
            for outputs in parts:
                for one, other in zip(outputs, found[0], strict=True):
                    self.assertTrue(torch.equal(one.cpu(), other.cpu()))


if __name__ == "__main__":
    unittest.main()
