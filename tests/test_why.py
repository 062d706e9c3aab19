"""why: each reason explained with the job's own figures, on every release, from recordings; what is not known is not 0."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from slurmgpu.amounts import span, time_of_day
from slurmgpu.cli.why import command
from slurmgpu.jobs.view import about, reason, waits, word_of
from slurmgpu.jobs.why.answer import MOST_JOBS, Why, listed, remembered
from slurmgpu.jobs.why.explain import explain
from slurmgpu.jobs.why.room import shapes_of
from slurmgpu.models.run import GpuSummary, JobState, JobStatus, Progress, SampleSummary
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.commands import Answer
from tests.present import Recorded, asked_row, jobs_of, queue_row
from tests.recorded import RELEASES, said

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
DATA = Path(__file__).parent / "data"
ALL_WORDS = (DATA / "waiting_reasons.txt").read_text().split()


def job(number: int = 7, **values: Any) -> JobStatus:
    known = {"job_id": str(number), "raw_id": number, "cluster": "alpha", "user": "root", "name": "digits", "reason": "Priority",
             "state": JobState.PENDING, "state_text": "PENDING", "source": "squeue", "partition": "gpu", "account": "mygroup",
             "qos": "normal", "submit": NOW}  # fmt: skip
    return JobStatus(**(known | values))


def told(waiting: JobStatus, slurm: Slurm, cache: Path, now: datetime = NOW) -> Why:
    return explain(waiting, slurm.present(), now, {"XDG_CACHE_HOME": str(cache)})


def facts(why: Why) -> dict[str, dict[str, Any]]:
    """The first fact of each kind, by its kind."""
    found: dict[str, dict[str, Any]] = {}
    for one in why.facts:
        found.setdefault(one.what, {"text": one.text, **one.figures})
    return found


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    reason: (verdict, figures)
    for reason, (verdict, figures) in YAML(typ="safe").load((DATA / "waiting.yaml").read_text()).items()
}


def recorded_why(release: str, word: str, number: int, cache: Path) -> Why:
    slurm = Recorded(release).slurm()
    present = slurm.present()
    (asked, *_) = present.request_of(number)
    row = next(one for one in present.queue(["gpu"]) or () if one.number == number)
    status = job(
        number, job_id=row.shown, reason=asked.reason, account=row.account, qos=row.qos, partition=row.partitions[0],
        dependency=asked.dependency, array_job_id=number if "_" in row.shown else None,
        array_tasks=row.shown.partition("_")[2] or None,
    )  # fmt: skip
    return told(status, slurm, cache)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("word", CASES)
def test_each_reason_is_told_with_the_jobs_own_figures(release: str, word: str, tmp_path: Path) -> None:
    number = jobs_of(release).get(word)
    if number is None:
        pytest.skip(f"{release} does not let a job wait for it")
    why = recorded_why(release, word, number, tmp_path)
    verdict, figures = CASES[word]
    assert why.verdict == verdict, why
    found = facts(why)
    for key, value in figures.items():
        kind, _, name = key.partition(".")
        assert found[kind][name] == value, (key, found[kind])
    assert why.sentence
    assert why.unknown == {}
    if verdict in ("never", "held"):
        assert why.mends, why


@pytest.mark.parametrize("release", RELEASES)
def test_at_least_40_reasons_were_provoked_on_each_release(release: str) -> None:
    waiting = [word for word in jobs_of(release) if not word.startswith("RUNNING")]
    assert len(waiting) >= 40
    assert set(waiting) <= set(CASES)


def test_every_word_is_explained_with_what_the_job_asks_for(tmp_path: Path) -> None:
    """Of words that no sandbox provokes, too: nothing is made up for them, and nothing fails."""
    number = jobs_of("22.05")["Resources"]
    wrong = {}
    for word in ALL_WORDS:
        replay = Recorded("22.05", asked=lambda text, word=word: text.replace("Resources", word))
        why = told(job(number, reason=word), replay.slurm(), tmp_path)
        explained = about(word) is not None and waits(word, job(number)) is not None
        asks = "asks for 2 a100 on 1 node" in facts(why)["request"]["text"]
        if not (explained and asks and why.verdict in ("waits", "held", "never") and len(replay.asked) <= 7):
            wrong[word] = why
    assert wrong == {}


def test_sentences_of_the_controller_are_words_too() -> None:
    for text, word in (
        ("Job's account not permitted to use this partition (gpu allows a not b)", "AccountNotAllowed"),
        ("Job's QOS not permitted to use this partition (gpu denies a including b)", "QOSNotAllowed"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "NodesUnavailable",
        ),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs", "NodesUnavailable"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "ReqNodeNotAvail"),
        ("ReqNodeNotAvail, Reserved for maintenance", "ReqNodeNotAvail"),
        ("launch failed requeued held", "LaunchFailedHeld"),
    ):
        assert word_of(text) == word
        assert about(word) is not None
        assert reason(job(reason=text)) is not None


# What is not shown


def test_a_site_that_hides_others_jobs_makes_the_line_unknown_and_never_0(tmp_path: Path) -> None:
    def hiding(text: str) -> str:
        text = text.replace("PrivateData             = none", "PrivateData             = jobs,usage,users")
        return text.replace("SlurmUser               = root(0)", "SlurmUser               = slurm(64030)")

    hidden = Recorded("22.05", config=hiding)
    slurm = hidden.slurm()
    present = slurm.present()
    assert present.config["PrivateData"] == "jobs,usage,users"
    number = jobs_of("22.05")["Priority"]
    present_user = "ada"
    why = _as_user(present_user, job(number, user="ada"), slurm, tmp_path)
    found = facts(why)
    assert found["queue"]["ahead"] is None
    assert found["queue"]["gpus"] is None
    assert "not known" in found["queue"]["text"]
    assert found["next"]["at"] is None
    limit = _as_user(
        present_user, job(jobs_of("22.05")["QOSGrpGRES"], reason="QOSGrpGRES"), hidden.slurm(), tmp_path
    )
    assert facts(limit)["limit"]["used"] is None
    assert "not known" in facts(limit)["limit"]["text"]
    assert not any("assoc_mgr" in argv for argv in hidden.asked)


def _as_user(name: str, waiting: JobStatus, slurm: Slurm, cache: Path) -> Why:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slurmgpu.slurm.present.current_user", lambda: name)
        return told(waiting, slurm, cache)


@pytest.mark.parametrize(
    "silent", ["nodes", "partitions", "queue", "book", "licenses", "reservations", "asked"]
)
def test_what_slurm_does_not_say_is_unknown_and_the_rest_is_told(silent: str, tmp_path: Path) -> None:
    refused = Answer(("x",), 1, "", "scontrol: error: Access/permission denied")
    number = jobs_of("22.05")["Licenses"]
    for word in ("Licenses", "QOSGrpGRES", "Reservation", "Resources"):
        number = jobs_of("22.05")[word]
        why = told(job(number, reason=word), Recorded("22.05", **{silent: refused}).slurm(), tmp_path)
        assert why.sentence
        found = facts(why)
        if silent in ("nodes", "partitions") and "room" in found:
            assert found["room"]["free"] is None
        if silent == "queue" and "queue" in found:
            assert found["queue"]["ahead"] is None
        if silent == "book" and word == "QOSGrpGRES":
            assert found["limit"]["used"] is None
        if silent == "licenses" and word == "Licenses":
            assert found["license"]["free"] is None
    assert all("denied" in why_not for why_not in why.unknown.values())


# Who is ahead, and what is free


def test_only_those_that_slurm_looks_at_first_are_ahead(tmp_path: Path) -> None:
    number = jobs_of("22.05")["Resources"]
    mine = {
        "partition": "gpu",
        "tres_per_node": "gres:gpu:a100:2",
        "tres_alloc": "cpu=1,mem=1G,node=1,gres/gpu=2",
    }
    rows = [
        queue_row(number, prioritylong="100", username="root", **mine),
        queue_row(1, prioritylong="200", username="bob", **mine),
        queue_row(2, prioritylong="100", username="root", **mine),  # as urgent, and older
        queue_row(number + 1, prioritylong="100", **mine),  # as urgent, and younger
        queue_row(3, prioritylong="50", **mine),
        queue_row(4, prioritylong="0", reason="JobHeldUser", **mine),
        queue_row(5, prioritylong="300", reason="Dependency", **mine),
        queue_row(6, prioritylong="300", reason="QOSMaxGRESPerUser", **mine),
        queue_row(70, prioritylong="300", jobarrayid="70_[0-9,20-28:2%3]", **mine),
        queue_row(8, prioritylong="900", partition="cpu"),
        queue_row(9, state="RUNNING", prioritylong="900", **mine),
    ]
    replay = Recorded("22.05", queue="".join(rows), asked=asked_row(number, prioritylong="100", **mine))
    queue = facts(told(job(number, reason="Resources"), replay.slurm(), tmp_path))["queue"]
    assert (queue["ahead"], queue["mine"], queue["out"]) == (2 + 15, 1, 2)
    # Slurm keeps the word of its last look, at which nobody was ahead.
    for among, start in ((rows, "waits for nodes"), (rows[:1], "next to start")):
        asked = asked_row(number, prioritylong="100", reason="Resources", **mine)
        why = told(
            job(number, reason="Resources"),
            Recorded("22.05", queue="".join(among), asked=asked).slurm(),
            tmp_path,
        )
        assert why.sentence.startswith(start)
    # Components of one job start together: the first does not stand before the second.
    rows = [queue_row(number, prioritylong="100", jobarrayid=f"{number}+0", **mine), *rows[1:3]]
    asked = asked_row(number + 1, prioritylong="100", jobarrayid=f"{number}+1", **mine)
    second = job(number + 1, job_id=f"{number}+1", reason="Resources")
    replay = Recorded("22.05", queue="".join(rows), asked=asked)
    assert facts(told(second, replay.slurm(), tmp_path))["queue"]["ahead"] == 2
    assert queue["gpus"] == 17 * 2
    assert "17 jobs are ahead of it in gpu (asking for 34 GPUs; 1 of these jobs is yours)" in queue["text"]
    assert "2 more before it cannot start now" in queue["text"]


def test_ten_thousand_jobs_are_one_more_question(tmp_path: Path) -> None:
    number = 20_000
    mine = {
        "partition": "gpu",
        "tres_per_node": "gres:gpu:a100:2",
        "tres_alloc": "cpu=1,mem=1G,node=1,gres/gpu=2",
    }
    rows = "".join(
        queue_row(n, prioritylong=str(1 + n), username=f"u{n % 50}", **mine) for n in range(1, 10_001)
    )
    replay = Recorded("22.05", queue=rows, asked=asked_row(number, prioritylong="5001", **mine))
    why = told(job(number, reason="Priority"), replay.slurm(), tmp_path)
    # Of equal priority the younger: 20,000 comes after 5,000.
    assert facts(why)["queue"]["ahead"] == 10_000 - 4_999
    assert len(replay.asked) == 5


def test_free_gpus_without_cpus_are_said_to_be_of_no_use(tmp_path: Path) -> None:
    number = jobs_of("22.05")["QOSMaxGRESPerUser"]
    replay = Recorded(
        "22.05",
        nodes=lambda text: "\n".join(
            line.replace("CPUAlloc=3", "CPUAlloc=16") if "NodeName=lim1" in line else line
            for line in text.split("\n")
        ),
    )
    room = facts(told(job(number, reason="Resources"), replay.slurm(), tmp_path))["room"]
    assert (room["free"], room["blocked"], room["blocked_by"], room["fitting_nodes"]) == (1, 1, "CPUs", 0)
    assert "1 of them on nodes without CPUs enough for it" in room["text"]


SPREAD = {
    "partition": "gpu",
    "tres_per_job": "gres:gpu:8",
    "tres_alloc": "cpu=8,mem=8G,node=1,gres/gpu=8",
    "numcpus": "8",
}


def why_of(tmp_path: Path, asked: dict[str, str], **changed: Any) -> Why:
    replay = Recorded("22.05", asked=asked_row(20_000, **asked), **changed)
    return told(job(20_000, reason="Resources"), replay.slurm(), tmp_path)


def test_gpus_that_slurm_may_spread_are_not_called_impossible(tmp_path: Path) -> None:
    """--gpus=8 on nodes of 4: squeue says 1 node, and Slurm takes two."""
    why = why_of(tmp_path, SPREAD)
    assert why.verdict == "waits"
    assert facts(why)["room"]["total"] == 8
    never = why_of(tmp_path, SPREAD | {"tres_per_job": "gres:gpu:9", "tres_alloc": "cpu=9,node=1,gres/gpu=9"})
    assert never.verdict == "never"
    assert "the nodes of its partition have 8 GPUs in all" in facts(never)["room"]["text"]


def test_more_gpus_on_a_node_than_any_has_never_start(tmp_path: Path) -> None:
    why = why_of(tmp_path, {"tres_per_node": "gres:gpu:9", "tres_alloc": "cpu=1,node=1,gres/gpu=9"})
    assert why.verdict == "never"
    assert "2 nodes are without 9 GPUs" in facts(why)["room"]["text"]


def test_nodes_that_are_not_shown_make_nothing_impossible(tmp_path: Path) -> None:
    asked = {"tres_per_node": "gres:gpu:9", "tres_alloc": "cpu=1,node=1,gres/gpu=9"}
    why = why_of(tmp_path, asked, partitions=lambda text: text.replace("Nodes=full[1-2]", "Nodes=full[1-9]"))
    assert why.verdict == "waits"


def test_a_job_that_wants_whole_nodes_finds_no_room_beside_others(tmp_path: Path) -> None:
    asked = {"partition": "lim", "tres_per_node": "gres:gpu:1", "tres_alloc": "cpu=1,node=1,gres/gpu=1"}
    assert facts(why_of(tmp_path, asked))["room"]["fitting_nodes"] == 1
    room = facts(why_of(tmp_path, asked | {"oversubscribe": "NO"}))["room"]
    assert (room["free"], room["blocked"], room["fitting_nodes"]) == (1, 1, 0)
    assert "1 of them on nodes that other jobs are on" in room["text"]


def test_a_job_in_a_reservation_is_told_of_the_reservations_nodes_alone(tmp_path: Path) -> None:
    asked = {"partition": "cpu", "tres_alloc": "cpu=1,node=1", "reservation": "course"}
    reserved = {"nodes": lambda text: text.replace("State=MIXED ", "State=MIXED+RESERVED ")}
    why = why_of(tmp_path, asked, **reserved)
    assert len(Recorded("22.05").slurm().present().reservations["course"].hosts) == 1  # type: ignore[index]
    room = facts(why)["room"]
    assert (room["able"], room["fitting_nodes"], room["away"]) == (1, 1, {})
    assert facts(why_of(tmp_path, asked | {"reservation": "N/A"}, **reserved))["room"]["away"] == {
        "reserved": 1
    }


def test_a_shorter_job_is_proposed_before_a_reservation_only_if_enough_nodes_are_up(tmp_path: Path) -> None:
    asked = {
        "partition": "cpu",
        "numnodes": "2",
        "tres_alloc": "cpu=2,node=2",
        "timelimit": "10-00:00:00",
        "reason": "ReqNodeNotAvail",
    }
    drained = {"nodes": lambda text: text.replace("State=ALLOCATED ", "State=ALLOCATED+DRAIN ")}
    for changed, proposed in (({}, True), (drained, False)):
        replay = Recorded("22.05", asked=asked_row(20_000, **asked), **changed)
        why = told(job(20_000, reason="ReqNodeNotAvail"), replay.slurm(), tmp_path)
        assert facts(why)["reservation"]["reservation"] == "course"
        assert any("TimeLimit" in (one.command or "") for one in why.mends) == proposed


def test_on_26_05_only_a_job_that_asks_for_whole_nodes_is_taken_to_want_them(tmp_path: Path) -> None:
    """There, OverSubscribe is NO for every job, and Exclusive tells which it is."""
    number = jobs_of("26.05")["QOSMaxGRESPerUser"]
    room = facts(told(job(number, reason="QOSMaxGRESPerUser"), Recorded("26.05").slurm(), tmp_path))["room"]
    assert (room["free"], room["blocked"], room["fitting_nodes"]) == (1, 0, 1)
    asked = {"partition": "lim", "tres_per_node": "gres:gpu:1", "tres_alloc": "cpu=1,node=1,gres/gpu=1"}
    whole = Recorded("26.05", asked=asked_row(20_000, **asked, oversubscribe="NODE"))
    assert facts(told(job(20_000), whole.slurm(), tmp_path))["room"]["fitting_nodes"] == 0
    assert any("Exclusive:" in word for argv in whole.asked for word in argv)


def test_a_limit_behind_the_one_that_slurm_names_is_told_too(tmp_path: Path) -> None:
    """It waits until its user's other job ends, says Slurm; it is too large for the QOS all the same."""
    number = jobs_of("22.05")["QOSMaxGRESPerJob"]
    replay = Recorded("22.05", asked=lambda text: text.replace("QOSMaxGRESPerJob", "QOSGrpJobsLimit"))
    why = told(job(number, reason="QOSGrpJobsLimit", qos="jobgpu"), replay.slurm(), tmp_path)
    assert why.verdict == "never"
    assert any(
        "QOS jobgpu allows 2 GPUs for a job; this job asks for 3 GPUs" in one.text for one in why.facts
    )


