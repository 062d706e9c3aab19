"""Options of a job that Slurm takes, and with which the job cannot work: a deadline, a signal, an input, a profiler.

Slips with templates of one's own that Jinja does not see: one that nothing uses, a script that bash cannot read.

Data that is to be copied to the nodes, and is not there.

Secrets where others can read them: among the variables, or the words of a command.

Everything that is wrong with a command, the surest first.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path, PurePosixPath

from slurmgpu.errors import PlanError, nearest
from slurmgpu.files.data import SHIPPED, Templates, read_templates
from slurmgpu.files.trust import read_regular
from slurmgpu.launchers import launcher
from slurmgpu.lines.command import runner_length
from slurmgpu.models.base import LAUNCHERS
from slurmgpu.models.plan import Plan
from slurmgpu.models.units import Duration
from slurmgpu.runs.command_checks.arguments import argument_slip
from slurmgpu.runs.command_checks.command import Command, Slip, is_there, meant, near_file, seen_from_here
from slurmgpu.runs.command_checks.environment import active_elsewhere, missing_environment, unset_here
from slurmgpu.runs.command_checks.launchers import launcher_slips
from slurmgpu.runs.command_checks.program import missing_interpreter, program_slips
from slurmgpu.runs.command_checks.script import script_slips, shell_file, shell_text
from slurmgpu.runs.command_checks.shell import syntax_error
from slurmgpu.runs.command_checks.usage import usage_slips
from slurmgpu.runs.command_checks.words import shell_word_slip, typographic_slip
from slurmgpu.script.known_names import is_known_key, looks_random, names_secret, surely_names_secret
from slurmgpu.slurm import Runner, call

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
            yield Slip(
                f"deadline: {plan.option('deadline')} {said}: Slurm ends a job that cannot be done by its deadline unrun",
                "give a later one" + ("" if left <= 0 else ", or a shorter --time"),
            )
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
            yield Slip(
                f"input: {name!r} is not there (looked for {path}), and Slurm ends a job whose input it cannot open",
                f"{meant(name, path)}give a file, against the work folder",
                not command.blind and seen_from_here(path, command.folder),
            )
    profiler = plan.profile.with_ if plan.profile is not None else None
    brought = plan.environment.modules or plan.environment.container or plan.environment.python.activated
    if profiler and not brought and not shutil.which(profiler, path=command.environ.get("PATH")):
        yield Slip(
            f"profile: {profiler} is not on PATH here, and the job's script looks for it there",
            "name the module that brings it: environment.modules",
            sure=False,
        )


def unused_templates(templates: Templates) -> Iterator[Slip]:
    """Templates of the user's own whose names are almost those of shipped ones: nothing includes them."""
    shipped = read_templates()
    own = [name for name in templates if name not in shipped]
    for name in own:
        beside = (one for one in shipped if Path(one).name == Path(name).name)
        near = next(beside, None) or nearest(name, shipped, cutoff=0.85)
        if near is None or name in {launcher(one).template for one in LAUNCHERS.names()}:
            continue
        replaced = [one for one in templates if one != name and _is_own(templates, one)]
        if not any(name in templates[one] for one in replaced):
            yield Slip(
                f"template {templates.place(name)}: nothing uses a template of that name",
                f"to replace the shipped one, call it {near}; slurmgpu template list shows which file is used for what",
                sure=False,
            )


def _is_own(templates: Templates, name: str) -> bool:
    found = templates.find(name)
    return found is not None and found[0].layer != SHIPPED


def check_shell(script: str, templates: Templates, run: Runner = call) -> None:
    """PlanError for a script that bash cannot read, where the user's own templates had a part in it."""
    own = [templates.place(name) for name in templates if _is_own(templates, name)]
    if not own or not re.match(r"#!\s*(?:/usr)?/bin/(?:env )?bash", script):
        return
    if found := syntax_error(script, run):
        raise PlanError(
            f"the script is not one that bash can read: line {found[0]}: {found[1]}",
            hint=f"`slurmgpu render` shows its lines; your own templates are {', '.join(own)}",
        )


def missing_data(command: Command, folder: Path) -> Iterator[Slip]:
    """What ``stage.in`` names and this machine does not have."""
    stage = command.plan.stage
    sees = (
        not command.blind or command.plan.environment.container is not None
    )  # a container changes nothing here
    for one in stage.in_ if stage else ():
        path = folder / one.from_
        if re.search(r"[$~]", one.from_) or is_there(path):
            continue
        near = near_file(path) or near_file(path, folders=True)
        guess = f"did you mean {str(PurePosixPath(one.from_).parent / near)!r}? " if near else ""
        yield Slip(
            f"stage.in: {one.from_!r} is not there (looked for {path})",
            f"{guess}give a file or folder, against the work folder",
            sees and seen_from_here(path, folder),
        )


