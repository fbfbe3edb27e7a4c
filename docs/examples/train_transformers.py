"""Quantization-aware training of an image classifier by the Trainer of transformers.

A prepared classifier takes no `labels`, because the engine has its outputs only: the Trainer computes the loss of them.
"""

import torch
import transformers

import swinq.torch
from swinq.transformers import attach


def loss(outputs, labels, num_items_in_batch=None):
    return torch.nn.functional.cross_entropy(outputs.logits.float(), labels)


def train(model, calibration, dataset, folder, **arguments):
    """`dataset` has dictionaries of `pixel_values` and `labels`."""
    model = swinq.torch.prepare(model, calibration, learned="all").model
    scales = set(swinq.torch.scales(model))
    others = {"params": [parameter for parameter in model.parameters() if parameter not in scales]}
    learned = {"params": swinq.torch.scales(model), "weight_decay": 0.0, "lr": 1e-3}
    optimizer = torch.optim.AdamW([others, learned], lr=1e-5)
    options = transformers.TrainingArguments(folder, bf16=True, save_strategy="no", remove_unused_columns=False, **arguments)
    trainer = transformers.Trainer(model, options, train_dataset=dataset, compute_loss_func=loss, optimizers=(optimizer, None))
    trainer.train()
    swin = swinq.torch.convert(model.eval())
    swin.model.save(f"{folder}/swin.int8.safetensors")
    attach(swin).save_pretrained(folder)  # from_pretrained(folder) opens the INT8 classifier after `import swinq.transformers`
    return swin
