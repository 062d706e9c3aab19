"""``slurmgpu cluster verify``: where a profile and Slurm disagree, both values, and the command that tells."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurmgpu.cli.cluster import command
from slurmgpu.clusters.refreshing import overlay
from slurmgpu.clusters.verifying import disagreements, patch_of
from slurmgpu.clusters.writing import profile_text
from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import Cluster, Discovered
from slurmgpu.slurm.commands import Answer
from tests.recorded import RELEASES
from tests.test_discovery import discovered, slurm_of

# What is altered in the profile that discovery wrote, and what verify then says of it.
ALTERED = {
    'max_time: "2-00:00:00"': (
        'max_time: "3-00:00:00"',
        'partitions.gpu.limits.max_time: the profile says "3-00:00:00", Slurm "2-00:00:00" [scontrol show partition]',
    ),
    "gpus: 8, gpu_type: a100, cpus: 128": (
        "gpus: 4, gpu_type: a100, cpus: 128",
        "partitions.gpu.nodes.0.gpus (nodes with a100): the profile says 4, Slurm 8 [scontrol show node]",
    ),
    "max_nodes: 4": (
        "max_nodes: 9",
        "partitions.gpu.limits.max_nodes: the profile says 9, Slurm 4 [scontrol show partition]",
    ),
    "memory: 992000M": (
        "memory: 1T",
        "partitions.gpu.nodes.0.memory (nodes with a100): the profile says 1048576M, Slurm 992000M [scontrol show node]",
    ),
    "default_partition: gpu": (
        "default_partition: debug",
        "default_partition: the profile says debug, Slurm gpu [scontrol show partition]",
    ),
    "default_account: mygroup": (
        "default_account: third",
        "default_account: the profile says third, Slurm mygroup [sacctmgr show user]",
    ),
}


def cluster_of(text: str) -> Cluster:
    return validate(Cluster, read_yaml(text, "the profile"), "cluster")


def altered(text: str) -> str:
    for before, (after, _) in ALTERED.items():
        assert before in text, before
        text = text.replace(before, after, 1)
    return text


@pytest.mark.parametrize("release", RELEASES)
def test_what_discovery_wrote_agrees_with_slurm(release: str) -> None:
    found = discovered(release)
    assert disagreements(cluster_of(profile_text(found)), found) == []


@pytest.mark.parametrize("release", RELEASES)
def test_each_thing_that_was_altered_is_a_line_with_both_values_and_the_command(release: str) -> None:
    found = discovered(release)
    lines = [str(one) for one in disagreements(cluster_of(altered(profile_text(found))), found)]
    assert sorted(lines) == sorted(line for _, line in ALTERED.values())


def test_the_patch_makes_the_profile_agree(tmp_path: Path) -> None:
    found = discovered("24.11")
    text = altered(profile_text(found))
    made = patch_of(text, "mine.yaml", disagreements(cluster_of(text), found))
    assert [one.place for one in made.by_hand] == [("default_account",)]
    (tmp_path / "mine.yaml").write_text(text)
    done = subprocess.run(
        ["git", "apply", "-"], input=made.diff.encode(), cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    mended = cluster_of((tmp_path / "mine.yaml").read_text())
    assert [one.place for one in disagreements(mended, found)] == [("default_account",)]


def test_what_is_true_or_false_is_written_as_in_yaml() -> None:
    text = "name: mine\nslurm: {requeues: false}\n"
    found = Discovered(cluster_of("name: x\nslurm: {requeues: true}\n"))
    made = patch_of(text, "mine.yaml", disagreements(cluster_of(text), found))
    assert "+slurm: {requeues: true}\n" in made.diff


def test_nodes_that_partitions_share_by_an_alias_change_for_all_of_them() -> None:
    text = """\
name: mine
partitions:
  gpu:
    nodes: [&node {gpus: 4, gpu_type: a100, cpus: 64}] # the usual ones
  test:
    nodes: [*node]
