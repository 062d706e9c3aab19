"""Processes that ended without a word of their own: what a signal, an exit code or Slurm's state alone tells."""

from __future__ import annotations

from typing import Optional

from .ends import End
from .facts import Facts, signal_name
from .reading import Found, Reading, last_lines
from .row import filled
from .table import row_of
from .telling import Choice
from .traces import is_progress, is_remark

__all__ = ["by_facts", "of_end", "of_memory", "of_row"]


def of_memory(memory: Found, end: Optional[End], cause: Optional[Choice]) -> Choice:
    """Return the OOM killer, and whom it met: as a launcher says, else as the process whose worker is gone."""
    ranks = (memory.rank, end.rank if end else None, cause.rank if cause else None)
    return Choice(memory, end, next((rank for rank in ranks if rank is not None), None), True)


def of_row(
    kind: str, end: Optional[End] = None, rank: Optional[int] = None, by: Optional[str] = None
) -> Choice:
    """Return a failure in the words of its row, where no line of a log shows it."""
    row = row_of(kind)
    return Choice(None, end, rank, True, kind, filled(row.what, {"by": by}), row.fix)


def of_end(end: End, seen: Reading, memory: Optional[Found]) -> Choice:
    """Return a process that ended without a word of its own."""
    if end.memory or (memory is not None and end.signal == 9):
        return of_row("host-memory", end, end.rank)._replace(found=memory)
    if end.signal:
        return _of_signal(end.signal, end, seen)
    what = f"the process ended itself with exit code {end.code}, without an error that slurmgpu knows"
    said = [line for line in last_lines(seen.pieces, 5, outside=True) if not is_progress(line)]
    said = [line for line in said if not is_remark(line)]
    if said:
        what += f"; the last line of the log: {said[-1].strip()[:200]}"
    fix = "look for where the program exits with this code: sys.exit, os._exit"
    if seen.handled:
        error = seen.handled[-1]
        fix += f"; before that it printed an error, and went on: {filled(error.row.what, error.values)[:200]}"
    return Choice(None, end, end.rank, False, "exit-code", what, fix)


def _of_signal(number: int, end: Optional[End], seen: Reading) -> Choice:
    """Return a process that a signal ended, by a launcher's word or by the exit code alone."""
    rank = end.rank if end is not None else None
    if number == 9:
        what = "the process was killed (SIGKILL), and nothing in the logs says by whom"
        fix = (
            "compare its memory with what was asked for (slurmgpu status), and ask for more (memory:, or --mem of sbatch); "
            "dmesg on the node names the killer"
        )
        return Choice(None, end, rank, False, "killed", what, fix)
    kind = {11: "segfault", 7: "bus-error", 4: "illegal-instruction"}.get(number)
    found = next((one for one in seen.host if one.row.id == kind), None)
    if kind is not None:
        return of_row(kind, end, rank)._replace(found=found)
    what = f"the process was ended by {signal_name(number)}"
    return Choice(None, end, rank, False, "signal", what, "look at the last lines of that process")


def by_facts(first: Optional[End], seen: Reading, facts: Facts) -> Optional[Choice]:
    """Return what the exit code alone says."""
    code = facts.exit_code
    if facts.state == "OUT_OF_MEMORY":
        return of_row("host-memory", first)
    if seen.lost or first is not None:
        return None
    if facts.state == "FAILED" and not code and facts.signal in _ASKED:
        name = signal_name(facts.signal)
        what = f"{name} ended the batch shell, which had no trap for it, and nobody cancelled the job"
        what += ": most likely its own --signal=B:"
        fix = "set a trap for it, or drop B:, so that the steps get the signal: slurmgpu check says so of a script"
        return Choice(None, None, None, False, "own-signal", what, fix)
    kind, what = _OF_SHELL.get(code or 0, ("", ""))
    if kind:
        return of_row(kind)._replace(certain=False, what=what)
    number = facts.signal or (code or 0) - 128
    if number in _BY_ITSELF:
        return _of_signal(number, None, seen)._replace(certain=False)
    return None


_OF_SHELL = {
    127: ("command-missing", "a command was not found"),
    126: ("not-executable", "a program could not be executed"),
}
_ASKED = (1, 2, 10, 12, 15)
"""Signals that ask for an end, or for a checkpoint."""
_BY_ITSELF = (4, 6, 7, 8, 9, 10, 11, 12)
"""Signals that end a program, and that are not sent to ask for an end."""
