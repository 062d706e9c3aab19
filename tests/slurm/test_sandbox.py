"""`slurmgpu sandbox` as a user types it, each promise held against the real Slurm it starts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.yaml import read_yaml
from slurmgpu.sandbox.processes import processes_of
from tests.slurm.conftest import need_slurm
from tests.slurm.sandbox_user import ROOT, User, left_of, wait_until
from tests.slurm.test_throwaway import processes_that_mention

pytestmark = pytest.mark.slurm

NO_FOLDER = "missing"


@pytest.fixture(scope="module")
def box(user: User) -> User:
    """The user, with the default sandbox up, which had no folder for temporary files when it started."""
    done = user("up", env={"TMPDIR": str(user.home / NO_FOLDER)})
    assert done.returncode == 0, done
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


def test_a_script_finds_what_a_site_has_and_this_machine_may_lack(box: User) -> None:
    script = box.home / "site.sbatch"
    lines = (
        "ml purge; module load apptainer cuda/12.4; echo loaded $LOADEDMODULES",
        "apptainer exec --nv image.sif echo ran in apptainer",
        "srun -n1 bash -c 'module load more'",
        "echo ended",
    )
    script.write_text("\n".join(("#!/bin/bash", "#SBATCH --time=5", *lines)) + "\n")
    log = box.home / "site.out"
    box.ask("sbatch", f"--output={log}", str(script))
    wait_until(lambda: log.exists() and "\nended\n" in log.read_text())
    told = log.read_text()
    systems = ("/etc/profile.d/lmod.sh", "/etc/profile.d/z00_lmod.sh", "/etc/profile.d/modules.sh")
    if not any(Path(one).exists() for one in systems) and "BASH_FUNC_module%%" not in os.environ:
        assert "slurmgpu sandbox: module load apptainer cuda/12.4: nothing is loaded" in told
        assert ":apptainer:cuda/12.4" in told
        assert "module load more: nothing is loaded" in told
    if not shutil.which("apptainer"):
        assert "apptainer exec image.sif: no container, this machine's own programs" in told
        assert "ran in apptainer" in told


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
    assert "'no-such-command' is not a command on PATH" in missing.stderr


def test_a_shell_talks_to_it_only_after_asking(box: User) -> None:
    script = f"""
        eval "$({sys.executable} -m slurmgpu sandbox env)" && scontrol show config | grep ^ClusterName
        eval "$({sys.executable} -m slurmgpu sandbox env --unset)"
        echo "<$SLURM_CONF$SLURMGPU_CLUSTER$SLURMGPU_SANDBOX $SLURM_CLUSTERS $SBATCH_ACCOUNT>"
    """
    ambient = {"SLURM_CLUSTERS": "production", "SBATCH_ACCOUNT": "mine"}
    done = subprocess.run(
        ["bash", "-c", script], env=box.env | ambient, capture_output=True, text=True, timeout=60
    )
    named, after = done.stdout.splitlines()
    assert named.split() == ["ClusterName", "=", "sandbox-default"]
    assert after == "< production mine>"


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
    assert "runs already, in another shape: 4 nodes" in refused.stderr
    assert "sandbox down default" in refused.stderr


def test_its_folder_is_private(box: User) -> None:
    assert box.folder().stat().st_mode & 0o777 == 0o700


def test_its_database_stays_out_of_the_folder_for_temporary_files(box: User) -> None:
    """A server that starts there deletes the temporary tables of all others."""
    assert not (box.home / NO_FOLDER).exists()
    assert "mygroup" in box.ask("sacctmgr", "-n", "show", "account")


@pytest.mark.parametrize("accounting", [True, False])
def test_it_plans_with_the_profile_that_discovery_writes_of_it(box: User, accounting: bool) -> None:
    name = "default" if accounting else "simple"
    if not accounting:
        box.do("up", "--name", name, "--no-accounting")
    discovered = profile(box.slurmgpu("cluster", "discover", name=name))
    planned_with = profile((box.folder(name) / "cluster.yaml").read_text())
    if not accounting:
        box.do("down", name)
    assert planned_with == discovered
    assert set(planned_with["partitions"]) == {"gpu", "debug", "preempt"}
    assert ("qos" in planned_with) is accounting


def profile(text: str) -> dict[str, Any]:
    return dict(read_yaml(text, "a profile").data)


def test_what_it_would_refuse_is_refused_when_it_is_planned(box: User) -> None:
    for options, why in (
        (("-q", "debug", "--gpus", "8"), "QOS 'debug' allows at most 4 GPUs a job"),
        (("-q", "hihg", "--gpus", "1"), "has no QOS 'hihg'"),
        (("-A", "nobody", "--gpus", "1"), "account 'nobody' is not one of yours"),
    ):
        done = box("exec", "--", sys.executable, "-m", "slurmgpu", "plan", *options, "--", "true")
        assert (done.returncode, why in done.stderr) == (1, True), done


@pytest.mark.long
def test_memory_is_not_watched_and_up_says_so(box: User) -> None:
    assert "memory      is counted when a job starts, not watched" in box.do("up")
    twice = ("-c", "import time; held = b'x' * 200_000_000; time.sleep(6); print(len(held))")
    assert box.ask("srun", "--mem=100M", sys.executable, *twice) == "200000000"


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
    os.kill(state.supervisor.pid, signal.SIGKILL)
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
    for pid in [fresh.supervisor.pid, *processes_of(folder, fresh.token)]:
        with suppress(ProcessLookupError):  # the supervisor's daemons end with it
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: user.conditions()["doomed"] == "crashed")
    assert "had crashed and is cleaned up" in user.do("down", "doomed")
    assert left_of(user, fresh, "doomed") == []


def test_a_killed_up_leaves_nothing(user: User) -> None:
    # Its controller never comes up: it is killed while it waits, however busy this machine is.
    programs = user.home / "programs"
    programs.mkdir()
    real = shutil.which("slurmctld", path=f"{user.env['PATH']}:/usr/sbin:/sbin")
    (programs / "slurmctld").write_text(f'#!/bin/sh\n[ "$1" != -V ] || exec {real} -V\nexec sleep 300\n')
    (programs / "slurmctld").chmod(0o755)
    env = user.env | {"PATH": f"{programs}:{user.env['PATH']}"}
    folder = user.folder("killed")
    command = [sys.executable, "-m", "slurmgpu", "sandbox", "up", "--name", "killed", "--no-accounting"]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as starter:
        wait_until(lambda: any(" sleep" in process for process in processes_that_mention(str(folder))))
        starter.kill()
    wait_until(lambda: not folder.exists() and not processes_that_mention(str(folder)))


def test_it_ends_by_itself_when_its_time_is_up(user: User) -> None:
    said = user.do("up", "--name", "brief", "--nodes", "1", "--no-accounting", "--for", "5s")
    assert "  ends " in said
    wait_until(lambda: not user.folder("brief").exists())
    wait_until(lambda: not processes_that_mention(str(user.folder("brief"))))


# Everything is imported while still root: the interpreter's own folders may be root's alone.
AS_NOBODY = """
import encodings.idna, os, subprocess, sys
from slurmgpu.sandbox import life, processes
from slurmgpu.sandbox.configuration import default_shape
from slurmgpu.sandbox.state import State

shape = default_shape(2, 2, "a100", 16, 64000)
State.model_rebuild()
sys.executable, processes.__file__ = sys.argv[1:]
os.setgroups([]), os.setgid(2), os.setuid(2)
state, _ = life.bring_up("nobodys", shape, lambda _: "name: nobodys", accounting=True)
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
        os.chown(home, 2, 2)  # bin: a user that every machine has; slurmdbd takes no `nobody`
        shutil.copytree(ROOT / "slurmgpu" / "sandbox", home / "package")
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, python, str(home / "package" / "processes.py")],
            env=User(home).env | {"HOME": str(home)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        first, second, ended = done.stdout.splitlines()
        assert {first, second} == {"bin node1 0,1", "bin node2 0,1"}
        assert ended == "Ended(name='nobodys', processes=[], ports=[], folder=None, crashed=False)"
        assert processes_that_mention(str(home)) == []
    finally:
        shutil.rmtree(home)
