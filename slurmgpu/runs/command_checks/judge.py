"""Everything that is wrong with a job's options, data, secrets, templates and command, the surest first."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from slurmgpu.errors import PlanError, nearest
from slurmgpu.files.data import SHIPPED, Templates, read_templates
from slurmgpu.files.trust import read_regular
from slurmgpu.launchers import launcher
from slurmgpu.lines.command import runner_length
from slurmgpu.models.base import LAUNCHERS
from slurmgpu.models.plan import Plan
from slurmgpu.models.units import Duration
from slurmgpu.runs.command_checks.arguments import argument_slip
from slurmgpu.runs.command_checks.command import (
    Command,
    Slip,
    is_there,
    meant,
    near_file,
    run_here,
    seen_from_here,
)
from slurmgpu.runs.command_checks.environment import active_elsewhere, missing_environment, unset_here
from slurmgpu.runs.command_checks.launchers import launcher_slips
from slurmgpu.runs.command_checks.program import missing_interpreter, program_slips
from slurmgpu.runs.command_checks.python import missing_imports, unreadable_python
from slurmgpu.runs.command_checks.python_source import Source, code_slips, text_slips
from slurmgpu.runs.command_checks.script import script_slips, shell_file, shell_text
from slurmgpu.runs.command_checks.shell import body_slips, syntax_error
from slurmgpu.runs.command_checks.usage import usage_slips
from slurmgpu.runs.command_checks.words import shell_word_slip, typographic_slip
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.known_names import is_known_key, looks_random, names_secret, surely_names_secret

if TYPE_CHECKING:
    from slurmgpu.slurm import Runner

__all__ = [
    "check_shell",
    "each_slip",
    "missing_data",
    "missing_folder",
    "option_slips",
    "secrets_in_sight",
    "slips",
    "unused_templates",
]


_UNITS = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def _moment(text: str, now: datetime) -> datetime | None:
    """Return the time of an option such as ``--deadline`` in the local zone; None for the rarer spellings.

    Read are ``now+2hours``, ``HH:MM[:SS]`` (today, or tomorrow where it has passed) and ``YYYY-MM-DD[THH:MM[:SS]]``
    (sbatch(1), --begin).
    """
    if match := re.fullmatch(r"now(?:\+(\d+)(second|minute|hour|day|week|)s?)?", text):
        return now + timedelta(seconds=int(match[1] or 0) * _UNITS[match[2] or ""])
    if match := re.fullmatch(r"(\d{1,2}):(\d\d)(?::(\d\d))?", text):
        hour, minute, second = (int(part or 0) for part in match.groups())
        if hour > 23 or minute > 59 or second > 59:
            return None
        then = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return then if then > now else then + timedelta(days=1)
    try:
        return datetime.fromisoformat(text) if re.match(r"\d{4}-\d\d-\d\d(?:T|\Z)", text) else None
    except ValueError:
        return None


def option_slips(command: Command, now: datetime | None = None) -> Iterator[Slip]:
    """Yield what cannot work of a job's options here and now."""
    plan = command.plan
    now = now or datetime.now()  # as sbatch reads times: in the zone of this machine
    limit = plan.time.seconds if plan.time is not None else None
    end = _moment(plan.option("deadline") or "", now)
    if end is not None:
        shortest = Duration.parse(plan.option("time-min")).seconds if plan.option("time-min") else limit
        left = int((end - now).total_seconds())
        if left < (shortest or 1):
            said = (
                "is past"
                if left <= 0
                else f"leaves {Duration(left)}, and the job's time limit is {plan.time}"
            )
            said = f"deadline: {plan.option('deadline')} {said}: Slurm ends a job that cannot be done by its deadline unrun"
            yield Slip(said, "give a later one" + ("" if left <= 0 else ", or a shorter --time"))
    signal = re.fullmatch(r"(?:[BR]+:)?(\w+)@(\d+)", plan.option("signal") or "")
    if signal and limit is not None and int(signal[2]) >= limit:
        yield Slip(
            f"signal: {signal[1]} is to come {signal[2]} s before the end, and the whole time limit is {limit} s: it comes "
            "when the job has just begun",
            "the number behind @ counts seconds: 120 is two minutes",
            sure=False,
        )
    log = plan.option("output") or ""
    is_source = re.search(r"\.(?:py|sh|slurm|sbatch|ya?ml|ipynb)\Z", log)
    if is_source and command.folder is not None and is_there(command.folder / log):
        yield Slip(f"output: the log would overwrite {log}", "name another file: -o logs/%j.out")
    name = plan.option("input") or ""
    if name and name.lower() != "none" and command.folder is not None and not re.search(r"[%$~]", name):
        path = command.folder / name
        if not is_there(path):
            said = f"input: {name!r} is not there (looked for {path}), and Slurm ends a job whose input it cannot open"
            hint = f"{meant(name, path)}give a file, against the work folder"
            yield Slip(said, hint, command.lacks(path))
    profiler = plan.profile.with_ if plan.profile is not None else None
    brought = plan.environment.modules or plan.environment.container or plan.environment.python.activated
    if profiler and not brought and not shutil.which(profiler, path=command.environ.get("PATH")):
        said = f"profile: {profiler} is not on PATH here, and the job's script looks for it there"
        yield Slip(said, "name the module that brings it: environment.modules", sure=False)


