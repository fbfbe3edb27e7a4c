"""Creates the files in checkpoints/pickles/: the Swin of make_checkpoints.py as arrays of numpy, and a training checkpoint of mmengine.

Needs torch and numpy 2. Run from this folder, after make_checkpoints.py: python make_pickles.py
Every file that swinq accepts is loaded here, too, and has the parameters in expected.safetensors or expected_views.safetensors.
"""

import argparse
import collections
import contextlib
import functools
import io
import json
import pathlib
import pickle
import struct
import sys
import tempfile
import types
import warnings

import numpy as np
import torch

IN = pathlib.Path("checkpoints")
OUT = IN / "pickles"


def read(name):
    """The arrays of a safetensors file in f32."""
    data = (IN / name).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    return {k: np.frombuffer(body[slice(*v["data_offsets"])], "<f4").reshape(v["shape"]) for k, v in header.items()}


@contextlib.contextmanager
def numpy_1():
    """Within it, numpy's functions have the modules that numpy 1 gave them, which numpy 2 warns of."""
    warnings.simplefilter("ignore", DeprecationWarning)
    functions = [np._core.multiarray._reconstruct, np._core.numeric._frombuffer]
    modules = [function.__module__ for function in functions]
    for function in functions:
        function.__module__ = function.__module__.replace("_core", "core")
    yield
    for function, module in zip(functions, modules):
        function.__module__ = module


class Python2(pickle._Pickler):
    """Writes strings as Python 2 does, whose strings are bytes."""

    def save_string(self, value):
        data = value.encode() if isinstance(value, str) else value
        self.write(b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + struct.pack("<I", len(data)) + data)
        self.memoize(value)

    dispatch = {**pickle._Pickler.dispatch, str: save_string, bytes: save_string}


def zoo(arrays):
    """A checkpoint in the form of detectron2's model zoo."""
    return {"model": arrays, "__author__": "swinq", "matching_heuristics": True}


def views(arrays):
    """The same arrays in every order and type of float that numpy has."""
    out = dict(arrays)
    fc1 = "layers.1.blocks.0.mlp.fc1."
    out[fc1 + "weight"] = np.asfortranarray(arrays[fc1 + "weight"])
    proj = arrays["patch_embed.proj.weight"]
    out["patch_embed.proj.weight"] = np.ascontiguousarray(proj.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
    table = "layers.0.blocks.0.attn.relative_position_bias_table"
    out[table] = np.stack([arrays[table], np.ones_like(arrays[table])], -1)[..., 0]
    out["norm.weight"] = arrays["norm.weight"].astype("<f2")
    out[fc1 + "bias"] = arrays[fc1 + "bias"].astype("<f8")
    out["layers.0.blocks.0.attn.relative_position_index"] = np.zeros((9, 9), "<i8")
    out["layers.0.blocks.1.attn_mask"] = np.zeros((0, 9, 9), "<f4")
    return out


def check(arrays, wanted):
    parameters = {k: np.asarray(v) for k, v in arrays.items() if not k.endswith(("_index", "_mask"))}
    assert parameters.keys() == wanted.keys()
    for name, value in parameters.items():
        assert np.array_equal(value.astype("<f4"), wanted[name]), name


def message_hub():
    """What mmengine saves of its logs: histories of values, whose class names its statistics."""
    source = (
        "class HistoryBuffer:\n"
        "    def __init__(self, values):\n"
        "        self.max_length, self._log_history, self._count_history = 1000000, np.array(values), np.ones(len(values), int)\n"
        "        self.statistics_methods = {name: getattr(HistoryBuffer, name) for name in ('min', 'max', 'current', 'mean')}\n"
        + "".join(f"    def {name}(self): pass\n" for name in ("min", "max", "current", "mean"))
    )
    for name in ("mmengine", "mmengine.logging", "mmengine.logging.history_buffer"):
        sys.modules[name] = types.ModuleType(name)
    module = sys.modules["mmengine.logging.history_buffer"]
    module.np = np
    exec(source, module.__dict__)
    buffers = {"train/lr": module.HistoryBuffer([1e-3, 1e-4]), "train/loss": module.HistoryBuffer([2.5])}
    info = {"epoch": 12, "loop_stage": "val", "last_ckpt": None, "best": np.float32(0.5), "recent": collections.deque([1.0, 2.0], 5),
            "worker_init": functools.partial(int, base=2), "seeds": np.random.default_rng(1).bit_generator.state, "empty": np.zeros(0)}
    return {"log_scalars": collections.OrderedDict(buffers), "runtime_info": info, "resumed_keys": {"train/lr": True}}


def write(name, value, protocol, pickler=pickle.Pickler):
    out = io.BytesIO()
    pickler(out, protocol).dump(value)
    (OUT / name).write_bytes(out.getvalue())
    return out.getvalue()


def accepted():
    wanted, rounded = read("expected.safetensors"), read("expected_views.safetensors")
    for protocol in (2, 3, 4, 5):
        with numpy_1() if protocol % 2 == 0 else contextlib.nullcontext():
            check(pickle.loads(write(f"protocol{protocol}.pkl", zoo(wanted), protocol))["model"], wanted)
    check(pickle.loads(write("python2.pkl", zoo(views(rounded)), 2, Python2), encoding="latin1")["model"], rounded)
    with numpy_1():
        # At the top level, as the model of a wrapper for several devices.
        data = write("views5.pkl", {f"module.{k}": v for k, v in views(rounded).items()}, 5)
    check({k.removeprefix("module."): v for k, v in pickle.loads(data).items()}, rounded)

    tensors = {k: torch.tensor(v) for k, v in wanted.items()}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    training = {"meta": {"seed": 1, "epoch": 12}, "message_hub": message_hub(), "optimizer": optimizer.state_dict(), "state_dict": tensors}
    torch.save(training, OUT / "mmengine.pth")
    torch.save({"model": {k: v if k.startswith("layers.0") else v.numpy() for k, v in tensors.items()}}, OUT / "mixed.pth")
    for protocol in (3, 4):
        # As Mask2Former's tools/convert-pretrained-swin-model-to-d2.py.
        check(pickle.loads(write(f"torch{protocol}.pkl", zoo(tensors), protocol))["model"], wanted)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, abs)
    arguments = argparse.Namespace(act=torch.relu, after=torch.Tensor.tanh, schedule=schedule.get_last_lr)
    torch.save({"model": tensors, "args": arguments}, OUT / "methods.pth")
    path = (OUT / "module_legacy.pth").absolute()
    with net() as module:
        torch.save({"model": tensors, "net": module}, path, _use_new_zipfile_serialization=False)


@contextlib.contextmanager
def net():
    """A module with its source, which torch.save writes in the older format."""
    source, module = "import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n", types.ModuleType("net")
    module.__file__ = "net.py"
    exec(source, module.__dict__)
    sys.modules["net"] = module
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        pathlib.Path("net.py").write_text(source)
        yield module.Net()


def refused():
    names = {
        "objects": np.array([None, 1.0]), "structures": np.zeros(2, [("a", "<f4")]), "big_endian": np.zeros(2, ">f4"), "strings": np.array(["a"]),
        "dates": np.zeros(2, "M8[s]"), "scalar": np.float32(1),
    }
    for name, value in names.items():
        write(f"{name}.pkl", {"model": {"norm.bias": value}}, 4)
    write("torch2.pkl", {"model": {"norm.bias": torch.zeros(2)}}, 2)
    write("list.pkl", [1, 2], 2)
    write("blobs.pkl", {"blobs": {"conv1_w": np.zeros(2, "<f4")}, "cfg": "x"}, 2)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    accepted()
    refused()
