"""An allocation for one command: salloc with the options of a job, and srun in it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from slurmgpu.errors import SlurmGpuError, SlurmRefused, SlurmUnreachable
from slurmgpu.models.plan import Option
from slurmgpu.slurm.commands import Answer, Commands, start, submission_env, unreachable
from slurmgpu.slurm.sbatch import advise
from slurmgpu.slurm.text import meaning_of

__all__ = ["NOT_OF_SALLOC", "Heard", "allocate", "allocation_command", "hear", "refusal"]

NOT_OF_SALLOC = frozenset({
    "array", "batch", "cluster-constraint", "container-id", "error", "export", "export-file", "get-user-env",
    "ignore-pbs", "input", "kill-on-invalid-dep", "no-requeue", "open-mode", "output", "parsable", "propagate", "requeue",
    "signal", "test-only", "wait", "wrap",
})  # fmt: skip
"""Options of sbatch that salloc does not take: they speak of a batch script (salloc(1))."""


def allocation_command(options: Sequence[Option], step: Sequence[str]) -> list[str]:
    """Return the words of salloc for a job's options; ``step`` is what its srun is told, the command at the end.

    The step overlaps with all others (--overlap): whoever works in it starts further steps on the same CPUs and GPUs. It
    is no part of an MPI program (--mpi=none), and its variables speak of the job (--preserve-env).
    """
    taken = [str(option) for option in options if option.name not in NOT_OF_SALLOC]
    return ["salloc", *taken, "srun", "--overlap", "--preserve-env", "--mpi=none", *step]


def allocate(
    slurm: Commands,
    options: Sequence[Option],
    step: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    terminal: bool,
) -> subprocess.Popen[bytes]:
    """Ask for nodes and run a step there; what salloc and srun say on stderr comes through a pipe.

    With ``terminal``, input and output are the caller's own. Without, both are pipes, and the terminal's signals reach
    the caller alone. Raises SlurmUnreachable when salloc is not installed here.
    """
    pipe = None if terminal else subprocess.PIPE
    argv = allocation_command(options, step)
    slurm.asked.append(tuple(argv))
    return start(
        argv,
        env=submission_env(env),
        cwd=cwd,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.PIPE,
        start_new_session=not terminal,
        # SIGPIPE stays ignored: salloc is to give the nodes back although nobody hears it say so.
        restore_signals=False,
    )


class Heard(NamedTuple):
    """What one line of salloc's means."""

    kind: Literal["waits", "given", "over", "else"]
    job_id: int | None
    text: str


_LINES = (
    ("waits", r"Pending job allocation (\d+)|job (\d+) queued and waiting"),
    ("given", r"Granted job allocation (\d+)|job (\d+) has been allocated"),
    ("over", r"Relinquishing job allocation (\d+)|Job allocation (\d+) has been revoked"),
)


def hear(line: str) -> Heard | None:
    """Read a line of stderr; None for one that is not salloc's."""
    if not line.startswith("salloc: "):
        return None
    text = line.removeprefix("salloc: ").strip()
    for kind, pattern in _LINES:
        found = re.search(pattern, text)
        if found:
            return Heard(kind, int(found[1] or found[2]), text)  # type: ignore[arg-type]
    return Heard("else", None, text)


def refusal(said: Sequence[str], rc: int) -> SlurmGpuError:
    """Return the error for a salloc that ended without nodes, from its own words."""
    text = "\n".join(said)
    answer = Answer(("salloc",), rc, "", text)
    if meaning_of(answer) in ("no answer", "lost"):
        error = unreachable(answer)
        return SlurmUnreachable(f"no nodes were given. {error.message}", hint=error.hint)
    advice = advise(text)
    meaning = f"\n({advice.meaning})" if advice else ""
    return SlurmRefused(
        f"Slurm refused the request: {text or f'salloc ended with {rc}'}{meaning}",
        hint=advice.act if advice else None,
    )
