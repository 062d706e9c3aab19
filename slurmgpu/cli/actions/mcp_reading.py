"""The tools that only read: what the commands of the same name print, of the user's own jobs and of files below one folder."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import click

from slurmgpu.cli.actions import mcp_fields
from slurmgpu.cli.actions.asking import shared
from slurmgpu.cli.asked import How, Lines, Reported, Which
from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files.data import example_names
from slurmgpu.files.trust import for_somebody_else, staying_below
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import current_user, select, since_moment
from slurmgpu.slurm import JobId, Slurm

__all__ = [
    "Said",
    "check",
    "gpus",
    "heard",
    "inside",
    "job_of",
    "logs",
    "plan",
    "render",
    "report",
    "show_status",
    "why",
]

_LARGEST_FILE = 1 << 20
_SEARCHED = 5000  # lines of a log
_LARGEST_OUTPUT = 1 << 20
_LONGEST_SECRET = 64 << 10
_OLDEST = timedelta(days=31)
_SUFFIXES = {".yaml", ".yml"}


class Said(NamedTuple):
    """What a command printed."""

    out: str
    notes: str
    """What it said besides, on standard error."""
    code: int = 0
    only: Callable[[str], str] | None = None
    """What an assistant asked to see of it, taken after secrets are hidden: a search before could guess them."""


class _Enough(BaseException):
    """More has been printed than is shown of it."""


class _Bounded(io.StringIO):
    """Keeps the first so many characters; then it ends who writes, or hears no more."""

    def __init__(self, *, ends: bool) -> None:
        super().__init__()
        self._ends, self.cut = ends, False

    def write(self, text: str) -> int:
        room = _LARGEST_OUTPUT - self.tell()
        super().write(text[: max(room, 0)])
        self.cut = self.cut or len(text) > room
        if self.cut and self._ends:
            raise _Enough
        return len(text)

    def whole(self) -> str:
        """What was kept, without a last line that is not whole: half a secret is not known for one."""
        text = self.getvalue()
        return (text.rpartition("\n")[0] or text[:-_LONGEST_SECRET]) if self.cut else text


class Heard:
    """What is printed while `heard` listens."""

    def __init__(self, *, ends: bool) -> None:
        self.out, self.err = _Bounded(ends=ends), _Bounded(ends=False)
        self.code = 0

    def said(self) -> Said:
        """All of it."""
        return Said(self.out.whole(), self.err.whole(), self.code)


@contextmanager
def heard(*, ends: bool = False) -> Iterator[Heard]:
    """Keep what a command prints, and the code with which it ends itself; ``ends`` it where it prints too much."""
    told = Heard(ends=ends)
    with redirect_stdout(told.out), redirect_stderr(told.err), for_somebody_else():
        try:
            yield told
        except click.exceptions.Exit as error:
            told.code = error.exit_code
        except _Enough:
            told.err.write("\nthere is more than is shown here; ask for less at a time\n")


# Files


def inside(word: str, field: str = "file") -> str:
    """The path of a file below this folder, as it was given; InvalidInput for any other.

    Hidden files and folders are none of an assistant's business: keys and passwords lie there.
    """
    here = Path.cwd().resolve()
    try:
        real = (here / word).resolve()
        below = real.relative_to(here) if real.is_relative_to(here) else None
        if below is None or any(part.startswith(".") for part in below.parts):
            raise InvalidInput(
                f"{field}: {word!r} does not lie below the folder of this server, or is hidden",
                hint=f"name a file below {here}, by its path against that folder",
            )
        if not real.is_file():
            what = "is a folder or a device" if real.exists() else "is not there"
            raise InvalidInput(f"{field}: {word!r} {what}", hint=f"name a file below {here}")
        if real.stat().st_size > _LARGEST_FILE:
            raise InvalidInput(
                f"{field}: {word!r} is larger than {_LARGEST_FILE:,} bytes",
                hint="name a job file or a batch script",
            )
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, a circle of links
        raise InvalidInput(f"{field}: {word!r} cannot be looked at: {error}") from None
    return str(below)


def _stay_below(word: str, field: str) -> None:
    """InvalidInput for what is there and lies elsewhere: a plan looks into scripts, and its answer quotes them."""
    here = Path.cwd().resolve()
    real = (here / Path(os.path.expandvars(word)).expanduser()).resolve()
    if not real.is_relative_to(here):
        raise InvalidInput(
            f"{field}: {word!r} does not lie below the folder of this server",
            hint=f"name a path below {here}, or start the server in a folder above both",
        )


def job_of(asked: mcp_fields.JobFields) -> dict[str, Any]:
    """What describes the job, as the command line hands it on; InvalidInput for files that may not be read."""
    given, file = asked.given(), asked.file
    own = asked.set.get("command")
    for word in (*(asked.command or ()), *(own if isinstance(own, list) else str(own or "").split())):
        if str(word).endswith((".py", ".sh")):
            _stay_below(str(word), "command")
    _stay_below(str(asked.set.get("work_dir") or "."), "work_dir")
    named_profile(given.get("job__cluster"))
    if file is not None:
        if file in example_names() and not Path(file).exists():
            return given  # one that ships with slurmgpu
        given["job__file"] = file = inside(file)
        if Path(file).suffix not in _SUFFIXES:
            _check_is_script(file)
        return given
    from slurmgpu.cli.job_source import find_source

    found = find_source(given, Path.cwd(), os.environ)
    if found.batch is not None:
        raise InvalidInput(
            f"command: {found.batch.name!r} is a batch script", hint="name it as file, without command"
        )
    if found.path is not None:
        inside(str(found.path), "job.yaml")
    return given


def named_profile(name: str | None) -> str | None:
    """The name of a cluster profile; InvalidInput where it is that of a file which may not be read."""
    if name is not None and Path(name).exists():
        inside(name, "cluster")
    return name


def _check_is_script(file: str, field: str = "file") -> str:
    """The text of a batch script; InvalidInput for a file that is none: its lines would stand in what is said of it."""
    from slurmgpu.files.yaml import read_batch_script

    text = read_batch_script(Path(file), any_bytes=True)
    if not text.startswith("#!") and "#SBATCH" not in text:
        raise InvalidInput(
            f"{field}: {file!r} is no batch script: it has no first line with #! and no #SBATCH",
            hint="name a job file (.yaml) or a batch script",
        )
    return text


def plan(asked: mcp_fields.PlanFields) -> Said:
    """The plan of a job with its reasons."""
    from slurmgpu.cli.actions.plan import act

    with heard() as told, staying_below(Path.cwd()):
        act(job_of(asked), when=False, as_json=False)
    return told.said()


def render(asked: mcp_fields.PlanFields) -> Said:
    """The batch script of a job."""
    from slurmgpu.cli.preparing import prepare, tell_of_image

    with heard() as told, staying_below(Path.cwd()):
        prepared = prepare(job_of(asked))
        tell_of_image(prepared)
        click.echo(prepared.render(), nl=False)
    return told.said()


def check(asked: mcp_fields.CheckFields) -> Said:
    """What is wrong with a batch script."""
    from slurmgpu.cli.actions.check import findings, show
    from slurmgpu.files.yaml import refuse_too_many_lines

    with heard() as told, staying_below(Path.cwd()):
        if asked.file is not None:
            shown = inside(asked.file)
            text = _check_is_script(shown)
        else:
            shown, text = "<text>", refuse_too_many_lines(asked.text or "", "text")
        show(shown, findings(text, named_profile(asked.cluster)))
    return told.said()


# Jobs


def own_jobs(words: Sequence[str], slurm: Slurm) -> None:
    """InvalidInput where a word means a job of somebody else's, or a folder.

    Of others the log's path alone could lead to a file of the user's that they cannot read themselves.
    """
    for word in words:
        if "/" in word or word.startswith((".", "-", "~")) or (not JobId.parse(word) and Path(word).exists()):
            raise InvalidInput(
                f"jobs: {word!r} is the name of a file or folder, where a job's id or name is expected",
                hint="name the job by its id, as status shows it",
            )
    me = current_user()
    report = status(slurm, user=me, selections=select(words))
    for job in report.jobs:
        if job.source not in ("none", "run.json") and job.user != me:
            raise InvalidInput(
                f"jobs: {job.job_id} is not a job of {me}, and only the user's own are shown",
                hint="status without jobs lists them",
            )


def why(asked: mcp_fields.WhyFields) -> Said:
    """Why jobs wait, or why they failed."""
    from slurmgpu.cli.actions.why import act

    own_jobs(asked.jobs, shared())
    with heard(ends=True) as told:
        act(_context("why"), tuple(asked.jobs), shapes=False, all_users=False, as_json=False)
    return told.said()


def show_status(asked: mcp_fields.StatusFields) -> Said:
    """The user's jobs."""
    from slurmgpu.cli.actions.status import act

    _check_since(asked.since)
    if asked.jobs:
        own_jobs(asked.jobs, shared())
    which = Which(None, False, asked.since, asked.state, asked.partition, None, asked.name)
    with heard(ends=True) as told:
        act(
            _context("status"),
            tuple(asked.jobs),
            which,
            How(False, None, None, False),
            live=False,
            watch=False,
        )
    return told.said()


