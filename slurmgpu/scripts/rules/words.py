"""Rules about values that are words of a list, moments or jobs: what sbatch refuses (each seen on 22.05)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmgpu.scripts.rules.base import Hit, rule
from slurmgpu.scripts.rules.values import given
from slurmgpu.scripts.rules.view import View

__all__ = ["RULES"]

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
"""What each option takes, and the words for it."""


@rule("bad-word", "error", "A word that its option does not have: sbatch refuses the script.")
def bad_word(view: View) -> Iterator[Hit]:
    for one, value in given(view, *_WORDS):
        pattern, valid = _WORDS[one.name]
        if not re.fullmatch(pattern, value):
            yield Hit(one.line, f"{value!r} is no value of --{one.name}", f"write {valid}")


_UNIT = r"(?i:second|minute|hour|day|week)s?"
_TIME = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?|(?:0?\d|1[0-2]):[0-5]\d(?::[0-5]\d)?\s*(?i:[ap]m)"
_MONTH, _DAY = "(?:0?[1-9]|1[0-2])", "(?:0?[1-9]|[12]\\d|3[01])"
_DATE = (
    rf"\d{{4}}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])|{_MONTH}[/.]{_DAY}(?:[/.]\d\d)?"
    r"|(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\d\d)?"
)
_NAMED = "today|tomorrow|(?i:midnight|noon|fika|teatime)"
_MOMENT = rf"(?:{_TIME}|{_DATE}|{_NAMED})"
_WHEN = rf"(?i:uts)\d+|(?i:now)(?:\s*[+-]\s*\d+\s*(?:{_UNIT})?)?|{_MOMENT}(?:[T\s-]+{_MOMENT})*[T\s]*"


@rule("bad-begin", "error", "A moment for --begin or --deadline that sbatch refuses.")
def bad_begin(view: View) -> Iterator[Hit]:
    for one, value in given(view, "begin", "deadline"):
        if not re.fullmatch(_WHEN, value):
            yield Hit(
                one.line,
                f"{value!r} is no moment to sbatch",
                "write 2026-12-01T16:00, 16:00, tomorrow, or now+2hours (minutes, hours, days, weeks in full)",
            )


_JOB = r"0*[1-9]\d*(?:_(?:\d*|\*))?(?:\+\d+)?"
_AFTER = "after|afterany|afterburstbuffer|aftercorr|afternotok|afterok|expand"
_ONE = rf"(?i:singleton|(?:{_AFTER})(?::\s*{_JOB})+)|\d+(?:_\d+)?"


@rule("bad-dependency", "error", "A dependency that Slurm refuses.")
def bad_dependency(view: View) -> Iterator[Hit]:
    for one, value in given(view, "dependency"):
        wrong = next((part for part in re.split("[,?]", value) if not re.fullmatch(_ONE, part)), None)
        if wrong is not None:
            said = f"{wrong!r} is no dependency" if wrong else "a dependency is missing beside a comma"
            yield Hit(
                one.line,
                said,
                "write afterok:JOBID (or after, afterany, afternotok, aftercorr), or singleton; several with commas",
            )


RULES = (bad_word, bad_begin, bad_dependency)
