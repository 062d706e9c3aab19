"""Slurm's text: rows, durations, moments, sizes, GPUs, job ids; and what the answer of a command means.

The texts are those of Slurm's own list of errors (src/common/slurm_errno.c) and of the libraries below it;
tests/data/slurm_messages.yaml holds real ones, each with its meaning.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Literal

from slurmgpu.models.units import Duration

__all__ = [
    "MORE_UNREAD", "SEPARATOR", "Answer", "GpuCount", "JobId", "Meaning", "duration", "each_row", "expand_pattern",
    "first_host", "gpus_of_job", "known", "meaning_of", "mib", "moment", "often", "read_gpus", "rows", "seconds", "size",
    "sound", "unread", "whole", "words",
]  # fmt: skip


SEPARATOR = f"\x1f{secrets.token_hex(6)}\x1f"
"""Mark at the end of each field: new in each process, since Slurm prints a job's name as it is, and a name could hold any
separator that is known beforehand, and a whole row of somebody else's job with it."""

# A row begins with the id as shown and the plain number; a job name with a newline in it does not look so.
_ROW_START = re.compile(
    rf"\d+(?:_(?:\d+|\[[^\]\x1f]*\]))?(?:\+\d+)?(?:\.[\w+-]+)?{SEPARATOR}\d+(?:\.[\w+-]+)?{SEPARATOR}"
)
_NOTHING = frozenset(
    {"", "N/A", "(null)", "None", "none", "Unknown", "UNKNOWN", "NOT_SET", "INVALID", "n/a", "NONE"}
)


def rows(text: str, fields: int) -> tuple[list[list[str]], list[str]]:
    """Split text into rows of `fields` fields, each field ended by SEPARATOR and each row by a newline.

    The first two fields are the job's id as shown and as a plain number. Names may hold newlines. Returns the
    rows and, separately, what could not be read as one.
    """
    bad: list[str] = []
    return list(each_row(text, fields, bad)), bad


_MOST_UNREAD = 5


def unread(command: str, bad: Sequence[str]) -> list[str]:
    """Notes on what could not be read as rows; of very many, the first ones."""
    notes = [
        f"{command}: a row that cannot be read was left out: {row[:200]!r}" for row in bad[:_MOST_UNREAD]
    ]
    more = len(bad) - len(notes)
    return [*notes, f"{command}: {more:,} {MORE_UNREAD}"] if more else notes


MORE_UNREAD = "more rows that cannot be read were left out"


def each_row(text: str, fields: int, bad: list[str]) -> Iterator[list[str]]:
    """Yield the rows of `rows`, one at a time, so that a hundred thousand need not be held at once; others go to `bad`."""
    held = ""
    # Not splitlines(), which would also break at \x1e, \x85 and U+2028 inside a name.
    for line in _lines(text):
        if _ROW_START.match(line):
            if held:
                bad.append(held)
            held = line
        elif held:
            held += "\n" + line
        elif line.strip():
            bad.append(line)
            continue
        found = held.count(SEPARATOR)
        if found == fields and held.endswith(SEPARATOR):
            yield held.split(SEPARATOR)[:-1]
            held = ""
        elif found > fields:
            bad.append(held)
            held = ""
    if held:
        bad.append(held)


def _lines(text: str) -> Iterator[str]:
    """Yield the text's lines without a second copy of all of them."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def known(text: str) -> str | None:
    """Return text, or None when it is one of the ways in which Slurm says nothing."""
    text = text.strip()
    return None if text in _NOTHING else text


# Of a hundred thousand rows most say the same: one text in memory stands for all.
often = lru_cache(maxsize=4096)(known)
"""As `known`, for fields that few rows have to themselves: a partition, an account, a folder."""


def whole(text: str) -> int | None:
    """Read a whole number that is not negative; None when it is none."""
    text = text.strip()
    # int() would also take other scripts' digits, underscores, signs and numbers too long to print again.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


_DURATION = re.compile(r"(?:(?:(\d{1,9})-)?(\d{1,9}):)?(\d{1,9}):(\d{1,2})(?:\.\d+)?", re.ASCII)


@lru_cache(maxsize=4096)
def seconds(text: str) -> int | None:
    """Read a duration as Slurm prints it, `[[days-]hours:]minutes:seconds`; None for words (UNLIMITED)."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def duration(text: str) -> Duration | None:
    """Return a limit of time as Slurm prints it; None: it prints none."""
    if text.upper() in {"UNLIMITED", "INFINITE"}:
        return Duration(None)
    found = seconds(text)
    return Duration(found) if found else None


