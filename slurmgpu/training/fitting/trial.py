"""Tries sizes in a process of its own, ``python -m slurmgpu_training.fitting.trial``: what it does is lost with it.

So nothing of a try is left in the training: no random state, no statistics of a batch, nothing that the task counts, and no
memory in pieces. It takes real steps with the training's own loop, alone: no try waits for another rank, and a rank that runs
out leaves none waiting. Reads a line of JSON for each try from standard input and answers with one; ends when the input does.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from ..build import Training
from ..processes.group import Group
from ..processes.ranks import Ranks
from ..saving.saver import Saving
from ..session import Limits, Session
from ..settings import Settings
from ..task import load
from ..watching.console import Console
from .memory import Budget, memory_of, ran_out

__all__ = ["Trial", "main"]

_STEPS = 1000  # of the schedule, more than are ever tried
_EPOCHS = 1 << 40  # as many as these steps need
_SCALED = 16  # steps in which a scaler has found a scale that does not overflow, nearly always
_AGAIN = 4  # steps in which the C library's heap, in pieces by then, has grown to what a training's has


class Trial:
    """The training's loop, alone and in an empty folder, in which steps of any size can be taken.

    ``world_size``: processes of the training; of several, gradients stay in DDP's buckets, or the model is sharded over them.
    """

    def __init__(
        self, settings: Settings, device: torch.device, budget: Budget, world_size: int, folder: Path
    ) -> None:
        self.memory = memory_of(device, budget)
        self.together = world_size > 1
        self.settings = replace(
            settings, accumulate=1, micro_batch=1, drop_last=False, max_steps=_STEPS, epochs=_EPOCHS,
            workers=0, track=[], profile=False, resume=False, pretrained=None,
        )  # fmt: skip
        self.group = Group(Ranks(), device)
        if settings.strategy == "fsdp2" and self.together:
            pretend(world_size)
            self.group.pieces = world_size
        self.session = Session(
            folder, self.group, {}, Console(speaks=False), Saving(), Limits(hang_timeout=None)
        )
        task = load(settings.task)
        self.training = Training(task, self.settings, self.session)
        self._kept: list[torch.Tensor] = []
        self._begun = False

    def step(self, size: int, rounds: int) -> int:
        """Take steps of so many samples at a time, ``rounds`` times each, until the peak stays; the bytes at the peak."""
        training = self.training
        training.settings = replace(
            self.settings, batch_size=size * rounds, accumulate=rounds, micro_batch=size
        )
        training.micro = size
        self.memory.begin()
        try:
            training.connect()
            training.wrapped.train()
            if not self._begun:
                self._begin(size * rounds)
            training.step.take(size * rounds)
            peak = self.memory.peak()
            for _ in range(_AGAIN if self.group.device.type == "cpu" else 0):
                training.step.take(size * rounds)
                before, peak = peak, self.memory.peak()
                if peak == before:
                    break
            return peak
        finally:
            training.optimizer.zero_grad(set_to_none=True)
            training.step.batches = iter(())
            training.meter.start()

    def _begin(self, samples: int) -> None:
        """The first steps, with which the optimizer gets its state, and what a training keeps beside it."""
        training = self.training
        for _ in range(_SCALED if training.precision.scaler is not None else 1):
            training.step.take(samples)
        self._begun = True
        if self.group.device.type == "cpu":  # a save copies what it writes, beside the steps
            average = {} if training.average is None else training.average.state_dict()
            states = training.model.state_dict(), training.optimizer.state_dict(), average
            copies = [each.clone() for each in _tensors(states)]
            self._kept += copies
            _saver()

    def evaluate(self, size: int) -> int:
        """Evaluate the first batch of so many samples; the bytes at the peak."""
        self.memory.begin()
        self.training.evaluation.try_out(self.training.model, size)
        return self.memory.peak()


def _saver() -> None:
    """Start a thread as a save does, which stays: its stack and glibc's arena for it (64 MiB) count under ``ulimit -v``."""
    taken = threading.Event()

    def stay() -> None:
        kept = [b"%1000d" % number for number in range(8)]
        taken.set()
        threading.Event().wait()
        del kept

    threading.Thread(target=stay, name="saver", daemon=True).start()
    taken.wait()


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for each in value for found in _tensors(each)] if isinstance(value, (list, tuple)) else []


def pretend(world_size: int) -> None:
    """Begin a process group of so many, of which this process alone is there: what it gathers from others is made up.

    A sharded model then takes the memory that it will, and its numbers mean nothing.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)


def _answer(trial: Trial, request: dict[str, Any]) -> dict[str, object]:
    size, rounds = request["size"], request["rounds"]
    try:
        peak = trial.step(size, rounds) if rounds else trial.evaluate(size)
    except Exception as error:
        trial.training.optimizer.zero_grad(set_to_none=True)
        if ran_out(error):
            return {"fits": False, "peak": None}
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {"fits": peak <= trial.memory.bytes, "peak": peak}


def _lines() -> queue.Queue[str]:
    """Return the lines of standard input; at its end this process ends too, whatever it is doing."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


def main(answers: TextIO) -> None:
    """Build the trial that the first line describes, then answer each further one."""
    lines = _lines()
    first = json.loads(lines.get())
    device = torch.device(first["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(first["threads"])
    try:
        settings, budget = Settings(**first["settings"]), Budget(*first["budget"])
        trial = Trial(settings, device, budget, first["world_size"], Path(first["folder"]))
        about: dict[str, object] = {"tests": bool(trial.training.evaluation), "budget": trial.memory.bytes}
    except Exception as error:
        traceback.print_exc()
        about = {"fits": False} if ran_out(error) else {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(about), file=answers, flush=True)
    while "budget" in about:
        print(json.dumps(_answer(trial, json.loads(lines.get()))), file=answers, flush=True)
    lines.get()


if __name__ == "__main__":
    # What a task prints goes where errors go: the answers are for the training alone.
    with os.fdopen(os.dup(1), "w") as own:
        os.dup2(2, 1)
        main(own)
