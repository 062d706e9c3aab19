"""A job in words, for every face alike: why it waits, how it ended, how far it is, its colour and its facts."""

from __future__ import annotations

import os
import pwd
import re
import signal
from datetime import datetime
from functools import lru_cache
from typing import Literal, NamedTuple

from slurmgpu.amounts import count, duration, size_text, span, time_of_day
from slurmgpu.models.run import JobState, JobStatus, Progress
from slurmgpu.printable import printable
from slurmgpu.slurm import TAKEN_OFF

__all__ = [
    "LAUNCH_FAILED", "LIMIT", "NEVER", "NEXT", "STOPPED", "WAITS_FOR", "WORDS", "About", "After", "JobView", "Line",
    "Waits", "about", "canceller", "colour_of", "each_waits", "is_refused", "kind_of", "outcome_of", "progress_text",
    "read_dependency", "reason", "waits", "word_of", "words_of",
]  # fmt: skip

STOPPED = 75
"""EX_TEMPFAIL of sysexits.h, with which a training of slurmgpu's ends that has stopped and saved everything."""
LAUNCH_FAILED = 53
"""The signal that Slurm writes where slurmstepd could not open the log or enter the work folder."""

_SILENT = 600.0  # seconds without a line of metrics that are worth a word
_LONGEST_LIST = 24


class Line(NamedTuple):
    """One line of a table: a job, or several tasks of an array taken together."""

    job: JobStatus
    """Of tasks: the state that matters most, the longest time, the first start, the last end."""
    tasks: str | None = None
    """Number of tasks in each state."""


# Why a job waits: the words are those of Slurm's source, job_state_reason.c, up to 25.11; what they mean is from "Job Reason
# Codes" (https://slurm.schedmd.com/job_reason_codes.html), the manual pages of squeue, scontrol and sacctmgr.

About = Literal[
    "account", "array", "begin", "dependency", "held", "licenses", "limit", "nodes", "partition", "qos", "request",
    "reservation", "room", "site", "size", "soon", "time",
]  # fmt: skip
"""The subject of a reason: where the figures that explain it are, and what can be done."""

NEVER = "will never start: "
NEXT = "next to start, when nodes are free"


class Waits(NamedTuple):
    """The meaning of a reason's word."""

    meaning: str
    """A sentence without its dot; ``{id}`` stands for the job's."""
    about: About = "site"

    @property
    def never(self) -> bool:
        """True if the job will not start as it is, whatever others do."""
        return self.meaning.startswith(NEVER)


