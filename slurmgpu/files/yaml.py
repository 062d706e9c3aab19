"""Reading batch scripts and YAML 1.2 files: plain values, each with its line, and models made of them."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Set
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.files.layered import Key, Layered, Origin, dotted
from slurmgpu.files.trust import IsForeign, Trust, open_regular, opened

LARGEST_SCRIPT = 4 << 20
"""Bytes: more than sbatch takes where the site has not raised it (slurm.conf(5), max_script_size)."""

MOST_LINES = 10_000
LARGEST_FILE = 1 << 18
"""Bytes: far more than any of these files has, and as much as is read within seconds, with any content."""
# YAML 1.1 had them for newlines, and the reader makes blanks of them.
_BREAKS = ("\x85", "\u2028", "\u2029")
_DEEPEST, _MOST_ERRORS, _MOST_MERGES = 100, 20, 100
# A few lines of aliases of aliases mean more values than any memory holds.
_MOST_VALUES = 100_000
# Python writes no whole number of more than 4300 digits as text, and no larger one as a float.
_MOST_BITS = 1023
_CORE = "tag:yaml.org,2002:"
_KNOWN_TAGS = {
    f"{_CORE}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp")
}
M = TypeVar("M", bound=BaseModel)


def read_batch_script(script: Path, *, any_bytes: bool = False, trust: Trust | None = None) -> str:
    """Return a batch script's text, no line end translated; `-` is standard input.

    Args:
        any_bytes: Keep bytes that are not UTF-8 as they are (surrogateescape) instead of refusing them.
        trust: Raise IsForeign for a file that does not count by it.

    Raises:
        InvalidInput: it cannot be read, is not UTF-8, or is too large to be a batch script.
    """
    shown = "standard input" if str(script) == "-" else str(script)
    try:
        if str(script) == "-":
            data = sys.stdin.buffer.read(LARGEST_SCRIPT + 1)
        else:
            with open_regular(script) as file:
                foreign = trust and trust.foreign(script, os.fstat(file.fileno()))
                if foreign:
                    raise IsForeign(foreign)
                data = file.read(LARGEST_SCRIPT + 1)
    except FileNotFoundError:
        beside = [str(one) for one in script.parent.glob("*") if one.suffix in {script.suffix, ".slurm"}]
        hint = did_you_mean(str(script), beside) + "give the path of a batch script, or - for standard input"
        raise InvalidInput(f"{shown}: there is no such file", hint=hint) from None
    except OSError as error:
        hint = "give the path of a batch script that you may read, or - for standard input"
        raise InvalidInput(f"{shown}: {error.strerror}", hint=hint) from None
    if len(data) > LARGEST_SCRIPT:
        raise InvalidInput(
            f"{shown}: is larger than {LARGEST_SCRIPT:,} bytes, and sbatch takes no script of that size",
            hint="is it the right file? data belongs in a file of its own, which the script reads",
        )
    try:
        return refuse_too_many_lines(
            data.decode("utf-8", errors="surrogateescape" if any_bytes else "strict"), shown
        )
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{shown}: is not UTF-8 (byte {error.start + 1})", hint=to_utf8(data, script)
        ) from None


def refuse_too_many_lines(text: str, shown: str) -> str:
    """Return a script's text; InvalidInput where it has more lines than can be judged within seconds."""
    if (lines := text.count("\n")) > MOST_LINES:
        raise InvalidInput(
            f"{shown}: has {lines:,} lines, and slurmgpu reads scripts of at most {MOST_LINES:,}",
            hint="keep data and programs in files of their own, which the script reads; sbatch itself takes the script as it is",
        )
    return text


