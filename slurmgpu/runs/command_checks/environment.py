"""The environment of a job: its Python, its conda, its variables and its modules, held against this machine."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.files.trust import is_confined, text_of
from slurmgpu.lines.command import python_command
from slurmgpu.models.environment import Environment, PythonEnvironment
from slurmgpu.models.plan import Plan
from slurmgpu.runs.command_checks.command import (
    Command,
    Slip,
    is_there,
    near_file,
    near_word,
    one_slip_apart,
    run_here,
)
from slurmgpu.runs.command_checks.words import SITE_VARIABLES

if TYPE_CHECKING:
    from slurmgpu.slurm import Runner

__all__ = [
    "active_elsewhere",
    "environment_here",
    "has_modules",
    "known_modules",
    "missing_environment",
    "missing_module",
    "unset_here",
]


def missing_environment(command: Command, folder: Path) -> Iterator[Slip]:
    """Yield what is wrong with a Python environment: it is not where the job looks for it, or not what it was."""
    python = command.plan.environment.python
    found = python.activated
    if found is None:
        yield from _missing_interpreter(command, folder)
        return
    root = python.conda.root if python.conda else None
    home = _here(root, folder, command.environ) if root else None
    if root and home and not is_there(home / "etc" / "profile.d" / "conda.sh"):
        near = near_file(home, folders=True)
        yield Slip(
            f"environment.python.conda.root: {root!r} is no installation of conda: {home} "
            + ("has no etc/profile.d/conda.sh" if is_there(home) else "is not there"),
            (f"did you mean {str(PurePosixPath(root).parent / near)!r}? " if near else "")
            + "give the folder that `conda info --base` prints, or leave root out",
            command.lacks(home) and not re.search(r"[$~]", root),
        )
        return
    if found.kind == "conda" and "/" not in found.where:
        yield from _unknown_to_conda(command, found.where)
        return
    path, slip = environment_here(python, folder, command.environ)
    if path is not None and slip is not None:
        certain = command.lacks(path) and not re.search(r"[$~]", found.where)
        yield slip._replace(sure=slip.sure and certain)


def environment_here(
    python: PythonEnvironment, folder: Path, environ: Mapping[str, str]
) -> tuple[Path | None, Slip | None]:
    """Return the folder of an environment on this machine, against the work folder, and what is wrong with it.

    None where this machine does not know it: by a variable that is not set, or a name that conda does not have.
    """
    found = python.activated
    if found is None:
        return None, None
    if python.conda and "/" not in found.where and not found.where.startswith(("$", "~")):
        name, roots = found.where, _conda_roots(python.conda.root, environ)
        if name in ("base", "root"):
            return (Path(roots[0]) if roots else None), None
        folders = [Path(folder).expanduser() / name for folder in _conda_folders(roots, environ)]
        folders += _conda_listed(environ, name)
        return next((folder for folder in folders if is_there(folder / "conda-meta")), None), None
    project = python.uv or python.pixi
    path = _here(found.where, folder, environ)
    home = path if project is None else _here(project.project, folder, environ)
    if path is None or home is None:
        return None, None
    written = python.conda.env if python.conda else python.venv.path if python.venv else None
    return path, _flaw_of(found.kind, written or str(project and project.project), path, home)


def _here(text: str, folder: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the path on this machine; None where a variable in it has no value here."""
    text = _expanded(text, environ)
    return None if "$" in text else folder / Path(text).expanduser()


_MANIFESTS = {"uv": ("pyproject.toml",), "pixi": ("pixi.toml", "pyproject.toml")}
_MADE_BY = {"venv": ("virtual", "python -m venv"), "conda": ("conda", "conda create --prefix")}


