"""The partition of a job: those that would start it, the best of them, and what would fit where none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slurmgpu.amounts import count
from slurmgpu.errors import PlanError, did_you_mean
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Duration, GpuRequest
from slurmgpu.planning.drafting import Draft, Tasks, draft
from slurmgpu.planning.guesses import Doubted, without_guesses
from slurmgpu.planning.nodes import gpu_type_matches, is_slice, names_of, selectable
from slurmgpu.planning.request import Misfit, Problem, Request

__all__ = ["Candidates", "Chosen", "by_preference", "candidates", "choose", "preferred"]


class Chosen(NamedTuple):
    """The draft that is taken, why its partition is, and what was overruled or is likely not meant."""

    draft: Draft
    why: str
    overruled: tuple[str, ...] = ()


class Clause(NamedTuple):
    """Why a draft would not start."""

    subject: str
    """Subject of the text; '' for the partition itself."""
    text: str


class Candidates(NamedTuple):
    """The drafts that would start, and why the others would not."""

    fitting: list[Draft]
    failing: dict[str, list[Clause]]
    """By partition: why not."""
    nearest: list[Draft]
    """Drafts with problems."""


def _named(resources: Resources) -> list[str]:
    return resources.partition.split(",") if resources.partition else []


def candidates(cluster: Cluster, resources: Resources, tasks: Tasks) -> Candidates:
    """Return a draft for each partition that may be taken."""
    found = Candidates([], {}, [])
    named = _named(resources)
    for name in named or list(cluster.partitions):
        partition = cluster.partitions[name]
        if not named and (partition.preemptible or partition.by_name):
            what = "preemptible, and " if partition.preemptible else ""
            found.failing[name] = [Clause("", f"is {what}chosen only by name")]
            continue
        try:
            made = draft(cluster, resources, name, tasks)
        except Misfit as misfit:
            found.failing[name] = [Clause("", str(misfit))]
            continue
        slices = [] if named else _slices_unasked(cluster, resources, made)
        if made.problems:
            found.failing[name] = _said(name, made.problems)
            found.nearest.append(made)
        elif slices:
            text = f"has only slices for it, which are given by name (gpu_type: {' or '.join(slices)})"
            found.failing[name] = [Clause("", text)]
        else:
            found.fitting.append(made)
    return found


def _slices_unasked(cluster: Cluster, resources: Resources, made: Draft) -> list[str]:
    """Return the slices that a draft would get unasked: neither their type nor anything that selects them is named."""
    if resources.wanted_gpu_type or resources.constraint or not made.layout.gpus_per_node or not made.groups:
        return []
    everywhere = [kind for one in cluster.partitions.values() for kind in one.kinds if kind.gpu_count != 0]
    if not all(is_slice(cluster, kind) for kind in made.groups) or all(
        is_slice(cluster, kind) for kind in everywhere
    ):
        return []
    # What was pinned is one of them; any other would do.
    partition = cluster.partitions.get(made.partition or "")
    kinds = partition.kinds if partition else made.groups
    return names_of(tuple(kind for kind in kinds if is_slice(cluster, kind)))


def _said(partition: str, found: tuple[Problem, ...]) -> list[Clause]:
    """Problems as clauses; several of one subject in one."""
    by_subject: dict[str, list[str]] = {}
    for problem in found:
        own = problem.subject == f"partition {partition!r}"
        by_subject.setdefault("" if own else problem.subject, []).append(problem.text)
    return [Clause(subject, "; ".join(texts)) for subject, texts in by_subject.items()]


def choose(
    cluster: Cluster,
    resources: Resources,
    tasks: Tasks,
    *,
    force: bool = False,
    ways_out: Callable[[], list[str]] = list,
) -> Chosen:
    """Return the partition and the draft on it; PlanError names what does not fit, and what would (``ways_out``).

    ``force`` takes the nearest draft all the same, and says what was overruled.
    """
    _check_names(cluster, resources, force)
    reserved = cluster.reservations.get(resources.reservation or "")
    names_none = resources.partition is None and cluster.dialect.partition != "never"
    if reserved and names_none and reserved.partition in cluster.partitions:
        # As Slurm does where a job names none.
        there = resources.model_copy(update={"partition": reserved.partition})
        chosen = choose(cluster, there, tasks, force=force, ways_out=ways_out)
        return chosen._replace(why=f"the partition of reservation {resources.reservation}")
    even = _rounded_down(resources) if force else None
    if even is not None:
        return _uneven(cluster, resources, choose(cluster, even, tasks, force=force, ways_out=ways_out))
    if not cluster.known:
        return _undescribed(cluster, resources, tasks)
    unknown = [name for name in _named(resources) if name not in cluster.partitions]
    if unknown:  # forced, or the profile may describe a part of its site
        near = did_you_mean(unknown[0], list(cluster.partitions)).rstrip("; ")
        overruled = (
            f"partition {unknown[0]!r} is none of those that the profile of {cluster.name!r} describes"
            f" ({', '.join(cluster.partitions)}): nothing is checked of it{f'; {near}' if near else ''}"
        )
        return _undescribed(cluster, resources, tasks)._replace(overruled=(overruled,))
    found = candidates(cluster, resources, tasks)
    if not found.fitting and (doubted := without_guesses(cluster, resources)) is not None:
        sure = candidates(doubted.cluster, resources, tasks)
        if sure.fitting:
            return _by_facts(doubted, resources, sure.fitting, found.failing, ways_out)
    if found.fitting:
        best = preferred(cluster, found.fitting)
        if resources.partition and len(_named(resources)) > 1:
            return _several(cluster, resources, best, found, tasks, force)
        costly = _costly_total(cluster, resources, best, tasks)
        return Chosen(best, _why(cluster, resources, best, found.fitting), (costly,) if costly else ())
    reasons = _merged(found.failing)
    if force and found.nearest:
        return Chosen(found.nearest[0], "as asked" if resources.partition else "forced", tuple(reasons))
    if force:
        named = resources.model_copy(update={"partition": None})
        forced = _undescribed(cluster, named, tasks)
        made = forced.draft._replace(partition=resources.partition or next(iter(found.failing)))
        return Chosen(made, "as asked" if resources.partition else "forced", tuple(reasons))
    request = Request.of(resources)
    ways = ways_out()
    raise PlanError(
        f"{request} do{'es' if request.single else ''} not fit on {cluster.name!r}: {'; '.join(reasons)}",
        hint="what would fit: " + "; or ".join(ways)
        if ways
        else "no smaller request of this kind fits either",
    )


def _rounded_down(resources: Resources) -> Resources | None:
    """Return a total of GPUs that its nodes cannot share equally, rounded down to one that they can; None: it is no such one."""
    total, nodes = resources.gpus, resources.nodes
    if total is None or nodes is None or resources.gpus_per_node or total.count <= nodes:
        return None
    over = total.count % nodes
    even = GpuRequest(total.count - over, total.type)
    return resources.model_copy(update={"gpus": even}) if over else None


def _uneven(cluster: Cluster, resources: Resources, chosen: Chosen) -> Chosen:
    """Return a draft of equal shares that asks for the total all the same: Slurm starts it."""
    assert resources.gpus is not None
    total, layout = resources.gpus.count, chosen.draft.layout
    splits = (
        "each node gives all its GPUs"
        if cluster.dialect.gpus in ("srun", "none")
        else "Slurm splits them as it likes, and where a node gets fewer, processes fail"
    )
    said = (
        f"{total} GPUs cannot be split evenly over {layout.nodes} nodes: processes are started for "
        f"{layout.gpus_per_node} on each; {splits}"
    )
    layout = layout._replace(gpus=total, why=f"{total} GPUs over {layout.nodes} nodes, as Slurm splits them")
    return chosen._replace(draft=chosen.draft._replace(layout=layout), overruled=(said, *chosen.overruled))


def _costly_total(cluster: Cluster, resources: Resources, made: Draft, tasks: Tasks) -> str | None:
    """Return a remark on a total of GPUs that takes more nodes than would hold it, since it has no larger equal shares."""
    layout, sizes = made.layout, [group.gpu_count for group in made.groups]
    most = max((size or 0 for size in sizes), default=0)
    if resources.gpus is None or resources.nodes is not None or None in sizes or not most:
        return None
    total = resources.gpus.count
    if not total:
        return None
    fewest = -(-total // most)
    if layout.nodes <= fewest:
        return None
    partition = cluster.partitions.get(made.partition or "")
    whole = made.ask.whole or (partition is not None and partition.whole_nodes)
    pays = f", and nodes are given whole: the job pays for {layout.nodes * most} GPUs" if whole else ""
    better = [
        f"--gpus {number * most} takes {number}"
        for number in (fewest, fewest - 1)
        if number
        and candidates(
            cluster,
            resources.model_copy(update={"gpus": GpuRequest(number * most, resources.gpus.type)}),
            tasks,
        ).fitting
    ]
    said = f"{total} GPUs in equal shares take {layout.nodes} nodes with {layout.gpus_per_node} each{pays}"
    return "; ".join([said, *better])


def _by_facts(
    doubted: Doubted,
    resources: Resources,
    fitting: list[Draft],
    failing: dict[str, list[Clause]],
    ways_out: Callable[[], list[str]],
) -> Chosen:
    """Return the draft that only guesses of the profile are against, which are said."""
    best = preferred(doubted.cluster, fitting)
    name = best.partition or ""
    against = "; ".join(_merged({name: failing[name]}))
    if doubted.only_unstated_types():
        warning = f"the profile does not state all types of GPU that {name} has: Slurm decides whether {best.gpu_type} is one"
        return Chosen(best, _why(doubted.cluster, resources, best, fitting), (warning,))
    ways = ways_out()
    nearby = f"; what would fit by it: {'; or '.join(ways)}" if ways else ""
    warning = f"{against}; that is a guess of the profile ({doubted.of(name)}){nearby}"
    return Chosen(best, _why(doubted.cluster, resources, best, fitting), (warning,))


def _check_names(cluster: Cluster, resources: Resources, force: bool) -> None:
    if resources.partition is None:
        return
    described = any(name in cluster.partitions for name in _named(resources))
    if cluster.dialect.partition == "never" and (described or not cluster.covers):
        raise PlanError(
            f"resources.partition: {resources.partition!r}: jobs on {cluster.name!r} name no partition",
            hint="leave the partition out",
        )
    unknown = [name for name in _named(resources) if name not in cluster.partitions]
    part = not cluster.complete and cluster.covers in ("GPU partitions", "some partitions")
    if cluster.known and not part and unknown and not force:
        raise PlanError(
            f"resources.partition: {unknown[0]!r} is not a partition of {cluster.name!r}; "
            f"it has {', '.join(cluster.partitions)}",
            hint="name one of these, or leave the partition out, and the planner chooses one that fits",
        )


def _undescribed(cluster: Cluster, resources: Resources, tasks: Tasks) -> Chosen:
    try:
        return Chosen(draft(cluster, resources, resources.partition, tasks), "the partition as asked")
    except Misfit as misfit:
        hint, total, nodes = None, resources.gpus, resources.nodes or 1
        if total is not None and total.count % nodes:
            fewer = max(n for n in range(1, nodes) if total.count % n == 0)
            hint = f"write --gpus {GpuRequest(total.count + -total.count % nodes, total.type)}, or -N {fewer}"
        raise PlanError(f"{Request.of(resources)}: cluster {cluster.name!r} {misfit}", hint=hint) from None


def _several(
    cluster: Cluster, resources: Resources, best: Draft, found: Candidates, tasks: Tasks, force: bool
) -> Chosen:
    """Return a list of partitions: Slurm takes the one that starts first; sizes are the smallest share of all.

    Partitions that cannot start the job leave the list, unless ``force`` keeps them. They gain nothing by standing there: a
    site may refuse what is over a limit of any of them (slurm.conf(5), EnforcePartLimits), and where a partition alone says
    the type of GPU, the job would get another type.
    """
    same_size = [one for one in found.fitting if one.layout[:2] == best.layout[:2]]
    best, alike = _of_one_type(cluster, best, same_size)
    kept = {one.partition for one in alike}
    nodes, gpus = best.layout[:2]
    failing = found.failing | {
        one.partition or "": [
            Clause(
                "",
                f"has no {best.gpu_type}"
                if one in same_size
                else f"takes it in another shape than {count(nodes, 'node')} x {count(gpus, 'GPU')}",
            )
        ]
        for one in found.fitting
        if one.partition not in kept
    }
    amounts = [one.cpus.amount for one in alike if one.cpus.amount is not None]
    smallest = min(alike, key=lambda one: one.memory.amount or 0)
    cpus = best.cpus
    if amounts and min(amounts) != cpus.amount:
        cpus = next(one.cpus for one in alike if one.cpus.amount == min(amounts))
    doubted = without_guesses(cluster, resources)
    guessed = doubted and [one.partition for one in candidates(doubted.cluster, resources, tasks).fitting]
    kept.update(name for name in found.failing if force or name in (guessed or ()))
    names = [name for name in _named(resources) if name in kept]
    merged = best._replace(
        partition=",".join(names),
        groups=tuple(group for one in alike for group in one.groups),
        cpus=cpus,
        memory=smallest.memory,
    )
    out = {name: clauses for name, clauses in failing.items() if name not in kept}
    doubts = {name: clauses for name, clauses in failing.items() if name in kept}
    overruled = (
        *(f"{clause}: left out of the list" for clause in _merged(out)),
        *(
            f"{clause}{'' if force else ', by a guess of the profile'}: the job may never start there"
            for clause in _merged(doubts)
        ),
    )
    why = "as asked: the one of them that starts it first"
    return Chosen(merged, why if len(names) > 1 else "the one of the list that can start it", overruled)


def _of_one_type(cluster: Cluster, best: Draft, drafts: list[Draft]) -> tuple[Draft, list[Draft]]:
    """Return the best of a list's drafts and those with GPUs of its type, where one of the partitions needs a type named."""

    def only_slices(made: Draft) -> bool:
        return bool(made.groups) and all(is_slice(cluster, kind) for kind in made.groups)

    loose = any(only_slices(one) for one in drafts) and not only_slices(best)
    if not best.groups or not (loose or any(one.gpu_type for one in drafts)):
        return best, drafts
    wanted = best.gpu_type or max(best.groups, key=lambda kind: kind.count or 0).gpu_type
    if wanted is None or not selectable(cluster, best.groups, wanted):
        return best, drafts
    unasked = "without a type Slurm may give others in the partitions of the list"
    why = best.gpu_type_why if best.gpu_type else unasked
    kept = []
    for one in drafts:
        kinds = cluster.partitions[one.partition or ""].kinds
        groups = tuple(kind for kind in kinds if gpu_type_matches(cluster, wanted, kind.gpu_type))
        if groups:
            kept.append(one._replace(groups=groups))
    pinned = best._replace(gpu_type=wanted, gpu_type_why=why, ask=best.ask._replace(gpu_type=wanted))
    return pinned, kept


