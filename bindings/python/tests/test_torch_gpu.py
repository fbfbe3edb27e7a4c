"""CUDA tensors: engines and modules read and write them where they are, on PyTorch's current stream.

The tests need PyTorch and an NVIDIA GPU. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch`` and ``cuda``.
"""

import os
import unittest

import swinq

try:
    import torch

    WITHOUT = None if torch.cuda.is_available() or "cuda" in os.environ.get("REQUIRE_IMPL", "") else "there is no GPU"
except ImportError:
    if "torch" in os.environ.get("REQUIRE_IMPL", ""):
        raise
    WITHOUT = "PyTorch is not installed"

if WITHOUT is None:
    import swinq.torch
    from torch_models import PROGRAMS, images, of_timm, randomise
    from torch_support import Inside, error, in_threads, leaves

    from swinq import _native

DEVICE = "cuda:0"
#: Heads of 32 channels, as the kernels for GPUs need them.
GPU = {"embed_dim": 64, "num_heads": [2, 4]}


def backbone() -> swinq.Model:
    """A small backbone in INT8, which takes any size."""
    module = of_timm(**GPU, features_only=True, out_indices=(0, 1), strict_img_size=False)
    program = Inside(module)
    with torch.no_grad():
        swinq.torch.quantize(program, [images(4), images(1, 256, 320)], backend="cpu")
    return program.backbone.model


class Interface:
    """An array with ``__cuda_array_interface__`` and nothing else."""

    def __init__(self, tensor):
        self._tensor = tensor

    @property
    def __cuda_array_interface__(self):
        return self._tensor.__cuda_array_interface__


class Exported:
    """An array with DLPack and nothing else. Before DLPack 1.0 there was no ``max_version``."""

    def __init__(self, tensor, old=False):
        self._tensor, self._old = tensor, old

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, stream=None, **more):
        if self._old and more:
            raise TypeError("max_version")
        return self._tensor.__dlpack__(stream=stream, **more)


