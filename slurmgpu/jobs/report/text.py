"""Reports as rows and sentences, many jobs added up; for a terminal, at most 80 columns wide, and as JSON (slurmgpu.report/1)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slurmgpu.amounts import amount, count, duration, energy, percent, size_text
from slurmgpu.columns import aligned
from slurmgpu.jobs.report.advising import memory_option
from slurmgpu.jobs.report.figures import LOST, Figures
from slurmgpu.jobs.report.gathering import JobReport, Reports
from slurmgpu.jobs.view import reason
from slurmgpu.models.run import JobState
from slurmgpu.models.site import Carbon
from slurmgpu.printable import printable

__all__ = [
    "GROUPS", "WIDTH", "Row", "Summary", "Sums", "carbon_grams", "costs", "document", "head", "job_document", "job_lines",
    "job_table", "rows", "sentences", "share_text", "state_of", "summary_lines", "summed",
]  # fmt: skip


class Row(NamedTuple):
    """One resource: what was asked for, what was used of it, and the share; None: not known."""

    what: str
    asked: str
    used: str
    share: float | None = None


def head(report: JobReport) -> tuple[str, str]:
    """Return which job it is; and how it ended, where, and whose it is."""
    job, figures = report.figures.job, report.figures
    tasks = f" ({count(figures.tasks, 'task')})" if figures.tasks > 1 else ""
    state = job.state.value if job.state is not JobState.UNKNOWN else "state unknown"
    if len(figures.ends) > 1:
        state = ", ".join(f"{number:,} {one.value}" for one, number in figures.ends)
    if report.part is not None:
        state = "stopped by the probe, as planned,"
    after = f" after {duration(job.elapsed)}" if job.elapsed is not None and not figures.ends else ""
    said = None if figures.ends or report.part is not None else reason(job)
    why = f", {said}" if said else ""
    named = {"partition": job.partition, "account": job.account, "user": job.user}
    where = "".join(f"; {what} {name}" for what, name in named.items() if name)
    return f"job {job.job_id}{tasks}: {job.name}", f"{state}{after}{why}{where}"


def state_of(figures: Figures) -> str:
    """Return a job's state in a cell; of an array, how many of its tasks did not end well, and how."""
    bad = [(state, number) for state, number in figures.ends if state is not JobState.COMPLETED]
    if len(figures.ends) < 2 or not bad:
        return figures.job.state.value
    state, number = bad[0]
    return f"{number}/{figures.tasks} {state.value}"


def rows(one: Figures) -> Iterator[Row]:
    """Yield what was asked for and what was used."""
    job, each = one.job, " each" if one.tasks > 1 else ""
    if job.gpus:
        types = ",".join(sorted(job.gpu_types))
        busy = "unknown" if one.gpu_busy is None else f"{one.gpu_busy * job.gpus:.1f} busy on average"
        if one.gpu_busy is None and one.gpu_busiest is not None:
            busy = f"unknown; {percent(one.gpu_busiest)} in the highest sample"
        yield Row("GPUs", f"{job.gpus} {types}".strip() + each, busy, one.gpu_busy)
        if one.sm_activity is not None:
            yield Row("SMs of them", "", f"{percent(one.sm_activity)} busy on average", one.sm_activity)
        if one.gpu_memory_peak is not None:
            total = one.gpu_memory_total
            share = one.gpu_memory_peak / total if total else None
            asked = size_text(total) if total else "not known"
            yield Row("GPU memory", asked, f"{size_text(one.gpu_memory_peak)} at the peak", share)
    cpus = "unknown" if one.cpus_busy is None else f"{amount(one.cpus_busy)} busy on average"
    yield Row("CPUs", ("not known" if job.cpus is None else str(job.cpus)) + each, cpus, one.cpu_share)
    memory, peak = "not known", "unknown"
    if one.memory is not None:
        memory = memory_option(one.memory) + (" a node" if (job.nodes or 1) > 1 else "") + each
    if one.peak is not None:
        bound, sampled = "" if one.peak.exact else "at most ", "" if one.peak.trusted else "sampled "
        peak = f"{bound}{size_text(one.peak.amount)} at the {sampled}peak"
    yield Row("memory", memory, peak, one.memory_share)
    limit = job.limit if isinstance(job.limit, str) else duration(job.limit) or "not known"
    yield Row("time", limit + each, duration(job.elapsed) or "unknown", one.time_share)


