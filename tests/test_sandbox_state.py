"""What is known of a sandbox between its up and its down: its state, its processes, its folders, its shell."""

from __future__ import annotations

import datetime
import os
import secrets
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.sandbox import life
from slurmgpu.sandbox.processes import Keeper, boot_id, identify, is_running, processes_of
from slurmgpu.sandbox.programs import SandboxFailed
from slurmgpu.sandbox.starting import reserved_ports
from slurmgpu.sandbox.state import (
    State,
    folder_of,
    known_sandboxes,
    locked,
    note_parents,
    read_state,
    write_state,
)
from tests.test_sandbox import SHAPE, home

__all__ = ["home"]

# Other sandboxes on this machine have other ones.
TOKEN = secrets.token_hex(16)


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
        supervisor=process,
        ready=True,
    ).model_copy(update=update)
    folder = folder_of(name)
    folder.mkdir(parents=True)
    write_state(folder, state)
    return folder, state


def sleeping(marks: dict[str, str], *handles: int) -> subprocess.Popen[bytes]:
    """A process with these marks in its environment, which /proc shows a moment after it has started."""
    process = subprocess.Popen(["sleep", "60"], env=os.environ | marks, pass_fds=handles)
    shown = Path(f"/proc/{process.pid}/environ")
    while not all(f"{name}={value}".encode() in shown.read_bytes() for name, value in marks.items()):
        time.sleep(0.001)
    return process


def test_a_state_comes_back_as_it_was_written() -> None:
    folder, state = written("x", os.getpid())
    assert read_state(folder) == state
    assert known_sandboxes() == {"x": folder}


def test_a_process_with_the_same_id_is_not_taken_for_the_supervisor() -> None:
    _, state = written("x", os.getpid())
    assert state.condition == "alive"
    ours = state.supervisor
    later = state.model_copy(update={"supervisor": replace(ours, started=ours.started + 1)})
    after_reboot = state.model_copy(update={"supervisor": replace(ours, boot="another")})
    assert (later.condition, after_reboot.condition) == ("crashed", "crashed")


def test_a_shell_that_talks_to_a_sandbox_is_none_of_its_processes(tmp_path: Path) -> None:
    conf = {"SLURM_CONF": f"{tmp_path}/slurm.conf"}
    mine = {"SLURMGPU_SANDBOX_TOKEN": TOKEN}
    on_node = conf | {"SLURMD_NODENAME": "node1"}
    started = [sleeping(added) for added in (conf, mine, on_node)]
    try:
        shell, daemon, task = (process.pid for process in started)
        assert processes_of(tmp_path, TOKEN) == sorted([daemon, task])
        assert shell not in processes_of(tmp_path, TOKEN)
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_step_daemon_that_shows_no_environment_is_found_by_what_it_has_open(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    daemon = shutil.copy(shutil.which("sleep") or "", tmp_path / "slurmstepd-wlm")
    ways: list[dict[str, Any]] = [
        {"cwd": here},
        {"cwd": "/", "stdout": (here / "log").open("w")},
        {"cwd": elsewhere},
    ]
    started = [subprocess.Popen([daemon, "60"], env={}, **way) for way in ways]
    other = subprocess.Popen(["sleep", "60"], env={}, cwd=here)
    try:
        expected = sorted(process.pid for process in started[:2])
        assert processes_of(here, TOKEN) == expected
        here.rename(tmp_path / "gone")
        assert processes_of(here, TOKEN) == []
        assert processes_of(tmp_path / "gone", TOKEN) == expected
        shutil.rmtree(tmp_path / "gone")
        assert processes_of(tmp_path / "gone", TOKEN) == expected
    finally:
        ways[1]["stdout"].close()
        for process in (*started, other):
            process.kill()
            process.wait()


def test_an_ended_process_does_not_run() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = identify(process.pid)
        assert found.boot == boot_id()
        assert is_running(found)
        process.kill()
    assert not is_running(found)


def test_a_crashed_one_is_cleaned_up_by_down() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        folder, _ = written("x", process.pid)
        process.kill()
    ended = life.bring_down("x")
    assert ended.clean
    assert ended.crashed
    assert not folder.exists()


def test_a_folder_without_a_state_is_a_crashed_one() -> None:
    folder = folder_of("x")
    folder.mkdir(parents=True)
    with pytest.raises(SandboxFailed, match="has crashed"):
        life.running_sandbox("x")
    ended = life.bring_down("x")
    assert ended.clean
    assert not folder.exists()


def test_one_of_another_release_is_ended_and_not_just_forgotten() -> None:
    folder = folder_of("x")
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"schema_name": "slurmgpu.sandbox/99"}')
    conf = {"SLURM_CONF": f"{folder}/slurm.conf"}
    daemon = sleeping(conf | {"SLURMGPU_SANDBOX_TOKEN": "unknown"})
    shell = sleeping(conf)
    try:
        ended = life.bring_down("x")
        assert ended.clean
        assert daemon.wait(timeout=60) == -9
        assert shell.poll() is None
    finally:
        for process in (daemon, shell):
            process.kill()
            process.wait()


# Its folder, and those around it


def test_the_last_sandbox_takes_its_folders_along(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "made"))
    for name in ("first", "second"):
        with locked() as made:
            folder_of(name).mkdir()
            note_parents(folder_of(name), made)
    assert life.bring_down("first") is not None
    assert list(known_sandboxes()) == ["second"]
    assert life.bring_down("second") is not None
    assert list(home.iterdir()) == []


