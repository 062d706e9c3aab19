"""cluster gpus: what is free at this moment, by type and partition, and what a job of mine could get of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slurmgpu.cli.cluster import command
from slurmgpu.jobs.gpus_now import GpusNow, Mine, Row, gpus_now
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.commands import Answer
from slurmgpu.slurm.show import QOS_FIELDS
from tests.present import Recorded
from tests.recorded import RELEASES, said

CONFIG = "SelectTypeParameters = CR_CORE_MEMORY\nClusterName = alpha\nAccountingStorageType = accounting_storage/none\n"
PARTITION = (
    "PartitionName={name} State=UP Nodes={nodes} MaxNodes={most} AllowAccounts=ALL OverSubscribe={share}"
)


def partition(name: str, nodes: str, *, most: str = "UNLIMITED", share: str = "NO", **more: str) -> str:
    line = PARTITION.format(name=name, nodes=nodes, most=most, share=share)
    for key, value in more.items():
        line = line.replace(f"{key}=UP", f"{key}={value}") if key == "State" else f"{line} {key}={value}"
    return line + "\n"


def node(name: str, gres: str, used: str, **values: str) -> str:
    given = {"NodeName": name, "CPUAlloc": "0", "CPUTot": "16", "Gres": gres, "GresUsed": used, "RealMemory": "64000",
             "AllocMem": "0", "State": "IDLE"}  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in (given | values).items()) + "\n"


NODES = "".join([
    node("n1", "gpu:a100:4", "gpu:a100:1(IDX:0)", CPUAlloc="4"),
    node("n2", "gpu:a100:4", "gpu:a100:2(IDX:0-1)", CPUAlloc="16"),
    node("n3", "gpu:a100:4", "gpu:a100:0(IDX:N/A)", State="IDLE+DRAIN", Reason="x GresUsed=gpu:a100:4"),
    node("n4", "gpu:a100:4", "gpu:a100:4(IDX:0-3)", State="DOWN*"),
    node("n5", "gpu:1g.10gb:7,gpu:3g.40gb:2", "gpu:1g.10gb:3(IDX:0-2),gpu:3g.40gb:2(IDX:7-8)"),
    node("n6", "gpu:l40s:4,shard:l40s:16", "gpu:l40s:1(IDX:1),shard:l40s:3(3/4,-/4,0/4,0/4)"),
    node("n7", "gpu:a100:4", "gpu:a100:0(IDX:N/A)", AllocMem="64000", CPUAlloc="2"),
    node("n8", "gpu:a100:4", "gpu:a100:0(IDX:N/A)", State="IDLE+PLANNED"),
    node("c1", "(null)", "", CPUAlloc="3"),
])  # fmt: skip
PARTITIONS = "".join([
    partition("gpu", "n[1-4,7-8]"), partition("one", "n[1-2]", most="1"), partition("mig", "n5"),
    partition("shut", "n1", State="DRAIN"), partition("cpu", "c1"), partition("whole", "n[1,6]", share="EXCLUSIVE"),
])  # fmt: skip


def recorded(**changed: Any) -> Recorded:
    return Recorded("22.05", **({"config": CONFIG, "nodes": NODES, "partitions": PARTITIONS} | changed))


def now(**changed: Any) -> GpusNow:
    return gpus_now(recorded(**changed).slurm().present(), "root")


def row(found: GpusNow, name: str, where: str | None = None) -> Row:
    rows = found.types if where is None else found.partitions
    return next(one for one in rows if (one.type, one.partition) == (name, where))


def mine(found: GpusNow, name: str, where: str) -> Mine:
    return next(one for one in found.mine if (one.type, one.partition) == (name, where))


def test_free_gpus_are_those_that_a_job_can_have() -> None:
    a100 = row(now(), "a100")
    assert (a100.total, a100.used, a100.free, a100.block) == (24, 7, 3, 3)
    # Without a job, on nodes whose CPUs (n2) or memory (n7) are used up: nobody can have them.
    assert (a100.stranded, set(a100.stranded_for)) == (6, {"CPUs", "memory"})
    assert dict(a100.away) == {"drained": 4, "planned": 4}
    assert a100.total == a100.used + a100.free + a100.stranded + sum(a100.away.values())


def test_slices_and_shards_are_kept_apart() -> None:
    found = now()
    assert {one.type: one.slices for one in found.types} == {
        "a100": False,
        "1g.10gb": True,
        "3g.40gb": True,
        "l40s": False,
    }
    assert (row(found, "1g.10gb").free, row(found, "3g.40gb").free) == (4, 0)
    l40s = row(found, "l40s")
    # One is given out whole, of one a shard is taken: two can be had whole.
    assert (l40s.free, l40s.shards, l40s.shards_free) == (2, 16, 9)


def test_partitions_count_their_own_nodes() -> None:
    found = now()
    assert row(found, "a100", "one").total == 8
    assert row(found, "a100", "one").free == 3
    assert [one.partition for one in found.partitions if one.type == "1g.10gb"] == ["mig"]
    assert "cpu" not in {one.partition for one in found.partitions}


def test_what_one_job_could_get_minds_the_partitions_rules() -> None:
    found = now()
    assert mine(found, "a100", "gpu").gpus == 3
    assert mine(found, "a100", "one").gpus == 3
    assert (mine(found, "a100", "shut").gpus, mine(found, "a100", "shut").why) == (
        0,
        "the partition is DRAIN",
    )
    # Whole nodes only: n1 has a job.
    assert mine(found, "a100", "whole").gpus == 0
    assert mine(found, "1g.10gb", "mig").gpus == 4


def test_limits_of_account_and_qos_bound_what_a_job_gets() -> None:
    config = CONFIG.replace("accounting_storage/none", "accounting_storage/slurmdbd")
    user = "root|lab|lab||normal,high|high|||||||\n"
    book = (
        "UserName=root(0) DefAccount=lab DefWckey= AdminLevel=None\n"
        "ClusterName=alpha Account=lab UserName= Partition= ParentAccount=root(1) GrpTRES=cpu=N(9),gres/gpu=32(30) MaxTRESPJ=\n"
        "ClusterName=alpha Account=lab UserName=root(0) Partition= GrpTRES=gres/gpu=N(5) MaxTRESPJ=gres/gpu=8\n"
        "QOS=high(2) GrpTRES=gres/gpu=N(3) MaxTRESPJ= Account Limits=No Accounts User Limits= "
        "0={MaxJobsPU=N(1) MaxTRESPU=cpu=N(4),gres/gpu=4(1)}\n"
    )
    found = now(config=config, user=user, book=book)
    assert (found.account, found.qos) == ("lab", "high")
    assert mine(found, "a100", "gpu") == Mine(
        "gpu", "a100", 2, "account lab: 30 of 32 used (GrpTRES)", known=True
    )
    found = now(config=config, user=user, book=book.replace("32(30)", "32(0)").replace("4(1)", "4(3)"))
    assert (mine(found, "a100", "gpu").gpus, mine(found, "a100", "gpu").why) == (
        1,
        "QOS high: 3 of 4 used (MaxTRESPU)",
    )


def test_a_qos_of_which_i_use_nothing_yet_bounds_me_too() -> None:
    config = CONFIG.replace("accounting_storage/none", "accounting_storage/slurmdbd")
    user = "root|lab|lab||normal,high|high|||||||\n"
    row = {"name": "high", "preemptmode": "cluster", "usagefactor": "1.000000", "maxtrespu": "gres/gpu=2"}
    qos = "|".join(row.get(name, "") for name in QOS_FIELDS) + "\n"
    book = "UserName=root(0) DefAccount=lab\nQOS=high(2) GrpTRES=gres/gpu=N(0) Account Limits=No Accounts User Limits=No Users\n"
    found = now(config=config, user=user, book=book, qos=qos)
    assert (mine(found, "a100", "gpu").gpus, mine(found, "a100", "gpu").why) == (
        2,
        "QOS high: 0 of 2 used (MaxTRESPU)",
    )


def test_limits_that_are_not_shown_are_not_known_and_said_so() -> None:
    config = CONFIG.replace("none", "slurmdbd") + "PrivateData = usage\nSlurmUser = slurm(64030)\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slurmgpu.slurm.present.current_user", lambda: "ada")
        found = now(config=config, user="ada|lab|lab||normal|normal|||||||\n")
    assert not mine(found, "a100", "gpu").known
    assert "PrivateData" in found.unknown["limits"]


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_tells_the_same_of_the_same_cluster(release: str) -> None:
    found = gpus_now(Recorded(release).slurm().present(), "root")
    a100 = row(found, "a100")
    assert (a100.total, a100.used, a100.free, a100.nodes) == (16, 11, 1, 4)
    assert dict(a100.away) == {"drained": 4}
    assert (row(found, "a100", "gpu").free, row(found, "a100", "lim").free) == (0, 1)
    assert found.account == "mygroup"
    assert mine(found, "a100", "lim").gpus == 1
    # The partition's own QOS allows one, and none is used of it.
    assert mine(found, "a100", "part").gpus == 1


def run(slurm: Slurm, *words: str) -> Result:
    return CliRunner().invoke(command, ["gpus", *words], obj=slurm, catch_exceptions=False)


def test_the_table_names_every_figure() -> None:
    shown = run(recorded().slurm()).stdout
    lines = [line.split() for line in shown.split("\n")]
    assert ["a100", "all", "24", "7", "3", "3", "4", "drained,", "4", "planned", "-"] in lines
    assert ["1g.10gb", "(slice)", "mig", "7", "3", "4", "4", "-", "4"] in lines
    assert "6 more a100 without a job, but 0 CPUs and memory left on those nodes: not free" in shown
    assert "shards of l40s: 9 of 16 free" in shown


def test_json_has_a_schema() -> None:
    document = json.loads(run(recorded().slurm(), "--json").stdout)
    assert document["schema"] == "slurmgpu.gpus/1"
    assert document["cluster"] == "alpha"
    assert {one["type"] for one in document["types"]} == {"a100", "1g.10gb", "3g.40gb", "l40s"}


def test_names_of_others_do_not_steer_the_terminal() -> None:
    nodes = node("n1", "gpu:a1\x1b[31m00:4", "gpu:a100:0")
    shown = run(recorded(nodes=nodes, partitions=partition("g\x1bpu", "n1")).slurm())
    assert "\x1b" not in shown.output


def test_what_slurm_does_not_say_is_not_0() -> None:
    refused = Answer(("x",), 1, "", "scontrol: error: Access/permission denied")
    shown = run(recorded(nodes=refused).slurm())
    assert "which GPUs there are is not known" in shown.stdout
    assert "denied" in shown.stderr
    document = json.loads(run(recorded(nodes=refused).slurm(), "--json").stdout)
    assert document["types"] == []
    assert "denied" in document["unknown"]["nodes"]


def test_a_cluster_without_gpus_is_said_to_have_none() -> None:
    assert (
        "Slurm lists no GPUs on this cluster" in run(recorded(nodes=node("c1", "(null)", "")).slurm()).stdout
    )


def test_six_questions_are_all_that_is_asked() -> None:
    asking = Recorded("22.05")
    run(asking.slurm())
    assert len(asking.asked) <= 6
    assert said("").ok
