"""The trainings that ``soak.py`` disturbs: a plain one, and one for each thing that has a state of its own."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import torch
from torch import nn

SAMPLES = 200


class Data(torch.utils.data.Dataset[Any]):
    """Samples of six numbers and their sum, a little different at each look."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        made = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=made)
        return x + 0.1 * torch.rand(6) + random.random() / 10, x.sum(), index


class Plain:
    """Dropout, random augmentation, random weights of losses, a schedule; writes down which samples it has seen."""

    def model(self, cfg: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))

    def stages(self, model: nn.Module, count: int) -> list[nn.Module]:
        layers = list(model.children())
        cuts = [len(layers) * number // count for number in range(count + 1)]
        return [nn.Sequential(*layers[cuts[at] : cuts[at + 1]]) for at in range(count)]

    def dataset(self, cfg: Any, split: str) -> Any:
        return Data() if split == "train" else None

    def optimizer(self, model: nn.Module, cfg: Any) -> Any:
        self.trace = os.open(os.environ["SOAK_TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def schedule(self, optimizer: torch.optim.Optimizer, cfg: Any, total_steps: int) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y, index = batch
        if not model.training:
            return nn.functional.mse_loss(model(x)[:, 0], y)
        time.sleep(float(os.environ["SOAK_PAUSE"]) / int(os.environ["SOAK_ACCUMULATE"]))
        loss = nn.functional.mse_loss(model(x)[:, 0], y) * random.uniform(0.5, 1.5)
        os.write(self.trace, (" ".join(map(str, index.tolist())) + "\n").encode())
        return loss


class Averaged(Plain):
    """BatchNorm, whose buffers each rank keeps for itself, and test sets with outputs that are gathered."""

    def model(self, cfg: Any) -> nn.Module:
        hidden = (nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Tanh())
        return nn.Sequential(*hidden, nn.Linear(16, 1))

    def dataset(self, cfg: Any, split: str) -> Any:
        return (
            {"near": Data(), "far": torch.utils.data.Subset(Data(), range(7))} if split == "test" else Data()
        )

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y, index = batch
        error = (model(x)[:, 0] - y).abs()
        return {"error": (error.sum(), len(y)), "errors": error, "index": index}

    def finish(self, outputs: dict[str, Any]) -> dict[str, Any]:
        return {"median": outputs["errors"].median(), "drawn": torch.rand(())}

    def sample(self, model: nn.Module, cfg: Any) -> dict[str, Any]:
        return {"of ones": f"{model(torch.ones(1, 6)).item():.6f}"}


class Judged(Averaged):
    """Values of its own beside the loss, and evaluations that decide what is kept and when it ends."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = super().loss(model, batch)
        return {"loss": loss, "small": ((batch[1].abs() < 1).sum(), len(batch[1])), "again": loss.detach()}


class Duel:
    """Two optimizers with schedules of their own: the critic learns twice in a step, the generator once."""

    def model(self, cfg: Any) -> nn.Module:
        generator = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 6))
        return nn.ModuleDict({"generator": generator, "critic": nn.Linear(6, 1)})

    def optimizers(self, model: Any, cfg: Any) -> dict[str, Any]:
        self.trace = os.open(os.environ["SOAK_TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return {
            "generator": torch.optim.Adam(model["generator"].parameters(), lr=0.01),
            "critic": torch.optim.SGD(model["critic"].parameters(), lr=0.01, momentum=0.9),
        }

    def dataset(self, cfg: Any, split: str) -> Any:
        return Data() if split == "train" else None

    def step(self, model: Any, batches: list[Any], update: Any) -> None:
        for _ in range(2):
            update("critic", self.critic_loss)
        update("generator", self.generator_loss)

    def critic_loss(self, model: Any, batch: Any) -> torch.Tensor:
        made = model["generator"](torch.randn(len(batch[0]), 6)).detach()
        return nn.functional.softplus(model["critic"](made)).mean() + self.real(model, batch)

    def real(self, model: Any, batch: Any) -> torch.Tensor:
        return nn.functional.softplus(-model["critic"](batch[0])).mean() * random.uniform(0.5, 1.5)

    def generator_loss(self, model: Any, batch: Any) -> torch.Tensor:
        time.sleep(float(os.environ["SOAK_PAUSE"]) / int(os.environ["SOAK_ACCUMULATE"]))
        made = model["generator"](torch.randn(len(batch[0]), 6))
        loss = nn.functional.softplus(-model["critic"](made)).mean()
        os.write(self.trace, (" ".join(map(str, batch[2].tolist())) + "\n").encode())
        return loss


class Weighed(Plain):
    """Samples drawn with replacement, later ones more often."""

    def weights(self, dataset: Any, cfg: Any) -> torch.Tensor:
        return torch.arange(1.0, SAMPLES + 1)


class Lines(torch.utils.data.IterableDataset[Any]):
    """A stream that each reader has a share of, in another order in each pass; its state is where it is."""

    shard, shards = 0, 1

    def __init__(self) -> None:
        self.data, self.at, self.seed = Data(), 0, 0

    def __iter__(self) -> Any:
        if not self.at:
            self.seed = int(torch.randint(1 << 30, ()))
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.seed)).tolist()
        own = order[self.shard :: self.shards]
        while self.at < len(own):
            self.at += 1
            yield self.data[own[self.at - 1]]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.seed = state["at"], state["seed"]


class Streamed(Plain):
    """Data that are iterated over."""

    def dataset(self, cfg: Any, split: str) -> Any:
        return Lines() if split == "train" else None


class Remembering(Duel):
    """A state of the task's own, each rank's, on which its losses depend, and callbacks that change the model."""

    def __init__(self) -> None:
        self.memory: list[float] = []
        self.drift = torch.zeros(6)

    def generator_loss(self, model: Any, batch: Any) -> torch.Tensor:
        loss = super().generator_loss(model, batch)
        self.memory = [*self.memory[-9:], float(loss.detach()) + random.random()]
        self.drift = 0.9 * self.drift + 0.1 * batch[0].mean(0)
        return loss * (1 + min(self.memory) + self.drift.abs().sum())

    def on_step_end(self, model: Any, step: int) -> None:
        with torch.no_grad():
            model["critic"].weight.mul_(1 - 0.001 * (step % 3))

    def on_save(self, path: Any) -> None:
        random.random()
        torch.rand(1)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.memory, "drift": self.drift}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory, self.drift = list(state["memory"]), state["drift"]


class Plateau(Plain):
    """A rate that falls when evaluations, inside epochs and at their ends, get no better."""

    schedule = None  # type: ignore[assignment]

    def dataset(self, cfg: Any, split: str) -> Any:
        return Data() if split == "train" else torch.utils.data.Subset(Data(), range(40))

    def epoch_schedule(self, optimizer: torch.optim.Optimizer, cfg: Any) -> Any:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        return plateau(optimizer, patience=0, threshold=0.3, factor=0.7), "loss"


class Bucketed(Plain):
    """Samples of similar length together."""

    def lengths(self, dataset: Any, cfg: Any) -> torch.Tensor:
        return torch.arange(SAMPLES) * 7 % 50


_STEPS = {"epochs": None, "max_steps": 100}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("Plain", {}),
    "averaged": ("Averaged", {**_STEPS, "ema": 0.9, "broadcast_buffers": False, "evaluate_steps": 7}),
    "duel": ("Duel", {"ema": 0.9, "schedule": "cosine", "warmup_steps": 10, "clip_norm": 1.0}),
    "weighed": ("Weighed", {}),
    "judged": (
        "Judged",
        {"log_every": 3, "evaluate_steps": 7, "best": {"metric": "near/error", "mode": "min"}},
    ),
    "stopped-early": (
        "Judged",
        {
            "evaluate_steps": 4,
            "best": {"metric": "far/median", "mode": "max"},
            "early_stop": {"metric": "near/error", "mode": "min", "patience": 4, "min_delta": 0.1},
        },
    ),
    "streamed": ("Streamed", dict(_STEPS)),
    "remembering": ("Remembering", {"schedule": "wsd", "warmup_steps": "5%", "clip_norm": 1.0}),
    "plateau": ("Plateau", {"evaluate_steps": 9}),
    "bucketed": ("Bucketed", {}),
}
"""The class and the settings of each kind."""
