"""A request, by options and a job file or batch script: the job it describes, planned and judged, and its submission."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.clusters import foreign_profiles
from slurmgpu.files.data import data_folder
from slurmgpu.files.jobs import LoadedJob, find_job_file, load_job, words_as_spelled
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.settings import load_settings, runs_folder
from slurmgpu.files.trust import Foreign, Trust, is_confined, link_of_another, open_regular
from slurmgpu.files.yaml import LARGEST_SCRIPT, read_batch_script, read_file, read_yaml
from slurmgpu.interrupts import as_interrupts
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.options import ROWS
from slurmgpu.models.run import RUN_FILE, Run
from slurmgpu.models.units import parse_gres_list
from slurmgpu.runs.prepare import Prepared, prepare_here

if TYPE_CHECKING:
    from slurmgpu.runs.command_checks.command import Command
    from slurmgpu.runs.images import Making
    from slurmgpu.slurm import Slurm

JOB_FILE = "job.yaml"
"""The job file that is meant where none is named."""
_JOB_SUFFIXES, _SCRIPT_SUFFIXES = {".yaml", ".yml"}, {".slurm", ".sbatch"}
_VARIABLE = r"(?:\A|\.)variables\.\w+\Z"
_OF_SLURMGPU = {"--follow", "--wait", "--dry-run", "--hold", "--json", "--cluster"}

Say = Callable[[str], None]
"""Takes a remark for the person, a line or more."""
Start = Literal["submit", "run"]
Change = Callable[[Job, Cluster], Job]


class Source(NamedTuple):
    """The origin of a job: a job file, a batch script, or (neither) the options alone."""

    path: Path | None = None
    batch: tuple[str, str] | None = None
    """The batch script's path, as it was given, and its text."""
    script: Layered | None = None
    """The batch script as the bottom layer of a job."""
    notes: tuple[str, ...] = ()
    """Remarks on a file that nobody named, and on how a script was taken."""


def load_given(given: Mapping[str, Any], say: Say) -> tuple[LoadedJob, Source]:
    """Return the job that file and options describe, as it stands there, and its origin: nothing is planned or judged."""
    cwd, named = Path.cwd(), given.get("file")
    source = find_source(given, cwd, os.environ)
    for remark in source.notes:
        say(remark)
    if source.script is not None:
        if not named:  # it was found after --
            given = {**given, "command": None}
        options = _layer_of(given, exact=True)
        if "work_dir" in options.data:
            # As sbatch does with -D: the script itself changes into no folder.
            options.put(("sbatch", "chdir"), options.data.pop("work_dir"), options.origins.pop(("work_dir",)))
        return load_job(None, options, cwd=cwd, environ=os.environ, script=source.script), source
    path = source.path
    exact = path is not None and given.get("resources.gres") and read_file(path).data.get("exact")
    loaded = load_job(
        path,
        _layer_of(given, exact=exact is True),
        cwd=cwd,
        environ=os.environ,
        # A shipped job is found by its name, and works here, not where it is installed.
        home=cwd if named and path != Path(named) else None,
        unnamed=path is not None and (not named or is_confined()),
    )
    return loaded, source


def find_source(given: Mapping[str, Any], cwd: Path, environ: Mapping[str, str]) -> Source:
    """Return the job file or batch script of a request: as named, after ``--``, or job.yaml where nothing is named."""
    named, command = given.get("file"), given.get("command") or ()
    for word in (named, *command[:1]):
        refuse_notebook(word or "")
    if named and not _is_batch(named):
        return Source(find_job_file(named))
    if named and command:
        raise InvalidInput(
            f"{named}: a batch script has commands of its own, and {shlex.join(command)!r} stands behind --",
            hint=f"to hand it to the script: slurmgpu submit -- {shlex.join([named, *command])}; to run it in the script's "
            f"place, make a job file of the script's options first: slurmgpu import {shlex.quote(named)}",
        )
    if named:
        return _read_batch(named, (), environ)
    if command and _is_batch(command[0]):
        return _read_batch(command[0], command[1:], environ)
    path = cwd / JOB_FILE
    keys = {str(one).partition("=")[0] for one in given.get("set") or ()}
    if command or keys & {"command", "script", "train", "train.task"} or not path.is_file():
        return Source()
    if Trust().foreign(path) and (foreign := load_settings(cwd, environ).trust.foreign(path)):
        raise InvalidInput(
            f"{JOB_FILE}: it {foreign.why}, and you did not name it on the command line; what is in it would run as you",
            hint=f"read it, then name it: slurmgpu ... {JOB_FILE}; or trust the folder: slurmgpu config trust .",
        )
    return Source(path, notes=(f"using {JOB_FILE}",))


