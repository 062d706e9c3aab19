"""`slurmgpu sandbox` as a user types it, each promise held against the real Slurm it starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.sandbox.processes import processes_of
from slurmgpu.sandbox.programs import missing_programs
from slurmgpu.sandbox.state import State, read_state
from tests.slurm.conftest import need_slurm
from tests.slurm.test_throwaway import processes_that_mention

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]


def wait_until(what: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


class User:
    """Somebody who calls `slurmgpu sandbox`, with sandboxes of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))
        }
        self.env |= {
            "XDG_STATE_HOME": str(home / "s"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "SLURMGPU_SITE": str(home / "site"),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NO_COLOR": "1",
        }

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "slurmgpu", "sandbox", *words],
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            **options,
        )

    def do(self, *words: str) -> str:
        """What must succeed; its stdout."""
        done = self(*words)
        assert done.returncode == 0, done
        return done.stdout

    def ask(self, *command: str, name: str = "default") -> str:
        """A command in the sandbox that must succeed; its stdout."""
        return self.do("exec", "--name", name, "--", *command).strip()

    def submit(self, *options: str) -> str:
        """The id of a job in the sandbox."""
        return self.ask("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *options)

    def state_of(self, job: str) -> str:
        return self.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def folder(self, name: str = "default") -> Path:
        return self.home / "s" / "slurmgpu" / "sandbox" / name

    def state(self, name: str = "default") -> State:
        state = read_state(self.folder(name))
        assert state is not None
        return state

    def conditions(self) -> dict[str, str]:
        sandboxes = json.loads(self.do("status", "--json"))["sandboxes"]
        return {one["name"]: one["condition"] for one in sandboxes}


def left_of(user: User, state: State, name: str) -> list[object]:
    """Everything of a sandbox that can be found: folder, processes by token and by folder, ports."""
    folder = user.folder(name)
    left: list[object] = [*processes_of(folder, state.token), *processes_that_mention(str(folder))]
    for port in state.ports:
        with socket.socket() as probe:
            left += [port] if probe.connect_ex(("127.0.0.1", port)) == 0 else []
    return [*left, folder] if folder.exists() else left


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    need_slurm()
    # Short, for the sockets in it.
    home = Path(tempfile.mkdtemp(prefix="sbx-", dir="/tmp"))
    someone = User(home)
    try:
        yield someone
    finally:
        ended = someone("down", "--all")
        shutil.rmtree(home)
    assert ended.returncode == 0, ended


@pytest.fixture(scope="module")
def box(user: User) -> User:
    """The user, with the default sandbox up."""
    user.do("up")
    return user


# Up, and used


def test_its_name_is_in_what_up_and_status_say(box: User) -> None:
    again = box.do("up")
    assert "cluster sandbox-default" in again
    assert "is running already" in again
    assert box.do("status").startswith("sandbox-default  alive  4 nodes with gpu:a100:4")
    assert "ClusterName             = sandbox-default" in box.ask("scontrol", "show", "config")


def test_two_nodes_run_a_step_that_sees_its_gpus(box: User) -> None:
    shown = box.ask(
        "srun", "-N2", "--gpus-per-node=2", "bash", "-c", 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'
    )
    nodes, devices = zip(*(line.split() for line in shown.splitlines()), strict=True)
    assert (len(set(nodes)), devices) == (2, ("0,1", "0,1"))


def test_nodes_accounts_and_qos_are_as_promised(box: User) -> None:
    rows = {tuple(row.split()) for row in box.ask("sinfo", "-h", "-o", "%P %D %G %c %m %l").splitlines()}
    size = ("gpu:a100:4", "64", "524288")
    assert rows == {
        ("gpu*", "4", *size, "1-00:00:00"),
        ("debug", "2", *size, "30:00"),
        ("preempt", "4", *size, "1-00:00:00"),
    }
    shown = box.ask("sacctmgr", "-n", "-P", "show", "assoc", "format=account,user,qos").splitlines()
    mine = {tuple(row.split("|")) for row in shown if row.split("|")[1] and "high" in row}
    assert {account for account, *_ in mine} == {"mygroup", "other"}
    assert {qos for *_, qos in mine} == {"debug,high,normal"}
    refused = box("exec", "--", "sbatch", "--account=nobodys", "--wrap", "true")
    assert refused.returncode == 1
    assert "Invalid account" in refused.stderr


def test_the_debug_qos_limits_gpus(box: User) -> None:
    job = box.submit("--qos=debug", "--gpus-per-node=4", "-N2", "--time=5", "--wrap", "true")
    wait_until(lambda: box.ask("squeue", "-h", "-j", job, "-o", "%r") == "QOSMaxGRESPerJob")
    box.ask("scancel", job)


def test_exec_ends_with_the_commands_own_code(box: User) -> None:
    assert box("exec", "--", "bash", "-c", "exit 42").returncode == 42
    missing = box("exec", "--", "no-such-command")
    assert missing.returncode == 127
    assert "'no-such-command' is no command on PATH" in missing.stderr


def test_a_shell_talks_to_it_only_after_asking(box: User) -> None:
    script = f"""
        eval "$({sys.executable} -m slurmgpu sandbox env)" && scontrol show config | grep ^ClusterName
        eval "$({sys.executable} -m slurmgpu sandbox env --unset)"; echo "<$SLURM_CONF$SLURMGPU_CLUSTER$SLURMGPU_SANDBOX>"
    """
    ambient = {"SLURM_CLUSTERS": "production", "SBATCH_ACCOUNT": "mine"}
    done = subprocess.run(
        ["bash", "-c", script], env=box.env | ambient, capture_output=True, text=True, timeout=60
    )
    named, after = done.stdout.splitlines()
    assert named.split() == ["ClusterName", "=", "sandbox-default"]
    assert after == "<>"


def test_the_other_commands_plan_on_it_and_name_it(box: User) -> None:
    tool = (sys.executable, "-m", "slurmgpu")
    plan = box("exec", "--", *tool, "plan", "--gpus", "8", "-A", "mygroup", "--", "true")
    assert plan.returncode == 0, plan
    assert "on sandbox-default: 2 nodes x 4 GPUs" in plan.stdout
    assert "sandbox-default" in box.ask(*tool, "status", "--json")


def test_logs_show_the_daemons_own_words(box: User) -> None:
    assert "--- slurmctld.log\n" in box.do("logs")
    assert box.do("logs", "slurmd-node1").startswith("--- slurmd-node1.log\n")
    unknown = box("logs", "slurmx")
    assert unknown.returncode == 2
    assert "slurmctld" in unknown.stderr


def test_up_in_another_shape_is_refused(box: User) -> None:
    refused = box("up", "--nodes", "3")
    assert refused.returncode == 1
    assert "runs already, in another shape (4 nodes" in refused.stderr
    assert "sandbox down default" in refused.stderr


def test_its_folder_is_private(box: User) -> None:
    assert box.folder().stat().st_mode & 0o777 == 0o700


# Preemption and faults, each seen through plain Slurm commands


def running(box: User, *options: str) -> str:
    job = box.submit("--time=10", *options, "--wrap", "exec sleep 600")
    wait_until(lambda: box.state_of(job) == "RUNNING")
    return job


def test_a_job_in_gpu_preempts_one_in_preempt(box: User) -> None:
    low = running(box, "--partition=preempt", "--requeue", "--nodes=4", "--exclusive")
    high = running(box, "--partition=gpu", "--nodes=4", "--gpus-per-node=4")
    assert box.state_of(low) == "PENDING"
    assert box.ask("scontrol", "show", "job", low, "-o").count("Restarts=1") == 1
    box.ask("scancel", high, low)
    wait_until(lambda: not box.ask("squeue", "-h"))


def test_preempt_preempts_the_job_named(box: User) -> None:
    job = running(box, "--partition=preempt", "--requeue")
    box.do("fault", "preempt", job)
    wait_until(lambda: box.state_of(job) == "PENDING")
    assert "sandbox-fault-preempt" in box.ask("squeue", "-h", "-o", "%j")
    box.do("heal")
    wait_until(lambda: "sandbox-fault-preempt" not in box.ask("squeue", "-h", "-o", "%j"))
    box.ask("scancel", job)
    safe = running(box, "--partition=gpu")
    refused = box("fault", "preempt", safe)
    box.ask("scancel", safe)
    assert refused.returncode == 1
    assert "whose jobs nobody preempts" in refused.stderr
    assert "it is not in the queue" in box("fault", "preempt", "999").stderr


def test_controller_down_and_healed(box: User) -> None:
    job = running(box, "--nodes=1")
    box.do("fault", "controller-down")
    # squeue would try for 9 s.
    assert "is DOWN" in box("exec", "--", "scontrol", "ping").stdout
    assert "faults: controller-down" in box.do("status")
    box.do("heal")
    assert box.state_of(job) == "RUNNING"
    assert "unk" not in box.ask("sinfo", "-h", "-o", "%t")
    box.ask("scancel", job)


def test_controller_hang_and_healed(box: User) -> None:
    box.do("fault", "controller-hang")
    # It would give up after 10 s; whether it waits is what matters.
    command = [sys.executable, "-m", "slurmgpu", "sandbox", "exec", "--", "squeue"]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(command, env=box.env, capture_output=True, timeout=3)
    box.do("heal")
    box.ask("squeue")


def test_database_down_and_healed(box: User) -> None:
    box.do("fault", "database-down")
    asked = box("exec", "--", "sacct")
    assert asked.returncode == 1
    assert "Connection refused" in asked.stderr
    box.ask("squeue")
    box.do("heal")
    box.ask("sacct")


def test_node_down_loses_its_jobs_and_is_healed(box: User) -> None:
    job = running(box, "--nodelist=node3", "--no-requeue")
    wait_until(lambda: any(" sleep" in process for process in processes_that_mention(str(box.folder()))))
    box.do("fault", "node-down", "node3")
    assert not any(" sleep" in process for process in processes_that_mention(str(box.folder())))
    assert box.ask("sinfo", "-h", "-n", "node3", "-p", "gpu", "-o", "%T") == "down"
    wait_until(lambda: box.state_of(job) == "NODE_FAIL")
    box.do("heal")
    assert box.ask("srun", "--nodelist=node3", "echo", "back") == "back"
    unknown = box("fault", "node-down", "node9")
    assert unknown.returncode == 2
    assert "node1, node2, node3, node4" in unknown.stderr
    assert "faults" not in box.do("status")


def test_a_lost_reply_leaves_a_job_behind(box: User) -> None:
    box.do("fault", "drop-replies")
    sent = box("exec", "--", "sbatch", "--output=/dev/null", "--job-name=lost", "--hold", "--wrap", "true")
    assert (sent.returncode, sent.stdout) == (1, "")
    box.do("heal")
    assert box.ask("squeue", "-h", "-n", "lost", "-o", "%T") == "PENDING"
    box.ask("scancel", "-n", "lost")


def test_an_unknown_fault_is_refused_with_those_there_are(box: User) -> None:
    for words in (["meteorite"], ["node-down"], ["controller-down", "node1"]):
        assert box("fault", *words).returncode == 2
    assert "controller-down, controller-hang" in box("fault", "meteorite").stderr


# Down


def test_two_side_by_side_and_nothing_left_of_either(box: User) -> None:
    box.do("up", "--name", "small", "--nodes", "1", "--gpus-per-node", "2", "--no-accounting")
    assert box.conditions() == {"default": "alive", "small": "alive"}
    assert box.ask("sinfo", "-h", "-p", "gpu", "-o", "%D %G", name="small") == "1 gpu:2"
    assert box.ask("sinfo", "-h", "-p", "gpu", "-o", "%D %G") == "4 gpu:a100:4"
    state = box.state("small")
    # A job that leaves its session and ignores polite signals is the hardest one to end.
    stubborn = f"trap '' TERM HUP INT; setsid sleep 301 & touch {box.home}/started; sleep 301"
    box.ask("sbatch", "--output=/dev/null", "--chdir=/", "--wrap", stubborn, name="small")
    wait_until((box.home / "started").exists)
    said = box.do("down", "small")
    assert said == "sandbox small is down: no process, port or file of it is left\n"
    assert left_of(box, state, "small") == []
    assert box.conditions() == {"default": "alive"}
    nothing = box("down", "small")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "there is no sandbox 'small'" in nothing.stderr


def test_after_kill_9_of_everything_up_cleans_and_starts(user: User) -> None:
    user.do("up", "--name", "doomed", "--no-accounting")
    state, folder = user.state("doomed"), user.folder("doomed")
    user.ask(
        "sbatch", "--output=/dev/null", "--chdir=/", "--wrap",
        f"touch {user.home}/task; exec sleep 302", name="doomed",
    )  # fmt: skip
    wait_until((user.home / "task").exists)
    os.kill(state.process.pid, signal.SIGKILL)
    wait_until(lambda: user.conditions()["doomed"] == "crashed")
    used = user("exec", "--name", "doomed", "--", "sinfo")
    assert used.returncode == 1
    assert "has crashed" in used.stderr
    # The task's step daemon has lost all its parents, and is found all the same.
    assert processes_of(folder, state.token)
    user.do("up", "--name", "doomed", "--no-accounting")
    assert processes_of(folder, state.token) == [] or user.state("doomed").token != state.token
    assert not any(" sleep" in process for process in processes_that_mention(str(folder)))
    fresh = user.state("doomed")
    for pid in [fresh.process.pid, *processes_of(folder, fresh.token)]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: user.conditions()["doomed"] == "crashed")
    assert "had crashed and is cleaned up" in user.do("down", "doomed")
    assert left_of(user, fresh, "doomed") == []


