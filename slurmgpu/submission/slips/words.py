"""Words of a command that only a shell would read: they reach the program as they are."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path, PurePosixPath

from slurmgpu.files.regular import text_of
from slurmgpu.launchers import world_size
from slurmgpu.lines.command import ONE_NODE_LAUNCHERS, python_command
from slurmgpu.models.command import OPERATOR, VARIABLE
from slurmgpu.models.plan import Plan
from slurmgpu.quoting import job_path
from slurmgpu.submission.slips.command import Command, Slip

__all__ = ["expands_itself", "shell_word_slip", "typographic_slip"]

# They read such signs themselves.
_OWN_LANGUAGE = frozenset({
    "[", "Rscript", "awk", "envsubst", "expr", "find", "gawk", "grep", "egrep", "jq", "mawk", "node", "parallel",
    "perl", "rg", "ruby", "sed", "ssh", "test", "xargs",
})  # fmt: skip
_CODE = r"-[a-z]*c\Z"
_CODE_READERS = r"(?:ba|da|k|z)?sh\Z|python[\d.]*\Z"
_SIGNS = frozenset("|&;<>$*~")


# With one of these a Python program expands variables itself, or has a library that does.
_EXPANDS = r"\bexpandvars\b|\bTemplate\(|\b(?:hydra|omegaconf|jsonargparse)\b"


def shell_word_slip(
    words: tuple[str, ...], plan: Plan, in_file: bool, folder: Path | None
) -> tuple[str, str, bool] | None:
    """Message, hint, and whether it is sure that the program was not to get these words; None: they are plain."""
    program = PurePosixPath(words[0]).name
    judged = [] if program in _OWN_LANGUAGE else list(_judged(words))
    found = [word for word in judged if _sign(word)]
    if not found:
        return None
    # What Python gets it does not expand; any other program may.
    python = python_command(words) is not None or program in ONE_NODE_LAUNCHERS
    of_options = {after for before, after in pairwise(judged) if re.match(r"--?[A-Za-z][^=]*\Z", before)}
    sure = python and any(
        (re.match(OPERATOR, word) and word not in of_options)  # --sep ';' is a value
        or re.search(r"\$\([a-z]", word)  # and '(.*)$(?!x)' a pattern
        or ("$SLURM_" in word.replace("{", "") and not expands_itself(words, folder))
        for word in found
    )
    globs = [
        word for word in found if re.fullmatch(r"[\w./-]*\*[\w./*-]*", word) and not word.startswith("/")
    ]
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
    """A word as it is typed: without such quotes, and with one dash before a letter, or two before a longer name."""
    plain = re.sub(f"[{_QUOTES}]", "", word)
    return re.sub(f"\\A[{_DASHES}]-?", "-" if len(plain) == 2 else "--", plain)


def expands_itself(words: tuple[str, ...], folder: Path | None) -> bool:
    """Whether the script may expand variables in its arguments."""
    name = next((word for word in words if word.endswith(".py")), None)
    if folder is None or name is None:
        return False
    return re.search(_EXPANDS, text_of(folder / name)) is not None


def _judged(words: tuple[str, ...]) -> list[str]:
    """The words but the program, and but code that a shell or Python is to read."""
    for number, word in enumerate(words):
        if (
            word.endswith("c")
            and re.match(_CODE, word)
            and any(re.match(_CODE_READERS, PurePosixPath(before).name) for before in words[:number])
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
    """The same command, read by a shell; as many times as there were processes."""
    if words[-1] == "&" and not any(_sign(word) for word in words[1:-1]):
        plain = shlex.join(words[1 if words[0] == "nohup" else 0 : -1])
        return f"a job runs in the background by itself: {'command: ' if in_file else '-- '}{plain}"
    line = " ".join(map(_as_meant, words))
    several = world_size(plan) > 1
    if in_file:
        launch = ", and launch: srun" if several else ""
        return f"write the line under script: |, or let a shell read it: command: [bash, -c, {_yaml(line)}]{launch}"
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


def _yaml(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
