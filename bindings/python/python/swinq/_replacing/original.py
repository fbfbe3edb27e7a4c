"""The float model of a Swin inside a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._common.errors import ModelError, PreprocessingError
from .._engine.model import Model
from .._readers.layers import library_of, uncompiled
from .._readers.reading import Reading, load

#: A preprocessing for classifiers of torchvision whose own is not known.
NORMALISED = {"family": "torchvision", "size": 224, "resize": "direct", "filter": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3}


def opened_float(place: Any, state: Mapping[str, Any] | None = None) -> Model:
    """The float model of a Swin; ``state`` stands for its state dictionary. Its images are normalised, so that a preprocessing that is
    not known is not needed."""
    module = uncompiled(place)
    try:
        return _read(module, None, state)
    except PreprocessingError:
        return _read(module, stand_in(module), state)


def stand_in(module: Any) -> Any:
    """A preprocessing for a module whose own is not known."""
    return "hf" if library_of(module) == "transformers" else NORMALISED


def _read(module: Any, preprocessing: Any, state: Mapping[str, Any] | None) -> Model:
    """The model of a module. Remarks on what its state dictionary has beside it are of no interest, because its outputs are
    checked."""
    family = preprocessing if isinstance(preprocessing, str) else None
    reading: Reading = (None, [], None, None, None, family, None, None, None, None, None)
    return Model(load(module, preprocessing, reading, state))


def check_architecture(float_model: Model, model: Model) -> None:
    """Refuses a quantized model that is not of the architecture of a float Swin.

    Raises:
        ModelError: with the key that differs.
    """
    expected, found = ({key: value for key, value in each.config.items() if key != "name"} for each in (float_model, model))
    for key in expected | found:
        if expected.get(key) != found.get(key):
            raise ModelError(
                f"`{key}` is {found.get(key)} in the file, and {expected.get(key)} in the module of the model; build the model as it was when "
                "it was quantized"
            )
