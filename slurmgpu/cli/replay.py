"""Train an interval of a run again as a job on named nodes."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurmgpu.amounts import count
from slurmgpu.cli.preparing import check_whose
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
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import RUN_FILE, JobStatus, Run
from slurmgpu.runs.directory import SCRIPT, ask_entrypoint, chosen_python, read_plan
from slurmgpu.runs.metrics import progress_of
from slurmgpu.runs.replay import (
    Again,
    as_replay,
    compared,
    folder_of_job,
    submit_again,
)
from slurmgpu.runs.submit import Submission
from slurmgpu.slurm import Slurm, cluster_name_here, expand

if TYPE_CHECKING:
    from slurmgpu.slurm import NodeNow


_HOST = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


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
        self._slurm, self._folder = slurm, folder
        self._record = read_run(folder)
        self._plan = read_plan(folder)
        self._nodes = expand_node_lists(nodes)
        self._asked = ",".join(nodes)
        self.jobs: list[dict[str, Any]] = []
        self._against: dict[Path, Sequence[Path]] = {}
        self._check()

    def _check(self) -> None:
        """InvalidInput for what Slurm would refuse, or leave in its queue for ever."""
        plan, named = self._plan, len(self._nodes)
        here = cluster_name_here(self._slurm.env)
        if self._record.cluster is not None and here not in (None, self._record.cluster):
            raise InvalidInput(
                f"--on {self._asked}: {self._folder} is of cluster {self._record.cluster}, and Slurm here is that of {here}",
                hint="give the command on a login node of that cluster; or leave --on out: it is then trained on this machine",
            )
        if named != plan.nodes:
            raise InvalidInput(
                f"--on {self._asked}: {count(named, 'node')} named, and the run had {count(plan.nodes, 'node')}",
                hint=f"name {'one' if plan.nodes == 1 else plan.nodes}: sums over other numbers of processes differ",
            )
        if plan.option("clusters") or os.environ.get("SLURM_CLUSTERS"):
            return  # which nodes these have, only they know
        known = self._slurm.present().nodes
        if known is not None:
            check_nodes(self._asked, self._nodes, plan.partition, known)

    def train(self, what: Again) -> Path:
        """Submit it, wait for its end; the run directory of the job."""
        if what.processes != world_size(self._plan):
            raise RunFailed(
                f"the interval was trained by {what.processes} processes, and the run's job has {world_size(self._plan)} now"
            )
        plan = as_replay(self._plan, ",".join(self._nodes), what.until)
        run = self._submit(what, plan)
        note(
            f"job {run.job_id} trains steps up to {what.until} again on {self._asked}; run directory {run.run_dir}"
        )
        replayed = Path(run.run_dir)
        self.jobs.append({"job_id": run.job_id, "nodes": None, "run_dir": run.run_dir})
        self._against[replayed] = what.against
        ended = Wait(self._slurm, run, None, lambda: _progress(run, what.until)).until_its_end()
        self.jobs[-1]["nodes"] = ended.node_list
        if not (replayed / "checkpoints" / f"step-{what.until}" / "manifest.json").exists():
            raise RunFailed(_how_it_failed(run, ended, what.until))
        return replayed

    def _submit(self, what: Again, plan: Plan) -> Run:
        cwd = Path.cwd()
        folder = folder_here(plan.work_dir, cwd)
        templates = read_templates(*load_settings(cwd).template_sources(os.environ))
        from slurmgpu.script.render import render_script  # loads Jinja

        script = render_script(plan, templates, script_name=SCRIPT, place=templates.place)
        job = load_job(self._folder / "job.yaml", Layered({}, {}), cwd=cwd, environ=os.environ).job
        submission = Submission(plan=plan, script=script, folder=folder, cwd=cwd, probe=True)
        try:
            with as_interrupts():
                return submit_again(what, submission, job, self._folder.parent, self._slurm, os.environ)
        except (PlanError, SlurmRefused) as error:
            raise RunFailed(f"the replay cannot be submitted: {error}") from None

    def compare(self, other: Path, replayed: Path, step: int) -> dict[str, Any]:
        """As the job has compared them; where an entrypoint of an earlier version has not, as this machine does."""
        found = compared(replayed)
        if found is not None:
            return found[self._against[replayed].index(other)]
        own = replayed / "checkpoints" / f"step-{step}"
        arguments = [str(other.absolute()), str(own)]
        answer: dict[str, Any] = json.loads(
            ask_entrypoint(chosen_python(None, os.environ), "comparing", arguments, os.environ)
        )
        return answer

    def settle(self, *, well: bool) -> None:
        """Remove what the jobs have written; of a run that differs, the log, metrics and checksums are kept."""
        for job in self.jobs:
            folder = Path(job["run_dir"])
            for part in ("checkpoints", "against"):
                shutil.rmtree(folder / part, ignore_errors=True)
            if well:
                shutil.rmtree(folder, ignore_errors=True)
                job["run_dir"] = None
            else:
                note(f"log, metrics and checksums of job {job['job_id']} are in {folder}")


def check_nodes(asked: str, names: Sequence[str], partition: str | None, known: Sequence[NodeNow]) -> None:
    """InvalidInput for a node that is not there, or in no partition that the job is for; says which take no jobs now."""
    there = {node.name: node for node in known}
    strange = [name for name in names if name not in there]
    if strange:
        raise InvalidInput(
            f"--on {asked}: Slurm knows no node {', '.join(strange)}",
            hint="sinfo -N lists the nodes; the first column is their names",
        )
    parts = partition.split(",") if partition else []
    if parts and not any(all(part in there[name].partitions for name in names) for part in parts):
        has = "; ".join(f"{name} is in {', '.join(there[name].partitions) or 'none'}" for name in names)
        raise InvalidInput(
            f"--on {asked}: the run's job is for partition {partition}, and {has}",
            hint=f"name nodes of it: sinfo -N -p {partition}",
        )
    for name in names:
        if there[name].away in ("down", "drained"):
            note(f"{name} is {there[name].away} ({there[name].state}): the job waits until it takes jobs")


def expand_node_lists(words: Sequence[str]) -> list[str]:
    """Return the nodes of some lists, each once; InvalidInput where one is no list."""
    found: list[str] = []
    for word in words:
        names = expand(word)
        if word.count("[") != word.count("]") or not names or not all(map(_HOST.fullmatch, names)):
            raise InvalidInput(
                f"--on {word}: this is no list of nodes", hint="as in --on 'node[03-04],node07'"
            )
        found += names
    return list(dict.fromkeys(found))


def _progress(run: Run, until: int) -> str | None:
    progress = progress_of(Path(run.run_dir))
    return None if progress is None else f"job {run.job_id}: step {min(progress.step, until)} of {until}"


def _how_it_failed(run: Run, job: JobStatus, until: int) -> str:
    cause = cause_of(job, run)
    why = f": {cause_lines(cause)[0]}" if cause is not None else ""
    return (
        f"job {run.job_id}, which trains it again, ended as {job.state.value} before step {until} was saved{why} "
        f"(slurmgpu logs {run.run_dir})"
    )
