"""Writes the seeds in corpus/, the smallest valid input of every reader. Needs torch, numpy and xxhash, and the program swinq
for the quantized checkpoints:

    python fuzz/make_seeds.py target/release/swinq

Images have their seeds in data/tests/fixtures, except for those that state an orientation outside of JPEG.
"""
import argparse
import io
import json
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import types
import zipfile
import zlib

import torch
import xxhash

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "data/tests/fixtures"
SHAPES = {
    "patch_embed.proj.weight": (2, 3, 2, 2), "patch_embed.proj.bias": (2,), "patch_embed.norm.weight": (2,),
    "patch_embed.norm.bias": (2,), "layers.0.blocks.0.norm1.weight": (2,), "layers.0.blocks.0.norm1.bias": (2,),
    "layers.0.blocks.0.attn.relative_position_bias_table": (9, 1), "layers.0.blocks.0.attn.qkv.weight": (6, 2),
    "layers.0.blocks.0.attn.qkv.bias": (6,), "layers.0.blocks.0.attn.proj.weight": (2, 2),
    "layers.0.blocks.0.attn.proj.bias": (2,), "layers.0.blocks.0.norm2.weight": (2,),
    "layers.0.blocks.0.norm2.bias": (2,), "layers.0.blocks.0.mlp.fc1.weight": (2, 2),
    "layers.0.blocks.0.mlp.fc1.bias": (2,), "layers.0.blocks.0.mlp.fc2.weight": (2, 2),
    "layers.0.blocks.0.mlp.fc2.bias": (2,), "norm.weight": (2,), "norm.bias": (2,), "head.weight": (2, 2), "head.bias": (2,),
}


def write(target, name, content):
    path = HERE / "corpus" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def random(shapes):
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def state():
    return random(SHAPES)


def stack():
    """The block with three channels and nothing else: pixels can be its tokens."""
    sides = {2: 3, 6: 9}
    return random({name: [sides.get(side, side) for side in shape] for name, shape in SHAPES.items() if ".blocks." in name})


