"""The first word of a command: a program that is there, or can be."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from slurmgpu.errors import nearest
from slurmgpu.launchers import SHIPPED
from slurmgpu.lines.command import changes_folder, python_command, runner_length
from slurmgpu.lines.slurm import SRUN
from slurmgpu.models.command import OPERATOR, shell_syntax
from slurmgpu.runs.command_checks.command import (
    Command,
    Slip,
    first_line,
    is_batch_script,
    is_there,
    missing_script,
    near_file,
    one_slip_apart,
    other_folder,
    read_by,
)

__all__ = ["SRUN_ELSEWHERE", "missing_interpreter", "program_slips"]


# Programs that people mean when they miss a letter.
_KNOWN = (
    "accelerate", "apptainer", "bash", "composer", "conda", "deepspeed", "docker", "horovodrun", "ipython", "julia",
    "jupyter", "mamba", "matlab", "mpiexec", "mpirun", "nvidia-smi", "poetry", "python", "python3", "sbatch",
    "singularity", "srun", "tensorboard", "torchrun",
)  # fmt: skip
# What a shell knows without PATH, and what Slurm brings to each node.
_ALWAYS_THERE = frozenset({
    "[", "command", "echo", "eval", "exec", "false", "kill", "nvidia-smi", "printf", "pwd", "rocm-smi", "sbatch",
    "scontrol", "srun", "test", "time", "true", "type", "wait",
})  # fmt: skip
# They change the shell that runs them, which then has nothing more to run.
_SETS_UP = {
    "cd": "give the work folder by -D FOLDER, or work_dir",
    "conda": "name it in the job file: environment: {python: {conda: NAME}}",
    "export": "write it under variables: {NAME: value}",
    "ml": "name it in the job file: environment: {modules: NAME}",
    "module": "name it in the job file: environment: {modules: NAME}",
    "source": "name a virtual environment in the job file: environment: {python: {venv: FOLDER}}",
}
_SETS_UP["."] = _SETS_UP["source"]
# Runners with an environment of their own, whose commands may be a project's own words: pixi run train.
_WITH_AN_ENVIRONMENT = frozenset({"conda", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "uv"})
_OF_SHELL = ("cat", "echo", "export", "mkdir", "module", "sleep", "source", "wait")
# How far the own words of programs go that start another one: options with their values, and what comes before it.
_MPI = (
    r"\A(?:(?:--?(?:n|np|c|N|npernode|map-by|bind-to|host|H|hostfile|machinefile|x|ppn|(?:mca|genv)\0[^\0]*)\0[^\0]*"
    r"|-[^\0]*)\0)*"
)
_WRAPPED = {
    "time": r"\A(?:-[pvaq]\0|-[of]\0[^\0]*\0)*",
    "timeout": r"\A(?:-[kfsv]\0[^\0]*\0|--?\w[^\0]*\0)*[\d.]+[smhd]?\0",
    **dict.fromkeys(SHIPPED["mpirun"].programs, _MPI),
}
SRUN_ELSEWHERE = frozenset({"chdir", "multi-prog", "container", "container-image"})
"""Options of srun with which its program is looked for in another place."""
_KEYWORDS = frozenset({"case", "for", "function", "if", "select", "until", "while", "{"})


def program_slips(command: Command) -> Iterator[Slip]:
    """Yield why the first word is no program that is there, or can be."""
    words = command.words
    program = words[0]
    container = command.plan.environment.container
    if container is not None and container.mode == "run":
        return  # the image's own program gets these words
    rest = words[1:]
    if " " in program.strip() and not (command.folder and is_there(command.folder / program)):
        yield from _one_word(command, program)
    elif program.startswith("-") and command.in_script:
        said = f"command: {program!r} would be the program here: the line above it ends without \\"
        yield Slip(said, "end that line with a backslash, and nothing behind it")
    elif program.startswith("-"):
        yield Slip(
            f"command: {program!r} would be the program: an option comes after --",
            f"options of slurmgpu go before it: slurmgpu submit {program} ... -- python train.py; one of the program's comes "
            f"behind the program: -- python train.py {program} ...",
        )
    elif program.startswith(("!", "%")) and len(program) > 1:
        said = f"command: {program!r}: ! and % before a command are a notebook's"
        yield Slip(said, f"take it out: {command.instead(program[1:], *rest)}")
    elif program in _KEYWORDS:
        said = f"command: {program!r} is a word of the shell's language, and no shell reads a command"
        hint = "write the lines under script: | in a job file, or put them into a file: -- bash FILE.sh"
        yield Slip(said, hint)
    elif program in _SETS_UP and (program != "conda" or rest[:1] == ("activate",)):
        said = f"command: {' '.join(words)!r} sets up a shell, and nothing would run in it"
        hint, shell = (
            _SETS_UP[program],
            program not in {"conda", "module", "ml"},
        )  # whose functions bash -c does not have
        if program == "cd" and len(words) > 3 and words[2] in {"&&", ";"} and not command.in_file:
            hint = f"give the folder by -D: -D {shlex.quote(words[1])} {command.instead(*words[3:])}"
        elif shell and any(re.match(OPERATOR, word) or word.endswith(";") for word in words):
            hint += f"; or let a shell read it all: {command.instead('bash', '-c', ' '.join(words))}"
        yield Slip(said, hint)
    elif "$" in program or program.startswith("~"):
        yield Slip(
            f"command: {program!r} would be the program's name as it is: nothing expands in a command",
            "write the path in full, or run it by a shell: " + command.instead("bash", "-c", " ".join(words)),
        )
    elif re.fullmatch(r"[A-Za-z_]\w*=.*", program):
        name, _, value = program.partition("=")
        devices = name.endswith("_VISIBLE_DEVICES")
        yield Slip(
            f"command: {program!r} is where the program belongs, and hides it from slurmgpu",
            f"leave it out, for Slurm sets it: {command.instead(*rest)}"
            if devices
            else f"give it as a variable: --set variables.{name}={shlex.quote(value)}",
            sure=False,
        )
    elif "/" in program:
        yield from _program_by_path(command, program)
    else:
        yield from _program_by_name(command, program)
        yield from _behind_another(command)


def _behind_another(command: Command) -> Iterator[Slip]:
    """Yield the sure slips of the program that ``nice``, ``uv run`` or ``srun`` is to start; what brings it is not known."""
    at = runner_length(command.words)
    if at and changes_folder(command.words[:at]):
        return
    program = PurePosixPath(command.words[at]).name
    if program == "srun":
        line, hidden = SRUN.read_unexpanded(command.words, at + 1)
        if not (hidden or SRUN_ELSEWHERE & set(line.given)) and line.end < len(command.words):
            inner = command._replace(words=command.words[line.end :], before=command.words[: line.end])
            yield from (slip for slip in program_slips(inner) if slip.sure)
        return
    behind = re.search(_WRAPPED.get(program, r"(?!)"), "\0".join(command.words[at + 1 :]))
    if program == "timeout" and len(command.words) > at + 1 and behind is None:
        given = list(command.words[at + 1 :])
        spelled = re.fullmatch(r"([\d.]+)([smhd])\w+", given[0])
        last = given.pop() if given[1:] and given[-1].isdecimal() else None
        right = [f"{spelled[1]}{spelled[2]}", *given[1:]] if spelled else [last or "1h", *given]
        said = f"command: timeout {given[0]}: a time comes first, such as 30s, 10m or 2h"
        yield Slip(said, f"write {command.instead(*command.words[: at + 1], *right)}")
    elif command.words[0] == "nice" and command.words[1:2] and command.words[1].isdecimal():
        right = ["nice", "-n", *command.words[1:]]
        said = f"command: nice {command.words[1]}: -n comes before the number"
        yield Slip(said, f"write {command.instead(*right)}")
    elif command.words[:2] == ("env", "-i"):
        said = "command: env -i takes all variables away, PATH, CUDA_VISIBLE_DEVICES and those of Slurm among them"
        yield Slip(said, f"leave -i out: {command.instead(*command.words[2:])}", sure=False)
    elif behind is not None:
        end = at + 1 + behind[0].count("\0")
        inner = command._replace(words=command.words[end:], before=command.words[:end])
        if inner.words and not re.search(r"[$=]|\A-", inner.words[0]):
            yield from (slip for slip in program_slips(inner) if slip.sure)
    if at and python_command(command.words) is None and not re.search(r"[-/$ =]", command.words[at]):
        inner = command._replace(words=command.words[at:], before=command.words[:at])
        yield from (slip for slip in _program_by_name(inner, inner.words[0]) if slip.sure)


def _one_word(command: Command, program: str) -> Iterator[Slip]:
    message = f"command: {program!r} is one word, so it would be the name of the program"
    if command.in_file and any(re.match(r"\w\S* ", word) for word in command.words[1:]):
        lines = "\n".join(f"  {word}" for word in command.words)
        hint = f"several lines go under script:, where a shell reads them: write\nscript: |\n{lines}"
        yield Slip(message, hint)
        return
    if shell_syntax(program) is not None:
        yield Slip(message, f"run it by a shell: {command.instead('bash', '-c', *command.words)}")
        return
    try:
        split = shlex.split(program)
    except ValueError:
        split = program.split()
    options = (word.split() if re.match(r"-\S+ \S+\Z", word) else [word] for word in command.words[1:])
    unquoted = command.instead(*split, *(part for words in options for part in words))
    around = "as several words" if command.in_file else "without the quotes around it"
    yield Slip(message, f"write it {around}: {unquoted}")


def _program_by_path(command: Command, program: str) -> Iterator[Slip]:
    """Yield why a file that is named by its path is not there, or cannot be started as it is."""
    if command.folder is None:
        return
    path, rest = command.folder / program, command.words[1:]
    sure, by, first = command.lacks(path), read_by(path), first_line(path)
    if not is_there(path):
        if command.plan.environment.container is not None and program.startswith("/"):
            return  # of the image, mostly
        if near := near_file(path):
            there = str(PurePosixPath(program).parent / near)
            by = read_by(path.with_name(near))
            there = f"./{there}" if program.startswith("./") and by is None else there
            hint = f"did you mean {there}? {command.instead(*filter(None, [by]), there, *rest)}"
        else:
            hint = other_folder(command, program)
        yield Slip(f"command: {program!r} is not there (looked for {path})", hint, sure)
    elif path.is_dir() or path.suffix in {".yaml", ".yml"}:
        yield _no_program(command, program, path, sure)
    elif not os.access(path, os.X_OK):
        yield Slip(
            f"command: {program!r} may not be executed (its x bit is not set)",
            f"write {command.instead(by or 'bash', program, *rest)}"
            + f"; or allow it: chmod +x {shlex.quote(program)}" * first.startswith(b"#!"),
            sure,
        )
    elif first.startswith(b"#!") and first.endswith(b"\r"):
        said = f"command: {program!r} has line ends of Windows (CRLF), and no program of its first line's name is there"
        yield Slip(said, f"take them out: sed -i 's/\\r$//' {shlex.quote(program)}", sure)
    elif first.startswith(b"#!") and (lost := missing_interpreter(first, command.environ.get("PATH"))):
        said = f"command: {program!r} begins with {first.decode(errors='replace')}, and {lost} is not here"
        hint = "begin it with the interpreter's path, such as #!/bin/bash or #!/usr/bin/env python3"
        of_system = first[2:].strip().startswith((b"/bin/", b"/usr/bin/")) and b"env " not in first
        yield Slip(said, hint, sure and of_system)
    elif by == "python" and not first.startswith(b"#!"):
        said = f"command: {program!r} has no first line #!, so a shell would read it, not Python"
        yield Slip(said, f"write {command.instead('python', program, *rest)}", sure)


def _no_program(command: Command, program: str, path: Path, sure: bool) -> Slip:
    """Return the slip of a folder or a job file where a program is expected."""
    if not path.is_dir():
        said = f"command: {program!r} is a job file, and what comes after -- is a command"
        return Slip(said, f"give it before: slurmgpu submit {shlex.quote(program)}", sure)
    said = f"command: {program!r} is a folder, where a program is expected"
    script = min(path.glob("*.py"), default=None)
    if script is None:
        return Slip(said, "name a script, and the program that reads it: -- python FILE.py", sure)
    inside = str(PurePosixPath(program) / script.name)
    return Slip(said, f"give a file in it: {command.instead('python', inside)}", sure)


def missing_interpreter(first: bytes, path: str | None) -> str | None:
    """Return the program of a first line #! that this machine lacks; None where it is here."""
    words = first[2:].decode(errors="replace").split() or [""]
    if PurePosixPath(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        return None if not named or shutil.which(named, path=path) else named
    return None if is_there(Path(words[0])) else words[0]


def _program_by_name(command: Command, program: str) -> Iterator[Slip]:
    """Yield the slip of a name without a path; the job's PATH may have more than this machine's."""
    if program in _ALWAYS_THERE or shutil.which(program, path=command.environ.get("PATH")):
        return
    rest, environment = command.words[1:], command.plan.environment
    # The job may find programs that this machine's PATH does not show.
    brought = bool(
        command.brought
        or environment.container
        or environment.modules
        or environment.python.activated
        or command.plan.login_shell
        or {PurePosixPath(word).name for word in command.before} & _WITH_AN_ENVIRONMENT
    )
    sure = not (command.blind or brought)
    if command.folder is not None and is_there(path := command.folder / program):
        if brought and not path.suffix:
            return  # a clone's folder is often named after the program that it is the source of
        if path.is_dir() or path.suffix in {".yaml", ".yml"}:
            yield _no_program(command, program, path, sure)
        elif is_batch_script(path):
            own = command.in_file or command.in_script
            place = "a command belongs here" if own else "what comes after -- is a command"
            said = f"command: {program!r} is a batch script, and {place}"
            yield Slip(said, f"submit it itself: slurmgpu submit {shlex.quote(program)}", sure)
        else:
            by = read_by(path) or ("bash" if not os.access(path, os.X_OK) else None)
            words = (by, program, *rest) if by else (f"./{program}", *rest)
            said = (
                f"command: {program!r} is a file of the work folder, and no program of that name is on PATH"
            )
            yield Slip(said, f"write {command.instead(*words)}", sure)
        return
    known = next((name for name in _KNOWN if one_slip_apart(program, name)), None)
    words_here = (*_KNOWN, *(_OF_SHELL if command.in_script else ()))
    likely = None if known or brought else nearest(program.strip(":"), words_here, 0.75)
    known = known or likely  # it is no program, and one of these is near
    if known and program not in _KNOWN and not re.fullmatch(r"python[\d.]+", program):
        yield Slip(
            f"command: there is no program {program!r}",
            f"did you mean {known}? {command.instead(known, *rest)}",
            command.plan.environment.container is None
            and (not brought or len(program) < len(known) or sorted(program) == sorted(known))  # not bpython
            and (likely is None or command.in_script),
        )
        return
    by = read_by(Path(program))
    near = near_file(command.folder / program) if command.folder is not None else None
    if near and Path(near).suffix and one_slip_apart(program, near):
        words = (by, near, *rest) if by else (near, *rest)
        said = f"command: {program!r} is neither a file of the work folder nor a program on PATH"
        yield Slip(said, f"did you mean {near}? {command.instead(*words)}", sure)
        return
    if by and command.folder is not None:  # a module may bring it
        yield missing_script(command, command.folder, program, (by,), rest)._replace(sure=False)
        return
    if brought:
        return
    if command.in_script and rest[:1] and rest[0].startswith("=") and re.fullmatch(r"[A-Za-z_]\w*", program):
        value = rest[0][1:] or shlex.join(rest[1:2])
        said = f"command: {program!r} is run as a program here, for the shell allows no blanks around ="
        yield Slip(said, f"write {program}={value}")
        return
    has3 = program == "python" and shutil.which("python3", path=command.environ.get("PATH"))
    yield Slip(
        f"command: {program!r} is not on PATH here" + (", and python3 is" if has3 else ""),
        "it is found only if a module or an environment brings it: "
        + ("load it in the script" if command.in_script else "name them under environment:")
        + (f", or {command.instead('python3', *rest)}" if has3 else ""),
        sure=False,
    )
