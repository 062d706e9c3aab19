"""The file or module that a command's program is to read."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from slurmgpu.files.trust import read_regular, text_of
from slurmgpu.launchers import PROGRAMS, launcher_module, program_starting
from slurmgpu.lines.command import PythonCommand, changes_folder, python_command, runner_length
from slurmgpu.runs.command_checks.command import (
    Command,
    Slip,
    first_line,
    is_python,
    is_there,
    missing_script,
    near_file,
    near_word,
    one_slip_apart,
    what_it_has,
)
from slurmgpu.script.batch_script import SHELLS

__all__ = ["code_of", "modules_in", "script_slips", "shell_file", "shell_text"]


# Further programs, beside launchers, that run the command behind their own words.
_AROUND = frozenset({"coverage", "nsys", "time", "timeout"})
_INTERPRETERS = {"Rscript": ".R", "julia": ".jl"}


def script_slips(command: Command, folder: Path) -> Iterator[Slip]:
    """Yield what is wrong with the file or module that the program is to read."""
    words = command.words
    python = python_command(words)
    at = runner_length(words)
    if changes_folder(words[:at]):
        return  # what it starts is looked for elsewhere
    # Others may read such a file by a library that takes comments.
    for word in words[at:] if "deepspeed" in " ".join(words) else ():
        path = folder / word.rpartition("=")[2]
        if path.suffix == ".json" and path.is_file():
            try:
                json.loads(read_regular(path))
            except OSError:
                continue
            except ValueError as error:
                yield Slip(f"command: {path.name} is no JSON: {error}", "mend it there", sure=False)
    name = PurePosixPath(words[at]).name
    if python is None and (name in PROGRAMS or name in _AROUND):
        inside = next((n for n in range(1, len(words)) if python_command(words[n:])), None)
        python = python_command(words[inside:]) if inside else None
    if name in SHELLS or name in _INTERPRETERS:
        inner = command._replace(words=words[at:], before=words[:at])
        yield from _script_of(inner, folder, _INTERPRETERS.get(name))
    elif program_starting(words) is not None and (python is None or launcher_module(python.module)):
        files = (n for n, one in enumerate(words) if n and re.fullmatch(r"[^-=][^=]*\.(?:py|sh)", one))
        script = next(files, 0)
        if script:
            yield from _python_file(command, folder, words[script], words[:script], words[script + 1 :])
    elif python is not None:
        before = words[: len(words) - len(python.arguments) - 1]
        if python.script is not None:
            yield from _python_file(command, folder, python.script, before, python.arguments)
        else:
            yield from _module(command, folder, python, before[:-1])


def code_of(words: tuple[str, ...]) -> str | None:
    """Return the Python file that a command runs, or the code behind ``python -c``; None where it runs neither."""
    at = next((n for n in range(len(words)) if python_command(words[n:])), None)
    if at is not None:
        python = python_command(words[at:])
        if python is not None and launcher_module(python.module) is None:
            return python.script if python.script and python.script.endswith(".py") else None
    elif is_python(words[runner_length(words)]) and "-c" in words[:-1]:
        return words[words.index("-c") + 1]
    if program_starting(words) is not None:
        return next((word for word in words[1:] if re.fullmatch(r"[^-=][^=]*\.py", word)), None)
    return None


def shell_text(words: tuple[str, ...]) -> str | None:
    """Return the text that ``bash -c`` is to run; None where the command is another one, or a login shell's."""
    at = runner_length(words)
    if changes_folder(words[:at]) or PurePosixPath(words[at]).name not in SHELLS:
        return None
    option = next((n for n, word in enumerate(words[at + 1 :], at + 1) if re.fullmatch(r"-[a-z]*c", word)), 0)
    return words[option + 1] if option and "l" not in words[option] and option + 1 < len(words) else None


def shell_file(words: tuple[str, ...], folder: Path) -> str | None:
    """Return the shell script that a command runs, as written: ``bash run.sh``, ``./run.sh``; None where it runs none."""
    at = runner_length(words)
    if changes_folder(words[:at]):
        return None
    program = PurePosixPath(words[at]).name
    if program in SHELLS:
        number = _shell_operand(words[at:])
        return words[at + number] if number else None
    first = first_line(folder / words[at]) if "/" in words[at] else b""
    return words[at] if re.match(rb"#!\s*\S*/(?:env\s+)?(?:ba|da|k)?sh\b", first) else None


def _script_of(command: Command, folder: Path, suffix: str | None) -> Iterator[Slip]:
    """Yield the slip of the file that a shell is to read, or of the one with this ``suffix`` that another interpreter is."""
    words = command.words
    if suffix is None:
        number = _shell_operand(words)
    else:
        code = (n for n, one in enumerate(words) if n and re.match(r"-[eE]|--(?:eval|print)", one))
        files = (
            n
            for n in range(1, next(code, len(words)))
            if re.match(rf"(?s)(?!-).*{re.escape(suffix)}\Z", words[n])
        )
        number = next(files, 0)
    if not number or re.search(r"[$~*]", words[number]):
        return
    word = words[number]
    if word.endswith(".py") and is_there(folder / word):
        said = f"command: {words[0]} would read {word!r}, which is Python"
        yield Slip(said, f"write {command.instead('python', *words[number:])}", not command.blind)
    elif not is_there(folder / word):
        yield missing_script(command, folder, word, words[:number], words[number + 1 :])


