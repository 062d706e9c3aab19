"""The request that a script's own options make, in numbers that can be judged against a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from slurmgpu.models.cluster import Cluster
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Duration, GpuRequest, Gres, Memory
from slurmgpu.planning.accounts import against_the_rules
from slurmgpu.planning.guesses import without_guesses
from slurmgpu.planning.nodes import counted_in_cores, cpus_with_each_gpu, takes_one_thread
from slurmgpu.planning.options import passed_problems
from slurmgpu.planning.request import Ask, Problem
from slurmgpu.planning.verdict import problems, problems_together

__all__ = [
    "ask_of",
    "handed_down",
    "judge_options",
    "judge_script",
    "judge_together",
    "judge_without_guesses",
    "not_described",
    "places_of",
]


_T = TypeVar("_T")
Options = Mapping[str, "str | None"]
"""sbatch's long names -> values (None: an option without one)."""


def judge_options(cluster: Cluster, options: Options) -> list[Problem]:
    """Return why options would never start on a cluster; none: they would, or it cannot be told.

    Of several partitions one that starts them is enough (sbatch(1), --partition). Values that cannot be read, such
    as variables, are not held against them. A profile that was typed from documentation may describe a part of its
    site: what is asked of a partition or QOS that it does not have is not judged; ``not_described`` tells of those.
    """
    if not cluster.known:
        return []
    if takes_one_thread(options.get("hint"), options.get("threads-per-core")):
        cluster = counted_in_cores(cluster)
    if cluster.complete:
        missing = [one for one in not_described(cluster, options) if one.about == "partition"]
        if missing:
            return [missing[0]._replace(text=f"{missing[0].text}; it has {', '.join(cluster.partitions)}")]
    names = places_of(cluster, options)
    if not names:
        return []
    found = min((_least(cluster, one, names) for one in _spread(cluster, options)), key=len)
    found = [*found, *passed_problems(cluster, names, options)]
    return found if cluster.complete else [one for one in found if _is_known(cluster, options, names, one)]


def _is_known(cluster: Cluster, options: Options, names: list[str], problem: Problem) -> bool:
    """Return True if a profile that may describe a part of its site knows enough for a problem to count."""
    if problem.about == "qos" and options.get("qos") not in (None, *cluster.qos):
        return not problem.subject.startswith("cluster ")  # a QOS that it does not describe
    if problem.about == "gpu_type":
        known = {name.lower() for name in _types_of(cluster)}
        wanted = {name for name in (_gpus(options, 1, 1)[1],) if name}
        return all(name.lower() in known for name in wanted)
    if _asks_for_gpus(cluster, options) or any(cluster.partitions[name].requires_gpu for name in names):
        return True
    # Beside the nodes with GPUs there may be others that were not described.
    bare = any(kind.gpu_count == 0 for name in names for kind in cluster.partitions[name].kinds)
    return bare or problem.about not in ("nodes", "cpus", "memory", "gres", "constraint", "gpus")


def handed_down(components: Sequence[Options]) -> list[Options]:
    """Return the options of a heterogeneous job's components with what Slurm hands down.

    A component that asks for no memory gets the --mem of the one before it, and so its QOS, account, time, reservation, hint
    and excluded nodes (seen on 22.05 and 26.05).
    """
    names = ("account", "qos", "time", "reservation", "hint", "exclude")
    found: list[Options] = []
    for options in components:
        memory = found[-1].get("mem") if found else None
        own = options.keys() & {"mem", "mem-per-cpu", "mem-per-gpu"}
        down = {name: found[-1][name] for name in names if found and name in found[-1]}
        found.append({**down, **options, **({"mem": memory} if memory and not own else {})})
    return found


def judge_together(cluster: Cluster, components: Sequence[Options]) -> list[Problem]:
    """Return what the components of a heterogeneous job exceed together, of options that Slurm has handed down."""
    if not cluster.known or len(components) < 2:
        return []
    places = [options.get("partition") or cluster.default_partition for options in components]
    return problems_together(
        cluster, [ask_of(cluster, options, place) for options, place in zip(components, places, strict=True)]
    )


def judge_script(cluster: Cluster, options: Options) -> list[Problem]:
    """Return the same, with the site's own rules of options: which it refuses, which it requires."""
    described = cluster.known and places_of(cluster, options)
    return [*(against_the_rules(cluster, options) if described else ()), *judge_options(cluster, options)]


