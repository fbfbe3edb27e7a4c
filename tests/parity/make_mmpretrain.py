"""Writes mmpretrain's fixtures: small checkpoints, and the logits that they stand for.

    python tests/parity/make_mmpretrain.py        (needs torch, safetensors, mmpretrain, mmengine and mmcv-lite)

model/tests/checkpoints/mmpretrain/{v1,v2}.pth are checkpoints as mmengine publishes them. float/tests/fixtures/
mmpretrain_{v1,v2}.safetensors hold for each `input` (two images), `logits`, and `logits_of_wrong_order`: the logits if
the weights of merging were taken for weights in Microsoft's order. The metadata `config` is the architecture as JSON.
The logits are those of `mmpretrain_swin.py`, and the installed mmpretrain must load each file and agree.
"""

import json
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import save_file

from common import images, redraw
from mmpretrain_swin import Classifier, defaults, distance, installed, windows

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = ROOT / "model" / "tests" / "checkpoints" / "mmpretrain"
FIXTURES = ROOT / "float" / "tests" / "fixtures"

SMALL = dict(image_size=44, embed_dim=6, num_heads=[1, 2, 3], mlp_ratio=2.5, num_classes=7)

# Grids of 11, 6 and 3 tokens: padded and shifted, merged with padding, and one window that is not shifted.
FIRST = defaults("v1", **SMALL, depths=[2, 2, 2], window_size=3)
SECOND = defaults("v2", **SMALL, depths=[2, 2, 1], window_size=[4, 4, 3], pretrained_window_sizes=[3, 0, 2])

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


def swinq_config(fields: dict, name: str) -> dict:
    """The architecture in swinq's names: a window that is as large as the last grid follows from the rule."""
    rest = dict(qk_scale=None, patch_norm=True, norm_eps=1e-5, window_policy="shrink_and_pad")
    config = dict(name=name) | fields | rest | dict(window_size=windows(fields)[0])
    if config["version"] == "v1":
        del config["pretrained_window_sizes"]
    return config


def microsoft_order_taken(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters with which Unfold's order computes what Microsoft's order would with those in `state`.

    Channel 4c + 2 row + column is read from column (row + 2 column) C + c.
    """
    out = dict(state)
    for name, value in state.items():
        if "downsample" in name and value.shape[-1] == state[merging_of(name)].shape[-1]:
            index = torch.arange(value.shape[-1]).view(2, 2, -1).permute(2, 1, 0).flatten()
            out[name] = value[..., index]
    return out


def merging_of(name: str) -> str:
    """The weight of the merging that the parameter `name` belongs to."""
    return name[: name.index("downsample")] + "downsample.reduction.weight"


def checkpoint(state: dict[str, torch.Tensor]) -> dict:
    """A checkpoint as mmengine publishes it: without the optimizer and the messages of the training."""
    meta = dict(
        epoch=300, iter=375300, seed=0, experiment_name="swin_20240501_120000", time="20240501_120000",
        mmengine_version="0.10.7", dataset_meta=dict(classes=CLASSES), hook_msgs=dict(), cfg="# the configuration\n",
    )
    return dict(meta=meta, state_dict=OrderedDict((name, value.clone()) for name, value in state.items()))


def write(name: str, fields: dict, seed: int) -> None:
    model = Classifier(fields).eval()
    redraw(model, seed)
    path = CHECKPOINTS / f"{name}.pth"
    torch.save(checkpoint(model.state_dict()), path)
    batch = images(2, fields["image_size"], seed + 1)
    with torch.no_grad():
        logits = model(batch)
        check_installed(path, fields, batch, logits)
        wrong = Classifier(fields).eval()
        wrong.load_state_dict(microsoft_order_taken(model.state_dict()))
        wrong_logits = wrong(batch)
    config = swinq_config(fields, f"mmpretrain_{name}")
    fixture = FIXTURES / f"mmpretrain_{name}.safetensors"
    tensors = {"input": batch, "logits": logits, "logits_of_wrong_order": wrong_logits}
    save_file(tensors, fixture, {"config": json.dumps(config)})
    off = distance(wrong_logits, logits)
    assert off > 0.1, f"{name}: the order of merging changes the logits by {off:.1e} only"
    print(f"{path.name}: {path.stat().st_size} bytes; {fixture.name}: {fixture.stat().st_size} bytes")
    print(f"  Microsoft's order of merging changes the logits by {off:.2f} (relative L2)")


def check_installed(path: Path, fields: dict, batch: torch.Tensor, logits: torch.Tensor) -> None:
    theirs = installed(fields).eval()
    state = torch.load(path, weights_only=True)["state_dict"]
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    # mmpretrain removes these buffers of a V2 from what it loads, and computes them.
    assert not unexpected and all("relative_" in name for name in missing), (missing, unexpected)
    found = distance(logits, theirs(batch))
    assert found <= 1e-5, (path, found)


if __name__ == "__main__":
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    write("v1", FIRST, seed=11)
    write("v2", SECOND, seed=12)
