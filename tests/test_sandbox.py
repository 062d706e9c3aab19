"""The sandbox's parts that need no Slurm: shapes, configuration, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput
from slurmgpu.sandbox import programs
from slurmgpu.sandbox.configuration import (
    Installation,
    NodeGpus,
    NodeKind,
    default_shape,
    gres_conf,
    slurm_conf,
)
from slurmgpu.sandbox.programs import ProgramsMissing, SandboxFailed
from slurmgpu.sandbox.state import folder_of, locked

SHAPE = default_shape(nodes=4, gpus=4, gpu_type="a100", cpus=64, memory_mib=512 * 1024)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path))
    monkeypatch.delenv("SLURMGPU_SANDBOX", raising=False)
    # A test's own folder has a long name.
    monkeypatch.setattr("slurmgpu.sandbox.state.LONGEST_FOLDER", 4096)
    return tmp_path


def place(accounting: bool = True) -> Installation:
    return Installation(
        "sandbox-x", Path("/f"), "me", "localhost", 1001, 1002, (1003, 1004, 1005, 1006), accounting
    )


# Shapes and what slurm.conf says of them


def test_nodes_are_named_as_slurm_abbreviates_them() -> None:
    def kind(count: int) -> NodeKind:
        return NodeKind(prefix="n", count=count, cpus=1, memory_mib=1)

    assert (kind(1).hostlist, kind(4).hostlist, kind(100).hostlist) == ("n1", "n[1-4]", "n[001-100]")
    assert kind(100).names[:2] == ["n001", "n002"]


def test_the_configuration_names_the_sandbox_and_stays_on_loopback() -> None:
    text = slurm_conf(place(), SHAPE)
    assert "ClusterName=sandbox-x\n" in text
    assert text.count("NodeAddr=127.0.0.1 ") == 4
    assert "SlurmctldHost=localhost(127.0.0.1)\n" in text
    assert "AccountingStorageEnforce=associations,limits,qos\n" in text
    assert "AccountingStorage" not in slurm_conf(place(accounting=False), SHAPE)


def test_a_partition_of_low_priority_can_be_preempted() -> None:
    lines = [line for line in slurm_conf(place(), SHAPE).split("\n") if line.startswith("PartitionName=")]
    preempted = [line for line in lines if "PreemptMode=REQUEUE" in line]
    assert [line.split()[0] for line in preempted] == ["PartitionName=preempt"]
    assert "PriorityTier=1 " in preempted[0]


def test_a_job_that_names_no_memory_can_have_all_cpus_of_a_node() -> None:
    small = default_shape(nodes=1, gpus=1, gpu_type=None, cpus=64, memory_mib=32 * 1024)
    assert "DefMemPerCPU=512\n" in slurm_conf(place(), small)
    assert "DefMemPerCPU=1000\n" in slurm_conf(place(), SHAPE)


def test_each_pretend_gpu_is_a_device() -> None:
    assert gres_conf(Path("/f"), SHAPE) == "NodeName=node[1-4] Name=gpu Type=a100 File=/f/gpu/gpu[0-3]\n"


def test_a_node_can_have_gpus_of_several_types() -> None:
    kind = NodeKind(
        prefix="n",
        count=2,
        cpus=64,
        memory_mib=1,
        gpus=(NodeGpus(count=3, type="3g.40gb"), NodeGpus(count=1, type="4g.40gb")),
    )
    shape = SHAPE.model_copy(update={"kinds": (kind,)})
    assert "Gres=gpu:3g.40gb:3,gpu:4g.40gb:1" in slurm_conf(place(), shape)
    assert gres_conf(Path("/f"), shape).splitlines() == [
        "NodeName=n[1-2] Name=gpu Type=3g.40gb File=/f/gpu/gpu[0-2]",
        "NodeName=n[1-2] Name=gpu Type=4g.40gb File=/f/gpu/gpu3",
    ]


# What is refused


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "-x", "1", "x" * 31, "ü"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="--name"):
        folder_of(name)


def test_a_folder_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmgpu.sandbox.state.LONGEST_FOLDER", 40)
    with pytest.raises(InvalidInput, match="too long for Unix sockets"):
        folder_of("x")


def test_a_folder_that_cannot_be_used_is_named_with_what_to_do(home: Path) -> None:
    (home / "slurmgpu").write_text("a file")
    with (
        pytest.raises(
            SandboxFailed, match=r"the folder for sandboxes, .*slurmgpu/sandbox, cannot be used"
        ) as caught,
        locked(),
    ):
        pass
    assert caught.value.hint is not None
    assert "XDG_STATE_HOME" in caught.value.hint


def test_missing_programs_are_named_with_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find_program", lambda _: None)
    with pytest.raises(ProgramsMissing) as caught:
        programs.require_programs()
    assert caught.value.exit_code == 4
    assert "this machine has no munged, slurmctld, slurmd, " in caught.value.message
    said = caught.value.message.splitlines()
    for system, command in [
        (
            "Debian 12",
            "apt-get install --no-install-recommends slurm-wlm munge slurmdbd mariadb-server-core mariadb-client-core",
        ),
        ("Debian 11", "apt-get install --no-install-recommends slurm-wlm munge slurmdbd mariadb-server"),
        ("Fedora", "dnf install slurm slurm-slurmctld slurm-slurmd slurm-slurmdbd munge mariadb-server"),
        ("openSUSE", "zypper install slurm slurm-node slurm-munge slurm-slurmdbd munge mariadb"),
    ]:
        (line,) = [number for number, text in enumerate(said) if text.startswith(system)]
        assert said[line + 1] == f"    sudo {command}"
    assert "epel-release" in caught.value.message
    assert caught.value.hint is not None


def test_the_docs_have_the_same_commands() -> None:
    docs = (Path(__file__).parent.parent / "docs" / "sandbox.md").read_text()
    commands = [line.strip() for line in programs.INSTALLING.splitlines() if line.startswith("    sudo")]
    assert len(commands) == 4
    for command in commands:
        assert command in docs


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--like", "nowhere"], "no such profile"),
        (["--like", "uva-afton", "--nodes", "2"], "--like takes nodes"),
        (["--gpus-per-node", "a100:x"], "--gpus-per-node"),
        (["--gpus-per-node", "100"], "at most 64"),
        (["--memory", "much"], "--memory"),
        (["--memory", "0"], "needs 1000 MiB at least"),
        (["--memory", "512"], "needs 1000 MiB at least"),
        (["--for", "99999999999d"], "at most 365d"),
        (["--for", "soon"], "such as 2h"),
    ],
)
def test_up_refuses_the_unreadable(options: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find_program", lambda name: f"/usr/bin/{name}")
    result = CliRunner().invoke(cli, ["sandbox", "up", *options])
    assert isinstance(result.exception, InvalidInput), result.exception
    assert says in result.exception.message


def test_there_is_nothing_to_do_without_a_sandbox() -> None:
    shown = CliRunner().invoke(cli, ["sandbox", "status", "--json"])
    assert json.loads(shown.stdout) == {"schema": "slurmgpu.sandboxes/1", "sandboxes": []}
    ended = CliRunner().invoke(cli, ["sandbox", "down", "x"])
    assert (ended.exit_code, ended.stdout) == (0, "")
    used = CliRunner().invoke(cli, ["sandbox", "exec", "--", "true"])
    assert isinstance(used.exception, SandboxFailed)
    assert used.exception.hint == "start it: slurmgpu sandbox up"


@pytest.mark.parametrize(("address", "told"), [("127.0.0.1", False), ("127.0.1.1", True)])
def test_up_says_so_where_the_hosts_file_makes_the_daemons_listen_on_all_addresses(
    monkeypatch: pytest.MonkeyPatch, address: str, told: bool
) -> None:
    monkeypatch.setattr("socket.gethostbyname", lambda _: address)
    monkeypatch.setattr("slurmgpu.sandbox.programs.require_programs", lambda: None)
    monkeypatch.setattr("slurmgpu.sandbox.life.bring_up", lambda *_, **__: (None, True))
    monkeypatch.setattr("slurmgpu.sandbox.life.introduction", lambda *_: ["up"])
    result = CliRunner().invoke(cli, ["sandbox", "up"])
    assert result.exit_code == 0, result.output
    assert ("its daemons listen on all of this machine's addresses" in result.stderr) == told
