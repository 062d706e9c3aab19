"""Why a job waits, and why it ended, each in a plain sentence.

The words are those of Slurm's source, job_state_reason.c, up to 25.11; what they mean is from "Job Reason Codes"
(https://slurm.schedmd.com/job_reason_codes.html), the manual pages of squeue and sacctmgr. A word that is not here
stands alone.
"""

from __future__ import annotations

import os
import pwd
import re
import signal

from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.printable import printable
from slurmgpu.slurm import TAKEN_OFF

__all__ = ["canceller", "reason"]

STOPPED = 75
"""EX_TEMPFAIL of sysexits.h, with which a training of slurmgpu's ends that has stopped and saved everything."""

# What waits "for ever" needs the user.
_WAITING = {
    "AccountNotAllowed": "waits for ever: the partition does not take this account",
    "AccountingPolicy": "a limit of the account or the QOS",
    "AssociationJobLimit": "as many jobs run as the account allows",
    "AssociationResourceLimit": "the account's jobs use as much as its limit allows",
    "AssociationTimeLimit": "the account has used up its time",
    "BadConstraints": "waits for ever: no node has what it asks for",
    "BeginTime": "not before the time asked for",
    "BurstBufferOperation": "a burst buffer operation failed",
    "BurstBufferResources": "waits for room in the burst buffer",
    "BurstBufferStageIn": "its data is being copied into the burst buffer",
    "Cleaning": "its earlier start is still being cleaned up",
    "Constraints": "waits for ever: no node has the features it asks for",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "waits for ever: the other job did not end as asked",
    "FedJobLock": "the clusters of the federation are agreeing on who starts it",
    "FrontEndDown": "no front-end node is up",
    "InvalidAccount": "waits for ever: its account is not valid (any more)",
    "InvalidQOS": "waits for ever: its QOS is not valid (any more)",
    "JobArrayTaskLimit": "as many tasks run as the array's own limit (%) allows",
    "JobHeldAdmin": "held by the site",
    "JobHeldUser": "held by its user; `scontrol release {id}` lets it start",
    "JobHoldMaxRequeue": "held: it was requeued too often; `scontrol release {id}` lets it start",
    "Licenses": "waits for licenses that others use",
    "MaxMemPerLimit": "waits for ever: more memory for a CPU or node than the site allows",
    "MaxPoweredUpNodes": "as many nodes are powered up as the site allows",
    "MpiPortsBusy": "waits for ports that other jobs' MPI use",
    "NodeDown": "a node that it needs is down",
    "None": "not looked at by the scheduler yet",
    "PartitionConfig": "waits for ever: more than the partition has",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition starts no jobs now",
    "PartitionNodeLimit": "waits for ever: more nodes than the partition allows",
    "PartitionTimeLimit": "waits for ever: longer than the partition allows",
    "Priority": "others come first",
    "Prolog": "its nodes are being prepared",
    "QOSJobLimit": "as many jobs run as the QOS allows",
    "QOSNotAllowed": "waits for ever: the account or partition may not use this QOS",
    "QOSResourceLimit": "the QOS's jobs use as much as its limit allows",
    "QOSTimeLimit": "the QOS has used up its time",
    "QOSUsageThreshold": "the account's share is used up too far for this QOS",
    "ReqNodeNotAvail": "nodes asked for are down or reserved",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "waits for ever: its reservation was deleted",
    "ReservationInvalid": "waits for ever: its reservation is not valid",
    "Resources": "next, when nodes are free",
    "SchedDefer": "the scheduler looks at it later",
    "SystemFailure": "Slurm, a node or a file system had a fault",
    "WaitingForScheduling": "not looked at by the scheduler yet",
}

