"""profile: what it leaves behind, and that it changes nothing."""

from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.training.watching import profiling

from .conftest import RunFolder, new_run

SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 10, "log_every": 1, "lr": 0.05}
PROFILE: dict[str, Any] = {"profile": True, "profile_after": 2, "profile_steps": 3}
FILES = ["memory.txt", "operators.txt", "steps.json", "trace.json.gz"]


def written(run: RunFolder) -> list[str]:
    return sorted(path.name for path in run.path.glob("profile/*"))


def times(run: RunFolder, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "profile" / f"rank-{rank}.steps.json").read_text())
    return found


def test_a_profile_has_trace_operators_memory_and_times(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write("Restless", **SETTINGS, **PROFILE)
    run.here()
    assert written(run) == [f"rank-0.{name}" for name in FILES]
    with gzip.open(run.path / "profile" / "rank-0.trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = [event.get("name") for event in events]
    assert "aten::addmm" in names
    assert len({name for name in names if str(name).startswith("ProfilerStep#")}) == 3
    operators = (run.path / "profile" / "rank-0.operators.txt").read_text()
    assert operators.startswith("by self_cpu_time_total\n")
    assert "aten::addmm" in operators
    memory = (run.path / "profile" / "rank-0.memory.txt").read_text()
    assert "bytes" in memory.splitlines()[0]
    assert "aten::" in memory
    found = times(run)
    assert (found["schema"], found["clock"], found["device"]) == (profiling.SCHEMA, "wall clock", "CPU")
    assert (found["timed_steps"], found["recorded_steps"]) == ([3, 5], [9, 11])
    assert len(found["step_seconds"]) == 3
    assert all(seconds > 0 for seconds in found["step_seconds"])
    assert "profile of steps 9 to 11 written to profile/" in capsys.readouterr().out


def test_a_profile_changes_nothing_that_is_learned(tmp_path: Path) -> None:
    plain, profiled = new_run(tmp_path, "plain"), new_run(tmp_path, "profiled")
    plain.write("Restless", **SETTINGS)
    plain.here()
    profiled.write("Restless", **SETTINGS, **PROFILE)
    profiled.here()
    assert profiled.losses() == plain.losses()
    assert written(plain) == []


@pytest.mark.long
def test_each_rank_writes_its_own(run: RunFolder) -> None:
    run.write("Restless", **SETTINGS, **PROFILE)
    ended = run.ranks(2)
    assert ended.codes == [0, 0], ended.err
    assert written(run) == [f"rank-{rank}.{name}" for rank in (0, 1) for name in FILES]
    assert [times(run, rank)["rank"] for rank in (0, 1)] == [0, 1]
    assert ended.out.count("profile of steps") == 1


def test_a_run_is_profiled_once(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    run.write("Restless", **SETTINGS, **PROFILE)
    run.here(SLURMGPU_MAX_STEPS="15")
    before = (run.path / "profile" / "rank-0.steps.json").stat().st_mtime_ns
    capsys.readouterr()
    run.here()
    assert "note: profile/ is there from an earlier start" in capsys.readouterr().out
    assert (run.path / "profile" / "rank-0.steps.json").stat().st_mtime_ns == before


def test_a_profile_cut_short_is_made_by_the_next_start(tmp_path: Path) -> None:
    run, plain = new_run(tmp_path, "run"), new_run(tmp_path, "plain")
    plain.write("Restless", **SETTINGS)
    plain.here()
    run.write("Restless", **SETTINGS, **PROFILE)
    ended = run.ranks(1, SMALL_FAULT="SIGTERM:10:0")
    assert ended.codes == [75]
    assert "stopped before the profile was complete; the next start makes it" in ended.out
    assert written(run) == []
    run.here()
    assert times(run)["recorded_steps"] == [19, 21]
    assert run.losses() == plain.losses()


def test_too_few_steps_for_a_profile_are_said_with_all_figures(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write(**SETTINGS, **{**PROFILE, "profile_after": 22})
    run.here()
    assert (
        "no profile: it takes 31 steps (profile_after 22 + 2 x profile_steps 3 + 3), and this start has 30"
        in capsys.readouterr().out
    )
    assert written(run) == []


def test_a_full_disk_costs_the_profile_and_not_the_training(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(profiling, "write_json", full)
    run.write(**SETTINGS, **PROFILE)
    run.here()
    out = capsys.readouterr().out
    assert "warning: the profile could not be written: No space left on device" in out
    assert "done: 3 epochs" in out