def test_a_killed_up_leaves_nothing(user: User) -> None:
    folder = user.folder("killed")
    command = [sys.executable, "-m", "slurmgpu", "sandbox", "up", "--name", "killed", "--no-accounting"]
    with subprocess.Popen(command, env=user.env, stdout=subprocess.DEVNULL) as starter:
        wait_until((folder / "daemons.json").exists)
        starter.kill()
    wait_until(lambda: not folder.exists() and not processes_that_mention(str(folder)))


def test_it_ends_by_itself_when_its_time_is_up(user: User) -> None:
    said = user.do("up", "--name", "brief", "--nodes", "1", "--no-accounting", "--for", "1s")
    assert "  ends " in said
    wait_until(lambda: not user.folder("brief").exists())
    wait_until(lambda: not processes_that_mention(str(user.folder("brief"))))


# Everything is imported while still root: the interpreter's own folders may be root's alone.
AS_NOBODY = """
import encodings.idna, os, subprocess, sys
from slurmgpu.sandbox import keeper, life, twin
from slurmgpu.sandbox.shape import default_shape
from slurmgpu.sandbox.state import State

shape = default_shape(2, 2, "a100", 16, 64000)
profile = twin.own_profile("nobodys", shape)
profile.model_dump(mode="json"), State.model_rebuild()
sys.executable, keeper.__file__ = sys.argv[1:]
os.setgroups([]), os.setgid(65534), os.setuid(65534)
state, _ = life.bring_up("nobodys", shape, profile, accounting=True)
step = ["srun", "-N2", "--gpus-per-node=2", "bash", "-c", "echo $(id -un) $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"]
env = life.user_env(state, life.folder_of("nobodys"))
print(subprocess.run(step, env=env, capture_output=True, text=True, timeout=60).stdout, end="")
print(life.bring_down("nobodys"))
"""


