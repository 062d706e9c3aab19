"""An sbatch script -> a job that asks Slurm for exactly the same; no line of the script gets lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.models.job import Job
from slurmgpu.planning.exact import component_options, exact_options
from slurmgpu.scripts.importing_body import Understood, understand
from slurmgpu.scripts.reading import Directive, Refusal, Script, read_script

__all__ = ["Imported", "import_script", "options_to_data"]

Key = tuple[str | int, ...]
Asked = list[tuple[str, str | None]]


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
    """What the person should look at."""


# Options that set the same thing in Slurm: the last one counts, so their order must stay.
_TOGETHER = (
    frozenset({"requeue", "no-requeue"}),
    frozenset({"exclusive", "oversubscribe"}),
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"cpus-per-task", "cpus-per-gpu"}),
)


def _text(value: str | None) -> Any:
    if not value:
        raise ValueError
    return value


def _number(value: str | None) -> Any:
    return (
        int(value)
        if value is not None and value.isascii() and value.isdigit() and str(int(value)) == value
        else _text(value)
    )


def _list(value: str | None) -> Any:
    return _text(value).split(",")


def _flag(value: str | None) -> Any:
    if value is not None:
        raise ValueError
    return True


def _reasons(*reasons: str) -> Callable[[str | None], Any]:
    return lambda value: list(reasons) if _flag(value) else None


_FIELDS: dict[str, tuple[Key, Callable[[str | None], Any]]] = {
    "job-name": (("name",), _text),
    "account": (("resources", "account"), _text),
    "partition": (("resources", "partition"), _text),
    "qos": (("resources", "qos"), _text),
    "reservation": (("resources", "reservation"), _text),
    "constraint": (("resources", "constraint"), _text),
    "nodes": (("resources", "nodes"), _number),
    "ntasks": (("resources", "tasks"), _number),
    "ntasks-per-node": (("resources", "tasks_per_node"), _number),
    "gpus": (("resources", "gpus"), _number),
    "gpus-per-node": (("resources", "gpus_per_node"), _number),
    "gpus-per-task": (("resources", "gpus_per_task"), _number),
    "gres": (("resources", "gres"), _list),
    "cpus-per-task": (("resources", "cpus_per_task"), _number),
    "cpus-per-gpu": (("resources", "cpus_per_gpu"), _number),
    "mem": (("resources", "memory"), _number),
    "mem-per-cpu": (("resources", "memory_per_cpu"), _number),
    "mem-per-gpu": (("resources", "memory_per_gpu"), _number),
    "exclusive": (("resources", "exclusive"), _flag),
    "time": (("resources", "time"), _number),
    "array": (("array",), _text),
    "dependency": (("dependency",), _text),
    "requeue": (("restart", "on"), _reasons("preemption", "node_failure")),
    "no-requeue": (("restart", "on"), _reasons()),
    "output": (("output",), _text),
    "error": (("error",), _text),
    "mail-type": (("mail", "type"), _list),
    "mail-user": (("mail", "user"), _text),
    "comment": (("comment",), _text),
}
"""Where an option of sbatch stands in a job file, and what its value is there."""

_ORDER = (
    "name", "exact", "resources", "components", "environment", "variables", "work_dir", "launch", "command", "array",
    "dependency", "restart", "output", "error", "mail", "comment", "sbatch", "shebang", "script",
)  # fmt: skip
_PLACEHOLDER = {"exact": True, "script": "true"}


def import_script(text: str, name: str) -> Imported:
    """Make a job of a script that sbatch takes; ``name`` is what the script is called in messages.

    InvalidInput for what is no batch script, or one that sbatch refuses for more than its first line.
    """
    script = read_script(text)
    _refuse(script, name)
    shebang, notes = _shebang(script, name)
    body = _body(script)
    if not any(line.strip() and not line.lstrip().startswith("#") for line in body):
        raise InvalidInput(
            f"{name}: has no command below its options: there is nothing to run",
            hint="write the command into the script first",
        )
    data, where = _options(script)
    _checked({**data, **_PLACEHOLDER}, script, name)
    understood = understand(shebang, "\n".join(body), data)
    before: dict[Key, tuple[str, ...]] = {}
    if understood is not None and _valid({**data, **understood.data}) is not None:
        data |= understood.data
        before = understood.comments
    else:
        understood = None
        if shebang != "/bin/bash":
            data["shebang"] = shebang
        data["script"] = "\n".join(body) + ("\n" if text.endswith("\n") else "")
    data = {key: data[key] for key in _ORDER if key in data}
    job = _checked(data, script, name)
    beside, more = _remarks(script, where)
    notes += [*more, *_unknown(script)]
    return Imported(
        job, data, (*_head(name, understood, data.get("resources", ())), *notes), before, beside, tuple(notes)
    )


def options_to_data(components: list[Asked]) -> dict[str, Any]:
    """The options of each component of a job as its file holds them, ``exact`` included; no script yet.

    Of an option that stands twice in a component the last counts.
    """
    data, _ = _place([list(dict(one).items()) for one in components])
    return data


def _head(name: str, understood: Understood | None, resources: Collection[str]) -> Iterator[str]:
    yield f"Imported from {name}: it asks Slurm for exactly what that script asks for (exact: true)."
    if understood is None:
        yield "What runs is the script's own text, as it stands."
    else:
        yield "Its lines were understood whole. Without `exact` the planner works the request out for any cluster."
        if "gres" in resources or "tasks" in resources:
            yield "(It then wants gpus_per_node in place of gres, and nodes and tasks_per_node in place of tasks.)"


# What sbatch makes of the file


_REFUSED = {
    "unmatched-quote": "a quote is not closed",
    "colon": "a colon stands where an option should",
    "bare-word": "no option begins with this word",
    "ambiguous-option": "several options begin so",
    "missing-value": "its value is missing",
    "unwanted-value": "it takes no value",
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
    if "no-shebang" in whys and not script.directives:
        raise InvalidInput(
            f"{name}: is no batch script: its first line does not begin with #!, and it has no #SBATCH lines",
            hint="begin it with #!/bin/bash; a command becomes a job without a script: slurmgpu submit -- COMMAND",
        )
    for one in script.refusals:
        if _is_fatal(one):
            reason = _REFUSED.get(one.why, "sbatch has no such option")
            raise InvalidInput(
                f"{name}:{one.line}: sbatch refuses the script: {one.text!r}: {reason}",
                hint="mend that line first",
            )


def _is_fatal(refusal: Refusal) -> bool:
    if refusal.why == "unknown-option":
        return not refusal.text.startswith("--")  # a plug-in's options are all long
    return refusal.why in _REFUSED


def _shebang(script: Script, name: str) -> tuple[str, list[str]]:
    if script.shebang is not None:
        return script.shebang[2:].strip() or "/bin/sh", []
    later = _later_shebang(script)
    if later is None:
        return "/bin/bash", [
            f"{name} does not begin with #!, and sbatch refuses it so; /bin/bash is taken here"
        ]
    return script.lines[later - 1][2:].strip(), [
        f"{name} has text before #! (line {later}), and sbatch refuses it so; here that text stands below"
    ]


def _later_shebang(script: Script) -> int | None:
    """The line of a #! that is not the first line, with nothing but comments above it."""
    if script.shebang is not None:
        return None
    lines = enumerate(script.lines[: script.body_start - 1], 1)
    return next((number for number, line in lines if line.startswith("#!")), None)