# What "will never start" needs the user.
WORDS = {
    "AccountNotAllowed": Waits("will never start: the partition does not take this account", "account"),
    "AccountingPolicy": Waits("a limit of the account or the QOS", "limit"),
    "AssociationJobLimit": Waits("as many jobs run as the account allows", "limit"),
    "AssociationResourceLimit": Waits("the account's jobs use as much as its limit allows", "limit"),
    "AssociationTimeLimit": Waits("the account has used up its time", "limit"),
    "BadConstraints": Waits("will never start: no node has what it asks for", "request"),
    "BeginTime": Waits("must not start before the time asked for", "begin"),
    "BurstBufferOperation": Waits("a burst buffer operation failed"),
    "BurstBufferResources": Waits("waits for room in the burst buffer"),
    "BurstBufferStageIn": Waits("its data is being copied into the burst buffer", "soon"),
    "Cleaning": Waits("its earlier start is still being cleaned up", "soon"),
    "Constraints": Waits("will never start: no node has the features it asks for", "request"),
    "Dependency": Waits("waits for another job", "dependency"),
    "DependencyNeverSatisfied": Waits("will never start: the other job did not end as asked", "dependency"),
    "FedJobLock": Waits("the clusters of the federation are agreeing on who starts it", "soon"),
    "FrontEndDown": Waits("no front-end node is up"),
    "InvalidAccount": Waits("will never start: its account is not, or no longer, valid", "account"),
    "InvalidQOS": Waits("will never start: its QOS is not, or no longer, valid", "qos"),
    "JobArrayTaskLimit": Waits("as many tasks run as the array's own limit (%) allows", "array"),
    "JobHeldAdmin": Waits("held by the site", "held"),
    "JobHeldUser": Waits("held by its user; `scontrol release {id}` lets it start", "held"),
    "JobHoldMaxRequeue": Waits("held: it was requeued too often; `scontrol release {id}` lets it start", "held"),
    "EnvironmentFailedHeld": Waits("held: the user's environment could not be read on its node", "held"),
    "LaunchFailedHeld": Waits("held: its start failed on a node (prolog, log or work folder)", "held"),
    "Licenses": Waits("waits for licenses that others use", "licenses"),
    "MaxMemPerLimit": Waits("will never start: asks for more memory for a CPU or node than the site allows", "size"),
    "MaxPoweredUpNodes": Waits("as many nodes are powered up as the site allows"),
    "MpiPortsBusy": Waits("waits for ports that other jobs' MPI use"),
    "NodeDown": Waits("a node that it needs is down", "nodes"),
    "NodesUnavailable": Waits("the nodes that it could use are down, drained, or reserved for jobs that come first", "nodes"),
    "None": Waits("not looked at by the scheduler yet", "soon"),
    "PartitionConfig": Waits("will never start: asks for more than the partition has", "size"),
    "PartitionDown": Waits("the partition is down", "partition"),
    "PartitionInactive": Waits("the partition starts no jobs now", "partition"),
    "PartitionNodeLimit": Waits("will never start: asks for more nodes than the partition allows", "size"),
    "PartitionTimeLimit": Waits("will never start: asks for more time than the partition allows", "time"),
    "Priority": Waits("other jobs come first", "room"),
    "Prolog": Waits("its nodes are being prepared", "soon"),
    "QOSJobLimit": Waits("as many jobs run as the QOS allows", "limit"),
    "QOSNotAllowed": Waits("will never start: the account or partition may not use this QOS", "qos"),
    "QOSResourceLimit": Waits("the QOS's jobs use as much as its limit allows", "limit"),
    "QOSTimeLimit": Waits("the QOS has used up its time", "limit"),
    "QOSUsageThreshold": Waits("the account's share is used up too far for this QOS", "limit"),
    "ReqNodeNotAvail": Waits("nodes that it could use are down, drained or reserved", "nodes"),
    "RequeuedHeld": Waits("held: it was put back into the queue to wait for its user", "held"),
    "Reservation": Waits("its reservation has not begun", "reservation"),
    "ReservationDeleted": Waits("will never start: its reservation was deleted", "reservation"),
    "ReservationInvalid": Waits("will never start: its reservation is not valid", "reservation"),
    "Resources": Waits(NEXT, "room"),
    "SchedDefer": Waits("the scheduler looks at it later", "soon"),
    "SystemFailure": Waits("Slurm, a node or a file system had a fault"),
    "WaitingForScheduling": Waits("not looked at by the scheduler yet", "soon"),
}  # fmt: skip

# QOSMaxGRESPerUser, AssocGrpCPURunMinutesLimit, MaxCpuRunMinsPerAccount, QOSMinCpuNotSatisfied: some 140 words are made
# of these parts. The Max...Per(Account|User) without a prefix are limits of the QOS.
LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc|)(?P<kind>Grp|Max|Min)"
    r"(?P<what>Cpu|CPU|SubmitJobs?|Jobs|Memory|Mem|Node|WallDuration|Wall|Energy|GRES|License|BB|Billing|Unknown)"
    r"(?P<minutes>Minutes|RunMinutes|RunMins|)(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
