"""10,000 jobs in the text of every release, each with what has become of it: `status` says that, and nothing else.

What is true of a job is drawn first, and Slurm's two answers are written from it, as releases write them: the queue's and
accounting's, which may lag, know an earlier job of the same id, or know the job alone. Slurm's words are those of the manual
pages of squeue and sacct ("JOB STATE CODES"), typed out here anew: the reader's own table is not asked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import pytest

from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import select
from slurmgpu.models.run import JobStatus
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.text import SEPARATOR, Answer
from tests.recorded import RELEASES, Replay, recorded

JOBS = 10_000
NOW = 1_795_300_000


class Fate(NamedTuple):
    """What has become of a job."""

    queue: str
    """The queue's word."""
    accounting: str
    means: str
    """What the user has to be told."""
    over: bool
    code: int = 0
    signal: int = 0


FATES = (
    Fate("PENDING", "PENDING", "PENDING", False), Fate("CONFIGURING", "PENDING", "CONFIGURING", False),
    Fate("RUNNING", "RUNNING", "RUNNING", False), Fate("RESIZING", "RESIZING", "RUNNING", False),
    Fate("SIGNALING", "RUNNING", "RUNNING", False), Fate("SUSPENDED", "SUSPENDED", "SUSPENDED", False),
    Fate("STOPPED", "SUSPENDED", "SUSPENDED", False), Fate("COMPLETING", "COMPLETED", "COMPLETING", False),
    Fate("COMPLETING", "CANCELLED by 1000", "COMPLETING", False),
    Fate("STAGE_OUT", "RUNNING", "COMPLETING", False), Fate("REQUEUED", "REQUEUED", "REQUEUED", False),
    Fate("REQUEUE_HOLD", "REQUEUED", "REQUEUED", False), Fate("SPECIAL_EXIT", "REQUEUED", "REQUEUED", False),
    Fate("COMPLETED", "COMPLETED", "COMPLETED", True), Fate("FAILED", "FAILED", "FAILED", True, code=3),
    Fate("FAILED", "FAILED", "FAILED", True, signal=9), Fate("TIMEOUT", "TIMEOUT", "TIMEOUT", True, signal=15),
    Fate("CANCELLED", "CANCELLED by 1000", "CANCELLED", True, signal=15),
    Fate("CANCELLED", "CANCELLED", "CANCELLED", True),
    Fate("PREEMPTED", "PREEMPTED", "PREEMPTED", True, signal=15),
    Fate("NODE_FAIL", "NODE_FAIL", "NODE_FAIL", True),
    Fate("OUT_OF_MEMORY", "OUT_OF_MEMORY", "OUT_OF_MEMORY", True),
    Fate("OUT_OF_MEMORY", "OUT_OF_MEMORY", "OUT_OF_MEMORY", True, signal=125),
    Fate("BOOT_FAIL", "BOOT_FAIL", "BOOT_FAIL", True), Fate("DEADLINE", "DEADLINE", "DEADLINE", True),
    Fate("LAUNCH_FAILED", "FAILED", "FAILED", True, code=1), Fate("REVOKED", "REVOKED", "REVOKED", True),
    Fate("A_STATE_OF_2031", "A_STATE_OF_2031", "UNKNOWN", False),
)  # fmt: skip
# A name is anything that its user types; some look like what is read.
NAMES = (
    "train", "", " ", "a|b", "COMPLETED", "1", "two\nlines", "\n\n", "7\x1f7\x1f", "\x1f" * 30, "x\r\x1b[2J", "caf\ufffd",
    "1\x1f1\x1fc\x1froot\x1f\n", "n" * 1000, "ünï \"q\" 'x'", "%j", "9|9|c|root|a|gpu|n|COMPLETED|", "\x1e\x85\u2028",
)  # fmt: skip


