"""Rules: their form, their view of a script, and their findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from slurmgpu.models.units import Duration
from slurmgpu.script.batch_script import Directive, Script
from slurmgpu.script.rules.calls import Call, Variables, calls_of
from slurmgpu.script.shell import Simple, placed_commands, read_shell, simple_commands

if TYPE_CHECKING:
    from slurmgpu.models.cluster import Cluster
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = [
    "SEVERITIES",
    "Asked",
    "Facts",
    "Finding",
    "Hit",
    "Rule",
    "Severity",
    "View",
    "gpu_entries",
    "is_placeholder",
    "rule",
]


class Asked(NamedTuple):
    """The options of one component; numbers are None where there is none, or none can be read."""

    options: Mapping[str, Directive]

    def line(self, *names: str) -> int:
        """Return the line of the first of these options, else 1."""
        return next((self.options[name].line for name in names if name in self.options), 1)

    def value(self, name: str) -> str | None:
        """Return an option's value; None where it has none or is not given."""
        return self.options[name].value if name in self.options else None

    def number(self, name: str) -> int | None:
        """Return a whole number; of a range such as ``2-4`` the first."""
        match = re.match(r"(\d+)(?:-\d+)?\Z", self.value(name) or "")
        return int(match[1]) if match else None

    @property
    def nodes(self) -> int | None:
        """Return the number of nodes, where it is named."""
        return self.number("nodes")

    @property
    def tasks_per_node(self) -> int | None:
        """Return the number of tasks on a node, where the options say it."""
        if "ntasks-per-node" in self.options:
            return self.number("ntasks-per-node")
        tasks = self.number("ntasks")
        if tasks is not None and (self.nodes or 1) == 1:
            return tasks if self.nodes else (1 if tasks == 1 else None)
        return tasks // self.nodes if tasks and self.nodes and tasks % self.nodes == 0 else None

    @property
    def tasks(self) -> int | None:
        """Return the number of tasks in all, where the options say it."""
        if "ntasks" in self.options:
            return self.number("ntasks")
        per_node = self.number("ntasks-per-node")
        if per_node is not None:
            return per_node * (self.nodes or 1)
        return self.nodes if "nodes" in self.options else 1

    @property
    def sets_tasks(self) -> bool:
        """True if the job has a number of tasks, beside which srun ignores its own --ntasks-per-node (tried: 22.05)."""
        return bool({"ntasks", "ntasks-per-node"} & set(self.options))

    @property
    def gpu_options(self) -> list[str]:
        """The options that ask for GPUs."""
        kinds = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
        names = [name for name in kinds if name in self.options]
        if gpu_entries(self.value("gres") or ""):
            names.insert(0, "gres")
        if re.search(r"\bgres/gpu", self.value("tres-per-task") or ""):
            names.append("tres-per-task")
        return names

    def gpus_in(self, name: str) -> int | None:
        """Return the number of GPUs that one of the GPU options names; entries of several types are added up."""
        entries = gpu_entries(self.value(name) or "", typed=name != "gres")
        return sum(count for _, count in entries) if entries else None

    @property
    def gpu_types(self) -> set[str]:
        """The types of GPU that are named."""
        return {
            kind
            for name in self.gpu_options
            for kind, _ in gpu_entries(self.value(name) or "", typed=name != "gres")
            if kind
        }

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs on each node, where that follows from the options."""
        for name in ("gres", "gpus-per-node"):
            if name in self.gpu_options:
                return self.gpus_in(name)
        if "gpus" in self.gpu_options:
            total, nodes = self.gpus_in("gpus"), self.nodes or 1
            return total // nodes if total and total % nodes == 0 else None
        if "gpus-per-task" in self.gpu_options:
            each, tasks = self.gpus_in("gpus-per-task"), self.tasks_per_node
            return each * tasks if each and tasks else None
        return None

    @property
    def time(self) -> Duration | None:
        """The time limit."""
        try:
            return Duration.parse(self.value("time") or "")
        except ValueError:
            return None


def gpu_entries(value: str, *, typed: bool = False) -> list[tuple[str | None, int]]:
    """Return the GPUs in an option's value as (type, count); ``typed``: the value of --gpus and its like, without ``gpu:``."""
    found: list[tuple[str | None, int]] = []
    for entry in value.split(","):
        parts = entry.strip().removeprefix("gres/").removeprefix("gres:").split(":")
        if parts[0] == "gpu":
            parts = parts[1:]
        elif not typed:
            continue
        parts = [part.partition("(")[0] for part in parts]  # gpu:2(S:0-1)
        count = parts.pop() if parts and parts[-1].isdecimal() else "1"
        if entry.strip():
            found.append((parts[0] if parts and parts[0] else None, int(count)))
    return found


def is_placeholder(value: str) -> bool:
    """Return True if a value is to be filled in: ``<project>``, ``[it]``, ``{{ name }}``, ``{name}``, ``!NAME``, ``XXXitXXX``."""
    return not set("<[{!#.X").isdisjoint(value) and (
        re.search(
            r"<[A-Za-z][\w .@/-]*>|\{\{.*\}\}|(?<!\$)\{[A-Za-z_]\w*\}|^!\w+$|^#+$|^\.\.\.$|XXX[a-z]+XXX|\[[A-Za-z][A-Za-z_ ]+\]",
            value,
        )
        is not None
    )


