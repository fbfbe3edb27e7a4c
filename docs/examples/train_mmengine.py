"""Quantization-aware training of a model of OpenMMLab with a Swin as `backbone` by the Runner of mmengine.

`model` is what the registry builds and `load_checkpoint` fills, such as a detector of mmdet.
"""

import torch
from mmengine.runner import Runner

import swinq.torch


def train(model, calibrate, loader, folder, epochs=1):
    """`calibrate` is called with the model and runs it on some batches of the loader, such as by `model.test_step`."""
    swinq.torch.prepare(model, calibrate, learned="all")
    runner = Runner(
        model,
        folder,
        train_dataloader=loader,
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        optim_wrapper={
            "type": "AmpOptimWrapper" if torch.cuda.is_available() else "OptimWrapper",
            **({"dtype": "bfloat16"} if torch.cuda.is_available() else {}),
            "optimizer": {"type": "AdamW", "lr": 1e-5, "weight_decay": 0.05},
            # The parameters of swinq.torch.scales by name: 100 times the rate, no decay.
            "paramwise_cfg": {"custom_keys": {".swinq.": {"lr_mult": 100.0, "decay_mult": 0.0}}},
        },
    )
    runner.train()
    swinq.torch.convert(model.eval())
    model.backbone.model.save(f"{folder}/backbone.int8.safetensors")