class Case(NamedTuple):
    job_id: str
    raw_id: int
    name: str
    fate: Fate
    where: str
    """Which of the two know it, and how."""

    @property
    def expected(self) -> str:
        if self.where == "accounting" and not self.fate.over:
            return "UNKNOWN"  # the queue, which answered, has no such job
        return self.fate.means


def cases(dice: random.Random, number: int) -> Iterator[Case]:
    raw = 100
    while number > 0:
        form = dice.choice(("plain", "plain", "array", "hetjob"))
        size = min(number, 1 if form == "plain" else dice.randint(1, 6))
        first = raw
        for part in range(size):
            job_id = {"plain": f"{first}", "array": f"{first}_{part}", "hetjob": f"{first}+{part}"}[form]
            where = dice.choice(("both", "both", "queue", "accounting", "accounting lags", "used before"))
            fate = dice.choice(FATES)
            if fate.queue == "COMPLETING" and where == "accounting":
                where = "both"  # as long as it ends, the queue has it
            name = dice.choice(NAMES) if dice.random() < 0.5 else f"job-{dice.random()}"
            yield Case(job_id, raw, name, fate, where)
            raw += 1
        number -= size


def queue_row(case: Case, release: str) -> str:
    fate = case.fate
    over, waits = fate.over, fate.means in ("PENDING", "REQUEUED")
    known = dict.fromkeys(queue_fields(), "N/A")
    exit_code = f"{fate.code}:{fate.signal}" if release >= "24" else str(fate.code << 8 | fate.signal & 0x7F)
    gpus = {"20.11": "gpu:2", "22.05": "gres:gpu:2"}.get(release, "gres/gpu:2")
    known |= {
        "JobArrayID": case.job_id, "JobID": str(case.raw_id), "Cluster": "c", "UserName": "root",
        "Partition": "gpu", "State": fate.queue, "Reason": "None", "TimeUsed": "1:00", "TimeLimit": "1:00:00",
        "TimeLeft": "59:00", "SubmitTime": str(NOW - 500), "StartTime": "N/A" if waits else str(NOW - 400),
        "EndTime": str(NOW - 100) if over else "N/A", "NumNodes": "1", "NumCPUs": "2", "NodeList": "node1",
        "tres-alloc": "cpu=2,gres/gpu=2", "tres-per-node": gpus, "RestartCnt": "0", "exit_code": exit_code,
        "Name": case.name, "WorkDir": "/scratch/ada", "StdOut": "/scratch/ada/slurm-%j.out" if release >= "24" else "/x.out",
        "Command": "/scratch/ada/script.sh",
    }  # fmt: skip
    return "".join(f"{known[name]}{SEPARATOR}" for name in queue_fields()) + "\n"


def accounting_row(case: Case, release: str, dice: random.Random) -> str:
    fate = case.fate
    state, submit, code = fate.accounting, NOW - 500, f"{fate.code}:{fate.signal}"
    end = str(NOW - 100) if fate.over else "Unknown"
    if case.where == "accounting lags":
        words = {"PENDING", "RUNNING", "REQUEUED", "PREEMPTED", ""} - {fate.accounting}
        state, end, code = dice.choice(sorted(words)), "Unknown", "0:0"
    if case.where == "used before":
        state, submit, end, code = (
            dice.choice(("COMPLETED", "FAILED", "TIMEOUT")),
            1_500_000_000,
            "1500000100",
            "7:0",
        )
    known = dict.fromkeys(accounting_fields(), "")
    known |= {
        "JobID": case.job_id, "JobIDRaw": str(case.raw_id), "Cluster": "c", "User": "root", "State": state,
        "ExitCode": code, "Submit": str(submit), "Start": str(submit + 100), "End": end, "ElapsedRaw": "60",
        "TimelimitRaw": "60", "NNodes": "1", "NCPUS": "2", "AllocTRES": "cpu=2,gres/gpu=2", "NodeList": "node1",
        # sacct makes a backtick of a double quote
        "Reason": "None", "JobName": case.name.replace('"', "`"), "WorkDir": "/scratch/ada",
    }  # fmt: skip
    return "".join(f"{known[name]}{SEPARATOR}" for name in accounting_fields()) + "\n"


