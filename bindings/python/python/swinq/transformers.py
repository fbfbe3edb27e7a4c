"""swinq as a quantization method of transformers.

>>> from swinq.transformers import SwinqConfig
>>> config = SwinqConfig(calibrate=loader)
>>> model = AutoModelForUniversalSegmentation.from_pretrained(path, quantization_config=config)
>>> model.save_pretrained(folder)
>>> model = AutoModelForUniversalSegmentation.from_pretrained(folder)      # INT8, without calibration

The import registers the method ``swinq``, so a program that opens a saved folder imports this module, too. It needs transformers and
PyTorch (``pip install 'transformers>=5' torch``), which the rest of the package does not.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

try:
    from transformers import PreTrainedModel
    from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ImportError as error:
    raise ImportError("swinq.transformers needs transformers 5: pip install 'transformers>=5' torch") from error

import torch

from . import torch as _torch
from ._common.errors import ArgumentError, Error, ModelError, count, nearest, placed
from ._common.progress import Progress, check_progress
from ._readers.description import forget_method
from ._readers.layers import uncompiled
from ._replacing.in_place import InPlace, in_place, unguard
from ._replacing.module import Engines, SwinModule, file_of, opened
from ._replacing.options import ENGINE_OPTIONS, check_options
from ._replacing.replace import Calibration
from ._replacing.replacement import Replacement
from ._replacing.report import Report
from ._saving.save import hash_of_parameters
from ._saving.structure import arguments_as_json, arguments_from_json, structure_as_json, structure_from_json

__all__ = ["SwinqConfig", "SwinqQuantizer", "attach"]

#: The buffer of a Swin that holds its quantized checkpoint in the weights of a saved model.
BUFFER = "swinq_int8"

#: The fields of a configuration that serve the calibration alone.
NOT_SAVED = ("calibrate", "progress", "share")

MISSING = (
    "SwinqConfig: `calibrate` is missing. The Swins of this model are quantized when it is opened, which needs images: give a loader of "
    "what the image processor makes, SwinqConfig(calibrate=loader), or a function that is called with the model and runs it on about 64 "
    "images. A folder that save_pretrained of a quantized model wrote needs none"
)


@register_quantization_config("swinq")
class SwinqConfig(QuantizationConfigMixin):
    """How the Swins of a model are quantized by ``from_pretrained(..., quantization_config=SwinqConfig(...))``."""

    def __init__(
        self,
        calibrate: Callable[[Any], object] | Iterable[Any] | None = None,
        recipe: str | os.PathLike[str] | Mapping[str, Any] | None = "default",
        backend: str = "auto",
        *,
        samples: int = 64,
        ptq: str | None = None,
        batch_size: int = 8,
        progress: bool | Progress | None = None,
        share: bool = True,
        options: Mapping[str, Any] | None = None,
        keep_float: bool = True,
        swins: Iterable[Mapping[str, Any]] = (),
        **unknown: Any,
    ) -> None:
        """
        Args:
            calibrate, recipe, backend, samples, ptq, batch_size, progress, share: as for :func:`swinq.torch.quantize`.
                ``calibrate``, ``progress`` and ``share`` are not saved.
            options: options of :meth:`swinq.Model.engine`, such as ``threads``.
            keep_float: whether a saved folder also has the float parameters of the Swins. Without them it is smaller than the float
                model's; ``dequantize`` and :func:`swinq.torch.restore` of the model that it opens raise, and a program that does not
                import this module has no weights for the Swins.
            swins: what a saved model states of its quantized Swins; ``save_pretrained`` writes it.

        Raises:
            ArgumentError, NotFoundError, ModelError: for an unknown argument, and, with ``calibrate``, for one that no model can have.
        """
        for name in unknown:
            raise ArgumentError(f"{name}: is no argument of SwinqConfig{_hint(name)}")
        self.quant_method = "swinq"
        self.calibrate: Any = calibrate
        self.progress, self.share = progress, share
        self.recipe = os.fspath(recipe) if isinstance(recipe, os.PathLike) else recipe
        self.backend, self.samples, self.ptq, self.batch_size = backend, samples, ptq, batch_size
        self.options, self.keep_float, self.swins = dict(options or {}), keep_float, [dict(swin) for swin in swins]
        if calibrate is not None:
            self._check()

    def _check(self) -> None:
        """Refuses a calibration before the model is opened."""
        check_options(_torch.quantize, self.backend, self.options)
        check_progress(self.progress)
        count("samples", self.samples, 1)
        Calibration.for_recipe(self.calibrate, (self.samples, self.batch_size), self.recipe, self.ptq, None)

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        fields = {name: value for name, value in config_dict.items() if name != "quant_method"}
        return super().from_dict(fields, return_unused_kwargs, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name not in NOT_SAVED}
        return copy.deepcopy(kept)

    def __iter__(self) -> Any:
        yield from self.to_dict().items()

    def __deepcopy__(self, memo: Any) -> SwinqConfig:
        """A copy with the same ``calibrate``, which may be a loader that cannot be copied."""
        found = copy.copy(self)
        found.options, found.swins = copy.deepcopy((self.options, self.swins), memo)
        return found


def _hint(name: str) -> str:
    """The way to an argument that :class:`SwinqConfig` does not have."""
    if name in ENGINE_OPTIONS:
        return f"; it is an option of an engine: options={{{name!r}: ...}}"
    return nearest(name, (known for known in inspect.signature(SwinqConfig).parameters if known != "unknown"))


@register_quantizer("swinq")
class SwinqQuantizer(HfQuantizer):
    """Quantizes the Swins of a model that transformers has opened, or opens the quantized Swins of a saved one."""

    quantization_config: SwinqConfig
    #: What was replaced and what was left, after a calibration.
    report: Report | None = None

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        config = self.quantization_config
        if not self.pre_quantized and config.calibrate is None:
            raise ArgumentError(MISSING)
        if self.pre_quantized and not config.swins:
            raise ArgumentError(
                "config.json: its `quantization_config` of swinq has no `swins`, so that the folder has no quantized Swin. Remove "
                "`quantization_config` from it and open the model with SwinqConfig(calibrate=loader), or save the quantized model again"
            )

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        """Gives each saved Swin a buffer into which transformers reads its checkpoint."""
        if not self.pre_quantized:
            return
        without = []
        for swin in self.quantization_config.swins:
            _swin_of(model, swin).register_buffer(BUFFER, torch.empty(swin["bytes"], dtype=torch.uint8))
            if swin.get("original"):
                without.append(rf"^{re.escape(swin['name'] + '.' * bool(swin['name']))}(?!.*{BUFFER}$)")
        if without:
            # transformers warns of no parameters that the folder leaves out.
            model._keys_to_ignore_on_load_missing = {*(model._keys_to_ignore_on_load_missing or ()), *without}

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if self.pre_quantized:
            model.__dict__.pop("_keys_to_ignore_on_load_missing", None)
            engines = Engines()
            for swin in self.quantization_config.swins:
                self._open(model, swin, engines)
        else:
            self._quantize(model)
        # Nothing reads the images after the calibration.
        self.quantization_config = copy.copy(self.quantization_config)
        self.quantization_config.calibrate = self.quantization_config.progress = None
        model.config.quantization_config = self.quantization_config

    def _quantize(self, model: Any) -> None:
        config = self.quantization_config
        self.report = _torch.quantize(
            model,
            config.calibrate,
            config.recipe,
            config.backend,
            samples=config.samples,
            ptq=config.ptq,
            batch_size=config.batch_size,
            progress=config.progress,
            share=config.share,
            **config.options,
        )
        if self.report.model is not model:
            self.report.model = in_place(self.report.model)
        unguard(model)

    def _open(self, model: Any, swin: Mapping[str, Any], engines: Engines) -> None:
        """Puts the module of a saved Swin in its place."""
        config, name = self.quantization_config, swin["name"]
        original = _swin_of(model, swin)
        file = original._buffers.pop(BUFFER)
        try:
            quantized = opened(file.cpu().numpy().tobytes())
        except Error as error:
            raise ModelError(
                f"{name + '.' if name else ''}{BUFFER}: this tensor of the weights is missing or damaged, so that the quantized Swin cannot "
                f"be opened ({error}); save the quantized model again. A folder that a process without swinq.transformers saved holds a float "
                "model: remove `quantization_config` from its config.json"
            ) from error
        outputs, arguments = structure_from_json(swin["outputs"]), arguments_from_json(swin["arguments"])
        module = SwinModule(original, quantized, outputs, arguments, config.backend, config.options, engines)
        module._missing_float = swin.get("original", "")
        module.eval()
        if name:
            model.set_submodule(name, module)
        else:
            in_place(module)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[Any, dict[str, Any]]:
        """The state dictionary to save: the weights, and the checkpoints of the quantized Swins. What else these need goes into the
        configuration."""
        state, entries = model.state_dict(), []
        for name, swin in _swins_of(model).items():
            prefix = f"{name}." if name else ""
            file = torch.frombuffer(bytearray(file_of(swin.model)), dtype=torch.uint8)
            original = uncompiled(swin.original)
            missing = self._without(swin)
            if missing:
                state = {key: value for key, value in state.items() if not key.startswith(prefix)}
            else:
                state.update(original.state_dict(prefix=prefix))
            state[prefix + BUFFER] = file
            entries.append(
                {
                    "name": name,
                    "kind": type(original).__name__,
                    "bytes": file.numel(),
                    "outputs": structure_as_json(swin._outputs),
                    "arguments": arguments_as_json(swin._arguments),
                    **({"original": missing} if missing else {}),
                }
            )
        if entries:
            model.config.quantization_config.swins = entries
        else:
            # The Swins were restored one by one.
            forget_method(model)
        return state, {}

    def _without(self, swin: SwinModule) -> str:
        """The hash of the float parameters of a Swin, if they are not saved; else empty."""
        if swin._missing_float or self.quantization_config.keep_float:
            return swin._missing_float
        return hash_of_parameters(uncompiled(swin.original))

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        return _torch.restore(model)

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def attach(model: Any, keep_float: bool = True) -> Any:
    """Makes ``save_pretrained`` of a model write a folder that ``from_pretrained`` opens in INT8, after :func:`swinq.torch.quantize`
    or, with trained Swins, :func:`swinq.torch.convert`. Without it ``save_pretrained`` refuses.

    Args:
        model: a model of transformers whose Swins are :class:`swinq.torch.SwinModule`, or such a module in the place of one.
        keep_float: as for :class:`SwinqConfig`.

    Returns:
        The model; for a module in the place of a model, that model, which now runs on the engine.

    Raises:
        ArgumentError: for a model without quantized Swins, or of another library.
    """
    found = uncompiled(model.original) if isinstance(model, Replacement) else model
    if not isinstance(found, PreTrainedModel):
        raise ArgumentError(f"model: a {type(found).__name__} is no model of transformers, so it has no save_pretrained")
    if isinstance(model, SwinModule):
        in_place(model)
    if not _swins_of(found):
        raise ArgumentError("model: has no quantized Swin; call swinq.torch.quantize or swinq.torch.convert first")
    found.config.quantization_config = SwinqConfig(keep_float=keep_float)
    found.hf_quantizer = SwinqQuantizer(found.config.quantization_config)
    unguard(found)
    return found


def _swin_of(model: Any, swin: Mapping[str, Any]) -> Any:
    """The module of a saved Swin.

    Raises:
        ModelError: if the model is of another class than the saved one.
    """
    try:
        found = model.get_submodule(swin["name"])
    except AttributeError:
        found = None
    if type(found).__name__ != swin["kind"]:
        raise ModelError(
            f"{type(model).__name__}: the folder holds a quantized {swin['kind']} as {placed(swin['name'])}, where this class has "
            f"{'nothing' if found is None else 'a ' + type(found).__name__}; open the folder with the class that saved it "
            "(`architectures` of its config.json)"
        )
    return found


def _swins_of(model: Any) -> dict[str, SwinModule]:
    """The quantized Swins of a model by name."""
    if isinstance(model.forward, InPlace):
        return {"": model.forward.swin}
    return {name: module for name, module in model.named_modules() if isinstance(module, SwinModule)}
