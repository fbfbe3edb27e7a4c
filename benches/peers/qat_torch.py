"""Times a training iteration in PyTorch with fake quantization, the peer of `swinq qat`. The model is a timm Swin of
the sample's shape, or Swin-T. An iteration is the forward of a float teacher, the forward, cross-entropy and KL loss,
backward, gradient clipping and AdamW.

    python benches/peers/qat_torch.py --batch 64 --threads 2 --steps 20 --json peer.json
    python benches/peers/qat_torch.py --device cuda --amp bf16 --model tiny
    python benches/peers/qat_torch.py --device cuda --tf32 --model tiny
    python benches/peers/qat_torch.py --rounds 5 --swinq "swinq qat job.yaml ..."     # interleaved

Quantization uses the operators of torch.ao's FakeQuantize with its observers off, without the overhead of its modules.
Activations (inputs of qkv, proj, fc1, fc2 and the patch merging; q, k, v; attention probabilities) have a fixed scale
per tensor, which the first forward sets. Weights have a scale per output channel, recomputed in every iteration.

Inputs are drawn once. Times are medians over the iterations after a warm-up, for the iteration and for each part.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import time

import timm
import torch
from timm.models.swin_transformer import SwinTransformer, WindowAttention
from torch import nn
from torch.nn import functional as F

SHAPES = {
    "sample": dict(img_size=56, embed_dim=64, depths=(2, 4), num_heads=(2, 4), window_size=7, num_classes=10),
    "tiny": dict(img_size=224, embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), window_size=7),
}
PARTS = ("teacher", "forward", "backward", "optimizer")
TEMPERATURE = 2.0


class FakeQuant(nn.Module):
    """Fake quantization of an activation with a fixed scale, which the first forward sets."""

    def __init__(self, low=-128, high=127, scale=None):
        super().__init__()
        self.low, self.high = low, high
        self.scale = scale

    def forward(self, x):
        if self.scale is None:
            self.scale = x.detach().abs().amax().item() / 127
        # The operator does not support every reduced type, so it runs in f32 under autocast, too.
        return torch.fake_quantize_per_tensor_affine(x.float(), self.scale, 0, self.low, self.high).to(x.dtype)


class QuantLinear(nn.Linear):
    """A linear layer with its input and weight quantized."""

    @classmethod
    def of(cls, linear):
        linear.__class__ = cls
        linear.quantize_input = FakeQuant()
        return linear

    def forward(self, x):
        scale = (self.weight.detach().abs().amax(1) / 127).clamp_min(1e-12)
        zero = torch.zeros_like(scale, dtype=torch.int32)
        weight = torch.fake_quantize_per_channel_affine(self.weight, scale, zero, 0, -127, 127)
        return F.linear(self.quantize_input(x), weight, self.bias)


class QuantAttention(WindowAttention):
    """Window attention with quantized q, k, v and probabilities. It cannot use a fused kernel."""

    @classmethod
    def of(cls, attention):
        attention.__class__ = cls
        attention.quantize = nn.ModuleList([FakeQuant() for _ in "qkv"])
        attention.quantize_probs = FakeQuant(0, 255, 1 / 255)
        return attention

    def forward(self, x, mask=None):
        windows, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(windows, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k, v = (quantize(part) for quantize, part in zip(self.quantize, qkv))
        scores = (q * self.scale) @ k.transpose(-2, -1) + self._get_rel_pos_bias()
        if mask is not None:
            scores = scores.view(-1, mask.shape[0], self.num_heads, tokens, tokens) + mask[None, :, None]
            scores = scores.view(-1, self.num_heads, tokens, tokens)
        probs = self.quantize_probs(scores.softmax(-1))
        return self.proj((probs @ v).transpose(1, 2).reshape(windows, tokens, -1))


def quantize(model):
    """Quantizes every matrix product between the patch embedding and the head, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, WindowAttention):
            QuantAttention.of(module)
        elif type(module) is nn.Linear and not name.startswith("head"):
            QuantLinear.of(module)
    return model


