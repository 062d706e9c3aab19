"""Logs as they grow: several files, line by line."""

from __future__ import annotations

from pathlib import Path

from slurmgpu.monitoring.following import GrowingLogs
from slurmgpu.monitoring.log_files import Log


def follow(*paths: Path) -> tuple[GrowingLogs, list[str]]:
    """Logs that are followed, and what they have written so far."""
    logs = GrowingLogs(several=len(paths) > 1)
    for path, stream in zip(paths, ("stdout", "stderr"), strict=False):
        logs.add(Log("7", path, stream))
    return logs, []


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_one_log_comes_as_it_is_half_lines_included(tmp_path: Path) -> None:
    logs, written = follow(tmp_path / "log")
    for piece in (b"50 %", b"\r100 %\n"):
        add(tmp_path / "log", piece)
        logs.pass_on(written.append)
    assert written == ["50 %", "\r100 %\n"]


def test_lines_of_several_logs_are_never_torn(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    logs, written = follow(out, err)
    add(out, b"half a ")
    add(err, b"whole\n")
    logs.pass_on(written.append)
    add(out, b"line\nno newline")
    logs.pass_on(written.append)
    logs.pass_on(written.append, last=True)
    heads = [
        f"==> job 7, {(path.name == 'out' and 'stdout') or 'stderr'}: {path} <==\n" for path in (out, err)
    ]
    assert written == [heads[1], "whole\n", heads[0], "half a line\n", "no newline"]


def test_a_letter_that_is_written_in_two_pieces_is_one_letter(tmp_path: Path) -> None:
    logs, written = follow(tmp_path / "log")
    for piece in ("ü".encode()[:1], "ü".encode()[1:]):
        add(tmp_path / "log", piece)
        logs.pass_on(written.append)
    assert "".join(written) == "ü"


def test_a_header_begins_a_line_of_its_own(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    logs, written = follow(out, err)
    add(out, b"no newline")
    logs.end(Log("7", out))
    logs.pass_on(written.append)
    add(err, b"whole\n")
    logs.pass_on(written.append)
    assert f"\n==> job 7, stderr: {err} <==\n" in written
    add(out, b"late\n")
    logs.pass_on(written.append)
    assert "late\n" not in "".join(written)
