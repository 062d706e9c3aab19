"""``slurmgpu sandbox``: a real Slurm on this machine, with pretend GPUs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.terminal import echo_json
from slurmgpu.errors import InvalidInput
from slurmgpu.sandbox.processes import tail_of_logs
from slurmgpu.sandbox.programs import SandboxFailed, require_programs, slurm_release, slurm_version

if TYPE_CHECKING:
    from slurmgpu.sandbox.configuration import Shape
    from slurmgpu.sandbox.life import Describe


_name = click.option(
    "--name",
    default="default",
    envvar="SLURMGPU_SANDBOX",
    show_default=True,
    help="Which sandbox; several can run side by side.",
)


@click.group()
def command() -> None:
    """Start, use and end a real Slurm on this machine, with pretend GPUs; needs no root.

    A sandbox is a cluster of its own, named sandbox-NAME. No shell talks to it that did not ask to: by
    `sandbox exec` or `sandbox env`.
    """


@command.command("up")
@_name
@click.option("--nodes", type=click.IntRange(1, 64), help="How many nodes.  [default: 4]")
@click.option("--gpus-per-node", metavar="[TYPE:]N", help="Pretend GPUs of a node.  [default: a100:4]")
@click.option("--cpus", type=click.IntRange(1, 4096), help="CPUs that a node has for Slurm.  [default: 64]")
@click.option("--memory", metavar="SIZE", help="Memory that a node has for Slurm.  [default: 512G]")
@click.option(
    "--like",
    metavar="CLUSTER",
    help="A twin of a described cluster: judges jobs, runs none.",
    shell_complete=clusters,
)
@click.option("--accounting/--no-accounting", default=None, help="With slurmdbd.  [default: if installed]")
@click.option("--for", "lasting", metavar="TIME", help="End by itself after this time (2h, 30m, 1d).")
def sandbox_up(
    name: str,
    nodes: int | None,
    gpus_per_node: str | None,
    cpus: int | None,
    memory: str | None,
    like: str | None,
    accounting: bool | None,
    lasting: str | None,
) -> None:
    """Start a sandbox: Slurm's daemons as you, on loopback, until `down` or the machine's end."""
    from slurmgpu.sandbox.configuration import host_name, is_on_loopback
    from slurmgpu.sandbox.life import bring_up, can_account, introduction

    require_programs()
    if like and any(value is not None for value in (nodes, gpus_per_node, cpus, memory)):
        raise InvalidInput(
            "--like takes nodes, GPUs, CPUs and memory from the cluster's profile",
            hint="leave --nodes, --gpus-per-node, --cpus and --memory out, or leave --like out",
        )
    plain = (nodes or 4, gpus_per_node or "a100:4", cpus or 64, memory or "512G")
    shape, describe, notes = _twin(name, like) if like else _plain(*plain)
    lacking = can_account()
    if accounting is not False and lacking:
        if accounting:
            raise InvalidInput(
                f"--accounting: this machine has no {', '.join(lacking)}",
                hint="docs/sandbox.md says which packages have them; --no-accounting goes without",
            )
        notes.append(f"no accounting (no sacct, accounts, QOS): this machine has no {', '.join(lacking)}")
    if not is_on_loopback(host_name()):
        notes.append(
            f"its daemons listen on all of this machine's addresses, for its name {host_name()!r} does not resolve to "
            "127.0.0.1; the key of the sandbox's own munge keeps others out"
        )
    seconds = _seconds(lasting) if lasting else None
    began = time.monotonic()
    with_accounting = accounting is not False and not lacking
    state, new = bring_up(name, shape, describe, accounting=with_accounting, lasting=seconds)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    took = f"is up after {time.monotonic() - began:.1f} s" if new else "is running already"
    for line in introduction(state, took):
        click.echo(line)


@command.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sandbox_status(as_json: bool) -> None:
    """Show all sandboxes: whether they are alive, their nodes, since when, and where."""
    from slurmgpu.sandbox.life import status_entry, status_line
    from slurmgpu.sandbox.state import known_sandboxes, read_state

    found = [(name, folder, read_state(folder)) for name, folder in known_sandboxes().items()]
    if as_json:
        entries = [status_entry(*one) for one in found]
        echo_json({"schema": "slurmgpu.sandboxes/1", "sandboxes": entries}, ensure_ascii=True)
        return
    if not found:
        click.echo("there is no sandbox: `slurmgpu sandbox up` starts one", err=True)
    for one in found:
        click.echo(status_line(*one))


@command.command("down")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All sandboxes of yours.")
@click.option("--name", "name_option", envvar="SLURMGPU_SANDBOX", hidden=True)
def sandbox_down(name: str | None, everything: bool, name_option: str | None) -> None:
    """End a sandbox (default: `default`) and its jobs; looks afterwards whether anything is left."""
    from slurmgpu.sandbox.life import bring_down
    from slurmgpu.sandbox.state import known_sandboxes

    if everything and name:
        raise InvalidInput("NAME and --all exclude each other")
    known = list(known_sandboxes())
    left = []
    for one in known if everything else [name or name_option or "default"]:
        ended = bring_down(one)
        if ended is None:
            click.echo(
                f"there is no sandbox {one!r} (known: {', '.join(known) or 'none'}); nothing to do", err=True
            )
        elif ended.clean:
            what = "had crashed and is cleaned up" if ended.crashed else "is down"
            click.echo(f"sandbox {one} {what}: no process, port or file of it is left")
        else:
            rest = [f"processes {', '.join(map(str, ended.processes))}"] if ended.processes else []
            rest += [f"ports {', '.join(map(str, ended.ports))}"] if ended.ports else []
            rest += [f"folder {ended.folder}"] if ended.folder else []
            left.append(f"sandbox {one!r} is down, but left {'; '.join(rest)}")
    if left:
        raise SandboxFailed("\n".join(left), hint="look who holds them, then call down again")
    if everything and not known:
        click.echo("there is no sandbox; nothing to do", err=True)


@command.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_name
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def sandbox_exec(name: str, words: tuple[str, ...]) -> None:
    """Run a command that talks to the sandbox; ends with the command's own exit code."""
    from slurmgpu.sandbox.life import running_sandbox, user_env

    env = user_env(*running_sandbox(name))
    path = shutil.which(words[0], path=env["PATH"])
    if path is None:
        error = SandboxFailed(f"exec: {words[0]!r} is not a command on PATH")
        error.exit_code = 127
        raise error
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(path, list(words), env)


