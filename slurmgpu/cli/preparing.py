"""What render, plan, submit and run do first: options and files -> job -> plan -> script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slurmgpu.cli.job_options import parameter
from slurmgpu.cli.job_source import Source, find_source
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.clusters import foreign_profiles
from slurmgpu.files.data import data_folder
from slurmgpu.files.jobs import (
    LoadedJob,
    load_job,
    words_as_spelled,
)
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.settings import load_settings, runs_folder
from slurmgpu.files.trust import Trust, is_confined, link_of_another
from slurmgpu.files.yaml import read_file, read_yaml
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.options import ROWS
from slurmgpu.models.units import parse_gres_list
from slurmgpu.runs.prepare import Prepared, prepare_here

if TYPE_CHECKING:
    from slurmgpu.runs.command_checks.command import Command

Start = Literal["submit", "run"]
Change = Callable[[Job, Cluster], Job]
_VARIABLE = r"(?:\A|\.)variables\.\w+\Z"


def prepare(
    given: dict[str, Any], *, starts: Start | None = None, renders: bool = True, change: Change | None = None
) -> Prepared:
    """Read, check and plan the job that file and options describe; warnings go to stderr.

    A command that cannot work is refused where the job ``starts`` now, unless --force overrules. What the caller
    does not render is judged by its plan alone, which saves the time to load Jinja. ``change`` makes another job of it
    before it is planned.
    """
    cwd = Path.cwd()
    prepared = plan_given(given, change)
    command = _judge(prepared, cwd, starts)
    if starts == "submit" or not renders:
        _mention_module(prepared)
    if starts == "submit":
        _mention_imports(command)
    if renders or prepared.has_own_templates:
        prepared = prepared._replace(rendered=(prepared.plan, prepared.render()))
    prepared = prepared._replace(refused=_judge_request(prepared, cwd, starts))
    if prepared.has_own_templates:
        _judge_templates(prepared, starts)
    return prepared


def plan_given(given: dict[str, Any], change: Change | None = None) -> Prepared:
    """Read and plan the job that file and options describe, without a look at its command; warnings go to stderr.

    ``change`` makes another job of it before it is planned.
    """
    cwd = Path.cwd()
    source = find_source(given, cwd, os.environ)
    loaded = _loaded(given, source, cwd)
    prepared = prepare_here(
        loaded, given.get("job__cluster"), cwd, force=bool(given.get("job__force")), change=change
    )._replace(
        template=given.get("job__template"),
        batch=(source.batch.name, source.batch.text) if source.batch else None,
    )
    if prepared.unchosen:
        note(prepared.unchosen)
    _mention_others(loaded)
    _mention_misplaced(given.get("command") or ())
    for warning in prepared.plan.warnings:
        note(f"warning: {warning}")
    return prepared


def load(given: dict[str, Any]) -> LoadedJob:
    """Return the job that file and options describe, as it stands there: nothing of it is planned or judged."""
    cwd = Path.cwd()
    return _loaded(given, find_source(given, cwd, os.environ), cwd)


def _judge_request(prepared: Prepared, cwd: Path, starts: Start | None) -> bool:
    """Say what the rules of `slurmgpu check` find, and return whether an error is among it.

    PlanError for what cannot work, where the job starts now.
    """
    from slurmgpu.runs.request_checks import judge

    verdict = judge(prepared, cwd)
    force = prepared.around.force
    if starts and not force:
        verdict.refuse("--force starts the job all the same")
    for remark in verdict.errors:
        note(f"{'warning' if force else 'error'}: {remark.message}; {remark.hint}")
    for remark in verdict.warnings:
        note(f"warning: {remark.message}; {remark.hint}")
    return bool(verdict.errors) and not force


def _judge_templates(prepared: Prepared, starts: Start | None) -> None:
    """Say which of the user's templates is not used; PlanError where they break the script of a job that starts now."""
    from slurmgpu.runs.command_checks.judge import check_shell, unused_templates

    templates = prepared.templates()
    for slip in unused_templates(templates):
        note(f"warning: {slip.message}; {slip.hint}")
    if starts and prepared.plan.script is None:
        check_shell(prepared.render(), templates)


def tell_of_image(prepared: Prepared) -> None:
    """Say what ``submit`` would pull, build or pack before the job, or why it would not."""
    try:
        making = prepared.image_to_make(note)
    except PlanError as error:
        note(f"warning: {error.message}; {error.hint}")
    else:
        if making is not None:
            note(making.told_before)
    packing = prepared.environment_to_pack()
    if packing is not None:
        note(packing.told_before)


def _loaded(given: dict[str, Any], source: Source, cwd: Path) -> LoadedJob:
    """Return the job of a file, a batch script or the options alone, with the options on top."""
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
            unnamed=source.path is not None and (not named or is_confined()),
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


def _judge(prepared: Prepared, cwd: Path, starts: Start | None) -> Command:
    """Say what is wrong with the command, and return it; PlanError for what cannot work, where the job starts now."""
    from slurmgpu.runs.command_checks.judge import each_slip
    from slurmgpu.runs.preflight import check_task, command_of, doubts_about_task

    loaded, plan = prepared.loaded, prepared.plan
    origin = loaded.layered.origin(("command",))
    in_file = loaded.path is not None and origin is not None and origin.where == str(loaded.path)
    command = command_of(plan, loaded.work_dir, cwd, os.environ, in_file=in_file)
    if starts == "run" and command.folder is not None and not command.folder.is_dir():
        command = command._replace(folder=cwd)  # a run here stands in for a folder that is not here
    for of, slip in each_slip(command, batch=prepared.batch):
        if slip.sure and starts and not (prepared.around.force and slip.forceable):
            overrule = "\n--force starts the job all the same" if slip.forceable else ""
            raise PlanError(of + slip.message, hint=slip.hint + overrule)
        note(f"warning: {of}{slip.message}; {slip.hint}")
    if starts != "submit" and command.folder is not None and command.folder.is_dir():
        try:
            check_task(plan, command.folder)
        except PlanError as error:
            if starts is None:
                note(f"warning: {error.message}; {error.hint}")
        else:
            for doubt in doubts_about_task(plan, command.folder):
                note(doubt)
    return command


