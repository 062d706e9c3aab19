"""A command taken apart: what comes before the program, the program, and the Python file that it runs."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from .torchrun import MODULES, TORCHRUN, torchrun_at

__all__ = [
    "LAUNCHERS",
    "LAUNCHER_MODULES",
    "ONE_NODE_LAUNCHERS",
    "PythonCommand",
    "changes_folder",
    "launcher_of",
    "prefix_length",
    "python_command",
    "python_files",
    "runner_length",
    "torchrun_processes",
]

_PYTHON = r"python(?:\d(?:\.\d+)?)?\Z"

ONE_NODE_LAUNCHERS = frozenset(
    {"torchrun", "torchpippy", "accelerate", "deepspeed", "horovodrun", "composer", "colossalai", "ray"}
)
"""Programs that start several processes, on the node where they run."""
LAUNCHERS = ONE_NODE_LAUNCHERS | {
    *("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "ibrun", "jsrun", "aprun"),
    *("parallel", "pdsh", "clush", "dask", "charmrun", "sbatch"),
}
"""Programs that start several processes, or whole jobs."""

LAUNCHER_MODULES = {
    **dict.fromkeys(MODULES, "torchrun"),
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner.launch": "horovodrun",
    "composer.cli.launcher": "composer",
}
"""The same, run as modules by ``python -m``."""


class _Prefix(NamedTuple):
    """A program that runs the command behind its own words."""

    values: frozenset[str] = frozenset()
    """Its options whose value is the next word."""
    operands: int = 0
    """Words of its own behind the options."""
    run: bool = False
    """Whether it runs commands only by ``run``: uv run, conda run."""


def _prefix(values: str = "", operands: int = 0, *, run: bool = False) -> _Prefix:
    return _Prefix(frozenset(values.split()), operands, run)


_CONDA = _prefix("-n --name -p --prefix --cwd -a --attach -e --env -r --root-prefix", run=True)
_PREFIXES = {
    "env": _prefix("-u --unset -C --chdir"),
    "nice": _prefix("-n --adjustment"),
    "ionice": _prefix("-c --class -n --classdata"),
    "nohup": _prefix(),
    "setsid": _prefix(),
    "stdbuf": _prefix("-i --input -o --output -e --error"),
    "numactl": _prefix(
        "-i --interleave -m --membind -N --cpunodebind -C --physcpubind -p --preferred -P --preferred-many"
    ),
    "taskset": _prefix(operands=1),
    "uv": _prefix(
        "-p --python --directory --project --config-file --cache-dir --color --env-file --with --with-editable "
        "--with-requirements --extra --no-extra --group --no-group --only-group --package --index --default-index "
        "-i --index-url --extra-index-url -f --find-links -P --upgrade-package --refresh-package "
        "--reinstall-package --resolution --prerelease --index-strategy --keyring-provider -C --config-setting "
        "--link-mode --exclude-newer --allow-insecure-host --no-build-package --no-binary-package --python-platform",
        run=True,
    ),
    "conda": _CONDA,
    "mamba": _CONDA,
    "micromamba": _CONDA,
    "pixi": _prefix("-e --environment --manifest-path --color --concurrent-downloads", run=True),
    "poetry": _prefix("-C --directory -P --project", run=True),
    "pdm": _prefix("-p --project -c --config", run=True),
    "pipenv": _prefix("--python", run=True),
}


class PythonCommand(NamedTuple):
    """A command that is ``python [options] SCRIPT [arguments]`` or ``python -m MODULE [arguments]``."""

    interpreter: str
    options: tuple[str, ...]
    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    runner: tuple[str, ...] = ()
    """What comes before it: ``uv run``, ``conda run -n ENV``, ``env NAME=value``, ``nice``."""
    by_runner: bool = False
    """Whether the runner itself finds the Python: ``uv run SCRIPT``."""

    @property
    def launcher(self) -> str | None:
        """The launcher that the module is: ``python -m torch.distributed.run`` is torchrun."""
        return LAUNCHER_MODULES.get(self.module or "")


def _name(word: str) -> str:
    return PurePosixPath(word).name


def runner_length(words: tuple[str, ...]) -> int:
    """How many words come before the program itself; 0 where it comes first.

    ``env A=1 nice python x.py`` has 3, ``uv run --with rich x.py`` has 4.
    """
    at = 0
    while at < len(words) and (own := prefix_length(words[at:], runners=True)):
        at += own
    return at if at < len(words) else 0


def changes_folder(runner: tuple[str, ...]) -> bool:
    """Whether these words before a program start it in another folder: ``env -C FOLDER``, ``uv run --directory FOLDER``."""
    return any(re.match(r"-C|--(?:chdir|directory|cwd)(?:=|\Z)", word) for word in runner)


def prefix_length(words: tuple[str, ...], *, runners: bool = False) -> int:
    """How many words the first prefix of a command has: ``env A=1``, ``nice -n 5``; with ``runners`` ``uv run``, too."""
    prefix = _PREFIXES.get(_name(words[0]))
    if prefix is None or (prefix.run and not runners):
        return 0
    at = _after_options(words, 1, prefix)
    if _name(words[0]) == "env" and any(re.match(r"-[iv0]*S|--split-string", word) for word in words[1:at]):
        return 0  # what it starts is within a word
    if prefix.run:
        if words[at : at + 1] != ("run",):
            return 0
        at = _after_options(words, at + 1, prefix)
    at += prefix.operands
    if _name(words[0]) == "env":
        while at < len(words) and re.match(r"[A-Za-z_]\w*=", words[at]):
            at += 1
    return at


def _after_options(words: tuple[str, ...], at: int, prefix: _Prefix) -> int:
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at + 1
        if prefix.run and words[at] in {"-m", "--module"}:  # uv run -m MODULE
            return at
        at += 2 if words[at] in prefix.values else 1
    return at


def python_command(words: tuple[str, ...]) -> PythonCommand | None:
    """Take a command apart; None when it runs no Python file or module."""
    at = runner_length(words)
    runner, rest = words[:at], words[at:]
    if not rest:
        return None
    if re.match(_PYTHON, _name(rest[0])):
        return _python(rest, runner)
    if "uv" not in map(_name, runner) or {"-s", "--script", "--gui-script"} & set(runner):
        return None
    if rest[0] in {"-m", "--module"} and len(rest) > 1:
        return PythonCommand("python", (), None, rest[1], rest[2:], runner, by_runner=True)
    if rest[0].endswith(".py"):
        return PythonCommand("python", (), rest[0], None, rest[1:], runner, by_runner=True)
    return None


def _python(words: tuple[str, ...], runner: tuple[str, ...]) -> PythonCommand | None:
    options: list[str] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m":
            module = tuple(rest)
            return (
                PythonCommand(words[0], tuple(options), None, rest[0], module[1:], runner) if rest else None
            )
        if word in {"-c", "-"}:
            return None
        if not word.startswith("-"):
            return PythonCommand(words[0], tuple(options), word, None, tuple(rest), runner)
        options.append(word)
        if word in {"-W", "-X"} and rest:
            options.append(rest.pop(0))
    return None


def launcher_of(words: tuple[str, ...]) -> str | None:
    """The program of a command that starts several processes itself; None for any other."""
    python = python_command(words)
    if python is not None:
        return python.launcher
    program = _name(words[runner_length(words)])
    return program if program in LAUNCHERS else None


def python_files(words: tuple[str, ...]) -> tuple[str, ...]:
    """The files that may be the script of a command, the likeliest first: python's, or a launcher's (torchrun train.py)."""
    python = python_command(words)
    if python is None or python.launcher:
        return tuple(word for word in words[1:] if word.endswith(".py"))
    if python.script:
        return (python.script,)
    module = (python.module or "").replace(".", "/")
    return (f"{module}.py", f"{module}/__main__.py")


def torchrun_processes(words: tuple[str, ...]) -> str | None:
    """How many processes torchrun is told to start on a node, as written; None where it is not told."""
    at = torchrun_at(words)
    return None if at is None else TORCHRUN.read_unexpanded(words, at)[0].given.get("nproc-per-node")
