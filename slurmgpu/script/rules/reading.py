"""Rules about how sbatch reads a script, and how its options are written."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmgpu.errors import nearest
from slurmgpu.lines.slurm import SBATCH
from slurmgpu.script.batch_script import SHELLS, Directive, Passed, Refused
from slurmgpu.script.rules.base import Hit, View, is_placeholder, rule


def _passed(view: View, *why: Passed) -> Iterator[tuple[int, str, Passed]]:
    # A script that writes scripts and submits them has their #SBATCH lines in its own text.
    writes_others = not view.script.directives and re.search(r"\bsbatch\b", view.body) is not None
    for one in view.script.ignored if not writes_others else ():
        if one.why in why:
            yield one.line, one.text.strip(), one.why


_EXCLUSIVE = ({"mem", "mem-per-cpu", "mem-per-gpu"}, {"gres", "gpus", "gpus-per-node", "gpus-per-task"})


def _option_in(text: str) -> str:
    """Return the long name of the first option in a line that sbatch does not read; empty where there is none."""
    match = re.search(r"\s--?([A-Za-z][\w-]*)", text)
    if not match:
        return ""
    found = SBATCH.meanings(SBATCH.letters.get(match[1], match[1]))
    return SBATCH.canonical(found[0]) if len(found) == 1 else match[1]


@rule("error")
def after_command(view: View) -> Iterator[Hit]:
    """An option after the first command: sbatch stops reading there."""
    for line, text, _ in _passed(view, "after-command"):
        if not re.match(r"#SBATCH\s+-", text) or re.search(r'(?m)^\s*sbatch "?\$\{?[a-z_]', view.body):
            continue  # prose; or what is left in a script that writes and submits others
        yield Hit(
            line,
            f"sbatch stopped reading at line {view.script.body_start}, the first command: {text!r} is a mere comment",
            f"move it above line {view.script.body_start}",
        )


@rule("error", taken=True)
def indented(view: View) -> Iterator[Hit]:
    """An indented #SBATCH line: sbatch reads only those that start the line."""
    for line, text, _ in _passed(view, "indented"):
        yield Hit(
            line,
            f"{text!r} does not start in the first column, so sbatch passes over it",
            "remove the blanks before #SBATCH",
        )


@rule("error", taken=True)
def misspelled(view: View) -> Iterator[Hit]:
    """A misspelled #SBATCH: sbatch passes over it in silence."""
    given = {one.name for one in view.script.directives}
    for line, text, _ in _passed(view, "spelling"):
        said = f"{text.split()[0]!r} is not #SBATCH, so sbatch passes over the line"
        yield Hit(line, said, "write #SBATCH", "hint" if _option_in(text) in given else None)


@rule("warning")
def blank_in_sbatch(view: View) -> Iterator[Hit]:
    """`# SBATCH` with a blank: a comment to sbatch."""
    given = {one.name for one in view.script.directives}
    # Where one of them could not stand without the blank, or has a remark, all are meant to be off.
    all_off = any(re.search(r"<[\w -]+>|\s--(?:pty|wrap)\b|\s#", one) for _, one, _ in _passed(view, "blank"))
    for line, text, _ in _passed(view, "blank"):
        # Beside the same option in force, or one that excludes it, it is an alternative that was switched off.
        name = _option_in(text)
        off = name in given or any(name in group and group & given for group in _EXCLUSIVE) or " if " in text
        yield Hit(
            line,
            f"{text!r} is a comment to sbatch",
            "write #SBATCH without the blank, or ##SBATCH to switch it off plainly",
            "hint" if off or all_off else None,
        )


@rule("error", taken=True)
def cut_by_comment(view: View) -> Iterator[Hit]:
    """An unquoted # cuts a #SBATCH line: what follows is not read."""
    for line, text, _ in _passed(view, "comment"):
        before = view.script.lines[line - 1].split(text, 1)[0]
        whole = re.search(r"=\s*[\d:-]+[kKmMgGtT]?[bB]?\Z", before)  # a number or a time has no # in it
        if before and not before[-1].isspace() and not re.match(r"#+(\s|$)", text) and not whole:
            yield Hit(
                line,
                f"sbatch takes {text!r} for a comment: the value ends before it",
                'put the value into double quotes: --option="a#b"',
            )
        elif re.match(r"#\s*--?[A-Za-z]", text):
            yield Hit(
                line, f"sbatch takes {text!r} for a comment", "put the option on a line of its own", "hint"
            )


