"""Comparing a profile with Slurm itself: their disagreements, and a patch of the profile's text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slurmgpu.clusters.refreshing import overlay
from slurmgpu.clusters.writing import flow
from slurmgpu.errors import InvalidInput
from slurmgpu.files.editing import with_values
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
# Limits that a site's plug-in may hold and Slurm does not show; a QOS may have the second.
_NOT_SLURMS = frozenset({"min_gpus", "max_node_time", "max_time_by_nodes"})
_PARTITION, _YOURS, _ALL = "a partition", "a QOS of yours", "all"
_WORDS = frozenset({_PARTITION, _YOURS, _ALL})


@dataclass(frozen=True)
class Disagreement:
    """A key whose value in the profile is another than Slurm's."""

    place: Place
    """The key in the profile, as the steps to it."""
    here: Any
    """The profile's value; None: it has none."""
    slurm: Any
    """Slurm's value; None: it has no such thing."""
    command: str
    """The command that shows it."""
    what: str = ""
    """Its subject, beyond the key."""

    def __str__(self) -> str:
        what = f" ({self.what})" if self.what else ""
        here = "the profile says nothing" if self.here is None else f"the profile says {flow(self.here)}"
        slurm = "nothing of the kind" if self.slurm is None else flow(self.slurm)
        return f"{'.'.join(map(str, self.place))}{what}: {here}, Slurm {slurm} [{self.command}]"

    def data(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "key": ".".join(map(str, self.place)),
            "what": self.what or None,
            "profile": self.here,
            "slurm": self.slurm,
            "command": self.command,
        }


def disagreements(profile: Cluster, found: Discovered) -> list[Disagreement]:
    """Return the disagreements of a profile with a discovery, in the profile's order.

    A missing value is no disagreement, but for limits of the partitions and QOS that the profile describes, and for
    partitions that it should describe by its ``covers``. Guesses of the discovery and hidden values are not compared.

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
    """Return the keys that could not be compared, and why."""
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
        profile = self.profile
        if (
            profile.default_partition is not None
            and "default_partition" not in profile.guessed
            and self.named
        ):
            default = self.slurm.default_partition
            yield from _differ(("default_partition",), profile.default_partition, default, _PARTITIONS)
        mine, theirs = profile.slurm, self.slurm.slurm
        for field in sorted(mine.model_fields_set & set(theirs.model_fields_set)):
            if field != "preemption":  # in words
                stated, slurm = _plain(getattr(mine, field)), _plain(getattr(theirs, field))
                yield from _differ(("slurm", field), stated, slurm, _CONFIG)
        if "partitions" not in self.hidden:
            yield from self._partitions()
        if "nodes" not in self.hidden:
            yield from self._features()
        if "qos" not in self.hidden:
            yield from self._qos()
        if "associations" not in self.hidden:
            yield from self._accounts()

    def _partitions(self) -> Iterator[Disagreement]:
        if not self.named:
            yield from self._types()
            return
        for name, partition in self.profile.partitions.items():
            place: Place = ("partitions", name)
            if name not in self.slurm.partitions:
                yield Disagreement(place, _PARTITION, None, _PARTITIONS)
                continue
            yield from self._partition(place, partition, self.slurm.partitions[name])
            if "nodes" not in self.hidden and partition.nodes:
                yield from _nodes(place, partition, self.renamed.get(name, self.slurm.partitions[name]))
        covers = self.profile.covers
        for name, partition in self.slurm.partitions.items():
            if name not in self.profile.partitions:
                kinds = sorted({kind.gpu_type or "GPUs" for kind in partition.kinds if kind.gpu_count})
                if covers == "all partitions" or (covers == "GPU partitions" and kinds):
                    what = f"with {', '.join(kinds) or 'no GPUs'}"
                    yield Disagreement(("partitions", name), None, _PARTITION, _PARTITIONS, what)

    def _types(self) -> Iterator[Disagreement]:
        """Compare the types of GPU alone, for a profile whose partitions are its own words."""
        there, stated = (
            {kind.gpu_type for part in parts.values() for kind in part.kinds if kind.gpu_count != 0}
            for parts in (self.renamed, self.profile.partitions)
        )
        if "nodes" in self.hidden or None in there:  # untyped GPUs may be any
            return
        for one in sorted(str(name) for name in stated - {None} - there):
            yield Disagreement(("partitions",), f"GPUs {one}", None, _NODES)
        for one in sorted(str(name) for name in there - stated):
            yield Disagreement(("partitions",), None, f"GPUs {one}", _NODES)

    def _partition(self, place: Place, here: Partition, there: Partition) -> Iterator[Disagreement]:
        # Compared as QOS where the profile has it, too.
        known = there.own_qos in self.profile.qos and there.own_qos == here.own_qos
        own = None if known else self.slurm.qos.get(there.own_qos or "")
        own_limits = own.limits if own else None
        yield from _limits((*place, "limits"), here.limits, there.limits, own_limits, _PARTITIONS)
        for field, what in (("qos", "AllowQos"), ("accounts", "AllowAccounts"), ("groups", "AllowGroups")):
            stated, slurm = set(getattr(here, field)), set(getattr(there, field))
            if stated and stated != slurm:
                yield Disagreement((*place, field), sorted(stated), sorted(slurm) or _ALL, _PARTITIONS, what)
        whole = here.whole_nodes if here.whole_nodes is not None else self.profile.dialect.whole_nodes
        if there.whole_nodes and not whole:
            yield Disagreement((*place, "whole_nodes"), False, True, _PARTITIONS, "OverSubscribe=EXCLUSIVE")
        for field in ("default_memory_per_cpu", "default_memory_per_gpu", "default_cpus_per_gpu"):
            value = _plain(getattr(here, field))
            if value is not None:
                yield from _differ((*place, field), value, _plain(getattr(there, field)), _PARTITIONS)

    def _features(self) -> Iterator[Disagreement]:
        groups = [group for part in self.slurm.partitions.values() for group in part.nodes]
        there = {feature for group in groups for feature in group.features}
        named: dict[Place, str | None] = {("dialect", "constraint"): self.profile.dialect.constraint}
        for name, kind in self.profile.gpu_types.items():
            named["gpu_types", name, "constraint"] = kind.constraint
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
        if rule is not None and yours:
            place: Place = ("dialect", "account")
            ends = tuple(rule.suffix_by_gpu_type.values())
            if rule.pattern:
                if not any(re.fullmatch(rule.pattern, one, re.IGNORECASE) for one in yours):
                    yield Disagreement((*place, "pattern"), rule.pattern, yours, _ACCOUNTS, "your accounts")
                if ends and not any(one.endswith(ends) for one in yours):
                    yield Disagreement(
                        (*place, "suffix_by_gpu_type"), sorted(ends), yours, _ACCOUNTS, "your accounts"
                    )
            if rule.suffix and not any(one.endswith(rule.suffix) for one in yours):
                yield Disagreement((*place, "suffix"), rule.suffix, yours, _ACCOUNTS, "your accounts")
        stated = sorted({row.account for row in self.profile.associations})
        if stated and stated != yours:
            yield Disagreement(("associations",), stated, yours or None, _ACCOUNTS, "your accounts")
        default = self.profile.default_account
        if default is not None:
            yield from _differ(("default_account",), default, self.slurm.default_account, _ACCOUNTS)


def _differ(place: Place, here: object, slurm: object, command: str) -> Iterator[Disagreement]:
    if here != slurm:
        yield Disagreement(place, here, slurm, command)


def _plain(value: object) -> Any:
    """Return a value as the profile writes it; None: it is not stated, or no limit."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return None if str(value) == "UNLIMITED" else str(value)