def moment(text: str) -> datetime | None:
    """Read a point in time: seconds since 1970, or `2025-11-21T03:40:00` in this machine's time zone."""
    text = text.strip()
    try:
        if text.isascii() and text.isdigit():
            # 0 is how a release says "not yet"; eleven digits are enough until the year 5138.
            return datetime.fromtimestamp(int(text), timezone.utc) if len(text) < 12 and int(text) else None
        if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text, re.ASCII):
            return datetime.fromisoformat(text).astimezone(timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return None


_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([KMGTP]?)[cn]?", re.ASCII)


def size(text: str, unit: str = "") -> int | None:
    """Read a size in bytes: `1234K`, `1.50G`, or a bare number in `unit` (K, M, G, T, P or bytes)."""
    if not text:
        return None
    match = _SIZE.fullmatch(text.strip())
    if not match:
        return None
    number = float(match[1]) * 1024 ** " KMGTP".index(match[2] or unit or " ")
    return round(number) if math.isfinite(number) else None


def mib(text: str) -> int | None:
    """Read a size as TRES have it, `16G` or a number of MiB, in whole MiB."""
    found = size(text, "M")
    return None if found is None else -(-found // 1024**2)


_SOUND = re.compile(r"[^\s\"'#\\$`]+")


def sound(name: str) -> bool:
    """Return True if a name can be written into a profile, and into an option; administrators may give others."""
    return _SOUND.fullmatch(name) is not None


def words(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, each once."""
    return tuple(dict.fromkeys(word for word in text.split(",") if sound(word)))


@dataclass(frozen=True)
class GpuCount:
    """A number of GPUs; `types` counts those whose type is named."""

    count: int
    types: dict[str, int] = field(default_factory=dict)

    def __mul__(self, factor: int) -> GpuCount:
        return GpuCount(self.count * factor, {name: n * factor for name, n in self.types.items()})


# gres/gpu=2  gres/gpu:a100=2 | gpu:2 (20.11)  gres:gpu:a100:2 (21.08)  gres/gpu:a100:2 (23.11) | gpu: 1
_ENTRY = re.compile(r"(?:gres[/:])?gpu(?:[:=](?P<rest>.*))?", re.ASCII | re.DOTALL)


@lru_cache(maxsize=4096)
def read_gpus(text: str) -> GpuCount | None:
    """Count the GPUs in a list of TRES or GRES; None when it names none.

    Slurm lists the total and each type (`gres/gpu=2,gres/gpu:a100=2`), or the types alone: the total counts
    if it is there, otherwise the sum of the types.
    """
    total: int | None = None
    types: dict[str, int] = {}
    # "(S:0-1)" and "(IDX:0,2)" after an entry say which sockets or devices; the comma in it ends no entry.
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if not match:
            continue
        name, number = _type_and_number(match["rest"])
        if number is None:
            continue
        if name:
            types[name] = types.get(name, 0) + number
        else:
            total = (total or 0) + number
    if total is None and not types:
        return None
    return GpuCount(sum(types.values()) if total is None else total, types)


def _type_and_number(rest: str | None) -> tuple[str, int | None]:
    if not rest:
        return "", 1
    parts = re.split(r"[:=]", rest)
    last = parts[-1]
    if last.isascii() and last.isdigit():
        return ":".join(parts[:-1]), int(last) if len(last) < 10 else None
    return rest, 1


@lru_cache(maxsize=4096)
def gpus_of_job(
    allocated: str, per_job: str = "", per_node: str = "", nodes: int | None = None
) -> GpuCount | None:
    """Count a job's GPUs from what squeue says of it.

    `allocated` (tres-alloc; the request while the job waits) has them where the site accounts for GPUs;
    elsewhere the request is all there is. Zero when everything is known and no GPU is in it.
    """
    found = read_gpus(allocated) or read_gpus(per_job)
    if found:
        return found
    node = read_gpus(per_node)
    if node:
        return node * nodes if nodes else None
    return GpuCount(0) if "cpu=" in allocated else None


@dataclass(frozen=True)
class Answer:
    """Answer of a command; `rc` is None when it was killed, by its time limit or by a signal."""

    argv: tuple[str, ...]
    rc: int | None
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """True if the command ended with 0."""
        return self.rc == 0

    @property
    def text(self) -> str:
        """Return its words on stderr, or else on stdout, for a message."""
        return self.stderr.strip() or self.stdout.strip()


Meaning = Literal["answered", "refused", "no answer", "lost", "unclear"]
"""``refused``: Slurm, or the command itself, has said no, and would again. ``no answer``: the request reached nobody who
could have done it. ``lost``: it may have been done, and nobody said so. ``unclear``: an error in words that are not in the
table; who reads may ask again, and who submits has to look."""

# In this order: particular words before those that several cases share. Each line of what a command says counts.
_WORDS: tuple[tuple[str, Meaning], ...] = (
    # The reply came, and could not be read.
    (
        r"slurm_unpack_received_msg|auth_g_verify: RESPONSE_|\(receive failure\)|No response to persist_init"
        r"|Getting response to message type|Failed to unpack",
        "lost",
    ),
    # The request was not whole when it failed, and a controller drops half of one.
    (
        r"slurm_(?:msg|bufs)_sendto|Unable to resolve|Unable to establish control|auth_g_create"
        r"|\(send failure\)|failed to open persistent connection",
        "no answer",
    ),
    (
        r"Socket timed out|timed out on send/recv|Zero Bytes were transmitted|Message (?:receive|send) failure"
        r"|[Cc]onnection (?:reset|timed out|aborted)|Communication shutdown failure|Broken pipe"
        r"|Transport endpoint|Unexpected message|Header lengths are longer|Insane message length|receive_msg"
        r"|Incomplete|Insufficient data|failed: No error|PersistInit msg: No error|no answer in \d"
        r"|Unable to signal jobs: Operation not permitted",
        "lost",
    ),
    (
        r"Unable to contact slurm (?:controller|daemon)|[Cc]onnect(?:ion)? failure|Connection refused"
        r"|Munge (?:en|de)code failed|Protocol authentication error|authentication: (?:Socket|Munge)"
        r"|[Ii]nvalid authentication credential|initialize auth plugin|auth_g_\w+ failed"
        r"|Could not establish a configuration source|Unable to process configuration file"
        r"|resolve_ctls_from_dns_srv|cluster information"
        r"|No route to host|Network is unreachable|Name or service not known|name resolution"
        r"|standby mode|Rate limit exceeded|Incompatible (?:versions|protocol)|[Pp]rotocol version"
        r"|Unable to connect to database|Unable to contact .*database|Problem talking to the database"
        r"|Database (?:is busy|connection)|Resource temporarily unavailable|Too many open files"
        r"|Cannot allocate memory|controller not responding|couldn't get steps for"
        # It answered, and cannot take anybody's job or order now.
        r"|submissions disabled|MaxJobCount|create job record, try again|Requested nodes are busy"
        r"|I/O error writing|try again later",
        "no answer",
    ),
    (
        r"[Ii]nvalid|unrecognized|ambiguous|requires an argument|doesn.t allow an argument|mutually exclusive|permitted|[Dd]enied"
        r"|does not exist|not (?:valid|available|allowed|supported|enabled|found|running)|violates|exceed|limit"
        r"|allocation failure|[Rr]equire[sd]|[Uu]nspecified error|disabled|[Uu]nknown|No such|can ?not be"
        r"|already (?:completing|completed|finished|done)|DOS line breaks|does not look like|is empty"
        r"|too (?:long|large)|Too wide|can't|No (?:user|job|partition|field|steps)|[Uu]sage:|dependency problem"
        r"|Unable to open file|plugin terminated|Bad job|pending execution|Cannot cancel|supported",
        "refused",
    ),
)


def meaning_of(answer: Answer) -> Meaning:
    """Return what an answer means. An exit status of 0 alone says little: squeue and sacct have it with an error and no row.

    Rows that came are an answer, whatever is said beside them.
    """
    if answer.ok and answer.stdout.strip():
        return "answered"
    if answer.rc is None and not answer.stderr.strip():
        return "lost"
    errors = answer.stderr or ("" if answer.ok else answer.stdout)
    if answer.ok:  # squeue has asked for the jobs before it asks for the partitions
        errors = re.sub(r"(?m)^slurm_load_partitions: .*$", "", errors)
    found = next((meaning for words, meaning in _WORDS if re.search(words, errors)), None)
    if answer.rc is None:
        return found if found == "refused" else "lost"
    if answer.ok and not re.search(r"error|fatal|:.*\bfail", errors):
        return "answered"
    return found or "unclear"


_ID = re.compile(r"(\d{1,18})(?:_(\d{1,18}|\[[^\]\s]*\]?))?(?:\+(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True)
class JobId:
    """A job id in its parts: `112`, `112_3`, `112_[0-4%2]`, `113+1`."""

    number: int
    tasks: str | None = None
    """The array task (`3`), or those that still wait together (`[0-4%2]`)."""
    component: int | None = None
    """The component of a heterogeneous job."""

    @classmethod
    def parse(cls, text: str) -> JobId | None:
        """Read an id as Slurm shows it; None when the text is not an id."""
        match = _ID.fullmatch(text)
        if not match:
            return None
        return cls(int(match[1]), match[2], None if match[3] is None else int(match[3]))

    def covers(self, other: JobId) -> bool:
        """Return True if asking for this id asks for `other`, too: an array's id means all its tasks."""
        if self.number != other.number:
            return False
        if self.component is not None and self.component != other.component:
            return False
        if self.tasks is None or self.tasks == other.tasks:
            return True
        if other.tasks is None:
            return False
        if self.tasks.isdigit():
            return _holds(other.tasks, int(self.tasks))
        if other.tasks.isdigit():
            return _holds(self.tasks, int(other.tasks))
        return any(_holds(other.tasks, index) for index in _indices(self.tasks))


_MOST_INDICES = 100_000


def _indices(tasks: str) -> Iterator[int]:
    """Yield the indices of a list such as `[0-4,7,10-20:5%2]`, as many as any array has."""
    for low, high, step in _spans(tasks):
        yield from range(low, min(high, low + _MOST_INDICES * step) + 1, step)


def _holds(tasks: str, index: int) -> bool:
    """Return True if a list such as `[0-4,7,10-20:5%2]` holds the index."""
    return any(low <= index <= high and (index - low) % step == 0 for low, high, step in _spans(tasks))


@lru_cache(maxsize=64)
def _spans(tasks: str) -> tuple[tuple[int, int, int], ...]:
    """First, last and step of each part of a list; parts that cannot be read are left out."""
    parts = [
        re.fullmatch(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", part, re.ASCII)
        for part in tasks.strip("[]").split("%")[0].split(",")
    ]
    return tuple(
        (int(match[1]), int(match[2] or match[1]), int(match[3] or 1) or 1) for match in parts if match
    )


def first_host(node_list: str) -> str:
    """Return the first host of a list such as `n[001-004,7],login1`."""
    head = re.match(r"([^\[,]*)(?:\[([^\]]*)\]([^\[,]*))?", node_list)
    if head is None or head[2] is None:
        return head[1] if head else ""
    return f"{head[1]}{re.split('[-,]', head[2])[0]}{head[3]}"


_PATTERN = re.compile(r"(%%|%([0-9]*)([jJAaxuNtnsbr])|%[0-9]+|[^%]+|%)")


@lru_cache(maxsize=1024)
def _parts(pattern: str) -> tuple[tuple[str, str, int], ...] | None:
    """Return a pattern's texts, and its letters with their widths; None where releases differ. Many jobs have the same."""
    parts = []
    for match in _PATTERN.finditer(pattern):
        text, width, letter = match.groups()
        if letter:
            parts.append(("", letter, min(int(width.lstrip("0")[:3] or 0), 10) if letter in "jJAatn" else 0))
        # 22.05 makes "5q" of "%5q" and "100%" of "100%"; 26.05 makes "%5q" and "100".
        elif text != "%%" and text[0] == "%" and (len(text) > 1 or match.end() == len(pattern)):
            return None
        else:
            parts.append(("%" if text == "%%" else text, "", 0))
    return tuple(parts)


def expand_pattern(
    pattern: str, *, job_id: JobId, raw_id: int | None, name: str, user: str | None, node_list: str | None
) -> str | None:
    """Expand `%j %J %A %a %x %u %N %t %n %s %%` in the name of an output file, as slurmd does for the batch script.

    None when a part is not known yet (`%N` before the job has nodes, `%a` of tasks that still wait together),
    and where releases differ: `%b`, `%r`, a width before anything else, a `%` at the very end. A backslash
    anywhere switches expansion off. Source: sbatch's manual page, "filename pattern", and what 20.11, 22.05,
    24.11 and 26.05 do: a width is 10 at most.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")
    if "%" not in pattern:
        return pattern
    parts = _parts(pattern)
    if parts is None:
        return None
    task = job_id.tasks if job_id.tasks and job_id.tasks.isdigit() else None
    waiting = job_id.tasks is not None and task is None
    # Of a heterogeneous job there is one batch script: the first component's, on its first node.
    raw = raw_id if raw_id is not None and job_id.component is None else job_id.number
    values: dict[str, str | None] = {
        "j": None if waiting else str(raw),
        "J": None if waiting else str(raw),
        "A": str(job_id.number),
        # A job that is not an array has no index; Slurm then writes its "no value" number.
        "a": None if waiting else task or "4294967294",
        "x": name,
        "u": user,
        "N": first_host(node_list) if node_list and "N" in pattern and not job_id.component else None,
        "t": "0",
        "n": "0",
        "s": "batch",
    }
    found: list[str] = []
    for text, letter, width in parts:
        # %b is the index modulo 10 from 24.11 on, if not before, and %r the restarts from 26.05 on.
        value = values.get(letter) if letter else text
        if value is None:
            return None
        found.append(value.zfill(width) if width else value)
    return "".join(found)