def test_a_job_that_is_past_its_limit_may_leave_any_moment(tmp_path: Path) -> None:
    why = told(
        job(jobs_of("22.05")["Resources"], reason="Resources"),
        Recorded("22.05").slurm(),
        tmp_path,
        NOW + timedelta(days=400),
    )
    assert "8 more any moment: job" in facts(why)["next"]["text"]


# Slurm's estimate, and how it moved


def test_an_estimate_is_told_with_how_it_moved_since_the_last_look(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    first = remembered(job(), NOW + timedelta(hours=2), NOW, environ)
    assert (first.before, first.looked) == (None, None)
    second = remembered(job(), NOW + timedelta(hours=3), NOW + timedelta(minutes=5), environ)
    assert second.before == NOW + timedelta(hours=2)
    assert second.looked == NOW
    other = remembered(job(submit=NOW + timedelta(days=9)), NOW, NOW, environ)
    assert other.looked is None  # another job with the same number
    assert remembered(job(cluster="beta"), NOW, NOW, environ).looked is None
    third = remembered(job(), None, NOW + timedelta(minutes=9), environ)
    assert (third.expected, third.before) == (None, NOW + timedelta(hours=3))


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    for number in range(MOST_JOBS + 20):
        remembered(job(number), NOW, NOW, environ)
    (path,) = (tmp_path / "slurmgpu" / "estimates").iterdir()
    kept = json.loads(path.read_text())["jobs"]
    assert len(kept) == MOST_JOBS
    assert remembered(job(5), NOW, NOW, environ).looked is None
    assert remembered(job(MOST_JOBS + 19), NOW, NOW, environ).looked == NOW


@pytest.mark.parametrize(
    "damage",
    [
        "", "{", "[]", '{"schema": "slurmgpu.estimates/1", "jobs": 3}', '{"schema": "x", "jobs": {}}',
        "\x00" * 300_000,
    ],
)  # fmt: skip
def test_a_damaged_memory_is_none(damage: str, tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    remembered(job(), NOW, NOW, environ)
    (path,) = (tmp_path / "slurmgpu" / "estimates").iterdir()
    path.write_text(damage)
    assert remembered(job(), NOW, NOW, environ).looked is None
    assert remembered(job(), NOW, NOW, environ).looked == NOW


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert remembered(job(), NOW, NOW, {"XDG_CACHE_HOME": str(tmp_path / "file")}).expected == NOW


def test_a_clusters_name_leads_nowhere_else(tmp_path: Path) -> None:
    remembered(job(cluster="../../x/y"), NOW, NOW, {"XDG_CACHE_HOME": str(tmp_path)})
    (path,) = (tmp_path / "slurmgpu" / "estimates").iterdir()
    assert path.suffix == ".json"
    assert not (tmp_path / "x").exists()


# The command


def run(slurm: Slurm, *words: str) -> Result:
    return CliRunner().invoke(command, list(words), obj=slurm, catch_exceptions=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def status_row(number: int, **values: str) -> str:
    """A row of the queue as status asks for it."""
    from slurmgpu.slurm.squeue import FIELDS
    from slurmgpu.slurm.text import SEPARATOR

    given = {"JobArrayID": str(number), "JobID": str(number), "UserName": "root", "Partition": "gpu", "State": "PENDING",
             "Reason": "Priority", "Name": "digits", "QOS": "normal", "Account": "lab", "SubmitTime": "1795550000",
             "TimeLimit": "1:00:00", "NumNodes": "1", "NumCPUs": "1", "tres-alloc": "cpu=1,node=1"}  # fmt: skip
    given |= values
    return "".join(f"{given.get(name, 'N/A')}{SEPARATOR}" for name in FIELDS) + "\n"


class Whole(Recorded):
    """Answers status's own questions, too."""

    def __init__(self, *rows: str, **changed: Any) -> None:
        super().__init__("22.05", **changed)
        self.rows = "".join(rows)

    def __call__(self, argv: Any, **how: Any) -> Answer:
        if argv[0] == "squeue" and any(word.startswith("--user=") for word in argv):
            self.asked.append(list(argv))
            return said(self.rows)
        return super().__call__(argv, **how)


def test_an_answer_is_a_sentence_its_figures_and_what_to_do(here: Path) -> None:
    number = jobs_of("22.05")["PartitionTimeLimit"]
    replay = Whole(status_row(number, Reason="PartitionTimeLimit", Name="di\x1b[31mgits"))
    shown = run(replay.slurm(), str(number))
    assert shown.exit_code == 0
    assert (
        f"job {number} (di\\x1b[31mgits) is waiting, and will never start as it is; Slurm's reason: PartitionTimeLimit\n"
        in shown.stdout
    )
    assert "  - asks for 5 d; partition gpu allows 1 d\n" in shown.stdout
    assert f"      scontrol update JobId={number} TimeLimit=1-00:00:00\n" in shown.stdout
    assert len(replay.asked) <= 8


def test_on_a_narrow_terminal_no_word_is_cut(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = jobs_of("22.05")["PartitionTimeLimit"]
    terminal = SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True), stderr=sys.stderr)
    monkeypatch.setattr("slurmgpu.cli.why.sys", terminal)
    monkeypatch.setattr("slurmgpu.cli.why.get_terminal_size", lambda: os.terminal_size((50, 24)))
    shown = run(Whole(status_row(number, Reason="PartitionTimeLimit")).slurm(), str(number))
    commands = [line for line in shown.stdout.splitlines() if len(line) > 50]
    assert all("scontrol update" in line for line in commands)


def test_json_has_a_schema_and_every_figure(here: Path) -> None:
    number = jobs_of("22.05")["Priority"]
    shown = run(Whole(status_row(number)).slurm(), str(number), "--json")
    document = json.loads(shown.stdout)
    assert document["schema"] == "slurmgpu.why/1"
    (one,) = document["jobs"]
    assert one["verdict"] == "waits"
    assert one["start"]["looked"] is None
    queue = next(fact for fact in one["facts"] if fact["what"] == "queue")
    assert queue["ahead"] == 1
    again = json.loads(run(Whole(status_row(number)).slurm(), str(number), "--json").stdout)
    assert again["jobs"][0]["start"]["looked"] is not None


def test_a_job_that_slurm_does_not_know_ends_with_1_and_one_not_asked_for_with_3(here: Path) -> None:
    shown = run(Whole(status_row(5)).slurm(), "123456789")
    assert shown.exit_code == 1
    assert "neither the queue nor accounting knows it" in shown.stderr

    def away(argv: Any, **_: Any) -> Answer:
        if argv[0] == "sacct":
            return said("")
        return Answer(
            tuple(argv), 1, "", f"{argv[0]}: error: Unable to contact slurm controller (connect failure)"
        )

    assert run(Slurm(run=away, env={"SLURM_CONF": "/nowhere"}), "123456789").exit_code == 3


def test_running_and_ended_jobs_say_what_they_do(here: Path) -> None:
    start = str(int(datetime.now(timezone.utc).timestamp()) - 3600)
    rows = [
        status_row(
            5,
            State="RUNNING",
            StartTime=start,
            TimeLeft="2:00:00",
            NodeList="n[1-2]",
            Reason="None",
            NumNodes="2",
        ),
        status_row(6, State="FAILED", exit_code="256", Reason="NonZeroExitCode"),
    ]
    shown = run(Whole(*rows).slurm(), "5", "6")
    assert "job 5 (digits) is running\n  - since" in shown.stdout
    assert "for 1 h" in shown.stdout
    assert "in 2 h: its time limit" in shown.stdout
    assert "job 6 (digits) failed\n  first cause: not known (exit code 1)" in shown.stdout


def test_a_running_training_says_how_far_it_is_and_how_much_its_gpus_do(tmp_path: Path) -> None:
    gpu = GpuSummary(host="n1", index=0, utilisation_mean=0.37)
    running = job(
        state=JobState.RUNNING,
        progress=Progress(step=1200, total_steps=9000, loss=1.23, eta_seconds=7200, age_seconds=2),
        sampled=SampleSummary(seconds=600, hosts=1, gpus=(gpu,)),
    )
    found = facts(told(running, Slurm(), tmp_path))
    assert found["progress"]["text"] == "its training: 1200/9000 13% loss 1.23 eta 2 h"
    assert found["progress"]["total_steps"] == 9000
    assert found["gpu_use"]["text"] == "its GPUs were in use 37% of the time"


def test_tasks_that_failed_come_before_those_that_went_well_which_share_a_line(here: Path) -> None:
    well = [status_row(number, State="COMPLETED") for number in range(20, 34)]
    shown = run(Whole(*well, status_row(40, State="FAILED", exit_code="256")).slurm(), "digits")
    assert shown.stdout.split("\n", 1)[1].startswith("\njob 40 (digits) failed\n")
    assert shown.stdout.endswith("\ncompleted: 20, 21, 22, 23, 24, 25, 26, 27 and 28\n")
    assert "5 more jobs are not explained" in shown.stderr


def test_a_failed_job_is_told_with_what_failed_first_by_its_log(here: Path) -> None:
    log = here / "job.out"
    log.write_text(
        'step 1\nTraceback (most recent call last):\n  File "/home/ada/train.py", line 3, in <module>\n    import numpi\n'
        "ModuleNotFoundError: No module named 'numpi'\n"
    )
    row = status_row(
        6, State="FAILED", exit_code="256", Reason="NonZeroExitCode", StdOut=str(log), WorkDir=str(here)
    )
    shown = run(Whole(row).slurm(), "6")
    assert "job 6 (digits) failed\n  first cause: Python has no module numpi\n" in shown.stdout
    assert "numpi" in shown.stdout
    (one,) = json.loads(run(Whole(row).slurm(), "6", "--json").stdout)["jobs"]
    assert one["cause"]["schema"] == "slurmgpu.cause/1"
    assert "numpi" in " ".join(one["cause"]["evidence"])
    healthy = status_row(8, State="COMPLETED", exit_code="0", StdOut=str(log), WorkDir=str(here))
    assert json.loads(run(Whole(healthy).slurm(), "8", "--json").stdout)["jobs"][0]["cause"] is None


ORDERLY = "slurmgpu: stopped by time at step 90, saved in checkpoints/step-90: start it again to continue\n"


def test_a_stop_in_good_order_is_no_failure(here: Path) -> None:
    log = here / "job.out"
    row = status_row(6, State="FAILED", exit_code=str(75 << 8), StdOut=str(log), WorkDir=str(here))
    shown = run(Whole(row).slurm(), "6").stdout
    assert "job 6 (digits) stopped in good order\n  stopped, and can go on: slurmgpu resume 6\n" in shown
    root = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-01_00:00:00\n  host      : n1\n"
    root += "  rank      : 0 (local_rank: 0)\n  exitcode  : 75 (pid: 5)\n"
    log.write_text(ORDERLY + root + "srun: error: n1: task 0: Exited with exit code 1\n")
    torchrun = status_row(6, State="FAILED", exit_code="256", StdOut=str(log), WorkDir=str(here))
    shown = run(Whole(torchrun).slurm(), "6").stdout
    assert (
        "job 6 (digits) stopped in good order\n  the training stopped in good order at step 90 (time), saved in"
        in shown
    )
    assert "first cause" not in shown
    log.write_text(ORDERLY + root.replace("75", "1"))
    assert "job 6 (digits) failed" in run(Whole(torchrun).slurm(), "6").stdout


def test_without_a_job_the_newest_is_meant(here: Path) -> None:
    rows = [
        status_row(5, SubmitTime="1795550000", State="FAILED"),
        status_row(4, SubmitTime="1795560000", State="RUNNING"),
    ]
    shown = run(Whole(*rows).slurm())
    assert "job 4 (digits), your newest\n" in shown.stderr
    assert "job 4 (digits) is running" in shown.stdout
    assert "job 5" not in shown.stdout
    nothing = CliRunner().invoke(command, [], obj=Whole().slurm())
    assert "you have had none since yesterday" in str(nothing.exception)


def test_shapes_are_asked_of_slurm_and_not_against_a_sites_will(here: Path) -> None:
    number = jobs_of("22.05")["Resources"]
    replay = Whole(status_row(number, Reason="Resources"))
    tried: list[list[str]] = []

    def with_sbatch(argv: Any, **how: Any) -> Answer:
        if argv[0] != "sbatch":
            return replay(argv, **how)
        tried.append(list(argv))
        if "--partition=lim" in argv:
            return Answer(
                tuple(argv), 1, "", "allocation failure: Requested node configuration is not available"
            )
        return Answer(
            tuple(argv),
            0,
            "",
            "sbatch: Job 9 to start at 2026-11-24T23:00:00 using 1 processors on nodes n1 in partition gpu",
        )

    slurm = Slurm(run=with_sbatch, env={"SLURM_CONF": "/nowhere"})
    shown = run(slurm, str(number), "--shapes")
    assert shown.exit_code == 0
    assert 2 <= len(tried) <= 6
    assert all("--test-only" in argv for argv in tried)
    assert "--gpus-per-node=a100:2" in tried[0]
    assert "--time=00:15:00" in tried[1]
    assert "  - as it is: " in shown.stdout
    assert "with --partition=lim: never; Slurm says: allocation failure" in shown.stdout
    (here / "site").mkdir()
    (here / "site" / "config.yaml").write_text("policy: {test_only: false}\n")
    tried.clear()
    refused = CliRunner().invoke(command, [str(number), "--shapes"], obj=slurm)
    assert "does not want `sbatch --test-only` to be asked" in str(refused.exception)
    assert tried == []


@pytest.mark.parametrize(
    ("ahead", "free_for"),
    [(f"{(NOW + timedelta(minutes=47)).timestamp():.0f}", 45 * 60), ("N/A", None), ("", 365 * 86400 - 120)],
)
def test_a_shape_that_fits_before_those_ahead_is_it(ahead: str, free_for: int | None, tmp_path: Path) -> None:
    """sbatch --test-only lets a job wait for all jobs that wait already; backfilling starts it at once."""
    first = {"partition": "lim", "prioritylong": "99", "starttime": ahead, "reason": "Resources"}
    row = queue_row(19_000, **first) if ahead else ""
    request = {"partition": "lim", "tres_per_node": "gres:gpu:1", "tres_alloc": "cpu=1,node=1,gres/gpu=1"}
    asked = asked_row(20_000, timelimit="2:00:00", **request)
    replay = Recorded("22.05", asked=asked, queue=lambda text: _without_waiting(text) + row)

    def with_sbatch(argv: Any, **how: Any) -> Answer:
        told = "sbatch: Job 9 to start at 2026-11-24T23:00:00 using 1 processors on nodes n1 in partition lim"
        return Answer(tuple(argv), 0, "", told) if argv[0] == "sbatch" else replay(argv, **how)

    slurm = Slurm(run=with_sbatch, env={"SLURM_CONF": "/nowhere"})
    as_it_is, shorter, *_ = shapes_of(slurm, job(20_000), slurm.present(), tmp_path, NOW)
    assert (as_it_is.limit, shorter.limit) == (7200, 3600)
    assert as_it_is.free_for == free_for
    assert shorter.free_for == free_for


def _without_waiting(queue: str) -> str:
    return "".join(f"{row}\n" for row in queue.split("\n") if row and "PENDING" not in row)


# Words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (59, "59 s"), (61, "1 min"), (3600, "1 h"), (5400, "1 h 30 min"), (93600, "1 d 2 h"),
        (86401, "1 d"), (-120, "2 min"),
    ],
)  # fmt: skip
def test_a_length_of_time_is_told_in_two_units_at_most(seconds: int, text: str) -> None:
    assert span(seconds) == text


