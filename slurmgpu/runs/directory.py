"""The run directory of a submission: made, filled, read; and the entrypoint run outside a job from one."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from slurmgpu.diagnosis.facts import NOTIFY_SCHEMA
from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.data import PREFIX
from slurmgpu.files.job_text import job_text
from slurmgpu.files.settings import load_settings
from slurmgpu.files.trust import Foreign, open_regular, write_atomically
from slurmgpu.local.site import python_with_torch
from slurmgpu.models.environment import Environment, PythonEnvironment
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import RUN_FILE
from slurmgpu.script.variables import SCRIPT_NAME
from slurmgpu.training.formats.run_files import ESTIMATE_FILE

__all__ = [
    "NOTIFY_FILE",
    "SCRIPT",
    "EarlierDirectory",
    "RunDirectory",
    "ask_entrypoint",
    "chosen_python",
    "contents",
    "estimate_here",
    "foreign_file_of",
    "new_run_directory",
    "notify_text",
    "preparation_plan",
    "read_plan",
    "run_preparation",
    "with_code",
]  # fmt: skip

_PACKAGE = Path(__file__).resolve().parents[1]
SCRIPT = "script.sbatch"
NOTIFY_FILE = "code/notify.json"
"""Beside at_end.sh, which looks for it there."""
_PLAN_SCHEMA = "slurmgpu.plan/1"
_LARGEST_PLAN = 16 << 20  # bytes
# What else is installed of slurmgpu is found as before: a script may submit jobs, too.
_FOUND_AS_BEFORE = """
import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
"""


class RunDirectory:
    """A new run directory; ``remove`` takes back what was made for it."""

    def __init__(self, path: Path, token: str, made: list[Path]) -> None:
        self.path = path
        self.token = token
        self._made = made

    def keep_folder(self, folder: Path) -> None:
        """Make a folder outside (for log files) and remember it, so that ``remove`` takes it back when empty."""
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFailed(f"log folder {str(folder)!r} cannot be made: {error.strerror}") from None
        self._made += missing

    def remove(self) -> None:
        """Take everything back: a rejected submission leaves nothing to confuse anybody."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._remove_made()

    def clear(self, ours: Callable[[str], bool]) -> bool:
        """Take back what has such a name, and the directory where nothing else is in it; whether it is gone."""
        for path in self.path.iterdir():
            if not ours(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self._made.insert(0, self.path)
        self._remove_made()
        return not self.path.exists()

    def _remove_made(self) -> None:
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:
                return  # someone put something there meanwhile


class EarlierDirectory(RunDirectory):
    """A run directory that is used again; ``remove`` makes everything in it as it was."""

    def __init__(self, path: Path, token: str) -> None:
        super().__init__(path, token, [])
        self._before: dict[Path, str | None] = {}
        self._remember(path / RUN_FILE)

    def write(self, path: Path, text: str) -> None:
        """Write a file in it anew."""
        self._remember(path)
        write_atomically(path, text)

    def _remember(self, path: Path) -> None:
        if path not in self._before:
            there = path.exists() or path.name == RUN_FILE  # without a record it is no run
            self._before[path] = path.read_text(encoding="utf-8") if there else None

    def remove(self) -> None:
        """Put back every file that was written, and take back the folders that were made outside."""
        for path, text in self._before.items():
            if text is None:
                path.unlink(missing_ok=True)
            else:
                write_atomically(path, text)
        self._remove_made()


def foreign_file_of(run_dir: Path) -> Foreign | None:
    """Return the first file of a run directory that others wrote, or may write; None where there is none."""
    trust = load_settings(Path.cwd()).trust
    files = (run_dir / name for name in (RUN_FILE, "script.sbatch", "job.yaml", "plan.json"))
    return next(filter(None, map(trust.foreign, (run_dir, *files))), None)


def new_run_directory(runs: Path, plan: Plan, job: Job, script: str) -> RunDirectory:
    """Make ``<runs>/<name>-<UTC time>-<token>/`` with job.yaml, plan.json, the script and, for training, code/.

    RunFailed when it cannot be made; nothing is left then.
    """
    if re.search(r"[%\\]", str(runs)):
        raise InvalidInput(
            f"runs: {str(runs)!r} contains % or a backslash, which Slurm expands in the names of log files; use another folder"
        )
    token = secrets.token_hex(4)
    path = runs / f"{plan.slug}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{token}"
    directory = RunDirectory(path, token, [one for one in (runs, *runs.parents) if not one.exists()])
    code = path / "code"
    try:
        (path / "logs").mkdir(parents=True)
        for name, text in contents(plan, job, script).items():
            (path / name).write_text(text, encoding="utf-8")
        if plan.train is not None:
            copy_entrypoint(code, without=_unused(plan))
        elif plan.own_loop is not None:
            copy_own_loop(code, without=_unused(plan))
        if plan.script is None:
            _pack_diagnosis(code)
            if plan.notify is not None:
                (path / NOTIFY_FILE).write_text(notify_text(plan), encoding="utf-8")
            if plan.sample is not None:
                copy_sampler(code)
                with (code / "begin.sh").open("a", encoding="utf-8") as begin:
                    begin.write(sampler_start(plan))
    except BaseException as error:
        directory.remove()
        if isinstance(error, OSError):
            raise RunFailed(
                f"run directory {str(path)!r} cannot be made: {error.strerror}",
                hint="set runs: in the settings to a folder that you can write (scratch, not home, at most sites)",
            ) from None
        raise
    return directory


def contents(plan: Plan, job: Job, script: str) -> dict[str, str]:
    """Return the text of the files that say what is submitted, by their names.

    The job means the same wherever it lies: its work folder is written out.
    """
    # In an exact job a default that is written counts, and one that is not does not.
    data = job.model_dump(mode="json", by_alias=True, exclude_unset=job.exact, exclude_defaults=not job.exact)
    document = {"schema": _PLAN_SCHEMA, **plan.model_dump(mode="json", by_alias=True)}
    return {
        "job.yaml": job_text({**data, "work_dir": plan.work_dir}),
        "plan.json": json.dumps(document, indent=2, ensure_ascii=False) + "\n",
        SCRIPT: script,
    }


def notify_text(plan: Plan) -> str:
    """Return what the script's end reads of the webhook, without its address; empty where it is to write to none."""
    if plan.notify is None or plan.script is not None:
        return ""
    return json.dumps({"schema": NOTIFY_SCHEMA, **plan.notify.model_dump(mode="json")}) + "\n"


def read_plan(path: Path) -> Plan:
    """Return the plan in a run directory; InvalidInput when it is missing or cannot be read by this version."""
    file = path / "plan.json"
    try:
        with open_regular(file) as opened:
            document = json.loads(opened.read(_LARGEST_PLAN))
        document.pop("schema", None)
        return Plan.model_validate_json(json.dumps(document))  # strict: of JSON it takes lists as tuples
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError) as error:
        first = str(error).splitlines()[:3]
        raise InvalidInput(f"{file} is not the plan of a run: {' '.join(first)}") from None


