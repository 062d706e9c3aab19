"""What the screen says of one job, in lines of text; all that comes from others is made harmless here."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import datetime, timezone

from rich.text import Text

from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.models.samples import GpuSummary
from slurmgpu.monitoring.arrays import Line
from slurmgpu.monitoring.reasons import reason
from slurmgpu.monitoring.seen import progress_text
from slurmgpu.monitoring.table import COLUMNS
from slurmgpu.printable import printable
from slurmgpu.screen.charts import chart
from slurmgpu.screen.source import Detail
from slurmgpu.slurm import JobId

__all__ = ["COLOURS", "cell", "describe", "doing", "heading", "moment", "sought"]

COLOURS = {
    JobState.RUNNING: "green",
    JobState.COMPLETED: "green",
    JobState.CONFIGURING: "cyan",
    JobState.COMPLETING: "cyan",
    JobState.PENDING: "yellow",
    JobState.REQUEUED: "yellow",
    JobState.SUSPENDED: "yellow",
    JobState.PREEMPTED: "magenta",
    JobState.CANCELLED: "magenta",
}
_BY_KEY = {column.key: column for column in COLUMNS}
_CHART_ROWS = 5
_TWO_TO_A_LINE = 70


def cell(key: str, line: Line, now: datetime) -> str:
    """What `slurmgpu status` has in a column."""
    return printable(_BY_KEY[key].text(line, now) or "")


def doing(line: Line) -> str:
    """How far a running job is, as far as it tells; of others why they wait, or how they ended."""
    job = line.job
    progress = progress_text(job.progress, running=True) if job.progress and not job.state.is_final else ""
    return printable("; ".join(filter(None, (line.tasks, progress, reason(job)))))


def heading(text: str) -> Text:
    """The line above a section."""
    return Text(text, style="bold")


def describe(line: Line, detail: Detail | None, told: list[str], now: datetime, width: int) -> list[Text]:
    """One job: what Slurm says, why it waits or failed (`told`), what its run was planned to be, what it does."""
    job = line.job
    head = Text(f"job {job.job_id}  {printable(job.name)}  ", style="bold")
    head.append(job.state.value, style=COLOURS.get(job.state, "red"))
    lines = [head, *_slurm(line, now, width)]
    why = reason(job)
    title = "How it ended" if job.state.is_final else "Why it waits" if job.state.is_waiting else "Reason"
    if told:
        lines += [Text(), heading(title), *(line for one in told for line in _folded(printable(one), width))]
    elif why or line.tasks:
        lines += [Text(), heading(title), *(Text(f"  {printable(one)}") for one in (why, line.tasks) if one)]
        if job.state.is_waiting:
            lines.append(Text("  w asks Slurm for the figures", style="dim"))
    if detail is None:
        return [*lines, Text(), Text("reading its files ...", style="dim")]
    lines += _run(detail, width)
    if line.tasks:
        return [
            *lines,
            Text(),
            Text("t in the list shows each task: progress and use are each task's own", style="dim"),
        ]
    return [*lines, *_progress(detail, width), *_gpus(detail, width)]


def _slurm(line: Line, now: datetime, width: int) -> Iterator[Text]:
    """What Slurm says of it, two things to a line where there is room."""
    keys = ("partition", "nodes", "account", "gpus", "qos", "cpus", "submitted", "limit", "when", "elapsed", "user",
            "restarts", "exit", "max-rss")  # fmt: skip
    found = [(key, text) for key in keys if (text := cell(key, line, now)) and text != "n/a"]
    if width < _TWO_TO_A_LINE:
        yield from (Text(f"  {_title(key):<11}{text}") for key, text in found)
        return
    for left, right in zip(found[::2], [*found[1::2], ("", "")], strict=False):
        first = f"{_title(left[0]):<11}{left[1]}"
        yield Text(f"  {first:<38}  {f'{_title(right[0]):<11}{right[1]}' if right[0] else ''}".rstrip())


def _title(key: str) -> str:
    return {"gpus": "GPUs", "cpus": "CPUs", "qos": "QOS", "max-rss": "memory"}.get(key, key)


def _run(detail: Detail, width: int) -> Iterator[Text]:
    job, run, plan = detail.job, detail.run, detail.plan
    yield Text()
    yield heading("Run")
    if run is None:
        yield Text("  no run directory of slurmgpu's is known here", style="dim")
        if job.work_dir:
            yield Text(f"  work folder  {printable(job.work_dir)}")
    else:
        yield Text(f"  {printable(run.run_dir)}")
    if plan is not None:
        figures = [
            f"{plan.nodes} node{'' if plan.nodes == 1 else 's'}",
            f"{plan.gpus_per_node} {plan.gpu_type or 'GPU'} on each" if plan.gpus_per_node else "no GPU",
            f"{plan.processes_per_node} process{'' if plan.processes_per_node == 1 else 'es'} on each, by {plan.launcher}",
            f"{plan.cpus_per_task} CPUs a task" if plan.cpus_per_task else "",
            f"memory {plan.memory}" if plan.memory is not None else "",
            f"time {plan.time}" if plan.time is not None else "",
        ]
        yield from _folded("plan  " + printable(", ".join(filter(None, figures))), width, hang=6)
        if plan.gpu_hours is not None:
            yield Text(f"  plan  {plan.gpu_hours:g} GPU-hours at most")
        if plan.command:
            yield from _folded("runs  " + printable(" ".join(plan.command)), width, hang=6)
    elif detail.plan_note:
        yield Text(f"  plan  {printable(detail.plan_note)}", style="dim")


def _folded(text: str, width: int, *, hang: int = 2) -> Iterator[Text]:
    """A line that is too long goes on further in, by `hang` columns more than it begins."""
    inside = " " * (2 + len(text) - len(text.lstrip()) + hang)
    lines = textwrap.wrap(text, width, initial_indent="  ", subsequent_indent=inside, break_on_hyphens=False)
    return (Text(line) for line in lines or [""])


def _progress(detail: Detail, width: int) -> Iterator[Text]:
    progress, job = detail.job.progress, detail.job
    if progress is None:
        if not job.state.is_waiting:
            yield Text()
            yield Text("No progress is known: the run has no metrics of slurmgpu's training", style="dim")
        return
    yield Text()
    yield heading("Progress")
    yield Text("  " + progress_text(progress, running=not job.state.is_final))
    more = [
        f"epoch {progress.epoch}" if progress.epoch is not None else "",
        f"{progress.samples_per_second:.4g} samples/s" if progress.samples_per_second is not None else "",
        f"waits for data {progress.data_wait_share:.0%} of a step"
        if progress.data_wait_share is not None
        else "",
    ]
    if any(more):
        yield Text("  " + ", ".join(filter(None, more)))
    rows = chart([loss for _, loss in detail.losses], max(20, min(width - 16, 100)), _CHART_ROWS)
    if len(detail.losses) > 1:
        values = [loss for _, loss in detail.losses]
        labels = {0: f"{max(values):.4g}", len(rows) - 1: f"{min(values):.4g}"}
        yield Text(f"  loss, steps {detail.losses[0][0]} to {detail.losses[-1][0]}")
        for number, row in enumerate(rows):
            yield Text(f"  {labels.get(number, ''):>9} ").append(row, style="cyan")


def _gpus(detail: Detail, width: int) -> Iterator[Text]:
    sampled, job = detail.job.sampled, detail.job
    if sampled is None:
        if job.gpus and not job.state.is_waiting:
            yield Text()
            yield Text("GPU use is not known: the job is not sampled", style="dim")
        return
    yield Text()
    age = f", newest {sampled.age_seconds:.0f} s ago" if sampled.age_seconds is not None else ""
    yield heading(f"Use, by samples over {sampled.seconds:.0f} s{age if not job.state.is_final else ''}")
    if job.gpus and not sampled.gpus:
        yield Text("  of its GPUs nothing is known: they were not measured", style="dim")
    series = {(one.host, one.gpu): one.use for one in detail.gpus}
    room = max(10, min(width - 56, 60))
    for gpu in sampled.gpus:
        yield (
            Text(f"  {printable(gpu.host)}:{gpu.index} ")
            .append(
                next(iter(chart(series.get((gpu.host, gpu.index), []), room, low=0.0, high=1.0)), ""),
                style="cyan",
            )
            .append(f" {_use(gpu)}")
        )
    rest = [
        f"{sampled.cpu_cores_mean:.1f} CPUs" if sampled.cpu_cores_mean is not None else "",
        f"memory {sampled.rss_peak / 2**30:.1f} GiB at most" if sampled.rss_peak is not None else "",
        f"{sampled.energy / 3.6e6:.2f} kWh by its GPUs" if sampled.energy is not None else "",
    ]
    if any(rest):
        yield Text("  " + ", ".join(filter(None, rest)))


def _use(gpu: GpuSummary) -> str:
    """A GPU's figures; what was not measured is left out."""
    total = f" of {gpu.memory_total / 2**30:.0f}" if gpu.memory_total else ""
    return "  ".join(
        filter(
            None,
            (
                f"{gpu.utilisation_mean:.0%} mean"
                if gpu.utilisation_mean is not None
                else "use not measured",
                f"{gpu.sm_activity_mean:.0%} of SMs" if gpu.sm_activity_mean is not None else "",
                f"{gpu.memory_peak / 2**30:.1f}{total} GiB" if gpu.memory_peak is not None else "",
                f"{gpu.power_mean:.0f} W" if gpu.power_mean is not None else "",
            ),
        )
    )


def sought(job: JobStatus) -> str:
    """What a person may type to find the job, in lower case."""
    number = JobId.parse(job.job_id)
    return " ".join(
        (str(number.number) if number else "", job.job_id, job.name, job.user or "", job.state.value,
         job.partition or "", job.account or "", job.node_list or "")
    ).lower()  # fmt: skip


def moment() -> datetime:
    """Now, in UTC."""
    return datetime.now(timezone.utc)
