"""What is wrong with the environment of a job: a folder that is none, or not the one that the person works in."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from slurmgpu.models.environment import PythonEnvironment
from slurmgpu.models.plan import Plan
from slurmgpu.submission.slips.command import Command, Slip, seen_from_here
from slurmgpu.submission.slips.nearby import near_file

__all__ = ["active_elsewhere", "missing_environment", "unset_here"]


def missing_environment(command: Command, folder: Path) -> Iterator[Slip]:
    """A virtual environment that is not where the job looks for it."""
    venv = command.plan.environment.python.venv
    if venv is None or re.search(r"[$~]", venv.path):
        return
    path = folder / venv.path
    if os.path.exists(path / "bin" / "activate"):  # noqa: PTH110
        return
    near = near_file(path, folders=True)
    guess = f"did you mean {str(PurePosixPath(venv.path).parent / near)!r}? " if near else ""
    yield Slip(
        f"environment.python.venv.path: {venv.path!r} is not a virtual environment: {path}/bin/activate is not there",
        f"{guess}give the folder that `python -m venv` made, against the work folder",
        not command.blind and seen_from_here(path, folder),
    )


def active_elsewhere(plan: Plan, environ: Mapping[str, str]) -> Iterator[Slip]:
    """The cluster's default environment replaces the one that is active in this shell, and nobody asked for that."""
    if plan.environment_name is None or not any(reason.what == "environment" for reason in plan.reasons):
        return
    active = _active(environ)
    if active is None or _is(plan.environment.python, Path(active[1]), environ):
        return
    kind, prefix = active
    yield Slip(
        f"{prefix} is active here, and the job does not use it: it runs in environment "
        f"{plan.environment_name}, the default of cluster {plan.cluster}",
        f"to use the active one: --set environment.python.{kind}={shlex.quote(prefix)}",
        sure=False,
    )


def unset_here(plan: Plan, environ: Mapping[str, str]) -> Iterator[Slip]:
    """A variable of the job's that is to be what it is here, and is not set here: the script ends there (set -u)."""
    for name, value in plan.variables.items():
        if re.fullmatch(rf"\$(?:{name}|\{{{name}\}})", value) and name not in environ:
            yield Slip(
                f"variables.{name}: {value} is not set here, and the script ends where it is not set in the job either",
                f"name it under secrets: [{name}] if it is one; then it is missed before the job is submitted",
                sure=False,
            )


def _active(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Its kind and folder; not slurmgpu's own environment, nor conda's base, which is active in every shell."""
    for kind, variable in (("venv", "VIRTUAL_ENV"), ("conda", "CONDA_PREFIX")):
        prefix = environ.get(variable)
        if prefix and not (kind == "conda" and environ.get("CONDA_DEFAULT_ENV") == "base"):
            return None if os.path.realpath(prefix) == os.path.realpath(sys.prefix) else (kind, prefix)
    return None


def _is(python: PythonEnvironment, active: Path, environ: Mapping[str, str]) -> bool:
    """Whether the job's Python is the active one, as far as names and folders show."""
    named = python.venv.path if python.venv else python.conda.env if python.conda else None
    if named is None:
        return False
    named = re.sub(
        r"\$\{?(\w+)\}?", lambda found: environ.get(found[1], found[0]), re.sub(r"^~(?=/)", "$HOME", named)
    )
    return named == active.name or os.path.realpath(named) == os.path.realpath(active)
