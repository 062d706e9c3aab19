"""``slurmgpu shell --ssh`` and ``--jupyter`` without Slurm: keys, tokens, configuration, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmgpu.script.render import ShellValues
from slurmgpu.shell import server
from slurmgpu.shell.server import Server, write_private
from tests.test_shell import environment, home, planned, script_of, shell

__all__ = ["home"]

SERVER = Server("node1", 23456, None)


def without_server(home: Path) -> None:
    """No server: only what is prepared for it counts."""
    salloc = home / "bin" / "salloc"
    salloc.write_text(salloc.read_text().replace('bash "${@: -1}"; code=$?', "code=1"))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "run dir"
    folder.mkdir(mode=0o700)
    server.prepare_ssh(folder)
    return folder


def test_the_keys_are_ed25519_and_only_their_owner_can_read_them(keys: Path) -> None:
    for name in ("host_key", "client_key", "sshd_config"):
        assert (keys / name).stat().st_mode & 0o077 == 0
    assert (keys / "client_key.pub").read_text().startswith("ssh-ed25519 ")


def test_the_server_takes_one_user_with_one_key_and_forwards_only_what_editors_need(keys: Path) -> None:
    lines = (keys / "sshd_config").read_text().splitlines()
    assert f'AuthorizedKeysFile "{keys}/client_key.pub"' in lines
    for line in ("AuthenticationMethods publickey", "PasswordAuthentication no", "PermitTunnel no"):
        assert line in lines
    assert "AllowTcpForwarding local" in lines


def test_the_entry_pins_the_hosts_key_and_is_gone_afterwards(keys: Path, tmp_path: Path) -> None:
    with server.entry(tmp_path / "config", keys, 7, SERVER) as file:
        text = file.read_text()
        assert (file.stat().st_mode & 0o777, file.name) == (0o600, "7.conf")
        for line in ("Host 7.slurmgpu", "HostName node1", "Port 23456", "StrictHostKeyChecking yes"):
            assert line in text
        assert (keys / "known_hosts").read_text().startswith("7.slurmgpu ssh-ed25519 ")
    assert not file.exists()


def test_entries_that_cannot_be_read_keep_no_session_from_its_own(keys: Path, tmp_path: Path) -> None:
    entries = tmp_path / "config" / "ssh"
    (entries / "folder.conf").mkdir(parents=True)
    (entries / "gone.conf").symlink_to(tmp_path / "nowhere")  # ended since it was listed
    (entries / "binary.conf").write_bytes(b"\xff\x00")
    (entries / "lost.conf").write_text(f'IdentityFile "{tmp_path}/no-key"\n')
    with server.entry(tmp_path / "config", keys, 7, SERVER) as file:
        assert file.exists()
        assert not (entries / "lost.conf").exists()


def test_the_line_in_the_users_ssh_config_comes_first_and_once(tmp_path: Path) -> None:
    user_file = tmp_path / ".ssh" / "config"
    user_file.parent.mkdir()
    write_private(user_file, "Host other\n    User me\n")
    server.include_in(tmp_path / "xdg", user_file)
    line = server.include_line(tmp_path / "xdg")
    assert user_file.read_text() == f"{line}\nHost other\n    User me\n"
    assert server.includes(tmp_path / "xdg", user_file)
    assert user_file.stat().st_mode & 0o777 == 0o600


def test_another_computer_gets_there_through_the_login_node(keys: Path) -> None:
    text = server.for_elsewhere(keys, 7, SERVER, "login.example.org")
    assert "@login.example.org" in text
    assert "ProxyJump" in text
    assert "HostKeyAlias 7.slurmgpu" in text


def test_the_token_is_in_one_file_that_only_its_owner_can_read(home: Path) -> None:
    without_server(home)
    python = home / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho True\n")
    python.chmod(0o755)
    done = shell(home, "--jupyter", "--gpus", "1", "--set", f"environment.python.venv={home / 'env'}")
    token = json.loads((home / "copies" / "jupyter_config.json").read_text())["IdentityProvider"]["token"]
    assert len(token) >= 32
    assert token not in (home / "seen").read_text()
    assert token not in done.stdout + done.stderr
    others = [path for path in (home / "copies").iterdir() if path.name != "jupyter_config.json"]
    assert others
    assert not any(token in path.read_text() for path in others)
    assert any(
        line.startswith("600 ") and "jupyter_config" in line
        for line in (home / "modes").read_text().splitlines()
    )
    assert not (home / "work" / "runs").exists()


def test_a_python_without_jupyter_is_said_before_slurm_is_asked(home: Path) -> None:
    interpreter = f"environment.python.interpreter={sys.executable}"
    done = shell(home, "--jupyter", "--gpus", "1", "--set", interpreter)
    assert done.returncode == 1
    assert "has neither jupyterlab, notebook nor jupyter_server" in done.stderr
    assert not (home / "seen").exists()


@pytest.mark.parametrize(
    ("kind", "folder", "manifest", "there"),
    [("uv", ".venv", "pyproject.toml", True), ("pixi", ".pixi/envs/default", "pixi.toml", False)],
)
def test_jupyter_is_looked_for_in_the_projects_own_environment(
    home: Path, kind: str, folder: str, manifest: str, there: bool
) -> None:
    without_server(home)
    own = home / "proj" / folder
    for name, text in ((f"{own}/bin/python", f"#!/bin/sh\necho {there}\n"), (home / "proj" / manifest, "")):
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    (own / "bin" / "activate").touch()
    (own / "conda-meta").mkdir()
    (home / "bin" / "python3").symlink_to(own / "bin" / "python" if not there else sys.executable)
    done = shell(home, "--jupyter", "--gpus", "1", "--set", f"environment.python.{kind}={home / 'proj'}")
    assert (home / "seen").exists() == there, done.stderr
    assert (f"{own}/bin/python has neither" in done.stderr) != there


def test_a_node_without_sshd_says_so_in_one_line(tmp_path: Path) -> None:
    plan = planned("resources: {gpus: 1}").model_copy(update={"work_dir": str(tmp_path)})
    script = script_of(plan, ShellValues("ssh", (), {"server": "sshd", "python": "python3"}))
    (tmp_path / "script").write_text(script.replace("/sbin/sshd", "/nowhere/sshd"))
    env = environment(tmp_path, SLURM_JOB_ID="7", SLURMGPU_RUN_DIR=str(tmp_path), PATH="/usr/bin:/bin")
    env["SLURM_JOB_END_TIME"] = str(int(time.time()) + 36000)  # nothing is to wait for it
    done = subprocess.run(
        ["bash", "script"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "sshd has not started on" in line
    assert (tmp_path / "environment").stat().st_mode & 0o077 == 0  # it has the secrets of the job
    assert "there is no sshd on this node" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--ssh", "--jupyter"), "--ssh and --jupyter exclude each other"),
        (("--ssh", "--", "true"), "--ssh starts a server, and there is a command"),
        (("--jupyter", "--", "true"), "--jupyter starts a server, and there is a command"),
        (("--write-ssh-config", "--", "true"), "--write-ssh-config is for --ssh"),
    ],
)
def test_options_that_do_not_go_together_are_refused(home: Path, words: tuple[str, ...], says: str) -> None:
    done = shell(home, "--gpus", "1", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "hint:" in done.stderr
    assert not (home / "seen").exists()
