"""What is wrong with the values of a file, in its own words: line, key, value, what is valid, the next act."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from slurmgpu.errors import did_you_mean, nearest
from slurmgpu.files.layered import Key, Layered
from slurmgpu.files.mending import mended_lines, model_in, places_of

__all__ = ["complaint"]


def complaint(
    model: type[BaseModel],
    layered: Layered,
    errors: list[dict[str, object]],
    wrap: Callable[[Key], Key],
    others: Mapping[str, str],
) -> tuple[str, str | None]:
    """The message for a model's errors, one a line, and the next act where one is known."""
    misplaced = _misplaced(model, errors, others)
    problems = [_problem(model, layered, one, wrap, misplaced) for one in errors]
    hint = _mended(layered, misplaced, wrap) or next(filter(None, map(_hint, errors)), None)
    if hint is None and "sbatch" in model.model_fields and _strange(model, errors):
        name, value = _strange(model, errors)[0]
        hint = f"any other option of sbatch goes under sbatch: {{{name}: {_shown(value)}}}"
    return "\n".join(dict.fromkeys(filter(None, problems))), hint


def _misplaced(
    model: type[BaseModel],
    errors: list[dict[str, Any]],
    others: Mapping[str, str],
) -> dict[Key, tuple[str, ...]]:
    """Unknown keys that are valid elsewhere in the model, and where."""
    found: dict[Key, tuple[str, ...]] = {}
    for error in errors:
        key = _without_branches(error["loc"])
        if error["type"] != "extra_forbidden" or any(isinstance(part, int) for part in key):
            continue
        name = str(key[-1])
        slip = nearest(name, _keys_at(model, key[:-1]), cutoff=0.8)
        place = places_of(model, name, others)
        if place is not None and place != key and (not slip or (place[-1] == name and len(place) < 3)):
            found[key] = place
    return found


def _strange(model: type[BaseModel], errors: list[dict[str, Any]]) -> list[tuple[str, object]]:
    """Keys at the top or under resources that look like none of the model's."""
    return [
        (str(error["loc"][-1]).replace("_", "-"), error["input"])
        for error in errors
        if error["type"] == "extra_forbidden"
        and error["loc"][:-1] in ((), ("resources",))
        and isinstance(error["input"], (str, int))
        and not nearest(str(error["loc"][-1]), _keys_at(model, error["loc"][:-1]))
    ]


def _without_branches(location: tuple[str | int, ...]) -> Key:
    """An error's location without the tags of choices."""
    return tuple(part for part in location if not (isinstance(part, str) and _is_branch(part)))


def _mended(
    layered: Layered, misplaced: Mapping[Key, tuple[str, ...]], wrap: Callable[[Key], Key]
) -> str | None:
    """The next act for keys in the wrong place."""
    if not misplaced:
        return None
    options, values = [], {}
    for key, place in misplaced.items():
        value: Any = layered.data
        for part in key:
            value = value[part]
        origin = layered.origin(wrap(key))
        if origin is not None and origin.where.startswith("option --set"):
            options.append(f"--set {'.'.join(place)}={value}")
        else:
            values[place] = value
    return "\n".join(
        filter(
            None, ("write " + " ".join(options) if options else "", mended_lines(values) if values else "")
        )
    )


def _hint(error: Mapping[str, Any]) -> str | None:
    """The next act that a value's own check knows, or that its kind shows."""
    if _may_be_secret(error["loc"], error["input"]):
        name = _secret_named(error["input"])
        return (
            f"write secrets: [{name}]; the value comes from your environment, or from "
            f"~/.config/slurmgpu/secrets/{name} (chmod 600)"
        )
    raised = (error.get("ctx") or {}).get("error")
    hint = getattr(raised, "hint", None)
    if isinstance(hint, str):
        return hint
    if error["type"] == "model_type" and isinstance(error["input"], str):
        glued = re.match(r"([A-Za-z_]\w*)[:=](\S.*)\Z", error["input"])
        if glued:
            name = ".".join(str(part) for part in error["loc"])
            return f"a blank is missing after the colon: write\n{name}:\n  {glued[1]}: {glued[2]}"
    if error["type"] == "string_type" and isinstance(error["input"], (bool, int, float)):
        return f"write it in quotes: {error['loc'][-1]}: '{_shown(error['input'])}'"
    return None


