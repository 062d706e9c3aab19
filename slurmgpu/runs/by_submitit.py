"""Functions and commands that run under submitit, submitted as any other job.

submitit's part is what happens inside the job (it loads the function from a pickle, runs it, writes the
result) and the Job object that waits for that. Its own batch script is not used: it adds options that sites
refuse (--wckey, --nodes, --time) and quotes values in a way that sbatch reads differently (a backslash). The
script is the plan's, so every option of it is one that the site knows.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurmgpu.containers import enters_by_srun
from slurmgpu.errors import InvalidInput
from slurmgpu.launchers import launcher
from slurmgpu.models.plan import Option, Plan
from slurmgpu.models.run import SUBMITIT_FOLDER, Run
from slurmgpu.quoting import job_path, shell_word
from slurmgpu.script.variables import container_words

if TYPE_CHECKING:
    import submitit

__all__ = ["Packed", "attach", "is_checkpointable", "pack_command", "pack_function", "require_submitit"]


# Sent before the time limit; submitit then saves the function's state and requeues the job.
_SIGNAL_AHEAD = 90
# Taken as the time limit where only the partition knows it: a year, which never counts as reached.
_UNKNOWN_MINUTES = 525600

_LOGS = "submitit writes a log of each task into the run directory"
_PAYLOAD = "payload.pkl"
_NOT_CARRIED = {
    "array": ("submitit's Job here is one job", "submit one job after another"),
    "output": (_LOGS, "leave output out"),
    "error": (_LOGS, "leave error out"),
}
"""Options that would not do what they say: why, and what to do."""


@dataclass(frozen=True)
class Packed:
    """A plan whose script starts submitit, and the pickle that submitit will look for."""

    plan: Plan
    payload: bytes
    tasks: int

    @property
    def files(self) -> dict[str, bytes]:
        """Return the files that have to lie in the run directory when the job starts."""
        return {f"{SUBMITIT_FOLDER}/{_PAYLOAD}": self.payload}


def require_submitit() -> None:
    """InvalidInput when submitit is not installed."""
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise InvalidInput(
            f"submitit cannot be imported here ({error})", hint="install it: pip install 'slurmgpu[submitit]'"
        ) from None


def is_checkpointable(function: object) -> bool:
    """Return True if submitit can save the function's state and start it again: it has a method ``checkpoint``."""
    return any(callable(getattr(function, name, None)) for name in ("checkpoint", "__submitit_checkpoint__"))


