"""Whether ``micro_batch: auto`` finds the size that brute force finds: ten toy models under a memory limit, on the CPU.

    python benchmarks/batch_finder.py [--limit 2048] [--only NAME] [--out benchmarks/results/batch_finder.json]

The limit is that of ``ulimit -v``, for each process. The finder is told to leave a share of it free. Brute force trains for
real, each size from its start to its end in a process of its own, with this share taken off the limit: what ends well fits.
What a save writes stays in memory until a micro-batch of the next steps has been through, as on a slow disk: a size that
fits only if the disk is fast does not fit. All processes have glibc map each large block by itself: by default its heap
falls into pieces by chance, and the same training takes a tenth more or less.

Brute force goes up from what the finder says and down again between what fitted and what did not. Sizes further off are
tried as well: all of this is right only if no larger size fits where a smaller one does not. At last the finder's size is
trained under the whole limit. What the file has already is kept, so that a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import Dataset

from slurmgpu import __version__

ROOT = Path(__file__).resolve().parents[1]
HEAD_ROOM = 0.1
NEAR = 0.02  # brute force ends where sizes this close fit and do not
GOAL = 0.1
ENDS_AT_ONCE = "BATCH_FINDER_ENDS"
FACTORS = (0.5, 1.3)  # of brute force's size: tried as well
PATIENCE_S = 120.0
MAPPED_ALONE = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # bytes (mallopt(3))


class Repeated(Dataset[Any]):
    """The same sample over and over, as many as are wanted."""

    def __init__(self, *sample: torch.Tensor) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 1 << 18

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return self.sample


class Toy:
    """What the toys share; in the finder's own run it ends where the training would begin."""

    calls = 0

    def model(self, cfg: Any) -> nn.Module:
        self.cfg = cfg
        if "SLURMGPU_TRIAL" not in os.environ:
            self.saves_take_long()
        return self.network()

    def saves_take_long(self) -> None:
        """Keep what a save writes in memory until a micro-batch of the next steps has been through."""
        from slurmgpu.training.saving import checkpoint

        write = checkpoint.write_part
        held: set[threading.Thread] = set()

        def later(*given: Any) -> Any:
            thread, begun, deadline = threading.current_thread(), self.calls, time.monotonic() + PATIENCE_S
            if thread.name == "saver" and thread not in held:
                held.add(thread)
                while self.calls < min(begun + 3, 2 * self.cfg.max_steps) and time.monotonic() < deadline:
                    time.sleep(0.01)
            return write(*given)

        checkpoint.write_part = later

    def network(self) -> nn.Module:
        raise NotImplementedError

    def data(self) -> Dataset[Any]:
        raise NotImplementedError

    def dataset(self, cfg: Any, split: str) -> Dataset[Any] | None:
        return self.data() if split == "train" else None

    def optimizer(self, model: nn.Module, cfg: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-4)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.calls += 1
        if os.environ.get(ENDS_AT_ONCE) and "SLURMGPU_TRIAL" not in os.environ:
            print(f"rank {os.environ['SLURM_PROCID']} takes {self.cfg.micro_batch}", flush=True)
            os._exit(0)
        return self.cost(model, batch)

    def cost(self, model: nn.Module, batch: Any) -> torch.Tensor:
        cost: torch.Tensor = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return cost


class Mlp(Toy):
    def network(self) -> nn.Module:
        layers = [each for _ in range(8) for each in (nn.Linear(64, 64), nn.GELU())]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 256, 10))

    def data(self) -> Dataset[Any]:
        return Repeated(torch.randn(256, 64), torch.tensor(3))


class Conv(Toy):
    def network(self) -> nn.Module:
        def block(one: int, two: int) -> list[nn.Module]:
            return [nn.Conv2d(one, two, 3, padding=1), nn.BatchNorm2d(two), nn.ReLU()]

        last = [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * 16, 10)]
        return nn.Sequential(*block(3, 16), *block(16, 16), nn.MaxPool2d(2), *block(16, 32), *last)

    def data(self) -> Dataset[Any]:
        return Repeated(torch.randn(3, 64, 64), torch.tensor(3))


class Rnn(Toy):
    class Network(nn.Module):
        """The last output of two layers."""

        def __init__(self) -> None:
            super().__init__()
            self.cells, self.last = nn.LSTM(32, 128, 2, batch_first=True), nn.Linear(128, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.last(self.cells(x)[0][:, -1])
            return found

    def network(self) -> nn.Module:
        return self.Network()

    def data(self) -> Dataset[Any]:
        return Repeated(torch.randn(128, 32), torch.tensor(3))


class Attention(Toy):
    """Memory grows with the square of the sequence: the products are kept."""

    length = 128

    class Block(nn.Module):
        """Attention, by products that are kept for the backward pass."""

        def __init__(self, width: int = 64, heads: int = 4) -> None:
            super().__init__()
            self.heads, self.inner, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (
                each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.inner(x).chunk(3, -1)
            )
            weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
            out: torch.Tensor = x + self.out((weights @ v).transpose(1, 2).flatten(2))
            return out

    def network(self) -> nn.Module:
        return nn.Sequential(*[self.Block() for _ in range(4)], nn.Linear(64, 16))

    def data(self) -> Dataset[Any]:
        return Repeated(torch.randn(self.length, 64), torch.full((self.length,), 3))

    def cost(self, model: nn.Module, batch: Any) -> torch.Tensor:
        cost: torch.Tensor = nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
        return cost


class Vocabulary(Attention):
    """The logits are most of it."""

    words, length = 8000, 32

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(self.words, 64), self.Block(), nn.Linear(64, self.words))

    def data(self) -> Dataset[Any]:
        return Repeated(torch.full((self.length,), 5), torch.full((self.length,), 3))


