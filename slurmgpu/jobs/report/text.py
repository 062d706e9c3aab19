"""Reports for a terminal, at most 80 columns wide, and as one JSON document (slurmgpu.report/1, SI units)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from slurmgpu.amounts import amount, count, energy, percent
from slurmgpu.jobs.report.gathering import JobReport, Reports
from slurmgpu.jobs.report.lines import (
    Summary,
    Sums,
    carbon_grams,
    costs,
    head,
    rows,
    sentences,
    state_of,
    summed,
)
from slurmgpu.models.site import Carbon
from slurmgpu.printable import printable

__all__ = ["WIDTH", "document", "job_document", "job_lines", "job_table", "summary_lines"]

WIDTH = 80
_BAR = 10
_HEADS = {"user": "USER", "account": "ACCOUNT", "partition": "PARTITION", "gpu_type": "GPU TYPE"}
_LONGEST = 20


def job_lines(report: JobReport, carbon: Carbon | None, *, bars: bool) -> list[str]:
    """Return one job: its table, what it took, the verdict, the next request, and what is not known."""
    figures = report.figures
    cells = [("", "ASKED", "USED", " SHARE")]
    for row in rows(figures):
        shown = "-" if row.share is None else percent(row.share)
        bar = ""
        if bars and row.share is not None:
            full = max(0, min(_BAR, round(row.share * _BAR)))
            bar = "  " + "\u2588" * full + "\u00b7" * (_BAR - full)
        cells.append((row.what, row.asked, row.used, f"{shown:>6}{bar}"))
    which, how = head(report)
    lines = [*_folded(printable(which), "", "    "), *_folded(printable(how), "  ", "    ")]
    lines += ["", *_aligned(cells, "  ")]
    took, said = costs(figures, carbon), sentences(report)
    if took:
        lines += ["", *_folded(", ".join(took), "  ", "  ")]
    elif said:
        lines.append("")
    for sentence in said:
        lines += _folded(printable(sentence), "  ", "    ")
    proposals = report.advice.proposals
    if proposals:
        lines += ["", "  Ask next time for:"]
        for one in proposals:
            before, after = one.change
            lines += _folded(printable(f"{one.key}: {before} -> {after}  ({one.why})"), "    ", "        ")
    if report.doubts:
        lines += ["", "  Not known:"]
        for doubt in report.doubts:
            lines += _folded(doubt, "    ", "        ")
    return lines


def _aligned(cells: Sequence[Sequence[str]], indent: str, right: int = 99) -> list[str]:
    """Return columns; those from ``right`` on stand to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        pairs = enumerate(zip(row, widths, strict=True))
        padded = (text.rjust(width) if at >= right else text.ljust(width) for at, (text, width) in pairs)
        lines.append((indent + "  ".join(padded)).rstrip())
    return lines


def _folded(text: str, first: str, rest: str) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = first, rest
    return wrapper.wrap(text)


def job_table(jobs: Sequence[JobReport]) -> list[str]:
    """Return many jobs, a line each: the shares of what they asked for."""
    cells = [("JOB", "NAME", "STATE", "GPU-H", "GPU", "CPU", "MEM", "TIME")]
    for report in jobs:
        one = report.figures
        cells.append((
            _cut(one.job.job_id, 14), _cut(printable(one.job.name), 16), _cut(state_of(one), 16),
            "-" if one.gpu_hours is None else amount(one.gpu_hours),
            _share(one.gpu_busy), _share(one.cpu_share), _share(one.memory_share), _share(one.time_share),
        ))  # fmt: skip
    return _aligned(cells, "", right=3)


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def summary_lines(summary: Summary, *, most: int = 15) -> list[str]:
    """Return a lab's week in lines: what was held, what came of it, and where hours were lost."""
    total = summary.total
    held = f"{count(total.jobs, 'job')}, {amount(total.gpu_hours)} GPU-hours, {amount(total.cpu_hours)} CPU-hours"
    if total.gpu_hours:
        held += f"; {amount(total.wasted_gpu_hours)} GPU-hours are known to be wasted"
        known = percent(total.gpu_hours_sampled / total.gpu_hours)
        held += f"; how busy GPUs were is known of {known} of the GPU-hours"
    if total.energy_known:
        held += f"; {energy(total.energy)} measured of {count(total.energy_known, 'job')}"
    lines = _folded(held, "", "")
    for name, groups in summary.groups.items():
        if len(groups) == 1 and name != "user":
            continue
        cells = [(_HEADS[name], "JOBS", "FAILED", "GPU-H", "WASTED", "CPU-H", "GPU", "CPU", "MEM")]
        for key, one in list(groups.items())[:most]:
            cells.append((
                _cut(printable(key), _LONGEST), f"{one.jobs:,}", f"{one.failed:,}", amount(one.gpu_hours),
                amount(one.wasted_gpu_hours), amount(one.cpu_hours),
                _share(one.gpu_share), _share(one.cpu_share), _share(one.memory_share),
            ))  # fmt: skip
        lines += ["", *_aligned(cells, "", right=1)]
        lines += [f"and {len(groups) - most} more"] if len(groups) > most else []
    if summary.states:
        ends = [(state, f"{one.jobs:,}", amount(one.gpu_hours)) for state, one in summary.states.items()]
        lines += ["", *_aligned([("DID NOT END WELL", "JOBS", "GPU-H"), *ends], "", right=1)]
    if summary.wastes:
        wastes = []
        for figures in (report.figures for report in summary.wastes):
            idle = count(len(figures.idle_gpus), "idle GPU") if figures.idle_gpus else state_of(figures)
            job, hours = figures.job, f"{amount(figures.wasted_gpu_hours):>5} h"
            user, name = _cut(printable(job.user or ""), 12), _cut(printable(job.name), 16)
            wastes.append((hours, _cut(job.job_id, 14), user, name, idle))
        lines += ["", "Most GPU-hours wasted", *_aligned(wastes, "  ")]
    return lines


