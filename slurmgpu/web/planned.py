"""The planner's answer to a job file as it is typed: the script, its reasons, or what does not fit."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import InvalidInput, PlanError, SlurmGpuError
from slurmgpu.files.clusters import choose_cluster, profiles
from slurmgpu.files.jobs import load_job, words_as_spelled
from slurmgpu.files.layered import Layered
from slurmgpu.files.settings import load_settings
from slurmgpu.files.yaml import read_yaml
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.plan import Plan
from slurmgpu.runs.command_checks.judge import each_slip
from slurmgpu.runs.preflight import check_task, command_of
from slurmgpu.runs.prepared import Prepared, plan_job
from slurmgpu.runs.request_checks import judge
from slurmgpu.web.form import JOB_FILE, MORE, command_line, in_words_of_the_form, known_field, read_form

__all__ = ["Line", "Planned", "Problem", "Site", "Way", "planned", "site"]

# The models are built when they are first used, which two threads must not do at once.
_ONE_AT_A_TIME = threading.Lock()


class Site(NamedTuple):
    """The cluster that the form is for, and the others that there are."""

    cluster: Cluster
    known: tuple[str, ...]
    environments: Mapping[str, Environment]
    chosen: str
    """Its name, as ``--cluster`` takes it; empty: the one that the settings name by its file."""


class Problem(NamedTuple):
    """An error, and its field."""

    field: str
    """Empty: at none that is known."""
    text: str


class Way(NamedTuple):
    """A request near this one that fits: what to write, and into which fields."""

    text: str
    values: Mapping[str, str]


class Line(NamedTuple):
    """A line of the script, and why it is there."""

    text: str
    why: str


class Planned(NamedTuple):
    """One answer."""

    job_file: str
    script: str = ""
    command: str = ""
    plan: Plan | None = None
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    hint: str = ""
    ways: tuple[Way, ...] = ()


def site(name: str | None, folder: Path) -> Site:
    """Return the cluster of this name, or the one that is in use in a folder; InvalidInput where there is none of that name."""
    with _ONE_AT_A_TIME:
        settings = load_settings(folder)
        # A name alone: a path would read any file.
        if name is not None and ("/" in name or name.endswith((".yaml", ".yml"))):
            raise InvalidInput(f"cluster {name!r}: a profile's name is expected here, without a folder")
        cluster, _ = choose_cluster(name or None, settings, os.environ)
        known = tuple(sorted({*profiles(settings), GENERIC.name}))
        chosen = name or (cluster.name if cluster.name in known else "")
        return Site(cluster, known, settings.settings.environments, chosen)


def planned(values: Mapping[str, str], chosen: str, folder: Path, *, away: bool = False) -> Planned:
    """Plan what the form holds, as ``slurmgpu render job.yaml --cluster NAME`` does in the same folder.

    ``away``: on no machine of the cluster. Nothing is said of files then, and a job that names no work folder starts where
    it is submitted.
    """
    text = ""
    try:
        data, text = read_form(values)
        named = data.get("work_dir")
        if away and data and named is None:
            data, text = read_form({**values, "work_dir": "$SLURM_SUBMIT_DIR"})
        elif away and isinstance(named, str) and named[:1] not in ("/", "$", "~"):
            raise InvalidInput(
                f"work_dir: {named!r} is against a folder that this page does not know",
                hint="begin it with /, ~ or $NAME, or leave it out: the job starts where it is submitted then",
            )
        with _ONE_AT_A_TIME:
            prepared = _prepared(text, chosen or None, folder)
            script, plan = prepared.render(), prepared.plan
            command = command_line(data, chosen, prepared.loaded.job.command)
            notes = tuple(dict.fromkeys(map(in_words_of_the_form, _notes(prepared, folder, away))))
            return Planned(text, script, command, plan, tuple(_lines(script, plan)), notes)
    except SlurmGpuError as error:
        return _refused(error, text)


def _prepared(text: str, cluster: str | None, folder: Path) -> Prepared:
    """Return the job of a job file's text, as if the file were in the folder; raises what ``slurmgpu render`` would."""
    layer = read_yaml(text, JOB_FILE)
    words_as_spelled(layer, text)
    loaded = load_job(None, Layered({}, {}), cwd=folder, environ=os.environ, script=layer)
    return plan_job(loaded, cluster, cwd=folder)


