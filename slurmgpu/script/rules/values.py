"""Rules about values: what sbatch refuses (seen on 22.05), and what it takes otherwise than it is meant."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from slurmgpu.lines.slurm import SBATCH, read_constraint
from slurmgpu.models.gpu_models import well_known
from slurmgpu.models.job import LARGEST_INDEX
from slurmgpu.models.units import Duration, time_meant
from slurmgpu.script.batch_script import Directive
from slurmgpu.script.rules.base import Asked, Hit, Severity, View, is_placeholder, rule

_TIME = r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d*(:\d+){0,2}|(?i:unlimited|infinite)"
# Where the site has not raised MaxArraySize (slurm.conf(5)).
_USUAL_INDEX = 1000
# MiB that a Python process takes that has imported torch: 223 seen of 2.13 for CPUs, and those for GPUs take more.
_TORCH = 200
_MEMORY = r"\d+(?i:[kmgtp]b?)?"
_NUMBERS = {
    *("ntasks", "cpus-per-task", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu"),
    *("cpus-per-gpu", "mincpus", "threads-per-core", "cores-per-socket", "sockets-per-node", "thread-spec"),
}
# A type may begin with a digit (1g.10gb), and counts 1 where no count follows.
_GPUS = r"\d+[kKmMgG]?|(?!gpu(?::|\Z))(?!\d+(?::|\.\d*\Z|[xX]))[\w.-]*[A-Za-z][\w.-]*(?::\d+[kKmMgG]?)?|"
_MAIL = {
    *("none", "begin", "end", "fail", "requeue", "all", "invalid_depend", "stage_out", "array_tasks"),
    *("time_limit", "time_limit_90", "time_limit_80", "time_limit_50"),
}
_SIGNALS = {
    "hup", "int", "quit", "kill", "term", "usr1", "usr2", "cont", "alrm", "abrt", "stop", "urg", "xcpu", "trap",
    "pipe", "tstp", "ttin", "ttou", "chld", "winch", "io", "xfsz", "sys", "segv", "bus",
}  # fmt: skip


def given(view: View, *names: str) -> Iterator[tuple[Directive, str]]:
    """Yield the options of these names with a value that is not a variable and no placeholder; all of them, as sbatch does."""
    for one in view.script.directives:
        value = one.value or ""
        if one.name in names and value and not re.search(r"\A=|[$`]", value) and not is_placeholder(value):
            yield one, value


@rule("error")
def bad_time(view: View) -> Iterator[Hit]:
    """A time limit that sbatch refuses."""
    for one, value in given(view, "time", "time-min"):
        if not re.fullmatch(_TIME, value):
            yield Hit(one.line, f"{value!r} is not a time for sbatch", _better_time(value))


def _better_time(value: str) -> str:
    return f"write {time_meant(value) or 'minutes (90), HH:MM:SS (12:00:00) or D-HH:MM:SS (2-12:00:00)'}"


def _like_hours(minutes: int) -> bool:
    """Return True if a number is one that people ask for in hours: half a day and more, but for a whole hour's 60."""
    return minutes % 12 == 0 and (minutes % 60 != 0 or 60 < minutes < 240)


@rule("warning")
def time_in_minutes(view: View) -> Iterator[Hit]:
    """A bare number, or `MM:SS`, is minutes."""
    trains = any(call.trains and call.name != "sbatch" for call in view.calls)
    works = trains or "sbatch " not in view.body
    for one, value in given(view, "time"):
        if re.fullmatch(r"[1-9]\d*", value) and int(value) <= 96:
            yield Hit(
                one.line,
                f"{value} means {value} minutes",
                f"write 00:{int(value):02}:00, or {value}:00:00 for hours"
                if int(value) < 60
                else f"write {value}:00:00 if hours are meant",
                None if _like_hours(int(value)) else "hint",
            )
        elif re.fullmatch(r"\d+:\d+", value):
            minutes, seconds = map(int, value.split(":"))
            yield Hit(
                one.line,
                f"{value} means {minutes} minute{'s' * (minutes != 1)}"
                + (f" and {seconds} seconds" if seconds else ""),
                f"write {'' if seconds > 59 else f'{value}:00 for hours and minutes, or '}"
                + str(Duration(minutes * 60 + seconds)),
                None
                if (trains and minutes < 5) or (works and (_like_hours(minutes) or seconds > 59))
                else "hint",
            )


@rule("error")
def bad_memory(view: View) -> Iterator[Hit]:
    """An amount of memory that sbatch refuses."""
    for one, value in given(view, "mem", "mem-per-cpu", "mem-per-gpu", "tmp"):
        if not re.fullmatch(_MEMORY, value.lstrip()):
            fraction = re.fullmatch(r"(\d+\.\d+)\s*([GT])i?B?", value, re.IGNORECASE)
            if fraction:
                whole = round(float(fraction[1]) * 1024)
                fix = f"write {whole}{'M' if fraction[2].upper() == 'G' else 'G'}: whole numbers only"
            else:
                fix = "write a whole number with K, M, G or T, such as 64G"
            yield Hit(one.line, f"{value!r} is not an amount of memory for sbatch", fix)