def refuse_notebook(name: str) -> None:
    """Raise InvalidInput for a notebook, which is neither a job nor a script."""
    if name.endswith(".ipynb"):
        script = Path(name).with_suffix(".py").name
        raise InvalidInput(
            f"{name}: a notebook, and a job runs without a person at it",
            hint=f"make a script of it: jupyter nbconvert --to script {shlex.quote(name)}, then slurmgpu submit --gpus 1 "
            f"-- python {shlex.quote(script)}; or work in it on a GPU node: slurmgpu shell --jupyter --gpus 1",
        )


def _is_batch(name: str) -> bool:
    """Return whether a file is a batch script: by its ending, or by lines that sbatch reads."""
    path = Path(name)
    if path.suffix in _JOB_SUFFIXES or not path.is_file():
        return False
    if path.suffix in _SCRIPT_SUFFIXES:
        return True
    try:
        with open_regular(path) as file:
            text = file.read(LARGEST_SCRIPT).decode("utf-8", errors="replace")
    except OSError:  # a program that may be run and not read
        return False
    if "#SBATCH" not in text or (path.suffix != ".sh" and not text.startswith("#!")):
        return False
    from slurmgpu.script.batch_script import parse_batch_script

    parsed = parse_batch_script(text)
    return bool(parsed.directives or (path.suffix == ".sh" and parsed.ignored))


def _read_batch(name: str, arguments: tuple[str, ...], environ: Mapping[str, str]) -> Source:
    """Return a batch script as the bottom layer of a job; ``arguments`` are those that sbatch would hand to it."""
    from slurmgpu.script.batch_script import SHELLS
    from slurmgpu.script.importing import import_script

    path = Path(name)
    # A request of somebody else names no file on the user's behalf.
    text = read_batch_script(path, trust=load_settings(Path.cwd(), environ).trust if is_confined() else None)
    imported = import_script(text, name, verbatim=True)
    data = dict(imported.data)
    if "job-name" not in data.get("sbatch", {}):
        data.setdefault("name", path.name)  # as sbatch calls it
    if arguments:
        shebang = imported.job.shebang
        if not any(word.rsplit("/", 1)[-1] in SHELLS for word in (shebang or "/bin/bash").split()[:2]):
            raise InvalidInput(
                f"{name}: arguments ({shlex.join(arguments)}) are handed to scripts of a shell only, and this is one of "
                f"{shebang}",
                hint="write them into the script",
            )
        data["script"] = f"set -- {shlex.join(arguments)}\n{data['script']}"
    origins = {key: Origin(name, line) for key, line in imported.lines.items()}
    count = len(imported.lines)
    off = "; its ##SBATCH lines are switched off" if not count and "\n##SBATCH" in text else ""
    notes = [
        f"{name}: a batch script, taken as sbatch takes it: {count} option{'s' * (count != 1)}, its lines unchanged{off}"
    ]
    notes += imported.notes
    if ambient := sorted(key for key in environ if key.startswith("SBATCH_")):
        notes.append(
            f"{', '.join(ambient)}: set here and not used, as in every submission of slurmgpu; give the options"
        )
    return Source(None, (name, text), Layered(data, {(): Origin(name), **origins}), tuple(notes))


def _layer_of(given: Mapping[str, Any], *, exact: bool) -> Layered:
    """Return the options as the topmost layer; an exact job has its GPUs in gres where they are asked for so."""
    layer = Layered({}, {})

    def put(key: str, value: object, origin: str) -> None:
        layer.put(tuple(key.split(".")), value, Origin(origin))

    for row in ROWS:
        value = given.get(row.key)
        if value is None:
            continue
        if row.key == "resources.gres":
            if exact:
                put(row.key, value.split(","), "option --gres")
            else:
                for key, one in _gres(value, given.get("resources.gpus_per_node")).items():
                    put(key, one, "option --gres")
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
    requeue = given.get("requeue")
    if requeue is not None:
        put("restart.on", ["preemption", "node_failure"] if requeue else [], "option --requeue/--no-requeue")
    for text in given.get("sbatch") or ():
        name, has_value, value = text.lstrip("-").partition("=")
        if " " in name.strip():
            name, _, value = name.strip().partition(" ")
            raise InvalidInput(
                f"option --sbatch: {text!r} has a blank where = belongs",
                hint=f"write --sbatch {name}={value.strip()}",
            )
        put(f"sbatch.{name}", value if has_value else True, "option --sbatch")
    for text in given.get("set") or ():
        put_any(layer, text)
        if text.startswith("command="):
            words_as_spelled(layer, f"value: {text.partition('=')[2]}", in_text="value")
    if given.get("command"):
        put("command", list(given["command"]), "the command after --")
    return layer


