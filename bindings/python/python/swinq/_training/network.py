"""The forward pass of a Swin in PyTorch, with fake quantization at the sites that are on (docs/inference.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .. import _native
from .._common.contract import CONTRACT, takes_tokens
from .attention import Sites, Windows, attention
from .fake import add_rows, fake_quantize, fused, gather, linear, linear_in_order, norm
from .graph import cast
from .parameters import Parameters
from .scales import Codes, Scales

#: Sizes of images whose maps of rows are kept.
KEPT_SIZES = 32


@dataclass(frozen=True)
class Stage:
    """A stage, as far as its parameters depend on it."""

    depth: int
    channels: int
    heads: int
    window: tuple[int, int]
    #: ``int64 [n n]``: the row of the bias table for each query and key.
    relative: Any
    #: ``float32 [masks, n, n]``: what is added to a logit under each mask.
    masks: Any
    #: ``float32 [heads]``: the factor of ``q k^T`` of a Swin V1.
    factor: Any

    @property
    def tokens(self) -> int:
        """Tokens of a window."""
        return self.window[0] * self.window[1]


@dataclass(frozen=True)
class Grid:
    """A stage for images of one size, on one device. Maps of rows stand with their inverses."""

    size: tuple[int, int]
    plain: tuple[Any, Any]
    shifted: tuple[Any, Any]
    #: The mask of each window of a shifted block; ``None`` if no window is divided.
    mask: Any
    merge: tuple[Any, Any]


class Network:
    """A network: what does not change in training. It holds no parameters, and copies share it."""

    def __init__(self, model: _native.Model, config: dict[str, Any]) -> None:
        self.model, self.config = model, config
        self.is_v2 = config.get("version") == "v2"
        self._stages: dict[Any, list[Stage]] = {}
        self._grids: dict[Any, list[Grid]] = {}
        self._gelu: dict[Any, Any] = {}

    def __deepcopy__(self, memo: Any) -> Network:
        return self

    def stages(self, device: Any) -> list[Stage]:
        """The stages, with their tensors on ``device``."""
        if device not in self._stages:
            self._stages[device] = [self._stage(row, device) for row in _native.stages(self.model)]
        return self._stages[device]

    def _stage(self, row: _native.Stage, device: Any) -> Stage:
        height, width = row.window
        n = height * width
        region = torch.frombuffer(bytearray(row.regions), dtype=torch.uint8).reshape(-1, n)
        masks = (region[:, :, None] != region[:, None, :]).float() * self.config.get("mask", CONTRACT.mask)
        factor = self.config.get("qk_scale")
        factor = (row.channels // row.heads) ** -0.5 if factor is None else factor
        factors = torch.full((row.heads,), factor, device=device)
        relative = _integers(row.bias_rows, device)
        return Stage(row.depth, row.channels, row.heads, (height, width), relative, masks.to(device), factors)

    def gelu(self, device: Any) -> Any:
        """The table of the engine's GELU, ``float32 [3, 32]``: the coefficients of each power."""
        if device not in self._gelu:
            table = torch.frombuffer(bytearray(_native.gelu_table()), dtype=torch.float32)
            self._gelu[device] = table.reshape(3, 32).to(device)
        return self._gelu[device]

    def grids(self, height: int, width: int, device: Any) -> list[Grid]:
        """The stages for images of a size."""
        key = (height, width, device)
        if key not in self._grids:
            if len(self._grids) >= KEPT_SIZES:
                self._grids.pop(next(iter(self._grids)))
            rows = _native.grids(self.model, height, width)
            self._grids[key] = [self._grid(row, device) for row in rows]
        return self._grids[key]

    def _grid(self, row: _native.Grid, device: Any) -> Grid:
        height, width = row.size
        mask = torch.frombuffer(bytearray(row.masks), dtype=torch.uint8).long().to(device)
        maps = [_with_inverse(_integers(rows, device), height * width) for rows in (row.plain, row.shifted, row.merge)]
        return Grid((height, width), maps[0], maps[1], mask if bool(mask.any()) else None, maps[2])


def _integers(values: bytes, device: Any) -> Any:
    return torch.frombuffer(bytearray(values), dtype=torch.int64).to(device)


def _with_inverse(rows: Any, tokens: int) -> tuple[Any, Any]:
    back = torch.full((tokens + 1,), -1, dtype=torch.int64, device=rows.device)
    back[rows] = torch.arange(len(rows), device=rows.device)
    return rows, back[:tokens].contiguous()


