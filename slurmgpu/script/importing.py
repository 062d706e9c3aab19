"""An sbatch script -> a job that asks Slurm for exactly the same; no line of the script gets lost."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from slurmgpu.errors import InvalidInput, PlanError, nearest
from slurmgpu.lines.slurm import SBATCH
from slurmgpu.models.job import Job
from slurmgpu.script.batch_script import Directive, Refusal, Script, parse_batch_script
from slurmgpu.script.importing_body import Kept, understand
from slurmgpu.script.importing_command import PLACEHOLDER, Key, asked_of, place, valid

__all__ = ["Imported", "import_script"]


class Imported(NamedTuple):
    """A job made of a script, as data for a file, and what a reader of the file should know."""

    job: Job
    data: dict[str, Any]
    """The job as its file holds it."""
    head: tuple[str, ...]
    """Comments above it."""
    before: dict[Key, tuple[str, ...]]
    """Comments above a key."""
    beside: dict[Key, str]
    """Comments at the end of a key's line."""
    notes: tuple[str, ...]
    """Remarks that the user should look at."""
    lines: dict[Key, int]
    """The script's line of each key that stands for an option."""


_AS_IT_STANDS = Kept(None, "it is to stay as it is")
_ORDER = (
    "name", "exact", "resources", "components", "environment", "variables", "work_dir", "launch", "command", "array",
    "dependency", "restart", "output", "error", "mail", "comment", "sbatch", "shebang", "script",
)  # fmt: skip


def import_script(text: str, name: str, *, verbatim: bool = False) -> Imported:
    """Make a job of a script that sbatch takes; ``name`` is what the script is called in messages.

    ``verbatim`` keeps what runs as the script's own text, also where it would be understood.
    InvalidInput for what is not a batch script, or one that sbatch refuses for more than its first line.
    """
    script = parse_batch_script(text)
    _refuse(script, name)
    shebang, notes = _shebang(script, name)
    numbers, body = _body(script)
    if not any(line.strip() and not line.lstrip().startswith("#") for line in body):
        raise InvalidInput(
            f"{name}: has no command below its options: there is nothing to run",
            hint="write the command into the script first",
        )
    data, where, lines = _options(script)
    _checked({**data, **PLACEHOLDER}, script, name)
    found = _AS_IT_STANDS if verbatim else understand(shebang, "\n".join(body), data)
    if not isinstance(found, Kept) and valid({**data, **found.data}) is None:
        found = Kept(None, "a job file takes no such job")
    before: dict[Key, tuple[str, ...]] = {}
    if not isinstance(found, Kept):
        data |= found.data
        before = found.comments
    else:
        # A second first line is a comment to sbatch, and one under `script:` would be taken for a forgotten shebang.
        if shebang != "/bin/bash" or next(iter(body), "").startswith("#!"):
            data["shebang"] = shebang
        data["script"] = "\n".join(body) + ("\n" if text.endswith("\n") else "")
    data = {key: data[key] for key in _ORDER if key in data}
    job = _checked(data, script, name)
    beside, more = _remarks(script, where)
    notes += [*more, *_unknown(script)]
    if isinstance(found, Kept) and not verbatim:
        notes.append(_kept(found, numbers, body))
    return Imported(
        job,
        data,
        (*_head(name.rpartition("/")[2], not isinstance(found, Kept), data.get("resources", ())), *notes),
        before,
        beside,
        tuple(notes),
        lines,
    )


def _kept(found: Kept, numbers: list[int], body: list[str]) -> str:
    """Return which line is the reason that the job has a script and no command."""
    if found.line is None:
        return f"the script's lines stay text (script:): {found.why}"
    text = body[found.line - 1].strip()
    return f"line {numbers[found.line - 1]}: {_shortened(text)!r} keeps the lines text (script:): {found.why}"


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _head(name: str, understood: bool, resources: Collection[str]) -> Iterator[str]:
    yield f"Imported from {name}: it asks Slurm for exactly what that script asks for (exact: true)."
    if not understood:
        yield "What runs is the script's own text, as it is."
    else:
        yield "Its lines were understood whole. Without `exact` the planner works the request out for any cluster."
        if "gres" in resources or "tasks" in resources:
            yield "(It then wants gpus_per_node in place of gres, and nodes and tasks_per_node in place of tasks.)"
        yield "Its processes find RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, and OMP_NUM_THREADS and"
        yield "SRUN_CPUS_PER_TASK where CPUs are asked for, whether the script set them or not."


# What sbatch makes of the file


_REFUSED = {
    "unmatched-quote": "a quote is not closed",
    "colon": "a colon is where an option should be",
    "bare-word": "no option begins with this word",
    "ambiguous-option": "several options begin so",
    "missing-value": "its value is missing",
    "unwanted-value": "it takes no value",
}


