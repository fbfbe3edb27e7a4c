"""INT8 for Swin Transformers (V1 and V2): classifiers, and backbones of larger models.

>>> import swinq, timm
>>> module = timm.create_model("swin_tiny_patch4_window7_224", pretrained=True)
>>> model = swinq.quantize(module, "imagenet", limit=128)
>>> model.save("swin_t.int8.safetensors")
>>> model.predict(["cat.jpg"])[0][0].label

=====================  ==========================================================================
:func:`open`           opens a checkpoint, a model directory, a live module or a state dictionary
:func:`quantize`       calibrates a float model on images and returns the INT8 model
:func:`evaluate`       accuracy, agreement and latency of models
:class:`Model`         a model; call it with images to get logits
:class:`Engine`        a model on threads of its own
=====================  ==========================================================================

Images are ``uint8 [images, height, width, channels]`` (NHWC, RGB, preprocessed) or ``float32 [images, channels, height,
width]`` (NCHW, normalised with the model's mean and deviation), of any height and width that the network can process, as numpy
arrays or torch tensors; logits are ``float32 [images, classes]`` of the same kind. PyTorch is not needed, and not imported, but by
``swinq.torch``, which replaces the Swins inside of models of PyTorch (``import swinq.torch``).
"""

from ._errors import (
    ArgumentError,
    CalibrationError,
    DataError,
    EngineError,
    Error,
    EvaluationError,
    FileError,
    ModelError,
    NotFoundError,
)
from ._evaluate import Evaluation, evaluate
from ._model import Class, Engine, Model, Site, open
from ._native import __version__, shipped_configs
from ._quantize import quantize

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
