"""What is said of Slurm, of the user's accounts and of the cluster's profile."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurmgpu.doctor.lines import THRESHOLDS, Line, failure, is_older, limit, ok, unknown, warning

__all__ = [
    "account",
    "accounting",
    "clock",
    "commands",
    "controller",
    "partition",
    "profile",
    "profile_age",
    "release",
]


def commands(missing: Collection[str]) -> Line:
    """Slurm's commands, those that are not on PATH."""
    if not missing:
        return ok("slurm.commands", "all on PATH")
    if list(missing) == ["sacct"]:
        return warning(
            "slurm.commands",
            "sacct is not on PATH: finished jobs are known to the queue alone, for minutes",
            "ask your cluster's support for Slurm's accounting commands on this machine",
        )
    return failure(
        "slurm.commands",
        f"not on PATH: {', '.join(missing)}",
        "log in to a login node of the cluster; some sites have a module for Slurm (module load slurm)",
    )


def controller(seconds: float | None, why: str, act: str, cluster: str | None) -> Line:
    """slurmctld; ``seconds`` that it took to answer, None: it did not, ``why``, and what to do about it."""
    if seconds is None:
        return failure("slurm.controller", f"slurmctld does not answer: {why}", act)
    found = f"cluster {cluster or 'without a name'} answers in {seconds:.2f} s"
    if seconds > limit("controller.slow"):
        return warning(
            "slurm.controller", found, "submit fewer, larger jobs; look for a squeue in a loop of yours"
        )
    return ok("slurm.controller", found)


def release(version: str | None) -> Line:
    """Slurm's release, as `scontrol show config` says it: 24.11.5."""
    older = is_older(version, "release.oldest")
    if older is None:
        return unknown("slurm.release", "slurmctld does not tell its release")
    if older:
        return warning(
            "slurm.release",
            f"Slurm {version}, older than {THRESHOLDS['release.oldest'].value}",
            "slurmgpu is not tested on it; report what it does not understand",
        )
    return ok("slurm.release", f"Slurm {version}")


def clock(offset: float | None, doubt: float) -> Line:
    """slurmctld's clock minus this machine's, in seconds, and by how much that may be wrong."""
    if offset is None:
        return unknown("slurm.clock", "slurmctld does not tell its time")
    off = max(0.0, abs(offset) - doubt)
    found = (
        f"slurmctld's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
    )
    act = "tell your cluster's support: one of the two does not keep its time (chronyc tracking, timedatectl)"
    if off >= limit("clock.off"):
        return failure("slurm.clock", found, act)
    if off >= limit("clock.drifts"):
        return warning("slurm.clock", found, act)
    return ok("slurm.clock", f"this machine and slurmctld agree to {max(doubt, abs(offset)):.1f} s")


def accounting(kept: bool, why: str | None) -> Line:
    """sacct; ``why`` it does not answer."""
    if not kept:
        return ok("slurm.accounting", "this cluster keeps no accounting")
    if why is not None:
        return warning(
            "slurm.accounting",
            f"sacct does not answer: {why}",
            "jobs run all the same; how they ended is known for minutes only. Ask your cluster's support",
        )
    return ok("slurm.accounting", "sacct answers")


def account(
    accounts: Sequence[str] | None, why: str, *, kept: bool, enforced: bool, wanted: str | None
) -> Line:
    """The user's accounts; None: they could not be had, and ``why``. ``wanted`` is the one that the job names."""
    if not kept:
        return ok("slurm.account", "none is needed: this cluster keeps no accounting")
    if accounts is None:
        return unknown(
            "slurm.account", f"sacctmgr does not tell them: {why}", "sacctmgr show associations user=$USER"
        )
    if not accounts:
        found = "you have no account on this cluster"
        act = "ask the owner of your project, or your cluster's support, to add you to one"
        return failure("slurm.account", found, act) if enforced else warning("slurm.account", found, act)
    listed = ", ".join(accounts[:6]) + (f" and {len(accounts) - 6} more" if len(accounts) > 6 else "")
    if wanted is not None and wanted not in accounts:
        make = failure if enforced else warning
        return make(
            "slurm.account", f"account {wanted} is not yours; yours: {listed}", "choose one of them: -A NAME"
        )
    return ok("slurm.account", listed)


def partition(wanted: str, there: Collection[str]) -> Line:
    """The partitions that the job names, one or several with commas; ``there`` are Slurm's, empty: it does not tell."""
    if not there:
        return unknown(
            "slurm.partition", f"{wanted}: Slurm does not tell its partitions", "sinfo --summarize"
        )
    gone = [one for one in wanted.split(",") if one not in there]
    if gone:
        return failure(
            "slurm.partition",
            f"Slurm has no partition {', '.join(gone)}; it has {', '.join(sorted(there))}",
            "choose one of them: -p NAME",
        )
    return ok("slurm.partition", wanted)


def profile(name: str | None, why: str, described: str | None, here: str | None) -> Line:
    """The profile in use; None: there is none, and ``why``. ``described`` is its ClusterName, ``here`` that of Slurm."""
    if name is None:
        return failure(
            "cluster.profile",
            why,
            "slurmgpu cluster list shows profiles, `slurmgpu cluster use NAME` chooses one",
        )
    if name == "generic":
        return warning(
            "cluster.profile",
            "none is chosen: nothing is checked against limits",
            "slurmgpu init learns this cluster",
        )
    if described and here and described.lower() != here.lower():
        return warning(
            "cluster.profile",
            f"{name} describes cluster {described}, and Slurm here is {here}",
            "choose this cluster's profile (slurmgpu cluster use NAME), or make one: slurmgpu init",
        )
    return ok("cluster.profile", name)


def profile_age(days: int | None, releases: tuple[str | None, str | None], gone: Sequence[str]) -> Line:
    """How old the profile is.

    ``releases``: of Slurm, as the profile says and as Slurm says; ``gone``: partitions that only the profile has.
    """
    then, now = releases
    told = []
    if gone:
        told.append(f"Slurm has no partition {', '.join(gone)}")
    if then and now and then.split(".")[:2] != now.split(".")[:2]:
        told.append(f"it was written for Slurm {then}, and this is {now}")
    if days is not None and days > limit("profile.old"):
        told.append(f"it is {days} days old")
    if told:
        return warning("cluster.age", "; ".join(told), "slurmgpu cluster refresh brings it up to date")
    if days is None:
        return unknown("cluster.age", "the profile does not say how old its source is")
    return ok("cluster.age", f"its source is {days} days old" if days else "its source is of today")
