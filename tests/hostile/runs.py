"""The kinds of runs: a command and the files that it may write."""
import io
import json
import os
import re
import shutil
import zipfile

from damage import damage, damage_tree, doubled_key, number
from feature_runs import run_backbone, run_sizes
from image_files import hostile_image
from judgement import listing
from run import Run
from safetensors_files import as_version_1, hostile_document, hostile_safetensors
from settings import CFG, DATA, FLOAT, ROOT, WORDS
from shard_files import hostile_shards
from torch_files import hostile_torch, hostile_zip
from yaml_files import hostile_yaml


def model_options():
    return ["--cfg", CFG]


def run_quantized(rng, base, folder):
    victim = folder / "victim.safetensors"
    kind = rng.randrange(4)
    if kind < 2:
        data, same = hostile_safetensors(rng, base.quantized), True
    elif kind == 2:
        data, same = hostile_document(rng, base.quantized, 2), True
    else:  # version 1 has no hash, so that damage reaches the checks behind it
        data, same = rng.choice([hostile_document(rng, base.quantized, 1), hostile_safetensors(rng, as_version_1(base.quantized))]), False
    victim.write_bytes(data)
    command = rng.choice(["predict"] * 5 + ["inspect", "eval", "simulate", "qat"])
    if command == "predict":
        return Run(["predict", victim, base.picture, "--logits", folder / "logits.safetensors", *base.cpu], ["logits.safetensors"], same_logits=same)
    if command == "inspect":
        return Run(["inspect", victim, *rng.choice([[], ["--sites"], ["--json"], ["--plan", "--backend", "cpu"]])])
    if command == "qat":
        return Run(["qat", "default", "--dry-run", "--opts", "model", victim, "float", FLOAT, "cfg", CFG, "data.path", DATA, "output", folder / "out"])
    simulate = ["--simulate"] if command == "simulate" else []
    return Run(["eval", victim, "--data-path", DATA, "--limit", "2", "--no-latency", *base.cpu, *simulate])


def run_float(rng, base, folder, name, data):
    victim = folder / name
    victim.write_bytes(data)
    out = folder / "out.safetensors"
    return rng.choice([
        Run(["predict", victim, base.picture, *model_options(), *base.cpu, "--logits", out], ["out.safetensors"]),
        Run(["inspect", victim, *model_options(), "--sites"]),
        Run(["calibrate", victim, *model_options(), "--data-path", DATA, "--batches", "1", "--batch-size", "2", "--ptq", "basic", "-o", out],
            ["out.safetensors", "out.ranges.json"]),
        Run(["calibrate", FLOAT, *model_options(), "--data-path", DATA, "--batches", "1", "--ft-amax", victim, "-o", out],
            ["out.safetensors", "out.ranges.json"]),
    ])


def run_float_safetensors(rng, base, folder):
    return run_float(rng, base, folder, "victim.safetensors", hostile_safetensors(rng, base.float))


def run_pickle(rng, base, folder):
    return run_float(rng, base, folder, rng.choice(["victim.pth", "victim.pt", "victim.pkl"]), hostile_torch(rng, base))


def run_shards(rng, base, folder):
    index, leads_out = hostile_shards(rng, folder / "model")
    command = rng.choice([["predict", index, base.picture, *base.cpu], ["inspect", index]])
    return Run([*command, *model_options()], refused=leads_out)


def run_image(rng, base, folder):
    images = []
    for k in range(rng.choice([1, 1, 3])):
        name, data = hostile_image(rng, base)
        image = folder / "images" / f"{k}_{name}"
        image.parent.mkdir(exist_ok=True)
        image.write_bytes(data)
        images.append(image)
    memory = ["--decode-memory", rng.choice(["1G", "100M", "1M"])]
    if rng.random() < 0.2:
        (folder / "images" / "class").mkdir()
        shutil.move(images[0], folder / "images" / "class" / images[0].name)
        return Run(["eval", base.path, "--data-path", folder / "images", "--split", "train", "--no-latency", "--skip-corrupt", "1", *base.cpu, *memory])
    return Run(["predict", base.path, *images, "--logits", folder / "logits.safetensors", *base.cpu, *memory],
               keeps=["logits.safetensors"], outputs=["logits.safetensors"])


