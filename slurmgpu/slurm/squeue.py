"""The queue: one squeue call, read as separated text."""

from __future__ import annotations

from collections.abc import Iterator

from slurmgpu.errors import SlurmRefused
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm.answers import meaning_of
from slurmgpu.slurm.commands import READ_TIMEOUT, Commands, unreachable
from slurmgpu.slurm.ids import JobId, expand_pattern
from slurmgpu.slurm.text import SEPARATOR, known, moment, rows, seconds, whole
from slurmgpu.slurm.tres import gpus_of_job

__all__ = ["FIELDS", "command", "parse", "read"]

# All of these are in every release from 20.11 on; one unknown name would make squeue refuse the whole call.
# The first two are what a row is recognised by.
FIELDS = (
    "JobArrayID", "JobID", "Cluster", "UserName", "Account", "Partition", "QOS", "State", "Reason",
    "TimeUsed", "TimeLimit", "TimeLeft", "SubmitTime", "StartTime", "EndTime", "NumNodes", "NumCPUs",
    "NodeList", "tres-alloc", "tres-per-job", "tres-per-node", "RestartCnt", "exit_code", "Name",
    "WorkDir", "StdOut", "StdErr", "Command", "Dependency",
)  # fmt: skip


def command(user: str | None) -> list[str]:
    """Return the squeue command for one user's jobs (None: everybody's).

    Finished jobs are asked for, too: the controller remembers them for some minutes (MinJobAge), and what it
    says is never behind, as accounting can be.
    """
    fields = ",".join(f"{name}:{SEPARATOR}" for name in FIELDS)
    whose = [] if user is None else [f"--user={user}"]
    return ["squeue", "--noheader", "--noconvert", "--states=all", *whose, "-O", fields]


def read(
    slurm: Commands, user: str | None, *, timeout: float = READ_TIMEOUT
) -> tuple[list[JobStatus], list[str]]:
    """Ask for the jobs of a user (None: everybody's); returns them with notes on rows that cannot be read.

    Raises SlurmUnreachable when there is no answer that could be read, SlurmRefused when squeue or the controller
    says no.
    """
    answer = slurm.ask(command(user), timeout=timeout)
    meaning = meaning_of(answer)
    if meaning == "refused":
        raise SlurmRefused(f"squeue refused (exit status {answer.rc}): {answer.text}")
    if meaning != "answered":
        raise unreachable(answer)
    return parse(answer.stdout)


def parse(text: str) -> tuple[list[JobStatus], list[str]]:
    """Read what `command` prints; rows that are none become notes."""
    good, bad = rows(text, len(FIELDS))
    notes = [f"squeue: a row that cannot be read was left out: {row[:200]!r}" for row in bad]
    return list(_jobs(good, notes)), notes


def _jobs(good: list[list[str]], notes: list[str]) -> Iterator[JobStatus]:
    for row in good:
        fields = dict(zip(FIELDS, row, strict=True))
        shown = fields["JobArrayID"].strip()
        job_id = JobId.parse(shown)
        if job_id is None:
            notes.append(f"squeue: a row with the id {shown!r} was left out: that is not a job id")
            continue
        yield _job(fields, shown, job_id)


def _exit(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal, from a wait status (768 is 3:0) or from a pair."""
    code, colon, signal = text.strip().partition(":")
    if colon:
        return whole(code), whole(signal)
    status = whole(code)
    if status is None:
        return None, None
    # A process that a signal ended has no exit code, whatever the upper bits hold.
    signal_number = status & 0x7F
    return (0, signal_number) if signal_number else (status >> 8 & 0xFF, 0)


def _below(work_dir: str | None, path: str) -> str | None:
    if path.startswith("/"):
        return path
    return f"{work_dir}/{path}" if work_dir else None


def _job(fields: dict[str, str], shown: str, job_id: JobId) -> JobStatus:
    state = JobState.parse(fields["State"])
    nodes = whole(fields["NumNodes"])
    gpus = gpus_of_job(fields["tres-alloc"], fields["tres-per-job"], fields["tres-per-node"], nodes)
    raw_id, name, user = whole(fields["JobID"]), fields["Name"], known(fields["UserName"])
    node_list = known(fields["NodeList"])
    work_dir = known(fields["WorkDir"])
    start = moment(fields["StartTime"])
    exit_code, signal = _exit(fields["exit_code"]) if state.is_final else (None, None)

    def path(field: str) -> str | None:
        pattern = known(fields[field])
        named = pattern and expand_pattern(
            pattern, job_id=job_id, raw_id=raw_id, name=name, user=user, node_list=node_list
        )
        # 26.05 gives the default as it is, slurm-%j.out.
        return _below(work_dir, named) if named else None

    return JobStatus.told(
        {
            "job_id": shown,
            "raw_id": raw_id,
            "array_job_id": job_id.number if job_id.tasks else None,
            "array_tasks": job_id.tasks,
            "cluster": known(fields["Cluster"]),
            "name": name,
            "user": user,
            "state": state,
            "state_text": fields["State"],
            "reason": known(fields["Reason"]),
            "partition": known(fields["Partition"]),
            "account": known(fields["Account"]),
            "qos": known(fields["QOS"]),
            "gpus": gpus.count if gpus else None,
            "gpu_types": dict(gpus.types) if gpus else {},
            "nodes": nodes,
            "cpus": whole(fields["NumCPUs"]),
            "node_list": node_list,
            "elapsed": None if state.is_waiting else seconds(fields["TimeUsed"]),
            "limit": "UNLIMITED"
            if fields["TimeLimit"].strip() == "UNLIMITED"
            else seconds(fields["TimeLimit"]),
            "time_left": None if state.is_final else seconds(fields["TimeLeft"]),
            "submit": moment(fields["SubmitTime"]),
            "expected_start": start if state.is_waiting else None,
            "start": None if state.is_waiting else start,
            "end": moment(fields["EndTime"]) if state.is_final else None,
            "restarts": whole(fields["RestartCnt"]),
            "dependency": known(fields["Dependency"]) if state.is_waiting else None,
            "exit_code": exit_code,
            "signal": signal,
            "stdout": path("StdOut"),
            # From 24.11 on, if not before, it is empty where both streams go to one file.
            "stderr": path("StdErr") if known(fields["StdErr"]) else path("StdOut"),
            "work_dir": work_dir,
            "script": known(fields["Command"]),
            "source": "squeue",
        }
    )
