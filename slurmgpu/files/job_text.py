"""A job as the text of a file: YAML that a person likes to read, with comments where they help."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString, ScalarString

from slurmgpu.files.layered import Key


def job_text(
    data: Mapping[str, object],
    *,
    head: Iterable[str] = (),
    before: Mapping[Key, Iterable[str]] | None = None,
    beside: Mapping[Key, str] | None = None,
) -> str:
    """Return the YAML of a job's data; ``head`` comes above it, ``before`` above keys, ``beside`` at the end of lines."""
    root = _node(data, ())
    for key, remark in (beside or {}).items():
        holder: Any = root
        for part in key[:-1]:
            holder = holder[part]
        holder.yaml_add_eol_comment(_one_line(remark), key[-1])
    lines = _dump(root).splitlines(keepends=True)
    # ruamel would indent comments after a block into the block.
    for key, comments in (before or {}).items():
        start = next(index for index, line in enumerate(lines) if line.startswith(f"{key[0]}:"))
        lines[start:start] = [f"{line}\n" for line in comments]
    return "".join([*(f"# {_one_line(line)}\n" for line in head), *lines])


def block_text(text: str) -> str:
    """Return text of several lines as a block, where YAML can hold it so; else as it is, to be quoted."""
    if "\n" not in text or not text.strip("\n"):
        return text
    block = LiteralScalarString(text)
    read = YAML(pure=True)
    try:
        same = read.load(_dump(CommentedMap({"text": block})))["text"] == text
    except Exception:  # what ruamel cannot read back, it must not write
        return text
    return block if same else text


def _dump(node: object) -> str:
    writer = YAML(pure=True)
    writer.width = 10**6  # a folded line would be hard to read, and a shell line must not break
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    writer.dump(node, stream)
    return stream.getvalue()


def _node(value: object, key: Key) -> object:
    if isinstance(value, Mapping):
        return CommentedMap({name: _node(inner, (*key, name)) for name, inner in value.items()})
    if isinstance(value, (list, tuple)):
        items = CommentedSeq(_node(inner, (*key, index)) for index, inner in enumerate(value))
        if not any(isinstance(one, (CommentedMap, CommentedSeq)) for one in items):
            items.fa.set_flow_style()
        return items
    if isinstance(value, str) and not isinstance(value, ScalarString):
        # Older readers of YAML take 12:30:00 for a number.
        if key[-1] == "time" or (":" in value and value[:1].isdigit()):
            return DoubleQuotedScalarString(value)
        return block_text(value)
    return value


def _one_line(text: str) -> str:
    # YAML refuses control characters even in comments.
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))
