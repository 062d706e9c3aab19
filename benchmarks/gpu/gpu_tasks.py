"""The tasks that the benchmarks train: a decoder of tokens, a residual network of images; all data are made up.

GPU_KILL="CALL:SIGNAL" sends this process the signal at the beginning of that training loss.
"""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import gpu_hook
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from slurmgpu.training.tasks import gpt2, resnet


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each behind a LayerNorm.

    ``plain`` computes the attention by matrix products: the fused kernels' backward passes need not repeat.
    """

    def __init__(self, width: int, heads: int, dropout: float, plain: bool) -> None:
        super().__init__()
        self.heads, self.plain = heads, plain
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, length, width) to the same."""
        batch, length, width = x.shape
        rows = self.attend(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = rows.permute(2, 0, 3, 1, 4)
        if self.plain:
            scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.feed(self.between(x)))


class Decoder(nn.Module):
    """A decoder-only transformer with learned positions."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(cfg.vocabulary, cfg.width)
        self.place = nn.Parameter(torch.zeros(cfg.length, cfg.width))
        self.blocks = nn.Sequential(
            *(Block(cfg.width, cfg.heads, cfg.dropout, cfg.deterministic) for _ in range(cfg.layers))
        )
        self.norm, self.head = nn.LayerNorm(cfg.width), nn.Linear(cfg.width, cfg.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From (batch, length) to logits of (batch, length, vocabulary)."""
        return self.head(self.norm(self.blocks(self.embed(tokens) + self.place)))


class Tokens:
    """Predicts the next of random tokens."""

    def __init__(self) -> None:
        self.calls = 0

    def model(self, cfg: Any) -> nn.Module:
        torch.manual_seed(0)
        return Decoder(cfg)

    def dataset(self, cfg: Any, split: str) -> Any:
        if split == "test":
            return None
        made = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randint(cfg.vocabulary, (cfg.samples, cfg.length + 1), generator=made))

    def measure(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The loss alone, as a loop of one's own would compute it."""
        (tokens,) = batch
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.calls += 1
        call, _, name = os.environ.get("GPU_KILL", "").partition(":")
        if call == str(self.calls):
            os.kill(os.getpid(), getattr(signal, name))
        gpu_hook.at_loss()
        return self.measure(model, batch)


class Residual(nn.Module):
    """Three convolutions in a bottleneck, beside a shortcut."""

    def __init__(self, inner: int, outer: int, new: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, new, 1, bias=False),
            nn.BatchNorm2d(new),
        )
        self.short = nn.Conv2d(inner, new, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, inner, h, w) to (batch, new, h / stride, w / stride)."""
        return functional.relu(self.body(x) + self.short(x))


class Images(Tokens):
    """Sorts random images, which lie on the GPU where there is one, so that no copy is part of the figure."""

    def model(self, cfg: Any) -> nn.Module:
        torch.manual_seed(0)
        parts: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inner = 64
        for stage, depth in enumerate(cfg.depths):
            for number in range(depth):
                new = 256 * 2**stage
                parts.append(Residual(inner, new // 4, new, 2 if stage and not number else 1))
                inner = new
        return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))

    def dataset(self, cfg: Any, split: str) -> Any:
        if split == "test":
            return None
        device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        images = torch.randn(cfg.samples, 3, cfg.size, cfg.size, device=device)
        return TensorDataset(images, torch.randint(1000, (cfg.samples,), device=device))

    def measure(self, model: nn.Module, batch: Any) -> torch.Tensor:
        images, classes = batch
        return functional.cross_entropy(model(images), classes)


class Vectors(Tokens):
    """Wide layers on large samples: a step takes about as long on a GPU as the copy of the next one's batch."""

    def model(self, cfg: Any) -> nn.Module:
        torch.manual_seed(0)
        wide = [nn.Linear(cfg.width, cfg.width) for _ in range(cfg.layers)]
        return nn.Sequential(*wide, nn.Linear(cfg.width, 1))

    def dataset(self, cfg: Any, split: str) -> Any:
        if split == "test":
            return None
        made = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(cfg.samples, cfg.width, generator=made))

    def measure(self, model: nn.Module, batch: Any) -> torch.Tensor:
        (rows,) = batch
        return (model(rows)[:, 0] - rows.mean(1)).square().mean()


class _Hooked:
    """Before a task that comes along: ``measure`` is its loss alone, as a loop of one's own would compute it."""

    def measure(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return super().loss(model, batch)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        gpu_hook.at_loss()
        return self.measure(model, batch)


class Gpt2(_Hooked, gpt2.Task):
    """GPT-2 on made-up tokens."""


class Files(_Hooked, resnet.Task):
    """ResNet on image files."""


class Pictures(Files):
    """The same, on random bytes in the host's memory."""

    def dataset(self, cfg: Any, split: str) -> Any:
        if split == "test":
            return None
        samples, size = cfg.config["samples"], cfg.config.get("image", 224)
        made = torch.Generator().manual_seed(0)
        images = torch.randint(256, (samples, 3, size, size), dtype=torch.uint8, generator=made)
        return TensorDataset(images, torch.randint(8, (samples,), generator=made))
