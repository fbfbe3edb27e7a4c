"""Runs the same commands by two builds of the program, and compares what they write. Exits with 1 if a file differs.

    python3 tests/windows/compare.py SWINQ SWINQ.EXE [ARGUMENT...]

SWINQ runs on this system, SWINQ.EXE under wine, with every ARGUMENT before those of a command: `python.exe -m swinq` is the program of
the wheel. The variable `KEEP` names a folder that keeps the files. Files are compared byte for byte; of JSON the description of the
machine, times, speeds and the program's own path are left out. A training under wine is killed, resumed, stopped by Ctrl-C and resumed.
It needs Python's standard library only.
"""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ["sample/model.safetensors", "--cfg", "sample/cfg.yaml"]
DATA = ["--data-path", "images"]
BYTES = ["quickstart/int8.safetensors", "int8.safetensors", "logits.safetensors", "int8.onnx",
         "predict.txt", "out/model.safetensors", "out/best.safetensors"]
JSON = ["quickstart/results.json", "eval.json", "inspect.json"]
# Keys of JSON that describe the machine, times and speeds.
OTHER = {"environment", "latency_ms", "throughput_ips", "stream_ips", "image_threads", "lanes", "profile", "load",
         "peak_memory_bytes"}
# The program's own path, the first word of a command.
PROGRAM = re.compile(r"^('[^']*|\S*)swinq[-.\w]*'? ")
JOB = """model: int8.safetensors
float: sample/model.safetensors
cfg: sample/cfg.yaml
output: out
data: {path: images, val_limit: 20}
batch_size: 2
threads: 2
steps: 12
log: {every: 1}
checkpoint: {every: 1, keep: 2}
accumulate: 2
optimizer: {lr: 1e-3, lr_scales: 1e-3, ema: 0.9}
quantization: {activation_scales: learned, weight_scales: learned}
augment: {flip: 0.5}
"""


class System:
    """A build of the program, and the folder in which it works."""

    def __init__(self, name, command, folder):
        self.name, self.command, self.folder = name, command, folder / name
        self.folder.mkdir(parents=True)
        shutil.copytree(ROOT / "samples/swin_micro_cifar10", self.folder / "sample")
        shutil.copytree(ROOT / "samples/cifar10", self.folder / "images")
        for image in ["airplane.png", "airplane.jpg", "airplane.webp"]:
            shutil.copy(ROOT / "tests/data" / image, self.folder)
        (self.folder / "job.yaml").write_text(JOB)

    def run(self, *arguments, code=0):
        """Standard output and standard error of a command."""
        start = time.monotonic()
        done = subprocess.run([*self.command, *arguments], cwd=self.folder, capture_output=True)
        out, error = (text.decode(errors="replace").replace("\r\n", "\n") for text in (done.stdout, done.stderr))
        print(f"{self.name}: {arguments[0]}, {time.monotonic() - start:.0f} s", flush=True)
        if done.returncode != code or "panicked" in error:
            raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}, not {code}\n{error}")
        return out, error

    def kill(self, *arguments, at):
        """Ends a command without warning when it prints `at`."""
        with subprocess.Popen([*self.command, *arguments], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace") as child:
            if not any(at in line for line in child.stderr):
                raise SystemExit(f"{' '.join(arguments)} ended before `{at}`")
            child.kill()
            child.stderr.read()

    def interrupt(self, *arguments, at):
        """Presses Ctrl-C in a console in which a command prints `at`, and expects that it stops in order."""
        process, console = pty.fork()
        if process == 0:
            os.chdir(self.folder)
            os.execvp(self.command[0], [*self.command, *arguments])
        text, pressed = "", False
        while part := read(console):
            text += part
            if at in text and not pressed:
                os.write(console, b"\x03")
                pressed = True
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        print(f"{self.name}: {arguments[0]}, Ctrl-C", flush=True)
        if code != 130 or "press Ctrl-C again" not in text or "--resume" not in text:
            raise SystemExit(f"{' '.join(arguments)}: exit code {code} after Ctrl-C, not 130\n{text}")

    def run_all(self, stopped):
        images = ["airplane.png", "airplane.jpg", "airplane.webp"]
        self.run("quickstart", "--out", "quickstart")
        self.run("calibrate", *MODEL, *DATA, "--batches", "1", "--output", "int8.safetensors")
        before = (self.folder / "int8.safetensors").read_bytes()
        with open(self.folder / "int8.safetensors", "rb") as reader:
            self.run("calibrate", *MODEL, *DATA, "--output", "int8.safetensors")
            assert reader.read() == before, "a reader saw another file"
        self.run("eval", *MODEL, "int8.safetensors", *DATA, "--json", "eval.json", "--report", "eval.html")
        out, _ = self.run("predict", "int8.safetensors", *images, "--logits", "logits.safetensors")
        (self.folder / "predict.txt").write_text(out)
        self.run("export", "int8.safetensors", "--onnx", "int8.onnx")
        out, _ = self.run("inspect", "int8.safetensors", "--json")
        (self.folder / "inspect.json").write_text(out)
        if stopped:
            self.kill("qat", "job.yaml", at="3/12 iterations")
            self.interrupt("qat", "job.yaml", "--resume", at="6/12 iterations")
        self.run("qat", "job.yaml", *(["--resume"] if stopped else []))
        _, error = self.run("predict", "none.safetensors", "none.png", code=1)
        assert "none.safetensors" in error, error
        left = [path.name for path in self.folder.rglob(".swinq-*")]
        assert not left, f"{left} were left"


def read(console):
    """What a console shows next; nothing when its programs have ended."""
    try:
        return os.read(console, 65536).decode(errors="replace")
    except OSError:
        return ""


def plain(value):
    """JSON without what differs between systems."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in OTHER}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return PROGRAM.sub("swinq ", value) if isinstance(value, str) else value


def compare(one, two):
    """The number of files that differ."""
    different = 0
    for name in BYTES + JSON:
        pair = [(system.folder / name).read_bytes() for system in (one, two)]
        if name in JSON:
            pair = [plain(json.loads(text)) for text in pair]
        print(f"{name}: {'equal' if pair[0] == pair[1] else 'DIFFERENT'}")
        different += pair[0] != pair[1]
    return different


def main():
    native, windows = (str(Path(path).resolve()) for path in sys.argv[1:3])
    arguments = sys.argv[3:]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("KEEP", temporary))
        one, two = System("native", [native], folder), System("windows", ["wine", windows, *arguments], folder)
        one.run_all(stopped=False)
        two.run_all(stopped=True)
        sys.exit(compare(one, two) != 0)


if __name__ == "__main__":
    main()
