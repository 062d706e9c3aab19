"""What a Python script imports that the Python of its command does not have, by asking this Python."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.lines.command import launcher_of, python_command
from slurmgpu.slurm import Runner, call, submission_env
from slurmgpu.submission.slips.command import Command, Slip
from slurmgpu.submission.slips.environment import environment_here

__all__ = ["missing_imports"]

TIMEOUT = 5.0
"""Seconds after which nothing is said: a Python may lie on a slow file system."""
_ASK = """
import sys
from importlib.util import find_spec
sys.path[0] = sys.argv[1]
for name in sys.argv[2:]:
    try:
        there = find_spec(name) is not None
    except Exception:
        there = True
    there or print(name)
"""


def missing_imports(command: Command, run: Runner = call) -> Slip | None:
    """Return what the command's script imports, or runs by ``-m``, and its Python does not have; a guess.

    The script is read and not run. Nothing is said where the job's Python is another one than can be found here: in a
    container, or where modules, a login shell or a runner bring it.
    """
    environment = command.plan.environment
    if command.folder is None or command.blind or command.plan.login_shell:
        return None
    if environment.container is not None or environment.modules is not None:
        return None
    python = _python(command)
    script, wanted = _imports(command, command.folder)
    if python is None or not wanted:
        return None
    beside = (command.folder / script).parent if script else command.folder
    try:
        answer = run(
            [python, "-c", _ASK, str(beside), *wanted],
            timeout=TIMEOUT,
            env=submission_env(command.environ),
            cwd=command.folder,
        )
    except SlurmUnreachable:  # it cannot be started
        return None
    missing = answer.stdout.split() if answer.rc == 0 else []
    if not missing:
        return None
    lines = ", ".join(f"{name} (line {wanted[name]})" if wanted[name] else name for name in missing[:5])
    what = f"{script} imports {lines}, and" if script else f"-m {missing[0]}:"
    return Slip(
        f"command: {what} its Python here ({python}) has no such {'module' if len(missing) == 1 else 'modules'}",
        "activate the environment that has all it needs, or name it: --set environment.python.venv=FOLDER, or "
        "environment.python.conda=NAME",
        sure=False,
    )


def _python(command: Command) -> str | None:
    """The interpreter that would run the command here; None where this machine does not know it."""
    words = command.words
    python = python_command(words)
    if python is not None and (python.by_runner or python.runner or "/" in python.interpreter):
        return python.interpreter if python.interpreter.startswith("/") and not python.runner else None
    if python is None and launcher_of(words) != "torchrun":
        return None
    activated = command.plan.environment.python.activated
    if activated is not None:
        assert command.folder is not None
        path, slip = environment_here(command.plan.environment.python, command.folder, command.environ)
        inside = None if path is None or slip is not None else path / "bin" / "python"
        return str(inside) if inside is not None and inside.exists() else None
    found = shutil.which(
        python.interpreter if python is not None else "torchrun", path=command.environ.get("PATH")
    )
    if python is None and found is not None:
        found = str(Path(found).with_name("python"))
    return found if found is not None and Path(found).exists() else None


def _imports(command: Command, folder: Path) -> tuple[str, dict[str, int]]:
    """The script, and the libraries that it imports in any case, with their lines; of ``-m`` the module."""
    python = python_command(command.words)
    if python is not None and python.module is not None and python.launcher is None:
        top = python.module.partition(".")[0]
        return "", {} if top in sys.stdlib_module_names or _is_local(top, folder) else {top: 0}
    script = python.script if python is not None else None
    if script is None:
        script = next((word for word in command.words[1:] if word.endswith(".py")), None)
    if script is None:
        return "", {}
    try:
        tree = ast.parse((folder / script).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return script, {}
    found: dict[str, int] = {}
    for node in tree.body:  # what stands in try or if may be missing
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in names:
            found.setdefault(name.partition(".")[0], node.lineno)
    ours = {"slurmgpu"}  # submission copies what a loop needs of it
    beside = (folder / script).parent
    return script, {
        name: line
        for name, line in found.items()
        if name not in sys.stdlib_module_names | ours and not _is_local(name, beside, folder)
    }


def _is_local(name: str, *folders: Path) -> bool:
    return any((one / f"{name}.py").is_file() or (one / name).is_dir() for one in folders)