def pack_function(
    plan: Plan, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Packed:
    """Make the plan (launcher srun) call a function in each task.

    Each task gets torch.distributed's variables. The function runs in the Python that the environment names,
    else in this one, by its path; either needs submitit. InvalidInput for what submitit cannot carry.
    """
    require_submitit()
    _refuse(plan)
    if plan.environment.container is not None:
        raise InvalidInput(
            f"environment.container: {plan.environment.container.image!r}: a function needs a Python with "
            "submitit, and an image brings its own Python",
            hint="choose an environment without a container, or submit a command instead of a function",
        )
    options = plan.options
    if is_checkpointable(function) and plan.option("signal") is None:
        from submitit.slurm.slurm import SlurmJobEnvironment

        why = "submitit saves the function's state on it and requeues the job"
        options += (Option(name="signal", value=f"{SlurmJobEnvironment.USR_SIG}@{_SIGNAL_AHEAD}", why=why),)
    python = plan.environment.python
    named = python.activated or "interpreter" in python.model_fields_set
    made = _under_submitit(plan, job_path(python.interpreter) if named else shell_word(sys.executable))
    made = made.model_copy(update={"options": options})
    return Packed(made, _pickled(plan, function, args, kwargs), plan.nodes * plan.tasks_per_node)


def pack_command(plan: Plan) -> Packed:
    """Make submitit run the plan's command, launcher, container and all; a failure of it fails the job.

    submitit itself runs in this Python, outside the job's environment. InvalidInput for what it cannot carry.
    """
    require_submitit()
    _refuse(plan)
    # The standard library's own function: the job's side needs submitit and nothing of ours.
    payload = _pickled(plan, subprocess.run, (["bash", "-uc", _shell_line(plan)],), {"check": True})
    made = _under_submitit(plan, shell_word(sys.executable))
    alone = not launcher(plan.launcher).by_srun
    outside = plan.environment.model_copy(update={"container": None})
    made = made.model_copy(update={"launcher": "plain" if alone else "srun", "environment": outside})
    return Packed(made, payload, 1 if alone else plan.nodes * plan.tasks_per_node)


def attach(packed: Packed, run: Run) -> submitit.Job[Any]:
    """Return submitit's view of a job; its pickle lies in the run directory since before it was submitted."""
    import submitit

    folder = Path(run.run_dir) / SUBMITIT_FOLDER
    job: submitit.Job[object] = submitit.SlurmJob(folder, str(run.job_id), range(packed.tasks))
    with suppress(FileExistsError):  # the job itself was faster
        job.paths.submitted_pickle.symlink_to(_PAYLOAD)
    job.paths.submission_file.symlink_to(Path("..") / run.script)
    return job


def _refuse(plan: Plan) -> None:
    if plan.script is not None:
        raise InvalidInput(
            "script: runs as it is, and submitit starts a command on each task",
            hint="leave --via submitit out, or write command: instead of script:",
        )
    if plan.stage is not None:
        raise InvalidInput(
            "stage: cannot be had with submitit, whose tasks end by themselves",
            hint="leave --via submitit out, or stage out and copy the data in the function",
        )
    if plan.packed is not None:
        raise InvalidInput(
            "environment.python.stage: node cannot be had with submitit, whose tasks end by themselves",
            hint="leave --via submitit out, or stage: the environment is then used where it is",
        )
    if plan.steps:
        raise InvalidInput(
            "steps: start side by side from the batch script, and submitit starts one command on each task",
            hint="leave --via submitit out, or write command: instead of steps:",
        )
    if plan.train is None and "timeout" in plan.restart_on:
        raise InvalidInput(
            "restart.on: timeout cannot be had with submitit, which itself requeues what can save its state",
            hint="leave timeout out, and give the function a method checkpoint; or leave --via submitit out",
        )
    if enters_by_srun(plan.environment):
        assert plan.environment.container is not None
        raise InvalidInput(
            f"environment.container.runtime: {plan.environment.container.runtime} is entered by srun's options, and with "
            "submitit that srun is submitit's own",
            hint="leave --via submitit out",
        )
    for option in plan.options:
        if option.name in _NOT_CARRIED:
            why, act = _NOT_CARRIED[option.name]
            raise InvalidInput(
                f"{option.name}: {option.value!r} cannot be had with submitit: {why}", hint=act
            )


def _under_submitit(plan: Plan, python: str) -> Plan:
    """Return the plan with submitit as its command; each task writes its log where submitit's Job looks for it."""
    folder = f"$SLURMGPU_RUN_DIR/{SUBMITIT_FOLDER}"
    make = f'mkdir -p "${{SLURMGPU_RUN_DIR:?is set by slurmgpu submit}}/{SUBMITIT_FOLDER}"'
    # submitit looks for it under the job's number, which nobody knew when it was written.
    take = f'{{ ln -s {_PAYLOAD} "{folder}/${{SLURM_JOB_ID}}_submitted.pkl" 2>/dev/null || :; }}'
    run = f'exec {python} -u -m submitit.core._submit "{folder}"'
    log = f"{folder}/${{SLURM_JOB_ID}}_${{SLURM_PROCID:-0}}_log"
    line = f'{make} && {take} && {run} >>"{log}.out" 2>>"{log}.err"'
    variables = {**plan.variables, "SUBMITIT_EXECUTOR": "slurm"}
    changed = {"command": ("bash", "-uc", line), "variables": variables, "tended": False}
    return plan.model_copy(update=changed)


def _shell_line(plan: Plan) -> str:
    """Return the planned command as one line for the shell of each task."""
    # Where srun is the launcher, its step is submitit's own, and that has set the ranks already.
    lines = launcher("plain" if plan.launcher == "srun" else plan.launcher).lines(plan)
    entrypoint = "entrypoint=slurmgpu_training; " if plan.train is not None else ""
    return entrypoint + " ".join(filter(None, ["exec", container_words(plan), *lines]))


def _pickled(
    plan: Plan, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> bytes:
    from submitit.core.utils import DelayedSubmission

    delayed = DelayedSubmission(function, *args, **kwargs)
    seconds = plan.time.seconds if plan.time else None
    delayed.set_timeout(max(1, seconds // 60) if seconds else _UNKNOWN_MINUTES, plan.restart_limit or 0)
    handle, name = tempfile.mkstemp(suffix=".pkl")
    os.close(handle)
    try:
        delayed.dump(name)
        return Path(name).read_bytes()
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"{plan.name}: the function or one of its arguments cannot be pickled: {error}",
            hint="pass what it is made from (a path, a setting); open files and sockets inside the function",
        ) from None
    finally:
        Path(name).unlink(missing_ok=True)
