"""A profile held against Slurm itself: where the two disagree, and the profile's text as Slurm would have it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slurmgpu.clusters.refreshing import overlay
from slurmgpu.clusters.writing import flow
from slurmgpu.errors import InvalidInput
from slurmgpu.files.editing import with_values_at
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import Cluster, Discovered, Limits, NodeGroup, Partition, Totals

__all__ = ["Disagreement", "Patch", "disagreements", "patch_of", "unseen"]


Place = tuple[str | int, ...]

_CONFIG = "scontrol show config"
_PARTITIONS = "scontrol show partition"
_NODES = "scontrol show node"
_QOS = "sacctmgr show qos"
_ACCOUNTS = "sacctmgr show user"
# What a plug-in of the site's may hold, of which Slurm does not tell; a QOS may have the second.
_NOT_SLURMS = frozenset({"min_gpus", "max_node_time", "max_time_by_nodes"})
_TOTALS = ("per_user", "in_all")
_PARTITION, _YOURS, _ALL = "a partition", "a QOS of yours", "all"
_WORDS = frozenset({_PARTITION, _YOURS, _ALL})


@dataclass(frozen=True)
class Disagreement:
    """One thing of which the profile says something else than Slurm."""

    place: Place
    """The key in the profile, as the steps to it."""
    here: Any
    """What the profile says; None: nothing."""
    slurm: Any
    """What Slurm says; None: it has no such thing."""
    command: str
    """Which command tells it."""
    what: str = ""
    """What it is about, beyond the key."""

    def __str__(self) -> str:
        what = f" ({self.what})" if self.what else ""
        here = "the profile says nothing" if self.here is None else f"the profile says {flow(self.here)}"
        slurm = "nothing of the kind" if self.slurm is None else flow(self.slurm)
        return f"{'.'.join(map(str, self.place))}{what}: {here}, Slurm {slurm} [{self.command}]"

    def data(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "key": ".".join(map(str, self.place)),
            "what": self.what or None,
            "profile": self.here,
            "slurm": self.slurm,
            "command": self.command,
        }


def disagreements(profile: Cluster, found: Discovered) -> list[Disagreement]:
    """Where a profile and what was discovered disagree, in the profile's order.

    What the profile does not state is no disagreement, but for limits of the partitions and QOS that it describes, and
    for partitions that it should describe by what it ``covers``. What is a guess of discovery's, or hidden, is not
    compared.

    Raises:
        InvalidInput: Slurm here is another cluster's.
    """
    slurm = found.cluster
    if profile.slurm_name and slurm.slurm_name and profile.slurm_name != slurm.slurm_name:
        raise InvalidInput(
            f"profile {profile.name!r} is of the cluster {profile.slurm_name}, and Slurm here is {slurm.slurm_name}",
            hint="run this where that cluster's commands are, or name another profile",
        )
    named = profile.dialect.partition != "never"  # else its partitions are the profile's own words
    if named and profile.partitions and not profile.partitions.keys() & slurm.partitions.keys():
        raise InvalidInput(
            f"Slurm here has none of the partitions of profile {profile.name!r} "
            f"({', '.join(profile.partitions)}): it is another cluster, or shows them to nobody",
            hint="name another profile: slurmgpu cluster list",
        )
    return list(_Comparison(profile, found, named).all())


def unseen(found: Discovered) -> list[str]:
    """What could not be compared, and why."""
    return [f"{key}: {why}" for key, why in found.cluster.hidden.items()]


class _Comparison:
    def __init__(self, profile: Cluster, found: Discovered, named: bool) -> None:
        self.profile = profile
        self.slurm = found.cluster
        self.named = named
        self.hidden = found.cluster.hidden
        laid = overlay(found, profile)  # its types have the profile's names
        data = laid.get("partitions")
        parts = {name: one for name, one in data.items() if one} if isinstance(data, dict) else {}
        renamed = Layered({"name": profile.name, "partitions": parts}, {})
        self.renamed = validate(Cluster, renamed, "cluster").partitions

    def all(self) -> Iterator[Disagreement]:
        yield from self._cluster()
        if "partitions" not in self.hidden:
            yield from self._partitions()
        if "nodes" not in self.hidden:
            yield from self._features()
        if "qos" not in self.hidden:
            yield from self._qos()
        if "associations" not in self.hidden:
            yield from self._accounts()

    def _cluster(self) -> Iterator[Disagreement]:
        default = self.profile.default_partition
        if default is not None and "default_partition" not in self.profile.guessed and self.named:
            yield from _differ(("default_partition",), default, self.slurm.default_partition, _PARTITIONS)
        setup, told = self.profile.slurm, self.slurm.slurm
        for field in sorted(setup.model_fields_set & set(told.model_fields_set)):
            if field != "preemption":  # in words
                yield from _differ(
                    ("slurm", field), _said(getattr(setup, field)), _said(getattr(told, field)), _CONFIG
                )

    def _partitions(self) -> Iterator[Disagreement]:
        if not self.named:
            yield from self._types(("partitions",), self.profile.partitions.values())
            return
        for name, partition in self.profile.partitions.items():
            place: Place = ("partitions", name)
            if name not in self.slurm.partitions:
                yield Disagreement(place, _PARTITION, None, _PARTITIONS)
                continue
            yield from self._partition(place, partition, self.slurm.partitions[name])
            if "nodes" not in self.hidden and partition.nodes:
                renamed = self.renamed.get(name, self.slurm.partitions[name])
                yield from _Nodes(self.profile, place, partition, renamed).all()
        for name, partition in self.slurm.partitions.items():
            if name not in self.profile.partitions and self._should_have(partition):
                kinds = sorted({kind.gpu_type or "GPUs" for kind in partition.kinds if kind.gpu_count})
                yield Disagreement(
                    ("partitions", name),
                    None,
                    _PARTITION,
                    _PARTITIONS,
                    f"with {', '.join(kinds) or 'no GPUs'}",
                )

    def _should_have(self, partition: Partition) -> bool:
        if self.profile.covers == "GPU partitions":
            return any(kind.gpu_count for kind in partition.kinds)
        return self.profile.covers == "all partitions"

    def _types(self, place: Place, partitions: Any) -> Iterator[Disagreement]:
        """Of a profile whose partitions are its own words: the types of GPU alone."""
        there = {
            kind.gpu_type for part in self.renamed.values() for kind in part.kinds if kind.gpu_count != 0
        }
        stated = {kind.gpu_type for part in partitions for kind in part.kinds if kind.gpu_count != 0} - {None}
        if "nodes" in self.hidden or None in there:  # untyped GPUs may be any
            return
        for one in sorted(str(name) for name in stated - there):
            yield Disagreement(place, f"GPUs {one}", None, _NODES)
        for one in sorted(str(name) for name in there - stated):
            yield Disagreement(place, None, f"GPUs {one}", _NODES)

    def _partition(self, place: Place, here: Partition, there: Partition) -> Iterator[Disagreement]:
        # Compared as QOS where the profile has it, too.
        known = there.own_qos in self.profile.qos and there.own_qos == here.own_qos
        own = None if known else self.slurm.qos.get(there.own_qos or "")
        limits = (here.limits, there.limits, own.limits if own else None)
        yield from _limits((*place, "limits"), *limits, _PARTITIONS)
        for field, what in (("qos", "AllowQos"), ("accounts", "AllowAccounts"), ("groups", "AllowGroups")):
            stated, told = set(getattr(here, field)), set(getattr(there, field))
            if stated and stated != told:
                yield Disagreement((*place, field), sorted(stated), sorted(told) or _ALL, _PARTITIONS, what)
        whole = here.whole_nodes if here.whole_nodes is not None else self.profile.dialect.whole_nodes
        if there.whole_nodes and not whole:
            yield Disagreement((*place, "whole_nodes"), False, True, _PARTITIONS, "OverSubscribe=EXCLUSIVE")
        for field in ("default_memory_per_cpu", "default_memory_per_gpu", "default_cpus_per_gpu"):
            stated, told = _said(getattr(here, field)), _said(getattr(there, field))
            if stated is not None:
                yield from _differ((*place, field), stated, told, _PARTITIONS)

    def _features(self) -> Iterator[Disagreement]:
        there = {
            feature
            for part in self.slurm.partitions.values()
            for group in part.nodes
            for feature in group.features
        }
        named: dict[Place, str | None] = {("dialect", "constraint"): self.profile.dialect.constraint}
        named |= {
            ("gpu_types", name, "constraint"): one.constraint for name, one in self.profile.gpu_types.items()
        }
        for place, expression in named.items():
            missing = [one for one in re.findall(r"[\w.:+-]+", expression or "") if one not in there]
            if missing:
                yield Disagreement(place, expression, None, _NODES, f"no node has {', '.join(missing)}")

    def _qos(self) -> Iterator[Disagreement]:
        for name, rule in self.profile.qos.items():
            place: Place = ("qos", name)
            there = self.slurm.qos.get(name)
            if there is None:
                yield Disagreement(place, "a QOS", None, _QOS)
                continue
            yield from _limits((*place, "limits"), rule.limits, there.limits, None, _QOS)
        if not self.profile.qos:
            return
        yours = {name for row in self.slurm.associations for name in row.qos}
        for name in sorted(yours & self.slurm.qos.keys() - self.profile.qos.keys()):
            yield Disagreement(("qos", name), None, _YOURS, _QOS)

    def _accounts(self) -> Iterator[Disagreement]:
        yours = sorted({row.account for row in self.slurm.associations})
        rule = self.profile.dialect.account
        if rule is not None and rule.pattern and yours:
            ends = tuple(rule.suffix_by_gpu_type.values())
            fit = [one for one in yours if re.fullmatch(rule.pattern, one, re.IGNORECASE)]
            if not fit:
                yield Disagreement(
                    ("dialect", "account", "pattern"), rule.pattern, yours, _ACCOUNTS, "your accounts"
                )
            if ends and not any(one.endswith(ends) for one in yours):
                yield Disagreement(
                    ("dialect", "account", "suffix_by_gpu_type"),
                    sorted(ends),
                    yours,
                    _ACCOUNTS,
                    "your accounts",
                )
        if rule is not None and rule.suffix and yours and not any(one.endswith(rule.suffix) for one in yours):
            yield Disagreement(
                ("dialect", "account", "suffix"), rule.suffix, yours, _ACCOUNTS, "your accounts"
            )
        stated = sorted({row.account for row in self.profile.associations})
        if stated and stated != yours:
            yield Disagreement(("associations",), stated, yours or None, _ACCOUNTS, "your accounts")
        if self.profile.default_account is not None:
            yield from _differ(
                ("default_account",), self.profile.default_account, self.slurm.default_account, _ACCOUNTS
            )


def _differ(place: Place, here: object, slurm: object, command: str) -> Iterator[Disagreement]:
    if here != slurm:
        yield Disagreement(place, here, slurm, command)


def _said(value: object) -> Any:
    """A value as the profile writes it; None: it is not stated, or no limit."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, tuple):
        return [_said(one) for one in value]
    return None if str(value) == "UNLIMITED" else str(value)


