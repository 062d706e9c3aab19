"""A Jupyter server on the node: its token, its configuration, and whether it is there at all."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from pathlib import Path

from slurmgpu.errors import PlanError
from slurmgpu.interactive.folder import write_private
from slurmgpu.models.plan import Plan
from slurmgpu.submission.slips.environment import environment_here

__all__ = ["check_installed", "prepare_jupyter"]

_LOOK = (
    "import importlib.util as u; print(any(map(u.find_spec, ('jupyterlab', 'notebook', 'jupyter_server'))))"
)


def prepare_jupyter(folder: Path) -> str:
    """Write the configuration, which only its owner can read; the token in it.

    Given by --config, it is read in place of the user's own, which may ask for no token. Older servers read the older names.
    """
    token = secrets.token_hex(24)
    shared = {"token": token, "password": "", "ip": "0.0.0.0", "port_retries": 0, "open_browser": False}
    shared |= {"allow_root": os.geteuid() == 0}
    config = {
        "ServerApp": shared,
        "NotebookApp": shared,
        "IdentityProvider": {"token": token},
        "PasswordIdentityProvider": {"hashed_password": ""},
    }
    write_private(folder / "jupyter_config.json", json.dumps(config, indent=2) + "\n")
    return token


def check_installed(plan: Plan, folder: Path | None) -> None:
    """PlanError where this machine can see that the job's Python has no Jupyter.

    Modules and containers show only on the node what they bring.
    """
    python = _python_here(plan, folder)
    if python is None:
        return
    try:
        done = subprocess.run([python, "-c", _LOOK], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return  # it may run on the node
    if done.returncode == 0 and done.stdout.strip() == "False":
        raise PlanError(
            f"--jupyter: {python} has neither jupyterlab, notebook nor jupyter_server",
            hint=f"install one: {python} -m pip install jupyterlab; or name an environment that has it: --environment NAME",
        )


def _python_here(plan: Plan, folder: Path | None) -> str | None:
    """The job's interpreter as a program of this machine; None where only the node knows it."""
    environment = plan.environment
    if environment.container is not None or environment.modules is not None:
        return None
    python = environment.python
    if python.activated is None:
        return shutil.which(python.interpreter)
    path = environment_here(python, folder, os.environ)[0] if folder is not None else None
    program = path / "bin" / "python" if path is not None else None
    return str(program) if program is not None and program.is_file() else None
