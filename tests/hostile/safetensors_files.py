"""Damaged safetensors files and quantized checkpoints."""
import json
import struct

from damage import damage, damage_tree, doubled_key, number, value
from settings import NUMBERS, WORDS


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
