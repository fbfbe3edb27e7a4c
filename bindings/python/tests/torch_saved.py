"""Programs that are saved, and a process that loads them:

    python torch_saved.py outputs FOLDER NAME...
    python torch_saved.py training FOLDER NAME...

For each name it builds the program with other weights and loads FOLDER/NAME. ``outputs`` writes what it gives for FOLDER/NAME.pt to
FOLDER/NAME.out; ``training`` ends the training with the optimizer NAME, whose state is FOLDER/NAME.pt, and writes the parameters there.
"""

import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import torch
import torch_detector
import torch_mmdet
import transformers
from torch_models import FOUR, PROGRAMS, SWINS, images, of_timm, of_torchvision, randomise
from torch_support import Inside, leaves

import swinq.torch

SMALL = {**FOUR, "depths": [1, 1], "num_heads": [1, 2]}
#: What builds each program, and the size of its images.
MADE = {
    "timm": (lambda: Inside(SWINS["timm V2 list"]()), 224),
    "timm classifier": (lambda: of_timm(num_classes=5, img_size=64, window_size=4, depths=[1, 1]), 64),
    "torchvision": (lambda: Inside(of_torchvision()), 64),
    "torchvision features": (lambda: Inside(SWINS["torchvision getter"]()), 64),
    "transformers": (lambda: transformers.SwinForImageClassification(transformers.SwinConfig(**SMALL)), 128),
    "UPerNet": (lambda: PROGRAMS["UPerNet"]()[0], 128),
    "Mask2Former": (lambda: PROGRAMS["Mask2Former"]()[0], 128),
    "DPT": (lambda: PROGRAMS["DPT with Swin V2"]()[0], 128),
    "detector": (lambda: Inside(torch_detector.Swin()), 64),
    "OpenMMLab's detector": (torch_mmdet.Detector, 64),
}


def made(name, seed=0):
    """A program with random weights, in evaluation mode."""
    make, _ = MADE[name]
    return randomise(make(), seed).eval()


def images_for(name):
    return images(2, MADE[name][1], MADE[name][1])


#: Arguments of a small Swin of timm.
OPTIONS = {"img_size": 64, "window_size": 4, "depths": [1, 1], "features_only": True, "out_indices": (0, 1)}
#: Images for :func:`small`.
X = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))


def small(seed=0, **options):
    """A small program of timm with random weights."""
    return randomise(Inside(of_timm(**{**OPTIONS, **options})), seed)


def quantized(program=None, x=X):
    return swinq.torch.quantize(program or small(), [x]).model


def values(model, x):
    """The tensors that a program gives."""
    with torch.no_grad():
        return [value for _, value in leaves(model(x))]


#: Steps of a training, and the one before which it is stopped.
STEPS, STOP = 20, 10
#: What makes each optimizer.
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


def train(program, optimizer, steps):
    """Steps of a training by their numbers, each with images and stochastic depth of its own."""
    program.train()
    for step in steps:
        torch.manual_seed(step)
        loss = sum(value.square().mean() for value in program(torch.randn(2, 3, 64, 64)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        warnings.simplefilter("ignore")
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.addCleanup(transformers.utils.logging.set_verbosity_warning)

    def assert_equal(self, found, expected):
        self.assertEqual(len(found), len(expected))
        self.assertGreater(len(found), 0)
        for one, other in zip(found, expected, strict=True):
            self.assertEqual((one.shape, one.dtype, one.stride()), (other.shape, other.dtype, other.stride()))
            self.assertTrue(torch.equal(one, other))


def outputs(folder, name):
    model = swinq.torch.load(made(name, seed=1), folder / name).eval()
    torch.save(values(model, torch.load(folder / f"{name}.pt")), folder / f"{name}.out")


def training(folder, name):
    program = swinq.torch.load(small(1), folder / name)
    optimizer = OPTIMIZERS[name](program.parameters())
    optimizer.load_state_dict(torch.load(folder / f"{name}.pt"))
    train(program, optimizer, range(STOP, STEPS))
    torch.save(program.state_dict(), folder / f"{name}.out")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for each in sys.argv[3:]:
        {"outputs": outputs, "training": training}[sys.argv[1]](Path(sys.argv[2]), each)