def _limits(
    place: Place, here: Limits, there: Limits, own: Limits | None, command: str
) -> Iterator[Disagreement]:
    """Compare limits of a partition or QOS; ``own``: those of the partition's own QOS, for limits it lacks itself."""
    for field in Limits.model_fields:
        if field in _NOT_SLURMS and not (getattr(there, field) or (own and getattr(own, field))):
            continue
        for inner in Totals.model_fields if field in ("per_user", "in_all") else (None,):
            mine, theirs, more = (_part(one, field, inner) for one in (here, there, own))
            yield from _limit((*place, field, *([inner] if inner else [])), mine, theirs, more, command)


def _part(limits: Limits | None, field: str, inner: str | None) -> object:
    value = getattr(limits, field) if limits is not None else None
    return getattr(value, inner) if inner and value is not None else value


def _limit(place: Place, here: object, there: object, own: object, command: str) -> Iterator[Disagreement]:
    if isinstance(here, dict):
        slurm = {**(own if isinstance(own, dict) else {}), **(there if isinstance(there, dict) else {})}
        for name in sorted({*here, *slurm}):
            yield from _limit((*place, name), here.get(name), slurm.get(name), None, command)
        return
    if _plain(there) is None and _plain(own) is not None:
        there, command = own, f"{command}, {_QOS}"
    mine, theirs = _plain(here), _plain(there)
    if here == there or mine == theirs or (place[-1] == "default_time" and mine is None):
        return
    what = "it may stand in a QOS, an account or a plug-in" if theirs is None else ""
    yield Disagreement(place, mine, theirs, command, what)


