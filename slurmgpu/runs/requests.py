"""Requests as they are given: options over a job file, a batch script, or nothing; loaded as a job."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.files.jobs import LoadedJob, find_job_file, load_job, words_as_spelled
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.settings import load_settings
from slurmgpu.files.trust import Trust, is_confined, open_regular
from slurmgpu.files.yaml import LARGEST_SCRIPT, read_batch_script, read_file, read_yaml
from slurmgpu.models.options import ROWS
from slurmgpu.models.units import parse_gres_list

JOB_FILE = "job.yaml"
"""The job file that is meant where none is named."""
_JOB_SUFFIXES, _SCRIPT_SUFFIXES = {".yaml", ".yml"}, {".slurm", ".sbatch"}
_VARIABLE = r"(?:\A|\.)variables\.\w+\Z"

Say = Callable[[str], None]
"""Takes a remark for the person, a line or more."""


class Source(NamedTuple):
    """The origin of a job: a job file, a batch script, or (neither) the options alone."""

    path: Path | None = None
    batch: tuple[str, str] | None = None
    """The batch script's path, as it was given, and its text."""
    script: Layered | None = None
    """The batch script as the bottom layer of a job."""
    notes: tuple[str, ...] = ()
    """Remarks on a file that nobody named, and on how a script was taken."""


def load_request(given: Mapping[str, Any], say: Say) -> tuple[LoadedJob, Source]:
    """Return the job that file and options describe, as it stands there, and its origin: nothing is planned or judged."""
    cwd, named = Path.cwd(), given.get("file")
    source = find_source(given, cwd, os.environ)
    for remark in source.notes:
        say(remark)
    if source.script is not None:
        if not named:  # it was found after --
            given = {**given, "command": None}
        options = _layer_of(given, exact=True)
        if "work_dir" in options.data:
            # As sbatch does with -D: the script itself changes into no folder.
            options.put(("sbatch", "chdir"), options.data.pop("work_dir"), options.origins.pop(("work_dir",)))
        return load_job(None, options, cwd=cwd, environ=os.environ, script=source.script), source
    path = source.path
    exact = path is not None and given.get("resources.gres") and read_file(path).data.get("exact")
    loaded = load_job(
        path,
        _layer_of(given, exact=exact is True),
        cwd=cwd,
        environ=os.environ,
        # A shipped job is found by its name, and works here, not where it is installed.
        home=cwd if named and path != Path(named) else None,
        unnamed=path is not None and (not named or is_confined()),
    )
    return loaded, source


def find_source(given: Mapping[str, Any], cwd: Path, environ: Mapping[str, str]) -> Source:
    """Return the job file or batch script of a request: as named, after ``--``, or job.yaml where nothing is named."""
    named, command = given.get("file"), given.get("command") or ()
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
        return _read_batch(named, (), environ)
    if command and _is_batch(command[0]):
        return _read_batch(command[0], command[1:], environ)
    path = cwd / JOB_FILE
    keys = {str(one).partition("=")[0] for one in given.get("set") or ()}
    if command or keys & {"command", "script", "train", "train.task"} or not path.is_file():
        return Source()
    if Trust().foreign(path) and (foreign := load_settings(cwd, environ).trust.foreign(path)):
        raise InvalidInput(
            f"{JOB_FILE}: it {foreign.why}, and you did not name it on the command line; what is in it would run as you",
            hint=f"read it, then name it: slurmgpu ... {JOB_FILE}; or trust the folder: slurmgpu config trust .",
        )
    return Source(path, notes=(f"using {JOB_FILE}",))


def refuse_notebook(name: str) -> None:
    """Raise InvalidInput for a notebook, which is neither a job nor a script."""
    if name.endswith(".ipynb"):
        script = Path(name).with_suffix(".py").name
        raise InvalidInput(
            f"{name}: a notebook, and a job runs without a person at it",
            hint=f"make a script of it: jupyter nbconvert --to script {shlex.quote(name)}, then slurmgpu submit --gpus 1 "
            f"-- python {shlex.quote(script)}; or work in it on a GPU node: slurmgpu shell --jupyter --gpus 1",
        )


def _is_batch(name: str) -> bool:
    """Return whether a file is a batch script: by its ending, or by lines that sbatch reads."""
    path = Path(name)
    if path.suffix in _JOB_SUFFIXES or not path.is_file():
        return False
    if path.suffix in _SCRIPT_SUFFIXES:
        return True
    try:
        with open_regular(path) as file:
            text = file.read(LARGEST_SCRIPT).decode("utf-8", errors="replace")
    except OSError:  # a program that may be run and not read
        return False
    if "#SBATCH" not in text or (path.suffix != ".sh" and not text.startswith("#!")):
        return False
    from slurmgpu.script.batch_script import parse_batch_script

    parsed = parse_batch_script(text)
    return bool(parsed.directives or (path.suffix == ".sh" and parsed.ignored))


