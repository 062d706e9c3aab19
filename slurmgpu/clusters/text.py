"""Cluster profiles as lines for people: one in full, the table of `slurmgpu cluster list`, what was discovered in short."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from slurmgpu.amounts import count
from slurmgpu.models.cluster import Cluster, Discovered, Limits, NodeGroup, Partition
from slurmgpu.models.site import Source

_WIDTH = 80
_MOST_NAMED = 8
# A slice of a GPU (MIG), which is not a type of its own to whoever looks for a cluster.
_SLICE = re.compile(r"(?:\A|[_-])\d+g\.\d+gb")


def age(source: Source | None, today: datetime.date) -> str:
    """Return how old the figures are."""
    if source is None:
        return "no source given"
    days = source.days_old(today)
    if days is None:
        own = "which states no date"
    elif days < 0:
        own = f"of {source.date}, in future"
    elif days == 0:
        own = f"of {source.date}"
    else:
        least = "at least " if isinstance(source.date, str) else ""
        own = f"of {source.date}, {least}{days} day{'s' * (days != 1)} old"
    return f"{own}; read {source.read}" if source.read else own


def description_lines(cluster: Cluster, today: datetime.date) -> Iterator[str]:
    """Return a profile's lines; a question mark follows each guess."""
    if cluster.source:
        yield f"  source: {cluster.source.text}, {age(cluster.source, today)}"
    if cluster.covers:
        yield f"  covers: {cluster.covers}"
    if cluster.farewell:
        yield f"  {cluster.farewell}"
    if cluster.based_on:
        yield f"  based on: {cluster.based_on}"
    for name, partition in cluster.partitions.items():
        yield from _partition(name, partition, cluster)
    if cluster.gpu_types:
        types = []
        for name, gpu in cluster.gpu_types.items():
            mark = "?" if any(key.startswith(f"gpu_types.{name}") for key in cluster.guessed) else ""
            types.append(f"{name} {gpu.memory.readable}{mark}" if gpu.memory else name)
        yield f"  GPU types: {', '.join(types)}"
    for name, qos in cluster.qos.items():
        words = _limits(qos.limits)
        words += [f"lifts {' and '.join(map(_spaced, qos.lifts))} of the partition"] if qos.lifts else []
        words += ["preemptible"] if qos.preemptible else []
        words += [f"charged {qos.usage_factor:g} times"] if qos.usage_factor is not None else []
        yield f"  QOS {name}: {', '.join(words) or 'no limits stated'}"
    for one in cluster.associations:
        where = f" in {one.partition}" if one.partition else ""
        default = " (default)" if one.account == cluster.default_account and not where else ""
        words = [*([f"QOS {', '.join(one.qos)}"] if one.qos else []), *_limits(one.limits)]
        yield f"  account {one.account}{where}{default}: {', '.join(words) or 'no limits stated'}"
    for field in ("licenses", "reservations"):
        for name, value in getattr(cluster, field).items():
            yield f"  {field[:-1]} {name}: {_in_words(_stated(value))}"
    for field in ("slurm", "software"):
        yield from _keys(field, _stated(getattr(cluster, field)), cluster)
    for name, environment in cluster.environments.items():
        default = " (default)" if name == cluster.default_environment else ""
        yield f"  environment {name}{default}: {environment.description or ''}"
    unusual = cluster.dialect.model_dump(mode="json", exclude_defaults=True)
    dialect = {
        key: value
        for key, value in _stated(cluster.dialect).items()
        if key in unusual or f"dialect.{key}" in cluster.guessed
    }
    yield from _keys("dialect", dialect, cluster) if dialect else ["  dialect: the usual one"]
    for key, why in cluster.guessed.items():
        yield f"  guessed? {key}: {why}"
    for key, why in cluster.hidden.items():
        yield f"  hidden {key}: {why}"


def _stated(value: object) -> Any:
    """Return the fields that the profile states, as JSON has them."""
    return (
        value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        if hasattr(value, "model_dump")
        else value
    )


