"""What ``slurmgpu doctor --on-gpu`` does: a short job that probes the nodes, waited for and read."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from slurmgpu.cli.actions.doctor_here import environment_of, is_sandbox, needs_torch
from slurmgpu.cli.interrupting import as_interrupts
from slurmgpu.cli.preparing import note
from slurmgpu.clusters.pytorch import last_words
from slurmgpu.doctor import on_nodes
from slurmgpu.doctor.lines import Line, Measured, failure, ok
from slurmgpu.files.clusters import choose_cluster
from slurmgpu.files.jobs import LoadedJob
from slurmgpu.jobs.select import Selection
from slurmgpu.jobs.wait import Ended, Onlooker, wait_for
from slurmgpu.models.run import JobState, Run
from slurmgpu.runs.prepare import Prepared, prepare_job
from slurmgpu.runs.submit import Submission, submit_plan
from slurmgpu.slurm import Answer, Slurm, current_user

__all__ = ["Probed", "probe_nodes"]

# A shared folder may show the nodes' files some seconds late.
_FILES_LATE = 10.0


class Probed(NamedTuple):
    """What came of the job."""

    job_id: int | None
    lines: list[Line]
    measured: dict[str, Measured]


class _TooLong(Exception):
    """The job has not ended within the time that it was given."""


def probe_nodes(loaded: LoadedJob, given: Mapping[str, object], within: float) -> Probed:
    """Submit the probe, wait for it at most ``within`` seconds, and read what it found; Ctrl-C cancels the job."""
    named = given.get("job__cluster")
    cluster_named = named if isinstance(named, str) else None
    cluster, _ = choose_cluster(cluster_named, loaded.settings, os.environ)
    environment = environment_of(loaded, cluster)
    job = on_nodes.probe_job(loaded.job, environment.python.interpreter)
    force = bool(given.get("job__force"))
    prepared = prepare_job(loaded._replace(job=job), cluster_named, None, force=force)
    prepared = prepared._replace(plan=on_nodes.seeing_the_run(prepared.plan))
    slurm = Slurm()
    health = slurm.health(current_user())
    had_runs = prepared.runs.exists()
    run, said = _submitted(prepared, slurm)
    ended, states = _ended(slurm, run, said, within)
    nodes = _told(Path(run.run_dir), run, prepared.plan.nodes if ended else 0)
    gpu_memory = loaded.job.resources.gpu_memory
    asked = on_nodes.Asked(
        gpus=prepared.plan.gpus_per_node,
        memory_of_gpu=gpu_memory.mib if gpu_memory else None,
        pretended=is_sandbox(),
        needs_torch=needs_torch(loaded.job),
    )
    lines = [_report(run, ended, states, len(nodes), prepared.plan.nodes)._replace(where=f"job {run.job_id}")]
    lines += on_nodes.lines(asked, nodes, health.offset)
    _tidy(run, prepared.runs, keep=any(line.level == "failure" for line in lines), had_runs=had_runs)
    return Probed(run.job_id, lines, {one["node"]: one for one in nodes})


def _submitted(prepared: Prepared, slurm: Slurm) -> tuple[Run, str]:
    folders = {
        "home": "$HOME",
        "work": str(prepared.folder or Path.cwd()),
        "runs": str(prepared.runs),
        "scratch": prepared.cluster.software.scratch or "",
        "tmp": "/tmp",
        "$TMPDIR": "$TMPDIR",
        "$SLURM_TMPDIR": "$SLURM_TMPDIR",
    }
    submission = Submission(
        plan=prepared.plan,
        script=prepared.render(),
        folder=prepared.folder,
        cwd=Path.cwd(),
        files=on_nodes.files(prepared.plan, folders),
    )
    with as_interrupts():
        return submit_plan(submission, prepared.loaded.job, prepared.runs, slurm, os.environ)


def _ended(slurm: Slurm, run: Run, notice: str, within: float) -> tuple[Ended | None, str]:
    """Return how the job ended and its last state; None where it did not end in time and was cancelled.

    ``notice`` is what Slurm said when it took the job.
    """
    deadline = time.monotonic() + within
    said = ["it was submitted"]

    def say(text: str) -> None:
        said.append(text)
        note(f"job {run.job_id}: {text}")

    def pause(seconds: float) -> None:
        if time.monotonic() > deadline:
            raise _TooLong
        time.sleep(seconds)

    try:
        with as_interrupts():
            if notice:
                note(notice)
            note(
                f"job {run.job_id} on cluster {run.cluster or 'unknown'} probes the nodes; Ctrl-C cancels it"
            )
            ended = wait_for(
                slurm, Selection(text=run.run_dir, run=run), Onlooker(current_user(), say), pause=pause
            )
    except _TooLong:
        slurm.cancel([str(run.job_id)])
        return None, said[-1]
    except KeyboardInterrupt:
        slurm.cancel([str(run.job_id)])
        note(f"job {run.job_id} is cancelled")
        raise
    return ended, said[-1]


def _log(run: Run) -> str:
    with suppress(OSError):
        return Path(run.run_dir, "logs", f"{run.job_id}.out").read_text(encoding="utf-8", errors="replace")
    return ""


def _told(run_dir: Path, run: Run, expected: int) -> list[Measured]:
    deadline = time.monotonic() + _FILES_LATE
    while True:
        nodes = on_nodes.read(run_dir, _log(run))
        if len(nodes) >= expected or time.monotonic() > deadline:
            return nodes
        time.sleep(0.5)


def _report(run: Run, ended: Ended | None, state: str, told: int, expected: int) -> Line:
    """Whether the job did its work on every node."""
    if ended is None:
        return failure(
            "job.report",
            f"job {run.job_id} did not end in time ({state}), and is cancelled",
            "give it more time (--within MINUTES), or ask for what starts sooner: slurmgpu plan --when",
        )
    if told >= expected:
        return ok("job.report", f"job {run.job_id} on {told} node{'s' if told != 1 else ''}")
    last = last_words(Answer((), None, _log(run), "")).replace(
        "it ended with None, and said nothing", "nothing"
    )
    states = ", ".join(sorted({job.state.value for job in ended.jobs} or {JobState.UNKNOWN.value}))
    return failure(
        "job.report",
        f"job {run.job_id} ({states}): {told} of {expected} nodes told what they found; its log says: {last}",
        f"a job of yours would fail in the same way; the whole log: slurmgpu logs {run.run_dir}",
    )


def _tidy(run: Run, runs: Path, *, keep: bool, had_runs: bool) -> None:
    """Remove the run directory where nothing failed; what was measured has been told."""
    if keep:
        note(f"what the probe wrote is kept in {run.run_dir}")
        return
    shutil.rmtree(run.run_dir, ignore_errors=True)
    if not had_runs:
        with suppress(OSError):
            runs.rmdir()