@rule("error", taken=True)
def rest_not_read(view: View) -> Iterator[Hit]:
    """The rest of a #SBATCH line is not read, after `""` or `hetjob`."""
    for line, text, why in _passed(view, "empty-word", "after-separator"):
        after = 'an empty word ("")' if why == "empty-word" else "hetjob"
        yield Hit(
            line,
            f"after {after} sbatch reads no further: {text!r} is lost",
            "put it on a #SBATCH line of its own",
        )


@rule("error", taken=True)
def value_on_next_line(view: View) -> Iterator[Hit]:
    """An option without a value takes the first word of the next #SBATCH line for it."""
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
                None if value.startswith("-") else "hint",
            )


@rule("error", taken=True)
def continued_line(view: View) -> Iterator[Hit]:
    """A #SBATCH line ends in a backslash: sbatch knows no continuation."""
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


_SRUN_ONLY = {
    *("cpu-bind", "cpu_bind", "kill-on-bad-exit", "label", "mpi", "multi-prog", "overlap", "unbuffered", "het-group"),
    *("pack-group", "exact", "pty", "jobid", "accel-bind", "relative", "task-prolog", "task-epilog", "preserve-env"),
}  # fmt: skip
# An empty value is none to these (seen on 22.05).
_MAY_BE_EMPTY = {
    "array", "comment", "constraint", "dependency", "exclude", "export", "gpus", "job-name", "licenses", "mail-user",
    "nodelist", "output", "reservation",
}  # fmt: skip
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_UNUSUAL = rf"(?:^#SBATCH|\s)-?[{_DASHES}]|[\u00a0\u2007\u202f\u200b\ufeff]|=[\u201c\u201d\u2018\u2019]"


def _refused(view: View, *why: Refused) -> Iterator[tuple[int, str, Refused]]:
    for one in view.script.refusals:
        if one.why in why:
            yield one.line, one.text.strip(), one.why


@rule("error", judged_before=True)
def no_shebang(view: View) -> Iterator[Hit]:
    """The first line is not `#!` with an interpreter: sbatch refuses the script."""
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


@rule("error", judged_before=True, taken=True)
def bad_shebang(view: View) -> Iterator[Hit]:
    """The interpreter of the first line is no path, or none that is there: sbatch takes the script, and the job fails."""
    words = (view.script.shebang or "#!").removeprefix("#!").split()
    if not words or is_placeholder(words[0]) or "$" in words[0] or "{" in words[0]:
        return
    fails = "sbatch takes the script, and the job fails when it starts"
    path, *rest = words
    name = path.rsplit("/", 1)[-1]
    if not path.startswith("/"):
        right = f"#!/bin/{name}" if name in SHELLS else f"#!/usr/bin/env {name}"
        yield Hit(1, f"#!{path} is no path, and nobody looks on PATH for it: {fails}", f"write {right}")
    elif name == "env" and len(rest) > 1 and not rest[0].startswith(("-", "_")) and "=" not in rest[0]:
        said = " ".join(rest)
        yield Hit(
            1,
            f"Linux hands env all behind it as one word, so that it looks for a program called {said!r}: {fails}",
            f"write #!/bin/{said}" if rest[0] in SHELLS else f"write #!/usr/bin/env -S {said}",
        )
    elif view.facts.paths.get(path) == "missing":
        yield Hit(
            1,
            f"there is no {path} on this machine, and where there is none on the nodes the job fails when it starts",
            "write the path that `command -v` prints on a node; or #!/bin/bash, if bash can read it",
            "hint" if name in {"zsh", "csh", "tcsh", "ksh"} else "warning",
        )


@rule("error")
def crlf(view: View) -> Iterator[Hit]:
    """Line ends of Windows: sbatch refuses the script."""
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


@rule("error")
def open_quote(view: View) -> Iterator[Hit]:
    """A quote that is not closed in a #SBATCH line: sbatch refuses the script."""
    for line, text, _ in _refused(view, "unmatched-quote"):
        yield Hit(line, f"the quote in {text!r} is not closed", "close it, or write \\' for an apostrophe")


