"""Feature maps of backbones against the libraries that read their files, and against rewrites of the others.

    python tests/parity/backbones.py PROGRAM

PROGRAM is the example `features` of swinq-float. Whole models are made, tiny and random, with every parameter redrawn. Each is
saved as its users save it, and the program finds the backbone in the file or folder. Each output must agree within a relative
L2 distance of 1e-5, at every image size that the original takes; the others must be refused.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from common import redraw
from detection_swin import Backbone

SIZES = [(65, 97), (130, 61), (224, 224), (192, 224), (20, 24), (256, 704), (800, 1333)]
TINY = {"embed_dim": 12, "depths": [2, 2, 2, 2], "num_heads": [1, 2, 3, 6]}
Features = Callable[[torch.Tensor], dict[int, torch.Tensor]]


def pictures() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {f"{h}x{w}": torch.randn((2, 3, h, w), generator=generator) for h, w in SIZES}


def compare(name: str, model: Path, features: Features, *options: str, refused: set[str] = frozenset(), reason: str = "") -> None:
    """Runs the program on `model`. `features` gives the maps of the original by stage, from 0. The sizes `refused` must be refused for
    a `reason`."""
    with tempfile.TemporaryDirectory() as folder:
        images, out = Path(folder, "images.safetensors"), Path(folder, "out.safetensors")
        save_file(pictures(), images)
        run = subprocess.run([PROGRAM, model, images, out, *options], capture_output=True, text=True)
        assert run.returncode == 0, f"{name}: {run.stderr}"
        found = load_file(out)
    worst, sizes = 0.0, 0
    for size, image in pictures().items():
        if size in refused:
            lines = [line for line in run.stderr.splitlines() if line.startswith(f"refused {size}: ")]
            assert lines and reason in lines[0], f"{name}: {size} is not refused for {reason or 'its size'}: {lines}"
            continue
        assert f"refused {size}" not in run.stderr, f"{name}: {run.stderr}"
        with torch.no_grad():
            wanted = {f"{size}.stage{stage + 1}": value for stage, value in features(image).items()}
        names = {key for key in found if key.startswith(f"{size}.")}
        assert names == set(wanted), f"{name}: {sorted(names)} instead of {sorted(wanted)}"
        for key, value in wanted.items():
            assert found[key].shape == value.shape, f"{name} {key}: {found[key].shape} {value.shape}"
            error = ((found[key] - value).norm() / value.norm()).item()
            assert error <= 1e-5, f"{name} {key}: {error}"
            worst = max(worst, error)
        sizes += 1
    print(f"{name}: {sizes} sizes, {len(refused)} refused, largest relative distance {worst:.1e}")


def all_but(size: str) -> set[str]:
    """All sizes but one."""
    return {f"{h}x{w}" for h, w in SIZES} - {size}


def saved(folder: str, state: dict[str, torch.Tensor], name: str = "model.pth") -> Path:
    path = Path(folder, name)
    torch.save(state, path)
    return path


def prefixed(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": value for name, value in state.items()}


def others(seed: int) -> dict[str, torch.Tensor]:
    """Tensors of the rest of a detector."""
    generator = torch.Generator().manual_seed(seed)
    names = ["neck.convs.0.weight", "decode_head.conv_seg.bias", "sem_seg_head.norm.weight", "transformer.level_embed"]
    return {name: torch.randn(4, generator=generator) for name in names}


def detectors(folder: str) -> None:
    """Rows B of the dialects."""
    cases = [("backbone.", (0, 1, 2, 3)), ("backbone.bottom_up.", (0, 2)), ("module.backbone.0.", (1, 2, 3)), ("bb.", (0, 1, 2, 3))]
    for prefix, out in cases:
        model = Backbone(**TINY, window_size=7, out=out).eval()
        redraw(model, 1)
        path = saved(folder, {"model": prefixed(model.state_dict(), prefix) | others(2)})
        compare(f"detector {prefix}", path, model)
    model = Backbone(**TINY, window_size=3, out=(0, 1, 2, 3), places=(48, 56)).eval()
    redraw(model, 3)
    path = saved(folder, prefixed(model.state_dict(), "backbone."))
    compare("detector with ape", path, model)


def openmmlab(folder: str) -> None:
    """Rows C: the backbone of mmpretrain, with the padding of detectors and with its own."""
    from mmpretrain.models.backbones import SwinTransformer

    arch = {"embed_dims": 12, "depths": [2, 2, 2, 2], "num_heads": [1, 2, 3, 6]}
    for out in [(0, 1, 2, 3), (1, 2, 3)]:
        model = SwinTransformer(arch, img_size=224, window_size=7, out_indices=out, pad_small_map=True)
        model.eval()
        redraw(model, 4)
        state = {"state_dict": prefixed(model.state_dict(), "backbone.") | others(5), "meta": {"epoch": 1}}
        compare(f"mmdetection {out}", saved(folder, state), lambda x: dict(zip(out, model(x))))
    # The position embedding belongs to one size: mmdetection cannot add it to another.
    out = (0, 1, 2, 3)
    model = SwinTransformer(arch, img_size=224, window_size=7, out_indices=out, pad_small_map=True, use_abs_pos_embed=True)
    model.eval()
    redraw(model, 11)
    state = {"state_dict": prefixed(model.state_dict(), "backbone.")}
    compare("mmdetection with ape", saved(folder, state), lambda x: dict(zip(out, model(x))), refused=all_but("224x224"), reason="absolute_pos_embed")


def transformers(folder: str) -> None:
    """Rows E and F: whole models of transformers."""
    import transformers as hf
    from transformers.models.maskformer.modeling_maskformer_swin import MaskFormerSwinBackbone

    def features(backbone, stages):
        return lambda x: dict(zip(stages, backbone(x).feature_maps))

    names = ["stage1", "stage2", "stage3", "stage4"]
    tiny = {**TINY, "image_size": 224, "window_size": 7}
    swin = hf.SwinConfig(**tiny, out_features=names)

    def check(name, model, backbone, stages, refused=frozenset(), path=None):
        redraw(model, 6)
        model.eval()
        if path is None:
            path = Path(tempfile.mkdtemp(dir=folder))
            model.save_pretrained(path)
            torch.save(model.state_dict(), path / "state.pth")
        run = features(backbone, stages)
        compare(name, path, run, refused=refused)
        if (path / "state.pth").exists() and backbone.config.model_type != "swinv2":
            options = ("--stages", ",".join(map(str, stages)))
            compare(f"{name}, bare state_dict", path / "state.pth", run, *options, refused=refused)

    for chosen in [names, ["stage2", "stage4"]]:
        model = hf.SwinBackbone(hf.SwinConfig(**tiny, out_features=chosen))
        check(f"SwinBackbone {chosen}", model, model, [names.index(c) for c in chosen])
    dims = {"hidden_dim": 32, "mask_feature_size": 32, "feature_size": 32, "encoder_feedforward_dim": 16, "dim_feedforward": 16,
            "encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2, "num_queries": 3}
    model = hf.Mask2FormerForUniversalSegmentation(hf.Mask2FormerConfig(backbone_config=swin, **dims))
    check("Mask2Former", model, model.model.pixel_level_module.encoder, range(4))
    detr = hf.DetrConfig(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                         encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=3)
    model = hf.MaskFormerForInstanceSegmentation(
        hf.MaskFormerConfig(backbone_config=swin, decoder_config=detr, fpn_feature_size=32, mask_feature_size=32))
    encoder = model.model.pixel_level_module.encoder
    check(f"MaskFormer ({type(encoder).__name__})", model, encoder, range(4))
    model = MaskFormerSwinBackbone(hf.MaskFormerSwinConfig(**tiny, out_features=["stage2", "stage4"]))
    check("MaskFormerSwinBackbone", model, model, [1, 3])
    model = hf.UperNetForSemanticSegmentation(
        hf.UperNetConfig(backbone_config=swin, hidden_size=16, auxiliary_in_channels=48, pool_scales=[1, 2]))
    check("UPerNet", model, model.backbone, range(4))
    three = hf.SwinConfig(**tiny, out_features=names[1:])
    text = hf.BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = hf.GroundingDinoForObjectDetection(hf.GroundingDinoConfig(
        backbone_config=three, text_config=text, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=3))
    check("Grounding DINO", model, model.model.backbone.conv_encoder.model, [1, 2, 3])
    model = hf.Swinv2Backbone(hf.Swinv2Config(**tiny, out_features=names))
    check("Swinv2Backbone", model, model, range(4))


def donut(folder: str) -> None:
    import transformers as hf

    config = hf.DonutSwinConfig(**TINY, image_size=[192, 224], window_size=3)
    decoder = hf.BertConfig(vocab_size=32, hidden_size=96, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                            is_decoder=True, add_cross_attention=True)
    host = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(config, decoder)
    model = hf.VisionEncoderDecoderModel(host).eval()
    redraw(model, 8)
    path = Path(folder, "donut")
    model.save_pretrained(path)

    def features(x):
        encoder = hf.DonutSwinModel(config).eval()
        encoder.load_state_dict(model.encoder.state_dict(), strict=False)
        output = encoder(x, output_hidden_states=True)
        h, w = (-(-side // 4) for side in x.shape[2:])
        for _ in range(3):
            h, w = (h + 1) // 2, (w + 1) // 2
        return {3: output.last_hidden_state.transpose(1, 2).unflatten(2, (h, w))}

    compare("Donut", path, features, "--stages", "3", refused={"130x61", "20x24"})


def timm(folder: str) -> None:
    """Rows D."""
    import timm

    arch = {**TINY, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 3, 6)}
    # Modules are built for one size; a stage of fewer tokens than the window has a smaller one.
    for version, name, window in [(1, "swin_tiny_patch4_window7_224", 7), (2, "swinv2_tiny_window8_256", 7)]:
        for out in [(0, 1, 2, 3), (0, 2)]:
            for kind in ["list", "getter"]:
                for h, w in [(224, 224), (192, 224), (256, 704), (800, 1332)]:
                    cls = {"feature_cls": "getter"} if kind == "getter" else {}
                    model = timm.create_model(name, features_only=True, out_indices=out, img_size=(h, w), window_size=window,
                                              **arch, **cls).eval()
                    redraw(model, 9)
                    path = saved(folder, model.state_dict())
                    grids = [(h // 4 >> s, w // 4 >> s) for s in range(4)]
                    fits = all(min(grid) >= window for grid in grids[: max(out) + 1])

                    def run(x, model=model, out=out, kind=kind):
                        maps = model(x)
                        return dict(zip(out, maps if kind == "getter" else [f.permute(0, 3, 1, 2) for f in maps]))

                    only(f"timm V{version} {kind} {out} {h}x{w}", path, run, (h, w), fits, version, out)


def only(name, path, run, size, fits, version, out):
    """Compares at one size: with a configuration, and by the shapes alone where they tell the windows."""
    cfg = Path(path.parent, "timm.yaml")
    section = "SWIN" if version == 1 else "SWINV2"
    shape = "{EMBED_DIM: 12, NUM_HEADS: [1, 2, 3, 6], DEPTHS: [2, 2, 2, 2], WINDOW_SIZE: 7}"
    model = f"MODEL:\n  TYPE: {section.lower()}\n  {section}: {shape}\n"
    cfg.write_text(f"DATA: {{IMG_SIZE: [{size[0]}, {size[1]}]}}\n{model}")
    global SIZES
    before, SIZES = SIZES, [size]
    options = ["--stages", ",".join(map(str, out))]
    try:
        if version == 1 and fits:
            compare(f"{name} bare", path, run, *options)
        compare(name, path, run, "--cfg", str(cfg), *options)
    finally:
        SIZES = before


def torchvision(folder: str) -> None:
    from torchvision.models.feature_extraction import create_feature_extractor
    from torchvision.models.swin_transformer import SwinTransformer

    nodes = {f"features.{2 * stage + 1}": str(stage) for stage in range(4)}
    def made():
        model = SwinTransformer([4, 4], 12, [2, 2, 2, 2], [1, 2, 3, 6], [7, 7]).eval()
        redraw(model, 10)
        return create_feature_extractor(model, nodes).eval()
    path = saved(folder, made().state_dict())
    # A module's shifts are changed by the first small input, so that each image has a module of its own.
    features = lambda x: {int(stage): value.permute(0, 3, 1, 2) for stage, value in made()(x).items()}
    compare("torchvision", path, features)


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    chosen = sys.argv[2:] or ["detectors", "openmmlab", "transformers", "donut", "timm", "torchvision"]
    for part in chosen:
        with tempfile.TemporaryDirectory() as folder:
            globals()[part](folder)
