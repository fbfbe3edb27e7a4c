"""The rules of the module that ``swinq.torch.quantize`` puts in the place of a Swin, also of one that ``torch.compile`` wrapped.

The tests need torch, timm, torchvision and transformers. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import copy
import io
import multiprocessing
import pickle
import threading
import unittest
import warnings

from needed import need

need("timm", "torch", "torchvision", "transformers")

import torch

import torch_detector
from torch_models import SWINS, images, of_timm, of_torchvision, randomise
from torch_support import Case, Inside, leaves

import swinq
import swinq.torch


class Rules(Case):
    def setUp(self):
        self.program, self.batch = Inside(SWINS["transformers backbone"]()), images(1)
        self.float = self.program.backbone
        swinq.torch.quantize(self.program, [self.batch])
        self.expected = self.program(self.batch).feature_maps

    def same(self, found):
        self.assertTrue(all(map(torch.equal, found.feature_maps, self.expected)))

    def test_gradients(self):
        needy = self.batch.clone().requires_grad_()
        with self.assertRaisesRegex(swinq.EngineError, "no gradients.*torch.no_grad"):
            self.program(needy)
        with torch.no_grad():
            self.same(self.program(needy))
        with torch.inference_mode():
            self.same(self.program(self.batch.clone()))

    def test_other_arguments_are_named(self):
        swin = self.program.backbone
        self.same(swin(pixel_values=self.batch, output_hidden_states=False, return_dict=True))
        self.same(swin.forward_with_filtered_kwargs(self.batch, output_attentions=None))
        for name in ("output_hidden_states", "output_attentions"):
            for call in (swin, swin.forward_with_filtered_kwargs):
                with self.assertRaisesRegex(swinq.ArgumentError, f"{name}: is True"):
                    call(self.batch, **{name: True})
        with self.assertRaisesRegex(swinq.ArgumentError, "images: a str"):
            swin("image")
        with self.assertRaises(TypeError):
            swin()

    def test_attributes_are_those_of_the_original(self):
        swin = self.program.backbone
        for name in ("channels", "out_features", "stage_names", "config", "num_features", "dtype", "device"):
            self.assertEqual(getattr(swin, name), getattr(self.float, name), name)
        with self.assertRaisesRegex(AttributeError, "nothing"):
            swin.nothing  # noqa: B018
        with self.assertRaisesRegex(AttributeError, "runs its forward only"):
            swin.forward_features  # noqa: B018
        self.assertIn("sites INT8", repr(self.program))
        lists = Inside(of_timm(features_only=True, out_indices=(0, 1)))
        swinq.torch.quantize(lists, [self.batch], None)
        self.assertEqual(lists.backbone.feature_info.channels(), [48, 96])

    def test_types_do_not_change_and_devices_may(self):
        for change in (torch.nn.Module.half, torch.nn.Module.double, lambda module: module.to(torch.bfloat16)):
            with self.assertRaisesRegex(TypeError, "before swinq.torch.quantize"):
                change(self.program.backbone)
        self.same(self.program.to("cpu")(self.batch))
        self.same(self.program.float()(self.batch))

    def test_copies_and_pickles_run(self):
        copied = copy.deepcopy(self.program)
        self.same(copied(self.batch))
        self.assertIsNot(copied.backbone.original, self.float)
        # Modules of transformers that ran have hooks that cannot be pickled.
        module = of_timm(features_only=True, out_indices=(0, 1))
        program, file = Inside(module), io.BytesIO()
        swinq.torch.quantize(program, [self.batch])
        expected = program(self.batch)
        torch.save(program, file)
        file.seek(0)
        for loaded in [torch.load(file, weights_only=False), pickle.loads(pickle.dumps(program))]:
            self.assertTrue(all(map(torch.equal, loaded(self.batch), expected)))
            self.assertIsInstance(swinq.torch.restore(loaded).backbone, type(module))
        program.load_state_dict(program.state_dict())

    def test_threads_share_a_module(self):
        found = [None] * 4

        def work(index):
            found[index] = self.program(self.batch)

        threads = [threading.Thread(target=work, args=[index]) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in found:
            self.same(each)

    def test_a_forked_process_runs(self):
        receiver, sender = multiprocessing.Pipe(duplex=False)

        def work():
            torch.set_num_threads(1)
            sender.send([part.numpy() for part in self.program(self.batch).feature_maps])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
        self.assertTrue(receiver.poll(60))
        found = receiver.recv()
        process.join()
        self.assertTrue(all(torch.equal(torch.from_numpy(one), other) for one, other in zip(found, self.expected, strict=True)))

    def test_compiled_models_hold_it_as_an_operator(self):
        for backend in ("eager", "aot_eager"):
            torch.compiler.reset()
            with torch.no_grad():
                compiled = torch.compile(self.program, backend=backend, fullgraph=True)
                self.same(compiled(self.batch))
                other = images(1, 96, 64)
                expected, found = leaves(self.program(other)), leaves(compiled(other))
            self.assertTrue(all(torch.equal(one, two) for (_, one), (_, two) in zip(expected, found, strict=True)))
        torch.compiler.reset()
        with torch.no_grad():
            compiled = torch.compile(self.program, backend="eager", dynamic=True)
            for batch in (self.batch, images(1, 96, 64), images(3, 64, 96)):
                pairs = zip(leaves(self.program(batch)), leaves(compiled(batch)), strict=True)
                self.assertTrue(all(torch.equal(one, two) for (_, one), (_, two) in pairs))
        torch.library.opcheck(torch.ops.swinq.run, (self.batch, self.program.backbone._number), test_utils="test_faketensor")

    def test_exports_are_refused(self):
        program = Inside(of_timm(features_only=True, out_indices=(0, 1)))
        swinq.torch.quantize(program, [self.batch])
        refused = r"an exported graph cannot hold \(torch.export, AOTInductor, TorchScript\); export a model of swinq.torch.prepare"
        with self.assertRaisesRegex(swinq.EngineError, refused):
            torch.jit.trace(program, self.batch)
        free = ({0: torch.export.Dim("batch")},)
        for options in ({"strict": False}, {"strict": True}, {"strict": False, "dynamic_shapes": free}):
            with self.assertRaisesRegex(Exception, refused):
                torch.export.export(program, (self.batch,), **options)

    def test_shared_modules_and_models_that_are_swins(self):
        class Twice(torch.nn.Module):
            def __init__(self, backbone):
                super().__init__()
                self.first, self.parts = backbone, torch.nn.ModuleList([backbone])
                self.eval()

            def forward(self, x):
                return self.first(x), self.parts[0](x[:, :, ::2, ::2])

        module = SWINS["transformers backbone"]()
        program = Twice(module)
        report = swinq.torch.quantize(program, [self.batch])
        self.assertEqual((len(report.replaced), report.replaced[0].names), (1, ("first", "parts.0")))
        self.assertIs(program.first, program.parts[0])
        self.assertEqual(report.replaced[0].images, 2)
        program(self.batch)
        swinq.torch.restore(program)
        self.assertTrue(program.first is module and program.parts[0] is module)

        whole = of_torchvision()
        report = swinq.torch.quantize(whole, [self.batch])
        self.assertIsInstance(report.model, swinq.torch.SwinModule)
        self.assertEqual(report.replaced[0].names, ("",))
        self.assertEqual(report.model(self.batch).shape, (1, 5))
        self.assertIs(swinq.torch.restore(report.model), whole)

    def test_a_second_call_leaves_what_is_quantized(self):
        with self.assertRaisesRegex(swinq.ArgumentError, r"no Swin of Inside .* \(backbone\) run on the engine already"):
            swinq.torch.quantize(self.program, [self.batch])
        two = torch.nn.ModuleDict({"old": self.program, "new": Inside(of_timm())})
        report = swinq.torch.quantize(two, lambda model: model["new"](self.batch))
        self.assertEqual(report.replaced[0].names, ("new.backbone",))

    def test_what_is_left_is_a_warning(self):
        two = torch.nn.ModuleDict({"one": Inside(of_timm()), "other": Inside(randomise(torch_detector.Swin()))})
        two["other"].backbone.layers[0].blocks[0].mlp.act = torch.nn.SiLU()
        two.eval()
        with self.assertWarnsRegex(UserWarning, "other.backbone: Swin left as it is: .*SiLU"):
            report = swinq.torch.quantize(two, lambda model: [part(self.batch) for part in model.values()])
        self.assertEqual([left.name for left in report.left], ["other.backbone"])
        self.assertIn("SiLU", str(report))


class Compiled(Case):
    """Swins and programs that ``torch.compile`` wrapped: the wrapper's code is bound to what it wraps."""

    def setUp(self):
        torch.compiler.reset()
        self.batch, self.float = images(2), of_timm(num_classes=5)
        bare = swinq.torch.quantize(Inside(self.float), [self.batch], ptq="basic")
        with torch.no_grad():
            self.expected, self.int8 = self.float(self.batch), bare.model(self.batch)

    def test_a_compiled_swin_inside(self):
        for warm in (False, True):
            wrapper = torch.compile(self.float, backend="eager")
            program = Inside(wrapper)
            with torch.no_grad(), self.subTest(warm=warm):
                if warm:
                    program(self.batch)
                (replaced,) = swinq.torch.quantize(program, [self.batch], ptq="basic").replaced
                self.assertEqual((replaced.names, replaced.kind, replaced.images), (("backbone",), "SwinTransformer", 2))
                self.assertIsInstance(program.backbone, swinq.torch.SwinModule)
                self.assertTrue(torch.equal(program(self.batch), self.int8))
                self.assertTrue(torch.equal(copy.deepcopy(program)(self.batch), self.int8))
                swinq.torch.restore(program)
                self.assertIs(program.backbone, wrapper)
                self.assertTrue(torch.equal(program(self.batch), self.expected))

    def test_a_compiled_swin_itself(self):
        wrapper = torch.compile(self.float, backend="eager")
        report = swinq.torch.quantize(wrapper, [self.batch], ptq="basic")
        self.assertEqual(report.replaced[0].names, ("",))
        self.assertIsInstance(report.model, swinq.torch.SwinModule)
        with torch.no_grad():
            self.assertTrue(torch.equal(report.model(self.batch), self.int8))
            again = torch.compile(report.model, backend="eager")
            self.assertTrue(torch.equal(again(self.batch), self.int8))
        self.assertIs(swinq.torch.restore(again), wrapper)

    def test_compiled_programs_that_ran(self):
        in_place = Inside(self.float)
        in_place.compile(backend="eager")
        wrapped = torch.compile(Inside(self.float), backend="eager", fullgraph=True)
        nested = torch.compile(Inside(torch.compile(self.float, backend="eager")), backend="eager")
        for program in (in_place, wrapped, nested):
            with torch.no_grad():
                self.assertTrue(torch.equal(program(self.batch), self.expected))
                report = swinq.torch.quantize(program, [self.batch], ptq="basic")
                self.assertEqual((report.replaced[0].names, report.replaced[0].images), (("backbone",), 2))
                self.assertTrue(torch.equal(program(self.batch), self.int8))
                self.assertIs(swinq.torch.restore(program), program)
                self.assertTrue(torch.equal(program(self.batch), self.expected))

    def test_a_swin_that_also_stands_bare(self):
        wrapper = torch.compile(self.float, backend="eager")
        program = torch.nn.ModuleDict({"bare": self.float, "compiled": wrapper}).eval()
        swinq.torch.quantize(program, lambda model: [part(self.batch) for part in model.values()], ptq="basic")
        with torch.no_grad():
            self.assertTrue(all(torch.equal(part(self.batch), self.int8) for part in program.values()))
        swinq.torch.restore(program)
        self.assertTrue(program["bare"] is self.float and program["compiled"] is wrapper and wrapper._orig_mod is self.float)

    def test_a_compiled_stage_is_refused(self):
        self.float.layers[0] = torch.compile(self.float.layers[0], backend="eager")
        reason = r"`layers\.0` is compiled by torch.compile.*after swinq.torch.quantize"
        with self.assertRaisesRegex(swinq.ArgumentError, reason):
            swinq.torch.quantize(Inside(self.float), [self.batch])

    def test_training_and_tuning(self):
        wrapper = torch.compile(self.float, backend="eager")
        program = Inside(wrapper)
        swinq.torch.prepare(program, [self.batch])
        self.assertIsInstance(program.backbone, swinq.torch.PreparedSwin)
        self.assertIn("backbone.head.fc.weight", program.state_dict())
        program.train()(self.batch).sum().backward()
        self.assertIsNotNone(self.float.head.fc.weight.grad)
        program = swinq.torch.convert(torch.compile(program.eval(), backend="eager")._orig_mod)
        self.assertIsInstance(program.backbone, swinq.torch.SwinModule)
        self.assertIs(swinq.torch.restore(program).backbone, wrapper)

        def likeness(model):
            return -float((model(self.batch) - self.expected).norm())

        found = swinq.torch.sensitivity(program, [self.batch], likeness, parts="blocks", only="layers.0.**", ptq="basic")
        self.assertLess(found.whole_value, 0)
        self.assertIs(program.backbone, wrapper)
        tuned = swinq.torch.tune(program, [self.batch], likeness, max_drop=1e9, ptq="basic")
        self.assertIsInstance(tuned.model.backbone, swinq.torch.SwinModule)
        self.assertIs(swinq.torch.restore(program).backbone, wrapper)


if __name__ == "__main__":
    unittest.main()
