"""Creates the files in checkpoints/weights/: checkpoints with several state dictionaries, and heads in a Sequential.

Needs torch, timm and safetensors. Run from this folder, after make_checkpoints.py: python make_weights.py
Each file has the parameters of expected.safetensors where swinq shall read them, and others elsewhere. timm's loader must take
the same dictionary of the files that it knows.
"""

import pathlib

import timm
import torch
from safetensors.torch import load_file
from timm.models import load_state_dict

from make_checkpoints import DEPTHS, IMAGE, SHAPE

IN = pathlib.Path("checkpoints")
OUT = IN / "weights"


def count(module: torch.nn.Module):
    """Adds the buffers of thop's profile()."""
    for part in module.modules():
        part.register_buffer("total_ops", torch.zeros(1, dtype=torch.float64))
        part.register_buffer("total_params", torch.zeros(1, dtype=torch.float64))


def main():
    OUT.mkdir(exist_ok=True)
    exact = load_file(IN / "expected.safetensors")
    other = {name: 2 * exact[name] for name in ["head.weight", "head.bias"]}
    timm_state = load_file(IN / "timm/model.safetensors")
    torchvision = torch.load(IN / "torchvision.pth")
    average = {"n_averaged": torch.tensor(7)} | {f"module.{name}": value for name, value in torchvision.items()}
    copies = {"ema_" + name.replace(".", "_"): value for name, value in other.items()}
    files = {
        "timm": {"epoch": 3, "arch": "swin", "state_dict": other, "state_dict_ema": timm_state, "version": 2},
        "torchvision": {"model": other, "model_ema": average, "epoch": 3},
        "no_average": {"state_dict": exact, "state_dict_ema": None, "epoch": 3},
        "mmengine": {"meta": {"epoch": 3}, "state_dict": exact, "ema_state_dict": other},
        "mmcv": {"meta": {"epoch": 3}, "state_dict": exact | copies},
        "both": {"state_dict": exact, "state_dict_ema": exact},
        "teacher": {"student": other, "teacher": exact, "epoch": 3},
        # Averages that lie deeper, as those of callbacks of Lightning: not where timm's loader looks.
        "nested": {"model": exact, "ema": {"decay": 0.9, "module": other}, "callbacks": {"EMA": {"ema_state_dict": other}}},
        # torch.save writes the name into the archive. With 21 characters the first entry of the directory has 76 bytes.
        "checkpoint_0000000012": {"model": exact},
    }
    for name, content in files.items():
        torch.save(content, OUT / f"{name}.pth")
    for name, key in [("timm", "state_dict_ema"), ("torchvision", "model_ema"), ("no_average", "state_dict")]:
        taken = load_state_dict(OUT / f"{name}.pth")
        wanted = {k.removeprefix("module."): v for k, v in files[name][key].items()}
        assert taken.keys() == wanted.keys() and all(torch.equal(taken[k], wanted[k]) for k in taken), name

    torch.jit.script(torch.nn.Linear(2, 2)).save(OUT / "script.pt")

    model = timm.create_model("swin_tiny_patch4_window7_224", img_size=IMAGE, depths=DEPTHS, **SHAPE)
    model.load_state_dict(timm_state)
    model.head.fc = torch.nn.Sequential(torch.nn.Dropout(0.1), model.head.fc)
    count(model)
    torch.save(model.state_dict(), OUT / "dropout.pth")


if __name__ == "__main__":
    main()