def _limits(
    place: Place, here: Limits, there: Limits, own: Limits | None, command: str
) -> Iterator[Disagreement]:
    """Limits of a partition or QOS; ``own``: those of the partition's own QOS, which hold where it has none."""
    for field in Limits.model_fields:
        if field in _NOT_SLURMS and not (getattr(there, field) or (own and getattr(own, field))):
            continue
        inner = Totals.model_fields if field in _TOTALS else (None,)
        for one in inner:
            said, told, more = (_part(limits, field, one) for limits in (here, there, own))
            yield from _limit((*place, field, *([one] if one else [])), said, told, more, command)


def _part(limits: Limits | None, field: str, inner: str | None) -> object:
    value = getattr(limits, field) if limits is not None else None
    return getattr(value, inner) if inner and value is not None else value


def _limit(place: Place, here: object, there: object, own: object, command: str) -> Iterator[Disagreement]:
    if isinstance(here, dict):
        told = {**(own if isinstance(own, dict) else {}), **(there if isinstance(there, dict) else {})}
        for name in sorted({*here, *told}):
            yield from _limit((*place, name), here.get(name), told.get(name), None, command)
        return
    if _said(there) is None and _said(own) is not None:
        there, command = own, f"{command}, {_QOS}"
    said, slurm = _said(here), _said(there)
    if here == there or said == slurm or (place[-1] == "default_time" and said is None):
        return
    what = "it may stand in a QOS, an account or a plug-in" if slurm is None else ""
    yield Disagreement(place, said, slurm, command, what)


