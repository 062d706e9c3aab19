"""Slurm away across a change of state: no end is told that is none, and the first look after it is right.

A small world with jobs that go their ways by a clock, a queue that forgets and an accounting that lags. Either or both fail,
hang for a minute or say nothing, at moments drawn by chance; two processes look every half minute and share what they are told.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import NamedTuple

import pytest

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.jobs import look as status_module
from slurmgpu.jobs.look import last_known, status
from slurmgpu.jobs.select import select
from slurmgpu.jobs.wait import exit_code, wait_for
from slurmgpu.slurm import Slurm, shelf_here
from slurmgpu.slurm import shelf as shelf_module
from slurmgpu.slurm.text import SEPARATOR, Answer
from tests.recorded import Replay, recorded
from tests.test_states_never_misread import accounting_fields, queue_fields

START = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
EPOCH = int(START.timestamp())


@cache
def recorded_argv(who: str) -> tuple[str, ...]:
    return recorded(who).argv


class Step(NamedTuple):
    """From a moment on, what the queue says of the job (None: nothing), what accounting does, and what is so."""

    at: float
    queue: str | None
    accounting: str | None
    truth: str


# Moments are parts of the job's way; accounting hears of things later than the queue.
WAYS = {
    "completed": (
        Step(0.0, "PENDING", None, "PENDING"), Step(0.1, "PENDING", "PENDING", "PENDING"),
        Step(0.2, "RUNNING", "PENDING", "RUNNING"), Step(0.3, "RUNNING", "RUNNING", "RUNNING"),
        Step(0.6, "COMPLETED", "RUNNING", "COMPLETED"), Step(0.7, "COMPLETED", "COMPLETED", "COMPLETED"),
        Step(0.9, None, "COMPLETED", "COMPLETED"),
    ),
    "cancelled, and its processes live on": (
        Step(0.0, "RUNNING", "RUNNING", "RUNNING"), Step(0.3, "COMPLETING", "CANCELLED by 0", "COMPLETING"),
        Step(0.7, "CANCELLED", "CANCELLED by 0", "CANCELLED"), Step(0.9, None, "CANCELLED by 0", "CANCELLED"),
    ),
    "preempted, and put back": (
        Step(0.0, "RUNNING", "RUNNING", "RUNNING"), Step(0.2, "COMPLETING", "PREEMPTED", "COMPLETING"),
        Step(0.3, "PENDING", "PREEMPTED", "PENDING"), Step(0.6, "RUNNING", "PREEMPTED", "RUNNING"),
        Step(0.65, "RUNNING", "RUNNING", "RUNNING"), Step(0.9, "FAILED", "FAILED", "FAILED"),
    ),
    "its node fails, and it is put back": (
        Step(0.0, "RUNNING", "RUNNING", "RUNNING"), Step(0.3, "PENDING", "NODE_FAIL", "PENDING"),
        Step(0.6, "RUNNING", "RUNNING", "RUNNING"), Step(0.8, "TIMEOUT", "TIMEOUT", "TIMEOUT"),
    ),
    "out of memory": (
        Step(0.0, "RUNNING", "RUNNING", "RUNNING"), Step(0.5, "OUT_OF_MEMORY", "RUNNING", "OUT_OF_MEMORY"),
        Step(0.6, None, "OUT_OF_MEMORY", "OUT_OF_MEMORY"),
    ),
}  # fmt: skip


class World:
    """One job of the id 7, and the two who tell of it."""

    def __init__(self, dice: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.way = WAYS[dice.choice(sorted(WAYS))]
        self.length = dice.uniform(300, 1200)
        self.reused = dice.random() < 0.3
        at = dice.uniform(0, self.length)
        self.faults = [
            (who, dice.choice(("fails", "hangs", "is empty")[: 3 if who == "sacct" else 2]), at, end)
            for who in dice.choice((("squeue",), ("sacct",), ("squeue", "sacct")))
            for end in [at + dice.uniform(60, 300)]
        ]
        monkeypatch.setattr(shelf_module, "_now", lambda: self.now)
        world = self

        class Clock(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # noqa: ARG003
                return START + timedelta(seconds=world.now - 1000.0)

        monkeypatch.setattr(status_module, "datetime", Clock)

    @property
    def step(self) -> Step:
        part = (self.now - 1000.0) / self.length
        return [step for step in self.way if step.at <= part][-1]

    def away(self, who: str) -> str | None:
        since = self.now - 1000.0
        return next((how for name, how, at, end in self.faults if name == who and at <= since < end), None)

    @property
    def healthy(self) -> bool:
        return not (self.away("squeue") or self.away("sacct"))

    def told(self, argv: Sequence[str]) -> Answer:
        who, how = argv[0], self.away(argv[0])
        argv_recorded = recorded_argv(who)
        if how == "hangs":
            self.now += 60 if who == "squeue" else 0
            return Answer(argv_recorded, None, "", f"{who}: no answer in 60 s")
        if how == "is empty":
            return Answer(argv_recorded, 0, "", "")
        if how == "fails":
            text = {"squeue": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"}
            return Answer(argv_recorded, 1, "", text.get(who, "sacct: error: Connection refused"))
        state = self.step.queue if who == "squeue" else self.step.accounting
        out = self.row(who, state, EPOCH) if state is not None else ""
        if who == "sacct" and self.reused and state is None:
            out = self.row(who, "COMPLETED", EPOCH - 400 * 86400)
        return Answer(argv_recorded, 0, out, "")

    def row(self, who: str, state: str, submit: int) -> str:
        fields = queue_fields() if who == "squeue" else accounting_fields()
        over = state.split()[0] not in ("PENDING", "RUNNING", "COMPLETING")
        end = str(int(EPOCH + self.now - 1000.0)) if over else "Unknown"
        known = {
            "JobArrayID": "7", "JobID": "7", "JobIDRaw": "7", "Cluster": "c", "UserName": "root", "User": "root",
            "State": state, "SubmitTime": str(submit), "Submit": str(submit), "StartTime": str(submit), "EndTime": end,
            "End": end if submit == EPOCH else str(submit + 100), "ExitCode": "0:0", "exit_code": "0", "Start": str(submit),
        }  # fmt: skip
        return "".join(f"{known.get(name, '')}{SEPARATOR}" for name in fields) + "\n"

    def process(self) -> Slurm:
        return Slurm(run=Replay(squeue=self.told, sacct=self.told), env={}, shelf=shelf_here())


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 10))])
def test_no_false_end_is_told_and_the_next_look_is_right(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = silent = 0
    for number in range(20):
        world = World(random.Random(f"{part} {number}"), monkeypatch)
        world.now += number * 1e6  # no answer of another world
        offset = world.now - 1000.0
        world.faults = [(who, how, at + offset, end + offset) for who, how, at, end in world.faults]
        world.way = tuple(step._replace(at=step.at + offset / world.length) for step in world.way)
        processes = [world.process(), world.process()]
        until = world.now + world.length + 120
        while world.now < until:
            for slurm in processes:
                began, healthy = world.step, world.healthy
                looks += 1
                try:
                    report = status(slurm, user="root", selections=select(["7"]))
                except SlurmUnreachable:
                    silent += 1
                    assert not healthy
                    known = last_known(slurm, user="root", selections=select(["7"]))
                    assert known is None or known.age > 0
                    continue
                (job,) = report.jobs
                of_this = job.submit is None or job.submit >= START
                if job.state.is_final and of_this:
                    assert job.state.value in (began.truth, world.step.truth), (world.faults, began)
                if healthy and world.healthy and report.age == 0 and began == world.step and of_this:
                    lost = job.state.value == "UNKNOWN" and began.queue is None
                    assert job.state.value == began.truth or lost
            world.now += 30
    assert looks > 200
    assert silent


def test_a_wait_takes_no_end_of_an_earlier_job_of_the_same_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue has shown the job, falls silent, and accounting has not heard of it yet: it tells of last year's."""
    world = World(random.Random("reused"), monkeypatch)
    world.way, world.length, world.reused = WAYS["completed"], 1000.0, True
    world.faults = [("squeue", "fails", 10.0, 90.0)]
    heard: list[str] = []

    def pause(seconds: float) -> None:
        world.now += seconds

    ended = wait_for(
        world.process(),
        select(["7"]),
        user="root",
        say=heard.append,
        pause=pause,
        clock=lambda: world.now,
    )
    assert exit_code(ended) == 0
    assert world.step.truth == "COMPLETED"
    assert heard[:2] == ["PENDING", heard[1]]
    assert "RUNNING" in heard
