"""mpirun: Open MPI's or MPICH's own launcher, where srun cannot start MPI programs; it takes the nodes from Slurm.

Its options are those of mpirun(1) of Open MPI 4.1, prterun(1) of 5.0, and Hydra's ui/mpich/utils.c (MPICH 4, Intel MPI).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurmgpu.errors import PlanError
from slurmgpu.launchers._base import Started, spread, whole_command
from slurmgpu.launchers.srun import Tasks
from slurmgpu.lines.command import runner_length

if TYPE_CHECKING:
    from slurmgpu.models.environment import Environment
    from slurmgpu.models.job import Job
    from slurmgpu.models.plan import Plan

__all__ = ["LAUNCHER", "mpi_processes"]

# Open MPI's variables, or those of Hydra (MPICH, Intel MPI).
_RANKS = (
    'RANK="${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" WORLD_SIZE="${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}" '
    'LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}" '
    'LOCAL_WORLD_SIZE="${OMPI_COMM_WORLD_LOCAL_SIZE:-$MPI_LOCALNRANKS}"'
)


class Mpirun(Tasks):
    """The batch shell starts it once, and it starts the processes on all nodes, one per GPU."""

    template = "launcher/mpirun.sh.j2"
    by_srun = False
    without_srun = True
    tasks_begin = 2
    task_rank = "RANK"
    programs = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
    spreads = True

    def check(self, name: str, job: Job, environment: Environment) -> None:
        super().check(name, job, environment)
        if job.train is not None:
            raise PlanError(
                "launch: mpirun starts commands, and a training takes its rank from Slurm",
                hint="leave launch out: srun starts one task per GPU",
            )

    def cpus_of_a_task(self, plan: Plan) -> int | None:
        """mpirun has srun start one agent on each node, in whose share all processes of the node run."""
        return None if plan.cpus_per_task is None else plan.cpus_per_task * plan.tasks_per_node

    def passes_on(self, plan: Plan) -> dict[str, str] | None:
        """mpirun passes USR1 and USR2 on; at TERM it ends its processes."""
        return {"TERM": "TERM", "USR1": "USR1", "USR2": "USR2"}

    def lines(self, plan: Plan) -> list[str]:
        return [
            f"mpirun -n {plan.nodes * plan.processes_per_node}",
            f"sh -c 'export {_RANKS}; exec \"$@\"' sh",
            whole_command(plan),
        ]

    def started(self, words: tuple[str, ...], gpus: int, nodes: int) -> Started:
        at = runner_length(words)
        return spread(words[at], mpi_processes(words[at + 1 :]), nodes)


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
    """Return how many processes a line starts, from the words behind the program; None where it does not say.

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
    """Return the number of one program; the options end at its first word without a dash."""
    at, found = 0, None
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].lstrip("-").partition("=")
        if name in _NUMBER:
            found = value if equals else "".join(words[at + 1 : at + 2])
        at += 3 if name in _PAIRS else 2 if name in _NUMBER | _VALUES and not equals else 1
    return int(found) if found and found.isdecimal() and int(found) else None


LAUNCHER = Mpirun()
