"""A loaded job becomes a prepared one: cluster chosen, planned, ready to render. Every way to start a job begins here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import choose_cluster
from slurmgpu.files.data import Templates, TemplateSource, read_templates
from slurmgpu.files.jobs import LoadedJob, folder_here, read_scripts_of_steps, read_user_script
from slurmgpu.files.settings import expand_here, runs_folder
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.job_parts import SamplerPolicy
from slurmgpu.models.plan import Plan
from slurmgpu.models.script_facts import ScriptFacts
from slurmgpu.planning.planner import make_plan, partitions_that_fit
from slurmgpu.planning.settled import Surroundings, resolve_environment
from slurmgpu.runs.images import Making, image_folder, image_to_make, make_image, with_pulled_image

if TYPE_CHECKING:
    from slurmgpu.runs.packing import Packing
    from slurmgpu.script.render import ShellValues
    from slurmgpu.slurm import Estimate, Slurm

__all__ = ["MOST_ASKED", "Prepared", "When", "estimates", "images_of", "plan_here", "prepare_job"]


class Prepared(NamedTuple):
    """A planned job and what it came from."""

    loaded: LoadedJob
    cluster: Cluster
    plan: Plan
    around: Surroundings
    unchosen: str | None = None
    """That nobody chose a cluster, and what follows from it."""
    template: str | None = None
    """The folder or file of templates that the command line names."""
    batch: tuple[str, str] | None = None
    """Name and text of the batch script that was taken as a job."""
    rendered: tuple[Plan, str] | None = None
    """The script of this plan, once it is rendered."""
    packing: Packing | None = None
    """The environment that is to be on the nodes' own disks."""
    refused: bool = False
    """Whether its script has an error for which ``submit`` refuses the job."""

    def render(self, script_name: str | None = None) -> str:
        """Return the script's text."""
        from slurmgpu.script.render import render_script
        from slurmgpu.script.variables import SCRIPT_NAME

        if script_name in (None, SCRIPT_NAME) and self.rendered and self.rendered[0] is self.plan:
            return self.rendered[1]
        templates = self.templates()
        return render_script(
            self.plan, templates, script_name=script_name or SCRIPT_NAME, place=templates.place
        )

    def render_shell(self, values: ShellValues) -> dict[str, str]:
        """Return the files of an interactive session by name; the plan is `shell_plan`'s."""
        from slurmgpu.script.render import render_shell

        templates = self.templates()
        return render_shell(self.plan, templates, values, place=templates.place)

    @property
    def has_own_templates(self) -> bool:
        """True if templates of the user's own may have a part in the script."""
        return bool(self.template or self.loaded.settings.templates)

    def templates(self) -> Templates:
        """Return the shipped templates, with those of the settings laid over them, and the command line's on top."""
        sources = self.loaded.settings.template_sources(os.environ)
        if self.template:
            named = expand_here(self.template, os.environ, "--template")
            sources = (TemplateSource.named("--template", named), *sources)
        return read_templates(*sources)

    @property
    def folder(self) -> Path | None:
        """Return the work folder, where it is known on this machine."""
        return folder_here(self.loaded.work_dir, Path.cwd())

    @property
    def runs(self) -> Path:
        """Return the folder of run directories: as set, else runs/ in the work folder."""
        return runs_folder(self.loaded.settings.settings.runs, self.folder or Path.cwd(), os.environ)

    def fitting(self) -> list[str]:
        """Return the partitions that would start the job, the best first: the one asked for, or any."""
        return partitions_that_fit(self.loaded.job, self.cluster, self.around)

    def on_partition(self, name: str | None) -> Prepared:
        """Return the same job on another partition."""
        if name is None or name == self.plan.partition:
            return self
        resources = self.loaded.job.resources.model_copy(update={"partition": name})
        job = self.loaded.job.model_copy(update={"resources": resources})
        plan, packing = _with_files(make_plan(job, self.cluster, self.around), self.loaded)
        return self._replace(plan=plan, packing=packing)

    def image_to_make(self, told: Callable[[str], None]) -> Making | None:
        """Return what has to be pulled or built before the job; None where nothing has."""
        return image_to_make(self.plan, images_of(self.loaded), self.folder, told)

    def with_image(self, making: Making, told: Callable[[str], None]) -> Prepared:
        """Pull or build it now, if nothing else is in the job's way; the same job with the image's file.

        PlanError where something is, and where the image cannot be had.
        """
        from slurmgpu.runs.preflight import check_before_submission

        check_before_submission(self.plan, self.folder, os.environ, image=False)
        make_image(making, told)
        return self._replace(plan=with_pulled_image(self.plan, images_of(self.loaded)))

    def environment_to_pack(self) -> Packing | None:
        """Return what has to be packed before the job; None where nothing has."""
        return None if self.packing is None or self.packing.is_there else self.packing

    def pack(self, told: Callable[[str], None]) -> None:
        """Pack what has to be, if nothing else is in the job's way; PlanError where something is, or it cannot be packed."""
        from slurmgpu.runs.packing import pack_environment
        from slurmgpu.runs.preflight import check_before_submission

        packing = self.environment_to_pack()
        if packing is not None:
            check_before_submission(self.plan, self.folder, os.environ)
            pack_environment(packing, told)

    def check_test_only(self, asker: str) -> None:
        """Raise InvalidInput when the site wants no estimates asked for."""
        if not self.loaded.settings.settings.policy.test_only:
            raise InvalidInput(
                f"{asker}: this site does not want `sbatch --test-only` to be asked (policy.test_only)",
                hint="slurmgpu plan shows what the profile says, without asking Slurm",
            )


