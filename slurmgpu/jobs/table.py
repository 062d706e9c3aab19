"""Statuses as lines for people: a plain table that loses nothing, and the words in its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import NamedTuple

from slurmgpu.amounts import duration
from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.jobs.arrays import ALL, Among, Line, label
from slurmgpu.jobs.arrays import lines as lines_of
from slurmgpu.jobs.look import progress_text
from slurmgpu.jobs.waits import waits, word_of
from slurmgpu.jobs.words import reason
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.printable import printable

__all__ = ["COLUMNS", "Column", "aligned", "columns_of", "in_order", "plain", "table"]


def table(
    jobs: Sequence[JobStatus],
    now: datetime,
    *,
    live: bool = False,
    each_task: bool = False,
    columns: Sequence[Column] = (),
    among: Among = ALL,
) -> tuple[list[tuple[str, ...]], list[Line]]:
    """Return the header and the rows, and what each row after the header stands for; `-` where there is nothing to say.

    An array is one row unless `each_task`. Without `columns` those that say something; what jobs use has some where it was
    asked for (`live`).
    """
    shown = columns or [column for column in COLUMNS if column.shown(jobs, live)]
    lines = lines_of(jobs, each_task=each_task, among=among)
    cells = [[column.name, *(column.text(line, now) or "-" for line in lines)] for column in shown]
    return list(zip(*cells, strict=True)), lines


def plain(
    jobs: Sequence[JobStatus],
    now: datetime,
    *,
    live: bool = False,
    each_task: bool = False,
    columns: Sequence[Column] = (),
) -> str:
    """Return aligned columns without colour; nothing is cut off."""
    rows, _ = table(jobs, now, live=live, each_task=each_task, columns=columns)
    return aligned(rows)


_LONG = 48
"""Characters of a cell, such as a job's name, for which a column is made wide though most of its cells are shorter."""


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of text; a few very long cells move the rest of their own rows alone."""
    columns = []
    for column in zip(*rows, strict=True):
        widths = sorted(map(len, column))
        common = [width for width in widths if width <= _LONG]
        width = common[-1] if len(common) > len(widths) / 2 else widths[-1]
        columns.append([cell.ljust(width) for cell in column])
    return "\n".join(["  ".join(row).rstrip() for row in zip(*columns, strict=True)])


def _gpus(line: Line) -> str | None:
    job = line.job
    if job.gpus is None:
        return None
    types = ",".join(sorted(job.gpu_types))
    each = " each" if line.tasks and job.gpus else ""
    return (f"{job.gpus} {types}" if types else str(job.gpus)) + each


def _limit(job: JobStatus) -> str | None:
    return "UNLIMITED" if job.limit == "UNLIMITED" else duration(job.limit)


def _nodes(job: JobStatus) -> str | None:
    if job.nodes is None:
        return None
    return f"{job.nodes} {job.node_list}" if job.node_list else str(job.nodes)


def _when(job: JobStatus, now: datetime) -> str | None:
    if job.state.is_waiting:
        moment = _expected(job)
        return f"starts {_clock(moment, now)}?" if moment else None
    if job.state.is_final:
        return f"ended {_clock(job.end, now)}" if job.end else None
    return f"since {_clock(job.start, now)}" if job.start else None


def _expected(job: JobStatus) -> datetime | None:
    """Slurm's estimate; of a job that will never start, Slurm may have one all the same."""
    known = waits(word_of(job.reason), job) if job.reason else None
    return None if known is not None and known.never else job.expected_start


def _clock(moment: datetime, now: datetime) -> str:
    """The time in this machine's zone; the date is left out when it is today's."""
    local = moment.astimezone()
    minute = f"{local.hour:02}:{local.minute:02}"
    if local.date() == _today(now):
        return minute
    return f"{local.year:04}-{local.month:02}-{local.day:02} {minute}"


@lru_cache(maxsize=8)
def _today(now: datetime) -> date:
    return now.astimezone().date()


def _exit(job: JobStatus) -> str | None:
    """The exit code, as Slurm's `code:signal` where a signal is in it; 0 stands for success alone."""
    if not job.state.is_final or job.exit_code is None:
        return None
    if job.signal:
        return f"{job.exit_code}:{job.signal}"
    return str(job.exit_code) if job.exit_code or job.state is JobState.COMPLETED else None


