"""Damaged images."""
import re
import struct
import zlib

from damage import damage


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
