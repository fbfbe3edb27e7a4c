"""Damaged and hostile files of PyTorch: a zip of a pickle."""
import collections
import io
import pickle
import re
import struct
import sys
import threading
import types
import zipfile

from damage import damage, number


class Storage(collections.namedtuple("Storage", "dtype key count")):
    pass


def torch_pickle(tensors, rng=None):
    """The pickle of a state dict; with `rng`, one tensor has absurd sizes, strides or storage."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    rebuild = types.FunctionType((lambda *a: None).__code__, {}, "_rebuild_tensor_v2")
    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    kinds = {}
    for name in ("HalfStorage", "FloatStorage", "DoubleStorage", "LongStorage", "BFloat16Storage"):
        kinds[name] = type(name, (), {"__module__": "torch"})
        setattr(torch, name, kinds[name])
    utils._rebuild_tensor_v2 = rebuild

    class Tensor:
        def __init__(self, *arguments):
            self.arguments = arguments

        def __reduce__(self):
            return rebuild, self.arguments

    victim = rng.choice(list(tensors)) if rng else None
    state = {}
    for key, (name, (shape, count)) in enumerate(tensors.items()):
        strides, size = [], 1
        for extent in reversed(shape):
            strides.insert(0, size)
            size *= extent
        storage, offset, shape = Storage("HalfStorage", str(key), count), 0, tuple(shape)
        if name == victim:
            kind = rng.randrange(5)
            if kind == 0:
                shape = tuple(int(number(rng)) for _ in range(rng.choice([0, 1, 2, 4, 64])))
            elif kind == 1:
                strides = [int(number(rng)) for _ in strides]
            elif kind == 2:
                offset = number(rng)
            elif kind == 3:
                storage = Storage(rng.choice(list(kinds)), rng.choice(["0", "../0", "999999", "", "a\x1b"]), count)
            else:
                storage = storage._replace(count=number(rng))
        state[name] = Tensor(storage, offset, shape, tuple(strides), False, collections.OrderedDict())

    class Pickler(pickle._Pickler):
        def persistent_id(self, item):
            if isinstance(item, Storage):
                return "storage", kinds[item.dtype], item.key, "cpu", item.count

    out = io.BytesIO()
    with MODULES:
        sys.modules["torch"], sys.modules["torch._utils"] = torch, utils
        try:
            Pickler(out, 2).dump({"model": state})
        finally:
            del sys.modules["torch"], sys.modules["torch._utils"]
    return out.getvalue()


MODULES = threading.Lock()


def torch_file(program, blobs, compression=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in [("data.pkl", program), ("version", b"3\n"), *((f"data/{k}", v) for k, v in enumerate(blobs))]:
            archive.writestr(zipfile.ZipInfo("archive/" + name, (1980, 1, 1, 0, 0, 0)), data, compression)
    return out.getvalue()


def hostile_program(rng, program):
    """A pickle that is damaged, or that asks for calls, depth or memory."""
    body = program[2:-1]
    wrong = [
        b"cos\nsystem\nX\x05\0\0\0touch\x85R.", b"cposix\nsystem\n(X\x0c\0\0\0touch escapedtR.", b"cbuiltins\neval\n(X\x01\0\0\x001tR.",
        b"(" * 1_000_000 + b".", b"]" * 1_000_000 + b"a" * 999_999 + b".", b"(" * 200_000 + b"t" * 200_000 + b".",
        b"}" * 100_000 + b".", b"X\xff\xff\xff\xff" + b"a" * 10 + b".", b"\x8d" + b"\xff" * 8 + b".", b"\x8b\xff\xff\xff\x7f.",
        b"r\xff\xff\xff\xff.", b"Nr\xff\xff\xff\x7f.", b"j\xff\xff\xff\x7f.", b"NQ.", b"K\x01" + b"2" * 1_000_000 + b".",
        b"0.", b"e.", b"R.", b"b.", b"s.", b".", b"", b"I" + b"9" * 100_000 + b"\n.", b"F1e999999\n.", b"V\\ud800\n.",
        b"]q\0h\0a.", b"}q\0X\x01\0\0\0ah\0s.", b"c\x1b[31m\nx\x07y\n.", b"\x96" + b"\xff" * 8 + b".", b"Pabc\n.",
        b"(X\x01\0\0\0a" + b"2" * 300_000 + b"t" + b"(h\0t" * 1000 + b".",
        b"]q\0" + b"(h\0h\0h\0h\0h\0h\0h\0h\0lq\0" * 40 + b".",
    ]
    if rng.random() < 0.4:
        return rng.choice([b"\x80\x02", b"\x80\x04", b"\x80\x63", b""]) + rng.choice(wrong)
    if rng.random() < 0.5:
        at = rng.randrange(len(body))
        return b"\x80\x02" + body[:at] + bytes([rng.choice(b"(.)]}ac0NtRbsu2eQ\x85\x86\x87hjqrKMJX")]) + body[at + rng.randrange(2):] + b"."
    return damage(rng, program)


def hostile_torch(rng, base):
    kind = rng.randrange(8)
    if kind < 3:
        return torch_file(hostile_program(rng, base.program), base.blobs)
    if kind == 3:
        return torch_file(torch_pickle(base.tensors, rng), base.blobs)
    if kind == 4:
        return hostile_zip(rng, base.torch)
    if kind == 5:
        return damage(rng, base.torch)
    if kind == 6:
        compression = rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
        blobs = list(base.blobs)
        blobs[rng.randrange(len(blobs))] = rng.choice([b"", b"\0", bytes(50_000_000)])
        return torch_file(rng.choice([base.program, bytes(30_000_000)]), blobs, compression)
    return hostile_program(rng, base.program)  # without a zip: the format before PyTorch 1.6


def hostile_zip(rng, data):
    """Damage to the structures of a zip: local headers, central directory, end record."""
    central = data.rfind(b"PK\5\6")
    start = struct.unpack("<I", data[central + 16:central + 20])[0]
    kind = rng.randrange(5)
    if kind == 0:
        return damage(rng, data, start)
    if kind == 1:
        return damage(rng, data, 0, 200)
    data = bytearray(data)
    if kind == 2:
        struct.pack_into("<H", data, central + rng.choice([4, 6, 8, 10, 12, 14, 16, 18, 20]), rng.choice([0, 1, 0xFFFF]))
    entries = [match.start() for match in re.finditer(b"PK\1\2", bytes(data))]
    for at in rng.sample(entries, min(len(entries), rng.choice([1, 2, 50]))):
        if kind == 3:  # sizes and offset
            struct.pack_into("<I", data, at + rng.choice([20, 24, 42]), rng.choice([0, 1, start, 0x7FFFFFFF, 0xFFFFFFFF, len(data) - 1]))
        elif kind == 4:  # method, flags, lengths of name, extra field and comment
            struct.pack_into("<H", data, at + rng.choice([8, 10, 28, 30, 32]), rng.choice([0, 1, 8, 12, 14, 93, 99, 0xFFFF]))
    return bytes(data)
