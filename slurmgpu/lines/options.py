"""Options as programs read them: getopt_long(3), and the parsers of torchrun and apptainer, which follow it.

A program's options are a table; the reading is the same for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = [
    "NEWEST",
    "OF_OTHER_SCHEDULERS",
    "OLDEST",
    "SET_BY_SLURM",
    "Fault",
    "Flaw",
    "Line",
    "Option",
    "OptionInfo",
    "Release",
    "Table",
    "Takes",
    "table",
]


Release = tuple[int, int]
Takes = Literal["none", "required", "optional"]
Flaw = Literal["unknown-option", "ambiguous-option", "missing-value", "unwanted-value"]

OLDEST: Release = (20, 11)
NEWEST: Release = (26, 5)


class OptionInfo(NamedTuple):
    """One option of a program. An optional value stands in the same word, never in the next one."""

    name: str
    takes: Takes
    since: Release = OLDEST
    """The oldest release that has it."""
    until: Release = NEWEST
    """The newest that has it."""
    plugin: bool = False
    """A site's plug-in brings it; the program refuses it at another site."""
    valued: tuple[Release, Release] = (OLDEST, NEWEST)
    """The releases, first and last, in which an optional value may be given."""

    def there(self, release: Release) -> bool:
        """Return True if a release has it."""
        return self.since <= release <= self.until

    def may_have_value(self, release: Release | None) -> bool:
        """Return True if a release lets it have a value; without a release: whether any does."""
        return self.takes != "none" and (release is None or self.valued[0] <= release <= self.valued[1])


class Option(NamedTuple):
    """An option that was given."""

    at: int
    """The index of its word."""
    name: str
    """The long name: abbreviations, letters and aliases resolved; as written where nothing is known of it."""
    value: str | None
    """None where none is given."""
    spelling: str
    """As written: ``-N``, ``--tasks-per-n``."""
    value_at: int
    """The index of the word that the value ends."""
    known: bool = True
    """True if it is the program's own; else a plug-in's, or nobody's."""


class Fault(NamedTuple):
    """Why the program would refuse the line; ``text`` is the word or option concerned."""

    at: int
    text: str
    why: Flaw


class Line(NamedTuple):
    """A program's options, up to its first operand."""

    options: tuple[Option, ...]
    faults: tuple[Fault, ...]
    end: int
    """The index of the first operand; the number of words where there is none."""
    closed: bool
    """True if ``--`` ends the options: every word behind it is an operand."""

    @property
    def given(self) -> dict[str, str | None]:
        """The options' values by long name; of duplicates the last one."""
        return {one.name: one.value for one in self.options}


@dataclass(frozen=True)
class Table:
    """The options of one program."""

    options: Mapping[str, OptionInfo]
    """By long name, aliases included."""
    letters: Mapping[str, str] = field(default_factory=dict)
    """Long names by letter."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Long names that stand for another one."""
    abbreviates: bool = True
    """True if the beginning of a long name will do."""
    underscores: bool = False
    """True if ``_`` is as good as ``-`` in a name."""
    letters_equal: bool = False
    """True if a letter's value may follow ``=``, which is then no part of it."""

    def canonical(self, name: str) -> str:
        """Return the long name that an alias stands for; any other name as it is."""
        return self.aliases.get(name, name)

    def meanings(self, word: str, release: Release | None = None) -> list[str]:
        """Return the options that ``word`` (without its dashes) can mean: one if it is clear, several if not, none if unknown.

        An exact name means itself. Without a release, an abbreviation that only some releases can tell apart means
        what these find.
        """
        if self.underscores:
            word = word.replace("_", "-")
        if word in self.options and (release is None or self.options[word].there(release)):
            return [word]
        if not self.abbreviates:
            return []
        found = [one for one in self.options.values() if one.name.startswith(word) and not one.plugin]
        if release is not None:
            return sorted(one.name for one in found if one.there(release))
        everywhere = [one.name for one in found if one.there(OLDEST) and one.there(NEWEST)]
        return everywhere if len(everywhere) == 1 else sorted(one.name for one in found)

    def read(self, words: Sequence[str], start: int = 0, release: Release | None = None) -> Line:
        """Read options from ``start`` on, up to the first word that is neither an option nor a value of one.

        Of an unknown option no value is looked for in the next word.
        """
        options: list[Option] = []
        faults: list[Fault] = []
        at, closed = start, False
        while at < len(words) and words[at].startswith("-") and words[at] != "-" and not closed:
            first, word = at, words[at]
            at, closed = at + 1, word == "--"
            for spelling, found, value in self._split(word, release) if not closed else ():
                info = self.options[found[0]] if len(found) == 1 else None
                text = word if word.startswith("--") else spelling
                if info is None:
                    faults.append(Fault(first, text, "ambiguous-option" if found else "unknown-option"))
                elif value is not None and not info.may_have_value(release):
                    faults.append(Fault(first, text, "unwanted-value"))
                elif value is None and info.takes == "required":
                    if at < len(words):
                        value, at = words[at], at + 1  # whatever it looks like
                    else:
                        faults.append(Fault(first, text, "missing-value"))
                name = self.canonical(info.name) if info else spelling.lstrip("-")
                known = info is not None and not info.plugin
                options.append(Option(first, name, value, spelling, at - 1, known))
        return Line(tuple(options), tuple(faults), at, closed)

    def _split(self, word: str, release: Release | None) -> Iterator[tuple[str, list[str], str | None]]:
        """Yield the options of a word: each as it is written, what that can mean, and its value in the same word."""
        if word.startswith("--"):
            spelling, equals, value = word.partition("=")
            yield spelling, self.meanings(spelling[2:], release), value if equals else None
            return
        for index, letter in enumerate(word[1:], 2):
            name = self.letters.get(letter)
            if name is not None and self.options[name].takes != "none":
                rest = word[index:].removeprefix("=") if self.letters_equal else word[index:]
                yield f"-{letter}", [name], rest or None
                return
            yield f"-{letter}", [name] if name else [], None

    def read_unexpanded(self, words: Sequence[str], start: int = 0) -> tuple[Line, bool]:
        """Return the same for words of a script, and whether some of them are variables that may hold further options."""
        line, hidden = self.read(words, start), False
        while not line.closed and line.end + 1 < len(words) and re.match(r"\$[\w{]", words[line.end]):
            more, hidden = self.read(words, line.end + 1), True
            line = more._replace(options=line.options + more.options, faults=line.faults + more.faults)
        return line, hidden