def run_data(rng, base, folder):
    data = folder / "data"
    data.mkdir()
    archive, names = (DATA / "val.zip").read_bytes(), (DATA / "val_map.txt").read_bytes()
    evil = ["../../etc/passwd\t0", "/dev/zero\t0", "airplane/0000.jpg", "airplane/0000.jpg\t-1", "airplane/0000.jpg\t99999999999999999999", "\t0", "x\t\t0",
            "a\x1b[31m.jpg\t0", "airplane/0000.jpg\t10", "airplane/0000.jpg\t4294967295", "airplane/0000.jpg\t0\t0", "z" * 100_000 + "\t0", "\0\t0",
            ".\t0", "airplane\t0", "\u202e.jpg\t1", "airplane/0000.jpg\tNaN"]
    kind = rng.randrange(5)
    if kind == 0:
        archive = hostile_zip(rng, archive)
    elif kind == 1:
        names = damage(rng, names)
    elif kind == 2:
        lines = names.decode().splitlines()
        for _ in range(rng.choice([1, 3])):
            lines.insert(rng.randrange(min(len(lines), 5)), rng.choice(evil))
        names = "\n".join(lines).encode()
    elif kind == 3:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name in rng.sample(["../up.jpg", "/abs.jpg", "a/b.jpg", "a\x1b.jpg", "airplane/0000.jpg", "c" * 60_000, "d/"], 3):
                zipped.writestr(name, rng.choice([b"", bytes(40_000_000), base.images["grey.png"]]))
            listed = zipped.namelist()
        archive, names = out.getvalue(), "".join(f"{name}\t{k}\n" for k, name in enumerate(listed)).encode()
    else:
        listing = folder / "list.txt"
        line = rng.choice([e.replace("airplane/0000.jpg", str(base.picture)) for e in evil] + ["\n" * 1000, ""])
        listing.write_text(rng.choice([f"{base.picture}\t0\n", f"{base.picture}\n", ""]) * rng.choice([1, 100]) + line + "\n", errors="surrogatepass")
        if rng.random() < 0.3:
            return Run(["predict", base.path, "-", *base.cpu], stdin=listing.read_bytes())
        if rng.random() < 0.5:
            return Run(["predict", base.path, base.picture, "--labels", listing, *base.cpu])
        return Run(["eval", base.path, "--data-path", listing, "--limit", "4", "--no-latency", *base.cpu])
    (data / "val.zip").write_bytes(archive)
    (data / "val_map.txt").write_bytes(names)
    return Run(["eval", base.path, "--data-path", data, "--limit", str(rng.choice([2, 20])), "--no-latency", *base.cpu])


