"""Quantization-aware training of a detector of detectron2 whose `backbone` is a feature pyramid on a Swin.

No test runs this example, because detectron2 is not on PyPI.
"""

from itertools import islice

import torch
from detectron2.checkpoint import DetectionCheckpointer
from detectron2.data import build_detection_train_loader
from detectron2.engine import AMPTrainer
from detectron2.modeling import build_model

import swinq.torch


def train(cfg, file, steps):
    model, loader = build_model(cfg), build_detection_train_loader(cfg)
    DetectionCheckpointer(model).load(cfg.MODEL.WEIGHTS)
    swinq.torch.prepare(model, lambda model: [model(batch) for batch in islice(loader, 8)], learned="all")
    scales = set(swinq.torch.scales(model))
    others = {"params": [parameter for parameter in model.parameters() if parameter not in scales]}
    learned = {"params": swinq.torch.scales(model), "weight_decay": 0.0, "lr": 1e-3}
    optimizer = torch.optim.AdamW([others, learned], lr=1e-5)
    AMPTrainer(model.train(), loader, optimizer, precision=torch.bfloat16).train(0, steps)
    swinq.torch.convert(model.eval())
    model.backbone.bottom_up.model.save(file)