_SHOWN = "stands in the script, and `ps` shows it to all users of the node"
_NO_SECRET = {"true", "false", "yes", "no", "none", "null", "0", "1"}
_SAFE = "name it under secrets: [NAME], and let the program read it from the environment"


def secrets_in_sight(words: tuple[str, ...], plan: Plan) -> Iterator[Slip]:
    """What looks like a secret, with the way that keeps it one; guesses, all of them.

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
    for option, value in _options(words):
        if _is_secret(option, value):
            yield Slip(f"command: the value of {option} {_SHOWN}", _SAFE, sure=False)


def _is_secret(name: str, value: str) -> bool:
    if not value or "$" in value or is_known_key(value) or value.startswith(("<", "[")):
        return False
    if value.lower() in _NO_SECRET or (name[:1].isupper() and looks_random(value) and names_secret(name)):
        return False
    bare = name.lstrip("-") == "token" and len(value) >= 8
    return bare or surely_names_secret(name) or (names_secret(name) and looks_random(value))


def _options(words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for word, following in pairwise((*words, "")):
        option, equals, value = word.partition("=")
        if equals:
            yield option, value
        elif word.startswith("-") and not following.startswith("-"):
            yield word, following


def missing_folder(folder: Path) -> Slip | None:
    """A work folder that is not there: Slurm then runs the job in /tmp (seen on 22.05)."""
    if os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir() raises for a name too long for the disk
        return None
    if is_there(folder):
        return Slip(
            f"work_dir: {str(folder)!r} is a file, where a folder is expected",
            f"give its folder: -D {shlex.quote(str(folder.parent))}",
            forceable=False,
        )
    near = near_file(folder, folders=True)
    guess = f"did you mean {str(folder.parent / near)!r}? make the folder" if near else "make the folder"
    return Slip(
        f"work_dir: {str(folder)!r} is not there: Slurm would run the job in /tmp instead",
        f"{guess}, or give another by -D/--chdir or work_dir",
        forceable=False,
    )


def each_slip(
    command: Command, *, batch: tuple[str, str] | None = None, away: bool = False
) -> list[tuple[str, Slip]]:
    """What is wrong with a job's command, or with that of each of its steps: what the message begins with, and the slip.

    ``batch`` is the name and text of a batch script that was taken as the job. ``away``: on no machine of the cluster,
    where the words alone can be judged.
    """
    plan = command.plan
    judged = [
        (f"steps.{step.name}: ", command._replace(words=step.command, plan=plan.of_step(step)))
        for step in plan.steps
    ] or [("", command)]
    found = [(of, slip) for of, one in judged for slip in (_of_words if away else slips)(one)]
    if not (away or command.words or command.plan.steps):
        found += (("", slip) for slip in _of_own_script(command, batch))
    return sorted(dict.fromkeys(found), key=lambda one: not one[1].sure)


def _of_words(command: Command) -> list[Slip]:
    found = list(secrets_in_sight(command.words, command.plan))
    shell = shell_word_slip(command.words, command.plan, command.in_file, None) if command.words else None
    return [*([] if shell is None else [Slip(*shell)]), *found]


def slips(command: Command) -> list[Slip]:
    """What is wrong with a command, the surest first; at most one for the program, its script and its words each."""
    folder = command.folder
    if folder is not None and (missing := missing_folder(folder)):
        return [missing._replace(sure=not command.blind)]
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
        absent = [] if folder is None else _missing(command, folder)
        return [*absent, *active_elsewhere(command.plan, command.environ), *in_sight]
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
            found += [*([] if refused is None else [refused]), *_missing(command, folder)]
    found += [*active_elsewhere(command.plan, command.environ), *in_sight]
    return sorted(found, key=lambda slip: not slip.sure)


def _missing(command: Command, folder: Path) -> list[Slip]:
    return [*missing_environment(command, folder), *missing_data(command, folder)]


_OWN_FOLDER = r"^[^#]*\b(?:dirname|realpath|readlink|cd)\b.*\$(?:0\b|\{?BASH_SOURCE)"
"""Where a script looks for the folder that it lies in."""


def _of_own_script(command: Command, batch: tuple[str, str] | None) -> Iterator[Slip]:
    """What is wrong with a batch script's own lines, or with those under ``script:``."""
    plan, folder = command.plan, command.folder
    in_image = {"container", "container-image"} & {option.name for option in plan.options}
    if plan.script is None or folder is None or in_image:
        return
    from slurmgpu.runs.command_checks.python import missing_imports, unreadable_python
    from slurmgpu.runs.command_checks.python_source import Source, text_slips
    from slurmgpu.runs.command_checks.shell import body_slips
    from slurmgpu.script.batch_script import parse_batch_script  # a command does without them

    if (chdir := plan.option("chdir")) is not None:
        folder = folder / chdir
        if re.search(r"[$%~]", chdir):
            return
        if (gone := missing_folder(folder)) is not None:
            yield gone._replace(sure=not command.blind and seen_from_here(folder, command.folder or folder))
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
        said = (
            f"{name}: its lines of {mark[0].split()[0]} are another scheduler's, and Slurm reads none of them"
        )
        yield Slip(said, "write them as #SBATCH lines: #SBATCH --gpus=1, #SBATCH --time=1:00:00", sure=False)
    lost = missing_interpreter((read.shebang or "#!").encode(), command.environ.get("PATH"))
    if re.match(r"#!\s*\S*/env\s+[^-\s]\S*\s+\S", read.shebang or ""):
        said = f"{name}: it begins with {read.shebang}, and env takes all behind it for one program's name"
        yield Slip(said, "begin it with #!/bin/bash -l, or #!/usr/bin/env -S bash -l")
    elif re.match(r"#!\s*/\S*sh\s+-\S+\s+\S", read.shebang or ""):
        said = f"{name}: it begins with {read.shebang}, and Linux hands all behind the shell over as one word"
        yield Slip(said, "write one option there, such as #!/bin/bash -l, and the others by set: set -e")
    if lost is not None and (read.shebang or "")[2:].strip().startswith(("/bin/", "/usr/bin/")):
        said = f"{name}: it begins with {read.shebang}, and {lost} is not here"
        yield Slip(
            said, "begin it with #!/bin/bash", not command.blind and "env " not in (read.shebang or "")
        )
    elif read.is_shell and "\r\n" not in text:
        for number, line_text in enumerate(text.splitlines() if batch else (), 1):
            if re.search(_OWN_FOLDER, line_text) and "SLURM_SUBMIT_DIR" not in line_text:
                said = f"{name}:{number}: Slurm runs a copy of the script in a folder of its own, and not where it lies"
                yield Slip(said, "write $SLURM_SUBMIT_DIR, the folder in which it is submitted", sure=False)
        for line, slip in body_slips(command, text, is_batch=batch is not None, has_arguments=batch is None):
            yield _at(slip, f"{name}:{line}" if batch else f"script: line {line - 1}")
    elif read.interpreter.startswith("python"):
        path = (read.shebang or "#!")[2:].split()[0]
        reader = command._replace(words=(read.interpreter if path.endswith("/env") else path, "-c", ""))
        if (unread := unreadable_python(reader, text, read.shebang or "")) is not None:
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
    """What Python or a shell cannot read in the file, or the text, that the command hands to it."""
    from slurmgpu.runs.command_checks.python_source import code_slips

    yield from code_slips(command, folder)
    text = shell_text(command.words)
    if text is not None:
        from slurmgpu.runs.command_checks.shell import body_slips

        yield from _bash_in_sh(command, text, "-c")
        if re.search(r"[^&]&\s*(?:disown\b.*)?\Z", text) and not re.search(r"\bwait\b", text):
            said = "command: what ends with & goes on in the background, and Slurm ends it with the shell, at once"
            yield Slip(said, "leave & out: a job runs in the background by itself", sure=False)
        inner = command._replace(in_script=True, brought=command.plan.login_shell or command.blind)
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
        yield Slip(
            f"command: {name} has line ends of Windows (CRLF), and the shell takes \\r for a part of each line's last word",
            f"take them out: sed -i 's/\\r$//' {shlex.quote(name)}",
            not command.blind,
        )
        return
    text = data.decode("utf-8", errors="replace")
    yield from _bash_in_sh(command, text, name)
    from slurmgpu.runs.command_checks.shell import body_slips

    inner = command._replace(in_script=True, brought=command.plan.login_shell or command.blind)
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