# In the plural or as a mass, and as the first half of "-minutes".
_UNITS = {
    "Cpu": ("many CPUs", "CPU"), "CPU": ("many CPUs", "CPU"), "Jobs": ("many jobs", "job"), "SubmitJob": ("many jobs", "job"),
    "SubmitJobs": ("many jobs", "job"), "Memory": ("much memory", "memory"), "Mem": ("much memory", "memory"),
    "Node": ("many nodes", "node"), "Wall": ("much time", "wall"), "WallDuration": ("much time", "wall"),
    "Energy": ("much energy", "energy"), "GRES": ("many GPUs or other GRES", "GPU"), "License": ("many licenses", "license"),
    "BB": ("much burst buffer space", "burst buffer"), "Billing": ("many billing units", "billing"),
    "Unknown": ("much of a resource", "resource"),
}  # fmt: skip
# Sentences that the controller writes in the place of a word (job_mgr.c, node_scheduler.c, job_scheduler.c), in squeue with
# underscores for blanks in some releases.
_SENTENCES = tuple((re.compile(text.replace(" ", "[ _]")), word) for text, word in (
    ("account not permitted to use this partition", "AccountNotAllowed"),
    ("QOS not permitted to use this partition", "QOSNotAllowed"),
    ("Nodes required for job are DOWN", "NodesUnavailable"),
    ("launch failed requeued held", "LaunchFailedHeld"),
    ("user env retrieval failed", "EnvironmentFailedHeld"),
    ("job requeued in held state", "RequeuedHeld"),
    ("has exceeded max requeue", "JobHoldMaxRequeue"),
))  # fmt: skip


@lru_cache(maxsize=1024)
def word_of(reason: str | None) -> str:
    """Return the word alone: "ReqNodeNotAvail, UnavailableNodes:n[1-3]" carries more, and some reasons are whole sentences."""
    text = (reason or "").strip()
    found = next((word for pattern, word in _SENTENCES if pattern.search(text)), None)
    if found:
        return found
    several = words_of(text)
    return next((word for word in several if about(word) != "held"), several[0])


@lru_cache(maxsize=1024)
def words_of(reason: str | None) -> tuple[str, ...]:
    """Return the words of tasks of an array that wait together, which squeue writes in one row: "JobHeldUser,None"."""
    words = tuple(word.strip() for word in (reason or "").strip().strip("()").split(","))
    return words if all(about(word) for word in words) else words[:1]


@lru_cache(maxsize=1024)
def about(word: str) -> About | None:
    """Return what a word alone is about; None where it is not known."""
    known = WORDS.get(word)
    return known.about if known else "limit" if LIMIT.fullmatch(word) else None


def waits(word: str, job: JobStatus) -> Waits | None:
    """Return what a word means for this job, with the figures that the queue has beside it; None where it is not known."""
    if word.startswith("Dependency") and (text := _dependency(word, job.dependency or "")):
        return Waits(text, "dependency")
    known = WORDS.get(word)
    if known is None:
        match = LIMIT.fullmatch(word)
        return Waits(_limit(match, job), "limit") if match else None
    most = (job.array_tasks or "").partition("%")[2].rstrip("]")
    if word == "JobArrayTaskLimit" and most.isdecimal():
        return known._replace(meaning=f"{known.meaning}: {most} at a time")
    number = job.gpus or job.cpus
    if word == "Resources" and job.nodes and number:
        plural = "" if number == 1 else "s"
        what = ",".join(sorted(job.gpu_types)) or f"GPU{plural}" if job.gpus else f"CPU{plural}"
        several = f" on {job.nodes} nodes" if job.nodes > 1 else ""
        return known._replace(meaning=f"{known.meaning}: asks for {number} {what}{several}")
    return known


def each_waits(job: JobStatus) -> str | None:
    """Return what tasks of an array that wait together for different things wait for; None of any other job."""
    words = words_of(job.reason)
    if len(words) < 2:
        return None
    meanings = [known.meaning for word in words if (known := waits(word, job))]
    return f"its tasks wait for different things: {'; '.join(meanings)}"


WAITS_FOR = {
    "after": "{} to start",
    "afterany": "{} to end",
    "afterok": "{} to end well",
    "afternotok": "{} to fail",
    "aftercorr": "its task of {} to end well",
    "afterburstbuffer": "{} to free its burst buffer",
}
"""The event that a job waits for, by the kind of its dependency."""
_DEPENDENCY = re.compile(r"([\d_*+]+)(?:\((\w+)\))?", re.ASCII)


