"""Slurm's records, and what the login node shows -> the cluster, with QOS and associations; nothing here asks anything."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from slurmgpu.lines.slurm import expand
from slurmgpu.models.cluster import (
    Association,
    Cluster,
    Discovered,
    Limits,
    LoginNode,
    Partition,
    QosRule,
    Totals,
)
from slurmgpu.models.site import Dialect, Reservation, SlurmSetup, Source
from slurmgpu.models.units import Duration, Memory
from slurmgpu.slurm.describe_nodes import (
    Kind,
    gpu_types_of,
    groups_of,
    kinds_of,
    partition_of,
    preemptible_partitions,
)
from slurmgpu.slurm.show import ClusterRecords, Record
from slurmgpu.slurm.text import duration, known, mib, moment, sound, whole, words

__all__ = ["associations_of", "build", "limits_of", "preemptible_qos", "qos_rule", "tres"]


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
        number = mib(value) if name == "mem" else whole(value)
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


MOST_QOS = 40
"""With more QOS than this only those are listed that are the user's, or hang on a partition."""


def build(
    told: ClusterRecords,
    around: LoginNode,
    *,
    date: datetime.date,
    groups: tuple[str, ...] = (),
    name: str | None = None,
) -> Discovered:
    """Return the cluster that Slurm described. ``groups`` are the user's: hidden partitions of others are left out."""
    return _Build(told, around, groups).run(date, name)


