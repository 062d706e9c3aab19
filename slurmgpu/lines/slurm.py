"""The options of sbatch and srun in each release, lists of hosts, and the expression of a constraint.

Read in slurm_opt.c of each release, and held against the sbatch and srun of 20.11, 22.05, 24.11 and 26.05 themselves
(tests/slurm/test_reading_lines.py).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from slurmgpu.lines.options import NEWEST, OLDEST, OptionInfo, Release, Table, Takes

__all__ = [
    "MARKS",
    "SBATCH",
    "SPACE",
    "SRUN",
    "Features",
    "abbreviate",
    "expand",
    "read_constraint",
    "read_head",
]


_BOTH, _SBATCH, _SRUN = ("sbatch", "srun"), ("sbatch",), ("srun",)
_REQUIRED = """
account acctg-freq bb bbf begin chdir cluster cluster-constraint clusters comment constraint core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude export
extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
input job-name licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus
network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres
open-mode output partition priority profile qos reservation signal sockets-per-node switches tasks-per-node thread-spec
threads-per-core time time-min tmp wckey
"""
_NONE = """
contiguous help hold overcommit oversubscribe quiet reboot spread-job test-only usage use-min-nodes verbose version
"""
_SBATCH_REQUIRED = "array batch export-file gid kill-on-invalid-dep uid wait-all-nodes wrap"
_SRUN_REQUIRED = """
accel-bind cpu-bind cpu_bind epilog het-group jobid mpi msg-timeout pack-group prolog relative slurmd-debug task-epilog
task-prolog threads wait
"""
_SRUN_NONE = """
debugger-test disable-status exact interactive label multi-prog no-allocate preserve-env quit-on-interrupt unbuffered
whole
"""
_ROWS: tuple[tuple[tuple[str, ...], Takes, Release, Release, str], ...] = (
    (_BOTH, "required", OLDEST, NEWEST, _REQUIRED),
    (_BOTH, "none", OLDEST, NEWEST, _NONE),
    (_BOTH, "optional", OLDEST, NEWEST, "exclusive nice no-kill propagate"),
    (_BOTH, "required", OLDEST, (23, 11), "power"),
    (_BOTH, "required", (21, 8), NEWEST, "container context"),
    (_BOTH, "required", (22, 5), NEWEST, "prefer"),
    (_BOTH, "required", (23, 2), NEWEST, "autocomplete container-id extra tres-per-task"),
    (_BOTH, "required", (23, 11), NEWEST, "tres-bind"),
    (_BOTH, "required", (24, 5), NEWEST, "segment"),
    (_BOTH, "none", (24, 5), NEWEST, "stepmgr"),
    (_BOTH, "optional", (24, 11), NEWEST, "oom-kill-step"),
    (_BOTH, "required", (25, 11), NEWEST, "resources"),
    (_BOTH, "none", (25, 11), NEWEST, "consolidate-segments spread-segments"),
    (_BOTH, "required", NEWEST, NEWEST, "container-type mem-update"),
    (_SBATCH, "required", OLDEST, NEWEST, _SBATCH_REQUIRED),
    (_SBATCH, "none", OLDEST, NEWEST, "ignore-pbs no-requeue parsable wait"),
    (_SBATCH, "optional", OLDEST, NEWEST, "get-user-env requeue"),
    (_SBATCH, "optional", (24, 11), NEWEST, "resv-ports"),
    (_SBATCH, "none", (25, 5), NEWEST, "external"),
    (_SRUN, "required", OLDEST, NEWEST, _SRUN_REQUIRED),
    (_SRUN, "none", OLDEST, NEWEST, _SRUN_NONE),
    (_SRUN, "optional", OLDEST, NEWEST, "bcast compress immediate kill-on-bad-exit overlap pty resv-ports"),
    (_SRUN, "required", OLDEST, (22, 5), "gid uid"),
    (_SRUN, "required", (21, 8), NEWEST, "bcast-exclude"),
    (_SRUN, "optional", (21, 8), NEWEST, "send-libs"),
    (_SRUN, "required", (23, 11), NEWEST, "treewidth"),
    (_SRUN, "optional", (23, 11), NEWEST, "external-launcher"),
    (_SRUN, "none", (25, 5), NEWEST, "wait-for-children"),
    (_SRUN, "required", NEWEST, NEWEST, "ignore-signals"),
    (_SRUN, "none", NEWEST, NEWEST, "async parsable"),
)
# Where only some releases let an option have its value.
_VALUED = {
    "requeue": (NEWEST, NEWEST),
    "get-user-env": (OLDEST, (24, 11)),
    "overlap": ((22, 5), NEWEST),
    "pty": ((24, 11), NEWEST),
}
# What published scripts use of pyxis, Shifter and uenv; the sites' own are without number.
_PLUGIN_REQUIRED = """
container-image container-mounts container-workdir container-name container-save container-env environment image module
uenv view volume
"""
_PLUGIN_NONE = """
container-mount-home no-container-mount-home container-remap-root no-container-remap-root container-writable
container-readonly container-entrypoint no-container-entrypoint
"""
_LETTERS = {
    "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "h": "help", "H": "hold",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters",
    "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "V": "version", "w": "nodelist",
    "W": "wait", "x": "exclude",
}  # fmt: skip
_SRUN_LETTERS = {
    "E": "preserve-env", "I": "immediate", "K": "kill-on-bad-exit", "l": "label", "r": "relative", "T": "threads",
    "u": "unbuffered", "X": "disable-status", "Z": "no-allocate",
}  # fmt: skip
_ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}


def _options(program: str) -> Iterator[OptionInfo]:
    for programs, takes, since, until, names in _ROWS:
        if program in programs:
            for name in names.split():
                yield OptionInfo(name, takes, since, until, valued=_VALUED.get(name, (OLDEST, NEWEST)))
    yield from (OptionInfo(name, "required", plugin=True) for name in _PLUGIN_REQUIRED.split())
    yield from (OptionInfo(name, "none", plugin=True) for name in _PLUGIN_NONE.split())


def _table(program: str, letters: dict[str, str]) -> Table:
    return Table({one.name: one for one in _options(program)}, {**_LETTERS, **letters}, _ALIASES)


SBATCH = _table("sbatch", {"a": "array"})
"""sbatch's options, those of ``#SBATCH`` lines among them."""
SRUN = _table("srun", _SRUN_LETTERS)
"""srun's options; what follows them is the program with its arguments."""

