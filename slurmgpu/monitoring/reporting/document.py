"""Reports as one JSON document: schema slurmgpu.report/1, in SI units; null is "not known"."""

from __future__ import annotations

from slurmgpu.models.site import Carbon
from slurmgpu.monitoring.reporting.figures import Figures
from slurmgpu.monitoring.reporting.gathering import JobReport, Reports
from slurmgpu.monitoring.reporting.lines import carbon_grams, sentences
from slurmgpu.monitoring.reporting.summing import Summary, Sums, summed

__all__ = ["document", "job_document"]


def document(found: Reports, carbon: Carbon | None) -> dict[str, object]:
    """Everything, for programs."""
    return {
        "schema": "slurmgpu.report/1",
        "cluster": found.cluster,
        "time": found.time.isoformat(timespec="seconds"),
        "age_seconds": round(found.age, 1),
        "since": None if found.since is None else found.since.isoformat(timespec="seconds"),
        "carbon": None if carbon is None else carbon.model_dump(mode="json"),
        "summary": None if found.since is None else _summary(summed(found.each, found.jobs)),
        "jobs": [job_document(one, carbon) for one in found.jobs],
        "missing": found.missing,
        "unasked": found.unasked,
        "notes": found.notes,
    }


def job_document(report: JobReport, carbon: Carbon | None) -> dict[str, object]:
    """One job."""
    one = report.figures
    job = one.job
    training = one.training
    return {
        "job_id": job.job_id,
        "name": job.name,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "state": job.state.value,
        "tasks": one.tasks,
        "ends": {state.value: number for state, number in one.ends} or {job.state.value: 1},
        "starts": one.starts,
        "run_dir": None if report.run is None else report.run.run_dir,
        "asked": {
            "gpus": job.gpus,
            "gpu_types": job.gpu_types,
            "nodes": job.nodes,
            "cpus": job.cpus,
            "memory_per_node": one.memory,
            "time": job.limit,
        },
        "used": _used(one),
        "shares": {
            "gpu": one.gpu_busy,
            "gpu_sms": one.sm_activity,
            "cpu": one.cpu_share,
            "memory": one.memory_share,
            "time": one.time_share,
        },
        "gpu_hours": one.gpu_hours,
        "cpu_hours": one.cpu_hours,
        "wasted_gpu_hours": one.wasted_gpu_hours,
        "energy": one.energy,
        "energy_of": one.energy_of if one.energy is not None else None,
        "carbon_grams": carbon_grams(one, carbon),
        "goodput": one.goodput,
        "loader_wait_share": training.loader_wait if training else None,
        "next": [
            {
                "field": p.field,
                "asked": p.asked,
                "proposed": p.proposed,
                "key": p.key,
                "change": list(p.change),
                "why": p.why,
            }
            for p in report.advice.proposals
        ],
        "said": sentences(report),
        "not_known": list(report.doubts),
    }


def _used(one: Figures) -> dict[str, object]:
    peak = one.peak
    return {
        "elapsed": one.job.elapsed,
        "cpu_seconds": one.cpu_seconds,
        "cpus": one.cpus_busy,
        "memory_peak": None if peak is None else peak.amount,
        "memory_peak_exact": None if peak is None else peak.exact,
        "memory_peak_trusted": None if peak is None else peak.trusted,
        "memory_peak_source": None if peak is None else peak.source,
        "memory_peak_node": None if peak is None else peak.node,
        "gpu_memory_peak": one.gpu_memory_peak,
        "gpu_memory_total": one.gpu_memory_total,
        "gpu_highest_sample": one.gpu_busiest,
        "idle_gpus": list(one.idle_gpus),
        "sampled_seconds": one.sampled_seconds,
    }


def _summary(summary: Summary) -> dict[str, object]:
    return {
        "total": _sums(summary.total),
        "by": {
            name: {key: _sums(one) for key, one in groups.items()} for name, groups in summary.groups.items()
        },
        "ended_badly": {state: _sums(one) for state, one in summary.states.items()},
        "most_wasted": [one.figures.job.job_id for one in summary.wastes],
    }


def _sums(one: Sums) -> dict[str, object]:
    return {
        "jobs": one.jobs,
        "failed": one.failed,
        "gpu_hours": one.gpu_hours,
        "gpu_hours_sampled": one.gpu_hours_sampled,
        "wasted_gpu_hours": one.wasted_gpu_hours,
        "cpu_hours": one.cpu_hours,
        "gpu_share": one.gpu_share,
        "cpu_share": one.cpu_share,
        "memory_share": one.memory_share,
        "energy": one.energy if one.energy_known else None,
        "energy_known_of_jobs": one.energy_known,
    }