def judge_without_guesses(cluster: Cluster, options: Options) -> tuple[list[Problem], str] | None:
    """Return the rest of it without figures that the profile guessed, and the reason for them; None: none of them counts."""
    doubted = without_guesses(cluster, _resources(options))
    if doubted is None:
        return None
    return judge_script(doubted.cluster, options), doubted.why(places_of(cluster, options))


def _resources(options: Options) -> Resources:
    """Return the amounts that options ask for, as a job's resources."""
    gpus = _gpus(options, 1, 1)[0]
    return Resources.model_construct(
        gpus_per_node=GpuRequest(gpus) if gpus else None,
        cpus_per_task=_number(options.get("cpus-per-task")),
        cpus_per_gpu=_number(options.get("cpus-per-gpu")),
        tasks_per_node=_number(options.get("ntasks-per-node")) or _number(options.get("ntasks")),
        memory=_read(Memory.parse, options.get("mem")),
        memory_per_cpu=_read(Memory.parse, options.get("mem-per-cpu")),
        memory_per_gpu=_read(Memory.parse, options.get("mem-per-gpu")),
    )


def _least(cluster: Cluster, options: Options, names: list[str]) -> list[Problem]:
    """Return what keeps them from the partition that is nearest to taking them."""
    found: list[list[Problem]] = []
    for name in names:
        found.append(problems(cluster, ask_of(cluster, options, name)))
        if not found[-1]:
            return []
    return min(found, key=len, default=[])


def _spread(cluster: Cluster, options: Options) -> Iterator[Options]:
    """Yield the options as they are, and a total of GPUs on more nodes, as Slurm may split it where no number is given.

    Documentation writes types of GPU in capitals or not; of a profile that was typed from it, neither is wrong.
    """
    if not cluster.complete:
        options = _in_letters_of(cluster, options)
    yield options
    total = _read(GpuRequest.parse, options.get("gpus"))
    if total is not None and "nodes" not in options:
        shares = [nodes for nodes in range(2, min(total.count, 64) + 1) if total.count % nodes == 0]
        yield from ({**options, "nodes": str(nodes)} for nodes in shares)


def _types_of(cluster: Cluster) -> list[str]:
    """Return all names of types of GPU that a profile knows."""
    kinds = [kind.gpu_type for partition in cluster.partitions.values() for kind in partition.kinds]
    gres = [one.gres for one in cluster.gpu_types.values()]
    return [name for name in (*cluster.gpu_types, *kinds, *gres) if name]


def _in_letters_of(cluster: Cluster, options: Options) -> Options:
    known = {name.lower(): name for name in _types_of(cluster)}

    def spelled(text: str) -> str:
        return re.sub(r"[^:,]+", lambda match: known.get(match[0].lower(), match[0]), text)

    return {
        name: spelled(value)
        if value and name in ("gres", "gpus", "gpus-per-node", "gpus-per-task")
        else value
        for name, value in options.items()
    }


def not_described(cluster: Cluster, options: Options) -> Iterator[Problem]:
    """Yield the partitions, the QOS and the type of GPU that a profile does not have, though it describes others."""
    kind = _gpus(options, 1, 1)[1]
    if kind and kind.lower() not in {name.lower() for name in _types_of(cluster)} and not cluster.complete:
        yield Problem(f"cluster {cluster.name!r}", f"has no GPUs of type {kind!r}", "gpu_type", kind)
    for what, known in (("partition", cluster.partitions), ("qos", cluster.qos)):
        for name in (options.get(what) or "").split(","):
            if name and known and name not in known and re.fullmatch(r"[\w.@+-]+", name):
                word = "QOS" if what == "qos" else what
                yield Problem(
                    f"cluster {cluster.name!r}",
                    f"has no {word} {name!r}",
                    "qos" if what == "qos" else "partition",
                    name,
                )


def places_of(cluster: Cluster, options: Options) -> list[str]:
    """Return the described partitions where a job could go; none: it may be one that is not described."""
    asked = options.get("partition")
    if asked or "partition" in options:
        names = (asked or "").split(",")
        return names if all(name in cluster.partitions for name in names) else []
    default = cluster.default_partition
    if default and (cluster.complete or cluster.dialect.partition == "named"):
        return [default]
    # The site's own routing takes a partition that fits; where no GPU is asked for, perhaps one that has none.
    return list(cluster.partitions) if cluster.complete or _asks_for_gpus(cluster, options) else []


