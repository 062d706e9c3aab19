"""``micro_batch: auto``: the most samples that fit at a time, the same on every rank, and the batch as it was."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from ..errors import TrainingError
from ..session import Session
from ..settings import Settings, divided
from ..task import Task
from . import cache
from .memory import Budget, budget_of
from .search import Tried, largest, search

__all__ = ["find", "found_before"]

_PACKAGE = __package__.rpartition(".")[0] if __package__ else ""
_DEATHS = 3  # of the process that tries, from which another one goes on
_LAST = 4  # lines of what it said


class Answer(NamedTuple):
    """Findings of a rank: samples at a time in a step and in an evaluation, and the words for them.

    ``peak``: bytes at it; ``failed``: why there is no answer.
    """

    size: int
    evaluation: Optional[int]
    peak: int
    sizes: tuple[str, ...]
    device: tuple[str, int]
    failed: Optional[str] = None


def found_before(settings: Settings, manifest: Mapping[str, Any]) -> Optional[Settings]:
    """Return the settings with what the training that is gone on with has found; None where it has not."""
    before = dict(manifest["settings"])
    size = before.get("micro_batch")
    if type(size) is not int:
        return None
    evaluation = settings.eval_micro_batch or before.get("eval_micro_batch")
    return replace(settings, micro_batch=size, eval_micro_batch=evaluation)


def find(settings: Settings, task: Task, session: Session) -> Settings:
    """Return the settings with the micro-batch that fits on every rank.

    Raises:
        TrainingError: on every rank, where not even one sample fits, or a try has failed for another reason.
    """
    group = session.group
    budget = budget_of(group.device, settings.fit_head_room, group.ranks)
    group.barrier()  # all look at what is free before one of them takes some
    search_of = _Search(settings, task, session, budget)
    try:
        own = search_of.answer()
    except Exception as error:
        own = Answer(0, None, 0, (), (budget.device, budget.total), f"{error}")
    finally:
        search_of.close()
    everyone = group.gather(own)
    _refuse(everyone, settings)
    least = min(range(len(everyone)), key=lambda rank: everyone[rank].size)
    if own.device not in [each.device for each in everyone[: group.ranks.rank]]:
        search_of.keep()
    size, whole = everyone[least].size, replace(settings, micro_batch=everyone[least].size)
    chosen = divided(whole, group.ranks.world_size)
    evaluations = [each.evaluation for each in everyone if each.evaluation is not None]
    if settings.eval_micro_batch is None and min(evaluations, default=size) < size:
        chosen = replace(chosen, eval_micro_batch=min(evaluations))
    session.console.say(_said(everyone, least, settings, chosen, search_of.source))
    return chosen


def _refuse(everyone: list[Answer], settings: Settings) -> None:
    for rank, each in enumerate(everyone):
        if each.failed is not None:
            raise TrainingError(f"micro_batch: auto has found no size, on rank {rank}: {each.failed}")
    for rank, each in enumerate(everyone):
        where = f"on rank {rank} ({each.device[0]}, {_gib(each.device[1])})"
        if not each.size or each.evaluation == 0:
            what = "a step" if not each.size else "an evaluation"
            raise TrainingError(
                f"micro_batch: auto: {what} with one sample does not fit into memory {where}, with "
                f"{settings.fit_head_room:.0%} of it left free (fit_head_room); precision: bf16 and "
                "activation_checkpointing: true need less, or take a GPU with more memory"
            )


def _said(
    everyone: list[Answer], least: int, settings: Settings, chosen: Settings, source: Optional[Path]
) -> str:
    one, world = everyone[least], len(everyone)
    tried = f"tried {', '.join(one.sizes)}" if one.sizes else f"known from {source}"
    where = f", the least on rank {least}" if len({each.size for each in everyone}) > 1 else ""
    of_tests = (
        "" if chosen.eval_micro_batch is None else f"; evaluations take {chosen.eval_micro_batch} at a time"
    )
    return (
        f"micro-batch {chosen.micro_batch}: {one.size} samples at a time fit{where} ({tried}), {_gib(one.peak)} of "
        f"{_gib(one.device[1])} at the peak, {settings.fit_head_room:.0%} to be left free; "
        f"batch {settings.batch_size} in {world} x {chosen.accumulate} micro-batches{of_tests}"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


@dataclass
class _Search:
    """One rank's search, in a process that is started when there is something to try."""

    settings: Settings
    task: Task
    session: Session
    budget: Budget

    def __post_init__(self) -> None:
        ranks = self.session.group.ranks
        self.share = -(-self.settings.batch_size // ranks.world_size)
        self.together = self.session.group.together
        self.source = cache.path_of(self.task, self.budget, os.environ)
        self.facts = cache.facts_of(
            self.task,
            self.settings,
            ranks.world_size if self.settings.strategy == "fsdp2" else self.together,
        )
        self.known, note = cache.read(self.source, self.facts, self.budget)
        if note is not None:
            self.session.console.say(f"note: {self.source} {note}: what fits is found anew")
        self.log = self.session.run_dir / "state" / f"micro-batch.rank-{ranks.rank}.log"
        self._child: Optional[_Child] = None
        self._deaths = 0
        self._limit = self.budget.bytes

    def answer(self) -> Answer:
        """This rank's answer."""
        before = len(self.known.steps)
        self.known.budget = max(self.known.budget, self.budget.bytes)
        self.known.steps = search(self.share, lambda: self._limit, self._step, self.known.steps)
        size = largest(self.known.steps)
        peak = max((each.peak or 0 for each in self.known.steps if each.size == size), default=0)
        evaluation = self._evaluation(size) if size and self.settings.eval_micro_batch is None else None
        sizes = tuple(f"{each.size}{'' if each.fits else ' (full)'}" for each in self.known.steps[before:])
        return Answer(size, evaluation, peak, sizes, (self.budget.device, self.budget.total))

    def _evaluation(self, size: int) -> Optional[int]:
        """Samples that fit in an evaluation, where these are fewer than ``size``."""
        known = self.known.evaluations
        if any(each.fits and each.size >= size for each in known):
            return None
        if not any(not each.fits and each.size <= size for each in known):
            first = self._try(size, 0)
            if first is None or first.fits:  # there is nothing to evaluate
                self.known.evaluations.append(first or Tried(self.share, True))
                return None
            known.append(first)
        self.known.evaluations = search(size, lambda: self._limit, self._test, known)
        return largest(self.known.evaluations)

    def _step(self, size: int) -> Tried:
        # DDP's gradients stay in their buckets while the next pass runs, as those of an earlier micro-batch do.
        rounds = 1 if size >= self.share and not self.together else 2
        found = self._try(size, rounds)
        assert found is not None
        return found

    def _test(self, size: int) -> Tried:
        found = self._try(size, 0)
        assert found is not None
        return found

    def _try(self, size: int, rounds: int) -> Optional[Tried]:
        """One try; a process that is ended in it has run out, and another one goes on. None: no evaluation."""
        used = self._child is not None
        if self._child is None:
            self._child = _Child(self._begin(), self.log)
            about = self._child.read(self.settings.hang_timeout)
            if about is not None and "fits" in about:
                return Tried(size, False)
            if about is None or "error" in about:
                raise TrainingError(self._child.told(about))
            self._tests, self._limit = bool(about["tests"]), int(about["budget"])
        if not rounds and not self._tests:
            return None
        answer = self._child.ask({"size": size, "rounds": rounds}, self.settings.hang_timeout)
        if answer is None and self._child.was_killed() and self._deaths < _DEATHS:
            self._deaths += 1
            self.close()
            return Tried(size, False)
        if answer is None or "error" in answer:
            raise TrainingError(f"with {size} samples at a time: {self._child.told(answer)}")
        if not answer["fits"] and used and self.session.group.device.type == "cpu":
            # Of what earlier tries took and gave back, the C library keeps addresses, in pieces: no training begins with these.
            self.close()
            return self._try(size, rounds)
        return Tried(size, bool(answer["fits"]), answer["peak"])

    def _begin(self) -> dict[str, object]:
        return {
            "settings": self.settings.as_dict(),
            "device": str(self.session.group.device),
            "threads": torch.get_num_threads(),
            "budget": list(self.budget),
            "world_size": self.session.group.ranks.world_size,
        }

    def keep(self) -> None:
        """Write down what is known now."""
        cache.write(self.source, self.facts, self.known)

    def close(self) -> None:
        """End the process that tries."""
        if self._child is not None:
            self._child.close()
            self._child = None


class _Child:
    """The process that tries; it ends when its standard input does, which is when this one ends, too."""

    def __init__(self, first: Mapping[str, object], log: Path) -> None:
        self._log = log
        self._folder = tempfile.TemporaryDirectory(prefix="slurmgpu-")
        log.parent.mkdir(parents=True, exist_ok=True)
        root = str(Path(__file__).parents[_PACKAGE.count(".") + 2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{_PACKAGE}.fitting.trial"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
                env={**os.environ, "PYTHONPATH": path, "SLURMGPU_TRIAL": "1"},
            )  # fmt: skip
        self._send({**first, "folder": self._folder.name})

    def _send(self, request: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end shows when the answer is read
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def read(self, patience: Optional[float]) -> Optional[dict[str, Any]]:
        """Its answer; None when it has ended without."""
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], patience)[0]:
            raise TrainingError(f"no answer within {patience:g} s (hang_timeout); see {self._log}")
        line = stream.readline()
        if not line:
            self._process.wait()
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, request: Mapping[str, object], patience: Optional[float]) -> Optional[dict[str, Any]]:
        """Return the answer to a request."""
        self._send(request)
        return self.read(patience)

    def was_killed(self) -> bool:
        """Return True if a signal has ended it, as that of a machine without memory does."""
        code = self._process.poll()
        return code is not None and code < 0

    def told(self, answer: Optional[Mapping[str, Any]]) -> str:
        """Return what is wrong, in its own words."""
        words = "the process that tries has ended" if answer is None else str(answer["error"])
        return (
            f"{words}\n{''.join(self._last_lines())}"
            f"(all that it said is in {self._log}; a try takes steps in a process of its own, without the other ranks; "
            "if it cannot, give micro_batch a number)"
        )

    def _last_lines(self) -> Iterator[str]:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            yield from (f"  {line}\n" for line in lines[-_LAST:])

    def close(self) -> None:
        """End it, and wait for that: its memory is needed."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