def safetensors(tensors, dtype="F32"):
    header, body = {}, b""
    for name, tensor in tensors.items():
        data = (tensor if dtype == "F32" else tensor.half()).numpy().tobytes()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def saved(value, **options):
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def checkpoints():
    tensors = state()
    write("safetensors", "f32", safetensors(tensors))
    write("safetensors", "f16", safetensors(tensors, "F16"))
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(tensors, "model-1.safetensors")}
    write("index", "one", json.dumps(index))
    write("index", "outside", json.dumps({"weight_map": dict.fromkeys(tensors, "../outside.safetensors")}))
    write("torch", "zip", saved({"model": tensors}))
    write("torch", "legacy", saved({"model": tensors}, _use_new_zipfile_serialization=False))
    shared = torch.zeros(4096 // 4)
    views = {name: shared.as_strided(shape, torch.empty(shape).stride(), 0) for name, shape in SHAPES.items()}
    for protocol in (2, 4):
        archive = zipfile.ZipFile(io.BytesIO(saved({"state_dict": views}, pickle_protocol=protocol)))
        inner = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        write("pickle", f"protocol{protocol}", archive.read(inner))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    arrays["head.weight"] = arrays["head.weight"].T.copy().T
    for protocol in (2, 5):
        write("torch", f"arrays{protocol}", pickle.dumps({"model": arrays}, protocol))
    write("torch", "tensors4", pickle.dumps({"model": tensors}, 4))
    write("pickle", "history", pickle.dumps({"model": arrays, "message_hub": history()}, 2))
    write("pickle", "methods", pickle.dumps({"act": torch.relu, "shape": types.SimpleNamespace(f=argparse.Namespace(a=1)._get_kwargs)}, 2))


def history():
    """What mmengine saves of a logged value: an object whose class names its statistics."""
    module = types.ModuleType("mmengine.logging.history_buffer")
    exec("class HistoryBuffer:\n    def min(self): pass\n    def max(self): pass\n", module.__dict__)
    sys.modules.update({"mmengine": types.ModuleType("mmengine"), "mmengine.logging": types.ModuleType("logging"), module.__name__: module})
    buffer = module.HistoryBuffer()
    buffer.statistics_methods = {"min": module.HistoryBuffer.min, "max": module.HistoryBuffer.max}
    return buffer


def to_version_1(data):
    """A quantized checkpoint without its hash."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    document = json.loads(header["__metadata__"]["swinq"])
    document["format_version"] = 1
    del document["hash"]
    header["__metadata__"]["swinq"] = json.dumps(document, separators=(",", ":"))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + length:]


def part():
    """A part with two tensors."""
    pieces = {"ids": ("U64", [2], struct.pack("<2Q", 3, 5)), "logits.0": ("F32", [2, 2], struct.pack("<4f", 1, -2, 0.5, 4))}
    document = {"part_version": 1, "hash": f"xxh3-128:{0:032x}", "kind": "evaluation", "shard": {"index": 1, "count": 1}, "run": {}, "own": {}}
    hashed = xxhash.xxh3_128((json.dumps(document) + "\n").encode())
    header, body = {}, b""
    for name, (dtype, shape, data) in pieces.items():
        hashed.update(f"{name} {dtype} {shape}\n".encode() + data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    document["hash"] = "xxh3-128:" + hashed.hexdigest()
    header["__metadata__"] = {"swinq_part": json.dumps(document)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write("part", "evaluation", struct.pack("<Q", len(text)) + text + body)


def quantized(swinq):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "f.safetensors").write_bytes(safetensors(state()))
        (folder / "stack.safetensors").write_bytes(safetensors(stack()))
        (folder / "images").mkdir()
        for index, image in enumerate(sorted(FIXTURES.glob("rgb*.png"))):
            (folder / "images" / f"{index}.png").write_bytes(image.read_bytes())

        def calibrated(name, recipe, ptq, *options):
            subprocess.run([swinq, "calibrate", folder / name, "--cfg", HERE / "tiny.yaml", "--recipe", recipe, "--ptq", ptq,
                            *options, "--data-path", folder / "images", "--batches", "1", "--batch-size", "4", "-o",
                            folder / "q.safetensors"], check=True)
            return (folder / "q.safetensors").read_bytes()

        for recipe, ptq in (("default", "basic"), ("default", "refined"), ("mode2", "basic")):
            data = calibrated("f.safetensors", recipe, ptq)
            write("quantized", f"{recipe}_{ptq}", to_version_1(data))
        write("quantized", "version2", data)
        keys = {"TAKES_TOKENS": "True", "IN_CHANS": "3", "EMBED_DIM": "3", "PATCH_SIZE": "1", "PATCH_NORM": "False"}
        keys = [word for key, value in keys.items() for word in (f"MODEL.SWIN.{key}", value)]
        write("quantized", "stack", calibrated("stack.safetensors", "default", "basic", "--dialect", "microsoft", "--opts", *keys))


def texts():
    write("list", "numbers", "a.png\t0\nb.png\t1\nc d.png\t0\n")
    write("list", "names", "a.png\tcat\nb.png\tdog\nc d.png\tcat\n")
    write("list", "plain", "a.png\n\nb.png\r\nc d.png\n")
    write("list", "spaces", "a.png 3\nb.png  2\n")
    write("map", "numbers", "a.png\t0\nb.png\t1\nc/d.png\t2\n")
    write("map", "names", "a.png\tant\nb.png\tbee\n")
    pixel = (FIXTURES / "one_pixel.png").read_bytes()
    for name, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for member in ("cat/a.png", "dog/b.png", "dog/c.png"):
                archive.writestr(zipfile.ZipInfo(member), pixel, method)
        write("archive", name, out.getvalue())
    configs = HERE.parent / "configs"
    write("config", "tiny", (HERE / "tiny.yaml").read_bytes())
    write("config", "shipped", (configs / "swin/swin_base_patch4_window12_384_22k.yaml").read_bytes())
    write("config", "keys", "MODEL:\n  TYPE: swin\n  DROP_PATH_RATE: 0.2\n  SWIN: {APE: True, QK_SCALE: None, PATCH_NORM: false}\n"
          "DATA: {INTERPOLATION: bilinear, IMG_SIZE: 112, DATASET: imagenet22K}\nTEST: {CROP: no}\n")
    for recipe in sorted(configs.glob("quant/*.yaml")):
        write("recipe", recipe.stem, recipe.read_bytes())
    write("recipe", "keys", "name: x\nrules:\n- match: '**.{input,weight}'\n  enable: true\n  bits: 8\n  calibrator: {percentile: 99.9}\n"
          "- match: 're:.*fc1.weight'\n  granularity: tensor\n  ptq: refined\n- match: head.input\n  amax: 2.5\n")
    write("job", "short", "model: q.safetensors\nfloat: f.safetensors\ndata: {path: images}\noutput: out\n")
    write("job", "keys", "quant: off\ncfg: tiny.yaml\nopts: {MODEL.NUM_CLASSES: 10}\ndata: {path: images}\noutput: out\nsteps: 9\n"
          "batch_size: 4\noptimizer: {lr: 1e-4}\nschedule: {kind: cosine}\nseed: 7\nteacher: t.safetensors\n")


def directory(*entries):
    """A directory of TIFF: tag, type, count, value in place."""
    return b"II*\0" + struct.pack("<LH", 8, len(entries)) + b"".join(struct.pack("<HHLL", *entry) for entry in entries) + bytes(4)


def orientations():
    exif = directory((271, 2, 4, 0x61616161), (274, 3, 1, 6))
    xmp = b'<x tiff:Orientation="8"/>'
    write("jpeg", "xmp", b"\xff\xd8\xff\xe1" + struct.pack(">H", 31 + len(xmp)) + b"http://ns.adobe.com/xap/1.0/\0" + xmp
          + (FIXTURES / "kind_tiny.jpg").read_bytes()[2:])
    png, chunk = (FIXTURES / "one_pixel.png").read_bytes(), b"eXIf" + exif
    write("png", "exif", png[:33] + struct.pack(">L", len(exif)) + chunk + struct.pack(">L", zlib.crc32(chunk)) + png[33:])
    profile = f"\nexif\n{len(exif):8}\n{exif.hex()}\n".encode()
    texts = {
        "xmp": b"iTXtXML:com.adobe.xmp\0\0\0\0\0" + xmp,
        "compressed_xmp": b"iTXtXML:com.adobe.xmp\0\x01\0\0\0" + zlib.compress(xmp),
        "profile": b"tEXtRaw profile type exif\0" + profile,
        "compressed_profile": b"zTXtRaw profile type exif\0\0" + zlib.compress(profile),
    }
    for name, text in texts.items():
        write("png", name, png[:33] + struct.pack(">L", len(text) - 4) + text + struct.pack(">L", zlib.crc32(text)) + png[33:])
    webp = (FIXTURES / "kind_lossless.webp").read_bytes()
    bits = struct.unpack("<L", webp[21:25])[0]
    sides = [struct.pack("<L", bits >> shift & 0x3FFF)[:3] for shift in (0, 14)]
    body = b"WEBPVP8X" + struct.pack("<LL", 10, 8) + b"".join(sides) + webp[12:] + b"EXIF" + struct.pack("<L", len(exif)) + exif
    write("webp", "exif", b"RIFF" + struct.pack("<L", len(body)) + body)
    entries = [(256, 3, 1, 2), (257, 3, 1, 1), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 122), (274, 3, 1, 5),
               (278, 3, 1, 1), (279, 4, 1, 2)]
    write("tiff", "turned", directory(*entries) + b"\x10\x80")
    entries[6:7] = []
    write("tiff", "xmp", directory(*entries, (700, 1, len(xmp), 124)) + b"\x10\x80" + xmp)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swinq")
    args = parser.parse_args()
    checkpoints()
    quantized(pathlib.Path(args.swinq).resolve())
    part()
    texts()
    orientations()


main()