class _Nodes:
    """The nodes of a partition, by the type of GPU in them."""

    def __init__(self, profile: Cluster, place: Place, here: Partition, there: Partition) -> None:
        self.profile = profile
        self.place = place
        self.here, self.there = _by_type(here), _by_type(there)
        typed = [name for name in self.here if name]
        if len(typed) == 1 and typed[0] not in self.there and None in self.there:
            # Slurm's GPUs have no type, and the profile's name is its own word for them.
            self.there[typed[0]] = self.there.pop(None)

    def all(self) -> Iterator[Disagreement]:
        for name, groups in self.here.items():
            if name not in self.there:
                some = name is not None or any(group.gpu_count is None for _, group in groups)
                anything = any(group.gpu_count for those in self.there.values() for _, group in those)
                if name is not None or (some and not anything):
                    yield Disagreement((*self.place, "nodes"), f"GPUs {name or 'of some type'}", None, _NODES)
                continue
            yield from self._type(name, groups, [group for _, group in self.there[name]])
        if None not in self.here:
            for name in self.there:
                if name is not None and name not in self.here:
                    yield Disagreement((*self.place, "nodes"), None, f"GPUs {name}", _NODES)

    def _type(
        self, name: str | None, here: Sequence[tuple[int, NodeGroup]], there: list[NodeGroup]
    ) -> Iterator[Disagreement]:
        """Group by group where there are as many on both sides, else all together."""
        if len(here) != len(there):
            yield from self._group((*self.place, "nodes"), name, [group for _, group in here], there)
            return
        left = list(there)
        for number, group in here:
            nearest = max(left, key=lambda other: _alike(group, other))
            left.remove(nearest)
            yield from self._group((*self.place, "nodes", number), name, [group], [nearest])

    def _group(
        self, place: Place, name: str | None, here: Sequence[NodeGroup], there: Sequence[NodeGroup]
    ) -> Iterator[Disagreement]:
        what = f"nodes with {name}" if name else "nodes without a type of GPU"
        for field in ("gpu_count", "cpus", "memory"):
            stated = {getattr(group, field) for group in here}
            told = {getattr(group, field) for group in there} - {None}
            if None in stated or not told or stated == told:
                continue
            values, slurm = (sorted(map(_said, those), key=str) for those in (stated, told))
            key = "gpus" if field == "gpu_count" else field
            yield Disagreement((*place, key), _one(values), _one(slurm), _NODES, what)
        counts = [group.count for group in here]
        known = [count for count in counts if count is not None]
        many = sum(group.count or 0 for group in there)
        if len(known) == len(counts) and sum(known) != many:
            yield Disagreement((*place, "count"), sum(known), many, _NODES, what)
        features = {feature for group in there for feature in group.features}
        missing = sorted({one for group in here for one in group.features} - features)
        if missing:
            yield Disagreement((*place, "features"), missing, sorted(features) or None, _NODES, what)


