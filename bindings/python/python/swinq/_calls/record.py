"""The run of the user's calibration through the float model, in which the inputs of its Swins are recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .._common.errors import ArgumentError, Error
from .._common.progress import Progress
from .._readers.layers import uncompiled
from .arguments import OF_PIXELS, CallParameters, check_batch, images_in, named_tensor
from .outputs import recorded
from .timing import FirstCall, watched

#: The most that an output of a float Swin may differ from that of swinq's float engine, relative to its norm, by the least precise
#: type in which it may compute. For f32 that is the difference of GELU by tanh.
TOLERANCES = {torch.float64: 2e-3, torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


#: The most bytes of tokens that are kept of a stack of blocks; as many again for the first grids of further sizes. Programs have many
#: stacks, and their tokens are larger than images.
MOST_BYTES = 2**28

#: What a module of PyTorch takes no images from.
NO_IMAGES = (str, bytes, os.PathLike, np.ndarray)
#: What an iterable for the calibration gives.
BATCHES = (
    "batches, normalised for the model: tensors [n, channels, height, width], tuples or lists that begin with one, or "
    "dictionaries of its arguments, as a DataLoader gives them"
)


@dataclass
class Record:
    """What a Swin was called with."""

    #: The most images that are kept.
    samples: int
    #: Batches of images in host memory, ``float32 [n, channels, height, width]``, and how many images and bytes they are.
    batches: list[Any] = field(default_factory=list)
    images: int = 0
    bytes: int = 0
    #: The most bytes, and whether there is no room for another image.
    room: float = float("inf")
    is_full: bool = False
    #: For each size of images, the batch that begins with the first of them, and the structure of the outputs for that image.
    sizes: dict[tuple[int, int], tuple[int, Any]] = field(default_factory=dict)
    #: Of the first call: the other arguments, the device and the type of the images, and the most that its outputs may differ from
    #: exact ones, relative to their norm.
    arguments: dict[str, Any] = field(default_factory=dict)
    device: Any = None
    dtype: Any = None
    tolerance: float = 0.0
    calls: int = 0
    #: The layers whose shift the calls have set to 0.
    lost_shifts: list[str] = field(default_factory=list)
    #: Why the module cannot be replaced.
    problem: str | None = None

    def add(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Records a call."""
        parameters = CallParameters.of(uncompiled(module))
        given, arguments = parameters.bound(args, kwargs)
        images = parameters.images(given, arguments)
        check_batch("its input", images)
        if self.calls == 0:
            self.room = float("inf") if parameters.tokens is None else MOST_BYTES
            self.arguments, self.device, self.dtype = arguments, images.device, images.dtype
            self.tolerance = max(TOLERANCES.get(kind, 0.0) for kind in _kinds(module, images))
        self.calls += 1
        size, each = (int(images.shape[2]), int(images.shape[3])), 4 * images[:1].numel()
        most = self.samples - self.images
        if most > 0 and self.bytes + each * min(most, len(images)) > self.room:
            # The first of a size is checked, too, as long as there is room for as much again.
            is_checked = size not in self.sizes and (not self.sizes or self.bytes + each <= 2 * self.room)
            most = max(int((self.room - self.bytes) // each), int(is_checked))
        taken = images[: max(most, 0)]
        if len(taken):
            if size not in self.sizes:
                self.sizes[size] = len(self.batches), recorded(output, heads=0 if parameters.tokens is None else parameters.tokens.heads)
            self.batches.append(taken.detach().to("cpu", torch.float32, copy=True).contiguous())
            self.images += len(taken)
            self.bytes += each * len(taken)
        self.is_full = self.images >= self.samples or self.bytes + each > self.room

    @property
    def is_called(self) -> bool:
        """Whether the module was called, also with what cannot be recorded."""
        return self.calls > 0 or self.problem is not None

    @property
    def outputs(self) -> Any:
        """The structure of the outputs for the first image."""
        return next(iter(self.sizes.values()))[1]


def _kinds(module: Any, images: Any) -> set[Any]:
    """The types in which a module may compute. On a GPU products of f32 may be those of TF32, which has f16's mantissa."""
    device = images.device.type
    kinds = {images.dtype} | {parameter.dtype for parameter in module.parameters()}
    if device != "cpu":
        kinds.add(torch.float16)
    if torch.is_autocast_enabled(device):
        kinds.add(torch.get_autocast_dtype(device))
    return kinds


def record_calls(
    model: Any,
    calibrate: Any,
    modules: Mapping[Any, Iterable[Any]],
    samples: int,
    first: FirstCall | None = None,
    progress: Progress | None = None,
) -> dict[Any, Record]:
    """Runs the calibration in evaluation mode, without gradients and without ``torch.compile``, and records the calls of
    ``modules``, and in ``first`` the first call of the model with one of them. ``progress`` gets the images that all of them have. Of the
    stages inside of each module those calls are recorded that the module does not make itself."""
    outer = {stage: module for module, stages in modules.items() for stage in stages}
    records = {module: Record(samples) for module in [*modules, *outer]}
    running_now: set[Any] = set()
    stopped: list[BaseException] = []

    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        record = records[module]
        if outer.get(module) in running_now:
            return
        if record.problem is None:
            try:
                record.add(module, args, kwargs, output)
            except (ArgumentError, TypeError) as error:
                record.problem = str(error)
        if progress is not None:
            try:
                progress("record", min(images_of(module) for module in modules), samples)
            except BaseException as error:
                stopped.append(error)
                raise

    def parts_of(module: Any) -> list[Record]:
        """The record of a module, or those of its stages that are called in its place."""
        stages = [records[stage] for stage in modules[module] if records[stage].is_called]
        return stages if stages and not records[module].is_called else [records[module]]

    def images_of(module: Any) -> int:
        return min(record.images for record in parts_of(module))

    shifts = {module: shifts_of(module) for module in records}
    # Behind all calls, whatever they raise.
    handles = [module.register_forward_hook(lambda module, *_: running_now.discard(module), always_call=True) for module in set(outer.values())]
    handles += [module.register_forward_pre_hook(lambda module, _: running_now.add(module)) for module in set(outer.values())]
    handles += [handle for module in records for handle in watched(module, hook)]
    handles += [] if first is None else first.hooks(model, records)
    try:
        # Compiled code that ran before does not call hooks.
        with torch.no_grad(), evaluating(model), torch.compiler.set_stance("force_eager"):
            _call(model, calibrate, lambda: all(record.is_full for module in modules for record in parts_of(module)))
    except Exception:
        if stopped:
            # The caller stops the calibration by it, and it is no error of the model.
            raise stopped[0] from None
        raise
    finally:
        for handle in handles:
            handle.remove()
    for module, record in records.items():
        after = shifts_of(module)
        record.lost_shifts = [name for name, shift in shifts[module].items() if shift and not after[name]]
    return records


def shifts_of(module: Any) -> dict[str, int]:
    """The shift of each block that states it as a number. transformers' Swin V1 sets it to 0 for good when an image has a grid that is
    not larger than the window."""
    parts = ((name, getattr(part, "shift_size", None)) for name, part in module.named_modules())
    return {name: shift for name, shift in parts if isinstance(shift, int)}


def _call(model: Any, calibrate: Any, enough: Callable[[], bool]) -> None:
    """Calls ``calibrate`` with the model, or the model with each batch of it until there is enough."""
    if callable(calibrate):
        calibrate(model)
        return
    if not is_iterable(calibrate):
        raise ArgumentError(
            f"calibrate: a {type(calibrate).__name__} is neither a function that is called with the model nor an iterable of {BATCHES}"
        )
    device, index = device_of(model), -1
    for index, batch in enumerate(calibrate):
        args, kwargs = arguments_of(batch, device, "calibrate")
        with running("calibrate", index, args or kwargs, model):
            model(*args, **kwargs)
        if enough():
            break
    if index < 0:
        raise ArgumentError(f"calibrate: {NO_BATCH}")


def device_of(model: Any) -> Any:
    """The device of a model: that of its first parameter."""
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))


