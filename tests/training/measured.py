"""Tasks with several test sets, measures that are no sums, and texts that they generate.

MEASURED_FAULT="kind:call:rank" lets something happen in a rank's n-th call of evaluate, ``finish`` or ``sample``.
"""

import os
import random
import signal
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

RANK = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


class Plain:
    """A network for y = 2x - 1, with dropout and momentum; 100 samples to learn from, two test sets of 37 and 5."""

    calls = 0

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))

    def dataset(self, cfg, split):
        if split == "train":
            return self.samples(100)
        return {"val": self.samples(37), "long": self.samples(5)}

    def samples(self, count):
        x = torch.randn(count, 3, generator=torch.Generator().manual_seed(count))
        return TensorDataset(x, 2 * x[:, :1] - 1, torch.arange(count))

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)

    def loss(self, model, batch):
        x, y, _ = batch
        return nn.functional.mse_loss(model(x), y) * random.uniform(0.5, 1.5)

    def fault(self, method):
        self.calls += method == "evaluate"
        kind, _, where = os.environ.get("MEASURED_FAULT", "").partition(":")
        if where not in (f"{self.calls}:{RANK}", f"{method}:{RANK}"):
            return
        if kind == "raise":
            raise ValueError(f"a mistake in {method}")
        os.kill(os.getpid(), getattr(signal, kind))
        time.sleep(0.3)

    def evaluate(self, model, batch):
        self.fault("evaluate")
        x, y, _ = batch
        return {"loss": ((model(x) - y).square().sum(), len(y))}


class Gathered(Plain):
    """Looks at all outputs at once, draws, and generates texts."""

    def evaluate(self, model, batch):
        x, y, place = batch
        error = (model(x) - y).square()
        names = [f"sample {each}" for each in place.tolist()]
        boxes = [
            {"boxes": torch.full((n % 4, 4), n), "scores": error[i].expand(n % 4)}
            for i, n in enumerate(place)
        ]
        return {
            **super().evaluate(model, batch),
            "error": error,
            "place": place,
            "names": names,
            "boxes": boxes,
        }

    def finish(self, outputs):
        self.fault("finish")
        error, place = outputs["error"], outputs["place"]
        assert place.tolist() == list(range(len(place))), "in the order of the set, each sample once"
        assert outputs["names"] == [f"sample {each}" for each in range(len(place))]
        assert error.shape == (len(place), 1)
        for number, (own, each) in enumerate(zip(error, outputs["boxes"])):
            assert torch.equal(each["boxes"], torch.full((number % 4, 4), number)), (
                "as many as there were, also none"
            )
            assert torch.equal(each["scores"], own.expand(number % 4))
        return {"median": error.median(), "mean": error.double().mean().item(), "drawn": torch.rand(())}

    def sample(self, model, cfg):
        self.fault("sample")
        assert not torch.is_grad_enabled()
        assert not model.training
        return {"line": f"{model(torch.ones(3)).item():.6f}", "height": random.random()}


class Alone(Plain):
    """No test set, but a text."""

    def dataset(self, cfg, split):
        return None if split == "test" else super().dataset(cfg, split)

    def sample(self, model, cfg):
        return f"{model(torch.ones(3)).item():.6f}"


class _Counting(nn.Module):
    """Knows how many micro-batches it has learned from."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.inner(x)


class Scripted(Plain):
    """The score of each evaluation is as cfg.scores says, by the steps that the model has learned from."""

    def model(self, cfg):
        self.scores, self.steps = cfg.scores, cfg.evaluate_steps
        return _Counting()

    def dataset(self, cfg, split):
        return self.samples(100 if split == "train" else 5)

    def evaluate(self, model, batch):
        self.fault("evaluate")
        count = len(batch[0])
        score = float(self.scores[int(model.seen) // self.steps - 1]) if model.seen >= self.steps else 0.0
        return {"score": (score * count, count), "cost": (-score * count, count)}


class Untested(Plain):
    """No test set."""

    def dataset(self, cfg, split):
        return None if split == "test" else self.samples(100)


class Own(Plain):
    """Measures more than the loss in each micro-batch."""

    steps = 0

    def model(self, cfg):
        self.kind = cfg.kind
        return super().model(cfg)

    def dataset(self, cfg, split):
        return self.samples(100 if split == "train" else 37)

    def evaluate(self, model, batch):
        value, own = self.measure(model, batch)
        return {"loss": (value * len(batch[0]), len(batch[0])), **own}

    def measure(self, model, batch):
        x, y, _ = batch
        error = (model(x) - y).square()
        own = {"near": ((error < 1).sum(), len(x))}
        return error.mean(), own

    def loss(self, model, batch):
        self.steps += model.training
        value, own = self.measure(model, batch)
        if self.kind == "none":
            return value
        own.update(same=value.detach(), samples=(len(batch[0]), 1), half=0.5)
        if self.kind == "counted":
            own = {"same": (value.detach() * len(batch[0]), len(batch[0]))}
            return {"loss": (value * len(batch[0]), len(batch[0])), **own}
        if self.kind == "nan" and self.steps == 3:
            own["half"] = float("nan")
        if self.kind == "skip" and self.steps == 3:
            own["half"] = 1000.0
            value = value * float("nan")
        if self.kind == "late" and self.steps > 3:
            own["late"] = 1
        if self.kind == "uneven" and RANK == 1:
            own["one"] = 7.0
        return {"loss": value, **own, **({self.kind: 1} if self.kind in ("epoch", "loss.x") else {})}


class Unevaluated(Own):
    """Tests by the loss."""

    evaluate = None


class Both:
    """Two updates in a step, each with values of its own."""

    def __init__(self):
        self.inner = Own()

    def model(self, cfg):
        return self.inner.model(cfg)

    def dataset(self, cfg, split):
        return None if split == "test" else self.inner.dataset(cfg, split)

    def optimizers(self, model, cfg):
        first, last = model[0].parameters(), model[3].parameters()
        return {"first": torch.optim.SGD(first, lr=cfg.lr), "last": torch.optim.SGD(last, lr=cfg.lr)}

    def step(self, model, batches, update):
        update("first", self.inner.loss)
        update("last", lambda model, batch: {"loss": self.inner.measure(model, batch)[0], "again": 2.0})


class Rare(Plain):
    """Evaluates a short batch, the last one, for something that the others lack."""

    def evaluate(self, model, batch):
        samples = len(batch[0])
        found = {"common": (1.0, 1)}
        return found if samples == 25 else {**found, "rare": (float(samples), samples)}
