"""Quantization-aware training in a loop of PyTorch: prepared Swins against the engine, against the original, and their rules."""

import copy
import io
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

from needed import need

need("timm", "torch", "transformers", "PIL", "safetensors.torch")

import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file

from support import normalised
from torch_models import FOUR, PROGRAMS, STAGES, SWINS, images, of_timm, randomise
from torch_support import Inside as Program
from torch_support import error, leaves

import swinq.torch
from swinq._training.fake import EDGE, Quantizer, fake_quantize
from swinq._training.prepared import PreparedSwin, Template

#: By how many dB the pass that trains is at least nearer to the engine than the engine is to float, and the most that it may be
#: farther from float. Sums in another order flip codes.
NEARER, FARTHER = 2, 1


def Inside(module) -> torch.nn.Module:
    """A program with a Swin, whose own parameters are always the same."""
    torch.manual_seed(0)
    return Program(module)


def backbone(**options) -> torch.nn.Module:
    """A small backbone with four outputs."""
    config = transformers.SwinConfig(**{**FOUR, **options}, out_features=STAGES)
    return randomise(transformers.SwinBackbone(config))


def decibels(found, expected) -> float:
    return -20 * torch.log10(torch.tensor(error(found, expected)).clamp_min(1e-30)).item()


def loss_of(output):
    return sum(value.float().square().mean() for _, value in leaves(output))


def trained(model, batches, optimizer, start=0):
    for batch in batches[start:]:
        optimizer.zero_grad()
        loss_of(model(batch)).backward()
        optimizer.step()


def of(model) -> torch.optim.Optimizer:
    scales = {id(parameter) for parameter in swinq.torch.scales(model)}
    others = [parameter for parameter in model.parameters() if id(parameter) not in scales]
    learned = {"params": swinq.torch.scales(model), "weight_decay": 0.0, "lr": 1e-3}
    return torch.optim.AdamW([{"params": others}, learned], lr=1e-4)