class Tied(Vocabulary):
    words, length = 4000, 64

    def network(self) -> nn.Module:
        network = nn.Sequential(
            nn.Embedding(self.words, 64), self.Block(), nn.Linear(64, self.words, bias=False)
        )
        network[2].weight = network[0].weight
        return network


class Checkpointed(Attention):
    """Each block is computed again in the backward pass."""

    def network(self) -> nn.Module:
        return nn.Sequential(*[self.Block() for _ in range(12)], nn.Linear(64, 16))

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(model.children())[:-1]


class TwoLosses(Mlp):
    """Two passes through the same layers, and a sum of what they cost."""

    def cost(self, model: nn.Module, batch: Any) -> torch.Tensor:
        one, two = model(batch[0]), model(batch[0].flip(1))
        kept: torch.Tensor = nn.functional.cross_entropy(one, batch[1]) + nn.functional.mse_loss(one, two)
        return kept


class LargeState(Mlp):
    """Adam's state and the parameters are as large as what the samples take."""

    def network(self) -> nn.Module:
        return nn.Sequential(
            super().network(), nn.Linear(10, 1_000_000), nn.Linear(1_000_000, 10, bias=False)
        )

    def optimizer(self, model: nn.Module, cfg: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=1e-4)


class Lengths(Attention):
    """Sequences of many lengths, as long as the longest of a batch."""

    class Data(Repeated):
        """Cut to a length of its own."""

        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            length = 16 + index * 7919 % 113
            return tuple(each[:length] for each in self.sample)

    def data(self) -> Dataset[Any]:
        return self.Data(torch.randn(self.length, 64), torch.full((self.length,), 3))

    def collate(self, samples: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        return tuple(
            nn.utils.rnn.pad_sequence(list(each), batch_first=True) for each in zip(*samples, strict=True)
        )


class Case(NamedTuple):
    """A toy, and the settings that go with it."""

    task: type[Toy]
    settings: tuple[tuple[str, Any], ...] = ()


CASES = {
    "mlp": Case(Mlp),
    "convolutions": Case(Conv),
    "recurrent": Case(Rnn),
    "attention": Case(Attention),
    "large vocabulary": Case(Vocabulary),
    "tied weights": Case(Tied),
    "activation checkpointing": Case(Checkpointed, (("activation_checkpointing", True),)),
    "two losses": Case(TwoLosses),
    "large optimizer state": Case(LargeState),
    "sequences of many lengths": Case(Lengths),
}


class Ended(NamedTuple):
    """How the ranks of a training ended, and what they said."""

    codes: list[int]
    said: list[str]


def trained(case: Case, ranks: int, limit: int, **settings: Any) -> Ended:
    """A training under ``ulimit -v`` (MiB)."""
    with tempfile.TemporaryDirectory(prefix="batch-finder-") as folder:
        document = {
            "schema": "slurmgpu.train/1", "task": f"{Path(__file__).resolve()}:{case.task.__name__}", "device": "cpu",
            "fit_head_room": HEAD_ROOM, **dict(case.settings), **settings,
        }  # fmt: skip
        Path(folder, "train.json").write_text(json.dumps(document))
        port = random.SystemRandom().randrange(20_000, 30_000)
        known = {
            **os.environ, **MAPPED_ALONE, "SLURMGPU_RUN_DIR": folder, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SLURM_NTASKS": str(ranks), "XDG_CACHE_HOME": folder,
        }  # fmt: skip
        started = [
            subprocess.Popen(
                ["/bin/sh", "-c", f"ulimit -v {limit * 1024} && exec {sys.executable} -m slurmgpu.training"],
                env={**known, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        return _ended(started)


def _ended(started: list[subprocess.Popen[str]]) -> Ended:
    """Wait for all; where one has failed, the others wait for it in vain."""
    while all(each.poll() is None for each in started) or (
        any(each.poll() is None for each in started) and not any(each.poll() for each in started)
    ):
        time.sleep(0.05)
    for each in started:
        if each.poll() is None:
            each.kill()
    said = [each.communicate()[0] for each in started]
    return Ended([each.returncode for each in started], said)


_FULL = re.compile(
    r"can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory|MemoryError|could not create a|"
    r"can't start new thread|failed to map|Resource temporarily unavailable"
)


def fits(case: Case, ranks: int, limit: int, size: int) -> bool:
    """Whether a training with so many samples at a time gets to its end: two micro-batches a step, and steps beside a save.

    A save's copy of the state takes memory, too, while the next steps are taken.
    """
    ended = trained(
        case,
        ranks,
        limit,
        micro_batch=size,
        batch_size=2 * size * ranks,
        max_steps=6,
        checkpoint_steps=4,
        checkpoint_share=None,
    )
    if any(ended.codes) and not any(_FULL.search(each) for each in ended.said):
        raise SystemExit(
            f"{case.task.__name__} with {size} has failed for another reason:\n" + "\n".join(ended.said)
        )
    return not any(ended.codes)


def found_by(case: Case, ranks: int, limit: int) -> dict[str, Any]:
    """What the finder says, on each rank."""
    began = time.perf_counter()
    os.environ[ENDS_AT_ONCE] = "1"
    try:
        ended = trained(case, ranks, limit, micro_batch="auto", batch_size=(1 << 17) * ranks, max_steps=1)
    finally:
        del os.environ[ENDS_AT_ONCE]
    sizes = [re.search(r"rank \d+ takes (\d+)", each) for each in ended.said]
    told = re.search(r"(\d+) samples at a time fit.*?\(tried (.*?)\), ", " ".join(ended.said[0].split()))
    if any(ended.codes) or told is None or None in sizes:
        raise SystemExit(f"{case.task.__name__}: no size was found\n" + "\n".join(ended.said))
    return {
        "found": int(told[1]),
        "ranks": [int(each[1]) for each in sizes if each],
        "tried": told[2],
        "seconds": round(time.perf_counter() - began, 1),
    }


def brute_force(case: Case, ranks: int, limit: int, start: int) -> tuple[int, dict[int, bool]]:
    """The largest size that fits, to a fiftieth, and each size that was tried."""
    tried: dict[int, bool] = {}

    def fit(size: int) -> bool:
        if size not in tried:
            tried[size] = fits(case, ranks, limit, size)
        return tried[size]

    low, high = 0, start
    while fit(high):
        low, high = high, max(high + 1, int(high * 1.15))
    while not low:
        lower = max(1, int(high * 0.85))
        if fit(lower):
            low = lower
        elif lower == 1:
            return 0, tried
        else:
            high = lower
    while high - low > max(1, int(low * NEAR)):
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    for factor in FACTORS:
        fit(max(1, int(low * factor)))
    return low, tried


def compared(case: Case, ranks: int, limit: int, agree_only: bool) -> dict[str, Any]:
    """The finder and brute force, on one toy; or whether the ranks agree, on a size with which they train to the end."""
    answer = found_by(case, ranks, limit)
    began = time.perf_counter()
    if agree_only:
        whole = fits(case, ranks, limit, answer["found"])
        return {
            **answer,
            "agree": len(set(answer["ranks"])) == 1,
            "trains_under_the_limit": whole,
        }
    best, tried = brute_force(case, ranks, int(limit * (1 - HEAD_ROOM)), answer["found"])
    ratio = answer["found"] / best if best else 0.0
    monotone = all(
        fit == (size <= best) for size, fit in tried.items() if not best < size <= best * (1 + NEAR) + 1
    )
    whole = fits(case, ranks, limit, answer["found"])
    return {
        **answer,
        "brute_force": best,
        "ratio": round(ratio, 4),
        "within": abs(ratio - 1) <= GOAL,
        "agree": len(set(answer["ranks"])) == 1,
        "trains_under_the_limit": whole,
        "monotone": monotone,
        "large_blocks": "mapped alone",
        "brute_force_tried": {str(size): tried[size] for size in sorted(tried)},
        "brute_force_seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", type=int, default=2048, help="MiB of each process's address space")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument(
        "--agree-only", action="store_true", help="no brute force: whether the ranks agree and train"
    )
    parser.add_argument("--only", help="toys whose name has this in it")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = json.loads(given.out.read_text())["toys"] if given.out and given.out.exists() else []
    known = {(one["toy"], one["processes"]) for one in found}
    for ranks in map(int, given.ranks.split(",")):
        for name, case in CASES.items():
            if (given.only and given.only not in name) or (name, ranks) in known:
                continue
            one = {"toy": name, "processes": ranks, **compared(case, ranks, given.limit, given.agree_only)}
            found.append(one)
            print({key: value for key, value in one.items() if key != "brute_force_tried"}, flush=True)
            if given.out:
                given.out.write_text(json.dumps(_document(found, given.limit), indent=1) + "\n")
    document = _document(found, given.limit)
    print(
        f"within {GOAL:.0%}: {document['within']} of {document['held_against_brute_force']}; "
        f"ranks agree in {document['agree']} of {document['of']}"
    )


def _document(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    return {
        "slurmgpu": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, no GPU",
        "limit_mib": limit,
        "head_room": HEAD_ROOM,
        "within": sum(one.get("within", False) for one in found),
        "held_against_brute_force": sum("within" in one for one in found),
        "agree": sum(one["agree"] for one in found),
        "trains_under_the_limit": sum(one["trains_under_the_limit"] for one in found),
        "of": len(found),
        "toys": found,
    }


if __name__ == "__main__":
    main()
