"""Tasks whose data have something of their own: generators, batches, an order, a stream.

Where numpy is missing, they draw from torch and Python alone.
"""

import dataclasses
import os
import random
import time
from pathlib import Path

import torch
from torch import nn

try:
    import numpy
except ImportError:
    numpy = None

SAMPLES = 60
AT_MODULE = random.Random()


class Jitter:
    """A transform with a generator of its own, unseeded where numpy is there."""

    def __init__(self):
        self.generator = numpy.random.default_rng() if numpy else random.Random()

    def __call__(self, x):
        return x + self.generator.random() / 10


def in_closure():
    generator = torch.Generator()
    generator.seed()
    return lambda x: x + torch.rand(3, generator=generator) / 10


class Data(torch.utils.data.Dataset):
    """Draws from a transform's generator, a closure's, a global one, and one made at the first sample."""

    def __init__(self):
        self.transforms = [Jitter(), in_closure()]
        self.late = None

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if self.late is None:
            self.late = random.Random()
        x = torch.randn(3, generator=torch.Generator().manual_seed(index))
        y = 2 * x[:1] - 1
        for transform in self.transforms:
            x = transform(x)
        return x + AT_MODULE.random() / 10 + self.late.random() / 10, y, index


class Generators:
    """Writes down what it has been given, of each rank and start: numbers of samples and the sums of inputs."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))

    def dataset(self, cfg, split):
        return Data() if split == "train" else None

    def optimizer(self, model, cfg):
        rank = os.environ.get("SLURM_PROCID", "0")
        self.trace = Path(cfg.traces, f"trace-{time.monotonic_ns()}-{rank}")
        return torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)

    def loss(self, model, batch):
        x, y, index = batch
        with self.trace.open("a") as file:
            file.write(" ".join(map(str, index.tolist())) + f" : {float(x.sum()).hex()}\n")
        return nn.functional.mse_loss(model(x), y) * random.uniform(0.5, 1.5)


class Unrepeatable(Generators):
    """Its samples come from the system."""

    def dataset(self, cfg, split):
        class Own(Data):
            def __getitem__(self, index):
                x, y, index = super().__getitem__(index)
                return x + random.SystemRandom().random(), y, index

        return Own() if split == "train" else None


@dataclasses.dataclass
class Pairs:
    """A batch of a class of its own."""

    x: torch.Tensor
    y: torch.Tensor
    index: torch.Tensor


class Collated(Generators):
    """Samples of several lengths, made a batch by the task."""

    def dataset(self, cfg, split):
        if split == "test":
            return None
        return [(torch.ones(1 + index % 3) * index, index) for index in range(SAMPLES)]

    def collate(self, samples):
        x = nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
        x = nn.functional.pad(x, (0, 3 - x.shape[1])) / SAMPLES
        return Pairs(x, x.sum(1, keepdim=True), torch.tensor([index for _, index in samples]))

    def loss(self, model, batch):
        return super().loss(model, (batch.x, batch.y, batch.index))


class Weighted(Generators):
    """Samples drawn by weight: the even ones never, each third one often."""

    def weights(self, dataset, cfg):
        return [(index % 2) * (4 if index % 3 == 0 else 1) for index in range(len(dataset))]


class Bucketed(Generators):
    """Steps of samples of alike lengths, from 0 to 6."""

    def lengths(self, dataset, cfg):
        return torch.arange(len(dataset)) % 7


class Ordered(Generators):
    """The first half of the samples, backwards in every other epoch."""

    def order(self, dataset, cfg, epoch):
        return range(30) if epoch % 2 else range(29, -1, -1)


class Disagreeing(Generators):
    """Each rank has an order of its own."""

    def order(self, dataset, cfg, epoch):
        return list(range(int(os.environ.get("SLURM_PROCID", "0")), 30))[:20]


class Changing(Generators):
    """Weights that are not what they were at the start before."""

    def weights(self, dataset, cfg):
        return (
            torch.arange(SAMPLES)
            + int(Path(cfg.traces, "metrics.jsonl").stat().st_size > 0) * torch.arange(SAMPLES) ** 2
        )


class Wrong(Generators):
    """Answers that are no order, by the settings."""

    def order(self, dataset, cfg, epoch):
        return {
            "empty": [],
            "beyond": [0, 60],
            "below": [-1, 0],
            "floats": [0.5, 1.5],
            "nothing": None,
            "ragged": range(10 + epoch),
        }[cfg.order_is]
