"""The log files of a job, and their content: Slurm's own, and those that its script sends output to."""

from __future__ import annotations

import codecs
import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from slurmgpu.files.trust import open_regular
from slurmgpu.jobs.select import user_number
from slurmgpu.lines.slurm import SRUN
from slurmgpu.models.run import SUBMITIT_FOLDER, JobStatus, Run
from slurmgpu.printable import Harmless
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.shell import Simple, read_shell, simple_commands
from slurmgpu.slurm import JobId, expand_pattern

__all__ = [
    "LONGEST_LINE", "Log", "Piece", "Stream", "absence", "files_named_by_script", "last_lines_from", "lines_of", "logs_of",
    "next_piece", "nothing_in", "pieces_of", "settled", "size_of", "tasks_of",
]  # fmt: skip

_LARGEST = 1 << 20
_MOST_FILES = 2000
_SLACK = 60.0  # seconds by which clocks of nodes and file servers may differ


def files_named_by_script(run: Run | None, job: JobStatus) -> list[Path]:
    """Return the files of the job's user that its training commands wrote to, as its script names them, since it began.

    A variable that is not known here stands for anything, and so does what differs by task (``%t``).
    """
    owner, number = user_number(job.user), JobId.parse(job.job_id)
    path = (
        Path(run.run_dir, "script.sbatch") if run is not None else Path((job.script or "").partition(" ")[0])
    )
    if owner is None or number is None or job.start is None or not path.is_absolute():
        return []
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_uid != owner:
                return []
            text = file.read(_LARGEST).decode(errors="replace")
    except OSError:
        return []
    known = {name: os.environ[name] for name in ("HOME", "USER", "SCRATCH", "WORK") if name in os.environ}
    known |= {"SLURM_JOB_ID": str(job.raw_id), "SLURM_JOBID": str(job.raw_id), "SLURM_JOB_NAME": job.name or "*",
              "SLURM_ARRAY_JOB_ID": str(number.number), "SLURM_ARRAY_TASK_ID": number.tasks or "*"}  # fmt: skip
    known |= {"SLURM_SUBMIT_DIR": job.work_dir} if job.work_dir else {}
    found: dict[Path, None] = {}
    for pattern in _patterns(parse_batch_script(text).simple_commands(), known):
        names = glob.iglob(os.path.join(job.work_dir or "/", pattern))  # noqa: PTH118, PTH207 - an absolute pattern
        files = (Path(os.path.abspath(name)) for name in names if os.path.isfile(name))  # noqa: PTH100, PTH113 - a link stays one
        for one in islice(files, _MOST_FILES):
            try:
                there = one.lstat()
            except OSError:
                continue
            if there.st_uid == owner and there.st_mtime >= job.start.timestamp() - _SLACK:
                found[one] = None
    return list(found)


_TRAINS = re.compile(
    r"(?:.*/)?(?:srun|python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|horovodrun|ray)"
)
_LETTERS = {"j": "SLURM_JOB_ID", "A": "SLURM_ARRAY_JOB_ID", "a": "SLURM_ARRAY_TASK_ID", "x": "SLURM_JOB_NAME"}


def _patterns(commands: Iterable[Simple], known: dict[str, str]) -> Iterator[str]:
    """Yield the names as glob(7) takes them, against the folder that the script is in then."""
    folder, piped = "", False
    for simple in commands:
        for one in simple.assignments:
            name, _, value = one.partition("=")
            known[name] = _filled(value.strip("\"'"), known)
        trains = any(_TRAINS.fullmatch(word) for word in simple.words)
        names: list[str] = []
        if simple.name == "cd" and len(simple.words) > 1:
            folder = os.path.join(folder, _filled(simple.words[1], known))  # noqa: PTH118 - may hold wildcards
        elif simple.name == "tee" and piped:
            names = [word for word in simple.words[1:] if not word.startswith("-")]
        elif trains:
            names = [*simple.outputs]
        if simple.name == "srun":
            given = SRUN.read_unexpanded(simple.words, 1)[0].given
            for name in (given.get("output") or "", given.get("error") or ""):
                names.append(
                    re.sub(r"%\d*([A-Za-z])", lambda match: known.get(_LETTERS.get(match[1], ""), "*"), name)
                )
        for name in names:
            filled = _filled(name, known)
            if filled != "/dev/null" and re.search(r"\w{3}", filled.replace("*", "")):
                yield os.path.join(folder, filled)  # noqa: PTH118 - as above
        for word in simple.words:
            if ">" in word or " tee " in word:  # the text of bash -c
                inner = [one for command in read_shell(word) for one in simple_commands(command)]
                if any(word in one.words for one in inner):
                    continue  # one word to the shell, too: "$(conda shell.bash hook 2>/dev/null)"
                yield from (os.path.join(folder, one) for one in _patterns(inner, dict(known)))  # noqa: PTH118
        piped = trains and simple.ender in ("|", "|&")


