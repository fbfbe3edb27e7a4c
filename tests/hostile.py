"""Runs swinq on hostile inputs and checks its manners.

    python3 tests/hostile.py target/release/swinq                          # 2,000 runs of seed 0
    python3 tests/hostile.py target/release/swinq --seed 7 --only 123 -v   # repeats run 123 of seed 7

Each run gives one command a damaged checkpoint, image, list, archive or YAML file, or absurd options. A run fails if
swinq dies of a signal, panics, hangs, uses an exit code that it does not document, prints control characters or a long
message to standard error, writes or changes a file other than the requested outputs, or accepts a damaged quantized
checkpoint that then gives other logits. The exit code is 1 if a run failed. Linux and the standard library suffice.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import io
import json
import os
import pathlib
import pickle
import random
import re
import resource
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import zipfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "samples"
FLOAT = SAMPLE / "swin_micro_cifar10" / "model.safetensors"
CFG = SAMPLE / "swin_micro_cifar10" / "cfg.yaml"
DATA = SAMPLE / "cifar10"
SECONDS = 10
ADDRESS_SPACE = 4 << 30
LONGEST_MESSAGE = 4096
EXIT_CODES = {0, 1, 2, 3, 4}
NUMBERS = [0, 1, -1, 2, 3, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1,
           2**63, 2**64 - 1, 2**64, 10**30, -(2**31), -(2**63), 0.5, 1e-45, 1e38, 1e39, 1e308, -1e308]
WORDS = ["", " ", "NaN", "nan", "inf", "-inf", "-1", "0", "1", "1e9", "1e400", "0x10", "99999999999999999999", "18446744073709551615",
         "4294967296", "1000000", "0.0", "-0", "٣", "\u202e", "a\x1b[31mb", "a\nb", "\x07", "x" * 3000, "**", "re:(", "re:" + "(a*)*" * 50,
         "{" * 60, "[" * 60, "cuda", "cuda:99", "cuda:-1", "/", ".", "..", "../..", "~", "-", "--", "%s%n", "null", "true"]


# ---- Bytes that any format may have -----------------------------------------------------------------------------

def damage(rng, data, low=0, high=None):
    """`data` with one to eight random changes between the offsets `low` and `high`."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        end = min(len(data), high if high is not None else len(data))
        if end <= low:
            return bytes(data)
        at = rng.randrange(low, end)
        kind = rng.randrange(7)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x1B])
        elif kind == 2:
            width = rng.choice([2, 4, 8])
            data[at:at + width] = (rng.choice([0, 1, 2**15, 2**31, 2**63, 2**64 - 1]) % 2**(8 * width)).to_bytes(
                width, rng.choice(["little", "big"]))
        elif kind == 3:
            del data[at:at + rng.choice([1, 2, 16, 1000])]
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.choice([1, 2, 16, 1000]))
        elif kind == 5:
            data[at:at + 64] = data[at + 64:at + 128] + data[at:at + 64]
        else:
            del data[rng.choice([at, low, max(low, end - at)]):]
    return bytes(data)


def number(rng):
    return rng.choice(NUMBERS) if rng.random() < 0.8 else rng.randrange(-5, 300)


def value(rng):
    """A JSON value of a random type."""
    deep = []
    for _ in range(rng.choice([5, 200])):
        deep = [deep]
    return rng.choice([number(rng), number(rng), rng.choice(WORDS), None, True, [], {}, deep, [number(rng)] * 3,
                       {rng.choice(WORDS): number(rng)}, "y" * 100_000, [0] * 100_000])


def paths_of(tree, path=()):
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in items:
        yield from paths_of(child, path + (key,))


