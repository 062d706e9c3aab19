"""Reports as one page that needs nothing else: tables, bars and plots, for light and dark, and for readers aloud."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from slurmgpu.models.site import Carbon
from slurmgpu.monitoring.reporting.gathering import JobReport, Reports
from slurmgpu.monitoring.reporting.lines import costs, head, rows, sentences, state_of
from slurmgpu.monitoring.reporting.plots import bar, plot
from slurmgpu.monitoring.reporting.series import read_series
from slurmgpu.monitoring.reporting.summing import GROUPS, Summary, Sums, summed
from slurmgpu.monitoring.reporting.wording import amount, clock, count, energy, percent, short
from slurmgpu.printable import printable

__all__ = ["page"]

MOST_JOBS = 200
_MOST_GROUPS = 50
_NAMES = {"user": "User", "account": "Account", "partition": "Partition", "gpu_type": "GPU type"}

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --soft: #5b6670; --line: #d7dde2; --back: #fff; --fill: #2f6fb3;
  --track: #e8edf1; --c0: #2f6fb3; --c1: #b5531c; --c2: #2e7d4f; --c3: #8e44ad; --c4: #a33; --c5: #6b6b00; --c6: #00757f;
  --c7: #555; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --soft: #a3adb7; --line: #3a434b; --back: #16191c;
  --fill: #6aa9e9; --track: #2a3138; --c0: #6aa9e9; --c1: #f0955c; --c2: #6fcf97; --c3: #c79be6; --c4: #f28b82;
  --c5: #d6cf5b; --c6: #5fd0d9; --c7: #bbb; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 0; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; } p { margin: .25rem 0; } .soft, .none, caption { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: .75rem 0; }
caption { text-align: left; padding-bottom: .25rem; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: baseline; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } th { font-weight: 600; }
td { overflow-wrap: anywhere; }
.bar .all { fill: var(--track); } .bar .part { fill: var(--fill); } figure { margin: 1rem 0; }
figcaption { font-weight: 600; } .plot { width: 100%; max-width: 46rem; height: auto; }
.plot polyline { fill: none; stroke-width: 1.6; } .grid { stroke: var(--line); stroke-width: 1; }
.axis { fill: var(--soft); font-size: 11px; } .keys { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap;
  gap: .2rem 1rem; font-size: .85rem; } .keys li::before { content: ""; display: inline-block; width: .8rem; height: .2rem;
  margin-right: .4rem; vertical-align: middle; background: currentColor; }
.next li { font-weight: 600; } .next span { font-weight: 400; color: var(--soft); } code { font-size: .95em; }
""" + "".join(
    f".plot .c{n} {{ stroke: var(--c{n}); }} .keys .c{n} {{ color: var(--c{n}); }}\n" for n in range(8)
)