def costs(one: Figures, carbon: Carbon | None) -> list[str]:
    """Return what it took in hours and energy."""
    found = [f"{amount(one.gpu_hours)} GPU-hours"] if one.gpu_hours else []
    found += [f"{amount(one.cpu_hours)} CPU-hours"] if one.cpu_hours else []
    if one.energy is not None:
        whose = "its nodes, whole" if one.energy_of == "nodes" else "its GPUs alone"
        found.append(f"{energy(one.energy)} of {whose}")
        grams = carbon_grams(one, carbon)
        if grams is not None and carbon is not None:
            mass = f"{grams / 1000:.3g} kg" if grams >= 1000 else f"{grams:.3g} g"
            where = f"{carbon.source.text}, {carbon.source.date}"
            found.append(f"{mass} of CO2 at {carbon.grams_per_kwh:g} g/kWh ({where})")
    return found


def carbon_grams(one: Figures, carbon: Carbon | None) -> float | None:
    """Return grams of CO2 equivalent; None where the energy or the site's electricity is not known."""
    return None if one.energy is None or carbon is None else one.energy / 3.6e6 * carbon.grams_per_kwh


def sentences(report: JobReport) -> list[str]:
    """Return what the figures say, and what is not known; the proposals stand by themselves."""
    one, advice, found = report.figures, report.advice, list[str]()
    left_out = one.tasks - dict(one.ends).get(JobState.COMPLETED, one.tasks)
    if left_out and left_out < one.tasks:
        found.append(f"what tasks used is taken from the {one.tasks - left_out} that completed")
    if one.starts > one.tasks:
        lost = f", {duration(one.seconds_before)} of its time before the last one" if one.tasks == 1 else ""
        found.append(f"{count(one.starts - one.tasks, 'restart')}{lost}")
    if one.goodput is not None:
        repeated = one.training.repeated_seconds if one.training else 0
        of = f"; {duration(repeated)} were repeated after a restart" if repeated else ""
        found.append(f"{percent(one.goodput)} of the time went into steps that were kept{of}")
    wait = one.training.loader_wait if one.training else None
    texts = (*advice.remarks, *(proposal.why for proposal in advice.proposals))
    if wait is not None and not any("the loader waits" in text for text in texts):
        found.append(f"the loader waits {percent(wait)} of each step")
    return [*found, *advice.remarks]


MOST_WASTES = 10
_FAILED = LOST | {JobState.TIMEOUT}
_WELL = frozenset({JobState.COMPLETED, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED})


