"""Random changes of bytes and of JSON or YAML trees."""
import re

from settings import NUMBERS, WORDS


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
