"""Rules about what sbatch reads and what it passes over."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from slurmgpu.scripts.options import NEWEST, OLDEST, OPTIONS, abbreviated, canonical
from slurmgpu.scripts.reading import Directive, Passed, Refused
from slurmgpu.scripts.rules.base import Hit, Severity, rule
from slurmgpu.scripts.rules.view import View, is_placeholder

__all__ = ["RULES"]

_SRUN_ONLY = {
    *("cpu-bind", "cpu_bind", "kill-on-bad-exit", "label", "mpi", "multi-prog", "overlap", "unbuffered", "het-group"),
    *("pack-group", "exact", "pty", "jobid", "accel-bind", "relative", "task-prolog", "task-epilog", "preserve-env"),
}  # fmt: skip
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_UNUSUAL = re.compile(
    rf"(?:^#SBATCH|\s)[{_DASHES}]|[\u00a0\u2007\u202f\u200b\ufeff]|=[\u201c\u201d\u2018\u2019]"
)


def _passed(view: View, *why: Passed) -> Iterator[tuple[int, str, Passed]]:
    for one in view.script.ignored:
        if one.why in why:
            yield one.line, one.text.strip(), one.why


def _refused(view: View, *why: Refused) -> Iterator[tuple[int, str, Refused]]:
    for one in view.script.refusals:
        if one.why in why:
            yield one.line, one.text.strip(), one.why


def _option_in(text: str) -> str:
    """The long name of the first option in a line that sbatch does not read; empty where there is none."""
    match = re.search(r"\s--?([A-Za-z][\w-]*)", text)
    if not match:
        return ""
    found = abbreviated(match[1])
    return canonical(found[0]) if len(found) == 1 else match[1]


@rule("after-command", "error", "An option after the first command: sbatch stops reading there.")
def after_command(view: View) -> Iterator[Hit]:
    for line, text, _ in _passed(view, "after-command"):
        yield Hit(
            line,
            f"sbatch stopped reading at line {view.script.body_start}, the first command: {text!r} is a mere comment",
            f"move it above line {view.script.body_start}",
        )


@rule("indented", "error", "An indented #SBATCH line: sbatch reads only those that start the line.")
def indented(view: View) -> Iterator[Hit]:
    for line, text, _ in _passed(view, "indented"):
        yield Hit(
            line,
            f"{text!r} does not start in the first column, so sbatch passes over it",
            "remove the blanks before #SBATCH",
        )


@rule("misspelled", "error", "A misspelled #SBATCH: sbatch passes over it in silence.")
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


@rule("cut-by-comment", "error", "An unquoted # cuts a #SBATCH line: what follows is not read.")
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


@rule("rest-not-read", "error", 'The rest of a #SBATCH line is not read, after `""` or `hetjob`.')
def rest_not_read(view: View) -> Iterator[Hit]:
    for line, text, why in _passed(view, "empty-word", "after-separator"):
        after = 'an empty word ("")' if why == "empty-word" else "hetjob"
        yield Hit(
            line,
            f"after {after} sbatch reads no further: {text!r} is lost",
            "put it on a #SBATCH line of its own",
        )


@rule("no-shebang", "error", "The first line is not `#!` with an interpreter: sbatch refuses the script.")
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
        if _UNUSUAL.search(view.script.lines[line - 1]) or _blank_after_equals(view, line):
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
                and one.name in OPTIONS
                and OPTIONS[one.name].takes == "optional"
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
            and OPTIONS[one.name].takes == "required"
            and one.value in {"=", ""}
            and _blank_after_equals(view, one.line)
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
        elif near := difflib.get_close_matches(name.replace("_", "-").lower(), OPTIONS, n=1, cutoff=0.8):
            yield Hit(line, f"sbatch has no option --{name}", f"did you mean --{near[0]}?", "error")
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
            f"--{name} can mean {', '.join('--' + one for one in abbreviated(name))}",
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


@rule(
    "value-on-next-line",
    "error",
    "An option without a value takes the first word of the next #SBATCH line for it.",
)
def value_on_next_line(view: View) -> Iterator[Hit]:
    for one in view.script.directives:
        value = one.value or ""
        alone = re.search(rf"(?:^#SBATCH\s*|\s){re.escape(one.spelling)}\s*(?:#.*|\\)?$", one.text)
        if value and alone and value.split()[0] not in one.text.split(one.spelling, 1)[1]:
            yield Hit(
                one.line,
                f"{one.spelling} has no value on its line, and takes {value!r} from the next one for it",
                "write the value beside it",
            )


@rule("unusual-character", "error", "A typographic dash, quote or no-break space, pasted from a web page.")
def unusual_character(view: View) -> Iterator[Hit]:
    for number, text in enumerate(view.script.lines[: view.script.body_start - 1], 1):
        options = text.split("#", 2)
        if text.startswith("#SBATCH") and _UNUSUAL.search("#" + options[1]):
            found = _UNUSUAL.search("#" + options[1])
            assert found is not None
            yield Hit(
                number,
                f"{found[0].strip() or found[0]!a} is no plain character: sbatch takes it for a part of the word",
                "type the dashes, quotes and blanks anew",
            )


@rule("continued-line", "error", "A #SBATCH line ends in a backslash: sbatch knows no continuation.")
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


@rule("several-on-a-line", "hint", "Several options on one #SBATCH line.")
def several_on_a_line(view: View) -> Iterator[Hit]:
    for number in sorted({one.line for one in view.script.directives}):
        names = [one.spelling for one in view.script.directives if one.line == number]
        if len(names) > 1:
            yield Hit(
                number,
                f"{len(names)} options stand on this line",
                "give each a line of its own, which is easier to change",
            )


@rule("duplicate-option", "warning", "An option stands there twice: the last one counts.")
def duplicate_option(view: View) -> Iterator[Hit]:
    for component in range(view.script.components):
        last: dict[str, Directive] = {}
        for one in view.script.directives:
            if one.component != component:
                continue
            earlier = last.get(one.name)
            if earlier is not None:
                same = earlier.value == one.value
                said = f"--{one.name} stands at line {earlier.line} already"
                counts = (
                    "with the same value" if same else f"and this one counts: {earlier.value!r} is forgotten"
                )
                yield Hit(
                    one.line, f"{said}, {counts}", f"remove line {earlier.line}", "hint" if same else None
                )
            last[one.name] = one


@rule("abbreviated-option", "hint", "An abbreviated option: another release may have two that begin so.")
def abbreviated_option(view: View) -> Iterator[Hit]:
    for one in view.script.directives:
        word = one.spelling.lstrip("-")
        if not one.spelling.startswith("--") or word in OPTIONS or not one.known:
            continue
        clear = all(len(abbreviated(word, release)) == 1 for release in (OLDEST, NEWEST))
        if not clear:
            yield Hit(
                one.line,
                f"{one.spelling} can mean several options in some releases of Slurm, which then refuse it",
                f"write --{one.name}",
                "warning",
            )
        else:
            yield Hit(one.line, f"{one.spelling} is short for --{one.name}", f"write --{one.name}")


@rule(
    "equals-after-letter",
    "error",
    "`-p=gpu`: a letter takes its value without `=`, which becomes a part of it.",
)
def equals_after_letter(view: View) -> Iterator[Hit]:
    for one in view.script.directives:
        if (
            not one.spelling.startswith("--")
            and (one.value or "").startswith("=")
            and f"{one.spelling}=" in one.text
        ):
            value = (one.value or "")[1:]
            yield Hit(
                one.line,
                f"the value is {one.value!r}, with the =",
                f"write {one.spelling} {value} or --{one.name}={value}",
            )


@rule("single-dash", "error", "`-time=10`: with one dash this is the letter t with the value `ime=10`.")
def single_dash(view: View) -> Iterator[Hit]:
    for one in view.script.directives:
        if one.spelling.startswith("--") or not one.value:
            continue
        word = one.spelling[1:] + one.value.partition("=")[0]
        if len(word) > 3 and f"-{word}" in one.text and word in OPTIONS:
            yield Hit(
                one.line, f"-{word} is read as {one.spelling} with the value {one.value!r}", f"write --{word}"
            )


@rule(
    "variable-in-directive",
    "error",
    "A shell variable, command or ~ in a #SBATCH line: Slurm expands none of them.",
)
def variable_in_directive(view: View) -> Iterator[Hit]:
    for one in view.script.directives:
        value = one.value or ""
        if one.name in {"comment", "wrap", "extra"} or is_placeholder(value):
            continue
        found = re.search(r"\$\w+|\$[{(].*|`.*`", value)
        if found:
            known = {
                "USER": "%u",
                "SLURM_JOB_ID": "%j",
                "SLURM_JOBID": "%j",
                "SLURM_JOB_NAME": "%x",
                "SLURM_ARRAY_TASK_ID": "%a",
            }
            pattern = known.get(re.sub(r"[${}]", "", found[0]).split("/")[0])
            is_log = one.name in {"output", "error", "input"}
            fix = (
                f"write {pattern}"
                if pattern and is_log
                else "write the value out, or give the option on the command line: sbatch --"
                + one.name
                + "=..."
            )
            yield Hit(one.line, f"sbatch expands no variables: {found[0]!r} stays as it is", fix)
        elif one.name in {"output", "error", "input", "chdir"} and value.startswith("~"):
            yield Hit(
                one.line,
                f"sbatch does not expand ~: {value!r} is a folder of that name",
                "write the path out",
            )


@rule("placeholder", "warning", "A value that still waits to be filled in.")
def placeholder(view: View) -> Iterator[Hit]:
    for one in view.script.directives:
        if one.value and is_placeholder(one.value):
            yield Hit(one.line, f"--{one.name} still has the placeholder {one.value!r}", "fill it in")


@rule("pbs-lines", "hint", "#PBS or #BSUB lines: sbatch reads those, too, and translates some.")
def pbs_lines(view: View) -> Iterator[Hit]:
    for number, text in enumerate(view.script.lines[: view.script.body_start - 1], 1):
        if re.match(r"#(PBS|BSUB)\s+-", text) and "ignore-pbs" not in view.asked.options:
            yield Hit(
                number,
                "sbatch reads #PBS and #BSUB lines and translates what it can",
                "remove them, or add #SBATCH --ignore-pbs",
            )
            return


@rule("old-name", "hint", "An old name: packjob, --pack-group, --cpu_bind, #SLURM.")
def old_name(view: View) -> Iterator[Hit]:
    for number in view.script.separators:
        if "packjob" in view.script.lines[number - 1]:
            yield Hit(
                number, "packjob is the old name, and Slurm says that it will go", "write #SBATCH hetjob"
            )
    for number, text in enumerate(view.script.lines[: view.script.body_start - 1], 1):
        if text.startswith("#SLURM"):
            yield Hit(number, "#SLURM is the old spelling, and sbatch complains of it", "write #SBATCH")
    for call in view.calls:
        for old, new in (("pack-group", "het-group"), ("cpu_bind", "cpu-bind")):
            if call.srun is not None and old in call.srun and not call.nested:
                yield Hit(call.line, f"srun --{old} is an old spelling", f"write --{new}")
        if call.srun is not None and "mem_bind" in call.srun and not call.nested:
            yield Hit(call.line, "srun has no --mem_bind", "write --mem-bind", "error")


@rule("never-submitted", "error", "--test-only in the script: the job is never submitted.")
def never_submitted(view: View) -> Iterator[Hit]:
    if "test-only" in view.asked.options:
        yield Hit(
            view.asked.line("test-only"),
            "with --test-only sbatch only tells when the job would start, and submits nothing",
            "remove it, and call sbatch --test-only SCRIPT instead",
        )


RULES = (
    after_command, indented, misspelled, blank_in_sbatch, switched_off, cut_by_comment, rest_not_read, no_shebang, crlf,
    open_quote, stray_word, blank_at_equals, unknown_option, ambiguous_option, value_missing, value_on_next_line,
    unusual_character, continued_line, several_on_a_line, duplicate_option, abbreviated_option, equals_after_letter,
    single_dash, variable_in_directive, placeholder, pbs_lines, old_name, never_submitted,
)  # fmt: skip