class _Build:
    def __init__(self, told: ClusterRecords, around: LoginNode, groups: tuple[str, ...]) -> None:
        self.told = told
        self.config = told.config
        self.around = around
        self.groups = tuple(one for one in groups if sound(one))
        self.hidden = dict(told.hidden) | around.hidden
        self.guessed: dict[str, str] = {}
        self.remarks: dict[tuple[str | int, ...], str] = {}
        self.records = [
            one
            for one in self._sound("partitions", "PartitionName", told.partitions)
            if _visible(one, groups)
        ]
        self.kinds = self._kinds()
        self.gpu_types = gpu_types_of(self._listed_kinds())

    def run(self, date: datetime.date, name: str | None) -> Discovered:
        told, config = self.told, self.config
        slurm_name = known(config.get("ClusterName", ""))
        partitions = self._partitions()
        qos = self._qos()
        associations, default_account = associations_of(told.user or (), told.accounts or ())
        if told.user is not None and not told.user:
            self.hidden["associations"] = "accounting lists no account of yours on this cluster"
        self._say_what_is_private()
        default = next((one["PartitionName"] for one in self.records if one.get("Default") == "YES"), None)
        dialect = self._dialect(default, default_account)
        self.guessed |= self.gpu_types.guessed | self.around.guessed
        release = known(config.get("SLURM_VERSION", "")) or "of unknown release"
        licenses = self._sound("licenses", "LicenseName", told.licenses)
        cluster = Cluster(
            name=name or _profile_name(slurm_name),
            description=f"Slurm cluster {slurm_name}" if slurm_name else None,
            source=Source(
                text=f"Slurm {release} on cluster {slurm_name or 'without a name'}, "
                f"read by slurmgpu cluster discover with {told.calls} calls",
                date=date,
            ),
            slurm_name=slurm_name,
            default_partition=default if default in partitions else None,
            partitions=self._without_unknown_qos(partitions, qos),
            gpu_types=self.gpu_types.types,
            qos=qos,
            associations=associations,
            user_groups=self.groups if any(one.groups for one in partitions.values()) else (),
            default_account=default_account,
            licenses={one["LicenseName"]: whole(one.get("Total", "")) or 0 for one in licenses},
            reservations=_reservations(self._sound("reservations", "ReservationName", told.reservations)),
            slurm=_setup(config),
            software=self.around.software,
            dialect=dialect,
            guessed=self.guessed,
            hidden=self.hidden,
        )
        return Discovered(cluster, self.remarks, told.calls, told.seconds)

    def _sound(self, field: str, key: str, records: list[Record] | None) -> list[Record]:
        """Return the records without those whose names no profile could hold; these are said to be left out."""
        for record in records or ():
            if not sound(record[key]):
                self.hidden[field] = f"left out: {record[key]!r}, which no option could name"
        return [record for record in records or () if sound(record[key])]

    def _kinds(self) -> dict[str, tuple[Kind, bool]]:
        parameters = self.config.get("SelectTypeParameters", "").upper()
        return kinds_of(
            self.told.nodes or (),
            whole_cores="CR_CORE" in parameters or "CR_SOCKET" in parameters,
            spec_usable=self.config.get("AllowSpecResourcesUsage", "").upper() in {"YES", "1"},
        )

    def _listed_kinds(self) -> list[Kind]:
        """Return the kinds of node in the partitions' order."""
        names = dict.fromkeys(
            host for record in self.records for host in expand(known(record.get("Nodes", "")) or "")
        )
        return list(dict.fromkeys(self.kinds[name][0] for name in names if name in self.kinds))

    def _partitions(self) -> dict[str, Partition]:
        preemptible = preemptible_partitions(self.records, self.config)
        gpus_counted = "gres/gpu" in words(self.config.get("AccountingStorageTRES", ""))
        found: dict[str, Partition] = {}
        for record in self.records:
            name = record["PartitionName"]
            groups = groups_of(record, self.kinds, self.gpu_types.of_kind, gpus_counted=gpus_counted)
            if not groups.nodes:
                self.hidden[f"partitions.{name}"] = "left out: it has no nodes, or none is shown to you"
                continue
            if groups.unseen:
                self.hidden[f"partitions.{name}.nodes"] = (
                    f"{groups.unseen} of its nodes are not shown ({self._why_unseen()})"
                )
            self.guessed |= {f"partitions.{name}.{key}": why for key, why in groups.guessed.items()}
            for index, remark in enumerate(groups.remarks):
                if remark:
                    self.remarks["partitions", name, "nodes", index] = remark
            self._remark(record)
            found[name] = partition_of(record, self.config, groups.nodes, preemptible=name in preemptible)
        return found

    def _remark(self, record: Record) -> None:
        said = []
        if record.get("Default") == "YES":
            said.append("the default")
        if record.get("ReqResv") == "YES":
            said.append("for jobs in a reservation")
        if record.get("RootOnly") == "YES":
            said.append("only root can use it")
        node_memory = whole(record.get("DefMemPerNode", ""))
        if node_memory:
            said.append(f"a job that asks for no memory gets {node_memory}M a node")
        if said:
            self.remarks["partitions", record["PartitionName"]] = "; ".join(said)

    def _why_unseen(self) -> str:
        private = words(self.config.get("PrivateData", ""))
        if "nodes" in private:
            return "PrivateData=nodes"
        return (
            "nodes in the cloud without power, perhaps"
            if "cloud" not in private
            else "Slurm does not say why"
        )

    def _qos(self) -> dict[str, Any]:
        rows = self._sound("qos", "name", self.told.qos)
        if len(rows) > MOST_QOS:
            mine = {name for row in self.told.user or () for name in words(row["qos"])}
            mine |= {record.get("QoS", "") for record in self.records}
            kept = [row for row in rows if row["name"] in mine]
            if kept:
                self.hidden["qos"] = f"left out: {len(rows) - len(kept)} QOS that are not yours"
                rows = kept
        preemptible = preemptible_qos(rows, self.config)
        return {row["name"]: qos_rule(row, preemptible=row["name"] in preemptible) for row in rows}

    def _without_unknown_qos(
        self, partitions: dict[str, Partition], qos: dict[str, object]
    ) -> dict[str, Partition]:
        """Say that a partition's own QOS is hidden where accounting does not show it: nothing can be checked by it."""
        for name, partition in partitions.items():
            if qos and partition.own_qos and partition.own_qos not in qos:
                self.hidden[f"partitions.{name}.own_qos"] = (
                    f"accounting does not show the QOS {partition.own_qos}"
                )
                partitions[name] = partition.model_copy(update={"own_qos": None})
        return partitions

    def _say_what_is_private(self) -> None:
        private = words(self.config.get("PrivateData", ""))
        if "reservations" in private:
            self.hidden.setdefault("reservations", "only yours are shown (PrivateData=reservations)")
        if "partitions" in private:
            self.hidden.setdefault("partitions", "only yours are shown (PrivateData=partitions)")

    def _dialect(self, default_partition: str | None, default_account: str | None) -> Dialect:
        stated: dict[str, Any] = {"gpus": "gres"}
        required = []
        enforced = words(self.config.get("AccountingStorageEnforce", ""))
        if "associations" in enforced and self.told.user is not None and not default_account:
            required.append("account")
        if self.records and default_partition is None:
            required.append("partition")
        self.guessed["dialect.gpus"] = (
            "--gres works on every Slurm; the site's own examples may prefer another option"
        )
        if required:
            stated["required"] = tuple(required)
        if self.gpu_types.by_constraint:
            stated["gpu_type_by"] = "constraint"
            self.guessed["dialect.gpu_type_by"] = "no GPU has a type in Slurm, and features name models"
        if _memory_is_consumable(self.config) is False:
            stated["memory_share"] = False
            self.guessed["dialect.memory_share"] = (
                "memory is not given out here, so nothing is gained by asking for it"
            )
        plugins = known(self.config.get("JobSubmitPlugins", ""))
        if plugins:
            self.hidden["dialect"] = (
                f"this site's own rules, in JobSubmitPlugins={plugins}: Slurm does not show them"
            )
        return Dialect(**stated)


