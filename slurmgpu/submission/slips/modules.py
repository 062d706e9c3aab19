"""Modules that do not load on this machine: the script's own lines for them, tried in a shell of their own."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.files.trust import is_confined
from slurmgpu.models.environment import Environment
from slurmgpu.models.plan import Plan
from slurmgpu.slurm import Runner, call, submission_env
from slurmgpu.submission.slips.command import Slip

__all__ = ["has_modules", "known_modules", "missing_module"]

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
    run: Runner = call,
) -> Slip | None:
    """The first module of the job that does not load here, which is a guess: a compute node may have others."""
    modules = plan.environment.modules
    if modules is None or not (modules.load or modules.swap) or is_confined():  # what they load, runs
        return None
    from slurmgpu.rendering.render import render_script  # only a job with modules pays for it

    alone = {**_NOTHING_ELSE, "environment": Environment.model_construct(modules=modules)}
    script = render_script(plan.model_copy(update=alone), templates)
    env = {name: value for name, value in submission_env(environ).items() if name != "SLURMGPU_RUN_DIR"}
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


def known_modules(environ: Mapping[str, str], run: Runner = call) -> frozenset[str]:
    """The modules of this machine, as `intel/2024.1` and as `intel`; none where they cannot be asked for in time."""
    if not any(name in environ for name in _SIGNS_OF_MODULES):
        return frozenset()
    # Without the function of the shell that called, a login shell has it.
    shell = ["bash"] if "BASH_FUNC_module%%" in environ else ["bash", "-l"]
    try:
        answer = run([*shell, "-c", _ASK], timeout=TIMEOUT, env=submission_env(environ))
    except SlurmUnreachable:  # no bash
        return frozenset()
    if answer.rc is None:
        return frozenset()
    lines = (re.sub(r"\(.*\)\Z|/\Z", "", line.strip()) for line in answer.stdout.splitlines())
    names = {line for line in lines if re.fullmatch(r"[A-Za-z0-9][\w.+@/-]*", line)}
    shorter = {"/".join(name.split("/")[:parts]) for name in names for parts in range(1, name.count("/") + 1)}
    return frozenset(names | shorter)
