"""A request of our own, held against the rules of ``slurmgpu check`` before it is sent.

What planning and the other checks of a submission judge by themselves is not judged again (``Rule.judged_before``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.files.jobs import LoadedJob, folder_here, read_python
from slurmgpu.files.regular import text_of
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.resources import Resources
from slurmgpu.scripts.batch_script import Directive, Script, parse_batch_script
from slurmgpu.scripts.checking import check_script, paths_of, python_scripts, shell_scripts
from slurmgpu.scripts.rules import RULES
from slurmgpu.scripts.rules.base import Facts, Finding
from slurmgpu.submission.preparing import Prepared

if TYPE_CHECKING:
    from slurmgpu.planning.python_script import ScriptFacts
    from slurmgpu.submission.judging_words import Remark

__all__ = ["Verdict", "facts_here", "judge"]

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
