"""Preemption and faults of a sandbox, each seen through plain Slurm commands, and mended by `heal`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess

import pytest

from tests.slurm.sandbox_user import User, wait_until
from tests.slurm.test_throwaway import processes_that_mention

pytestmark = pytest.mark.slurm


def running(box: User, *options: str) -> str:
    job = box.submit("--time=10", *options, "--wrap", "exec sleep 600")
    wait_until(lambda: box.state_of(job) == "RUNNING")
    return job


def is_kept(port: int) -> bool:
    """Whether nobody else can listen where a daemon is down: another user would be sent what is meant for it."""
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            stranger.bind(("127.0.0.1", port))
            stranger.listen()
        except OSError:
            return True
        return False


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


def test_preempt_refuses_while_a_job_that_nobody_preempts_shares_the_node(box: User) -> None:
    job = running(box, "--partition=preempt", "--requeue", "--nodelist=node1")
    safe = running(box, "--partition=gpu", "--nodelist=node1")
    refused = box("fault", "preempt", job)
    box.ask("scancel", job, safe)
    assert refused.returncode == 1
    assert f"JOB {job}: on its nodes (node1) runs {safe} as well, which nobody preempts" in refused.stderr
    wait_until(lambda: not box.ask("squeue", "-h"))


def test_controller_down_and_healed(box: User) -> None:
    job = running(box, "--nodes=1")
    box.do("fault", "controller-down")
    # squeue would try for 9 s.
    assert "is DOWN" in box.tried("scontrol", "ping").stdout
    assert is_kept(box.state().ports[0])
    assert "faults: controller-down" in box.do("status")
    box.do("heal")
    assert box.state_of(job) == "RUNNING"
    assert "unk" not in box.ask("sinfo", "-h", "-o", "%t")
    box.ask("scancel", job)


def test_controller_hang_and_healed(box: User) -> None:
    box.do("fault", "controller-hang")
    # It would give up after 10 s; whether it waits is what matters.
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["squeue"], env=box.inside(), capture_output=True, timeout=3)
    box.do("heal")
    box.ask("squeue")


def test_database_down_and_healed(box: User) -> None:
    box.do("fault", "database-down")
    asked = box.tried("sacct")
    assert asked.returncode == 1
    assert "Connection refused" in asked.stderr
    assert is_kept(box.state().ports[1])
    job = box.submit("--job-name=meanwhile", "--wrap", "true")
    wait_until(lambda: box.state_of(job) == "COMPLETED")
    box.do("heal")
    # Nothing is lost: the controller had kept it.
    wait_until(lambda: "COMPLETED" in box.ask("sacct", "-n", "-X", "-j", job, "-o", "State"))


def test_node_down_loses_its_jobs_and_is_healed(box: User) -> None:
    job = running(box, "--nodelist=node3", "--no-requeue")
    wait_until(lambda: any(" sleep" in process for process in processes_that_mention(str(box.folder()))))
    box.do("fault", "node-down", "node3")
    assert is_kept(box.state().ports[-2])
    assert not any(" sleep" in process for process in processes_that_mention(str(box.folder())))
    assert box.ask("sinfo", "-h", "-n", "node3", "-p", "gpu", "-o", "%T").rstrip("*") == "down"
    wait_until(lambda: box.state_of(job) == "NODE_FAIL")
    box.do("heal")
    assert box.ask("srun", "--nodelist=node3", "echo", "back") == "back"
    unknown = box("fault", "node-down", "node9")
    assert unknown.returncode == 2
    assert "node1, node2, node3, node4" in unknown.stderr
    assert "faults" not in box.do("status")


def test_a_lost_reply_leaves_a_job_behind(box: User) -> None:
    box.do("fault", "drop-replies")
    sent = box.tried("sbatch", "--output=/dev/null", "--job-name=lost", "--hold", "--wrap", "true")
    assert (sent.returncode, sent.stdout) == (1, "")
    box.do("heal")
    assert box.ask("squeue", "-h", "-n", "lost", "-o", "%T") == "PENDING"
    box.ask("scancel", "-n", "lost")


def test_a_job_that_began_while_replies_were_lost_ends_when_that_is_mended(box: User) -> None:
    """Its step daemon keeps the controller's address with which it was started."""
    box.do("fault", "drop-replies")
    begun = box.home / "begun"
    script = f"touch {begun}; sleep 3"
    box.tried("sbatch", "--output=/dev/null", "--job-name=brief", "--wrap", script)
    wait_until(begun.exists)
    box.do("heal")
    wait_until(lambda: box.ask("squeue", "-h", "-t", "all", "-n", "brief", "-o", "%T") == "COMPLETED")
    box.do("fault", "drop-replies")
    assert box.tried("squeue").returncode
    box.do("heal")
    box.ask("squeue")


def test_an_unknown_fault_is_refused_with_those_there_are(box: User) -> None:
    for words in (["meteorite"], ["node-down"], ["controller-down", "node1"]):
        assert box("fault", *words).returncode == 2
    assert "controller-down, controller-hang" in box("fault", "meteorite").stderr


@pytest.mark.long
def test_faults_at_once_are_all_mended(box: User) -> None:
    job = running(box, "--nodelist=node1")
    for fault in (["node-down", "node4"], ["drop-replies"], ["database-down"], ["controller-down"]):
        box.do("fault", *fault)
    assert "faults: node-down node4, drop-replies, database-down, controller-down" in box.do("status")
    box.do("heal")
    assert "faults" not in box.do("status")
    assert box.state_of(job) == "RUNNING"
    assert box.ask("srun", "--nodelist=node4", "echo", "back") == "back"
    # What the controller had kept for the database arrives a moment later.
    wait_until(lambda: box.ask("sacct", "-n", "-X", "-j", job, "-o", "JobID") == job)
    box.ask("scancel", job)


def test_a_daemon_that_died_is_told_and_started_again(box: User) -> None:
    daemons = json.loads((box.folder() / "daemons.json").read_text())
    for name in ("slurmctld", "slurmd-node2", "munged", "mariadbd"):
        os.kill(daemons[name]["pid"], signal.SIGKILL)
    wait_until(
        lambda: box.do("status").count(" has ended with -9: slurmgpu sandbox heal --name default") == 4
    )
    assert "slurmctld, which had ended with -9" in box.do("heal")
    assert "ended" not in box.do("status")
    assert box.ask("srun", "--nodelist=node2", "echo", "back") == "back"
    assert "mygroup" in box.ask("sacctmgr", "-n", "show", "account")


@pytest.mark.long
def test_a_fault_caused_twice_is_one(box: User) -> None:
    for fault in ("controller-down", "drop-replies"):
        box.do("fault", fault)
        box.do("fault", fault)
        assert box.do("heal") == f"sandbox-default: mended {fault}\n"
    assert box.do("heal") == "sandbox-default: no fault to mend\n"
    box.ask("squeue")


def test_a_twins_node_goes_down_and_comes_back(user: User) -> None:
    user.do("up", "--name", "twin", "--like", "smu-superpod", "--no-accounting")
    state = ("sinfo", "-h", "-n", "a100-01", "-o", "%t")
    try:
        user.do("fault", "--name", "twin", "node-down", "a100-01")
        assert user.ask(*state, name="twin").startswith("down")
        user.do("heal", "--name", "twin")
        assert user.ask(*state, name="twin").startswith("idle")
        lost = user("fault", "--name", "twin", "database-down")
        assert lost.returncode == 1
        assert "has no accounting" in lost.stderr
    finally:
        user.do("down", "twin")
