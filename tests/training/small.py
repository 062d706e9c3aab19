"""Tiny tasks for the tests; SMALL_FAULT="kind:call:rank" makes a rank's n-th training loss fail.

With SMALL_TARGET=launcher it sends its signal to the process that started it.
"""

import contextlib
import errno
import os
import random
import signal
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from slurmgpu.training import files, trainer
from slurmgpu.training.processes.group import Channel

RANK = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def fail_on_demand(call):
    kind, _, where = os.environ.get("SMALL_FAULT", "").partition(":")
    if where == f"{call}:{RANK}":
        if kind == "raise":
            raise ValueError("a mistake in the task")
        number = getattr(signal, kind)
        if os.environ.get("SMALL_TARGET") != "launcher":
            os.kill(os.getpid(), number)
            return
        # It passes the signal on: until then this rank takes no further step.
        passed_on, handler = threading.Event(), signal.getsignal(number)
        signal.signal(number, lambda *about: (passed_on.set(), handler(*about)))
        os.kill(os.getppid(), number)
        passed_on.wait(60)


class Line:
    """A network for y = 2x - 1 and noise; 100 samples to learn from, 37 to test on."""

    def __init__(self):
        self.calls = 0

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def dataset(self, cfg, split):
        generator = torch.Generator().manual_seed(len(split))
        x = torch.randn(100 if split == "train" else 37, 3, generator=generator)
        noise = torch.randn(len(x), 1, generator=generator)
        return TensorDataset(x, 2 * x[:, :1] - 1 + noise / 10, torch.arange(len(x)) % 4)

    def loss(self, model, batch):
        x, y, _ = batch
        if model.training:
            self.calls += 1
            fail_on_demand(self.calls)
        return nn.functional.mse_loss(model(x), y)


class Weighted(Line):
    """Each sample weighs 0 to 3: the number of things counted differs from batch to batch."""

    def loss(self, model, batch):
        x, y, weight = batch
        return ((model(x) - y).square()[:, 0] * weight).sum(), weight.sum()


class Rows(Line):
    """An embedding, whose gradients are sparse if the settings say so; most rows come several times in a batch."""

    def model(self, cfg):
        return nn.Sequential(nn.EmbeddingBag(4, 8, sparse=cfg.sparse), nn.Linear(8, 1))

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=cfg.lr)

    def loss(self, model, batch):
        _, y, number = batch
        return super().loss(model, (number[:, None], y, None))


class Restless(Line):
    """All that a resume must put back: dropout, Python's random numbers, momentum, a schedule."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)

    def schedule(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)

    def loss(self, model, batch):
        return super().loss(model, batch) * random.uniform(0.5, 1.5)


class Ahead(Line):
    """Says in each step how many steps it is ahead of the newest checkpoint."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if model.training:
            found = Path(os.environ["SLURMGPU_RUN_DIR"], "checkpoints").glob("step-*/manifest.json")
            print("ahead", self.calls - max([int(path.parent.name[5:]) for path in found], default=0))
        return loss


class Superseded(Line):
    """In its third step another run takes the checkpoints over, as if this one had been thought dead."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if model.training and self.calls == 3 and RANK == 0:
            lock = Path(os.environ["SLURMGPU_RUN_DIR"], "checkpoints", "lock")
            (lock / "new").write_text('{"token": "theirs", "job_id": "18", "pid": 7, "host": "elsewhere"}')
            (lock / "new").rename(lock / "owner.json")
        return loss


class Filling(Restless):
    """Fills the disk of the checkpoints in its third step, and gives it back in its seventh."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        filler = Path(os.environ["SLURMGPU_RUN_DIR"], "checkpoints", "filler")
        if model.training and self.calls == 3:
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
        if model.training and self.calls == 7:
            filler.unlink()
        return loss