def to_utf8(data: bytes, path: Path) -> str:
    """Return how to convert a file to UTF-8, by the encoding that its first bytes show."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") or data[1:2] == b"\0" else "latin1"
    name = shlex.quote(str(path))
    return (
        f"convert it: iconv -f {encoding} -t utf-8 {name} -o {shlex.quote(f'{path.stem}-utf8{path.suffix}')}"
    )


def batch_scripts_in(folder: Path) -> list[Path]:
    """Return the batch scripts in a folder and its folders: they start with ``#!`` and have an ``#SBATCH`` line.

    Hidden files and folders, and links to folders, are left out.
    """
    paths = []
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(where, name) for name in names if not name.startswith(".")]
    return sorted(filter(_is_batch_script, paths))


def _is_batch_script(path: Path) -> bool:
    try:
        # A pipe would be waited for.
        if not path.is_file() or path.stat().st_size > LARGEST_SCRIPT:
            return False
        with path.open("rb") as file:
            if file.read(2) != b"#!":
                return False
            return re.search(rb"^\s*#\s*SBATCH\s", file.read(), re.MULTILINE | re.IGNORECASE) is not None
    except OSError:
        return False


def read_yaml(text: str, where: str) -> Layered:
    """Parse a YAML 1.2 mapping; InvalidInput names file and line of a mistake.

    YAML 1.2: ``no`` is a word and ``12:30:00`` is text, not 45000.
    """
    try:
        parsed = _parse(text, where)
    except RecursionError:
        raise InvalidInput(f"{where}: is nested too deeply to be read") from None
    return Layered(deepcopy(parsed.data), dict(parsed.origins))  # others lay their values over it


# A profile takes 50 ms, and the servers read the same files again at every request.
@lru_cache(maxsize=256)
def _parse(text: str, where: str) -> Layered:
    # Imported here: a job given by options alone needs no YAML.
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    depth = 0
    for mark in re.finditer(r"[\[{\]}]", text):
        depth += 1 if mark[0] in "[{" else -1
        if depth > _DEEPEST:  # the reader's time grows with their square
            raise InvalidInput(f"{where}: is nested too deeply to be read: {_DEEPEST} open brackets")
    if len(re.findall(r"<<[\"']?\s*:", text)) > _MOST_MERGES:  # its time grows with their square, too
        raise InvalidInput(f"{where}: has more than {_MOST_MERGES} merges (<<): write out what they bring in")
    loader = YAML(typ="rt", pure=True)
    loader.allow_duplicate_keys = False
    try:
        node = loader.load(io.StringIO(text))
    except MarkedYAMLError as error:
        from slurmgpu.files.complaints import yaml_slip

        mark, begins = error.problem_mark, error.context_mark
        line, problem, hint = yaml_slip(
            text,
            str(error.problem or error.context or "cannot be read as YAML"),
            mark.line if mark else None,
            begins.line if begins else None,
        )
        raise InvalidInput(
            f"{Origin(where, None if line is None else line + 1)}: {problem}", hint=hint
        ) from None
    except (YAMLError, ValueError) as error:
        raise InvalidInput(f"{where}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    except (AssertionError, AttributeError, LookupError, TypeError):  # ruamel's, for what it does not expect
        raise InvalidInput(
            f"{where}: cannot be read as YAML",
            hint="take out its tags (!name), and merges (<<) of a value into itself",
        ) from None
    if node is None:
        return Layered({}, {(): Origin(where)})
    _check_tag(node, Origin(where, 1))
    if not isinstance(node, CommentedMap):
        raise InvalidInput(
            f"{where}:1: holds {'a list' if isinstance(node, list) else f'the single value {node!r}'}, "
            "where `key: value` lines are expected",
            hint=_instead(node, text),
        )
    script = node.get("script")
    folded = (script[at:].lstrip() for at in getattr(script, "fold_pos", None) or ())
    if any(re.match(r"(?:cd|conda|echo|export|mkdir|module|set|source)\s|\w+=", one) for one in folded):
        raise InvalidInput(
            f"{Origin(where, node.lc.key('script')[0] + 1)}: script: > joins these lines into one, a single command to bash",
            hint="write script: | which keeps them as they are",
        )
    origins: dict[Key, Origin] = {(): Origin(where)}
    return Layered(_plain(node, (), where, origins), origins)


def _instead(node: object, text: str) -> str:
    """Return the next step where a file holds no mapping."""
    if re.search(r"^#(!|SBATCH)", text, re.MULTILINE):
        return "a batch script goes to sbatch; slurmgpu import FILE makes a job file of it"
    if isinstance(node, list):
        return "take the dashes out: a job file is `key: value` lines, such as name: first"
    glued = re.match(r"([A-Za-z_]\w*)[:=](\S.*)\Z", str(node))
    return f"write {glued[1]}: {glued[2]}" if glued else "write it as command: python train.py"


def _line(lines: Any, of: str, part: object) -> int | None:
    """Return the line of a key or an item; a key from a merge (<<) has none of its own."""
    try:
        return int(getattr(lines, of)(part)[0]) + 1
    except (KeyError, TypeError):
        return None if lines.line is None else int(lines.line) + 1


def _check_tag(node: object, origin: Origin) -> None:
    """Raise InvalidInput for a value that is marked as of another kind (!name), which nothing here reads."""
    tag = getattr(getattr(node, "tag", None), "value", None)
    if isinstance(node, bytes):
        tag = f"{_CORE}binary"
    elif isinstance(node, Set):
        tag = f"{_CORE}set"
    if tag is not None and tag not in _KNOWN_TAGS:
        shown = tag.replace(_CORE, "!!")
        raise InvalidInput(
            f"{origin}: the YAML tag {shown} means nothing here; write the value without it, or in quotes",
            hint=f"take {shown} out of that line",
        )


def _plain(node: object, key: Key, where: str, origins: dict[Key, Origin]) -> Any:
    if len(origins) > _MOST_VALUES:
        raise InvalidInput(f"{where}: has more than {_MOST_VALUES} values; use fewer aliases (*name)")
    _check_tag(node, origins[key])
    lines: object = getattr(node, "lc", None)  # ruamel's mappings and lists know their lines
    if isinstance(node, dict):
        result: dict[str, object] = {}
        for name, value in node.items():
            origin = Origin(where, _line(lines, "key", name))
            _check_tag(name, origin)
            if not isinstance(name, str):
                raise InvalidInput(
                    f"{origin}: the key {name!r} is not text; put it in quotes",
                    hint=f'write "{name}": as the key',
                )
            inside: Key = (*key, str(name))
            origins[inside] = origin
            result[str(name)] = _plain(value, inside, where, origins)
        return result
    if isinstance(node, list):
        items: list[object] = []
        for index, value in enumerate(node):
            inside = (*key, index)
            origins[inside] = Origin(where, _line(lines, "item", index))
            items.append(_plain(value, inside, where, origins))
        return items
    if isinstance(node, int) and node.bit_length() > _MOST_BITS:
        raise InvalidInput(
            f"{origins[key]}: the number is larger than anything that is counted here",
            hint="put it in quotes",
        )
    # ruamel's scalar classes keep their spelling; what follows wants the plain kinds.
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node if node is None else str(node)


def validate(model: type[M], layered: Layered, what: str, others: Mapping[str, str] = {}) -> M:
    """Make the model of plain values; InvalidInput names every wrong field with its file and line.

    Values go through JSON, where strict models still read lists as tuples and text as dates. ``others`` are names
    that people use for keys of the model (sbatch's), and the dotted keys that they mean.
    """
    _refuse_what_is_not_text(layered, layered.data, ())
    try:
        return model.model_validate_json(json.dumps(layered.data))
    except ValidationError as error:
        errors = [dict(one) for one in error.errors(include_url=False)]
    from slurmgpu.files.complaints import complaint

    message, hint = complaint(model, layered, errors[:_MOST_ERRORS], others)
    if len(errors) > _MOST_ERRORS:
        message += f"\nand {len(errors) - _MOST_ERRORS} more like these"
    raise InvalidInput(message, hint=hint or f"`slurmgpu schema {what}` describes every field")


def _refuse_what_is_not_text(layered: Layered, value: object, key: Key) -> None:
    """Raise InvalidInput for text that UTF-8 cannot hold: a word of the command line in another encoding."""
    if isinstance(value, (dict, list)):
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _refuse_what_is_not_text(layered, inner, (*key, part))
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidInput(
                f"{layered.place(key)}{dotted(key)}: {value!a} is not UTF-8",
                hint="write it in UTF-8; a terminal with another encoding needs a UTF-8 locale (locale -a lists them)",
            ) from None


def spelled(text: str, *key: str) -> list[str] | None:
    """Return the items of the list at a key as the file spells them (1e-3, not 0.001); None if unknown."""
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

    node = YAML(pure=True).compose(io.StringIO(text))
    for part in key:
        inside = node.value if isinstance(node, MappingNode) else ()
        node = next((value for name, value in inside if name.value == part), None)
    if not isinstance(node, SequenceNode):
        return None
    words = [item.value for item in node.value if isinstance(item, ScalarNode)]
    return words if len(words) == len(node.value) else None


def read_file(path: Path, trust: Trust | None = None) -> Layered:
    """Read a YAML file; InvalidInput as of `read_text`."""
    return read_yaml(read_text(path, trust), str(path))


def read_text(path: Path, trust: Trust | None = None) -> str:
    """Return a file's text; raise InvalidInput when it cannot be read.

    With ``trust``, raise IsForeign if the open file does not count by it.
    """
    try:
        with opened(path, trust or Trust()) as (file, foreign):
            if foreign is not None and trust is not None:
                raise IsForeign(foreign)
            data = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise InvalidInput(
            f"{path}: there is no such file", hint="give the path of a file that is there"
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"{path}: {error.strerror or error}", hint="give a file that you may read"
        ) from None
    return utf8(data, path)


def utf8(data: bytes, path: Path) -> str:
    """Return the text of a file, with newlines for all line ends; raise InvalidInput if it is too large or not UTF-8."""
    if len(data) > LARGEST_FILE:
        raise InvalidInput(
            f"{path}: is larger than {LARGEST_FILE:,} bytes, and no more are read",
            hint="is it the right file? data belongs in a file of its own, which the job reads",
        )
    try:
        text = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        for mark in _BREAKS:
            if mark in text:
                line = text[: text.index(mark)].count("\n") + 1
                raise InvalidInput(
                    f"{path}:{line}: holds U+{ord(mark):04X}, which some readers take for the end of a line",
                    hint="delete it; it often comes with text that was pasted from a web page",
                )
        return text
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}: is not UTF-8 (byte {error.start + 1}); save it as UTF-8", hint=to_utf8(data, path)
        ) from None
