"""Networks with stacks of Swin blocks, small and with random parameters, and calls of them."""

import torch
import transformers
from spandrel.architectures.Swin2SR import Swin2SR
from spandrel.architectures.SwinIR import SwinIR
from torch_models import redraw


def swinir(**options):
    """SwinIR: three groups of stacks whose heads are 10 wide, and whose windows are 4 wide."""
    arguments = {"upscale": 2, "in_chans": 3, "img_size": 16, "window_size": 4, "depths": [2, 3, 1], "embed_dim": 20}
    arguments |= {"num_heads": [2, 2, 2], "mlp_ratio": 2, "upsampler": "pixelshuffledirect", **options}
    return redraw(SwinIR(**arguments).eval())


def swin2sr(**options):
    """Swin2SR in the code of its authors: two groups of stacks of Swin V2."""
    arguments = {"upscale": 2, "in_chans": 3, "img_size": 16, "window_size": 4, "depths": [2, 2], "embed_dim": 24}
    arguments |= {"num_heads": [2, 2], "mlp_ratio": 2, "upsampler": "pixelshuffledirect", **options}
    return redraw(Swin2SR(**arguments).eval())


def swin2sr_of_transformers(**options):
    """Swin2SR of transformers, whose stages call their layers one after another."""
    arguments = {"image_size": 16, "embed_dim": 24, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4, "upsampler": "pixelshuffledirect"}
    return redraw(transformers.Swin2SRForImageSuperResolution(transformers.Swin2SRConfig(**arguments, **options)).eval())


def clap(**options):
    """The audio encoder of CLAP: stages with merging behind their blocks, whose heads are 24 wide."""
    arguments = {"depths": [2, 1, 2], "num_attention_heads": [2, 4, 8], "patch_embeds_hidden_size": 48, "hidden_size": 192}
    arguments |= {"window_size": 4, "spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "patch_stride": [4, 4], **options}
    return redraw(transformers.ClapAudioModel(transformers.ClapAudioConfig(**arguments)).eval())


def of_images(*sizes, count=2):
    """Calls with images of sizes, in 0 to 1."""
    random = torch.Generator().manual_seed(0)
    return [((torch.rand(count, 3, *size, generator=random),), {}) for size in sizes]


def of_sounds(count=2):
    """Calls with spectrograms of CLAP, and which of them are longer than its window."""
    random = torch.Generator().manual_seed(0)
    sounds = torch.randn(count, 1, 250, 16, generator=random)
    return [((), {"input_features": sounds, "is_longer": torch.zeros(count, 1, dtype=torch.bool)})]


#: A network, calls of it, and the number of its stacks.
STACKS = {
    "SwinIR": (swinir, of_images((16, 16), (12, 30), (4, 33)), 3),
    "SwinIR of one window": (lambda: swinir(img_size=4), of_images((16, 16), (8, 12)), 3),
    "SwinIR without a bias of queries": (lambda: swinir(qkv_bias=False), of_images((16, 20)), 3),
    "SwinIR with a scale": (lambda: swinir(qk_scale=0.2), of_images((16, 20)), 3),
    "Swin2SR": (swin2sr, of_images((16, 16), (9, 30)), 2),
    "Swin2SR of transformers": (swin2sr_of_transformers, of_images((16, 16), (12, 32)), 2),
    "CLAP": (clap, of_sounds(), 3),
}
