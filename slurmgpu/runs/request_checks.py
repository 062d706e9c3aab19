"""A request of our own, held against the rules of ``slurmgpu check`` before it is sent.

What planning and the other checks of a submission judge by themselves is not judged again (``Rule.judged_before``).

Findings of the rules in the words of the request: the option or field that a person wrote, not a line they never saw.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.files.jobs import LoadedJob, folder_here, read_python
from slurmgpu.files.layered import Key, Origin
from slurmgpu.files.trust import text_of
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.options import OWN_OPTIONS
from slurmgpu.models.resources import Resources
from slurmgpu.runs.prepare import Prepared
from slurmgpu.script.batch_script import Directive, Script, parse_batch_script
from slurmgpu.script.check import check_script, paths_of, python_scripts, shell_scripts
from slurmgpu.script.rules import RULES
from slurmgpu.script.rules.base import Facts, Finding

if TYPE_CHECKING:
    from slurmgpu.planning.python_script import ScriptFacts

__all__ = ["Remark", "Verdict", "facts_here", "gpu_memory_in_megabytes", "in_words_of_the_request", "judge"]


_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


class Verdict(NamedTuple):
    """What the rules say of a request."""

    errors: tuple[Remark, ...] = ()
    warnings: tuple[Remark, ...] = ()

    def refuse(self, otherwise: str | None = None) -> None:
        """PlanError where something cannot work; ``otherwise`` says how to send it all the same."""
        if self.errors:
            hints = [*dict.fromkeys(one.hint for one in self.errors), *([otherwise] if otherwise else [])]
            raise PlanError("; ".join(one.message for one in self.errors), hint="; ".join(hints))


def judge(request: Prepared, text: str, cwd: Path, *, away: bool = False) -> Verdict:
    """Hold a job's script, or an outline of it, against the rules; hints are left to ``slurmgpu check``.

    ``away``: on no machine of the cluster, whose files are not known then.
    """
    script = parse_batch_script(text)
    if request.batch is None:
        script = _with_units_as_written(script, request.loaded)
    else:
        script = _laid_over(parse_batch_script(request.batch[1]), script)
    folder = folder_here(request.loaded.work_dir, cwd) or cwd
    python = request.around.script
    known = {python.path: python} if python else {}
    facts = facts_here(script, folder, request.cluster, known)._replace(submitted=True)
    if away:
        facts = facts._replace(paths={})
    found = check_script(script, facts, ignore=_judged_before(request), least="warning")
    if request.batch is not None:
        found = [_of_ones_own(one) for one in found]
    if not found and request.loaded.job.resources.gpu_memory is None:
        return Verdict()
    remarks = [(one.severity, in_words_of_the_request(one, script, request)) for one in found]
    return Verdict(
        tuple(remark for severity, remark in remarks if severity == "error"),
        (
            *(remark for severity, remark in remarks if severity == "warning"),
            *gpu_memory_in_megabytes(request),
        ),
    )


def facts_here(
    script: Script,
    folder: Path,
    cluster: Cluster | None,
    known: Mapping[str, ScriptFacts] | None = None,
    modules: frozenset[str] = frozenset(),
) -> Facts:
    """What the rules want to know of this machine, for a script that is submitted from ``folder`` now.

    ``known`` are Python scripts that were read already, ``modules`` those of this machine.
    """
    paths = {path: _kind(Path(path)) for path in paths_of(script, str(folder))}
    python = dict(known or {})
    for name in python_scripts(script) - set(python):
        facts = read_python([name], folder)
        if facts is not None:
            python[name] = facts
    shells = {name: text for name in shell_scripts(script) if (text := text_of(folder / name)[: 1 << 16])}
    return Facts(str(folder), paths, python, cluster, modules=modules, shells=shells)


def _kind(path: Path) -> Literal["folder", "file", "missing"]:
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "missing"
    except OSError:  # a name too long, a folder that may not be looked into
        return "file"


def _of_ones_own(one: Finding) -> Finding:
    """What sbatch takes all the same is not a reason to refuse a script that somebody has had, and used, for long."""
    return one._replace(severity="warning") if RULES[one.rule].taken else one


def _judged_before(request: Prepared) -> set[str]:
    """The rules whose facts somebody else judges: of how a command is launched, the planner."""
    ignored = {name for name, rule in RULES.items() if rule.judged_before}
    if request.plan.command is not None:
        ignored |= {"nodes-unused", "spawns-itself"}
    return ignored


def _with_units_as_written(script: Script, loaded: LoadedJob) -> Script:
    """Bare numbers of time and memory as they were written: a planned script has them with their units."""
    components = [loaded.job.resources, *(one.resources for one in loaded.job.components)]
    bare = {
        (number, name): value for number, one in enumerate(components) for name, value in _bare_numbers(one)
    }
    if not bare:
        return script
    return replace(script, directives=tuple(_as_written(one, bare) for one in script.directives))


def _bare_numbers(resources: Resources) -> Iterator[tuple[str, str]]:
    for name, value in (
        ("time", resources.time),
        ("mem", resources.memory),
        ("mem-per-cpu", resources.memory_per_cpu),
        ("mem-per-gpu", resources.memory_per_gpu),
    ):
        # 48:00 is as easily mistaken as 48.
        if value is not None and value.written is not None and re.fullmatch(r"\d+(:\d+)?", value.written):
            yield name, value.written


def _as_written(one: Directive, bare: Mapping[tuple[int, str], str]) -> Directive:
    """The same option as it was asked for: the site may want memory counted in another way."""
    for name in _MEMORY if one.name in _MEMORY else (one.name,):
        if (one.component, name) in bare:
            return one._replace(name=name, value=bare[one.component, name])
    return one


def _laid_over(own: Script, rendered: Script) -> Script:
    """A batch script with the options that were laid over it, at lines of their own below its last."""
    kept: list[Directive] = [one for one in own.directives if one.component]
    lines = list(own.lines)
    before = own.effective()
    for name, one in rendered.effective().items():
        if name in before and before[name].value == one.value:
            kept += [each for each in own.directives if each.name == name and not each.component]
        elif name != "job-name":
            lines.append(one.text)
            kept.append(one._replace(line=len(lines)))
    kept.sort(key=lambda one: one.line)
    return replace(own, directives=tuple(kept), lines=tuple(lines))


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
