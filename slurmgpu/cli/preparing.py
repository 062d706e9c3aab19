"""What render, plan, submit and run do first: options and files -> job -> plan -> script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from slurmgpu.cli.job_options import parameter
from slurmgpu.cli.job_source import Source, find_source
from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.clusters import choose_cluster, foreign_profiles
from slurmgpu.files.data import data_folder, read_templates
from slurmgpu.files.jobs import LoadedJob, folder_here, load_job, read_user_script, words_as_spelled
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.settings import expand_here, load_settings, runs_folder
from slurmgpu.files.trust import Trust
from slurmgpu.files.yaml import read_file, read_yaml
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.options import ROWS
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import RUN_FILE
from slurmgpu.models.units import parse_gres_list
from slurmgpu.planning.derived import partitions_that_fit
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.surroundings import Surroundings

__all__ = ["Prepared", "check_whose", "note", "prepare", "put_any"]


Start = Literal["submit", "run"]
_VARIABLE = re.compile(r"(?:\A|\.)variables\.\w+\Z")


class Prepared(NamedTuple):
    """A planned job and what it came from."""

    loaded: LoadedJob
    cluster: Cluster
    plan: Plan
    template: str | None
    around: Surroundings
    rendered: tuple[Plan, str] | None = None
    """The script of this plan, once it is rendered."""

    def render(self, script_name: str | None = None) -> str:
        """The script's text."""
        from slurmgpu.rendering.context import SCRIPT_NAME
        from slurmgpu.rendering.render import render_script

        if script_name in (None, SCRIPT_NAME) and self.rendered and self.rendered[0] is self.plan:
            return self.rendered[1]
        return render_script(self.plan, self.templates(), script_name=script_name or SCRIPT_NAME)

    @property
    def folder(self) -> Path | None:
        """The work folder, where it is known on this machine."""
        return folder_here(self.loaded.work_dir, Path.cwd())

    @property
    def runs(self) -> Path:
        """The folder of run directories: as set, else runs/ in the work folder."""
        return runs_folder(self.loaded.settings.settings.runs, self.folder or Path.cwd(), os.environ)

    def fitting(self) -> list[str]:
        """The partitions that would start the job, the best first: the one asked for, or any."""
        return partitions_that_fit(self.loaded.job, self.cluster, self.around)

    def on_partition(self, name: str | None) -> Prepared:
        """The same job on another partition."""
        if name is None or name == self.plan.partition:
            return self
        resources = self.loaded.job.resources.model_copy(update={"partition": name})
        job = self.loaded.job.model_copy(update={"resources": resources})
        return self._replace(plan=make_plan(job, self.cluster, self.around))

    def check_test_only(self, asker: str) -> None:
        """InvalidInput when the site wants no estimates asked for."""
        if not self.loaded.settings.settings.policy.test_only:
            raise InvalidInput(
                f"{asker}: this site does not want `sbatch --test-only` to be asked (policy.test_only)",
                hint="slurmgpu plan shows what the profile says, without asking Slurm",
            )

    def outline(self) -> str | None:
        """The lines of the script that the job decides; None where only the templates tell."""
        from slurmgpu.rendering.outline import outline

        return None if self.template or self.loaded.settings.templates else outline(self.plan)

    def templates(self) -> Mapping[str, str]:
        """The shipped templates, with the user's laid over them."""
        if self.template:
            return read_templates(expand_here(self.template, os.environ, "templates"))
        return self.loaded.settings.read_templates(os.environ)


def note(text: str) -> None:
    """Say something to the person, beside the result."""
    from slurmgpu.slurm.text import printable_lines

    click.echo(click.style("slurmgpu: ", fg="yellow") + printable_lines(text), err=True)