def _visible(record: Record, groups: tuple[str, ...]) -> bool:
    """Hidden partitions are the user's own affair only where the user may submit."""
    allowed = record.get("AllowGroups", "ALL")
    return record.get("Hidden") != "YES" or allowed == "ALL" or bool(set(words(allowed)) & {*groups})


def _profile_name(slurm_name: str | None) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", slurm_name or "").strip("-.") or "mycluster"


def _memory_is_consumable(config: Mapping[str, str]) -> bool | None:
    parameters = known(config.get("SelectTypeParameters", ""))
    return "MEMORY" in parameters.upper() if parameters else None


def _setup(config: Mapping[str, str]) -> SlurmSetup:
    limits = {"NO": "no", "ANY": "any", "ALL": "all"}
    preempt = known(config.get("PreemptType", "").removeprefix("preempt/"))
    kill_wait = whole(config.get("KillWait", "").removesuffix(" sec"))
    requeue = config.get("JobRequeue")
    stated: dict[str, Any] = {
        "release": known(config.get("SLURM_VERSION", "")),
        "memory_is_consumable": _memory_is_consumable(config),
        "enforces": words(known(config.get("AccountingStorageEnforce", "")) or ""),
        "refuses_over_limits": limits.get(config.get("EnforcePartLimits", "").upper()),
        "max_array_size": whole(config.get("MaxArraySize", "")) or None,
        "kill_wait": Duration(kill_wait) if kill_wait else None,
        "requeues": None if requeue is None else requeue not in {"0", "NO"},
        "preemption": f"{preempt}, {config.get('PreemptMode', 'OFF')}" if preempt else None,
        "private": words(known(config.get("PrivateData", "")) or ""),
    }
    return SlurmSetup(**{key: value for key, value in stated.items() if value is not None})


def _reservations(records: list[Record]) -> dict[str, Reservation]:
    found = {}
    for record in records:
        partition = known(record.get("PartitionName", ""))
        found[record["ReservationName"]] = Reservation(
            partition=partition if partition and sound(partition) else None,
            nodes=whole(record.get("NodeCnt", "")),
            names=hosts if (hosts := known(record.get("Nodes", ""))) and sound(hosts) else None,
            start=_moment(record.get("StartTime", "")),
            end=_moment(record.get("EndTime", "")),
            accounts=words(known(record.get("Accounts", "")) or ""),
            users=words(known(record.get("Users", "")) or ""),
        )
    return found


def _moment(text: str) -> str | None:
    """Return the cluster's own time, which a login node shares."""
    found = moment(text)
    return f"{found.astimezone():%Y-%m-%d %H:%M:%S}" if found else None
