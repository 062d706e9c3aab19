"""Findings of the rules in the words of the request: the option or field that a person wrote, not a line they never saw."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from slurmgpu.files.jobs import LoadedJob
from slurmgpu.files.layered import Key, Origin
from slurmgpu.models.options import OWN_OPTIONS
from slurmgpu.scripts.batch_script import Directive, Script
from slurmgpu.scripts.rules.base import Finding
from slurmgpu.submission.preparing import Prepared

__all__ = ["Remark", "gpu_memory_in_megabytes", "in_words_of_the_request"]

_GPUS = ("gpus", "gpus_per_node", "gpus_per_task", "gpu_type", "gres")
_GPU_OPTIONS = {"gpus", "gpus-per-node", "gpus-per-task", "gres"}
# Their fixes are values, to be written in place of the one that is there.
_VALUES = {"memory-in-megabytes", "time-in-minutes"}
# They miss an option, and have no line of their own.
_OF_THE_WHOLE = {"option-required"}
_VALUE = re.compile(r"(?<![\w:-])\d[\w:-]*")
Spell = Callable[[str], str]


class Remark(NamedTuple):
    """What is wrong with a request, in the words in which it was made, and what to write instead."""

    message: str
    hint: str


def in_words_of_the_request(finding: Finding, script: Script, request: Prepared) -> Remark:
    """Where it was written, what is wrong with it, and what to write instead."""
    directive = next(iter(script.on_line.get(finding.line, ())), None)
    spell: Spell = str  # a value stands alone
    if finding.rule in _OF_THE_WHOLE:
        said = "the job"
    elif directive is None:
        said = _of_the_body(finding.line, script, request)
    else:
        said, spell = _of_the_option(_meant(directive, finding, script), request)
    fix = finding.fix
    if request.batch is None:
        fix = fix.replace("#SBATCH --", "--").replace("--ntasks=", "--ntasks-per-node=")  # which submit has
    if finding.rule == "secret-in-script" and request.batch is None:
        fix = (
            "treat the key as leaked: replace it, and name its variable under secrets: in the job file; it then "
            "comes from your environment, or from ~/.config/slurmgpu/secrets/NAME (chmod 600)"
        )
    if finding.rule == "no-rendezvous" and request.plan.command is not None:
        # Its $(...) would be read by the shell in which the command is typed.
        fix = "leave srun and torchrun out, and slurmgpu starts torchrun on every node: -- python SCRIPT ..."
    if finding.rule == "nnodes-disagree" and request.plan.command is not None:
        fix = f"write {request.plan.nodes} there; or ask for as many nodes, and leave torchrun out: -N 2 -- python SCRIPT ..."
    if finding.rule in _VALUES:
        fix = _VALUE.sub(lambda match: spell(match[0]), fix)
    return Remark(f"{said}: {finding.message} [{finding.rule}]", fix)


def gpu_memory_in_megabytes(request: Prepared) -> Iterator[Remark]:
    """The same slip as with --mem, in a field that is not an option of sbatch."""
    value = request.loaded.job.resources.gpu_memory
    if value is None or value.written is None or not value.written.isdigit() or value.mib > 512:
        return
    key: Key = ("resources", "gpu_memory")
    origin = request.loaded.layered.origin(key) or Origin("the job")
    said, spell = _written(key, origin, Directive(0, "", "gpu-memory", value.written, 0, ""), request)
    yield Remark(
        f"{said}: {value.written} means {value.written} megabytes, and every GPU has more",
        f"write {spell(value.written + 'G')}",
    )


def _meant(first: Directive, finding: Finding, script: Script) -> Directive:
    """Of several options on a line the one that the finding speaks of."""
    here = script.on_line[finding.line]
    spoken = [one for one in here if one.name in finding.message or (one.value or "\0") in finding.message]
    mended = [one for one in here if f"--{one.name}" in finding.fix]
    return next(iter(spoken or mended), first)


def _of_the_option(one: Directive, request: Prepared) -> tuple[str, Spell]:
    """An option as it was asked for, and how another value of it is written there."""
    for key in _keys(one):
        origin = request.loaded.layered.origins.get(key)
        if origin is not None:
            return _written(key, origin, one, request)
    plain = _plain(one.name)
    return plain(one.value), plain


def _keys(one: Directive) -> Iterator[Key]:
    """The keys of a job that ask for an option."""
    inside: Key = ("components", one.component - 1) if one.component else ()
    field = OWN_OPTIONS.get(one.name, "")
    if field:
        yield (*inside, *field.split("."))
    if one.name in _GPU_OPTIONS:
        yield from ((*inside, "resources", name) for name in _GPUS)
    yield (*inside, "sbatch", one.name)


def _written(key: Key, origin: Origin, one: Directive, request: Prepared) -> tuple[str, Spell]:
    where, field = origin.where, ".".join(map(str, key))
    value = str(_value_at(request.loaded, key, one.value))
    if where.startswith("keyword "):
        return f"{key[-1]}={value}", lambda new: f"{key[-1]}={new!r}"
    if where.startswith("option "):
        before = f"{where.removeprefix('option ')} "
        if where.startswith("option --set "):
            before = f"--set {field}="
        elif where.startswith("option --sbatch"):
            before, value = (
                (f"--sbatch {one.name}", "") if value == "True" else (f"--sbatch {one.name}=", value)
            )
        return before + value, lambda new: before + new
    if request.batch is not None:
        plain = _plain(one.name)
        return f"{where}:{one.line}: {plain(one.value)}", plain
    return f"{origin}: {field}: {value}", lambda new: f"{field}: {new}"


def _plain(name: str) -> Callable[[str | None], str]:
    return lambda value: f"--{name}" if value is None else f"--{name}={value}"


def _value_at(loaded: LoadedJob, key: Key, otherwise: str | None) -> object:
    here: Any = loaded.layered.data
    try:
        for part in key:
            here = here[part]
    except (KeyError, IndexError, TypeError):
        return otherwise
    return ",".join(map(str, here)) if isinstance(here, list) else here


def _of_the_body(line: int, script: Script, request: Prepared) -> str:
    """A line that runs: of the batch script, of ``script:``, or of what was made of a command."""
    plan = request.plan
    if request.batch is not None:
        return f"{request.batch[0]}:{line}"
    if plan.script is not None and script.text.endswith(plan.script):
        above = script.text[: len(script.text) - len(plan.script)].count("\n")
        return f"script: line {max(1, line - above)}"
    for name in plan.variables:
        if f"{name}=" in script.lines[line - 1]:
            return f"variables.{name}"
    launch = request.loaded.layered.origin(("launch", "launcher"))
    if launch is None or request.loaded.job.launch.launcher == "auto":
        return "command"
    return f"--launch {plan.launcher}" if launch.where.startswith("option") else f"launch: {plan.launcher}"