@unittest.skipIf(WITHOUT is not None, f"{WITHOUT}")
class Gpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = backbone()
        cls.cpu = cls.model.engine(backend="cpu")
        #: With an f32 stream the results have the bits of the CPU.
        cls.engine = cls.model.engine(backend="cuda", residual="f32")
        cls.images = images(2, 224, 256)

    def assert_equal(self, found, expected):
        self.assertEqual(list(found), list(expected))
        for name, value in expected.items():
            self.assertTrue(torch.equal(found[name].cpu(), value.cpu()), name)

    def test_tensors_of_every_type_and_layout_have_the_bits_of_the_cpu(self):
        for height, width, count in [(224, 256, 2), (128, 96, 1), (64, 160, 11)]:
            batch = images(count, height, width)
            on_gpu = batch.to(DEVICE)
            expected = self.cpu.run(batch)
            found = self.engine.run(on_gpu)
            self.assertTrue(all(value.device == on_gpu.device for value in found.values()))
            self.assert_equal(found, expected)
            self.assert_equal(self.engine.run(on_gpu.to(memory_format=torch.channels_last)), expected)
            self.assert_equal(self.engine.run(on_gpu.transpose(2, 3).contiguous().transpose(2, 3)), expected)
            self.assert_equal(self.engine.run(on_gpu.permute(0, 2, 3, 1).contiguous(), layout="NHWC"), expected)
            last = {name: value.permute(0, 2, 3, 1) for name, value in expected.items()}
            self.assert_equal(self.engine.run(on_gpu, out_layout="NHWC"), last)
            self.assert_equal(self.cpu.run(batch, out_layout="NHWC"), last)
            halves = self.cpu.run(batch.half(), dtype="float16")
            self.assert_equal(self.engine.run(on_gpu.half(), dtype="float16"), halves)
            bf16 = {name: value.bfloat16() for name, value in self.cpu.run(batch.bfloat16().float()).items()}
            self.assert_equal(self.engine.run(on_gpu.bfloat16(), dtype="bfloat16"), bf16)
        self.engine.check()

    def test_arrays_of_other_libraries(self):
        batch = self.images.to(DEVICE)
        expected = self.engine.run(batch)
        for kind in (Interface, Exported, lambda tensor: Exported(tensor, old=True)):
            out = {name: torch.full_like(value, 7) for name, value in expected.items()}
            torch.cuda.synchronize()
            found = self.engine.run(kind(batch), out={name: kind(value) for name, value in out.items()})
            torch.cuda.synchronize()
            self.assertEqual(list(found), list(out))
            self.assert_equal(out, expected)
            with self.assertRaisesRegex(swinq.ArgumentError, "out: there is no memory for `stage1`"):
                self.engine.run(kind(batch))

    def test_a_capsule_is_taken_once_and_gives_its_array_back(self):
        tensor = torch.ones(3, 4, device=DEVICE)
        capsule = tensor.__dlpack__()
        array = _native.DeviceArray(capsule)
        found = (array.data, array.shape, array.dtype, array.device, array.is_dense, array.is_read_only)
        self.assertEqual(found, (tensor.data_ptr(), [3, 4], "float32", 0, True, False))
        with self.assertRaisesRegex(TypeError, "taken before"):
            _native.DeviceArray(capsule)
        before = torch.cuda.memory_allocated()
        del tensor
        self.assertEqual(torch.cuda.memory_allocated(), before)
        del array, capsule
        self.assertLess(torch.cuda.memory_allocated(), before)
        self.assertFalse(_native.DeviceArray(torch.ones(3, 4, device=DEVICE).t().__dlpack__()).is_dense)

    def test_mistakes_are_named(self):
        batch = self.images.to(DEVICE)
        stage1 = self.engine.run(batch)["stage1"]
        with self.assertRaisesRegex(swinq.ArgumentError, "requires grad"):
            self.engine.run(batch.clone().requires_grad_())
        with torch.no_grad():
            self.engine.run(batch.clone().requires_grad_())
        with torch.inference_mode():
            self.engine.run(batch + 0)
        for given, options, text in [
            (batch.int(), {}, "an array of int32"),
            (batch[:, :2], {}, "the model takes float32"),
            (batch, {"outputs": ["stage9"]}, "stage9"),
            (batch, {"out": {"stage1": stage1[:1]}}, "out: `stage1` is"),
            (batch, {"out": {"stage1": stage1.transpose(2, 3)}}, "not contiguous"),
            (batch, {"out": {"stage1": stage1.double()}}, "float64"),
            (batch, {"dtype": "float64"}, "dtype"),
            (self.images, {"stream": 0}, "stream"),
        ]:
            with self.subTest(text=text), self.assertRaisesRegex(swinq.ArgumentError, text):
                self.engine.run(given, **options)
        with self.assertRaisesRegex(swinq.ArgumentError, "the engine runs on a CPU"):
            self.cpu.prepare(224, 224, 1, stream=torch.cuda.current_stream().cuda_stream)

    def test_a_value_that_is_not_finite_raises_at_the_next_call(self):
        batch = self.images.to(DEVICE)
        sound = self.engine.run(batch)
        bad = batch.clone()
        bad[1, 2, 3, 4] = float("nan")
        found = self.engine.run(bad)
        torch.cuda.synchronize()
        self.assertTrue(all(value.isnan().all().item() for value in found.values()))
        with self.assertRaisesRegex(swinq.EngineError, "a value of the images is NaN or infinite"):
            self.engine.run(batch)
        self.engine.check()
        self.assert_equal(self.engine.run(batch), sound)

    def test_a_call_does_not_wait_for_the_stream(self):
        batch = self.images.to(DEVICE)
        self.engine.run(batch)
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)
        self.engine.run(batch)
        self.assertFalse(torch.cuda.current_stream().query(), "the call has waited")
        torch.cuda.synchronize()

    def test_graphs_of_pytorch_keep_what_they_use(self):
        engine = self.model.engine(backend="cuda", max_streams=2)
        static = torch.zeros(1, 3, 160, 96, device=DEVICE)

        def record():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = engine.run(static)
            return graph, found

        with self.assertRaisesRegex(swinq.ArgumentError, "are not prepared"):
            record()
        engine.prepare(160, 96, 1, stream=torch.cuda.current_stream().cuda_stream)
        graph, found = record()
        with self.assertRaisesRegex(swinq.ArgumentError, "are not prepared"):
            record()
        for seed in range(3):
            static.copy_(images(1, 160, 96, seed=seed))
            graph.replay()
            # More sizes than are kept, and larger ones.
            for side in range(20):
                engine.run(images(1, 64 + 16 * side, 64).to(DEVICE))
            torch.cuda.synchronize()
            self.assert_equal(found, engine.run(static))
        # A second graph takes the memory of the stream, and nothing is left for others.
        engine.run(static)
        second, _ = record()
        with self.assertRaisesRegex(swinq.EngineError, "max_streams"):
            engine.prepare(160, 96, 1)
        del second
        torch.cuda.synchronize()
        engine.prepare(160, 96, 1)

    def test_threads_with_streams_of_their_own(self):
        engine = self.model.engine(backend="cuda", max_streams=3)
        sizes = [(96, 64 + 32 * index) for index in range(6)]
        expected = [self.model.engine(backend="cuda").run(images(1, *size).to(DEVICE)) for size in sizes]
        found: dict[int, list] = {}

        def work(index):
            with torch.cuda.stream(torch.cuda.Stream()):
                batch = images(1, *sizes[index]).to(DEVICE)
                found[index] = [engine.run(batch) for _ in range(20)]
                torch.cuda.current_stream().synchronize()

        in_threads(work, len(sizes))
        for index, values in enumerate(expected):
            for outputs in found[index]:
                self.assert_equal(outputs, values)

    def test_another_stream_is_told_to_pytorch(self):
        batch, stream = self.images.to(DEVICE), torch.cuda.Stream()
        expected = self.engine.run(batch)
        stream.wait_stream(torch.cuda.current_stream())
        found = self.engine.run(batch, stream=stream.cuda_stream)
        stream.synchronize()
        self.assert_equal(found, expected)