def unused_templates(templates: Templates) -> Iterator[Slip]:
    """Yield templates of the user's own whose names are almost those of shipped ones: nothing includes them."""
    shipped = read_templates()
    own = [name for name in templates if name not in shipped]
    for name in own:
        beside = (one for one in shipped if Path(one).name == Path(name).name)
        near = next(beside, None) or nearest(name, shipped, cutoff=0.85)
        if near is None or name in {launcher(one).template for one in LAUNCHERS.names()}:
            continue
        replaced = [one for one in templates if one != name and _is_own(templates, one)]
        if not any(name in templates[one] for one in replaced):
            said = f"template {templates.place(name)}: nothing uses a template of that name"
            hint = f"to replace the shipped one, call it {near}; slurmgpu template list shows which file is used for what"
            yield Slip(said, hint, sure=False)


def _is_own(templates: Templates, name: str) -> bool:
    found = templates.find(name)
    return found is not None and found[0].layer != SHIPPED


def check_shell(script: str, templates: Templates, run: Runner = run_here) -> None:
    """Raise PlanError for a script that bash cannot read, where the user's own templates had a part in it."""
    own = [templates.place(name) for name in templates if _is_own(templates, name)]
    if not own or not re.match(r"#!\s*(?:/usr)?/bin/(?:env )?bash", script):
        return
    if found := syntax_error(script, run):
        raise PlanError(
            f"the script is not one that bash can read: line {found[0]}: {found[1]}",
            hint=f"`slurmgpu render` shows its lines; your own templates are {', '.join(own)}",
        )


def missing_data(command: Command, folder: Path) -> Iterator[Slip]:
    """Yield what ``stage.in`` names and this machine does not have."""
    stage = command.plan.stage
    # A container changes nothing here.
    sees = not command.blind or command.plan.environment.container is not None
    for one in stage.in_ if stage else ():
        path = folder / one.from_
        if re.search(r"[$~]", one.from_) or is_there(path):
            continue
        near = near_file(path) or near_file(path, folders=True)
        guess = f"did you mean {str(PurePosixPath(one.from_).parent / near)!r}? " if near else ""
        said = f"stage.in: {one.from_!r} is not there (looked for {path})"
        hint = f"{guess}give a file or folder, against the work folder"
        yield Slip(said, hint, sees and seen_from_here(path, folder))


