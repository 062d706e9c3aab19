"""Messages on mistakes in YAML files: line, key, value, the valid ones, and the next step."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from slurmgpu.errors import did_you_mean, nearest
from slurmgpu.files.layered import Key, Layered, dotted
from slurmgpu.lines.slurm import SBATCH
from slurmgpu.models.options import OWN_OPTIONS
from slurmgpu.models.train import TrainSettings

_KEY = r"(?P<indent>\s*)(?P<key>[A-Za-z_][\w.-]*)"
_SLIPS = {
    re.compile(rf"{_KEY}:(?P<value>[^\s:/].*)\Z"): "has no blank after its colon",
    re.compile(rf"{_KEY}\s*=\s*(?P<value>[^\s=].*)\Z"): "has = where YAML wants a colon",
    re.compile(rf"{_KEY}(?:[ \t]+(?P<value>[^\s:#][^:]*))?\s*\Z"): "has no colon",
}
_PAIR = re.compile(rf"{_KEY}[ ]*:[ ]+(?P<value>\S.*)\Z")
_KUBERNETES = {("resources", "limits"), ("resources", "requests")}
_GPUS = "GPUs are asked for by --gpus 1, in a file resources: {gpus: 1}, or a100:1 with a type"
# In YAML's words, where Pydantic speaks of JSON's.
_WANTED = {
    "string_type": "one text is expected here",
    "bool_type": "true or false is expected here",
    "bool_parsing": "true or false is expected here",
    "dict_type": "`key: value` lines are expected here",
    "model_type": "`key: value` lines are expected here",
}


def yaml_slip(text: str, problem: str, line: int | None, context: int | None) -> tuple[int | None, str, str]:
    """Return the parser's complaint as line, message and next step; lines count from 0, as the parser's do."""
    lines = text.splitlines()
    at = min(line if line is not None else 0, max(0, len(lines) - 1))
    here = lines[at] if lines else ""
    if "duplicate key" in problem:
        name = re.search(r'duplicate key "([^"]*)"', problem)
        said = f"the key {name[1] if name else ''!r} is there twice; keep one"
        block = re.search(r":\s*([{|>].*|#.*)?\Z", here)
        both = "make one of the two, with all that is under both"
        return line, said, both if block else "take one of the two lines out"
    if "another document" in problem:
        return line, "a second document begins here (---); keep one", "write one job a file"
    if "'\\t'" in problem:
        mended = re.sub(r"^[\t ]+", lambda found: found[0].replace("\t", "  "), here)
        return line, "a tab is where YAML wants spaces; replace it with spaces", _write(mended)
    if "cannot start any token" in problem:
        return line, f"a value cannot begin with {problem.split()[2]} in YAML", _write(_quoted(here))
    if context is not None and (
        "<stream end>" in problem or "end of stream" in problem or re.search(r"' or '[]}]'", problem)
    ):
        opened = lines[min(context, len(lines) - 1)].strip()
        what = f"a closing ], }} or quote is missing, or a comma, in what begins with {opened!r} (line {context + 1})"
        if "<stream end>" in problem:
            what = f"the text ends too early: {what}"
        return line, what, "close it, or put each value that has one of []{},:'\" in it in quotes"
    if "<stream end>" in problem:
        return line, "the text ends too early: a closing ], } or quote is missing", "close it"
    if (
        problem == "mapping values are not allowed here"
        or "expected ':'" in problem
        or "<block end>" in problem
    ):
        found = _key_slip(lines, at, context)
        if found:
            return found
    if "sequence entries are not allowed" in problem:
        hint = "write it as [a, b], or each - on a line of its own"
        return line, "a list begins on the line of its key", hint
    hint = "`key: value` lines are expected, values with signs of YAML's own ([]{}:#,&*!|>'\"%@`) in quotes"
    return line, problem, hint


def _key_slip(lines: list[str], at: int, context: int | None) -> tuple[int, str, str] | None:
    """Return a wrong colon, blank or indentation near the place where the parser stopped."""
    before = next(
        (n for n in range(at - 1, -1, -1) if lines[n].strip() and not lines[n].lstrip().startswith("#")), at
    )
    for number in dict.fromkeys((at, before, at if context is None else min(context, len(lines) - 1))):
        for pattern, what in _SLIPS.items():
            if slip := pattern.match(lines[number]):
                mended = f"{slip['indent']}{slip['key']}: {(slip['value'] or '').rstrip()}".rstrip()
                return number, f"{lines[number].strip()!r} {what}", _write(mended)
    indent, above = _indent(lines[at]), _indent(lines[before])
    pair = _PAIR.match(lines[at])
    if pair and ": " in pair["value"]:
        mended = _quoted(lines[at])
        text = pair["key"] in {"name", "comment", "command", "output", "error", "partition", "account"}
        if re.match(r"[a-z_]+: +\S", pair["value"]) and not text:
            mended = f"{pair['indent']}{pair['key']}:\n{pair['indent']}  {pair['value']}"
        if pair["key"] == "dependency":
            mended = f"{pair['indent']}dependency: {pair['value'].replace(': ', ':')}"
        return at, f"{lines[at].strip()!r} has two colons", _write(mended)
    if before != at and indent != above:
        around = next(
            (n for n in range(before - 1, -1, -1) if lines[n].strip() and _indent(lines[n]) <= indent), before
        )
        if indent > above and _indent(lines[around]) == indent and not lines[before].rstrip().endswith("}"):
            said = f"{lines[before].strip()!r} is indented less deep than the lines above and below it"
            return before, said, f"indent it by {indent} blanks, as they are"
        way = "deeper" if indent > above else "less deep"
        what = "which has a value of its own" if indent > above else "and like none above it"
        said = f"{lines[at].strip()!r} is indented {way} than the line above, {what}"
        if indent > above and lines[before].rstrip().endswith("}"):
            value = pair["value"].rstrip() if pair else ""
            inner = f"{pair['key']}: {json.dumps(value)}" if pair and ":" in value else lines[at].strip()
            return at, said, _write(f"{lines[before].rstrip()[:-1].rstrip()}, {inner}}}")
        return at, said, _write(f"{lines[before].rstrip()}\n{' ' * above}{lines[at].strip()}")
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _quoted(line: str) -> str:
    """Return a ``key: value`` line with its value in quotes."""
    pair = _PAIR.match(line)
    if not pair or pair["value"][0] in "[{":
        return line.strip() + "   # each such value in quotes"
    value = re.sub(r"\s+#.*", "", pair["value"])
    return f"{pair['indent']}{pair['key']}: {json.dumps(value, ensure_ascii=False)}"


def _write(mended: str) -> str:
    """Return the next step, with the mended lines below it."""
    return f"write\n{mended}"


def mended_lines(values: Mapping[tuple[str, ...], object]) -> str:
    """Return values under their right keys, as the lines of a file."""
    from slurmgpu.files.job_text import job_text

    root: dict[str, Any] = {}
    for key, value in values.items():
        place = root
        for part in key[:-1]:
            place = place.setdefault(part, {})
        place[key[-1]] = value
    return _write(job_text(root).rstrip())


def places_of(model: type[BaseModel], name: str, others: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the right place of a key that is valid elsewhere in the model, by its name or by ``others``."""
    known = dict.fromkeys(_all_keys(model))
    exact = next((key for key in known if key[-1] == name), None)
    other = others.get(name.replace("_", "-"))
    if other is not None:
        return exact if exact and len(exact) == 1 else tuple(other.split("."))
    names = {key[-1]: key for key in reversed(known) if key[-1] != name}
    slip = nearest(name, names, cutoff=0.8)
    near = names[slip] if slip else None
    # A name that lies deep is meant less often than one that nearly is so and lies near.
    return (
        near if exact is None or (near is not None and len(exact) > 2 and len(near) < len(exact)) else exact
    )