#: What is wrong of an iterable that gives nothing.
NO_BATCH = "gave no batch; a generator that was read before is exhausted, so give a list or a DataLoader, or make it anew"


@contextmanager
def running(name: str, index: int, arguments: Any, model: Any) -> Iterator[None]:
    """Calls a model with a batch of the argument ``name``. An error of the call says which batch it was, and what the model wants.

    Raises:
        ArgumentError: for the errors that calls with wrong arguments end with. All others pass, with the batch as a note.
    """
    try:
        yield
    except Exception as error:
        batch = f"batch {index}, {_what(arguments)}"
        is_of_arguments = isinstance(error, OF_ARGUMENTS) and not isinstance(error, Error | torch.cuda.OutOfMemoryError)
        if not is_of_arguments:
            error.add_note(f"{name}: {batch}")
            raise
        raise ArgumentError(
            f"{name}: {batch}: the model raised {type(error).__name__}: {error}. It wants {BATCHES}{_wish(arguments, model)}"
        ) from error


#: The errors that calls with wrong arguments end with.
OF_ARGUMENTS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def _what(value: Any) -> str:
    """The type of a batch, and its shape."""
    if isinstance(value, torch.Tensor):
        return named_tensor(value)
    if isinstance(value, tuple) and len(value) == 1:
        return _what(value[0])
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} of {', '.join(f'{key}, {_what(part)}' for key, part in value.items())}"
    return f"a {type(value).__name__}"


def _wish(arguments: Any, model: Any) -> str:
    """What the images among the arguments of a call are and the model does not want, and the way out."""
    parts = arguments.values() if isinstance(arguments, Mapping) else arguments
    images = next((images_in(part) for part in parts if isinstance(images_in(part), torch.Tensor)), None)
    wanted = next((tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()), None)
    if images is None:
        return ""
    if images.dtype == torch.uint8:
        return OF_PIXELS
    if images.is_floating_point() and wanted not in (None, images.dtype):
        name = str(wanted).removeprefix("torch.")
        return f"; its parameters are {name}: give images.to(torch.{name})"
    return "; a single image is images[None]" if images.ndim == 3 else ""


def is_iterable(batches: Any) -> bool:
    """Whether ``batches`` may be an iterable of batches: a tensor, a dictionary and a text are none."""
    return isinstance(batches, Iterable) and not isinstance(batches, (*NO_IMAGES, Mapping, torch.Tensor))


def arguments_of(batch: Any, device: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call of a model with a batch of the argument ``name``, on a device.

    Raises:
        ArgumentError: for a batch that has no tensors.
    """
    if isinstance(batch, Mapping):
        return (), {key: _on(value, device) for key, value in batch.items()}
    first = batch[0] if isinstance(batch, tuple | list) and batch else batch
    wrong = _no_images(first)
    if wrong is not None:
        raise ArgumentError(f"{name}: gives {wrong}; it must be an iterable of {BATCHES}")
    return (_on(first, device),), {}


def _no_images(value: Any) -> str | None:
    """What the input of a model is, if no module takes images from it; a list may hold tensors."""
    kind = "an array of numpy (torch.from_numpy makes it a tensor)" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    if value is None or isinstance(value, (*NO_IMAGES, bool, int, float, complex)):
        return kind
    if not isinstance(value, tuple | list):
        return None
    inner = _no_images(value[0]) if value else "nothing"
    return inner and f"{kind} of {inner}"


def _on(value: Any, device: Any) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, after which each module is in its own again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