def _mention_others(loaded: LoadedJob) -> None:
    """Say which files of others are used, and which are not."""
    settings = loaded.settings
    profiles = [
        one for folder in settings.folders.values() for one in foreign_profiles(settings, folder / "clusters")
    ]
    for one in (*settings.unused, *profiles[:1]):
        folder = shlex.quote(str(one.path.parent))
        note(f"{one.path} is not used: it {one.why}; where you trust it: slurmgpu config trust {folder}")
    if "project" not in settings.folders and Path("slurmgpu.yml").is_file():
        here = Path.cwd() / "slurmgpu.yml"
        note(f"warning: {here} is not read: it is not called slurmgpu.yaml; mv slurmgpu.yml slurmgpu.yaml")
    with suppress(InvalidInput):  # a variable that is not set here is missed where the folder is made
        runs = runs_folder(settings.settings.runs, Path.cwd(), os.environ)
        if whose := link_of_another(runs):
            said = f"{runs} is a link, and it {whose}: what jobs write lands in {runs.resolve()}"
            note(f"warning: {said}; take it away, or set runs:")
        elif runs.is_dir() and (others := settings.trust.foreign(runs)):
            said = f"{runs} {others.why}: what somebody changes in a run there runs as you"
            note(f"warning: {said}; where you trust them: slurmgpu config trust {shlex.quote(str(runs))}")
    own = Trust.of([data_folder("jobs")])
    named = own.foreign(loaded.path) if loaded.path else None
    for one in (*settings.of_others, *([named] if named else [])):
        note(f"{one.path} is used, and it {one.why}")


def _mention_module(prepared: Prepared) -> None:
    """Say which module does not load here, before the job waits in the queue for it."""
    if prepared.plan.environment.modules is None:
        return
    from slurmgpu.runs.command_checks.environment import missing_module

    slip = missing_module(prepared.plan, prepared.templates(), prepared.folder, os.environ)
    if slip is not None:
        note(f"warning: {slip.message}; {slip.hint}")


def _mention_imports(command: Command) -> None:
    """Say what the script imports and its Python does not have, before the job waits in the queue for it."""
    if not command.words:
        return
    from slurmgpu.runs.command_checks.python import missing_imports

    slip = missing_imports(command)
    if slip is not None:
        note(f"warning: {slip.message}; {slip.hint}")


def check_whose(run_dir: Path, word: str) -> None:
    """Say so where others wrote what lies in a run directory; InvalidInput where ``word`` does not name it by its path."""
    from slurmgpu.jobs.select import names_folder
    from slurmgpu.models.run import RUN_FILE

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
            note(f"{word} comes after --, so it goes to the command; options of slurmgpu go before it")


def _layer(given: dict[str, Any], exact: bool) -> Layered:
    """Return the options as the topmost layer; an exact job has its GPUs in gres where they are asked for so."""
    layer = Layered({}, {})

    def put(key: str, value: object, origin: str) -> None:
        layer.put(tuple(key.split(".")), value, Origin(origin))

    for row in ROWS:
        value = given.get(parameter(row))
        if value is None:
            continue
        if row.key == "resources.gres":
            _put_gres(value, put, exact, given.get("job__resources__gpus_per_node"))
            continue
        if row.key == "error" and re.match(r"[A-Z][A-Z0-9_]*=", value):
            raise InvalidInput(
                f"option -e/--error {value!r} looks like a variable, and this is the log of standard error",
                hint=f"write --set {shlex.quote(f'variables.{value}')}",
            )
        if row.key == "work_dir" and value[:1] not in "$~":
            value = str(Path(value).absolute())
        elif row.kind == "list":
            value = value.upper().split(",")
        put(row.key, value, f"option {row.flags[-1].partition('/')[0]}")
    if given.get("job__requeue") is not None:
        put(
            "restart.on",
            ["preemption", "node_failure"] if given["job__requeue"] else [],
            "option --requeue/--no-requeue",
        )
    for text in given.get("job__sbatch") or ():
        name, has_value, value = text.lstrip("-").partition("=")
        if " " in name.strip():
            name, _, value = name.strip().partition(" ")
            raise InvalidInput(
                f"option --sbatch: {text!r} has a blank where = belongs",
                hint=f"write --sbatch {name}={value.strip()}",
            )
        put(f"sbatch.{name}", value if has_value else True, "option --sbatch")
    for text in given.get("job__set") or ():
        put_any(text, put)
        if text.startswith("command="):
            words_as_spelled(layer, f"value: {text.partition('=')[2]}", in_text="value")
    if given.get("command"):
        put("command", list(given["command"]), "the command after --")
    return layer


def _put_gres(text: str, put: Any, exact: bool, per_node: str | None) -> None:
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
        if per_node is not None and per_node != str(gpu):
            raise InvalidInput(
                f"options --gres and --gpus-per-node: {gpu} and {per_node} GPUs on each node are asked for",
                hint=f"leave one out: --gpus-per-node {per_node}, or --gpus-per-node {gpu}",
            )
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
    if re.search(_VARIABLE, above + key) and not value.startswith(("'", '"')):
        put(above + key, value, origin)  # text: the shell has taken its quotes away
        return
    parsed = read_yaml(f"value: {value}" if value.strip() else "value: ''", origin).data["value"]
    put(above + key, parsed, origin)
