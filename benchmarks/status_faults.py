"""Slurm away across changes of state, on a real one: what `slurmgpu status` then says of jobs, held against what became of them.

    python benchmarks/status_faults.py [--rounds N] [--only FAULT] [--hang SECONDS] [--release NAME] [--json FILE]

In each round jobs are on their ways: one completes, one fails, one is killed, one takes more memory than it may, one more
time, one is cancelled and takes its time to die, one is put back into the queue, one preempted, one loses its node and starts
again, one loses it for good, an array's tasks go on one after the other. In the middle of it squeue, sacct or both fail, hang or
say nothing, or a daemon is ended or stopped. Two processes look again and again, share what they are told, and their answers are
kept.

A look is a false end when it told an end that was none: the job went on after it, or ended otherwise. What is true is read past
the fault: accounting's last word on each job, and the last sign of life of its process. The first look after the fault is mended
is held against squeue and sacct as they are at that moment. Ends with 1 where one look was wrong.

At last the controller forgets everything and gives the same ids again, while accounting knows those who had them before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurmgpu.errors import SlurmUnreachable  # noqa: E402
from slurmgpu.models.run import JobState  # noqa: E402
from slurmgpu.monitoring.select import current_user, select  # noqa: E402
from slurmgpu.monitoring.status import StatusReport, status  # noqa: E402
from slurmgpu.sandbox.faults import cause, heal  # noqa: E402
from slurmgpu.sandbox.state import read_state  # noqa: E402
from slurmgpu.slurm import Slurm, call, shelf_here  # noqa: E402
from tests.slurm.releases import first_on_path, root_for  # noqa: E402
from tests.slurm.throwaway import ThrowawaySlurm  # noqa: E402

COMMANDS = {
    "squeue fails": {"squeue": "fails"}, "squeue hangs": {"squeue": "hangs"}, "sacct fails": {"sacct": "fails"},
    "sacct hangs": {"sacct": "hangs"}, "sacct says nothing": {"sacct": "empty"},
    "both fail": {"squeue": "fails", "sacct": "fails"}, "both hang": {"squeue": "hangs", "sacct": "hangs"},
    "squeue fails, sacct says nothing": {"squeue": "fails", "sacct": "empty"},
}  # fmt: skip
DAEMONS = {
    "controller ended": "controller-down",
    "controller stopped": "controller-hang",
    "slurmdbd ended": "database-down",
}
REUSED = "ids used again"
REAL_PATIENCE = 60.0
FAULTS = (*COMMANDS, *DAEMONS, REUSED)
BEFORE_A_COMMAND = """#!/bin/sh
case $(cat {how} 2>/dev/null) in
fails) echo '{name}: error: Unable to contact slurm controller (connect failure)' >&2; exit 1 ;;
hangs) exec sleep 1000 ;;
empty) exit 0 ;;
esac
exec {program} "$@"
"""
# Each job says that it lives five times a second, and goes on when its gate is opened.
JOB = """#!/bin/sh
alive={folder}/alive.$SLURM_JOB_ID
{trap}
while [ ! -e {gate} ]; do : > "$alive"; sleep 0.2; done
: > "$alive"
{end}
"""
# A time limit of Slurm's is in whole minutes, and the controller looks for those that are over twice in one.
OUT_OF_TIME_AFTER = 95.0
TAKES_300_MB = """exec python3 -c 'import time; kept = b"x" * 300_000_000; time.sleep(60)'"""
DIES_SLOWLY = (
    """trap 'for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do : > "$alive"; sleep 0.4; done; exit 1' TERM"""
)


@dataclass
class Look:
    """What a look told of jobs, and between which two moments."""

    began: float
    ended: float
    states: dict[str, JobState]


@dataclass
class Round:
    """The looks of a round, and what they came to."""

    fault: str
    looks: list[Look] = field(default_factory=list)
    silent: int = 0
    ends: int = 0
    false_ends: list[str] = field(default_factory=list)
    wrong_after: list[str] = field(default_factory=list)
    unknown_after: int = 0
    jobs: int = 0

    def row(self) -> dict[str, Any]:
        return {
            "fault": self.fault, "jobs": self.jobs, "looks": len(self.looks), "looks_without_an_answer": self.silent,
            "ends_told": self.ends, "false_ends": len(self.false_ends), "wrong_at_the_first_look_after": len(self.wrong_after),
            "unknown_at_the_first_look_after": self.unknown_after,
        }  # fmt: skip


class Bench:
    """A Slurm whose controller forgets ended jobs soon, and commands that can be spoilt."""

    def __init__(self, slurm: ThrowawaySlurm, folder: Path, hang: float) -> None:
        self.slurm, self.folder, self.hang = slurm, folder, hang
        (folder / "bin").mkdir()
        for name in ("squeue", "sacct"):
            program = shutil.which(name, path=slurm.env["PATH"])
            path = folder / "bin" / name
            path.write_text(BEFORE_A_COMMAND.format(how=folder / f"{name}.how", name=name, program=program))
            path.chmod(0o755)
        self.env = slurm.env | {
            "PATH": f"{folder / 'bin'}:{slurm.env['PATH']}",
            "XDG_RUNTIME_DIR": str(folder / "session"),
        }
        self.patience = 3.0
        self.watchers = [self.watcher(), self.watcher()]

    def watcher(self) -> Slurm:
        return Slurm(run=self.call, env=self.env, shelf=shelf_here(2.0, self.env))

    def call(self, argv: Sequence[str], *, timeout: float, env: Any = None, cwd: Any = None) -> Any:
        return call(argv, timeout=min(timeout, self.patience), env=env, cwd=cwd)

    def sbatch(self, round_: str, name: str, end: str, *options: str, trap: str = ":") -> str:
        script = self.folder / f"{name}.sh"
        script.write_text(
            JOB.format(folder=self.folder, gate=self.folder / f"{round_}.{name}.go", end=end, trap=trap)
        )
        argv = ["sbatch", "--parsable", "-J", name, "-o", "/dev/null", "-n", "1", "--mem=50M", *options]
        made = self.slurm.run([*argv, str(script)])
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def go(self, round_: str, name: str) -> None:
        (self.folder / f"{round_}.{name}.go").touch()

    def spoil(self, how: dict[str, str]) -> None:
        for name in ("squeue", "sacct"):
            path = self.folder / f"{name}.how"
            path.write_text(how.get(name, "")) if name in how else path.unlink(missing_ok=True)

    def look(self, watcher: Slurm, ids: Sequence[str]) -> tuple[Look, StatusReport | None]:
        """A look of one process, as `slurmgpu status IDS` makes it."""
        began = time.time()
        try:
            report = status(watcher, user=current_user(), selections=select(ids))
        except SlurmUnreachable:
            return Look(began, time.time(), {}), None
        told = {job.job_id: job.state for job in report.jobs}
        # An answer that was shared is about the moment at which it was asked for.
        return Look(min(began, report.time.timestamp()), time.time(), told), report

    def now(self, ids: Sequence[str]) -> dict[str, JobState]:
        """What squeue says past the fault, and of those that it has forgotten sacct."""
        found: dict[str, JobState] = {}
        argv = ["sacct", "-X", "-n", "-P", "-j", ",".join(ids), "-o", "JobID,State"]
        for command in (argv, ["squeue", "-h", "-r", "-t", "all", "-o", "%i|%T"]):
            for line in self.slurm.run(command).stdout.splitlines():
                job_id, _, state = line.partition("|")
                if job_id.partition("_")[0] in ids and "[" not in job_id:
                    found[job_id] = JobState.parse(state)
        return found

    def wait(self, what: str, ready: Callable[[], bool], seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}\n{self.slurm.run(['squeue', '-r']).stdout}")
            time.sleep(0.3)


def submitted(bench: Bench, number: str) -> dict[str, str]:
    """Jobs on their ways, all but one of them at work."""
    on3 = ("-w", "node3")
    make = partial(bench.sbatch, number)
    jobs = {
        "completes": make("completes", "exit 0"), "fails": make("fails", "exit 3"),
        "killed": make("killed", "kill -9 $$"), "goes-on": make("goes-on", "exit 0"),
        "out-of-memory": make("out-of-memory", TAKES_300_MB), "out-of-time": make("out-of-time", "exit 0", "--time=1"),
        "cancelled": make("cancelled", "exit 0", trap=DIES_SLOWLY), "put-back": make("put-back", "exit 0", "--requeue"),
        "preempted": make("preempted", "exit 0", "-p", "preempt", "-w", "node4", "--exclusive", "--requeue"),
        "node-lost": make("node-lost", "exit 0", "--no-requeue", *on3),
        "node-lost-again": make("node-lost-again", "exit 0", "--requeue", *on3),
        "array": make("array", "exit $((SLURM_ARRAY_TASK_ID == 2))", "--array=0-3%2"),
    }  # fmt: skip
    jobs["waits"] = make("waits", "exit 0", f"--dependency=afterany:{jobs['completes']}")
    running = set(jobs.values()) - {jobs["waits"], jobs["array"]}
    bench.wait(
        "the starts", lambda: all(bench.now([one]).get(one) is JobState.RUNNING for one in sorted(running))
    )
    return jobs


def changes(bench: Bench, number: str, jobs: dict[str, str], asks: bool) -> Iterator[None]:
    """What happens to the jobs, one thing after the other; without the controller only what jobs do themselves."""
    run = bench.slurm.run
    for name in ("completes", "fails", "killed", "out-of-memory", "array"):
        bench.go(number, name)
        yield
    if not asks:
        return
    for argv in (
        ["scancel", jobs["cancelled"]],
        ["scontrol", "requeue", jobs["put-back"]],
        [
            "sbatch",
            "-p",
            "gpu",
            "-w",
            "node4",
            "--exclusive",
            "-J",
            "first",
            "-o",
            "/dev/null",
            "--wrap",
            "sleep 6",
        ],
        ["scontrol", "update", "NodeName=node3", "State=DOWN", "Reason=benchmark"],
    ):
        run(argv)
        yield
        yield


def one_round(bench: Bench, fault: str, number: str) -> Round:
    found = Round(fault)
    jobs = submitted(bench, number)
    ids = list(jobs.values())
    watch(bench, ids, found)
    bench.spoil(COMMANDS.get(fault, {}))
    state = read_state(bench.slurm.folder)
    assert state is not None
    if fault in DAEMONS:
        cause(state, bench.slurm.folder, DAEMONS[fault], None)
    lasts = bench.hang if "hang" in fault or "stopped" in fault else 0.0
    if "controller" not in fault:
        lasts = max(lasts, OUT_OF_TIME_AFTER)
    ends_at = time.monotonic() + lasts
    way = changes(bench, number, jobs, asks="controller" not in fault)
    if bench.patience < REAL_PATIENCE:
        for _ in way:
            watch(bench, ids, found)
    else:
        hang_meanwhile(bench, ids, found, way)
    while time.monotonic() < ends_at:
        watch(bench, ids, found)
    bench.spoil({})
    if fault in DAEMONS:
        state = read_state(bench.slurm.folder)
        assert state is not None
        heal(state, bench.slurm.folder)
    first_after(bench, ids, found)
    bench.slurm.run(["scontrol", "update", "NodeName=node3", "State=RESUME"])
    for name in jobs:
        bench.go(number, name)
    over = lambda: all(state.is_final for state in bench.now(ids).values())  # noqa: E731
    while not over():
        watch(bench, ids, found)
    bench.wait("the last words", lambda: len(ends(bench, ids)) >= len(ids) + 3)
    judge(bench, ids, found)
    return found


def watch(bench: Bench, ids: Sequence[str], found: Round) -> None:
    """Each process looks once."""
    for watcher in bench.watchers:
        look, report = bench.look(watcher, ids)
        found.looks.append(look)
        found.silent += report is None
    time.sleep(0.7)


def hang_meanwhile(bench: Bench, ids: Sequence[str], found: Round, way: Iterator[None]) -> None:
    """One look of each process, which hangs for a minute while everything happens."""
    with ThreadPoolExecutor() as pool:
        looking = [pool.submit(bench.look, watcher, ids) for watcher in bench.watchers]
        for _ in way:
            time.sleep(2)
        for one in looking:
            look, report = one.result()
            found.looks.append(look)
            found.silent += report is None


def first_after(bench: Bench, ids: Sequence[str], found: Round) -> None:
    """The first look of a process that asks for itself, held against what is so before and after it."""
    time.sleep(2.1)  # beyond the floor: what failed last is asked again
    while True:
        before = bench.now(ids)
        look, report = bench.look(bench.watchers[0], ids)
        found.looks.append(look)
        after = bench.now(ids)
        for one in sorted(before.keys() & after.keys()):
            told = look.states.get(one)
            if before[one] is not after[one] or (report is not None and told is None and "_" in one):
                continue  # it changed meanwhile, or is told with others that wait
            if told is JobState.UNKNOWN:
                found.unknown_after += 1
            elif told is not before[one]:
                found.wrong_after.append(f"{found.fault}: job {one} was told as {told}, and is {before[one]}")
        return


def ends(bench: Bench, ids: Sequence[str]) -> dict[str, tuple[JobState, float]]:
    """How each job ended, and when its processes and accounting say that it did."""
    env = {"SLURM_TIME_FORMAT": "%s"}
    argv = ["sacct", "-X", "-n", "-P", "-j", ",".join(ids), "-o", "JobID,JobIDRaw,State,End"]
    found = {}
    for line in bench.slurm.run(argv, env=env).stdout.splitlines():
        job_id, raw, word, end = line.split("|")
        state = JobState.parse(word)
        if state.is_final and end.isdigit():
            alive = bench.folder / f"alive.{raw}"
            sign = alive.stat().st_mtime if alive.exists() else 0.0
            found[job_id] = (state, max(float(end), sign))
    return found


def judge(bench: Bench, ids: Sequence[str], found: Round) -> None:
    """Every end that was told, against the one that came."""
    truth = ends(bench, ids)
    found.jobs = len(truth)
    for look in found.looks:
        for one, state in look.states.items():
            if not state.is_final:
                continue
            found.ends += 1
            if one not in truth:
                found.false_ends.append(f"{found.fault}: job {one} was told as {state}, and nobody knows it")
                continue
            came, when = truth[one]
            if state is not came or when > look.ended + 1.0:  # accounting knows whole seconds
                found.false_ends.append(
                    f"{found.fault}: job {one} was told as {state.value} at {look.ended:.1f}; it was {came.value} at {when:.1f}"
                )


def reused(bench: Bench, number: str) -> Round:
    """The controller has forgotten everything, and gives ids again that accounting knows from before."""
    found = Round(REUSED)
    keeper = bench.slurm._started.keeper
    first = bench.sbatch(number, "before", "exit 0")
    bench.go(number, "before")
    bench.wait("its end", lambda: bench.now([first]).get(first, JobState.UNKNOWN).is_final)
    known = bench.slurm.run(["sacct", "-X", "-n", "-P", "-S", "now-1days", "-o", "JobIDRaw"]).stdout.split()
    keeper.stop("slurmctld")
    shutil.rmtree(bench.slurm.folder / "state")
    (bench.slurm.folder / "state").mkdir()
    state = read_state(bench.slurm.folder)
    assert state is not None
    heal(state, bench.slurm.folder)
    jobs = [bench.sbatch(number, f"again{i}", f"exit {i % 2}") for i in range(4)]
    assert set(jobs) <= set(known), (jobs, known)
    for fault in ({}, {"sacct": "fails"}, {"sacct": "hangs"}, {"squeue": "fails"}, {"sacct": "empty"}):
        bench.spoil(fault)
        for _ in range(2):
            watch(bench, jobs, found)
    bench.spoil({})
    for i in range(4):
        bench.go(number, f"again{i}")
        watch(bench, jobs, found)
    bench.wait("their ends", lambda: all(one.is_final for one in bench.now(jobs).values()))
    bench.wait(
        "the last words", lambda: all(end > time.time() - 600 for _, end in ends(bench, jobs).values())
    )
    first_after(bench, jobs, found)
    judge(bench, jobs, found)
    return found


class Forgetful(ThrowawaySlurm):
    """Its controller forgets ended jobs after some seconds, and its nodes end jobs that take too much memory."""

    def _configured(self) -> None:
        super()._configured()
        conf = self.folder / "slurm.conf"
        conf.write_text(
            conf.read_text().replace("MinJobAge=3600", "MinJobAge=15")
            + "JobAcctGatherParams=OverMemoryKill\n"
        )


def main() -> None:
    """Measure, print, and keep the figures when asked to; exit code 1 where a look was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1, help="of each fault")
    parser.add_argument("--only", default="", metavar="FAULT")
    parser.add_argument(
        "--hang", type=float, default=12.0, help="seconds that a fault lasts at least, where it hangs"
    )
    parser.add_argument(
        "--patience", type=float, default=3.0, help="seconds after which a command is given up (60 for users)"
    )
    parser.add_argument("--release", help="of Slurm; default: the installed one")
    parser.add_argument("--json", type=Path, help="add the figures to this file, by release")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if given.release:
            stack.enter_context(first_on_path(root_for(given.release)))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        slurm = stack.enter_context(Forgetful())
        bench = Bench(slurm, folder, given.hang)
        bench.patience = given.patience
        rounds = []
        for number in range(given.rounds):
            for at, fault in enumerate(one for one in FAULTS if given.only in one):
                made = reused if fault == REUSED else partial(one_round, fault=fault)
                rounds.append(made(bench, number=f"{number}.{at}"))
                print(
                    json.dumps(rounds[-1].row()),
                    *rounds[-1].false_ends,
                    *rounds[-1].wrong_after,
                    sep="\n",
                    flush=True,
                )
        if given.json:
            write(given, slurm.version, rounds)
    sys.exit(any(one.false_ends or one.wrong_after for one in rounds))


def write(given: argparse.Namespace, release: str, rounds: list[Round]) -> None:
    """Add what was found to the file, beside what it has of other releases."""
    document = json.loads(given.json.read_text()) if given.json.exists() else {}
    document |= {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "status_faults",
        "machine": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
    }
    rows = [one.row() for one in rounds]
    totals = {key: sum(row[key] for row in rows) for key in rows[0] if key != "fault"}
    setting = {"seconds_of_a_hang": given.hang, "seconds_until_a_command_is_given_up": given.patience}
    results = document.setdefault("results", {})
    key = (
        release
        if given.patience < REAL_PATIENCE
        else f"{release}, hangs of {given.hang:g} s and the real patience"
    )
    results[key] = {"setting": setting, "load": round(os.getloadavg()[0], 1), "total": totals, "rounds": rows}
    given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
