"""The line of mpirun and mpiexec: how many processes it starts, over all nodes.

Read in mpirun(1) of Open MPI 4.1 and prterun(1) of 5.0, and in Hydra's ui/mpich/utils.c (MPICH 4, Intel MPI).
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["PROGRAMS", "mpi_processes"]

PROGRAMS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
"""The programs that are called so; each starts processes on all nodes of an allocation."""

_NUMBER = frozenset({"n", "np", "c"})
_WITH_A_VALUE = """
N H host hosts f hostfile machinefile default-hostfile x wdir wd path prefix ppn perhost npernode npersocket
map-by rank-by bind-to cpu-set cpu-list cpus-per-proc cpus-per-rank output-filename output stdin timeout tune am
report-uri ompi-server personality display rf rankfile launcher bootstrap rmk iface envlist genvlist configfile
launcher-exec bootstrap-exec outfile-pattern errfile-pattern pmi-port usize errfile hostlist rr-size grr
"""
_VALUES = frozenset(_WITH_A_VALUE.split())
"""Options whose value is the next word."""
_PAIRS = frozenset({"mca", "pmca", "prtemca", "pmixmca", "gmca", "omca", "env", "genv"})
"""Options with two values."""


def mpi_processes(words: Sequence[str]) -> int | None:
    """How many processes a line starts, from the words behind the program; None where it does not say.

    A colon parts programs that start together, each with a number of its own.
    """
    parts: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    numbers = [_number(part) for part in parts]
    if any(number is None for number in numbers):
        return None
    return sum(int(number or 0) for number in numbers)


def _number(words: Sequence[str]) -> int | None:
    """The number of one program; the options end at its first word without a dash."""
    at, found = 0, None
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].lstrip("-").partition("=")
        if name in _NUMBER:
            found = value if equals else "".join(words[at + 1 : at + 2])
        at += 3 if name in _PAIRS else 2 if name in _NUMBER | _VALUES and not equals else 1
    return int(found) if found and found.isdecimal() and int(found) else None