def _gres(text: str, per_node: str | None) -> dict[str, object]:
    """Return the keys that --gres stands for where the planner works the GPUs out."""
    try:
        gpu, others = parse_gres_list(text)
    except ValueError as error:
        raise InvalidInput(
            f"option --gres: {error}", hint="write it as in --gres gpu:a100:2,lscratch:100"
        ) from None
    if gpu is not None and per_node is not None and per_node != str(gpu):
        raise InvalidInput(
            f"options --gres and --gpus-per-node: {gpu} and {per_node} GPUs on each node are asked for",
            hint=f"leave one out: --gpus-per-node {per_node}, or --gpus-per-node {gpu}",
        )
    found: dict[str, object] = {"resources.gpus_per_node": str(gpu)} if gpu is not None else {}
    return {**found, "resources.gres": [str(gres) for gres in others]} if others else found


def put_any(
    layer: Layered, text: str, option: str = "--set", example: str = "train.epochs=3", above: str = ""
) -> None:
    """Put KEY=VALUE of an option into a layer, the value read as YAML; ``above`` is the key that holds KEY."""
    key, has_value, value = text.partition("=")
    if not key or not has_value:
        raise InvalidInput(
            f"option {option}: {text!r} is not KEY=VALUE", hint=f"write it as in {option} {example}"
        )
    origin, parsed = f"option {option} {key}", value
    # A variable's value is text: the shell has taken its quotes away.
    if not re.search(_VARIABLE, above + key) or value.startswith(("'", '"')):
        parsed = read_yaml(f"value: {value}" if value.strip() else "value: ''", origin).data["value"]  # type: ignore[assignment]
    layer.put(tuple((above + key).split(".")), parsed, Origin(origin))


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
    prepared = plan_given(given, say, change)
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


def plan_given(given: dict[str, Any], say: Say, change: Change | None = None) -> Prepared:
    """Read and plan the job that file and options describe, without a look at its command; warnings go to ``say``.

    ``change`` makes another job of it before it is planned.
    """
    loaded, source = load_given(given, say)
    prepared = prepare_here(
        loaded, given.get("cluster"), Path.cwd(), force=bool(given.get("force")), change=change
    )._replace(template=given.get("template"), batch=source.batch)
    if prepared.unchosen:
        say(prepared.unchosen)
    _mention_others(loaded, say)
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


def _mention_others(loaded: LoadedJob, say: Say) -> None:
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


def foreign_file_of(run_dir: Path) -> Foreign | None:
    """Return the first file of a run directory that others wrote, or may write; None where there is none."""
    trust = load_settings(Path.cwd()).trust
    files = (run_dir / name for name in (RUN_FILE, "script.sbatch", "job.yaml", "plan.json"))
    return next(filter(None, map(trust.foreign, (run_dir, *files))), None)


def mention_image(prepared: Prepared, say: Say) -> None:
    """Say what ``submit`` would pull, build or pack before the job, or why it would not."""
    making = None
    try:
        making = prepared.image_to_make(say)
    except PlanError as error:
        say(f"warning: {error.message}; {error.hint}")
    for one in (making, prepared.environment_to_pack()):
        if one is not None:
            say(one.told_before)


def with_image(prepared: Prepared, say: Say, *, pull: bool, now: bool) -> tuple[Prepared, Making | None]:
    """Return the job with its image, which is pulled or built ``now`` where it has to be; and what that is."""
    making = prepared.image_to_make(say) if pull else None
    if making is not None and now:
        with as_interrupts():
            prepared = prepared.with_image(making, say)
    return prepared, making


def submit(
    prepared: Prepared,
    slurm: Slurm,
    say: Say,
    *,
    hold: bool = False,
    files: Mapping[str, bytes] = MappingProxyType({}),
    probe: bool = False,
) -> Run:
    """Submit it, and say what is to be said of that; the run. ``probe``: it asks for less than its job file says."""
    from slurmgpu.runs.preflight import doubts
    from slurmgpu.runs.submit import Submission, submit_plan

    path = None if probe else prepared.loaded.path
    submission = Submission(
        plan=prepared.plan,
        script=prepared.render(),
        folder=prepared.folder,
        cwd=Path.cwd(),
        hold=hold,
        files=files,
        job_file=None if path is None else str(path.absolute()),
        probe=probe,
        told=say,
    )
    with as_interrupts():
        run, said = submit_plan(submission, prepared.loaded.job, prepared.runs, slurm, os.environ)
    if said:
        say(said)
    for doubt in doubts(prepared.plan, prepared.folder):
        say(doubt)
    say(f"job {run.job_id} on cluster {run.cluster or 'unknown'}")
    if hold:
        say(f"it is held; `scontrol release {run.job_id}` lets it start")
    return run