"""
    slurm = (
        "name: x\npartitions: {gpu: {nodes: &n [{gpus: 4, gpu_type: a100, cpus: 48}]}, test: {nodes: *n}}\n"
    )
    found = Discovered(cluster_of(slurm))
    made = patch_of(text, "mine.yaml", disagreements(cluster_of(text), found))
    assert made.by_hand == []
    assert "+    nodes: [&node {gpus: 4, gpu_type: a100, cpus: 48}] # the usual ones" in made.diff
    assert made.diff.count("\n+ ") == 1


def test_what_the_profile_does_not_state_is_no_disagreement_but_a_limit_is() -> None:
    found = Discovered(
        cluster_of(
            """\
name: x
partitions:
  gpu: {limits: {max_time: 60, max_nodes: 2}, own_qos: part, nodes: [{gpus: 4, gpu_type: a100, cpus: 48, memory: 100G}]}
  cpu: {nodes: [{cpus: 48}]}
  viz: {nodes: [{gpus: 1, gpu_type: l4}]}
qos: {part: {limits: {per_user: {gpus: 8}}}}
"""
        )
    )
    profile = "name: x\npartitions: {gpu: {limits: {max_time: 60}, nodes: [{gpu_type: a100, gpus: null}]}}\n"
    said = [(".".join(map(str, one.place)), one.slurm) for one in disagreements(cluster_of(profile), found)]
    limits = [("partitions.gpu.limits.max_nodes", 2), ("partitions.gpu.limits.per_user.gpus", 8)]
    assert said == limits
    gpus = [(".".join(map(str, one.place)), one.slurm) for one in disagreements(
        cluster_of(f"{profile}covers: GPU partitions\n"), found)]  # fmt: skip
    assert gpus == [*limits, ("partitions.viz", "a partition")]
    everything = disagreements(cluster_of(f"{profile}covers: all partitions\n"), found)
    assert [one.place[-1] for one in everything][2:] == ["cpu", "viz"]


def test_types_partitions_qos_features_and_accounts_that_slurm_does_not_have_are_named() -> None:
    found = Discovered(
        cluster_of(
            """\
name: x
partitions: {gpu: {nodes: [{gpus: 4, gpu_type: h100, features: [nvlink]}], qos: [normal]}}
qos: {normal: {}, long: {}}
associations: [{account: def-pi, qos: [normal, long]}]
"""
        )
    )
    profile = cluster_of(
        """\
name: x
dialect: {constraint: "nvlink&fast", account: {pattern: "project_[0-9]+"}}
gpu_types: {a100: {memory: 40G}}
partitions:
  gpu: {nodes: [{gpus: 4, gpu_type: a100}], qos: [normal, debug]}
  old: {}
