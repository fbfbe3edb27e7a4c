"""``swinq.torch.quantize`` and ``swinq.open``: what is refused, and what calibrates.

The tests need torch, timm, torchvision and transformers. Without them they are skipped, unless ``REQUIRE_IMPL`` names ``torch``.
"""

import functools
import tempfile
import unittest
import warnings
from pathlib import Path

from needed import need

need("accelerate", "timm", "torch", "torchvision", "transformers")

import accelerate
import timm
import torch
import torchvision
import transformers

import torch_detector
from torch_models import SWINS, images, of_timm, of_torchvision, randomise, redraw
from torch_support import SAME, Case, Inside, error

import swinq
import swinq.torch


class Wrapper(torch.nn.Module):
    """A layer in another, as adapters have it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def scripted(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(module)


class Refused(Case):
    """Live code that the engine does not have is named, and nothing is replaced."""

    def refused(self, module, reason, batch=None):
        program = Inside(module)
        with self.assertRaisesRegex(swinq.ArgumentError, f"no Swin of Inside can be replaced.*{reason}"):
            swinq.torch.quantize(program, batch if callable(batch) else [images(1) if batch is None else batch])
        self.assertIs(program.backbone, module)

    def test_layers(self):
        module = randomise(torch_detector.Swin())
        module.layers[1].blocks[0].mlp.act = torch.nn.ReLU()
        self.refused(module, r"`layers\.1\.blocks\.0\.mlp\.act` is ReLU")
        module = of_timm(features_only=True, norm_layer=lambda dim, **_: torch.nn.LayerNorm(dim, eps=1e-6), out_indices=(0, 1))
        self.refused(module, "eps=1e-06")
        config = transformers.SwinConfig(embed_dim=48, depths=[1, 1], num_heads=[3, 6], hidden_act="relu")
        self.refused(randomise(transformers.SwinBackbone(config)), "ReLU|relu")

    def test_code(self):
        module = randomise(torch_detector.Swin())
        module.layers[0].blocks[1].shift = 0
        self.refused(module, "stage1 differs by .* its code is not that of a Swin")

        class Own(type(of_timm())):
            def forward(self, x):
                return 2 * super().forward(x)

        module = of_timm()
        module.__class__ = Own
        self.refused(module, "Own, whose forward is not that of timm")
        module = SWINS["transformers backbone"]()
        layer = module.swin.encoder.layers[0]
        layer.forward = functools.partial(layer.forward)
        self.refused(module, "`swin.encoder.layers.0` has a forward of its own.*`del module.swin.encoder.layers.0.forward` brings")
        module = of_timm()
        module.layers[0].register_forward_hook(lambda *_: None)
        self.refused(module, r"`layers\.0` has hooks")

    def test_wrapped_forwards_and_the_ways_back(self):
        """The remedies of the messages work: the code of torch.compile and hooks of accelerate, on the Swin and on its parts."""
        x, module = images(1), SWINS["transformers backbone"]()
        module.forward = torch.compile(module.forward, backend="eager")
        self.refused(module, "code of torch.compile. `del module.forward` brings the original back; compile after swinq.torch.quantize")
        del module.forward
        program = Inside(module)
        swinq.torch.quantize(program, [x], share=False)
        swinq.torch.restore(program)
        for part in (module, module.swin.encoder):
            accelerate.hooks.add_hook_to_module(part, accelerate.hooks.ModelHook())
            self.refused(module, "a hook of accelerate. Call accelerate.hooks.remove_hook_from_module")
            accelerate.hooks.remove_hook_from_module(program, recurse=True)
            swinq.torch.quantize(program, [x], share=False)
            swinq.torch.restore(program)

    def test_open_refuses_what_it_would_not_compute(self):
        """Without a run, which would show it: hooks, methods and modules without parameters that a Swin does not have."""
        architecture = {"img_size": 56, "embed_dim": 48, "depths": (1, 2), "num_heads": (2, 4), "num_classes": 5}
        v1, v2 = "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"

        def block(module):
            return module.layers[1].blocks[0]

        changes = [
            (v1, "`norm` has hooks", lambda m: m.norm.register_forward_hook(lambda *_: None)),
            (v1, "SwinTransformer has hooks", lambda m: m.register_forward_pre_hook(lambda *_: None)),
            (v1, "has a forward_head of its own", lambda m: setattr(m, "forward_head", functools.partial(m.forward_head))),
            (v1, "has a _attn of its own", lambda m: setattr(block(m), "_attn", functools.partial(block(m)._attn))),
            (v1, r"mlp\.drop2` is a Tanh", lambda m: setattr(block(m).mlp, "drop2", torch.nn.Tanh())),
            (v1, "drop_path1` is a Hardtanh", lambda m: setattr(block(m), "drop_path1", torch.nn.Hardtanh())),
            (v1, "softmax` is a Sigmoid", lambda m: setattr(block(m).attn, "softmax", torch.nn.Sigmoid())),
            (v1, r"head\.drop` is a Tanh", lambda m: setattr(m.head, "drop", torch.nn.Tanh())),
            (v1, r"head\.fc\.1` is a Tanh", lambda m: setattr(m.head, "fc", torch.nn.Sequential(m.head.fc, torch.nn.Tanh()))),
            (v1, r"head\.fc\.1` is a Softmax", lambda m: setattr(m.head, "fc", torch.nn.Sequential(m.head.fc, torch.nn.Softmax(-1)))),
            (v1, r"head\.drop` is a LogSoftmax", lambda m: setattr(m.head, "drop", torch.nn.LogSoftmax(-1))),
            (v1, r"mlp\.drop1` is a Softmax", lambda m: setattr(block(m).mlp, "drop1", torch.nn.Softmax(-1))),
            (v1, r"norm2` is an Identity", lambda m: setattr(block(m), "norm2", torch.nn.Identity())),
            (v1, "`norm` is a LayerNorm without bias", lambda m: setattr(m, "norm", torch.nn.LayerNorm(96, bias=False))),
            (v1, r"blocks\.0\.mlp\.fc1` is a Wrapper", lambda m: setattr(block(m).mlp, "fc1", Wrapper(block(m).mlp.fc1))),
            (v1, r"blocks\.0\.mlp` is traced or scripted", lambda m: setattr(block(m), "mlp", scripted(block(m).mlp.act))),
            (v2, r"cpb_mlp\.1` is a GELU", lambda m: block(m).attn.cpb_mlp.__setitem__(1, torch.nn.GELU())),
        ]
        for name, reason, change in changes:
            size = 56 if name == v1 else 64
            module = timm.create_model(name, **architecture | {"img_size": size}).eval()
            swinq.open(module)
            change(module)
            with self.subTest(reason), self.assertRaisesRegex(swinq.ArgumentError, reason):
                swinq.open(module)

    def test_open_compares_results(self):
        """What no layer shows: attributes, buffers and the order of blocks."""

        def timm_v1():
            options = {"img_size": 112, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
            return redraw(timm.create_model("swin_tiny_patch4_window7_224", **options))

        def transformers_v1():
            config = transformers.SwinConfig(image_size=112, embed_dim=32, depths=[2, 2], num_heads=[2, 4], num_labels=5)
            return redraw(transformers.SwinForImageClassification(config))

        def every(name, value):
            def change(module):
                parts = [part for part in module.modules() if getattr(part, name, None) is not None]
                self.assertGreater(len(parts), 0)
                for part in parts:
                    setattr(part, name, value(getattr(part, name)))

            return change

        def reorder(module):
            module.layers[0].blocks = torch.nn.Sequential(*reversed(module.layers[0].blocks))

        def softmax(module):
            for layer in module.layers:
                for block in layer.blocks:
                    block.attn.softmax = torch.nn.Softmax(0)

        def stride(name):
            return lambda module: setattr(module.get_submodule(name), "stride", (2, 2))

        size = {"family": "torchvision", "size": 224, "resize": "direct", "filter": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3}
        hf, projection = {"preprocessing": "hf"}, "swin.embeddings.patch_embeddings.projection"
        for make, options, changes in [
            (
                timm_v1,
                {},
                [
                    every("scale", lambda _: 0.1),
                    every("shift_size", lambda _: (0, 0)),
                    every("attn_mask", torch.zeros_like),
                    every("relative_position_index", lambda index: index.flip(0)),
                    stride("patch_embed.proj"),
                    reorder,
                    softmax,
                ],
            ),
            (transformers_v1, hf, [every("scaling", lambda _: 0.05), stride(projection)]),
            (lambda: redraw(of_torchvision()), {"preprocessing": size}, [every("shift_size", lambda _: [0, 0])]),
        ]:
            swinq.open(make(), **options)
            for change in changes:
                module = make()
                change(module)
                with self.subTest(change=change), self.assertRaisesRegex(swinq.ArgumentError, "is not what swinq computes|code fails"):
                    swinq.open(module, **options)
        # Overrides and other outputs do not hide it, and a module in training stays so; images may come with a mask.
        module = timm_v1()
        every("shift_size", lambda _: (0, 0))(module)
        with self.assertRaisesRegex(swinq.ArgumentError, "is not what swinq computes"):
            swinq.open(module, opts={"MODEL.NUM_CLASSES": 5})
        module = SWINS["timm list"]().train()
        self.assertEqual(swinq.open(module, outputs=["stage2"]).config["outputs"][0]["name"], "stage2")
        self.assertTrue(module.training and module.layers_0.training)
        swinq.open(randomise(torch_detector.MaskedSwin()))

    def test_parameters_that_no_swin_has_are_named(self):
        module = of_timm()
        module.layers[0].blocks[1].mlp.fc2.bias.data[3] = float("nan")
        with self.assertRaisesRegex(swinq.ModelError, r"`layers\.0\.blocks\.1\.mlp\.fc2\.bias` of the module SwinTransformer"):
            swinq.open(module)

    def test_a_wrapper_in_one_of_two_swins(self):
        two = torch.nn.ModuleDict({"good": Inside(of_timm()), "bad": Inside(of_timm())})
        mlp = two["bad"].backbone.layers[0].blocks[0].mlp
        mlp.fc1 = Wrapper(mlp.fc1)
        with self.assertWarnsRegex(UserWarning, r"bad\.backbone: SwinTransformer left as it is: .*mlp\.fc1` is a Wrapper"):
            report = swinq.torch.quantize(two, lambda model: [part(images(1)) for part in model.values()], None)
        self.assertEqual([each.names for each in report.replaced], [("good.backbone",)])

    def test_what_no_gpu_runs(self):
        """Heads of more than 64 channels, and any on a machine without a GPU, are refused before the calibration."""
        called = []
        for heads, problem in (([1, 2], "heads of 96 channels.*64.*CPU"), ([3, 6], "libcuda")):
            if problem == "libcuda" and torch.cuda.is_available():
                continue
            config = transformers.SwinConfig(embed_dim=96, depths=[1, 1], num_heads=heads, window_size=7, image_size=56)
            program = Inside(randomise(transformers.SwinBackbone(config)))
            with self.assertRaisesRegex(swinq.EngineError, problem):
                swinq.torch.quantize(program, called.append, backend="cuda")
        self.assertEqual(called, [])
        self.assertIsInstance(program.backbone, transformers.SwinBackbone)

    def test_what_the_engine_does_not_have(self):
        getter = torchvision.models._utils.IntermediateLayerGetter(of_torchvision().features, {"2": "merged"}).eval()
        self.refused(getter, "merging of patches")

    def test_calls_that_change_the_module_are_told(self):
        """transformers' Swin V1 loses its shift for good at an image whose grid is not larger than the window."""
        large, small = images(1, 224, 224), images(1, 28, 28, seed=1)
        kinds = {
            transformers.SwinModel: transformers.SwinConfig,
            transformers.SwinForImageClassification: transformers.SwinConfig,
            transformers.DonutSwinModel: transformers.DonutSwinConfig,
        }
        for kind, config in kinds.items():
            make = lambda kind=kind, config=config: randomise(kind(config(embed_dim=48, depths=[2], num_heads=[3])))  # noqa: E731
            for batches in ([large, small], [small, large]):
                with self.subTest(kind.__name__, first=batches[0].shape[-1]):
                    reason = r"encoder\.layers\.0\.blocks\.1 has lost its shift.*Make the model anew"
                    self.refused(make(), reason, lambda program, batches=batches: [program(x) for x in batches])
            # Both remedies.
            for batches in ([large], [small], [large, images(1, 192, 256)]):
                program = Inside(make())
                with torch.no_grad():
                    expected = [program(x) for x in batches]
                    swinq.torch.quantize(program, lambda model, batches=batches: [model(x) for x in batches], None)
                    for x, value in zip(batches, expected, strict=True):
                        self.assert_alike(program(x), value, 1e-5)

    def test_every_size_is_compared(self):
        """A copied class that leaves out the shift where one window covers the grid, which detectors do not."""

        class Copied(torch_detector.Swin):
            def forward(self, x):
                for layer in self.layers:
                    for index, block in enumerate(layer.blocks):
                        block.shift = 0 if max(x.shape[-2:]) <= 28 else (index % 2) * (block.window // 2)
                return super().forward(x)

        large, small = images(1, 96, 64), images(1, 28, 28, seed=1)
        for batches, size in (([large, small], "28x28"), ([small, large], "28x28|96x64")):
            module = randomise(Copied())
            with self.subTest(size), self.assertRaisesRegex(swinq.ArgumentError, f"on images of ({size}) pixels its output"):
                swinq.torch.quantize(Inside(module), lambda program, batches=batches: [program(x) for x in batches])

    def test_types_that_no_engine_takes(self):
        program = Inside(of_timm(features_only=True, out_indices=(0, 1))).double()
        with self.assertRaisesRegex(swinq.ArgumentError, r"its images are float64, and an engine takes.*model\.float\(\)"):
            swinq.torch.quantize(program, [images(1).double()])
        with torch.no_grad():
            swinq.torch.quantize(program.float(), [images(1)])
            program(images(1))

    def test_the_class_of_outputs_is_that_of_the_calibration(self):
        program, x = Inside(SWINS["transformers classifier"]()), images(1)
        swinq.torch.quantize(program, [x])
        with torch.no_grad():
            self.assertIs(type(program.backbone(x, return_dict=True)), type(program.backbone(x)))
            with self.assertRaisesRegex(swinq.ArgumentError, "return_dict: is False; calls must ask for the class"):
                program.backbone(x, return_dict=False)
        other = Inside(SWINS["transformers classifier"]())
        swinq.torch.quantize(other, lambda model: model.backbone(x, return_dict=False))
        with torch.no_grad():
            self.assertIs(type(other.backbone(x, return_dict=False)), tuple)
            with self.assertRaisesRegex(swinq.ArgumentError, "return_dict"):
                other.backbone(x)

    def test_a_swin_that_is_not_called(self):
        class Other(Inside):
            def forward(self, x):
                return self.backbone.forward_features(x)

        # Its stages are called instead.
        program, x = Other(of_timm()), images(1)
        with torch.no_grad():
            expected = program(x)
            report = swinq.torch.quantize(program, [x], recipe=None)
            self.assertEqual([replaced.names for replaced in report.replaced], [("backbone.layers.0",), ("backbone.layers.1",)])
            self.assertLess(error(program(x), expected), SAME)

        class Unused(Inside):
            def forward(self, x):
                return self.conv(x)

        with self.assertRaisesRegex(swinq.ArgumentError, "the calibration did not call it"):
            swinq.torch.quantize(Unused(of_timm()), [x])
        with self.assertRaisesRegex(swinq.ArgumentError, "no Swin of Linear can be replaced. It contains no Swin of timm"):
            swinq.torch.quantize(torch.nn.Linear(2, 2), [torch.zeros(1, 2)])

    def test_arguments(self):
        program = Inside(of_timm())
        for options, problem in [
            ({"calibrate": 3}, "calibrate: a int is neither"),
            ({"calibrate": images(1)}, "calibrate: a Tensor is neither"),
            ({"calibrate": "photos"}, "calibrate: a str is neither .* iterable of batches, normalised"),
            ({"calibrate": Path("photos")}, "calibrate: a PosixPath is neither"),
            ({"calibrate": {"x": images(1)}}, "calibrate: a dict is neither"),
            ({"calibrate": ["photo.jpg"]}, "calibrate: gives a str; it must be an iterable of batches, normalised"),
            ({"calibrate": [images(1)], "sample": 3}, "sample: is no argument of swinq.torch.quantize.*did you mean samples"),
            ({"calibrate": [images(1)], "samples": 0}, "samples: is 0"),
            ({"calibrate": [images(1)], "backend": "tpu"}, "backend: `tpu`"),
        ]:
            with self.assertRaisesRegex(swinq.ArgumentError, problem):
                swinq.torch.quantize(program, **options)
        with self.assertRaises(swinq.NotFoundError):
            swinq.torch.quantize(program, [images(1)], "none.yaml")
        with self.assertRaisesRegex(swinq.ArgumentError, "no torch.nn.Module"):
            swinq.torch.quantize("model", [images(1)])
        self.assertIsInstance(program.backbone, type(of_timm()))


class Calibration(Case):
    def test_every_kind_of_calibration_gives_the_same_model(self):
        module = SWINS["transformers backbone"]()
        batches = [images(2), images(1, seed=1)]

        def loop(model):
            for batch in batches:
                model(batch)

        expected = None
        for calibrate in [
            loop,
            batches,
            [(batch, "labels") for batch in batches],
            [[batch] for batch in batches],
            [{"x": batch} for batch in batches],
        ]:
            program = Inside(module)
            swinq.torch.quantize(program, calibrate)
            sites = program.backbone.model.sites
            self.assertEqual(sites, expected or sites)
            expected = sites
            swinq.torch.restore(program)

    def test_samples_bound_the_images_and_end_an_iterable(self):
        def endless():
            seed = 0
            while True:
                yield images(3, seed=seed)
                seed += 1

        program = Inside(of_timm())
        report = swinq.torch.quantize(program, endless(), samples=4)
        self.assertEqual(report.replaced[0].images, 4)

    def test_the_model_of_the_images_is_that_of_swinq_quantize(self):
        module, batches = SWINS["transformers backbone"](), [images(2), images(1, 160, 200)]
        program = Inside(module)
        swinq.torch.quantize(program, batches)
        model = swinq.open(module)
        self.assertEqual(repr(model).count("stage1, stage2"), 1)
        self.assertEqual(swinq.quantize(model, batches).sites, program.backbone.model.sites)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "swin.safetensors"
            program.backbone.model.save(path)
            opened = swinq.open(path)
            found = opened.engine(backend="cpu").run(batches[0])
        self.assertTrue(torch.equal(found["stage2"], program(batches[0]).feature_maps[1]))
        with self.assertRaisesRegex(swinq.ArgumentError, "holds"):
            swinq.quantize(model, [images(1) / 0])

    def test_modes_are_kept(self):
        program = Inside(of_timm())
        program.train()
        program.conv.eval()
        with self.assertRaisesRegex(swinq.EngineError, "call eval"):
            swinq.torch.quantize(program, [images(1)])
            program(images(1))
        self.assertEqual((program.training, program.conv.training, program.backbone.training), (True, False, True))
        program.eval()
        program(images(1))


if __name__ == "__main__":
    unittest.main()