class After(NamedTuple):
    """One job that another waits for."""

    kind: str
    """``afterok``, as Slurm writes it."""
    job: str
    """Its id as it is written: ``12``, ``12_3``, ``12_*``, ``12+5`` (five minutes after)."""
    how: str = ""
    """Slurm's word on it: ``unfulfilled``, ``failed``."""

    @property
    def number(self) -> int | None:
        """The number of the job or array; None of one that no job can have."""
        digits = re.match(r"\d{1,18}(?!\d)", self.job, re.ASCII)
        return int(digits[0]) if digits else None


def read_dependency(text: str) -> list[After]:
    """Return the jobs in ``afterok:12:13,afterany:14(unfulfilled)``; what is none, such as ``singleton``, is left out."""
    found = []
    for part in re.split(r"[,?]", text):
        kind, *jobs = part.strip().split(":")
        if kind.startswith("after"):
            matches = (_DEPENDENCY.fullmatch(job) for job in jobs)
            found += [After(kind, match[1], match[2] or "") for match in matches if match]
    return found


def _dependency(word: str, text: str) -> str | None:
    """Return which jobs a job waits for, and for what of them: all of them, or with `?` any."""
    found = read_dependency(text)
    if not (found or "singleton" in text):
        return None
    link = " or " if "?" in text else " and "
    parts = [WAITS_FOR.get(kind, "{}").format(f"job {one}") for kind, one, _ in found]
    parts = [re.sub(r"\+(\d+) to start$", r" to have started \1 min ago", part) for part in parts]
    if "singleton" in text:
        parts.append("all earlier jobs of this name and user to end")
    if word == "DependencyNeverSatisfied":
        gone = [part for part, (_, _, how) in zip(parts, found, strict=False) if how == "failed"]
        return f"{NEVER}it waits for {link.join(gone or parts)}, which can no longer happen"
    return f"waits for {link.join(parts)}"


def _limit(match: re.Match[str], job: JobStatus) -> str:
    """Return what a limit's name says: whose limit on what is reached, and what would have to happen."""
    owner = f"account {job.account}" if job.account else "the account"
    if match["whose"] != "Assoc":
        owner = f"QOS {job.qos}" if job.qos else "the QOS"
    amount, short = _UNITS[match["what"]]
    if match["minutes"]:
        amount = f"many {short}-minutes"
    thing = amount.partition(" ")[2]
    if match["kind"] == "Min":
        return f"{NEVER}it asks for {'fewer' if amount.startswith('many') else 'less'} {thing} than {owner} wants"
    if match["per"] in ("Job", "Node"):
        where = "on a node" if match["per"] == "Node" else "for a job"
        return f"{NEVER}it asks for more {thing} than {owner} allows {where}"
    if match["minutes"] == "Minutes" or match["what"] == "Wall":
        return f"the jobs of {owner} have used up its {thing}; starts when it is renewed"
    whose = f"the jobs of {owner}"
    if match["kind"] == "Max":
        whose = "your jobs" if match["per"] != "Account" else f"the jobs of account {job.account or 'yours'}"
    if "Job" in match["what"]:
        do = "are in the queue" if match["what"].startswith("Submit") else "run"
        return f"as many of {whose} {do} as {owner} allows; starts when some end"
    if match["minutes"]:
        return f"{whose} still have as {amount} before them as {owner} allows; starts as they go on"
    return (
        f"{whose} use as {amount} as {owner} allows; starts when some end, if it is not too large by itself"
    )


