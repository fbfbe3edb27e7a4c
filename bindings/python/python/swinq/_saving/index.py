"""The folder of a saved model: its index ``swinq.json``, the checkpoint of each Swin, and the tensors of the rest.

``NAME.int8.safetensors`` is the quantized checkpoint of the Swin at the module path ``NAME``, ``rest.safetensors`` the other tensors of
the state dictionary. The index says where each stands, and has the size and the hash of each file, and a hash of its own.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import _native
from .._common.errors import ArgumentError, Error, ModelError, NotFoundError, placed
from . import folders

INDEX = "swinq.json"
REST = "rest.safetensors"
ENDING = ".int8.safetensors"
FORMAT = "swinq.torch"
#: The version of the format. A folder of a newer one is refused.
VERSION = 1

#: The states of a Swin: a :class:`SwinModule` in its place, its own ``forward`` replaced, or a :class:`PreparedSwin` in its place.
INT8, IN_PLACE, PREPARED = "int8", "in place", "prepared"

#: Names of files: no separator, no drive, no leading dot.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_%~-][A-Za-z0-9_.%~-]{0,199}")
#: Names of devices on Windows, which no file has, with whatever ending.
DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)", re.IGNORECASE)


@dataclass
class SavedFile:
    """A file of the folder: its size, and the hash of its bytes."""

    bytes: int
    hash: str


@dataclass
class SavedSwin:
    """A Swin of the saved model."""

    #: The module paths at which it stands; empty for the model itself.
    names: list[str]
    #: The class of the original, and its library; empty for none of timm, torchvision and transformers.
    kind: str
    library: str
    #: ``INT8``, ``IN_PLACE`` or ``PREPARED``.
    state: str
    file: str
    #: The structure of its outputs, and the arguments of its calls (``structure.py``).
    outputs: Any
    arguments: dict[str, Any]
    #: Of an INT8 one: the engine, its options, and the hash of the parameters of the float original, which the folder does not have.
    backend: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    original: str = ""
    #: Of a prepared one: the arguments of ``prepare``.
    learned: str = "none"
    drop_path: float = 0.0
    checkpointing: bool = False

    @property
    def original_kind(self) -> str:
        """The class of the original and its library, for messages."""
        return f"{self.kind} of {self.library}" if self.library else self.kind

    @property
    def place(self) -> str:
        """Its first module path, for messages."""
        return placed(self.names[0])


@dataclass
class Index:
    """The contents of ``swinq.json``."""

    #: The class of the model, for messages.
    model: str
    swins: list[SavedSwin]
    files: dict[str, SavedFile]
    #: The name of the tensor in the file for each further name of it.
    tied: dict[str, str]


def file_name(module: str, taken: set[str]) -> str:
    """The name of the file of the Swin at a module path, which every file system takes, and which differs from ``taken`` in more than
    case. It becomes one of these."""
    escaped = "".join(chr(byte) if chr(byte) in SAFE else f"%{byte:02X}" for byte in (module or "model").encode("utf-8", "surrogatepass"))
    if DEVICES.match(escaped):
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    if len(escaped) > MOST_CHARACTERS:
        escaped = f"{escaped[: MOST_CHARACTERS - 33]}~{hash_of(module.encode('utf-8', 'surrogatepass'))[-32:]}"
    count, name = 1, escaped
    while name.casefold() in taken:
        count += 1
        name = f"{escaped}~{count}"
    taken.add(name.casefold())
    return name + ENDING


SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
#: The most characters of the name of a Swin in the name of its file.
MOST_CHARACTERS = 150


def hash_of(data: bytes | bytearray) -> str:
    """The hash of bytes, XXH3-128."""
    return hashed([np.frombuffer(data, np.uint8)])


def hashed(arrays: list[Any]) -> str:
    """The hash of the bytes of arrays of ``uint8``, in their order."""
    return f"xxh3-128:{_native.fingerprint(arrays):032x}"


def write_index(folder: Path, index: Index) -> None:
    """Writes ``swinq.json`` beside the files, whose sizes and hashes it gets."""
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        index.files[path.name] = SavedFile(len(data), hash_of(data))
    content = {"format": FORMAT, "version": VERSION, "written_by": _native.__version__, **dataclasses.asdict(index)}
    text = json.dumps({**content, "hash": _hash_of_index(content)}, indent=1, allow_nan=False)
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")


def _hash_of_index(content: Mapping[str, Any]) -> str:
    return hash_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def read_index(folder: Path) -> Index:
    """The index of a folder.

    Raises:
        NotFoundError: if there is none.
        ModelError: for one of a newer version, a damaged one, and one that names files outside of the folder.
    """
    if not folder.is_dir():
        old = folder.with_name(f".{folder.name}.old")
        hint = f"; {old} is its older state, which can be renamed" if old.is_dir() else ""
        raise NotFoundError(f"{folder}: is no folder; give the one that swinq.torch.save has written{hint}")
    path = folder / INDEX
    content, expected = _parsed(path, folders.read(folder, INDEX))
    if content.pop("format", None) != FORMAT:
        raise ModelError(f"{path}: does not say that swinq.torch.save wrote it; give a folder that it wrote")
    version, writer = content.pop("version", None), content.pop("written_by", None)
    if isinstance(version, int) and version > VERSION:
        raise ModelError(
            f"{path}: has version {version} of the format, written by swinq {writer}, and this swinq {_native.__version__} reads up to "
            f"{VERSION}; install swinq {writer} or newer"
        )
    if (known := content.pop("hash", None)) != expected:
        raise _damaged(path, f"has not the hash that it states ({known})")
    try:
        index: Index = _record(Index, content)
        _check(index)
    except (TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    return index


def _parsed(path: Path, data: bytearray) -> tuple[dict[str, Any], str]:
    """The contents of an index, and the hash that it must state."""
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
        return content, _hash_of_index({name: value for name, value in content.items() if name != "hash"})
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"is no JSON ({error})") from error


def _damaged(path: Path, problem: str) -> ModelError:
    return ModelError(f"{path}: {problem}; copy the folder or save the model again")


def _record(kind: Any, fields: Any) -> Any:
    """A value of a type of the index: a dataclass with exactly its fields, a list, a dictionary or a plain value."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        if not isinstance(fields, dict) or set(fields) != set(hints):
            raise ValueError(f"has other keys than {', '.join(hints)}")
        return kind(**{name: _record(hint, fields[name]) for name, hint in hints.items()})  # type: ignore[operator]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is list and isinstance(fields, list):
        return [_record(parts[0], each) for each in fields]
    if origin is dict and isinstance(fields, dict):
        return {name: _record(parts[1], each) for name, each in fields.items()}
    if kind is Any or (origin is None and type(fields) is kind):
        return fields
    raise ValueError(f"has a {type(fields).__name__} where a {getattr(kind, '__name__', kind)} is expected")