def _filled(text: str, known: Mapping[str, str]) -> str:
    """Return a word with its variables filled in; what is not known becomes a wildcard."""
    text = re.sub(r"\$\([^()]*\)|`[^`]*`", "*", re.sub(r"^~(?=/)", "$HOME", text))
    return re.sub(r"\$(?:(\w+)|\{(\w+)[^}]*\})", lambda match: known.get(match[1] or match[2], "*"), text)


Stream = Literal["stdout", "stderr", "both"]

_NAMES: dict[str, Stream] = {"out": "stdout", "err": "stderr"}


class Log(NamedTuple):
    """One log file of a job; the path is None where it cannot be told."""

    job_id: str
    path: Path | None
    stream: Stream = "both"
    part: str = ""
    """The part of the job that wrote it, where several did: `task 0`, `batch script`."""
    why: str = ""
    """Why there is no path, or why the file may not be there."""

    @property
    def title(self) -> str:
        """The job, the part of it and the stream, for a header."""
        stream = "" if self.stream == "both" else self.stream
        return ", ".join(filter(None, (f"job {self.job_id}", self.part, stream)))

    @property
    def rank(self) -> int | None:
        """The rank that wrote all of it, where one did: tasks of submitit are ranks."""
        match = re.fullmatch(r"(?:rank|task) (\d+)", self.part, re.ASCII)
        return int(match[1]) if match else None

    def shows(self, stream: Stream) -> bool:
        """Return True if what was asked for is in it."""
        return "both" in (stream, self.stream) or stream == self.stream


def logs_of(run: Run | None, job: JobStatus) -> list[Log]:
    """Return every log of a job: its output, its errors where they go to a file of their own, those of submitit's tasks."""
    why = ""
    if job.state.is_waiting:
        reason = f" ({job.reason})" if job.reason else ""
        why = f"the job has not started yet: it is {job.state.value}{reason}"
    elif job.state.is_final and job.start is None:
        why = f"the job never started: it is {job.state.value}"
    out = _expanded(job.stdout, run.stdout if run else None, job) or _default(job)
    if out is None:
        return [Log(job.job_id, None, why=why or "neither Slurm nor a run directory says where its log is")]
    error = _expanded(job.stderr, run.stderr if run else None, job)
    tasks = [] if run is None or job.raw_id is None else tasks_of(run, job.raw_id, job.job_id)
    # Steps that run side by side, once they have begun: their logs lie beside the job's own.
    steps = (
        [] if run is None else [(name, out.with_name(f"{out.stem}-{name}{out.suffix}")) for name in run.steps]
    )
    tasks += [Log(job.job_id, path, part=f"step {name}") for name, path in steps if path.is_file()]
    tasks += [
        log for log in _logs_of_ranks(run, out, job) if log.path not in {error, *(one.path for one in tasks)}
    ]
    known = {out, error, *(log.path for log in tasks)}
    tasks += [
        Log(job.job_id, path, part=f"file {path.name}")
        for path in files_named_by_script(run, job)
        if path not in known
    ]
    part = "batch script" if tasks else ""
    if error is None or error == out:
        return [Log(job.job_id, out, part=part, why=why), *tasks]
    return [Log(job.job_id, out, "stdout", part, why), Log(job.job_id, error, "stderr", part, why), *tasks]


