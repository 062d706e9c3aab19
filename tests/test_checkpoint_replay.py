"""``slurmgpu checkpoint replay``: a flipped bit is found and dated, and a clean run gives no alarm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.monitoring.replay import Told, first_difference
from slurmgpu.submission import replaying

ROOT = Path(__file__).resolve().parent.parent
TASK = ROOT / "benchmarks" / "replayed.py"


def sums(wrong: dict[tuple[int, int], str], steps: int = 4, ranks: int = 2) -> Told:
    """Checksums of some steps, of which some rank's differs."""
    names = ("losses", "gradients", "weights", "optimizer")
    return Told(
        {},
        {
            step: {
                rank: {name: "x" if wrong.get((step, rank)) == name else "0" for name in names}
                for rank in range(ranks)
            }
            for step in range(1, steps + 1)
        },
    )


def test_checksums_tell_the_step_and_the_rank() -> None:
    found = first_difference(sums({(3, 1): "losses", (4, 0): "losses"}), sums({}), 0, 4, 2, True)
    assert found is not None
    assert (found.earliest, found.latest, found.ranks) == (3, 3, [1])
    assert "loss" in found.what


def test_where_all_ranks_differ_at_once_none_is_blamed() -> None:
    found = first_difference(sums({(2, 0): "weights", (2, 1): "weights"}), sums({}), 0, 4, 2, True)
    assert found is not None
    assert (found.earliest, found.latest, found.ranks) == (2, 2, None)
    assert found.why


def test_lines_alone_bound_it_from_above() -> None:
    run, again = (Told({10: {"loss": 1.0}, 20: {"loss": each}}, {}) for each in (0.5, 0.6))
    found = first_difference(run, again, 0, 20, 1, True)
    assert found is not None
    # A bit too small to show in a loss may have flipped before.
    assert (found.earliest, found.latest, found.ranks) == (1, 20, [0])
    only_weights = first_difference(run, run, 0, 20, 2, True)
    assert only_weights is not None
    assert (only_weights.latest, only_weights.ranks) == (20, None)
    assert first_difference(run, run, 0, 20, 1, False) is None


def train(run_dir: Path, flip: str = "") -> None:
    run_dir.mkdir()
    settings = {
        "schema": "slurmgpu.train/1", "task": f"{TASK}:Flipped", "batch_size": 10, "max_steps": 12, "log_every": 4,
        "checksum_steps": 1, "checkpoint_steps": 5, "keep": 9, "checkpoint_share": None,
    }  # fmt: skip
    (run_dir / "train.json").write_text(json.dumps(settings))
    environ = {
        **os.environ,
        "SLURMGPU_RUN_DIR": str(run_dir),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(
        [sys.executable, "-m", "slurmgpu.training"], env={**environ, "REPLAY_FLIP": flip}, check=True
    )


def replay(run_dir: Path) -> tuple[int, dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "slurmgpu",
        "checkpoint",
        "replay",
        str(run_dir),
        "--from",
        "0",
        "--json",
    ]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"REPLAY_FLIP": ""}
    )
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def test_a_task_within_the_run_directory_leaves_no_compiled_file_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    run_dir, scratch = tmp_path / "run", tmp_path / "scratch"
    run_dir.mkdir()
    (run_dir / "task.py").write_text("")
    manifest = scratch / "checkpoints" / "step-3" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    # In place of the training: what it does first.
    script = f"import task, pathlib; pathlib.Path({str(manifest)!r}).write_text('')"

    def start(python: str, work_dir: Path, environment: Any, log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [python, "-c", script], cwd=work_dir, env=dict(environment), stderr=log, start_new_session=True
        )

    monkeypatch.setattr(replaying, "_start", start)
    replaying.train_again(sys.executable, scratch, run_dir, 1, 3, os.environ)
    assert [path.name for path in run_dir.iterdir()] == ["task.py"]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.long
def test_a_clean_run_gives_no_alarm_and_is_not_touched(tmp_path: Path) -> None:
    train(tmp_path / "run")
    before = everything(tmp_path / "run")
    code, found = replay(tmp_path / "run")
    assert (code, found["verdict"], found["to"]) == (0, "equal", 12), found
    assert everything(tmp_path / "run") == before


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gradient", "activation"])
def test_a_flipped_bit_is_found_and_dated(tmp_path: Path, kind: str) -> None:
    train(tmp_path / "run", f"{kind}:7:0:3:20")
    code, found = replay(tmp_path / "run")
    assert (code, found["verdict"]) == (1, "differs"), found
    difference = found["difference"]
    assert (difference["earliest"], difference["latest"], difference["ranks"]) == (7, 7, [0])
