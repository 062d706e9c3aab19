"""Requests that change something: submitting by sbatch and salloc, and ending, holding, releasing and requeueing jobs.

Nothing is ever tried twice here: an answer that says too little is unknown, and the queue afterwards says what happened.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from slurmgpu.errors import InvalidInput, SlurmGpuError, SlurmRefused, SlurmUnreachable
from slurmgpu.models.plan import Option
from slurmgpu.slurm.commands import Answer, Commands, start, submission_env, unreachable
from slurmgpu.slurm.sacct import Accounting, read_accounting
from slurmgpu.slurm.squeue import read_queue
from slurmgpu.slurm.text import meaning_of, moment

__all__ = [
    "NOT_OF_SALLOC", "Accepted", "Advice", "Estimate", "Found", "Heard", "Outcome", "Rejected", "Said", "Unknown",
    "Unreachable", "Verb", "advise", "allocate", "allocation_command", "cancel", "cancel_command", "check_signal",
    "classify", "control", "control_command", "estimate", "find_by_script", "hear", "parse_estimate", "refusal", "submit",
]  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """The meaning of a refusal, and the next act."""

    meaning: str
    act: str


# (what Slurm writes, what it means, what to do). The first that is found counts: particular before general.
_TABLE = [
    (r"Invalid accounting frequency|Invalid --acctg-freq",
     "Slurm is asked to look at the job's use less often than this cluster does, or the interval cannot be read",
     "Look up the cluster's interval with: scontrol show config | grep JobAcctGatherFrequency  then give a shorter "
     "acctg-freq: (--acctg-freq=task=SECONDS), or leave it out"),
    (r"Invalid account", "this account is not yours on this cluster, or may not use this partition",
     "List yours: sacctmgr show assoc user=$USER format=account,partition,qos  Then give account: (-A)"),
    (r"[Ii]nvalid partition", "the cluster has no partition of this name",
     "List them with: sinfo -s  then give partition: (-p)"),
    (r"User's group not permitted|not allowed to use this partition|Access denied to .*partition",
     "this partition is not open to you or your account",
     "Choose another partition (sinfo -s), or ask the site for access"),
    (r"Required partition not available|partition configuration not available now",
     "the partition is closed or drained at the moment", "Choose another partition (sinfo -s), or wait"),
    (r"Invalid qos", "this QOS does not exist, or is not yours with this account and partition",
     "List yours: sacctmgr show assoc user=$USER format=account,partition,qos  Then give qos: (-q)"),
    (r"[Ii]nvalid (?:generic resource|gres)|Invalid GRES|Invalid Trackable RESource",
     "the cluster knows no such resource (a GPU type, or the spelling of the request)",
     "List what the nodes have with: sinfo -o '%P %G'  then give gpu_type: or gres:"),
    (r"Invalid --time|Requested time limit is invalid|time limit exceeds|Time limit",
     "the time limit cannot be read, is missing, or is longer than this partition or QOS allows",
     "Look up the limits with: sinfo -o '%P %l'  then give time: (-t), such as 4:00:00 or 1-00:00:00"),
    (r"Invalid --mem|mutually exclusive.*mem|--mem.*mutually exclusive",
     "the memory request cannot be read, or is asked for in two ways",
     "Give one of mem, mem-per-cpu and mem-per-gpu, as whole M or G (1536G, not 1.5T)"),
    (r"Memory specification can not be satisfied|Memory required by task is not available",
     "no node of this partition has that much memory",
     "Ask for less memory, or for more nodes; sinfo -o '%P %m' shows the nodes' memory in MB"),
    (r"Invalid feature", "no node has this feature",
     "List the features with: sinfo -o '%P %f'  then give constraint: (-C)"),
    (r"reservation is invalid|Access denied to requested reservation|reservation",
     "this reservation does not exist, has ended, or is not yours", "List them with: scontrol show reservation"),
    (r"[Dd]ependency", "the dependency cannot be read, or names a job that does not exist",
     "Write it as afterok:JOBID, and check the id with: slurmgpu status JOBID"),
    (r"Invalid job array", "the array's indices cannot be read, or the largest is beyond the cluster's limit",
     "Look up the limit with: scontrol show config | grep MaxArraySize"),
    (r"Invalid node name", "the node list names a node that this cluster does not have", "List the nodes with: sinfo -N"),
    (r"Invalid license", "the cluster has no such licence", "List them with: scontrol show licenses"),
    (r"QOS ?[Mm]ax|MaxSubmit|job submit limit|accounting/QOS policy|AssocMax|AssocGrp",
     "a limit of your account or QOS holds this job back: jobs at a time, size, or time",
     "Ask for less, or wait until others of your jobs have ended; "
     "sacctmgr show qos format=name,maxwall,maxtrespu,maxsubmitpu shows the limits"),
    (r"More processors requested|CPU count per node can not be satisfied|Node count specification",
     "no node of this partition has that many CPUs, or the partition allows fewer nodes",
     "Ask for fewer CPUs or nodes; sinfo -o '%P %D %c' shows nodes and CPUs per node"),
    (r"Requested node configuration is not available",
     "no node of this partition could ever run this: GPUs per node, GPU type, CPUs or memory do not fit",
     "See what the nodes have: sinfo -o '%P %D %G %c %m'  and what the job asks for: slurmgpu plan"),
    (r"DOS line breaks", "the script was saved with Windows line ends",
     "Convert it with: dos2unix SCRIPT  (or sed -i 's/\\r$//' SCRIPT)"),
    (r"does not look like a batch script|Batch script is empty", "the script has no first line such as #!/bin/bash",
     "Add the line #!/bin/bash as the very first"),
    (r"Unable to open file", "sbatch cannot read the script", "Check its path and its permissions"),
    (r"unrecognized option|[Ii]nvalid (?:option|directive)|Invalid --|Invalid numeric value|ambiguous",
     "sbatch does not know this option, or cannot read its value",
     "Look it up in: man sbatch  (sbatch --version says which release this cluster runs)"),
    (r"Pathname of a file, directory or other parameter too long",
     "a path or another value is longer than Slurm takes (a comment: 1024 bytes)", "Shorten it"),
    (r"Access/permission denied|Invalid user id",
     "the controller does not let you submit: an expired account, or a user it does not know",
     "Ask the site's support, with the text above"),
    (r"Unspecified error|job_submit|lua:|cli_filter",
     "the site's own rules (a submit plugin) refuse this job; the text above may say why",
     "Follow that text, or look up the site's documentation on what a job must and must not ask for"),
]  # fmt: skip
_COMPILED = [(re.compile(pattern, re.DOTALL), Advice(meaning, act)) for pattern, meaning, act in _TABLE]


def advise(text: str) -> Advice | None:
    """Return what a refusal means and what to do; None for a text that is not known."""
    return next((advice for pattern, advice in _COMPILED if pattern.search(text)), None)


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
    """Other words of sbatch: warnings, a site's banner."""


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
    """Return the last line that is an id: sites print their banners before it."""
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
    """True if all that could know answered: only then does an empty list mean that there is no job."""
    notes: list[str]
    silent: bool = False
    """True if one that could know did not answer, and may later."""


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
        queued, notes = read_queue(slurm, user)
        for job in queued:
            if job.script == script and _number(job.job_id) not in earlier:
                jobs[_number(job.job_id)] = job.cluster
    except SlurmGpuError as error:
        certain, silent = False, True
        notes.append(error.message)
    if not jobs:
        try:
            found = read_accounting(slurm, user=user, since=since, submit_line=True)
        except SlurmUnreachable as error:  # not installed here
            found = Accounting(notes=[error.message], available=False)
        notes += found.notes
        certain = certain and found.available
        silent = silent or found.silent
        for job in found.jobs:
            if job.submit_line and script in job.submit_line and _number(job.job_id) not in earlier:
                jobs[_number(job.job_id)] = job.cluster
    return Found(sorted(jobs.items()), certain, notes, silent)