MARKS = ("#SBATCH", "#SLURM")
"""Beginning of a line that sbatch reads as options."""
SPACE = " \t\n\v\f\r"
"""Blanks of C's isspace(); a no-break space is a letter to sbatch."""


def read_head(lines: Sequence[str], marks: tuple[str, ...] = MARKS) -> tuple[list[tuple[int, str, str]], int]:
    """Return the option lines of a script, and the number of its first line that is neither comment nor blank.

    Of an option line its number, counted from 1, its text and its mark. Where every line is a comment or blank, the
    number is one past the last line.
    """
    found: list[tuple[int, str, str]] = []
    for number, line in enumerate(lines, 1):
        mark = next((mark for mark in marks if line.startswith(mark)), None)
        if mark:
            found.append((number, line, mark))
        elif line.strip(SPACE) and not line.lstrip(SPACE).startswith("#"):
            return found, number
    return found, len(lines) + 1


_MOST = 200_000
"""More hosts than any cluster has: a list that stands for more is not expanded."""

_TERM = re.compile(r"(?:[^\[\],]+|\[[^\]]*\])+")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")


def expand(text: str) -> list[str]:
    """Return every host of a list, in its order; what cannot be read is taken as a name."""
    found: list[str] = []
    for term in _TERM.findall(text):
        pieces = [_numbers(inside) if inside else [plain] for inside, plain in _PIECE.findall(term)]
        if len(found) + math.prod(map(len, pieces)) > _MOST:
            return found
        found += ("".join(parts) for parts in itertools.product(*pieces))
    return found


