"""Quantization-aware training of a model with a Swin as `backbone` by PyTorch Lightning."""

import lightning
import torch

import swinq.torch


class Training(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, index):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.model(images).float(), labels)

    def configure_optimizers(self):
        scales = set(swinq.torch.scales(self))
        others = {"params": [parameter for parameter in self.parameters() if parameter not in scales]}
        learned = {"params": swinq.torch.scales(self), "weight_decay": 0.0, "lr": 1e-3}
        return torch.optim.AdamW([others, learned], lr=1e-5)


def train(model, calibration, loader, file, **options):
    """`loader` has pairs of images and labels. Lightning leaves modules in their modes, so that `train()` is called here."""
    swinq.torch.prepare(model, calibration, learned="all")
    lightning.Trainer(precision="bf16-mixed", **options).fit(Training(model.train()), loader)
    swinq.torch.convert(model.eval())
    model.backbone.model.save(file)