def _alike(here: NodeGroup, there: NodeGroup) -> int:
    """How many of the stated figures are the same."""
    fields = ("gpu_count", "cpus", "memory", "count", "names")
    same = sum(1 for field in fields if getattr(here, field) == getattr(there, field) is not None)
    return same + len(set(here.features) & set(there.features))


def _by_type(partition: Partition) -> dict[str | None, list[tuple[int, NodeGroup]]]:
    found: dict[str | None, list[tuple[int, NodeGroup]]] = {}
    for number, group in enumerate(partition.nodes):
        for kind in group.kinds:
            found.setdefault(kind.gpu_type, []).append((number, kind))
    return found


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True)
class Patch:
    """A profile's text as Slurm would have it."""

    diff: str
    """A unified diff; empty: nothing can be changed without a person."""
    by_hand: list[Disagreement]
    """What a person has to judge, or to write: it is in no one place of the file."""


def patch_of(text: str, name: str, found: Sequence[Disagreement]) -> Patch:
    """The diff that puts Slurm's values in the profile's place; ``name``: the file, as the diff calls it."""
    edits = [(one, edit) for one in found if (edit := _edit(one)) is not None]
    by_hand = [one for one in found if _edit(one) is None]
    try:
        made = with_values_at(text, name, dict(edit for _, edit in edits))
    except InvalidInput:
        made, left = _one_by_one(text, name, edits)
        by_hand = [one for one in found if one in by_hand or one in left]
    lines = difflib.unified_diff(
        text.splitlines(keepends=True), made.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return Patch("".join(lines), by_hand)


_Edit = tuple[Place, str | int]


def _one_by_one(
    text: str, name: str, edits: Sequence[tuple[Disagreement, _Edit]]
) -> tuple[str, list[Disagreement]]:
    """The text with each value that can be changed, and what is left."""
    made, left = text, []
    for one, edit in edits:
        try:
            made = with_values_at(made, name, dict([edit]))
        except InvalidInput:
            left.append((one, edit))
    # Nodes that several partitions have by an alias change in all of them, or in none.
    by_hand: list[Disagreement] = []
    while left:
        alike = [(one, edit) for one, edit in left if _key(one) == _key(left[0][0])]
        left = [pair for pair in left if pair not in alike]
        try:
            made = with_values_at(made, name, dict(edit for _, edit in alike))
        except InvalidInput:
            by_hand += [one for one, _ in alike]
    return made, by_hand


def _key(one: Disagreement) -> tuple[object, ...]:
    return one.place[-1], one.here, one.slurm


def _edit(one: Disagreement) -> _Edit | None:
    """The value to write; None where a person has to judge, or more is to be written than a value."""
    words = isinstance(one.slurm, str) and (one.slurm in _WORDS or one.slurm.startswith("GPUs "))
    if not isinstance(one.slurm, (str, int)) or words or one.place[0] in {"associations", "default_account"}:
        return None
    return one.place, one.slurm
