"""``slurmgpu doctor`` on a real Slurm: nothing is found where all is well, and faults that are caused on purpose are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.tool import Tool
from tests.smi import an_smi, smi_text
from tests.test_doctor_probe import in_namespace

pytestmark = pytest.mark.slurm

Lines = dict[tuple[str, str], dict[str, str]]


def report(done: subprocess.CompletedProcess[str]) -> tuple[int, Lines]:
    """The exit code, and the lines by where and which."""
    assert done.stdout.startswith("{"), done
    found = json.loads(done.stdout)
    assert found["schema"] == "slurmgpu.doctor/1"
    return done.returncode, {(line["where"], line["check"]): line for line in found["lines"]}


def doctor(tool: Tool, *arguments: str, **options: Any) -> tuple[int, Lines]:
    return report(tool("doctor", "--json", *arguments, **options))


def stand_in(tool: Tool, name: str, script: str) -> None:
    """Put a program of this name before the real one; in the script $REAL is the real one."""
    folder = tool.work / "stand-ins"
    folder.mkdir(exist_ok=True)
    real = shutil.which(name, path=tool.env["PATH"]) or ""
    (folder / name).write_text(f"#!/bin/sh\nREAL='{real}'\n{script}\n")
    (folder / name).chmod(0o755)
    if not tool.env["PATH"].startswith(f"{folder}:"):
        tool.env["PATH"] = f"{folder}:{tool.env['PATH']}"


# This machine


def test_nothing_fails_where_all_is_well(tool: Tool) -> None:
    code, found = doctor(tool)
    assert (code, [line for line in found.values() if line["level"] == "failure"]) == (0, [])
    well = {check for (_, check), line in found.items() if line["level"] == "ok"}
    assert well >= {
        "slurm.commands", "slurm.controller", "slurm.release", "slurm.clock", "slurm.accounting", "slurm.account",
        "python.version", "disk.writable",
    }  # fmt: skip
    assert list(tool.work.iterdir()) == []


@pytest.mark.long
def test_a_slurm_that_is_not_reached_is_found(tool: Tool) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        text = (Path(tool.slurm.folder) / "slurm.conf").read_text()
        lines = [
            line for line in text.splitlines() if not line.startswith(("SlurmctldPort", "MessageTimeout"))
        ]
        conf = tool.file("slurm.conf", "\n".join([*lines, f"SlurmctldPort={taken.getsockname()[1]}", ""]))
        code, found = doctor(tool, env={"SLURM_CONF": str(conf)})
    assert (code, found["", "slurm.controller"]["level"]) == (1, "failure")
    assert "Unable to contact slurm controller" in found["", "slurm.controller"]["found"]
    assert ("", "slurm.account") not in found


def test_a_user_without_an_account_is_found(tool: Tool) -> None:
    stand_in(tool, "sacctmgr", "exit 0")  # no row, as for a user whom accounting does not know
    code, found = doctor(tool)
    assert (code, found["", "slurm.account"]["found"]) == (1, "you have no account on this cluster")


def test_an_account_that_is_not_the_user_s_is_found(tool: Tool) -> None:
    code, found = doctor(tool, "-A", "nosuch", "--", "hostname")
    assert (code, found["", "slurm.account"]["level"]) == (1, "failure")
    assert "account nosuch is not yours; yours: mygroup" in found["", "slurm.account"]["found"]


def test_a_partition_that_slurm_does_not_have_is_found(tool: Tool) -> None:
    code, found = doctor(tool, "-p", "nosuch", "--", "hostname")
    assert (code, found["", "slurm.partition"]["level"]) == (1, "failure")
    assert "Slurm has no partition nosuch; it has " in found["", "slurm.partition"]["found"]


def test_a_controller_whose_clock_is_off_is_found(tool: Tool) -> None:
    # The real answer, with another time in its first line.
    stand_in(tool, "scontrol", '"$REAL" "$@" | sed "1s/as of.*/as of $(($(date +%s) - 900))/"')
    code, found = doctor(tool)
    assert (code, found["", "slurm.clock"]["level"]) == (1, "failure")
    assert "behind this machine's" in found["", "slurm.clock"]["found"]


def test_a_runs_folder_that_cannot_be_written_is_found(tool: Tool) -> None:
    runs = tool.work / "runs"
    runs.mkdir()
    tool.file("slurmgpu.yaml", f"runs: {runs}\n")
    words = in_namespace("-m", f"mount --bind {runs} {runs}; mount -o remount,ro,bind {runs}")
    done = subprocess.run(
        [*words, sys.executable, "-m", "slurmgpu", "doctor", "--json"],
        cwd=tool.work, env=tool.env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 1, done
    said = [line["found"] for line in json.loads(done.stdout)["lines"] if line["level"] == "failure"]
    assert said == [f"runs {runs}: Read-only file system"]


def test_a_profile_that_slurm_has_left_behind_is_found(tool: Tool) -> None:
    partitions = "partitions: {gone: {}}\nslurm: {release: 20.11.9}\n"
    tool.file("old.yaml", f"name: old\nsource: {{text: a page, date: '2020-01-01'}}\n{partitions}")
    code, found = doctor(tool, "--cluster", "./old.yaml")
    line = found["", "cluster.age"]
    assert (code, line["level"], "no partition gone" in line["found"]) == (0, "warning", True)


def test_a_person_reads_lines_that_fit_the_terminal(tool: Tool) -> None:
    done = tool("doctor")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "  ok       slurm.account" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" ok")


# The nodes


def test_nothing_is_found_on_healthy_nodes(tool: Tool) -> None:
    code, found = doctor(
        tool, "--on-gpu", "--nodes", "2", "--set", "resources.gpus_per_node=2", "--", "python", "t.py"
    )
    # Room and speed of the disk are this machine's own.
    own = {"disk.space", "disk.inodes", "disk.latency", "share.shm"}
    bad = [
        line
        for line in found.values()
        if line["level"] in ("failure", "warning") and line["check"] not in own
    ]
    assert (code, bad) == (0, [])
    nodes = {where for where, _ in found if where and not where.startswith("job ")}
    assert len(nodes) == 2
    for node in nodes:
        assert "8 MiB of float32 among 2 processes by gloo" in found[node, "torch.within"]["found"]
        assert "among 2 nodes by gloo" in found[node, "torch.between"]["found"]
        assert found[node, "net.ports"]["level"] == "ok"
    assert list(tool.work.iterdir()) == []  # the run directory is gone


@pytest.mark.long
def test_bad_gpus_on_the_job_s_node_are_found(tool: Tool) -> None:
    an_smi(tool.work / "stand-ins", smi_text(2, ecc=1, slow=True, busy=True))
    path = f"{tool.work / 'stand-ins'}:{tool.env['PATH']}"
    code, found = doctor(tool, "--on-gpu", "--gpus", "2", "--", "python", "t.py", env={"PATH": path})
    failures = {check for (_, check), line in found.items() if line["level"] == "failure"}
    assert (code, failures) == (1, {"gpu.ecc", "gpu.clocks", "gpu.processes"})
    (run,) = (tool.work / "runs").iterdir()
    assert list((run / "probe").glob("*.json"))  # kept, for whoever looks into it


@pytest.mark.long
def test_a_module_that_is_gone_on_the_node_is_found(tool: Tool) -> None:
    code, found = doctor(tool, "--on-gpu", "--gpus", "1", "--set", "environment.modules=nosuch/1.0")
    ((_, check), line), = found.items()  # fmt: skip
    assert (code, check, line["level"]) == (1, "job.report", "failure")
    assert "module nosuch/1.0 did not load" in line["found"]


def test_an_interrupted_doctor_cancels_its_job(tool: Tool) -> None:
    command = [sys.executable, "-m", "slurmgpu", "doctor", "--on-gpu", "--sbatch", "begin=now+1hour"]
    with subprocess.Popen(command, cwd=tool.work, env=tool.env, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        while "probes the nodes" not in running.stderr.readline():
            assert running.poll() is None
        os.kill(running.pid, signal.SIGINT)
        said = running.stderr.read()
    assert (running.returncode, "is cancelled" in said) == (130, True)
    assert tool.jobs_here() == []