def damage_tree(rng, tree):
    """`tree`, a JSON value, with a few values replaced, removed, added or renamed."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        *path, key = rng.choice([path for path in paths_of(tree) if path] or [("none",)])
        parent = tree
        for step in path:
            parent = parent[step]
        kind = rng.randrange(6)
        if kind < 3 or isinstance(parent, list):
            parent[key] = value(rng)
        elif kind == 3:
            del parent[key]
        elif kind == 4:
            parent[rng.choice(WORDS)] = parent.pop(key)
        else:
            parent[rng.choice(WORDS)] = value(rng)
        if not isinstance(tree, (dict, list)):
            break
    return tree


def doubled_key(rng, text):
    """JSON `text` in which one object states a key twice."""
    keys = list(re.finditer(r'"[^"\\]*":', text))
    if not keys:
        return text
    key = rng.choice(keys)
    return text[:key.start()] + key.group() + rng.choice(["0", "null", '""', "{}", "[]"]) + "," + text[key.start():]


# ---- Safetensors ------------------------------------------------------------------------------------------------

def split_safetensors(data):
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def join_safetensors(header, body):
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    text = text.encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def hostile_safetensors(rng, data):
    header, body = split_safetensors(data)
    start = len(data) - len(body)
    names = [name for name in header if name != "__metadata__"]
    a, b = rng.sample(names, 2)
    kind = rng.randrange(12)
    if kind == 0:
        return damage(rng, data)
    if kind == 1:
        return damage(rng, data, 8, start)
    if kind == 2:
        at = rng.randrange(len(body))
        return data[:start] + body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1:]
    if kind == 3:
        return data[:rng.choice([0, 1, 7, 8, 9, start, start + 1, len(data) - 1, rng.randrange(len(data))])]
    if kind == 4:
        return struct.pack("<Q", int(abs(rng.choice(NUMBERS))) % 2**64) + data[8:]
    if kind == 5:
        header[a], header[b] = header[b], header[a]
    elif kind == 6:
        header[rng.choice([a + "x", b + ".scale", *WORDS])] = header.pop(a) if rng.random() < 0.5 else header[a]
    elif kind == 7:
        header[a]["shape"] = [int(number(rng)) for _ in range(rng.choice([0, 1, 2, 4, 40]))]
    elif kind == 8:
        header[a]["data_offsets"] = [int(number(rng)), int(number(rng))]
    elif kind == 9:
        header[a]["dtype"] = rng.choice(["F64", "F16", "BF16", "I8", "U8", "I64", "BOOL", "F8_E4M3", "", "Q4"])
    elif kind == 10:
        return join_safetensors(doubled_key(rng, json.dumps(header)), body)
    else:
        low, high = header[a]["data_offsets"]
        fill = rng.choice([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\0\0\0\0", b"\x01\0\0\0"])
        body = body[:low] + (fill * (high - low))[:high - low] + body[high:]
    return join_safetensors(header, body)


def hostile_document(rng, data, version):
    """A quantized checkpoint whose document is changed; as version 1 no hash refuses the change."""
    header, body = split_safetensors(data)
    document = json.loads(header["__metadata__"]["swinq"])
    if version == 1:
        document.pop("hash")
        document["format_version"] = 1
    elif rng.random() < 0.2:
        document["format_version"] = number(rng)
    header["__metadata__"]["swinq"] = json.dumps(damage_tree(rng, document))
    if rng.random() < 0.2:
        header["__metadata__"]["swinq"] = doubled_key(rng, header["__metadata__"]["swinq"])
    if rng.random() < 0.1:
        header["__metadata__"] = value(rng)
    return join_safetensors(header, body)


def as_version_1(data):
    header, body = split_safetensors(data)
    document = json.loads(header["__metadata__"]["swinq"])
    del document["hash"]
    document["format_version"] = 1
    header["__metadata__"]["swinq"] = json.dumps(document)
    return join_safetensors(header, body)


# ---- PyTorch's zip of a pickle ----------------------------------------------------------------------------------

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


# ---- Images -----------------------------------------------------------------------------------------------------

def png(width, height, pixels, depth=8, colour=2):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width % 2**32, height % 2**32, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def resealed_png(rng, data):
    """A PNG in which one chunk is damaged and its checksum is right."""
    chunks, at = [], 8
    while at + 12 <= len(data):
        size = struct.unpack(">I", data[at:at + 4])[0]
        chunks.append([data[at + 4:at + 8], data[at + 8:at + 8 + size]])
        at += 12 + size
    victim = rng.choice(chunks)
    victim[1] = damage(rng, victim[1])
    if rng.random() < 0.2:
        rng.shuffle(chunks)
    out = data[:8]
    for kind, body in chunks:
        out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return out


def hostile_image(rng, base):
    """The name and bytes of an image."""
    name = rng.choice(sorted(base.images))
    data = base.images[name]
    kind = rng.randrange(8)
    if kind == 0:
        sizes = [0, 1, 2, 65535, 100_000, 2**31 - 1, 2**31, 2**32 - 1]
        return "absurd.png", png(rng.choice(sizes), rng.choice(sizes), bytes(rng.choice([0, 1, 10_000_000])),
                                 rng.choice([1, 8, 16, 3]), rng.choice([0, 2, 3, 4, 6, 9]))
    if kind == 1:
        sizes = [0, 1, -1, -2**31, 2**31 - 1, 65536]
        head = struct.pack("<IiiHHIIiiII", rng.choice([40, 12, 108, 124, 0, 2**32 - 1]), rng.choice(sizes), rng.choice(sizes),
                           rng.choice([0, 1]), rng.choice([0, 1, 4, 8, 16, 24, 32]), rng.choice([0, 1, 2, 3, 99]), 0, 0, 0,
                           rng.choice([0, 256, 2**32 - 1]), 0)
        return "absurd.bmp", b"BM" + struct.pack("<IHHI", 0, 0, 0, rng.choice([0, 54, 2**32 - 1])) + head + bytes(100)
    if kind == 2 and name.endswith(".png"):
        return name, resealed_png(rng, data)
    if kind == 3:
        return name, damage(rng, data, 0, 64)
    if kind == 4:
        return name, data[:rng.randrange(len(data))]
    if kind == 5:
        other = base.images[rng.choice(sorted(base.images))]
        return name, rng.choice([other, data[:len(data) // 2] + other[len(other) // 2:], data * 3, b"", b"\xff\xd8" * 50_000])
    if kind == 6 and data[:2] == b"\xff\xd8":  # the frame header of a JPEG: sizes and components
        at = next((match.start() for match in re.finditer(b"\xff[\xc0-\xc2]", data)), 0)
        return name, damage(rng, data, at + 2, at + 18)
    return name, damage(rng, data)


# ---- YAML -------------------------------------------------------------------------------------------------------

def hostile_yaml(rng, text, folder):
    lines = text.splitlines()
    depth = rng.choice([100, 10_000, 300_000])
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 12))
    whole = ["[" * depth, "{a: " * depth, "- " * depth, "".join(" " * k + "a:\n" for k in range(min(depth, 2000))), bomb + text, "? " * depth,
             text + "\n---\n" + text, text + "\n" + text, "&a [*a]", "a: &a {b: *a}", "!!binary AAAA", "!!python/object/apply:os.system ['touch escaped']",
             "\ufeff" + text, "\0", text.replace("\n", "\r"), "%YAML 9.9\n---\n" + text, "'" + "x" * 3_000_000, "", "null", "[]", "3", "x: " + "9" * 100_000,
             "BASE: [/dev/zero]\n" + text, "BASE: ['.']\n" + text, "BASE: [own.yaml]\n" + text, "BASE: [/etc/passwd, /etc/shadow]\n" + text,
             "BASE: [" + "fine.yaml, " * 10_000 + "]\n" + text, "<<: *x\n" + text, "&x\x1b[31m: *y\x1b", "\x1b[2Ja: \x07", "a\u0085b\u009b31m: 1"]
    kind = rng.randrange(6)
    if kind < 2:
        text = rng.choice(whole)
    elif kind == 2:
        return damage(rng, text.encode())
    else:
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(lines))
            key, colon, _ = lines[at].partition(":")
            if colon and rng.random() < 0.8:
                evil = rng.choice([str(number(rng)), json.dumps(value(rng)), ".nan", ".inf", "-.inf", "~", "*x", "!!str 1", "'" + rng.choice(WORDS) + "'",
                                   "[" + "1, " * 1000 + "]", "{" + key.strip() + ": 1}", "0o777", "1_000", "2001-01-01", "|\n  x", str(folder)])
                lines[at] = f"{key}: {evil}"
            else:
                lines.insert(at, rng.choice([lines[at], "\t" + lines[at], "X\x07Y: 1", "? [a]", "- 1", "  " + lines[at], "match: '" + "*" * 300 + "'"]))
        text = "\n".join(lines)
    return text.encode("utf-8", "surrogatepass")


# ---- The runs ---------------------------------------------------------------------------------------------------

class Run:
    """One command: arguments, files that it may write, and what its success must show."""

    def __init__(self, arguments, outputs=(), keeps=(), same_logits=False, stdin=None):
        self.arguments = [str(argument) for argument in arguments]
        self.outputs, self.keeps, self.same_logits, self.stdin = set(outputs), set(keeps), same_logits, stdin


def model_options():
    return ["--cfg", CFG]


def run_quantized(rng, base, folder):
    victim = folder / "victim.safetensors"
    kind = rng.randrange(4)
    if kind < 2:
        data, same = hostile_safetensors(rng, base.quantized), True
    elif kind == 2:
        data, same = hostile_document(rng, base.quantized, 2), True
    else:  # version 1 has no hash, so that damage reaches the checks behind it
        data, same = rng.choice([hostile_document(rng, base.quantized, 1), hostile_safetensors(rng, as_version_1(base.quantized))]), False
    victim.write_bytes(data)
    command = rng.choice(["predict"] * 5 + ["inspect", "eval", "simulate", "qat"])
    if command == "predict":
        return Run(["predict", victim, base.picture, "--logits", folder / "logits.safetensors", *base.cpu], ["logits.safetensors"], same_logits=same)
    if command == "inspect":
        return Run(["inspect", victim, *rng.choice([[], ["--sites"], ["--json"], ["--plan", "--backend", "cpu"]])])
    if command == "qat":
        return Run(["qat", "default", "--dry-run", "--opts", "model", victim, "float", FLOAT, "cfg", CFG, "data.path", DATA, "output", folder / "out"])
    simulate = ["--simulate"] if command == "simulate" else []
    return Run(["eval", victim, "--data-path", DATA, "--limit", "2", "--no-latency", *base.cpu, *simulate])


def run_float(rng, base, folder, name, data):
    victim = folder / name
    victim.write_bytes(data)
    out = folder / "out.safetensors"
    return rng.choice([
        Run(["predict", victim, base.picture, *model_options(), *base.cpu, "--logits", out], ["out.safetensors"]),
        Run(["inspect", victim, *model_options(), "--sites"]),
        Run(["calibrate", victim, *model_options(), "--data-path", DATA, "--batches", "1", "--batch-size", "2", "--ptq", "basic", "-o", out],
            ["out.safetensors", "out.ranges.json"]),
        Run(["calibrate", FLOAT, *model_options(), "--data-path", DATA, "--batches", "1", "--ft-amax", victim, "-o", out],
            ["out.safetensors", "out.ranges.json"]),
    ])


def run_float_safetensors(rng, base, folder):
    return run_float(rng, base, folder, "victim.safetensors", hostile_safetensors(rng, base.float))


def run_pickle(rng, base, folder):
    return run_float(rng, base, folder, rng.choice(["victim.pth", "victim.pt", "victim.bin"]), hostile_torch(rng, base))


def run_image(rng, base, folder):
    images = []
    for k in range(rng.choice([1, 1, 3])):
        name, data = hostile_image(rng, base)
        image = folder / "images" / f"{k}_{name}"
        image.parent.mkdir(exist_ok=True)
        image.write_bytes(data)
        images.append(image)
    memory = ["--decode-memory", rng.choice(["1G", "100M", "1M"])]
    if rng.random() < 0.2:
        (folder / "images" / "class").mkdir()
        shutil.move(images[0], folder / "images" / "class" / images[0].name)
        return Run(["eval", base.path, "--data-path", folder / "images", "--split", "train", "--no-latency", "--skip-corrupt", "1", *base.cpu, *memory])
    return Run(["predict", base.path, *images, "--logits", folder / "logits.safetensors", *base.cpu, *memory],
               keeps=["logits.safetensors"], outputs=["logits.safetensors"])


def run_data(rng, base, folder):
    data = folder / "data"
    data.mkdir()
    archive, names = (DATA / "val.zip").read_bytes(), (DATA / "val_map.txt").read_bytes()
    evil = ["../../etc/passwd\t0", "/dev/zero\t0", "airplane/0000.jpg", "airplane/0000.jpg\t-1", "airplane/0000.jpg\t99999999999999999999", "\t0", "x\t\t0",
            "a\x1b[31m.jpg\t0", "airplane/0000.jpg\t10", "airplane/0000.jpg\t4294967295", "airplane/0000.jpg\t0\t0", "z" * 100_000 + "\t0", "\0\t0",
            ".\t0", "airplane\t0", "\u202e.jpg\t1", "airplane/0000.jpg\tNaN"]
    kind = rng.randrange(5)
    if kind == 0:
        archive = hostile_zip(rng, archive)
    elif kind == 1:
        names = damage(rng, names)
    elif kind == 2:
        lines = names.decode().splitlines()
        for _ in range(rng.choice([1, 3])):
            lines.insert(rng.randrange(min(len(lines), 5)), rng.choice(evil))
        names = "\n".join(lines).encode()
    elif kind == 3:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name in rng.sample(["../up.jpg", "/abs.jpg", "a/b.jpg", "a\x1b.jpg", "airplane/0000.jpg", "c" * 60_000, "d/"], 3):
                zipped.writestr(name, rng.choice([b"", bytes(40_000_000), base.images["grey.png"]]))
            listed = zipped.namelist()
        archive, names = out.getvalue(), "".join(f"{name}\t{k}\n" for k, name in enumerate(listed)).encode()
    else:
        listing = folder / "list.txt"
        line = rng.choice([e.replace("airplane/0000.jpg", str(base.picture)) for e in evil] + ["\n" * 1000, ""])
        listing.write_text(rng.choice([f"{base.picture}\t0\n", f"{base.picture}\n", ""]) * rng.choice([1, 100]) + line + "\n", errors="surrogatepass")
        if rng.random() < 0.3:
            return Run(["predict", base.path, "-", *base.cpu], stdin=listing.read_bytes())
        if rng.random() < 0.5:
            return Run(["predict", base.path, base.picture, "--labels", listing, *base.cpu])
        return Run(["eval", base.path, "--data-path", listing, "--limit", "4", "--no-latency", *base.cpu])
    (data / "val.zip").write_bytes(archive)
    (data / "val_map.txt").write_bytes(names)
    return Run(["eval", base.path, "--data-path", data, "--limit", str(rng.choice([2, 20])), "--no-latency", *base.cpu])


def run_yaml(rng, base, folder):
    victim, out = folder / "own.yaml", folder / "out.safetensors"
    shutil.copy(CFG, folder / "fine.yaml")
    kind = rng.randrange(6)
    if kind < 2:
        victim.write_bytes(hostile_yaml(rng, CFG.read_text(), folder))
        return rng.choice([Run(["inspect", FLOAT, "--cfg", victim]), Run(["predict", FLOAT, base.picture, "--cfg", victim, *base.cpu]),
                           Run(["bench", "--random-weights", "0", "--cfg", victim, "--batch-size", "1", "--seconds", "0.01", *base.cpu])])
    if kind == 2:
        text = (ROOT / "configs" / "quant" / rng.choice(["default.yaml", "mode1.yaml", "mode2.yaml"])).read_text()
        victim.write_bytes(hostile_yaml(rng, text, folder))
        return Run(["calibrate", FLOAT, *model_options(), "--data-path", DATA, "--recipe", victim, "--batches", "1", "--batch-size", "2", "-o", out],
                   ["out.safetensors", "out.ranges.json"])
    if kind == 3:
        text = (ROOT / "configs" / "qat" / "default.yaml").read_text()
        for key, path in [("model", base.path), ("float", FLOAT), ("cfg", CFG), ("output", folder / "run")]:
            text = re.sub(rf"(?m)^{key}: null", f"{key}: {path}", text)
        victim.write_bytes(hostile_yaml(rng, text.replace("  path: null", f"  path: {DATA}"), folder))
        return Run(["qat", victim, "--dry-run"])
    if kind == 4:  # a folder in the style of timm or Hugging Face
        home = folder / "model"
        home.mkdir()
        shutil.copy(FLOAT, home / "model.safetensors")
        config = rng.choice([
            {"architecture": "swin_tiny_patch4_window7_224", "num_classes": 10, "model_args": {"embed_dim": 64, "depths": [2, 4], "num_heads": [2, 4]},
             "pretrained_cfg": {"input_size": [3, 56, 56], "mean": [0.4, 0.4, 0.4], "std": [0.2, 0.2, 0.2], "crop_pct": 0.9, "interpolation": "bicubic"}},
            {"model_type": "swin", "image_size": 56, "patch_size": 4, "embed_dim": 64, "depths": [2, 4], "num_heads": [2, 4], "window_size": 7,
             "id2label": {str(k): f"c{k}" for k in range(10)}, "architectures": ["SwinForImageClassification"]}])
        text = json.dumps(damage_tree(rng, config))
        text = rng.choice([text, text, doubled_key(rng, text), "[" * 200_000, ""])
        (home / "config.json").write_text(text, errors="surrogatepass")
        return Run(["inspect", home])
    first, second = folder / "first.json", folder / "second.json"
    first.write_text(json.dumps(damage_tree(rng, json.loads(base.results))), errors="surrogatepass")
    second.write_bytes(damage(rng, base.results) if rng.random() < 0.3 else base.results)
    return rng.choice([Run(["compare", first, second, "--max-drop", rng.choice(["1", "0"])]),
                       Run(["eval", base.path, "--data-path", DATA, "--limit", "2", "--no-latency", *base.cpu, "--sensitivity", first,
                            "--report", folder / "r.html"], ["r.html"])])


def run_options(rng, base, folder):
    out = folder / "out.safetensors"
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    copy, own = folder / "copy.safetensors", folder / "float.safetensors"
    shutil.copy(base.path, copy)
    shutil.copy(FLOAT, own)
    os.symlink("loop", folder / "loop")
    os.symlink(copy, folder / "link")
    inputs = [fifo, "/dev/zero", "/dev/full", "/dev/null", "/dev/stdin", folder, folder / "missing", folder / "loop", "", "/proc/self/mem", "/proc/self/fd",
              "/dev/tty", CFG, base.picture, DATA / "val.zip", *WORDS]
    outputs = ["/dev/full", "/dev/null", fifo, folder, folder / "no" / "out", folder / "loop", "", copy, folder / "link", "/proc/self/x", folder / "a\x1b[31m" / "x",
               "x" * 300]
    word = lambda: rng.choice([rng.choice(WORDS), str(number(rng))])
    source, target = rng.choice(inputs), rng.choice(outputs)
    beside = rng.choice([own if output in (copy, folder / "link") else output for output in outputs])
    few = ["--batches", "1", "--batch-size", "2", "--ptq", "basic"]
    calibrate = ["calibrate", own, *model_options(), "--data-path", DATA]
    evaluate = ["eval", copy, "--data-path", DATA, "--limit", "2", "--no-latency", *base.cpu]
    predict = ["predict", copy, base.picture, *base.cpu]
    written = ["out.safetensors", "out.ranges.json"]
    return rng.choice([
        lambda: Run([*calibrate, "-o", out, *few, f"--{rng.choice(['calibrator', 'recipe', 'disable', 'ft-amax', 'device', 'split', 'labels'])}={source}"], written),
        lambda: Run([*calibrate, "-o", out, "--ptq", "basic", "--batches", word() if rng.random() < 0.3 else "1",
                     f"--{rng.choice(['batch-size', 'seed', 'threads', 'skip-corrupt'])}={word()}"], written),
        lambda: Run([*calibrate, *few, "-o", beside]),
        lambda: Run([*calibrate, "-o", out, *few, "--opts", rng.choice(["MODEL.NUM_CLASSES", "DATA.IMG_SIZE", "MODEL.SWIN.DEPTHS", "MODEL.SWIN.EMBED_DIM", "X"]), word()], written),
        lambda: Run(["predict", source, base.picture, *base.cpu]),
        lambda: Run(["predict", copy, source, *base.cpu]),
        lambda: Run([*predict, f"--{rng.choice(['topk', 'device', 'threads', 'decode-memory', 'labels', 'transform', 'dialect'])}={word()}"]),
        lambda: Run([*predict, f"--{rng.choice(['labels', 'cfg', 'transform'])}={source}"]),
        lambda: Run([*predict, "--logits", target]),
        lambda: Run(["predict", copy, base.picture, "--threads", word(), "--backend", "cpu"]),
        lambda: Run([*evaluate, f"--{rng.choice(['batch-size', 'seed', 'skip-corrupt', 'name', 'simulate', 'split', 'limit'])}={word()}"]),
        lambda: Run([*evaluate[:-len(base.cpu) - 1], "--backend", "cpu", "--threads", "1", "--latency", word()]),
        lambda: Run([*evaluate, f"--{rng.choice(['json', 'report', 'markdown', 'predictions'])}", target]),
        lambda: Run(["eval", copy, "--data-path", source, "--limit", "2", "--no-latency", *base.cpu]),
        lambda: Run([*evaluate, f"--{rng.choice(['sensitivity', 'tuning', 'training'])}={source}", "--report", folder / "r.html"], ["r.html"]),
        lambda: Run(["bench", copy, *base.cpu, "--seconds", "0.01", "--batch-size", word(), *([] if rng.random() < 0.5 else ["--json", target])]),
        lambda: Run(["bench", copy, *base.cpu, "--batch-size", "1", "--seconds",
                     rng.choice(["0", "-1", "1e9", "1e308", "NaN", "inf", "", "1e-300", "9223372036854775807"])]),
        lambda: Run(["inspect", copy, "--plan", "--backend", "cpu", "--batch-size", word()]),
        lambda: Run(["inspect", source, "--cfg", source]),
        lambda: Run(["compare", source, rng.choice(inputs)]),
        lambda: Run(["qat", source, "--dry-run"]),
        lambda: Run(["qat", "default", "--dry-run", "--opts", "model", copy, "float", FLOAT, "cfg", CFG, "data.path", DATA, "output", target,
                     rng.choice(["optimizer.lr", "batch_size", "epochs", "threads", "device", "data.cache_mb", "seed", "x.y"]), word()]),
        lambda: Run(["sensitivity", own, *model_options(), "--data-path", DATA, "--images", word(), "-o", beside]),
        lambda: Run(["tune", own, *model_options(), "--data-path", DATA, "--images", "2", "--max-drop", word(), "-o", beside]),
        lambda: Run(["man", rng.choice([fifo, "/dev/null", copy, folder / "loop", "/proc/self/x"])]),
        lambda: Run([word(), word()]),
    ])()


KINDS = {"quantized checkpoint": (run_quantized, 6), "float safetensors": (run_float_safetensors, 3), "float pickle": (run_pickle, 4),
         "image": (run_image, 4), "list, map or zip": (run_data, 2), "YAML or JSON": (run_yaml, 4), "options": (run_options, 5)}


# ---- Judgement --------------------------------------------------------------------------------------------------

def listing(folder):
    """What is in `folder`: for each path its kind, size and time, and the hash of small files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        text = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) and about.st_size < 4 << 20 else ""
        found[str(path.relative_to(folder))] = (stat.S_IFMT(about.st_mode), 0 if path.is_dir() else about.st_size, text)
    return found