def run_yaml(rng, base, folder):
    victim, out = folder / "own.yaml", folder / "out.safetensors"
    shutil.copy(CFG, folder / "fine.yaml")
    kind = rng.randrange(6)
    if kind < 2:
        victim.write_bytes(hostile_yaml(rng, CFG.read_text(), folder))
        return rng.choice([Run(["inspect", FLOAT, "--cfg", victim]), Run(["predict", FLOAT, base.picture, "--cfg", victim, *base.cpu]),
                           Run(["bench", "--random-weights", "0", "--cfg", victim, "--batch-size", "1", "--seconds", "0.01", *base.cpu])])
    if kind == 2:
        text = (ROOT / "configs" / "quant" / rng.choice(["default.yaml", "mode1.yaml", "mode2.yaml"])).read_text()
        victim.write_bytes(hostile_yaml(rng, text, folder))
        return Run(["calibrate", FLOAT, *model_options(), "--data-path", DATA, "--recipe", victim, "--batches", "1", "--batch-size", "2", "-o", out],
                   ["out.safetensors", "out.ranges.json"])
    if kind == 3:
        text = (ROOT / "configs" / "qat" / "default.yaml").read_text()
        for key, path in [("model", base.path), ("float", FLOAT), ("cfg", CFG), ("output", folder / "run")]:
            text = re.sub(rf"(?m)^{key}: null", f"{key}: {path}", text)
        victim.write_bytes(hostile_yaml(rng, text.replace("  path: null", f"  path: {DATA}"), folder))
        return Run(["qat", victim, "--dry-run"])
    if kind == 4:  # a folder in the style of timm or Hugging Face
        home = folder / "model"
        home.mkdir()
        shutil.copy(FLOAT, home / "model.safetensors")
        config = rng.choice([
            {"architecture": "swin_tiny_patch4_window7_224", "num_classes": 10, "model_args": {"embed_dim": 64, "depths": [2, 4], "num_heads": [2, 4]},
             "pretrained_cfg": {"input_size": [3, 56, 56], "mean": [0.4, 0.4, 0.4], "std": [0.2, 0.2, 0.2], "crop_pct": 0.9, "interpolation": "bicubic"}},
            {"model_type": "swin", "image_size": 56, "patch_size": 4, "embed_dim": 64, "depths": [2, 4], "num_heads": [2, 4], "window_size": 7,
             "id2label": {str(k): f"c{k}" for k in range(10)}, "architectures": ["SwinForImageClassification"]}])
        text = json.dumps(damage_tree(rng, config))
        text = rng.choice([text, text, doubled_key(rng, text), "[" * 200_000, ""])
        (home / "config.json").write_text(text, errors="surrogatepass")
        return Run(["inspect", home])
    first, second = folder / "first.json", folder / "second.json"
    first.write_text(json.dumps(damage_tree(rng, json.loads(base.results))), errors="surrogatepass")
    second.write_bytes(damage(rng, base.results) if rng.random() < 0.3 else base.results)
    return rng.choice([Run(["compare", first, second, "--max-drop", rng.choice(["1", "0"])]),
                       Run(["eval", base.path, "--data-path", DATA, "--limit", "2", "--no-latency", *base.cpu, "--sensitivity", first,
                            "--report", folder / "r.html"], ["r.html"])])


