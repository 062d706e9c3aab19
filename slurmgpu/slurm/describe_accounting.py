"""QOS and associations as sacctmgr prints them -> rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from slurmgpu.models.cluster import Association, Limits, QosRule, Totals
from slurmgpu.models.units import Duration, Memory
from slurmgpu.slurm.show import Record
from slurmgpu.slurm.text import duration, size, sound, whole, words

__all__ = ["associations_of", "limits_of", "preemptible_qos", "qos_rule"]


Lift = Literal["max_time", "max_nodes", "min_nodes"]
_LIFTS: dict[str, Lift] = {
    "PartitionTimeLimit": "max_time",
    "PartitionMaxNodes": "max_nodes",
    "PartitionMinNodes": "min_nodes",
}


def tres(text: str) -> dict[str, int]:
    """`cpu=256,mem=2000G,gres/gpu:a100=4` by name, memory in MiB; a limit of -1 is none."""
    found: dict[str, int] = {}
    for entry in words(text):
        name, _, value = entry.rpartition("=")
        if name == "mem":
            amount = size(value, "M")
            number = None if amount is None else -(-amount // 1024**2)
        else:
            number = whole(value)
        if name and number is not None:
            found[name] = number
    return found


def _by_type(limits: Mapping[str, int]) -> dict[str, int]:
    return {
        name.removeprefix("gres/gpu:"): count
        for name, count in limits.items()
        if name.startswith("gres/gpu:")
    }


def _totals(limits: Mapping[str, int], jobs: int | None) -> Totals:
    return Totals(
        gpus=limits.get("gres/gpu"),
        gpus_by_type=_by_type(limits),
        cpus=limits.get("cpu"),
        memory=Memory(limits["mem"]) if "mem" in limits else None,
        nodes=limits.get("node"),
        jobs=jobs,
    )


def _least(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Of each resource the tightest limit."""
    result: dict[str, int] = {}
    for limits in several:
        for name, number in limits.items():
            result[name] = min(number, result.get(name, number))
    return result


def _fewest(*texts: str) -> int | None:
    return min((number for text in texts if (number := whole(text)) is not None), default=None)


def limits_of(row: Record, *above: Record) -> Limits:
    """Return the limits of a QOS, or of an association and, with ``above``, its account: one job's, a user's, all jobs'.

    Limits for each account (MaxTRESPerAccount) hold for all jobs that the user's own are part of, and count so.
    """
    job, node, least = tres(row["maxtres"]), tres(row["maxtrespernode"]), tres(row.get("mintres", ""))
    together = [
        tres(row["grptres"]),
        tres(row.get("maxtrespa", "")),
        *(tres(one["grptres"]) for one in above),
    ]
    node_minutes = tres(row.get("maxtresmins", "")).get("node")
    jobs = _fewest(
        # Running jobs of an association; a QOS has no such limit but for each user, or in all.
        row["grpjobs"], row.get("maxjobs", ""), row.get("maxjobspa", ""), *(one["grpjobs"] for one in above),
    )  # fmt: skip
    stated: dict[str, Any] = {
        "max_time": duration(row["maxwall"]),
        "max_node_time": Duration(60 * node_minutes) if node_minutes else None,
        "min_nodes": least.get("node") or None,
        "max_nodes": job.get("node") or None,
        "min_gpus": least.get("gres/gpu") or None,
        "max_gpus": job.get("gres/gpu"),
        "max_gpus_by_type": _by_type(job),
        "max_gpus_per_node": node.get("gres/gpu"),
        "max_cpus": job.get("cpu") or None,
        "max_cpus_per_node": node.get("cpu") or None,
        "max_memory": Memory(node["mem"]) if node.get("mem") else None,
        "max_memory_in_all": Memory(job["mem"]) if job.get("mem") else None,
        "per_user": _totals(tres(row.get("maxtrespu", "")), whole(row.get("maxjobspu", ""))),
        "in_all": _totals(_least(together), jobs),
    }
    return Limits(**{key: value for key, value in stated.items() if value is not None})


def preemptible_qos(rows: Iterable[Record], config: Mapping[str, str]) -> set[str]:
    """Return the QOS whose jobs others may stop (PreemptType=preempt/qos)."""
    rows = list(rows)
    if not config.get("PreemptType", "").endswith("/qos"):
        return set()
    named = {name for row in rows for name in words(row["preempt"])}
    modes = {
        row["name"]: row["preemptmode"] if row["preemptmode"] != "cluster" else config.get("PreemptMode", "")
        for row in rows
    }
    return {name for name in named if not modes.get(name, "").upper().startswith("OFF")}


def qos_rule(row: Record, *, preemptible: bool) -> QosRule:
    """Return the rule of one QOS."""
    flags = words(row["flags"])
    description = row["description"].strip()
    try:
        factor = float(row["usagefactor"])
    except ValueError:
        factor = 1.0
    stated: dict[str, Any] = {
        # sacctmgr puts the name there when nobody gave one.
        "description": description if description != row["name"] else None,
        "limits": limits_of(row),
        "lifts": tuple(_LIFTS[flag] for flag in sorted(flags) if flag in _LIFTS),
        "over_partition_qos": "OverPartQOS" in flags,
        "preemptible": preemptible,
    }
    rule = QosRule(**{key: value for key, value in stated.items() if value})
    return rule if factor == 1 else rule.model_copy(update={"usage_factor": factor})


def associations_of(
    user: Iterable[Record], accounts: Iterable[Record]
) -> tuple[tuple[Association, ...], str | None]:
    """Return the user's associations, by account and partition, and the default account."""
    above = {row["account"]: row for row in accounts if not row["user"]}
    found: list[Association] = []
    default = None
    for row in user:
        default = default or (row["defaultaccount"] if sound(row["defaultaccount"]) else None)
        if not sound(row["account"]):
            continue
        of_account = [above[row["account"]]] if row["account"] in above else []
        found.append(
            Association(
                account=row["account"],
                partition=row["partition"] if sound(row["partition"]) else None,
                # Added to (+) or taken from (-) what the account has: sacctmgr prints the outcome.
                qos=tuple(sorted(words(row["qos"]))),
                default_qos=row["defaultqos"] if sound(row["defaultqos"]) else None,
                limits=limits_of(row, *of_account),
            )
        )
    # Releases differ in their order.
    return tuple(sorted(found, key=lambda one: (one.account, one.partition or ""))), default