def _used(job: JobStatus, field: str, text: Callable[[float], str]) -> str | None:
    """What a job used that has ended is either known or not; a running one was not asked, or has yet to be seen."""
    amount = getattr(job.live or job.used, field, None)
    if amount is None:
        return "n/a" if job.state.is_final else None
    return text(amount)


def _size(amount: float) -> str:
    return f"{amount / 2**30:.2f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"


def _cpus(job: JobStatus) -> str | None:
    of = f" of {job.cpus}" if job.cpus else ""
    return _used(job, "average_cpus", lambda used: f"{used:.1f}{of}")


def _progress(job: JobStatus) -> str | None:
    return None if job.progress is None else progress_text(job.progress, running=not job.state.is_final)


def _gpu_use(job: JobStatus) -> str | None:
    share = job.sampled.gpu_utilisation if job.sampled else None
    return None if share is None else f"{share:.0%}"


def _gpu_memory(job: JobStatus) -> str | None:
    """The most of any task, by Slurm, else of any GPU, by the job's samples; of how much, where that is known."""
    if job.sampled is None or job.sampled.gpu_memory_peak is None or (job.used and job.used.gpu_memory):
        return _used(job, "gpu_memory", _size)
    totals = {gpu.memory_total for gpu in job.sampled.gpus}
    total = next(iter(totals)) if len(totals) == 1 else None
    return _size(job.sampled.gpu_memory_peak) + (f" of {total / 2**30:.0f}" if total else "")


def _shows_use(jobs: Sequence[JobStatus], live: bool) -> bool:
    return live or any(job.live is not None or job.used is not None for job in jobs)


def _shows_gpu_memory(jobs: Sequence[JobStatus], _live: bool) -> bool:
    """Few sites measure it."""
    measured = any(job.used is not None and job.used.gpu_memory is not None for job in jobs)
    return measured or any(
        job.sampled is not None and job.sampled.gpu_memory_peak is not None for job in jobs
    )


Order = Callable[[JobStatus], float | str | None]


class Column(NamedTuple):
    """One column of the table."""

    name: str
    text: Callable[[Line, datetime], str | None]
    """What stands in a line of it, at a moment."""
    left_out: int | None = None
    """When a terminal is too narrow: the lowest goes first; None: never."""
    shown: Callable[[Sequence[JobStatus], bool], bool] = lambda _jobs, _live: True
    """Whether it is there for these jobs, and where their use was asked for."""
    order: Order | None = None
    """What `--sort` goes by, where the text will not do."""

    @property
    def key(self) -> str:
        """How it is called on the command line: `max-rss`."""
        return self.name.lower().replace(" ", "-")

    @property
    def is_use(self) -> bool:
        """Whether it needs what ended jobs used, which accounting is asked for apart."""
        return self.key in _USE


_USE = frozenset({"max-rss", "cpus-used", "gpu-mem"})


def _never(_jobs: Sequence[JobStatus], _live: bool) -> bool:
    """Of a column that is there when it is named."""
    return False


def _several_users(jobs: Sequence[JobStatus], _live: bool) -> bool:
    return len({job.user for job in jobs}) > 1


def _any_restarts(jobs: Sequence[JobStatus], _live: bool) -> bool:
    return any(job.restarts for job in jobs)


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def _moment(job: JobStatus) -> float | None:
    """When it ended, began or will begin: the moment that the column WHEN shows."""
    if job.state.is_waiting:
        return _seconds(_expected(job))
    return _seconds(job.end if job.state.is_final else job.start)


def _time_limit(job: JobStatus) -> float | None:
    return float("inf") if job.limit == "UNLIMITED" else job.limit


def _of_use(name: str) -> Order:
    return lambda job: getattr(job.live or job.used, name, None)


def _asked_when(line: Line, now: datetime) -> str | None:
    return _clock(line.job.submit, now) if line.job.submit else None


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _text(value: str | None) -> str | None:
    return printable(value) if value else None


