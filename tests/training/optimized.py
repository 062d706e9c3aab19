"""Tiny tasks with optimizers, schedules and states of their own."""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
import small
from small import Line, Poisoned


class Fused(Line):
    """An optimizer that leaves out a step on the device, as the scaler tells it."""

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)


class FusedPoisoned(Fused, Poisoned):
    """The same, with one loss of NaN."""


class Grouped(Line):
    """The last layer learns ten times as fast, and the first layer's bias not at all."""

    def parameter_groups(self, model, cfg):
        return [
            {"params": [model[0].weight]},
            {"params": model[2].parameters(), "lr": 10 * cfg.lr, "weight_decay": 0.0},
        ]


class Mistyped(Line):
    """A group that sets an option under a name that AdamW does not have."""

    def parameter_groups(self, model, cfg):
        return [{"params": model.parameters(), "learning_rate": 1.0, "name": "all"}]


class Duel(Line):
    """A GAN on points: the critic learns twice in a step, the generator once."""

    def model(self, cfg):
        self.cfg = cfg
        generator = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.0 if cfg.fixed else 0.1), nn.Linear(8, 4))
        critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        if cfg.spare:
            critic.spare = nn.Parameter(torch.zeros(1))
        return nn.ModuleDict({"generator": generator, "critic": critic})

    def optimizers(self, model, cfg):
        return {
            "generator": torch.optim.Adam(model["generator"].parameters(), lr=cfg.lr),
            "critic": torch.optim.SGD(model["critic"].parameters(), lr=cfg.lr, momentum=0.9),
        }

    def step(self, model, batches, update):
        for _ in range(2):
            update("critic", self.critic_loss)
        update(self.cfg.name, self.generator_loss)

    def points(self, model, batch):
        self.calls += 1
        small.fail_on_demand(self.calls)
        x, y, _ = batch
        noise = x[:, :2] if self.cfg.fixed else torch.randn(len(x), 2)
        return torch.cat([x, y], 1), model["generator"](noise)

    def critic_loss(self, model, batch):
        real, made = self.points(model, batch)
        made, real = (model["critic"](each) for each in (made.detach(), real))
        loss = nn.functional.softplus(made).mean() + nn.functional.softplus(-real).mean()
        return (loss * len(real), len(real)) if self.cfg.counts else loss

    def generator_loss(self, model, batch):
        _, made = self.points(model, batch)
        loss = nn.functional.softplus(-model["critic"](made)).mean()
        return loss * float("nan") if self.calls == self.cfg.poisoned else loss

    def evaluate(self, model, batch):
        return {"score": (model["critic"](torch.cat(batch[:2], 1)).sum(), len(batch[0]))}

    loss = None


class Forgotten(Duel):
    """The generator is never updated."""

    def step(self, model, batches, update):
        update("critic", self.critic_loss)


class Halves(Line):
    """Two optimizers and one loss: matrices by one, vectors by the other."""

    def optimizers(self, model, cfg):
        parameters = list(model.parameters())
        return {
            "matrices": torch.optim.SGD([each for each in parameters if each.dim() > 1], lr=cfg.lr),
            "vectors": torch.optim.SGD([each for each in parameters if each.dim() == 1], lr=2 * cfg.lr),
        }

    def schedules(self, optimizers, cfg, total_steps):
        return {"vectors": torch.optim.lr_scheduler.CosineAnnealingLR(optimizers["vectors"], total_steps)}


class HalvesInGroups(Line):
    """The same with one optimizer."""

    def optimizer(self, model, cfg):
        matrices = [each for each in model.parameters() if each.dim() > 1]
        vectors = [each for each in model.parameters() if each.dim() == 1]
        return torch.optim.SGD([{"params": matrices}, {"params": vectors, "lr": 2 * cfg.lr}], lr=cfg.lr)

    def schedule(self, optimizer, cfg, total_steps):
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)
        rate = optimizer.param_groups[0]["lr"]

        class Second(type(falling)):
            def get_lr(self):
                return [rate, super().get_lr()[1]]

        return Second(optimizer, total_steps)


class Alone(Duel):
    """The critic alone learns."""

    def optimizers(self, model, cfg):
        return {"critic": super().optimizers(model, cfg)["critic"]}

    def step(self, model, batches, update):
        for _ in range(2):
            update("critic", self.critic_loss)


class Collecting(Line):
    """Several passes over what was collected, in batches of its own, and one over a loss that is there already."""

    def step(self, model, batches, update):
        x, y = (torch.cat([each[part] for each in batches]) for part in (0, 1))
        for _ in range(3):
            order = torch.randperm(len(x))
            update("optimizer", self.loss_of, [(x[part], y[part]) for part in order.chunk(2)])
        update("optimizer", nn.functional.mse_loss(model(x), y))

    def loss_of(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])
