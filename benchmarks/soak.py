"""Kills trainings at random moments, starts them again, and holds what comes out against an undisturbed run.

    python benchmarks/soak.py [--strategy fsdp2] [--kills N] [--damages N] [--flips N] [--seed N] [--json FILE]

Over single and ddp (2 processes), 0 and 2 loader workers, accumulation 1 and 4, fp32, and fp16 where two processes
accumulate; and over the kinds of training in ``soaked.py``, each of which has a state of its own. A disturbance is a signal
(KILL, TERM, USR1, USR2) to one rank, to all, or to the launcher, at a random moment; a KILL inside a save, before a sync or
between write and rename; a disk that says it is full for a few writes; or one that is: the checkpoints of every other training
lie on a small tmpfs, where this may mount one. Every run must end with the same losses and evaluations in hex, and the same
weights, optimizer and random states as the undisturbed one, and a plain one with every sample exactly once an epoch. After
TERM, USR1 and USR2 nothing may be lost; after a KILL no more than one interval of checkpoints.

Between two starts, a file of the newest checkpoint may be damaged: the next start has to go on from the one before, and to end
no differently. At last single bits are flipped in checkpoints of each kind, and neither reader may take them for whole.

The ranks are forked from this process, which has torch loaded: hundreds of starts take minutes, not hours.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import hashlib
import importlib
import itertools
import json
import os
import platform
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.damaging import DAMAGES, accepted_flips, generations, spoil  # noqa: E402
from benchmarks.mounts import can_mount, restart_with_own_mounts  # noqa: E402
from benchmarks.soaked import KINDS  # noqa: E402
from slurmgpu.training import files  # noqa: E402
from slurmgpu.training.__main__ import main as entrypoint  # noqa: E402
from slurmgpu.training.saving.late import LATE, with_late  # noqa: E402

SAMPLES, BATCH, EPOCHS, INTERVAL = 200, 16, 8, 10
STEPS = SAMPLES * EPOCHS // BATCH
TASKS = ROOT / "benchmarks" / "soaked.py"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
PATIENCE = 600.0  # seconds for a start to end by itself
TMPFS = "400k"  # a few checkpoints
KILLS_IN_SAVE = ("in sync", "before rename")
FULL_DISKS = ("disk full", "tmpfs full")
# What a strategy refuses: a step of the task's own, and with stages an average, fp16, a stream and what is generated.
LEFT_OUT = {
    "fsdp2": ("duel", "remembering"),
    "pipeline": ("duel", "remembering", "averaged", "judged", "stopped-early", "streamed"),
}
PRECISION = {"pipeline": "fp32"}


class Setup(NamedTuple):
    """One way to train."""

    processes: int
    workers: int
    accumulate: int
    precision: str = "fp32"
    kind: str = "plain"
    strategy: str = "ddp"

    def __str__(self) -> str:
        strategy = "single" if self.processes == 1 else f"{self.strategy} x{self.processes}"
        return (
            f"{self.kind}, {strategy}, workers {self.workers}, accumulate {self.accumulate}, {self.precision}"
        )


class Fault(NamedTuple):
    """A disturbance: what, to whom (a rank, ``all``, ``launcher``), and when (seconds, or the n-th write)."""

    kind: str
    target: str = ""
    when: float = 0.0


@dataclass
class Report:
    """What the disturbances of a soak did."""

    disturbances: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    runs: int = 0
    lost_by_kill: list[int] = field(default_factory=list)
    lost_by_signal: list[int] = field(default_factory=list)
    lost_by_damage: list[int] = field(default_factory=list)
    damages: Counter[str] = field(default_factory=Counter)
    damaged_parts: Counter[str] = field(default_factory=Counter)
    flips: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """All disturbances that ended a start, or were to."""
        return sum(count for name, count in self.disturbances.items() if name not in FULL_DISKS)


class Run:
    """A training in a directory of its own, started as often as it takes."""

    def __init__(self, folder: Path, setup: Setup, *, tmpfs: bool = False) -> None:
        self.folder, self.setup, self.starts, self.tmpfs = folder, setup, 0, tmpfs
        self.endings: dict[int, tuple[Fault, list[int]]] = {}
        # Of the starts before which a checkpoint was damaged: the step to go on from.
        self.fallbacks: dict[int, int] = {}
        checkpoints = folder / "checkpoints"
        checkpoints.mkdir(parents=True)
        if tmpfs:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={TMPFS}", "tmpfs", checkpoints], check=True)
        task, own = KINDS[setup.kind]
        settings = {
            "schema": "slurmgpu.train/1",
            "task": f"{TASKS}:{task}",
            "strategy": setup.strategy if setup.processes > 1 else "single",
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "accumulate": setup.accumulate,
            "precision": setup.precision,
            "init_scale": 2.0**30,  # falls at first, with steps left out
            "workers": setup.workers,
            "log_every": 1,
            "checkpoint_every": 1000,
            "checkpoint_steps": INTERVAL,
            "timeout": 240.0,
            **own,
        }
        (folder / "train.json").write_text(json.dumps(settings))

    def start(self, fault: Fault, pause: float) -> list[int]:
        """Start all ranks under a launcher, disturb them, and wait for the end; the ranks' exit codes."""
        port = _free_port()
        codes = self.folder / f"codes-{self.starts}"
        launcher = os.fork()
        if not launcher:
            os.setpgid(0, 0)
            _launch(lambda rank: self._environment(rank, port, pause), self.setup.processes, codes, fault)
        with contextlib.suppress(OSError):
            os.setpgid(launcher, launcher)  # whoever is first
        if fault.kind.startswith("SIG"):
            time.sleep(fault.when)
            self._disturb(launcher, codes, fault)
        elif fault.kind == "tmpfs full":
            time.sleep(fault.when)
            self._fill(seconds=0.5)
        _wait(launcher, PATIENCE)
        self.starts += 1
        return [int(text) for text in codes.read_text().split()] if codes.exists() else []

    def _disturb(self, launcher: int, codes: Path, fault: Fault) -> None:
        ranks = _ranks_of(codes)
        number = getattr(signal, fault.kind)
        if fault.target == "launcher":
            _kill(launcher, number)
            if number == signal.SIGKILL:  # what Slurm does to the rest of a step
                time.sleep(random.uniform(0, 0.05))
                _kill(-launcher, number)  # all of its process group
                _wait_gone(launcher)
            return
        for rank, pid in enumerate(ranks):
            if fault.target in ("all", str(rank)):
                _kill(pid, number)

    def damage(self, dice: random.Random) -> tuple[str, str]:
        """Damage the newest checkpoint, if there is another one and no start has yet to find an earlier damage: how, where."""
        begun, found = self.beginnings(), generations(self.folder / "checkpoints")
        if len(found) < 2 or any(number > max(begun, default=-1) for number in self.fallbacks):
            return "", ""
        kind = dice.choice([each for each in DAMAGES if each != "exchanged" or self.setup.processes > 1])
        name = spoil(self.folder / "checkpoints", kind, dice)
        self.fallbacks[self.starts] = int(found[1].name.removeprefix("step-"))
        return kind, name

    def unmount(self) -> None:
        """Give the small disk back, with what is on it."""
        if self.tmpfs:
            subprocess.run(["umount", self.folder / "checkpoints"], check=True)

    def _fill(self, seconds: float) -> None:
        """Take what is left of the disk, for a while."""
        filler = self.folder / "checkpoints" / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        time.sleep(seconds)
        filler.unlink()

    def _environment(self, rank: int, port: int, pause: float) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SOAK", "MASTER"))}
        ranks = {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_NTASKS": str(self.setup.processes),
        }
        soak = {
            "SOAK_TRACE": str(self.folder / f"trace-{self.starts}-{rank}"),
            "SOAK_PAUSE": str(pause),
            "SOAK_ACCUMULATE": str(self.setup.accumulate),
            "SOAK_LOG": str(self.folder / f"log-{self.starts}-{rank}"),
        }
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        own = {"SLURMGPU_RUN_DIR": str(self.folder), "SLURM_RESTART_COUNT": str(self.starts)}
        return {**kept, **ranks, **meet, **soak, **own}

    def trace(self, start: int) -> list[list[list[int]]]:
        """Sample ids by rank and micro-batch of one start."""
        found = []
        # Of a pipeline's stages the last one has the losses.
        first = self.setup.processes - 1 if self.setup.strategy == "pipeline" else 0
        for rank in range(first, self.setup.processes):
            path = self.folder / f"trace-{start}-{rank}"
            lines = path.read_text().splitlines() if path.exists() else []
            found.append([list(map(int, line.split())) for line in lines])
        return found

    def log(self) -> str:
        """What the ranks of the last start said."""
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"log-{self.starts - 1}-*")))

    def beginnings(self) -> dict[int, int]:
        """The step at which each start (that came so far) began, by its number."""
        return {line["restart"]: line["step"] for line in self.metrics("start")}

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind, of all starts."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    def losses(self) -> dict[int, str]:
        """The loss of each step in hex; where a step stands twice, the highest restart counts."""
        found = {}
        for line in sorted(self.metrics("train"), key=lambda line: int(line["restart"])):
            found[line["step"]] = float(line["values"]["loss"]).hex()
        return found

    def evaluations(self) -> dict[int, dict[str, str]]:
        """What each evaluation found, in hex, by its step; where one stands twice, the highest restart counts."""
        found = {}
        for line in sorted(self.metrics("eval"), key=lambda line: int(line["restart"])):
            values = {name: value for name, value in line["values"].items() if name != "seconds"}
            found[line["step"]] = {name: float(value).hex() for name, value in values.items()}
        return found

    def state(self) -> dict[str, str]:
        """A hash of each part of the last checkpoint: weights, optimizer and schedule, random states of each rank."""
        last = max((self.folder / "checkpoints").glob("step-*/manifest.json"), key=_step_of).parent
        found = {"step": last.name}
        late = torch.load(last / LATE, weights_only=True) if (last / LATE).exists() else {}
        for path in sorted(last.glob("*.pt")):
            part = torch.load(path, weights_only=True)
            if path.name == LATE:
                continue
            if path.name == "training.pt":
                part = {name: each for name, each in with_late(part, late).items() if name != "task"}
            elif path.name == "rank-0.pt" and "task" in late:
                part["task"] = late["task"]
            digest = hashlib.sha256()
            for piece in _pieces(part):
                digest.update(piece)
            found[path.name] = digest.hexdigest()
        return found

    def own(self) -> dict[int, dict[str, str]]:
        """The values of the task's own in each line, in hex; where a step stands twice, the highest restart counts."""
        found = {}
        for line in sorted(self.metrics("train"), key=lambda line: int(line["restart"])):
            values = {name: line["values"][name] for name in ("small", "again") if name in line["values"]}
            found[line["step"]] = {name: float(value).hex() for name, value in values.items()}
        return found

    def judged(self) -> dict[str, Any]:
        """What evaluations have decided, and the weights that are kept for it."""
        last = max((self.folder / "checkpoints").glob("step-*/manifest.json"), key=_step_of)
        facts = json.loads(last.read_text())
        found = {"early_stop": facts["early_stop"], "complete": facts["complete"]}
        if any("failed (" in path.read_text() for path in self.folder.glob("log-*")):
            return found  # the best one may be one that a full disk did not take
        best = facts["best"]
        if best is not None:
            weights = torch.load(last.parents[1] / f"step-{best['step']}" / "model.pt", weights_only=True)
            digest = hashlib.sha256(b"".join(_pieces(weights)))
            found |= {"best": best, "weights": digest.hexdigest()}
        return found

    def samples(self) -> Counter[int]:
        """How often each sample was trained on, in what counts of each start."""
        seen: Counter[int] = Counter()
        beginnings = sorted(self.beginnings().items())
        steps = [step for _, step in beginnings]
        # After damage a start may begin before the one that came before it, and takes that one's steps again, too.
        ends = [min([*steps[at + 1 :], STEPS]) for at in range(len(steps))]
        for (number, first), end in zip(beginnings, ends, strict=True):
            for rows in self.trace(number):
                for row in rows[: max(0, end - first) * self.setup.accumulate]:
                    seen.update(row)
        return seen

    def reached(self, number: int) -> int:
        """The last step whose loss a start has computed whole on all ranks."""
        rows = min(len(each) for each in self.trace(number))
        return self.beginnings()[number] + rows // self.setup.accumulate


