"""A request becomes a prepared job: cluster chosen, planned, judged, ready to render. Every way to start a job begins here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.clusters import choose_cluster, foreign_profiles
from slurmgpu.files.data import Templates, TemplateSource, data_folder, read_templates
from slurmgpu.files.jobs import LoadedJob, folder_here, read_scripts_of_steps, read_user_script
from slurmgpu.files.settings import expand_here, runs_folder
from slurmgpu.files.trust import Trust, link_of_another
from slurmgpu.interrupts import as_interrupts
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.job_parts import SamplerPolicy
from slurmgpu.models.plan import Plan
from slurmgpu.models.script_facts import ScriptFacts
from slurmgpu.planning.planner import make_plan, partitions_that_fit
from slurmgpu.planning.settled import Surroundings, resolve_environment
from slurmgpu.runs.images import Making, image_folder, image_to_make, make_image, with_pulled_image
from slurmgpu.runs.requests import Say, load_request

if TYPE_CHECKING:
    from slurmgpu.runs.command_checks.command import Command
    from slurmgpu.runs.packing import Packing
    from slurmgpu.script.render import ShellValues

_OF_SLURMGPU = {"--follow", "--wait", "--dry-run", "--hold", "--json", "--cluster"}

Start = Literal["submit", "run"]
Change = Callable[[Job, Cluster], Job]


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

    def check_test_only(self, asker: str) -> None:
        """Raise InvalidInput when the site wants no estimates asked for."""
        if not self.loaded.settings.settings.policy.test_only:
            raise InvalidInput(
                f"{asker}: this site does not want `sbatch --test-only` to be asked (policy.test_only)",
                hint="slurmgpu plan shows what the profile says, without asking Slurm",
            )


def prepare(
    given: dict[str, Any],
    say: Say,
    *,
    starts: Start | None = None,
    renders: bool = True,
    change: Change | None = None,
) -> Prepared:
    """Read, check and plan the job that file and options describe; warnings go to ``say``.

    A command that cannot work is refused where the job ``starts`` now, unless --force overrules. What the caller
    does not render is judged by its plan alone, which saves the time to load Jinja. ``change`` makes another job of it
    before it is planned.
    """
    prepared = plan_request(given, say, change)
    command = _judge_command(prepared, starts, say)
    if (starts == "submit" or not renders) and prepared.plan.environment.modules is not None:
        from slurmgpu.runs.command_checks.environment import missing_module

        slip = missing_module(prepared.plan, prepared.templates(), prepared.folder, os.environ)
        if slip is not None:  # said before the job waits in the queue for it
            say(f"warning: {slip.message}; {slip.hint}")
    if starts == "submit" and command.words:
        from slurmgpu.runs.command_checks.python import missing_imports

        if (slip := missing_imports(command)) is not None:
            say(f"warning: {slip.message}; {slip.hint}")
    if renders or prepared.has_own_templates:
        prepared = prepared._replace(rendered=(prepared.plan, prepared.render()))
    prepared = prepared._replace(refused=_judge_request(prepared, starts, say))
    if prepared.has_own_templates:
        from slurmgpu.runs.command_checks.judge import check_shell, unused_templates

        templates = prepared.templates()
        for slip in unused_templates(templates):
            say(f"warning: {slip.message}; {slip.hint}")
        if starts and prepared.plan.script is None:
            check_shell(prepared.render(), templates)
    return prepared


def plan_request(given: dict[str, Any], say: Say, change: Change | None = None) -> Prepared:
    """Read and plan the job that file and options describe, without a look at its command; warnings go to ``say``.

    ``change`` makes another job of it before it is planned.
    """
    loaded, source = load_request(given, say)
    prepared = plan_job(
        loaded, given.get("cluster"), cwd=Path.cwd(), force=bool(given.get("force")), change=change
    )._replace(template=given.get("template"), batch=source.batch)
    if prepared.unchosen:
        say(prepared.unchosen)
    _mention_files_of_others(loaded, say)
    for word in given.get("command") or ():
        if word in _OF_SLURMGPU:
            say(f"{word} comes after --, so it goes to the command; options of slurmgpu go before it")
    for warning in prepared.plan.warnings:
        say(f"warning: {warning}")
    return prepared


def _judge_command(prepared: Prepared, starts: Start | None, say: Say) -> Command:
    """Say what is wrong with the command, and return it; PlanError for what cannot work, where the job starts now."""
    from slurmgpu.runs.command_checks.judge import each_slip
    from slurmgpu.runs.preflight import check_task, command_of, doubts_about_task

    loaded, plan, cwd = prepared.loaded, prepared.plan, Path.cwd()
    origin = loaded.layered.origin(("command",))
    in_file = loaded.path is not None and origin is not None and origin.where == str(loaded.path)
    command = command_of(plan, loaded.work_dir, cwd, os.environ, in_file=in_file)
    if starts == "run" and command.folder is not None and not command.folder.is_dir():
        command = command._replace(folder=cwd)  # a run here stands in for a folder that is not here
    for of, slip in each_slip(command, batch=prepared.batch):
        if slip.sure and starts and not (prepared.around.force and slip.forceable):
            overrule = "\n--force starts the job all the same" if slip.forceable else ""
            raise PlanError(of + slip.message, hint=slip.hint + overrule)
        say(f"warning: {of}{slip.message}; {slip.hint}")
    if starts != "submit" and command.folder is not None and command.folder.is_dir():
        try:
            check_task(plan, command.folder)
        except PlanError as error:
            if starts is None:
                say(f"warning: {error.message}; {error.hint}")
        else:
            for doubt in doubts_about_task(plan, command.folder):
                say(doubt)
    return command


def _judge_request(prepared: Prepared, starts: Start | None, say: Say) -> bool:
    """Say what the rules of `slurmgpu check` find, and return whether an error is among it.

    PlanError for what cannot work, where the job starts now.
    """
    from slurmgpu.runs.request_checks import judge

    verdict = judge(prepared, Path.cwd())
    force = prepared.around.force
    if starts and not force:
        verdict.refuse("--force starts the job all the same")
    for remark in verdict.errors:
        say(f"{'warning' if force else 'error'}: {remark.message}; {remark.hint}")
    for remark in verdict.warnings:
        say(f"warning: {remark.message}; {remark.hint}")
    return bool(verdict.errors) and not force


def _mention_files_of_others(loaded: LoadedJob, say: Say) -> None:
    """Say which files of others are used, and which are not."""
    settings = loaded.settings
    profiles = [
        one for folder in settings.folders.values() for one in foreign_profiles(settings, folder / "clusters")
    ]
    for one in (*settings.unused, *profiles[:1]):
        folder = shlex.quote(str(one.path.parent))
        say(f"{one.path} is not used: it {one.why}; where you trust it: slurmgpu config trust {folder}")
    if "project" not in settings.folders and Path("slurmgpu.yml").is_file():
        here = Path.cwd() / "slurmgpu.yml"
        say(f"warning: {here} is not read: it is not called slurmgpu.yaml; mv slurmgpu.yml slurmgpu.yaml")
    with suppress(InvalidInput):  # a variable that is not set here is missed where the folder is made
        runs = runs_folder(settings.settings.runs, Path.cwd(), os.environ)
        if whose := link_of_another(runs):
            lands = f"what jobs write lands in {runs.resolve()}"
            say(f"warning: {runs} is a link, and it {whose}: {lands}; take it away, or set runs:")
        elif runs.is_dir() and (others := settings.trust.foreign(runs)):
            trust = f"where you trust them: slurmgpu config trust {shlex.quote(str(runs))}"
            say(f"warning: {runs} {others.why}: what somebody changes in a run there runs as you; {trust}")
    named = Trust.of([data_folder("jobs")]).foreign(loaded.path) if loaded.path else None
    for one in (*settings.of_others, *([named] if named else [])):
        say(f"{one.path} is used, and it {one.why}")


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
