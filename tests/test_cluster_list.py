"""`slurmgpu cluster list`: one look tells which profile to take."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.test_cli import ROOT, slurmgpu


def lines(cwd: Path, *words: str) -> list[str]:
    done = slurmgpu(cwd, "cluster", "list", *words)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def test_each_profile_is_one_line_of_80_columns_without_a_path(tmp_path: Path) -> None:
    head, *rows = lines(tmp_path)
    shipped = sorted(path.stem for path in (ROOT / "examples" / "clusters").glob("*.yaml"))
    assert [row.split()[0] for row in rows] == shipped
    assert max(len(line) for line in [head, *rows]) <= 80
    assert head.split() == ["NAME", "SITE", "GPUS", "SOURCE"]
    assert "/" not in "".join(row.split("  ")[-1] for row in rows)
    (row,) = [row for row in rows if row.startswith("  uva-afton ")]
    assert "University of Virginia" in row
    assert "a100" in row
    assert "\x1b" not in "".join(rows)


def test_words_choose_among_them(tmp_path: Path) -> None:
    found = [row.split()[0] for row in lines(tmp_path, "CSC", "gh200")[1:]]
    assert "csc-roihu" in found
    assert "csc-mahti" not in found
    refused = slurmgpu(tmp_path, "cluster", "list", "b9000")
    assert refused.returncode == 2
    assert "WORD 'b9000': none of the " in refused.stderr


def test_a_slice_is_no_type_of_gpu(tmp_path: Path) -> None:
    entry = json.loads(slurmgpu(tmp_path, "cluster", "list", "narval", "--json").stdout)["clusters"][0]
    assert entry["gpus"] == ["a100"]


def test_a_profile_of_ones_own_is_said_to_be_and_the_chosen_one_has_a_star(tmp_path: Path) -> None:
    folder = tmp_path / "xdg" / "slurmgpu"
    (folder / "clusters").mkdir(parents=True)
    (folder / "clusters" / "mine.yaml").write_text("name: mine\ndescription: Ours, a cluster\n")
    (folder / "config.yaml").write_text("cluster: mine\n")
    (row,) = lines(tmp_path, "mine")[1:]
    assert row.startswith("* mine  yours: Ours  ")
    (entry,) = json.loads(slurmgpu(tmp_path, "cluster", "list", "mine", "--json").stdout)["clusters"]
    assert (entry["shipped"], entry["path"]) == (False, str(folder / "clusters" / "mine.yaml"))


def test_a_terminal_gets_colours(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "slurmgpu", "cluster", "list", "afton"],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path), "TERM": "xterm"},
    )
    os.close(theirs)
    assert process.wait(60) == 0
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "\x1b[36muva-afton\x1b[0m" in shown
