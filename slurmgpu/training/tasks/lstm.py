"""LSTM language models (Zaremba et al. 2014) on token files: the next token after each."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout

from ..settings import Config
from . import options, tokens

__all__ = ["SIZES", "Lstm", "Task"]


class Size(NamedTuple):
    """Size of a network, and the first values and the dropout that go with it."""

    width: int
    spread: float
    dropout: float
    layers: int = 2
    context: int = 35
    vocabulary: int = 10_000


SIZES = {
    "tiny": Size(64, 0.1, 0.0, context=32, vocabulary=256),
    "medium": Size(650, 0.05, 0.5),
    "large": Size(1500, 0.04, 0.65),
}


class Lstm(nn.Module):
    """From tokens (N, T) to scores of the next one (N, T, vocabulary); each window begins without a past."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.dropout = size.dropout
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        between = size.dropout if size.layers > 1 else 0.0
        self.layers = nn.LSTM(size.width, size.width, size.layers, batch_first=True, dropout=between)
        self.scores = nn.Linear(size.width, size.vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -size.spread, size.spread)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """One score for each token that may come next, at each place."""
        x, _ = self.layers(dropout(self.tokens(text), self.dropout, self.training))
        return self.scores(dropout(x, self.dropout, self.training))  # type: ignore[no-any-return]


class Task:
    """The next token, in nats per token."""

    def prepare(self, cfg: Config) -> None:
        """Make the token files from texts, where ``config.text`` names some."""
        tokens.prepare(options(cfg, "lstm"))

    def model(self, cfg: Config) -> nn.Module:
        """Return a network of the size that ``config.size`` names."""
        return Lstm(self._size(options(cfg, "lstm")))

    def _size(self, chosen: Any) -> Size:
        given = {name: getattr(chosen, name) for name in ("context", "vocabulary", "dropout", "layers")}
        return SIZES[chosen.size]._replace(**{name: each for name, each in given.items() if each is not None})

    def dataset(self, cfg: Config, split: str) -> Optional[object]:
        """Windows over token files, or over a made-up text."""
        chosen = options(cfg, "lstm")
        size = self._size(chosen)
        return tokens.dataset(chosen, split, size.context, size.vocabulary)

    def flops(self, cfg: Config) -> float:
        """Of a window: 6 for each token and weight that it is multiplied with."""
        size = self._size(options(cfg, "lstm"))
        return 6.0 * size.context * (8 * size.layers * size.width**2 + size.vocabulary * size.width)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the mean; all windows are of one length."""
        inputs, targets = batch
        return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def evaluate(self, model: nn.Module, batch: list[torch.Tensor]) -> dict[str, tuple[torch.Tensor, float]]:
        """Nats per token, exact over any number of ranks."""
        inputs, targets = batch
        total = cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
        return {"loss": (total, targets.numel())}