def _number(job_id: str) -> int:
    return int(re.split(r"[_+]", job_id)[0])


NOT_OF_SALLOC = frozenset({
    "array", "batch", "cluster-constraint", "container-id", "error", "export", "export-file", "get-user-env",
    "ignore-pbs", "input", "kill-on-invalid-dep", "no-requeue", "open-mode", "output", "parsable", "propagate", "requeue",
    "signal", "test-only", "wait", "wrap",
})  # fmt: skip
"""Options of sbatch that salloc does not take: they speak of a batch script (salloc(1))."""


def allocation_command(options: Sequence[Option], step: Sequence[str]) -> list[str]:
    """Return the words of salloc for a job's options; ``step`` is what its srun is told, the command at the end.

    The step overlaps with all others (--overlap): whoever works in it starts further steps on the same CPUs and GPUs. It
    is no part of an MPI program (--mpi=none), and its variables speak of the job (--preserve-env).
    """
    taken = [str(option) for option in options if option.name not in NOT_OF_SALLOC]
    return ["salloc", *taken, "srun", "--overlap", "--preserve-env", "--mpi=none", *step]


def allocate(
    slurm: Commands,
    options: Sequence[Option],
    step: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    terminal: bool,
) -> subprocess.Popen[bytes]:
    """Ask for nodes and run a step there; what salloc and srun say on stderr comes through a pipe.

    With ``terminal``, input and output are the caller's own. Without, both are pipes, and the terminal's signals reach
    the caller alone. Raises SlurmUnreachable when salloc is not installed here.
    """
    pipe = None if terminal else subprocess.PIPE
    argv = allocation_command(options, step)
    slurm.asked.append(tuple(argv))
    return start(
        argv,
        env=submission_env(env),
        cwd=cwd,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.PIPE,
        start_new_session=not terminal,
        # SIGPIPE stays ignored: salloc is to give the nodes back although nobody hears it say so.
        restore_signals=False,
    )