# What to do with a file of another kind, by the end of its name.
_OTHER_KINDS = {
    "": "begin it with #!/bin/bash; a command becomes a job without a script: slurmgpu submit -- COMMAND",
    "py": "a Python script needs no batch script: slurmgpu submit --gpus 1 -- python FILE",
    "yaml": "a job file is one already: slurmgpu plan FILE says what becomes of it",
    "yml": "a job file is one already: slurmgpu plan FILE says what becomes of it",
    "ipynb": "make a script of the notebook: jupyter nbconvert --to script FILE",
}


def _refuse(script: Script, name: str) -> None:
    """InvalidInput for what no job file could make good."""
    whys = {one.why for one in script.refusals}
    if "empty" in whys:
        raise InvalidInput(f"{name}: is empty", hint="give a batch script")
    if "crlf" in whys:
        raise InvalidInput(
            f"{name}: has DOS line ends (CRLF), and sbatch refuses it",
            hint=f"mend it first: sed -i 's/\\r$//' {name}",
        )
    if "nul" in whys:
        raise InvalidInput(f"{name}: holds NUL bytes, and sbatch refuses it", hint="give a text file")
    if script.text.startswith("\ufeff"):
        raise InvalidInput(
            f"{name}: begins with a byte order mark before its #!, and sbatch refuses it",
            hint=f"mend it first: sed -i '1s/^\\xEF\\xBB\\xBF//' {name}",
        )
    fence = re.search(r"(?m)^[ \t]*```.*$", script.text)
    if fence and ("no-shebang" in whys or not re.search(r"(?m)^\s*[^#\s]", script.text[: fence.start()])):
        line = script.text.count("\n", 0, fence.start()) + 1
        raise InvalidInput(
            f"{name}:{line}: {fence[0].strip()} is Markdown's, and no line of a script",
            hint="take such lines out, and all that is not the script, so that it begins with #!/bin/bash",
        )
    if "no-shebang" in whys and not script.directives:
        raise InvalidInput(
            f"{name}: is not a batch script: its first line does not begin with #!, and it has no #SBATCH lines",
            hint=_OTHER_KINDS.get(name.rpartition(".")[2], _OTHER_KINDS[""]).replace("FILE", name),
        )
    for one in script.refusals:
        if _is_fatal(one):
            reason = _REFUSED.get(one.why, "sbatch has no such option")
            raise InvalidInput(
                f"{name}:{one.line}: sbatch refuses the script: {one.text!r}: {reason}",
                hint=_mended(script, one) or "mend that line first",
            )


def _mended(script: Script, refusal: Refusal) -> str:
    """Return how a refused word was most likely meant; empty where nothing is likely."""
    line, word = script.lines[refusal.line - 1], refusal.text
    if re.match("-?[\u2010-\u2015\u2212]", word):
        plain = re.sub("\\A[-\u2010-\u2015\u2212]+", "--", word)
        return f"type the dashes anew, for one is a word processor's: #SBATCH {plain}"
    if (glued := re.match(r"--([a-z-]+):(.+)", word)) and SBATCH.meanings(glued[1]):
        return f"a value comes behind =: #SBATCH --{glued[1]}={glued[2]}"
    if refusal.why == "bare-word":
        before = next((one for one in script.on_line.get(refusal.line, ()) if one.value), None)
        if before is not None and re.match(r"[KMGT]i?B?\Z|AM\Z|PM\Z", word, re.IGNORECASE):
            return f"a value has no blanks: #SBATCH --{before.name}={before.value}{word}"
        return (
            f"write it with two dashes: #SBATCH --{word}" if SBATCH.meanings(word.partition("=")[0]) else ""
        )
    long = re.search(r"\s-([a-z][a-z-]+)(=\S*)?", line)
    if refusal.why == "unknown-option" and long and (meant := SBATCH.meanings(long[1])):
        return f"a long name takes two dashes: #SBATCH --{meant[0]}{long[2] or ''}"
    return ""


def _is_fatal(refusal: Refusal) -> bool:
    if refusal.why == "unknown-option":
        return not re.match(r"--[A-Za-z][\w-]*(?:=|\Z)", refusal.text)  # a plug-in's options are all long
    return refusal.why in _REFUSED


def _shebang(script: Script, name: str) -> tuple[str, list[str]]:
    if script.shebang is not None:
        return script.shebang[2:].strip() or "/bin/sh", []
    later = _later_shebang(script)
    if later is None:
        return "/bin/bash", [
            f"{name} does not begin with #!, and sbatch refuses that; /bin/bash is taken here"
        ]
    return script.lines[later - 1][2:].strip(), [
        f"{name} has text before #! (line {later}), and sbatch refuses that; here that text comes below"
    ]


