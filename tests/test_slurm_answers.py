"""What real messages of Slurm's commands mean; tests/data/slurm_messages.yaml says where each was found, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.slurm import Slurm, sacct, squeue
from slurmgpu.slurm import requests as sbatch
from slurmgpu.slurm.commands import Answer
from slurmgpu.slurm.text import meaning_of
from tests.recorded import RELEASES, Replay, names, recorded, said

MESSAGES: list[dict[str, Any]] = YAML(typ="safe").load(
    (Path(__file__).parent / "data" / "slurm_messages.yaml").read_text(encoding="utf-8")
)
KINDS = {"refused": "refused", "no-answer": "no answer", "lost-reply": "lost", "answered": "answered"}


def answer(message: dict[str, Any]) -> Answer:
    return Answer((message["command"],), message["rc"], "", message["text"])


def of(command: str) -> list[dict[str, Any]]:
    return [message for message in MESSAGES if message["command"] == command]


def test_there_are_messages_of_each_kind_from_each_release() -> None:
    for release in ("20.11", "22.05", "24.11", "26.05"):
        kinds = [message["kind"] for message in MESSAGES if release in message["releases"]]
        assert min(kinds.count(kind) for kind in ("refused", "no-answer", "lost-reply")) >= 20


def test_each_means_what_its_entry_says() -> None:
    meant = [(message, meaning_of(answer(message))) for message in MESSAGES]
    assert [(message, said) for message, said in meant if said != KINDS[message["kind"]]] == []


def test_a_submission_is_called_refused_or_not_sent_only_where_that_is_sure() -> None:
    expected = {"refused": sbatch.Rejected, "no-answer": sbatch.Unreachable, "lost-reply": sbatch.Unknown}
    outcomes = [(message, sbatch.classify(answer(message))) for message in of("sbatch")]
    assert [one for one in outcomes if not isinstance(one[1], expected[one[0]["kind"]])] == []


def test_a_queue_that_does_not_answer_is_never_a_refusal() -> None:
    errors = {"refused": SlurmRefused, "no-answer": SlurmUnreachable, "lost-reply": SlurmUnreachable}
    for message in of("squeue"):
        slurm = Slurm(run=Replay(squeue=answer(message)))
        if message["kind"] == "answered":
            assert squeue.read_queue(slurm, "ada") == ([], []), message
            continue
        with pytest.raises(errors[message["kind"]]):
            squeue.read_queue(slurm, "ada")


def test_accounting_that_fails_is_never_an_empty_list() -> None:
    """An older sacct ends with 0 when its database hangs up."""
    for message in of("sacct"):
        assert not sacct.read_accounting(Slurm(run=Replay(sacct=answer(message))), user="ada").available, (
            message
        )


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_refusals_silence_and_rows_are_told_apart(release: str) -> None:
    refused = names("sbatch_refused_") + names("squeue_unknown_")
    meant = {one: meaning_of(recorded(one, release)) for one in refused}
    assert meant == dict.fromkeys(refused, "refused")
    for one in ("squeue_no_controller", "sbatch_no_controller"):
        assert meaning_of(recorded(one, release)) == "no answer"
    beside = "slurm_load_partitions: Socket timed out on send/recv operation"
    for one in ("squeue", "sacct", "sinfo"):
        if one in names(one):
            rows = recorded(one, release)
            assert (
                meaning_of(rows) == meaning_of(Answer(rows.argv, rows.rc, rows.stdout, beside)) == "answered"
            )


def test_an_error_that_nobody_has_seen_is_unclear_and_never_final() -> None:
    strange = said(stderr="squeue: error: Frobnication", rc=1)
    assert meaning_of(strange) == "unclear"
    with pytest.raises(SlurmUnreachable):
        squeue.read_queue(Slurm(run=Replay(squeue=strange)), "ada")


def test_silence_is_lost() -> None:
    assert meaning_of(said(rc=None)) == "lost"
    assert meaning_of(said(stderr="sbatch: no answer in 180 s", rc=None)) == "lost"