def _step_of(manifest: Path) -> int:
    return int(manifest.parent.name.removeprefix("step-"))


def _pieces(value: Any) -> Iterator[bytes]:
    """The bytes of a state, whatever it is made of."""
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield bytes(value.contiguous().flatten().view(torch.uint8).tolist())
    elif isinstance(value, dict):
        for key, each in value.items():
            yield repr(key).encode()
            yield from _pieces(each)
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)}".encode()
        for each in value:
            yield from _pieces(each)
    else:
        yield repr(value).encode()


def _launch(environment: Callable[[int], dict[str, str]], processes: int, codes: Path, fault: Fault) -> None:
    """The launcher, a process of its own: forks the ranks, hands on TERM, ends the rest when one has failed."""
    pids: list[int] = []

    def hand_on(number: int, _frame: Any) -> None:
        for pid in pids:
            _kill(pid, number)

    try:
        for number in SIGNALS:
            signal.signal(number, hand_on)
        for rank in range(processes):
            pids.append(_rank(environment(rank), fault if str(rank) == fault.target else Fault("")))
        codes.with_suffix(".pids").write_text(" ".join(map(str, pids)))
        ended: dict[int, int] = {}
        failed_at = 0.0
        while len(ended) < processes:
            for pid in pids:
                if pid not in ended:
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        ended[pid] = os.waitstatus_to_exitcode(status)
            if not failed_at and any(code not in (0, 75) for code in ended.values()):
                failed_at = time.monotonic()
            if failed_at and time.monotonic() - failed_at > 2:
                for pid in pids:
                    if pid not in ended:
                        _kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        codes.write_text(" ".join(str(ended[pid]) for pid in pids))
    finally:
        os._exit(0)