def test_a_moment_of_another_day_has_its_day() -> None:
    noon = NOW.astimezone().replace(hour=12, minute=0)
    assert time_of_day(noon, noon) == "12:00"
    assert time_of_day(noon + timedelta(days=1), noon).endswith("12:00")
    assert time_of_day(noon + timedelta(days=1), noon) != "12:00"
    assert time_of_day(noon + timedelta(days=30), noon).startswith("20")


def test_lists_say_how_many_more() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed([str(n) for n in range(9)]) == "0, 1, 2, 3 and 5 more"
    assert listed(["a\x1b"]) == "a\\x1b"


@pytest.mark.parametrize("release", RELEASES)
def test_what_mends_a_limit_would_start_the_job(release: str, tmp_path: Path) -> None:
    numbers, slurm = jobs_of(release), Recorded(release).slurm()

    def commands(word: str, **more: str) -> list[str]:
        return [
            one.command or "" for one in told(job(numbers[word], reason=word, **more), slurm, tmp_path).mends
        ]

    # NumNodes=2 alone lets the job ask for two nodes and three, and wait for ever.
    assert any("NumNodes=2-2" in one for one in commands("PartitionNodeLimit"))
    other = [
        one.rpartition("QOS=")[2] for one in commands("QOSMaxJobsPerUserLimit", qos="onejob") if "QOS=" in one
    ]
    assert other
    assert not {"onejob", "onecpu", "grpcpu", "grpjobs", "short", "leastgpu"} & set(other)
    budget = commands("AssocGrpCPURunMinutesLimit", account="runmins")
    assert [one.rpartition(" ")[2] for one in budget] == ["TimeLimit=30"]


def test_a_qos_that_a_partition_does_not_take_is_told_with_those_that_it_takes(tmp_path: Path) -> None:
    replay = Recorded(
        "22.05",
        asked=lambda text: text.replace("Resources", "QOSNotAllowed"),
        partitions=lambda text: text.replace("AllowQos=ALL", "AllowQos=long"),
    )
    number = jobs_of("22.05")["Resources"]
    why = told(job(number, reason="QOSNotAllowed", qos="normal"), replay.slurm(), tmp_path)
    assert any("takes QOS long, not normal" in one.text for one in why.facts), why.facts
