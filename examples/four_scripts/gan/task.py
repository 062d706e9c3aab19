"""Learns to draw rings."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from rings import NOISE, Rings, discriminator, generator, write_picture
from torch.nn.functional import softplus


class Gan:
    def model(self, cfg):
        return torch.nn.ModuleDict({"generator": generator(cfg.width), "critic": discriminator(cfg.width)})

    def dataset(self, cfg, split):
        return Rings(cfg.samples) if split == "train" else None

    def optimizers(self, model, cfg):
        return {name: torch.optim.Adam(net.parameters(), cfg.lr, (0.5, 0.999)) for name, net in model.items()}

    def step(self, model, batches, update):
        update("critic", self.critic_loss)
        update("generator", self.generator_loss)

    def critic_loss(self, model, real):
        fake = model["generator"](torch.randn(len(real), NOISE, device=real.device)).detach()
        return softplus(-model["critic"](real)).mean() + softplus(model["critic"](fake)).mean()

    def generator_loss(self, model, real):
        fake = model["generator"](torch.randn(len(real), NOISE, device=real.device))
        return softplus(-model["critic"](fake)).mean()

    @torch.no_grad()
    def on_epoch_end(self, model, epoch, results):
        if not dist.is_initialized() or dist.get_rank() == 0:
            device = next(model.parameters()).device
            fixed = torch.randn(8, NOISE, generator=torch.Generator().manual_seed(0)).to(device)
            path = Path(os.environ["SLURMGPU_RUN_DIR"], f"epoch-{epoch}.pgm")
            write_picture(path, model["generator"](fixed).float().cpu())