def _rank(environment: dict[str, str], fault: Fault) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        log = os.open(environment["SOAK_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        torch.set_num_threads(1)
        _plant(fault)
        entrypoint([], os.environ)
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(99)


def _plant(fault: Fault) -> None:
    """A fault inside the saving: before a sync, between write and rename, or a disk that is full."""
    if fault.kind not in (*KILLS_IN_SAVE, "disk full"):
        return
    name = "_rename" if fault.kind == "before rename" else "_sync"
    real, count = getattr(files, name), [0]

    def planted(*arguments: Any) -> None:
        count[0] += 1
        if fault.kind == "disk full":
            if fault.when <= count[0] < fault.when + 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif count[0] >= fault.when:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*arguments)

    setattr(files, name, planted)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _ranks_of(codes: Path) -> list[int]:
    path = codes.with_suffix(".pids")
    return [int(text) for text in path.read_text().split()] if path.exists() else []


def _wait(pid: int, patience: float) -> None:
    """Wait for a child; one that does not end is a failure, and is ended."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.005)
    _kill(-pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _wait_gone(group: int) -> None:
    """Wait until no process of a group is left but those that only wait to be collected."""
    until = time.monotonic() + 20
    while time.monotonic() < until and any(_group_of(path) == group for path in Path("/proc").glob("[0-9]*")):
        time.sleep(0.01)


def _group_of(process: Path) -> int:
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[2])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def draw(dice: random.Random, setup: Setup, longest: float, tmpfs: bool) -> Fault:
    """A disturbance, by chance."""
    rank = str(dice.randrange(setup.processes))
    full = "tmpfs full" if tmpfs else "disk full"
    kind = dice.choice(["signal"] * 6 + [*KILLS_IN_SAVE, full])
    if kind == "tmpfs full":
        return Fault(kind, when=dice.uniform(0.3 * longest, longest))
    if kind != "signal":
        # The lock takes the first two writes of rank 0, and each checkpoint one to four.
        return Fault(kind, rank, dice.randrange(3 if rank == "0" else 1, 16 if rank == "0" else 6))
    number = dice.choice(["SIGKILL"] * 3 + ["SIGTERM", "SIGUSR1", "SIGUSR2"])
    target = dice.choice([rank, "all", "launcher"])
    return Fault(number, target, dice.uniform(0.0, longest))


class Amount(NamedTuple):
    """How much of what is done."""

    kills: int
    damages: int
    flips: int

    def share(self, number: int, of: int) -> Amount:
        """That of one of several setups."""
        return Amount(*(each * (number + 1) // of - each * number // of for each in self))


def soak(
    setup: Setup, folder: Path, amount: Amount, dice: random.Random, pause: float, report: Report
) -> None:
    """Runs of one setup until so many kills are done, each held against the undisturbed one."""
    kills, damaged = amount.kills, 0
    undisturbed = Run(folder / "undisturbed", setup)
    began = time.monotonic()
    codes = undisturbed.start(Fault(""), pause)
    longest = 0.9 * (time.monotonic() - began)
    if set(codes) != {0}:
        raise SystemExit(f"{setup}: the undisturbed run ended with {codes}; see {undisturbed.folder}")
    expected = _outcome(undisturbed)
    scratch = folder / "flips"
    scratch.mkdir()
    accepted = accepted_flips(undisturbed.folder / "checkpoints", amount.flips, dice, scratch)
    report.flips += amount.flips
    report.failures += [f"{setup}: a flipped bit in {one} is taken for whole" for one in accepted]
    done = 0
    while done < kills or damaged < amount.damages:
        run = Run(folder / f"run-{report.runs}", setup, tmpfs=can_mount() and report.runs % 2 == 1)
        report.runs += 1
        while True:
            left = done < kills or damaged < amount.damages
            fault = draw(dice, setup, longest, run.tmpfs) if left else Fault("")
            codes = run.start(fault, pause)
            report.starts += 1
            # What came too late, after the end, is no kill; nor is a disk that was full when nothing was saved.
            hit = "No space left" in run.log() if fault.kind in FULL_DISKS else set(codes) != {0}
            if fault.kind and hit:
                what = (
                    f"{fault.kind} to {fault.target if fault.target in ('all', 'launcher') else 'one rank'}"
                )
                report.disturbances[what if fault.kind.startswith("SIG") else fault.kind] += 1
                done += fault.kind not in FULL_DISKS
            if codes and set(codes) == {0}:
                break
            _judge_end(run, fault, codes, report)
            if len(report.failures) > 20 or run.starts > 60:
                report.failures.append(f"{run.folder}: does not come to an end")
                return
            if damaged < amount.damages and dice.random() < 0.5 and (found := run.damage(dice))[0]:
                damaged += 1
                report.damages[found[0]] += 1
                report.damaged_parts[re.sub(r"-\d+", "-R", found[1])] += 1
        _judge_losses(run, report)
        _judge_words(run, report)
        _judge_outcome(run, expected, report)
        run.unmount()


def _outcome(run: Run) -> dict[str, Any]:
    """All that a training came to."""
    return {
        "losses": run.losses(),
        "own": run.own(),
        "evaluations": run.evaluations(),
        **run.judged(),
        **run.state(),
    }


def _judge_outcome(run: Run, expected: dict[str, Any], report: Report) -> None:
    """A finished training must have come to what the undisturbed one came to."""
    outcome = _outcome(run)
    for name in {**expected, **outcome}:
        if name in ("best", "weights") and name not in outcome:
            continue
        if outcome.get(name) != expected.get(name):
            report.failures.append(f"{run.folder} ({run.setup}): {name} differs from the undisturbed run's")
    if run.setup.kind == "plain" and run.samples() != Counter(dict.fromkeys(range(SAMPLES), EPOCHS)):
        report.failures.append(f"{run.folder} ({run.setup}): not every sample exactly {EPOCHS} times")


def _judge_end(run: Run, fault: Fault, codes: list[int], report: Report) -> None:
    """A start that did not end the training must have ended in one of the ways that are expected."""
    allowed = {0, 1, 75, -9, 128 + signal.SIGTERM, 128 + signal.SIGUSR1, 128 + signal.SIGUSR2}
    killed = fault.kind in ("SIGKILL", *KILLS_IN_SAVE, *FULL_DISKS)
    orderly = fault.kind in ("SIGTERM", "SIGUSR1", "SIGUSR2")
    logs = run.log()
    bad = not codes and fault.target != "launcher"
    bad = bad or not set(codes) <= allowed or (not killed and not orderly)
    # The loader workers of a rank that was killed complain in their own way.
    bad = bad or ("Traceback" in logs and not killed)
    bad = bad or "no checkpoint in" in logs or ("is damaged" in logs and not run.fallbacks)
    if bad:
        report.failures.append(f"{run.folder}, start {run.starts - 1}: {fault} gave {codes}: {logs[-1500:]}")
    run.endings[run.starts - 1] = (fault, codes)


def _judge_words(run: Run, report: Report) -> None:
    """Of each damage, one line must have said why the checkpoint was not taken, and which one was."""
    said = "".join(path.read_text() for path in run.folder.glob("log-*"))
    for step in run.fallbacks.values():
        if not re.search(
            rf"checkpoint step-\d+ is damaged \(.+\), set aside .* falling back to step-{step}\n", said
        ):
            report.failures.append(f"{run.folder}: no line says why step {step} was gone on from")


def _judge_losses(run: Run, report: Report) -> None:
    """How many steps each start lost: those it had computed and the next one computed again."""
    beginnings = sorted(run.beginnings().items())
    for (number, _), (following, resumed) in itertools.pairwise(beginnings):
        fault, codes = run.endings[number]
        lost = max(0, run.reached(number) - resumed)
        fallback = next((step for start, step in run.fallbacks.items() if number < start <= following), None)
        if fallback is not None:
            report.lost_by_damage.append(lost)
            if resumed != fallback:
                report.failures.append(
                    f"{run.folder}, start {following}: began at step {resumed}, and not at {fallback}, after damage"
                )
        elif set(codes) == {75}:
            report.lost_by_signal.append(lost)
            if lost:
                report.failures.append(f"{run.folder}, start {number}: {lost} steps lost after {fault.kind}")
        elif fault.kind not in FULL_DISKS:
            report.lost_by_kill.append(lost)
            if lost > INTERVAL:
                report.failures.append(f"{run.folder}, start {number}: {lost} steps lost after {fault}")


def document(report: Report, given: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """The figures, for the file of results."""
    lost = sorted(report.lost_by_kill)
    return {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "soak",
        "setting": {
            "strategy": given.strategy,
            "kinds": given.kinds,
            "seed": given.seed,
            "steps": STEPS,
            "interval": INTERVAL,
            "pause": given.pause,
        },
        "machine": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load": [round(each, 1) for each in os.getloadavg()],  # over 1, 5, 15 minutes, with its own
            "python": platform.python_version(),
        },
        "versions": {"torch": torch.__version__},
        "seconds": round(seconds),
        "results": {
            "kills": report.kills,
            "disturbances": dict(sorted(report.disturbances.items())),
            "runs": report.runs,
            "starts": report.starts,
            "full_tmpfs": "tried" if can_mount() else "left out: this may not mount a tmpfs",
            "steps_lost_by_kill": {
                "count": len(lost),
                "median": lost[len(lost) // 2] if lost else None,
                "largest": lost[-1] if lost else None,
                "beyond_one_interval": sum(each > INTERVAL for each in lost),
            },
            "damaged_checkpoints": dict(sorted(report.damages.items())),
            "damaged_parts": dict(sorted(report.damaged_parts.items())),
            "flipped_bits": {
                "flipped": report.flips,
                "taken_for_whole": sum("a flipped bit" in each for each in report.failures),
            },
            "steps_lost_by_damage": {
                "count": len(report.lost_by_damage),
                "largest": max(report.lost_by_damage, default=None),
            },
            "steps_lost_by_signal": {
                "count": len(report.lost_by_signal),
                "largest": max(report.lost_by_signal, default=None),
            },
            "failures": report.failures,
        },
    }


def keep(result: dict[str, Any], given: argparse.Namespace) -> None:
    """Write the figures down, by themselves or after those of other soaks."""
    if given.add:
        there = json.loads(given.json.read_text())["parts"] if given.json.exists() else []
        others = [each for each in there if each["setting"] != result["setting"]]
        result = {"schema": result["schema"], "benchmark": "soak_sharded", "parts": [*others, result]}
    given.json.write_text(json.dumps(result, indent=1) + "\n")


def preload(strategy: str) -> None:
    """Load here what each rank would load for itself, which takes longer than its training."""
    importlib.import_module("slurmgpu.training.trainer")
    if strategy != "ddp":
        for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"):
            with contextlib.suppress(ImportError):  # an older torch has not all of them
                importlib.import_module(name)


def setups_of(strategy: str, given: argparse.Namespace) -> list[Setup]:
    """The ways to train with a strategy."""
    # fp16 on the CPU came with torch 2.3.
    half = "fp16" if hasattr(torch.amp, "GradScaler") else "fp32"
    setups = [
        Setup(p, w, a, half if (p, a) == (2, 4) else "fp32") for p in (1, 2) for w in (0, 2) for a in (1, 4)
    ]
    if given.short:
        setups = [setups[number] for number in (0, 3, 5, 6)]
    others = [name for name in KINDS if name != "plain"] if given.kinds is None else given.kinds
    if given.kinds is not None:
        setups = [] if "plain" not in others else setups
    if given.kinds is not None or not given.short:
        for name in others:
            if name != "plain":
                setups += [Setup(1, 2, 4, "fp32", name), Setup(2, 0, 1, half, name)]
    if strategy == "ddp":
        return setups
    return [
        each._replace(strategy=strategy, precision=PRECISION.get(strategy, each.precision))
        for each in setups
        if each.processes > 1 and each.kind not in LEFT_OUT[strategy]
    ]


def main() -> None:
    """Soak, print, and keep the figures when asked to; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--damages", type=int, default=50, help="checkpoints to damage between starts")
    parser.add_argument("--flips", type=int, default=500, help="bits to flip")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, help="these kinds alone (default: all; with --short plain)"
    )
    parser.add_argument(
        "--strategy",
        choices=("ddp", "fsdp2", "pipeline"),
        default="ddp",
        help="of several processes; others than ddp: of two alone",
    )
    parser.add_argument("--short", action="store_true", help="four of the eight ways to train")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds that a step takes at least")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--add", action="store_true", help="put the figures after those of other soaks")
    given = parser.parse_args()
    restart_with_own_mounts()
    dice, report, began = random.Random(given.seed), Report(), time.monotonic()
    preload(given.strategy)
    setups = setups_of(given.strategy, given)
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        for number, setup in enumerate(setups):
            amount = Amount(given.kills, given.damages, given.flips).share(number, len(setups))
            before = report.kills
            soak(setup, Path(folder, str(number)), amount, dice, given.pause, report)
            print(f"{setup}: {report.kills - before} kills, {report.runs} runs so far", flush=True)
            result = document(report, given, time.monotonic() - began)
            if given.json:
                keep(result, given)
    print(json.dumps(result["results"], indent=1))
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()