def logits(path):
    header, body = split_safetensors(path.read_bytes())
    return header["logits"]["shape"], body


def execute(binary, run, folder):
    """The exit code (None: it hung), standard output and standard error."""
    def limits():
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    arguments = [argument.replace("\0", "") for argument in run.arguments]
    keep = {name: value for name, value in os.environ.items() if name not in ("RUST_BACKTRACE", "SWINQ_ISA")}
    process = subprocess.Popen([binary, *arguments], cwd=folder, env=keep, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=limits, start_new_session=True)
    try:
        out, err = process.communicate(run.stdin or b"", timeout=SECONDS)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        return None, out, err


def judge(run, folder, before, code, out, err, base):
    """The faults of a run, as short texts."""
    faults = []
    text = err.decode("utf-8", "replace")
    if code is None:
        faults.append(f"hangs for {SECONDS} s")
    elif code < 0:
        faults.append(f"dies of signal {-code}")
    elif code not in EXIT_CODES:
        faults.append(f"exit code {code}")
    if "panicked" in text or "RUST_BACKTRACE" in text:
        faults.append("panics")
    for name, stream in [("error", text), ("output", out.decode("utf-8", "replace"))]:
        raw = {c for c in stream if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160}
        if raw:
            faults.append(f"raw control characters on standard {name}: {sorted(raw)}")
    if code not in (0, None):
        lines = [line.encode() for line in text.splitlines()]
        longest = max([sum(len(line) for line in lines if not line.startswith(b"warning:")), *map(len, lines)])
        if longest > LONGEST_MESSAGE:
            faults.append(f"a message of {longest} bytes")
        if code in (1, 2) and text.count("error:") == 0:
            faults.append("fails without a message")
    after = listing(folder)
    changed = {name for name, about in before.items() if after.get(name) != about}
    allowed = run.outputs if code == 0 else run.keeps
    created = set(after) - set(before) - allowed
    if changed:
        faults.append(f"changes {sorted(changed)}")
    if created and code is not None:
        faults.append(f"leaves {sorted(created)} with exit code {code}")
    if code == 0:
        missing = run.outputs - set(after)
        if missing - {"out.ranges.json"}:
            faults.append(f"succeeds without writing {sorted(missing)}")
        elif run.same_logits and logits(folder / "logits.safetensors") != base.logits:
            faults.append("accepts a damaged checkpoint that gives other logits")
    return faults