def _check(index: Index) -> None:
    """Refuses names of files that are no plain names, and references to what is not there.

    Raises:
        ValueError: with the name.
    """
    for name in index.files:
        if not PLAIN_NAME.fullmatch(name) or DEVICES.match(name):
            raise ValueError(f"names the file `{name}`, which is no plain name of a file in the folder")
    for swin in index.swins:
        if swin.file not in index.files:
            raise ValueError(f"names the file `{swin.file}` and not its hash")
        if not swin.names or swin.state not in (INT8, IN_PLACE, PREPARED):
            raise ValueError(f"has a Swin with the names {swin.names} and the state `{swin.state}`")
    if REST not in index.files:
        raise ValueError(f"does not name `{REST}`")


def read_file(folder: Path, index: Index, name: str) -> bytearray:
    """The bytes of a file that the index names.

    Raises:
        NotFoundError, ModelError: for one that is missing, or that has another size or hash.
    """
    known = index.files[name]
    data = folders.read(folder, name, known.bytes)
    if hash_of(data) != known.hash:
        raise ModelError(f"{folder / name}: has not the hash that {INDEX} states: it is damaged or of another model; copy or save it again")
    return data


def listed(folder: Path) -> set[str]:
    """The names of the files that belong to a saved model.

    Raises:
        ArgumentError: if its index cannot be read.
    """
    try:
        return set(read_index(folder).files)
    except Error as error:
        raise ArgumentError(f"{error}. Remove this folder to save there, or give another one") from error