def _flaw_of(kind: str, written: str, path: Path, home: Path) -> Slip | None:
    """Return what is wrong with an environment in the folder ``path``; ``written`` is what names ``home`` in the job."""

    def slip(message: str, hint: str, *, sure: bool = True) -> Slip:
        key = {"conda": "conda.env", "venv": "venv.path"}.get(kind, f"{kind}.project")
        near = None if is_there(home) else near_file(home, folders=True)
        guess = f"did you mean {str(PurePosixPath(written).parent / near)!r}? " if near else ""
        return Slip(f"environment.python.{key}: {written!r} {message}", guess + hint, sure)

    if kind in _MANIFESTS and not any(is_there(home / one) for one in _MANIFESTS[kind]):
        has = " and no ".join(_MANIFESTS[kind])
        return slip(f"is not a {kind} project: {home} has no {has}", "give the project's folder")
    made = path / ("bin/activate" if kind in ("venv", "uv") else "conda-meta")
    if not is_there(made) and kind == "uv":
        hint = f"run `uv sync --project {shlex.quote(written)}` first: nothing is installed on a node"
        return slip(f"has no environment: {made} is not there", hint)
    if not is_there(made) and kind == "pixi":
        there = _names_in(path.parent)
        has = f"it has {', '.join(there)}" if there else "it has none"
        hint = f"run `pixi install --environment {path.name}` in it first: nothing is installed on a node"
        return slip(f"has no installed environment {path.name!r}; {has}", hint)
    if not is_there(made):
        what, maker = _MADE_BY[kind]
        hint = f"give the folder that `{maker}` made, against the work folder"
        return slip(f"is not a {what} environment: {made} is not there", hint)
    if kind in ("venv", "uv"):
        again = "make it again" if kind == "venv" else "run `uv sync` in the project again"
        interpreter = path / "bin" / "python3"
        if not is_there(interpreter):
            said = f"has no interpreter: {os.path.realpath(interpreter)} is not there"
            return slip(said, again, sure=False)
        text = text_of(path / "bin" / "activate")
        moved = re.search(r"^\s*(?:export )?VIRTUAL_ENV=([\"']?)(/[^$\"'\n]+)\1\s*$", text, re.MULTILINE)
        if moved and os.path.realpath(moved[2]) != os.path.realpath(path):
            said = (
                f"was made as {moved[2]}, and that is what it activates, wherever it was moved or copied to"
            )
            return slip(said, again, sure=not is_there(Path(moved[2])))
    if kind in _MANIFESTS:
        lock = home / f"{kind}.lock"
        folders = [*path.glob("lib/python3*/site-packages"), path / "conda-meta", path]
        changed = max((one.stat().st_mtime for one in folders if is_there(one)), default=0.0)
        if is_there(lock) and lock.stat().st_mtime > changed + 1:
            does = "uv sync" if kind == "uv" else "pixi install"
            said = f"has a {lock.name} that is newer than its environment, which the job uses as it is"
            return slip(said, f"run `{does}` in it, unless it is up to date", sure=False)
    return None


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(one.name for one in folder.iterdir() if one.is_dir())
    except OSError:
        return []


def _unknown_to_conda(command: Command, name: str) -> Iterator[Slip]:
    """Yield the slip of a name that is in none of the folders where conda looks; a guess, for a .condarc may name others."""
    environment, environ = command.plan.environment, command.environ
    root = environment.python.conda.root if environment.python.conda else None
    roots = _conda_roots(root, environ)
    # The other programs and the folders in which the job's script looks for conda.
    home, path = environ.get("HOME", "/"), environ.get("PATH")
    usual = [f"{home}/{one}" for one in ("miniforge3", "mambaforge", "miniconda3", "anaconda3")]
    usual += [f"/opt/{one}" for one in ("conda", "miniforge3", "miniconda3", "anaconda3")]
    places = ["/etc/profile.d/conda.sh", *(f"{one}/etc/profile.d/conda.sh" for one in usual)]
    places += [f"{home}/{where}/micromamba" for where in (".local/bin", "bin", "micromamba/bin")]
    brought = roots or environment.modules or command.plan.login_shell
    if not (
        brought
        or any(shutil.which(one, path=path) for one in ("mamba", "micromamba"))
        or any(is_there(Path(one)) for one in places)
    ):
        yield Slip(
            f"environment.python.conda.env: {name!r}: no conda, mamba or micromamba is here, on PATH or in the usual folders, "
            "and the job ends where its node has none either",
            "name what brings it: environment.modules, or environment.python.conda.root",
            sure=False,
        )
    if not roots or (environment.modules and not root) or name in ("base", "root") or "$" in name:
        return  # nothing is known of conda here, or a module brings another one
    there = {one for folder in _conda_folders(roots, environ) for one in _names_in(Path(folder).expanduser())}
    there |= {one.name for one in _conda_listed(environ)}
    if name not in there:
        near = near_word(name, there)
        yield Slip(
            f"environment.python.conda.env: {name!r} is no environment that conda has here; "
            f"it has {', '.join(sorted(there)[:8]) or 'none'}",
            f"did you mean {near!r}?" if near else "`conda env list` shows them; a folder will do, too",
            sure=False,
        )


def _conda_roots(root: str | None, environ: Mapping[str, str]) -> list[str]:
    """Return where conda is installed, as far as this machine knows."""
    program = environ.get("CONDA_EXE") or shutil.which("conda", path=environ.get("PATH"))
    roots = [_expanded(root, environ)] if root else [environ.get("MAMBA_ROOT_PREFIX", "")]
    if program and not root:
        roots.append(str(Path(os.path.realpath(program)).parents[1]))
    return [one for one in roots if one and "$" not in one]


