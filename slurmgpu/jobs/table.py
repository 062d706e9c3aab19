"""The table of jobs: its lines, an array in one of them, its columns and its order; and the facts of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from slurmgpu.amounts import duration
from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.jobs.view import JobView, Line
from slurmgpu.models.job import Array
from slurmgpu.models.run import JobState, JobStatus, JobUse
from slurmgpu.printable import printable
from slurmgpu.slurm import JobId

__all__ = [
    "COLUMNS", "FACT_NAMES", "MOST", "SORTS", "Column", "How", "apart", "cell", "columns_of", "facts_of", "in_order",
    "key_of", "known", "lines", "only", "shown", "table",
]  # fmt: skip

T = TypeVar("T")
Order = Callable[[JobStatus], float | str | None]

MOST = 500
"""Lines of a table that is looked at as a whole; of more, a filter finds the rest."""
SORTS = ("job", "-job", "state,-job", "name,job", "-gpus,-job", "-elapsed")
"""The orders that `s` goes through in `top`, as ``status --sort`` has them."""

_WORDS = {JobState.RUNNING: "running", JobState.PENDING: "waiting", JobState.OUT_OF_MEMORY: "out of memory"}
# What an array is called while its tasks differ: the first of these that one of them is in.
_ORDER = (
    "UNKNOWN RUNNING COMPLETING CONFIGURING SUSPENDED PENDING REQUEUED FAILED OUT_OF_MEMORY TIMEOUT NODE_FAIL BOOT_FAIL "
    "DEADLINE PREEMPTED CANCELLED REVOKED COMPLETED"
)
_FIRST = [JobState(word) for word in _ORDER.split()]
_MOST_NAMED = 8
_MOST_APART = 10_000


def lines(
    jobs: Sequence[JobStatus], *, each_task: bool = False, since: datetime | None = None, chosen: bool = False
) -> list[Line]:
    """Return the lines of a table, in the order of the jobs; an array is one line, where its first task was.

    Tasks that ended before ``since`` may be missing (None: none is for that), and with ``chosen`` others, too.
    """
    if each_task:
        return [Line(task) for job in jobs for task in apart(job)]
    # squeue names no cluster where there is one, and sacct does; tasks that have left the queue are of the same array.
    clusters = {job.cluster for job in jobs if job.cluster}
    lone = next(iter(clusters)) if len(clusters) == 1 else None
    arrays: dict[tuple[str | None, int], list[JobStatus]] = {}
    for job in jobs:
        if job.array_job_id is not None:
            arrays.setdefault((job.cluster or lone, job.array_job_id), []).append(job)
    result = []
    for job in jobs:
        array = job.array_job_id
        tasks = [job] if array is None else arrays.pop((job.cluster or lone, array), None)
        if tasks is not None:
            alone = len(tasks) == 1 and _count(tasks[0]) == 1
            result.append(Line(tasks[0]) if alone else _together(tasks, since, chosen))
    return result


def apart(job: JobStatus) -> list[JobStatus]:
    """Tasks that wait together, of which Slurm keeps one record, each by itself; of very many, and of other jobs, the record."""
    limit = (job.array_tasks or "").partition("%")[2].rstrip("]")
    tasks = _waiting(job.array_tasks)
    if tasks is None or tasks.tasks > _MOST_APART:
        return [job]
    return [
        job.model_copy(update={"job_id": f"{job.array_job_id}_{number}",
                               "array_tasks": f"[{number}%{limit}]" if limit else str(number)})
        for number in tasks.numbers
    ]  # fmt: skip


def only(job: JobStatus, named: Iterable[JobId]) -> list[JobStatus]:
    """Of tasks that wait together those that are named; the record itself where the array is, or another job."""
    named = list(named)
    number = JobId.parse(job.job_id)
    if _waiting(job.array_tasks) is None or number is None:
        return [job]
    if any(one.tasks is None or one.tasks == number.tasks for one in named if one.number == number.number):
        return [job]
    tasks = [(task, JobId.parse(task.job_id)) for task in apart(job)]
    return [task for task, own in tasks if own is not None and any(one.covers(own) for one in named)] or [job]


def known(values: Iterable[T | None]) -> list[T]:
    """Return what Slurm said, without what it did not say."""
    return [value for value in values if value is not None]


def _together(tasks: list[JobStatus], since: datetime | None, chosen: bool) -> Line:
    first = min(tasks, key=lambda task: _FIRST.index(task.state))
    alike = [task for task in tasks if task.state is first.state]
    worst = max(tasks, key=lambda task: (task.signal or 0, task.exit_code or 0))
    update = {
        "job_id": str(first.array_job_id), "node_list": None,
        "elapsed": max(known(t.elapsed for t in tasks), default=None),
        "start": min(known(t.start for t in tasks), default=None),
        "end": max(known(t.end for t in tasks), default=None),
        "expected_start": min(known(t.expected_start for t in alike), default=None),
        "exit_code": worst.exit_code, "signal": worst.signal, "used": _used(tasks), "progress": None, "sampled": None,
    }  # fmt: skip
    return Line(first.model_copy(update=update), _summary(tasks, since, chosen))


def _used(tasks: list[JobStatus]) -> JobUse | None:
    """Return the most that any task used, and the CPUs of a task on average; None where no task's use was asked for."""
    measured = [(task.used, task.elapsed or 0) for task in tasks if task.used is not None]
    if not measured:
        return None
    times = [(use.cpu_seconds, elapsed) for use, elapsed in measured if use.cpu_seconds is not None]
    elapsed = sum(elapsed for _, elapsed in times)
    seconds = sum(seconds for seconds, _ in times) if times else None
    return JobUse(
        max_rss=max(known(use.max_rss for use, _ in measured), default=None),
        cpu_seconds=seconds,
        average_cpus=seconds / elapsed if seconds is not None and elapsed else None,
        gpu_memory=max(known(use.gpu_memory for use, _ in measured), default=None),
    )


