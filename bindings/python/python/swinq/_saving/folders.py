"""Folders that are written whole or not at all, and files in them that are read without leaving them."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import stat
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._common.errors import ArgumentError, FileError, ModelError, NotFoundError

#: The largest index file that is read.
MOST_BYTES_OF_INDEX = 1 << 26


def replaced(folder: Path, index: str, listed: Callable[[Path], set[str]], write: Callable[[Path], None]) -> None:
    """Writes a folder, in the place of an older one or of none.

    ``write`` fills a new folder beside it, which then takes its place. A process that ends in between leaves the older one.

    Args:
        folder: the folder.
        index: the file that every such folder has.
        listed: the names of the files that belong to an older folder.
        write: fills the folder that it is called with.

    Raises:
        NotFoundError: if the parent of the folder does not exist.
        ArgumentError: for something else at that place, or an older folder that has files of others.
        FileError: if the operating system refuses.
    """
    folder = Path(os.path.realpath(folder))
    if not folder.parent.is_dir():
        raise NotFoundError(f"{folder.parent}: does not exist; make this folder first")
    _check_older(folder, index, listed)
    try:
        _remove_leftovers(folder)
        new = folder.with_name(f".{folder.name}.{_process()}.{uuid.uuid4().hex[:8]}.saving")
        new.mkdir()
        try:
            write(new)
            _synchronize(new)
            _put(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        if isinstance(error, FileError | NotFoundError):
            raise
        raise FileError(f"{folder}: cannot be written: {error}") from error


def _check_older(folder: Path, index: str, listed: Callable[[Path], set[str]]) -> None:
    """Refuses to replace what was not written here."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ArgumentError(f"{folder}: is a file; give the name of a folder")
    names = set(os.listdir(folder))
    if names and index not in names:
        raise ArgumentError(f"{folder}: is a folder of something else, without {index}; give a new folder, or one that save has written")
    others = sorted(names - listed(folder) - {index}) if names else []
    if others:
        raise ArgumentError(f"{folder}: also has `{others[0]}`, which save did not write and would remove; move it to another folder first")


def _process() -> str:
    """The name of this machine and the number of this process, in a name of a folder."""
    return f"{re.sub('[^A-Za-z0-9-]', '-', socket.gethostname())[:40]}.{os.getpid()}"


def _remove_leftovers(folder: Path) -> None:
    """Removes new folders of processes of this machine that ended before they were complete."""
    host, _ = _process().rsplit(".", 1)
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.{re.escape(host)}\.(\d+)\.[0-9a-f]{{8}}\.saving")
    for name in os.listdir(folder.parent):
        match = pattern.fullmatch(name)
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(folder.with_name(name), ignore_errors=True)


def _is_alive(process: int) -> bool:
    """Whether a process exists. Windows has no such question that needs no handle, and the answer there is always yes."""
    if os.name == "nt":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _synchronize(folder: Path) -> None:
    """Waits until the files of a folder are on the disk."""
    if os.name == "nt":
        return
    for path in [*folder.iterdir(), folder]:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _put(new: Path, folder: Path) -> None:
    """Puts ``new`` in the place of ``folder``; the older folder then is ``new``.

    Where the system cannot exchange two folders at once, the older one is beside it for a moment, as ``.NAME.old``.
    """
    if not folder.exists():
        new.rename(folder)
    elif not _exchange(new, folder):
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step; ``False`` if the system or the file system cannot."""
    first, second = os.fsencode(one), os.fsencode(other)
    library: Any = ctypes.CDLL(None) if os.name == "posix" else None
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        # AT_FDCWD, RENAME_EXCHANGE
        return bool(library.renameat2(-100, first, -100, second, 2) == 0)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        # RENAME_SWAP
        return bool(library.renamex_np(first, second, 2) == 0)
    return False


def read(folder: Path, name: str, size: int | None = None) -> bytearray:
    """The bytes of a file of a folder.

    Args:
        folder: the folder.
        name: the name of the file, without any folder.
        size: its size in bytes; ``None`` for any up to :data:`MOST_BYTES_OF_INDEX`.

    Raises:
        NotFoundError: if it does not exist.
        ModelError: for a link, a folder or a device, and for a file of another size.
        FileError: if it cannot be read.
    """
    path = folder / name
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path}: is a link or no file, and files outside of the folder are not read; put the file itself there")
        most = MOST_BYTES_OF_INDEX if size is None else size
        if status.st_size > most or (size is not None and status.st_size != size):
            expected = f"at most {most}" if size is None else str(size)
            raise ModelError(f"{path}: has {status.st_size} bytes, where {expected} are expected: it is damaged; copy or save it again")
        return _read(path, status)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: does not exist; copy the whole folder, or save the model again") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error}") from error


def _read(path: Path, status: os.stat_result) -> bytearray:
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) != (status.st_dev, status.st_ino):
            raise ModelError(f"{path}: was replaced while it was read; load the folder again")
        data = bytearray(status.st_size)
        if file.readinto(data) != len(data):
            raise ModelError(f"{path}: became shorter while it was read; load the folder again")
    return data