def _partition(name: str, partition: Partition, cluster: Cluster) -> Iterator[str]:
    words = _limits(partition.limits)
    words += ["the default"] if name == cluster.default_partition else []
    words += [f"state {partition.state}"] if partition.state != "up" else []
    words += ["preemptible"] if partition.preemptible else []
    words += ["whole nodes"] if partition.whole_nodes else []
    words += ["only jobs with GPUs"] if partition.requires_gpu else []
    for kind, names in (
        ("accounts", partition.accounts), ("not accounts", partition.denied_accounts), ("QOS", partition.qos),
        ("not QOS", partition.denied_qos), ("groups", partition.groups),
    ):  # fmt: skip
        words += [f"{kind} {' '.join(names)}"] if names else []
    words += [f"limits of QOS {partition.own_qos}"] if partition.own_qos else []
    yield f"  partition {name}: {', '.join(words) or 'no limits stated'}"
    for index, group in enumerate(partition.nodes):
        place = f"partitions.{name}.nodes.{index}"
        # A guess about the nodes, a part of them, or all around them.
        guessed = any(
            f"{key}.".startswith(f"{place}.") or f"{place}.".startswith(f"{key}.") for key in cluster.guessed
        )
        mark = "?" if guessed else ""
        yield f"    {_group(group)}{mark}"


def _group(group: NodeGroup) -> str:
    count = "? nodes" if group.count is None else "1 node" if group.count == 1 else f"{group.count} nodes"
    if isinstance(group.gpus, dict):
        gpus = " and ".join(f"{number} GPUs {kind}" for kind, number in group.gpus.items())
    else:
        gpus = "? GPUs" if group.gpus is None else f"{group.gpus} GPUs"
    rest = [gpus + (f" {group.gpu_type}" if group.gpu_type else "")]
    rest += [f"{group.shards} shards"] if group.shards else []
    rest += [f"{group.cpus} CPUs"] if group.cpus else []
    rest += [group.memory.readable] if group.memory else []
    rest += [f"{name} {number}" for name, number in group.gres.items()]
    return f"{count} with {', '.join(rest)}"


def _limits(limits: Limits) -> list[str]:
    stated = limits.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    found = []
    for key, value in stated.items():
        if isinstance(value, dict):
            value = " ".join(
                f"{_spaced(inner)} {_in_words(one)}" for inner, one in value.items() if one not in ({}, [])
            )
        if value not in ("", [], {}):
            found.append(f"{_spaced(key)} {_in_words(value)}")
    return found


def _spaced(key: str) -> str:
    return key.replace("_", " ")


def _keys(field: str, stated: dict[str, object], cluster: Cluster) -> Iterator[str]:
    shown = {key: value for key, value in stated.items() if value not in ([], {}, None)}
    if shown:
        marks = {key: "?" if f"{field}.{key}" in cluster.guessed else "" for key in shown}
        words = (f"{key} {_in_words(value)}{marks[key]}" for key, value in shown.items())
        yield f"  {field}: {', '.join(words)}"


def _in_words(value: object) -> str:
    """Return a setting as the profile writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_in_words, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_in_words(inner)}' for key, inner in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


class ProfileRow(NamedTuple):
    """A profile in the list."""

    name: str
    cluster: Cluster
    path: Path
    whose: str | None
    """Its owner, when it does not ship with slurmgpu: yours, the lab's, ..."""
    chosen: bool

    @property
    def site(self) -> str:
        """Return the site by the description's words before the machine's name, and the end of a retired machine."""
        retired = self.cluster.retired
        text = (self.cluster.description or "").partition(", ")[0]
        return ": ".join(filter(None, [self.whose, f"ended {retired.date}" if retired else None, text]))

    @property
    def gpus(self) -> list[str]:
        """Return the types of GPU without slices."""
        groups = [group for partition in self.cluster.partitions.values() for group in partition.nodes]
        stated = [list(one.gpus) if isinstance(one.gpus, dict) else [one.gpu_type] for one in groups]
        names = [*self.cluster.gpu_types, *(name for names in stated for name in names if name)]
        return [name for name in dict.fromkeys(names) if not _SLICE.search(name)]

    @property
    def date(self) -> str:
        """Return its source's own date."""
        return str(self.cluster.source.date) if self.cluster.source else "no source"

    def data(self) -> dict[str, object]:
        """Return the row as JSON."""
        return {
            "name": self.name,
            "description": self.cluster.description,
            "slurm_name": self.cluster.slurm_name,
            "based_on": self.cluster.based_on,
            "gpus": self.gpus,
            "source": self.cluster.source.model_dump(mode="json") if self.cluster.source else None,
            "covers": self.cluster.covers,
            "retired": self.cluster.retired.model_dump(mode="json") if self.cluster.retired else None,
            "path": str(self.path),
            "shipped": self.whose is None,
            "chosen": self.chosen,
        }


def matches(row: ProfileRow, words: Sequence[str]) -> bool:
    """Return True if each word is in the name, the description or a type of GPU, in any case."""
    text = " ".join([row.name, row.site, row.cluster.description or "", *row.gpus]).lower()
    return all(word.lower() in text for word in words)


