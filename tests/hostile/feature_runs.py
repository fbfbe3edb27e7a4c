"""Runs of backbones: damaged checkpoints and images, absurd sizes, paddings and outputs."""
import os
import shutil

from damage import number
from image_files import hostile_image, png
from run import Run
from safetensors_files import hostile_document, hostile_safetensors
from settings import CFG, DATA, FLOAT, WORDS
from shard_files import hostile_shards
from torch_files import hostile_torch

MAPS = "maps.safetensors"


def images(rng, base, folder):
    """Whole and damaged pictures of several sizes, in the order of the command line."""
    if rng.random() < 0.3:
        return [base.picture] * rng.choice([1, 3])
    home = folder / "images"
    home.mkdir()
    found = []
    for k in range(rng.choice([1, 2, 4])):
        height, width = rng.choice([(56, 56), (64, 100), (60, 57), (1, 1), (3, 200), (1, 5000)])
        name, data = rng.choice([(f"{height}x{width}.png", png(width, height, bytes(height * (1 + 3 * width)))), hostile_image(rng, base),
                                 ("maps.png", hostile_safetensors(rng, base.maps)), ("maps.png", base.maps)])
        found.append(home / f"{k}_{name}")
        found[-1].write_bytes(data)
    return rng.choice([[base.picture, *found], found, [home]])


def word(rng):
    return rng.choice([rng.choice(WORDS), str(number(rng))])


def size(rng):
    side = lambda: rng.choice(["0", "1", "2", "3", "31", "64", "100", "500", "4097", "65535", "65536", word(rng)])
    if rng.random() < 0.4:  # the network takes it
        return rng.choice(["56x56", "56x64", "64x100", "short:64,long:200"])
    return rng.choice(["keep", "8x4096", "4096x8", f"{side()}x{side()}", f"short:{side()},long:{side()}", f"{side()}x{side()}x{side()}", f"short:{side()}", word(rng)])


def sizing(rng):
    """Options that say which size images get."""
    options = []
    if rng.random() < 0.7:
        options += [f"--size={size(rng)}"]
    if rng.random() < 0.4:
        options += [f"--pad-to={rng.choice(['1', '2', '31', '32', '56', '4096', '4097', word(rng)])}"]
    if rng.random() < 0.4:
        options += ["--pad-batch"]
    if rng.random() < 0.4:
        options += [f"--batch-size={rng.choice(['1', '2', '3', '64', word(rng)])}"]
    return options


def calibrated_size(rng):
    """Options as those of `sizing` for `calibrate`, which takes every size that the network takes, and as long as it takes."""
    size = rng.choice(["keep", "56x56", "56x64", "64x60", "57x57", "0x0", "65536x1", "4097x1", "short:0,long:1", "short:56,long:56", *WORDS])
    pad = rng.choice([[], [f"--pad-to={rng.choice(['1', '8', '56', '0', '4097', *WORDS])}"]])
    return [f"--size={size}", *pad, *rng.choice([[], ["--pad-batch"]])]


def features(rng, base, folder, model, *options):
    """`features` of pictures."""
    options = [*options, *sizing(rng), "--decode-memory", rng.choice(["1G", "1M"])]
    # Larger images are not refused, and take longer than a run may.
    options += [f"--max-pixels={rng.choice(['300000', '300000', '4000', '1'])}"]
    if rng.random() < 0.2:
        options += [f"--outputs={rng.choice(['stage1', 'stage2', 'stage2,stage1', 'stage1,stage1', 'stage3', 'stage0', word(rng)])}"]
    return Run(["features", model, *images(rng, base, folder), "--features", folder / MAPS, *base.cpu, *options], [MAPS], keeps=[MAPS], maps=True)


def run_backbone(rng, base, folder):
    """A damaged backbone: quantized, float, pickled or in shards; a file of maps as a model."""
    kind = rng.randrange(6)
    of_classifier = ["--cfg", CFG]
    if kind < 2:
        victim = folder / "victim.safetensors"
        victim.write_bytes(hostile_safetensors(rng, base.backbone) if kind == 0 else hostile_document(rng, base.backbone, 2))
        return rng.choice([features(rng, base, folder, victim), Run(["inspect", victim])])
    if kind == 2:
        victim = folder / "victim.safetensors"
        victim.write_bytes(hostile_safetensors(rng, base.float))
        return features(rng, base, folder, victim, *rng.choice([of_classifier, []]))
    if kind == 3:
        victim = folder / "victim.pth"
        victim.write_bytes(hostile_torch(rng, base))
        return features(rng, base, folder, victim, *rng.choice([of_classifier, []]))
    if kind == 4:
        index, leads_out = hostile_shards(rng, folder / "model")
        run = features(rng, base, folder, index, *of_classifier)
        run.refused = leads_out
        return run
    victim = folder / "victim.safetensors"
    victim.write_bytes(rng.choice([base.maps, hostile_safetensors(rng, base.maps)]))
    return rng.choice([Run(["inspect", victim], refused=True), Run(["predict", victim, base.picture, *base.cpu], refused=True),
                       Run(["features", victim, base.picture, *base.cpu, "--features", folder / MAPS], refused=True)])


def run_sizes(rng, base, folder):
    """Absurd sizes, paddings and outputs of a whole backbone."""
    copy, own, fifo = folder / "copy.safetensors", folder / "float.safetensors", folder / "fifo"
    shutil.copy(base.backbone_path, copy)
    shutil.copy(FLOAT, own)
    os.mkfifo(fifo)
    kind = rng.randrange(6)
    if kind < 3:
        return features(rng, base, folder, copy)
    if kind == 3:
        target = rng.choice(["/dev/full", "/dev/null", fifo, folder, folder / "no" / "maps", copy, base.picture, "", "x" * 300])
        return Run(["features", copy, base.picture, *base.cpu, "--features", target])
    if kind == 4:
        out = folder / "out.safetensors"
        return Run(["calibrate", own, "--cfg", CFG, "--task", "features", "--data-path", DATA, "--batches", "1", "--ptq", "basic", "-o", out,
                    *calibrated_size(rng)], ["out.safetensors", "out.ranges.json"])
    return Run(["bench", copy, *base.cpu, "--batch-size", "1", "--seconds", "0.01", "--max-pixels", "300000", f"--size={size(rng)}",
                *rng.choice([[], [f"--pad-to={word(rng)}"]])])
