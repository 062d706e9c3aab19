"""Reports as one page that needs nothing else: tables, bars and plots, for light and dark, and for readers aloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurmgpu.amounts import amount, count, duration, energy, percent, size_text
from slurmgpu.jobs.report.figures import Figures
from slurmgpu.jobs.report.gathering import JobReport, Reports
from slurmgpu.jobs.report.text import (
    GROUPS,
    Summary,
    costs,
    head,
    rows,
    sentences,
    share_text,
    state_of,
    summed,
)
from slurmgpu.models.site import Carbon
from slurmgpu.plots import bar, document, plot, table, text
from slurmgpu.runs.samples import read_series

__all__ = ["page"]

MOST_JOBS = 200
_MOST_GROUPS = 50
_NAMES = {"user": "User", "account": "Account", "partition": "Partition", "gpu_type": "GPU type"}


def page(found: Reports, carbon: Carbon | None) -> str:
    """Return the whole page."""
    name = found.cluster or "unknown"
    when = f"{found.time.astimezone():%Y-%m-%d %H:%M}"
    one = found.jobs[0].figures.job if len(found.jobs) == 1 and not found.since else None
    title = f"Job {one.job_id} on {name}" if one else f"Jobs on {name}"
    since = f", jobs that ran since {found.since.astimezone():%Y-%m-%d %H:%M}" if found.since else ""
    body = [f"<h1>{text(title)}</h1>", f'<p class="soft">{text(f"slurmgpu report, {when}{since}")}</p>']
    body += [f"<p>Note: {text(note)}</p>" for note in found.notes]
    if found.since is not None:
        body += _summary(summed(found.each, found.jobs))
        largest = sorted(
            (one.figures for one in found.jobs),
            key=lambda one: (-(one.gpu_hours or 0), -(one.cpu_hours or 0)),
        )
        lines = [
            (*_named(one), state_of(one), "-" if one.gpu_hours is None else amount(one.gpu_hours),
             *map(share_text, (one.gpu_busy, one.cpu_share, one.memory_share, one.time_share)))
            for one in largest[:MOST_JOBS]
        ]  # fmt: skip
        heads = ("Job", "Name", "User", "State", "GPU-hours", "GPU busy", "CPU busy", "Memory used", "Time used")  # fmt: skip
        more = f", the largest {MOST_JOBS} of {len(found.jobs):,}" if len(found.jobs) > MOST_JOBS else ""
        body.append(table(f"Jobs{more}", heads, lines, 4))
    else:
        body += [part for report in found.jobs[:MOST_JOBS] for part in _job(report, carbon)]
    return document(title, body)


def _job(report: JobReport, carbon: Carbon | None) -> Iterator[str]:
    figures, job = report.figures, report.figures.job
    which, how = head(report)
    yield f'<section><h2>{text(which[:1].upper() + which[1:])}</h2><p class="soft">{text(how)}</p>'
    lines = []
    for row in rows(figures):
        share = "not known" if row.share is None else percent(row.share)
        drawn = bar(row.share, f"{share} of {row.what} used")
        shown = f"{drawn} {share}" if row.share is not None else drawn
        lines.append((text(row.what), text(row.asked), text(row.used), shown))
    yield table("Asked for, and used", ("", "Asked", "Used", "Share"), lines, 99)
    took = costs(figures, carbon)
    if took:
        yield f"<p>{text(', '.join(took))}</p>"
    for sentence in sentences(report):
        yield f"<p>{text(sentence[:1].upper() + sentence[1:])}.</p>"
    changes = [(f"{one.key}: {' -> '.join(one.change)}", one.why) for one in report.advice.proposals]
    if changes:
        items = (f"<li><code>{text(what)}</code> <span>{text(why)}</span></li>" for what, why in changes)
        yield f'<h3>Ask next time for</h3><ul class="next">{"".join(items)}</ul>'
    if report.doubts:
        doubts = "".join(f"<li>{text(doubt)}</li>" for doubt in report.doubts)
        yield f"<h3>Not known</h3><ul>{doubts}</ul>"
    if report.run is not None and job.raw_id is not None and figures.tasks == 1:
        series = read_series(Path(report.run.run_dir), job.raw_id)
        full, memory = figures.gpu_memory_total, figures.memory
        yield plot(
            "GPUs busy", series.gpu_busy, down="share of the time", most=1.0, spelled=percent, along=duration
        )
        yield plot("GPU memory", series.gpu_memory, down="bytes", most=float(full) if full else None,
                   spelled=_bytes, along=duration)  # fmt: skip
        yield plot("CPUs in use", series.cpus, down="CPUs", spelled=amount, along=duration)
        yield plot("Memory of the nodes", series.memory, down="bytes", most=float(memory) if memory else None,
                   spelled=_bytes, along=duration)  # fmt: skip
    if figures.training is not None and figures.tasks == 1:
        losses = [(float(step), loss) for step, loss in figures.training.losses]
        yield plot("Loss", {"loss": losses}, down="loss", across="step", along=lambda step: f"{step:,.0f}")
    yield "</section>"


def _bytes(value: float) -> str:
    return size_text(value) if value >= 1 else "0"


def _summary(summary: Summary) -> Iterator[str]:
    total = summary.total
    held = f"{count(total.jobs, 'job')}, {amount(total.gpu_hours)} GPU-hours, {amount(total.cpu_hours)} CPU-hours."
    yield f"<p>{text(held)}</p>"
    if total.gpu_hours:
        known = percent(total.gpu_hours_sampled / total.gpu_hours)
        wasted = f"{amount(total.wasted_gpu_hours)} GPU-hours are known to be wasted: by runs that failed and by idle GPUs."
        yield f"<p>{text(f'{wasted} How busy GPUs were is known of {known} of the GPU-hours.')}</p>"
    if total.energy_known:
        measured = f"{energy(total.energy)} were measured, of {count(total.energy_known, 'job')}."
        yield f"<p>{text(measured)}</p>"
    for name in GROUPS:
        groups = list(summary.groups[name].items())[:_MOST_GROUPS]
        if len(groups) == 1 and name != "user":
            continue  # the same as all of them
        heads = ("Jobs", "Failed", "GPU-hours", "Wasted", "CPU-hours", "GPU busy", "CPU busy", "Memory used")
        lines = [
            (text(key), f"{one.jobs:,}", f"{one.failed:,}", amount(one.gpu_hours), amount(one.wasted_gpu_hours),
             amount(one.cpu_hours), *map(share_text, (one.gpu_share, one.cpu_share, one.memory_share)))
            for key, one in groups
        ]  # fmt: skip
        by = _NAMES[name] if name == "gpu_type" else _NAMES[name].lower()
        yield table(f"By {by}", (_NAMES[name], *heads), lines, 1)
    if summary.states:
        ends = [
            (text(state), f"{one.jobs:,}", amount(one.gpu_hours)) for state, one in summary.states.items()
        ]
        yield table("Jobs that did not end well", ("State", "Jobs", "GPU-hours"), ends, 1)
    if summary.wastes:
        wastes = [
            (*_named(one), text(state_of(one)), str(len(one.idle_gpus)), amount(one.wasted_gpu_hours))
            for one in (report.figures for report in summary.wastes)
        ]
        yield table(
            "Most GPU-hours wasted", ("Job", "Name", "User", "State", "Idle GPUs", "Wasted"), wastes, 4
        )


def _named(one: Figures) -> tuple[str, str, str]:
    return text(one.job.job_id), text(one.job.name), text(one.job.user or "")
