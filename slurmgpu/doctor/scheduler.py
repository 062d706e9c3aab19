"""The report's lines on Slurm, the user's accounts and the cluster's profile."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurmgpu.doctor.lines import THRESHOLDS, Line, failure, graded, is_older, limit, ok, unknown, warning

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
    """Return the line on Slurm's commands, by those ``missing`` on PATH."""
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
    """Return the line on slurmctld; ``seconds`` that it took to answer, None: it did not, ``why`` and the remedy."""
    if seconds is None:
        return failure("slurm.controller", f"slurmctld does not answer: {why}", act)
    found = f"cluster {cluster or 'without a name'} answers in {seconds:.2f} s"
    act = "submit fewer, larger jobs; look for a squeue in a loop of yours"
    return graded("slurm.controller", found, act, warns=seconds > limit("controller.slow"))


def release(version: str | None) -> Line:
    """Return the line on Slurm's release in the form of `scontrol show config`, such as 24.11.5."""
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
    """Return the line on slurmctld's clock minus this machine's, in seconds; ``doubt``: its error."""
    if offset is None:
        return unknown("slurm.clock", "slurmctld does not tell its time")
    off = max(0.0, abs(offset) - doubt)
    if off < limit("clock.drifts"):
        return ok("slurm.clock", f"this machine and slurmctld agree to {max(doubt, abs(offset)):.1f} s")
    way = "ahead of" if offset > 0 else "behind"
    found = f"slurmctld's clock is {abs(offset):.1f} s {way} this machine's"
    act = "tell your cluster's support: one of the two does not keep its time (chronyc tracking, timedatectl)"
    return graded("slurm.clock", found, act, fails=off >= limit("clock.off"), warns=True)


def accounting(kept: bool, why: str | None) -> Line:
    """Return the line on sacct; ``why`` it does not answer."""
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
    """Return the line on the user's accounts (None: unknown, and ``why``); ``wanted``: the account that the job names."""
    if not kept:
        return ok("slurm.account", "none is needed: this cluster keeps no accounting")
    if accounts is None:
        return unknown(
            "slurm.account", f"sacctmgr does not tell them: {why}", "sacctmgr show associations user=$USER"
        )
    if not accounts:
        found = "you have no account on this cluster"
        act = "ask the owner of your project, or your cluster's support, to add you to one"
        return graded("slurm.account", found, act, fails=enforced, warns=True)
    listed = ", ".join(accounts[:6]) + (f" and {len(accounts) - 6} more" if len(accounts) > 6 else "")
    if wanted is not None and wanted not in accounts:
        found = f"account {wanted} is not yours; yours: {listed}"
        return graded("slurm.account", found, "choose one of them: -A NAME", fails=enforced, warns=True)
    return ok("slurm.account", listed)


def partition(wanted: str, there: Collection[str]) -> Line:
    """Return the line on the partitions that the job names, with commas; ``there``: Slurm's, empty if not known."""
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
    """Return the line on the profile in use (None: none, and ``why``); ``described``: its ClusterName, ``here``: Slurm's."""
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
    """Return the line on the profile's age.

    ``releases``: of Slurm, in the profile and now; ``gone``: partitions that only the profile has.
    """
    then, now = releases
    changes = []
    if gone:
        changes.append(f"Slurm has no partition {', '.join(gone)}")
    if then and now and then.split(".")[:2] != now.split(".")[:2]:
        changes.append(f"it was written for Slurm {then}, and this is {now}")
    if days is not None and days > limit("profile.old"):
        changes.append(f"it is {days} days old")
    if changes:
        return warning("cluster.age", "; ".join(changes), "slurmgpu cluster refresh brings it up to date")
    if days is None:
        return unknown("cluster.age", "the profile does not say how old its source is")
    return ok("cluster.age", f"its source is {days} days old" if days else "its source is of today")
