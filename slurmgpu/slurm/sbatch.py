"""Submitting: one sbatch call, and what its answer means. Nothing is ever tried twice here."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from slurmgpu.errors import SlurmGpuError, SlurmUnreachable
from slurmgpu.slurm import sacct, squeue
from slurmgpu.slurm.answers import meaning_of
from slurmgpu.slurm.commands import Answer, Commands, submission_env, unreachable
from slurmgpu.slurm.refusals import Advice, advise
from slurmgpu.slurm.text import moment

__all__ = [
    "Accepted",
    "Estimate",
    "Found",
    "Outcome",
    "Rejected",
    "Unknown",
    "Unreachable",
    "classify",
    "estimate",
    "find_by_script",
    "parse_estimate",
    "submit",
]

# With a full queue sbatch itself waits up to 120 s and can then succeed; ending it earlier would leave the
# outcome unknown for nothing.
SUBMIT_TIMEOUT = 180.0


@dataclass(frozen=True)
class Accepted:
    """Slurm has queued the job."""

    job_id: int
    cluster: str | None
    """Only where sbatch names it, which it does on multi-cluster sites."""
    text: str
    """What sbatch said besides: warnings, a site's banner."""


@dataclass(frozen=True)
class Rejected:
    """Slurm, or sbatch before it asked, has said no: there is no job."""

    text: str
    advice: Advice | None


@dataclass(frozen=True)
class Unknown:
    """There may or may not be a job: the request went out and no clear answer came back."""

    text: str


@dataclass(frozen=True)
class Unreachable:
    """The request never left: there is no job."""

    text: str
    error: SlurmUnreachable
    """The same as an error, with what to do about it."""


Outcome = Accepted | Rejected | Unknown | Unreachable

_ID_LINE = re.compile(r"(\d{1,18})(?:;([\w.-]+))?", re.ASCII)
# These words come after the request was sent; an error without them is sbatch's own, before it asks.
_SENT = "Batch job submission failed"
_OWN_WORDS = r"(?m)^sbatch: (?:error|fatal): "


def submit(
    slurm: Commands,
    script: Path,
    options: Sequence[str] = (),
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = SUBMIT_TIMEOUT,
) -> Outcome:
    """Submit a script and return the outcome.

    `options` are further words for sbatch, before the script. The job inherits `env` (default: this
    process's), without the variables that would change the submission. Raises SlurmUnreachable only when
    sbatch is not installed.
    """
    argv = ["sbatch", "--parsable", *options, str(script)]
    return classify(slurm.ask(argv, timeout=timeout, env=submission_env(_base(slurm, env)), cwd=cwd))


def _base(slurm: Commands, env: Mapping[str, str] | None) -> Mapping[str, str] | None:
    return slurm.env if env is None else env


def classify(answer: Answer) -> Outcome:
    """Decide what sbatch's answer means; whatever is not certain is Unknown."""
    found = _job_id(answer.stdout)
    if found and answer.ok:
        return Accepted(*found, text=_besides(answer, found[0]))
    if answer.rc is None:
        return Unknown(answer.text or "sbatch was ended before it answered")
    if answer.ok:
        return Unknown(answer.text or "sbatch ended without an error and without a job id")
    meaning = meaning_of(answer)
    if meaning == "no answer" and not found:
        return Unreachable(answer.text, unreachable(answer))
    own = meaning == "unclear" and _SENT not in answer.stderr and re.search(_OWN_WORDS, answer.stderr)
    if not found and (meaning == "refused" or own):
        return Rejected(answer.text, advise(answer.text))
    return Unknown(answer.text or f"sbatch ended with exit status {answer.rc} and said nothing")


def _job_id(stdout: str) -> tuple[int, str | None] | None:
    """The last line that is an id: sites print their banners before it."""
    for line in reversed(stdout.split("\n")):
        match = _ID_LINE.fullmatch(line.strip())
        if match:
            return int(match[1]), match[2]
    return None


