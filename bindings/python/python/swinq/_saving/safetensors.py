"""Files of safetensors with tensors of PyTorch: 8 bytes for the length of a header, the header in JSON, the bytes of the tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .._common.errors import ArgumentError, ModelError

#: The types of tensors by their names in such files.
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {kind: name for name, kind in TYPES.items()}


def check(name: str, value: Any) -> None:
    """Refuses an entry of a state dictionary that such a file cannot hold.

    Raises:
        ArgumentError: with the name of the entry.
    """
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(
            f"model: `{name}` of its state dictionary is a {type(value).__name__}, and the folder holds tensors only; save it in a file of "
            "your own, and let get_extra_state of its module return a tensor or not exist"
        )
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or value.layout != torch.strided or value.dtype not in NAMES:
        kind = f"{type(value).__name__} of {value.dtype}, {value.layout}".replace("torch.", "")
        raise ArgumentError(f"model: `{name}` of its state dictionary is a {kind}; the folder holds dense tensors of safetensors only")
    if value.is_meta:
        raise ArgumentError(f"model: `{name}` of its state dictionary is on the device meta and has no values; load its weights first")


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Writes tensors, each of which :func:`check` has accepted."""
    # Larger elements come first, so that each tensor is aligned.
    names = sorted(state, key=lambda name: (-state[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + state[name].numel() * state[name].element_size()
        header[name] = {"dtype": NAMES[state[name].dtype], "shape": list(state[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(bytes_of(state[name]))


def bytes_of(tensor: Any) -> Any:
    """The bytes of a tensor, ``uint8 [n]`` of numpy in host memory."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def read(name: str, data: bytearray) -> dict[str, Any]:
    """The tensors of the file ``name``, in the memory of ``data``.

    Raises:
        ModelError: for anything else than a file of safetensors.
    """
    try:
        return _read(data)
    except (ArithmeticError, KeyError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ModelError(f"{name}: is no file of safetensors ({error}); save the model again") from error


def _read(data: bytearray) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ValueError(f"its header has {length} bytes, and the file {len(data)}")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    spans = sorted(entry["data_offsets"] for entry in header.values())
    ends = [0, *(end for _, end in spans)]
    if any(begin != end for (begin, _), end in zip(spans, ends, strict=False)) or ends[-1] != len(data) - start:
        raise ValueError("its tensors do not fill it")
    return {name: _tensor(name, entry, data, start) for name, entry in header.items()}


def _tensor(name: str, entry: Mapping[str, Any], data: bytearray, start: int) -> Any:
    kind, shape, (begin, end) = TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    if any(not isinstance(side, int) or side < 0 for side in [begin, end, *shape]):
        raise ValueError(f"`{name}` has the shape {shape} at [{begin}, {end}]")
    count = math.prod(shape)
    if end - begin != count * torch.empty(0, dtype=kind).element_size():
        raise ValueError(f"`{name}` of the shape {shape} has {end - begin} bytes")
    if count == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=kind, count=count, offset=start + begin).reshape(shape)
