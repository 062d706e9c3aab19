"""sbatch: what its answers mean. `recorded(...)` are a real 22.05's; the others are constructed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.slurm import Slurm
from slurmgpu.slurm import requests as sbatch
from slurmgpu.slurm.requests import advise
from tests.recorded import RELEASES, Replay, names, recorded, said

SINCE = datetime.now(timezone.utc) - timedelta(hours=1)


@pytest.mark.parametrize("release", RELEASES)
def test_a_recorded_submission_is_accepted(release: str) -> None:
    outcome = sbatch.classify(recorded("sbatch_accepted", release))
    assert isinstance(outcome, sbatch.Accepted)
    assert (outcome.job_id, outcome.cluster, outcome.text) == (17, None, "")


ADVICE = {
    "account": "account", "partition": "partition", "qos": "QOS", "gres_name": "no such resource", "gres_count": "no node",
    "time_text": "time limit", "memory": "memory", "memory_option": "memory request", "memory_twice": "memory request",
    "constraint": "feature", "reservation": "reservation", "dependency": "dependency", "array_limit": "array",
    "dos": "Windows", "shebang": "#!/bin/bash", "nofile": "cannot read the script", "option": "does not know this option",
}  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
def test_each_recorded_refusal_is_a_refusal_with_advice_that_speaks_of_what_was_wrong(release: str) -> None:
    wrong = {}
    for name in names("sbatch_refused_"):
        answer = recorded(name, release)
        outcome = sbatch.classify(answer)
        words = ADVICE.get(name.removeprefix("sbatch_refused_"), "")
        refused = isinstance(outcome, sbatch.Rejected) and outcome.text == answer.stderr.strip()
        if not (refused and outcome.advice is not None and words in outcome.advice.meaning):  # type: ignore[union-attr]
            wrong[name] = outcome
    assert wrong == {}


def test_an_interval_of_accounting_is_not_taken_for_an_account() -> None:
    advice = advise("sbatch: error: Batch job submission failed: Invalid accounting frequency requested")
    assert "less often" in advice.meaning
    assert "JobAcctGatherFrequency" in advice.act


def test_the_id_is_found_below_a_sites_banner() -> None:
    outcome = sbatch.classify(
        said("Welcome!\n2024 was good\n---\n117\n", "sbatch: note: 3 h of 100 h used\n")
    )
    assert isinstance(outcome, sbatch.Accepted)
    assert outcome.job_id == 117
    assert "Welcome!" in outcome.text
    assert "3 h of 100 h used" in outcome.text


def test_a_multi_cluster_site_names_the_cluster() -> None:
    outcome = sbatch.classify(said("117;alpha\n"))
    assert isinstance(outcome, sbatch.Accepted)
    assert (outcome.job_id, outcome.cluster) == (117, "alpha")


def test_a_full_queue_that_gave_way_is_accepted_despite_its_error_text() -> None:
    text = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
    assert isinstance(sbatch.classify(said("117\n", text)), sbatch.Accepted)


@pytest.mark.parametrize(
    ("stdout", "stderr", "rc"),
    [
        ("", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", 1),
        ("", "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", 1),
        ("", "sbatch: error: slurm_receive_msg: Connection reset by peer", 1), ("", "", 1), ("", "Terminated", 1),
        ("", "sbatch: no answer in 180 s", None), ("117\n", "", None), ("thank you\n", "", 0),
        ("117\n", "sbatch: error: something", 1),
        ("117\n", "sbatch: error: Unable to contact slurm controller (connect failure)", 1),
    ],
)  # fmt: skip
def test_no_or_half_an_answer_leaves_the_outcome_unknown(stdout: str, stderr: str, rc: int | None) -> None:
    assert isinstance(sbatch.classify(said(stdout, stderr, rc)), sbatch.Unknown)


@pytest.mark.parametrize("release", RELEASES)
def test_a_controller_that_is_down_means_that_there_is_no_job(release: str) -> None:
    assert isinstance(sbatch.classify(recorded("sbatch_no_controller", release)), sbatch.Unreachable)


def test_a_text_of_sbatchs_own_that_nobody_has_seen_is_refused_without_advice() -> None:
    """It says so before it asks; what the controller says in words that are not known may be anything."""
    sent = sbatch.classify(said("", "sbatch: error: Batch job submission failed: Frobnication", rc=1))
    assert isinstance(sent, sbatch.Unknown)
    outcome = sbatch.classify(said("", "sbatch: error: Frobnication of the script", rc=1))
    assert isinstance(outcome, sbatch.Rejected)
    assert outcome.advice is None
    assert "Frobnication" in outcome.text


@given(st.text(), st.text(), st.none() | st.integers(0, 255))
def test_no_answer_breaks_the_classification(stdout: str, stderr: str, rc: int | None) -> None:
    outcome = sbatch.classify(said(stdout, stderr, rc))
    assert isinstance(outcome, sbatch.Accepted) <= (rc == 0)
    sbatch.parse_estimate(said(stdout, stderr, rc))


def test_submitting_keeps_ambient_settings_from_sbatch() -> None:
    replay = Replay(sbatch=recorded("sbatch_accepted"))
    env = {"SBATCH_TIMELIMIT": "1", "SLURM_JOB_ID": "3", "SLURM_CONF": "/c", "LC_ALL": "de_DE.UTF-8"}
    slurm = Slurm(run=replay, env=env)
    sbatch.submit(slurm, Path("/runs/x/script.sbatch"), ["--hold"], cwd=Path("/runs/x"))
    assert slurm.asked == [("sbatch", "--parsable", "--hold", "/runs/x/script.sbatch")]
    assert replay.environments == [{"SLURM_CONF": "/c", "LC_ALL": "de_DE.UTF-8"}]


@pytest.mark.parametrize("release", RELEASES)
def test_an_estimate_is_read_from_the_recorded_answer(release: str) -> None:
    found = sbatch.parse_estimate(recorded("sbatch_test_only", release))
    assert found.accepted
    assert found.start is not None
    assert (found.cpus, found.partition) == (2, "gpu")
    assert found.node_list.startswith("node[")


def test_an_estimate_in_seconds_is_read_too() -> None:
    text = "sbatch: Job 25 to start at 1795336563 using 2 processors on nodes node[2-3] in partition gpu"
    assert sbatch.parse_estimate(said("", text)).start == datetime(
        2026, 11, 22, 8, 36, 3, tzinfo=timezone.utc
    )


def test_an_older_releases_estimate_names_no_partition() -> None:
    text = "sbatch: Job 5 to start at 2020-01-02T03:04:05 using 4 processors on n1"
    found = sbatch.parse_estimate(said("", text))
    assert (found.cpus, found.node_list, found.partition) == (4, "n1", None)


@pytest.mark.parametrize("release", RELEASES)
def test_a_job_that_never_fits_has_no_estimate(release: str) -> None:
    found = sbatch.parse_estimate(recorded("sbatch_test_only_refused", release))
    assert not found.accepted
    assert found.advice is not None
    assert "Requested node configuration is not available" in found.text


def test_an_estimate_needs_a_controller() -> None:
    slurm = Slurm(run=Replay(sbatch=recorded("sbatch_no_controller")), env={})
    with pytest.raises(SlurmUnreachable, match="Unable to contact"):
        sbatch.estimate(slurm, Path("s.sh"), cwd=Path("/"))


@pytest.mark.parametrize("release", RELEASES)
def test_a_job_is_found_again_in_the_queue_by_its_script(release: str) -> None:
    slurm = Slurm(run=Replay(squeue=recorded("squeue", release)))
    found = sbatch.find_by_script(slurm, "/scratch/ada/script.sh", user="root", since=SINCE)
    assert found.certain
    assert (4, "throwaway") in found.jobs
    assert (5, "throwaway") in found.jobs
    assert slurm.count("sacct") == 0


def test_a_job_that_left_the_queue_is_found_in_accounting() -> None:
    slurm = Slurm(run=Replay(squeue=said(), sacct=recorded("sacct_submit_line")))
    found = sbatch.find_by_script(slurm, "/scratch/ada/script.sh", user="root", since=SINCE)
    assert [number for number, _ in found.jobs] == [1, 2, 3]


def test_another_script_is_not_found() -> None:
    slurm = Slurm(run=Replay(squeue=recorded("squeue"), sacct=recorded("sacct_submit_line")))
    found = sbatch.find_by_script(slurm, "/scratch/ada/other.sh", user="root", since=SINCE)
    assert (found.jobs, found.certain) == ([], True)


@pytest.mark.parametrize("answers", [("said", "sacct_no_accounting"), ("squeue_no_controller", "sacct_none")])
def test_nothing_found_is_not_certain_without_accounting_or_the_controller(answers: tuple[str, str]) -> None:
    queue, accounting = (said() if name == "said" else recorded(name) for name in answers)
    slurm = Slurm(run=Replay(squeue=queue, sacct=accounting))
    found = sbatch.find_by_script(slurm, "/x", user="root", since=SINCE)
    assert (found.jobs, found.certain) == ([], False)
