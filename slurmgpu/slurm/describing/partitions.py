"""A partition as scontrol prints it -> its rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from slurmgpu.lines.hostlist import expand
from slurmgpu.models.cluster import NodeGroup, Partition
from slurmgpu.models.limits import Billing, Limits
from slurmgpu.models.units import Memory
from slurmgpu.slurm.describing.accounting import duration
from slurmgpu.slurm.describing.asking import Record
from slurmgpu.slurm.describing.words import sound, words
from slurmgpu.slurm.text import known, whole

__all__ = ["partition_of", "preemptible_partitions"]

_STATES = {"DOWN": "down", "DRAIN": "drain", "INACTIVE": "inactive"}


def partition_of(
    record: Record, config: Mapping[str, str], nodes: tuple[NodeGroup, ...], *, preemptible: bool
) -> Partition:
    """The partition with these nodes; what it does not say itself, slurm.conf says for all."""
    jobs = _defaults(config.get("JobDefaults", "")) | _defaults(record.get("JobDefaults", ""))
    per_cpu = _memory(record, "DefMemPerCPU")
    if per_cpu is None and _memory(record, "DefMemPerNode") is None:
        per_cpu = _memory(config, "DefMemPerCPU")
    own_qos = known(record.get("QoS", "")) or ""
    stated: dict[str, Any] = {
        "nodes": nodes,
        "limits": _limits(record, config),
        "preemptible": preemptible or None,
        # Only jobs in a reservation run there.
        "by_name": record.get("ReqResv") == "YES" or None,
        "state": _STATES.get(record.get("State", "")),
        "whole_nodes": _whole_nodes(record, config),
        "accounts": _only(record, "AllowAccounts"),
        "denied_accounts": _only(record, "DenyAccounts"),
        "groups": ("root",) if record.get("RootOnly") == "YES" else _only(record, "AllowGroups"),
        "qos": _only(record, "AllowQos"),
        "denied_qos": _only(record, "DenyQos"),
        "own_qos": own_qos if sound(own_qos) else None,
        "default_memory_per_cpu": per_cpu,
        "default_memory_per_gpu": Memory(jobs["DefMemPerGPU"]) if jobs.get("DefMemPerGPU") else None,
        "default_cpus_per_gpu": jobs.get("DefCpuPerGPU") or None,
        "billing": _billing(record, config),
    }  # fmt: skip
    return Partition(**{key: value for key, value in stated.items() if value is not None})


def _whole_nodes(record: Record, config: Mapping[str, str]) -> bool | None:
    # From 26.05 on Exclusive=NODE says what OverSubscribe=EXCLUSIVE said before.
    if record.get("OverSubscribe") == "EXCLUSIVE" or record.get("Exclusive") in {"NODE", "TOPO"}:
        return True
    return True if config.get("SelectType", "").endswith("/linear") else None


def _limits(record: Record, config: Mapping[str, str]) -> Limits:
    per_node, per_cpu = _memory(record, "MaxMemPerNode"), _memory(record, "MaxMemPerCPU")
    if per_node is None and per_cpu is None:
        per_node, per_cpu = _memory(config, "MaxMemPerNode"), _memory(config, "MaxMemPerCPU")
    least = whole(record.get("MinNodes", ""))
    stated = {
        "max_time": duration(record.get("MaxTime", "")),
        "default_time": duration(record.get("DefaultTime", "")),
        "min_nodes": least if least and least > 1 else None,
        "max_nodes": whole(record.get("MaxNodes", "")) or None,
        "max_cpus_per_node": whole(record.get("MaxCPUsPerNode", "")) or None,
        "max_memory": per_node,
        "max_memory_per_cpu": per_cpu,
    }
    return Limits.model_validate({key: value for key, value in stated.items() if value is not None})


def _memory(record: Mapping[str, str], key: str) -> Memory | None:
    mib = whole(record.get(key, ""))
    return Memory(mib) if mib else None


def _only(record: Record, key: str) -> tuple[str, ...]:
    text = known(record.get(key, "")) or "ALL"
    return () if text == "ALL" else words(text)


def _defaults(text: str) -> dict[str, int]:
    """`DefCpuPerGPU=8,DefMemPerGPU=60000`."""
    pairs = (entry.partition("=") for entry in words(text))
    return {name: number for name, _, value in pairs if (number := whole(value)) is not None}


_WEIGHT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.IGNORECASE)
_MIB_OF = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


def _billing(record: Record, config: Mapping[str, str]) -> Billing | None:
    weights: dict[str, float] = {}
    for entry in words(known(record.get("TRESBillingWeights", "")) or ""):
        name, _, value = entry.partition("=")
        match = _WEIGHT.fullmatch(value)
        if match:
            # A weight is for one of what the TRES is counted in, or for as many as its suffix says.
            weights[name.lower()] = float(match[1]) / (
                _MIB_OF[match[2].upper()] if name.lower() == "mem" else 1
            )
    if not weights:
        return None
    gpu = weights.get("gres/gpu", 0.0)
    types = {
        name.removeprefix("gres/gpu:"): one for name, one in weights.items() if name.startswith("gres/gpu:")
    }
    flags = words(config.get("PriorityFlags", "").upper())
    stated: dict[str, Any] = {
        "gpu": gpu,
        # Slurm counts a typed GPU under gres/gpu, too, and charges both.
        "gpu_by_type": {name: one + gpu for name, one in types.items()},
        "cpu": weights.get("cpu"),
        "memory": round(weights.get("mem", 0.0) * 1024, 6),
        "node": weights.get("node"),
        "combine": "max" if any(flag.startswith("MAX_TRES") for flag in flags) else None,
    }
    return Billing(**{key: value for key, value in stated.items() if value})


def preemptible_partitions(partitions: Iterable[Record], config: Mapping[str, str]) -> set[str]:
    """Partitions whose jobs can be stopped for those of a higher PriorityTier on the same nodes."""
    partitions = list(partitions)
    if not config.get("PreemptType", "").endswith("/partition_prio"):
        return set()
    nodes = {
        record["PartitionName"]: set(expand(known(record.get("Nodes", "")) or "")) for record in partitions
    }
    tier = {record["PartitionName"]: whole(record.get("PriorityTier", "")) or 0 for record in partitions}
    return {
        record["PartitionName"]
        for record in partitions
        if record.get("PreemptMode", "OFF") != "OFF"
        and any(
            tier[other] > tier[record["PartitionName"]] and nodes[other] & nodes[record["PartitionName"]]
            for other in nodes
        )
    }
