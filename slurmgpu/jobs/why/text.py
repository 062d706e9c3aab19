"""The answer of ``slurmgpu why`` as lines for people."""

from __future__ import annotations

import textwrap
from datetime import datetime, timedelta

from slurmgpu.jobs.view import outcome_of
from slurmgpu.jobs.why.answer import Shape, Start, Why, clock, span
from slurmgpu.printable import printable

_LEAST_GAP = 5 * 60
_LATER = timedelta(minutes=3)
_VERDICTS = {
    "waits": "is waiting", "held": "is held", "never": "is waiting, and will never start as it is", "runs": "is running",
    "stopped": "stopped in good order", "unknown": "is unknown",
}  # fmt: skip


def verdict_of(why: Why) -> str:
    """Return in a word or two what a job does, or how it ended."""
    return _VERDICTS.get(why.verdict) or outcome_of(why.job.state)


def why_lines(why: Why, now: datetime, width: int) -> list[str]:
    """Return the answer for people: the sentence, then what it rests on, then what can be done."""

    def folded(text: str, mark: str, hang: str = "") -> list[str]:
        return textwrap.wrap(
            text,
            width,
            initial_indent=mark,
            subsequent_indent=" " * len(mark) + hang,
            break_long_words=False,
            break_on_hyphens=False,
        )

    job = why.job
    name = f" ({printable(job.name)})" if job.name else ""
    verdict = verdict_of(why)
    first = f"job {job.job_id}{name} {verdict}"
    if why.verdict in ("waits", "held", "never") and job.reason:
        first += f"; Slurm's reason: {printable(job.reason)}"
    lines = ["", *folded(first, "", "    ")]
    # The first line, or the first cause, may say all that the sentence does.
    in_cause = bool(why.end) and (why.sentence in why.end[0] or why.sentence.startswith("the command failed"))
    if why.sentence not in (verdict, "runs", "completed", "failed") and not in_cause:
        lines += folded(why.sentence, "  ")
    lines += [
        line for fact in why.facts if fact.text not in why.sentence for line in folded(fact.text, "  - ")
    ]
    for line in why.end:
        text = line.lstrip()
        lines += folded(text, " " * (2 + len(line) - len(text)), "  ")
    if why.start is not None:
        lines += folded(_start(why.start, now), "  - ")
    if why.shapes is not None:
        lines += ["what would start, by Slurm's estimate for a new job (sbatch --test-only; no promise):"]
        lines += [line for text in _shapes(why, now) for line in folded(text, "  - ")]
    if why.mends:
        lines += ["what to do:"]
        for mend in why.mends:
            lines += folded(mend.text, "  - ")
            lines += [f"      {printable(mend.command)}"] if mend.command else []
    lines += [
        line
        for what, why_not in why.unknown.items()
        for line in folded(f"{what}: {printable(why_not)}", "  ? ")
    ]
    return lines


def _start(start: Start, now: datetime) -> str:
    if start.expected is None:
        text = "Slurm has no estimate of its start yet"
        if start.before is not None and start.looked is not None:
            text += f"; at your last look ({clock(start.looked, now)}) it was {clock(start.before, now)}"
        return text
    wait = (start.expected - now).total_seconds()
    when = f"in {span(wait)}" if wait > 0 else "any moment"
    text = f"Slurm expects it to start at {clock(start.expected, now)}, {when}"
    if start.looked is None:
        return text
    looked = clock(start.looked, now)
    if start.before is None:
        return f"{text}; at your last look ({looked}) there was no estimate"
    moved = (start.expected - start.before).total_seconds()
    if abs(moved) < 60:
        return f"{text}; the same as at your last look ({looked})"
    return f"{text}; {span(moved)} {'later' if moved > 0 else 'earlier'} than at your last look ({looked})"


def _gap(shape: Shape) -> str:
    """That it fits what is free before the jobs ahead are to start: Slurm's estimate does not look for such gaps."""
    if shape.free_for is None or shape.free_for < _LEAST_GAP:
        return ""
    if shape.limit is not None and shape.limit <= shape.free_for:
        return "; but it fits what is free now, and holds up no job ahead: Slurm may start it at once"
    return (
        f"; but it fits what is free now, where with at most {span(shape.free_for)} it holds up no job ahead"
    )


def _shapes(why: Why, now: datetime) -> list[str]:
    found = []
    for one in why.shapes or ():
        what = f"with {' '.join(one.options)}" if one.options else "as it is"
        if one.refused is not None:
            found.append(f"{what}: never; Slurm says: {printable(one.refused)}")
        else:
            text = f"{what}: {clock(one.start, now) if one.start else 'unknown'}"
            if one.start and one.start > now + _LATER:
                text += _gap(one)
            found.append(text)
    return found