def secrets_in_sight(words: tuple[str, ...], plan: Plan) -> Iterator[Slip]:
    """Yield what looks like a secret, with the way that keeps it one; guesses, all of them.

    What stands in the script as text that the rule `secret-in-script` finds is left to it.
    """
    for name, value in plan.variables.items():
        if _is_secret(name, value):
            yield Slip(
                f"variables.{name}: its value stands in the script and in the run directory, which others may read",
                f"name it under secrets: [{name}]; it then comes from your environment, or from "
                f"~/.config/slurmgpu/secrets/{name} (chmod 600)",
                sure=False,
            )
    for word, following in pairwise((*words, "")):
        option, equals, value = word.partition("=")
        if not equals:
            value = following if word.startswith("-") and not following.startswith("-") else ""
        if _is_secret(option, value):
            said = f"command: the value of {option} stands in the script, and `ps` shows it to all users of the node"
            hint = "name it under secrets: [NAME], and let the program read it from the environment"
            yield Slip(said, hint, sure=False)


def _is_secret(name: str, value: str) -> bool:
    if not value or "$" in value or is_known_key(value) or value.startswith(("<", "[")):
        return False
    if value.lower() in {"true", "false", "yes", "no", "none", "null", "0", "1"} or (
        name[:1].isupper() and looks_random(value) and names_secret(name)
    ):
        return False
    bare = name.lstrip("-") == "token" and len(value) >= 8
    return bare or surely_names_secret(name) or (names_secret(name) and looks_random(value))


def missing_folder(folder: Path) -> Slip | None:
    """Return the slip of a work folder that is not there: Slurm then runs the job in /tmp (seen on 22.05)."""
    if os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir() raises for a name too long for the disk
        return None
    if is_there(folder):
        said = f"work_dir: {str(folder)!r} is a file, where a folder is expected"
        return Slip(said, f"give its folder: -D {shlex.quote(str(folder.parent))}", forceable=False)
    near = near_file(folder, folders=True)
    guess = f"did you mean {str(folder.parent / near)!r}? make the folder" if near else "make the folder"
    said = f"work_dir: {str(folder)!r} is not there: Slurm would run the job in /tmp instead"
    return Slip(said, f"{guess}, or give another by -D/--chdir or work_dir", forceable=False)


def each_slip(
    command: Command, *, batch: tuple[str, str] | None = None, away: bool = False
) -> list[tuple[str, Slip]]:
    """Return the slips of a job's command, or of each of its steps, with what their messages begin with.

    ``batch`` is the name and text of a batch script that was taken as the job. ``away``: on no machine of the cluster,
    where the words alone can be judged.
    """
    plan = command.plan
    judged = [
        (f"steps.{step.name}: ", command._replace(words=step.command, plan=plan.of_step(step)))
        for step in plan.steps
    ] or [("", command)]
    found: list[tuple[str, Slip]] = []
    for of, one in judged:
        if not away:
            found += ((of, slip) for slip in slips(one))
            continue
        shell = shell_word_slip(one.words, one.plan, one.in_file, None) if one.words else None
        found += [] if shell is None else [(of, Slip(*shell))]
        found += ((of, slip) for slip in secrets_in_sight(one.words, one.plan))
    if not (away or command.words or command.plan.steps):
        found += (("", slip) for slip in _of_own_script(command, batch))
    return sorted(dict.fromkeys(found), key=lambda one: not one[1].sure)