qos: {normal: {}, debug: {}}
"""
    )
    assert [str(one) for one in disagreements(profile, found)] == [
        "partitions.gpu.qos (AllowQos): the profile says [debug, normal], Slurm [normal] [scontrol show partition]",
        "partitions.gpu.nodes: the profile says GPUs a100, Slurm nothing of the kind [scontrol show node]",
        "partitions.gpu.nodes: the profile says nothing, Slurm GPUs h100 [scontrol show node]",
        "partitions.old: the profile says a partition, Slurm nothing of the kind [scontrol show partition]",
        "dialect.constraint (no node has fast): the profile says nvlink&fast, Slurm nothing of the kind [scontrol show node]",
        "qos.debug: the profile says a QOS, Slurm nothing of the kind [sacctmgr show qos]",
        "qos.long: the profile says nothing, Slurm a QOS of yours [sacctmgr show qos]",
        'dialect.account.pattern (your accounts): the profile says "project_[0-9]+", Slurm [def-pi] [sacctmgr show user]',
    ]


def test_rules_that_slurm_never_tells_are_not_compared() -> None:
    found = Discovered(cluster_of("name: x\npartitions: {gpu: {nodes: [{gpus: 4}]}}\n"))
    profile = cluster_of(
        'name: x\npartitions: {gpu: {requires_gpu: true, limits: {min_gpus: 4, max_node_time: "1:30:00"}, '
        "nodes: [{gpus: 4, gpu_type: mi250x}]}}\n"
    )
    assert disagreements(profile, found) == [], "untyped GPUs may be of any type"
    told = Discovered(cluster_of('name: x\nqos: {short: {limits: {max_node_time: "1:00:00"}}}\n'))
    profile = cluster_of('name: x\nqos: {short: {limits: {max_node_time: "1:30:00"}}}\n')
    (one,) = disagreements(profile, told)
    assert (one.here, one.slurm) == ("01:30:00", "01:00:00"), "a QOS may have it: then Slurm tells"


def test_another_cluster_is_no_disagreement_but_an_error() -> None:
    found = discovered("24.11")
    with pytest.raises(InvalidInput, match="is of the cluster elsewhere, and Slurm here is declared"):
        disagreements(cluster_of("name: x\nslurm_name: elsewhere\n"), found)
    with pytest.raises(InvalidInput, match="has none of the partitions of profile 'uva-x'"):
        disagreements(cluster_of("name: uva-x\npartitions: {standard: {}}\n"), found)


@pytest.mark.parametrize("path", sorted(data_folder("clusters").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_profile_can_be_held_against_itself(path: Path) -> None:
    profile = load_cluster(path)
    if profile.partitions:
        # Slurm has a number where the documentation has none.
        counted = {
            name: part.model_copy(
                update={
                    "nodes": tuple(
                        one if one.gpus is not None else one.model_copy(update={"gpus": 4})
                        for one in part.nodes
                    )
                }
            )
            for name, part in profile.partitions.items()
        }
        found = Discovered(profile.model_copy(update={"guessed": {}, "partitions": counted}))
        assert overlay(found, profile)
        own = {one.place for one in disagreements(profile, found)}
        # A cluster has a feature for each constraint; a documented profile need not list it at its nodes.
        assert {place for place in own if place[-1] != "constraint"} == set()


@pytest.fixture(autouse=True)
def _no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LMOD_CMD", "MODULESHOME", "MODULES_CMD"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, **instead: Answer) -> Result:
    return CliRunner().invoke(command, ["verify", *arguments], obj=slurm_of("24.11", **instead))


def test_the_command_prints_lines_json_or_a_diff_and_its_exit_code_says_if_they_agree(tmp_path: Path) -> None:
    text = profile_text(discovered("24.11"))
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    agreed = run(str(path))
    assert (agreed.exit_code, agreed.stdout) == (0, "")
    assert "no disagreement; asked Slurm 8 times" in agreed.stderr
    path.write_text(altered(text))
    differ = run(str(path))
    assert differ.exit_code == 1
    assert sorted(differ.stdout.splitlines()) == sorted(line for _, line in ALTERED.values())
    document = json.loads(run(str(path), "--json").stdout)
    assert document["schema"] == "slurmgpu.verify/1"
    assert {
        "key": "partitions.gpu.limits.max_nodes",
        "what": None,
        "profile": 9,
        "slurm": 4,
        "command": "scontrol show partition",
    } in document["disagreements"]
    patch = run(str(path), "--patch").stdout
    assert patch == f"# by hand: {ALTERED['default_account: mygroup'][1]}\n{document['patch']}"
    assert "--- a/mine.yaml" in patch


def test_what_slurm_does_not_tell_is_not_compared_and_said(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(altered(profile_text(discovered("24.11"))))
    silent = Answer(("sacctmgr",), 1, "", "sacctmgr: error: not today")
    found = run(str(tmp_path / "mine.yaml"), qos=silent)
    assert "default_account" not in found.stdout
    assert "not compared: qos: " in found.stderr
