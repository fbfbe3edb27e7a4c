"""Times of whole calls of a program, and of its Swins in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .._readers.stacks import called, is_list

#: Pairs of a number and of seconds: a further call is timed while one of them holds for both. Short calls differ most, and cost least.
BOUNDS = ((3, 1.0), (21, 0.2))

#: Gives seconds. That of a GPU first waits for the work there.
Clock = Callable[[], float]


@dataclass(frozen=True)
class Times:
    """Medians of whole calls of a program."""

    #: Milliseconds of a call, and of all calls of its Swins in it.
    program_ms: float
    swin_ms: float

    @property
    def share(self) -> float:
        """The Swin's part of the time of a call, 0 to 1."""
        return self.swin_ms / self.program_ms

    @property
    def rest_ms(self) -> float:
        """Milliseconds of a call without its Swins."""
        return self.program_ms - self.swin_ms


class Call:
    """A call of a program: its arguments, and autocast as it was. Each run has tensors of its own, because programs may write theirs."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.args, self.kwargs = _copied((args, dict(kwargs)))
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        self.autocast = {kind: torch.get_autocast_dtype(kind) for kind in kinds}

    def timed(self, model: Any, swins: Iterable[Any], clock: Clock) -> tuple[Any, float, float]:
        """Calls the model, without gradients and without ``torch.compile``; gives its outputs, and the seconds of the call and of
        ``swins`` in it."""
        args, kwargs = _copied((self.args, self.kwargs))
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            # Compiled code that ran before does not call hooks.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype))
            seconds = stack.enter_context(_seconds_of(swins, clock))
            start = clock()
            found = model(*args, **kwargs)
            return found, clock() - start, sum(seconds)


def _copied(values: Any) -> Any:
    """Arguments with copies of their tensors."""
    return tree_map(lambda value: value.detach().clone() if isinstance(value, torch.Tensor) else value, values)


def watched(module: Any, hook: Callable[..., Any]) -> list[Any]:
    """Handles of hooks that call ``hook(module, args, kwargs, output)`` behind each call of a module. That of a list of layers begins
    with the first and ends with the last."""
    if not is_list(module):
        return [module.register_forward_hook(hook, with_kwargs=True)]
    begun: list[Any] = []

    def begin(_: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        begun[:] = [args, kwargs]

    def end(_: Any, __: Any, ___: Any, output: Any) -> None:
        hook(module, *begun, output)

    return [module[0].register_forward_pre_hook(begin, with_kwargs=True), module[-1].register_forward_hook(end, with_kwargs=True)]


@contextmanager
def _seconds_of(modules: Iterable[Any], clock: Clock) -> Iterator[list[float]]:
    """The seconds of each call of ``modules``, which grow while the context is open."""
    starts: list[float] = []
    seconds: list[float] = []
    handles = []
    for module in modules:
        handles.append(called(module).register_forward_pre_hook(lambda *_: starts.append(clock())))
        handles += watched(module, lambda *_: seconds.append(clock() - starts.pop()))
    try:
        yield seconds
    finally:
        for handle in handles:
            handle.remove()


def clock_of(devices: Iterable[Any]) -> Clock:
    """A clock for work on devices."""
    gpus = {device for device in devices if device.type == "cuda"}

    def now() -> float:
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        return time.perf_counter()

    return now


def in_words(other_cores: float | None) -> str:
    """A sentence about times that were measured while other processes kept so many cores busy; nothing for ``None``."""
    return "" if other_cores is None else f"Other processes used {other_cores:.1f} cores meanwhile: these times are disturbed."


def devices_of(model: Any) -> set[Any]:
    """The devices of the parameters and buffers of a model."""
    return {tensor.device for tensor in (*model.parameters(), *model.buffers())}


def times_of(calls: Iterable[tuple[float, float]]) -> Times:
    """The medians of calls: seconds of each, and of the Swins in it."""
    programs, swins = zip(*calls, strict=True)
    return Times(1e3 * median(programs), 1e3 * median(swins))


def medians(call: Call, model: Any, swins: Iterable[Any], clock: Clock) -> Times:
    """The medians of calls after one that is not timed: one, and more by :data:`BOUNDS`."""
    call.timed(model, swins, clock)
    found: list[tuple[float, float]] = []
    start = clock()
    while not found or any(len(found) < count and clock() - start < seconds for count, seconds in BOUNDS):
        found.append(call.timed(model, swins, clock)[1:])
    return times_of(found)


class FirstCall:
    """The first call of a model in which one of its Swins was called."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self._pending: Call | None = None
        self._reached = False

    def hooks(self, model: Any, swins: Iterable[Any]) -> list[Any]:
        """Handles of the hooks that find it."""
        reached = [called(swin).register_forward_pre_hook(self._reach) for swin in swins]
        begin = model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True)
        return [*reached, begin, model.register_forward_hook(self._end)]

    def _begin(self, _: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self.call is None:
            self._pending, self._reached = Call(args, kwargs), False

    def _reach(self, *_: Any) -> None:
        self._reached = True

    def _end(self, *_: Any) -> None:
        if self.call is None and self._reached:
            self.call = self._pending
