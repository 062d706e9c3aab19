"""Variables that a shell's text needs, and that nothing sets: misspelled, another scheduler's, or without a value here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from slurmgpu.files.regular import text_of
from slurmgpu.lines.variables import OF_OTHER_SCHEDULERS, SET_BY_SLURM
from slurmgpu.models.plan import Plan
from slurmgpu.scripts.shell import pieces
from slurmgpu.submission.slips.command import Slip, seen_from_here
from slurmgpu.submission.slips.nearby import is_there, meant, near_word, one_slip_apart

__all__ = ["SITE_VARIABLES", "missing_lists", "short_files", "unset_variables"]

# What the shell or a site's prolog sets.
_SET_BY_OTHERS = (
    r"BASH|SLURMGPU_|CUDA_|ROCR_|HIP_|GPU_|ZE_|SLURMD_|SBATCH_|.*(?:TMP|SCRATCH|LOCAL|JOB)|(?:E?UID|GROUPS|HOME|HOSTNAME|HOSTTYPE|IFS"
    r"|LINENO|LOGNAME|MACHTYPE|OLDPWD|OPT\w+|OSTYPE|PATH|PIPESTATUS|PPID|PWD|RANDOM|REPLY|SECONDS|SHELL|SHLVL|USER|FUNCNAME"
    r"|EPOCHSECONDS|EPOCHREALTIME|LANG|TERM|COLUMNS|LINES)\Z"
)
SITE_VARIABLES = (
    "TMPDIR",
    "SCRATCH",
    "LOCAL_SCRATCH",
    "SCRATCHDIR",
    "JOB_SCRATCH",
    "JOB_TMPDIR",
    "WORK_SCRATCH",
)
_NEEDS = re.compile(r"(?<!\\)\$(?:([A-Za-z_]\w*|[1-9])|\{([A-Za-z_]\w*|[1-9])\})")


def unset_variables(
    words: Collection[str],
    plan: Plan,
    known: Collection[str],
    *,
    complete: bool,
    strict: bool,
    arguments: bool,
) -> Iterator[Slip]:
    """Yield the variables that words of a shell need, as written, and that have no value there.

    ``known`` has the names that the script or this shell sets; not ``complete``: something else may set any. ``strict`` is
    whether the script ends at an unset one, and ``arguments`` whether it may be given some ($1).
    """
    live = (text for word in words for quote, text in pieces(word) if quote in ("", '"'))
    names = dict.fromkeys(one or other for text in live for one, other in _NEEDS.findall(text))
    sums = re.findall(r"\$\(\(([^()]*)\)\)", " ".join(words))  # where a name needs no $
    names |= dict.fromkeys(name for text in sums for name in re.findall(r"(?<![\w$])S\w*_JOB_?\w*", text))
    array = plan.option("array") is not None
    so = "under `set -u` the script ends" if strict else "it is empty"
    for name in names:
        if name in known or (name.isdecimal() and arguments):
            continue
        if re.match(_SET_BY_OTHERS, name):
            meant_by = (one for one in (*SITE_VARIABLES, *SET_BY_SLURM, *known) if one_slip_apart(name, one))
            if name not in (*SITE_VARIABLES, *SET_BY_SLURM) and (near := next(meant_by, None)):
                said = f"${name} is set nowhere in the script, nor here: {so}"
                yield Slip(said, f"did you mean ${near}?", sure=False)
            continue
        if name.isdecimal():
            yield Slip(
                f"${name} is empty: the script gets no arguments here",
                "write the value itself",
                sure=False,
            )
        elif name.startswith("SLURM_ARRAY_") and name in SET_BY_SLURM and not array:
            yield Slip(
                f"${name} is set in the tasks of an array alone: here {so}",
                "ask for one: --array 0-9",
                sure=False,
            )
        elif name.startswith("SLURM_"):
            same = next(
                (one for one in SET_BY_SLURM if sorted(one.split("_")) == sorted(name.split("_"))), None
            )
            index = "SLURM_ARRAY_TASK_ID" if name in {"SLURM_ARRAYID", "SLURM_ARRAY_ID"} else same
            near = None if name in SET_BY_SLURM else index or near_word(name, SET_BY_SLURM)
            if near is not None:
                yield Slip(f"${name} is no variable of Slurm's: {so}", f"did you mean ${near}?", sure=False)
        elif name in OF_OTHER_SCHEDULERS and complete:
            said = f"${name} is set nowhere in the script, nor here: {so}, for it is another scheduler's"
            needs = " (in a job with --ntasks)" if "NTASKS" in OF_OTHER_SCHEDULERS[name] else ""
            yield Slip(said, f"write ${OF_OTHER_SCHEDULERS[name]}{needs}", sure=False)
        elif (near := next((one for one in known if one_slip_apart(name, one)), None)) or complete:
            said = f"${name} is set nowhere in the script, nor here: {so}"
            hint = f"did you mean ${near}?" if near else f"set it before this line: {name}=..."
            yield Slip(said, hint, sure=False)


def _indices(array: str) -> list[int]:
    """Return the numbers of a job array's first and last tasks, ranges and single ones, without step and limit."""
    return [int(one) for one in re.findall(r"\d+", re.sub(r"[%:]\d+", "", array))]