def test_the_folders_go_along_whoever_of_two_made_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that makes the folders can come to the lock as the second, and be the first to go."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "made"))
    with locked() as made:
        for name, known in (("quick", []), ("maker", made)):
            folder_of(name).mkdir()
            note_parents(folder_of(name), known)
    life.bring_down("maker")
    life.bring_down("quick")
    assert list(home.iterdir()) == []


def test_folders_that_were_there_before_stay(home: Path) -> None:
    (home / "slurmgpu").mkdir()
    (home / "slurmgpu" / "other").write_text("somebody else's")
    with locked() as made:
        folder_of("x").mkdir()
        note_parents(folder_of("x"), made)
    life.bring_down("x")
    assert [path.name for path in home.rglob("*")] == ["slurmgpu", "other"]


def test_down_of_nothing_makes_nothing(home: Path) -> None:
    assert life.bring_down("x") is None
    assert list(home.iterdir()) == []


def test_a_full_disk_is_told_before_anything_is_started(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "require_programs", lambda: None)
    usage = shutil.disk_usage(home)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=255 * 2**20))
    with pytest.raises(SandboxFailed, match="255 MiB free, and a sandbox takes 256"):
        life.bring_up("x", SHAPE, lambda _: "", accounting=True)
    assert list(home.iterdir()) == []


# A shell that talks to it


def test_a_shell_gets_back_what_it_had_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH"))]:
        monkeypatch.delenv(name)
    production = {
        "SLURM_CONF": "/etc/production.conf",
        "SLURM_CLUSTERS": "production",
        "SBATCH_ACCOUNT": "it's",
    }
    for name, value in production.items():
        monkeypatch.setenv(name, value)
    folder, state = written("x", os.getpid())
    gone, variables = life.entering(state, folder)
    assert gone == ["SBATCH_ACCOUNT", "SLURM_CLUSTERS"]
    assert variables["SLURM_CONF"] == str(folder / "slurm.conf")
    for name in gone:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # A second sandbox in between does not count.
    other, its_state = written("y", os.getpid())
    gone, variables = life.entering(its_state, other)
    assert life.BEFORE not in variables
    gone, variables = life.leaving()
    assert variables == production
    assert gone == ["SLURMGPU_CLUSTER", "SLURMGPU_SANDBOX", life.BEFORE]


def test_a_shell_that_had_nothing_has_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("{}", "no JSON", "[1]", '{"PATH; rm -rf /": "x"}'):
        monkeypatch.setenv(life.BEFORE, value)
        assert life.leaving() == (["SLURM_CONF", "SLURMGPU_CLUSTER", "SLURMGPU_SANDBOX", life.BEFORE], {})


# Why it did not start


def test_a_slurm_for_one_node_a_machine_says_what_to_do() -> None:
    folder, _ = written("x", os.getpid())
    (folder / "log").mkdir()
    (folder / "log" / "slurmctld.log").write_text("fatal: Duplicated NodeHostName vm in the config file\n")
    failure = Keeper(folder).failure("slurmctld ended with 1")
    assert "Duplicated NodeHostName" in failure.message
    assert failure.hint is not None
    assert "--nodes 1" in failure.hint


def test_a_port_that_a_stranger_listens_on_by_then_is_not_said_to_be_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger, subprocess.Popen(["sleep", "60"]) as process:
        written("x", process.pid, ports=(stranger.getsockname()[1],))
        ended = life.bring_down("x")
        assert ended.clean


def test_a_port_that_something_of_the_sandbox_still_listens_on_is_told() -> None:
    # Two processes listen on one socket; the sandbox's mark is on one of them alone.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        token = "1" * 32
        with sleeping({"SLURMGPU_SANDBOX_TOKEN": token}, listener.fileno()) as process:
            written("x", process.pid, token=token)
            ended = life.bring_down("x")
        assert ended.ports == [listener.getsockname()[1]]
        assert not ended.clean


@pytest.fixture
def ephemeral(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the kernel says which ports it gives to whoever names none."""
    path = tmp_path / "ip_local_port_range"
    monkeypatch.setattr("slurmgpu.sandbox.starting.EPHEMERAL", path)
    return path


def test_daemons_get_ports_that_neither_the_kernel_nor_a_job_gives_away(ephemeral: Path) -> None:
    ephemeral.write_text("32768\t60999\n")
    with reserved_ports(40) as found:
        pass
    assert len(set(found)) == 40
    assert [port for port in found if not (30_000 <= port < 32_768 or port > 60_999)] == []


def test_where_the_kernel_gives_every_port_away_daemons_get_some_of_those(ephemeral: Path) -> None:
    ephemeral.write_text("1024\t65535\n")
    with reserved_ports(40) as found:
        assert len(set(found) - {0}) == 40


def test_a_port_in_use_goes_to_nobody(ephemeral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ephemeral.write_text("1\t2\n")
    with reserved_ports(1) as (free,):
        pass
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr("slurmgpu.sandbox.starting.CANDIDATES", (taken,) * 50 + (free,) + (taken,) * 50)
        with reserved_ports(1) as found:
            assert found == [free]


def test_a_port_goes_to_one_of_two_started_at_once(ephemeral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ephemeral.write_text("1\t2\n")
    with reserved_ports(2) as both:
        pass
    monkeypatch.setattr("slurmgpu.sandbox.starting.CANDIDATES", tuple(both))
    with reserved_ports(1) as first, reserved_ports(1) as second:
        assert {*first, *second} == set(both)
    with reserved_ports(2) as again:
        assert set(again) == set(both)
