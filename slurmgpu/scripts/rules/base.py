"""What a rule is, what it sees and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from slurmgpu.models.cluster import Cluster
    from slurmgpu.planning.python_script import ScriptFacts
    from slurmgpu.scripts.rules.view import View

__all__ = ["SEVERITIES", "Facts", "Finding", "Hit", "Rule", "Severity", "rule"]

Severity = Literal["error", "warning", "hint"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")
"""Error: Slurm will not do what stands there. Warning: likely wrong. Hint: works, and could be better."""


class Facts(NamedTuple):
    """What the rules know of the world besides the script; nothing known: nothing is said of it."""

    folder: str = ""
    """Where sbatch is called, an absolute path; empty: not known."""
    paths: Mapping[str, Literal["folder", "file", "missing"]] = MappingProxyType({})
    """What the paths of ``paths_to_look_at`` are on this machine."""
    python: Mapping[str, ScriptFacts] = MappingProxyType({})
    """What the Python scripts show that the script starts, by the words that it starts them with."""
    cluster: Cluster | None = None


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
    """Whether planning or submission judges the same of a request of our own, before there is a script."""
    taken: bool = False
    """Whether sbatch takes the script all the same, though it will not do what stands there."""


class Finding(NamedTuple):
    """What a rule has found in a script; the line is counted from 1."""

    line: int
    rule: str
    severity: Severity
    message: str
    fix: str


def rule(
    name: str,
    severity: Severity,
    about: str,
    *,
    needs_cluster: bool = False,
    judged_before: bool = False,
    taken: bool = False,
) -> Callable[[Callable[[View], Iterator[Hit]]], Rule]:
    """Make a rule of the function below it."""
    return lambda find: Rule(name, severity, about, find, needs_cluster, judged_before, taken)
