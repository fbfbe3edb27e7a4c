"""A timm Swin with random weights in every form that `latency.py` times. Each form is made once and kept in a folder.

    NAME/model.safetensors        the weights, for `swinq` and PyTorch
    NAME/images/*.png             the images for calibration
    NAME/swinq.safetensors        by `swinq calibrate`, recipe `default`
    NAME/f32.BATCH.onnx           by PyTorch's exporter, static shapes
    NAME/ort_int8.BATCH.onnx      by ONNX Runtime: static, QDQ, u8 activations, s8 weights per channel
    NAME/nncf_int8.BATCH.xml      by NNCF: PERFORMANCE preset, model type TRANSFORMER
"""
import subprocess

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

IMAGES = 8
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


def make_once(path, make):
    """Returns `path`. If it is missing, `make` writes it under a temporary name first, so that it is always complete."""
    if not path.exists():
        print(f"making {path}", flush=True)
        part = path.with_name(f"part.{path.name}")
        make(part)
        weights = part.with_suffix(".bin")
        if weights.exists():
            weights.rename(path.with_suffix(".bin"))
        part.rename(path)
    return path


class Models:
    """The forms of the timm model `name`, in the folder `cache`."""

    def __init__(self, name, cache, swinq):
        self.name, self.swinq = name, swinq
        # timm leaves the patch size out of the names of Swin V2.
        self.config = name.replace("_window", "_patch4_window") if name.startswith("swinv2") else name
        self.folder = cache / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.size = timm.get_pretrained_cfg(name).input_size[-1]

    def torch_model(self):
        torch.manual_seed(0)
        return timm.create_model(self.name, pretrained=False).eval()

    def weights(self):
        return make_once(
            self.folder / "model.safetensors",
            lambda path: save_file({k: v.contiguous() for k, v in self.torch_model().state_dict().items()}, path),
        )

    def images(self):
        """A folder of smooth random images."""
        return make_once(self.folder / "images", self.write_images)

    def write_images(self, folder):
        folder.mkdir(exist_ok=True)
        random = np.random.default_rng(0)
        for i in range(IMAGES):
            coarse = Image.fromarray(random.integers(0, 256, (14, 14, 3), dtype=np.uint8))
            coarse.resize((self.size, self.size), Image.BICUBIC).save(folder / f"{i}.png")

    def inputs(self, batch):
        """Normalised batches of the images, the input of the peers' graphs."""
        pixels = [np.asarray(Image.open(path), np.float32) for path in sorted(self.images().iterdir())]
        images = np.stack([((p / 255 - MEAN) / DEVIATION).transpose(2, 0, 1) for p in pixels])
        return [images[i : i + batch] for i in range(0, IMAGES, batch)]

    def swinq_int8(self):
        def make(path):
            command = [self.swinq, "calibrate", str(self.weights()), "--cfg", self.config, "--data-path", str(self.images())]
            command += ["--batches", "1", "--batch-size", str(IMAGES), "-o", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

        return make_once(self.folder / "swinq.safetensors", make)

    def onnx(self, batch):
        def make(path):
            pixels = torch.zeros(batch, 3, self.size, self.size)
            torch.onnx.export(self.torch_model(), pixels, path, input_names=["pixels"], opset_version=17, dynamo=False)

        return make_once(self.folder / f"f32.{batch}.onnx", make)

    def ort_int8(self, batch):
        return make_once(self.folder / f"ort_int8.{batch}.onnx", lambda path: self.quantize_ort(batch, path))

    def quantize_ort(self, batch, path):
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Reader(CalibrationDataReader):
            def __init__(self, inputs):
                self.inputs = iter(inputs)

            def get_next(self):
                return next(({"pixels": x} for x in self.inputs), None)

        prepared = path.with_name(f"prepared.{path.name}")
        quant_pre_process(self.onnx(batch), prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            path,
            Reader(self.inputs(batch)),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        prepared.unlink()

    def nncf_int8(self, batch):
        return make_once(self.folder / f"nncf_int8.{batch}.xml", lambda path: self.quantize_nncf(batch, path))

    def quantize_nncf(self, batch, path):
        import nncf
        import openvino

        model = openvino.convert_model(self.onnx(batch))
        data = nncf.Dataset(self.inputs(batch))
        preset, kind = nncf.QuantizationPreset.PERFORMANCE, nncf.ModelType.TRANSFORMER
        quantized = nncf.quantize(model, data, preset=preset, model_type=kind, subset_size=len(self.inputs(batch)))
        openvino.save_model(quantized, path)
