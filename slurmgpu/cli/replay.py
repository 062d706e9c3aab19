"""Train an interval of a run again as a job on named nodes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurmgpu.amounts import count
from slurmgpu.cli.options import check_whose
from slurmgpu.cli.terminal import note
from slurmgpu.cli.waiting import Wait
from slurmgpu.errors import InvalidInput, PlanError, RunFailed, SlurmRefused
from slurmgpu.files.data import read_templates
from slurmgpu.files.jobs import folder_here, load_job
from slurmgpu.files.layered import Layered
from slurmgpu.files.run_record import read_run
from slurmgpu.files.settings import load_settings
from slurmgpu.interrupts import as_interrupts
from slurmgpu.jobs.causes import cause_lines, cause_of
from slurmgpu.launchers import world_size
from slurmgpu.models.run import RUN_FILE
from slurmgpu.runs.derived_jobs import as_replay
from slurmgpu.runs.directory import SCRIPT, chosen_python, read_plan
from slurmgpu.runs.metrics import progress_of
from slurmgpu.runs.nodes import check_nodes, expand_nodes
from slurmgpu.runs.replay import compared, folder_of_job, submit_again
from slurmgpu.runs.replay_verdict import Interval, compare_here
from slurmgpu.runs.submit import Submission
from slurmgpu.slurm import Slurm, cluster_name_here
from slurmgpu.training.formats.checkpoint import CHECKPOINTS, MANIFEST, step_folder


class OnNodes:
    """Trains as a job with the run's own settings. InvalidInput for nodes that it can't have.

    ``jobs`` are those that were submitted. After Ctrl-C what they have written stays: the last may not have ended yet.
    """

    def __init__(self, slurm: Slurm, run_dir: Path, word: str | None, nodes: Sequence[str]) -> None:
        folder = folder_of_job(run_dir)
        if folder is None or not (folder / RUN_FILE).is_file():
            raise InvalidInput(
                f"--on: {run_dir} was made by slurmgpu run or train, and has no job whose settings a replay could have",
                hint="leave --on out: it is then trained again on this machine",
            )
        check_whose(folder, word or str(folder))
        self._slurm, self._folder, self._asked = slurm, folder, ",".join(nodes)
        self._plan = plan = read_plan(folder)
        self._nodes = list(dict.fromkeys(name for one in nodes for name in expand_nodes("--on", one)))
        self.jobs: list[dict[str, Any]] = []
        self._against: dict[Path, list[Path]] = {}
        # What Slurm would refuse, or leave in its queue for ever.
        cluster, here = read_run(folder).cluster, cluster_name_here(slurm.env)
        if cluster is not None and here not in (None, cluster):
            raise InvalidInput(
                f"--on {self._asked}: {folder} is of cluster {cluster}, and Slurm here is that of {here}",
                hint="give the command on a login node of that cluster; or leave --on out: it is then trained on this machine",
            )
        if len(self._nodes) != plan.nodes:
            raise InvalidInput(
                f"--on {self._asked}: {count(len(self._nodes), 'node')} named, and the run had {count(plan.nodes, 'node')}",
                hint=f"name {'one' if plan.nodes == 1 else plan.nodes}: sums over other numbers of processes differ",
            )
        if plan.option("clusters") or os.environ.get("SLURM_CLUSTERS"):
            return  # which nodes these have, only they know
        known = slurm.present().nodes
        if known is not None:
            for remark in check_nodes(self._asked, self._nodes, plan.partition, known):
                note(remark)

    def train(
        self,
        interval: Interval,
        settings: Mapping[str, Any],
        processes: int,
        threads: int | None,
        against: list[Path],
    ) -> Path:
        """Submit it, and wait for its end; the run directory of the job, whose environment has its own ``threads``."""
        until, cwd = interval.until, Path.cwd()
        if processes != world_size(self._plan):
            raise RunFailed(
                f"the interval was trained by {processes} processes, and the run's job has {world_size(self._plan)} now"
            )
        from slurmgpu.script.render import render_script  # loads Jinja

        plan = as_replay(self._plan, ",".join(self._nodes), until)
        templates = read_templates(*load_settings(cwd).template_sources(os.environ))
        script = render_script(plan, templates, script_name=SCRIPT, place=templates.place)
        job = load_job(self._folder / "job.yaml", Layered({}, {}), cwd=cwd, environ=os.environ).job
        folder = folder_here(plan.work_dir, cwd)
        submission = Submission(plan=plan, script=script, folder=folder, cwd=cwd, probe=True)
        try:
            with as_interrupts():
                run = submit_again(
                    submission,
                    job,
                    self._folder.parent,
                    self._slurm,
                    run_dir=interval.run_dir,
                    settings=settings,
                    checkpoint=None if interval.begin is None else interval.begin.path,
                    until=until,
                    against=against,
                )
        except (PlanError, SlurmRefused) as error:
            raise RunFailed(f"the replay cannot be submitted: {error}") from None
        note(
            f"job {run.job_id} trains steps up to {until} again on {self._asked}; run directory {run.run_dir}"
        )
        replayed = Path(run.run_dir)
        self.jobs.append({"job_id": run.job_id, "nodes": None, "run_dir": run.run_dir})
        self._against[replayed] = against

        def progress() -> str | None:
            now = progress_of(replayed)
            return None if now is None else f"job {run.job_id}: step {min(now.step, until)} of {until}"

        ended = Wait(self._slurm, run, None, progress).until_its_end()
        self.jobs[-1]["nodes"] = ended.node_list
        if not (step_folder(replayed / CHECKPOINTS, until) / MANIFEST).exists():
            cause = cause_of(ended, run)
            why = f": {cause_lines(cause)[0]}" if cause is not None else ""
            raise RunFailed(
                f"job {run.job_id}, which trains it again, ended as {ended.state.value} before step {until} was saved{why} "
                f"(slurmgpu logs {run.run_dir})"
            )
        return replayed

    def compare(self, other: Path, replayed: Path, step: int) -> dict[str, Any]:
        """As the job has compared them; where an entrypoint of an earlier version has not, as this machine does."""
        found = compared(replayed)
        if found is not None:
            return found[self._against[replayed].index(other)]
        return compare_here(chosen_python(None, os.environ), other, replayed, step)

    def settle(self, *, well: bool) -> None:
        """Remove what the jobs have written; of a run that differs, the log, metrics and checksums are kept."""
        for job in self.jobs:
            folder = Path(job["run_dir"])
            for part in (CHECKPOINTS, "against"):
                shutil.rmtree(folder / part, ignore_errors=True)
            if well:
                shutil.rmtree(folder, ignore_errors=True)
                job["run_dir"] = None
            else:
                note(f"log, metrics and checksums of job {job['job_id']} are in {folder}")
