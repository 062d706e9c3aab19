from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.errors import InvalidInput, SlurmUnreachable
from slurmgpu.slurm import Slurm, commands
from slurmgpu.slurm import requests as control
from slurmgpu.slurm.commands import call, cluster_name_here, reading_env, submission_env
from tests.recorded import Replay, said


def program(folder: Path, name: str, text: str) -> dict[str, str]:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_ambient_settings_are_scrubbed_and_the_way_to_slurm_is_kept() -> None:
    env = {
        "SLURM_CONF": "/c", "SLURM_CLUSTERS": "alpha", "SLURM_JWT": "t", "SLURM_JOB_ID": "3",
        "SLURM_TIME_FORMAT": "relative", "SBATCH_ACCOUNT": "x", "SQUEUE_FORMAT": "%i", "SACCT_FORMAT": "JobID",
        "SRUN_CPUS_PER_TASK": "2", "SLURMGPU_CLUSTER": "alpha", "PATH": "/bin",
    }  # fmt: skip
    kept = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURMGPU_CLUSTER", "PATH"}
    assert set(submission_env(env)) == kept
    assert reading_env(env)["SLURM_TIME_FORMAT"] == "%s"


def test_a_missing_command_is_named_with_what_to_do() -> None:
    with pytest.raises(SlurmUnreachable, match="squeue is not on PATH") as caught:
        call(["squeue"], timeout=1, env={"PATH": "/nowhere"})
    assert caught.value.hint is not None
    assert "login node" in caught.value.hint
    assert caught.value.exit_code == 4


def test_an_answer_keeps_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    answer = call(["squeue"], timeout=20, env=program(tmp_path, "squeue", r"printf 'a\377b'; exit 3"))
    assert (answer.rc, answer.stdout, answer.ok) == (3, "a\ufffdb", False)


def gone(pid: int) -> bool:
    """Whether a process that was killed has ended; the kernel may take a moment on a busy machine."""
    for _ in range(1200):
        try:
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def until_there(path: Path) -> None:
    for _ in range(1200):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} is not there")


def test_an_endless_command_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    env = program(
        tmp_path, "squeue", f"echo started; sleep 600 & echo $! >{pid}.new; mv {pid}.new {pid}; wait"
    )
    real = commands._answer_of

    def once_it_has_started(*given: Any) -> tuple[bytes, bytes]:
        until_there(pid)
        return real(*given)

    monkeypatch.setattr(commands, "_answer_of", once_it_has_started)
    answer = call(["squeue"], timeout=0.2, env=env)
    assert answer.rc is None
    assert answer.stdout == "started\n"
    assert "no answer in 0.2 s" in answer.stderr
    assert gone(int(pid.read_text()))


def test_a_killed_command_has_no_exit_status(tmp_path: Path) -> None:
    assert call(["squeue"], timeout=20, env=program(tmp_path, "squeue", "kill -9 $$")).rc is None


def test_the_commands_asked_are_counted() -> None:
    slurm = Slurm(run=Replay(squeue=said(), sacct=said()))
    slurm.ask(["squeue"])
    slurm.ask(["sacct"])
    slurm.ask(["squeue"])
    assert (slurm.count("squeue"), slurm.count("sacct"), slurm.count("sbatch")) == (2, 1, 0)


def test_the_cluster_is_named_by_its_own_file(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("# ClusterName=old\nclustername = Alpha # ours\n")
    assert cluster_name_here({"SLURM_CONF": str(conf)}) == "alpha"
    assert cluster_name_here({"SLURM_CONF": str(tmp_path / "none")}) is None


def test_scancel_says_whatever_it_says() -> None:
    slurm = Slurm(run=Replay(scancel=said("", "scancel: error: Invalid job id specified", rc=140)))
    assert control.cancel(slurm, ["7"]) == ("scancel: error: Invalid job id specified", False)
    assert slurm.asked == [("scancel", "7")]


@pytest.mark.parametrize("signal", ["", "no such", "--full", "-9", "999"])
def test_what_is_no_signal_is_refused(signal: str) -> None:
    with pytest.raises(InvalidInput, match="is not a signal"):
        control.cancel_command(["7"], signal)


def slow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of an squeue that answers once somebody is told that it is waited for."""
    told, real = folder / "told", commands._doubt_about_configuration

    def tell(env: Mapping[str, str]) -> str:
        told.touch()
        return real(env)

    monkeypatch.setattr(commands, "_doubt_about_configuration", tell)
    monkeypatch.setattr(commands, "PATIENCE", 0.05)
    monkeypatch.setattr(commands, "_WAITED_FOR", set())
    return program(folder, "squeue", f"until [ -e {told} ]; do sleep 0.01; done; echo done")


def test_a_person_who_waits_is_told_for_what_and_stdout_stays_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = call(["squeue"], timeout=20, env=slow(tmp_path, monkeypatch))
    assert (answer.rc, answer.stdout) == (0, "done\n")
    said = capsys.readouterr()
    assert said.err == "slurmgpu: waiting for squeue to answer, 20 s at most ...\n"
    assert said.out == ""


def test_nothing_is_said_of_a_command_that_answers_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurmgpu.slurm.commands.PATIENCE", 100)
    call(["squeue"], timeout=200, env=program(tmp_path, "squeue", "echo done"))
    assert capsys.readouterr().err == ""


def test_a_wait_that_a_wrong_slurm_conf_explains_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = slow(tmp_path, monkeypatch) | {"SLURM_CONF": str(tmp_path / "none.conf")}
    call(["squeue"], timeout=20, env=env)
    assert f"(SLURM_CONF is {tmp_path}/none.conf, and no such file is here)" in capsys.readouterr().err
