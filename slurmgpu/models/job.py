"""A request of the user's, which knows no cluster, so that the same file runs on two."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import Self

from slurmgpu.lines.slurm import MARKS, read_head
from slurmgpu.models.base import EnvName, Hinted, JobOption, JobPath, JobText, Model, Text, Word
from slurmgpu.models.command import LAUNCHER, CommandSchema, Launch, check_words, to_words
from slurmgpu.models.environment import EnvironmentChoice, Or, Secrets, alone
from slurmgpu.models.job_parts import Notify, Profile, Sample, Stage, Step, StepName, check_steps
from slurmgpu.models.options import OWN_OPTIONS
from slurmgpu.models.resources import Component, Positive, Resources, check_options
from slurmgpu.models.train import TrainSettings
from slurmgpu.models.units import Comment, JobName, LogPattern, MailUser

__all__ = [
    "LARGEST_INDEX",
    "Array",
    "Component",
    "Dependency",
    "Job",
    "Launch",
    "Mail",
    "Resources",
    "Restart",
]


class Restart(Model):
    """Events after which Slurm may start the job again."""

    on: tuple[Literal["timeout", "preemption", "node_failure"], ...] = ()
    """Why it may start again; empty: it never runs twice. Any reason turns on `--requeue`, by which Slurm restarts after
    preemption and node failure alike."""
    limit: Annotated[int, Field(ge=0)] = 10
    """The most restarts, whoever causes them; the start after that ends with an error."""


class _FromText:
    """JSON Schema of a model that files write as one text."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": ["string", "integer"], "description": (cls.__doc__ or "").splitlines()[0]}


_TEXT: dict[str, object] = {"type": "string"}
_ARRAY = (
    r"(?P<indices>\d+(?:-\d+(?::[1-9]\d*)?)?(?:,\d+(?:-\d+(?::[1-9]\d*)?)?)*)(?:%(?P<at_once>[1-9]\d*))?\Z"
)
LARGEST_INDEX = 4_000_000
"""The largest index of an array that a site can allow (slurm.conf(5), MaxArraySize); most allow 1000."""


class Array(_FromText, Model):
    """A job array: 0-9, 1,3,5 or 0-30:10, and how many of its tasks may run at once (%4)."""

    indices: str
    at_once: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            return value
        match = re.match(_ARRAY, value.strip())
        if not match:
            raise ValueError(
                f"{value!r} is not an array; write indices such as 0-9, 1,3,5 or 0-30:10, then %4 for 4 at once"
            )
        for part in match["indices"].split(","):
            first, _, last = part.partition(":")[0].partition("-")
            if int(last or first) < int(first):
                raise ValueError(
                    f"{value!r}: {part} goes down, which Slurm refuses; write {last}-{first}, and count down in the command"
                )
            if int(last or first) > LARGEST_INDEX:
                raise ValueError(
                    f"{value!r}: {part} goes beyond {LARGEST_INDEX}, the largest index that any Slurm has; "
                    "write several arrays"
                )
        return {"indices": match["indices"], "at_once": int(match["at_once"]) if match["at_once"] else None}

    @property
    def tasks(self) -> int:
        """Return the number of tasks; an index that is named twice counts once."""
        spans = self._spans()
        return len(spans[0]) if len(spans) == 1 else len(set().union(*spans))

    @property
    def numbers(self) -> list[int]:
        """The indices, from the lowest on."""
        return sorted(set().union(*self._spans()))

    def only(self, numbers: Iterable[int]) -> Self:
        """Return the array of these indices alone, with as many at once."""
        return type(self)(indices=",".join(map(str, numbers)), at_once=self.at_once)

    def _spans(self) -> list[range]:
        spans = []
        for part in self.indices.split(","):
            first_last, _, step = part.partition(":")
            first, _, last = first_last.partition("-")
            spans.append(range(int(first), int(last or first) + 1, int(step or 1)))
        return spans

    def __str__(self) -> str:
        return self.indices + (f"%{self.at_once}" if self.at_once else "")