def joined(blocks: Iterable[Sequence[str]]) -> str:
    """Return blocks of lines with a blank line between them."""
    return "\n\n".join("\n".join(block) for block in blocks)


def document(found: Reports, carbon: Carbon | None) -> dict[str, object]:
    """Return everything, for programs."""
    summary: dict[str, object] | None = None
    if found.since is not None:
        sums = summed(found.each, found.jobs)
        groups = sums.groups.items()
        summary = {
            "total": _sums(sums.total),
            "by": {name: {key: _sums(one) for key, one in group.items()} for name, group in groups},
            "ended_badly": {state: _sums(one) for state, one in sums.states.items()},
            "most_wasted": [one.figures.job.job_id for one in sums.wastes],
        }
    return {
        "schema": "slurmgpu.report/1",
        "cluster": found.cluster,
        "time": found.time.isoformat(timespec="seconds"),
        "age_seconds": round(found.age, 1),
        "since": None if found.since is None else found.since.isoformat(timespec="seconds"),
        "carbon": None if carbon is None else carbon.model_dump(mode="json"),
        "summary": summary,
        "jobs": [job_document(one, carbon) for one in found.jobs],
        "missing": found.missing,
        "unasked": found.unasked,
        "notes": found.notes,
    }


def job_document(report: JobReport, carbon: Carbon | None) -> dict[str, object]:
    """Return one job, for programs."""
    one, job, peak, training = (
        report.figures,
        report.figures.job,
        report.figures.peak,
        report.figures.training,
    )
    of_peak = {"": "amount", "_exact": "exact", "_trusted": "trusted", "_source": "source", "_node": "node"}
    measured = {f"memory_peak{key}": getattr(peak, name, None) for key, name in of_peak.items()}
    return {
        "job_id": job.job_id, "name": job.name, "user": job.user, "account": job.account, "partition": job.partition,
        "state": job.state.value, "tasks": one.tasks,
        "ends": {state.value: number for state, number in one.ends} or {job.state.value: 1},
        "starts": one.starts, "run_dir": None if report.run is None else report.run.run_dir,
        "asked": {
            "gpus": job.gpus, "gpu_types": job.gpu_types, "nodes": job.nodes, "cpus": job.cpus, "memory_per_node": one.memory,
            "time": job.limit,
        },
        "used": {
            "elapsed": job.elapsed, "cpu_seconds": one.cpu_seconds, "cpus": one.cpus_busy, **measured,
            "gpu_memory_peak": one.gpu_memory_peak, "gpu_memory_total": one.gpu_memory_total,
            "gpu_highest_sample": one.gpu_busiest, "idle_gpus": list(one.idle_gpus), "sampled_seconds": one.sampled_seconds,
        },
        "shares": {
            "gpu": one.gpu_busy, "gpu_sms": one.sm_activity, "cpu": one.cpu_share, "memory": one.memory_share,
            "time": one.time_share,
        },
        "gpu_hours": one.gpu_hours, "cpu_hours": one.cpu_hours, "wasted_gpu_hours": one.wasted_gpu_hours,
        "energy": one.energy, "energy_of": one.energy_of if one.energy is not None else None,
        "carbon_grams": carbon_grams(one, carbon), "goodput": one.goodput,
        "loader_wait_share": training.loader_wait if training else None,
        "next": [
            {name: getattr(each, name) for name in ("field", "asked", "proposed", "key")}
            | {"change": list(each.change), "why": each.why}
            for each in report.advice.proposals
        ],
        "said": sentences(report), "not_known": list(report.doubts),
    }  # fmt: skip


def _sums(one: Sums) -> dict[str, object]:
    names = (
        "jobs", "failed", "gpu_hours", "gpu_hours_sampled", "wasted_gpu_hours", "cpu_hours", "gpu_share", "cpu_share",
        "memory_share",
    )  # fmt: skip
    energy = {"energy": one.energy if one.energy_known else None, "energy_known_of_jobs": one.energy_known}
    return {name: getattr(one, name) for name in names} | energy
