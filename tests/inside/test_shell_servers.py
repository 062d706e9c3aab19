"""``slurmgpu shell --ssh`` and ``--jupyter`` with a real sshd and a real JupyterLab, in jobs of a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.inside.venvs import venv_with
from tests.slurm.conftest import absent
from tests.slurm.tool import Tool

JUPYTERLAB = "jupyterlab==4.4.9"
HOW = "in a job on a node of a sandbox"


class Serving:
    """``slurmgpu shell`` with a server, as long as it runs."""

    def __init__(self, process: subprocess.Popen[str], said: Path) -> None:
        self.process = process
        self._said = said

    @property
    def said(self) -> str:
        return self._said.read_text()

    def expect(self, pattern: str, seconds: float = 180) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.said)):
            assert time.monotonic() < deadline, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.1)
        return found

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120)


@contextmanager
def serving(tool: Tool, *words: str) -> Iterator[Serving]:
    said = tool.work.parent / "said"
    with said.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "slurmgpu", "shell", "-A", "mygroup", "-t", "20", "--gpus", "2", *words],
            cwd=tool.work,
            env=tool.env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Serving(process, said)  # type: ignore[arg-type]
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(120)


def is_open(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(5)
        return one.connect_ex(("127.0.0.1", port)) == 0


def processes_with(text: str) -> list[str]:
    """Who has it among its arguments or in its environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            known = (folder / "cmdline").read_bytes() + b"\0" + (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in known and folder.name != str(os.getpid()):
            found.append(f"{folder.name}: {known[:300]!r}")
    return found


def nothing_is_left(tool: Tool, port: int) -> None:
    assert not is_open(port)
    assert tool.jobs_here() == []
    assert not (tool.work / "runs").exists()
    # As the nodes of a sandbox are this machine, what was left of the job would be here.
    deadline = time.monotonic() + 30
    while left := processes_with(f"{tool.work}/runs"):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


# ssh


@pytest.fixture
def sshd() -> str:
    """OpenSSH's version, where its server is."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ["PATH"])
    if program is None or shutil.which("ssh") is None:
        absent("OpenSSH's server and client are not here; to install them: sudo .ci/install-slurm --inside")
    if os.geteuid() == 0:  # of root's server only
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    said = subprocess.run(["ssh", "-V"], capture_output=True, text=True).stderr
    found = re.match(r"OpenSSH_([\w.]+)", said)
    assert found
    return found[1]


def ssh(tool: Tool, line: str, *command: str, **how: object) -> subprocess.CompletedProcess[str]:
    argv = [*line.split(), *command]
    return subprocess.run(argv, env=tool.env, capture_output=True, text=True, timeout=60, **how)  # type: ignore[call-overload,no-any-return]


def test_ssh_enters_the_job_and_leaves_nothing(tool: Tool, sshd: str, executed: Callable[..., None]) -> None:
    tool.file("j.yaml", "resources: {gpus: 2}\nvariables: {GREETING: hello there}\ncommand: [true]\n")
    with serving(tool, "--ssh", "j.yaml") as server:
        line = server.expect(r"(?m)^ssh -F (\S+) (\d+)\.slurmgpu$")
        job = line[2]
        port = int(server.expect(r"Port (\d+)")[1])
        said = "echo $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES $GREETING; exit 5"
        done = ssh(tool, line[0], said)
        assert (done.returncode, done.stdout) == (5, f"{job} 0,1 hello there\n"), done.stderr + server.said
        interactive = ssh(tool, f"ssh -tt {line[0][4:]}", input="echo at=$PWD; sleep 300 & exit\n")
        assert f"at={tool.work}" in interactive.stdout.replace("\r", ""), interactive
        # A server of an editor's that leaves its session.
        ssh(tool, line[0], "setsid nohup sleep 300 >/dev/null 2>&1 </dev/null & echo started")
        copied = tool.work.parent / "copied"
        file = tool.work.parent / "file"
        file.write_text("to the node\n")
        done = ssh(tool, f"scp {line[0][4:].rsplit(' ', 1)[0]} {file} {job}.slurmgpu:{copied}")
        assert copied.read_text() == "to the node\n", done.stderr
        other_key = tool.work.parent / "other"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other_key)], check=True)
        known = line[0].replace("ssh ", f"ssh -o IdentityFile=none -i {other_key} -o BatchMode=yes ", 1)
        config = Path(line[1])
        refused = tool.work.parent / "refused.conf"
        refused.write_text(re.sub(r"IdentityFile .*", f'IdentityFile "{other_key}"', config.read_text()))
        done = ssh(tool, known.replace(line[1], str(refused)), "true")
        assert done.returncode == 255
        assert "Permission denied (publickey)" in done.stderr
        assert stat.S_IMODE(config.stat().st_mode) == 0o600
        assert server.interrupt() == 0
    assert f"job {job} was given back" in server.said
    assert not config.exists()
    nothing_is_left(tool, port)
    executed("shell", "slurmgpu shell --ssh", f"OpenSSH {sshd}", HOW)


def test_the_entry_is_included_with_consent_and_a_lost_caller_ends_the_server(tool: Tool, sshd: str) -> None:
    home = tool.work.parent / "home"
    home.mkdir()
    tool.env["HOME"] = str(home)
    with serving(tool, "--ssh", "--write-ssh-config") as server:
        name = server.expect(r"(?m)^ssh (\d+\.slurmgpu)$")[1]
        done = ssh(tool, f"ssh -F {home}/.ssh/config {name} echo there")
        assert done.stdout == "there\n", done.stderr
        port = int(server.expect(r"Port (\d+)")[1])
        assert (home / ".ssh" / "config").read_text().startswith('Include "')
        server.process.kill()
        server.process.wait(60)
        deadline = time.monotonic() + 60
        while is_open(port) or tool.jobs_here():
            assert time.monotonic() < deadline, server.said
            time.sleep(0.2)
    (run_dir,) = (tool.work / "runs").iterdir()
    assert not any((run_dir / name).exists() for name in ("client_key", "host_key", "environment"))


# Jupyter


def answer(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.heavy
def test_jupyterlab_wants_its_token_and_leaves_nothing(tool: Tool, executed: Callable[..., None]) -> None:
    venv = venv_with(JUPYTERLAB)
    with serving(tool, "--jupyter", "--set", f"environment.python.venv={venv}") as server:
        found = server.expect(r"http://127\.0\.0\.1:(\d+)/\?token=(\w+)")
        port, token = int(found[1]), found[2]
        assert re.search(rf"(?m)^ssh -N -L {port}:\S+:{port} \S+@\S+$", server.said)
        base = f"http://127.0.0.1:{port}"
        status, text = answer(f"{base}/api/status?token={token}")
        assert (status, "kernels" in json.loads(text)) == (200, True)
        assert answer(f"{base}/api/status")[0] == 403
        assert answer(f"{base}/api/contents?token={'0' * len(token)}")[0] == 403
        assert "lab" in answer(f"{base}/lab?token={token}")[1].lower()
        job = tool.jobs_here()[0]
        asked = [
            ["ps", "-eww", "-o", "args"],
            ["squeue", "-o", "%all"],
            ["sacct", "-P", "-o", "ALL", "-j", job],
            ["scontrol", "show", "job", job],
        ]
        for argv in asked:
            shown = tool.slurm.run(argv)
            assert shown.stdout, shown
            assert token not in shown.stdout, argv
        readable = [
            path
            for path in tool.work.rglob("*")
            if path.is_file() and token in path.read_text(errors="replace") and path.stat().st_mode & 0o077
        ]
        assert readable == []
        assert server.interrupt() == 0
    assert f"job {job} was given back" in server.said
    nothing_is_left(tool, port)
    executed("shell", "slurmgpu shell --jupyter", JUPYTERLAB.replace("==", " "), HOW)


def test_a_node_without_jupyter_says_so_in_one_line(tool: Tool) -> None:
    # The modules are for the node: here, nothing can be told of the Python in them.
    tool.file("modules/none/1.0.lua", "")
    environment = "environment={modules: {use: [" + str(tool.work / "modules") + "], load: [none]}}"
    done = tool("shell", "--jupyter", "-A", "mygroup", "--gpus", "1", "--set", environment)
    assert done.returncode == 1, done
    assert re.search(r"jupyterlab has not started on \S+: the environment has neither", done.stderr), (
        done.stderr
    )
