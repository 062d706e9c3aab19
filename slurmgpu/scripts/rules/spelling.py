"""Rules about how options are written."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmgpu.lines.slurm import SBATCH
from slurmgpu.scripts.batch_script import Directive
from slurmgpu.scripts.rules.base import Hit, View, is_placeholder, rule

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
