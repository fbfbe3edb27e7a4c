"""INT8 for Swin Transformers (V1 and V2): classifiers, and backbones of larger models.

**Quantize.** :func:`quantize` takes a trained model, finds the ranges of its activations on images, and returns the INT8 model. The
model may be a live module of timm, torchvision, transformers or Microsoft's repository, a checkpoint, or a state dictionary; the images
a data set's path, a DataLoader, PIL images or arrays:

>>> import swinq, timm
>>> module = timm.create_model("swin_tiny_patch4_window7_224", pretrained=True)
>>> model = swinq.quantize(module, "imagenet", limit=128)
>>> model.save("swin_t.int8.safetensors")

**Run.** :func:`open` reads a checkpoint, and a model is called with images. ``predict`` also reads and prepares image files:

>>> model = swinq.open("swin_t.int8.safetensors")
>>> logits = model(images)
>>> model.predict(["cat.jpg"])[0][0].label

Images are ``uint8 [images, height, width, channels]`` (NHWC, RGB, preprocessed) or ``float32 [images, channels, height,
width]`` (NCHW, normalised as the model was trained; also ``float16``), of any height and width that the network can process, as numpy
arrays or torch tensors. Logits are ``float32 [images, classes]`` of the same kind.

**Compare.** :func:`evaluate` measures accuracy, agreement with the first model, and latency:

>>> print(swinq.evaluate({"float": swinq.open(module), "int8": model}, "imagenet", latency=[1]))

**Backbones.** The Swin inside the file of a detector has feature maps. ``run`` returns them by name:

>>> backbone = swinq.open("mask_rcnn_swin_t.pth", task="features")
>>> backbone.engine(max_pixels=800 * 1333).run(images)["stage4"].shape

**Engines.** A model runs on all cores. ``model.engine(threads=1)`` and ``model.engine(backend="cuda")`` make :class:`Engine` objects for
threads or a GPU of their own; on a GPU, ``run`` reads and returns CUDA tensors without copies.

**Inside a model of PyTorch.** ``swinq.torch.quantize(model, calibrate=loader)`` replaces each Swin of a larger model by an INT8 module
with the same outputs. PyTorch is not needed, and not imported, but by ``import swinq.torch`` and ``import swinq.transformers``.

**In another process.** ``swinq.torch.save`` writes such a model as a folder, and ``swinq.torch.load`` puts its Swins into a float model that
the same code builds, without images and with the same bits:

>>> import swinq.torch
>>> detector = swinq.torch.quantize(detector, calibrate=loader).model
>>> swinq.torch.save(detector, "int8")
>>> detector = swinq.torch.load(build_detector().eval(), "int8")

An error of a model, a file, images or a value is a :class:`Error`, and its message names the argument, file or site at fault and the
next step. An argument of another type than the documented one may raise a ``TypeError``.
"""

from ._common.errors import (
    ArgumentError,
    CalibrationError,
    DataError,
    EngineError,
    Error,
    EvaluationError,
    FileError,
    ModelError,
    NotFoundError,
    PreprocessingError,
)
from ._common.public import name_by
from ._engine.engine import Class, Engine
from ._engine.model import Model, Site
from ._functions.evaluate import Evaluation, evaluate
from ._functions.open import open
from ._functions.quantize import quantize
from ._native import __version__, shipped_configs

__all__ = [
    "ArgumentError",
    "CalibrationError",
    "Class",
    "DataError",
    "Engine",
    "EngineError",
    "Error",
    "Evaluation",
    "EvaluationError",
    "FileError",
    "Model",
    "ModelError",
    "NotFoundError",
    "Site",
    "evaluate",
    "open",
    "quantize",
    "shipped_configs",
    "__version__",
]

name_by(__name__, [globals()[name] for name in __all__ if name != "__version__"])
name_by(__name__, [PreprocessingError])