# Each state's colour; behind the job's id, what became of it: ``job 7 lost a node``; and the same as a reason by itself.
_STATES = {
    JobState.RUNNING: ("green", "", ""),
    JobState.CONFIGURING: ("cyan", "", ""),
    JobState.COMPLETING: ("cyan", "", ""),
    JobState.PENDING: ("yellow", "", ""),
    JobState.REQUEUED: ("yellow", "", ""),
    JobState.SUSPENDED: ("yellow", "", ""),
    JobState.COMPLETED: ("green", "completed", ""),
    JobState.CANCELLED: ("magenta", "was cancelled", ""),
    JobState.PREEMPTED: ("magenta", "was preempted", "made way for a job that comes first"),
    JobState.FAILED: ("red", "failed", ""),
    JobState.TIMEOUT: ("red", "ran into its time limit", "ran into its time limit"),
    JobState.OUT_OF_MEMORY: ("red", "ran out of memory", "used more memory than asked for"),
    JobState.NODE_FAIL: ("red", "lost a node", "a node failed"),
    JobState.BOOT_FAIL: ("red", "", "its nodes did not boot"),
    JobState.DEADLINE: ("red", "", "could not end before its deadline"),
    JobState.REVOKED: ("red", "", "another cluster of the federation started it"),
}
_NO_WORDS = ("bold red", "", "")


def colour_of(state: JobState) -> str:
    """Return the colour of a state on a terminal."""
    return _STATES.get(state, _NO_WORDS)[0]


def kind_of(job: JobStatus) -> str:
    """Return the state as a style sheet knows it: ``runs``, ``waits``, ``good``, ``stopped`` or ``bad``."""
    if job.state in (JobState.RUNNING, JobState.COMPLETING, JobState.CONFIGURING):
        return "runs"
    if job.state.is_waiting:
        return "waits"
    if job.state is JobState.COMPLETED:
        return "good"
    return "stopped" if job.state in (JobState.CANCELLED, JobState.PREEMPTED) else "bad"


def outcome_of(state: JobState) -> str:
    """Return what became of an ended job, to stand behind its id: ``was preempted``."""
    return _STATES.get(state, _NO_WORDS)[1] or "has ended"


# Slurm's words for ends that state and exit code do not tell.
_ENDED = {
    "NonZeroExitCode": "the command failed",
    "BadConstraints": "never started: Slurm refused it, most often because no node can run what it asks for",
    "JobLaunchFailure": "could not start: the log's or the work folder may be missing",
    "InactiveLimit": "was inactive for longer than the site allows",
    "SystemFailure": WORDS["SystemFailure"].meaning,
}
# Signals that end commands far more often than a command ends itself with their number as its exit code.
_KILLERS = {signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM}
# With 128 added, as likely as without: no failed command ends with 0, and ssh, srun and exit(-1) end with 255.
_OFTEN_CUT = {0, 127, *_KILLERS}


def reason(job: JobStatus) -> str | None:
    """Return why a job waits or how it ended, in words; None where there is nothing to say."""
    if job.state.is_final:
        return _how_it_ended(job)
    if job.reason is None:
        return None
    word = word_of(job.reason)
    if word == "BeginTime" and job.restarts:
        times = "once" if job.restarts == 1 else count(job.restarts, "time")
        return f"{printable(job.reason)}: put back into the queue ({times} so far), where Slurm lets it wait a moment"
    wait = waits(word, job)
    meaning = each_waits(job) or (wait.meaning if wait else None)
    if not job.state.is_waiting and (meaning is not None or word in _ENDED):
        return None  # Why it once waited, which Slurm does not clear, or how it is about to end.
    meaning = meaning.replace("{id}", job.job_id.partition("_[")[0]) if meaning else None
    if meaning and word not in job.reason:
        return meaning  # Slurm has written a sentence of its own, which says the same
    return f"{printable(job.reason)}: {meaning}" if meaning else printable(job.reason)


