"""Partitions, reservations and licences at this moment, as scontrol prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from slurmgpu.lines.hostlist import expand
from slurmgpu.slurm.describing.asking import Record
from slurmgpu.slurm.describing.partitions import partition_of
from slurmgpu.slurm.describing.words import words
from slurmgpu.slurm.text import known, moment, whole

if TYPE_CHECKING:
    from slurmgpu.models.cluster import Partition

__all__ = ["License", "PartitionNow", "ReservationNow", "licenses_of", "partitions_of", "reservations_of"]


@dataclass(frozen=True)
class PartitionNow:
    """A partition, its rules as a profile has them, and its place in the order."""

    name: str
    rules: Partition
    hosts: frozenset[str]
    tier: int
    """PriorityTier: jobs of a higher one come first."""
    default: bool
    state: str
    """UP, DOWN, DRAIN or INACTIVE."""


def partitions_of(records: Iterable[Record], config: Mapping[str, str]) -> dict[str, PartitionNow]:
    """The partitions by name."""
    return {
        one["PartitionName"]: PartitionNow(
            name=one["PartitionName"],
            rules=partition_of(one, config, (), preemptible=False),
            hosts=frozenset(expand(known(one.get("Nodes", "")) or "")),
            tier=whole(one.get("PriorityTier", "")) or 0,
            default=one.get("Default") == "YES",
            state=one.get("State", "").upper() or "UP",
        )
        for one in records
    }


@dataclass(frozen=True)
class ReservationNow:
    """A reservation: when, which nodes, and whose."""

    name: str
    start: datetime | None
    end: datetime | None
    hosts: frozenset[str]
    state: str
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    maintenance: bool = False


def reservations_of(records: Iterable[Record]) -> dict[str, ReservationNow]:
    """The reservations by name."""
    return {
        one["ReservationName"]: ReservationNow(
            name=one["ReservationName"],
            start=moment(one.get("StartTime", "")),
            end=moment(one.get("EndTime", "")),
            hosts=frozenset(expand(known(one.get("Nodes", "")) or "")),
            state=one.get("State", ""),
            users=words(known(one.get("Users", "")) or ""),
            accounts=words(known(one.get("Accounts", "")) or ""),
            maintenance="MAINT" in words(one.get("Flags", "")),
        )
        for one in records
    }


@dataclass(frozen=True)
class License:
    """A licence and how many of it are free."""

    total: int | None
    free: int | None


def licenses_of(records: Iterable[Record]) -> dict[str, License]:
    """The licences by name."""
    return {
        one["LicenseName"]: License(whole(one.get("Total", "")), whole(one.get("Free", "")))
        for one in records
    }