class Prepared(unittest.TestCase):
    def prepared(self, module, learned="none", **options):
        program = Inside(module)
        report = swinq.torch.prepare(program, [images(2, 64, 96)], learned=learned, **options)
        self.assertEqual((len(report.replaced), report.left), (1, []))
        return program

    def test_every_library_trains_what_the_engine_runs(self):
        for name, make in SWINS.items():
            with self.subTest(name):
                program, x = Inside(make()), images(2)
                exact = program(x)
                loss_of(exact).backward()
                exact, before = [(place, value.detach()) for place, value in leaves(exact)], dict(program.named_parameters())
                reached = [key for key, value in before.items() if value.grad is not None]
                program.zero_grad()
                swinq.torch.prepare(program, [x])
                for key, value in before.items():
                    self.assertIs(dict(program.named_parameters())[key], value)
                added = set(dict(program.named_parameters())) - set(before)
                self.assertTrue(added and all(key.startswith("backbone.swinq.") for key in added))
                with torch.no_grad():
                    evaluated = leaves(program(x))
                    passes = leaves(program.train()(x))
                loss_of(program(x)).backward()
                self.assertEqual([key for key, value in before.items() if value.grad is not None], reached)
                swinq.torch.convert(program.eval())
                with torch.no_grad():
                    engine = leaves(program(x))
                for (place, one), (_, two), (_, three), (_, four) in zip(engine, evaluated, passes, exact, strict=True):
                    self.assertTrue(torch.equal(one, two), place)
                    self.assertGreater(decibels(three, one), decibels(one, four) + NEARER, place)
                    self.assertGreater(decibels(three, four), decibels(one, four) - FARTHER, place)
                print(f"{name}: {min(decibels(a, b) for (_, a), (_, b) in zip(passes, engine, strict=True)):.1f} dB from the engine")

    def test_without_sites_values_and_gradients_are_those_of_the_module(self):
        for name in ("timm V2 list", "timm any size", "transformers backbone", "transformers V2 classifier", "torchvision V2 classifier"):
            with self.subTest(name):
                module, x = SWINS[name](), images(2)
                program = Inside(copy.deepcopy(module))
                swinq.torch.prepare(program, [x])
                prepared = program.backbone.train()
                prepared.swinq.__dict__["_sites"] = {"": None}
                program.conv.requires_grad_(False)
                for each in (module, prepared):
                    # A loss that depends on the signs of the outputs, too.
                    sum((value * torch.linspace(-1, 1, value.numel()).reshape(value.shape)).sum() for _, value in leaves(each(x))).backward()
                expected = {key: value.grad for key, value in module.named_parameters() if value.grad is not None}
                # The gradient of keys' biases is 0 but for rounding.
                least = 1e-4 * max(float(value.norm()) for value in expected.values())
                found = {key: value.grad for key, value in prepared.named_parameters() if key in expected}
                for key, value in expected.items():
                    self.assertLess(float((found[key] - value).norm()), max(2e-4 * float(value.norm()), least), key)

    def test_gradients_of_fake_quantization_are_those_of_clipping(self):
        x = torch.linspace(-4, 4, 41, dtype=torch.float64).float().requires_grad_()
        scale = torch.tensor([3.0 / 127]).requires_grad_()
        fake_quantize(x, Quantizer(scale), torch.float32).sum().backward()
        inside = (x.detach().abs() / (3.0 / 127) <= 127 * EDGE) | (x.detach() / (3.0 / 127) >= -128) & (x.detach() < 0)
        self.assertTrue(torch.equal(x.grad, inside.float()))
        # Where nothing is rounded and all is clipped, the values are linear in the scale: a finite difference is exact.
        far = torch.tensor([10.0, -10.0, 20.0])
        value = lambda scale: fake_quantize(far, Quantizer(scale), torch.float32).sum()
        scale = torch.tensor([0.03125]).requires_grad_()
        value(scale).backward()
        difference = (value(torch.tensor([0.03515625])) - value(torch.tensor([0.02734375]))) / 0.0078125
        self.assertAlmostEqual(scale.grad.item(), difference.item(), places=3)

    def test_gradients_are_those_of_the_command(self):
        module = of_timm(num_classes=3, depths=[1, 2])
        module.pretrained_cfg = {**module.pretrained_cfg, "crop_pct": 1.0}
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            timm.models.save_for_hf(module, folder / "timm")
            pixels = ((images(3) * 60 + 128).clamp(0, 255)).to(torch.uint8)
            for index, image in enumerate(pixels):
                (folder / f"images/train/{index}").mkdir(parents=True)
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"images/train/{index}/a.png")
            quantized = swinq.quantize(module, [str(path) for path in sorted(folder.glob("images/train/*/a.png"))], ptq="basic")
            quantized.save(folder / "q.safetensors")
            options = {
                "model": folder / "q.safetensors", "float": folder / "timm", "data.path": folder / "images", "data.val_split": "train",
                "steps": 1, "batch_size": 3, "optimizer.clip_norm": 0, "loss.labels": 1, "loss.kl": 0, "loss.features": 0,
                "schedule.warmup_steps": 0, "augment.crop": "none", "augment.flip": 0, "checkpoint.every": 1,
                "quantization.activation_scales": "learned", "quantization.weight_scales": "learned", "output": folder / "run",
            }  # fmt: skip
            words = [str(word) for pair in options.items() for word in pair]
            run = subprocess.run([sys.executable, "-m", "swinq", "qat", "default", "--opts", *words], capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)
            state = load_file(next((folder / "run/checkpoints").glob("*.safetensors")))
            expected = {name[6:]: value / 0.1 for name, value in state.items() if name.startswith("first/")}
            x = torch.from_numpy(normalised(pixels.permute(0, 2, 3, 1).numpy(), quantized))
            swin = swinq.torch.prepare(module, [x]).model
            swin = PreparedSwin(
                swin.original, Template(quantized), swin._names, swin._stored, swin._outputs, {}, "all", 0.0, False
            )
        torch.nn.functional.cross_entropy(swin.train()(x), torch.arange(3)).backward()
        of_swin = swin.parameters_of_swin()
        found = {name: of_swin.parts(name)[0].grad for name in of_swin.names()}
        found |= {f"scale.{name}": site.ratio.grad for name, site in swin.swinq.sites() if getattr(site, "ratio", None) is not None}
        self.assertEqual(sorted(found), sorted(expected))
        largest = max(float(value.norm()) for value in expected.values())
        for name, value in expected.items():
            difference = float((found[name].flatten() - value.flatten()).norm())
            self.assertLess(difference, max(0.02 * float(value.norm()), 1e-4 * largest), name)

    def test_scales_learn_and_weights_of_a_float_file_load(self):
        program = self.prepared(backbone(), "all")
        model = program.backbone
        float_state = {key: value for key, value in program.state_dict().items() if ".swinq." not in key}
        self.assertTrue(all(parameter.requires_grad for parameter in swinq.torch.scales(program)))
        ranges = {key: value.clone() for key, value in program.state_dict().items() if key.endswith("ratio")}
        trained(program.train(), [images(2, 64, 96, seed=1)] * 2, of(program))
        moved = [key for key, value in program.state_dict().items() if key in ranges and not torch.equal(value, ranges[key])]
        self.assertGreater(len(moved), 0.8 * len(ranges))
        with self.assertWarnsRegex(UserWarning, "backbone.swinq: the state dictionary has no scales"):
            missing, unexpected = program.load_state_dict(float_state, strict=False)
        self.assertTrue(missing and all(".swinq." in key for key in missing) and not unexpected)
        with self.assertRaises(RuntimeError):
            program.load_state_dict(float_state)
        self.assertIn("with learned scales", repr(model.swinq))

    def test_a_training_goes_on_from_a_state_dictionary(self):
        batches = [images(2, 64, 96, seed=seed) for seed in range(4)]
        whole, half = (self.prepared(backbone(), "all").train() for _ in range(2))
        optimizer = of(whole)
        trained(whole, batches, optimizer)
        first = of(half)
        trained(half, batches[:2], first)
        file = io.BytesIO()
        torch.save({"model": half.state_dict(), "optimizer": first.state_dict()}, file)
        # Calibrated on other images: the state dictionary has the scales.
        rest = Inside(backbone())
        swinq.torch.prepare(rest, [images(1, 96, 64, seed=9)], learned="all")
        state = torch.load(io.BytesIO(file.getvalue()))
        rest.load_state_dict(state["model"])
        second = of(rest)
        second.load_state_dict(state["optimizer"])
        trained(rest.train(), batches, second, 2)
        for key, value in whole.state_dict().items():
            self.assertTrue(torch.equal(value, rest.state_dict()[key]), key)
        x = images(1, 64, 64)
        with torch.no_grad():
            for (place, one), (_, two) in zip(leaves(whole.eval()(x)), leaves(rest.eval()(x)), strict=True):
                self.assertTrue(torch.equal(one, two), place)

    def test_copies_pickles_and_averages_are_modules_of_their_own(self):
        # Modules of transformers that were called cannot be pickled, those of timm can.
        program = self.prepared(SWINS["timm any size"](), "weights").train()
        x = images(2, 64, 96, seed=3)
        file = io.BytesIO()
        torch.save(program, file)
        copies = [copy.deepcopy(program), torch.load(io.BytesIO(file.getvalue()), weights_only=False)]
        for each in copies:
            with torch.no_grad():
                self.assertEqual(error(loss_of(each(x)), loss_of(program(x))), 0.0)
            trained(each, [x], of(each))
        self.assertEqual(error(loss_of(copies[0](x)), loss_of(copies[1](x))), 0.0)
        self.assertNotEqual(error(loss_of(copies[0](x)), loss_of(program(x))), 0.0)
        average = torch.optim.swa_utils.AveragedModel(program)
        optimizer = of(program)
        for seed in (4, 5):
            trained(program, [images(2, 64, 96, seed=seed)], optimizer)
            average.update_parameters(program)
        model = swinq.torch.convert(average.module.eval())
        with torch.no_grad():
            self.assertEqual(len(leaves(model(x))), 2)

    def test_checkpointing_saves_and_changes_nothing(self):
        gradients = []
        for checkpointing in (False, True):
            program = self.prepared(backbone(), "all", checkpointing=checkpointing).train()
            loss_of(program(images(2, 64, 96, seed=1))).backward()
            gradients.append({key: value.grad for key, value in program.named_parameters() if value.grad is not None})
        self.assertEqual(list(gradients[0]), list(gradients[1]))
        self.assertTrue(all(torch.equal(value, gradients[1][key]) for key, value in gradients[0].items()))

    def test_half_precision_by_autocast(self):
        program = self.prepared(backbone(), "all").train()
        x = images(2, 64, 96, seed=1)
        expected = leaves(program(x))
        with torch.autocast("cpu", torch.bfloat16):
            found = program(x)
        self.assertEqual({value.dtype for _, value in leaves(found)}, {torch.float32})
        self.assertGreater(min(decibels(one, two) for (_, one), (_, two) in zip(leaves(found), expected, strict=True)), 25)
        loss_of(found).backward()
        self.assertTrue(all(value.grad.isfinite().all() for value in program.parameters() if value.grad is not None))

    def test_evaluation_follows_the_parameters_and_has_gradients(self):
        program, x = self.prepared(backbone()).eval(), images(1, 64, 64)
        with torch.no_grad():
            first = leaves(program(x))
            next(iter(program.backbone.parameters())).mul_(1.1)
            second = leaves(program(x))
        self.assertGreater(error(second[0][1], first[0][1]), 1e-3)
        found = leaves(program(x))
        self.assertTrue(all(torch.equal(one, two) for (_, one), (_, two) in zip(found, second, strict=True)))
        loss_of(dict(found)).backward()
        self.assertTrue(any(value.grad is not None for value in program.backbone.parameters()))

    def test_evaluation_follows_writes_that_pytorch_does_not_count(self):
        """Teachers by moving average are written through ``.data``; the engine must have the values that are there."""
        writes = {
            "data": lambda p: p.data.mul_(1.05),
            "numpy": lambda p: p.detach().numpy().__imul__(1.05),
            "foreach": lambda p: torch._foreach_mul_([p.data], 1.05),
            "a view of data": lambda p: p.data.flatten()[: p.numel() // 2].add_(0.02),
            "exchange": lambda p: p.data.copy_(p.data.flip(0).clone()),
        }
        for name, write in writes.items():
            program, x = self.prepared(backbone()), images(1, 64, 96)
            with self.subTest(name), torch.no_grad():
                before = leaves(program(x))
                versions = [p._version for p in program.backbone.parameters()]
                for key, parameter in program.backbone.named_parameters():
                    if not key.startswith("swinq."):
                        write(parameter)
                self.assertEqual([p._version for p in program.backbone.parameters()], versions)
                found = leaves(program(x))
                expected = leaves(swinq.torch.convert(copy.deepcopy(program))(x))
                self.assertFalse(torch.equal(found[0][1], before[0][1]))
                for (place, one), (_, two) in zip(found, expected, strict=True):
                    self.assertTrue(torch.equal(one, two), place)
                # Nothing is converted again while nothing is written.
                engine = program.backbone._engine()
                program(x)
                self.assertIs(program.backbone._engine(), engine)

    def test_inference_mode_prepares_and_evaluates(self):
        with torch.inference_mode():
            program, x = self.prepared(backbone()), images(1, 64, 96)
            found = leaves(program(x))
            program.backbone.swinq.requires_grad_(False)
            expected = leaves(swinq.torch.convert(copy.deepcopy(program))(x))
        for (place, one), (_, two) in zip(found, expected, strict=True):
            self.assertTrue(torch.equal(one, two), place)

    def test_a_reconstructed_calibration_starts_from_its_own_numbers(self):
        rules = [
            {"match": "**", "enable": True, "granularity": "channel", "calibrator": "max"},
            {"match": "**.weight", "bits": 4, "calibrator": "max"},
            {"match": "**.{scores,output}", "enable": False},
            {"match": "**.add.*", "enable": False},
        ]
        x = images(2, 64, 96)
        for bits in (4, 7):
            rules[1]["bits"] = bits
            recipe, results = {"name": f"w{bits}", "rules": rules}, []
            for make in (swinq.torch.prepare, swinq.torch.quantize):
                program = Inside(backbone())
                make(program, [x], recipe, ptq="reconstruct")
                with torch.no_grad():
                    results.append([value for _, value in leaves(program(x))])
                if make is swinq.torch.prepare:
                    with torch.no_grad():
                        results.append([value for _, value in leaves(swinq.torch.convert(program)(x))])
            with self.subTest(bits=bits):
                prepared, converted, quantized = results
                for one, two, three in zip(prepared, converted, quantized, strict=True):
                    self.assertTrue(torch.equal(one, two))
                    self.assertGreater(decibels(one, three), 60)

    def test_stochastic_depth_drops_branches_in_training_only(self):
        program, x = self.prepared(backbone(), drop_path=0.5), images(1, 64, 64)
        with torch.no_grad():
            self.assertEqual(error(loss_of(program(x)), loss_of(program(x))), 0.0)
            program.train()
            values = {round(float(loss_of(program(x))), 6) for _ in range(8)}
        self.assertGreater(len(values), 1)

    def test_two_processes_have_the_gradients_of_one(self):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(_rank, (folder,), nprocs=2)
            parts = [torch.load(f"{folder}/{rank}.pt") for rank in range(2)]
        program = _for_ranks()
        halves = [loss_of(program(images(1, 64, 96, seed=seed))) for seed in range(2)]
        (sum(halves) / 2).backward()
        for key, value in program.named_parameters():
            if value.grad is not None:
                for part in parts:
                    self.assertLess(error(part[f"module.{key}"], value.grad), 1e-5, key)

    def test_mistakes_are_named(self):
        program = Inside(backbone())
        for options, message in [
            ({"learned": "some"}, "none of none, activations, weights, all"),
            ({"drop_path": 1.0}, "is not in"),
            ({"recipe": {"name": "x", "description": "x", "rules": []}}, "quantizes no site"),
        ]:
            with self.assertRaisesRegex(swinq.Error, message):
                swinq.torch.prepare(program, [images(1, 64, 64)], **options)
        with self.assertRaisesRegex(swinq.ArgumentError, "call swinq.torch.prepare first"):
            swinq.torch.convert(program)
        prepared = self.prepared(backbone()).eval()
        with torch.no_grad():
            next(iter(prepared.backbone.parameters())).fill_(float("nan"))
        with self.assertRaisesRegex(swinq.Error, "not finite|NaN"):
            swinq.torch.convert(prepared)
        self.assertIsInstance(prepared.backbone, swinq.torch.PreparedSwin)

    def test_a_refined_calibration_is_where_the_training_starts(self):
        program = Inside(backbone())
        before = {key: value.clone() for key, value in program.state_dict().items()}
        swinq.torch.prepare(program, [images(4, 64, 96)], ptq=None)
        changed = [key for key, value in before.items() if not torch.equal(value, program.state_dict()[key])]
        self.assertTrue(any(key.endswith("weight") for key in changed))

    def test_programs_train(self):
        for name, make in PROGRAMS.items():
            with self.subTest(name):
                program, keywords = make()
                randomise(program)
                x = images(2, 128, 128)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    report = swinq.torch.prepare(program, lambda model, x=x, keywords=keywords: model(x, **keywords))
                self.assertEqual(len(report.replaced), 1)
                swin = next(module for module in program.modules() if isinstance(module, swinq.torch.PreparedSwin))
                loss_of(program.train()(x, **keywords)).backward()
                self.assertTrue(any(value.grad is not None for value in swin.parameters()))
                swinq.torch.convert(program.eval())
                with torch.no_grad():
                    program(x, **keywords)


def _for_ranks():
    torch.manual_seed(0)
    program = Inside(backbone())
    swinq.torch.prepare(program, [images(2, 64, 96)], learned="all")
    program.conv.requires_grad_(False)
    return program.train()


def _rank(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    program = torch.nn.parallel.DistributedDataParallel(_for_ranks(), find_unused_parameters=True)
    loss_of(program(images(1, 64, 96, seed=rank))).backward()
    torch.save({key: value.grad for key, value in program.named_parameters() if value.grad is not None}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
