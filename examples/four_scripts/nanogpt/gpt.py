"""What both scripts share: a text of sums, its token files, and a GPT."""

import math
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

CHARACTERS = "0123456789+=\n"


def prepare(folder, lines):
    """Writes train.bin and val.bin, a byte for each token: lines such as 7+15=22."""
    folder, drawn = Path(folder), random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", lines), ("val", max(50, lines // 10))):
        pairs = [(drawn.randrange(20), drawn.randrange(20)) for _ in range(count)]
        text = "".join(f"{a}+{b}={a + b}\n" for a, b in pairs)
        (folder / f"{name}.bin").write_bytes(bytes(map(CHARACTERS.index, text)))


def tokens(folder, name):
    """The tokens of a file, mapped into memory."""
    path = Path(folder, f"{name}.bin")
    return torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        parts = self.attention(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = scaled_dot_product_attention(*parts.unbind(), dropout_p=dropout, is_causal=True)
        x = x + self.drop(self.joined(seen.transpose(1, 2).flatten(2)))
        return x + self.drop(self.network(self.norm2(x)))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, context, dropout):
        super().__init__()
        self.context = context
        self.tokens, self.places = nn.Embedding(len(CHARACTERS), width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, len(CHARACTERS), bias=False)
        self.scores.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                narrow = name.endswith(("joined.weight", "network.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if narrow else 1))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.scores(self.norm(self.blocks(x)))

    @torch.no_grad()
    def generate(self, prompt, count, temperature=0.8):
        """The prompt, continued by ``count`` characters."""
        device = self.tokens.weight.device
        text = torch.tensor([[CHARACTERS.index(each) for each in prompt]], device=device)
        for _ in range(count):
            scores = self(text[:, -self.context :])[0, -1].float() / temperature
            text = torch.cat([text, torch.multinomial(scores.softmax(0), 1)[None]], 1)
        return "".join(CHARACTERS[each] for each in text[0].tolist())
