"""From Python: submit a function as a job on the resources that the planner works out."""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import Unpack

from slurmgpu.errors import InvalidInput
from slurmgpu.models.resources import ResourceSettings

if TYPE_CHECKING:
    import submitit

    from slurmgpu.files.layered import Layered
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["JobSettings", "submit"]

R = TypeVar("R")


class JobSettings(ResourceSettings, total=False):
    """Settings of a function's job, in the words of a job file."""

    name: str
    exact: bool
    environment: str | Mapping[str, object]
    secrets: Sequence[str]
    variables: Mapping[str, str]
    srun_options: Sequence[str]
    debug: bool
    sample: bool | int
    profile: str | Mapping[str, object]
    restart: Mapping[str, object]
    dependency: str
    mail: Mapping[str, object]
    notify: str | Mapping[str, object]
    comment: str
    work_dir: str | os.PathLike[str]
    sbatch: Mapping[str, str | int | bool]


_RESOURCES = frozenset(ResourceSettings.__annotations__)
_SETTINGS = frozenset(JobSettings.__annotations__)


def submit(
    function: Callable[..., R],
    *args: object,
    kwargs: Mapping[str, object] | None = None,
    cluster: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] | None = None,
    **settings: Unpack[JobSettings],
) -> submitit.Job[R]:
    """Submit ``function(*args, **kwargs)``, one task per GPU, and return submitit's Job.

    Keywords describe the job, in a job file's words: ``submit(train, "data", kwargs={"lr": 0.1}, gpus=2,
    time="1:00:00")``. The function's own keywords go into ``kwargs`` (or functools.partial), so that neither
    can be taken for the other. Settings files, SLURMGPU_CLUSTER and the planner count as on the command line;
    the planner's warnings come as UserWarning. ``runs`` is the folder of run directories.

    Every task calls the function, with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT set: ``job.results()`` has one result per task, ``job.result()`` is for a single task. As in
    other multi-process jobs a task that fails ends the others at once, and one that ends leaves the others
    60 s (``srun_options=["--wait=0"]``: any time).
    A function with a method ``checkpoint`` (submitit's helpers.Checkpointable) may be restarted.

    Raises InvalidInput for settings that are not valid, for what cannot be pickled, and without submitit;
    PlanError, SlurmRefused, SlurmUnreachable and OutcomeUnknown as ``slurmgpu submit`` does.
    """
    from slurmgpu.files.jobs import load_job
    from slurmgpu.files.settings import runs_folder
    from slurmgpu.runs.by_submitit import attach, pack_function, require_submitit
    from slurmgpu.runs.prepared import plan_job
    from slurmgpu.runs.request_checks import judge
    from slurmgpu.runs.submit import Submission, submit_plan
    from slurmgpu.slurm import Slurm

    require_submitit()
    cwd = Path.cwd()
    loaded = load_job(None, _layer(function, dict(settings)), cwd=cwd, environ=os.environ)
    prepared = plan_job(loaded, None if cluster is None else os.fspath(cluster), script=_script_of(function))
    said: list[str] = []
    prepared = prepared.make_files(said.append)
    unused = [f"{other.path} is not used: it {other.why}" for other in loaded.settings.unused]
    packed = pack_function(prepared.plan, function, args, kwargs or {})
    prepared = prepared._replace(plan=packed.plan)
    prepared = prepared._replace(rendered=(prepared.plan, prepared.render()))
    verdict = judge(prepared, cwd)
    remarks = [f"{remark.message}; {remark.hint}" for remark in verdict.warnings]
    for text in filter(None, (prepared.unchosen, *packed.plan.warnings, *unused, *said, *remarks)):
        warnings.warn(text, UserWarning, stacklevel=2)
    verdict.refuse()
    submission = Submission.of(prepared, files=packed.files)
    of_runs = (
        prepared.runs if runs is None else runs_folder(os.fspath(runs), prepared.folder or cwd, os.environ)
    )
    run, _ = submit_plan(submission, loaded.job, of_runs, Slurm(), os.environ)
    return attach(packed, run)


def _layer(function: Callable[..., object], settings: dict[str, object]) -> Layered:
    """Return the keywords as the topmost layer; the function's dotted name stands for a command."""
    from slurmgpu.files.layered import Layered, Origin
    from slurmgpu.runs.by_submitit import is_checkpointable

    inner = _innermost(function)
    if not callable(inner):
        raise InvalidInput(
            f"{inner!r} is not a function", hint="submit(train, *its arguments), not submit(train(...))"
        )
    named: Any = inner if hasattr(inner, "__qualname__") else type(inner)
    name = named.__name__.strip("<>")
    # What can save its state may start again; of anything else nobody knows, and the settings decide.
    restart = {"on": ["preemption", "node_failure"]} if is_checkpointable(function) else None
    layer = Layered({}, {})
    given: dict[str, object] = {"name": name, "restart": restart} | settings
    for key, value in given.items():
        if key not in _SETTINGS:
            raise InvalidInput(
                f"{key}={value!r}: no setting of a job; settings are {', '.join(sorted(_SETTINGS))}",
                hint=f"what {name} itself is to get goes into kwargs: kwargs={{{key!r}: {value!r}}}",
            )
        if value is not None:
            above = ("resources",) if key in _RESOURCES else ("launch",) if key == "srun_options" else ()
            layer.put((*above, key), _plain(key, value), Origin(f"keyword {key}"))
    layer.put(("launch", "launcher"), "srun", Origin("slurmgpu.submit"))
    layer.put(("command",), [f"{named.__module__}.{named.__qualname__}"], Origin("slurmgpu.submit"))
    return layer


def _script_of(function: Callable[..., object]) -> ScriptFacts | None:
    """Return the file that the function is written in, and what that imports from beside it; None where there is none."""
    import inspect

    from slurmgpu.files.jobs import read_python

    function = inspect.unwrap(_innermost(function))
    try:
        file = inspect.getsourcefile(function if inspect.isroutine(function) else type(function))
    except TypeError:  # written in C
        return None
    return None if file is None else read_python([Path(file).name], Path(file).absolute().parent)


def _innermost(function: Callable[..., object]) -> Callable[..., object]:
    """Return what functools.partial wraps."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _plain(key: str, value: Any) -> object:
    """Return a keyword's value as a job file would hold it."""
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if key == "work_dir":
        path = os.fspath(value)
        return path if path[:1] in {"$", "~"} else os.path.abspath(path)  # noqa: PTH100
    try:
        return json.loads(json.dumps(value, default=str if key in _RESOURCES else None))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{key}={value!r}: not a value of a job file ({error})") from None