def _unused(plan: Plan) -> set[str]:
    """Return the folders of the entrypoint that no start of this job can use, whatever a resume sets."""
    if any(word.endswith(".benching") for word in plan.command or ()):
        return set()
    own_task = plan.train is not None and not str(plan.train["task"]).startswith(PREFIX)
    return {"benching", "estimating", *(["tasks"] if own_task else [])}


def copy_entrypoint(code: Path, *, without: Collection[str] = ()) -> None:
    """Copy the training entrypoint as ``slurmgpu_training``, a name that no installed package shadows.

    ``without``: folders of it that stay behind.
    """
    _copy("training", code / "slurmgpu_training", without)


def copy_sampler(code: Path) -> None:
    """Copy the sampler as ``slurmgpu_sampling``, and note the Python here: that of a node may be too old for it."""
    target = code / "slurmgpu_sampling"
    _copy("sampling", target)
    (target / "python").write_text(f"{sys.executable}\n", encoding="utf-8")


def sampler_start(plan: Plan) -> str:
    """Return the lines that start the sampler in the background of the batch script."""
    # Where only srun's own line asks for GPUs, a step that does not ask sees none.
    asks = any(one.startswith("--gpus-per-task=") for one in plan.srun_options)
    options = f" --gpus-per-task={plan.gpus_per_node}" if asks and plan.gpus_per_node else ""
    gpus = plan.gpus_per_node if not plan.components else "''"
    start = f'bash "$SLURMGPU_RUN_DIR/code/slurmgpu_sampling/start.sh" {plan.sample} {gpus}{options}'
    return f"# What the job uses is measured beside it.\n{{ {start} & disown || :; }} </dev/null >/dev/null 2>&1\n"


def copy_own_loop(code: Path, *, without: Collection[str] = ()) -> None:
    """Copy it as ``slurmgpu.training``, as scripts import it; an installed one has lower precedence than the copy."""
    package = code / "slurmgpu"
    _copy("training", package / "training", without)
    text = (_PACKAGE / "__init__.py").read_text(encoding="utf-8")
    shutil.copyfile(_PACKAGE / "version.py", package / "version.py")
    (package / "__init__.py").write_text(text + _FOUND_AS_BEFORE, encoding="utf-8")


def _pack_diagnosis(code: Path) -> None:
    """Pack the reader of logs, which looks for the first cause at the job's end: one file, for there are many runs."""
    source = _PACKAGE / "diagnosis"
    code.mkdir(exist_ok=True)
    for name in ("begin.sh", "at_end.sh"):
        shutil.copyfile(source / name, code / name)
    with zipfile.ZipFile(
        code / "slurmgpu_diagnosis.zip", "w", zipfile.ZIP_DEFLATED, strict_timestamps=False
    ) as packed:
        for file in sorted(source.rglob("*.py")):
            packed.write(file, f"slurmgpu_diagnosis/{file.relative_to(source).as_posix()}")


