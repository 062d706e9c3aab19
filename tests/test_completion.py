"""What the tab key offers, asked as the shell asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurmgpu.files.data import example_names
from tests.test_cli import ROOT, slurmgpu

SQUEUE = f"""\
#!{sys.executable}
import sys
asked = sys.argv[sys.argv.index("-O") + 1].split(",")
fields = [one.split(":")[0] for one in asked]
end = asked[0].split(":")[1]
for number, name, state in (("112", "first", "RUNNING"), ("113_[0-8]", "array", "PENDING"),
                            ("114", "done", "COMPLETED")):
    row = {{"JobArrayID": number, "JobID": number[:3], "UserName": "me", "State": state, "Name": name}}
    print(end.join(row.get(field, "") for field in fields), end=end + chr(10))
"""


def offered(cwd: Path, *words: str, **env: str) -> list[str]:
    """What is offered for the last of the words."""
    line = " ".join(["slurmgpu", *words])
    done = slurmgpu(
        cwd, _SLURMGPU_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)), **env
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [one.partition(",")[2] for one in done.stdout.splitlines() if one]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with settings of its own, and a profile of the user's."""
    clusters = tmp_path / "xdg" / "slurmgpu" / "clusters"
    clusters.mkdir(parents=True)
    (clusters / "mine.yaml").write_text(
        "name: mine\n"
        "partitions:\n"
        "  long: {nodes: [{count: 2, gpus: 4, gpu_type: a100, features: [nvlink, ib]}]}\n"
        "  short: {nodes: [{count: 2, gpus: {h100: 4, h200: 2}}]}\n"
        "qos: {high: {}}\n"
        "associations: [{account: lab1}, {account: lab2}]\n"
        "environments: {torch: {}}\n"
    )
    (tmp_path / "xdg" / "slurmgpu" / "config.yaml").write_text(
        "cluster: mine\nenvironments: {own: {}}\njob: {resources: {account: lab2}}\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("option", "begun", "values"),
    [
        ("-p", "''", ["long", "short"]), ("--partition", "l", ["long"]),
        ("-p", "long,", ["long,long", "long,short"]), ("-A", "lab", ["lab2", "lab1"]), ("-q", "''", ["high"]),
        ("--gpu-type", "h", ["h100", "h200"]), ("-C", "''", ["ib", "nvlink"]),
        ("--environment", "''", ["torch", "own"]), ("--launch", "s", ["srun"]),
    ],
)  # fmt: skip
def test_values_come_from_the_chosen_profile(here: Path, option: str, begun: str, values: list[str]) -> None:
    assert offered(here, "submit", option, begun) == values


def test_the_profile_named_on_the_line_counts(here: Path) -> None:
    assert offered(here, "plan", "--cluster", "uva-afton", "-p", "gpu-") == ["gpu-mig"]


def test_clusters_are_offered_wherever_one_is_named(here: Path) -> None:
    for words in (
        ("plan", "--cluster"),
        ("check", "--cluster"),
        ("cluster", "use"),
        ("sandbox", "up", "--like"),
    ):
        assert offered(here, *words, "m") == ["mila", "mine", "mit-engaging"]


def test_shipped_jobs_are_offered(here: Path) -> None:
    assert offered(here, "jobs", "copy", "''") == example_names()


def test_jobs_are_offered_by_id_and_name(here: Path) -> None:
    programs = here / "programs"
    programs.mkdir()
    (programs / "squeue").write_text(SQUEUE)
    (programs / "squeue").chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    assert offered(here, "status", "11", PATH=path) == ["112", "113", "114"]
    assert offered(here, "logs", "''", PATH=path) == ["112", "113", "114", "first", "array", "done"]
    assert offered(here, "cancel", "''", PATH=path) == ["112", "113", "first", "array"]


def test_a_slurm_that_fails_or_is_not_there_offers_nothing(here: Path) -> None:
    programs = here / "programs"
    programs.mkdir()
    (programs / "squeue").write_text("#!/bin/sh\necho 'squeue: error: no controller' >&2\nexit 1\n")
    (programs / "squeue").chmod(0o755)
    assert offered(here, "status", "''", PATH=f"{programs}{os.pathsep}{os.environ['PATH']}") == []
    assert offered(here, "status", "''", PATH=str(Path(sys.executable).parent)) == []


def test_runs_are_offered_the_newest_first(here: Path) -> None:
    names = ["digits-20261121T051759Z-b2afb24f", "digits-20261120T051759Z-00afb24f"]
    for name in names:
        (here / "runs" / name).mkdir(parents=True)
    assert offered(here, "checkpoint", "list", "d") == names
    assert offered(here, "resume", "d") == names


def test_a_broken_profile_or_setting_offers_nothing(here: Path) -> None:
    (here / "xdg" / "slurmgpu" / "config.yaml").write_text("cluster: [\n")
    assert offered(here, "submit", "-p", "''") == []


def test_what_follows_two_dashes_is_completed_as_files(here: Path) -> None:
    done = slurmgpu(
        here, _SLURMGPU_COMPLETE="bash_complete", COMP_WORDS="slurmgpu submit -- tr", COMP_CWORD="3"
    )
    assert (done.stdout, done.stderr) == ("file,tr\n", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_real_bash_completes(here: Path) -> None:
    programs = here / "programs"
    programs.mkdir()
    (programs / "slurmgpu").write_text(f'#!/bin/sh\nexec {sys.executable} -m slurmgpu "$@"\n')
    (programs / "slurmgpu").chmod(0o755)
    script = """
        eval "$(_SLURMGPU_COMPLETE=bash_source slurmgpu)"
        COMP_WORDS=(slurmgpu submit -p sh) COMP_CWORD=3
        compopt() { :; }
        _slurmgpu_completion slurmgpu sh -p
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=here,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(here / "xdg"),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("short\n", "")
