"""Words that only a shell would read, and variables and files that a shell's text needs and does not have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath

from slurmgpu.files.trust import text_of
from slurmgpu.launchers import stays_on_its_node, world_size
from slurmgpu.lines.command import python_command
from slurmgpu.lines.options import OF_OTHER_SCHEDULERS, SET_BY_SLURM
from slurmgpu.models.command import OPERATOR, VARIABLE
from slurmgpu.models.plan import Plan
from slurmgpu.quoting import job_path
from slurmgpu.runs.command_checks.command import (
    Command,
    Slip,
    is_python,
    is_there,
    meant,
    near_word,
    one_slip_apart,
    seen_from_here,
)
from slurmgpu.script.batch_script import SHELLS
from slurmgpu.script.rules.habits import array_numbers
from slurmgpu.script.shell import pieces

__all__ = [
    "SITE_VARIABLES",
    "expands_itself",
    "missing_lists",
    "shell_word_slip",
    "short_files",
    "typographic_slip",
    "unset_variables",
]


# They read such signs themselves.
_OWN_LANGUAGE = frozenset({
    "[", "Rscript", "awk", "envsubst", "expr", "find", "gawk", "grep", "egrep", "jq", "mawk", "node", "parallel",
    "perl", "rg", "ruby", "sed", "ssh", "test", "xargs",
})  # fmt: skip
_SIGNS = frozenset("|&;<>$*~")


def shell_word_slip(
    words: tuple[str, ...], plan: Plan, in_file: bool, folder: Path | None
) -> tuple[str, str, bool] | None:
    """Return message, hint, and whether the program was surely not to get these words; None: they are plain."""
    program = PurePosixPath(words[0]).name
    judged = [] if program in _OWN_LANGUAGE else list(_judged(words))
    found = [word for word in judged if _sign(word)]
    if not found:
        return None
    # What Python gets it does not expand; any other program may.
    python = python_command(words) is not None or stays_on_its_node(program)
    of_options = {after for before, after in pairwise(judged) if re.match(r"--?[A-Za-z][^=]*\Z", before)}
    sure = python and any(
        (re.match(OPERATOR, word) and word not in of_options)  # --sep ';' is a value
        or re.search(r"\$\([a-z]", word)  # and '(.*)$(?!x)' a pattern
        or ("$SLURM_" in word.replace("{", "") and not expands_itself(words, folder))
        for word in found
    )
    glob = r"(?!/)[\w./-]*\*[\w./*-]*"
    globs = [word for word in found if re.fullmatch(glob, word)]
    if folder is not None and globs == found and not any(one for word in globs for one in folder.glob(word)):
        return (
            f"command: no file matches {globs[0]!r} in {folder}",
            "give a path that is there, against the work folder",
            False,
        )
    shown = ", ".join(dict.fromkeys(map(repr, found[:3])))
    verb = "reach" if len(set(found[:3])) > 1 else "reaches"
    message = (
        f"command: {shown} {verb} the program as written: no shell reads a command, and nothing in it expands"
    )
    return message, _by_a_shell(words, plan, in_file), sure


_DASHES = "\u2013\u2014\u2212"
_UNSEEN = "\u00a0\u200b\u202f\u2060\ufeff"
_QUOTES = "\u201c\u201d\u201e\u2018\u2019"


def typographic_slip(command: Command) -> Slip | None:
    """Return the slip of dashes, quotes and blanks that a word processor or a web page has put in place of plain ones."""
    unseen = [word for word in command.words if re.search(f"[{_UNSEEN}]", word)]
    if unseen:
        plain = (one for word in command.words for one in re.split(f"[{_UNSEEN}]+", word) if one)
        return Slip(
            f"command: {', '.join(map(repr, unseen[:3]))}: there is a blank, or an unseen character, that no shell takes for a "
            "blank",
            f"type it anew: {command.instead(*plain)}",
            # A text may hold such a blank; a program's name, an option or a script may not.
            sure=command.words[0] in unseen
            or any(re.search(rf"[{_UNSEEN}]-|\A-|\.py[{_UNSEEN}]", one) for one in unseen),
        )
    begin = [word for word in command.words[1:] if re.match(f"[{_DASHES}][A-Za-z-]|[{_QUOTES}].", word)]
    found = begin or [word for word in command.words[1:] if re.search(f"[{_QUOTES}]\\Z", word)]
    if not found:
        return None
    return Slip(
        f"command: {', '.join(map(repr, found[:3]))}: a dash or a quote here is a typographic one, and no program takes it "
        "for the plain one",
        f"type it anew: {command.instead(*map(_typed, command.words))}",
        sure=bool(begin),
    )


def _typed(word: str) -> str:
    """Return a word as it is typed: without such quotes, and with one dash before a letter, or two before a longer name."""
    plain = re.sub(f"[{_QUOTES}]", "", word)
    return re.sub(f"\\A[{_DASHES}]-?", "-" if len(plain) == 2 else "--", plain)


def expands_itself(words: tuple[str, ...], folder: Path | None) -> bool:
    """Return whether the script may expand variables in its arguments: itself, or by a library that does."""
    name = next((word for word in words if word.endswith(".py")), None)
    if folder is None or name is None:
        return False
    expands = r"\bexpandvars\b|\bTemplate\(|\b(?:hydra|omegaconf|jsonargparse)\b"
    return re.search(expands, text_of(folder / name)) is not None


def _judged(words: tuple[str, ...]) -> list[str]:
    """Return the words but the program, and but code that a shell or Python is to read."""
    for number, word in enumerate(words):
        if re.match(r"-[a-z]*c\Z", word) and any(
            is_python(one) or PurePosixPath(one).name in SHELLS for one in words[:number]
        ):
            return list(words[1:number])
    return list(words[1:])


def _sign(word: str) -> bool:
    return not _SIGNS.isdisjoint(word) and bool(
        re.match(OPERATOR, word)
        or re.search(VARIABLE, word)
        or "$(" in word
        or re.search(r"(?:\A|=)~(?:/|\Z)", word)
        or re.search(r"(?:\A|[\w/.])\*(?:\Z|[\w/.])", word)
        or re.fullmatch(r"\S+;", word)
    )


def _by_a_shell(words: tuple[str, ...], plan: Plan, in_file: bool) -> str:
    """Return the same command, read by a shell; as many times as there were processes."""
    if words[-1] == "&" and not any(_sign(word) for word in words[1:-1]):
        plain = shlex.join(words[1 if words[0] == "nohup" else 0 : -1])
        return f"a job runs in the background by itself: {'command: ' if in_file else '-- '}{plain}"
    line = " ".join(map(_as_meant, words))
    several = world_size(plan) > 1
    if in_file:
        launch = ", and launch: srun" if several else ""
        quoted = "'" + line.replace("'", "''") + "'"
        return (
            f"write the line under script: |, or let a shell read it: command: [bash, -c, {quoted}]{launch}"
        )
    return f"let a shell read it: {'--launch srun ' if several else ''}-- bash -c {shlex.quote(line)}"


def _as_meant(word: str) -> str:
    word = re.sub(r"(?<==)~(?=/|\Z)", "$HOME", word)
    if re.match(OPERATOR, word) or re.fullmatch(r"[\w./-]+;", word) or ("*" in word and "$" not in word):
        return word
    if "$(" in word:
        return f'"{word}"'
    if _sign(word):
        return job_path(word)
    return shlex.quote(word)


# What the shell or a site's prolog sets.
_SET_BY_OTHERS = (
    r"BASH|SLURMGPU_|CUDA_|ROCR_|HIP_|GPU_|ZE_|SLURMD_|SBATCH_|.*(?:TMP|SCRATCH|LOCAL|JOB)|(?:E?UID|GROUPS|HOME|HOSTNAME|HOSTTYPE|IFS"
    r"|LINENO|LOGNAME|MACHTYPE|OLDPWD|OPT\w+|OSTYPE|PATH|PIPESTATUS|PPID|PWD|RANDOM|REPLY|SECONDS|SHELL|SHLVL|USER|FUNCNAME"
    r"|EPOCHSECONDS|EPOCHREALTIME|LANG|TERM|COLUMNS|LINES)\Z"
)
SITE_VARIABLES = (
    "TMPDIR", "SCRATCH", "LOCAL_SCRATCH", "SCRATCHDIR", "JOB_SCRATCH", "JOB_TMPDIR", "WORK_SCRATCH",
)  # fmt: skip
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
            others = (*SITE_VARIABLES, *SET_BY_SLURM)
            near = next((one for one in (*others, *known) if one_slip_apart(name, one)), None)
            if near and name not in others:
                said = f"${name} is set nowhere in the script, nor here: {so}"
                yield Slip(said, f"did you mean ${near}?", sure=False)
            continue
        if name.isdecimal():
            said = f"${name} is empty: the script gets no arguments here"
            yield Slip(said, "write the value itself", sure=False)
        elif name.startswith("SLURM_ARRAY_") and name in SET_BY_SLURM and not array:
            said = f"${name} is set in the tasks of an array alone: here {so}"
            yield Slip(said, "ask for one: --array 0-9", sure=False)
        elif name.startswith("SLURM_"):
            parts = sorted(name.split("_"))
            same = next((one for one in SET_BY_SLURM if sorted(one.split("_")) == parts), None)
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


_OF_A_TASK = r"(?<![\w$/.-])[\w./-]*\$\{?SLURM_ARRAY_TASK_ID\}?[\w-]*\.\w+"


def short_files(
    array: str, folder: Path, lines: Sequence[str], first_line: int
) -> Iterator[tuple[int, Slip]]:
    """Yield the files of which each task of a job array takes the line of its number (sed), and the files of a number each.

    The former have too few lines, of the latter some are not there.
    """
    numbers = array_numbers(array)
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
                seen_from_here(path, folder)
                and not is_there(path)
                and not any(re.search(made, one) for one in lines)
            ):
                hint = f"{meant(name, path)}what is read from it is empty"
                yield number, Slip(f"{name} is not there", hint, sure=False)
