"""What `slurmgpu init` says of the cluster it found, and how it asks: each question has a default, which `--yes` takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import click

from slurmgpu.errors import InvalidInput
from slurmgpu.models.cluster import Cluster, Discovered, Partition
from slurmgpu.slurm import expand

_MOST = 8


def found_lines(found: Discovered) -> Iterator[str]:
    """The cluster in a few lines."""
    cluster = found.cluster
    groups = [group for partition in cluster.partitions.values() for group in partition.nodes]
    nodes = len({name for group in groups for name in expand(group.names or "")})
    yield (
        f"cluster {cluster.slurm_name or cluster.name}: {_count(len(cluster.partitions), 'partition')}, "
        f"{_count(nodes, 'node')}; asked Slurm {found.calls} times in {found.seconds:.1f} s"
    )
    with_gpus = gpu_partitions(cluster)
    for name in with_gpus[:_MOST]:
        yield f"  partition  {in_short(name, cluster)}"
    if len(with_gpus) > _MOST:
        yield f"             and {len(with_gpus) - _MOST} more with GPUs: slurmgpu cluster show"
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
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def accounts_here(cluster: Cluster, partition: str | None = None) -> list[str]:
    """The accounts that the user may charge, for jobs in any partition or in this one; none: not known."""
    rows = [row for row in cluster.associations if partition is None or row.partition in (None, partition)]
    names = list(dict.fromkeys(row.account for row in rows))
    part = cluster.partitions.get(partition or "")
    if part is None:
        return names
    return [
        name
        for name in names
        if name not in part.denied_accounts and (not part.accounts or name in part.accounts)
    ]


def gpu_partitions(cluster: Cluster) -> list[str]:
    """The partitions with GPUs that are open, the default one first."""
    names = [
        name
        for name, partition in cluster.partitions.items()
        if partition.state == "up" and any(group.gpu_count != 0 for group in partition.nodes)
    ]
    return sorted(names, key=lambda name: name != cluster.default_partition)


def in_short(name: str, cluster: Cluster) -> str:
    """A partition in one line."""
    partition = cluster.partitions[name]
    said = [_gpus(partition)]
    if partition.limits.max_time is not None and partition.limits.max_time.seconds is not None:
        said.append(f"at most {partition.limits.max_time}")
    said += ["preemptible"] if partition.preemptible else []
    said += ["the default"] if name == cluster.default_partition else []
    return f"{name}: {', '.join(said)}"


def _gpus(partition: Partition) -> str:
    totals: dict[str, int] = {}
    for group in partition.kinds:
        if group.gpus != 0:
            count = group.gpus if isinstance(group.gpus, int) else 0
            kind = f"{group.gpu_type} GPUs" if group.gpu_type else "GPUs"
            totals[kind] = totals.get(kind, 0) + count * (group.count or 0)
    return ", ".join(f"{number or '?'} {kind}" for kind, number in totals.items()) or "no GPUs"


def say(text: str = "") -> None:
    """Tell the person something."""
    click.echo(text, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


class Questions:
    """Asks on the terminal; without one, and without ``yes``, InvalidInput."""

    def __init__(self, *, yes: bool, asker: str) -> None:
        if not yes and not _is_terminal():
            raise InvalidInput(
                f"{asker} asks questions, and there is no terminal to ask on",
                hint=f"{asker} --yes takes every default; each question has an option, too: {asker} --help",
            )
        self.yes = yes

    def confirm(self, question: str, default: bool) -> bool:
        """Yes or no."""
        if self.yes:
            say(f"{question} {'yes' if default else 'no'}")
            return default
        return click.confirm(question, default=default, err=True)

    def choose(self, question: str, entries: Sequence[str], default: int = 0) -> int:
        """One of the entries, by its number or its first word; its index."""
        if self.yes:
            say(f"{question} {entries[default]}")
            return default
        say(question)
        for number, entry in enumerate(entries, 1):
            say(f"  {number}  {entry}")
        names = [entry.split(" ")[0].rstrip(":") for entry in entries]

        def check(answer: str) -> None:
            if answer not in numbered and names.count(answer) != 1:
                raise InvalidInput(f"{answer!r} is not one of them: 1 to {len(entries)}, or a name")

        numbered = [str(number) for number in range(1, len(entries) + 1)]
        answer = self.text("number", check, str(default + 1))
        return numbered.index(answer) if answer in numbered else names.index(answer)

    def text(self, question: str, check: Callable[[str], None], default: str | None = None) -> str:
        """A text that ``check`` does not refuse (by InvalidInput); asked again until it is one."""
        while True:
            answer: str = click.prompt(question, default=default, err=True)
            try:
                check(answer.strip())
            except InvalidInput as error:
                say(f"  {error.message}" + (f" ({error.hint})" if error.hint else ""))
                continue
            return answer.strip()