def _all_keys(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every key of a model, those nearest to the top first."""
    inner: list[tuple[str, type[BaseModel]]] = []
    for own, field in model.model_fields.items():
        name = field.alias or own
        yield (*above, name)
        found = model_in(field.annotation)
        if found is not None and found is not model and len(above) < 3 and not _is_many(field.annotation):
            inner.append((name, found))
    for name, found in inner:
        yield from _all_keys(found, (*above, name))


def _is_many(annotation: object) -> bool:
    """Return True if a field holds several models: a list of them, or names of them."""
    origin = getattr(annotation, "__origin__", None)
    return origin in (tuple, list, dict) or any(
        _is_many(inner) for inner in getattr(annotation, "__args__", ()) if inner is not annotation
    )


def model_in(annotation: object) -> type[BaseModel] | None:
    """Return the model that a field's type holds, if it holds one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = model_in(inner)
        if found:
            return found
    return None


def complaint(
    model: type[BaseModel], layered: Layered, errors: list[dict[str, Any]], others: Mapping[str, str]
) -> tuple[str, str | None]:
    """Return the message for a model's errors, one a line, and the next step where one is known."""
    if {"setup", "run"} <= layered.data.keys():
        said = f"{layered.place(('run',))}run: this is a task of SkyPilot's, and no job file"
        return (
            said,
            "write setup's and run's lines under script: |, and accelerators A100:4 as resources: {gpus: a100:4}",
        )
    if {"on", "jobs"} <= layered.data.keys():
        said = f"{layered.place(('jobs',))}jobs: this is a workflow of GitHub's, and no job file"
        return said, "slurmgpu jobs lists job files to copy from; slurmgpu schema job describes every key"
    misplaced = _misplaced(model, layered, errors, others)
    problems = [_problem(model, layered, one, misplaced) for one in errors]
    reshaped: dict[tuple[str, ...], object] = {}
    for one in errors if "sbatch" in model.model_fields else ():
        reshaped |= _reshaped(one["loc"], one["input"])
    hint = _mended(layered, misplaced) or (mended_lines(reshaped) if reshaped else None)
    hint = hint or next(filter(None, map(_hint, errors)), None)
    unknown = [one for one in errors if one["type"] == "extra_forbidden"]
    keys = [str(one["loc"][-1]) for one in unknown]
    of_train = any((places_of(model, key, others) or ("",))[0] == "train" for key in keys)
    untrained = any(one["type"] == "missing" and one["loc"] == ("train", "task") for one in errors)
    if untrained or (of_train and _runs_a_command(layered)):
        hint = (
            "train: is for training tasks (train.task: FILE.py:Class); a command's own options stand in the command: "
            "command: python train.py --lr 0.1, or on the command line -- python train.py --lr 0.1"
        )
    for one in errors:
        if one["loc"] == ("array",) and isinstance(one["input"], list):
            hint = f'write it as text: array: "{",".join(map(str, one["input"]))}"'
    if any(
        "gres" in f"{one['loc']} {one['msg']}" and re.search(r"\bgpu\b", str(one["input"])) for one in errors
    ):
        hint = f"{_GPUS}; gres is for other devices"
    if any(one["loc"] == ("train", "command") for one in errors):
        hint = "leave it out: train.task is what runs, and a job has a command or a training task"
    in_train = {
        str(one["loc"][1]): one["input"]
        for one in unknown
        if one["loc"][:1] == ("train",) and len(one["loc"]) == 2
    }
    own = {
        name: value for name, value in in_train.items() if not did_you_mean(name, TrainSettings.model_fields)
    }
    if own and hint is None and not TrainSettings.ABSENT.keys() & own.keys():
        values = ", ".join(f"{name}: {_shown(value)}" for name, value in own.items())
        hint = f"values of your own, which the task reads as cfg.NAME: train: {{config: {{{values}}}}}"
    if "amp" in own:
        hint = "train: {precision: bf16}, or fp16, turns it on"
    if slashed := next((key for key in keys if "/" in key), None):
        hint = f"a key within a key is written with a dot: {slashed.replace('/', '.')}"
    # Keys at the top or under resources that look like none of the model's.
    strange = (
        (str(one["loc"][-1]).replace("_", "-"), one["input"])
        for one in unknown
        if one["loc"][:-1] in ((), ("resources",))
        and isinstance(one["input"], (str, int))
        and not nearest(str(one["loc"][-1]), _keys_at(model, one["loc"][:-1]))
    )
    if hint is None and "sbatch" in model.model_fields and (first := next(strange, None)):
        name, value = first
        hint = f"any other option of sbatch goes under sbatch: {{{name}: {_shown(value)}}}"
        if name not in SBATCH.options:
            hint = f"{name} is no option of sbatch's either; `slurmgpu schema job` describes every key"
        if name in {"run", "cmd", "exec", "entrypoint"}:
            hint = (
                f"what runs goes under command: {_shown(value)}; several lines of a shell go under script: |"
            )
        if name == "accelerators":
            hint = _GPUS
    return "\n".join(dict.fromkeys(filter(None, problems))), hint


def _runs_a_command(layered: Layered) -> bool:
    """Return True if a job has a command and no training task, whose settings would be under ``train:``."""
    data = layered.data
    train = data.get("train")
    return bool(data.get("command")) and not (isinstance(train, Mapping) and train.get("task"))


def _misplaced(
    model: type[BaseModel], layered: Layered, errors: list[dict[str, Any]], others: Mapping[str, str]
) -> dict[Key, tuple[str, ...]]:
    """Return unknown keys that are valid elsewhere in the model, with their right places."""
    found: dict[Key, tuple[str, ...]] = {}
    for error in errors:
        key = _without_branches(error["loc"])
        if error["type"] != "extra_forbidden" or any(isinstance(part, int) for part in key):
            continue
        name = dotted(key) if dotted(key) in others else str(key[-1])
        place = places_of(model, name, others)
        if place is not None and place[0] == "train" and _runs_a_command(layered):
            continue
        # A key elsewhere that is merely like it is meant less often than one here.
        alike = place is not None and place[-1] != name and name.replace("_", "-") not in others
        slip = nearest(name, _keys_at(model, key[:-1]), cutoff=0.6 if alike else 0.8)
        known_as = name.replace("_", "-") in others
        meant = place is not None and (known_as or not slip or (place[-1] == name and len(place) < 3))
        if place is not None and meant and place != key and _fits(model, place, _moved(layered, key, place)):
            found[key] = place
    return found


def _fits(model: type[BaseModel], place: tuple[str, ...], value: object) -> bool:
    """Return whether a place takes this kind of value; under resources a text or number counts, whatever is wrong with it."""
    data = value
    for part in reversed(place):
        data = {part: data}
    try:
        model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        keys = [_without_branches(one["loc"]) for one in error.errors()]
        return place not in keys or (place[0] == "resources" and isinstance(value, (str, int)))
    return True


def _moved(layered: Layered, key: Key, place: tuple[str, ...]) -> Any:
    """Return the value at a key, in the form that its right place takes."""
    value: Any = layered.data
    for part in key:
        value = value[part]
    if place == ("restart", "on") and isinstance(value, bool):
        return ["preemption", "node_failure"] if value else []  # what sbatch --requeue restarts after
    if place == ("dependency",) and str(value).isdecimal():
        return f"afterok:{value}"
    return _variables(value) if place == ("variables",) else value


def _variables(value: object) -> object:
    """Return variables as a mapping of texts, from a list or mapping; anything else as it is."""
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        value = {str(one.get("name")): one.get("value", "") for one in value}  # as Kubernetes has it
    elif isinstance(value, list) and value and all("=" in str(one) for one in value):
        value = dict(str(one).split("=", 1) for one in value)
    return {name: str(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def _reshaped(key: Key, value: Any) -> dict[tuple[str, ...], object]:
    """Return the keys that a list or number in a mapping's place, or Kubernetes's limits, stand for; empty where unknown."""
    if key == ("restart",) and isinstance(value, int):
        on = ["preemption", "node_failure"]
        return {("restart", "on"): on} | ({} if isinstance(value, bool) else {("restart", "limit"): value})
    if key == ("variables",) and isinstance(pairs := _variables(value), dict):
        return {("variables",): pairs}
    if key in _KUBERNETES and isinstance(value, Mapping):
        names = {"nvidia.com/gpu": "gpus", "amd.com/gpu": "gpus", "memory": "memory", "cpu": "cpus_per_task"}
        asked = {names[one]: value[one] for one in names if one in value and str(value[one])[-1:] != "m"}
        return {
            ("resources", name): one.rstrip("i") if isinstance(one, str) else one
            for name, one in asked.items()
        }
    if key == ("steps",) and isinstance(value, list) and all(isinstance(one, dict) for one in value):
        called = {"run": "command", "cmd": "command"}
        rest = [{called.get(name, name): one[name] for name in one if name != "name"} for one in value]
        named = [str(one.get("name", f"step{at}")) for at, one in enumerate(value, 1)]
        return {("steps",): dict(zip(named, rest, strict=True))}
    found: dict[tuple[str, ...], object] = {}
    for one in value if key == ("sbatch",) and isinstance(value, list) else ():
        name, _, text = re.sub(r"[ =]+", "=", str(one).lstrip("-"), count=1).partition("=")
        name = SBATCH.letters.get(name, name)
        place = tuple(OWN_OPTIONS[name].split(".")) if name in OWN_OPTIONS else ("sbatch", name)
        found[place] = int(text) if text.isdigit() else text or True
    return found


def _without_branches(location: tuple[str | int, ...]) -> Key:
    """Return an error's location without the tags of choices (`<name>`), which are no keys."""
    return tuple(part for part in location if not (isinstance(part, str) and part.startswith("<")))


def _mended(layered: Layered, misplaced: Mapping[Key, tuple[str, ...]]) -> str:
    """Return the next step for keys in the wrong place; empty without any."""
    options, values = [], {}
    for key, place in misplaced.items():
        value = _moved(layered, key, place)
        origin = layered.origin(key)
        if origin is not None and origin.where.startswith("option --set"):
            options.append(f"--set {dotted(place)}={value}")
        else:
            values[place] = value
    lines = [f"write {' '.join(options)}"] if options else []
    return "\n".join([*lines, mended_lines(values)] if values else lines)


def _hint(error: Mapping[str, Any]) -> str | None:
    """Return the next step that a value's own check knows, or that its kind shows."""
    if _may_be_secret(error["loc"], error["input"]):
        if error["loc"][:1] == ("notify",):
            return (
                "write notify: SLACK_WEBHOOK, the name of a secret; the address comes from your environment, or from "
                "~/.config/slurmgpu/secrets/SLACK_WEBHOOK (chmod 600)"
            )
        # The name of the variable in the text that was written in its place.
        value = error["input"]
        text = str(next(iter(value), "") if isinstance(value, dict) else value)
        match = re.match(r"[A-Za-z_]\w*(?==|\Z)", text)
        name = match[0] if match else "HF_TOKEN"
        return (
            f"write secrets: [{name}]; the value comes from your environment, or from "
            f"~/.config/slurmgpu/secrets/{name} (chmod 600)"
        )
    raised = (error.get("ctx") or {}).get("error")
    hint = getattr(raised, "hint", None)
    if isinstance(hint, str):
        return hint
    if error["type"] == "extra_forbidden" and error["input"] is None:
        glued = re.fullmatch(r"([A-Za-z_]\w*):(\S+)", str(error["loc"][-1]))
        return f"a blank is missing after the colon: {glued[1]}: {glued[2]}" if glued else None
    if error["type"] == "model_type" and isinstance(error["input"], str):
        meant = {("mail",): "user", ("train",): "task"}.get(error["loc"])
        if meant is not None:
            more = ", type: [END, FAIL]" if meant == "user" else ""
            return f"write {error['loc'][0]}: {{{meant}: {error['input']!r}{more}}}"
        glued = re.match(r"([A-Za-z_]\w*)[:=](\S.*)\Z", error["input"])
        if glued:
            return f"a blank is missing after the colon: write\n{dotted(error['loc'])}:\n  {glued[1]}: {glued[2]}"
    named_well = bool(error["loc"]) and re.fullmatch(r"[A-Za-z_]\w*", str(error["loc"][-1]))
    if error["type"] == "string_type" and isinstance(error["input"], (bool, int, float)) and named_well:
        return f"write it in quotes: {error['loc'][-1]}: '{_shown(error['input'])}'"
    return None


def _may_be_secret(key: Key, value: object) -> bool:
    """Return True if a secret's value may be where only its name belongs; then no message repeats it."""
    if key[:1] == ("notify",):
        return "://" in str(value)
    return key[:1] == ("secrets",) and not (
        isinstance(value, str) and re.fullmatch(r"[A-Za-z_-]{1,40}", value)
    )


def _problem(
    model: type[BaseModel],
    layered: Layered,
    error: Mapping[str, Any],
    misplaced: Mapping[Key, tuple[str, ...]],
) -> str | None:
    key = _without_branches(error["loc"])
    if (
        key not in misplaced
        and error["input"] is None
        and any(one[: len(key)] == key for one in misplaced.values())
    ):
        return None  # empty, because what belongs under it is elsewhere
    if _may_be_secret(key, error["input"]) and key[:1] == ("notify",):
        said = "notify: the name of a secret is expected here, not the webhook's address"
    elif _may_be_secret(key, error["input"]):
        said = (
            "secrets: a list of variable names is expected here (letters, digits and _), without their values"
        )
    else:
        said = _said(model, error, key, misplaced.get(key))
        said = f"{dotted(key)}: {said}" if key else said
    return f"{layered.place(key)}{said}"


def _said(model: type[BaseModel], error: Mapping[str, Any], key: Key, belongs: tuple[str, ...] | None) -> str:
    """Return the mistake at a key, without its place and name; ``belongs``: where it would be valid."""
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if belongs is not None:
        if belongs[:-1] == key[:-1]:
            return f"unknown key; it is called {belongs[-1]} here"
        where = f"under {dotted(belongs[:-1])}:" if belongs[:-1] else "at the top, not indented"
        known_as = "" if belongs[-1] == key[-1] else f" as {belongs[-1]}"
        return f"unknown key; it belongs {where}{known_as}"
    if key in _KUBERNETES:
        return "this is Kubernetes's; gpus, memory and cpus_per_task stand under resources themselves"
    if error["type"] == "extra_forbidden":
        absent = getattr(_model_at(model, key[:-1]), "ABSENT", {}).get(key[-1])
        if absent is not None:
            return f"there is no such setting: {absent}"
        valid = _keys_at(model, key[:-1])
        return f"unknown key; {did_you_mean(str(key[-1]), valid)}valid here: {', '.join(valid)}"
    if error["type"] == "missing":
        return "is missing"
    shown = _shown(error["input"])
    if error["type"] == "value_error":
        return f"{shown}: {message}" if message.startswith("must be ") else str(message)
    if error["type"] == "string_type" and not isinstance(error["input"], (dict, list)):
        return f"{shown} is not text; put it in quotes"
    if error["type"] in {"tuple_type", "list_type"}:
        one = error["input"] if isinstance(error["input"], str) else "a, b"
        return f"{shown}: a list is expected here, such as [{one}]"
    wanted = _WANTED.get(error["type"]) or message[:1].lower() + message[1:]
    if error["type"] == "model_type" and (keys := _keys_at(model, key)):
        wanted += f", with the keys {', '.join(keys)}"
    return f"{shown}: {wanted}"


def _shown(value: object) -> str:
    """Return a value as YAML writes it, cut to the length of a message."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _model_at(model: type[BaseModel], key: Key) -> type[BaseModel] | None:
    """Return the model at a key."""
    current: type[BaseModel] | None = model
    for part in key:
        # An index, or the name of an entry of a mapping, is not a field: the model stays.
        own = {} if current is None else current.model_fields
        fields = {field.alias or name: field for name, field in own.items()}
        if str(part) in fields:
            current = model_in(fields[str(part)].annotation)
    return current


def _keys_at(model: type[BaseModel], key: Key) -> list[str]:
    """Return the names of the fields of the model at a key."""
    current = _model_at(model, key)
    return [field.alias or name for name, field in current.model_fields.items()] if current else []
