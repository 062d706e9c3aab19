"""The words that Slurm has for why a job waits: what each means, what it is about, and what lets the job start.

One table for ``status``, ``why`` and whoever waits for a job. The words are those of Slurm's source, job_state_reason.c,
up to 25.11; what they mean is from "Job Reason Codes" (https://slurm.schedmd.com/job_reason_codes.html), the manual pages
of squeue, scontrol and sacctmgr. A word that is not here stands alone.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from slurmgpu.jobs.select import WAITS_FOR, read_dependency
from slurmgpu.models.run import JobStatus

__all__ = ["LIMIT", "NEXT", "WORDS", "About", "Waits", "about", "each_waits", "waits", "word_of", "words_of"]


About = Literal[
    "account", "array", "begin", "dependency", "held", "licenses", "limit", "nodes", "partition", "qos", "request",
    "reservation", "room", "site", "size", "soon", "time",
]  # fmt: skip
"""What a reason is about: where the figures that explain it are, and what can be done."""

NEVER = "will never start: "
NEXT = "next to start, when nodes are free"


class Waits(NamedTuple):
    """What a word means."""

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
    "JobHoldMaxRequeue": Waits(
        "held: it was requeued too often; `scontrol release {id}` lets it start", "held"
    ),
    "EnvironmentFailedHeld": Waits("held: the user's environment could not be read on its node", "held"),
    "LaunchFailedHeld": Waits("held: its start failed on a node (prolog, log or work folder)", "held"),
    "Licenses": Waits("waits for licenses that others use", "licenses"),
    "MaxMemPerLimit": Waits(
        "will never start: asks for more memory for a CPU or node than the site allows", "size"
    ),
    "MaxPoweredUpNodes": Waits("as many nodes are powered up as the site allows"),
    "MpiPortsBusy": Waits("waits for ports that other jobs' MPI use"),
    "NodeDown": Waits("a node that it needs is down", "nodes"),
    "NodesUnavailable": Waits(
        "the nodes that it could use are down, drained, or reserved for jobs that come first", "nodes"
    ),
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
}

# QOSMaxGRESPerUser, AssocGrpCPURunMinutesLimit, MaxCpuRunMinsPerAccount, QOSMinCpuNotSatisfied: some 140 words are made
# of these parts. The Max...Per(Account|User) without a prefix are limits of the QOS.
LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc|)(?P<kind>Grp|Max|Min)"
    r"(?P<what>Cpu|CPU|SubmitJobs?|Jobs|Memory|Mem|Node|WallDuration|Wall|Energy|GRES|License|BB|Billing|Unknown)"
    r"(?P<minutes>Minutes|RunMinutes|RunMins|)(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
# In the plural or as a mass, and as the first half of "-minutes".
_UNITS = {
    "Cpu": ("many CPUs", "CPU"),
    "CPU": ("many CPUs", "CPU"),
    "Jobs": ("many jobs", "job"),
    "SubmitJob": ("many jobs", "job"),
    "SubmitJobs": ("many jobs", "job"),
    "Memory": ("much memory", "memory"),
    "Mem": ("much memory", "memory"),
    "Node": ("many nodes", "node"),
    "Wall": ("much time", "wall"),
    "WallDuration": ("much time", "wall"),
    "Energy": ("much energy", "energy"),
    "GRES": ("many GPUs or other GRES", "GPU"),
    "License": ("many licenses", "license"),
    "BB": ("much burst buffer space", "burst buffer"),
    "Billing": ("many billing units", "billing"),
    "Unknown": ("much of a resource", "resource"),
}


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
    """Return the words of tasks of an array that wait together: squeue makes one row of them, and writes "JobHeldUser,None"

    (_merge_job_reason of squeue's print.c). Of anything else the one word.
    """
    words = tuple(word.strip() for word in (reason or "").strip().strip("()").split(","))
    return words if all(about(word) for word in words) else words[:1]


def waits(word: str, job: JobStatus) -> Waits | None:
    """Return what a word means for this job; None where it is not known."""
    told = _dependency(word, job)
    if told:
        return Waits(told, "dependency")
    known = WORDS.get(word)
    return _limit(word, job) if known is None else known._replace(meaning=known.meaning + _figure(word, job))


def each_waits(job: JobStatus) -> str | None:
    """Return what tasks of an array that wait together for different things wait for; None of any other job."""
    words = words_of(job.reason)
    if len(words) < 2:
        return None
    told = [known.meaning for word in words if (known := waits(word, job))]
    return f"its tasks wait for different things: {'; '.join(told)}"


@lru_cache(maxsize=1024)
def about(word: str) -> About | None:
    """Return what a word alone is about; None where it is not known."""
    known = WORDS.get(word)
    return known.about if known else "limit" if LIMIT.fullmatch(word) else None


def _figure(word: str, job: JobStatus) -> str:
    """Return what the queue says beside the word, as a figure; nothing more is asked for it."""
    if word == "JobArrayTaskLimit":
        most = (job.array_tasks or "").partition("%")[2].rstrip("]")
        return f": {most} at a time" if most.isdecimal() else ""
    if word != "Resources" or not job.nodes:
        return ""
    number = job.gpus or job.cpus
    plural = "" if number == 1 else "s"
    what = ",".join(sorted(job.gpu_types)) or f"GPU{plural}" if job.gpus else f"CPU{plural}"
    several = f" on {job.nodes} nodes" if job.nodes > 1 else ""
    return f": asks for {number} {what}{several}" if number else ""


# afterok:12(unfulfilled),afterany:13_*(unfulfilled); by ? where one of them is enough. after:14+5: 5 minutes after its start.
def _dependency(word: str, job: JobStatus) -> str | None:
    """Return which jobs a job waits for, and for what of them."""
    text = job.dependency or ""
    found = [(WAITS_FOR.get(kind), one, how) for kind, one, how in read_dependency(text)]
    if not word.startswith("Dependency") or not (found or "singleton" in text):
        return None
    link = " or " if "?" in text else " and "
    parts = [f"job {one}" if what is None else what.format(f"job {one}") for what, one, _ in found]
    parts = [re.sub(r"\+(\d+) to start$", r" to have started \1 min ago", part) for part in parts]
    if "singleton" in text:
        parts.append("all earlier jobs of this name and user to end")
    if word == "DependencyNeverSatisfied":
        gone = [part for part, (_, _, how) in zip(parts, found, strict=False) if how == "failed"]
        return f"will never start: it waits for {link.join(gone or parts)}, which can no longer happen"
    return f"waits for {link.join(parts)}"


def _limit(word: str, job: JobStatus) -> Waits | None:
    """Return what a limit's name says: whose limit on what is reached, and what would have to happen."""
    match = LIMIT.fullmatch(word)
    if match is None:
        return None
    owner = f"account {job.account}" if job.account else "the account"
    if match["whose"] != "Assoc":
        owner = f"QOS {job.qos}" if job.qos else "the QOS"
    amount, short = _UNITS[match["what"]]
    if match["minutes"]:
        amount = f"many {short}-minutes"
    return Waits(_limit_sentence(match, owner, amount, job), "limit")


def _limit_sentence(match: re.Match[str], owner: str, amount: str, job: JobStatus) -> str:
    thing = amount.partition(" ")[2]
    if match["kind"] == "Min":
        return f"will never start: it asks for {'fewer' if amount.startswith('many') else 'less'} {thing} than {owner} wants"
    if match["per"] in ("Job", "Node"):
        where = "on a node" if match["per"] == "Node" else "for a job"
        return f"will never start: it asks for more {thing} than {owner} allows {where}"
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