def slips(command: Command) -> list[Slip]:
    """Return the slips of a command, the surest first; at most one for the program, its script and its words each."""
    folder = command.folder
    if folder is not None and (gone := missing_folder(folder)):
        return [gone._replace(sure=not command.blind)]
    missing: Iterable[Slip] = ()
    if folder is not None:
        missing = chain(missing_environment(command, folder), missing_data(command, folder))
    in_sight = [
        *secrets_in_sight(command.words, command.plan),
        *unset_here(command.plan, command.environ),
        *option_slips(command),
    ]
    if command.plan.name.isdecimal():
        name = command.plan.name
        said = f"job name {name}: `slurmgpu status {name}` and the like take it for a job id"
        in_sight.append(Slip(said, "begin the name with a letter", sure=False))
    if not command.words:
        return [*missing, *active_elsewhere(command.plan, command.environ), *in_sight]
    typed = typographic_slip(command)
    if typed is not None and typed.sure:
        return [typed, *in_sight]
    if command.in_file and any(word[:1] == " " for word in command.words):
        said = (
            "command: a backslash at a line's end is a shell's: YAML joins the lines by itself, and keeps it"
        )
        words = [part for word in command.words for part in word.split()]
        return [Slip(said, f"take the backslashes out: {command.instead(*words)}"), *in_sight]
    found = list(program_slips(command))
    if folder is not None:
        misused = list(launcher_slips(command, folder)) if not any(slip.sure for slip in found) else []
        # Behind an option that a program does not have, its script is not what it seems.
        found += misused if any(slip.sure for slip in misused) else [*script_slips(command, folder), *misused]
    shell = shell_word_slip(command.words, command.plan, command.in_file, folder)
    if shell is not None:
        found.append(Slip(*shell))
    found += [typed] if typed is not None else []
    if folder is not None:
        if not any(slip.sure for slip in found):
            found += [*usage_slips(command, folder), *_of_code(command, folder)]
        if not any(slip.sure for slip in found):
            refused = argument_slip(command, folder)
            found += [*([] if refused is None else [refused]), *missing]
    found += [*active_elsewhere(command.plan, command.environ), *in_sight]
    return sorted(found, key=lambda slip: not slip.sure)


def _of_own_script(command: Command, batch: tuple[str, str] | None) -> Iterator[Slip]:
    """Yield what is wrong with a batch script's own lines, or with those under ``script:``."""
    plan, folder = command.plan, command.folder
    in_image = {"container", "container-image"} & {option.name for option in plan.options}
    if plan.script is None or folder is None or in_image:
        return
    if (chdir := plan.option("chdir")) is not None:
        folder = folder / chdir
        if re.search(r"[$%~]", chdir):
            return
        if (gone := missing_folder(folder)) is not None:
            yield gone._replace(sure=command.lacks(folder))
            return
    name, text = batch or ("script", f"#!{plan.shebang or '/bin/bash'}\n{plan.script}")
    read = parse_batch_script(text)
    command = command._replace(
        folder=folder,
        blind=command.blind or (plan.option("export") or "ALL").split(",")[0] != "ALL",
        brought=re.search(r"\s-\w*l", read.shebang or "") is not None,
        in_script=True,
    )
    mark = re.search(r"(?m)^#(?:\$ -\w+|OAR\b|FLUX:|PJM\b|COBALT\b)", text) if batch else None
    if mark:
        others = mark[0].split()[0]
        said = f"{name}: its lines of {others} are another scheduler's, and Slurm reads none of them"
        yield Slip(said, "write them as #SBATCH lines: #SBATCH --gpus=1, #SBATCH --time=1:00:00", sure=False)
    shebang = read.shebang or ""
    lost = missing_interpreter((shebang or "#!").encode(), command.environ.get("PATH"))
    if re.match(r"#!\s*\S*/env\s+[^-\s]\S*\s+\S", shebang):
        said = f"{name}: it begins with {shebang}, and env takes all behind it for one program's name"
        yield Slip(said, "begin it with #!/bin/bash -l, or #!/usr/bin/env -S bash -l")
    elif re.match(r"#!\s*/\S*sh\s+-\S+\s+\S", shebang):
        said = f"{name}: it begins with {shebang}, and Linux hands all behind the shell over as one word"
        yield Slip(said, "write one option there, such as #!/bin/bash -l, and the others by set: set -e")
    if lost is not None and shebang[2:].strip().startswith(("/bin/", "/usr/bin/")):
        said = f"{name}: it begins with {shebang}, and {lost} is not here"
        yield Slip(said, "begin it with #!/bin/bash", not command.blind and "env " not in shebang)
    elif read.is_shell and "\r\n" not in text:
        for number, line_text in enumerate(text.splitlines() if batch else (), 1):
            own_folder = r"^[^#]*\b(?:dirname|realpath|readlink|cd)\b.*\$(?:0\b|\{?BASH_SOURCE)"
            if re.search(own_folder, line_text) and "SLURM_SUBMIT_DIR" not in line_text:
                said = f"{name}:{number}: Slurm runs a copy of the script in a folder of its own, and not where it lies"
                yield Slip(said, "write $SLURM_SUBMIT_DIR, the folder in which it is submitted", sure=False)
        for line, slip in body_slips(command, text, is_batch=batch is not None, has_arguments=batch is None):
            yield _at(slip, f"{name}:{line}" if batch else f"script: line {line - 1}")
    elif read.interpreter.startswith("python"):
        path = shebang[2:].split()[0]
        reader = command._replace(words=(read.interpreter if path.endswith("/env") else path, "-c", ""))
        if (unread := unreadable_python(reader, text, shebang)) is not None:
            hint = "begin it with #!/bin/bash if its lines are a shell's; else mend this line"
            yield _at(unread._replace(hint=hint), name)
            return
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for slip in text_slips(reader, Source(text.encode()), name):
                yield slip._replace(message=slip.message.removeprefix("command: "))
        absent = missing_imports(reader._replace(words=(*reader.words[:2], text), brought=False))
        if absent is not None:
            yield absent._replace(message=absent.message.replace("command: -c imports", f"{name} imports"))