@rule("warning")
def memory_in_megabytes(view: View) -> Iterator[Hit]:
    """A small bare number of memory: it counts megabytes."""
    trains = any(call.trains for call in view.calls)
    for one, value in given(view, "mem", "mem-per-cpu", "mem-per-gpu"):
        if re.fullmatch(r"\d+", value) and 0 < int(value) <= 512:
            asked = view.components[one.component]
            amount = _on_a_node(asked, one.name, int(value))
            too_little = trains and asked.gpu_options and amount < _TORCH
            yield Hit(
                one.line,
                f"{value} means {value} megabytes"
                + (", and importing torch alone takes more" if too_little else ""),
                f"write {value}G",
                "error" if too_little else None if amount < (1024 if asked.gpu_options else 65) else "hint",
            )


def _on_a_node(asked: Asked, name: str, mib: int) -> float:
    """Memory on a node in MiB, where the options say it; else any amount."""
    if name != "mem-per-cpu":
        return mib
    cpus, gpus = asked.number("cpus-per-task"), asked.number("cpus-per-gpu")
    if gpus is not None:
        return mib * gpus * (asked.gpus_per_node or math.inf)
    return mib * (cpus or 1) * (asked.tasks_per_node or asked.tasks or 1)


@rule("error")
def bad_number(view: View) -> Iterator[Hit]:
    """A count that sbatch refuses."""
    for one, value in given(view, *_NUMBERS):
        if not re.fullmatch(r"[1-9]\d*", value) and "," not in value and "=" not in value:
            yield Hit(
                one.line, f"{value!r} is not a count for --{one.name}", "write a whole number, 1 or more"
            )
    for one, value in given(view, "wait-all-nodes"):
        if not re.fullmatch("0*[01]", value):
            yield Hit(one.line, f"{value!r} is not a value of --wait-all-nodes", "write 0 or 1")
    for one, value in given(view, "nodes"):
        if not value.isdigit() and not re.fullmatch(r"\d+[kKmM]?(-\d+[kKmM]?)?(:\d+)?|[\d,:-]+", value):
            yield Hit(one.line, f"{value!r} is not a count of nodes", "write a number, or MIN-MAX")
        span = re.fullmatch(r"(\d+)-(\d+)", value) if "-" in value else None
        if span and int(span[2]) < int(span[1]):
            yield Hit(one.line, f"{value!r}: the most nodes are fewer than the least", "write MIN-MAX")


@rule("error")
def bad_gres(view: View) -> Iterator[Hit]:
    """A request for GPUs that Slurm refuses, or reads as another count."""
    for one, value in given(view, "gres", "gpus", "gpus-per-node", "gpus-per-task"):
        for entry in value.split(","):
            if fault := _gpu_fault(one.name, entry):
                yield Hit(one.line, *fault)


def _gpu_fault(option: str, entry: str) -> tuple[str, str] | tuple[str, str, Severity] | None:
    """Return what is wrong with an entry of a request for GPUs, what to write, and how bad it is where it is no error."""
    if option == "gres" and re.fullmatch(r"gpu:(?:[A-Za-z][\w.-]*:)?\d+", entry):
        return None
    fix = "write gpu:COUNT or gpu:TYPE:COUNT"
    if option == "gres" and re.match(r"gpu=\d+\Z", entry):  # seen on 22.05, 24.11 and 26.05
        return f"{entry!r} is refused by Slurm up to 23.02", f"write {entry.replace('=', ':')}", "warning"
    if option == "gres" and re.match(r"gpus?[=:]?\d+\Z|gpus?=", entry):
        return f"{entry!r} is not a resource that Slurm has", fix
    if option == "gres" and entry.startswith("gpus:"):
        return "the resource is called gpu, not gpus", fix
    if re.match(r"gpu:[A-Za-z][\w.-]*=\d+\Z", entry):
        fix = f"write {entry.replace('=', ':')}"
        return (
            f"in {entry!r} Slurm up to 23.02 takes all after the colon for a type, and gives 1 GPU",
            fix,
            "warning",
        )
    if re.match(r"gpu:\d+:[A-Za-z]", entry):
        _, count, kind = entry.split(":", 2)
        return f"in {entry!r} the type comes before the count", f"write gpu:{kind}:{count}"
    if option == "gres" and re.match(r"gpu:(?:[^:]+:(?!\d+[kKmMgG]?\Z)|\Z)", entry):
        return f"{entry!r} does not end in a count", fix
    kind, _, number = entry.partition(":")
    if option == "gres" and number.isdigit() and well_known(kind) is not None:
        return f"{kind!r} is a type of GPU, and the resource is called gpu", f"write gpu:{entry}", "warning"
    if option != "gres" and not re.fullmatch(_GPUS, entry):
        return f"{entry!r} is not a count of GPUs for --{option}", f"write --{option}=COUNT or TYPE:COUNT"
    return None


