"""Writes checkpoints/processors.json: what image processors of transformers do if their files have no field but their class.

Needs torch, torchvision and transformers. Run from this folder: python make_processors.py
"""

import json
import pathlib

import transformers

CLASSES = ["ViT", "DeiT", "Beit", "Siglip", "ConvNext", "Donut", "Segformer", "MaskFormer", "Mask2Former", "CLIP", "Bit"]


def main():
    found = {}
    for name in CLASSES:
        processor = getattr(transformers, f"{name}ImageProcessor")()
        assert processor.do_rescale and abs(processor.rescale_factor - 1 / 255) < 1e-9 and processor.do_normalize, name
        size, crop = processor.size, getattr(processor, "crop_size", None)
        found[name] = {
            "resample": int(processor.resample),
            "image_mean": list(processor.image_mean),
            "image_std": list(processor.image_std),
            "size": {k: v for k, v in dict(size).items() if v is not None},
            "crop": crop["height"] if getattr(processor, "do_center_crop", None) else None,
        }
    pathlib.Path("checkpoints/processors.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
