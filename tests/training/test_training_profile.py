"""profile: what it leaves behind, and that it changes nothing."""

from __future__ import annotations

import errno
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training.step import Step
from slurmgpu.training.watching import profiling
from slurmgpu.training.watching.phases import Each, Phases
from slurmgpu.training.watching.profiling import Times

from .conftest import RunFolder, new_run

SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 10, "log_every": 1, "lr": 0.05}
PROFILE: dict[str, Any] = {"profile": True, "profile_after": 2, "profile_steps": 3}
FILES = ["memory.txt", "operators.txt", "parts.json", "steps.json", "trace.json.gz"]


def written(run: RunFolder) -> list[str]:
    return sorted(path.name for path in run.path.glob("profile/*"))


def times(run: RunFolder, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "profile" / f"rank-{rank}.steps.json").read_text())
    return found


def test_a_profile_has_trace_operators_memory_times(
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
    assert [sorted(each) for each in found["phase_seconds"]] == [
        ["backward", "data", "forward", "optimizer"]
    ] * 3
    inside = [sum(each.values()) for each in found["phase_seconds"]]
    assert all(0 < part <= whole for part, whole in zip(inside, found["step_seconds"]))
    out = capsys.readouterr().out
    assert "profile of steps 9 to 11 written to profile/" in out
    assert re.search(r"profile: a step takes .+ \(3 steps timed, 3 recorded to split them; .+\): .+ %", out)
    assert "profile: verdict: " in out


def test_a_trace_opens_in_perfetto_and_tensorboard_and_shows_the_phases_of_each_step(run: RunFolder) -> None:
    run.write("Restless", **SETTINGS, **PROFILE, accumulate=2)
    run.here()
    with gzip.open(run.path / "profile" / "rank-0.trace.json.gz") as file:
        document = json.load(file)
    assert document["schemaVersion"] == 1
    for event in document["traceEvents"]:
        # The fields of a complete event in the Trace Event Format, which both read.
        if event["ph"] == "X":
            assert isinstance(event["name"], str)
            assert all(isinstance(event[key], (int, float)) for key in ("ts", "dur"))
            assert event.keys() >= {"pid", "tid"}
    marked = [event for event in document["traceEvents"] if event.get("name", "").startswith("slurmgpu.")]
    marked.sort(key=lambda event: event["ts"])
    between = ["slurmgpu.evaluating", "slurmgpu.saving"]  # the recorded steps go over the end of an epoch
    assert [name for event in marked if (name := event["name"]) in between] == between
    passes = ["data", "forward", "backward"] * 2
    expected = [f"slurmgpu.{name}" for name in [*passes, "optimizer"] * 3]
    assert [name for event in marked if (name := event["name"]) not in between] == expected
    ends = [event["ts"] + event["dur"] for event in marked]
    assert all(end <= event["ts"] + 0.01 for end, event in zip(ends[:-1], marked[1:]))


def test_evaluations_and_saves_between_the_timed_steps_are_phases_of_their_own(run: RunFolder) -> None:
    run.write("Restless", **{**SETTINGS, "batch_size": 50, "epochs": 9}, **PROFILE, checkpoint_steps=1)
    run.here()
    found = times(run)["phase_seconds"]
    assert sum("evaluating" in each for each in found) >= 1  # an epoch has two steps
    assert all("saving" in each for each in found)
    parts = json.loads((run.path / "profile" / "rank-0.parts.json").read_text())["parts"]
    assert parts["saving"] > 0


class Clock:
    """A pretended CUDA event, which the stream comes to at once."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, _stream: object) -> None:
        Clock.now += 2
        self.at = Clock.now

    def elapsed_time(self, later: Clock) -> float:
        return later.at - self.at


def test_on_a_gpu_phases_are_timed_by_events_and_are_ranges_for_nsys(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[str] = []
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: ranges.append("end"))
    phases = Phases(torch.device("cuda", 0), ranges=True)
    update = phases.during("optimizer", lambda: None)
    update()  # not timed
    phases.timing = True
    for _ in range(2):
        phases.step()
        assert next(Each(iter([7]), phases, "data")) == 7
        with pytest.raises(ValueError, match="mistake"):
            phases.during("forward", lambda: int("mistake"), then="backward")()
        update()
    phases.step()
    found = Times.of(phases.times(), 2)
    assert found.steps == pytest.approx([0.014, 0.014])
    one = {"data": 0.002, "forward": 0.002, "backward": 0.002, "optimizer": 0.002}
    assert found.phases == [pytest.approx(one)] * 2
    assert found.means().often == dict.fromkeys(one, 2)
    step = ["slurmgpu.data", "end", "slurmgpu.forward", "end", "slurmgpu.backward", "end"]
    assert ranges == ["slurmgpu.optimizer", "end", *[*step, "slurmgpu.optimizer", "end"] * 2]


@pytest.mark.long
def test_each_rank_writes_its_own(run: RunFolder) -> None:
    run.write("Restless", **SETTINGS, **PROFILE)
    ended = run.ranks(2)
    assert ended.codes == [0, 0], ended.err
    assert written(run) == [f"rank-{rank}.{name}" for rank in (0, 1) for name in FILES]
    assert [times(run, rank)["rank"] for rank in (0, 1)] == [0, 1]
    assert ended.out.count("profile of steps") == 1
    assert ended.out.count("profile: a step takes") == 1
    assert "; mean of 2 ranks)" in ended.out


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


def test_too_few_steps_for_a_profile_are_told_in_figures(
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


def test_a_snapshot_holds_the_allocations_of_the_recorded_steps_alone(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As far as it can be seen without a GPU: what torch is asked for, and when."""
    asked: list[object] = []
    take = Step.take

    def taken(self: Step, size: int) -> None:
        take(self, size)
        asked.append("step")

    class Snapping(profiling.Profile):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._snapshot = True

    monkeypatch.setattr(Step, "take", taken)
    monkeypatch.setattr(profiling, "Profile", Snapping)
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda enabled="all", **_: asked.append(enabled)
    )
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: asked.append(Path(path).name))
    run.write("Restless", **SETTINGS, **PROFILE, profile_snapshot=True)
    run.here()
    steps = ["step"] * 30
    # 2 pass and 3 are timed; 3 warm the profiler up and 3 are recorded.
    assert asked == [*steps[:5], "all", *steps[:6], "rank-0.memory.pickle", None, *steps[11:]]
    assert "note: profile_snapshot does nothing on CPUs" in capsys.readouterr().out


def test_what_waits_for_a_cpu_is_the_thread_and_the_mean_worker_that_is_there(tmp_path: Path) -> None:
    before, after = profiling.Waited(1.0, {7: 2.0}), profiling.Waited(1.5, {7: 3.0, 8: 1.0})
    recorded, end = profiling.Waited(2.0, {}), profiling.Waited(2.25, {})
    assert profiling.between([before, after, recorded, end], 5) == (0.1, 0.05, 0.2)
    assert profiling.between([after, before, recorded, end], 5).workers == 0, "another worker, another count"
    assert profiling.waited().own >= 0
