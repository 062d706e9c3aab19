"""What is said of a sandbox: when it starts, in a listing, as JSON."""

from __future__ import annotations

import datetime
from pathlib import Path

from slurmgpu.models.units import Memory
from slurmgpu.sandbox.keeper import Keeper
from slurmgpu.sandbox.state import State

__all__ = ["introduction", "size_of", "status_entry", "status_line"]


def introduction(state: State, took: str) -> list[str]:
    """What it has, and how to use and end it."""
    which, end = ("", "") if state.name == "default" else (f" --name {state.name}", f" {state.name}")
    partitions = ", ".join(f"{one.name}{_about(dict(one.options))}" for one in state.shape.partitions)
    lines = [
        f"sandbox {state.name} {took}: cluster {state.cluster}, Slurm {state.version}, {_nodes(state)}",
        f"  partitions  {partitions}",
    ]
    if state.accounting:
        qos = ", ".join(["normal", *(one.name for one in state.shape.qos if one.given)])
        lines.append(f"  accounts    {', '.join(state.shape.accounts)}; QOS {qos}")
    lines.append(
        "  memory      is counted when a job starts, not watched: one that uses more than it asked for goes on"
        if state.shape.live
        else "  its nodes have no daemons: jobs are judged as there (sbatch --test-only), but never run"
    )
    lines += [f"  not enforced {one}" for one in _not_enforced(state)]
    if state.until:
        lines.append(f"  ends        {state.until.astimezone():%Y-%m-%d %H:%M}")
    return [
        *lines,
        f"  one command slurmgpu sandbox exec{which} -- sinfo",
        f'  this shell  eval "$(slurmgpu sandbox env{which})"',
        f"  end it      slurmgpu sandbox down{end}",
    ]


def status_line(name: str, folder: Path, state: State | None) -> str:
    """One sandbox in the listing; below it what is wrong, and what a twin does not enforce."""
    if state is None:
        return f"sandbox-{name}  crashed  ({folder})"
    faults = f"  faults: {', '.join(state.faults)}" if state.faults else ""
    line = (
        f"{state.cluster}  {state.condition}  {_nodes(state)}, Slurm {state.version}, "
        f"up {_since(state)}{faults}  ({folder})"
    )
    lost = _lost(folder, state)
    below = [
        f"  {name} has {how}: slurmgpu sandbox heal --name {state.name} starts it"
        for name, how in lost.items()
    ]
    return "\n".join([line, *below, *(f"  not enforced {one}" for one in _not_enforced(state))])


def status_entry(name: str, folder: Path, state: State | None) -> dict[str, object]:
    """The same for programs."""
    if state is None:
        return {"name": name, "cluster": f"sandbox-{name}", "condition": "crashed", "folder": str(folder)}
    return {
        "name": name,
        "cluster": state.cluster,
        "condition": state.condition,
        "nodes": len(state.shape.nodes),
        "like": state.shape.like,
        "not_enforced": _not_enforced(state),
        "accounting": state.accounting,
        "version": state.version,
        "since": state.since.isoformat(timespec="seconds"),
        "until": state.until.isoformat(timespec="seconds") if state.until else None,
        "faults": list(state.faults),
        "lost": _lost(folder, state),
        "folder": str(folder),
    }


def _not_enforced(state: State) -> list[str]:
    """The rules of the cluster this one is like that it does not hold jobs to."""
    found = list(state.shape.not_enforced)
    if state.shape.like and state.shape.qos and not state.accounting:
        found.append("limits on GPUs and CPUs of a job, and QOS: they take accounting")
    return found


def _lost(folder: Path, state: State) -> dict[str, str]:
    """The daemons of a living sandbox that ended by themselves, and how."""
    return Keeper(folder).lost() if state.condition == "alive" else {}


def _about(options: dict[str, str]) -> str:
    words = ["default"] if options.get("Default") == "YES" else []
    words += ["preemptible"] if options.get("PreemptMode", "OFF") != "OFF" else []
    words += [f"at most {options['MaxTime']}"] if options.get("MaxTime", "UNLIMITED") != "UNLIMITED" else []
    return f" ({', '.join(words)})" if words else ""


def size_of(state: State) -> str:
    """Its nodes and whether it has accounting: what `up` was asked for."""
    details = [_nodes(state)]
    if not state.shape.like:
        (kind,) = state.shape.kinds
        details.append(f"{kind.cpus} CPUs and {Memory(kind.memory_mib)} each")
    return ", ".join([*details, "with accounting" if state.accounting else "without accounting"])


def _nodes(state: State) -> str:
    number = len(state.shape.nodes)
    nodes = f"{number} node{'s' * (number != 1)}"
    if state.shape.like:
        return f"{nodes} like {state.shape.like}"
    (kind,) = state.shape.kinds
    return f"{nodes} with {kind.gres or 'no GPUs'}"


def _since(state: State) -> str:
    seconds = int((datetime.datetime.now(datetime.timezone.utc) - state.since).total_seconds())
    days, rest = divmod(max(seconds, 0), 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
