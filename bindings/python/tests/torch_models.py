"""Small models of PyTorch with random parameters: Swins, and programs of transformers that contain one."""

import timm
import torch
import torchvision
import transformers
from torchvision.models.feature_extraction import create_feature_extractor
from transformers.models.maskformer.modeling_maskformer_swin import MaskFormerSwinBackbone

#: Arguments of a small Swin of transformers and of timm.
SMALL = {"embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": 7}
#: A backbone with four outputs, as hosts need it. Its heads have 32 channels, as the kernels for GPUs need them.
FOUR = {"embed_dim": 32, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 4, 8], "window_size": 4, "image_size": 128}
STAGES = ["stage1", "stage2", "stage3", "stage4"]


def randomise(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Random parameters, because initial biases are zero and would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            spread = 0.05 if parameter.ndim > 1 else 0.1
            if "logit_scale" in name:
                mean = 2.0
            parameter.copy_(mean + spread * torch.randn(parameter.shape, generator=generator))
    module.eval()
    return module


def redraw(program: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Random parameters for a whole program, of any depth and width: what a layer gives is about as large as what it gets, so that
    its outputs depend on the image and grow by no power of the depth."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in program.named_parameters():
            mean = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
            spread = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.1
            if "logit_scale" in name:
                mean, spread = 2.0, 0.1
            parameter.normal_(mean, min(spread, 1.0), generator=generator)
    program.eval()
    return program


def images(count: int = 2, height: int = 224, width: int = 224, channels: int = 3, seed: int = 0) -> torch.Tensor:
    """Smooth normalised images ``[count, channels, height, width]``."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, channels, height // 16 + 1, width // 16 + 1, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic")


def of_timm(name: str = "swin_tiny_patch4_window7_224", **options) -> torch.nn.Module:
    return randomise(timm.create_model(name, **{**SMALL, **options}))


def of_torchvision() -> torch.nn.Module:
    return randomise(torchvision.models.SwinTransformer([4, 4], 48, [2, 2], [3, 6], [7, 7], num_classes=5))


def _torchvision_v2() -> torch.nn.Module:
    swin = torchvision.models.swin_transformer
    network = torchvision.models.SwinTransformer
    blocks = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    return randomise(network([4, 4], 48, [2, 2], [3, 6], [8, 8], num_classes=5, **blocks))


def _getter() -> torch.nn.Module:
    return torchvision.models._utils.IntermediateLayerGetter(of_torchvision().features, {"1": "p2", "3": "p3"}).eval()


def _transformers(kind: type, config: type, **options) -> torch.nn.Module:
    return randomise(kind(config(**{**SMALL, **options})))


def _of_stages(kind: type, config: type, **options) -> torch.nn.Module:
    return _transformers(kind, config, out_features=["stage1", "stage2"], **options)


LISTS = {"features_only": True, "out_indices": (0, 1)}
#: Swins of every library, by name.
SWINS = {
    "timm list": lambda: of_timm(**LISTS),
    "timm list of one": lambda: of_timm(features_only=True, out_indices=(1,)),
    "timm dictionary": lambda: of_timm(**LISTS, feature_cls="dict"),
    "timm getter": lambda: of_timm(**LISTS, feature_cls="getter"),
    "timm V2 list": lambda: of_timm("swinv2_tiny_window8_256", img_size=224, **LISTS),
    "timm any size": lambda: of_timm(**LISTS, strict_img_size=False),
    "timm headless": lambda: of_timm(num_classes=0),
    "timm classifier": lambda: of_timm(num_classes=5),
    "transformers backbone": lambda: _of_stages(transformers.SwinBackbone, transformers.SwinConfig),
    "transformers V2 backbone": lambda: _of_stages(transformers.Swinv2Backbone, transformers.Swinv2Config),
    "transformers model": lambda: _transformers(transformers.SwinModel, transformers.SwinConfig),
    "transformers V2 model": lambda: _transformers(transformers.Swinv2Model, transformers.Swinv2Config),
    "transformers classifier": lambda: _transformers(transformers.SwinForImageClassification, transformers.SwinConfig),
    "transformers V2 classifier": lambda: _transformers(transformers.Swinv2ForImageClassification, transformers.Swinv2Config),
    "Donut": lambda: _transformers(transformers.DonutSwinModel, transformers.DonutSwinConfig),
    "MaskFormer": lambda: _of_stages(MaskFormerSwinBackbone, transformers.MaskFormerSwinConfig),
    "torchvision classifier": of_torchvision,
    "torchvision V2 classifier": _torchvision_v2,
    "torchvision features": lambda: of_torchvision().features,
    "torchvision getter": _getter,
    "torchvision graph": lambda: create_feature_extractor(of_torchvision(), {"features.1": "p2", "features.3": "p3"}),
}


def _mask2former() -> tuple[torch.nn.Module, dict]:
    config = transformers.Mask2FormerConfig(
        backbone_config=transformers.SwinConfig(**FOUR, out_features=STAGES),
        feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=64, dim_feedforward=64,
        encoder_layers=1, decoder_layers=2, num_attention_heads=4, num_queries=10, num_labels=7,
    )  # fmt: skip
    return transformers.Mask2FormerForUniversalSegmentation(config), {}


def _maskformer() -> tuple[torch.nn.Module, dict]:
    config = transformers.MaskFormerConfig(
        backbone_config=transformers.SwinConfig(**FOUR, out_features=STAGES),
        decoder_config=transformers.DetrConfig(d_model=32, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=64,
                                               decoder_ffn_dim=64, decoder_attention_heads=4, encoder_attention_heads=4,
                                               num_queries=10),
        fpn_feature_size=32, mask_feature_size=32, num_labels=7,
    )  # fmt: skip
    return transformers.MaskFormerForInstanceSegmentation(config), {}


def _oneformer() -> tuple[torch.nn.Module, dict]:
    config = transformers.OneFormerConfig(
        backbone_config=transformers.SwinConfig(**FOUR, out_features=STAGES),
        conv_dim=32, mask_dim=32, hidden_dim=32, encoder_feedforward_dim=64, dim_feedforward=64, encoder_layers=1,
        decoder_layers=2, num_attention_heads=4, num_queries=10, is_training=False, task_seq_len=7,
        text_encoder_width=32, text_encoder_num_layers=1, num_labels=7,
    )  # fmt: skip
    return transformers.OneFormerForUniversalSegmentation(config), {"task_inputs": torch.arange(7)[None].repeat(2, 1)}


def _upernet() -> tuple[torch.nn.Module, dict]:
    config = transformers.UperNetConfig(
        backbone_config=transformers.SwinConfig(**FOUR, out_features=STAGES),
        hidden_size=32, auxiliary_in_channels=128, auxiliary_channels=16, num_labels=7,
    )  # fmt: skip
    return transformers.UperNetForSemanticSegmentation(config), {}


def _grounding_dino() -> tuple[torch.nn.Module, dict]:
    text = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=1100
    )
    config = transformers.GroundingDinoConfig(
        backbone_config=transformers.SwinConfig(**FOUR, out_features=STAGES[1:]), text_config=text,
        d_model=32, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=10,
        encoder_attention_heads=4, decoder_attention_heads=4,
    )  # fmt: skip
    ids = torch.tensor([[101, 1037, 4937 % 1000, 1012, 102]]).repeat(2, 1)
    return transformers.GroundingDinoForObjectDetection(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _dpt() -> tuple[torch.nn.Module, dict]:
    config = transformers.DPTConfig(
        backbone_config=transformers.Swinv2Config(**FOUR, out_features=STAGES),
        neck_hidden_sizes=[32, 64, 128, 256], fusion_hidden_size=32, reassemble_factors=[1, 1, 1, 1],
    )  # fmt: skip
    return transformers.DPTForDepthEstimation(config), {}


def _donut() -> tuple[torch.nn.Module, dict]:
    encoder = transformers.DonutSwinConfig(**{**FOUR, "depths": [1, 1], "num_heads": [1, 2]})
    decoder = transformers.MBartConfig(
        vocab_size=50, d_model=32, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=64, is_decoder=True,
        add_cross_attention=True, max_position_embeddings=32,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return transformers.VisionEncoderDecoderModel(config), {"decoder_input_ids": torch.tensor([[1, 5, 7]]).repeat(2, 1)}


#: Programs of transformers, by name: the model, and the arguments of a call beside the images.
PROGRAMS = {
    "Mask2Former": _mask2former,
    "MaskFormer": _maskformer,
    "OneFormer": _oneformer,
    "UPerNet": _upernet,
    "Grounding DINO": _grounding_dino,
    "DPT with Swin V2": _dpt,
    "Donut": _donut,
}
