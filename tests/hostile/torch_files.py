"""Damaged and hostile pickles: files of PyTorch, which are a zip of a pickle, and pickles of arrays of numpy."""
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


def array_pickle(tensors, blobs, protocol, rng=None):
    """The pickle of a state dict of numpy's arrays; with `rng`, one array has an absurd shape, type, order or length."""
    old = protocol < 5
    module, name = ("numpy.core.multiarray", "_reconstruct") if old else ("numpy._core.numeric", "_frombuffer")
    numpy, inner = types.ModuleType("numpy"), types.ModuleType(module)
    make = types.FunctionType((lambda *a: None).__code__, {}, name)
    make.__module__, make.__qualname__ = module, name
    setattr(inner, name, make)
    numpy.ndarray, numpy.dtype = (type(kind, (), {"__module__": "numpy"}) for kind in ("ndarray", "dtype"))

    class Reduced:
        def __init__(self, *parts):
            self.parts = parts

        def __reduce__(self):
            return self.parts

    victim = rng.choice(list(tensors)) if rng else None
    state = {}
    for (key, (shape, _)), blob in zip(tensors.items(), blobs):
        shape, code, order, fields, fortran = tuple(shape), "f2", "<", (None, None, None), False
        if key == victim:
            kind = rng.randrange(6)
            if kind == 0:
                shape = tuple(number(rng) for _ in range(rng.choice([0, 1, 2, 4, 64])))
            elif kind == 1:
                code = rng.choice(["f4", "f8", "O8", "V2", "U1", "i2", "M8", "", "f" * 100_000, 7, None])
            elif kind == 2:
                order = rng.choice([">", "|", "=", "", None])
            elif kind == 3:
                fortran = rng.choice([True, None, 1])
            elif kind == 4:
                blob = rng.choice([b"", blob[:-1], blob + b"\0", blob * 3, blob.decode("latin1"), [blob], None])
            else:
                fields = (None, ("a",), {"a": 0})
        dtype = Reduced(numpy.dtype, (code, False, True), (3, order, *fields, -1, -1, 0))
        if old:
            state[key] = Reduced(make, (numpy.ndarray, (0,), b"b"), (1, shape, dtype, fortran, blob))
        else:
            data = bytearray(blob) if isinstance(blob, bytes) else blob
            state[key] = Reduced(make, (data, dtype, shape, "F" if fortran else "C"))
    out = io.BytesIO()
    with MODULES:
        sys.modules["numpy"], sys.modules[module] = numpy, inner
        try:
            pickle._Pickler(out, protocol).dump({"model": state, "__author__": "x", "matching_heuristics": True})
        finally:
            del sys.modules["numpy"], sys.modules[module]
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
        b"]q\0" + b"(h\0h\0h\0h\0h\0h\0h\0h\0lq\0" * 40 + b".", *getattr_programs(),
    ]
    if rng.random() < 0.4:
        return rng.choice([b"\x80\x02", b"\x80\x04", b"\x80\x63", b""]) + rng.choice(wrong)
    if rng.random() < 0.5:
        at = rng.randrange(len(body))
        return b"\x80\x02" + body[:at] + bytes([rng.choice(b"(.)]}ac0NtRbsu2eQ\x85\x86\x87hjqrKMJX")]) + body[at + rng.randrange(2):] + b"."
    return damage(rng, program)


def getattr_programs():
    """Uses of getattr other than the one that mmengine's checkpoints have."""
    getattr, name = b"c__builtin__\ngetattr\n", b"X\x03\0\0\0min"
    buffer = b"cmmengine.logging.history_buffer\nHistoryBuffer\n"
    return [
        getattr + b".", getattr + b"0N.", getattr + b"2.", getattr + b"\x85.", b"}N" + getattr + b"s.", getattr + b"N.", getattr + b"q\0" + b"h\0" * 100_000 + b".",
        getattr + buffer + b"X\x0b\0\0\0__globals__\x86R.", getattr + b"cmmengine\nConfig\n" + name + b"\x86R.", getattr + buffer + name + b"N\x87R.",
        getattr + buffer + name + b"\x86\x81.", b"(" + getattr + buffer + name + b"o.", getattr + getattr + buffer + name + b"\x86R" + name + b"\x86R.",
        b"(" + buffer + name + b"i__builtin__\ngetattr\n.", getattr + b"cos\nsystem\n" + name + b"\x86R.",
    ]


def hostile_arrays(rng, base):
    """A damaged or absurd pickle of arrays."""
    protocol = rng.choice([2, 3, 4, 5])
    if rng.random() < 0.5:
        return array_pickle(base.tensors, base.blobs, protocol, rng)
    whole = array_pickle(base.tensors, base.blobs, protocol)
    if rng.random() < 0.3:
        return whole[:rng.randrange(len(whole))] + rng.choice([b"", b".", whole])
    return damage(rng, whole, 0, rng.choice([300, len(whole)]))


def hostile_torch(rng, base):
    kind = rng.randrange(10)
    if kind > 7:
        return hostile_arrays(rng, base)
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