def _lines(script: str, plan: Plan) -> Iterator[Line]:
    """Yield the script line by line, each option with the planner's reason."""
    whys = {str(option): option.why for option in plan.options}
    for line in script.splitlines(keepends=True):
        option = line.removeprefix("#SBATCH ").rstrip("\n") if line.startswith("#SBATCH ") else ""
        name = option.removeprefix("--").partition("=")[0]
        why = whys.get(option) or next((one.why for one in plan.options if option and one.name == name), "")
        yield Line(line, why)


def _notes(prepared: Prepared, folder: Path, away: bool) -> Iterator[str]:
    """Yield what ``slurmgpu render`` says beside the script."""
    yield from filter(None, [prepared.unchosen])
    yield from prepared.plan.warnings
    loaded, plan = prepared.loaded, prepared.plan
    command = command_of(plan, loaded.work_dir, folder, os.environ, in_file=True)
    for of, slip in each_slip(command, away=away):
        yield f"{of}{slip.message}; {slip.hint}"
    if not away and command.folder is not None and command.folder.is_dir():
        try:
            check_task(plan, command.folder)
        except PlanError as error:
            yield f"{error.message}; {error.hint}"
    verdict = judge(prepared, folder, away=away)
    for remark in (*verdict.errors, *verdict.warnings):
        yield f"{remark.message}; {remark.hint}"


def _refused(error: SlurmGpuError, text: str) -> Planned:
    ways = tuple(_ways(error.hint or ""))
    problems = [Problem(_field(line), line) for line in error.message.split("\n")]
    if ways and not any(one.field for one in problems):
        # What does not fit is shown where it can be mended: at the fields that the nearest requests change.
        # A way may only mention the partition: ``time: 20:00:00 (partition 'gpu')`` changes the time.
        fields = dict.fromkeys(
            name
            for way in ways
            for name in way.values
            if name != "resources.partition"
            or way.text.startswith("partition ")
            or "(partition " not in way.text
        )
        problems = [Problem(name, error.message) for name in fields]
    if not any(one.field for one in problems) and re.match(r"\d+ (?:\S+ )?GPUs?\b", error.message):
        problems = [Problem("resources.gpus", one.text) for one in problems]
    return Planned(text, problems=tuple(problems), hint=in_words_of_the_form(error.hint or ""), ways=ways)


def _field(line: str) -> str:
    """Return the field that a message begins with, behind the place in the file."""
    if line.startswith("further lines"):
        return MORE
    match = re.match(
        rf"(?:{re.escape(JOB_FILE)}:\d+: )?([a-z][a-z_]*(?:\.[a-z_]+)*)(?=:| is missing| )", line
    )
    if match is not None and (field := known_field(match[1])):
        return field
    if "neither command nor train" in line:
        return "command"
    # Of a job that asks exactly for what its script did:
    if match := re.search(r" has no (partition|QOS) '", line):
        return f"resources.{match[1].lower()}"
    return MORE if line.startswith(f"{JOB_FILE}:") else ""


_FIELD = r"(?:\A|, )(time|nodes|gpus_per_node|gpus|gpu_type|gpu_memory|qos|account): ([^\s,]+)"
_CLEARED = {
    "no qos": "resources.qos", "no constraint": "resources.constraint", "no gpu_memory": "resources.gpu_memory",
    "any type of GPU": "resources.gpu_type",
}  # fmt: skip


def _ways(hint: str) -> Iterator[Way]:
    """Yield the nearest requests that fit, as the planner names them."""
    head, found, rest = hint.partition("what would fit: ")
    if not found or head:
        return
    for text in rest.split("; or "):
        values = {f"resources.{name}": value for name, value in re.findall(_FIELD, text)}
        for words, name in _CLEARED.items():
            if text.startswith(words):
                values[name] = ""
        if text.startswith("fewer CPUs"):
            values |= {"resources.cpus_per_task": "", "resources.cpus_per_gpu": ""}
        if text.startswith("less memory"):
            values["resources.memory"] = ""
        if match := re.search(r" without ([a-z_]+(?:, [a-z_]+)*)", text):
            names = (f"resources.{name}" for name in match[1].split(", "))
            values |= {name: "" for name in names if known_field(name)}
        if match := re.search(r"partition '([^']+)'", text):
            values["resources.partition"] = match[1]
        if "resources.gpus_per_node" in values:
            values["resources.gpus"] = ""
        yield Way(text, values)