@cache
def queue_fields() -> list[str]:
    return [word.partition(":")[0] for word in recorded("squeue").argv[-1].split(",")]


@cache
def accounting_fields() -> list[str]:
    return (
        next(word for word in recorded("sacct").argv if word.startswith("--format="))
        .partition("=")[2]
        .split(",")
    )


def answers(drawn: Sequence[Case], release: str, dice: random.Random) -> Slurm:
    queue = [queue_row(case, release) for case in drawn if case.where != "accounting"]
    accounting = [accounting_row(case, release, dice) for case in drawn if case.where != "queue"]
    dice.shuffle(queue)
    dice.shuffle(accounting)

    def told(argv: Sequence[str]) -> Answer:
        return Answer(recorded(argv[0]).argv, 0, "".join(queue if argv[0] == "squeue" else accounting), "")

    return Slurm(run=Replay(squeue=told, sacct=told), env={})


@pytest.mark.parametrize("release", RELEASES)
def test_no_state_of_10_000_jobs_is_misread(release: str) -> None:
    dice = random.Random(f"states {release}")
    drawn = list(cases(dice, JOBS // len(RELEASES)))
    report = status(answers(drawn, release, dice), user="root")
    shown = {job.job_id: job for job in report.jobs}
    assert len(shown) == len(report.jobs) == len(drawn)
    misread = [
        (case, shown[case.job_id].state.value)
        for case in drawn
        if shown[case.job_id].state.value != case.expected
    ]
    assert misread == []
    assert [note for note in report.notes if "cannot be read" in note] == []
    for case in drawn:
        told = shown[case.job_id]
        assert told.state.is_final is (case.fate.over)
        assert told.name.replace('"', "`") == case.name.replace('"', "`")
        assert told.raw_id == case.raw_id
        assert told.gpus == 2
        if told.state.is_final:
            assert how_it_ended(told) == (case.fate.code, case.fate.signal & 0x7F), case


def how_it_ended(job: JobStatus) -> tuple[int, int]:
    return job.exit_code or 0, job.signal or 0


def test_nothing_is_misread_when_the_queue_is_silent_either() -> None:
    """Accounting alone answers: what it says may be out of date, and no end is told that may not be one."""
    dice = random.Random("silent")
    drawn = [case for case in cases(dice, 1000) if case.where in ("both", "accounting", "accounting lags")]
    slurm = answers(drawn, "22.05", dice)
    assert isinstance(slurm.run, Replay)
    slurm.run.answers = {**slurm.run.answers, "squeue": recorded("squeue_no_controller")}
    report = status(slurm, user="root")
    assert report.no_answer is not None
    cases_by_id = {case.job_id: case for case in drawn}
    for job in report.jobs:
        case = cases_by_id[job.job_id]
        if job.state.is_final:
            assert case.fate.over or case.fate.queue == "COMPLETING", (case, job.state)


def test_what_is_named_is_found_whatever_the_others_are_called() -> None:
    dice = random.Random("named")
    drawn = list(cases(dice, 400))
    for case in dice.sample(drawn, 8):
        (job,) = status(
            answers(drawn, "24.11", dice), user="root", selections=select([case.job_id])
        ).jobs or [None]
        assert job.raw_id == case.raw_id


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_read_is_what_the_model_would_take(release: str) -> None:
    """Rows are not validated once more, so what reads them has to be right about the types."""
    slurm = Slurm(run=Replay(squeue=recorded("squeue", release), sacct=recorded("sacct", release)), env={})
    dice = random.Random(release)
    drawn = list(cases(dice, 300))
    jobs = status(slurm, user="root").jobs + status(answers(drawn, release, dice), user="root").jobs
    for job in jobs:
        assert JobStatus.model_validate(job.model_dump(), strict=True) == job
        assert set(job.model_dump()) == set(JobStatus.model_fields)