@rule("error")
def bad_mail_type(view: View) -> Iterator[Hit]:
    """A --mail-type that sbatch refuses or passes over."""
    for one, value in given(view, "mail-type"):
        kinds = value.split(",")
        unknown = [kind for kind in kinds if kind.strip().lower() not in _MAIL]
        for kind in unknown:
            alone = len(unknown) == len(
                kinds
            )  # beside one that it knows, sbatch passes over it (tried: 22.05)
            yield Hit(
                one.line,
                f"{kind!r} is not a type of mail" + ("" if alone else ": sbatch sends none for it"),
                "write BEGIN, END, FAIL, REQUEUE, TIME_LIMIT, TIME_LIMIT_90 or ALL",
                None if alone else "warning",
            )


@rule("warning")
def mail_without_type(view: View) -> Iterator[Hit]:
    """--mail-user without --mail-type: no mail is ever sent."""
    if "mail-user" in view.asked.options and "mail-type" not in view.asked.options:
        yield Hit(
            view.asked.line("mail-user"),
            "without --mail-type Slurm sends no mail",
            "add #SBATCH --mail-type=END,FAIL",
        )


@rule("error")
def bad_signal(view: View) -> Iterator[Hit]:
    """A --signal that sbatch refuses."""
    for one, value in given(view, "signal"):
        match = re.fullmatch(r"(?:[BR]+:)?(?:SIG)?(\w+)(?:@\d+)?", value, re.IGNORECASE)
        if not match or not (match[1].isdigit() or match[1].lower() in _SIGNALS):
            yield Hit(
                one.line,
                f"{value!r} is not a signal for sbatch",
                "write B:USR1@120: the signal, and how many seconds before the end",
            )


@rule("error")
def bad_constraint(view: View) -> Iterator[Hit]:
    """A --constraint that Slurm refuses, whatever features the nodes have."""
    for one, value in given(view, "constraint"):
        # An operator at the end is passed over (seen on 22.05).
        try:
            read_constraint(re.sub(r"[&|]\Z", "", value))
        except ValueError as fault:
            yield Hit(one.line, f"{value!r}: {fault}", "write features such as a100&nvlink or [a100|h100]")


@rule("error")
def bad_array(view: View) -> Iterator[Hit]:
    """A job array that Slurm refuses."""
    most = view.facts.cluster.slurm.max_array_size if view.facts.cluster else None
    for one, value in given(view, "array"):
        # `%` without a number is not a limit, and a comma without one no task (seen on 22.05).
        parts = re.sub(r"%\d*\Z", "", value).split(",")
        for part in list(filter(None, parts)) or parts:
            match = re.fullmatch(r"(\d+)(?:-(\d+)(?::0*([1-9]\d*))?)?", part.strip("[]"))
            last = int(match[2] or match[1]) if match else 0
            if not match or last < int(match[1]):
                yield Hit(
                    one.line,
                    f"{part!r} is not a range of indices",
                    "write 0-9, 0-9%2 (two at a time), 0-20:5 or 1,3,7",
                )
            elif most is not None and max(last, int(match[3] or 0)) >= most:
                yield Hit(one.line, f"{part!r} goes beyond {most - 1} (MaxArraySize)", "write several arrays")
            elif last > LARGEST_INDEX:
                yield Hit(
                    one.line, f"{part!r} goes beyond {LARGEST_INDEX}, the largest index that any Slurm has",
                    "write several arrays",
                )  # fmt: skip
            elif most is None and last > _USUAL_INDEX:
                yield Hit(
                    one.line,
                    f"{part!r} goes beyond {_USUAL_INDEX}, the largest index of Slurm's own default (MaxArraySize 1001)",
                    "`scontrol show config | grep MaxArraySize` tells your site's; if it is less, write several arrays",
                    "hint",
                )