def _nodes(place: Place, profile: Partition, slurm: Partition) -> Iterator[Disagreement]:
    """Compare the nodes of a partition by the type of GPU in them."""
    place = (*place, "nodes")
    here, there = _by_type(profile), _by_type(slurm)
    typed = [name for name in here if name]
    if len(typed) == 1 and typed[0] not in there and None in there:
        # Slurm's GPUs have no type, and the profile's name is its own word for them.
        there[typed[0]] = there.pop(None)
    for name, groups in here.items():
        if name not in there:
            unknown = any(group.gpu_count is None for _, group in groups)
            anything = any(group.gpu_count for those in there.values() for _, group in those)
            if name is not None or (unknown and not anything):
                yield Disagreement(place, f"GPUs {name or 'of some type'}", None, _NODES)
            continue
        left = [group for _, group in there[name]]
        if len(groups) != len(left):
            yield from _group(place, name, [group for _, group in groups], left)
            continue
        for number, group in groups:
            nearest = max(left, key=lambda other, group=group: _likeness(group, other))  # type: ignore[misc]
            left.remove(nearest)
            yield from _group((*place, number), name, [group], [nearest])
    if None not in here:
        for name in there:
            if name is not None and name not in here:
                yield Disagreement(place, None, f"GPUs {name}", _NODES)


def _group(
    place: Place, name: str | None, here: Sequence[NodeGroup], there: Sequence[NodeGroup]
) -> Iterator[Disagreement]:
    what = f"nodes with {name}" if name else "nodes without a type of GPU"
    for field in ("gpu_count", "cpus", "memory"):
        stated = {getattr(group, field) for group in here}
        slurm = {getattr(group, field) for group in there} - {None}
        if None in stated or not slurm or stated == slurm:
            continue
        sides = (sorted(map(_plain, those), key=str) for those in (stated, slurm))
        mine, theirs = (values[0] if len(values) == 1 else values for values in sides)
        key = "gpus" if field == "gpu_count" else field
        yield Disagreement((*place, key), mine, theirs, _NODES, what)
    known = [group.count for group in here if group.count is not None]
    count = sum(group.count or 0 for group in there)
    if len(known) == len(here) and sum(known) != count:
        yield Disagreement((*place, "count"), sum(known), count, _NODES, what)
    features = {feature for group in there for feature in group.features}
    missing = sorted({one for group in here for one in group.features} - features)
    if missing:
        yield Disagreement((*place, "features"), missing, sorted(features) or None, _NODES, what)


def _likeness(here: NodeGroup, there: NodeGroup) -> int:
    """Return the number of stated figures that are the same."""
    fields = ("gpu_count", "cpus", "memory", "count", "names")
    same = sum(1 for field in fields if getattr(here, field) == getattr(there, field) is not None)
    return same + len(set(here.features) & set(there.features))


def _by_type(partition: Partition) -> dict[str | None, list[tuple[int, NodeGroup]]]:
    groups: dict[str | None, list[tuple[int, NodeGroup]]] = {}
    for number, group in enumerate(partition.nodes):
        for kind in group.kinds:
            groups.setdefault(kind.gpu_type, []).append((number, kind))
    return groups


@dataclass(frozen=True)
class Patch:
    """The changes that put Slurm's values into a profile's text."""

    diff: str
    """A unified diff; empty: nothing can be changed without a person."""
    by_hand: list[Disagreement]
    """Disagreements for a person to judge, or to write, because they are in no single place of the file."""


def patch_of(text: str, name: str, found: Sequence[Disagreement]) -> Patch:
    """Return the patch that puts Slurm's values into a profile; ``name``: the file, as the diff calls it."""
    edits = [(one, edit) for one in found if (edit := _edit(one)) is not None]
    by_hand = [one for one in found if _edit(one) is None]
    try:
        made = with_values(text, name, dict(edit for _, edit in edits), adds_sections=False)
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
    """Return the text with each value that can be changed, and the disagreements left."""
    made, left = text, []
    for one, edit in edits:
        try:
            made = with_values(made, name, dict([edit]), adds_sections=False)
        except InvalidInput:
            left.append((one, edit))
    # Nodes that several partitions have by an alias change in all of them, or in none.
    by_hand: list[Disagreement] = []
    while left:
        first = left[0][0]
        alike = [
            (one, edit)
            for one, edit in left
            if (one.place[-1], one.here, one.slurm) == (first.place[-1], first.here, first.slurm)
        ]
        left = [pair for pair in left if pair not in alike]
        try:
            made = with_values(made, name, dict(edit for _, edit in alike), adds_sections=False)
        except InvalidInput:
            by_hand += [one for one, _ in alike]
    return made, by_hand


def _edit(one: Disagreement) -> _Edit | None:
    """Return the value to write; None where a person has to judge, or more than a value has to be written."""
    words = isinstance(one.slurm, str) and (one.slurm in _WORDS or one.slurm.startswith("GPUs "))
    if not isinstance(one.slurm, (str, int)) or words or one.place[0] in {"associations", "default_account"}:
        return None
    return one.place, one.slurm