def run_options(rng, base, folder):
    out = folder / "out.safetensors"
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    copy, own = folder / "copy.safetensors", folder / "float.safetensors"
    shutil.copy(base.path, copy)
    shutil.copy(FLOAT, own)
    os.symlink("loop", folder / "loop")
    os.symlink(copy, folder / "link")
    inputs = [fifo, "/dev/zero", "/dev/full", "/dev/null", "/dev/stdin", folder, folder / "missing", folder / "loop", "", "/proc/self/mem", "/proc/self/fd",
              "/dev/tty", CFG, base.picture, DATA / "val.zip", *WORDS]
    outputs = ["/dev/full", "/dev/null", fifo, folder, folder / "no" / "out", folder / "loop", "", copy, folder / "link", "/proc/self/x", folder / "a\x1b[31m" / "x",
               "x" * 300]
    word = lambda: rng.choice([rng.choice(WORDS), str(number(rng))])
    source, target = rng.choice(inputs), rng.choice(outputs)
    beside = rng.choice([own if output in (copy, folder / "link") else output for output in outputs])
    few = ["--batches", "1", "--batch-size", "2", "--ptq", "basic"]
    calibrate = ["calibrate", own, *model_options(), "--data-path", DATA]
    evaluate = ["eval", copy, "--data-path", DATA, "--limit", "2", "--no-latency", *base.cpu]
    predict = ["predict", copy, base.picture, *base.cpu]
    written = ["out.safetensors", "out.ranges.json"]
    return rng.choice([
        lambda: Run([*calibrate, "-o", out, *few, f"--{rng.choice(['calibrator', 'recipe', 'disable', 'ft-amax', 'device', 'split', 'labels'])}={source}"], written),
        lambda: Run([*calibrate, "-o", out, "--ptq", "basic", "--batches", word() if rng.random() < 0.3 else "1",
                     f"--{rng.choice(['batch-size', 'seed', 'threads', 'skip-corrupt'])}={word()}"], written),
        lambda: Run([*calibrate, *few, "-o", beside]),
        lambda: Run([*calibrate, "-o", out, *few, "--opts", rng.choice(["MODEL.NUM_CLASSES", "DATA.IMG_SIZE", "MODEL.SWIN.DEPTHS", "MODEL.SWIN.EMBED_DIM", "X"]), word()], written),
        lambda: Run(["predict", source, base.picture, *base.cpu]),
        lambda: Run(["predict", copy, source, *base.cpu]),
        lambda: Run([*predict, f"--{rng.choice(['topk', 'device', 'threads', 'decode-memory', 'labels', 'transform', 'dialect'])}={word()}"]),
        lambda: Run([*predict, f"--{rng.choice(['labels', 'cfg', 'transform'])}={source}"]),
        lambda: Run([*predict, "--logits", target]),
        lambda: Run(["predict", copy, base.picture, "--threads", word(), "--backend", "cpu"]),
        lambda: Run([*evaluate, f"--{rng.choice(['batch-size', 'seed', 'skip-corrupt', 'name', 'simulate', 'split', 'limit'])}={word()}"]),
        lambda: Run([*evaluate[:-len(base.cpu) - 1], "--backend", "cpu", "--threads", "1", "--latency", word()]),
        lambda: Run([*evaluate, f"--{rng.choice(['json', 'report', 'markdown', 'predictions'])}", target]),
        lambda: Run(["eval", copy, "--data-path", source, "--limit", "2", "--no-latency", *base.cpu]),
        lambda: Run([*evaluate, f"--{rng.choice(['sensitivity', 'tuning', 'training'])}={source}", "--report", folder / "r.html"], ["r.html"]),
        lambda: Run(["bench", copy, *base.cpu, "--seconds", "0.01", "--batch-size", word(), *([] if rng.random() < 0.5 else ["--json", target])]),
        lambda: Run(["bench", copy, *base.cpu, "--batch-size", "1", "--seconds",
                     rng.choice(["0", "-1", "1e9", "1e308", "NaN", "inf", "", "1e-300", "9223372036854775807"])]),
        lambda: Run(["inspect", copy, "--plan", "--backend", "cpu", "--batch-size", word()]),
        lambda: Run(["inspect", source, "--cfg", source]),
        lambda: Run(["compare", source, rng.choice(inputs)]),
        lambda: Run(["qat", source, "--dry-run"]),
        lambda: Run(["qat", "default", "--dry-run", "--opts", "model", copy, "float", FLOAT, "cfg", CFG, "data.path", DATA, "output", target,
                     rng.choice(["optimizer.lr", "batch_size", "epochs", "threads", "device", "data.cache_mb", "seed", "x.y"]), word()]),
        lambda: Run(["sensitivity", own, *model_options(), "--data-path", DATA, "--images", word(), "-o", beside]),
        lambda: Run(["tune", own, *model_options(), "--data-path", DATA, "--images", "2", "--max-drop", word(), "-o", beside]),
        lambda: Run(["man", rng.choice([fifo, "/dev/null", copy, folder / "loop", "/proc/self/x"])]),
        lambda: Run([word(), word()]),
    ])()


KINDS = {"quantized checkpoint": (run_quantized, 6), "float safetensors": (run_float_safetensors, 3), "float pickle": (run_pickle, 4), "shards": (run_shards, 2),
         "backbone": (run_backbone, 4), "sizes of a backbone": (run_sizes, 3), "image": (run_image, 4), "list, map or zip": (run_data, 2), "YAML or JSON": (run_yaml, 4), "options": (run_options, 5)}