def _summary(tasks: list[JobStatus], since: datetime | None, chosen: bool) -> str:
    """``4/9 tasks done, 2 failed (3, 7), 3 waiting``; of how many only where all of them are known."""
    counts: Counter[JobState] = Counter()
    for task in tasks:
        counts[task.state] += _count(task)
    done, total = counts.pop(JobState.COMPLETED, 0), counts.total()
    submitted = min(known(task.submit for task in tasks), default=None)
    since = since if submitted is None or (since and submitted < since) else None
    if not chosen and since is None:
        parts = [f"{done}/{done + total} task{'' if done + total == 1 else 's'} done"]
    else:
        parts = [f"{done} task{'' if done == 1 else 's'} done"] if done else []
    for state in sorted(counts, key=_FIRST.index):
        word = _WORDS.get(state, state.value.lower())
        parts.append(f"{counts[state]} {word}{_which(tasks, state) if state.is_final else ''}")
    left_out = f"; without those that ended before {since.astimezone():%Y-%m-%d %H:%M}" if since else ""
    return ", ".join(parts) + left_out


def _which(tasks: list[JobStatus], state: JobState) -> str:
    """Return the numbers of the tasks in this state, as many as a line can hold; of many that wait together ``0-19``."""
    numbers: list[str] = []
    for task in tasks:
        if task.state is state and len(numbers) <= _MOST_NAMED:
            waited = _waiting(task.array_tasks)
            if waited is None:
                numbers.append(task.array_tasks or "?")
            else:
                few = waited.tasks <= _MOST_NAMED
                numbers += map(str, waited.numbers) if few else waited.indices.split(",")
    more = ", ..." if len(numbers) > _MOST_NAMED else ""
    return f" ({', '.join(numbers[:_MOST_NAMED])}{more})"


def _waiting(tasks: str | None) -> Array | None:
    """Return the indices in ``[0-4,7%2]``; None where there is one task, or none."""
    if tasks is None or tasks.isdigit():
        return None
    try:
        return Array.model_validate(tasks.strip("[]"))
    except ValidationError:
        return None


def _count(task: JobStatus) -> int:
    """Return how many tasks a record stands for: those that wait together are one."""
    tasks = _waiting(task.array_tasks)
    return 1 if tasks is None else tasks.tasks


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
    """The key of `--sort`, where the text will not do."""

    @property
    def key(self) -> str:
        """Return its name on the command line: `max-rss`."""
        return self.name.lower().replace(" ", "-")

    @property
    def is_use(self) -> bool:
        """True for a column that needs what ended jobs used, which accounting is asked for apart."""
        return self.key in ("max-rss", "cpus-used", "gpu-mem")