def report(asked: mcp_fields.ReportFields) -> Said:
    """What jobs used of what they asked for."""
    from slurmgpu.cli.actions.report import act

    _check_since(asked.since)
    if asked.jobs:
        own_jobs(asked.jobs, shared())
    which = Reported(None, False, asked.since, asked.state, asked.partition, None, asked.name)
    with heard(ends=True) as told:
        act(
            _context("report"),
            tuple(asked.jobs),
            which,
            each=asked.each,
            apply=False,
            html=None,
            as_json=False,
        )
    return told.said()


def gpus() -> Said:
    """Which GPUs are free."""
    from slurmgpu.cli.actions.cluster_gpus import act

    with heard() as told:
        act(_context("gpus"), as_json=False)
    return told.said()


def logs(asked: mcp_fields.LogsFields) -> Said:
    """The last lines of a job's logs."""
    from slurmgpu.cli.actions.logs import act

    own_jobs([asked.job], shared())
    lines = Lines(_SEARCHED if asked.find else asked.lines, asked.rank, None, None, None)
    with heard(ends=True) as told:
        act(
            _context("logs"),
            (asked.job,),
            lines,
            follow=False,
            prefix=False,
            stream=asked.stream,
            paths=False,
        )
    said, find = told.said(), asked.find
    return said if find is None else said._replace(only=lambda text: _with_text(text, find, asked))


def _with_text(text: str, find: str, asked: mcp_fields.LogsFields) -> str:
    """Return the last of the lines with a text in them, and those around each."""
    lines = text.split("\n")
    found = [at for at, line in enumerate(lines) if find in line][-asked.lines :]
    shown = {at for one in found for at in range(one - asked.around, one + asked.around + 1)}
    kept = [line for at, line in enumerate(lines) if at in shown]
    return "\n".join(kept) or f"there is no line with {find!r} in the last {_SEARCHED:,}"


def _check_since(text: str | None) -> None:
    """InvalidInput for a time so long ago that accounting would be busy for minutes."""
    now = datetime.now(timezone.utc)
    if text is not None and now - since_moment(text, now) > _OLDEST:
        raise InvalidInput(
            f"since: {text!r} is more than {_OLDEST.days} days ago", hint="ask for less, such as '7d'"
        )


def _context(name: str) -> click.Context:
    """What a command ends itself by."""
    return click.Context(click.Command(name), info_name=name)


def failed(error: SlurmGpuError) -> Said:
    """An error as the command line prints it."""
    hint = f"\nhint: {error.hint}" if error.hint else ""
    return Said(f"error: {error.message}{hint}", "", error.exit_code)