def _asks_for_gpus(cluster: Cluster, options: Options) -> bool:
    """Return True if a job is for GPUs: it asks for them, or there only srun does."""
    return asks_for_gpus(options) or cluster.dialect.gpus in ("srun", "none")


def asks_for_gpus(options: Options) -> bool:
    """Return True if any option asks for GPUs."""
    return (
        any(name.startswith("gpus") for name in options)
        or re.search(r"(?:\A|,)(?:gres/)?gpu(?::|,|\Z)", options.get("gres") or "") is not None
    )


def ask_of(cluster: Cluster, options: Options, partition: str | None) -> Ask:
    """Options as numbers per node on a partition, each as small as they can be read."""
    nodes_text = options.get("nodes")
    nodes = _number((nodes_text or "").split("-")[0])
    tasks = _number(options.get("ntasks"))
    per_node = _number(options.get("ntasks-per-node"))
    if nodes is None:
        nodes = -(-tasks // per_node) if tasks and per_node else 1
    on_a_node = per_node or (-(-tasks // nodes) if tasks and nodes_text else 1)
    gpus, gpu_type = _gpus(options, nodes, on_a_node)
    if gpus and not nodes_text:
        biggest = _biggest(cluster, partition)
        if biggest and gpus > biggest and _read(GpuRequest.parse, options.get("gpus")):
            nodes, gpus = -(-gpus // biggest), biggest
    cpus = _cpus(options, gpus, on_a_node)
    own = "ntasks-per-node" in options and "cpus-per-gpu" not in options
    each = _number(options.get("cpus-per-task"))
    return Ask(
        partition=partition,
        nodes=nodes,
        gpus_per_node=gpus,
        gpu_type=gpu_type,
        gres=_other_gres(options),
        constraint=options.get("constraint") if "$" not in (options.get("constraint") or "") else None,
        cpus_per_node=cpus,
        cpus_per_task=each or 1,
        cpus_with_each_gpu=cpus_with_each_gpu(cluster, cluster.partitions.get(partition or ""))
        if own
        else None,
        memory_per_node=_memory(options, gpus, cpus),
        time=_read(Duration.parse, options.get("time")),
        qos=_name(options.get("qos")),
        account=_name(options.get("account")),
        whole="exclusive" in options and options["exclusive"] in (None, ""),
    )


def _read(parse: Callable[[object], _T], text: str | None) -> _T | None:
    try:
        return None if text is None else parse(text)
    except ValueError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) and int(text) > 0 else None


def _name(text: str | None) -> str | None:
    """Return a name that is written out: no variable and no placeholder."""
    return text.lower() if text and re.fullmatch(r"[\w.@+-]+", text) else None


def _gres(options: Options) -> list[Gres]:
    text = options.get("gres") or ""
    return [
        gres
        for part in text.split(",")
        if (gres := _read(Gres.parse, part.removeprefix("gres/"))) is not None
    ]


def _other_gres(options: Options) -> tuple[Gres, ...]:
    return tuple(gres for gres in _gres(options) if gres.name != "gpu")


def _gpus(options: Options, nodes: int, tasks: int) -> tuple[int, str | None]:
    """GPUs on a node, and their type."""
    for gres in _gres(options):
        if gres.name == "gpu" and gres.count.isdigit():
            return int(gres.count), gres.type
    for name, times in (("gpus-per-node", 1), ("gpus-per-task", tasks)):
        request = _read(GpuRequest.parse, options.get(name))
        if request is not None:
            return request.count * times, request.type
    total = _read(GpuRequest.parse, options.get("gpus"))
    if total is None:
        return int(asks_for_gpus(options)), None  # a number that is not written out is at least 1
    return (-(-total.count // nodes), total.type) if options.get("nodes") else (total.count, total.type)


def _biggest(cluster: Cluster, partition: str | None) -> int | None:
    described = cluster.partitions.get(partition or "")
    counts = [group.gpu_count for group in described.nodes] if described else []
    return None if None in counts else max((count or 0 for count in counts), default=None)


def _cpus(options: Options, gpus: int, tasks: int) -> int:
    per_gpu = _number(options.get("cpus-per-gpu"))
    if per_gpu and gpus:
        return per_gpu * gpus
    return tasks * (_number(options.get("cpus-per-task")) or 1)


def _memory(options: Options, gpus: int, cpus: int) -> int | None:
    for name, times in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
        memory = _read(Memory.parse, options.get(name))
        if memory is not None and times:
            return memory.mib * times
    return None
