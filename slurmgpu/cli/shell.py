"""``slurmgpu shell``: a shell on a GPU node, in the job's environment."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options


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
def command(**options: Any) -> None:
    """Open a shell on a node with what the job asks for, in its environment and work folder.

    With a command after --, run that there instead. The nodes are given back at the end. Ends with the shell's or the
    command's own exit code; 130 when the request is withdrawn by Ctrl-C.

    --ssh and --jupyter start a server there instead, and say how to reach it; Ctrl-C ends it, with exit code 0.
    """
    from slurmgpu.cli.actions.shell import act

    act(**options)