def _numbers(inside: str) -> list[str]:
    """`001-003,7` -> 001 002 003 7, each as wide as its range begins."""
    result: list[str] = []
    for part in inside.split(","):
        low, dash, high = part.partition("-")
        if dash and low.isdigit() and high.isdigit() and 0 <= int(high) - int(low) < _MOST:
            result += (str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
        else:
            result.append(part)
    return result


def abbreviate(hosts: Iterable[str]) -> str:
    """Return the list of these hosts as Slurm writes it: the last number of their names becomes ranges."""
    families: dict[tuple[str, str], list[str]] = {}
    plain: list[str] = []
    for host in dict.fromkeys(hosts):
        match = re.search(r"(\d{1,18})(\D*)\Z", host)
        if match:
            families.setdefault((host[: match.start()], match[2]), []).append(match[1])
        else:
            plain.append(host)
    return ",".join([*plain, *(_family(*ends, numbers) for ends, numbers in families.items())])


def _family(prefix: str, suffix: str, numbers: list[str]) -> str:
    ranges = list(_ranges(sorted(numbers, key=lambda text: (int(text), text))))
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f"{prefix}{ranges[0][0]}{suffix}"
    inside = ",".join(low if low == high else f"{low}-{high}" for low, high in ranges)
    return f"{prefix}[{inside}]{suffix}"


def _ranges(numbers: list[str]) -> Iterator[tuple[str, str]]:
    """First and last of each run, in which every number is written as wide as the first, or wider if it has to be."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != str(int(last) + 1).zfill(len(first)):
            yield first, last
            first = number
        last = number
    yield first, last


_TOKEN = r"(?s)\*0*[1-9]\d*(?=[*&|,)\]]|\Z)|[^&|,*()\[\]]+|."
_NO_MATCH, _NO_OPERATOR = "the brackets do not match", "an operator, & or |, is missing"


class Features(NamedTuple):
    """A feature, or several in brackets or as the whole expression."""

    text: str
    """As written, with its count."""
    parts: tuple[Features, ...] = ()
    """Operands of the operators; none for a feature."""
    operators: frozenset[str] = frozenset()
    """``&``, ``|`` and ``,`` between the parts."""
    counted: bool = False
    """True if a number of nodes stands in it: ``a*2``."""

    @property
    def names(self) -> frozenset[str]:
        """The features in it."""
        if not self.parts:
            return frozenset({self.text.partition("*")[0]})
        return frozenset().union(*(part.names for part in self.parts))


def read_constraint(expression: str) -> Features:
    """Read an expression.

    Raises:
        ValueError: Slurm refuses it; the text says what is wrong.
    """
    if re.search(r"\s", expression):
        raise ValueError("it contains a blank")
    tokens = re.findall(_TOKEN, expression)
    tokens.reverse()
    try:
        found = _joined(tokens)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    if tokens:
        raise ValueError(_NO_MATCH if tokens[-1] in ")]" else _NO_OPERATOR)
    return found


def _joined(tokens: list[str]) -> Features:
    parts, operators = [_one(tokens)], set[str]()
    text = parts[0].text
    while tokens and tokens[-1] in "&|,":
        operator = tokens.pop()
        operators.add(operator)
        parts.append(_one(tokens))
        text += operator + parts[-1].text
    return Features(text, tuple(parts), frozenset(operators), any(part.counted for part in parts))


def _one(tokens: list[str]) -> Features:
    first = tokens.pop() if tokens else ""
    if first[:1] in tuple("&|,)]*") or not first:
        raise ValueError("a feature is missing beside an operator or in brackets")
    found = Features(first)
    if first in "([":
        found = _joined(tokens)
        closing = tokens.pop() if tokens else ""
        if closing != {"(": ")", "[": "]"}[first]:
            raise ValueError(_NO_MATCH if closing in ("", ")", "]") else _NO_OPERATOR)
        found = found._replace(text=first + found.text + closing)
    while tokens and tokens[-1].startswith("*"):
        count = tokens.pop()
        if count == "*":
            raise ValueError("the * wants a number of nodes, 1 or more, behind a feature")
        found = found._replace(text=found.text + count, counted=True)
    return found