def _conda_folders(roots: list[str], environ: Mapping[str, str]) -> list[str]:
    """Return the folders in which conda looks for names."""
    folders = [*(f"{one}/envs" for one in roots), f"{environ.get('HOME', '/')}/.conda/envs"]
    folders += environ.get("CONDA_ENVS_PATH", environ.get("CONDA_ENVS_DIRS", "")).split(os.pathsep)
    return [folder for folder in folders if folder]


def _conda_listed(environ: Mapping[str, str], name: str | None = None) -> list[Path]:
    """Return the environments that conda has written down, or those of a name."""
    listed = Path(environ.get("HOME", "/")) / ".conda" / "environments.txt"
    lines = listed.read_text(errors="replace").splitlines() if listed.is_file() else []
    return [Path(line) for line in lines if line and name in (None, PurePosixPath(line).name)]


def _missing_interpreter(command: Command, folder: Path) -> Iterator[Slip]:
    """Yield the slip of an interpreter that is not there, or that runs nothing."""
    plan = command.plan
    written = plan.environment.python.interpreter
    environment = plan.environment
    if plan.train is None and written != "python3" and command.words:
        own = python_command(command.words)
        runner = own.runner if own else ()
        hint = "write it in the command, or leave it out"
        if own and not own.by_runner:
            hint = f"write it there: {command.instead(*runner, written, *command.words[len(runner) + 1 :])}"
        yield Slip(
            f"environment.python.interpreter: {written!r} runs training tasks (train:), and the command of this job names "
            "its own program",
            hint,
            sure=plan.environment_name is None,  # one of a named environment may be for other jobs
        )
        return
    if plan.train is None or environment.container or environment.sbatch or environment.srun_options:
        return
    path = _here(written, folder, command.environ) if "/" in written else None
    on_path = "/" in written or shutil.which(written, path=command.environ.get("PATH"))
    known = bool(on_path or plan.environment.modules) and (path is None or is_there(path))
    if not known:
        said = f"environment.python.interpreter: {written!r} is not {'there' if path else 'on PATH here'}"
        hint = "give the path of an interpreter, or name what brings it: environment.python.venv, conda, uv or pixi"
        yield Slip(said, hint, path is not None and command.lacks(path) and "$" not in written)


def active_elsewhere(plan: Plan, environ: Mapping[str, str]) -> Iterator[Slip]:
    """Yield a warning where the cluster's default environment replaces the one that is active in this shell."""
    if plan.environment_name is None or not any(reason.what == "environment" for reason in plan.reasons):
        return
    # Conda's base is active in every shell.
    base = environ.get("CONDA_DEFAULT_ENV") == "base"
    kind = "venv" if environ.get("VIRTUAL_ENV") else "conda"
    prefix = environ.get("VIRTUAL_ENV") or (None if base else environ.get("CONDA_PREFIX"))
    if not prefix or os.path.realpath(prefix) == os.path.realpath(sys.prefix):
        return  # nothing, or slurmgpu's own
    used = plan.environment.python.activated
    named = _expanded(used.where, environ) if used else ""
    if used and (named == Path(prefix).name or os.path.realpath(named) == os.path.realpath(prefix)):
        return
    yield Slip(
        f"{prefix} is active here, and the job does not use it: it runs in environment "
        f"{plan.environment_name}, the default of cluster {plan.cluster}",
        f"to use the active one: --set environment.python.{kind}={shlex.quote(prefix)}",
        sure=False,
    )


def unset_here(plan: Plan, environ: Mapping[str, str]) -> Iterator[Slip]:
    """Yield the job's variables that use one that is not set here, misspelled or not, or that hide programs and GPUs."""
    known = {*environ, *plan.variables, *plan.secrets, *SITE_VARIABLES, "PROJECT", "WORK"}
    for name, value in plan.variables.items():
        for used in re.findall(r"\$\{?([A-Za-z_]\w*)\}?", value):
            near = next((one for one in known if used not in known and one_slip_apart(used, one)), None)
            if near:
                said = f"variables.{name}: ${used} is set nowhere here, and the script ends where it is not set in the job"
                yield Slip(said, f"did you mean ${near}?", sure=False)
        if name in {"PATH", "LD_LIBRARY_PATH"} and not re.search(rf"\$\{{?{name}\b", value):
            said = f"variables.{name}: {value} takes the place of all folders that were there"
            yield Slip(said, f'write {name}: "{value}:${name}"', sure=False)
        if name == "CUDA_VISIBLE_DEVICES" and not value.strip() and plan.gpus:
            said = f"variables.{name}: it is empty: programs see no GPU"
            yield Slip(said, "leave it out: Slurm sets it", sure=False)
        if re.fullmatch(rf"\$(?:{name}|\{{{name}\}})", value) and name not in environ:
            yield Slip(
                f"variables.{name}: {value} is not set here, and the script ends where it is not set in the job either",
                f"name it under secrets: [{name}] if it is one; then it is missed before the job is submitted",
                sure=False,
            )


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    """Return what a path of the job's is here; a variable that is not set stays as it is."""
    text = re.sub(r"^~(?=/)", "$HOME", text)
    return re.sub(r"\$\{?(\w+)\}?", lambda found: environ.get(found[1], found[0]), text)