@command.command("env")
@_name
@click.option("--unset", is_flag=True, help="Print the lines that take it back, as it was before.")
def sandbox_env(name: str, unset: bool) -> None:
    """Print shell lines that make this shell talk to the sandbox: eval "$(slurmgpu sandbox env)"."""
    from slurmgpu.sandbox.life import entering, leaving, running_sandbox

    gone, variables = leaving() if unset else entering(*running_sandbox(name))
    if gone:
        click.echo(f"unset {' '.join(gone)}")
    for variable, value in variables.items():
        click.echo(f"export {variable}={shlex.quote(value)}")


@command.command("logs")
@click.argument("daemon", required=False)
@_name
@click.option("-n", "--lines", type=click.IntRange(1), default=20, show_default=True, help="How many lines.")
def sandbox_logs(daemon: str | None, name: str, lines: int) -> None:
    """Show the end of the daemons' logs; DAEMON is slurmctld, slurmdbd, slurmd-node1, munged, mariadbd, ..."""
    from slurmgpu.sandbox.state import folder_of

    folder = folder_of(name)
    # Of a crashed one, too: then they are wanted most.
    if not (folder / "log").is_dir():
        raise SandboxFailed(f"there is no sandbox {name!r}", hint="slurmgpu sandbox status shows them")
    known = {path.stem for path in (folder / "log").iterdir()}
    if daemon and daemon not in known:
        raise InvalidInput(f"DAEMON {daemon!r}: there is no such log; there are {', '.join(sorted(known))}")
    for line in tail_of_logs(folder, lines, daemon):
        click.echo(line)