def _how_it_ended(job: JobStatus) -> str | None:
    """Return the reason from what accounting keeps for good: the same words after the queue has forgotten the job."""
    if job.state is JobState.COMPLETED:
        code = job.derived_exit_code
        return f"the script ended well, but a step of it with exit code {code}" if code else None
    if job.state is JobState.CANCELLED:
        if job.state_text == JobState.REQUEUED.value:
            return "cancelled while it was put back into the queue"
        by = canceller(job)
        who = f" by {by}" if by else ""
        return f"cancelled{who}{'' if job.node_list or job.elapsed else ', before it started'}"
    if job.cause is not None:
        return job.cause
    if sentence := _STATES.get(job.state, _NO_WORDS)[2]:
        return sentence
    if is_refused(job):
        return _ENDED["BadConstraints"]
    code = job.exit_code
    if job.signal == LAUNCH_FAILED and not code:
        return _ENDED["JobLaunchFailure"]
    if job.signal:
        return f"ended by {_signal_name(job.signal)}"
    if code == STOPPED:
        return f"stopped, and can go on: slurmgpu resume {job.job_id}"
    if code is not None and code > TAKEN_OFF and code - TAKEN_OFF in set(signal.Signals):
        return f"the command was ended by {_signal_name(code - TAKEN_OFF)} (exit code {code})"
    if code is not None and job.exit_code_cut and code in _OFTEN_CUT:
        cut = f"{code + TAKEN_OFF}: {_signal_name(code)}" if code in _KILLERS else str(code + TAKEN_OFF)
        return f"the command failed (exit code {code}, or {cut}; older releases of sacct show both as {code})"
    if code:
        failed = {126: "a command could not be started", 127: "a command was not found"}
        return f"{failed.get(code, 'the command failed')} (exit code {code})"
    return _ENDED.get(word_of(job.reason))


def is_refused(job: JobStatus) -> bool:
    """Return True if Slurm refused the job, most often at submission: accounting has it as failed, without a node or a second."""
    at_once = job.end is not None and job.start in (None, job.end)  # 26.05 names no start
    # The queue has 1 as its wait status, which would be a signal. The line of an array names no nodes, wherever its tasks ran.
    lone = job.array_job_id is None
    return at_once and lone and job.state is JobState.FAILED and job.node_list is None


def canceller(job: JobStatus) -> str:
    """Return who cancelled a job; empty where Slurm does not say."""
    match = re.search(r" by (\d+)", job.state_text)
    if match is None:
        return ""
    number = int(match[1])
    if number == os.getuid():
        return "you"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def progress_text(progress: Progress, *, running: bool) -> str:
    """Return ``1200/9000 13% loss 1.23 eta 2h``, and for how long nothing has been heard of a training that runs."""
    total = progress.total_steps
    parts = [f"{progress.step}/{total}" if total else f"step {progress.step}"]
    if progress.share is not None:
        parts.append(f"{int(progress.share * 100)}%")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3g}")
    if not running:
        return " ".join(parts)
    if progress.ended is None and progress.age_seconds > _SILENT:
        parts.append(f"silent for {span(progress.age_seconds, rough=True)}")
    elif progress.eta_seconds is not None:
        parts.append(f"eta {span(progress.eta_seconds, rough=True)}")
    return " ".join(parts)


