"""Discovered profiles on disk: their text, laid over documented ones, refreshed without losing a person's lines."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slurmgpu.cli.cluster import command
from slurmgpu.clusters.refreshing import likely_profiles, overlay, refreshed
from slurmgpu.clusters.writing import plain, profile_text
from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import Billing, Cluster, Discovered
from slurmgpu.models.units import Duration, Memory
from tests.recorded import RELEASES
from tests.test_discovery import discovered, slurm_of


def cluster_of(text: str) -> Cluster:
    return validate(Cluster, read_yaml(text, "the profile"), "cluster")


# The text


@pytest.mark.parametrize("release", RELEASES)
def test_the_text_says_what_was_discovered_and_nothing_else(release: str) -> None:
    found = discovered(release)
    assert plain(cluster_of(profile_text(found))) == plain(found.cluster)


@pytest.mark.parametrize("release", RELEASES)
def test_lines_are_short_and_guesses_are_marked(release: str) -> None:
    lines = profile_text(discovered(release)).splitlines()
    assert max(map(len, lines)) <= 150
    assert [line for line in lines if line.endswith(" ")] == []
    assert "  gpus: gres # guessed" in lines
    assert "  a100: {memory: 40G} # guessed: memory" in lines
    assert "  gpu: # the default" in lines
    assert sum("# 2 of them down or drained" in line for line in lines) == 1


def test_a_qos_of_which_there_is_nothing_to_say_is_listed() -> None:
    cluster = cluster_of("{name: x, qos: {normal: {}}, partitions: {gpu: {}}}")
    assert plain(cluster_of(profile_text(Discovered(cluster)))) == plain(cluster)
    assert plain(cluster)["qos"] == {"normal": {}}


def test_hostile_names_survive_the_text() -> None:
    data = {
        "name": "x",
        "description": "a: b # c, \"d\" 'e' [f] {g} 1.0 - é",
        "partitions": {
            "yes": {"nodes": [{"count": 1, "names": "n[1,3-4]", "features": ["1e5", "null", "0x1", "a:b", "~", "-x"]}]},
            "gpu-a100:shared": {"limits": {"max_time": "12:00:00"}},
        },
        "hidden": {"a.b": "said: no, " * 30 + "end"},
    }  # fmt: skip
    cluster = validate(Cluster, read_yaml(_yaml(data), "x"), "cluster")
    found = Discovered(cluster)
    assert plain(cluster_of(profile_text(found))) == plain(cluster)


def _yaml(data: Any) -> str:
    import json

    return json.dumps(data)


# Based on another


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\n{text}", encoding="utf-8")
    return path


BELOW = """\
source: {text: the site's page, date: 2020-01-01}
dialect: {memory: none, required: [account]}
gpu_types: {a100: {memory: 80G}}
partitions:
  gpu: {requires_gpu: true, limits: {max_time: "1-00:00:00", max_nodes: 4}, nodes: [{gpus: 4, gpu_type: a100}]}
  old: {}
environments: {torch: {modules: {load: [pytorch]}}}
"""


def test_a_profile_is_laid_over_another(tmp_path: Path) -> None:
    write(tmp_path, "below", BELOW)
    above = 'based_on: below\ndialect: {required: [qos]}\npartitions: {gpu: {limits: {max_time: "2:00:00"}}, new: {}}\n'
    found = load_cluster(write(tmp_path, "above", above))
    assert (found.name, found.based_on) == ("above", "below")
    assert (found.dialect.memory, found.dialect.required) == ("none", ("qos",))
    # A partition goes before the one below as a whole: no limit of it shines through.
    assert found.partitions["gpu"].limits.max_nodes is None
    assert not found.partitions["gpu"].requires_gpu
    assert list(found.partitions) == ["old", "gpu", "new"]
    assert "torch" in found.environments


def test_null_takes_a_partition_away(tmp_path: Path) -> None:
    write(tmp_path, "below", BELOW)
    found = load_cluster(write(tmp_path, "above", "based_on: below\npartitions: {old: null}\n"))
    assert list(found.partitions) == ["gpu"]


def test_a_guess_below_counts_until_something_else_stands_there(tmp_path: Path) -> None:
    guesses = "{partitions.gpu.nodes: a, partitions.old: b, dialect.memory: c, dialect.gpus: d, dialect: e}"
    write(tmp_path, "below", f"{BELOW}guessed: {guesses}\nhidden: {{qos: not documented}}\n")
    above = "based_on: below\npartitions: {gpu: {}}\ndialect: {gpus: gpus}\nqos: {normal: {}}\n"
    found = load_cluster(write(tmp_path, "above", above))
    assert found.guessed == {"partitions.old": "b", "dialect.memory": "c"}
    assert found.hidden == {}


def test_a_mistake_below_names_the_file_below(tmp_path: Path) -> None:
    below = write(tmp_path, "below", "partitions: {gpu: {limits: {max_nodes: many}}}\n")
    path = write(tmp_path, "above", "based_on: below\n")
    with pytest.raises(InvalidInput, match=rf"{below}:2: partitions.gpu.limits.max_nodes"):
        load_cluster(path)


def test_profiles_in_a_circle_are_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, "one", "based_on: two\n")
    write(tmp_path, "two", "based_on: three\n")
    path = write(tmp_path, "three", "based_on: one\n")
    with pytest.raises(InvalidInput, match=r"two\.yaml:2: based_on: .* three -> one -> two -> three"):
        load_cluster(path)


def test_a_missing_base_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    path = write(tmp_path, "mine", "based_on: uva-aftn\n")
    with pytest.raises(
        InvalidInput, match=r"mine\.yaml:2: based_on 'uva-aftn': .* did you mean 'uva-afton'\?"
    ):
        load_cluster(path)


def test_a_profile_may_be_based_on_the_shipped_one_of_its_own_name(tmp_path: Path) -> None:
    path = write(tmp_path, "uva-afton", "based_on: uva-afton\ndefault_account: mine\n")
    found = load_cluster(path)
    assert found.default_account == "mine"
    assert "gpu" in found.partitions


def documented() -> Cluster:
    return cluster_of(
        """\
name: paper
dialect: {gpus: gpus-per-node, login_shell: true}
gpu_types:
  a100: {memory: 40G}
  a100-80: {memory: 80G, gres: a100, constraint: 80gb}
partitions:
  gpu:
    requires_gpu: true
    limits: {max_gpus: 999}
    nodes: [{gpus: 8, gpu_type: a100-80, max_cpus_per_gpu: 12}]
  gone: {}
environments: {torch: {modules: {load: [pytorch]}}}
"""
    )


def test_a_documented_profile_wins_over_guesses_and_keeps_rules_unknown_to_slurm(tmp_path: Path) -> None:
    found = discovered("24.11")
    (tmp_path / "paper.yaml").write_text(_yaml(documented().model_dump(mode="json", exclude_defaults=True)))
    data = overlay(found, documented())
    path = tmp_path / "declared.yaml"
    path.write_text(profile_text(found, data))
    both = load_cluster(path)
    assert both.dialect.gpus == "gpus-per-node"
    assert both.dialect.login_shell
    assert "dialect.gpus" not in both.guessed
    gpu = both.partitions["gpu"]
    assert gpu.requires_gpu
    assert gpu.limits == found.cluster.partitions["gpu"].limits
    assert (gpu.nodes[0].gpu_type, gpu.nodes[0].max_cpus_per_gpu) == ("a100-80", 12)
    assert "gone" not in both.partitions
    assert set(both.gpu_types) == {"a100", "a100-80", "a30", "1g.10gb", "3g.40gb", "l40s"}
    assert both.gpu_types["a100-80"].constraint == "80gb"
    assert "torch" in both.environments
    assert both.source == found.cluster.source


def over(found: str, below: str) -> Cluster:
    """The profile that discovery writes of the one, based on the other."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "paper", below)
        path = Path(folder) / "here.yaml"
        cluster = Discovered(cluster_of(f"name: here\n{found}"))
        documented = load_cluster(Path(folder) / "paper.yaml")
        path.write_text(profile_text(cluster, overlay(cluster, documented)))
        return load_cluster(path)


def test_documented_rules_of_a_qos_stay_and_its_figures_are_those_of_slurm() -> None:
    below = """\
qos:
  premium:
    description: Dearer
    by_name: true
    partitions: [gpu, gone]
    limits: {max_time: "9:00:00", max_gpus: 8, max_node_time: "4:00:00"}
  free: {preemptible: true, exclusive: true}
  unseen: {by_name: true}
"""
    both = over('qos: {premium: {limits: {max_time: "1:00:00"}}, free: {}}\npartitions: {gpu: {}}\n', below)
    premium = both.qos["premium"]
    assert (premium.by_name, premium.description, premium.partitions) == (True, "Dearer", ("gpu",))
    assert (premium.limits.max_time, premium.limits.max_gpus) == (Duration.parse("1:00:00"), None)
    assert premium.limits.max_node_time == Duration.parse("4:00:00")
    assert (both.qos["free"].preemptible, both.qos["free"].exclusive) == (True, True)
    assert both.qos["unseen"].by_name


def test_rules_that_slurm_has_for_no_partition_stay_documented() -> None:
    below = """\
partitions:
  gpu:
    preemptible: true
    whole_nodes: true
    limits: {max_nodes: 9, min_gpus: 4, max_time_by_nodes: [{nodes: 2, max_time: "2:00:00"}]}
    billing: {gpu: 5, unit: core hours}
  other: {billing: {gpu: 5, unit: core hours}}
"""
    both = over("partitions: {gpu: {limits: {max_nodes: 2}}, other: {billing: {gpu: 7}}}\n", below)
    gpu = both.partitions["gpu"]
    assert (gpu.preemptible, gpu.whole_nodes) == (True, True)
    assert (gpu.limits.max_nodes, gpu.limits.min_gpus, len(gpu.limits.max_time_by_nodes)) == (2, 4, 1)
    assert gpu.billing == Billing(gpu=5, unit="core hours")
    assert both.partitions["other"].billing == Billing(gpu=7, unit="core hours")


def test_what_a_job_must_name_is_what_slurm_and_the_documentation_want_named() -> None:
    below = "default_partition: old\npartitions: {old: {}}\ndialect: {required: [account, constraint], qos: debug}\n"
    found = "partitions: {gpu: {}}\ndialect: {required: [account, partition]}\nqos: {normal: {}}\n"
    both = over(found, below)
    assert both.dialect.required == ("account", "constraint", "partition")
    assert both.default_partition is None
    assert set(both.qos) == {"normal", "debug"}


def test_a_documented_type_is_found_in_other_letters_and_asked_for_in_those_of_slurm() -> None:
    below = """\
gpu_types: {H100: {memory: 80G}, H100-94: {memory: 94G}}
partitions: {gpu: {nodes: [{gpus: 4, gpu_type: H100, max_cpus_per_gpu: 12}]}}
"""
    found = """\
gpu_types: {h100: {memory: 40G}, H100-94: {memory: 40G}}
partitions: {gpu: {nodes: [{gpus: 4, gpu_type: h100, count: 2}]}}
guessed: {gpu_types.h100.memory: well known, gpu_types.H100-94.memory: well known}
"""
    both = over(found, below)
    (group,) = both.partitions["gpu"].nodes
    assert (group.gpu_type, group.max_cpus_per_gpu) == ("H100", 12)
    assert set(both.gpu_types) == {"H100", "H100-94"}
    assert (both.gpu_types["H100"].gres, both.gpu_types["H100"].memory) == ("h100", Memory.parse("80G"))
    assert both.guessed == {}


def test_every_shipped_profile_can_be_laid_under_a_discovered_one(tmp_path: Path) -> None:
    found = discovered("22.05")
    for path in sorted(data_folder("clusters").glob("*.yaml")):
        target = tmp_path / "here.yaml"
        target.write_text(profile_text(found, overlay(found, load_cluster(path))))
        both = load_cluster(target)
        assert set(both.partitions) == set(found.cluster.partitions)


def test_the_profile_that_seems_to_be_this_cluster_is_named() -> None:
    found = Cluster.model_validate(
        {"name": "afton", "slurm_name": "afton", "partitions": {"gpu": {}, "gpu-mig": {}}}
    )
    shipped = [load_cluster(path) for path in sorted(data_folder("clusters").glob("*.yaml"))]
    assert next(name for name, _ in likely_profiles(found, shipped)) == "uva-afton"
    other = Cluster.model_validate({"name": "x", "slurm_name": "x", "partitions": {"gpu": {}, "cpu": {}}})
    assert likely_profiles(other, shipped) == []
    same = [Cluster.model_validate({"name": "y", "slurm_name": "x"})]
    assert likely_profiles(other, same) == [("y", "its cluster is called x as well")]


# Refresh

LAST = """\
# head
name: x
partitions:
  gpu: # the default
    limits: {max_time: "2-00:00:00", max_nodes: 4}
    nodes:
      - {count: 4, names: "n[1-4]", gpus: 8} # 1 of them down or drained
    state: drain
  debug:
    limits: {max_time: "00:30:00"}
gpu_types:
  a100: {memory: 40G} # guessed: memory
dialect:
  gpus: gres # guessed
guessed:
  dialect.gpus: it works
  gpu_types.a100.memory: well known
"""


def test_an_untouched_profile_becomes_the_new_one() -> None:
    new = LAST.replace("max_nodes: 4", "max_nodes: 8").replace("    state: drain\n", "")
    found = refreshed(LAST, LAST, new)
    assert found.text == new
    assert list(map(str, found.changes)) == [
        "partition gpu: limits.max_nodes 4 -> 8",
        "partition gpu: state is gone (was drain)",
    ]
    assert found.kept == []


def test_what_a_person_wrote_is_kept_to_the_letter() -> None:
    mine = LAST.replace("gpus: gres # guessed", "gpus: gpus-per-node # the site says so").replace(
        "  debug:\n", "  # short\n  debug: # for tests\n    by_name: true\n"
    )
    mine += "environments:\n  torch: # ours\n    modules: {load: [pytorch]}\n"
    new = LAST.replace('"2-00:00:00"', '"1-00:00:00"').replace("gpus: gres", "gpus: gpus")
    found = refreshed(LAST, mine, new)
    expected = mine.replace('"2-00:00:00"', '"1-00:00:00"').replace("  dialect.gpus: it works\n", "")
    assert found.text == expected
    assert list(map(str, found.changes)) == ['partition gpu: limits.max_time "2-00:00:00" -> "1-00:00:00"']
    assert list(map(str, found.kept)) == ["dialect: gpus gpus-per-node -> gpus"]


def test_what_a_person_took_out_stays_out() -> None:
    mine = LAST.replace('  debug:\n    limits: {max_time: "00:30:00"}\n', "")
    new = LAST.replace('"00:30:00"', '"00:20:00"')
    found = refreshed(LAST, mine, new)
    assert "debug" not in found.text
    assert [change.place for change in found.kept] == [("partitions", "debug")]


def test_new_partitions_come_in_and_old_ones_go() -> None:
    mine = LAST + "description: mine\n"
    new = LAST.replace("  debug:", "  big: # new\n    limits: {max_nodes: 9}\n  test:")
    found = refreshed(LAST, mine, new)
    assert [str(change) for change in found.changes] == [
        "partition big is new: {limits: {max_nodes: 9}}",
        'partition test is new: {limits: {max_time: "00:30:00"}}',
        'partition debug is gone (was {limits: {max_time: "00:30:00"}})',
    ]
    assert list(cluster_of(found.text).partitions) == ["gpu", "big", "test"]
    assert "description: mine\n" in found.text


def test_changed_nodes_are_told_kind_by_kind() -> None:
    new = LAST.replace(
        'count: 4, names: "n[1-4]", gpus: 8}',
        'count: 3, names: "n[1-3]", gpus: 8}\n      - {count: 1, names: m1}',
    )
    (change,) = refreshed(LAST, LAST, new).changes
    assert str(change).splitlines() == [
        'partition gpu: nodes - {count: 4, names: "n[1-4]", gpus: 8}',
        'partition gpu: nodes + {count: 3, names: "n[1-3]", gpus: 8}',
        "partition gpu: nodes + {count: 1, names: m1}",
    ]


def test_refreshing_a_hand_changed_profile_twice_changes_nothing_more() -> None:
    found = discovered("26.05")
    text = profile_text(found)
    mine = text.replace("  whole:\n", "  whole: # ours\n")
    once = refreshed(text, mine, text)
    assert once.text == mine
    assert once.changes == once.kept == []


# The command


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    for name in ("LMOD_CMD", "MODULESHOME", "MODULES_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "slurmgpu" / "clusters"


def invoke(*arguments: str, release: str = "24.11", **instead: Any) -> Result:
    result = CliRunner().invoke(command, arguments, obj=slurm_of(release, **instead))
    if result.exception and not isinstance(result.exception, SystemExit):
        assert isinstance(result.exception, SlurmGpuError), result.exception
    return result


def test_discover_prints_a_profile_and_tells_what_it_cost(home: Path) -> None:
    result = invoke("discover", "--name", "here")
    assert result.exit_code == 0
    assert cluster_of(result.stdout).name == "here"
    told, hidden = result.stderr.splitlines()
    assert told.startswith("cluster declared: 6 partitions, 22 nodes, 5 QOS, ")
    assert "; asked Slurm 8 times in " in told
    assert hidden.startswith("hidden: partitions.empty: ")
    assert not home.exists()


def test_nothing_is_overwritten(home: Path) -> None:
    home.mkdir(parents=True)
    mine = home / "here.yaml"
    mine.write_text("name: here\n")
    result = invoke("discover", "--save", "--name", "here")
    assert isinstance(result.exception, InvalidInput)
    assert "nothing is overwritten" in str(result.exception)
    assert "Another" not in str(invoke("discover", "--to", str(mine)).exception)
    assert mine.read_text() == "name: here\n"
    refused = invoke("refresh", "here")
    assert "was not written by" in str(refused.exception)


@pytest.mark.parametrize("name", ["./paper.yaml", "paper.yaml", "generic"])
def test_a_profile_is_based_on_one_that_is_found_again_by_its_name(home: Path, name: str) -> None:
    (home.parent.parent / "paper.yaml").write_text("name: paper\n")
    result = invoke("discover", "--save", "--based-on", name)
    assert isinstance(result.exception, InvalidInput)
    assert not home.exists()


def test_a_profile_is_based_on_another_by_the_name_of_its_file(home: Path) -> None:
    home.mkdir(parents=True)
    (home / "paper.yaml").write_text("name: of-the-site\nqos: {debug: {by_name: true}}\n")
    invoke("discover", "--save", "--name", "here", "--based-on", "paper")
    assert load_cluster(home / "here.yaml").qos["debug"].by_name


def test_only_what_is_still_guessed_is_marked_as_such() -> None:
    found = discovered("24.11")
    text = profile_text(found, overlay(found, documented()))
    assert "gpu_types: # guessed" not in text
    assert "a100.memory" not in text


def test_saved_profiles_are_refreshed_in_place(home: Path) -> None:
    saved = invoke("discover", "--save")
    assert saved.exit_code == 0
    path = home / "declared.yaml"
    assert "slurmgpu cluster use declared" in saved.stderr
    assert sorted(one.name for one in home.rglob("*.yaml*")) == ["declared.yaml", "declared.yaml"]
    assert invoke("refresh", "declared").stdout == ""
    before = path.read_text()
    dry = invoke("refresh", "declared", "--dry-run", release="22.05")
    assert dry.stdout.splitlines() == ['slurm: release "24.11.5" -> "22.05.8"', "slurm: private + cloud"]
    assert path.read_text() == before


def test_a_profile_of_another_cluster_is_not_refreshed_from_this_one(home: Path) -> None:
    invoke("discover", "--save")
    path = home / "declared.yaml"
    path.write_text(path.read_text().replace("slurm_name: declared", "slurm_name: elsewhere"))
    result = invoke("refresh", "declared")
    assert "is of the cluster elsewhere, and Slurm here is declared" in str(result.exception)


@pytest.mark.parametrize("name", ["../x", ".x", "a b", ""])
def test_a_name_is_the_name_of_a_file(home: Path, name: str) -> None:
    result = invoke("discover", "--save", "--name", name)
    assert isinstance(result.exception, InvalidInput)


def test_show_tells_everything_with_question_marks_on_guesses(home: Path) -> None:
    invoke("discover", "--save")
    lines = invoke("show", "declared").stdout.splitlines()
    assert any("GPU types: a100 40 GiB?" in line and "1g.10gb 10 GiB," in line for line in lines)
    assert any(line.startswith("  QOS debug: max time 00:30:00") for line in lines)
    assert any(line.startswith("  account mygroup (default): QOS debug, long") for line in lines)
    assert "  dialect: gpus gres?" in lines
    assert any(line.startswith("  hidden partitions.empty: ") for line in lines)
    assert any("10 nodes with 2 GPUs a100 and 2 GPUs a30" in line for line in lines)


def test_a_discovery_of_today_says_so(home: Path) -> None:
    invoke("discover", "--save")
    today = datetime.date.today()
    (line,) = [line for line in invoke("list").stdout.splitlines() if line.startswith("  declared")]
    assert line.endswith(f" {today}")
