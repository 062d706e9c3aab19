"""Runs the training entrypoint outside a job: a module of it, or the preparing of a task."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.local.site import python_with_torch
from slurmgpu.models.environment import Environment, PythonEnvironment
from slurmgpu.models.plan import Plan
from slurmgpu.rendering.context import SCRIPT_NAME
from slurmgpu.submission.run_directory import copy_entrypoint

__all__ = ["ask_entrypoint", "chosen_python", "estimate_here", "prepare_here", "prepare_plan"]


def chosen_python(named: str | None, environment: Mapping[str, str]) -> str:
    """The interpreter that was named, by path or by name, else the one here that has torch.

    Raises:
        InvalidInput: there is no such program.
    """
    if named is None:
        return python_with_torch(environment)
    found = shutil.which(os.path.expanduser(named), path=environment.get("PATH"))  # noqa: PTH111
    if found is None:
        raise InvalidInput(
            f"--python {named}: there is no such program", hint="give the path of a Python that has torch"
        )
    return str(Path(found).absolute())


def ask_entrypoint(python: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a module of the entrypoint to its end; what it printed.

    It is copied first, as for a job: slurmgpu's own folder on PYTHONPATH would bring all that is installed beside it.
    And it runs in that folder: Python would import from the current one, which may be somebody else's. So paths among
    the arguments are absolute.

    Raises:
        RunFailed: in the words of the module.
    """
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as folder:
        copy_entrypoint(Path(folder))
        command = [python, "-m", f"slurmgpu_training.{module}", *arguments]
        path = os.pathsep.join(filter(None, [folder, environment.get("PYTHONPATH")]))
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**environment, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise RunFailed(f"{python} cannot be started: {error.strerror}") from None
    if done.returncode:
        words = done.stderr.strip() or f"{python} ended with code {done.returncode}"
        hint = None
        if words.endswith("has no torch"):
            hint = "load the module or activate the environment that has torch, or name its Python: --python PATH"
        raise RunFailed(words, hint=hint)
    return done.stdout


def prepare_plan(plan: Plan, python: Path | None) -> Plan:
    """The plan of a script that prepares the task in one process, in the job's environment or by a Python of this machine."""
    environment = plan.environment
    if python is not None:
        environment = Environment(python=PythonEnvironment(interpreter=str(python)))
    return plan.model_copy(
        update={
            "prepare_only": True,
            "tended": False,
            "launcher": "plain",
            "nodes": 1,
            "gpus_per_node": 0,
            "tasks_per_node": 1,
            "processes_per_node": 1,
            "cpus_per_task": None,
            "options": (),
            "restart_limit": None,
            "sample": None,
            "notify": None,
            "environment": environment,
        }
    )


def prepare_here(plan: Plan, script: str, folder: Path, *, nice: int) -> int:
    """Run a script of ``prepare_plan`` in the work folder, at a low priority if ``nice``; its exit code.

    What it needs beside the task lies in a temporary folder, which is gone afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        return _run_in(Path(temporary), plan, script, folder, nice=nice, variables={})


def estimate_here(
    plan: Plan, script: str, folder: Path, *, nice: int, gpus: Sequence[int]
) -> dict[str, Any] | None:
    """Run it to work out the memory that the training takes on so many GPUs; None where it failed, and has said why."""
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        counts = {"SLURMGPU_ESTIMATE": ",".join(map(str, gpus))}
        _run_in(Path(temporary), plan, script, folder, nice=nice, variables=counts)
        try:
            found: dict[str, Any] = json.loads(Path(temporary, "estimate.json").read_text(encoding="utf-8"))
        except OSError:
            return None
        return found


def _run_in(
    temporary: Path, plan: Plan, script: str, folder: Path, *, nice: int, variables: Mapping[str, str]
) -> int:
    copy_entrypoint(temporary / "code")
    path = temporary / SCRIPT_NAME
    path.write_text(script, encoding="utf-8")
    command = ["bash", *(["-l"] if plan.login_shell else []), str(path)]
    if nice:
        command = ["nice", "-n", str(nice), *command]
    variables = {**variables, "SLURMGPU_RUN_DIR": str(temporary), "SLURM_SUBMIT_DIR": str(folder)}
    try:
        return subprocess.run(command, cwd=folder, env={**os.environ, **variables}, check=False).returncode
    except OSError as error:
        raise RunFailed(f"{command[0]} cannot be started: {error.strerror}") from None