TIMEOUT = 5.0
"""Seconds after which nothing is said: some sites' module trees are slow."""
_SIGNS_OF_MODULES = ("LMOD_CMD", "LMOD_PKG", "MODULES_CMD", "MODULESHOME", "BASH_FUNC_module%%")
_NOTHING_ELSE: dict[str, object] = {
    "command": ("true",), "launcher": "plain", "train": None, "own_loop": None, "tended": False, "script": None,
    "restart_limit": None, "variables": {}, "secrets": (), "cpus_per_task": None, "spawned_per_node": 0,
    "enters_work_dir": False, "options": (), "components": (), "log_folders": (),
}  # fmt: skip


def missing_module(
    plan: Plan,
    templates: Mapping[str, str],
    folder: Path | None,
    environ: Mapping[str, str],
    run: Runner = run_here,
) -> Slip | None:
    """Return the slip of the first module that does not load here, which is a guess: a compute node may have others."""
    modules = plan.environment.modules
    if modules is None or not (modules.load or modules.swap) or is_confined():  # what they load, runs
        return None
    from slurmgpu.script.render import render_script  # only a job with modules pays for it

    alone = {**_NOTHING_ELSE, "environment": Environment.model_construct(modules=modules)}
    script = render_script(plan.model_copy(update=alone), templates)
    env = {name: value for name, value in environ.items() if name != "SLURMGPU_RUN_DIR"}
    shell = ["bash", "-l"] if plan.login_shell else ["bash"]
    cwd = folder if folder is not None and folder.is_dir() else None
    try:
        answer = run([*shell, "-c", script], timeout=TIMEOUT, env=env, cwd=cwd)
    except SlurmUnreachable:  # no bash
        return None
    if answer.rc and "slurmgpu: no module command on " in answer.stderr:
        return Slip(
            f"environment.modules: there is no module command on this machine ({platform.node()}), and the job ends where its "
            "node has none either",
            "leave environment.modules out where the cluster has no modules",
            sure=False,
        )
    found = re.search(r"^slurmgpu: module (\S+) did not load on ", answer.stderr, re.MULTILINE)
    if answer.rc is None or not found:
        return None
    return Slip(
        f"environment.modules: {found[1]!r} does not load on this machine ({platform.node()}), "
        "and the job ends if it does not load on the node",
        f"`module avail {found[1].partition('/')[0]}` lists what is here; compute nodes may have other modules",
        sure=False,
    )


def has_modules(environ: Mapping[str, str]) -> bool:
    """Return whether a shell that is started from this one has a module command: inherited, or by BASH_ENV."""
    return any(name in environ for name in (*_SIGNS_OF_MODULES, "BASH_ENV"))


# Lmod's spider also knows the modules that appear when another is loaded.
_ASK = 'if [ -n "$LMOD_CMD" ]; then module -t spider; else module -t avail; fi 2>&1'


def known_modules(environ: Mapping[str, str], run: Runner = run_here) -> frozenset[str]:
    """Return the modules of this machine, as `intel/2024.1` and as `intel`; none where they cannot be asked for in time."""
    if not any(name in environ for name in _SIGNS_OF_MODULES):
        return frozenset()
    # Without the function of the shell that called, a login shell has it.
    shell = ["bash"] if "BASH_FUNC_module%%" in environ else ["bash", "-l"]
    try:
        answer = run([*shell, "-c", _ASK], timeout=TIMEOUT, env=environ)
    except SlurmUnreachable:  # no bash
        return frozenset()
    if answer.rc is None:
        return frozenset()
    lines = (re.sub(r"\(.*\)\Z|/\Z", "", line.strip()) for line in answer.stdout.splitlines())
    names = {line for line in lines if re.fullmatch(r"[A-Za-z0-9][\w.+@/-]*", line)}
    shorter = {"/".join(name.split("/")[:parts]) for name in names for parts in range(1, name.count("/") + 1)}
    return frozenset(names | shorter)
