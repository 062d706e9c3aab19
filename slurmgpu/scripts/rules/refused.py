"""Rules about what makes sbatch refuse a script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmgpu.errors import nearest
from slurmgpu.lines.slurm import SBATCH
from slurmgpu.scripts.batch_script import Refused
from slurmgpu.scripts.rules.base import Hit, rule
from slurmgpu.scripts.rules.view import View

__all__ = ["RULES"]

_SRUN_ONLY = {
    *("cpu-bind", "cpu_bind", "kill-on-bad-exit", "label", "mpi", "multi-prog", "overlap", "unbuffered", "het-group"),
    *("pack-group", "exact", "pty", "jobid", "accel-bind", "relative", "task-prolog", "task-epilog", "preserve-env"),
}  # fmt: skip
# An empty value is none to these (seen on 22.05).
_MAY_BE_EMPTY = {
    *(
        "array",
        "comment",
        "constraint",
        "dependency",
        "exclude",
        "export",
        "gpus",
        "job-name",
        "nodelist",
        "output",
    ),
}
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_UNUSUAL = rf"(?:^#SBATCH|\s)-?[{_DASHES}]|[\u00a0\u2007\u202f\u200b\ufeff]|=[\u201c\u201d\u2018\u2019]"


def _refused(view: View, *why: Refused) -> Iterator[tuple[int, str, Refused]]:
    for one in view.script.refusals:
        if one.why in why:
            yield one.line, one.text.strip(), one.why


@rule(
    "no-shebang",
    "error",
    "The first line is not `#!` with an interpreter: sbatch refuses the script.",
    judged_before=True,
)
def no_shebang(view: View) -> Iterator[Hit]:
    for line, text, _ in _refused(view, "no-shebang", "empty"):
        later = next(
            (
                number
                for number, one in enumerate(view.script.lines, 1)
                if one.lstrip("\ufeff").startswith("#!")
            ),
            None,
        )
        where = f"move line {later} to the top" if later and later > 1 else "start the file with #!/bin/bash"
        if text.startswith("\ufeff"):
            where = "save the file without a byte order mark"
        yield Hit(line, "sbatch refuses a script whose first line does not start with #!", where)


@rule("crlf", "error", "Line ends of Windows: sbatch refuses the script.")
def crlf(view: View) -> Iterator[Hit]:
    for line, _, why in _refused(view, "crlf", "nul"):
        if why == "crlf":
            yield Hit(
                line,
                "the lines end as on Windows (CR LF), which sbatch refuses",
                "dos2unix SCRIPT, or sed -i 's/\\r$//' SCRIPT",
            )
        else:
            yield Hit(
                line, "there is a NUL byte here, which sbatch refuses", "save the file as plain UTF-8 text"
            )


@rule("open-quote", "error", "A quote that is not closed in a #SBATCH line: sbatch refuses the script.")
def open_quote(view: View) -> Iterator[Hit]:
    for line, text, _ in _refused(view, "unmatched-quote"):
        yield Hit(line, f"the quote in {text!r} is not closed", "close it, or write \\' for an apostrophe")


@rule("stray-word", "error", "A word that belongs to no option: sbatch refuses the script.")
def stray_word(view: View) -> Iterator[Hit]:
    for line, text, why in _refused(view, "bare-word", "colon"):
        if re.search(_UNUSUAL, view.script.lines[line - 1]) or _blank_after_equals(view, line):
            continue  # the rules for these say more
        if why == "colon":
            yield Hit(
                line,
                "sbatch refuses a word that starts with a colon",
                "separate the components of a heterogeneous job by `#SBATCH hetjob`",
            )
            continue
        flag = next(
            (
                one
                for one in view.script.directives
                if one.line == line
                and one.value is None
                and one.name in SBATCH.options
                and SBATCH.options[one.name].takes == "optional"
            ),
            None,
        )
        fix = f"write --{flag.name}={text}" if flag else "remove it, or quote the value that it belongs to"
        yield Hit(line, f"{text!r} belongs to no option", fix)


def _blank_after_equals(view: View, line: int) -> bool:
    return re.search(r"\s--[\w-]+\s*=\s|\s--[\w-]+\s+=", view.script.lines[line - 1] + " ") is not None


@rule("blank-at-equals", "error", "A blank beside `=` parts an option from its value.")
def blank_at_equals(view: View) -> Iterator[Hit]:
    for one in view.script.directives:
        if (
            one.known
            and SBATCH.options[one.name].takes == "required"
            and one.value in {"=", ""}
            and _blank_after_equals(view, one.line)
            and not (
                one.name in _MAY_BE_EMPTY
                and view.script.lines[one.line - 1].rstrip().endswith(one.spelling + "=")
            )
        ):
            yield Hit(
                one.line,
                f"the blank parts {one.spelling} from its value",
                f"write {one.spelling}=VALUE without blanks",
            )


@rule(
    "unknown-option",
    "hint",
    "An option that sbatch does not have: an error if it is a mistake, fine if a plug-in of the site has it.",
)
def unknown_option(view: View) -> Iterator[Hit]:
    for line, text, _ in _refused(view, "unknown-option"):
        if re.search(_UNUSUAL, view.script.lines[line - 1]):
            continue
        name = text.lstrip("-").partition("=")[0]
        if name in _SRUN_ONLY or (name == "l" and text == "-l"):
            yield Hit(
                line,
                f"{text.partition('=')[0]} is an option of srun, not of sbatch",
                "move it to the srun line",
                "error",
            )
        elif len(name) == 1:
            yield Hit(line, f"sbatch has no option {text}", "write the long option", "error")
        elif near := nearest(name.replace("_", "-").lower(), SBATCH.options, cutoff=0.8):
            yield Hit(line, f"sbatch has no option --{name}", f"did you mean --{near}?", "error")
        else:
            yield Hit(
                line,
                f"--{name} is no option of sbatch itself: it is refused where no plug-in of the site brings it",
                "remove it unless your site documents it",
            )


@rule(
    "ambiguous-option", "error", "An abbreviation that several options begin with: sbatch refuses the script."
)
def ambiguous_option(view: View) -> Iterator[Hit]:
    for line, text, _ in _refused(view, "ambiguous-option"):
        name = text.lstrip("-").partition("=")[0]
        yield Hit(
            line,
            f"--{name} can mean {', '.join('--' + one for one in SBATCH.meanings(name))}",
            "write the option out",
        )


@rule(
    "value-missing", "error", "An option without the value that it needs, or with one that it does not take."
)
def value_missing(view: View) -> Iterator[Hit]:
    for line, text, why in _refused(view, "missing-value", "unwanted-value"):
        if why == "missing-value":
            yield Hit(
                line,
                f"{text} needs a value",
                f"write {text}=VALUE" if text.startswith("--") else f"write {text} VALUE",
            )
        else:
            yield Hit(
                line, f"{text.partition('=')[0]} takes no value", f"write {text.partition('=')[0]} alone"
            )
    for one in view.script.directives:
        if one.name == "requeue" and one.value is not None:
            yield Hit(one.line, "--requeue takes no value before Slurm 26.05", "write --requeue alone")


@rule("unusual-character", "error", "A typographic dash, quote or no-break space, pasted from a web page.")
def unusual_character(view: View) -> Iterator[Hit]:
    for number, text in enumerate(view.script.lines[: view.script.body_start - 1], 1):
        options = text.split("#", 2)
        if text.startswith("#SBATCH") and not text.isascii() and re.search(_UNUSUAL, "#" + options[1]):
            found = re.search(_UNUSUAL, "#" + options[1])
            assert found is not None
            yield Hit(
                number,
                f"{found[0].strip() or found[0]!a} is no plain character: sbatch takes it for a part of the word",
                "type the dashes, quotes and blanks anew",
            )


RULES = (
    no_shebang,
    crlf,
    open_quote,
    stray_word,
    blank_at_equals,
    unknown_option,
    ambiguous_option,
    value_missing,
    unusual_character,
)
