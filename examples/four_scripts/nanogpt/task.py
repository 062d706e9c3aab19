"""Trains a GPT on token files."""

from pathlib import Path

import torch
from gpt import Gpt, prepare, tokens
from torch.nn.functional import cross_entropy


class Windows(torch.utils.data.Dataset):
    """Windows from anywhere in a file; a resumed run draws the same."""

    def __init__(self, found, context, count):
        self.found, self.context, self.count = found, context, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        start = int(torch.randint(len(self.found) - self.context, ()))
        window = self.found[start : start + self.context + 1].long()
        return window[:-1], window[1:]


class NanoGpt:
    def prepare(self, cfg):
        if not Path(cfg.data, "train.bin").exists():
            prepare(cfg.data, cfg.lines)

    def model(self, cfg):
        return Gpt(cfg.layers, cfg.heads, cfg.width, cfg.context, cfg.dropout)

    def dataset(self, cfg, split):
        if split == "train":
            return Windows(tokens(cfg.data, "train"), cfg.context, cfg.max_steps * cfg.batch_size)
        return {name: Windows(tokens(cfg.data, name), cfg.context, cfg.tested) for name in ("train", "val")}

    def parameter_groups(self, model, cfg):
        decayed = [each for each in model.parameters() if each.dim() > 1]
        others = [each for each in model.parameters() if each.dim() < 2]
        betas = (0.9, 0.95)
        return [{"params": decayed, "betas": betas}, {"params": others, "betas": betas, "weight_decay": 0.0}]

    def loss(self, model, batch):
        inputs, targets = batch
        return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def sample(self, model, cfg):
        return model.generate("1+1=", 20)
