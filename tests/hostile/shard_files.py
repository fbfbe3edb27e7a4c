"""Sharded checkpoints with damaged or hostile indexes."""
import json
import os
import shutil

from damage import damage, damage_tree, doubled_key
from safetensors_files import hostile_safetensors, join_safetensors, split_safetensors
from settings import FLOAT

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def write_shards(folder):
    """The float sample in two shards; returns the file of each tensor."""
    header, body = split_safetensors(FLOAT.read_bytes())
    header.pop("__metadata__", None)
    names = sorted(header)
    files = {}
    for shard, part in zip(SHARDS, (names[:len(names) // 2], names[len(names) // 2:])):
        own, data = {}, b""
        for name in part:
            low, high = header[name]["data_offsets"]
            own[name] = header[name] | {"data_offsets": [len(data), len(data) + high - low]}
            data += body[low:high]
            files[name] = shard
        (folder / shard).write_bytes(join_safetensors(own, data))
    return files


def hostile_shards(rng, folder):
    """Writes shards and an index into `folder`. Returns the index, and whether it leads out of the folder."""
    folder.mkdir()
    files = write_shards(folder)
    outside = folder.parent / "outside.safetensors"
    shutil.copy(folder / SHARDS[0], outside)
    index = folder / "model.safetensors.index.json"
    text, leads_out = {"metadata": {"total_size": 1}, "weight_map": files}, False
    kind = rng.randrange(6)
    if kind == 0:
        text = json.dumps(damage_tree(rng, text))
    elif kind == 1:
        text = doubled_key(rng, json.dumps(text))
    elif kind == 2:
        names = [str(outside), "../outside.safetensors", "./../outside.safetensors", "/proc/self/mem", "/dev/zero", "", ".", "a/../" + SHARDS[0],
                 "..\\outside.safetensors", "\0", "\u202e", "x" * 5000]
        moved, name = rng.choice(SHARDS), rng.choice(names)
        text["weight_map"] = {tensor: name if shard == moved else shard for tensor, shard in files.items()}
        text, leads_out = json.dumps(text), True
    elif kind == 3:
        (folder / SHARDS[0]).unlink()
        os.symlink(rng.choice([outside, "/dev/zero", "/proc/self/mem", SHARDS[0]]), folder / SHARDS[0])
        text, leads_out = json.dumps(text), True
    elif kind == 4:
        shard = folder / rng.choice(SHARDS)
        shard.write_bytes(hostile_safetensors(rng, shard.read_bytes()))
        text = json.dumps(text)
    else:
        text = damage(rng, json.dumps(text).encode()).decode("latin-1")
    index.write_text(text, errors="surrogatepass")
    return index, leads_out