# QOSMaxGRESPerUser, AssocGrpCPURunMinutesLimit, MaxCpuRunMinsPerAccount, QOSMinCpuNotSatisfied: some 140 words are made
# of these parts. The Max...Per(Account|User) without a prefix are limits of the QOS.
_LIMIT = re.compile(
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


def reason(job: JobStatus) -> str | None:
    """Why a job waits or how it ended, in words; None where there is nothing to say."""
    if job.state.is_final:
        return _end(job)
    if job.reason is None:
        return None
    # "ReqNodeNotAvail, UnavailableNodes:n[1-3]" carries more than the word.
    word = job.reason.strip("()").split(",")[0].strip()
    if word == "BeginTime" and job.restarts:
        times = "once" if job.restarts == 1 else f"{job.restarts} times"
        return f"{printable(job.reason)}: put back into the queue ({times} so far), where Slurm lets it wait a moment"
    meaning = _dependency(word, job) or _WAITING.get(word) or _limit(word, job)
    if not job.state.is_waiting and (meaning is not None or word in _ENDED):
        return None  # Why it once waited, which Slurm does not clear, or how it is about to end.
    meaning = meaning.replace("{id}", job.job_id) if meaning else None
    return f"{printable(job.reason)}: {meaning}" if meaning else printable(job.reason)


# afterok:12(unfulfilled),afterany:13_*(unfulfilled); by ? where one of them is enough.
_AFTER = re.compile(r"(after\w*):([\d_*+]+)(?:\+\d+)?(?:\((\w+)\))?")
_BEFORE = {
    "after": "{} to start",
    "afterany": "{} to end",
    "afterok": "{} to complete",
    "afternotok": "{} to fail",
    "aftercorr": "its task of {} to complete",
    "afterburstbuffer": "{} to free its burst buffer",
}


def _dependency(word: str, job: JobStatus) -> str | None:
    """Which jobs a job waits for, and for what of them."""
    text = job.dependency or ""
    found = [(_BEFORE.get(kind), one, how) for kind, one, how in _AFTER.findall(text)]
    if not word.startswith("Dependency") or not (found or "singleton" in text):
        return None
    link = " or " if "?" in text else " and "
    parts = [f"job {one}" if what is None else what.format(f"job {one}") for what, one, _ in found]
    if "singleton" in text:
        parts.append("all earlier jobs of this name and user to end")
    if word == "DependencyNeverSatisfied":
        gone = [part for part, (_, _, how) in zip(parts, found, strict=False) if how == "failed"]
        return f"waits for ever: for {link.join(gone or parts)}, which cannot happen any more"
    return f"waits for {link.join(parts)}"


def _limit(word: str, job: JobStatus) -> str | None:
    """What a limit's name says: whose limit on what is reached, and what would have to happen."""
    match = _LIMIT.fullmatch(word)
    if match is None:
        return None
    owner = f"account {job.account}" if job.account else "the account"
    if match["whose"] != "Assoc":
        owner = f"QOS {job.qos}" if job.qos else "the QOS"
    amount, short = _UNITS[match["what"]]
    if match["minutes"]:
        amount = f"many {short}-minutes"
    thing = amount.partition(" ")[2]
    if match["kind"] == "Min":
        return f"waits for ever: it asks for {'fewer' if amount.startswith('many') else 'less'} {thing} than {owner} wants"
    if match["per"] in ("Job", "Node"):
        where = "on a node" if match["per"] == "Node" else "for a job"
        return f"waits for ever: it asks for more {thing} than {owner} allows {where}"
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


_ENDS = {
    JobState.TIMEOUT: "ran into its time limit",
    JobState.OUT_OF_MEMORY: "used more memory than asked for",
    JobState.PREEMPTED: "made way for a job that comes first",
    JobState.NODE_FAIL: "a node failed",
    JobState.BOOT_FAIL: "its nodes did not boot",
    JobState.DEADLINE: "could not end before its deadline",
    JobState.REVOKED: "another cluster of the federation started it",
}
# Slurm's words for ends that state and exit code do not tell.
_ENDED = {
    "NonZeroExitCode": "the command failed",
    "BadConstraints": "no node can ever run it",
    "JobLaunchFailure": "could not start: the log's or the work folder may be missing",
    "InactiveLimit": "was inactive for longer than the site allows",
    "SystemFailure": _WAITING["SystemFailure"],
}
_LAUNCH_FAILED = 53
"""What Slurm writes as the signal where slurmstepd could not open the log or enter the work folder."""
# Signals that end commands far more often than a command ends itself with their number as its exit code.
_KILLERS = {signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM}
# With 128 added, as likely as without: no failed command ends with 0, and ssh, srun and exit(-1) end with 255.
_OFTEN_CUT = {0, 127, *_KILLERS}


def _end(job: JobStatus) -> str | None:
    """How a job ended, from what accounting keeps for good: the same words after the queue has forgotten it."""
    if job.state is JobState.COMPLETED:
        code = job.derived_exit_code
        return f"the script ended well, but a step of it with exit code {code}" if code else None
    word = (job.reason or "").strip("()").split(",")[0].strip()
    if job.state is JobState.CANCELLED:
        return _cancelled(job)
    if job.cause is not None:
        return job.cause
    if job.state in _ENDS:
        return _ENDS[job.state]
    if job.signal == _LAUNCH_FAILED and not job.exit_code:
        return _ENDED["JobLaunchFailure"]
    return _by_code(job) or _ENDED.get(word)


def canceller(job: JobStatus) -> str:
    """Who cancelled a job; empty where Slurm does not say."""
    match = re.search(r" by (\d+)", job.state_text)
    return _user(int(match[1])) if match else ""


def _cancelled(job: JobStatus) -> str:
    by = canceller(job)
    who = f" by {by}" if by else ""
    return f"cancelled{who}{'' if job.node_list or job.elapsed else ', before it started'}"


def _user(number: int) -> str:
    if number == os.getuid():
        return "you"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _by_code(job: JobStatus) -> str | None:
    code = job.exit_code
    if job.signal:
        return f"ended by {_signal(job.signal)}"
    if code is None:
        return None
    if code == STOPPED:
        return f"stopped, and can go on: slurmgpu resume {job.job_id}"
    if code > TAKEN_OFF and code - TAKEN_OFF in set(signal.Signals):
        return f"the command was ended by {_signal(code - TAKEN_OFF)} (exit code {code})"
    if job.exit_code_cut and code in _OFTEN_CUT:
        cut = f"{code + TAKEN_OFF}: {_signal(code)}" if code in _KILLERS else str(code + TAKEN_OFF)
        return f"the command failed (exit code {code}, or {cut}; older releases of sacct show both as {code})"
    known = {126: "a command could not be started", 127: "a command was not found"}
    return f"{known.get(code, 'the command failed')} (exit code {code})" if code else None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
