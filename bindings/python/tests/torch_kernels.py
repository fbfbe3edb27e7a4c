"""Cases for the kernels of fake quantization and attention."""

import torch

from swinq._training.attention import Sites, Windows
from swinq._training.fake import Quantizer
from swinq._training.network import _unit

#: Attention: tokens, heads, channels of a head, whether there are masks, whether it is that of a Swin V2, the sites that are on.
CASES = [
    (9, 2, 16, True, False, ""),
    (9, 2, 16, True, False, "q k v u8"),
    (49, 2, 32, True, False, "q k v s8"),
    (9, 3, 12, False, False, "q v u8"),
    (16, 4, 16, True, True, "q k v u8"),
    (70, 1, 16, True, False, "q k v u8"),
]


def quantizer_case(kind, dtype=torch.float32):
    """A matrix with values in the middle between codes, beyond the range and at its ends, and a quantizer."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 24, generator=generator) * 3
    scale = torch.rand({"tensor": 1, "rows": 40, "columns": 24}[kind], generator=generator) * 0.03 + 0.005
    x[:10] = (x[:10] / 0.0078125).round() * 0.0078125 / 2
    if kind == "tensor":
        return x.to(dtype), Quantizer(torch.tensor([0.0078125]))
    if kind == "rows":
        scale[:10] = 0.0078125
        return x.to(dtype), Quantizer(scale, None, -127.0, 127.0)
    return x.to(dtype), Quantizer(scale, torch.randint(-100, 100, (24,), generator=generator).float())


def attention_case(case, kind, device, dtype, windows=4, images=2):
    """The result and the gradients of all inputs, by name."""
    n, heads, d, masked, second, sites = case
    generator, c, count = torch.Generator().manual_seed(1), heads * d, windows * images
    random = lambda *shape: torch.randn(*shape, generator=generator)
    parts = list(random(count, n, 3 * c).split(c, -1))
    if second:
        parts[:2] = [_unit(part, heads) for part in parts[:2]]
    factor = torch.linspace(8, 60, heads) if second else torch.full((heads,), d**-0.5)
    bias, grad = random(heads, n, n), random(count, n, c)
    masks = torch.where(torch.rand(4, n, n, generator=generator) < 0.3, -100.0, 0.0)
    masks[:, range(n), range(n)] = 0
    which = torch.randint(0, 4, (windows,), generator=generator)
    scales = [torch.tensor([value]) for value in ((1 / 127, 1 / 127, 0.02, 1 / 127) if second else (0.025, 0.022, 0.02, 0.005))]
    leaves = dict(zip(("q", "k", "v", "bias", "s_q", "s_k", "s_v", "s_p"), [*parts, bias, *scales], strict=True))
    leaves = {name: value.to(device).clone().requires_grad_() for name, value in leaves.items()}
    factor = factor.to(device).requires_grad_(second)
    on = {name: Quantizer(leaves[f"s_{name}"]) for name in ("q", "k", "v") if name in sites.split()}
    found = kind(
        [leaves[name] for name in ("q", "k", "v")],
        factor,
        leaves["bias"],
        Windows(n, heads, masks.to(device) if masked else None, which.to(device) if masked else None),
        Sites(**on, probs=Quantizer(leaves["s_p"]) if "s8" in sites else None, unsigned="u8" in sites),
        second,
        dtype,
    )
    found.backward(grad.to(device, found.dtype))
    gradients = {f"gradient of {name}": value.grad for name, value in {**leaves, "factor": factor}.items() if value.grad is not None}
    return {"result": found.detach(), **gradients}