@dataclass
class Forward:
    """One forward pass."""

    network: Network
    parameters: Parameters
    scales: Scales
    #: The type of the operands of products.
    dtype: Any
    #: The rate of stochastic depth of each block, in order; none in evaluation.
    drop_path: list[float]
    #: Whether each block is computed again in the backward pass.
    checkpointing: bool
    images: int = 0
    #: The scale of each activation and its reciprocal.
    current: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    #: Whether products are those of the engine, bit for bit: in ``float32`` on a GPU.
    exact: bool = False

    def __call__(self, images: Any) -> dict[str, Any]:
        """The outputs by name for images ``[n, channels, height, width]``: maps ``[n, channels, height, width]``, whose memory has
        the channels last, or logits."""
        config, device = self.network.config, images.device
        self.images, self.current = images.shape[0], self._current()
        self.exact = self.dtype == torch.float32 and fused(images) is not None
        height, width = (int(side) for side in images.shape[2:])
        grids = self.network.grids(height, width, device)
        names = {output["stage"]: output for output in config.get("outputs", [])}
        x, found, block = self._embed(images, (height, width), grids[0].size), {}, 0
        for index, (stage, grid) in enumerate(zip(self.network.stages(device), grids, strict=True)):
            for number in range(stage.depth):
                x = self._run_block(x, f"layers.{index}.blocks.{number}", stage, grid, number % 2 == 1, block)
                block += 1
            if index in names:
                found[names[index]["name"]] = self._output(x, names[index], index, grid)
            if index + 1 < len(grids):
                x = self._merge(x, f"layers.{index}.downsample", grid)
        if not names:
            x = cast(self._norm("norm", x), torch.float32).mean(1)
            found["logits"] = cast(self._linear("head", x), torch.float32)
        return found

    def _embed(self, images: Any, pixels: tuple[int, int], size: tuple[int, int]) -> Any:
        if takes_tokens(self.network.config):
            return images.permute(0, 2, 3, 1).flatten(1, 2)
        patch = self.network.config["patch_size"]
        down, right = (side * patch - given for side, given in zip(size, pixels, strict=True))
        if down or right:
            images = functional.pad(images, (0, right, 0, down))
        channels = int(images.shape[1])
        parts = images.reshape(-1, channels, size[0], patch, size[1], patch).permute(0, 2, 4, 1, 3, 5)
        x = self._linear("patch_embed.proj", parts.reshape(-1, size[0] * size[1], channels * patch**2))
        if "patch_embed.norm.weight" in self.parameters:
            x = self._norm("patch_embed.norm", x)
        return x + self._places(size) if "absolute_pos_embed" in self.parameters else x

    def _places(self, size: tuple[int, int]) -> Any:
        """The absolute position embedding of a grid, ``[1, tokens, channels]``, interpolated where the grid is not that of the
        network's own size."""
        table, config = self.parameters["absolute_pos_embed"], self.network.config
        own = config["image_size"]
        own = tuple(-(-side // config["patch_size"]) for side in (own if isinstance(own, list) else [own, own]))
        if own == size:
            return table
        places = table.unflatten(1, own).permute(0, 3, 1, 2)
        with torch.autocast(table.device.type, enabled=False):
            return functional.interpolate(places.float(), size, mode="bicubic").flatten(2).transpose(1, 2).to(table.dtype)

    def _output(self, x: Any, output: Any, index: int, grid: Grid) -> Any:
        if output.get("norm"):
            x = self._norm(f"norm{index}", x)
        return x.reshape(-1, *grid.size, int(x.shape[-1])).permute(0, 3, 1, 2)

    def _run_block(self, x: Any, name: str, stage: Stage, grid: Grid, odd: bool, number: int) -> Any:
        rate = self.drop_path[number] if self.drop_path else 0.0
        if not (self.checkpointing and torch.is_grad_enabled()):
            return self._block(x, name, stage, grid, odd, rate)
        return checkpoint(self._block, x, name, stage, grid, odd, rate, use_reentrant=False)

    def _block(self, x: Any, name: str, stage: Stage, grid: Grid, odd: bool, rate: float) -> Any:
        rows = grid.shifted if odd else grid.plain
        if self.network.is_v2:
            windows = gather(self._fake(f"{name}.attn.qkv.input", x), *rows)
            branch = gather(self._attend(windows, f"{name}.attn", stage, grid, odd), *reversed(rows))
            x = self._add(x, self._norm(f"{name}.norm1", branch), f"{name}.attn", rate)
            branch = self._norm(f"{name}.norm2", self._mlp(self._fake(f"{name}.mlp.fc1.input", x), f"{name}.mlp"))
            return self._add(x, branch, f"{name}.mlp", rate)
        windows = self._norm(f"{name}.norm1", x, f"{name}.attn.qkv.input", rows)
        x = self._add(x, self._attend(windows, f"{name}.attn", stage, grid, odd), f"{name}.attn", rate, rows)
        branch = self._mlp(self._norm(f"{name}.norm2", x, f"{name}.mlp.fc1.input"), f"{name}.mlp")
        return self._add(x, branch, f"{name}.mlp", rate)

    def _mlp(self, x: Any, name: str) -> Any:
        """The MLP of an input that has passed its site."""
        return self._linear(f"{name}.fc2", self._product(f"{name}.fc1", x), gelu=True)

    def _attend(self, x: Any, name: str, stage: Stage, grid: Grid, odd: bool) -> Any:
        """Attention of rows in the order of windows, which have passed the site of the input, up to the projection."""
        n, c = stage.tokens, stage.channels
        qkv = self._product(f"{name}.qkv", x).reshape(-1, n, 3 * c)
        scale, bias = self._position(name, stage)
        values = qkv.numel() // (3 * self.images)
        if self.network.is_v2:
            parts = qkv.split(c, -1)
            qkv = [_unit(parts[0], stage.heads), _unit(parts[1], stage.heads), parts[2]]
        windows = Windows(n, stage.heads, stage.masks, grid.mask) if odd and grid.mask is not None else None
        windows = windows or Windows(n, stage.heads, None, None)
        sites = self._attention_sites(name, values, values // c * n * stage.heads)
        mixed = attention(qkv, scale, bias, windows, sites, self.network.is_v2, self.dtype)
        return self._linear(f"{name}.proj", mixed.reshape(-1, len(grid.plain[0]), c))

    def _attention_sites(self, name: str, values: int, pairs: int) -> Sites:
        """The quantizers of attention. An image has so many queries, keys or values, and so many probabilities."""
        unsigned = isinstance(self.scales.site(f"{name}.probs"), Codes)
        probs = None if unsigned else self._quantizer(f"{name}.probs", pairs)
        q, k, v = (self._quantizer(f"{name}.{part}", values) for part in "qkv")
        return Sites(q, k, v, self._quantizer(f"{name}.scores", pairs), probs, unsigned)

    def _position(self, name: str, stage: Stage) -> tuple[Any, Any]:
        """The factor of ``q k^T`` of each head and the relative position bias ``[heads, n, n]``."""
        parameters = self.parameters
        with torch.autocast(stage.masks.device.type, enabled=False):
            if self.network.is_v2:
                scale = parameters[f"{name}.logit_scale"].float().flatten().clamp(max=math.log(CONTRACT.largest_scale)).exp()
                table = self._table(f"{name}.cpb_mlp", stage, int(name.split(".")[1]))
            else:
                scale, table = stage.factor, parameters[f"{name}.relative_position_bias_table"].float()
            return scale, table.t().index_select(1, stage.relative).unflatten(1, (stage.tokens, -1))

    def _table(self, name: str, stage: Stage, index: int) -> Any:
        """The bias table of a Swin V2, ``[rows, heads]`` (docs/inference.md, section 9)."""
        pretrained = self.network.config.get("pretrained_window_sizes") or [0]
        pretrained = pretrained[min(index, len(pretrained) - 1)]
        axes = []
        for side in stage.window:
            offsets = torch.arange(1 - side, side, device=stage.masks.device, dtype=torch.float32)
            t = offsets * (8.0 / max((pretrained or side) - 1, 1))
            axes.append(t.sign() * (t.abs() + 1.0).log2() / 3.0)
        places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 1)
        parameters = self.parameters
        hidden = functional.linear(places, parameters[f"{name}.0.weight"].float(), parameters[f"{name}.0.bias"].float()).relu()
        return CONTRACT.largest_bias * functional.linear(hidden, parameters[f"{name}.2.weight"].float()).sigmoid()

    def _merge(self, x: Any, name: str, grid: Grid) -> Any:
        x = gather(x, *grid.merge).reshape(-1, len(grid.merge[0]) // 4, 4 * int(x.shape[-1]))
        if self.network.is_v2:
            return self._norm(f"{name}.norm", self._linear(f"{name}.reduction", x))
        return self._product(f"{name}.reduction", self._norm(f"{name}.norm", x, f"{name}.reduction.input"))

    def _add(self, x: Any, branch: Any, name: str, rate: float, rows: Any = None) -> Any:
        """The residual addition; with ``rows``, of a branch whose rows are in their order."""
        sites = [self.scales.site(f"{name}.add.{operand}") for operand in ("shortcut", "branch")]
        if rows is not None and not any(sites) and not rate:
            return add_rows(x, branch, *rows)
        branch = branch if rows is None else gather(branch, *reversed(rows))
        branch = self._fake(f"{name}.add.branch", branch, branch.dtype)
        if rate:
            kept = torch.rand(len(branch), 1, 1, device=branch.device) >= rate
            branch = branch * (kept / (1.0 - rate)).to(branch.dtype)
        return self._fake(f"{name}.add.shortcut", x, x.dtype) + branch

    def _norm(self, name: str, x: Any, site: str = "", rows: Any = None) -> Any:
        """LayerNorm; with the name of a ``site``, its result behind the site, in the order of ``rows``."""
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        quantizer = self._quantizer(site, x.numel() // self.images) if site else None
        stream = torch.float32 if torch.is_autocast_enabled(x.device.type) else x.dtype
        return norm(x, weight, bias, self.network.config["norm_eps"], quantizer, self.dtype if site else stream, rows)

    def _current(self) -> dict[str, tuple[Any, Any]]:
        return self.scales.current()

    def _quantizer(self, name: str, values: int) -> Any:
        site = self.scales.site(name)
        return None if site is None else site.quantizer(*self.current[name], values)

    def _fake(self, name: str, x: Any, dtype: Any = None, gelu: Any = None) -> Any:
        values = x.numel() // self.images
        return fake_quantize(x, self._quantizer(name, values), dtype or self.dtype, gelu)

    def _linear(self, name: str, x: Any, gelu: bool = False) -> Any:
        """A linear layer with its sites; with ``gelu``, of GELU of ``x``."""
        return self._product(name, self._fake(f"{name}.input", x, gelu=self.network.gelu(x.device) if gelu else None))

    def _product(self, name: str, x: Any) -> Any:
        """A linear layer whose input has passed its site."""
        parameters = self.parameters
        bias = parameters[f"{name}.bias"].to(self.dtype) if f"{name}.bias" in parameters else None
        if self.scales.site(f"{name}.output") is None:
            return self._sums(name, x, bias)
        product = self._fake(f"{name}.output", self._sums(name, x, None))
        return product if bias is None else product + bias

    def _sums(self, name: str, x: Any, bias: Any) -> Any:
        weight = self._weight(name)
        if not self.exact:
            return functional.linear(x, weight, bias)
        given, site = self.scales.site(f"{name}.input"), self.scales.site(f"{name}.weight")
        if given is None or site is None:
            return linear_in_order(x, weight, bias)
        stored, factors = self.parameters[f"{name}.weight"].flatten(1), given.factors
        return linear(x, weight, bias, self.current[f"{name}.input"][0], site.scales(stored, factors), factors)

    def _weight(self, name: str) -> Any:
        weight, site = self.parameters[f"{name}.weight"].flatten(1), self.scales.site(f"{name}.weight")
        if site is None:
            return weight.to(self.dtype)
        return site.fake(weight, getattr(self.scales.site(f"{name}.input"), "factors", None), self.dtype)


def _unit(x: Any, heads: int) -> Any:
    """``x`` ``[windows, n, c]`` in ``float32``, with vectors of length 1 in each head."""
    tokens, channels = (int(side) for side in x.shape[1:])
    x = cast(x, torch.float32).reshape(-1, tokens, heads, channels // heads)
    squares = (x * x).sum(-1, keepdim=True)
    # A vector that is shorter than 1e-12, such as a key of padding, gets no gradient: the derivative there is 1e12.
    short = squares < 1e-24
    inverse = torch.where(short, 1e12, torch.where(short, 1.0, squares).rsqrt())
    return (x * inverse).reshape(-1, tokens, channels)
