"""Discovery from recorded answers: on every release it gives back what the recorded cluster declares."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmgpu.clusters.writing import plain, profile_text
from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import Cluster, Discovered, LoginNode
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.commands import Answer
from slurmgpu.slurm.describe import build
from slurmgpu.slurm.show import read_cluster
from tests.recorded import RELEASES, Replay, names, recorded, said
from tests.slurm.declared import declared_profile, differences, discovered_profile

DAY = datetime.date(2026, 11, 21)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


class Recorded:
    """Answers each command as the recorded Slurm did, but for those named in ``instead``."""

    def __init__(self, release: str, variant: str = "cluster", **instead: Answer) -> None:
        self.answers: dict[str, Answer] = {}
        for name in [*names(f"scontrol_{variant}_"), *names(f"sacctmgr_{variant}_")]:
            answer = recorded(name, release)
            self.answers[self._shown(answer.argv)] = instead.get(name.rpartition("_")[2], answer)

    def __call__(self, argv: Sequence[str]) -> Answer:
        return self.answers[self._shown(argv)]

    @staticmethod
    def _shown(argv: Sequence[str]) -> str:
        return argv[list(argv).index("show") + 1]


def slurm_of(release: str, variant: str = "cluster", **instead: Answer) -> Slurm:
    answers = Recorded(release, variant, **instead)
    return Slurm(run=Replay(scontrol=answers, sacctmgr=answers), env={})


def discovered(release: str, variant: str = "cluster", who: str = "root", **instead: Answer) -> Discovered:
    told = read_cluster(slurm_of(release, variant, **instead), who)
    return build(told, LoginNode(), date=DAY, groups=("root",))


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_declared_is_discovered_field_by_field(release: str) -> None:
    year, month = map(int, release.split("."))
    found = discovered_profile(discovered(release))
    assert differences(found, declared_profile((year, month), plain_nodes=4)) == []


@pytest.mark.parametrize("release", RELEASES)
def test_eight_commands_are_asked_and_none_twice(release: str) -> None:
    slurm = slurm_of(release)
    told = read_cluster(slurm, "root")
    assert told.calls == len(set(slurm.asked)) == len(slurm.asked) == 8


@pytest.mark.parametrize("release", RELEASES)
def test_the_source_names_release_cluster_and_calls(release: str) -> None:
    source = discovered(release).cluster.source
    assert source.text.startswith(f"Slurm {release}.")
    assert source.text.endswith("on cluster declared, read by slurmgpu cluster discover with 8 calls")
    assert source.date == DAY


@pytest.mark.parametrize("release", RELEASES)
def test_nodes_that_are_down_or_drained_count_and_are_remarked(release: str) -> None:
    remarks = discovered(release).remarks
    assert remarks["partitions", "gpu", "nodes", 1] == "2 of them down or drained"
    assert remarks["partitions", "cpu", "nodes", 0] == "1 of them down or drained"
    assert ("partitions", "gpu", "nodes", 0) not in remarks  # without power, in the cloud: there


@pytest.mark.parametrize("release", RELEASES)
def test_a_partition_without_nodes_is_left_out_and_said(release: str) -> None:
    cluster = discovered(release).cluster
    assert "empty" not in cluster.partitions
    assert cluster.hidden == {"partitions.empty": "left out: it has no nodes, or none is shown to you"}


def test_a_cluster_whose_accounting_has_no_command_here_is_described_without_it() -> None:
    answers = Recorded("24.11")

    def only_scontrol(argv: Sequence[str], **_: object) -> Answer:
        if argv[0] == "sacctmgr":
            raise SlurmUnreachable("sacctmgr is not on PATH: it is not installed on this machine.")
        return answers(argv)

    told = read_cluster(Slurm(run=only_scontrol, env={}), "root")
    cluster = build(told, LoginNode(), date=DAY).cluster
    assert {"gpu", "cpu"} <= set(cluster.partitions)
    assert cluster.hidden["qos"].startswith("sacctmgr is not on PATH")
    assert (cluster.qos, cluster.associations) == ({}, ())


def test_the_users_groups_are_noted_where_a_partition_is_for_some() -> None:
    told = read_cluster(slurm_of("24.11"), "root")
    assert told.partitions is not None
    assert build(told, LoginNode(), date=DAY, groups=("lab",)).cluster.user_groups == ("lab",)
    for record in told.partitions:
        record.update(AllowGroups="ALL", RootOnly="NO")
    assert build(told, LoginNode(), date=DAY, groups=("lab",)).cluster.user_groups == ()


# PrivateData


@pytest.mark.parametrize("release", RELEASES)
def test_what_private_data_hides_is_said_to_be_hidden(release: str) -> None:
    cluster = discovered(release, "private", "nobody").cluster
    assert cluster.hidden["nodes"] == (
        "`scontrol -a -o show node` said: slurm_load_node error: Access/permission denied"
    )
    assert cluster.hidden["partitions.whole.nodes"] == "4 of its nodes are not shown (PrivateData=nodes)"
    assert cluster.hidden["reservations"] == "only yours are shown (PrivateData=reservations)"
    assert cluster.hidden["associations"] == "accounting lists no account of yours on this cluster"
    assert cluster.associations == ()
    assert cluster.qos["debug"].limits.max_time is not None  # the rest goes on
    assert cluster.partitions["gpu"].limits.max_nodes == 4


@pytest.mark.parametrize("release", RELEASES)
def test_hidden_nodes_get_equal_shares_of_their_partition_and_these_are_guesses(release: str) -> None:
    cluster = discovered(release, "private", "nobody").cluster
    (group,) = cluster.partitions["whole"].nodes
    assert (group.count, group.names, group.cpus) == (4, "fat[1-4]", 128)
    # 20.11 says nothing of a partition's GPUs.
    assert group.gpus == (None if release == "20.11" else 8)
    assert "partitions.whole.nodes.0.cpus" in cluster.guessed
    (plain,) = cluster.partitions["cpu"].nodes
    assert plain.gpus == (None if release == "20.11" else 0)


# What fails


@pytest.mark.parametrize("release", RELEASES)
def test_without_slurmdbd_the_rest_goes_on_and_accounting_is_asked_once(release: str) -> None:
    slurm = slurm_of(release, qos=recorded("sacctmgr_no_slurmdbd_qos", release))
    told = read_cluster(slurm, "root")
    assert slurm.count("sacctmgr") == 1
    cluster = build(told, LoginNode(), date=DAY).cluster
    assert "`sacctmgr -nP show qos` said: " in cluster.hidden["qos"]
    assert cluster.hidden["associations"].startswith("not asked for")
    # Nothing is checked against QOS that are not known.
    assert cluster.qos == {}
    assert len(cluster.partitions) == 6


def test_a_cluster_without_accounting_is_not_asked_for_it() -> None:
    config = recorded("scontrol_cluster_config").stdout.replace(
        "accounting_storage/slurmdbd", "accounting_storage/none"
    )
    slurm = slurm_of("22.05", config=said(config))
    told = read_cluster(slurm, "root")
    assert slurm.count("sacctmgr") == 0
    assert told.hidden["qos"] == "this cluster keeps no accounting"


@pytest.mark.parametrize("most", [3, 5])
def test_a_site_may_bound_the_commands(most: int) -> None:
    slurm = slurm_of("24.11")
    told = read_cluster(slurm, "root", most=most)
    assert slurm.count("scontrol") == 3
    assert told.calls == most
    assert "max_slurm_calls" in told.hidden["reservations"]
    assert len(build(told, LoginNode(), date=DAY).cluster.partitions) == 6


def test_a_controller_that_does_not_answer_ends_it_after_one_command() -> None:
    slurm = slurm_of("22.05", config=said(stderr="scontrol: no answer in 30 s", rc=None))
    with pytest.raises(SlurmUnreachable):
        read_cluster(slurm, "root")
    assert len(slurm.asked) == 1


@pytest.mark.parametrize("what", ["partitions", "nodes", "reservations", "licenses", "user", "accounts"])
def test_one_refused_command_leaves_the_rest_as_it_is(what: str) -> None:
    whole = discovered("24.11").cluster
    cluster = discovered("24.11", **{what: said(stderr="error: Access/permission denied", rc=1)}).cluster
    (said_of_it,) = [why for key, why in cluster.hidden.items() if "Access/permission denied" in why]
    assert said_of_it.startswith("`s")
    same = [name for name in ("partitions", "qos", "associations", "licenses", "slurm") if name != what]
    kept = [name for name in same if getattr(cluster, name) == getattr(whole, name)]
    assert len(kept) >= 3


@pytest.mark.parametrize("release", RELEASES)
def test_cut_answers_never_raise(release: str) -> None:
    for what in ("config", "partitions", "nodes", "reservations", "licenses", "qos", "user", "accounts"):
        program = "sacctmgr" if what in {"qos", "user", "accounts"} else "scontrol"
        whole = recorded(f"{program}_cluster_{what}", release)
        for end in range(0, len(whole.stdout), max(1, len(whole.stdout) // 23)):
            cut = Answer(whole.argv, 0, whole.stdout[:end], "")
            discovered(release, **{what: cut})


@given(st.data())
@settings(max_examples=60)
def test_whatever_slurm_says_ends_in_a_profile_that_can_be_read_again(data: st.DataObject) -> None:
    """Bytes anywhere in any of the answers."""
    instead = {}
    for what in ("config", "partitions", "nodes", "reservations", "licenses", "qos", "user", "accounts"):
        program = "sacctmgr" if what in {"qos", "user", "accounts"} else "scontrol"
        text = recorded(f"{program}_cluster_{what}", "24.11").stdout
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(text)))
            drop = data.draw(st.integers(0, 6))
            put = data.draw(st.text("\x00\x1b\n\"'#$\\`=|,:[]{}-0a \xe9\u2028", max_size=4))
            text = text[:at] + put + text[at + drop :]
        instead[what] = said(text)
    try:
        found = discovered("24.11", **instead)
    except SlurmRefused:
        return
    again = validate(Cluster, read_yaml(profile_text(found), "the profile"), "cluster")
    assert plain(again) == plain(found.cluster)


def test_a_name_that_no_option_could_hold_is_left_out_and_said() -> None:
    qos = recorded("sacctmgr_cluster_qos", "24.11").stdout.replace("\nscavenge|", "\nada's|")
    cluster = discovered("24.11", qos=said(qos)).cluster
    assert set(cluster.qos) == {"normal", "gpulimit", "debug", "long"}
    assert cluster.hidden["qos"] == """left out: "ada's", which no option could name"""


def test_a_slurm_that_tells_nothing_is_an_error() -> None:
    no = said(stderr="scontrol: error: Access/permission denied", rc=1)
    with pytest.raises(SlurmRefused, match="says nothing of this cluster"):
        discovered("24.11", config=no, partitions=no)
