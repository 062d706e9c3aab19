"""The slowest rank is named, and only where there is one."""

from __future__ import annotations

import socket

import pytest
import torch

from slurmgpu.training.watching.pace import Forward

from .conftest import RunFolder

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("cause", "buffers", "words"),
    [("forward", False, "in its forward pass"), ("data", True, "waiting for its data")],
)
def test_a_slow_rank_is_named_with_its_host_and_what_it_waits_for(
    run: RunFolder, cause: str, buffers: bool, words: str
) -> None:
    """With buffers the fast rank waits inside of DDP's forward, and that is not held against it."""
    run.write("Uneven", epochs=10, batch_size=20, workers=0, log_every=5, config={"buffers": buffers})
    ended = run.ranks(2, SMALL_SLOW=cause)
    assert ended.codes == [0, 0], ended.err
    named = [line["values"] for line in run.metrics("train") if "slowest_rank" in line["values"]]
    assert any(values["slowest_rank"] == 1 and values["slowest_by"] > 0 for values in named)
    (warning,) = [line for line in ended.out.splitlines() if line.startswith("warning: all wait for")]
    assert warning.startswith(f"warning: all wait for rank 1 on {socket.gethostname()}: its steps take ")
    assert warning.endswith(words)


class Event:
    """A stand-in for a CUDA event: reached when the test says so, and a time that counts records."""

    reached = False
    clock = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.records = 0
        self.at = 0

    def record(self) -> None:
        self.records += 1
        Event.clock += 30
        self.at = Event.clock

    def query(self) -> bool:
        return Event.reached

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def test_a_gpus_one_pass_between_readings_is_timed_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    timer = Forward(torch.device("cuda", 0), accumulate=2)
    for _ in range(3):
        timer.begin()
        timer.begin()  # behind the sharing of buffers
        timer.end()
    assert timer.of_a_step(0.0, 3) is None, "the GPU is not there yet"
    Event.reached = True
    assert timer.of_a_step(0.0, 3) == pytest.approx(2 * 0.03)
    assert Event.clock == 90, "two begins and an end of the first pass, nothing of the others"
    timer.begin()
    timer.end()
    assert Event.clock == 150, "read, so the next pass is timed"


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Forward:
    """After its first pass, which the GPU has reached."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "reached", True)
    monkeypatch.setattr(Event, "clock", 0)
    made = Forward(torch.device("cuda", 0), accumulate=1)
    made.begin()
    made.end()
    return made


def test_a_pass_within_which_the_last_one_is_read_is_not_timed(timer: Forward) -> None:
    """The watch's thread comes when it likes; half a pass would be no figure, but garbage."""
    for _ in range(3):
        Event.clock += 10_000
        timer.begin()
        assert timer.of_a_step(0.0, 3) == pytest.approx(0.03)
        timer.end()
        assert timer.of_a_step(0.0, 3) == pytest.approx(0.03)
        Event.clock += 10_000
        timer.begin()
        timer.end()


def test_a_pass_is_timed_from_behind_the_sharing_of_buffers_even_if_only_then_due(timer: Forward) -> None:
    Event.clock += 10_000
    timer.begin()
    assert timer.of_a_step(0.0, 3) == pytest.approx(0.03)
    timer.begin()
    Event.clock += 60
    timer.end()
    assert timer.of_a_step(0.0, 3) == pytest.approx(0.09)