def _merged(failing: dict[str, list[Clause]]) -> list[str]:
    """Return the reasons, with partitions of the same reason in one clause."""
    by_clauses: dict[tuple[Clause, ...], list[str]] = {}
    for name, clauses in failing.items():
        by_clauses.setdefault(tuple(clauses), []).append(name)
    merged: list[str] = []
    for found, names in by_clauses.items():
        who = f"{'each of partitions' if len(names) > 1 else 'partition'} {', '.join(map(repr, names))}"
        merged.append("; ".join(f"{subject or who} {text}" for subject, text in found))
    return list(dict.fromkeys(merged))


def preferred(cluster: Cluster, fitting: list[Draft]) -> Draft:
    """Return the best of several partitions."""
    return by_preference(cluster, fitting)[0]


def by_preference(cluster: Cluster, fitting: list[Draft]) -> list[Draft]:
    """Drafts on several partitions, the best first.

    Whole GPUs before slices, what the account is for before what another one is for, nodes whose GPUs are known before
    others; then the fewest nodes; then Slurm's default,
    then the profile's order; but of those with the same types of GPU the cheapest: what they charge where all say
    so, else the GPUs that count (a node given whole counts whole).
    """

    def rank(made: Draft) -> tuple[bool, bool, bool, int, bool]:
        return (
            bool(made.groups) and all(is_slice(cluster, group) for group in made.groups),
            made.account.instead is not None,
            all(group.gpu_count is None for group in made.groups),
            made.layout.nodes,
            made.partition != cluster.default_partition,
        )

    ranked = sorted(fitting, key=rank)
    alike = [one for one in ranked if _alike(one, ranked[0]) and rank(one)[:4] == rank(ranked[0])[:4]]
    prices, _ = _prices(cluster, alike)
    if prices is None:
        return ranked
    cheapest = [one for _, one in sorted(zip(prices, alike, strict=True), key=lambda pair: pair[0])]
    return [*cheapest, *(one for one in ranked if one not in alike)]