_OF_A_TASK = r"(?<![\w$/.-])[\w./-]*\$\{?SLURM_ARRAY_TASK_ID\}?[\w-]*\.\w+"


def short_files(
    array: str, folder: Path, lines: Sequence[str], first_line: int
) -> Iterator[tuple[int, Slip]]:
    """Yield the files of which each task of a job array takes the line of its number (sed), and the files of a number each.

    The former have too few lines, of the latter some are not there.
    """
    numbers = _indices(array)
    for number, line in enumerate(lines, first_line):
        for word in re.findall(_OF_A_TASK, line) if numbers else ():
            begin, end = re.split(r"\$\{?SLURM_ARRAY_TASK_ID\}?", word)
            pattern = folder / f"{begin}*{end}"
            name = re.compile(re.escape(pattern.name).replace(r"\*", r"(\d+)"))
            found = (name.fullmatch(one.name) for one in pattern.parent.glob(pattern.name))
            there = sorted(int(one[1]) for one in found if one)
            gone = [one for one in numbers if one not in there]
            if there and gone:
                said = f"{begin}{gone[0]}{end} is not there, which task {gone[0]} of --array={array} takes"
                yield number, Slip(said, f"write --array={there[0]}-{there[-1]}", sure=False)
    for number, line in enumerate(lines, first_line):
        taken = re.search(r"\bsed -n [\"']?\$\{?SLURM_ARRAY_TASK_ID\}?[\"']*p[\"']?\s+([\w./-]+)", line)
        path = folder / taken[1] if taken and numbers else None
        count = len(text_of(path).splitlines()) if path is not None else 0
        if taken and count and (min(numbers) < 1 or max(numbers) > count):
            said = f"{taken[1]} has the lines 1 to {count}, and --array={array} takes {min(numbers)} to {max(numbers)}"
            yield number, Slip(said, f"write --array=1-{count}", sure=False)


_READS = re.compile(
    r"(?:\b(?:cat|head|tail|sed|awk|cut|shuf)\b[^|;&<>()#]*?\s|(?<!<)<\s*)"
    r"([\w./-]+\.(?:txt|csv|tsv|list|lst|dat|json|ya?ml))(?=[\s)|;]|\Z)"
)


def missing_lists(folder: Path, lines: Sequence[str], first_line: int) -> Iterator[tuple[int, Slip]]:
    """Yield the files that a shell takes values from (cat, sed, ``<``) and that are not there, if no line makes them."""
    for number, line in enumerate(lines, first_line):
        for name in _READS.findall(line) if not line.lstrip().startswith("#") else ():
            path = folder / name
            made = rf"(?:>|\btee\b|-o|--out\S*)\s*\S*{re.escape(path.name)}"
            if (
                is_there(path)
                or not seen_from_here(path, folder)
                or any(re.search(made, one) for one in lines)
            ):
                continue
            yield (
                number,
                Slip(f"{name} is not there", f"{meant(name, path)}what is read from it is empty", sure=False),
            )
