"""A request of our own, held against the rules of ``slurmgpu check``, with their findings in the request's own words.

What planning and the other checks of a submission judge by themselves is not judged again (``Rule.judged_before``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.files.jobs import folder_here, read_python
from slurmgpu.files.layered import Key, Origin
from slurmgpu.files.trust import text_of
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.options import OWN_OPTIONS
from slurmgpu.runs.prepared import Prepared
from slurmgpu.script.batch_script import Directive, Script, parse_batch_script
from slurmgpu.script.check import check_script, paths_of, python_scripts, shell_scripts
from slurmgpu.script.planned import planned_script
from slurmgpu.script.rules import RULES
from slurmgpu.script.rules.base import Facts, Finding

if TYPE_CHECKING:
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["Remark", "Verdict", "facts_here", "gpu_memory_in_megabytes", "in_words_of_the_request", "judge"]


_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


class Verdict(NamedTuple):
    """The findings of the rules on a request."""

    errors: tuple[Remark, ...] = ()
    warnings: tuple[Remark, ...] = ()

    def refuse(self, otherwise: str | None = None) -> None:
        """Raise PlanError where something cannot work; ``otherwise`` says how to send it all the same."""
        if self.errors:
            hints = [*dict.fromkeys(one.hint for one in self.errors), *([otherwise] if otherwise else [])]
            raise PlanError("; ".join(one.message for one in self.errors), hint="; ".join(hints))


def judge(request: Prepared, cwd: Path, *, away: bool = False) -> Verdict:
    """Hold a request against the rules; hints are left to ``slurmgpu check``.

    The plan itself is judged; the script's text only where the user's own templates had a part in it.
    ``away``: on no machine of the cluster, whose files are not known then.
    """
    if request.has_own_templates:
        script = parse_batch_script(request.render())
    else:
        script = planned_script(request.plan, _units_as_written(request))
    if request.batch is not None:
        script = _laid_over(parse_batch_script(request.batch[1]), script)
    folder = folder_here(request.loaded.work_dir, cwd) or cwd
    python = request.around.script
    known = {python.path: python} if python else {}
    facts = facts_here(script, folder, request.cluster, known)._replace(submitted=True)
    if away:
        facts = facts._replace(paths={})
    judged_before = {name for name, rule in RULES.items() if rule.judged_before}
    if request.plan.command is not None:  # how it is launched, the planner judges
        judged_before |= {"nodes-unused", "spawns-itself"}
    found = check_script(script, facts, ignore=judged_before, least="warning")
    if request.batch is not None:
        # What sbatch takes all the same is no reason to refuse a script that somebody has used for long.
        found = [one._replace(severity="warning") if RULES[one.rule].taken else one for one in found]
    if not found and request.loaded.job.resources.gpu_memory is None:
        return Verdict()
    remarks = [(one.severity, in_words_of_the_request(one, script, request)) for one in found]
    warnings = [remark for severity, remark in remarks if severity == "warning"]
    return Verdict(
        tuple(remark for severity, remark in remarks if severity == "error"),
        (*warnings, *gpu_memory_in_megabytes(request)),
    )


def facts_here(
    script: Script,
    folder: Path,
    cluster: Cluster | None,
    known: Mapping[str, ScriptFacts] | None = None,
    modules: frozenset[str] = frozenset(),
) -> Facts:
    """Return what the rules want to know of this machine, for a script that is submitted from ``folder`` now.

    ``known`` are Python scripts that were read already, ``modules`` those of this machine.
    """
    paths: dict[str, Literal["folder", "file", "missing"]] = {}
    for path in paths_of(script, str(folder)):
        try:
            paths[path] = "folder" if Path(path).is_dir() else "file" if Path(path).exists() else "missing"
        except OSError:  # a name too long, a folder that may not be looked into
            paths[path] = "file"
    python = dict(known or {})
    for name in python_scripts(script) - set(python):
        facts = read_python([name], folder)
        if facts is not None:
            python[name] = facts
    shells = {name: text for name in shell_scripts(script) if (text := text_of(folder / name)[: 1 << 16])}
    return Facts(str(folder), paths, python, cluster, modules=modules, shells=shells)


def _units_as_written(request: Prepared) -> dict[tuple[int, str], tuple[str, str]]:
    """Return the options whose bare numbers of time and memory the plan gave units, as they were written.

    48:00 is as easily mistaken as 48. The site may want memory counted in another way than it was asked for.
    """
    found: dict[tuple[int, str], tuple[str, str]] = {}
    job, plan = request.loaded.job, request.plan
    parts = [job.resources, *(one.resources for one in job.components)] if request.batch is None else []
    for number, (part, options) in enumerate(zip(parts, (plan.options, *plan.components), strict=False)):
        asked = (part.time, part.memory, part.memory_per_cpu, part.memory_per_gpu)
        for name, value in zip(("time", *_MEMORY), asked, strict=True):
            if value is not None and value.written is not None and re.fullmatch(r"\d+(:\d+)?", value.written):
                planned = _MEMORY if name in _MEMORY else (name,)
                found |= {(number, one.name): (name, value.written) for one in options if one.name in planned}
    return found


def _laid_over(own: Script, rendered: Script) -> Script:
    """Return a batch script with the options that were laid over it, at lines of their own below its last."""
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


Spell = Callable[[str], str]


class Remark(NamedTuple):
    """A fault of a request, in the words in which it was made, and what to write instead."""

    message: str
    hint: str


def in_words_of_the_request(finding: Finding, script: Script, request: Prepared) -> Remark:
    """Return where it was written, what is wrong with it, and what to write instead."""
    directive = next(iter(script.on_line.get(finding.line, ())), None)
    spell: Spell = str  # a value stands alone
    if finding.rule == "option-required":  # it has no line
        said = "the job"
    elif directive is None:
        said = _of_the_body(finding.line, script, request)
    else:
        # Of several options on a line the one that the finding speaks of.
        here = script.on_line[finding.line]
        spoken = [
            one for one in here if one.name in finding.message or (one.value or "\0") in finding.message
        ]
        mended = [one for one in here if f"--{one.name}" in finding.fix]
        said, spell = _of_the_option(next(iter(spoken or mended), directive), request)
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
    if finding.rule in {"memory-in-megabytes", "time-in-minutes"}:  # whose fixes are values
        fix = re.sub(r"(?<![\w:-])\d[\w:-]*", lambda match: spell(match[0]), fix)
    return Remark(f"{said}: {finding.message} [{finding.rule}]", fix)


def gpu_memory_in_megabytes(request: Prepared) -> Iterator[Remark]:
    """Yield the same slip as with --mem, in a field that is not an option of sbatch."""
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


def _of_the_option(one: Directive, request: Prepared) -> tuple[str, Spell]:
    """Return an option as it was asked for, and how another value of it is written there."""
    inside: Key = ("components", one.component - 1) if one.component else ()
    field = OWN_OPTIONS.get(one.name, "")
    keys: list[Key] = [(*inside, *field.split("."))] if field else []
    if one.name in {"gpus", "gpus-per-node", "gpus-per-task", "gres"}:
        fields = ("gpus", "gpus_per_node", "gpus_per_task", "gpu_type", "gres")
        keys += [(*inside, "resources", name) for name in fields]
    for key in (*keys, (*inside, "sbatch", one.name)):
        origin = request.loaded.layered.origins.get(key)
        if origin is not None:
            return _written(key, origin, one, request)
    plain = _plain(one.name)
    return plain(one.value), plain


def _written(key: Key, origin: Origin, one: Directive, request: Prepared) -> tuple[str, Spell]:
    where, field = origin.where, ".".join(map(str, key))
    here: Any = request.loaded.layered.data
    try:
        for part in key:
            here = here[part]
    except (KeyError, IndexError, TypeError):
        here = one.value
    value = ",".join(map(str, here)) if isinstance(here, list) else str(here)
    if where.startswith("keyword "):
        return f"{key[-1]}={value}", lambda new: f"{key[-1]}={new!r}"
    if where.startswith("option "):
        before = f"{where.removeprefix('option ')} "
        if where.startswith("option --set "):
            before = f"--set {field}="
        elif where.startswith("option --sbatch"):
            before = f"--sbatch {one.name}" + "=" * (value != "True")
            value = "" if value == "True" else value
        return before + value, lambda new: before + new
    if request.batch is not None:
        plain = _plain(one.name)
        return f"{where}:{one.line}: {plain(one.value)}", plain
    return f"{origin}: {field}: {value}", lambda new: f"{field}: {new}"


def _plain(name: str) -> Callable[[str | None], str]:
    return lambda value: f"--{name}" if value is None else f"--{name}={value}"


def _of_the_body(line: int, script: Script, request: Prepared) -> str:
    """Return a line that runs: of the batch script, of ``script:``, or of what was made of a command."""
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