def _of_code(command: Command, folder: Path) -> Iterator[Slip]:
    """Yield what Python or a shell cannot read in the file, or the text, that the command hands to it."""
    yield from code_slips(command, folder)
    inner = command._replace(in_script=True, brought=command.plan.login_shell or command.blind)
    text = shell_text(command.words)
    if text is not None:
        yield from _bash_in_sh(command, text, "-c")
        if re.search(r"[^&]&\s*(?:disown\b.*)?\Z", text) and not re.search(r"\bwait\b", text):
            said = "command: what ends with & goes on in the background, and Slurm ends it with the shell, at once"
            yield Slip(said, "leave & out: a job runs in the background by itself", sure=False)
        for _, slip in body_slips(inner, text):
            yield _at(slip, "bash -c")
        return
    name = shell_file(command.words, folder)
    if name is None:
        return
    try:
        data = read_regular(folder / name)[: 1 << 20]
    except OSError:
        return
    if b"\r\n" in data:
        said = f"command: {name} has line ends of Windows (CRLF), and the shell takes \\r for a part of each line's last word"
        yield Slip(said, f"take them out: sed -i 's/\\r$//' {shlex.quote(name)}", not command.blind)
        return
    text = data.decode("utf-8", errors="replace")
    yield from _bash_in_sh(command, text, name)
    for line, slip in body_slips(inner, text, has_arguments=command.words[-1] != name):
        yield _at(slip, f"{name}:{line}")


def _bash_in_sh(command: Command, text: str, where: str) -> Iterator[Slip]:
    at = runner_length(command.words)
    bash_only = re.search(r"(?m)^[^#\n]*?(\[\[ |\bsource |=\()", text)
    if bash_only is None or PurePosixPath(command.words[at]).name != "sh":
        return
    if Path("/bin/sh").resolve().name != "bash":
        said = f"command: sh is no bash here, and cannot read {bash_only[1].strip()!r} in {where}"
        hint = f"write {command.instead(*command.words[:at], 'bash', *command.words[at + 1 :])}"
        yield Slip(said, hint, not command.blind)


def _at(slip: Slip, where: str) -> Slip:
    return slip._replace(message=f"{where}: {slip.message.removeprefix('command: ')}")
