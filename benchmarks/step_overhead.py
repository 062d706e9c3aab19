"""What a training step costs beyond a bare loop: this entrypoint beside Lightning Fabric, accelerate, Lightning.

    python benchmarks/step_overhead.py [--rounds N] [--steps N] [--python PYTHON] [--json FILE]

An MLP 64-64-10 with batches of 32, on one CPU thread. Every loop does the same arithmetic on the same samples (SGD
with momentum); each draws its own shuffled batches out of the same tensors, and the entrypoint has its metrics,
its stop check, its hang watch and its resumable order of samples on. A round is one process in which all loops take
turns, a few steps each; what is compared is the time of a step of one loop with that of the bare loop in the
same turn, so that a machine that others use too disturbs both alike. Peers that PYTHON does not have are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BATCH, SAMPLES, LOG_EVERY = 32, 8192, 10
TURN = 100  # steps of one loop before the next one's turn
GOAL = 1.09

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Mlp:
    def model(self, cfg):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def dataset(self, cfg, split):
        if split == "test":
            return None
        made = torch.Generator().manual_seed(0)
        return TensorDataset(
            torch.randn(8192, 64, generator=made), torch.randint(10, (8192,), generator=made)
        )

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.cross_entropy(model(x), y)
"""


def batches(x: Any, y: Any) -> Iterator[Any]:
    """Shuffled batches for ever, as a plain loop over tensors in memory draws them."""
    import torch

    while True:
        order = torch.randperm(len(x))
        for start in range(0, len(x), BATCH):
            chosen = order[start : start + BATCH]
            yield x.index_select(0, chosen), y.index_select(0, chosen)


def parts(task: Any) -> tuple[Any, Any, Iterator[Any]]:
    model = task.model(None)
    return model, task.optimizer(model, None), batches(*task.dataset(None, "train").tensors)


def bare(task: Any) -> Iterator[None]:
    """One step each time it is asked; so are all the others."""
    model, optimizer, data = parts(task)
    while True:
        loss = task.loss(model, next(data))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def fabric(task: Any) -> Iterator[None]:
    from lightning.fabric import Fabric

    with contextlib.redirect_stderr(io.StringIO()):
        lightning = Fabric(accelerator="cpu", devices=1)
    model, optimizer, data = parts(task)
    model, optimizer = lightning.setup(model, optimizer)
    while True:
        loss = task.loss(model, next(data))
        lightning.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def accelerate(task: Any) -> Iterator[None]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, data = parts(task)
    model, optimizer = accelerator.prepare(model, optimizer)
    while True:
        with accelerator.accumulate(model):
            loss = task.loss(model, next(data))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield


def own_steps(loop: Callable[[Any], Iterator[None]], task: Any) -> Callable[[Callable[[], None]], None]:
    """A loop that is asked for each step, as one that goes on by itself and says so before each."""

    def go_on(note: Callable[[], None]) -> None:
        steps = loop(task)
        while True:
            note()
            next(steps)

    return go_on


class Turns:
    """Lets a loop take steps only in its turn, from a thread of its own.

    All loops have one, the bare one, too: outside the first thread, malloc gives memory back to the system and takes it
    again, which costs what it costs on a machine.
    """

    def __init__(self, train: Callable[[Callable[[], None]], None]) -> None:
        import threading

        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._left = 0
        threading.Thread(target=lambda: train(self._step), daemon=True).start()

    def _step(self) -> None:
        if not self._left:
            self._theirs.release()
            self._mine.acquire()
        self._left -= 1

    def take(self, steps: int) -> None:
        """Wait until the loop has gone on for so many steps; the first time, until it is there."""
        self._theirs.acquire()
        if steps:
            self._left = steps
            self._mine.release()
            self._theirs.acquire()
        self._theirs.release()


def lightning_trainer(task: Any, note: Callable[[], None]) -> None:
    import logging
    import warnings

    import lightning
    import torch

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model(None)

        def training_step(self, batch: Any, _number: int) -> Any:
            note()
            loss = task.loss(self.model, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return task.optimizer(self, None)

    class Data(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            return batches(*task.dataset(None, "train").tensors)

    with contextlib.redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=-1,
            logger=lightning.pytorch.loggers.CSVLogger(folder),
            log_every_n_steps=LOG_EVERY,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=None))


