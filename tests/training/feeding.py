"""Tasks whose data have something of their own: generators, batches, an order, a stream.

Where numpy is missing, they draw from torch and Python alone.
"""

import dataclasses
import os
import random
import signal
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


class Stream(torch.utils.data.IterableDataset):
    """Numbers from 0 on, this reader's share of them, in passes of 45; each sample draws from all global generators."""

    shard, shards = 0, 1

    def __iter__(self):
        for index in range(self.shard, 45, self.shards):
            yield self.sample(index)

    def sample(self, index):
        x = torch.full((3,), index / 45) + torch.rand(3) / 10 + random.random() / 10
        return x + (numpy.random.rand() if numpy else 0), x[:1], index


class Stateful(Stream):
    """Shuffles each pass, and mixes what it reads in a buffer; all of that is in its state."""

    def __init__(self):
        self.generator, self.left, self.passes = random.Random(5), [], 0

    def __iter__(self):
        if not self.left:
            self.left = list(range(self.shard, 45, self.shards))
            self.generator.shuffle(self.left)
            self.passes += 1
        while self.left:
            yield self.sample(self.left.pop(self.generator.randrange(min(5, len(self.left)))))

    def state_dict(self):
        return {"left": list(self.left), "generator": self.generator.getstate(), "passes": self.passes}

    def load_state_dict(self, state):
        self.left, self.passes = list(state["left"]), state["passes"]
        self.generator.setstate(state["generator"])


class Shuffled(Stream):
    """Draws the order of a pass at its beginning, and has the place in it as its state."""

    place, augments = 0, False

    def __iter__(self):
        order = torch.randperm(45).tolist()[self.shard :: self.shards]
        while self.place < len(order):
            self.place += 1
            index = order[self.place - 1]
            x = torch.full((3,), index / 45)
            yield (x + torch.rand(3) if self.augments else x), x[:1], index
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class ShuffledAndAugmented(Shuffled):
    """Which of its numbers were drawn for the order, nobody can tell."""

    augments = True


class Behind(Shuffled):
    """Its place moves on after the sample has been given."""

    def __iter__(self):
        while self.place < 45:
            yield self.sample(self.place)
            self.place += 1
        self.place = 0


class Iterator:
    """An iterator with a state."""

    def __init__(self, stream):
        self.stream, self.index = stream, stream.shard - stream.shards

    def __iter__(self):
        return self

    def __next__(self):
        self.index += self.stream.shards
        if self.index >= 45:
            raise StopIteration
        return self.stream.sample(self.index)

    def state_dict(self):
        return {"index": self.index, "large": "a" * 100_000}

    def load_state_dict(self, state):
        self.index = state["index"]


class InIterator(Stream):
    """Its iterator has the state, and a large one."""

    def __iter__(self):
        return Iterator(self)


class WithEpochs(Stream):
    """Has another order in each pass, as it is told."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for index in range(self.shard, 45, self.shards):
            yield self.sample((index + 7 * self.epoch) % 45)


class Unshared(torch.utils.data.IterableDataset):
    """Gives every reader everything."""

    def __iter__(self):
        return ((torch.full((3,), index / 45), torch.zeros(1), index) for index in range(45))


class Short(Stream):
    """Has samples for the first reader alone."""

    def __iter__(self):
        return (self.sample(index) for index in range(0 if self.shard else 45))


class UsedUp(Stream):
    """Returns the same iterator for each pass."""

    def __iter__(self):
        self.made = getattr(self, "made", None) or (self.sample(index) for index in range(45))
        return self.made


class Unsavable(Stream):
    """Its state is none that a checkpoint can hold."""

    def state_dict(self):
        return {"path": Path("data")}

    def load_state_dict(self, state):
        pass


class Uncopyable(Unsavable):
    """Its state cannot even be copied."""

    def state_dict(self):
        return {"lines": iter([]), "next": (each for each in ())}


class Streaming(Generators):
    """The stream that the settings name."""

    def dataset(self, cfg, split):
        if split == "test":
            return Stream() if getattr(cfg, "tested", False) else None
        return globals()[cfg.stream]()


class Killed(Streaming):
    """Its process is killed in the first step."""

    def loss(self, model, batch):
        os.kill(os.getpid(), signal.SIGKILL)


class StreamingByWeight(Streaming):
    """Wants an order of samples that have no numbers."""

    def weights(self, dataset, cfg):
        return [1.0]
