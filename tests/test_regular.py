"""Files that others may have put there: a pipe or a file without an end holds up no command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmgpu.files.trust import for_somebody_else, read_regular, staying_below, text_of


def test_a_file_of_a_bounded_size_is_read_and_nothing_else(tmp_path: Path) -> None:
    whole, pipe, sparse = tmp_path / "whole", tmp_path / "pipe", tmp_path / "sparse"
    whole.write_bytes(b"twelve bytes")
    os.mkfifo(pipe)
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    assert (read_regular(whole), text_of(whole)) == (b"twelve bytes", "twelve bytes")
    for path in (pipe, sparse, Path("/dev/zero"), tmp_path, tmp_path / "gone"):
        with pytest.raises(OSError, match=r"larger than|not a file|No such file"):
            read_regular(path)
        assert text_of(path) == ""
    with pytest.raises(OSError, match="larger than 11 bytes"):
        read_regular(whole, most=11)


def test_a_file_below_a_folder_is_read_where_no_link_leads_out_of_it_or_to_what_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "below"
    (below / ".venv").mkdir(parents=True)
    for path in (tmp_path / "outside", below / "own", below / ".venv" / "hidden"):
        path.write_text("text")
    for name, target in {"in": "own", "out": "../outside", "hid": ".venv/hidden", "up": ".."}.items():
        (below / name).symlink_to(target)
    monkeypatch.chdir(below)
    with staying_below(Path()):
        for path in ("own", "in", str(below / "own")):
            assert read_regular(Path(path)) == b"text"
        elsewhere = ("../below/../outside", str(below / "out"), str(tmp_path / "outside"))
        for path in ("out", "hid", ".venv/hidden", "up/outside", *elsewhere):
            with pytest.raises(PermissionError, match="a link out of"):
                read_regular(Path(path))
    assert read_regular(Path("out")) == b"text"


def test_no_file_is_shown_to_somebody_else_by_way_of_another_users_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, logs = tmp_path / "secret", tmp_path / "logs"
    secret.write_text("text")
    logs.symlink_to(tmp_path)
    assert read_regular(logs / "secret") == b"text"
    with for_somebody_else():
        assert read_regular(logs / "secret") == b"text"  # one's own link
        monkeypatch.setattr("slurmgpu.files.trust._owner", lambda _: "belongs to mallory")
        with pytest.raises(PermissionError, match="somebody else's link"):
            read_regular(logs / "secret")
        assert read_regular(secret) == b"text"


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--gpus", "1", "--", "python", "pipe.py"],
        ["plan", "--gpus", "1", "--", "python", "sparse.py"],
        ["plan", "--gpus", "2", "--", "torchrun", "imports.py"],
        ["plan", "sparse.sh"],
        ["check", "pipe.py"],
        ["check", "pipe.sh"],
        ["import", "pipe.sh"],
        ["checkpoint", "list", "run"],
    ],
    ids=" ".join,
)
def test_a_command_comes_to_an_end_beside_a_pipe_or_a_file_without_one(
    tmp_path: Path, words: list[str]
) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step-1"
    checkpoint.mkdir(parents=True)
    for pipe in (tmp_path / "pipe.py", tmp_path / "pipe.sh", checkpoint / "manifest.json"):
        os.mkfifo(pipe)
    for name in ("sparse.py", "sparse.sh"):
        with (tmp_path / name).open("wb") as file:
            file.write(b"#!/bin/bash\n#SBATCH --gpus=1\n")
            file.truncate(1 << 36)
    (tmp_path / "imports.py").write_text("import pipe\n")
    (tmp_path / "run" / "run.json").write_text("{}")
    command = [sys.executable, "-m", "slurmgpu", *words]
    home = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=100)
    assert "Traceback" not in done.stderr
    assert done.stdout + done.stderr


def test_what_a_log_would_do_to_a_terminal_is_spelled_out_in_a_pipe_and_kept_in_a_file(
    tmp_path: Path,
) -> None:
    code = "from slurmgpu.cli.waiting import written\nwith written() as write: write('a\\x1b]52;c;eA==\\x07b\\n')"
    piped = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "\x1b" not in piped.stdout
    assert "52;c;eA==" in piped.stdout
    with (tmp_path / "log").open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, timeout=60, check=True)
    assert (tmp_path / "log").read_bytes() == b"a\x1b]52;c;eA==\x07b\n"