_DEPENDENCY = (
    r"(?:singleton|(?:after|afterany|afterok|afternotok|aftercorr|afterburstbuffer):\d+(?:_\d+|_\*)?(?:\+\d+)?"
    r"(?::\d+(?:_\d+|_\*)?(?:\+\d+)?)*)\Z"
)


class Dependency(_FromText, Model):
    """A condition for the start of the job: afterok:123, several by comma (all) or ? (any)."""

    text: str

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        value = str(value) if isinstance(value, int) else value
        if isinstance(value, dict) and value and "text" not in value:
            meant = ",".join(f"{when}:{job}" for when, job in value.items())
            if all(re.match(_DEPENDENCY, part) for part in meant.split(",")):
                raise Hinted(f"{value!r}: one text is expected here", hint=f"write dependency: {meant}")
            value = meant
        if not isinstance(value, str):
            return value
        if ("," in value and "?" in value) or not all(
            re.match(_DEPENDENCY, part) for part in re.split(r"[,?]", value.strip())
        ):
            raise ValueError(
                f"{value!r} is not a dependency; write afterok:JOBID, afterany:JOBID, after:JOBID, afternotok:JOBID, "
                "aftercorr:JOBID or singleton; several with commas (all of them) or ? (any of them)"
            )
        return {"text": value.strip()}

    @property
    def job_ids(self) -> list[str]:
        """Return the plain numbers of the jobs that it names, each once."""
        return list(dict.fromkeys(re.findall(r":(\d+)", self.text)))

    def __str__(self) -> str:
        return self.text


class Mail(Model):
    """Mail from Slurm."""

    user: MailUser | None = None
    """Recipients of the mail (`--mail-user`): an address or a user's name, or several with commas; default: you."""
    type: tuple[
        Literal[
            "NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90",
            "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS", "INVALID_DEPEND",
        ],
        ...,
    ] = ("END", "FAIL")  # fmt: skip
    """The events to write about (`--mail-type`), as in `type: [BEGIN, TIME_LIMIT_80]`."""