if WITHOUT is None:

    class Keywords(Inside):
        """A program that calls its backbone as those of transformers do."""

        def forward(self, x):
            return self.backbone.forward_with_filtered_kwargs(x, output_hidden_states=False, output_attentions=None).feature_maps


@unittest.skipIf(WITHOUT is not None, f"{WITHOUT}")
class Modules(unittest.TestCase):
    def test_programs_of_transformers(self):
        for name, make in PROGRAMS.items():
            with self.subTest(name=name):
                program, more = make()
                randomise(program).to(DEVICE)
                more = {key: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for key, value in more.items()}
                batch = images(2, 128, 128).to(DEVICE)

                def call(model, batch=batch, more=more):
                    return model(pixel_values=batch, **more)

                with torch.no_grad():
                    expected = [value.clone() for _, value in leaves(call(program))]
                    report = swinq.torch.quantize(program, call)
                    found = [value for _, value in leaves(call(program))]
                    torch.cuda.synchronize()
                    for swin in (part for part in program.modules() if isinstance(part, swinq.torch.SwinModule)):
                        self.assertEqual(swin.engine_for(batch.device).backend, "cuda")
                        swin.check()
                    swinq.torch.restore(program)
                    again = [value for _, value in leaves(call(program))]
                print(f"{name}: {report.replaced[0]}")
                self.assertGreater(min(report.replaced[0].sqnr_db.values()), 25)
                for one, other, before in zip(found, again, expected, strict=True):
                    self.assertEqual((one.shape, one.dtype, one.device), (before.shape, before.dtype, before.device))
                    if before.is_floating_point() and before.isfinite().all():
                        self.assertLess(error(other, before), 1e-4, "restored")

    def test_a_compiled_program_is_one_cuda_graph(self):
        """Under reduce-overhead the launches of the engine are part of the graph, with keywords and without."""
        program = PROGRAMS["UPerNet"]()[0].backbone
        program, other = Keywords(randomise(program)).to(DEVICE), Inside(of_timm(**GPU, features_only=True, out_indices=(0, 1))).to(DEVICE)
        for model in (program, other):
            batch = images(2).to(DEVICE)
            with torch.no_grad():
                swinq.torch.quantize(model, [batch])
                torch.compiler.reset()
                counters = torch._dynamo.utils.counters
                counters.clear()
                compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
                for seed in range(4):
                    batch = images(2, seed=seed).to(DEVICE)
                    for (_, one), (_, two) in zip(leaves(compiled(batch)), leaves(model(batch)), strict=True):
                        self.assertTrue(torch.equal(one, two))
                self.assertEqual((counters["stats"]["unique_graphs"], counters["inductor"]["cudagraph_skips"]), (1, 0))
                # A replay that meets a value that is not finite raises at the next check.
                compiled(torch.full_like(batch, float("nan")))
                torch.cuda.synchronize()
                with self.assertRaisesRegex(swinq.EngineError, "not finite"):
                    model.backbone.check()
                model.backbone.check()

    def test_a_search_runs_candidates_on_the_gpu_and_counts_its_latency(self):
        program, x = Inside(of_timm(**GPU, features_only=True, out_indices=(0, 1))).to(DEVICE), images(4).to(DEVICE)
        with torch.no_grad():
            expected = [value for _, value in leaves(program(x))]

        def near(model):
            found = [value for _, value in leaves(model(x))]
            self.assertTrue(all(value.is_cuda for value in found))
            return -max(error(value, other) for value, other in zip(found, expected, strict=True))

        found = swinq.torch.tune(program, [x], near, max_drop=1.0, budget=0)
        self.assertEqual((found.kept, found.results["cost"]["backend"], found.results["cost"]["image_size"]), (True, "cuda", [224, 224]))
        self.assertTrue(-0.1 < found.best.value < -1e-3 and 0 < found.best.predicted_ms < found.float_predicted_ms, found)

    def test_types_follow_the_images(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            program = Inside(of_timm(**GPU, features_only=True, out_indices=(0, 1)).to(dtype)).to(DEVICE)
            program.conv.to(dtype)
            batch = images(2).to(DEVICE, dtype)
            with torch.no_grad():
                expected = program(batch)
                swinq.torch.quantize(program, [batch])
                for one, other in zip(program(batch), expected, strict=True):
                    self.assertEqual((one.dtype, one.device, one.shape), (other.dtype, other.device, other.shape))
                    self.assertLess(error(one, other), 0.06)
                program.backbone.check()


if __name__ == "__main__":
    unittest.main()