def _copy(package: str, target: Path, without: Collection[str] = ()) -> None:
    """Copy a package's files, but those of some folders in it, as readable by others as the umask says."""
    source = _PACKAGE / package
    for path in sorted(source.rglob("*")):
        if path.is_dir() or path.suffix == ".pyc" or path.relative_to(source).parts[0] in without:
            continue
        there = target / path.relative_to(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, there)


def chosen_python(named: str | None, environment: Mapping[str, str]) -> str:
    """Return the interpreter that was named, by path or by name, else the one here that has torch.

    Raises:
        InvalidInput: there is no such program.
    """
    if named is None:
        return python_with_torch(environment)
    found = shutil.which(os.path.expanduser(named), path=environment.get("PATH"))  # noqa: PTH111
    if found is None:
        raise InvalidInput(
            f"--python {named}: there is no such program", hint="give the path of a Python that has torch"
        )
    return str(Path(found).absolute())


def with_code(environment: Mapping[str, str], code: Path) -> dict[str, str]:
    """Return the environment of a process that imports the entrypoint from the folder ``code``."""
    path = os.pathsep.join(filter(None, [str(code), environment.get("PYTHONPATH")]))
    return {**environment, "PYTHONPATH": path}


def ask_entrypoint(python: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a module of the entrypoint to its end; what it printed.

    It is copied first, as for a job: slurmgpu's own folder on PYTHONPATH would bring all that is installed beside it.
    And it runs in that folder: Python would import from the current one, which may be somebody else's. So paths among
    the arguments are absolute.

    Raises:
        RunFailed: in the words of the module.
    """
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as folder:
        copy_entrypoint(Path(folder))
        command = [python, "-m", f"slurmgpu_training.{module}", *arguments]
        given = with_code(environment, Path(folder))
        try:
            done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)
        except OSError as error:
            raise RunFailed(f"{python} cannot be started: {error.strerror}") from None
    if done.returncode:
        words = done.stderr.strip() or f"{python} ended with code {done.returncode}"
        hint = "load the module or activate the environment that has torch, or name its Python: --python PATH"
        raise RunFailed(words, hint=hint if words.endswith("has no torch") else None)
    return done.stdout


def preparation_plan(plan: Plan, python: Path | None) -> Plan:
    """The plan of a script that prepares the task in one process, in the job's environment or by a Python of this machine."""
    environment = plan.environment
    if python is not None:
        environment = Environment(python=PythonEnvironment(interpreter=str(python)))
    changes = {
        "prepare_only": True, "tended": False, "launcher": "plain", "nodes": 1, "gpus_per_node": 0, "tasks_per_node": 1,
        "processes_per_node": 1, "cpus_per_task": None, "options": (), "restart_limit": None, "sample": None, "notify": None,
        "environment": environment,
    }  # fmt: skip
    return plan.model_copy(update=changes)


def run_preparation(plan: Plan, script: str, folder: Path, *, nice: int) -> int:
    """Run a script of ``preparation_plan`` in the work folder, at a low priority if ``nice``; its exit code.

    What it needs beside the task lies in a temporary folder, which is gone afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as run_dir:
        return _run_in(Path(run_dir), plan, script, folder, nice, {})


def estimate_here(
    plan: Plan, script: str, folder: Path, *, nice: int, gpus: Sequence[int]
) -> dict[str, Any] | None:
    """Run it to work out the memory that the training takes on so many GPUs; None where it failed, and has said why."""
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as run_dir:
        counts = {"SLURMGPU_ESTIMATE": ",".join(map(str, gpus))}
        _run_in(Path(run_dir), plan, script, folder, nice, counts)
        try:
            found: dict[str, Any] = json.loads(Path(run_dir, ESTIMATE_FILE).read_text(encoding="utf-8"))
        except OSError:
            return None
        return found


def _run_in(
    run_dir: Path, plan: Plan, script: str, folder: Path, nice: int, variables: Mapping[str, str]
) -> int:
    copy_entrypoint(run_dir / "code")
    (run_dir / SCRIPT_NAME).write_text(script, encoding="utf-8")
    command = ["bash", *(["-l"] if plan.login_shell else []), str(run_dir / SCRIPT_NAME)]
    if nice:
        command = ["nice", "-n", str(nice), *command]
    given = {**os.environ, **variables, "SLURMGPU_RUN_DIR": str(run_dir), "SLURM_SUBMIT_DIR": str(folder)}
    try:
        return subprocess.run(command, cwd=folder, env=given, check=False).returncode
    except OSError as error:
        raise RunFailed(f"{command[0]} cannot be started: {error.strerror}") from None