class Unsaved(Line):
    """No checkpoint can be written, and the last one is not tried for long."""

    def model(self, cfg):
        files._sync, trainer._PATIENCE = self.full, (0.0,)
        return super().model(cfg)

    @staticmethod
    def full(_file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Leaving(Line):
    """Ends the training itself."""

    def loss(self, model, batch):
        raise SystemExit(self.cfg.code)

    def model(self, cfg):
        self.cfg = cfg
        return super().model(cfg)


class OneCycle(Line):
    """A schedule that knows its length."""

    def schedule(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)


class Rising(Line):
    def schedule(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=total_steps)


class Buffered(Line):
    """BatchNorm: the ranks' statistics differ until they are shared."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


class Poisoned(Line):
    """One training step has a loss of NaN."""

    def model(self, cfg):
        self.poisoned = cfg.poisoned
        return super().model(cfg)

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss * float("nan") if model.training and self.calls == self.poisoned else loss


class Infinite(Buffered):
    """One training step gets inputs without an end, which BatchNorm takes into its averages."""

    def model(self, cfg):
        model = super().model(cfg)
        model.register_buffer("places", torch.arange(3).expand(2, 3))
        return model

    def loss(self, model, batch):
        x, y, place = batch
        if model.training and self.calls == 2:
            x = x + float("inf")
        return super().loss(model, (x, y, place))


class Steep(Line):
    """One training step has a finite loss, and a gradient of NaN."""

    def model(self, cfg):
        self.steep = cfg.steep
        return super().model(cfg)

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if model.training and self.calls == self.steep:
            loss = loss + (next(model.parameters()).sum() * 0).sqrt()
        return loss


class Slow(Restless):
    """Steps that take long enough to be stopped in between."""

    def loss(self, model, batch):
        if model.training:
            time.sleep(0.1)
        return super().loss(model, batch)


class Tested(Line):
    """Something happens in the second batch of an evaluation."""

    tests = 0

    def evaluate(self, model, batch):
        self.tests += 1
        kind, _, where = os.environ.get("SMALL_TEST_FAULT", "").partition(":")
        if where in (str(self.tests), f"{self.tests}:{RANK}"):
            if kind == "raise":
                raise ValueError("a mistake in evaluate")
            os.kill(os.getpid(), getattr(signal, kind))
            time.sleep(0.1)
        x, y, _ = batch
        return {"loss": ((model(x) - y).square().sum(), len(y))}


class Averaged(Tested):
    """Tests other parameters than those that learn, and puts these back only if all goes well."""

    def evaluate(self, model, batch):
        learnt = [each.clone() for each in model.parameters()]
        for each in model.parameters():
            each.data.mul_(0.5)
        measures = super().evaluate(model, batch)
        for number, each in enumerate(model.parameters()):
            each.data.copy_(learnt[number])
        return measures


class Late(Tested):
    """Rank 1 learns late how a save has ended."""

    def model(self, cfg):
        if RANK == 1:
            Channel.get = self.get
        return super().model(cfg)

    @staticmethod
    def get(channel, name, get=Channel.get):
        if name.startswith("save/"):
            print("asks for", name)
            while not channel.has(name):
                time.sleep(0.01)
            time.sleep(0.5)
        return get(channel, name)


class Early(Line):
    """Gets a signal while it prepares."""

    def prepare(self, cfg):
        os.kill(os.getpid(), signal.SIGTERM)


class Hanging(Line):
    """Rank 1 hangs in its fourth step."""

    def loss(self, model, batch):
        if self.calls == 3 and RANK == 1 and model.training:
            time.sleep(60)
        return super().loss(model, batch)


class Unused(Line):
    """A parameter that no loss depends on."""

    def model(self, cfg):
        model = super().model(cfg)
        model.unused = nn.Parameter(torch.zeros(1))
        return model


class Blocks(Line):
    """Names its blocks."""

    def model(self, cfg):
        block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        return nn.Sequential(nn.Linear(3, 8), block, nn.Linear(8, 1))

    def blocks(self, model):
        return [model[1]]


class Tied(Line):
    """Two of its blocks have the same weight."""

    def model(self, cfg):
        first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        second.weight = first.weight
        return nn.Sequential(nn.Linear(3, 8), first, nn.Tanh(), second, nn.Linear(8, 1))


class Counted(Line):
    """Says what it computes: 1000 multiply-adds forward, twice that backward."""

    def flops(self, cfg):
        return 6000


class Traced(Blocks):
    """Writes the samples of every micro-batch; SGD, whose steps are linear in the gradients."""

    def dataset(self, cfg, split):
        data = super().dataset(cfg, split)
        return TensorDataset(*data.tensors[:2], torch.arange(len(data)))

    def optimizer(self, model, cfg):
        path = Path(os.environ["SLURMGPU_RUN_DIR"], f"trace-{time.monotonic_ns()}-{RANK}")
        self.trace = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)

    def loss(self, model, batch):
        if model.training:
            os.write(self.trace, (" ".join(map(str, batch[2].tolist())) + "\n").encode())
        return super().loss(model, batch)


class Uneven(Line):
    """Rank 1 is slow: SMALL_SLOW=data where it reads a sample, SMALL_SLOW=forward where it computes."""

    def model(self, cfg):
        norm = [nn.BatchNorm1d(8)] if cfg.buffers else []
        return nn.Sequential(nn.Linear(3, 8), *norm, nn.Tanh(), nn.Linear(8, 1))

    def dataset(self, cfg, split):
        return None if split == "test" else Samples(super().dataset(cfg, split))

    def loss(self, model, batch):
        slow = os.environ["SMALL_SLOW"] == "forward" and RANK == 1
        time.sleep(0.16 if slow else 0.02)
        return super().loss(model, batch)


class Samples(torch.utils.data.Dataset):
    """Samples one by one."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        if os.environ["SMALL_SLOW"] == "data" and RANK == 1:
            time.sleep(0.014)
        return self.data[index]


class Ragged(Line):
    """One sample is not like the others, as the task's settings say."""

    def dataset(self, cfg, split):
        usual, odd = {
            "none": ({"x": torch.zeros(3)}, None),
            "longer": ((torch.zeros(3), 1), (torch.zeros(4), 1)),
            "list": ([1, 2], [1, 2, 3]),
            "all": (None, None),
        }[cfg.odd]
        return [odd if index == 37 else usual for index in range(100)]


class SlowTests(Line):
    """Evaluations that take time."""

    def evaluate(self, model, batch):
        time.sleep(0.3)
        return {"loss": (0.0, 1)}


class Lengths(Line):
    """Data as long as the task's settings say, each rank's."""

    def dataset(self, cfg, split):
        return torch.utils.data.Subset(super().dataset(cfg, split), range(getattr(cfg, split)[RANK]))


class Table(torch.optim.lr_scheduler.LambdaLR):
    """A schedule that keeps what the settings name."""

    def __init__(self, optimizer, kept):
        super().__init__(optimizer, lambda step: 1 / (1 + step))
        self.kept = kept


class Unsavable(Restless):
    """Its state has something in it that a checkpoint cannot hold, or cannot give back."""

    def model(self, cfg):
        model = super().model(cfg)
        if cfg.what == "expanded":
            model.register_buffer("mask", torch.ones(1).expand(4))
        if cfg.what == "sparse":
            model.register_buffer("links", torch.eye(3).to_sparse())
        return model

    def schedule(self, optimizer, cfg, total_steps):
        kept = {"path": Path("x"), "bytes": b"x", "set": {1, 2}, "range": range(3)}.get(cfg.what)
        return Table(optimizer, kept)


class Forgetful(Line):
    """Its schedule does not take back where it was."""

    def schedule(self, optimizer, cfg, total_steps):
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        schedule.load_state_dict = lambda _state: setattr(schedule, "last_epoch", 0)
        return schedule


class Counting(Buffered):
    """BatchNorm, random losses, and a buffer that each evaluation changes."""

    def model(self, cfg):
        model = super().model(cfg)
        model.register_buffer("seen", torch.zeros(1))
        return model

    def loss(self, model, batch):
        if not model.training:
            model.seen += torch.rand(1)
        return super().loss(model, batch) * random.uniform(0.5, 1.5) + model.seen.sum()


class Layers(Restless):
    """Blocks in a list, one of which has an odd size, with a norm whose buffers the ranks share, and AdamW."""

    def model(self, cfg):
        model = nn.Module()
        model.first = nn.Linear(3, 7)
        model.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(7, 7), nn.Dropout(0.1), nn.Tanh()) for _ in range(2)
        )
        model.norm = nn.BatchNorm1d(7)
        model.last = nn.Linear(7, 1)
        model.forward = lambda x: model.last(model.norm(model.blocks[1](model.blocks[0](model.first(x)))))
        return model

    optimizer = None
    schedule = None


