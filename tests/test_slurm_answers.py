"""What real messages of Slurm's commands mean; tests/data/slurm_messages.yaml says where each was found, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.slurm import Slurm, sacct, sbatch, squeue
from slurmgpu.slurm.answers import meaning_of
from slurmgpu.slurm.commands import Answer
from tests.recorded import RELEASES, Replay, names, recorded, said

MESSAGES: list[dict[str, Any]] = YAML(typ="safe").load(
    (Path(__file__).parent / "data" / "slurm_messages.yaml").read_text(encoding="utf-8")
)
KINDS = {"refused": "refused", "no-answer": "no answer", "lost-reply": "lost", "answered": "answered"}


def answer(message: dict[str, Any]) -> Answer:
    return Answer((message["command"],), message["rc"], "", message["text"])


def of(command: str) -> list[dict[str, Any]]:
    return [message for message in MESSAGES if message["command"] == command]


def name(message: dict[str, Any]) -> str:
    last: str = message["text"].strip().splitlines()[-1]
    return f"{message['command']}-{last[:60]}"


def test_there_are_messages_of_each_kind_from_each_release() -> None:
    for release in ("20.11", "22.05", "24.11", "26.05"):
        kinds = [message["kind"] for message in MESSAGES if release in message["releases"]]
        assert min(kinds.count(kind) for kind in ("refused", "no-answer", "lost-reply")) >= 20


@pytest.mark.parametrize("message", MESSAGES, ids=name)
def test_each_means_what_its_entry_says(message: dict[str, Any]) -> None:
    assert meaning_of(answer(message)) == KINDS[message["kind"]]


@pytest.mark.parametrize("message", of("sbatch"), ids=name)
def test_a_submission_is_called_refused_or_not_sent_only_where_that_is_sure(message: dict[str, Any]) -> None:
    outcome = sbatch.classify(answer(message))
    expected = {"refused": sbatch.Rejected, "no-answer": sbatch.Unreachable, "lost-reply": sbatch.Unknown}
    assert isinstance(outcome, expected[message["kind"]])


@pytest.mark.parametrize("message", of("squeue"), ids=name)
def test_a_queue_that_does_not_answer_is_never_a_refusal(message: dict[str, Any]) -> None:
    slurm = Slurm(run=Replay(squeue=answer(message)))
    if message["kind"] == "answered":
        assert squeue.read(slurm, "ada") == ([], [])
        return
    with pytest.raises(SlurmRefused if message["kind"] == "refused" else SlurmUnreachable):
        squeue.read(slurm, "ada")


@pytest.mark.parametrize("message", of("sacct"), ids=name)
def test_accounting_that_fails_is_never_an_empty_list(message: dict[str, Any]) -> None:
    """An older sacct ends with 0 when its database hangs up."""
    assert not sacct.read(Slurm(run=Replay(sacct=answer(message))), user="ada").available


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("recording", names("sbatch_refused_") + names("squeue_unknown_"))
def test_a_recorded_refusal_is_one(recording: str, release: str) -> None:
    assert meaning_of(recorded(recording, release)) == "refused"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("recording", ["squeue_no_controller", "sbatch_no_controller"])
def test_a_controller_that_is_down_gives_no_answer(recording: str, release: str) -> None:
    assert meaning_of(recorded(recording, release)) == "no answer"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("recording", ["squeue", "sacct", "sinfo"])
def test_rows_are_an_answer_whatever_is_said_beside_them(recording: str, release: str) -> None:
    if recording in names(recording):
        rows = recorded(recording, release)
        noisy = Answer(
            rows.argv, rows.rc, rows.stdout, "slurm_load_partitions: Socket timed out on send/recv operation"
        )
        assert meaning_of(rows) == meaning_of(noisy) == "answered"


def test_an_error_that_nobody_has_seen_is_unclear_and_never_final() -> None:
    strange = said(stderr="squeue: error: Frobnication", rc=1)
    assert meaning_of(strange) == "unclear"
    with pytest.raises(SlurmUnreachable):
        squeue.read(Slurm(run=Replay(squeue=strange)), "ada")


def test_silence_is_lost() -> None:
    assert meaning_of(said(rc=None)) == "lost"
    assert meaning_of(said(stderr="sbatch: no answer in 180 s", rc=None)) == "lost"