def _body(script: Script) -> list[str]:
    """Every line but the shebang and the options that sbatch reads; blank ones at its top are left out."""
    shebang = 1 if script.shebang is not None else _later_shebang(script)
    lines = [
        line
        for number, line in enumerate(script.lines, 1)
        if number != shebang and not (number < script.body_start and _is_directive(line))
    ]
    start = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    return lines[start:]


def _is_directive(line: str) -> bool:
    return line.startswith(("#SBATCH", "#SLURM"))


# Options -> fields


def _options(script: Script) -> tuple[dict[str, Any], dict[int, Key]]:
    """The job's data, and the key at which the last option of each line of the script stands."""
    found = [_last_ones(script, number) for number in range(script.components)]
    data, keys = _place([[(one.name, one.value) for one in component] for component in found])
    places: dict[int, Key] = {}
    for number, component in enumerate(found):
        for one in component:
            places[one.line] = keys[number, one.name]
    return data, places


def _last_ones(script: Script, component: int) -> list[Directive]:
    """A component's options in the order in which they count."""
    found: dict[str, Directive] = {}
    for one in script.directives:
        if one.component == component:
            found.pop(one.name, None)
            found[one.name] = one
    return list(found.values())


def _place(components: list[Asked]) -> tuple[dict[str, Any], dict[tuple[int, str], Key]]:
    data: dict[str, Any] = {"exact": True}
    keys: dict[tuple[int, str], Key] = {}
    for number, asked in enumerate(components):
        inside: Key = () if number == 0 else ("components", number - 1)
        if number:
            data.setdefault("components", []).append({})
        kept: set[str] = set()  # what stands under sbatch: it is rendered after the fields
        for name, value in asked:
            together = next((group for group in _TOGETHER if name in group), frozenset())
            key = None if kept & together else _fit(data, inside, name, value)
            if key is None:
                key = (*inside, "sbatch", name)
                kept.add(name)
                _put(data, key, _plain(value))
            keys[number, name] = key
    return data, keys