def _shell_operand(words: tuple[str, ...]) -> int:
    """Return where a shell's file is among its words; 0 where it reads code, or none is named."""
    at = 1
    while at < len(words):
        word = words[at]
        if re.match(r"-[A-Za-z]*[cs]", word):
            return 0  # the next word is the code, or standard input has it
        if word in {"-", "--"}:
            return at + 1 if at + 1 < len(words) else 0
        if not word.startswith(("-", "+")):
            return at
        # -o pipefail, -euo pipefail, -O extglob, --rcfile FILE
        at += 2 if re.match(r"[-+][A-Za-z]*[oO]\Z|--(?:rcfile|init-file)\Z", word) else 1
    return 0


def _python_file(
    command: Command, folder: Path, script: str, before: tuple[str, ...], after: tuple[str, ...]
) -> Iterator[Slip]:
    """Yield the slip of a file that Python is to run; ``before`` and ``after`` are the words around it."""
    path = folder / script
    container = command.plan.environment.container is not None
    if script in PROGRAMS and not is_there(path):
        said = f"command: {before[-1]} {script}: {script} is a program, and no script of Python's here"
        yield Slip(said, f"write {command.instead(*before[:-1], script, *after)}")
        return
    if re.search(r"[$~*]", script) or (container and script.startswith("/")):
        return  # its words are judged by themselves; or the file is the image's
    sure = command.lacks(path)
    if not is_there(path):
        yield missing_script(command, folder, script, before, after)
    elif path.is_dir() and not (path / "__main__.py").exists():
        inside = sorted(one.name for one in path.glob("*.py"))[:3]
        hint = what_it_has(folder)
        if inside:
            words = (*before, str(PurePosixPath(script) / inside[0]), *after)
            hint = f"give a file in it: {command.instead(*words)} (it has {', '.join(inside)})"
        said = f"command: {script!r} is a folder without __main__.py, and Python can run none"
        yield Slip(said, hint if inside else f"give a script; the work folder: {hint}", sure)
    elif path.suffix in {".yaml", ".yml"}:
        said = f"command: {script!r} is YAML, which Python cannot run"
        yield Slip(said, f"give a job file before --: slurmgpu submit {shlex.quote(script)}", sure)
    elif path.suffix in {".csv", ".json", ".md", ".pt", ".toml", ".txt"}:
        said = f"command: {script!r} is no script, and Python cannot run it"
        yield Slip(said, f"give a script: {what_it_has(folder)}", sure)
    elif path.suffix == ".ipynb":
        yield Slip(
            f"command: {script!r} is a notebook, which Python cannot run",
            f"make a script of it: jupyter nbconvert --to script {shlex.quote(script)}; or "
            + command.instead("jupyter", "execute", script),
            sure,
        )
    elif path.suffix in {".sh", ".sbatch", ".slurm"} and b"python" not in first_line(path):
        said = f"command: {script!r} is a script of a shell, which Python cannot run"
        yield Slip(said, f"write {command.instead('bash', script, *after)}", sure)


def _module(command: Command, folder: Path, python: PythonCommand, before: tuple[str, ...]) -> Iterator[Slip]:
    """Yield the slip of ``python -m MODULE``: of the work folder, or installed, which the job's Python alone can tell."""
    module = python.module or ""

    def instead(other: str) -> str:
        return command.instead(*before, "-m", other, *python.arguments)

    if "/" in module or module.endswith(".py"):
        named = module.removesuffix(".py").strip("./").replace("/", ".")
        script = f"{module.removesuffix('.py').replace('.', '/')}.py" if "/" not in module else module
        script = script if script.endswith(".py") else f"{script}.py"
        yield Slip(
            f"command: -m takes a module's name, and {module!r} is a file's",
            f"write {instead(named)}"
            # A file that imports from its own package can only be run as a module.
            + f", or {command.instead(*before, script, *python.arguments)}"
            * (re.search(r"(?m)^from \.", text_of(folder / script)) is None),
        )
        return
    top, _, rest = module.partition(".")
    if (folder / f"{top}.py").is_file():
        return
    if (folder / top).is_dir():
        inside = folder.joinpath(*module.split("."))
        if rest and not inside.with_suffix(".py").is_file() and not inside.is_dir():
            near = near_file(inside.with_suffix(".py"))
            package = (folder / top / "__init__.py").is_file()
            good = ".".join([*module.split(".")[:-1], near.removesuffix(".py")]) if near else ""
            said = f"command: -m {module}: {folder / top} has no such module"
            hint = f"did you mean {good}? {instead(good)}" if near else what_it_has(inside.parent)
            yield Slip(said, hint, not command.blind and package)
        elif (
            (inside / "__init__.py").is_file() and not list(inside.glob("__main__.*")) and not python.options
        ):
            run = next((one.stem for one in sorted(inside.glob("*.py")) if one.stem[:2] != "__"), None)
            said = f"command: -m {module}: it is a package without __main__.py, and Python can run none"
            hint = f"name a module in it: {instead(f'{module}.{run}')}" if run else "write its __main__.py"
            yield Slip(said, hint, not command.blind)
        return
    near_module = near_word(top, modules_in(folder))
    if near_module:
        good = ".".join(filter(None, (near_module, rest)))
        yield Slip(
            f"command: -m {module}: there is no such module in the work folder {folder}",
            f"did you mean {good}? {instead(good)}",
            not command.blind and one_slip_apart(top, near_module) and not _importable(top),
        )


def modules_in(folder: Path) -> list[str]:
    """Return the names of the modules and packages of a folder."""
    try:
        there = list(folder.iterdir())
        return [one.stem for one in there if one.suffix == ".py" or (one / "__init__.py").is_file()]
    except OSError:
        return []


def _importable(module: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
