"""Everything that is wrong with a command, the surest first."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from slurmgpu.submission.slips.command import Command, Slip
from slurmgpu.submission.slips.environment import active_elsewhere, missing_environment, unset_here
from slurmgpu.submission.slips.nearby import near_file
from slurmgpu.submission.slips.program import program_slips
from slurmgpu.submission.slips.script import script_slips
from slurmgpu.submission.slips.secrets import secrets_in_sight
from slurmgpu.submission.slips.stage import missing_data
from slurmgpu.submission.slips.words import shell_word_slip

__all__ = ["each_slip", "missing_folder", "slips"]


def missing_folder(folder: Path) -> Slip | None:
    """A work folder that is not there: Slurm then runs the job in /tmp (seen on 22.05)."""
    if os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir() raises for a name too long for the disk
        return None
    if os.path.exists(folder):  # noqa: PTH110
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


def each_slip(command: Command, *, away: bool = False) -> list[tuple[str, Slip]]:
    """What is wrong with a job's command, or with that of each of its steps: what the message begins with, and the slip.

    ``away``: on no machine of the cluster, where the words alone can be judged.
    """
    plan = command.plan
    judged = [
        (f"steps.{step.name}: ", command._replace(words=step.command, plan=plan.of_step(step)))
        for step in plan.steps
    ] or [("", command)]
    return list(
        dict.fromkeys((of, slip) for of, one in judged for slip in (_of_words if away else slips)(one))
    )


def _of_words(command: Command) -> list[Slip]:
    found = list(secrets_in_sight(command.words, command.plan))
    shell = shell_word_slip(command.words, command.plan, command.in_file, None) if command.words else None
    return [*([] if shell is None else [Slip(*shell)]), *found]


def slips(command: Command) -> list[Slip]:
    """What is wrong with a command, the surest first; at most one for the program, its script and its words each."""
    folder = command.folder
    if folder is not None and (missing := missing_folder(folder)):
        return [missing._replace(sure=not command.blind)]
    in_sight = [*secrets_in_sight(command.words, command.plan), *unset_here(command.plan, command.environ)]
    if command.plan.name.isdecimal():
        name = command.plan.name
        said = f"job name {name}: `slurmgpu status {name}` and the like take it for a job id"
        in_sight.append(Slip(said, "begin the name with a letter", sure=False))
    if not command.words:
        absent = [] if folder is None else _missing(command, folder)
        return [*absent, *active_elsewhere(command.plan, command.environ), *in_sight]
    found = [*program_slips(command), *([] if folder is None else script_slips(command, folder))]
    shell = shell_word_slip(command.words, command.plan, command.in_file, folder)
    if shell is not None:
        found.append(Slip(*shell))
    if folder is not None and not found:
        found += _missing(command, folder)
    found += [*active_elsewhere(command.plan, command.environ), *in_sight]
    return sorted(found, key=lambda slip: not slip.sure)


def _missing(command: Command, folder: Path) -> list[Slip]:
    return [*missing_environment(command, folder), *missing_data(command, folder)]