_HINT = "compute_bound|memory_bound|multithread|nomultithread"
_ORDER = r"block|cyclic|fcyclic|\*|"
_LIMIT = "(?:RLIMIT_)?(?:AS|CORE|CPU|DATA|FSIZE|MEMLOCK|NOFILE|NPROC|RSS|STACK)"
_PROFILE = "energy|lustre|network|task"
_SHARING = "multiple-tasks-per-sharing|one-task-per-sharing|allow-task-sharing"
_WORDS = {
    "exclusive": ("(?i:user|mcs|topo|exclusive)?", "--exclusive alone, or =user or =mcs"),
    "kill-on-invalid-dep": ("(?i:yes|no)", "yes or no"),
    "no-kill": ("(?i:off)?", "--no-kill alone, or =off"),
    "open-mode": ("(?i:a|t).*", "append or truncate"),
    "hint": (rf"(?i:(?:{_HINT})(?:,(?:{_HINT}))*)", _HINT.replace("|", ", ")),
    "distribution": (
        rf"(?i:plane=0*[1-9]\d*|arbitrary(?:,.*)?|(?:no)?pack|(?:block|cyclic|\*|)(?::(?:{_ORDER})){{0,2}}(?:,(?:(?:no)?pack)?)?)",
        "such as block:cyclic, cyclic or plane=4",
    ),
    "gpu-bind": (
        r"(?i:(?:verbose,)?(?:n.*|c.*|(?:single|per_task):.*|map_gpu:[\d,*]*|mask_gpu:(?:0x)?[\da-f](?:0x|[\da-f,*])*))",
        "closest, none, single:1, per_task:1 or map_gpu:0,1,2,3",
    ),
    "core-spec": (r"\d+", "a whole number"),
    "switches": (r"\d+(?:@.*)?", "a number of switches, and @ with the longest wait: 1@12:00:00"),
    "gres-flags": (
        rf"(?i:disable-binding|enforce-binding|(?:{_SHARING})(?:,.*)?)",
        "enforce-binding or disable-binding",
    ),
    "profile": (
        rf"(?i:all|none|(?:{_PROFILE})(?:,.*)?)",
        "all, none, or of energy, task, lustre and network",
    ),
    "propagate": (
        rf"(?:ALL|NONE|{_LIMIT}(?:,{_LIMIT})*)?",
        "ALL, NONE, or limits such as MEMLOCK,STACK, in capitals",
    ),
}
"""Values of each option, and the words for them."""


@rule("error")
def bad_word(view: View) -> Iterator[Hit]:
    """A word that its option does not have: sbatch refuses the script."""
    for one, value in given(view, *_WORDS):
        pattern, valid = _WORDS[one.name]
        if not re.fullmatch(pattern, value) and value.isascii():
            meant = re.search(r"\s-([a-z][a-z-]+)=", view.script.lines[one.line - 1])  # -mem=64G
            fix = (
                f"long options have two dashes: --{meant[1]}"
                if meant and meant[1] in SBATCH.options
                else f"write {valid}"
            )
            yield Hit(one.line, f"{value!r} is not a value of --{one.name}", fix)


_UNIT = r"(?i:second|minute|hour|day|week)s?"
_CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?|(?:0?\d|1[0-2]):[0-5]\d(?::[0-5]\d)?\s*(?i:[ap]m)"
_MONTH, _DAY = "(?:0?[1-9]|1[0-2])", "(?:0?[1-9]|[12]\\d|3[01])"
_DATE = (
    rf"\d{{4}}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])|{_MONTH}[/.]{_DAY}(?:[/.]\d\d)?"
    r"|(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\d\d)?"
)
_NAMED = "today|tomorrow|(?i:midnight|noon|fika|teatime)"
_MOMENT = rf"(?:{_CLOCK}|{_DATE}|{_NAMED})"
_WHEN = rf"(?i:uts)\d+|(?i:now)(?:\s*[+-]\s*\d+\s*(?:{_UNIT})?)?|{_MOMENT}(?:[T\s-]+{_MOMENT})*[T\s]*"


@rule("error")
def bad_begin(view: View) -> Iterator[Hit]:
    """A moment for --begin or --deadline that sbatch refuses."""
    for one, value in given(view, "begin", "deadline"):
        if not re.fullmatch(_WHEN, value):
            yield Hit(
                one.line,
                f"{value!r} is not a point in time for sbatch",
                "write 2026-12-01T16:00, 16:00, tomorrow, or now+2hours (minutes, hours, days, weeks in full)",
            )


_JOB = r"0*[1-9]\d*(?:_(?:\d*|\*))?(?:\+\d+)?"
_AFTER = "after|afterany|afterburstbuffer|aftercorr|afternotok|afterok|expand"
_ONE = rf"(?i:singleton|(?:{_AFTER})(?::\s*{_JOB})+)|\d+(?:_\d+)?"


@rule("error")
def bad_dependency(view: View) -> Iterator[Hit]:
    """A dependency that Slurm refuses."""
    for one, value in given(view, "dependency"):
        wrong = next((part for part in re.split("[,?]", value) if not re.fullmatch(_ONE, part)), None)
        if wrong is not None:
            said = f"{wrong!r} is not a dependency" if wrong else "a dependency is missing beside a comma"
            yield Hit(
                one.line,
                said,
                "write afterok:JOBID (or after, afterany, afternotok, aftercorr), or singleton; several with commas",
            )
