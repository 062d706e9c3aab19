"""Learns to write licences, a character at a time: a small GPT."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from corpus import load, write
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import Dataset

UNKNOWN = 0  # stands for every character that is not in the vocabulary
NOTHING = -1  # a target that does not count


def vocabulary(characters: str) -> dict[str, int]:
    """The number of each character."""
    return {character: number for number, character in enumerate(characters, UNKNOWN + 1)}


class Windows(Dataset):
    """Pieces of a text: ``context`` characters (context,), and the character that follows each (context,).

    To learn from, a piece begins anywhere near its place, elsewhere in each epoch; to test on, pieces stand side
    by side, so that every character but the first is foretold exactly once.
    """

    def __init__(self, text: str, characters: str, context: int, moving: bool) -> None:
        numbers = vocabulary(characters)
        self.codes = torch.tensor([numbers.get(character, UNKNOWN) for character in text])
        self.context, self.moving = context, moving

    def __len__(self) -> int:
        return math.ceil((len(self.codes) - 1) / self.context)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.context
        if self.moving:
            # Drawn from torch's generator, which is seeded by seed, epoch and sample: a resume draws the same.
            start += int(torch.randint(-self.context // 2, self.context // 2, ()))
            start = max(0, min(start, len(self.codes) - 1 - self.context))
        piece = self.codes[start : start + self.context + 1]
        inputs, targets = piece.new_zeros(self.context), piece.new_full((self.context,), NOTHING)
        inputs[: len(piece) - 1], targets[: len(piece) - 1] = piece[:-1], piece[1:]
        return inputs, targets


class Block(nn.Module):
    """Attention to what came before, then a small network for each character; (N, T, width) both in and out."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream, with what this layer adds."""
        x = x + self.dropout(self.attended(self.attend(self.before_attention(x))))
        return x + self.dropout(self.network(self.before_network(x)))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Each head looks at all characters up to its own."""
        parts = self.queries_keys_values(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(*parts.unbind(), is_causal=True).transpose(1, 2).flatten(2)


class Gpt(nn.Module):
    """From characters (N, T) to scores of the next one (N, T, vocabulary)."""

    def __init__(self, size: int, context: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.before_scores, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.scores = nn.Linear(width, size, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # What is added to the stream at each layer begins small, so that deep networks begin alike.
                added = name.endswith(("attended.weight", "network.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if added else 0.02)
        self.scores.weight = self.characters.weight

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """One score for each character that may come next, at each place."""
        places = self.places.weight[: codes.shape[1]]
        x = self.dropout(self.characters(codes) + places)
        for block in self.blocks:
            x = block(x)
        return self.scores(self.before_scores(x))


class LanguageModel:
    """The next character of licences, tested on paragraphs that no text to learn from shares eight words with."""

    def prepare(self, cfg):
        """Runs once, on one rank, while the others wait."""
        path = Path(cfg.data)
        if not path.exists() or load(path)["pattern"] != cfg.text:
            write(cfg.text, path)

    def model(self, cfg):
        """The vocabulary is filled up to a multiple of 8, which GPUs multiply faster."""
        size = len(load(Path(cfg.data))["characters"]) + 1
        return Gpt(-(-size // 8) * 8, cfg.context, cfg.width, cfg.layers, cfg.heads, cfg.dropout)

    def dataset(self, cfg, split):
        """Windows over one part of the text."""
        made = load(Path(cfg.data))
        return Windows(made[split], made["characters"], cfg.context, moving=split == "train")

    def blocks(self, model):
        """What ``activation_checkpointing: true`` computes again instead of keeping."""
        return list(model.blocks)

    def loss(self, model, batch):
        """Nats, summed over all characters, and how many there are."""
        codes, targets = batch
        scores = model(codes)
        total = cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=NOTHING, reduction="sum")
        return total, (targets != NOTHING).sum()

    def evaluate(self, model, batch):
        """The same in nats and in bits; sums and counts are exact over any number of ranks."""
        total, count = self.loss(model, batch)
        return {"loss": (total, count), "bits_per_character": (total / math.log(2), count)}
