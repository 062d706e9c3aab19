"""What a request is made of: a job file, a batch script that is taken as a job, or the options alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.files.jobs import find_job_file
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.settings import load_settings
from slurmgpu.files.trust import Trust, is_confined, open_regular

JOB_FILE = "job.yaml"
"""The job file that is meant where none is named."""
_SUFFIXES = {".slurm", ".sbatch"}
_OTHER_FILES = {".yaml", ".yml"}


class BatchScript(NamedTuple):
    """A batch script, as the bottom layer of a job."""

    name: str
    """The script's path, as it was given."""
    text: str
    layer: Layered
    notes: tuple[str, ...]
    """Remarks on how it was taken."""


class Source(NamedTuple):
    """The origin of a job; neither: the options alone."""

    path: Path | None = None
    batch: BatchScript | None = None
    note: str | None = None
    """A remark on a file that nobody named."""


def find_source(given: Mapping[str, Any], cwd: Path, environ: Mapping[str, str]) -> Source:
    """Return the job file or batch script of a request: as named, after ``--``, or job.yaml where nothing is named."""
    named, command = given.get("job__file"), given.get("command") or ()
    for word in (named, *command[:1]):
        refuse_notebook(word or "")
    if named and not _is_batch(named):
        return Source(find_job_file(named))
    if named and command:
        raise InvalidInput(
            f"{named}: a batch script has commands of its own, and {shlex.join(command)!r} stands behind --",
            hint=f"to hand it to the script: slurmgpu submit -- {shlex.join([named, *command])}; to run it in the script's "
            f"place, make a job file of the script's options first: slurmgpu import {shlex.quote(named)}",
        )
    if named:
        return Source(batch=_batch(named, (), environ))
    if command and _is_batch(command[0]):
        return Source(batch=_batch(command[0], command[1:], environ))
    if not command and not _has_task(given) and (cwd / JOB_FILE).is_file():
        _check_whose(cwd / JOB_FILE, environ)
        return Source(cwd / JOB_FILE, note=f"using {JOB_FILE}")
    return Source()


def refuse_notebook(name: str) -> None:
    """InvalidInput for a notebook, which is neither a job nor a script."""
    if name.endswith(".ipynb"):
        script = Path(name).with_suffix(".py").name
        raise InvalidInput(
            f"{name}: a notebook, and a job runs without a person at it",
            hint=f"make a script of it: jupyter nbconvert --to script {shlex.quote(name)}, then slurmgpu submit --gpus 1 "
            f"-- python {shlex.quote(script)}; or work in it on a GPU node: slurmgpu shell --jupyter --gpus 1",
        )


def _check_whose(path: Path, environ: Mapping[str, str]) -> None:
    """InvalidInput for a job file that nobody named and somebody else wrote."""
    if Trust().foreign(path) is None:
        return
    foreign = load_settings(path.parent, environ).trust.foreign(path)
    if foreign is not None:
        raise InvalidInput(
            f"{path.name}: it {foreign.why}, and you did not name it on the command line; what is in it would run as you",
            hint=f"read it, then name it: slurmgpu ... {path.name}; or trust the folder: slurmgpu config trust .",
        )


def _has_task(given: Mapping[str, Any]) -> bool:
    """Return whether an option says what to run."""
    keys = {str(one).partition("=")[0] for one in given.get("job__set") or ()}
    return bool(keys & {"command", "script", "train", "train.task"})


def _is_batch(name: str) -> bool:
    """Return whether a file is a batch script: by its ending, or by lines that sbatch reads."""
    path = Path(name)
    if path.suffix in _OTHER_FILES or not path.is_file():
        return False
    if path.suffix in _SUFFIXES:
        return True
    from slurmgpu.files.yaml import LARGEST_SCRIPT

    try:
        with open_regular(path) as file:
            text = file.read(LARGEST_SCRIPT).decode("utf-8", errors="replace")
        if path.suffix != ".sh" and not text.startswith("#!"):
            return False
    except OSError:  # a program that may be run and not read
        return False
    if "#SBATCH" not in text:
        return False
    from slurmgpu.script.batch_script import parse_batch_script

    read = parse_batch_script(text)
    return bool(read.directives or (path.suffix == ".sh" and read.ignored))


def _batch(name: str, arguments: tuple[str, ...], environ: Mapping[str, str]) -> BatchScript:
    from slurmgpu.files.yaml import read_batch_script
    from slurmgpu.script.importing import import_script

    path = Path(name)
    # A request of somebody else names no file on the user's behalf.
    text = read_batch_script(path, trust=load_settings(Path.cwd(), environ).trust if is_confined() else None)
    imported = import_script(text, name, verbatim=True)
    data = dict(imported.data)
    if "job-name" not in data.get("sbatch", {}):
        data.setdefault("name", path.name)  # as sbatch calls it
    if arguments:
        data["script"] = _with_arguments(name, imported.job.shebang, data["script"], arguments)
    origins = {key: Origin(name, line) for key, line in imported.lines.items()}
    layer = Layered(data, {(): Origin(name), **origins})
    count = len(imported.lines)
    off = "; its ##SBATCH lines are switched off" if not count and "\n##SBATCH" in text else ""
    became = f"{name}: a batch script, taken as sbatch takes it: {count} option{'s' * (count != 1)}, its lines unchanged{off}"
    ambient = sorted(key for key in environ if key.startswith("SBATCH_"))
    aside = (
        f"{', '.join(ambient)}: set here and not used, as in every submission of slurmgpu; give the options"
    )
    return BatchScript(name, text, layer, (became, *imported.notes, *([aside] if ambient else [])))


def _with_arguments(name: str, shebang: str | None, script: str, arguments: tuple[str, ...]) -> str:
    """Return the script's lines, with the arguments that sbatch would hand to it."""
    from slurmgpu.script.batch_script import SHELLS

    shell = (shebang or "/bin/bash").split()
    if not any(word.rsplit("/", 1)[-1] in SHELLS for word in shell[:2]):
        raise InvalidInput(
            f"{name}: arguments ({shlex.join(arguments)}) are handed to scripts of a shell only, and this is one of "
            f"{shebang}",
            hint="write them into the script",
        )
    return f"set -- {shlex.join(arguments)}\n{script}"
