"""A job planned on a cluster, with what it came from; ready to render, to make its files, and to submit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.clusters import choose_cluster
from slurmgpu.files.data import Templates, TemplateSource, read_templates
from slurmgpu.files.jobs import LoadedJob, folder_here, read_scripts_of_steps, read_user_script
from slurmgpu.files.settings import expand_here, runs_folder
from slurmgpu.interrupts import as_interrupts
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.job_parts import SamplerPolicy
from slurmgpu.models.plan import Plan
from slurmgpu.models.script_facts import ScriptFacts
from slurmgpu.planning.planner import make_plan, partitions_that_fit
from slurmgpu.planning.settled import Surroundings, resolve_environment
from slurmgpu.runs.images import Making, image_folder, image_to_make, make_image, with_pulled_image
from slurmgpu.runs.requests import Say

if TYPE_CHECKING:
    from slurmgpu.runs.packing import Packing
    from slurmgpu.script.render import ShellValues
    from slurmgpu.slurm import Estimate, Slurm

Change = Callable[[Job, Cluster], Job]


class Prepared(NamedTuple):
    """A planned job and what it came from."""

    loaded: LoadedJob
    cluster: Cluster
    plan: Plan
    around: Surroundings
    unchosen: str | None = None
    """A remark where nobody chose a cluster."""
    template: str | None = None
    """The folder or file of templates that the command line names."""
    batch: tuple[str, str] | None = None
    """Name and text of the batch script that was taken as a job."""
    rendered: tuple[Plan, str] | None = None
    """The script of this plan, once it is rendered."""
    packing: Packing | None = None
    """The environment that is to be on the nodes' own disks."""
    refused: bool = False
    """True if its script has an error for which ``submit`` refuses the job."""

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

    def image_to_make(self, say: Say) -> Making | None:
        """Return what has to be pulled or built before the job; None where nothing has."""
        return image_to_make(self.plan, images_of(self.loaded), self.folder, say)

    def environment_to_pack(self) -> Packing | None:
        """Return what has to be packed before the job; None where nothing has."""
        return None if self.packing is None or self.packing.is_there else self.packing

    def make_files(self, say: Say, *, pull: bool = True) -> Prepared:
        """Pull or build the image and pack the environment that the job needs and that are not there; the job with them.

        PlanError where something else is in the job's way, and where they cannot be had. Without ``pull`` the image is
        left to the nodes.
        """
        image, environment = self.image_to_make(say) if pull else None, self.environment_to_pack()
        if image is None and environment is None:
            return self
        from slurmgpu.runs.preflight import check_before_submission

        prepared = self
        with as_interrupts():
            check_before_submission(self.plan, self.folder, os.environ, image=image is None)
            if image is not None:
                make_image(image, say)
                prepared = self._replace(plan=with_pulled_image(self.plan, images_of(self.loaded)))
            if environment is not None:
                from slurmgpu.runs.packing import pack_environment

                pack_environment(environment, say)
        return prepared

    def mention_files_to_make(self, say: Say) -> None:
        """Say what ``submit`` would pull, build or pack before the job, or why it would not."""
        image = None
        try:
            image = self.image_to_make(say)
        except PlanError as error:
            say(f"warning: {error.message}; {error.hint}")
        for one in (image, self.environment_to_pack()):
            if one is not None:
                say(one.told_before)

    def estimate(self, slurm: Slurm) -> Estimate:
        """Return Slurm's own estimate for the script; raises SlurmUnreachable when it does not answer."""
        with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
            path = Path(temporary) / "script.sbatch"
            path.write_text(self.render(), encoding="utf-8")
            return slurm.estimate(path, cwd=self.folder or Path.cwd())

    def check_test_only(self, asker: str) -> None:
        """Raise InvalidInput when the site wants no estimates asked for."""
        if not self.loaded.settings.settings.policy.test_only:
            raise InvalidInput(
                f"{asker}: this site does not want `sbatch --test-only` to be asked (policy.test_only)",
                hint="slurmgpu plan shows what the profile says, without asking Slurm",
            )


def plan_job(
    loaded: LoadedJob,
    cluster: str | None,
    *,
    cwd: Path | None = None,
    script: ScriptFacts | None = None,
    force: bool = False,
    change: Change | None = None,
) -> Prepared:
    """Choose the cluster and plan the job on it.

    Args:
        cluster: The profile that the caller names, if any.
        cwd: Against which the job's Python scripts are found, which are read then; None: ``script`` says what its
            Python shows, if anything is known of it.
        force: Plan what cannot run all the same.
        change: Makes another job of it first.

    Raises InvalidInput and PlanError.
    """
    scripts: Mapping[str, ScriptFacts] = {}
    if cwd is not None:
        script = read_user_script(loaded.job, loaded.work_dir, cwd)
        scripts = read_scripts_of_steps(loaded.job, loaded.work_dir, cwd)
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


def plan_for_this_machine(loaded: LoadedJob, cluster: str | None) -> Prepared:
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