def entrypoint(folder: Path, note: Callable[[], None]) -> None:
    """The real thing: its own run, with the clock of the benchmark in the task's loss."""
    import torch

    from slurmgpu.training.formats.settings import TRAIN_SCHEMA
    from slurmgpu.training.processes.group import Group
    from slurmgpu.training.processes.ranks import Ranks
    from slurmgpu.training.settings import parse
    from slurmgpu.training.trainer import train

    text = TASK.replace("        x, y = batch\n", "        note()\n        x, y = batch\n")
    (folder / "mlp_task.py").write_text("from mlp_note import note\n" + text)
    sys.modules["mlp_note"] = type(sys)("mlp_note")
    sys.modules["mlp_note"].note = note  # type: ignore[attr-defined]
    settings = {
        "task": f"{folder}/mlp_task.py:Mlp",
        "batch_size": BATCH,
        "epochs": 10**6,
        "log_every": LOG_EVERY,
    }
    settings |= {"checkpoint_every": 10**6, "workers": 0}
    ends = {"SLURMGPU_END_TIME": str(int(time.time()) + 86400)}
    with contextlib.redirect_stdout(io.StringIO()):
        train(parse({"schema": TRAIN_SCHEMA, **settings}), folder, Group(Ranks(), torch.device("cpu")), ends)


def one_round(steps: int, names: list[str]) -> dict[str, list[float]]:
    """Microseconds of a step, turn by turn, of each loop."""
    import torch

    torch.set_num_threads(1)
    space: dict[str, Any] = {}
    exec(compile(TASK, "task", "exec"), space)
    task = space["Mlp"]()
    folder = Path(tempfile.mkdtemp())
    asked: dict[str, Callable[[int], None]] = {}

    loops: dict[str, Callable[[Callable[[], None]], None]] = {
        "slurmgpu": lambda note: entrypoint(folder, note),
        "lightning_trainer": lambda note: lightning_trainer(task, note),
        **{loop.__name__: own_steps(loop, task) for loop in (bare, fabric, accelerate)},
    }
    for name in names:
        asked[name] = Turns(loops[name]).take
    for take in asked.values():
        take(2 * TURN)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(steps // TURN):
        for name in random.sample(names, len(names)):
            start = time.perf_counter()
            asked[name](TURN)
            found[name].append((time.perf_counter() - start) / TURN * 1e6)
    return found


def available() -> list[str]:
    peers = {"fabric": "lightning", "accelerate": "accelerate", "lightning_trainer": "lightning"}
    has = [name for name, package in peers.items() if importlib.util.find_spec(package)]
    return ["bare", "slurmgpu", *has]


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % confidence interval, by the bootstrap (2,000 draws)."""
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def summary(rounds: list[dict[str, list[float]]]) -> dict[str, Any]:
    bare_all = [value for each in rounds for value in each["bare"]]
    result: dict[str, Any] = {"bare": {"microseconds": round(statistics.median(bare_all), 1)}}
    for name in rounds[0]:
        if name == "bare":
            continue
        pairs = [(own, base) for each in rounds for own, base in zip(each[name], each["bare"], strict=True)]
        extra = interval([own - base for own, base in pairs])
        ratio = interval([own / base for own, base in pairs])
        result[name] = {
            "extra_microseconds": [round(value, 1) for value in extra],
            "ratio": [round(value, 3) for value in ratio],
        }
    return result


def versions(python: str) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
    )
    known = json.loads(
        subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    )
    kept = {name: known[name] for name in ("torch", "lightning", "accelerate") if name in known}
    with contextlib.suppress(PackageNotFoundError):
        kept["slurmgpu"] = version("slurmgpu")
    return kept


def main() -> None:
    """Measure in processes of their own, print, and keep the figures when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter with torch, and with the peers"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one-round", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one_round:
        found = one_round(given.steps, available())
        os.write(1, json.dumps(found).encode())
        os._exit(0)  # loops that never end are still there
    rounds = []
    command = [given.python, __file__, "--one-round", "--steps", str(given.steps)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for _ in range(given.rounds):
        done = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=600
        )
        rounds.append(json.loads(done.stdout.splitlines()[-1]))
    result = summary(rounds)
    print(f"bare loop: {result['bare']['microseconds']} us a step (median)")
    for name, values in result.items():
        if name != "bare":
            extra, ratio = values["extra_microseconds"], values["ratio"]
            print(
                f"{name:18} adds {extra[0]:6.1f} us ({extra[1]:.1f} to {extra[2]:.1f}), "
                f"ratio {ratio[0]:.3f} ({ratio[1]:.3f} to {ratio[2]:.3f})"
            )
    print(f"goal: slurmgpu at most {GOAL}")
    if given.json:
        machine = {"machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()}
        setting = {"rounds": given.rounds, "steps": given.steps, "batch": BATCH, "log_every": LOG_EVERY}
        document = {"schema": "slurmgpu.benchmark/1", "benchmark": "step_overhead", "setting": setting}
        document |= {"machine": machine, "versions": versions(given.python), "goal": GOAL, "results": result}
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
