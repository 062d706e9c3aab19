"""Doubts about a first cause: another one in the same log, or silence before Slurm ended the job.

A cause that something speaks against is told as likely, with the line that does.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from .ends import moment_in
from .reading import Found, Reading, last_lines
from .table import NEEDS_SETUP, SETUP
from .table.lines import COMPLAINT
from .telling import Choice
from .traces import Place, is_noise, is_progress, is_remark

__all__ = ["complaints", "weigh"]

_ANNOUNCED = 2  # lines before a traceback in which a program says that one follows
_LAST = 10  # lines at the end of a log, of which one is a step where a training goes on
_FAR = 400  # lines before a cause in which another one is looked for
_GOES_ON = 2  # lines behind a traceback, as a script writes them whose program has ended
_SILENCE = timedelta(minutes=30)  # between a program's last line and its time limit
_HUNG = "see what it waited for (py-spy dump, the last lines of its log); where it worked without a word, ask for more time"
_ENDS = frozenset(("aborted", "mpi-abort"))  # how a process ended itself, and not why
_FROM_START = frozenset((*SETUP, "carriage-return"))


def weigh(choice: Choice, seen: Reading) -> Choice:
    """Return the cause as likely, with what speaks against it, where something does."""
    found = choice.found
    if "time-limit" in (choice.kind, found and found.row.id):
        return _weigh_silence(choice, seen) if choice.certain else choice
    if found is not None and found.row.role in ("job", "stop"):
        return choice
    against: list[str] = []
    if found is not None:
        against += _other_causes(found, seen) if found.row.role in ("cause", "host") else ()
        open_traces = (one for one in seen.open_traces(found.at) if one.rank is None and not found.rank)
        said = found.evidence[-1]
        against += (one.exceptions[0] for one in open_traces if said not in "\n".join(one.exceptions))
    if found is not None and found.trace and found.rank is None and choice.end is None:
        # Nobody says that a process ended with it, and the script went on.
        against += last_lines(seen.pieces, 1, outside=True) if seen.lines_after(found) > _GOES_ON else []
    sure = choice.certain and (found is None or (found.specific and found.row.id not in _ENDS))
    # What a line says that no row knows does not outweigh an exception that one does.
    if not sure or (found is not None and not found.trace):
        against += complaints(seen, found, choice.end and choice.end.at, everywhere=not sure)
    lines = list(dict.fromkeys(text.splitlines()[0].strip() for text in against))
    if not lines:
        return choice
    lines = [lines[0], *lines[-1:]] if len(lines) > 1 else lines
    also = f"the log also says: {'; '.join(line[:160] for line in lines)}"
    found = found and found._replace(evidence=(*found.evidence, *lines))
    return choice._replace(found=found, certain=False, also=(*choice.also, also))


def _other_causes(found: Found, seen: Reading) -> Iterator[str]:
    for one in (*seen.causes, *seen.setup, *seen.host):
        later = one.at > found.at and (found.trace or found.row.id in _FROM_START)
        same = one.row.id in (found.row.id, "aborted") or (
            found.specific and found.row.match(one.evidence[-1])
        )
        of_setup = found.row.id in _FROM_START and one.row.id in (*NEEDS_SETUP, *_FROM_START)
        if not later and not same and not of_setup and one.rank in (None, found.rank):
            yield " ".join(filter(None, (one.evidence[-1], one.values.get("detail"))))


def complaints(
    seen: Reading, found: Found | None = None, end: Place | None = None, *, everywhere: bool = True
) -> list[str]:
    """Return the lines that tell of an error, and that no row knows, back from a cause or an end to the last progress.

    ``everywhere``: from the ends of the other logs, too. A heading comes with the line below it.
    """
    place = found.at if found is not None else end
    lines: list[str] = []
    numbers = range(len(seen.pieces))
    for number in sorted(numbers, key=lambda number: place is not None and number != place[0]):
        piece, inside = seen.pieces[number], seen.inside_traces(number)
        at, before = len(piece), list[str]()
        if place is not None and place[0] == number:
            at = place[1] - (_ANNOUNCED if found is not None and found.trace else 0)
        elif not everywhere:
            continue
        below = ""
        for line in (piece[n] for n in range(at - 1, max(-1, at - _FAR), -1) if n not in inside):
            text = line.text.strip(" *|")
            if is_progress(text) and (below or not COMPLAINT.search(text)):  # a last line may tell of both
                break
            known = found is not None and (line.text in found.evidence or line.rank not in (None, found.rank))
            if not (is_noise(line.text) or is_remark(line.text) or known) and COMPLAINT.search(text):
                before.append(f"{text} {below}" if text.endswith(":") else text)
            below = text or below
        lines += reversed(before)
    return lines


def _weigh_silence(choice: Choice, seen: Reading) -> Choice:
    """Judge whether a job hung: it wrote nothing for long before its time limit, or complained instead of going on."""
    event, now = choice.found, datetime.now(timezone.utc)
    limit = moment_in(seen.line(event.at), now) if event is not None else None
    shown: list[str] = []
    for number, piece in enumerate(seen.pieces):
        end = event.at[1] if event is not None and event.at[0] == number else len(piece)
        texts = [piece[at].text.strip() for at in range(max(0, end - _LAST), end)]
        shown += [
            text for text in texts if text and not text.startswith(("slurmstepd", "srun: ", "slurmgpu: "))
        ]
    found = (moment_in(text, now) for text in shown)
    moments = [one for one in found if one is not None and (limit is None or one <= limit)]
    if limit is not None and moments and limit - max(moments) > _SILENCE:
        hours = (limit - max(moments)).total_seconds() / 3600
        also = f"the last line of its log is {hours:.1f} h older, by the clock of the log"
        return choice._replace(certain=False, fix=_HUNG, also=(*choice.also, also))
    if not shown or any(map(is_progress, shown)):
        return choice
    also = f"its log ends without a step: {shown[-1][:200]}"
    stuck = COMPLAINT.search(shown[-1]) is not None
    return choice._replace(certain=not stuck, fix=_HUNG if stuck else choice.fix, also=(*choice.also, also))
