"""Batch scripts, as somebody wrote them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.files.regular import open_regular
from slurmgpu.files.trust import IsForeign, Trust

__all__ = ["LARGEST_SCRIPT", "batch_scripts_in", "read_batch_script", "refuse_too_many_lines", "to_utf8"]

LARGEST_SCRIPT = 4 << 20
"""Bytes: more than sbatch takes where the site has not raised it (slurm.conf(5), max_script_size)."""

MOST_LINES = 10_000


def read_batch_script(script: Path, *, any_bytes: bool = False, trust: Trust | None = None) -> str:
    """A batch script's text, no line end translated; `-` is standard input.

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
            f"{shown}: is not UTF-8 (byte {error.start + 1})",
            hint=to_utf8(data, script),
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
    """Return how to convert a file to UTF-8, by what its first bytes say of its encoding."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") or data[1:2] == b"\0" else "latin1"
    name = shlex.quote(str(path))
    return (
        f"convert it: iconv -f {encoding} -t utf-8 {name} -o {shlex.quote(f'{path.stem}-utf8{path.suffix}')}"
    )


def batch_scripts_in(folder: Path) -> list[Path]:
    """The batch scripts in a folder and its folders, by path: they start with ``#!`` and have an ``#SBATCH`` line.

    Hidden files and folders, and links to folders, are left out.
    """
    return sorted(path for path in _files(folder) if _is_batch_script(path))


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(where, name) for name in names if not name.startswith("."))


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
