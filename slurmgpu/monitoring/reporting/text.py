"""Reports for a terminal, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from slurmgpu.models.site import Carbon
from slurmgpu.monitoring.reporting.gathering import JobReport
from slurmgpu.monitoring.reporting.lines import costs, head, rows, sentences, state_of
from slurmgpu.monitoring.reporting.summing import Summary, Sums
from slurmgpu.monitoring.reporting.wording import amount, count, energy, percent
from slurmgpu.printable import printable

__all__ = ["WIDTH", "job_lines", "job_table", "summary_lines"]

WIDTH = 80
_BAR = 10
_HEADS = {"user": "USER", "account": "ACCOUNT", "partition": "PARTITION", "gpu_type": "GPU TYPE"}
_LONGEST = 20


def job_lines(report: JobReport, carbon: Carbon | None, *, bars: bool) -> list[str]:
    """One job: its table, what it took, the verdict, the next request, and what is not known."""
    figures = report.figures
    cells = [("", "ASKED", "USED", " SHARE")]
    for row in rows(figures):
        shown = "-" if row.share is None else percent(row.share)
        bar = f"  {_bar(row.share)}" if bars and row.share is not None else ""
        cells.append((row.what, row.asked, row.used, f"{shown:>6}{bar}"))
    which, how = head(report)
    lines = [
        *_folded(printable(which), "", "    "),
        *_folded(printable(how), "  ", "    "),
        "",
        *_aligned(cells, "  "),
    ]
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


def _bar(share: float) -> str:
    full = max(0, min(_BAR, round(share * _BAR)))
    return "\u2588" * full + "\u00b7" * (_BAR - full)


def _aligned(cells: Sequence[Sequence[str]], indent: str, right: int = 99) -> list[str]:
    """Columns; those from ``right`` on stand to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [
            c.rjust(w) if at >= right else c.ljust(w)
            for at, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(padded)).rstrip())
    return lines


def _folded(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def job_table(jobs: Sequence[JobReport]) -> list[str]:
    """Many jobs, a line each: the shares of what they asked for."""
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
    """A lab's week: what was held, what came of it, and where hours were lost."""
    total = summary.total
    lines = _folded(_in_all(total), "", "")
    for name, groups in summary.groups.items():
        if len(groups) > 1 or name == "user":
            lines += ["", *_group(_HEADS[name], groups, most)]
    if summary.states:
        lines += ["", *_ends(summary)]
    if summary.wastes:
        lines += ["", "Most GPU-hours wasted"]
        lines += _aligned([_waste(one) for one in summary.wastes], "  ")
    return lines


def _in_all(total: Sums) -> str:
    said = [
        count(total.jobs, "job"),
        f"{amount(total.gpu_hours)} GPU-hours",
        f"{amount(total.cpu_hours)} CPU-hours",
    ]
    text = ", ".join(said)
    if total.gpu_hours:
        text += f"; {amount(total.wasted_gpu_hours)} GPU-hours are known to be wasted"
        known = percent(total.gpu_hours_sampled / total.gpu_hours)
        text += f"; how busy GPUs were is known of {known} of the GPU-hours"
    if total.energy_known:
        text += f"; {energy(total.energy)} measured of {count(total.energy_known, 'job')}"
    return text


def _group(name: str, groups: dict[str, Sums], most: int) -> list[str]:
    cells = [(name, "JOBS", "FAILED", "GPU-H", "WASTED", "CPU-H", "GPU", "CPU", "MEM")]
    for key, one in list(groups.items())[:most]:
        cells.append((
            _cut(printable(key), _LONGEST), f"{one.jobs:,}", f"{one.failed:,}", amount(one.gpu_hours),
            amount(one.wasted_gpu_hours), amount(one.cpu_hours),
            _share(one.gpu_share), _share(one.cpu_share), _share(one.memory_share),
        ))  # fmt: skip
    rest = len(groups) - most
    return [*_aligned(cells, "", right=1), *([f"and {rest} more"] if rest > 0 else [])]


def _ends(summary: Summary) -> list[str]:
    cells = [("DID NOT END WELL", "JOBS", "GPU-H")]
    cells += [(state, f"{one.jobs:,}", amount(one.gpu_hours)) for state, one in summary.states.items()]
    return _aligned(cells, "", right=1)


def _waste(report: JobReport) -> tuple[str, ...]:
    one = report.figures
    idle = f"{count(len(one.idle_gpus), 'idle GPU')}" if one.idle_gpus else state_of(one)
    return (
        f"{amount(one.wasted_gpu_hours):>5} h",
        _cut(one.job.job_id, 14),
        _cut(printable(one.job.user or ""), 12),
        _cut(printable(one.job.name), 16),
        idle,
    )


def joined(blocks: Iterable[Sequence[str]]) -> str:
    """Blocks of lines with a blank line between them."""
    return "\n\n".join("\n".join(block) for block in blocks)