def _may_be_secret(key: Key, value: object) -> bool:
    """Whether the value itself may stand where only its name belongs; then no message repeats it."""
    return key[:1] == ("secrets",) and not (
        isinstance(value, str) and re.fullmatch(r"[A-Za-z_-]{1,40}", value)
    )


def _secret_named(value: object) -> str:
    """The name of the variable in what was written in its place."""
    text = str(next(iter(value), "") if isinstance(value, dict) else value)
    match = re.match(r"[A-Za-z_]\w*(?==|\Z)", text)
    return match[0] if match else "HF_TOKEN"


def _problem(
    model: type[BaseModel],
    layered: Layered,
    error: Mapping[str, Any],
    wrap: Callable[[Key], Key],
    misplaced: Mapping[Key, tuple[str, ...]],
) -> str | None:
    key = _without_branches(error["loc"])
    origin = layered.origin(wrap(key))
    place_of = f"{origin}: " if origin else ""
    name = ".".join(str(part) for part in key)
    if _may_be_secret(key, error["input"]):
        return f"{place_of}secrets: a list of variable names is expected here (letters, digits and _), without their values"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if key in misplaced:
        place = misplaced[key]
        where = f"under {'.'.join(place[:-1])}:" if place[:-1] else "at the top, not indented"
        if place[:-1] == key[:-1]:
            return f"{place_of}{name}: unknown key; it is called {place[-1]} here"
        known_as = "" if place[-1] == key[-1] else f" as {place[-1]}"
        return f"{place_of}{name}: unknown key; it belongs {where}{known_as}"
    if error["input"] is None and any(belongs[: len(key)] == key for belongs in misplaced.values()):
        return None  # empty, because what belongs under it stands elsewhere
    if error["type"] == "extra_forbidden":
        return f"{place_of}{name}: {_unknown_key(model, key)}"
    if error["type"] == "missing":
        return f"{place_of}{name}: is missing"
    if error["type"] == "value_error":
        return f"{place_of}{name}: {message}" if name else f"{place_of}{message}"
    shown = _shown(error["input"])
    wanted = _WANTED.get(error["type"])
    if error["type"] == "string_type" and not isinstance(error["input"], (dict, list)):
        return f"{place_of}{name}: {shown} is no text; put it in quotes"
    return f"{place_of}{name}: {shown}: {wanted or message[:1].lower() + message[1:]}"


# In YAML's words, where Pydantic speaks of JSON's.
_WANTED = {
    "string_type": "one text is expected here",
    "tuple_type": "a list is expected here, such as [a, b]",
    "list_type": "a list is expected here, such as [a, b]",
    "dict_type": "`key: value` lines are expected here",
    "model_type": "`key: value` lines are expected here",
}


def _shown(value: object) -> str:
    """A value as YAML writes it, cut to what a message can hold."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_branch(part: str) -> bool:
    """Whether a part of an error's location is the tag of a choice (`<name>`), not a key."""
    return part.startswith("<")


def _unknown_key(model: type[BaseModel], key: Key) -> str:
    valid = _keys_at(model, key[:-1])
    return f"unknown key; {did_you_mean(str(key[-1]), valid)}valid here: {', '.join(valid)}"


def _keys_at(model: type[BaseModel], key: Key) -> list[str]:
    """The names of the fields of the model that stands at a key."""
    current: type[BaseModel] | None = model
    for part in key:
        if current is None:
            return []
        field_info = current.model_fields.get(str(part))
        if field_info is None:
            continue  # an index, or the name of an entry of a mapping: the model stays
        current = model_in(field_info.annotation)
    return list(current.model_fields) if current else []