@command.command("fault")
@click.argument("fault")
@click.argument("target", metavar="[NODE|JOB]", required=False)
@_name
def sandbox_fault(fault: str, target: str | None, name: str) -> None:
    """Cause a fault, to see what it does to you.

    \b
    controller-down   slurmctld is ended: nothing answers
    controller-hang   slurmctld is stopped: it takes connections and never answers
    database-down     slurmdbd is ended: sacct and sacctmgr fail, jobs go on
    node-down NODE    slurmd and jobs of a node are killed, Slurm marks it DOWN
    preempt JOB       a job of more priority takes the nodes of JOB
    drop-replies      the controller does what it is asked, but its replies are lost

    `slurmgpu sandbox heal` mends all of them.
    """
    from slurmgpu.sandbox.faults import cause
    from slurmgpu.sandbox.life import running_sandbox

    state, folder = running_sandbox(name)
    click.echo(f"{state.cluster}: {cause(state, folder, fault, target)}")


@command.command("heal")
@_name
def sandbox_heal(name: str) -> None:
    """Mend all faults of a sandbox."""
    from slurmgpu.sandbox.faults import heal
    from slurmgpu.sandbox.life import running_sandbox

    state, folder = running_sandbox(name)
    mended = heal(state, folder)
    click.echo(f"{state.cluster}: " + (f"mended {', '.join(mended)}" if mended else "no fault to mend"))


LEAST_MEMORY = 1000
LONGEST_DAYS = 365


def _plain(nodes: int, gpus_per_node: str, cpus: int, memory: str) -> tuple[Shape, Describe, list[str]]:
    """Return a sandbox of equal nodes, and a description of it as `cluster discover` writes it."""
    from slurmgpu.models.units import GpuRequest, Memory
    from slurmgpu.sandbox.configuration import default_shape

    try:
        gpus = GpuRequest.parse(gpus_per_node)
    except ValueError as error:
        raise InvalidInput(f"--gpus-per-node: {error}") from None
    if gpus.count > 64:
        raise InvalidInput(f"--gpus-per-node {gpus_per_node}: at most 64")
    try:
        mib = Memory.parse(memory).mib
    except ValueError as error:
        raise InvalidInput(f"--memory: {error}") from None
    if mib < LEAST_MEMORY:
        raise InvalidInput(
            f"--memory {memory}: a node needs {LEAST_MEMORY} MiB at least",
            hint="a bare number is MiB; write 64G for 64 GiB",
        )

    def describe(env: Mapping[str, str]) -> str:
        from slurmgpu.clusters.discover import discover
        from slurmgpu.clusters.writing import profile_text
        from slurmgpu.slurm import Slurm

        return profile_text(discover(Slurm(env=env), environ=env))

    return default_shape(nodes, gpus.count, gpus.type if gpus.count else None, cpus, mib), describe, []


def _twin(name: str, like: str) -> tuple[Shape, Describe, list[str]]:
    """Return a twin of a cluster, its profile, and what of the cluster it has not."""
    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings
    from slurmgpu.sandbox.twin import twin_of

    cluster, _ = choose_cluster(like, load_settings(Path.cwd()), {})
    shape, notes = twin_of(cluster, slurm_release(slurm_version()))
    named = cluster.model_copy(update={"name": f"sandbox-{name}"})
    text = json.dumps(named.model_dump(mode="json", exclude_defaults=True), indent=1) + "\n"
    return shape, lambda _: text, notes


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if not match or not int(match[1]):
        raise InvalidInput(f"--for {text!r}: write a whole number and s, m, h or d, such as 2h")
    seconds = int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    if seconds > LONGEST_DAYS * 86400:
        raise InvalidInput(f"--for {text!r}: at most {LONGEST_DAYS}d; without --for it stays until `down`")
    return seconds