def page(found: Reports, carbon: Carbon | None) -> str:
    """The whole page."""
    name = found.cluster or "unknown"
    when = f"{found.time.astimezone():%Y-%m-%d %H:%M}"
    title = (
        f"Jobs on {name}"
        if found.since or len(found.jobs) != 1
        else f"Job {found.jobs[0].figures.job.job_id} on {name}"
    )
    since = f", jobs that ran since {found.since.astimezone():%Y-%m-%d %H:%M}" if found.since else ""
    body = [f"<h1>{_text(title)}</h1>", f'<p class="soft">{_text(f"slurmgpu report, {when}{since}")}</p>']
    body += [f"<p>Note: {_text(note)}</p>" for note in found.notes]
    if found.since is not None:
        body += _summary(summed(found.each, found.jobs))
        body.append(_table_of_jobs(found.jobs))
    else:
        body += [part for report in found.jobs[:MOST_JOBS] for part in _job(report, carbon)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _table(caption: str, heads: Sequence[str], lines: Iterable[Sequence[str]], first_number: int) -> str:
    """A table; cells from ``first_number`` on are numbers, as text, and stand to the right; those before are HTML already."""

    def cells(row: Sequence[str], kind: str) -> str:
        made = []
        for at, cell in enumerate(row):
            tag = "th" if kind == "th" or at == 0 else "td"
            scope = ' scope="col"' if kind == "th" else ' scope="row"' if at == 0 else ""
            number = at >= first_number
            made.append(
                f"<{tag}{scope}{' class=n' if number else ''}>{_text(cell) if number else cell}</{tag}>"
            )
        return f"<tr>{''.join(made)}</tr>"

    inner = "".join(cells(line, "td") for line in lines)
    return (
        f'<div class="scroll"><table><caption>{_text(caption)}</caption><thead>{cells(heads, "th")}</thead>'
        f"<tbody>{inner}</tbody></table></div>"
    )


def _job(report: JobReport, carbon: Carbon | None) -> Iterator[str]:
    figures = report.figures
    which, how = head(report)
    yield f'<section><h2>{_text(which[:1].upper() + which[1:])}</h2><p class="soft">{_text(how)}</p>'
    lines = []
    for row in rows(figures):
        share = "not known" if row.share is None else percent(row.share)
        drawn = bar(row.share, f"{share} of {row.what} used")
        shown = f"{drawn} {share}" if row.share is not None else drawn
        lines.append((_text(row.what), _text(row.asked), _text(row.used), shown))
    yield _table("Asked for, and used", ("", "Asked", "Used", "Share"), lines, 99)
    took = costs(figures, carbon)
    if took:
        yield f"<p>{_text(', '.join(took))}</p>"
    for sentence in sentences(report):
        yield f"<p>{_text(sentence[:1].upper() + sentence[1:])}.</p>"
    yield from _next(report)
    yield from _plots(report)
    yield "</section>"


def _next(report: JobReport) -> Iterator[str]:
    if report.advice.proposals:
        items = []
        for one in report.advice.proposals:
            before, after = one.change
            items.append(
                f"<li><code>{_text(f'{one.key}: {before} -> {after}')}</code> <span>{_text(one.why)}</span></li>"
            )
        yield f'<h3>Ask next time for</h3><ul class="next">{"".join(items)}</ul>'
    if report.doubts:
        doubts = "".join(f"<li>{_text(doubt)}</li>" for doubt in report.doubts)
        yield f"<h3>Not known</h3><ul>{doubts}</ul>"


def _plots(report: JobReport) -> Iterator[str]:
    """What was sampled over time, and the loss."""
    job, training = report.figures.job, report.figures.training
    if report.run is not None and job.raw_id is not None and report.figures.tasks == 1:
        series = read_series(Path(report.run.run_dir), job.raw_id)
        total = report.figures.gpu_memory_total
        yield plot(
            "GPUs busy", series.gpu_busy, down="share of the time", most=1.0, spelled=percent, along=clock
        )
        yield plot(
            "GPU memory",
            series.gpu_memory,
            down="bytes",
            most=float(total) if total else None,
            spelled=_bytes,
            along=clock,
        )
        yield plot("CPUs in use", series.cpus, down="CPUs", spelled=amount, along=clock)
        memory = report.figures.memory
        yield plot(
            "Memory of the nodes",
            series.memory,
            down="bytes",
            most=float(memory) if memory else None,
            spelled=_bytes,
            along=clock,
        )
    if training is not None and report.figures.tasks == 1:
        losses = [(float(step), loss) for step, loss in training.losses]
        yield plot("Loss", {"loss": losses}, down="loss", across="step", along=lambda step: f"{step:,.0f}")


def _bytes(value: float) -> str:
    return short(value) if value >= 1 else "0"


def _summary(summary: Summary) -> Iterator[str]:
    total = summary.total
    said = [
        count(total.jobs, "job"),
        f"{amount(total.gpu_hours)} GPU-hours",
        f"{amount(total.cpu_hours)} CPU-hours",
    ]
    yield f"<p>{_text(', '.join(said))}.</p>"
    if total.gpu_hours:
        known = percent(total.gpu_hours_sampled / total.gpu_hours)
        wasted = f"{amount(total.wasted_gpu_hours)} GPU-hours are known to be wasted: by runs that failed and by idle GPUs."
        yield f"<p>{_text(f'{wasted} How busy GPUs were is known of {known} of the GPU-hours.')}</p>"
    if total.energy_known:
        measured = f"{energy(total.energy)} were measured, of {count(total.energy_known, 'job')}."
        yield f"<p>{_text(measured)}</p>"
    for name in GROUPS:
        groups = list(summary.groups[name].items())[:_MOST_GROUPS]
        if len(groups) == 1 and name != "user":
            continue  # the same as all of them
        heads = (
            _NAMES[name],
            "Jobs",
            "Failed",
            "GPU-hours",
            "Wasted",
            "CPU-hours",
            "GPU busy",
            "CPU busy",
            "Memory used",
        )
        yield _table(
            f"By {_NAMES[name] if name == 'gpu_type' else _NAMES[name].lower()}",
            heads,
            [(_text(key), *_sums(one)) for key, one in groups],
            1,
        )
    if summary.states:
        ends = [
            (_text(state), f"{one.jobs:,}", amount(one.gpu_hours)) for state, one in summary.states.items()
        ]
        yield _table("Jobs that did not end well", ("State", "Jobs", "GPU-hours"), ends, 1)
    if summary.wastes:
        wastes = [
            (_text(one.figures.job.job_id), _text(one.figures.job.name), _text(one.figures.job.user or ""),
             _text(state_of(one.figures)), str(len(one.figures.idle_gpus)), amount(one.figures.wasted_gpu_hours))
            for one in summary.wastes
        ]  # fmt: skip
        yield _table(
            "Most GPU-hours wasted", ("Job", "Name", "User", "State", "Idle GPUs", "Wasted"), wastes, 4
        )


def _sums(one: Sums) -> tuple[str, ...]:
    shares = (
        "-" if share is None else percent(share) for share in (one.gpu_share, one.cpu_share, one.memory_share)
    )
    return (
        f"{one.jobs:,}", f"{one.failed:,}", amount(one.gpu_hours), amount(one.wasted_gpu_hours), amount(one.cpu_hours),
        *shares,
    )  # fmt: skip


def _table_of_jobs(jobs: Sequence[JobReport]) -> str:
    largest = sorted(jobs, key=lambda one: (-(one.figures.gpu_hours or 0), -(one.figures.cpu_hours or 0)))[
        :MOST_JOBS
    ]
    lines = []
    for report in largest:
        one = report.figures
        shares = (one.gpu_busy, one.cpu_share, one.memory_share, one.time_share)
        hours = "-" if one.gpu_hours is None else amount(one.gpu_hours)
        shown = ("-" if share is None else percent(share) for share in shares)
        lines.append(
            (
                _text(one.job.job_id),
                _text(one.job.name),
                _text(one.job.user or ""),
                state_of(one),
                hours,
                *shown,
            )
        )
    heads = ("Job", "Name", "User", "State", "GPU-hours", "GPU busy", "CPU busy", "Memory used", "Time used")
    more = f", the largest {MOST_JOBS} of {len(jobs):,}" if len(jobs) > MOST_JOBS else ""
    return _table(f"Jobs{more}", heads, lines, 4)
