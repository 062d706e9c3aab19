"""Tasks that are told of the training's course, have a state of their own, or a schedule that moves on by epochs."""

import json
import os
import random
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import small
from small import RANK, Line, Restless


class Told(Restless):
    """Writes down what it is told, and draws random numbers there."""

    def note(self, *said):
        with Path(os.environ["SLURMGPU_RUN_DIR"], f"told-{RANK}").open("a") as file:
            file.write(json.dumps([*said, small.RANK]) + "\n")

    def on_start(self, model, cfg):
        random.random(), torch.rand(1)
        self.note("start", cfg.batch_size, type(model).__name__)

    def on_step_end(self, model, step):
        with torch.no_grad():
            model[0].weight.mul_(1 - random.random() / 100)
        self.note("step", step)

    def on_epoch_end(self, model, epoch, results):
        random.random()
        self.note("epoch", epoch, sorted(results))

    def on_save(self, path):
        random.random(), torch.rand(1)
        self.note("save", path.name, (path / "manifest.json").is_file())

    def on_end(self, model, results):
        self.note("end", sorted(results))


class Misnamed(Line):
    """Names with a slip, names of another library, and those that are for the task alone."""

    def on_step_ends(self, model, step):
        raise AssertionError

    def on_validation_epoch_end(self):
        raise AssertionError

    def optimiser(self, model, cfg):
        raise AssertionError

    def validation_step(self, batch):
        raise AssertionError

    def on_gpu(self):
        return self.schedules_of("x")

    def schedules_of(self, name):
        return name


class Thaws(Line):
    """Trains other parameters after the first epoch."""

    def on_epoch_end(self, model, epoch, results):
        next(model.parameters()).requires_grad_(False)


class ThawsAtAStep(Line):
    """Trains other parameters after the first step."""

    def on_step_end(self, model, step):
        next(model.parameters()).requires_grad_(False)


class ThawsAtTheStart(Line):
    """Trains other parameters than the optimizer was made for."""

    def on_start(self, model, cfg):
        next(model.parameters()).requires_grad_(False)


class Remembering(Restless):
    """What it has learnt beside the model, differs by rank, and decides what the next loss is."""

    def __init__(self):
        super().__init__()
        self.memory, self.seen, self.mean = [], {}, torch.zeros(3)

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if model.training:
            self.mean = 0.9 * self.mean + 0.1 * batch[0].mean(0)
            self.memory.append(float(loss.detach()) + RANK)
            self.seen[str(self.calls)] = RANK
            loss = loss * (1 + self.mean.abs().sum() + min(self.memory[-3:]) / 10)
        return loss

    def state_dict(self):
        return {"memory": self.memory, "seen": self.seen, "mean": self.mean, "calls": self.calls}

    def load_state_dict(self, state):
        self.memory, self.seen, self.mean = list(state["memory"]), dict(state["seen"]), state["mean"]


class Unkept(Line):
    """A state that is none, as the settings say."""

    def model(self, cfg):
        self.cfg = cfg
        return super().model(cfg)

    def state_dict(self):
        return {"list": [1], "set": {"kept": {1}}, "wrong": {"kept": 1}}[self.cfg.what]

    def load_state_dict(self, state):
        raise KeyError("missing")


class Falling(Restless):
    """A rate that falls with each second epoch."""

    schedule = None

    def epoch_schedule(self, optimizer, cfg):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


class Plateau(Falling):
    """A rate that falls when the evaluation is not much better than the best one was."""

    def epoch_schedule(self, optimizer, cfg):
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        return plateau(optimizer, patience=1, threshold=0.9, factor=0.5), cfg.metric


class Mistaken(Plateau):
    """Its last evaluations fail, where a variable says so."""

    def evaluate(self, model, batch):
        if os.environ.get("HOOKED_MISTAKE"):
            raise ValueError("a mistake in evaluate")
        x, y, _ = batch
        return {"loss": ((model(x) - y).square().sum(), len(y))}


class Unnamed(Falling):
    def epoch_schedule(self, optimizer, cfg):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


class Untested(Plateau):
    def dataset(self, cfg, split):
        return None if split == "test" else super().dataset(cfg, split)


class Tokens(small.Weighted):
    """Losses as a sum over what is counted, and plain gradient descent from weights that are written down."""

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=cfg.lr)

    def on_start(self, model, cfg):
        torch.save(model.state_dict(), Path(os.environ["SLURMGPU_RUN_DIR"], f"first-{RANK}.pt"))


class Mixed(small.Weighted):
    """A mean for batches that count few things, a sum and its count for others."""

    def loss(self, model, batch):
        total, count = super().loss(model, batch)
        return total / count if count < self.cfg.few else (total, count)

    def model(self, cfg):
        self.cfg = cfg
        return super().model(cfg)
