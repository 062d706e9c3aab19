"""The table of jobs: its columns, its order, the jobs that are wanted, and the facts of one job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from slurmgpu.amounts import duration
from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.jobs.arrays import ALL, Among, Line
from slurmgpu.jobs.arrays import lines as lines_of
from slurmgpu.jobs.view import JobView
from slurmgpu.models.run import JobStatus
from slurmgpu.printable import printable
from slurmgpu.slurm import JobId

__all__ = [
    "COLUMNS", "FACT_NAMES", "MOST", "SORTS", "Column", "How", "aligned", "cell", "columns_of", "facts_of", "in_order", "key_of",
    "plain", "shown", "table",
]  # fmt: skip

Order = Callable[[JobStatus], float | str | None]

MOST = 500
"""Lines of a table that is looked at as a whole; of more, a filter finds the rest."""

SORTS = ("job", "-job", "state,-job", "name,job", "-gpus,-job", "-elapsed")
"""The orders that `s` goes through in `top`, as ``status --sort`` has them."""


class Column(NamedTuple):
    """One column of the table."""

    name: str
    text: Callable[[JobView], str | None]
    """Its cell."""
    left_out: int | None = None
    """When a terminal is too narrow: the lowest goes first; None: never."""
    shown: Callable[[Sequence[JobStatus], bool], bool] = lambda _jobs, _live: True
    """Returns True if it is there for these jobs, and where their use was asked for."""
    order: Order | None = None
    """What `--sort` goes by, where the text will not do."""

    @property
    def key(self) -> str:
        """How it is called on the command line: `max-rss`."""
        return self.name.lower().replace(" ", "-")

    @property
    def is_use(self) -> bool:
        """True for a column that needs what ended jobs used, which accounting is asked for apart."""
        return self.key in ("max-rss", "cpus-used", "gpu-mem")


def _only_if_named(_jobs: Sequence[JobStatus], _live: bool) -> bool:
    return False


def _use_is_known(jobs: Sequence[JobStatus], live: bool) -> bool:
    return live or any(job.live is not None or job.used is not None for job in jobs)


def _gpu_memory_is_known(jobs: Sequence[JobStatus], _live: bool) -> bool:
    """Few sites measure it."""
    measured = any(job.used is not None and job.used.gpu_memory is not None for job in jobs)
    return measured or any(
        job.sampled is not None and job.sampled.gpu_memory_peak is not None for job in jobs
    )


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _text(value: str | None) -> str | None:
    return printable(value) if value else None


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def _by_moment(job: JobStatus) -> float | None:
    return _seconds(JobView(Line(job), datetime.max).moment)


def _by_limit(job: JobStatus) -> float | None:
    return float("inf") if job.limit == "UNLIMITED" else job.limit


def _by_use(name: str) -> Order:
    return lambda job: getattr(job.live or job.used, name, None)


COLUMNS = (
    Column("JOB", lambda view: view.label, order=lambda job: job.array_job_id or job.raw_id),
    Column("NAME", lambda view: printable(view.job.name)),
    Column("USER", lambda view: _text(view.job.user), 6, lambda jobs, _: len({job.user for job in jobs}) > 1),
    Column("STATE", lambda view: view.job.state.value),
    Column("PARTITION", lambda view: view.job.partition, 3),
    Column("ACCOUNT", lambda view: _text(view.job.account), 1, _only_if_named),
    Column("QOS", lambda view: _text(view.job.qos), 1, _only_if_named),
    Column("GPUS", lambda view: view.gpus, 5, order=lambda job: job.gpus),
    Column("CPUS", lambda view: _number(view.job.cpus), 1, _only_if_named, lambda job: job.cpus),
    Column("NODES", lambda view: view.nodes, 4, order=lambda job: job.nodes),
    Column("SUBMITTED", lambda view: view.submitted, 1, _only_if_named, lambda job: _seconds(job.submit)),
    Column("ELAPSED", lambda view: duration(view.job.elapsed), 6, order=lambda job: job.elapsed),
    Column("LIMIT", lambda view: view.limit, 2, order=_by_limit),
    Column("LEFT", lambda view: duration(view.job.time_left), 2, _only_if_named, lambda job: job.time_left),
    Column("WHEN", lambda view: view.when, 7, order=_by_moment),
    Column(
        "RESTARTS",
        lambda view: _number(view.job.restarts),
        1,
        lambda jobs, _: any(job.restarts for job in jobs),
        lambda job: job.restarts,
    ),
    # What ended a job says the reason, too.
    Column("EXIT", lambda view: view.exit_code, 1, order=lambda job: job.exit_code),
    Column("MAX RSS", lambda view: view.max_rss, shown=_use_is_known, order=_by_use("max_rss")),
    Column("CPUS USED", lambda view: view.cpus_used, shown=_use_is_known, order=_by_use("average_cpus")),
    Column(
        "GPU USE",
        lambda view: view.gpu_use,
        8,
        lambda jobs, _: any(job.sampled and job.sampled.gpu_utilisation is not None for job in jobs),
    ),
    Column("GPU MEM", lambda view: view.gpu_memory, 9, _gpu_memory_is_known, _by_use("gpu_memory")),
    Column(
        "PROGRESS",
        lambda view: view.progress,
        10,
        lambda jobs, _: any(job.progress is not None for job in jobs),
    ),
    Column("LOG", lambda view: _text(view.job.stdout), 1, _only_if_named),
    Column("FOLDER", lambda view: _text(view.job.work_dir), 1, _only_if_named),
    # The longest text last, where it disturbs no column.
    Column("REASON", lambda view: view.reason),
)
_BY_KEY = {column.key: column for column in COLUMNS}

_FACTS = {
    "partition": "partition", "nodes": "nodes", "account": "account", "gpus": "GPUs", "qos": "QOS", "cpus": "CPUs",
    "submitted": "submitted", "limit": "limit", "when": "when", "elapsed": "elapsed", "user": "user", "restarts": "restarts",
    "exit": "exit", "max-rss": "memory",
}  # fmt: skip
FACT_NAMES = tuple(_FACTS.values())


def cell(key: str, view: JobView) -> str:
    """Return what a column says of a job, by the column's key."""
    return printable(_BY_KEY[key].text(view) or "")


