"""Commands taken apart: what comes before the program, and the Python file or module that runs."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

__all__ = [
    "PythonCommand",
    "changes_folder",
    "prefix_length",
    "program_name",
    "python_command",
    "runner_length",
]


_PYTHON = r"python(?:\d(?:\.\d+)?)?\Z"


class _Prefix(NamedTuple):
    """A program that runs the command behind its own words."""

    values: frozenset[str] = frozenset()
    """Its options whose value is the next word."""
    operands: int = 0
    """Words of its own behind the options."""
    run: bool = False
    """True if it runs commands only by ``run``: uv run, conda run."""


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
    """Words before it: ``uv run``, ``conda run -n ENV``, ``env NAME=value``, ``nice``."""
    by_runner: bool = False
    """True if the runner itself finds the Python: ``uv run SCRIPT``."""


def program_name(word: str) -> str:
    """Return a program's name without its folder."""
    return PurePosixPath(word).name


def runner_length(words: tuple[str, ...]) -> int:
    """Return how many words come before the program itself; 0 where it comes first.

    ``env A=1 nice python x.py`` has 3, ``uv run --with rich x.py`` has 4.
    """
    at = 0
    while at < len(words) and (own := prefix_length(words[at:], runners=True)):
        at += own
    return at if at < len(words) else 0


def changes_folder(runner: tuple[str, ...]) -> bool:
    """Return True if words before a program start it in another folder: ``env -C FOLDER``, ``uv run --directory FOLDER``."""
    return any(re.match(r"-C|--(?:chdir|directory|cwd)(?:=|\Z)", word) for word in runner)


def prefix_length(words: tuple[str, ...], *, runners: bool = False) -> int:
    """Return how many words the first prefix of a command has: ``env A=1``, ``nice -n 5``; with ``runners`` ``uv run``, too."""
    prefix = _PREFIXES.get(program_name(words[0]))
    if prefix is None or (prefix.run and not runners):
        return 0
    at = _after_options(words, 1, prefix)
    if program_name(words[0]) == "env" and any(
        re.match(r"-[iv0]*S|--split-string", word) for word in words[1:at]
    ):
        return 0  # what it starts is within a word
    if prefix.run:
        if words[at : at + 1] != ("run",):
            return 0
        at = _after_options(words, at + 1, prefix)
    at += prefix.operands
    if program_name(words[0]) == "env":
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
    if re.match(_PYTHON, program_name(rest[0])):
        return _python(rest, runner)
    if "uv" not in map(program_name, runner) or {"-s", "--script", "--gui-script"} & set(runner):
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
