"""The sandbox's parts that need no Slurm: shapes, configuration, what is written down, what is refused."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput
from slurmgpu.sandbox import life, programs
from slurmgpu.sandbox.configuration import Place, gres_conf, slurm_conf
from slurmgpu.sandbox.errors import ProgramsMissing, SandboxFailed
from slurmgpu.sandbox.keeper import Keeper
from slurmgpu.sandbox.processes import boot_id, identify, is_running, processes_of
from slurmgpu.sandbox.shape import Gpus, NodeKind, default_shape
from slurmgpu.sandbox.state import State, folder_of, known_sandboxes, read_state, supervising, write_state
from slurmgpu.sandbox.twin import own_profile

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


def place(accounting: bool = True) -> Place:
    return Place("sandbox-x", Path("/f"), "me", "localhost", 1001, 1002, (1003, 1004, 1005, 1006), accounting)


def written(name: str, pid: int, **update: object) -> tuple[Path, State]:
    """A sandbox's folder, with a state that names the process of this id as its supervisor."""
    process = identify(pid)
    assert process is not None
    state = State(
        name=name,
        cluster=f"sandbox-{name}",
        since=datetime.datetime.now(datetime.timezone.utc),
        version="22.05.8",
        accounting=True,
        shape=SHAPE,
        ports=(),
        token="0" * 32,
        supervisor=supervising(process),
        ready=True,
    ).model_copy(update=update)
    folder = folder_of(name)
    folder.mkdir(parents=True)
    write_state(folder, state)
    return folder, state


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


def test_each_pretend_gpu_is_a_device() -> None:
    assert gres_conf(Path("/f"), SHAPE) == "NodeName=node[1-4] Name=gpu Type=a100 File=/f/gpu/gpu[0-3]\n"


def test_a_node_can_have_gpus_of_several_types() -> None:
    kind = NodeKind(
        prefix="n",
        count=2,
        cpus=64,
        memory_mib=1,
        gpus=(Gpus(count=3, type="3g.40gb"), Gpus(count=1, type="4g.40gb")),
    )
    shape = SHAPE.model_copy(update={"kinds": (kind,)})
    assert "Gres=gpu:3g.40gb:3,gpu:4g.40gb:1" in slurm_conf(place(), shape)
    assert gres_conf(Path("/f"), shape).splitlines() == [
        "NodeName=n[1-2] Name=gpu Type=3g.40gb File=/f/gpu/gpu[0-2]",
        "NodeName=n[1-2] Name=gpu Type=4g.40gb File=/f/gpu/gpu3",
    ]


def test_a_sandbox_describes_itself_to_the_planner() -> None:
    profile = own_profile("x", SHAPE)
    assert (profile.name, profile.default_partition) == ("sandbox-x", "gpu")
    assert [name for name, one in profile.partitions.items() if one.preemptible] == ["preempt"]
    assert profile.partitions["debug"].nodes[0].count == 2


# What is written down


def test_a_state_comes_back_as_it_was_written() -> None:
    folder, state = written("x", os.getpid())
    assert read_state(folder) == state
    assert known_sandboxes() == {"x": folder}


def test_a_process_with_the_same_id_is_not_taken_for_the_supervisor() -> None:
    _, state = written("x", os.getpid())
    assert state.condition == "alive"
    ours = state.supervisor
    later = state.model_copy(update={"supervisor": ours.model_copy(update={"started": ours.started + 1})})
    after_reboot = state.model_copy(update={"supervisor": ours.model_copy(update={"boot": "another"})})
    assert (later.condition, after_reboot.condition) == ("crashed", "crashed")


def test_a_shell_that_talks_to_a_sandbox_is_none_of_its_processes(tmp_path: Path) -> None:
    conf = {"SLURM_CONF": f"{tmp_path}/slurm.conf"}
    mine = {"SLURMGPU_SANDBOX_TOKEN": "secret"}
    on_node = conf | {"SLURMD_NODENAME": "node1"}
    started = [subprocess.Popen(["sleep", "60"], env=os.environ | added) for added in (conf, mine, on_node)]
    try:
        shell, daemon, task = (process.pid for process in started)
        assert processes_of(tmp_path, "secret") == sorted([daemon, task])
        assert shell not in processes_of(tmp_path, "secret")
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_an_ended_process_does_not_run() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = identify(process.pid)
        assert found is not None
        assert found.boot == boot_id()
        assert is_running(found)
        process.kill()
    assert not is_running(found)


def test_a_crashed_one_is_cleaned_up_by_down() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        folder, _ = written("x", process.pid)
        process.kill()
    ended = life.bring_down("x")
    assert ended is not None
    assert ended.clean
    assert ended.crashed
    assert not folder.exists()


def test_a_folder_without_a_state_is_a_crashed_one() -> None:
    folder = folder_of("x")
    folder.mkdir(parents=True)
    with pytest.raises(SandboxFailed, match="has crashed"):
        life.running_sandbox("x")
    ended = life.bring_down("x")
    assert ended is not None
    assert ended.clean
    assert not folder.exists()


# What is refused


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "-x", "1", "x" * 31, "ü"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="--name"):
        folder_of(name)


def test_a_folder_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmgpu.sandbox.state.LONGEST_FOLDER", 40)
    with pytest.raises(InvalidInput, match="too long for Unix sockets"):
        folder_of("x")


def test_missing_programs_are_named_with_the_commands_that_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_a_slurm_for_one_node_a_machine_says_what_to_do() -> None:
    folder, _ = written("x", os.getpid())
    (folder / "log").mkdir()
    (folder / "log" / "slurmctld.log").write_text("fatal: Duplicated NodeHostName vm in the config file\n")
    failure = Keeper(folder).failure("slurmctld ended with 1")
    assert "Duplicated NodeHostName" in failure.message
    assert failure.hint is not None
    assert "--nodes 1" in failure.hint


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--like", "nowhere"], "no such profile"),
        (["--like", "uva-afton", "--nodes", "2"], "--like takes nodes"),
        (["--gpus-per-node", "a100:x"], "--gpus-per-node"),
        (["--gpus-per-node", "100"], "at most 64"),
        (["--memory", "much"], "--memory"),
        (["--memory", "0"], "needs some"),
        (["--for", "soon"], "such as 2h"),
    ],
)
def test_up_refuses_what_it_cannot_read(
    options: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