def _later_shebang(script: Script) -> int | None:
    """Return the line of a #! that is not the first line, with nothing but comments above it."""
    if script.shebang is not None:
        return None
    lines = enumerate(script.lines[: script.body_start - 1], 1)
    return next((number for number, line in lines if line.startswith("#!")), None)


def _body(script: Script) -> tuple[list[int], list[str]]:
    """Every line but the shebang and the options that sbatch reads, with its number; blank ones at the top are left out."""
    shebang = 1 if script.shebang is not None else _later_shebang(script)
    lines = [
        (number, line)
        for number, line in enumerate(script.lines, 1)
        if number != shebang and not (number < script.body_start and _is_directive(line))
    ]
    start = next((index for index, (_, line) in enumerate(lines) if line.strip()), len(lines))
    return [number for number, _ in lines[start:]], [line for _, line in lines[start:]]


def _is_directive(line: str) -> bool:
    return line.startswith(("#SBATCH", "#SLURM"))


# Options -> fields


def _options(script: Script) -> tuple[dict[str, Any], dict[int, Key], dict[Key, int]]:
    """Return the job's data; the key of the last option of each line of the script; and each key's line."""
    found = [_last_ones(script, number) for number in range(script.components)]
    data, keys = place([[(one.name, one.value) for one in component] for component in found])
    places: dict[int, Key] = {}
    for number, component in enumerate(found):
        for one in component:
            places[one.line] = keys[number, one.name]
    lines = {keys[number, one.name]: one.line for number, component in enumerate(found) for one in component}
    return data, places, lines


def _last_ones(script: Script, component: int) -> list[Directive]:
    """Return a component's options in the order in which they count."""
    found: dict[str, Directive] = {}
    for one in script.directives:
        if one.component == component:
            found.pop(one.name, None)
            found[one.name] = one
    return list(found.values())


def _checked(data: dict[str, object], script: Script, name: str) -> Job:
    """Return the job; InvalidInput where it would not ask for what the script asks for."""
    try:
        job = Job.model_validate_json(json.dumps(data))
        asked = [sorted(one, key=str) for one in asked_of(job)]
    except (ValidationError, PlanError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.message
        raise InvalidInput(
            f"{name}: {said.removeprefix('Value error, ')}", hint="mend the script first"
        ) from None
    wanted = [
        sorted(((one.name, one.value) for one in _last_ones(script, number)), key=str)
        for number in range(script.components)
    ]
    assert asked == wanted, (asked, wanted)
    return job


# What a reader of the file should know


def _remarks(script: Script, where: dict[int, Key]) -> tuple[dict[Key, str], list[str]]:
    """Comments at the end of lines, and notes: what is cut off, said twice, or says nothing."""
    beside: dict[Key, str] = {}
    notes: list[str] = []
    for one in script.ignored:
        if one.why == "comment" and one.line in where:
            beside[where[one.line]] = one.text.strip()
            if not script.lines[one.line - 1].removesuffix(one.text)[-1:].isspace():
                notes.append(
                    f"line {one.line}: sbatch reads up to the #: {one.text.strip()!r} is a comment to it"
                )
        elif one.why in {"comment", "empty-word", "after-separator"}:
            notes.append(f"line {one.line}: sbatch passes over {one.text.strip()!r}")
    head = list(enumerate(script.lines[: script.body_start - 1], 1))
    for number, line in head:
        if line.startswith(("#PBS", "#BSUB")):
            notes.append(f"line {number}: sbatch reads {line!r}, too; it stays where it is")
    said = (
        {one.line for one in script.directives}
        | set(script.separators)
        | {one.line for one in script.ignored}
    )
    for number, line in head:
        if _is_directive(line) and number not in said:
            notes.append(f"line {number}: {line!r} has no option of its own")
    return beside, notes + list(_duplicates(script))


def _duplicates(script: Script) -> Iterator[str]:
    for component in range(script.components):
        last = {one.name: one for one in _last_ones(script, component)}
        for one in script.directives:
            if one.component == component and one is not last[one.name]:
                final = last[one.name]
                value = "" if one.value is None else f"={one.value}"
                yield f"line {one.line}: --{one.name}{value} does not count, because line {final.line} says it again"


def _unknown(script: Script) -> Iterator[str]:
    for one in script.refusals:
        if one.why == "unknown-option":
            near = nearest(one.text.lstrip("-").partition("=")[0], SBATCH.options)
            guess = f"; did you mean --{near}?" if near else ""
            yield (
                f"line {one.line}: {one.text} is not one of sbatch's own options; it is kept, as a site's plug-in may know "
                f"it{guess}"
            )