def test_an_ordinary_user_needs_no_root() -> None:
    """Run by an ordinary user, all tests here show it; root becomes one for this one."""
    need_slurm()
    if os.getuid() != 0:
        return
    home = Path(tempfile.mkdtemp(prefix="sbx-", dir="/tmp"))
    try:
        os.chown(home, 65534, 65534)
        shutil.copytree(ROOT / "slurmgpu" / "sandbox", home / "package")
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, python, str(home / "package" / "keeper.py")],
            env=User(home).env | {"HOME": str(home)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        first, second, ended = done.stdout.splitlines()
        assert {first, second} == {"nobody node1 0,1", "nobody node2 0,1"}
        assert ended == "Ended(name='nobodys', processes=[], ports=[], folder=None, crashed=False)"
        assert processes_that_mention(str(home)) == []
    finally:
        shutil.rmtree(home)


# A twin


def test_a_twin_judges_as_the_cluster_it_is_like(user: User) -> None:
    done = user("up", "--name", "twin", "--like", "uva-afton")
    assert done.returncode == 0, done
    assert "note: gpu-mig, nodes with 1g.10gb: their number not stated, 4 assumed" in done.stderr
    shown = user.ask("sinfo", "-h", "-e", "-p", "gpu", "-o", "%D %G %c %m %l %s", name="twin").splitlines()
    assert "18 gpu:a100:8 128 1999872 3-00:00:00 1-4" in shown
    assert sum(int(row.split()[0]) for row in shown) == 54

    def judged(*options: str) -> str:
        command = ["sbatch", "--test-only", "--partition=gpu", *options, "--wrap=true"]
        return user("exec", "--name", "twin", "--", *command).stderr

    assert "to start at" in judged("--nodes=4", "--gres=gpu:a100:8", "--constraint=a100_80gb")
    for options, why in [
        (["--gres=gpu:a100:9"], "Requested node configuration is not available"),
        (["--gres=gpu:h100:1"], "Requested node configuration is not available"),
        (["--gres=gpu:v100:1", "--mem=400G"], "Requested node configuration is not available"),
        (["--gres=gpu:v100:1", "--nodes=5"], "Node count specification invalid"),
        (["--gres=gpu:v100:1", "--time=4-0"], "Requested time limit is invalid"),
    ]:
        assert why in judged(*options)
    plan = user.ask(
        sys.executable,
        "-m",
        "slurmgpu",
        "plan",
        "-A",
        "mygroup",
        "-p",
        "gpu",
        "--gpus",
        "2",
        "--",
        "true",
        name="twin",
    )
    assert "on sandbox-twin" in plan
    user.do("down", "twin")


def test_a_twin_has_hundreds_of_nodes(user: User) -> None:
    profile = user.home / "large.yaml"
    profile.write_text(
        "name: large\ngpu_types: {h100: {memory: 80G}}\ndefault_partition: batch\npartitions:\n"
        "  batch: {limits: {max_time: 2-00:00:00, default_time: 60, max_nodes: 200, max_gpus: 64},\n"
        "    nodes: [{count: 300, gpus: 8, gpu_type: h100, cpus: 96, memory: 1T}]}\n"
        "  spare: {preemptible: true, nodes: [{count: 300, gpus: 8, gpu_type: h100, cpus: 96, memory: 1T}]}\n"
    )
    done = user("up", "--name", "large", "--like", str(profile))
    assert "partitions batch and spare describe the same 300 nodes: taken to share them" in done.stderr
    shown = user.ask("sinfo", "-h", "-o", "%P %D %G %l %L", name="large").splitlines()
    assert shown == ["batch* 300 gpu:h100:8 2-00:00:00 1:00:00", "spare 300 gpu:h100:8 infinite n/a"]
    within = ["sbatch", "--test-only", "-N8", "--gpus-per-node=8", "--wrap=true"]
    assert "to start at" in user("exec", "--name", "large", "--", *within).stderr
    # Really submitted, the limit of GPUs of a job is judged, too.
    beyond = user("exec", "--name", "large", "--", "sbatch", "-N9", "--gpus-per-node=8", "--wrap=true")
    assert "QOSMaxGRESPerJob" in beyond.stderr
    user.do("down", "large")


def test_this_machine_lacks_nothing() -> None:
    need_slurm()
    assert missing_programs() == []
