"""GPT-2 (Radford et al. 2019) on token files: the next token after each."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from ..errors import SettingsError
from ..settings import Config
from . import options, tokens

__all__ = ["SIZES", "Gpt2", "Task"]


class Size(NamedTuple):
    """Size of a network."""

    layers: int
    heads: int
    width: int
    context: int = 1024
    vocabulary: int = 50257


SIZES = {
    "tiny": Size(2, 2, 64, 64, 256),
    "124M": Size(12, 12, 768),
    "355M": Size(24, 16, 1024),
    "774M": Size(36, 20, 1280),
    "1.5B": Size(48, 25, 1600),
}


class Block(nn.Module):
    """Attention to what came before, then a small network for each token; (N, T, width) both in and out."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = size.heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attention = nn.Linear(size.width, 3 * size.width)
        self.attended = nn.Linear(size.width, size.width)
        self.wide = nn.Linear(size.width, 4 * size.width)
        self.narrow = nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stream, with what this layer adds."""
        x = x + self._drop(self.attended(self._attend(self.norm1(x))))
        return x + self._drop(self.narrow(gelu(self.wide(self.norm2(x)), approximate="tanh")))

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.dropout, self.training)

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attention(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        dropout = self.dropout if self.training else 0.0
        seen = scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return seen.transpose(1, 2).flatten(2)


class Gpt2(nn.Module):
    """From tokens (N, T) to scores of the next one (N, T, vocabulary)."""

    def __init__(self, size: Size, dropout: float = 0.0, tied: bool = True) -> None:
        super().__init__()
        self.size, self.dropout = size, dropout
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size, dropout) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.scores = nn.Linear(size.width, size.vocabulary, bias=False)
        if tied:
            self.scores.weight = self.tokens.weight
        self.apply(self._begin)

    def _begin(self, module: nn.Module) -> None:
        """First values as in the published network: what is added at each layer is smaller the more layers there are."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.01 if module is self.places else 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Block):  # after its parts
            for part in (module.attended, module.narrow):
                nn.init.normal_(part.weight, std=0.02 / math.sqrt(2 * self.size.layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One score for each token that may come next, at each place."""
        x = _placed(tokens, self.tokens, self.places)
        x = nn.functional.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x))  # type: ignore[no-any-return]


def _placed(tokens: torch.Tensor, words: nn.Embedding, places: nn.Embedding) -> torch.Tensor:
    found: torch.Tensor = words(tokens) + places.weight[: tokens.shape[1]]
    return found


class First(nn.Module):
    """The part before the blocks, as the beginning of a pipeline's first stage."""

    def __init__(self, model: Gpt2) -> None:
        super().__init__()
        self.tokens, self.places, self.drop = model.tokens, model.places, nn.Dropout(model.dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From tokens (N, T) to the stream (N, T, width)."""
        found: torch.Tensor = self.drop(_placed(tokens, self.tokens, self.places))
        return found


class Task:
    """The next token, in nats per token."""

    def prepare(self, cfg: Config) -> None:
        """Make the token files from texts, where ``config.text`` names some."""
        tokens.prepare(options(cfg, "gpt2"))

    def model(self, cfg: Config) -> nn.Module:
        """Return a network of the size that ``config.size`` names."""
        chosen = options(cfg, "gpt2")
        return Gpt2(self._size(chosen), chosen.dropout, chosen.tied)

    def _size(self, chosen: Any) -> Size:
        size = SIZES[chosen.size]
        given = {"context": chosen.context, "vocabulary": chosen.vocabulary}
        return size._replace(**{name: value for name, value in given.items() if value is not None})

    def dataset(self, cfg: Config, split: str) -> Optional[object]:
        """Windows over token files, or over a made-up text."""
        chosen = options(cfg, "gpt2")
        size = self._size(chosen)
        return tokens.dataset(chosen, split, size.context, size.vocabulary)

    def optimizer(self, model: nn.Module, cfg: Config) -> torch.optim.Optimizer:
        """AdamW, with weight decay for matrices alone."""
        trained = [each for each in model.parameters() if each.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [each for each in trained if each.dim() > 1]},
            {"params": [each for each in trained if each.dim() < 2], "weight_decay": 0.0},
        ]
        fused = all(each.is_cuda for each in trained) or None
        return torch.optim.AdamW(
            groups, lr=cfg.lr, betas=(0.9, 0.95), weight_decay=cfg.weight_decay, fused=fused
        )

    def blocks(self, model: Gpt2) -> list[nn.Module]:
        """Return what ``activation_checkpointing`` computes again."""
        return list(model.blocks)

    def init_weights(self, model: Gpt2) -> None:
        """First values where ``meta_device`` has made the model without any."""
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        model.apply(model._begin)

    def stages(self, model: Gpt2, count: int) -> list[nn.Module]:
        """Return the blocks in as many equal parts; the first begins with the embeddings, the last ends with the scores."""
        if model.scores.weight is model.tokens.weight:
            raise SettingsError(
                "config.tied is true, and strategy is pipeline: the first and the last stage would share a weight; set "
                "config.tied: false"
            )
        layers: list[nn.Module] = list(model.blocks)
        if count > len(layers):
            raise SettingsError(
                f"a pipeline of {count} stages, and config.size has {len(layers)} layers: take at most so many stages"
            )
        parts = [layers[len(layers) * at // count : len(layers) * (at + 1) // count] for at in range(count)]
        parts[0].insert(0, First(model))
        parts[-1] += [model.norm, model.scores]
        return [nn.Sequential(*part) for part in parts]

    def flops(self, cfg: Config) -> float:
        """Of a window: 6 for each token and weight, and attention's products, uncut (PaLM's appendix B)."""
        size = self._size(options(cfg, "gpt2"))
        weights = 12 * size.layers * size.width**2 + size.vocabulary * size.width
        return size.context * (6.0 * weights + 12 * size.layers * size.width * size.context)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the mean; all windows are of one length."""
        inputs, targets = batch
        return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def evaluate(self, model: nn.Module, batch: list[torch.Tensor]) -> dict[str, tuple[torch.Tensor, float]]:
        """Nats per token, exact over any number of ranks."""
        inputs, targets = batch
        total = cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
        return {"loss": (total, targets.numel())}
