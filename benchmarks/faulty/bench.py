"""Where trials are made: a real Slurm with jobs that all may read, and what the trials came to."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faulty.commands import Client, Said, Truth
from benchmarks.faulty.trials import DISKS, WAITING, Cell, Trial
from tests.slurm.throwaway import ThrowawaySlurm

__all__ = ["FLAWS", "Bench", "Chaos", "Report", "bench_of"]

ROOT = Path(__file__).resolve().parents[2]
FLAWS = ("duplicates", "lost", "wrong_reports", "waits_ended_by_a_read_error", "no_job_said")


@dataclass
class Count:
    """What the trials of a cell came to."""

    trials: int = 0
    disturbed: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    flaws: Counter[str] = field(default_factory=Counter)
    forgotten: int = 0


@dataclass
class Report:
    cells: dict[Cell, Count] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, trial: Trial) -> None:
        with self.lock:
            count = self.cells.setdefault(trial.cell, Count())
            count.trials += 1
            count.disturbed += trial.disturbed
            count.endings[str(trial.said.code)] += 1
            count.flaws.update(set(trial.flaws))
            count.forgotten += trial.forgotten

    def summary(self) -> dict[str, dict[str, int]]:
        """The sums of slurmgpu, and of each of the others."""
        found: dict[str, dict[str, int]] = {}
        for cell, count in self.cells.items():
            name = "slurmgpu" if cell.tool == "slurmgpu" else cell.command
            row = found.setdefault(
                name, dict.fromkeys(("trials", "disturbed", *FLAWS, "forgotten_by_slurm"), 0)
            )
            row["trials"] += count.trials
            row["disturbed"] += count.disturbed
            row["forgotten_by_slurm"] += count.forgotten
            for flaw in FLAWS:
                row[flaw] += count.flaws[flaw]
        return dict(sorted(found.items()))

    def table(self) -> list[dict[str, Any]]:
        return [
            {**cell._asdict(), "trials": count.trials, "disturbed": count.disturbed}
            | {flaw: count.flaws[flaw] for flaw in FLAWS}
            | {"forgotten_by_slurm": count.forgotten, "exit_codes": dict(sorted(count.endings.items()))}
            for cell, count in sorted(self.cells.items())
        ]


class Chaos:
    """The controller ended under a batch of trials, a moment after the first of them has come, and started again."""

    def __init__(self, bench: Bench, fault: str, size: int) -> None:
        self.bench, self.fault = bench, fault
        self.barrier, self.over = threading.Barrier(size + 1), threading.Event()

    def come(self, dice: random.Random) -> None:
        """Wait for the others of the batch."""
        self.meet()
        time.sleep(dice.uniform(0, 1.5))

    def meet(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # without those that failed before
            self.barrier.wait(60)

    def cause(self, dice: random.Random) -> None:
        self.meet()
        time.sleep(dice.uniform(0.3, 2))
        keeper = self.bench.slurm._started.keeper
        if self.fault == "controller killed":
            keeper.signal("slurmctld", signal.SIGKILL)
            keeper.wait("its end", lambda: "slurmctld" not in keeper.running(), 60, despite=("slurmctld",))
        else:
            keeper.stop("slurmctld")
        time.sleep(dice.uniform(0.2, 3))
        keeper.restart("slurmctld")
        while "UP" not in self.bench.slurm.run(["scontrol", "ping"]).stdout:
            time.sleep(0.1)
        # One that has forgotten jobs gives their ids to others, and drains the nodes on which both have been.
        self.bench.slurm.run(["scontrol", "update", "NodeName=node[1-4]", "State=RESUME"])
        self.over.set()


class Bench:
    """A real Slurm, jobs that all trials may read, and what the trials came to."""

    def __init__(self, slurm: ThrowawaySlurm, folder: Path, seed: int, report: Report) -> None:
        self.slurm, self.folder, self.seed, self.report = slurm, folder, seed, report
        self.conf, self.port = (slurm.folder / "slurm.conf").read_text(), slurm._started.state.ports[0]
        self.truth = Truth(slurm)
        self.env = slurm.env | {
            "PATH": f"{Path(sys.executable).parent}:{slurm.env['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "SLURMGPU_SITE": str(folder / "site"),
            "NO_COLOR": "1",
        }
        self.shared = {held: self.shared_job(held) for held in (False, True)}

    def shared_job(self, held: bool) -> tuple[str, int, str]:
        """A job that is held, or runs on and on: its name, id and run directory."""
        name = "held" if held else "running"
        folder = self.folder / name
        folder.mkdir()
        (folder / "script.sh").write_text("echo a line\nexec sleep 100000\n")
        argv = ["slurmgpu", "submit", "--json", "--gpus", "1", "--job-name", name]
        argv += [*(["--hold"] if held else []), "--", "bash", "script.sh"]
        said = Client(argv, self.env, folder).said()
        run = json.loads(said.out)
        if not self.truth.wait(name, lambda job: job.state == ("PENDING" if held else "RUNNING")):
            raise SystemExit(f"the job that is to be read does not run: {said}")
        asked = ["sacct", "-n", "-X", "-P", "-j", str(run["job_id"]), "-o", "State,Partition"]
        while self.slurm.run(asked).stdout.strip() not in ("PENDING|gpu", "RUNNING|gpu"):
            time.sleep(0.3)  # accounting hears of it some seconds later
        return name, run["job_id"], run["run_dir"]

    def settle(self, trial: Trial, run: str) -> Said:
        """What `slurmgpu runs settle` says of a run when Slurm answers again."""
        return Client(["slurmgpu", "runs", "settle", run], self.env, trial.folder).said()

    @contextlib.contextmanager
    def disk(self, trial: Trial, name: str) -> Iterator[None]:
        """A small disk below the trial's folder that is full but for some pages, or read-only at once or soon."""
        fault, folder = trial.cell.fault, trial.folder / name
        if fault not in DISKS:
            yield
            return
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
        if fault == "disk full":
            with (folder / "filler").open("wb") as file:
                file.write(bytes(4096 * (64 - trial.dice.randrange(14))))
        else:
            moment = trial.dice.uniform(0, 0.5) if trial.index % 2 else 0.0
            timer = threading.Timer(moment, lambda: _read_only(folder))
            timer.start()
            if not moment:
                timer.join()
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", folder], check=True)

    def forget(self, trial: Trial) -> None:
        self.slurm.run(["scancel", "-n", trial.name])

    def complain(self, trial: Trial, what: str) -> None:
        said = f"{trial.cell}, trial {trial.index}: {what}\n{trial.said}"
        self.report.failures.append(said.replace(str(self.folder), "FOLDER").replace(str(ROOT), "ROOT"))
        print(f"FAILED {said}", flush=True)

    def one(self, cell: Cell, index: int, chaos: Chaos | None = None) -> None:
        """A trial, again where it could not begin."""
        for _ in range(3):
            try:
                self.report.add(Trial(self, cell, index, chaos).run())
                return
            except Exception as error:
                print(f"{cell}, trial {index} failed: {error!r}"[:600], flush=True)
                if chaos:
                    chaos.barrier.abort()
        self.report.failures.append(f"{cell}, trial {index}: it could not be made")

    def side_by_side(self, cells: list[Cell], indexes: range) -> None:
        """Trials that disturb nobody else; those that mostly wait in more threads."""
        with ThreadPoolExecutor(40) as patient, ThreadPoolExecutor(20) as others:
            pairs = [(cell, index) for index in indexes for cell in cells]
            for cell, index in pairs:
                (patient if cell.command in WAITING else others).submit(self.one, cell, index)

    def batch(self, fault: str, commands: tuple[str, ...], indexes: range) -> None:
        """Trials under which the controller goes and comes back."""
        chaos = Chaos(self, fault, len(commands) * len(indexes))
        with ThreadPoolExecutor(len(commands) * len(indexes)) as pool:
            for command in commands:
                for index in indexes:
                    pool.submit(self.one, Cell(command, fault), index, chaos)
            chaos.cause(random.Random(f"{self.seed} {fault} {indexes}"))


def _read_only(folder: Path) -> None:
    """A disk is busy while a file on it is being written."""
    while subprocess.run(["mount", "-o", "remount,ro", folder], capture_output=True).returncode:
        if not folder.is_mount():
            return
        time.sleep(0.01)


@contextlib.contextmanager
def bench_of(seed: int, report: Report) -> Iterator[Bench]:
    with ThrowawaySlurm() as slurm, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bench = Bench(slurm, Path(folder).resolve(), seed, report)
        try:
            yield bench
        finally:
            bench.truth.ended = True
            bench.truth.thread.join()
