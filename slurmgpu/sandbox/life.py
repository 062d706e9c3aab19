"""A sandbox's life: its start, its status, the environment of its users, its end."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from slurmgpu.models.units import Memory
from slurmgpu.sandbox.configuration import Shape
from slurmgpu.sandbox.processes import Keeper, end_processes, is_running, processes_of, sockets_of
from slurmgpu.sandbox.programs import (
    SandboxFailed,
    add_stand_ins,
    find_program,
    missing_programs,
    require_programs,
    scrubbed,
)
from slurmgpu.sandbox.starting import client_env, start
from slurmgpu.sandbox.state import State, folder_of, known_sandboxes, locked, note_parents, read_state
from slurmgpu.sandbox.supervisor import listening, parents_of, remove_empty

__all__ = [
    "bring_down",
    "bring_up",
    "can_account",
    "entering",
    "environment_of",
    "introduction",
    "leaving",
    "running_sandbox",
    "status_entry",
    "status_line",
    "user_env",
]


Describe = Callable[[Mapping[str, str]], str]

BEFORE = "SLURMGPU_BEFORE_SANDBOX"
"""The variable of a shell that talks to a sandbox which holds, as JSON, those it was not to have meanwhile."""

# Disk space of a sandbox: 193 MiB with a database, under 1 MiB without, and the files of its jobs.
MIB_WITH_DATABASE, MIB_WITHOUT = 256, 16
ENDING_SECONDS = 20.0


def introduction(state: State, took: str) -> list[str]:
    """Return the lines on what a new sandbox has, and how to use and end it."""
    which, end = ("", "") if state.name == "default" else (f" --name {state.name}", f" {state.name}")
    partitions = []
    for one in state.shape.partitions:
        options = dict(one.options)
        longest = options.get("MaxTime", "UNLIMITED")
        words = ["default"] if options.get("Default") == "YES" else []
        words += ["preemptible"] if options.get("PreemptMode", "OFF") != "OFF" else []
        words += [f"at most {longest}"] if longest != "UNLIMITED" else []
        partitions.append(f"{one.name} ({', '.join(words)})" if words else one.name)
    lines = [
        f"sandbox {state.name} {took}: cluster {state.cluster}, Slurm {state.version}, {_nodes(state)}",
        f"  partitions  {', '.join(partitions)}",
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
    """Return one sandbox of the listing, with its faults and what a twin does not enforce."""
    if state is None:
        return f"sandbox-{name}  crashed  ({folder})"
    faults = f"  faults: {', '.join(state.faults)}" if state.faults else ""
    seconds = int((datetime.datetime.now(datetime.timezone.utc) - state.since).total_seconds())
    days, rest = divmod(max(seconds, 0), 86400)
    up = (f"{days}-" if days else "") + f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    lines = [
        f"{state.cluster}  {state.condition}  {_nodes(state)}, Slurm {state.version}, up {up}{faults}  ({folder})"
    ]
    lines += [
        f"  {daemon} has {how}: slurmgpu sandbox heal --name {state.name} starts it"
        for daemon, how in _lost(folder, state).items()
    ]
    return "\n".join([*lines, *(f"  not enforced {one}" for one in _not_enforced(state))])


def status_entry(name: str, folder: Path, state: State | None) -> dict[str, object]:
    """Return one sandbox of the listing as JSON."""
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
    """Return the rules of the cluster this one is like that it does not hold jobs to."""
    rules = list(state.shape.not_enforced)
    if state.shape.like and state.shape.qos and not state.accounting:
        rules.append("limits on GPUs and CPUs of a job, and QOS: they take accounting")
    return rules


def _lost(folder: Path, state: State) -> dict[str, str]:
    """Return the daemons of a living sandbox that ended by themselves, and how."""
    return Keeper(folder).lost() if state.condition == "alive" else {}


def _nodes(state: State) -> str:
    number = len(state.shape.nodes)
    nodes = f"{number} node{'s' * (number != 1)}"
    if state.shape.like:
        return f"{nodes} like {state.shape.like}"
    return f"{nodes} with {state.shape.kinds[0].gres or 'no GPUs'}"


@dataclass
class Ended:
    """The remains of a sandbox after its end, looked for and not assumed."""

    name: str
    processes: list[int] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    folder: Path | None = None
    crashed: bool = False

    @property
    def clean(self) -> bool:
        """Return True if nothing is left."""
        return not self.processes and not self.ports and self.folder is None


def bring_up(
    name: str, shape: Shape, describe: Describe, *, accounting: bool, lasting: float | None = None
) -> tuple[State, bool]:
    """Start the sandbox of this name; return its state, and True if it is new (False: it ran already in this shape).

    ``describe`` writes the profile by which slurmgpu's own commands know it, from an environment that talks to it;
    ``lasting`` is its lifetime in seconds (None: until it is taken down). Raises ProgramsMissing, and
    SandboxFailed when it does not start, or runs in another shape.
    """
    require_programs()
    folder = folder_of(name)
    with ExitStack() as held:
        made = held.enter_context(locked())
        old = read_state(folder)
        if old is not None and old.condition != "crashed":
            if old.condition == "starting":
                raise SandboxFailed(
                    f"sandbox {name!r} is just being started by another command",
                    hint=f"wait a moment, then: slurmgpu sandbox status (or: slurmgpu sandbox down {name})",
                )
            if (old.shape, old.accounting) != (shape, accounting):
                size = [_nodes(old)]
                if not old.shape.like:
                    (kind,) = old.shape.kinds
                    size.append(f"{kind.cpus} CPUs and {Memory(kind.memory_mib)} each")
                size.append("with accounting" if old.accounting else "without accounting")
                raise SandboxFailed(
                    f"sandbox {name!r} runs already, in another shape: {', '.join(size)}",
                    hint=f"end it first: slurmgpu sandbox down {name}; or start a second one: --name OTHER",
                )
            return old, False
        if folder.exists():
            made += parents_of(folder)
            _clean(name, folder, old)
        try:
            mib = MIB_WITH_DATABASE if accounting else MIB_WITHOUT
            free = shutil.disk_usage(folder.parent).free // 2**20
            if free < mib:
                raise SandboxFailed(
                    f"{folder.parent} has {free} MiB free, and a sandbox takes {mib}",
                    hint="make room, or set XDG_STATE_HOME to a folder on a local disk that has some",
                )
            folder.mkdir(mode=0o700)
            note_parents(folder, made)
            # Once its state is written, others see that it is starting, and need not wait for it.
            started = start(
                folder, name=name, cluster=f"sandbox-{name}", shape=shape, accounting=accounting,
                on={"starting": held.close},
            )  # fmt: skip
            try:
                (folder / "cluster.yaml").write_text(describe(client_env(folder)), encoding="utf-8")
                add_stand_ins(folder)
                return started.stay(lasting), True
            except BaseException:
                started.end()
                raise
        except BaseException:
            held.close()
            with locked() as made_again:
                parents = [*parents_of(folder), *made, *made_again]
                other = read_state(folder)
                # Its supervisor may have removed the folder before us, and another command have started anew there.
                if other is None or other.condition == "crashed":
                    shutil.rmtree(folder, ignore_errors=True)
                remove_empty(list(dict.fromkeys(parents)))
            raise


def bring_down(name: str) -> Ended | None:
    """End the sandbox of this name, crashed or alive, and return its remains; None when there is none."""
    folder = folder_of(name)
    if not folder.is_dir():
        return None
    with locked():
        parents = parents_of(folder)
        ended = _clean(name, folder, read_state(folder)) if folder.is_dir() else None
        remove_empty(parents)
        return ended


def _clean(name: str, folder: Path, state: State | None) -> Ended:
    # Without a state its starter died before it had started anything that outlives it, or another release started it.
    token = state.token if state else None
    crashed = state is None or state.condition == "crashed"
    # By their sockets: a port alone may have a new owner by the time it is looked at.
    own = sockets_of(processes_of(folder, token))
    # Only files can remain from before the machine's last start.
    if state is not None and is_running(state.supervisor):
        os.kill(state.supervisor.pid, signal.SIGTERM)
        deadline = time.monotonic() + ENDING_SECONDS
        while is_running(state.supervisor) and time.monotonic() < deadline:
            time.sleep(0.02)
        if is_running(state.supervisor):
            end_processes([state.supervisor.pid])
    end_processes(processes_of(folder, token))
    shutil.rmtree(folder, ignore_errors=True)
    return Ended(
        name,
        processes=processes_of(folder, token),
        ports=sorted(port for port, _, inode in listening() if inode in own),
        folder=folder if folder.exists() else None,
        crashed=crashed,
    )


def running_sandbox(name: str) -> tuple[State, Path]:
    """Return the state and folder of a sandbox that is alive; SandboxFailed says what to do when it is not."""
    folder = folder_of(name)
    state = read_state(folder)
    if state is None and not folder.is_dir():
        known = ", ".join(known_sandboxes()) or "none"
        raise SandboxFailed(
            f"there is no sandbox {name!r} (known: {known})",
            hint="start it: slurmgpu sandbox up" + ("" if name == "default" else f" --name {name}"),
        )
    if state is None or state.condition == "crashed":
        raise SandboxFailed(
            f"sandbox {name!r} has crashed: its supervisor is gone",
            hint=f"clean it up: slurmgpu sandbox down {name}; or start it anew: slurmgpu sandbox up --name {name}",
        )
    if state.condition == "starting":
        raise SandboxFailed(f"sandbox {name!r} is still starting", hint="wait some seconds, then try again")
    return state, folder


def environment_of(state: State, folder: Path) -> dict[str, str]:
    """Return the variables that make Slurm's commands and slurmgpu's talk to this sandbox."""
    variables = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "SLURMGPU_CLUSTER": str(folder / "cluster.yaml"),
        "SLURMGPU_SANDBOX": state.name,
    }
    sbatch, path = find_program("sbatch"), os.environ.get("PATH", os.defpath)
    if sbatch and str(Path(sbatch).parent) not in path.split(os.pathsep):
        variables["PATH"] = f"{path}{os.pathsep}{Path(sbatch).parent}"
    return variables


def entering(state: State, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the variables that a shell has to unset, and those it has to set, to talk to this sandbox.

    Whatever would send Slurm's commands elsewhere (SLURM_CLUSTERS: to production), or change what they do, goes,
    and is kept in one variable, for `leaving`.
    """
    variables = environment_of(state, folder)
    kept = scrubbed(os.environ)
    ambient = {name: value for name, value in os.environ.items() if name not in kept}
    # From one sandbox into another: what counts is what there was before the first.
    if BEFORE not in os.environ:
        variables[BEFORE] = json.dumps(ambient, separators=(",", ":"))
    return sorted(ambient.keys() - variables.keys()), variables


def leaving() -> tuple[list[str], dict[str, str]]:
    """Return the variables that a shell has to unset, and those it has to set, to be as before `entering`."""
    try:
        before = {str(name): str(value) for name, value in json.loads(os.environ.get(BEFORE, "{}")).items()}
    except (ValueError, AttributeError):
        before = {}
    # What was unset for the sandbox comes back; nobody else's variables are touched.
    before = {name: value for name, value in before.items() if re.fullmatch(r"[A-Z][A-Z0-9_]*", name)}
    ours = ["SLURM_CONF", "SLURMGPU_CLUSTER", "SLURMGPU_SANDBOX", BEFORE]
    return [name for name in ours if name not in before], before


def user_env(state: State, folder: Path) -> dict[str, str]:
    """Return the whole environment of a command in this sandbox."""
    return client_env(folder) | environment_of(state, folder)


def can_account() -> list[str]:
    """Return the programs for accounting that this machine lacks."""
    return [name for name in missing_programs() if name not in missing_programs(accounting=False)]