def _alike(one: Draft, other: Draft) -> bool:
    """Return True if two drafts get the same types of GPU: only then are their prices for the same thing."""
    return {group.gpu_type for group in one.groups} == {group.gpu_type for group in other.groups}


def _prices(cluster: Cluster, alike: list[Draft]) -> tuple[list[float] | None, str]:
    """Return what an hour on each costs, in one measure that all of them state, and the word for the least of it."""
    from slurmgpu.planning.cost import cost_of  # only a described cluster pays for it

    costs = [cost_of(cluster, made, Duration(3600)) for made in alike]
    charges = [cost.charge for cost in costs if cost is not None and cost.charge is not None]
    if len(charges) == len(alike):
        return charges, "the cheapest"
    hours = [cost.gpu_hours for cost in costs if cost is not None and cost.gpu_hours is not None]
    return (hours if len(hours) == len(alike) else None), "with the fewest GPU-hours"


def _why(cluster: Cluster, resources: Resources, chosen: Draft, fitting: list[Draft]) -> str:
    if resources.partition:
        return "as asked"
    if len(cluster.partitions) == 1:
        return "the only partition"
    considered = sum(not (one.preemptible or one.by_name) for one in cluster.partitions.values())
    rest = len(cluster.partitions) - considered
    if_named = "is used only if you name it" if rest == 1 else "are used only if you name one"
    named = f" ({rest} more {if_named})" if rest else ""
    if considered == 1:
        return f"the only partition that the planner chooses by itself{named}"
    if len(fitting) == 1:
        request = Request.of(resources)
        return f"the only one of {considered} partitions where {request} fit{'s' if request.single else ''}{named}"
    marks = (
        ["with the fewest nodes"] if any(one.layout.nodes > chosen.layout.nodes for one in fitting) else []
    )
    if any(one.account.instead for one in fitting) and not chosen.account.instead:
        marks.append(f"with the GPUs that account {chosen.account.value} is for")
    alike = [one for one in fitting if one.layout.nodes == chosen.layout.nodes and _alike(one, chosen)]
    prices, cheapest = _prices(cluster, alike)
    if prices is not None and max(prices) > prices[alike.index(chosen)]:
        marks.append(cheapest)
    if chosen.partition == cluster.default_partition:
        marks.append("the site's default")
    this = " and ".join(marks) if marks else "comes first in the profile"
    return f"{len(fitting)} of {considered} partitions fit; this one {this}{named}"