def prepare_here(
    loaded: LoadedJob,
    cluster: str | None,
    cwd: Path,
    *,
    force: bool = False,
    change: Callable[[Job, Cluster], Job] | None = None,
) -> Prepared:
    """Do `prepare_job`, with what the job's Python scripts show that are on this machine."""
    script = read_user_script(loaded.job, loaded.work_dir, cwd)
    scripts = read_scripts_of_steps(loaded.job, loaded.work_dir, cwd)
    return prepare_job(loaded, cluster, script, scripts=scripts, force=force, change=change)


def prepare_job(
    loaded: LoadedJob,
    cluster: str | None,
    script: ScriptFacts | None,
    *,
    scripts: Mapping[str, ScriptFacts] = MappingProxyType({}),
    force: bool = False,
    change: Callable[[Job, Cluster], Job] | None = None,
) -> Prepared:
    """Choose the cluster and plan the job on it.

    ``cluster`` is the profile that the caller names, if any; ``script`` what the user's Python shows, ``scripts`` that of
    each step; ``force`` plans what cannot run all the same; ``change`` makes another job of it first. Raises
    InvalidInput and PlanError.
    """
    found, chooser = choose_cluster(cluster, loaded.settings, os.environ)
    if change is not None:
        loaded = loaded._replace(job=change(loaded.job, found))
    around = Surroundings(
        work_dir=loaded.work_dir,
        environments=loaded.settings.settings.environments,
        origins=loaded.from_settings(),
        script=script,
        scripts=scripts,
        sampler=loaded.settings.settings.policy.sampling,
        force=force,
    )
    unchosen = (
        "no cluster profile is chosen: a plain generic one is used, and nothing is checked against limits "
        "(`slurmgpu cluster list` shows profiles, `slurmgpu cluster use NAME` chooses one)"
    )
    plan, packing = _with_files(make_plan(loaded.job, found, around), loaded)
    return Prepared(loaded, found, plan, around, unchosen if chooser is None else None, packing=packing)


def _with_files(plan: Plan, loaded: LoadedJob) -> tuple[Plan, Packing | None]:
    """Return the plan with the files that are made once for many jobs: an image, a packed environment."""
    plan = with_pulled_image(plan, images_of(loaded))
    if plan.environment.python.stage is None:
        return plan, None
    from slurmgpu.runs.packing import with_packed_environment  # only such a job pays for it

    named = loaded.settings.settings.packed
    packed = (
        expand_here(named, os.environ, "packed").absolute()
        if named
        else images_of(loaded).parent / "environments"
    )
    return with_packed_environment(plan, packed, folder_here(loaded.work_dir, Path.cwd()), os.environ)


def images_of(loaded: LoadedJob) -> Path:
    """Return the folder of pulled images."""
    named = loaded.settings.settings.images
    return image_folder(expand_here(named, os.environ, "images") if named else None)


def plan_here(loaded: LoadedJob, cluster: str | None) -> Prepared:
    """Plan the job for this machine: in its environment on the cluster, whose other rules do not matter here."""
    known, _ = choose_cluster(cluster, loaded.settings, os.environ)
    _, environment = resolve_environment(loaded.job, known, loaded.settings.settings.environments)
    job = loaded.job.model_copy(update={"environment": environment})
    # The GPUs of this machine are what counts, and a run here is not sampled, nor told of.
    around = Surroundings(work_dir=loaded.work_dir, sampler=SamplerPolicy("on_request"), force=True)
    plan = make_plan(job, GENERIC, around).model_copy(
        update={"login_shell": known.dialect.login_shell, "notify": None}
    )
    return Prepared(loaded._replace(job=job), GENERIC, plan, around)


MOST_ASKED = 5
"""The most partitions that are asked for: each costs Slurm a call and a job id."""


class When(NamedTuple):
    """Slurm's estimate for one partition (None: whatever Slurm takes)."""

    partition: str | None
    estimate: Estimate


def estimates(
    slurm: Slurm, partitions: Sequence[str | None], script_for: Callable[[str | None], str], folder: Path
) -> list[When]:
    """Ask Slurm for each of at most five partitions; raises SlurmUnreachable when it does not answer."""
    found: list[When] = []
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        path = Path(temporary) / "script.sbatch"
        for partition in partitions[:MOST_ASKED]:
            path.write_text(script_for(partition), encoding="utf-8")
            found.append(When(partition, slurm.estimate(path, cwd=folder)))
    return found