class JobView:
    """One job, or the tasks of an array taken together, at one moment; a fact that is not known is None."""

    __slots__ = ("job", "now", "tasks")

    def __init__(self, line: Line, now: datetime) -> None:
        self.job = line.job
        self.tasks = line.tasks
        self.now = now

    @property
    def label(self) -> str:
        """The id, as short as a table needs it: ``4_[1,3,5,...]`` where its list of tasks is long."""
        number, bracket, tasks = self.job.job_id.partition("_[")
        if len(tasks) <= _LONGEST_LIST:
            return self.job.job_id
        first = tasks[: _LONGEST_LIST - 4].rpartition(",")[0] or tasks[: _LONGEST_LIST - 4]
        return f"{number}{bracket}{first},...]"

    @property
    def gpus(self) -> str | None:
        """``4 a100``; of an array's tasks, of each."""
        job = self.job
        if job.gpus is None:
            return None
        types = ",".join(sorted(job.gpu_types))
        each = " each" if self.tasks and job.gpus else ""
        return (f"{job.gpus} {types}" if types else str(job.gpus)) + each

    @property
    def nodes(self) -> str | None:
        """Return the number of nodes, and their names."""
        job = self.job
        if job.nodes is None:
            return None
        return f"{job.nodes} {job.node_list}" if job.node_list else str(job.nodes)

    @property
    def limit(self) -> str | None:
        """The time limit."""
        return "UNLIMITED" if self.job.limit == "UNLIMITED" else duration(self.job.limit)

    @property
    def moment(self) -> datetime | None:
        """When it ended, began or will begin. Of a job that will never start, Slurm may have an estimate all the same."""
        job = self.job
        if not job.state.is_waiting:
            return job.end if job.state.is_final else job.start
        wait = waits(word_of(job.reason), job) if job.reason else None
        return None if wait is not None and wait.never else job.expected_start

    @property
    def when(self) -> str | None:
        """``starts 14:05?``, ``since 14:05`` or ``ended 14:05``."""
        moment = self.moment
        if moment is None:
            return None
        clock = time_of_day(moment, self.now)
        if self.job.state.is_waiting:
            return f"starts {clock}?"
        return f"{'ended' if self.job.state.is_final else 'since'} {clock}"

    @property
    def submitted(self) -> str | None:
        """When it was submitted."""
        return time_of_day(self.job.submit, self.now) if self.job.submit else None

    @property
    def exit_code(self) -> str | None:
        """The exit code, as Slurm's `code:signal` where a signal is in it; 0 stands for success alone."""
        job = self.job
        if not job.state.is_final or job.exit_code is None:
            return None
        if job.signal:
            return f"{job.exit_code}:{job.signal}"
        return str(job.exit_code) if job.exit_code or job.state is JobState.COMPLETED else None

    def used(self, field: str) -> float | None:
        """Return an amount that it uses or used: ``max_rss``, ``average_cpus`` or ``gpu_memory``."""
        amount: float | None = getattr(self.job.live or self.job.used, field, None)
        return amount

    def _used_text(self, field: str) -> str | None:
        """Return bytes in words; of an ended job "n/a", while a running one was not asked, or has yet to be seen."""
        amount = self.used(field)
        return size_text(amount) if amount is not None else "n/a" if self.job.state.is_final else None

    @property
    def max_rss(self) -> str | None:
        """The most memory of a task."""
        return self._used_text("max_rss")

    @property
    def cpus_used(self) -> str | None:
        """``3.2 of 8``."""
        amount = self.used("average_cpus")
        if amount is None:
            return "n/a" if self.job.state.is_final else None
        return f"{amount:.1f}" + (f" of {self.job.cpus}" if self.job.cpus else "")

    @property
    def gpu_use(self) -> str | None:
        """The mean use of its GPUs, by its samples."""
        share = self.job.sampled.gpu_utilisation if self.job.sampled else None
        return None if share is None else f"{share:.0%}"

    @property
    def gpu_memory(self) -> str | None:
        """The most of any task, by Slurm, else of any GPU, by the job's samples; of how much, where that is known."""
        sampled = self.job.sampled
        if sampled is None or sampled.gpu_memory_peak is None or (self.job.used and self.job.used.gpu_memory):
            return self._used_text("gpu_memory")
        totals = {gpu.memory_total for gpu in sampled.gpus}
        total = next(iter(totals)) if len(totals) == 1 else None
        return size_text(sampled.gpu_memory_peak) + (f" of {total / 2**30:.0f}" if total else "")

    @property
    def progress(self) -> str | None:
        """Return a training's progress in words; nothing of an array, whose words are those of one task."""
        job = self.job
        known = None if self.tasks else job.progress
        return None if known is None else progress_text(known, running=not job.state.is_final)

    @property
    def reason(self) -> str:
        """Of an array how its tasks are; why it waits, or how it ended."""
        return "; ".join(filter(None, (self.tasks, reason(self.job))))

    @property
    def doing(self) -> str:
        """Return a running job's progress, as far as it is known; of others why they wait, or how they ended."""
        running = self.progress if not self.job.state.is_final else None
        return printable("; ".join(filter(None, (self.tasks, running, reason(self.job)))))

    @property
    def failed(self) -> bool:
        """True if it has ended, and not well: its first cause is worth a look."""
        return self.job.state.is_final and self.job.state is not JobState.COMPLETED
