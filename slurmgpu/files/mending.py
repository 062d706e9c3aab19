"""What was meant by a slip in YAML: the mended lines, and where a misplaced key belongs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from slurmgpu.errors import nearest

__all__ = ["mended_lines", "model_in", "places_of", "yaml_slip"]

_KEY = r"(?P<indent>\s*)(?P<key>[A-Za-z_][\w.-]*)"
_SLIPS = {
    re.compile(rf"{_KEY}:(?P<value>[^\s:/].*)\Z"): "has no blank after its colon",
    re.compile(rf"{_KEY}\s*=\s*(?P<value>[^\s=].*)\Z"): "has = where YAML wants a colon",
    re.compile(rf"{_KEY}(?:[ \t]+(?P<value>[^\s:#][^:]*))?\s*\Z"): "has no colon",
}
_PAIR = re.compile(rf"{_KEY}[ ]*:[ ]+(?P<value>\S.*)\Z")
_UNSAID = "mapping values are not allowed here"


def yaml_slip(text: str, problem: str, line: int | None, context: int | None) -> tuple[int | None, str, str]:
    """The parser's complaint as line, message and next act; lines count from 0, as the parser's do."""
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
    if problem == _UNSAID or "expected ':'" in problem or "<block end>" in problem:
        found = _key_slip(lines, at, context)
        if found:
            return found
    if "sequence entries are not allowed" in problem:
        hint = "write it as [a, b], or each - on a line of its own"
        return line, "a list begins on the line of its key", hint
    hint = "`key: value` lines are expected, values with signs of YAML's own ([]{}:#,&*!|>'\"%@`) in quotes"
    return line, problem, hint


def _key_slip(lines: list[str], at: int, context: int | None) -> tuple[int, str, str] | None:
    """A colon, a blank or an indentation that is wrong, near where the parser stopped."""
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
    """A ``key: value`` line with its value in quotes."""
    pair = _PAIR.match(line)
    if not pair or pair["value"][0] in "[{":
        return line.strip() + "   # each such value in quotes"
    value = re.sub(r"\s+#.*", "", pair["value"])
    return f"{pair['indent']}{pair['key']}: {json.dumps(value, ensure_ascii=False)}"


def _write(mended: str) -> str:
    """The next act, with the mended lines below it."""
    return f"write\n{mended}"


def mended_lines(values: Mapping[tuple[str, ...], object]) -> str:
    """Values under their right keys, as the lines of a file."""
    from slurmgpu.files.job_text import job_text

    root: dict[str, Any] = {}
    for key, value in values.items():
        place = root
        for part in key[:-1]:
            place = place.setdefault(part, {})
        place[key[-1]] = value
    return _write(job_text(root).rstrip())


def places_of(model: type[BaseModel], name: str, others: Mapping[str, str]) -> tuple[str, ...] | None:
    """Where a key belongs that is valid elsewhere in the model: by its own name, or by ``others``, its other names."""
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
    """Every key of a model, those nearest to the top first."""
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
    """Whether a field holds several models: a list of them, or names of them."""
    origin = getattr(annotation, "__origin__", None)
    return origin in (tuple, list, dict) or any(
        _is_many(inner) for inner in getattr(annotation, "__args__", ()) if inner is not annotation
    )


def model_in(annotation: object) -> type[BaseModel] | None:
    """The model that a field's type holds, if it holds one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = model_in(inner)
        if found:
            return found
    return None
