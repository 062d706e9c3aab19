"""Rules about what sbatch passes over in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmgpu.lines.slurm import SBATCH
from slurmgpu.scripts.batch_script import Passed
from slurmgpu.scripts.rules.base import Hit, Severity, rule
from slurmgpu.scripts.rules.view import View

__all__ = ["RULES"]


def _passed(view: View, *why: Passed) -> Iterator[tuple[int, str, Passed]]:
    for one in view.script.ignored:
        if one.why in why:
            yield one.line, one.text.strip(), one.why


def _option_in(text: str) -> str:
    """The long name of the first option in a line that sbatch does not read; empty where there is none."""
    match = re.search(r"\s--?([A-Za-z][\w-]*)", text)
    if not match:
        return ""
    found = SBATCH.meanings(match[1])
    return SBATCH.canonical(found[0]) if len(found) == 1 else match[1]


@rule("after-command", "error", "An option after the first command: sbatch stops reading there.", taken=True)
def after_command(view: View) -> Iterator[Hit]:
    for line, text, _ in _passed(view, "after-command"):
        yield Hit(
            line,
            f"sbatch stopped reading at line {view.script.body_start}, the first command: {text!r} is a mere comment",
            f"move it above line {view.script.body_start}",
        )


@rule(
    "indented", "error", "An indented #SBATCH line: sbatch reads only those that start the line.", taken=True
)
def indented(view: View) -> Iterator[Hit]:
    for line, text, _ in _passed(view, "indented"):
        yield Hit(
            line,
            f"{text!r} does not start in the first column, so sbatch passes over it",
            "remove the blanks before #SBATCH",
        )


@rule("misspelled", "error", "A misspelled #SBATCH: sbatch passes over it in silence.", taken=True)
def misspelled(view: View) -> Iterator[Hit]:
    for line, text, _ in _passed(view, "spelling"):
        yield Hit(
            line, f"{text.split()[0]!r} is not #SBATCH, so sbatch passes over the line", "write #SBATCH"
        )


@rule("blank-in-sbatch", "warning", "`# SBATCH` with a blank: a comment to sbatch.")
def blank_in_sbatch(view: View) -> Iterator[Hit]:
    given = {one.name for one in view.script.directives}
    for line, text, _ in _passed(view, "blank"):
        # Beside the same option in force it is an alternative that was switched off.
        severity: Severity | None = "hint" if _option_in(text) in given else None
        yield Hit(
            line,
            f"{text!r} is a comment to sbatch",
            "write #SBATCH without the blank, or ##SBATCH to switch it off plainly",
            severity,
        )


@rule("switched-off", "hint", "`##SBATCH` is a comment to sbatch.")
def switched_off(view: View) -> Iterator[Hit]:
    for line, text, _ in _passed(view, "disabled"):
        yield Hit(line, f"{text!r} is switched off", "remove the line, or one # if it is meant")


@rule("cut-by-comment", "error", "An unquoted # cuts a #SBATCH line: what follows is not read.", taken=True)
def cut_by_comment(view: View) -> Iterator[Hit]:
    for line, text, _ in _passed(view, "comment"):
        before = view.script.lines[line - 1].split(text, 1)[0]
        if before and not before[-1].isspace() and not re.match(r"#(\s|$)", text):
            yield Hit(
                line,
                f"sbatch takes {text!r} for a comment: the value ends before it",
                'put the value into double quotes: --option="a#b"',
            )
        elif re.match(r"#\s*--?[A-Za-z]", text):
            yield Hit(
                line, f"sbatch takes {text!r} for a comment", "put the option on a line of its own", "hint"
            )


@rule("rest-not-read", "error", 'The rest of a #SBATCH line is not read, after `""` or `hetjob`.', taken=True)
def rest_not_read(view: View) -> Iterator[Hit]:
    for line, text, why in _passed(view, "empty-word", "after-separator"):
        after = 'an empty word ("")' if why == "empty-word" else "hetjob"
        yield Hit(
            line,
            f"after {after} sbatch reads no further: {text!r} is lost",
            "put it on a #SBATCH line of its own",
        )


@rule(
    "value-on-next-line",
    "error",
    "An option without a value takes the first word of the next #SBATCH line for it.",
    taken=True,
)
def value_on_next_line(view: View) -> Iterator[Hit]:
    for one in view.script.directives:
        value = one.value or ""
        if not value or value in one.text.partition(one.spelling)[2]:
            continue
        alone = re.search(rf"(?:^#SBATCH\s*|\s){re.escape(one.spelling)}\s*(?:#.*|\\)?$", one.text)
        if alone and value.split()[0] not in one.text.split(one.spelling, 1)[1]:
            yield Hit(
                one.line,
                f"{one.spelling} has no value on its line, and takes {value!r} from the next one for it",
                "write the value beside it",
            )


@rule(
    "continued-line", "error", "A #SBATCH line ends in a backslash: sbatch knows no continuation.", taken=True
)
def continued_line(view: View) -> Iterator[Hit]:
    lines = view.script.lines
    for number, text in enumerate(lines[: view.script.body_start - 1], 1):
        if text.startswith("#SBATCH") and text.rstrip().endswith("\\"):
            follows = lines[number] if number < len(lines) else ""
            if not follows.startswith("#SBATCH"):
                yield Hit(
                    number,
                    f"sbatch knows no continuation: {follows.strip()!r} is not read as options",
                    "start each line with #SBATCH, without the backslash",
                )
            else:
                yield Hit(
                    number, "sbatch knows no continuation, and drops the backslash", "remove it", "hint"
                )


RULES = (
    after_command,
    indented,
    misspelled,
    blank_in_sbatch,
    switched_off,
    cut_by_comment,
    rest_not_read,
    value_on_next_line,
    continued_line,
)
