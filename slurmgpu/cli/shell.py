"""``slurmgpu shell``: a shell on a GPU node, in the job's environment."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.interrupts import as_interrupts
from slurmgpu.local.site import is_on_a_node
from slurmgpu.quoting import job_path

if TYPE_CHECKING:
    from slurmgpu.runs.prepared import Prepared
    from slurmgpu.shell.server import Server
    from slurmgpu.shell.session import Session


@click.command(cls=JobCommand)
@job_options
@click.option("--ssh", is_flag=True, help="Keep the node open to ssh (and editors that use it) until Ctrl-C.")
@click.option("--jupyter", is_flag=True, help="Start JupyterLab there instead, until Ctrl-C.")
@click.option(
    "--login-node",
    metavar="HOST",
    help="What the login node is called from outside, for the printed lines (default: this machine's name).",
)
@click.option(
    "--write-ssh-config", is_flag=True, help="Let ~/.ssh/config include the entries of --ssh, by one line."
)
def command(
    given: dict[str, Any], ssh: bool, jupyter: bool, login_node: str | None, write_ssh_config: bool
) -> None:
    """Open a shell on a node with what the job asks for, in its environment and work folder.

    With a command after --, run that there instead. The nodes are given back at the end. Ends with the shell's or the
    command's own exit code; 130 when the request is withdrawn by Ctrl-C.

    --ssh and --jupyter start a server there instead, and say how to reach it; Ctrl-C ends it, with exit code 0.
    """
    from slurmgpu.runs.preflight import check_before_submission
    from slurmgpu.script.render import ShellValues
    from slurmgpu.script.variables import SCRIPT_NAME
    from slurmgpu.shell.server import (
        FILES,
        check_installed,
        prepare_jupyter,
        prepare_ssh,
        session_folder,
        write_private,
    )
    from slurmgpu.shell.session import Session, step_of
    from slurmgpu.slurm import Slurm, current_user

    _check_place()
    starts = "sshd" if ssh else "jupyterlab" if jupyter else None
    if ssh and jupyter:
        raise InvalidInput(
            "--ssh and --jupyter exclude each other",
            hint="take --ssh alone: an editor's notebooks, or ssh -L, reach a Jupyter that you start in it",
        )
    if starts and given["command"]:
        raise InvalidInput(
            f"--{'ssh' if ssh else 'jupyter'} starts a server, and there is a command after --",
            hint="leave one of the two out",
        )
    if write_ssh_config and not ssh:
        raise InvalidInput("--write-ssh-config is for --ssh", hint="add --ssh, or leave it out")
    terminal = os.isatty(0) and os.isatty(1)
    if not terminal and not given["command"] and not starts:
        raise InvalidInput(
            "a shell needs a terminal, and input or output is none here",
            hint="give a command: slurmgpu shell ... -- COMMAND; or submit a job: slurmgpu submit",
        )
    prepared = _plan_session(given)
    plan, job, slurm = prepared.plan, prepared.loaded.job, Slurm()
    check_before_submission(plan, prepared.folder, os.environ)
    if jupyter:
        check_installed(plan, prepared.folder)
    values = {"server": starts, "python": job_path(plan.environment.python.interpreter)}
    shape = (
        ShellValues("ssh" if ssh else "jupyter", FILES if ssh else (), values) if starts else ShellValues()
    )
    files = prepared.render_shell(shape)
    with session_folder(prepared.runs, plan, job, files.pop(SCRIPT_NAME), note) as path:
        token = prepare_jupyter(path) if jupyter else ""
        if ssh:
            prepare_ssh(path)
        for name, text in files.items():
            write_private(path / name, text)
        note(f"asking for {shlex.join(str(one) for one in plan.options)}")
        process = slurm.allocate(
            plan.options,
            step_of(plan, job, str(path / SCRIPT_NAME), terminal=terminal and not starts),
            cwd=prepared.folder or Path.cwd(),
            env={**os.environ, "SLURMGPU_RUN_DIR": str(path)},
            terminal=not starts,
        )
        session = Session(slurm, process, note)
        try:
            with as_interrupts():
                session.wait_for_nodes()
                if starts:
                    note(f"job {session.job_id}: starting {starts} ...")
                server = session.server() if starts else None
                away = login_node or socket.getfqdn()
                if server is None:
                    code = (session.wait() or 1) if starts else _wait(session, ctrl_c_ends=False)
                elif ssh:
                    code = _serve_ssh(session, server, prepared, path, away, write_ssh_config)
                else:
                    port = server.port
                    note(f"job {session.job_id}: JupyterLab on {server.node}{server.until}; Ctrl-C ends it")
                    note("on your own computer, in a terminal that stays open:")
                    click.echo(f"ssh -N -L {port}:{server.node}:{port} {current_user()}@{away}")
                    note("then in its browser:")
                    click.echo(f"http://127.0.0.1:{port}/?token={token}")
                    code = _wait(session, ctrl_c_ends=True)
        finally:
            became = session.end()
            if session.job_id is not None:
                note(became)
    click.get_current_context().exit(code)


def _check_place() -> None:
    """Raise PlanError inside a job: what is asked for would be another one, beside the GPUs that are here."""
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is None:
        return
    if is_on_a_node(os.environ):
        raise PlanError(
            f"this is a shell of job {job_id} already, on {os.environ['SLURMD_NODENAME']}",
            hint="its GPUs are yours: start the command itself, or slurmgpu run; for another allocation leave this one "
            "(exit), or use a terminal on a login node",
        )
    raise PlanError(
        f"this is the shell of job {job_id} (salloc), which has its nodes already",
        hint=f"go there: srun --jobid={job_id} --overlap --pty bash; or leave it (exit) for another allocation",
    )


def _plan_session(given: dict[str, Any]) -> Prepared:
    """Return the job as it is planned, with a command or a shell (None) in place of what it runs."""
    from slurmgpu.runs.prepare import plan_request
    from slurmgpu.script.render import shell_plan
    from slurmgpu.shell.session import as_session, left_out

    command = given["command"]
    if given["file"]:  # the resources are for what the file runs
        given = {**given, "command": None}
    prepared = plan_request(given, note, as_session)
    plan = prepared.plan
    for option in left_out(plan):
        note(f"{option} is an option of batch jobs: a shell goes without it")
    if plan.script is not None:
        note("the batch script's own lines are not run: the shell has its resources alone")
    if plan.nodes > 1:
        note(f"the shell is on the first of {plan.nodes} nodes; srun starts processes on all of them")
    return prepared._replace(plan=shell_plan(plan, command))


def _serve_ssh(
    session: Session, server: Server, prepared: Prepared, path: Path, login_node: str, write_ssh_config: bool
) -> int:
    """Say how to reach the node by ssh, and wait for Ctrl-C."""
    from slurmgpu.shell.server import entry, for_elsewhere, include_in, include_line, includes

    assert session.job_id is not None
    config = prepared.loaded.settings.folders["user"].absolute()
    user_file = Path.home() / ".ssh" / "config"
    name = f"{session.job_id}.slurmgpu"
    with entry(config, path, session.job_id, server) as file:
        if write_ssh_config and not includes(config, user_file):
            include_in(config, user_file)
            note(f"{user_file} now includes {config}/ssh/*.conf")
        note(f"job {session.job_id}: sshd on {server.node}{server.until}; Ctrl-C ends it")
        if includes(config, user_file):
            click.echo(f"ssh {name}")
        else:
            click.echo(f"ssh -F {shlex.quote(str(file))} {name}")
            note(
                f"for `ssh {name}`, and for editors, put this line at the top of {user_file} (--write-ssh-config does): "
                f"{include_line(config)}"
            )
        note("on another computer, copy the key, and put the rest into its ~/.ssh/config:")
        click.echo(for_elsewhere(path, session.job_id, server, login_node), err=True)
        return _wait(session, ctrl_c_ends=True)


def _wait(session: Session, *, ctrl_c_ends: bool) -> int:
    """Wait for the end and return its exit code; Ctrl-C ends a server, and a command has had it from the terminal."""
    while True:
        try:
            return session.wait()
        except KeyboardInterrupt as interrupt:
            if type(interrupt) is not KeyboardInterrupt:
                raise
            if ctrl_c_ends:
                return 0