_UNIT = r"(?i:[kmgt]i?b?)"


@rule("error")
def stray_word(view: View) -> Iterator[Hit]:
    """A word that belongs to no option: sbatch refuses the script."""
    for line, text, why in _refused(view, "bare-word", "colon"):
        whole = view.script.lines[line - 1]
        if re.search(_UNUSUAL, whole) or _blank_after_equals(view, line) or re.search(r"\{\{ .*\}\}", whole):
            continue  # the rules for these say more, and a template's blanks go
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
                and f"{one.spelling} {text}" in view.script.lines[line - 1]
                and one.name in SBATCH.options
                and SBATCH.options[one.name].takes == "optional"
            ),
            None,
        )
        unit = re.search(rf"(--[\w-]+=\d+) {re.escape(text)}\s*\Z", view.script.lines[line - 1])
        fix = f"write --{flag.name}={text}" if flag else "remove it, or quote the value that it belongs to"
        fix = f"write {unit[1]}{text}, without the blank" if unit and re.fullmatch(_UNIT, text) else fix
        yield Hit(line, f"{text!r} belongs to no option", fix)


def _blank_after_equals(view: View, line: int) -> bool:
    return re.search(r"\s--[\w-]+\s*=\s|\s--[\w-]+\s+=", view.script.lines[line - 1] + " ") is not None


@rule("error")
def blank_at_equals(view: View) -> Iterator[Hit]:
    """A blank beside `=` parts an option from its value."""
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
            empty = view.script.lines[one.line - 1].rstrip().endswith(one.spelling + "=")
            yield Hit(
                one.line,
                f"{one.spelling}= has an empty value"
                if empty
                else f"the blank parts {one.spelling} from its value",
                f"write a value, or leave {one.spelling} out"
                if empty
                else f"write {one.spelling}=VALUE without blanks",
            )


@rule("hint")
def unknown_option(view: View) -> Iterator[Hit]:
    """An option that sbatch does not have: an error if it is a mistake, fine if a plug-in of the site has it."""
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
                f"--{name} is not an option of sbatch itself: it is refused where no plug-in of the site brings it",
                "remove it unless your site documents it",
                "error" if re.search(r"[:@]", name) else None,  # no plug-in's name has these
            )


@rule("error")
def ambiguous_option(view: View) -> Iterator[Hit]:
    """An abbreviation that several options begin with: sbatch refuses the script."""
    for line, text, _ in _refused(view, "ambiguous-option"):
        name = text.lstrip("-").partition("=")[0]
        yield Hit(
            line,
            f"--{name} can mean {', '.join('--' + one for one in SBATCH.meanings(name))}",
            "write the option out",
        )


@rule("error")
def value_missing(view: View) -> Iterator[Hit]:
    """An option without the value that it needs, or with one that it does not take."""
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


@rule("error")
def unusual_character(view: View) -> Iterator[Hit]:
    """A typographic dash, quote or no-break space, pasted from a web page."""
    for number, text in enumerate(view.script.lines[: view.script.body_start - 1], 1):
        options = text.split("#", 2)
        if text.startswith("#SBATCH") and not text.isascii() and re.search(_UNUSUAL, "#" + options[1]):
            found = re.search(_UNUSUAL, "#" + options[1])
            assert found is not None
            yield Hit(
                number,
                f"{found[0].strip() or found[0]!a} is not a plain character: sbatch takes it for a part of the word",
                "type the dashes, quotes and blanks anew",
            )


# A variable, or a command of those that people put there: other $() may stand in a name on purpose.
_COMMANDS = (
    "basename|cat|date|dirname|echo|expr|git|hostname|mktemp|nproc|printf|pwd|realpath|seq|uuidgen|wc|whoami"
)
_EXPANDABLE = rf"\$\w+|\$\{{[^}}]*\}}|\$\(\(.*|\$\(\s*(?:{_COMMANDS})\b.*|`\s*(?:{_COMMANDS})\b.*"