def _expanded(told: str | None, pattern: str | None, job: JobStatus) -> Path | None:
    """Return a log's path from what Slurm told, else from the pattern; None while it cannot be known."""
    job_id = JobId.parse(job.job_id)
    if told and "%" not in told:
        return Path(told)
    pattern = pattern or told
    if pattern is None or job_id is None:
        return None
    expanded = expand_pattern(
        pattern, job_id=job_id, raw_id=job.raw_id, name=job.name, user=job.user, node_list=job.node_list
    )
    return None if expanded is None else Path(job.work_dir or ".") / expanded


def _default(job: JobStatus) -> Path | None:
    """Return the log of a job that named none, if it is there: Slurm forgets a log's path soon after the job's end."""
    job_id = JobId.parse(job.job_id)
    if job.work_dir is None or job_id is None:
        return None
    path = Path(job.work_dir, f"slurm-{job_id.number}{f'_{job_id.tasks}' if job_id.tasks else ''}.out")
    try:
        # Its name can be told beforehand, and the folder may be one that everybody writes into.
        own = path.stat().st_uid == user_number(job.user)
    except OSError:
        return None
    return path if own and path.is_file() else None


def tasks_of(run: Run, number: int, job_id: str) -> list[Log]:
    """Return the logs that submitit's tasks have begun, in the order of their ranks; none for another job."""
    found = []
    for path in Path(run.run_dir, SUBMITIT_FOLDER).glob(f"{number}_*_log.*"):
        match = _TASK_FILE.fullmatch(path.name)
        if match:
            found.append((int(match[2]), _NAMES[match[3]] == "stderr", path))
    return [
        Log(job_id, path, "stderr" if is_error else "stdout", f"task {rank}")
        for rank, is_error, path in sorted(found)
    ]


def _logs_of_ranks(run: Run | None, out: Path, job: JobStatus) -> list[Log]:
    """Return the logs of single ranks in files of their own: `srun -o %j-rank%t.out`, `%j_%t_log.out`, `torchrun --log-dir`.

    Beside the job's log only files of the job's user with its id in their name; torchrun's, in the run directory, where
    they have changed since the job began.
    """
    number, owner = JobId.parse(job.job_id), user_number(job.user)
    if number is None or owner is None:
        return []
    ids = {str(number.number), str(job.raw_id)}
    found: dict[Path, Log] = {}
    try:
        beside = list(islice(out.parent.iterdir(), _MOST_LOOKED_AT))
    except OSError:
        beside = []
    for path in beside:
        task = _TASK_FILE.fullmatch(path.name)
        if task and path != out and task[1] in ids:
            found[path] = Log(job.job_id, path, _NAMES[task[3]], f"rank {int(task[2])}")
        match = _RANK_FILE.search(path.name)
        if match and path != out and ids & set(re.findall(r"\d+", path.name[: match.start()])):
            stream = _NAMES.get(path.suffix.removeprefix("."), "both")
            found[path] = Log(job.job_id, path, stream, f"rank {int(match[1])}")
    began = job.start.timestamp() if job.start else 0.0
    for path in Path(run.run_dir).glob("logs/**/attempt_*/*/std*.log") if run is not None else ():
        try:
            changed = path.stat().st_mtime
        except OSError:
            changed = 0.0
        if path.parent.name.isdecimal() and changed >= began:
            stream = "stderr" if path.name == "stderr.log" else "stdout"
            found[path] = Log(job.job_id, path, stream, f"rank {int(path.parent.name)}")
    own = []
    for path, log in found.items():
        with suppress(OSError):
            there = path.lstat()
            own += [log] if stat.S_ISREG(there.st_mode) and there.st_uid == owner else []
    return sorted(own, key=lambda log: (int(log.part.split()[1]), str(log.path)))


_RANK_FILE = re.compile(r"(?:rank|task|proc)[-_.]?(\d{1,6})(?=\D|$)", re.ASCII)
_TASK_FILE = re.compile(r"(\d+)_(\d{1,6})_log\.(out|err)", re.ASCII)  # submitit's
_MOST_LOOKED_AT = 20_000


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 where it is not there yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_lines_from(path: Path, lines: int, end: int) -> int:
    """Return where the last lines before a position begin: only the end of the file is read, however long it is."""
    if not lines:
        return end
    with open_regular(path) as file:
        position, missing, first, barren = end, lines, True, 0
        while position > 0:
            step = min(_BLOCK, position)
            file.seek(position - step)
            block = file.read(step)
            if first and block.endswith(b"\n"):  # the last line's own
                missing += 1
            first = False
            count = block.count(b"\n")
            if count >= missing:
                for _ in range(missing):
                    step = block.rindex(b"\n", 0, step)
                return position - len(block) + step + 1
            missing -= count
            position -= len(block)
            barren = 0 if count else barren + len(block)
            if barren >= _LONGEST_SEARCH:
                return position
    return 0


