"""The forward pass of a prepared Swin in a graph that PyTorch records (docs/pytorch.md, "Export")."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from .._common.errors import ArgumentError, EngineError
from .fake import Quantizer, fake_quantize, gather
from .graph import dequantized, untraced
from .network import Forward, Network
from .parameters import Parameters
from .scales import Scales

#: The remedy where an exporter did not show the values of the parameters.
REMEDY = "export with torch.onnx.export(..., dynamo=False)"

#: Why a height or width is not free, and how a graph for any size is made.
FREE_SIDES = (
    "images: this graph has one height and width; leave them out of {argument}, which may free the batch. For images of any size write "
    "the Swin by itself, module.to_model().export(path, size='any') (swinq export --size any), the rest of the program with "
    "torch.onnx.export, and join the two with onnx.compose.merge_models (docs/pytorch.md, Export)"
)


class Values:
    """The parameters of a module as it had them before an exporter put tensors without values in their places.

    ``torch.export`` asks a model for its parameters before it does so, and then calls it without them.
    """

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}

    def hold(self, module: Any) -> None:
        """Holds the tensors of a module, if they have values."""
        found = {}
        for prefix, part in torch.nn.Module.named_modules(module):
            for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
                if tensor is not None:
                    found[f"{prefix}.{name}" if prefix else name] = tensor
        if all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in found.values()):
            self._held = found

    def run(self, module: Any, function: Callable[[], Any]) -> Any:
        """Calls a function while the module has these tensors."""
        if not self._held:
            raise EngineError(f"the exporter hides the values of the parameters of {type(module.original).__name__}; {REMEDY}")
        held = {f"module.{name}": tensor for name, tensor in self._held.items()}
        return torch.func.functional_call(_Host(module), held, (function,))


class _Host(torch.nn.Module):
    """A module with another in it, which calls a function."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


class _Constants:
    """The parameters in swinq's names, as constants of a graph."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def __getitem__(self, name: str) -> Any:
        return untraced(lambda: self._parameters[name].detach().float().clone())


class ExportForward(Forward):
    """The forward pass whose weights are codes, and whose other parameters and scales are constants."""

    def _current(self) -> dict[str, tuple[Any, Any]]:
        found: dict[str, tuple[Any, Any]] = untraced(super()._current)
        return found

    def _quantizer(self, name: str, values: int) -> Any:
        return untraced(super()._quantizer, name, 1)

    def _position(self, name: str, stage: Any) -> tuple[Any, Any]:
        found: tuple[Any, Any] = untraced(super()._position, name, stage)
        return found

    def _by_channel(self, name: str) -> tuple[float, Any, Any, Any] | None:
        """The common scale of codes with factors of channels, the factors, their reciprocals, and the values of the zero points."""
        site = self.scales.site(name)
        if getattr(site, "factors", None) is None:
            return None
        scale = untraced(self.current[name][0].item)
        return scale, *untraced(lambda: [*site.factors.clone().unbind(), site.zero_points.float() * scale])

    def _norm(self, name: str, x: Any, site: str = "", rows: Any = None) -> Any:
        found = super()._norm(name, x)
        found = found if rows is None else gather(found, *rows)
        return self._fake(site, found) if site else found

    def _fake(self, name: str, x: Any, dtype: Any = None, gelu: Any = None) -> Any:
        if name.endswith(".qkv.input"):
            # Zeros stay zeros, so that codes may be made behind the gather of the windows, directly before the product.
            return x
        return self._codes(name, x, gelu)

    def _codes(self, name: str, x: Any, gelu: Any = None) -> Any:
        found = self._by_channel(name)
        if found is None:
            return super()._fake(name, x, torch.float32, gelu)
        scale, factors, inverse, zeros = found
        x = x if gelu is None else torch.nn.functional.gelu(x)
        codes = fake_quantize(x * inverse + zeros, Quantizer(untraced(torch.tensor, [scale])), torch.float32)
        in_codes = self.scales.site(f"{name.removesuffix('.input')}.weight") is not None
        return codes if in_codes else (codes - zeros) * factors

    def _product(self, name: str, x: Any) -> Any:
        if name.endswith(".qkv"):
            x = self._codes(f"{name}.input", x)
        weight, sums = self._weight_and_sums(name)
        product = x @ weight.t()
        bias = self.parameters[f"{name}.bias"] if f"{name}.bias" in self.parameters else None
        if self.scales.site(f"{name}.output") is not None:
            product = self._codes(f"{name}.output", product if sums is None else product + sums)
        elif sums is not None:
            bias = sums if bias is None else untraced(torch.add, bias, sums)
        # Of a bias with one axis ONNX Runtime makes a product in float.
        return product if bias is None else product + untraced(lambda: bias.reshape([1] * (product.ndim - 1) + [-1]))

    def _weight_and_sums(self, name: str) -> tuple[Any, Any]:
        """A weight, and what the zero points of the input add to its product, negated."""
        site, weight = self.scales.site(f"{name}.weight"), self.parameters[f"{name}.weight"]
        weight = untraced(weight.flatten, 1)
        if site is None:
            return weight, None
        found = self._by_channel(f"{name}.input")
        if found is None:
            return dequantized(*untraced(site.codes, weight, None)), None
        codes, scales = untraced(site.codes, weight, self.scales.site(f"{name}.input").factors)
        sums = untraced(lambda: -((codes.double() * scales.double()[:, None]) @ found[3].double()).float())
        return dequantized(codes, scales), sums


def _free_axes() -> list[tuple[str, int]]:
    """The axes of inputs that PyTorch's older exporter is to leave free, with the names of the inputs. It tells them to no module, and
    the graph that it makes has free axes on which nothing depends."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("torch.onnx.") and frame.f_locals.get("dynamic_axes"):
            break
        frame = frame.f_back
    if frame is None:
        return []
    inputs = frame.f_locals.get("input_names") or []
    return [(name, int(axis)) for name, axes in frame.f_locals["dynamic_axes"].items() if name in inputs for axis in axes]


def exported(module: Any, values: Values, network: Network, parameters: Parameters, scales: Scales, images: Any) -> dict[str, Any]:
    """The outputs of a prepared module by name, as :class:`Forward` gives them, for a graph that is recorded.

    Raises:
        EngineError: for a module in training, and where its parameters have no values.
        ArgumentError: for images that are not ``float32``, and for a height or width that is not fixed.
    """
    if module.training:
        raise EngineError("a prepared Swin is exported in evaluation; call eval() on the model")
    if images.dtype != torch.float32 or torch.is_autocast_enabled(images.device.type):
        raise ArgumentError(f"images: a graph has codes of float32, not of {images.dtype} or autocast; export the model in float32")
    if not torch.jit.is_tracing() and not all(isinstance(side, int) for side in images.shape[1:]):
        raise ArgumentError(FREE_SIDES.format(argument="dynamic_shapes"))
    for name, axis in _free_axes():
        if axis > 1:
            raise ArgumentError(f"dynamic_axes: frees the axis {axis} of `{name}`. {FREE_SIDES.format(argument='dynamic_axes')}")

    def run() -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            height, width = (int(side) for side in images.shape[2:])
            untraced(network.stages, images.device)
            untraced(network.grids, height, width, images.device)
            untraced(network.gelu, images.device)
            constants: Any = _Constants(parameters)
            return ExportForward(network, constants, scales, torch.float32, [], False)(images)

    # TorchScript's tracer leaves the parameters where they are.
    found: dict[str, Any] = run() if torch.jit.is_tracing() else values.run(module, run)
    return found