@rule("warning")
def duplicate_option(view: View) -> Iterator[Hit]:
    """An option is given twice: the last one counts."""
    for component in range(view.script.components):
        last: dict[str, Directive] = {}
        for one in view.script.directives:
            if one.component != component:
                continue
            earlier = last.get(one.name)
            if earlier is not None:
                same = earlier.value == one.value
                said = f"--{one.name} is already at line {earlier.line}"
                counts = (
                    "with the same value" if same else f"and this one counts: {earlier.value!r} is forgotten"
                )
                fix = f"remove line {earlier.line}"
                if one.name == "mail-type" and not same:
                    counts = f"and from Slurm 25.05 this one counts alone; earlier releases mail {earlier.value!r}, too"
                    fix = f"write them in one: --mail-type={earlier.value},{one.value}"
                fuller = set((earlier.value or "-").split(",")) <= set((one.value or "").split(","))
                no_all = {"ALL"}.isdisjoint(f"{earlier.value},{one.value}".upper().split(","))
                mild = same or fuller or one.name == "mail-type" or (one.name == "export" and no_all)
                yield Hit(one.line, f"{said}, {counts}", fix, "hint" if mild else None)
            last[one.name] = one


@rule("error", taken=True)
def equals_after_letter(view: View) -> Iterator[Hit]:
    """`-p=gpu`: a letter takes its value without `=`, which becomes a part of it."""
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


@rule("error")
def single_dash(view: View) -> Iterator[Hit]:
    """`-time=10`: with one dash this is the letter t with the value `ime=10`."""
    for one in view.script.directives:
        if one.spelling.startswith("--") or not one.value:
            continue
        word = one.spelling[1:] + one.value.partition("=")[0]
        if len(word) > 3 and f"-{word}" in one.text and word in SBATCH.options:
            yield Hit(
                one.line, f"-{word} is read as {one.spelling} with the value {one.value!r}", f"write --{word}"
            )


@rule("error", taken=True)
def variable_in_directive(view: View) -> Iterator[Hit]:
    """A shell variable, command or ~ in a #SBATCH line: Slurm expands none of them."""
    for one in view.script.directives:
        value = one.value or ""
        # Pyxis writes container options into a shell function, which expands them (enroot_create_start_config).
        if one.name in {"comment", "wrap", "extra", "container-mounts"} or is_placeholder(value):
            continue
        found = re.search(_EXPANDABLE, value) if "$" in value or "`" in value else None
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


@rule("warning")
def placeholder(view: View) -> Iterator[Hit]:
    """A value that still waits to be filled in."""
    for one in view.script.directives:
        if one.value and is_placeholder(one.value) and "@" not in one.value and one.name != "job-name":
            yield Hit(one.line, f"--{one.name} still has the placeholder {one.value!r}", "fill it in")


# The letters that sbatch has a translation for (22.05); it refuses the script for any other.
_TRANSLATED = {"PBS": "aAcCehIjJklmMNopqrStuvVWz", "BSUB": "ceJmMnoqWx"}


@rule("hint")
def pbs_lines(view: View) -> Iterator[Hit]:
    """#PBS or #BSUB lines: sbatch reads those, too, wherever they are, and translates some."""
    if "ignore-pbs" in view.asked.options:
        return
    found: list[int] = []
    for number, text in enumerate(view.script.lines, 1):
        if not text.startswith(("#PBS", "#BSUB")):
            continue
        match = re.match(r"#(PBS|BSUB)\s*(?:-([A-Za-z])|(\S+))", text)
        if match is None:
            continue
        if match[2] and match[2] in _TRANSLATED[match[1]]:
            found.append(number)
            continue
        word = f"-{match[2]}" if match[2] else match[3]
        yield Hit(
            number,
            f"sbatch reads #{match[1]} lines, and refuses the script for {word!r}",
            "remove the line, or add #SBATCH --ignore-pbs",
            "error",
        )
    if found:
        lines = f"line{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"
        yield Hit(
            found[0],
            f"sbatch reads #PBS and #BSUB lines as well ({lines}), and translates what it can",
            "remove them, or add #SBATCH --ignore-pbs",
        )


@rule("error")
def never_submitted(view: View) -> Iterator[Hit]:
    """--test-only in the script: the job is never submitted."""
    if "test-only" in view.asked.options:
        yield Hit(
            view.asked.line("test-only"),
            "with --test-only sbatch only tells when the job would start, and submits nothing",
            "remove it, and call sbatch --test-only SCRIPT instead",
        )