def facts_of(view: JobView) -> dict[str, str]:
    """Return what Slurm says of one job by the names of the facts, without those that are not known."""
    found = {name: cell(key, view) for key, name in _FACTS.items()}
    return {name: text for name, text in found.items() if text and text != "n/a"}


def columns_of(words: Iterable[str], where: str) -> tuple[Column, ...]:
    """Return the columns that a list names, in its order; ``where`` is who names them: ``--columns``.

    Raises InvalidInput for one that there is not, and for one named twice.
    """
    found: list[Column] = []
    for word in words:
        key = word.strip().lower().replace(" ", "-").replace("_", "-")
        column = _BY_KEY.get(key)
        if column is None:
            raise InvalidInput(
                f"{where}: there is no column {word.strip()!r}",
                hint=f"{did_you_mean(key, _BY_KEY)}columns are {', '.join(_BY_KEY)}",
            )
        if column in found:
            raise InvalidInput(f"{where}: column {key} is named twice", hint="name it once")
        found.append(column)
    return tuple(found)


def in_order(jobs: Sequence[JobStatus], text: str, now: datetime) -> list[JobStatus]:
    """Return jobs sorted by columns, `state,-elapsed`: by the first, then the next; `-` turns one round.

    What a job does not have comes last. Raises InvalidInput for a column that there is not.
    """
    ordered = list(jobs)
    for word in reversed(text.split(",")):
        (column,) = columns_of([word.strip().removeprefix("-")], "--sort")
        if column.order is not None:
            values = [(column.order(job), job) for job in ordered]
        else:
            values = [(column.text(JobView(Line(job), now)), job) for job in ordered]
        having = [(known, job) for known, job in values if known is not None]
        having.sort(key=lambda pair: pair[0], reverse=word.strip().startswith("-"))
        ordered = [job for _, job in having] + [job for known, job in values if known is None]
    return ordered


class How(NamedTuple):
    """How the jobs are to be shown."""

    each_task: bool = False
    sort: str = "-job"
    words: str = ""
    """Each of its words has to be found in a job: in its id, name, user, state, partition, account or nodes."""


def shown(jobs: Sequence[JobStatus], how: How, now: datetime, since: datetime | None = None) -> list[Line]:
    """Return the lines that are wanted, in order; of jobs that ended before `since` some may be missing."""
    words = how.words.lower().split()
    found = [job for job in jobs if all(word in _searched(job) for word in words)] if words else jobs
    among = Among(since, bool(words))
    return lines_of(in_order(found, how.sort, now), each_task=how.each_task, among=among)


def _searched(job: JobStatus) -> str:
    """Return what a person may type to find the job, in lower case."""
    number = JobId.parse(job.job_id)
    return " ".join(
        (str(number.number) if number else "", job.job_id, job.name, job.user or "", job.state.value,
         job.partition or "", job.account or "", job.node_list or "")
    ).lower()  # fmt: skip


def key_of(line: Line) -> str:
    """Return what a line is known by from look to look."""
    return f"{line.job.cluster} {line.job.job_id}"


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
    there = columns or [column for column in COLUMNS if column.shown(jobs, live)]
    lines = lines_of(jobs, each_task=each_task, among=among)
    views = [JobView(line, now) for line in lines]
    cells = [[column.name, *(column.text(view) or "-" for view in views)] for column in there]
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
