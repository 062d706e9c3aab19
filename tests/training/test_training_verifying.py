"""``verify_steps``: a step that was computed wrong is found, named and put right while the training runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmgpu.training.errors import Mismatch

from .conftest import RunFolder, has_fsdp2, new_run, same

FLIPPED = f"{Path(__file__).with_name('flipped.py')}:Flipped"


@pytest.mark.parametrize(
    "more", [{"task": "Restless"}, {"task": "Restless", "ema": 0.9, "clip_norm": 0.1}, {"task": "Buffered"}]
)
def test_a_verified_training_is_the_same_to_the_bit(tmp_path: Path, more: dict[str, object]) -> None:
    settings = {"batch_size": 20, "max_steps": 8, "log_every": 3, "accumulate": 2, **more}
    plain, verified = new_run(tmp_path, "plain"), new_run(tmp_path, "verified")
    plain.write(**settings)
    plain.here()
    verified.write(verify_steps=1, **settings)
    verified.here(SLURMGPU_MAX_STEPS="5")
    verified.here()
    assert same(plain.parameters(), verified.parameters())
    assert verified.metrics("mismatch") == []


def flipped(run: RunFolder, monkeypatch: pytest.MonkeyPatch, flip: str, **settings: object) -> None:
    monkeypatch.setenv("REPLAY_FLIP", flip)
    run.write(FLIPPED, batch_size=10, max_steps=9, log_every=4, **settings)
    run.here()


@pytest.mark.parametrize("kind", ["gradient", "activation", "weight", "batch"])
def test_a_wrong_step_is_named_and_the_training_goes_on_with_what_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    plain, wrong = new_run(tmp_path, "plain"), new_run(tmp_path, "wrong")
    flipped(plain, monkeypatch, "")
    flipped(wrong, monkeypatch, f"{kind}:6:0:4:22", verify_steps=6, mismatch="warn")
    assert "step 6 was computed wrong on rank 0" in capsys.readouterr().out
    assert [line["step"] for line in wrong.metrics("mismatch")] == [6]
    assert same(plain.parameters(), wrong.parameters())
    assert plain.losses() == wrong.losses()


def test_a_wrong_step_stops_a_training_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, wrong = new_run(tmp_path, "plain"), new_run(tmp_path, "wrong")
    flipped(plain, monkeypatch, "")
    with pytest.raises(Mismatch, match="step 6 was computed wrong on rank 0"):
        flipped(wrong, monkeypatch, "gradient:6:0:4:22", verify_steps=6)
    assert wrong.checkpoints()[-1] == "step-6"
    assert (wrong.stop()["reason"], wrong.stop()["requeue"]) == ("mismatch", False)
    flipped(wrong, monkeypatch, "", verify_steps=6)
    assert same(plain.parameters(), wrong.parameters())


def test_an_unrepeatable_training_is_no_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path, "run")
    task = tmp_path / "drifting.py"
    task.write_text(
        "from tests.training.small import Line\n"
        "class Drifting(Line):\n"
        "    def loss(self, model, batch):\n"
        "        return super().loss(model, batch) * (1 + self.calls / 100)\n"
    )
    run.write(f"{task}:Drifting", batch_size=20, max_steps=4, verify_steps=2)
    run.here()
    said = capsys.readouterr().out
    assert said.count("does not repeat itself") == 1
    assert run.metrics("mismatch") == []


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "pipeline"])
def test_two_processes_verify_their_steps_together(tmp_path: Path, strategy: str) -> None:
    if strategy == "fsdp2" and not has_fsdp2():
        pytest.skip("this torch has no fsdp2 on the CPU")
    plain, wrong = new_run(tmp_path, "plain"), new_run(tmp_path, "wrong")
    settings = {"strategy": strategy, "batch_size": 10, "max_steps": 7}
    plain.write(FLIPPED, **settings)
    wrong.write(FLIPPED, verify_steps=4, mismatch="warn", **settings)
    assert plain.ranks(2).codes == [0, 0]
    ended = wrong.ranks(2, REPLAY_FLIP="gradient:4:1:4:22")
    assert ended.codes == [0, 0]
    assert "step 4 was computed wrong" in ended.out
    assert ("rank 1" in ended.out) == (strategy == "ddp")
    assert same(plain.parameters(), wrong.parameters())