def prepare(given: dict[str, Any], *, starts: Start | None = None, renders: bool = True) -> Prepared:
    """Read, check and plan the job that file and options describe; warnings go to stderr.

    A command that cannot work is refused where the job ``starts`` now, unless --force overrules. What the caller
    does not render is judged by its outline where that is enough, which saves the time to load Jinja.
    """
    cwd = Path.cwd()
    source = find_source(given, cwd, os.environ)
    loaded = _loaded(given, source, cwd)
    cluster, chooser = choose_cluster(given.get("job__cluster"), loaded.settings, os.environ)
    around = Surroundings(
        work_dir=loaded.work_dir,
        environments=loaded.settings.settings.environments,
        origins=loaded.from_settings(),
        script=read_user_script(loaded.job, loaded.work_dir, cwd),
        force=bool(given.get("job__force")),
    )
    plan = make_plan(loaded.job, cluster, around)
    if chooser is None:
        note(
            "no cluster profile is chosen: a plain generic one is used, and nothing is checked against limits "
            "(`slurmgpu cluster list` shows profiles, --cluster NAME chooses one)"
        )
    _mention_others(loaded)
    _mention_misplaced(given.get("command") or ())
    for warning in plan.warnings:
        note(f"warning: {warning}")
    _judge(loaded, plan, cwd, starts, around.force)
    prepared = Prepared(loaded, cluster, plan, given.get("job__template"), around)
    script = None if renders else prepared.outline()
    if script is None:
        script = prepared.render()
        prepared = prepared._replace(rendered=(plan, script))
    _judge_script(prepared, script, source, cwd, starts)
    return prepared


def _judge_script(prepared: Prepared, script: str, source: Source, cwd: Path, starts: Start | None) -> None:
    """Say what the rules of `slurmgpu check` find; PlanError for what cannot work, where the job starts now."""
    from slurmgpu.submission.judging import judge
    from slurmgpu.submission.requested import Requested

    batch = (source.batch.name, source.batch.text) if source.batch else None
    loaded, around = prepared.loaded, prepared.around
    requested = Requested(prepared.plan, script, loaded, prepared.cluster, around.script, batch)
    verdict = judge(requested, cwd)
    if starts and not around.force:
        verdict.refuse("--force starts the job all the same")
    for remark in verdict.errors:
        note(f"{'warning' if around.force else 'error'}: {remark.message}; {remark.hint}")
    for remark in verdict.warnings:
        note(f"warning: {remark.message}; {remark.hint}")


def _loaded(given: dict[str, Any], source: Source, cwd: Path) -> LoadedJob:
    """The job of a file, a batch script or the options alone, with the options on top."""
    if source.note:
        note(source.note)
    if source.batch is None:
        exact = (
            source.path is not None
            and given.get("job__resources__gres")
            and read_file(source.path).data.get("exact")
        )
        named = given.get("job__file")
        # A shipped job is found by its name, and works here, not where it is installed.
        home = cwd if named and source.path != Path(named) else None
        return load_job(
            source.path,
            _layer(given, exact is True),
            cwd=cwd,
            environ=os.environ,
            home=home,
            unnamed=source.path is not None and not named,
        )
    for line in source.batch.notes:
        note(line)
    if not given.get("job__file"):  # it was found after --
        given = {**given, "command": None}
    options = _layer(given, exact=True)
    if "work_dir" in options.data:
        # As sbatch does with -D: the script itself changes into no folder.
        options.put(("sbatch", "chdir"), options.data.pop("work_dir"), options.origins.pop(("work_dir",)))
    return load_job(None, options, cwd=cwd, environ=os.environ, script=source.batch.layer)


def _judge(loaded: LoadedJob, plan: Plan, cwd: Path, starts: Start | None, force: bool) -> None:
    """Say what is wrong with the command; PlanError for what cannot work, where the job starts now."""
    from slurmgpu.submission.preflight import check_task, command_of
    from slurmgpu.submission.slips.judging import slips

    origin = loaded.layered.origin(("command",))
    in_file = loaded.path is not None and origin is not None and origin.where == str(loaded.path)
    command = command_of(plan, loaded.job, loaded.work_dir, cwd, os.environ, in_file=in_file)
    if starts == "run" and command.folder is not None and not command.folder.is_dir():
        command = command._replace(folder=cwd)  # a run here stands in for a folder that is not here
    for slip in slips(command):
        if slip.sure and starts and not (force and slip.forceable):
            overrule = "\n--force starts the job all the same" if slip.forceable else ""
            raise PlanError(slip.message, hint=slip.hint + overrule)
        note(f"warning: {slip.message}; {slip.hint}")
    if starts is None and command.folder is not None and command.folder.is_dir():
        try:
            check_task(plan, command.folder)
        except PlanError as error:
            note(f"warning: {error.message}; {error.hint}")