def _only_if_named(_jobs: Sequence[JobStatus], _live: bool) -> bool:
    return False


def _where(of: Callable[[JobStatus], object]) -> Callable[[Sequence[JobStatus], bool], bool]:
    """Return the condition that some job has this."""
    return lambda jobs, _live: any(of(job) for job in jobs)


def _use_is_known(jobs: Sequence[JobStatus], live: bool) -> bool:
    return live or any(job.live is not None or job.used is not None for job in jobs)


def _has_gpu_memory(job: JobStatus) -> bool:
    """Few sites measure it."""
    by_slurm = job.used is not None and job.used.gpu_memory is not None
    return by_slurm or (job.sampled is not None and job.sampled.gpu_memory_peak is not None)


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _text(value: str | None) -> str | None:
    return printable(value) if value else None


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


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
    Column("LIMIT", lambda view: view.limit, 2, order=lambda job: float("inf") if job.limit == "UNLIMITED" else job.limit),
    Column("LEFT", lambda view: duration(view.job.time_left), 2, _only_if_named, lambda job: job.time_left),
    Column("WHEN", lambda view: view.when, 7, order=lambda job: _seconds(JobView(Line(job), datetime.max).moment)),
    Column("RESTARTS", lambda view: _number(view.job.restarts), 1, _where(lambda job: job.restarts), lambda job: job.restarts),
    # What ended a job says the reason, too.
    Column("EXIT", lambda view: view.exit_code, 1, order=lambda job: job.exit_code),
    Column("MAX RSS", lambda view: view.max_rss, shown=_use_is_known, order=_by_use("max_rss")),
    Column("CPUS USED", lambda view: view.cpus_used, shown=_use_is_known, order=_by_use("average_cpus")),
    Column("GPU USE", lambda view: view.gpu_use, 8,
           _where(lambda job: job.sampled and job.sampled.gpu_utilisation is not None)),
    Column("GPU MEM", lambda view: view.gpu_memory, 9, _where(_has_gpu_memory), _by_use("gpu_memory")),
    Column("PROGRESS", lambda view: view.progress, 10, _where(lambda job: job.progress is not None)),
    Column("LOG", lambda view: _text(view.job.stdout), 1, _only_if_named),
    Column("FOLDER", lambda view: _text(view.job.work_dir), 1, _only_if_named),
    # The longest text last, where it disturbs no column.
    Column("REASON", lambda view: view.reason),
)  # fmt: skip
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
    """The form in which jobs are shown."""

    each_task: bool = False
    sort: str = "-job"
    words: str = ""
    """Each of its words has to be found in a job: in its id, name, user, state, partition, account or nodes."""


def shown(jobs: Sequence[JobStatus], how: How, now: datetime, since: datetime | None = None) -> list[Line]:
    """Return the lines that are wanted, in order; of jobs that ended before `since` some may be missing."""
    words = how.words.lower().split()

    def matches(job: JobStatus) -> bool:
        number = JobId.parse(job.job_id)
        texts = (str(number.number) if number else "", job.job_id, job.name, job.user, job.state.value, job.partition,
                 job.account, job.node_list)  # fmt: skip
        text = " ".join(one or "" for one in texts).lower()
        return all(word in text for word in words)

    found = [job for job in jobs if matches(job)] if words else jobs
    return lines(in_order(found, how.sort, now), each_task=how.each_task, since=since, chosen=bool(words))


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
    since: datetime | None = None,
    chosen: bool = False,
) -> tuple[list[tuple[str, ...]], list[Line]]:
    """Return the header and the rows, and what each row after the header stands for; `-` where there is nothing to say.

    An array is one row unless `each_task`. Without `columns` those that say something; what jobs use has some where it was
    asked for (`live`).
    """
    there = columns or [column for column in COLUMNS if column.shown(jobs, live)]
    found = lines(jobs, each_task=each_task, since=since, chosen=chosen)
    views = [JobView(line, now) for line in found]
    cells = [[column.name, *(column.text(view) or "-" for view in views)] for column in there]
    return list(zip(*cells, strict=True)), found
