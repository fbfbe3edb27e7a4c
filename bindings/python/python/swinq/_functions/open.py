"""Opening models: files, live modules, state dictionaries."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _native
from .._common.errors import ArgumentError
from .._engine.engine import output_names
from .._engine.images import PathLike, is_path
from .._engine.model import Model
from .._readers.reading import Reading, load, unwrapped


def _stage(output: str) -> int:
    """The stage of an output, from 0."""
    number = output.removeprefix("stage")
    if not number.isdecimal() or int(number) == 0:
        raise ArgumentError(f"outputs: `{output}` is none of stage1, stage2, ...")
    return int(number) - 1


def _check_results(model: Any, preprocessing: Any, reading: Reading, native: _native.Model) -> None:
    """Refuses a live module of PyTorch that computes something else than the model that its own description makes of it."""
    torch, module = sys.modules.get("torch"), None if isinstance(model, Mapping) else unwrapped(model)
    if torch is None or not isinstance(module, torch.nn.Module):
        return
    cfg, opts, dialect, weights, prefix, family, labels, task, outputs, *_ = reading
    if outputs is not None or (opts and cfg is None):
        opts = [] if cfg is None else opts
        own: Reading = (cfg, opts, dialect, weights, prefix, family, labels, task, None, None, None)
        native = load(model, preprocessing, own)
    from .._calls.matching import check_module

    check_module(module, Model(native))


def open(
    model: Any,
    *,
    preprocessing: Any = None,
    cfg: str | None = None,
    opts: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    dialect: str | None = None,
    weights: str | None = None,
    prefix: str | None = None,
    labels: PathLike | None = None,
    task: str | None = None,
    outputs: Iterable[str] | None = None,
    orientation: str | None = None,
    channels: str | None = None,
) -> Model:
    """Opens a model.

    Args:
        model: one of

            - the path of a quantized or float checkpoint, or of a Hugging Face or timm directory;
            - a live Swin: a classifier of timm, torchvision, transformers or Microsoft's repository, or a backbone of these, of
              OpenMMLab or of a detector in detectron2's manner. Its parameters are copied, its architecture is read from the
              module. A module of PyTorch runs one image of noise, and is refused if its outputs are not those of the float
              engine, without what ``opts`` and ``outputs`` change;
            - a state dictionary: a mapping from names to torch tensors or numpy arrays.
        preprocessing: of a model that does not contain it: the image processor of a transformers model, the
            ``weights.transforms()`` of torchvision, a data configuration of timm, ``"ms"``, ``"timm"``,
            ``"torchvision"`` or ``"hf"`` for the default of a family (not for a module of torchvision), or a mapping with the
            keys of :attr:`Model.preprocessing`. Default: timm's ``pretrained_cfg``, torchvision's and Microsoft's own. Of an image
            processor only the settings are taken: images are then prepared with Pillow's pixels. The processors of
            transformers 5 resize with torchvision instead, so their own batches differ a little (see the README).
        cfg: configuration of a bare checkpoint or state dictionary: a name of :func:`shipped_configs`, or a YAML file.
        opts: overrides of keys of the configuration, of ``cfg`` or of what the model itself states, such as
            ``{"MODEL.NUM_CLASSES": 10}``.
        dialect: naming of the tensors: ``microsoft``, ``timm``, ``hf``, ``torchvision``, ``openmmlab``, ``old-timm``, ``ft``;
            default: detected.
        weights: key of the weights in a file of ``torch.save`` that has several, such as ``teacher``; default: an average of
            the weights (``state_dict_ema``, ``model_ema``), else the weights themselves.
        prefix: what the names of the network's tensors begin with, such as ``model.``, if there are other tensors too;
            default: what all names begin with is left out.
        labels: file of class names, one per line.
        task: ``features`` reads a checkpoint as a backbone, ``classification`` as a classifier; default: what the checkpoint
            says. A live module is what it is.
        outputs: outputs of a backbone, such as ``["stage2", "stage3"]``; default: those that the model names, else those for
            which it has norms, else all.
        orientation: ``exif`` turns images as EXIF in their files states, ``stored`` leaves them; default: the rule of the library
            that reads such a checkpoint, or of a quantized checkpoint.
        channels: order of the three channels before the network, ``rgb`` or ``bgr``, also that of mean and deviation; default:
            ``rgb``, or that of a quantized checkpoint. Files and pictures are RGB and are put into this order; arrays that are
            prepared already have it.

    Raises:
        NotFoundError, ModelError, ArgumentError: with the messages of the program.
    """
    if isinstance(model, Model):
        raise ArgumentError("model: is open already")
    pairs = opts.items() if isinstance(opts, Mapping) else opts
    overrides = [(key, str(value)) for key, value in pairs]
    family = preprocessing if isinstance(preprocessing, str) else None
    names = None if labels is None else os.fspath(labels)
    stages = None if outputs is None else [_stage(name) for name in output_names(outputs)]
    reading = (cfg, overrides, dialect, weights, prefix, family, names, task, stages, orientation, channels)
    if is_path(model):
        if preprocessing is not None and family is None:
            raise ArgumentError("preprocessing: of a file it is the name of a family: ms, timm, torchvision, hf")
        native = _native.Model.open(os.fspath(model), reading)
    else:
        native = load(model, preprocessing, reading)
        _check_results(model, preprocessing, reading, native)
    for warning in native.warnings:
        warnings.warn(warning, stacklevel=2)
    return Model(native)