def table(
    required: str, none: str, letters: Mapping[str, str], *, abbreviates: bool, underscores: bool
) -> Table:
    """Return a table of options by their names, for a program whose releases do not differ."""
    kinds: tuple[tuple[Takes, str], ...] = (("required", required), ("none", none))
    options = {name: OptionInfo(name, takes) for takes, names in kinds for name in names.split()}
    return Table(options, letters, {}, abbreviates, underscores, letters_equal=True)


OF_OTHER_SCHEDULERS = {
    "PBS_O_WORKDIR": "SLURM_SUBMIT_DIR", "PBS_JOBID": "SLURM_JOB_ID", "PBS_NP": "SLURM_NTASKS",
    "PBS_ARRAYID": "SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX": "SLURM_ARRAY_TASK_ID", "SGE_TASK_ID": "SLURM_ARRAY_TASK_ID",
    "NSLOTS": "SLURM_NTASKS", "LSB_JOBID": "SLURM_JOB_ID", "LSB_JOBINDEX": "SLURM_ARRAY_TASK_ID",
    "LS_SUBCWD": "SLURM_SUBMIT_DIR", "PBS_NUM_PPN": "SLURM_NTASKS_PER_NODE",
    "PBS_NODEFILE": "SLURM_JOB_NODELIST, by scontrol show hostnames",
}  # fmt: skip
"""Variables of other schedulers, and Slurm's own."""
SET_BY_SLURM = tuple(f"SLURM_{name}" for name in (
    "ARRAY_JOB_ID", "ARRAY_TASK_COUNT", "ARRAY_TASK_ID", "ARRAY_TASK_MAX", "ARRAY_TASK_MIN", "ARRAY_TASK_STEP",
    "CLUSTER_NAME", "CONF", "CPUS_ON_NODE", "CPUS_PER_GPU", "CPUS_PER_TASK", "CPU_BIND", "DISTRIBUTION", "EXPORT_ENV",
    "GPUS", "GPUS_ON_NODE", "GPUS_PER_NODE", "GPUS_PER_TASK", "GPU_BIND", "GTIDS", "HET_SIZE", "HINT", "JOBID",
    "JOB_ACCOUNT", "JOB_CPUS_PER_NODE", "JOB_DEPENDENCY", "JOB_END_TIME", "JOB_GPUS", "JOB_ID", "JOB_NAME", "JOB_NODELIST",
    "JOB_NUM_NODES", "JOB_PARTITION", "JOB_QOS", "JOB_RESERVATION", "JOB_START_TIME", "JOB_UID", "JOB_USER",
    "LAUNCH_NODE_IPADDR", "LOCALID", "MEM_PER_CPU", "MEM_PER_GPU", "MEM_PER_NODE", "NNODES", "NODEID", "NODELIST",
    "NODE_ALIASES", "NPROCS", "NTASKS", "NTASKS_PER_CORE", "NTASKS_PER_GPU", "NTASKS_PER_NODE", "NTASKS_PER_SOCKET",
    "PRIO_PROCESS", "PROCID", "RESTART_COUNT", "SHARDS_ON_NODE", "SRUN_COMM_HOST", "STEPID", "STEP_GPUS", "STEP_ID",
    "STEP_NODELIST", "STEP_NUM_NODES", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "SUBMIT_DIR", "SUBMIT_HOST",
    "TASKS_PER_NODE", "TASK_PID", "THREADS_PER_CORE", "TMPDIR", "TOPOLOGY_ADDR", "UMASK", "CONTAINER", "WORKING_DIR",
    "WORKING_CLUSTER",
))  # fmt: skip
"""sbatch(1) and srun(1), OUTPUT ENVIRONMENT VARIABLES; SLURM_TMPDIR is a common one of sites."""
