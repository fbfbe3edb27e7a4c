"""Programs in their published sizes, with random parameters: the configurations of checkpoints of transformers, and those in the packages
of others. Nothing is downloaded."""

import tempfile
from pathlib import Path

import timm
import torch
import torch_openmmlab
import torchvision
import transformers
from torch_models import STAGES, images, redraw
from torch_processing import calls
from torch_support import Inside

TINY = {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24], "window_size": 7, "image_size": 224}
BASE = {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32], "window_size": 12, "image_size": 384}
LARGE = {**BASE, "embed_dim": 192, "num_heads": [6, 12, 24, 48]}


def swin(sizes: dict, **more) -> transformers.SwinConfig:
    return transformers.SwinConfig(**sizes, **{"out_features": STAGES, **more})


def mask2former(sizes: dict):
    config = transformers.Mask2FormerConfig(backbone_config=swin(sizes), num_labels=80)
    return transformers.Mask2FormerForUniversalSegmentation(config), {}


def maskformer():
    config = transformers.MaskFormerConfig(backbone_config=swin(BASE), num_labels=150)
    return transformers.MaskFormerForInstanceSegmentation(config), {}


def oneformer():
    config = transformers.OneFormerConfig(backbone_config=swin(TINY), num_queries=150, num_labels=150, is_training=False)
    return transformers.OneFormerForUniversalSegmentation(config), {"task_inputs": torch.arange(77)[None].repeat(2, 1)}


def upernet():
    config = transformers.UperNetConfig(backbone_config=swin(TINY), hidden_size=512, auxiliary_in_channels=384, num_labels=150)
    return transformers.UperNetForSemanticSegmentation(config), {}


def grounding_dino():
    config = transformers.GroundingDinoConfig(backbone_config=swin(TINY, out_features=STAGES[1:]))
    ids = torch.tensor([[101, 1037, 4937, 1012, 102]]).repeat(2, 1)
    return transformers.GroundingDinoForObjectDetection(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def dpt():
    config = transformers.DPTConfig(
        backbone_config=transformers.Swinv2Config(
            **{**BASE, "window_size": 24}, pretrained_window_sizes=[12, 12, 12, 6], out_features=STAGES
        ),
        neck_hidden_sizes=[128, 256, 512, 1024], fusion_hidden_size=256, reassemble_factors=[1, 1, 1, 1],
    )  # fmt: skip
    return transformers.DPTForDepthEstimation(config), {}


def donut():
    encoder = transformers.DonutSwinConfig(**{**BASE, "depths": [2, 2, 14, 2], "window_size": 10, "image_size": [2560, 1920]})
    decoder = transformers.MBartConfig(
        vocab_size=57525, d_model=1024, decoder_layers=4, decoder_attention_heads=16, decoder_ffn_dim=4096, is_decoder=True,
        add_cross_attention=True, max_position_embeddings=1536, scale_embedding=True, add_final_layer_norm=True,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 0, 1
    return transformers.VisionEncoderDecoderModel(config), {"decoder_input_ids": torch.tensor([[0, 5, 7]]).repeat(2, 1)}


#: Programs of transformers by name: what makes one with the arguments of its calls beside the images, and the size of the images.
TRANSFORMERS = {
    "Mask2Former, Swin-T": (lambda: mask2former(TINY), (256, 320)),
    "MaskFormer, Swin-B": (maskformer, (256, 320)),
    "OneFormer, Swin-T": (oneformer, (256, 320)),
    "UPerNet, Swin-T": (upernet, (256, 320)),
    "Grounding DINO, Swin-T": (grounding_dino, (256, 320)),
    "DPT, Swin V2-B": (dpt, (384, 384)),
    "Donut, donut-base": (donut, (640, 480)),
    "Mask2Former, Swin-L": (lambda: mask2former(LARGE), (256, 320)),
}

#: Backbones alone, by name, and the size of the images.
BACKBONES = {
    "timm, Swin-S features_only": (
        lambda: timm.create_model("swin_small_patch4_window7_224", features_only=True, strict_img_size=False), (256, 320),
    ),
    "timm, Swin V2-B features_only": (lambda: timm.create_model("swinv2_base_window16_256", features_only=True), (256, 256)),
    "torchvision, Swin-B features": (lambda: torchvision.models.swin_b().features, (256, 320)),
    "torchvision, Swin V2-S": (torchvision.models.swin_v2_s, (256, 256)),
}  # fmt: skip


class Text(torch.nn.Module):
    """Stands for BERT in groundingdino-py, which calls methods that transformers 5 has no more."""

    def __init__(self, *_, **__):
        super().__init__()
        self.config = transformers.BertConfig()
        self.embeddings = torch.nn.Embedding(100, self.config.hidden_size)
        self.pooler = torch.nn.ModuleDict({"dense": torch.nn.Linear(1, 1)})

    def forward(self, input_ids, **_):
        return {"last_hidden_state": self.embeddings(input_ids)}


def groundingdino_py():
    """The package's own Grounding DINO with Swin-T, by its configuration.

    Raises:
        ImportError: if it is not installed.
    """
    import groundingdino.models
    from groundingdino.models.GroundingDINO import groundingdino as network
    from groundingdino.util.slconfig import SLConfig

    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder, "vocab.txt")
        words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", "a", "cat", "dog"]))
        tokenizer = transformers.BertTokenizer(str(words))
    network.get_tokenlizer.get_tokenlizer = lambda _: tokenizer
    network.get_tokenlizer.get_pretrained_language_model = Text
    network.BertModelWarper = Text
    arguments = SLConfig.fromfile(str(Path(groundingdino.__file__).parent / "config/GroundingDINO_SwinT_OGC.py"))
    arguments.device = "cpu"
    program, batch = redraw(groundingdino.models.build_model(arguments), seed=1), images(2, 256, 320)

    def run(model):
        return model(batch, captions=["a cat .", "a dog ."])

    def whole(model):
        from groundingdino.util.inference import predict

        boxes, logits, phrases = predict(model, batch[0], "a cat .", 0.0, 0.5, device="cpu")
        return {"outputs": {name: value for name, value in run(model).items()}, "boxes": [boxes, logits, phrases]}

    return program, (run, whole)


def of_transformers(name: str):
    make, size = TRANSFORMERS[name]
    program, more = make()
    redraw(program, seed=1)
    if name.startswith("DPT"):
        # A depth of zero everywhere would hide mistakes.
        torch.nn.init.constant_(program.head.head[4].bias, 5.0)
    return program, calls(name, images(2, *size), more)


def of_backbone(name: str):
    make, size = BACKBONES[name]
    program, batch = Inside(redraw(make(), seed=1)), images(2, *size)
    return program, (lambda model: model(batch), lambda model: {"outputs": model(batch)})


def of_openmmlab(name: str):
    package, config, _, size = torch_openmmlab.PROGRAMS[name]
    return redraw(torch_openmmlab.built(package, config, {}), seed=1), torch_openmmlab.calls(name, images(2, *size))


#: What makes each program, with what calibrates and runs it.
PROGRAMS = {
    **{name: of_transformers for name in TRANSFORMERS},
    **{name: of_backbone for name in BACKBONES},
    **{name: of_openmmlab for name in torch_openmmlab.PROGRAMS},
    "groundingdino-py, Swin-T": lambda _: groundingdino_py(),
}