def profile_table(rows: Sequence[ProfileRow]) -> Iterator[str]:
    """Return the table's lines; long cells are cut off, names never."""
    name = max((len(row.name) for row in rows), default=0)
    date = max((len(row.date) for row in rows), default=0)
    left = max(_WIDTH - len("* ") - name - date - 3 * len("  "), 20)
    gpus = left * 2 // 5
    site = left - gpus
    yield click.style(f"  {'NAME':<{name}}  {'SITE':<{site}}  {'GPUS':<{gpus}}  SOURCE", bold=True)
    for row in rows:
        star = click.style("*", fg="green", bold=True) if row.chosen else " "
        shown = click.style(f"{row.name:<{name}}", fg="green" if row.chosen else "cyan")
        types = _fitting(row.gpus, gpus)
        dated = click.style(row.date, dim=True)
        yield f"{star} {shown}  {_cut(row.site, site):<{site}}  {types:<{gpus}}  {dated}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def _fitting(names: Sequence[str], width: int) -> str:
    """Return as many names as fit, and the number of the others."""
    text = ", ".join(names)
    shown = len(names)
    while len(text) > width and shown > 1:
        shown -= 1
        text = f"{', '.join(names[:shown])}, +{len(names) - shown}"
    return _cut(text or "?", width)


def found_lines(found: Discovered) -> Iterator[str]:
    """Yield the cluster in a few lines."""
    from slurmgpu.slurm import expand  # lists of profiles need no Slurm

    cluster = found.cluster
    groups = [group for partition in cluster.partitions.values() for group in partition.nodes]
    nodes = len({name for group in groups for name in expand(group.names or "")})
    yield (
        f"cluster {cluster.slurm_name or cluster.name}: {count(len(cluster.partitions), 'partition')}, "
        f"{count(nodes, 'node')}; asked Slurm {found.calls} times in {found.seconds:.1f} s"
    )
    with_gpus = gpu_partitions(cluster)
    for name in with_gpus[:_MOST_NAMED]:
        yield f"  partition  {in_short(name, cluster)}"
    if len(with_gpus) > _MOST_NAMED:
        yield f"             and {len(with_gpus) - _MOST_NAMED} more with GPUs: slurmgpu cluster show"
    if not with_gpus:
        yield "  partition  none with GPUs" if cluster.partitions else "  partition  none is shown to you"
    accounts = [
        f"{name} (your default)" if name == cluster.default_account else name
        for name in accounts_here(cluster)
    ]
    yield f"  accounts   {_listed(accounts) or cluster.hidden.get('associations', 'none are known')}"
    if cluster.qos:
        yield f"  QOS        {_listed(list(cluster.qos))}"
    for key, why in cluster.hidden.items():
        if key != "associations" or accounts:
            yield f"  hidden     {key}: {why}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def accounts_here(cluster: Cluster, partition: str | None = None) -> list[str]:
    """Return the accounts that the user may charge, for jobs in any partition or in this one; none: not known."""
    rows = [row for row in cluster.associations if partition is None or row.partition in (None, partition)]
    names = list(dict.fromkeys(row.account for row in rows))
    part = cluster.partitions.get(partition or "")
    if part is not None:
        names = [
            one
            for one in names
            if one not in part.denied_accounts and (not part.accounts or one in part.accounts)
        ]
    return names


def gpu_partitions(cluster: Cluster) -> list[str]:
    """Return the partitions with GPUs that are open, the default one first."""
    names = [
        name
        for name, partition in cluster.partitions.items()
        if partition.state == "up" and any(group.gpu_count != 0 for group in partition.nodes)
    ]
    return sorted(names, key=lambda name: name != cluster.default_partition)


def in_short(name: str, cluster: Cluster) -> str:
    """Return a partition in one line."""
    partition = cluster.partitions[name]
    totals: dict[str, int] = {}
    for group in partition.kinds:
        if group.gpus != 0:
            each = group.gpus if isinstance(group.gpus, int) else 0
            kind = f"{group.gpu_type} GPUs" if group.gpu_type else "GPUs"
            totals[kind] = totals.get(kind, 0) + each * (group.count or 0)
    said = [", ".join(f"{number or '?'} {kind}" for kind, number in totals.items()) or "no GPUs"]
    if partition.limits.max_time is not None and partition.limits.max_time.seconds is not None:
        said.append(f"at most {partition.limits.max_time}")
    said += ["preemptible"] if partition.preemptible else []
    said += ["the default"] if name == cluster.default_partition else []
    return f"{name}: {', '.join(said)}"