_BLOCK = 1 << 16
_LONGEST_SEARCH = 64 << 20
"""Bytes without a line's end after which no line's beginning is looked for: a log may be many gigabytes of none."""


def pieces_of(path: Path, start: int, end: int) -> Iterator[str]:
    """Yield a file's text between two positions, piece by piece; nothing where it is not there (any more)."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        file = open_regular(path)
    except OSError:
        return
    with file:
        file.seek(start)
        while start < end and (piece := file.read(min(_BLOCK, end - start))):
            start += len(piece)
            if text := decoder.decode(piece):
                yield text
    if text := decoder.decode(b"", True):
        yield text


def lines_of(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the lines in pieces of text, each with its end; of a progress bar, which redraws its line, the last picture.

    A line that is longer than any that people write comes as several.
    """
    held: list[str] = []
    length = 0
    for piece in pieces:
        *whole, rest = piece.split("\n")
        for line in whole:
            yield settled("".join((*held, line))) + "\n"
            held, length = [], 0
        held.append(rest)
        length += len(rest)
        if length > LONGEST_LINE:
            text = settled("".join(held))
            held = [text] if len(text) <= _BLOCK else []
            length = sum(map(len, held))
            if not held:
                yield text + "\n"
    if rest := settled("".join(held)):
        yield rest


LONGEST_LINE = 1 << 20
"""Characters of a line that is kept whole: a log may be one line of many gigabytes."""


def settled(line: str) -> str:
    """Return what is left of a line on the screen when all its pictures have been drawn over each other."""
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


def nothing_in(log: Log) -> str:
    """Return why there is nothing to show of a log, as a sentence; empty where there is something."""
    if log.path is None:
        return log.why
    try:
        with open_regular(log.path) as file:
            return "" if file.seek(0, 2) else f"{log.path} is empty"
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {log.path}: {absence(log)}"
    except OSError as error:
        return f"{log.path} cannot be read: {error.strerror}"


def absence(log: Log) -> str:
    """Return why there is no file at a log's path, as far as this machine can tell."""
    path = log.path
    if path is None or log.why:
        return log.why
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} on this machine; it may be on another one, such as the job's node"
    return "it was removed, is on another machine, or the job ended before it could write it"


_LAST_LINES = 300
_MOST_READ = 1 << 18
"""Bytes of a log in one piece."""


class Piece(NamedTuple):
    """The text that has come to a log since the last look."""

    text: str
    position: int
    """Where to go on."""
    anew: bool
    """True if the log has begun again, and what was shown before is gone."""
    absent: str
    """Why there is no log."""


def next_piece(log: Log, position: int | None) -> Piece:
    """Return what a log holds from a position on; without one, its last lines."""
    if log.path is None or not log.path.is_file():
        return Piece("", position or 0, False, absence(log) or "there is no log yet")
    try:
        size = size_of(log.path)
        anew = position is not None and position > size
        if position is None or anew:
            position = last_lines_from(log.path, _LAST_LINES, size)
            position = max(position, size - _MOST_READ)
        with open_regular(log.path) as file:
            file.seek(position)
            data = file.read(_MOST_READ)
    except OSError as error:
        return Piece("", position or 0, False, f"{log.path} cannot be read: {error.strerror}")
    data = _whole_letters(data)
    text = re.sub(r"\x1b\[[0-9;:]*m", "", Harmless(redraws=False).text(data.decode("utf-8", "replace")))
    # Of a line that was drawn again, a browser shows the last picture.
    shown = "\n".join(map(settled, text.replace("\r\n", "\n").split("\n")))
    return Piece(shown, position + len(data), anew, "")


def _whole_letters(data: bytes) -> bytes:
    """Without the beginning of a letter whose rest has not come yet."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            whole = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < whole else data
    return data