class Heard(NamedTuple):
    """The meaning of one line of salloc's."""

    kind: Literal["waits", "given", "over", "else"]
    job_id: int | None
    text: str


_LINES = (
    ("waits", r"Pending job allocation (\d+)|job (\d+) queued and waiting"),
    ("given", r"Granted job allocation (\d+)|job (\d+) has been allocated"),
    ("over", r"Relinquishing job allocation (\d+)|Job allocation (\d+) has been revoked"),
)


def hear(line: str) -> Heard | None:
    """Read a line of stderr; None for one that is not salloc's."""
    if not line.startswith("salloc: "):
        return None
    text = line.removeprefix("salloc: ").strip()
    for kind, pattern in _LINES:
        found = re.search(pattern, text)
        if found:
            return Heard(kind, int(found[1] or found[2]), text)  # type: ignore[arg-type]
    return Heard("else", None, text)


def refusal(said: Sequence[str], rc: int) -> SlurmGpuError:
    """Return the error for a salloc that ended without nodes, from its own words."""
    text = "\n".join(said)
    answer = Answer(("salloc",), rc, "", text)
    if meaning_of(answer) in ("no answer", "lost"):
        error = unreachable(answer)
        return SlurmUnreachable(f"no nodes were given. {error.message}", hint=error.hint)
    advice = advise(text)
    meaning = f"\n({advice.meaning})" if advice else ""
    return SlurmRefused(
        f"Slurm refused the request: {text or f'salloc ended with {rc}'}{meaning}",
        hint=advice.act if advice else None,
    )


_SIGNAL = re.compile(r"(?:SIG)?[A-Z][A-Z0-9]{1,9}|\d{1,2}", re.ASCII)


def check_signal(signal: str | None) -> None:
    """Raise InvalidInput for what cannot be a signal's name; None is not a signal."""
    if signal is not None and not _SIGNAL.fullmatch(signal.upper()):
        raise InvalidInput(
            f"signal {signal!r} is not a signal's name: use a name such as TERM, USR1, USR2 or INT, or a number"
        )


def cancel_command(ids: Sequence[str], signal: str | None = None) -> list[str]:
    """Return the scancel command; with a signal the jobs live on if they handle it."""
    check_signal(signal)
    if signal is None:
        return ["scancel", *ids]
    return ["scancel", f"--signal={signal.upper()}", *ids]


class Said(NamedTuple):
    """Words of scancel, usually none."""

    text: str
    lost: bool
    """True if it could not tell what became of the request."""


def cancel(slurm: Commands, ids: Sequence[str], signal: str | None = None) -> Said:
    """Ask Slurm to end jobs, or to signal their steps.

    Raises SlurmUnreachable when the request reached nobody; after a lost reply the queue has to tell.
    """
    return _order(slurm, cancel_command(ids, signal))[0]


def _order(slurm: Commands, argv: Sequence[str]) -> tuple[Said, int | None]:
    answer = slurm.ask(argv)
    meaning = meaning_of(answer)
    if meaning == "no answer":
        raise unreachable(answer)
    return Said(answer.text, lost=meaning == "lost"), answer.rc


Verb = Literal["hold", "release", "requeue"]


def control_command(verb: Verb, ids: Sequence[str]) -> list[str]:
    """Return the scontrol command; it takes several jobs as one word.

    A job is held as its owner would (`uhold`): by an operator's `hold`, it could not be released by its owner (scontrol(1)).
    """
    return ["scontrol", "uhold" if verb == "hold" else verb, ",".join(ids)]


def control(slurm: Commands, verb: Verb, ids: Sequence[str]) -> Said:
    """Ask Slurm to hold, release or requeue jobs; it says nothing where it does so.

    Raises SlurmUnreachable when the request reached nobody; after a lost reply the queue has to tell.
    """
    said, rc = _order(slurm, control_command(verb, ids))
    return said._replace(text=said.text or (f"exit status {rc}" if rc else ""))