class Training:
    """A model, its teacher, its optimizer and one batch."""

    def __init__(self, args):
        self.args = args
        self.device = torch.device(args.device)
        shape = SHAPES[args.model]
        torch.manual_seed(0)
        make = lambda: SwinTransformer(**shape, drop_path_rate=0.0).to(self.device)
        self.teacher = None if args.no_teacher else make().eval()
        self.model = make().train()
        self.images = torch.randn(args.batch, 3, shape["img_size"], shape["img_size"], device=self.device)
        self.labels = torch.randint(self.model.num_classes, (args.batch,), device=self.device)
        if not args.no_quant:
            quantize(self.model)
            with torch.no_grad():
                self.model(self.images)
        # Norms, biases and tables have no weight decay. The fused optimizer is PyTorch's fastest.
        decayed = [p for n, p in self.model.named_parameters() if p.ndim > 1 and "bias_table" not in n]
        others = [p for n, p in self.model.named_parameters() if p.ndim <= 1 or "bias_table" in n]
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=5e-5, fused=True)
        if args.compile:
            self.model = torch.compile(self.model)
            self.teacher = self.teacher and torch.compile(self.teacher)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=args.amp == "f16")

    def autocast(self):
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16, None: None}[self.args.amp]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def loss(self, logits, wanted):
        loss = F.cross_entropy(logits, self.labels)
        if wanted is None:
            return loss
        ours, theirs = (F.log_softmax(x / TEMPERATURE, 1) for x in (logits, wanted))
        return loss + TEMPERATURE**2 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def step(self):
        """Runs an iteration and returns the milliseconds of its parts."""
        marks, wanted = [self.now()], None
        with self.autocast():
            if self.teacher is not None:
                with torch.inference_mode():
                    wanted = self.teacher(self.images).float()
            marks.append(self.now())
            logits = self.model(self.images).float()
        # The backward cannot keep a tensor that was made in inference mode, so it gets a copy.
        loss = self.loss(logits, None if wanted is None else wanted.clone())
        marks.append(self.now())
        self.scaler.scale(loss).backward()
        marks.append(self.now())
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        marks.append(self.now())
        return [1e3 * (b - a) for a, b in zip(marks, marks[1:])]


def swinq_step_ms(command):
    """The median time of an iteration, which swinq prints as `"median_step_ms": N` in its last line of output."""
    output = subprocess.run(shlex.split(command), check=True, capture_output=True, text=True).stdout
    return json.loads(output.strip().splitlines()[-1])["median_step_ms"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SHAPES), default="sample")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds; each also runs --swinq if given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--amp", choices=["bf16", "f16"], help="mixed precision, on a GPU")
    parser.add_argument("--tf32", action="store_true", help="products of f32 in TF32, on a GPU")
    parser.add_argument("--compile", action="store_true", help="compile teacher and model with torch.compile")
    parser.add_argument("--no-teacher", action="store_true")
    parser.add_argument("--no-quant", action="store_true", help="train in float")
    parser.add_argument("--swinq", metavar="COMMAND", help="a command that times swinq's iterations")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.amp and not args.device.startswith("cuda"):
        parser.error("--amp needs --device cuda")
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    training = Training(args)
    for _ in range(args.warmup):
        training.step()
    times, swinq = [], []
    for _ in range(args.rounds):
        times += [training.step() for _ in range(args.steps)]
        if args.swinq:
            swinq.append(swinq_step_ms(args.swinq))
    result = {
        "median_step_ms": statistics.median(sum(step) for step in times),
        "parts_ms": {part: statistics.median(column) for part, column in zip(PARTS, zip(*times))},
        "model": args.model,
        "batch": args.batch,
        "threads": args.threads,
        "steps": len(times),
        "device": torch.cuda.get_device_name() if training.device.type == "cuda" else "cpu",
        "amp": args.amp,
        "tf32": args.tf32,
        "compile": args.compile,
        "teacher": not args.no_teacher,
        "quant": not args.no_quant,
        "versions": {"torch": torch.__version__, "timm": timm.__version__},
    }
    median = result["median_step_ms"]
    parts = ", ".join(f"{part} {ms:.1f}" for part, ms in result["parts_ms"].items())
    print(f"PyTorch, {args.model}: {median:.1f} ms a step of {args.batch} images ({parts})")
    if swinq:
        result["swinq_step_ms"] = statistics.median(swinq)
        print(f"swinq:   {result['swinq_step_ms']:.1f} ms, {result['swinq_step_ms'] / median:.2f}x")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