def _mention_others(loaded: LoadedJob) -> None:
    """Say which files of others are used, and which are not."""
    settings = loaded.settings
    profiles = [
        one for folder in settings.folders.values() for one in foreign_profiles(settings, folder / "clusters")
    ]
    for one in (*settings.unused, *profiles[:1]):
        folder = shlex.quote(str(one.path.parent))
        note(f"{one.path} is not used: it {one.why}; where you trust it: slurmgpu config trust {folder}")
    own = Trust.of([data_folder("jobs")])
    named = own.foreign(loaded.path) if loaded.path else None
    for one in (*settings.of_others, *([named] if named else [])):
        note(f"{one.path} is used, and it {one.why}")


def check_whose(run_dir: Path, word: str) -> None:
    """Say so where others wrote what lies in a run directory; InvalidInput where ``word`` does not name it by its path."""
    from slurmgpu.monitoring.select import names_folder

    trust = load_settings(Path.cwd()).trust
    files = (run_dir / name for name in (RUN_FILE, "script.sbatch", "job.yaml", "plan.json"))
    foreign = next(filter(None, map(trust.foreign, (run_dir, *files))), None)
    if foreign is None:
        return
    if not names_folder(word):
        raise InvalidInput(
            f"{word}: {foreign.path} {foreign.why}, and you did not name it on the command line; what is in it would run as you",
            hint=f"look into it, then name it: {shlex.quote(str(run_dir))}",
        )
    note(f"{foreign.path} is used, and it {foreign.why}")


def _mention_misplaced(command: tuple[str, ...]) -> None:
    for word in command:
        if word in {"--follow", "--wait", "--dry-run", "--hold", "--json", "--cluster"}:
            note(f"{word} stands after --, so it goes to the command; options of slurmgpu stand before it")


def _layer(given: dict[str, Any], exact: bool) -> Layered:
    """The options as the topmost layer; an exact job has its GPUs in gres where they are asked for so."""
    layer = Layered({}, {})

    def put(key: str, value: object, origin: str) -> None:
        layer.put(tuple(key.split(".")), value, Origin(origin))

    for row in ROWS:
        value = given.get(parameter(row))
        if value is None:
            continue
        if row.key == "resources.gres":
            _put_gres(value, put, exact)
            continue
        if row.key == "work_dir" and value[:1] not in "$~":
            value = str(Path(value).absolute())
        elif row.kind == "list":
            value = value.upper().split(",")
        put(row.key, value, f"option {row.flags[-1]}")
    if given.get("job__requeue") is not None:
        put(
            "restart.on",
            ["preemption", "node_failure"] if given["job__requeue"] else [],
            "option --requeue/--no-requeue",
        )
    for text in given.get("job__sbatch") or ():
        name, has_value, value = text.lstrip("-").partition("=")
        put(f"sbatch.{name}", value if has_value else True, "option --sbatch")
    for text in given.get("job__set") or ():
        put_any(text, put)
        if text.startswith("command="):
            words_as_spelled(layer, f"value: {text.partition('=')[2]}", in_text="value")
    if given.get("command"):
        put("command", list(given["command"]), "the command after --")
    return layer


def _put_gres(text: str, put: Any, exact: bool) -> None:
    if exact:
        put("resources.gres", text.split(","), "option --gres")
        return
    try:
        gpu, others = parse_gres_list(text)
    except ValueError as error:
        raise InvalidInput(
            f"option --gres: {error}", hint="write it as in --gres gpu:a100:2,lscratch:100"
        ) from None
    if gpu is not None:
        put("resources.gpus_per_node", str(gpu), "option --gres")
    if others:
        put("resources.gres", [str(gres) for gres in others], "option --gres")


def put_any(
    text: str, put: Any, option: str = "--set", example: str = "train.epochs=3", above: str = ""
) -> None:
    """Put KEY=VALUE of an option into a layer, the value read as YAML; ``above`` is the key that holds KEY."""
    key, has_value, value = text.partition("=")
    if not key or not has_value:
        raise InvalidInput(
            f"option {option}: {text!r} is not KEY=VALUE", hint=f"write it as in {option} {example}"
        )
    origin = f"option {option} {key}"
    if _VARIABLE.search(above + key) and not value.startswith(("'", '"')):
        put(above + key, value, origin)  # text: the shell has taken its quotes away
        return
    parsed = read_yaml(f"value: {value}" if value.strip() else "value: ''", origin).data["value"]
    put(above + key, parsed, origin)