def _besides(answer: Answer, job_id: int) -> str:
    banner = [line for line in answer.stdout.split("\n") if not line.strip().startswith(str(job_id))]
    return "\n".join(part for part in ("\n".join(banner).strip(), answer.stderr.strip()) if part)


@dataclass(frozen=True)
class Estimate:
    """Slurm's own estimate for a script; no promise, and no check of account, QOS or time limit."""

    start: datetime | None
    cpus: int | None
    node_list: str | None
    partition: str | None
    text: str
    accepted: bool
    advice: Advice | None = None


# 26.05 has a word too many: "to start at 2026-11-22T07:57:08 a using 2 processors".
_ESTIMATE = re.compile(
    r"Job (\d+) to start at (\S+)(?: a\b)?"
    r"(?: using (\d+) processors?)?(?: on (?:nodes? )?(?!partition\b)(\S+))?(?: in partition (\S+))?"
)


def estimate(
    slurm: Commands,
    script: Path,
    options: Sequence[str] = (),
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> Estimate:
    """Ask Slurm when and where a script would start, without submitting it (a job id is used up).

    Raises SlurmUnreachable when the controller does not answer.
    """
    argv = ["sbatch", "--test-only", *options, str(script)]
    environment = submission_env(_base(slurm, env)) | {"SLURM_TIME_FORMAT": "%s"}
    answer = slurm.ask(argv, env=environment, cwd=cwd)
    if meaning_of(answer) in {"no answer", "lost"}:
        raise unreachable(answer)
    return parse_estimate(answer)


def parse_estimate(answer: Answer) -> Estimate:
    """Read the answer of `sbatch --test-only`, which comes on stderr."""
    match = _ESTIMATE.search(answer.stderr)
    if not match or not answer.ok:
        return Estimate(None, None, None, None, answer.text, accepted=answer.ok, advice=advise(answer.text))
    start, cpus, nodes, partition = match[2], match[3], match[4], match[5]
    return Estimate(
        moment(start), int(cpus) if cpus else None, nodes, partition, answer.text.strip(), accepted=True
    )


@dataclass(frozen=True)
class Found:
    """Jobs that a script's path leads to."""

    jobs: list[tuple[int, str | None]]
    """(job id, cluster); an array or a heterogeneous job counts once."""
    certain: bool
    """Whether all that could know answered: only then does an empty list mean that there is no job."""
    notes: list[str]
    silent: bool = False
    """Whether one that could know did not answer, and may later."""


def find_by_script(
    slurm: Commands,
    script: str,
    *,
    user: str | None,
    since: datetime,
    earlier: Collection[int | None] = (),
) -> Found:
    """Look for jobs submitted with this script (its whole, unique path), in the queue and in accounting.

    `since` is when it was submitted; `earlier` are jobs of it that are known. Accounting lags by a second or so, and
    the controller by as long as it is busy: an empty answer straight after sbatch says little.
    """
    notes: list[str] = []
    jobs: dict[int, str | None] = {}
    certain, silent = True, False
    try:
        queued, notes = squeue.read(slurm, user)
        for job in queued:
            if job.script == script and _number(job.job_id) not in earlier:
                jobs[_number(job.job_id)] = job.cluster
    except SlurmGpuError as error:
        certain, silent = False, True
        notes.append(error.message)
    if not jobs:
        try:
            found = sacct.read(slurm, user=user, since=since, submit_line=True)
        except SlurmUnreachable as error:  # not installed here
            found = sacct.Accounting(notes=[error.message], available=False)
        notes += found.notes
        certain = certain and found.available
        silent = silent or found.silent
        for job in found.jobs:
            if job.submit_line and script in job.submit_line and _number(job.job_id) not in earlier:
                jobs[_number(job.job_id)] = job.cluster
    return Found(sorted(jobs.items()), certain, notes, silent)


def _number(job_id: str) -> int:
    return int(re.split(r"[_+]", job_id)[0])