@dataclass
class Sums:
    """Jobs of one kind together; hours are those of all their starts."""

    jobs: int = 0
    """Tasks of arrays count one by one."""
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    wasted_gpu_hours: float = 0.0
    failed: int = 0
    """Those that failed, ran out of memory or time, or lost their node; not those that somebody cancelled."""
    energy: float = 0.0
    """Joules of those whose energy is known."""
    energy_known: int = 0
    # A day on a whole node counts for more than a minute on one CPU: shares are weighed by what was held.
    cpu_hours_used: float = 0.0
    cpu_hours_measured: float = 0.0
    memory_used: float = 0.0
    memory_measured: float = 0.0
    """Byte-seconds."""
    gpu_hours_used: float = 0.0
    gpu_hours_sampled: float = 0.0
    """The GPU-hours of which the use is known."""

    @classmethod
    def of(cls, one: Figures) -> Sums:
        """Return a job's share of the sums, worked out once for all groups that it belongs to."""

        def weighed(share: float | None, weight: float | None) -> tuple[float, float]:
            return (share * weight, weight) if share is not None and weight else (0.0, 0.0)

        return cls(
            one.tasks,
            one.gpu_hours or 0.0,
            one.cpu_hours or 0.0,
            one.wasted_gpu_hours,
            one.tasks if one.job.state in _FAILED else 0,
            one.energy or 0.0,
            0 if one.energy is None else one.tasks,
            *weighed(one.cpu_share, one.cpu_hours),
            *weighed(one.memory_share, float((one.memory or 0) * one.held_seconds)),
            *weighed(one.gpu_busy, one.gpu_hours),
        )

    def add(self, other: Sums) -> None:
        """Count others in."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def cpu_share(self) -> float | None:
        """Of the CPU-hours, where it is known."""
        return self.cpu_hours_used / self.cpu_hours_measured if self.cpu_hours_measured else None

    @property
    def memory_share(self) -> float | None:
        """Of the memory, by memory and time."""
        return self.memory_used / self.memory_measured if self.memory_measured else None

    @property
    def gpu_share(self) -> float | None:
        """Of the GPU-hours that were sampled."""
        return self.gpu_hours_used / self.gpu_hours_sampled if self.gpu_hours_sampled else None


def _gpu_type(one: Figures) -> str:
    if not one.job.gpus:
        return "no GPU"
    return ",".join(sorted(one.job.gpu_types)) or "not named"


GROUPS: dict[str, Callable[[Figures], str]] = {
    "user": lambda one: one.job.user or "not named",
    "account": lambda one: one.job.account or "not named",
    "partition": lambda one: one.job.partition or "not named",
    "gpu_type": _gpu_type,
}
"""By what jobs are added up."""


@dataclass(frozen=True)
class Summary:
    """All of it."""

    total: Sums
    groups: dict[str, dict[str, Sums]]
    """By user, account, partition and type of GPU; the most GPU-hours first."""
    states: dict[str, Sums]
    """By how they ended, those that did not end well."""
    wastes: tuple[JobReport, ...]
    """The jobs that wasted the most GPU-hours, the most first."""


def summed(each: Sequence[Figures], jobs: Sequence[JobReport]) -> Summary:
    """Add every job up, each once; ``jobs`` are the same with arrays taken together, for the list of wastes."""
    total = Sums()
    groups: dict[str, dict[str, Sums]] = {name: {} for name in GROUPS}
    states: dict[str, Sums] = {}
    for one in each:
        own = Sums.of(one)
        total.add(own)
        for name, key in GROUPS.items():
            groups[name].setdefault(key(one), Sums()).add(own)
        if one.job.state not in _WELL:
            states.setdefault(one.job.state.value, Sums()).add(own)
    wasteful = [one for one in jobs if one.figures.wasted_gpu_hours > 0]
    worst = sorted(wasteful, key=lambda one: -one.figures.wasted_gpu_hours)[:MOST_WASTES]
    ordered = {name: _ordered(group) for name, group in groups.items()}
    return Summary(total, ordered, _ordered(states), tuple(worst))


def _ordered(group: dict[str, Sums]) -> dict[str, Sums]:
    return dict(sorted(group.items(), key=lambda item: (-item[1].gpu_hours, -item[1].cpu_hours, item[0])))


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
    lines += ["", *aligned(cells, indent="  ")]
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
            share_text(one.gpu_busy), share_text(one.cpu_share), share_text(one.memory_share), share_text(one.time_share),
        ))  # fmt: skip
    return aligned(cells, right=3)


def share_text(share: float | None) -> str:
    """Return a share in a cell; `-` where it is not known."""
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
                share_text(one.gpu_share), share_text(one.cpu_share), share_text(one.memory_share),
            ))  # fmt: skip
        lines += ["", *aligned(cells, right=1)]
        lines += [f"and {len(groups) - most} more"] if len(groups) > most else []
    if summary.states:
        ends = [(state, f"{one.jobs:,}", amount(one.gpu_hours)) for state, one in summary.states.items()]
        lines += ["", *aligned([("DID NOT END WELL", "JOBS", "GPU-H"), *ends], right=1)]
    if summary.wastes:
        wastes = []
        for figures in (report.figures for report in summary.wastes):
            idle = count(len(figures.idle_gpus), "idle GPU") if figures.idle_gpus else state_of(figures)
            job, hours = figures.job, f"{amount(figures.wasted_gpu_hours):>5} h"
            user, name = _cut(printable(job.user or ""), 12), _cut(printable(job.name), 16)
            wastes.append((hours, _cut(job.job_id, 14), user, name, idle))
        lines += ["", "Most GPU-hours wasted", *aligned(wastes, indent="  ")]
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