COLUMNS = (
    Column("JOB", lambda line, _: label(line.job.job_id), order=lambda job: job.array_job_id or job.raw_id),
    Column("NAME", lambda line, _: printable(line.job.name)),
    Column("USER", lambda line, _: _text(line.job.user), 6, _several_users),
    Column("STATE", lambda line, _: line.job.state.value),
    Column("PARTITION", lambda line, _: line.job.partition, 3),
    Column("ACCOUNT", lambda line, _: _text(line.job.account), 1, _never),
    Column("QOS", lambda line, _: _text(line.job.qos), 1, _never),
    Column("GPUS", lambda line, _: _gpus(line), 5, order=lambda job: job.gpus),
    Column("CPUS", lambda line, _: _number(line.job.cpus), 1, _never, lambda job: job.cpus),
    Column("NODES", lambda line, _: _nodes(line.job), 4, order=lambda job: job.nodes),
    Column("SUBMITTED", _asked_when, 1, _never, lambda job: _seconds(job.submit)),
    Column("ELAPSED", lambda line, _: duration(line.job.elapsed), 6, order=lambda job: job.elapsed),
    Column("LIMIT", lambda line, _: _limit(line.job), 2, order=_time_limit),
    Column("LEFT", lambda line, _: duration(line.job.time_left), 2, _never, lambda job: job.time_left),
    Column("WHEN", lambda line, now: _when(line.job, now), 7, order=_moment),
    Column(
        "RESTARTS", lambda line, _: _number(line.job.restarts), 1, _any_restarts, lambda job: job.restarts
    ),
    # What ended a job says the reason, too.
    Column("EXIT", lambda line, _: _exit(line.job), 1, order=lambda job: job.exit_code),
    Column(
        "MAX RSS",
        lambda line, _: _used(line.job, "max_rss", _size),
        shown=_shows_use,
        order=_of_use("max_rss"),
    ),
    Column("CPUS USED", lambda line, _: _cpus(line.job), shown=_shows_use, order=_of_use("average_cpus")),
    Column(
        "GPU USE",
        lambda line, _: _gpu_use(line.job),
        8,
        lambda jobs, _: any(_gpu_use(job) is not None for job in jobs),
    ),
    Column("GPU MEM", lambda line, _: _gpu_memory(line.job), 9, _shows_gpu_memory, _of_use("gpu_memory")),
    Column(
        "PROGRESS",
        lambda line, _: _progress(line.job),
        10,
        lambda jobs, _: any(job.progress is not None for job in jobs),
    ),
    Column("LOG", lambda line, _: _text(line.job.stdout), 1, _never),
    Column("FOLDER", lambda line, _: _text(line.job.work_dir), 1, _never),
    # The longest text last, where it disturbs no column.
    Column("REASON", lambda line, _: "; ".join(filter(None, (line.tasks, reason(line.job))))),
)


def columns_of(words: Iterable[str], where: str) -> tuple[Column, ...]:
    """The columns that a list names, in its order; ``where`` is who names them: ``--columns``.

    InvalidInput for one that there is not, and for one named twice.
    """
    known = {column.key: column for column in COLUMNS}
    found: list[Column] = []
    for word in words:
        key = word.strip().lower().replace(" ", "-").replace("_", "-")
        column = known.get(key)
        if column is None:
            raise InvalidInput(
                f"{where}: there is no column {word.strip()!r}",
                hint=f"{did_you_mean(key, known)}columns are {', '.join(known)}",
            )
        if column in found:
            raise InvalidInput(f"{where}: column {key} is named twice", hint="name it once")
        found.append(column)
    return tuple(found)


def in_order(jobs: Sequence[JobStatus], text: str, now: datetime) -> list[JobStatus]:
    """Jobs sorted by columns, `state,-elapsed`: by the first, then the next; `-` turns one round.

    What a job does not have comes last. InvalidInput for a column that there is not.
    """
    ordered = list(jobs)
    for word in reversed(text.split(",")):
        (column,) = columns_of([word.strip().removeprefix("-")], "--sort")
        value = column.order or _by_text(column, now)
        values = [(value(job), job) for job in ordered]
        having = [(known, job) for known, job in values if known is not None]
        having.sort(key=lambda pair: pair[0], reverse=word.strip().startswith("-"))
        ordered = [job for _, job in having] + [job for known, job in values if known is None]
    return ordered


def _by_text(column: Column, now: datetime) -> Order:
    return lambda job: column.text(Line(job), now)