class Mlp(nn.Module):
    """A block of two layers, with what it is given added at the end."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Split(Line):
    """Blocks in a list, which can be cut into stages."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Sequential(Mlp(), Mlp()), nn.Linear(8, 1))

    def blocks(self, model):
        return list(model[1])

    def stages(self, model, count):
        blocks = [model[0], *model[1], model[2]]
        cuts = [len(blocks) * number // count for number in range(count + 1)]
        return [nn.Sequential(*blocks[cuts[at] : cuts[at + 1]]) for at in range(count)]


class Stages(Weighted, Split):
    """The same, with a loss over a number of things that differs from batch to batch, and dropout between stages."""

    def model(self, cfg):
        return nn.Sequential(
            nn.Linear(3, 8), nn.Sequential(Mlp(), nn.Dropout(cfg.dropout), Mlp()), nn.Linear(8, 1)
        )


class Compiled(Split):
    """Traced by torch.compile, whose code is then run as it is: no compiler is needed."""

    def model(self, cfg):
        if cfg.compile:
            real = torch.compile
            torch.compile = lambda function: real(function, backend=lambda graph, _: graph.forward)
        return super().model(cfg)


class Turned(nn.Module):
    """A block with a table that no checkpoint has, and a mask that each has."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.register_buffer("table", torch.empty(8, 8), persistent=False)
        self.register_buffer("mask", torch.empty(8, 8))
        # As of numpy: it is made with its values, on the CPU.
        self.register_buffer("ones", torch.frombuffer(bytearray(b"\1" * 8), dtype=torch.uint8))
        self.begin()

    def begin(self):
        self.table.copy_(torch.arange(64).float().cos().view(8, 8))
        self.mask.copy_(torch.ones(8, 8).tril())

    def forward(self, x):
        return self.ones * x + self.down(torch.tanh(self.up(x @ (self.table * self.mask / 9))))


class Begun(Split):
    """A task that fills its model itself (``meta_device``); ``config.tied``: first and last layer share a weight."""

    def model(self, cfg):
        first, last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        if cfg.tied:
            last.weight = first.weight
        ends = nn.Sequential(nn.Linear(3, 8), first), nn.Sequential(last, nn.Linear(8, 1))
        return nn.Sequential(ends[0], nn.Sequential(Turned(), nn.Dropout(0.1), Turned()), ends[1])

    def init_weights(self, model):
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.3)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
                    module.bias.data[:1].fill_(0.5)
            if isinstance(module, Turned):
                module.begin()


class HalfBegun(Begun):
    """The same, but for the table of the last block, which is in the second of two stages."""

    def init_weights(self, model):
        table = model[1][2].table
        model[1][2].table = None
        model[1][2].begin = lambda: None
        super().init_weights(model)
        model[1][2].table = table