Severity = Literal["error", "warning", "hint"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")
"""Error: Slurm will not do what is written there. Warning: likely wrong. Hint: works, and could be better."""


class Facts(NamedTuple):
    """Facts besides the script; where nothing is known, nothing is said."""

    folder: str = ""
    """Where sbatch is called, an absolute path; empty: not known."""
    paths: Mapping[str, Literal["folder", "file", "missing"]] = MappingProxyType({})
    """Kinds of the paths of ``paths_to_look_at`` on this machine."""
    python: Mapping[str, ScriptFacts] = MappingProxyType({})
    """Facts about the Python scripts that the script starts, by the words that it starts them with."""
    cluster: Cluster | None = None
    submitted: bool = False
    """True if the script is all that sbatch will be told: no environment, no command line adds to it."""
    modules: frozenset[str] = frozenset()
    """The modules of this machine, with their versions and without; none: not asked, or none that are known."""
    shells: Mapping[str, str] = MappingProxyType({})
    """The texts of the shell scripts that the script starts, by the words that it starts them with."""


class Hit(NamedTuple):
    """One place where a rule applies."""

    line: int
    message: str
    fix: str
    severity: Severity | None = None
    """Where it differs from the rule's own."""


class Rule(NamedTuple):
    """One rule: a stable name, how bad it is, what it says in a sentence, and the function that finds it."""

    name: str
    severity: Severity
    about: str
    find: Callable[[View], Iterator[Hit]]
    needs_cluster: bool = False
    judged_before: bool = False
    """True if planning or submission judges the same of a request of our own, before there is a script."""
    taken: bool = False
    """True if sbatch takes the script all the same, though it will not do what stands there."""


class Finding(NamedTuple):
    """A finding of a rule in a script; lines count from 1."""

    line: int
    rule: str
    severity: Severity
    message: str
    fix: str


def rule(
    severity: Severity, *, needs_cluster: bool = False, judged_before: bool = False, taken: bool = False
) -> Callable[[Callable[[View], Iterator[Hit]]], Rule]:
    """Make a rule of the function below it, which gives it its name (with dashes) and what it says (its docstring)."""

    def made(find: Callable[[View], Iterator[Hit]]) -> Rule:
        name = find.__name__.replace("_", "-")
        return Rule(name, severity, find.__doc__ or "", find, needs_cluster, judged_before, taken)

    return made


class View:
    """A script with what the rules want to know of it."""

    def __init__(self, script: Script, facts: Facts) -> None:
        self.script = script
        self.facts = facts

    @cached_property
    def components(self) -> list[Asked]:
        """The options of each component."""
        return [Asked(self.script.effective(one)) for one in range(self.script.components)]

    @cached_property
    def asked(self) -> Asked:
        """The options of the (first) component."""
        return self.components[0]

    @property
    def simple(self) -> tuple[Simple, ...]:
        """The body's simple commands."""
        return self.script.simple_commands()

    @cached_property
    def placed(self) -> tuple[tuple[Simple, tuple[str, ...]], ...]:
        """The body's simple commands, each with what encloses it."""
        found = list(placed_commands(self.script.commands()))
        for at, (one, around) in enumerate(found):
            if one.name == "exit" and not around and (not at or found[at - 1][0].ender in {"", ";"}):
                return tuple(found[: at + 1])  # what is below it never runs
        return tuple(found)

    @cached_property
    def functions(self) -> frozenset[str]:
        """The functions that the body defines."""
        return frozenset(one[:-2] for _, around in self.placed for one in around if one.endswith("()"))

    @cached_property
    def shells(self) -> Mapping[str, str]:
        """The texts of the shell scripts that it starts: of those that lie there, and those that it writes itself."""
        own = {}
        for command in self.script.commands():
            for simple in simple_commands(command) if command.documents else ():
                texts = ("\n".join(document.lines) for document in command.documents)
                own.update(dict.fromkeys(simple.outputs, "\n".join(texts)) if simple.name == "cat" else {})
        return {**self.facts.shells, **own}

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The programs that the body starts; those in ``bash -c`` texts and in scripts beside it after what runs these."""
        found: list[Call] = []
        for call in _calls(self.placed, self.body):
            found.append(call)
            for command in read_shell(self.shells.get(call.shell_script, ""), call.line):
                inner = (one for simple in simple_commands(command) for one in calls_of(simple, call))
                found += (replace(one, line=call.line) for one in inner)
        return tuple(found)

    @cached_property
    def sure(self) -> bool:
        """True if every command is one that we know: no other script or program could start processes."""
        known = {*self.shells, *self.functions}
        return all(
            one.housekeeping or one.trains or one.srun is not None or {one.shell_script, one.name} & known
            for one in self.calls
        )

    @property
    def launches(self) -> bool:
        """True if anything starts several processes: srun, mpirun, torchrun, ..."""
        return any(call.srun is not None or call.by_launcher for call in self.calls)

    @cached_property
    def body(self) -> str:
        """The body's text."""
        return "\n".join(self.script.lines[self.script.body_start - 1 :])

    @cached_property
    def body_lines(self) -> list[tuple[int, str]]:
        """The body's lines with their numbers, without comments."""
        numbered = enumerate(self.script.lines[self.script.body_start - 1 :], self.script.body_start)
        return [(number, text) for number, text in numbered if not text.lstrip().startswith("#")]

    @cached_property
    def comments(self) -> str:
        """The comment lines."""
        return "\n".join(
            line for line in self.script.lines if line.startswith("#") and not line.startswith("#SBATCH")
        )

    def sets(self, variable: str) -> bool:
        """Return True if the body sets a variable."""
        return re.search(rf"(?m)(?:^|[\s;]){variable}=", self.body) is not None


@lru_cache(maxsize=1)
def _calls(placed: tuple[tuple[Simple, tuple[str, ...]], ...], body: str) -> tuple[Call, ...]:
    """Return the same for every view of a script: before and after its facts are known."""
    variables, before = Variables(body), ""
    found: list[Call] = []
    for simple, around in placed:
        found += calls_of(simple, variables=variables)
        variables.read(simple, always=not around and before in {"", ";"} and simple.ender in {"", ";"})
        before = simple.ender
    return tuple(found)