class Base:
    """The files that are damaged."""

    def __init__(self, binary, folder):
        self.cpu = ["--backend", "cpu", "--threads", "1"]
        self.path, self.picture = folder / "base.safetensors", folder / "picture.jpg"
        with zipfile.ZipFile(DATA / "val.zip") as archive:
            self.picture.write_bytes(archive.read("airplane/0000.jpg"))
        results, found = folder / "base.json", folder / "logits.safetensors"
        for arguments in [["calibrate", FLOAT, *model_options(), "--data-path", DATA, "--ptq", "basic", "--batches", "1", "-o", self.path],
                          ["predict", self.path, self.picture, *self.cpu, "--logits", found],
                          ["eval", self.path, "--data-path", DATA, "--limit", "4", "--no-latency", *self.cpu, "--json", results]]:
            subprocess.run([binary, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.quantized, self.float, self.results = self.path.read_bytes(), FLOAT.read_bytes(), results.read_bytes()
        self.logits = logits(found)
        folders = [ROOT / "data" / "tests" / "fixtures", ROOT / "tests" / "data"]
        suffixes = {".jpg", ".png", ".webp", ".bmp", ".tif", ".tiff"}
        self.images = {path.name: path.read_bytes() for home in folders for path in home.iterdir() if path.suffix in suffixes}
        header, body = split_safetensors(self.float)
        header.pop("__metadata__", None)
        self.tensors = {name: (about["shape"], (about["data_offsets"][1] - about["data_offsets"][0]) // 2) for name, about in header.items()}
        self.blobs = [body[slice(*about["data_offsets"])] for about in header.values()]
        self.program = torch_pickle(self.tensors)
        self.torch = torch_file(self.program, self.blobs)
        (folder / "base.pth").write_bytes(self.torch)
        subprocess.run([binary, "predict", folder / "base.pth", self.picture, *map(str, model_options()), *self.cpu], check=True, stdout=subprocess.DEVNULL)


def one(index, options, base, home):
    """Makes, runs and judges run `index`. Returns its kind, exit code, seconds, faults, command and message."""
    rng = random.Random(f"{options.seed}:{index}")
    kind = rng.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
    folder = home / f"run{index}"
    folder.mkdir()
    run = KINDS[kind][0](rng, base, folder)
    before = listing(folder)
    start = time.monotonic()
    code, out, err = execute(options.binary, run, folder)
    seconds = time.monotonic() - start
    faults = judge(run, folder, before, code, out, err, base)
    if not options.keep:
        shutil.rmtree(folder)
    return index, kind, code, seconds, faults, shlex.join(["swinq", *run.arguments]), err.decode("utf-8", "replace")


def main():
    parser = argparse.ArgumentParser(description="Runs swinq on hostile inputs and checks its manners.")
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--only", type=int, help="make this run only")
    parser.add_argument("--keep", action="store_true", help="keep the files of every run, and print where they are")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each run's command and message")
    options = parser.parse_args()
    options.binary = options.binary.resolve(strict=True)
    home = pathlib.Path(tempfile.mkdtemp(prefix="swinq-hostile-"))
    (home / "base").mkdir()
    base = Base(options.binary, home / "base")
    shared = [home / "base", SAMPLE]
    before = [listing(folder) for folder in shared]
    wanted = range(options.runs) if options.only is None else [options.only]
    counts, failures = collections.defaultdict(collections.Counter), []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for index, kind, code, seconds, faults, command, message in pool.map(lambda k: one(k, options, base, home), wanted):
            counts[kind]["accepted" if code == 0 else "hung" if code is None else "refused" if code in EXIT_CODES else "died"] += 1
            counts[kind]["failed"] += bool(faults)
            counts[kind]["slowest"] = max(counts[kind]["slowest"], seconds)
            if options.verbose:
                print(f"{index} {kind}: {code} in {seconds:.2f} s\n  {ascii(command[:2000])}\n  {ascii(message[:600])}")
            if faults:
                failures.append(index)
                print(f"FAILED {index} ({kind}): {'; '.join(faults)}\n  {ascii(command[:1000])}\n  {ascii(message[:300])}\n"
                      f"  repeat: python3 tests/hostile.py {options.binary.name} --seed {options.seed} --only {index} -v --keep", flush=True)
    if [listing(folder) for folder in shared] != before:
        failures.append(-1)
        print("FAILED: a run changed the sample or the base files")
    print(f"\n{'inputs':22} {'runs':>6} {'accepted':>9} {'refused':>8} {'failed':>7} {'slowest s':>10}")
    for kind, count in sorted(counts.items()):
        total = sum(count[name] for name in ("accepted", "refused", "hung", "died"))
        print(f"{kind:22} {total:6} {count['accepted']:9} {count['refused']:8} {count['failed']:7} {count['slowest']:10.2f}")
    print(f"{len(failures)} of {len(wanted)} runs failed, seed {options.seed}")
    if options.keep:
        print(f"files: {home}")
    else:
        shutil.rmtree(home)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