class Job(Model):
    """A request of the user's, which knows no cluster, so that the same file runs on two."""

    name: JobName | None = None
    """The job's name (`--job-name`), at most 200 bytes and without a slash or double quote; left out, that of the Python
    script, command or task."""
    exact: bool = False
    """Ask Slurm for what is written here and for nothing else: nothing is derived, no default is added, no dialect applied."""
    resources: Resources = Resources.model_construct()
    """Resources and partition; what is left out is derived from the cluster's profile, or left to the site."""
    components: tuple[Component, ...] = ()
    """Further components of a heterogeneous job, each with its own resources; the first is the job itself."""
    environment: EnvironmentChoice | None = None
    """Modules, container and Python: the name of an environment, or one inline; left out, the profile's
    `default_environment`, else that of the shell that submits."""
    secrets: Secrets = ()
    """Variables whose values never stand in the script: they come from the shell that submits, or on the node from the
    file ~/.config/slurmgpu/secrets/NAME."""
    variables: dict[EnvName, JobText] = Field(default_factory=dict)
    """Variables to export, as in `variables: {HF_HOME: $SCRATCH/hf}`; `$NAME` in a value expands when the job runs."""
    command: Annotated[tuple[str, ...] | None, BeforeValidator(to_words), CommandSchema()] = None
    """Command to run: a list of words, or a line that is split as a shell would; no shell interprets it, and nothing in it
    expands."""
    train: TrainSettings | None = None
    """Instead of a command: a task for the training entrypoint, and its settings."""
    script: str | None = None
    """Instead of a command: the script's own lines, run as they are below the options."""
    steps: dict[StepName, Step] = Field(default_factory=dict)
    """Instead of a command: several, by their names, that run side by side, each on a share of the job."""
    shebang: Text | None = None
    """Interpreter of `script`, without `#!`, such as /bin/bash -l or /bin/zsh; default: /bin/bash."""
    launch: Annotated[Launch, alone("launcher"), Or(LAUNCHER)] = Launch.model_construct()
    """Launcher and its options; the launcher's name alone is enough, as in `launch: srun`."""
    stage: Stage | None = None
    """Data that is copied to the nodes' own disks first, and results that are brought back from there, whatever ends the job."""
    debug: bool = False
    """Report more when the job fails: NCCL's and torch's own reports, the stacks of a crash, and core dumps; what
    `variables` sets stays as it is there."""
    profile: Annotated[Profile | None, alone("with"), Or(_TEXT)] = None
    """A profiler around the job's processes, with its reports in the run directory; its name alone will do, as in
    `profile: nsys`."""
    sample: Sample = None
    """Sample what the job uses (GPUs, CPUs, memory, I/O) on its nodes into the run directory: true, or every how many
    seconds, as in `sample: 30`; left out, as the site says, and where it says nothing: every 15 s for a job with GPUs."""
    restart: Restart | None = None
    """Events after which Slurm may start the job again; default: only a training that resumes starts again."""
    array: Array | None = None
    """A job array (`--array`): its indices, and after % how many tasks may run at once, as in `array: 0-9%4`."""
    dependency: Dependency | None = None
    """Condition for its start (`--dependency`), as in `dependency: afterok:123`; several with commas (all of them)
    or ? (any of them)."""
    mail: Mail | None = None
    """Mail from Slurm about the job; left out, none is sent."""
    notify: Annotated[Notify | None, alone("webhook"), Or(_TEXT)] = None
    """A message to Slack, Discord, Teams, ntfy or any webhook when the script ends, with the first cause where it failed; the
    name of the secret that holds the address will do, as in `notify: SLACK_WEBHOOK`."""
    comment: Comment | None = None
    """A comment that Slurm keeps with the job (`--comment`)."""
    output: LogPattern | None = None
    """The log file (`--output`), a pattern of Slurm's against the work folder, as in `output: logs/%x-%j.log`; left out,
    logs/ in the run directory."""
    error: LogPattern | None = None
    """The log of standard error (`--error`), a pattern as `output` is; left out, it goes into the same file as `output`."""
    work_dir: JobPath | None = None
    """The work folder, against the job file's folder (`--chdir`); left out, that folder, or the current one where there is
    no file."""
    sbatch: dict[Word, JobOption] = Field(default_factory=dict)
    """Any other sbatch option by its long name, as in `sbatch: {nice: 100, spread-job: true}`; true: without a value,
    false: leaves out one of the cluster's."""

    @field_validator("command")
    @classmethod
    def _command_words(cls, words: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if words is None else check_words(words)

    @field_validator("resources")
    @classmethod
    def _resources_fit(cls, resources: Resources, info: ValidationInfo) -> Resources:
        return resources.check(info.data.get("exact", True))

    @field_validator("components")
    @classmethod
    def _components_fit(
        cls, components: tuple[Component, ...], info: ValidationInfo
    ) -> tuple[Component, ...]:
        exact = info.data.get("exact", True)
        for number, component in enumerate(components, start=1):
            try:
                component.resources.check(exact)
                check_options(component.sbatch, exact)
            except ValueError as error:
                raise ValueError(f"component {number}: {error}") from None
        return components

    @field_validator("sbatch")
    @classmethod
    def _not_a_field_twice(
        cls, options: dict[str, str | int | bool], info: ValidationInfo
    ) -> dict[str, str | int | bool]:
        return check_options(options, info.data.get("exact", True))

    @field_validator("script")
    @classmethod
    def _script_lines(cls, script: str | None, info: ValidationInfo) -> str | None:
        if script is None:
            return None
        if not script.strip():
            raise ValueError("is empty; write the lines that the job runs")
        for sign, what in (("\0", "a NUL byte"), ("\r\n", "DOS line ends (CRLF)")):
            if sign in script:
                raise ValueError(f"contains {what}, and sbatch refuses such a script; take them out")
        # sbatch reads those of PBS and LSF, too (seen on 22.05); an exact job may be one of theirs.
        marks = MARKS if info.data.get("exact", True) else (*MARKS, "#PBS", "#BSUB")
        found, _ = read_head(script.split("\n"), marks)
        if found:
            option = re.search(r"--([\w-]+)", found[0][1])
            field = OWN_OPTIONS.get(option[1]) if option else None
            raise ValueError(
                f"line {found[0][0]} is {found[0][1]!r}, which sbatch would read beside this file's options; "
                f"write it {f'as {field}' if field else 'under resources: or sbatch:'}"
            )
        return script

    @field_validator("shebang")
    @classmethod
    def _shebang_line(cls, shebang: str | None) -> str | None:
        if shebang is not None and shebang.startswith("#!"):
            raise ValueError(f"{shebang!r}: write it without #!, as {shebang[2:].strip()!r}")
        return shebang

    @model_validator(mode="after")
    def _one_thing_to_run(self) -> Self:
        given = [name for name in ("command", "train", "script") if getattr(self, name) is not None]
        given += ["steps"] if self.steps else []
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; keep one of the two")
        if self.steps:
            self._steps_fit()
        if self.stage is not None and (self.script is not None or self.steps or self.components):
            other = "script" if self.script is not None else "steps" if self.steps else "components"
            raise Hinted(
                f"stage: and {other}: are both given, and such a job starts its own steps",
                hint="leave stage out, and copy the data in the job's own lines",
            )
        if self.profile is not None and (self.steps or self.script is not None):
            raise Hinted(
                f"profile: and {'steps' if self.steps else 'script'}: are both given, and such a job starts its own steps",
                hint="leave profile out, and write the profiler before the program in the job's own lines",
            )
        if self.script is None:
            if self.shebang is not None:
                raise ValueError(
                    f"shebang: {self.shebang!r} is for script:, which is not given; leave it out"
                )
            return self
        if self.script.startswith("#!") and self.shebang is None:
            first = self.script.split("\n", 1)[0]
            raise ValueError(
                f"script: begins with {first!r}; write that line as shebang: {first[2:].strip()!r}, and leave it out"
            )
        self._script_is_alone()
        return self

    def _script_is_alone(self) -> None:
        """Refuse what slurmgpu would write into a script, where the script runs as it is."""
        for name in ("environment", "variables", "secrets"):
            if getattr(self, name):
                raise ValueError(
                    f"{name}: and script: are both given, and a script runs as it is; set it up in the script, "
                    "or write command: instead of script:"
                )
        if self.debug:
            raise Hinted(
                "debug: and script: are both given, and a script runs as it is",
                hint="export NCCL_DEBUG=INFO and the like in the script, or write command: instead of script:",
            )
        if self.sample:
            raise Hinted(
                "sample: and script: are both given, and a script runs as it is",
                hint="leave sample out, or write command: instead of script:",
            )
        if self.notify is not None:
            raise Hinted(
                "notify: and script: are both given, and a script runs as it is",
                hint="use mail: instead, or write command: instead of script:",
            )
        if self.launch != Launch.model_construct():
            raise ValueError(
                "launch: and script: are both given, and a script starts its own processes; leave launch out, "
                "or write command: instead of script:"
            )
        if self.restart is not None and "limit" in self.restart.model_fields_set:
            raise ValueError(
                "restart.limit: cannot be held for script:, which runs as it is; "
                "leave it out, and look at SLURM_RESTART_COUNT in the script"
            )

    def _steps_fit(self) -> None:
        if self.exact:
            raise ValueError(
                "exact: true and steps: exclude each other: the shares of steps are worked out and checked; "
                "leave exact out, or start the steps yourself under script:"
            )
        if self.launch != Launch.model_construct():
            raise ValueError(
                f"launch: {self.launch.launcher} and steps: are both given; write launch into each step that needs it"
            )
        check_steps(self.steps, 1 + len(self.components))