def _plain(value: str | None) -> str | int | bool:
    if value is None:
        return True
    number = _number(value) if value else value
    return number if isinstance(number, int) else value


def _fit(data: dict[str, Any], inside: Key, name: str, value: str | None) -> Key | None:
    """Put an option into the field that stands for it; None where the field would not ask for just that."""
    field, convert = _FIELDS.get(name, (None, None))
    if field is None or convert is None or (inside and field[0] != "resources"):
        return None
    key = (*inside, *field)
    if _get(data, key) is not None:
        return None
    try:
        placed = convert(value)
    except ValueError:
        return None
    attempt = json.loads(json.dumps(data))
    _put(attempt, key, placed)
    job = _valid({**attempt, **_PLACEHOLDER})
    if job is None or (name, value) not in _asked(job)[int(inside[1]) + 1 if inside else 0]:
        return None
    _put(data, key, placed)
    return key


def _put(data: Any, key: Key, value: Any) -> None:
    for part in key[:-1]:
        data = data[part] if isinstance(part, int) else data.setdefault(part, {})
    data[key[-1]] = value


def _get(data: Any, key: Key) -> Any:
    for part in key:
        if isinstance(part, int):
            data = data[part]
        elif part not in data:
            return None
        else:
            data = data[part]
    return data


def _valid(data: dict[str, Any]) -> Job | None:
    try:
        return Job.model_validate_json(json.dumps(data))
    except ValidationError:
        return None


def _asked(job: Job) -> list[Asked]:
    """What the job asks of Slurm, component by component."""
    first = [(option.name, option.value) for option in exact_options(job)]
    further = [[(option.name, option.value) for option in component_options(one)] for one in job.components]
    return [first, *further]


def _checked(data: dict[str, Any], script: Script, name: str) -> Job:
    """The job; InvalidInput where it would not ask for what the script asks for."""
    try:
        job = Job.model_validate_json(json.dumps(data))
        asked = [sorted(one, key=str) for one in _asked(job)]
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
            beside[where[one.line]] = one.text.lstrip("#").strip()
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
            yield f"line {one.line}: {one.text} is none of sbatch's own options; it is kept, as a site's plug-in may know it"