def _read_batch(name: str, arguments: tuple[str, ...], environ: Mapping[str, str]) -> Source:
    """Return a batch script as the bottom layer of a job; ``arguments`` are those that sbatch would hand to it."""
    from slurmgpu.script.batch_script import SHELLS
    from slurmgpu.script.importing import import_script

    path = Path(name)
    # A request of somebody else names no file on the user's behalf.
    text = read_batch_script(path, trust=load_settings(Path.cwd(), environ).trust if is_confined() else None)
    imported = import_script(text, name, verbatim=True)
    data = dict(imported.data)
    if "job-name" not in data.get("sbatch", {}):
        data.setdefault("name", path.name)  # as sbatch calls it
    if arguments:
        shebang = imported.job.shebang
        if not any(word.rsplit("/", 1)[-1] in SHELLS for word in (shebang or "/bin/bash").split()[:2]):
            raise InvalidInput(
                f"{name}: arguments ({shlex.join(arguments)}) are handed to scripts of a shell only, and this is one of "
                f"{shebang}",
                hint="write them into the script",
            )
        data["script"] = f"set -- {shlex.join(arguments)}\n{data['script']}"
    origins = {key: Origin(name, line) for key, line in imported.lines.items()}
    count = len(imported.lines)
    off = "; its ##SBATCH lines are switched off" if not count and "\n##SBATCH" in text else ""
    notes = [
        f"{name}: a batch script, taken as sbatch takes it: {count} option{'s' * (count != 1)}, its lines unchanged{off}"
    ]
    notes += imported.notes
    if ambient := sorted(key for key in environ if key.startswith("SBATCH_")):
        notes.append(
            f"{', '.join(ambient)}: set here and not used, as in every submission of slurmgpu; give the options"
        )
    return Source(None, (name, text), Layered(data, {(): Origin(name), **origins}), tuple(notes))


def _layer_of(given: Mapping[str, Any], *, exact: bool) -> Layered:
    """Return the options as the topmost layer; an exact job has its GPUs in gres where they are asked for so."""
    layer = Layered({}, {})

    def put(key: str, value: object, origin: str) -> None:
        layer.put(tuple(key.split(".")), value, Origin(origin))

    for row in ROWS:
        value = given.get(row.key)
        if value is None:
            continue
        if row.key == "resources.gres":
            if exact:
                put(row.key, value.split(","), "option --gres")
            else:
                for key, one in _gres(value, given.get("resources.gpus_per_node")).items():
                    put(key, one, "option --gres")
            continue
        if row.key == "error" and re.match(r"[A-Z][A-Z0-9_]*=", value):
            raise InvalidInput(
                f"option -e/--error {value!r} looks like a variable, and this is the log of standard error",
                hint=f"write --set {shlex.quote(f'variables.{value}')}",
            )
        if row.key == "work_dir" and value[:1] not in "$~":
            value = str(Path(value).absolute())
        elif row.kind == "list":
            value = value.upper().split(",")
        put(row.key, value, f"option {row.flags[-1].partition('/')[0]}")
    requeue = given.get("requeue")
    if requeue is not None:
        put("restart.on", ["preemption", "node_failure"] if requeue else [], "option --requeue/--no-requeue")
    for text in given.get("sbatch") or ():
        name, has_value, value = text.lstrip("-").partition("=")
        if " " in name.strip():
            name, _, value = name.strip().partition(" ")
            raise InvalidInput(
                f"option --sbatch: {text!r} has a blank where = belongs",
                hint=f"write --sbatch {name}={value.strip()}",
            )
        put(f"sbatch.{name}", value if has_value else True, "option --sbatch")
    for text in given.get("set") or ():
        put_any(layer, text)
        if text.startswith("command="):
            words_as_spelled(layer, f"value: {text.partition('=')[2]}", in_text="value")
    if given.get("command"):
        put("command", list(given["command"]), "the command after --")
    return layer


def _gres(text: str, per_node: str | None) -> dict[str, object]:
    """Return the keys that --gres stands for where the planner works the GPUs out."""
    try:
        gpu, others = parse_gres_list(text)
    except ValueError as error:
        raise InvalidInput(
            f"option --gres: {error}", hint="write it as in --gres gpu:a100:2,lscratch:100"
        ) from None
    if gpu is not None and per_node is not None and per_node != str(gpu):
        raise InvalidInput(
            f"options --gres and --gpus-per-node: {gpu} and {per_node} GPUs on each node are asked for",
            hint=f"leave one out: --gpus-per-node {per_node}, or --gpus-per-node {gpu}",
        )
    found: dict[str, object] = {"resources.gpus_per_node": str(gpu)} if gpu is not None else {}
    return {**found, "resources.gres": [str(gres) for gres in others]} if others else found


def put_any(
    layer: Layered, text: str, option: str = "--set", example: str = "train.epochs=3", above: str = ""
) -> None:
    """Put KEY=VALUE of an option into a layer, the value read as YAML; ``above`` is the key that holds KEY."""
    key, has_value, value = text.partition("=")
    if not key or not has_value:
        raise InvalidInput(
            f"option {option}: {text!r} is not KEY=VALUE", hint=f"write it as in {option} {example}"
        )
    origin, parsed = f"option {option} {key}", value
    # A variable's value is text: the shell has taken its quotes away.
    if not re.search(_VARIABLE, above + key) or value.startswith(("'", '"')):
        parsed = read_yaml(f"value: {value}" if value.strip() else "value: ''", origin).data["value"]  # type: ignore[assignment]
    layer.put(tuple((above + key).split(".")), parsed, Origin(origin))
