"""What one user of a machine cannot do to another: mallory is after ada, with two real user ids.

Each test is one way to make ada run mallory's code, reveal a secret, write where mallory wants, or believe what is false.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.two_users import ROOT, Person, Tool, World, a_world, open_folder, require_two_users, tool_for_all

# Two processes of other users for each case: together they take a minute.
pytestmark = pytest.mark.long

EVIL = "job: {variables: {MALLORY: was-here}}\n"
PROFILE = "name: {name}\nsource: {{text: made up, date: 2026-01-01}}\npartitions: {{gpu: {{}}}}\n"
EVIL_PROFILE = "environments: {torch: {setup: ['echo mallory-was-here']}}\n"
RENDER = ("render", "--gpus", "1", "--", "true")


@pytest.fixture(scope="module")
def tool() -> Iterator[Tool]:
    require_two_users()
    with open_folder() as folder, tool_for_all(folder / "tool").serving() as serving:
        yield serving


@pytest.fixture
def world(tool: Tool) -> Iterator[World]:
    with a_world(tool) as made:
        made.slurm()
        yield made


@pytest.fixture
def ada(world: World) -> Person:
    return world.ada


@pytest.fixture
def mallory(world: World) -> Person:
    return world.mallory


def everything(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout + done.stderr).lower()


def submitted(one: Person) -> str:
    """What has been given to sbatch as this user, the scripts with it."""
    file = one.home / "sbatch"
    return file.read_text() if file.exists() else ""


def a_run(one: Person, cwd: Path, *command: str, **more: Any) -> Path:
    """A new run directory of this user's, in the runs of a folder; its record says ``more``."""
    done = one.slurmgpu(cwd, "submit", "--gpus", "1", "--", *(command or ("true",)))
    assert done.returncode == 0, done.stderr
    made = max((cwd / "runs").iterdir(), key=lambda path: path.stat().st_ctime_ns)
    if more:
        record = json.loads((made / "run.json").read_text()) | more
        one.write(made / "run.json", json.dumps(record))
    return made


def job(one: Person, number: int, **fields: str) -> dict[str, str]:
    """A row of the queue and of accounting at once."""
    own = {
        "UserName": str(one.uid), "User": str(one.uid), "State": "RUNNING", "Name": "train", "JobName": "train",
    }  # fmt: skip
    return {
        "JobArrayID": str(number),
        "JobID": str(number),
        "JobIDRaw": str(number),
        "Submit": "4000000000",
        **own,
        **fields,
    }


# Settings, profiles, templates and job files that mallory wrote


@pytest.mark.parametrize("below", ["", "a/b"])
@pytest.mark.chosen
def test_mallorys_settings_above_do_not_count(world: World, ada: Person, mallory: Person, below: str) -> None:
    mallory.write(world.scratch / "slurmgpu.yaml", EVIL)
    here = world.in_scratch() / below
    with ada.acting():
        here.mkdir(parents=True, exist_ok=True)
    done = ada.slurmgpu(here, *RENDER)
    assert (done.returncode, "MALLORY" in done.stdout) == (0, False)
    assert "belongs to user 54002" in done.stderr


def test_mallorys_settings_in_the_lab_do_not_count(world: World, ada: Person, mallory: Person) -> None:
    mallory.write(world.lab / "slurmgpu.yaml", EVIL, 0o664)
    done = ada.slurmgpu(world.lab, *RENDER)
    assert (done.returncode, "MALLORY" in done.stdout) == (0, False)


def test_settings_that_the_lab_may_write_do_not_count(world: World, ada: Person, mallory: Person) -> None:
    path = ada.write(world.lab / "slurmgpu.yaml", "job: {variables: {GREETING: hello}}\n", 0o664)
    with mallory.acting():
        path.write_text(EVIL)
    done = ada.slurmgpu(world.lab, *RENDER)
    assert "MALLORY" not in done.stdout
    assert "can be written by group" in done.stderr


def test_settings_that_go_while_read_are_not_read_unseen(world: World, ada: Person, mallory: Person) -> None:
    path = world.scratch / "slurmgpu.yaml"
    here = world.in_scratch()

    def remove() -> None:
        with mallory.acting():
            path.unlink(missing_ok=True)

    for done in ada.at_each_moment(
        here, *RENDER, at=path.name, before=lambda: mallory.write(path, EVIL), by=remove
    ):
        assert "MALLORY" not in done.stdout


def test_settings_readable_only_later_are_not_read_unseen(world: World, ada: Person, mallory: Person) -> None:
    path = world.scratch / "slurmgpu.yaml"
    here = world.in_scratch()

    def close() -> None:
        mallory.write(path, EVIL, 0o000 if not path.exists() else 0o644)
        path.chmod(0o000)

    for done in ada.at_each_moment(
        here, *RENDER, at=path.name, before=close, by=lambda: path.chmod(0o644), most=3
    ):
        assert "MALLORY" not in done.stdout


def test_mallorys_link_to_adas_settings_does_not_count(world: World, ada: Person, mallory: Person) -> None:
    elsewhere = ada.write(ada.home / "project" / "slurmgpu.yaml", "job: {variables: {OTHER: project}}\n")
    with mallory.acting():
        (world.scratch / "slurmgpu.yaml").symlink_to(elsewhere)
    done = ada.slurmgpu(world.in_scratch(), *RENDER)
    assert (done.returncode, "OTHER" in done.stdout) == (0, False)


def test_a_job_file_of_mallorys_is_not_taken_unnamed(world: World, ada: Person, mallory: Person) -> None:
    mallory.write(world.scratch / "job.yaml", "resources: {gpus: 1}\ncommand: [mallory-was-here]\n")
    done = ada.slurmgpu(world.scratch, "submit")
    assert (done.returncode, submitted(ada)) == (2, "")
    assert "belongs to user 54002" in done.stderr


def test_a_job_file_replaced_meanwhile_is_not_taken(world: World, ada: Person, mallory: Person) -> None:
    path = world.lab / "job.yaml"
    text = "resources: {gpus: 1}\ncommand: [true]\n"

    def replace() -> None:
        with mallory.acting():
            path.unlink(missing_ok=True)
        mallory.write(path, text.replace("true", "mallory-was-here"))

    def put_back() -> None:
        path.unlink(missing_ok=True)
        ada.write(path, text)

    for done in ada.at_each_moment(world.lab, "render", at=path.name, before=put_back, by=replace, most=8):
        assert "mallory-was-here" not in done.stdout


def test_a_template_of_mallorys_among_adas_is_refused(world: World, ada: Person, mallory: Person) -> None:
    ada.write(world.lab / "slurmgpu.yaml", "templates: templates\n")
    mallory.write(world.lab / "templates" / "script.sh.j2", "mallory was here\n")
    done = ada.slurmgpu(world.lab, *RENDER)
    assert (done.returncode, done.stdout) == (2, "")
    assert "belongs to user 54002" in done.stderr


def test_a_template_removed_while_it_is_read_is_refused(world: World, ada: Person, mallory: Person) -> None:
    ada.write(world.lab / "slurmgpu.yaml", "templates: templates\n")
    path = world.lab / "templates" / "script.sh.j2"

    def remove() -> None:
        with mallory.acting():
            path.unlink(missing_ok=True)

    made = lambda: mallory.write(path, "mallory was here\n")  # noqa: E731
    for done in ada.at_each_moment(world.lab, *RENDER, at=path.name, before=made, by=remove, most=6):
        assert "mallory was here" not in done.stdout


def test_mallorys_profile_beside_settings_is_not_used(world: World, ada: Person, mallory: Person) -> None:
    ada.write(world.lab / "slurmgpu.yaml", "cluster: ours\n")
    mallory.write(world.lab / "clusters" / "ours.yaml", PROFILE.format(name="ours") + EVIL_PROFILE)
    done = ada.slurmgpu(world.lab, *RENDER)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_profile_replaced_while_read_is_not_planned_on(world: World, ada: Person, mallory: Person) -> None:
    ada.write(world.lab / "slurmgpu.yaml", "cluster: ours\n")
    folder = world.lab / "clusters"
    changed = PROFILE.format(name="ours").replace("gpu:", "mallorys:")

    def replace() -> None:
        if not (world.lab / "adas").exists():
            with mallory.acting():
                folder.rename(world.lab / "adas")
            mallory.write(folder / "ours.yaml", changed)

    def put_back() -> None:
        shutil.rmtree(world.lab / "adas", ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        ada.write(folder / "ours.yaml", PROFILE.format(name="ours"))
        folder.chmod(0o755)

    words = ("plan", "--gpus", "1", "--partition", "mallorys", "--", "true")
    for done in ada.at_each_moment(world.lab, *words, at="ours.yaml", before=put_back, by=replace, most=4):
        assert done.returncode != 0


def test_a_lab_folder_that_nobody_named_is_not_the_labs(world: World, ada: Person, mallory: Person) -> None:
    """Only ada's own settings and the site's name a folder that is trusted."""
    mallory.write(mallory.home / "lab" / "config.yaml", EVIL)
    mallory.write(world.scratch / "slurmgpu.yaml", f"lab: {mallory.home}/lab\ntrusted: [/]\n")
    done = ada.slurmgpu(world.in_scratch(), *RENDER)
    assert (done.returncode, "MALLORY" in done.stdout) == (0, False)


# Run directories of mallory's


def test_a_name_does_not_resume_a_run_of_mallorys(world: World, ada: Person, mallory: Person) -> None:
    a_run(ada, world.lab, "true")
    runs = world.lab / "runs"
    runs.chmod(0o2775)
    theirs = a_run(mallory, world.lab, "mallory-was-here", name="true", job_id=123)
    later = runs / "true-20990101T000000Z-00000000"
    with mallory.acting():
        theirs.rename(later)
    before = submitted(ada)
    for word in ("true", "123", later.name):
        done = ada.slurmgpu(world.lab, "resume", word)
        assert "mallory-was-here" not in submitted(ada)[len(before) :], word
    assert "no run of yours" in done.stderr


def test_a_job_id_does_not_resume_a_job_of_mallorys(world: World, ada: Person, mallory: Person) -> None:
    theirs = a_run(mallory, world.scratch, "mallory-was-here", job_id=55)
    named = {"Name": "mallory-was-here", "JobName": "mallory-was-here"}
    world.slurm(accounting=[job(mallory, 55, State="COMPLETED", WorkDir=str(world.scratch), **named)])
    done = ada.slurmgpu(ada.home, "resume", "55")
    assert (done.returncode, submitted(ada)) == (2, "")
    assert str(theirs) in done.stderr


@pytest.mark.parametrize("words", [("resume",), ("status",), ("cancel",), ("logs",), ("checkpoint", "list")])
def test_a_bare_word_is_no_folder_of_mallorys(
    world: World, ada: Person, mallory: Person, words: tuple[str, ...]
) -> None:
    theirs = a_run(mallory, world.scratch, "mallory-was-here", job_id=67)
    with mallory.acting():
        theirs.rename(world.scratch / "train")
    rows = [job(mallory, 67, Command=f"{theirs}/script.sbatch"), job(ada, 68, State="FAILED", Name="train")]
    world.slurm(rows, rows)
    done = ada.slurmgpu(world.scratch, *words, "train")
    assert "mallory-was-here" not in submitted(ada)
    assert "67" not in done.stdout
    assert str(world.scratch / "train") not in done.stdout + done.stderr


def test_who_resumes_mallorys_run_is_told_whose_it_is(world: World, ada: Person, mallory: Person) -> None:
    theirs = a_run(mallory, world.lab, "hello")
    (world.lab / "runs").chmod(0o2777)
    theirs.chmod(0o2777)
    world.slurm(accounting=[job(mallory, 77, State="FAILED", WorkDir=str(world.lab))])
    done = ada.slurmgpu(world.lab, "resume", theirs)
    assert f"{theirs} is used, and it belongs to user 54002" in done.stderr


def test_the_newest_run_with_checkpoints_shown_is_adas(world: World, ada: Person, mallory: Person) -> None:
    own = a_run(ada, world.lab)
    (world.lab / "runs").chmod(0o2775)
    ada.write(own / "checkpoints" / "step-1" / "x")
    mallory.write(world.lab / "runs" / "true-20990101T000000Z-00000000" / "checkpoints" / "step-9" / "x")
    done = ada.slurmgpu(world.lab, "checkpoint", "list")
    assert done.stdout.startswith(str(own)), done


def test_a_forged_record_does_not_name_adas_log(world: World, ada: Person, mallory: Person) -> None:
    forged = a_run(mallory, world.lab, job_id=56)
    mallory.write(forged / "logs" / "56.out", "all is well, says mallory\n")
    world.slurm(accounting=[job(ada, 56, State="FAILED", WorkDir=str(world.lab))])
    done = ada.slurmgpu(world.lab, "logs", "56")
    assert "mallory" not in done.stdout


def test_a_forged_default_log_is_not_that_of_adas_job(world: World, ada: Person, mallory: Person) -> None:
    mallory.write(world.scratch / "slurm-57.out", "all is well, says mallory\n")
    world.slurm(accounting=[job(ada, 57, State="COMPLETED", WorkDir=str(world.scratch))])
    done = ada.slurmgpu(ada.home, "logs", "57")
    assert (done.stdout, done.returncode) == ("", 1)


def test_a_forged_exit_code_changes_no_status(world: World, ada: Person, mallory: Person) -> None:
    own = a_run(ada, world.lab, job_id=58)
    own.chmod(0o2775)
    mallory.write(own / "exit_code.58", "137\n")
    world.slurm(accounting=[job(ada, 58, State="FAILED", ExitCode="9:0", WorkDir=str(world.lab))])
    shown = json.loads(ada.slurmgpu(world.lab, "status", "58", "--json").stdout)["jobs"]
    assert [one["exit_code"] for one in shown] == [9]


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("command", ["cancel", "status"])
@pytest.mark.chosen
def test_a_record_of_mallorys_does_not_stand_for_adas_job(
    world: World, ada: Person, mallory: Person, command: str, link: bool
) -> None:
    own = a_run(ada, ada.home, job_id=59)
    world.slurm([job(ada, 59, Command=f"{own}/script.sbatch")])
    forged = world.scratch / "look-at-this"
    with mallory.acting():
        forged.mkdir()
        if link:
            (forged / "run.json").symlink_to(own / "run.json")
        else:
            shutil.copy(own / "run.json", forged)
    done = ada.slurmgpu(ada.home, command, forged)
    assert done.returncode == 2
    assert "belongs to" in done.stderr
    assert not (ada.home / "scancel").exists()


def test_settling_mallorys_run_writes_nothing_of_adas(world: World, ada: Person, mallory: Person) -> None:
    secret = ada.write(ada.home / "private", "secret\n", 0o600)
    theirs = a_run(mallory, world.scratch, job_id=None, state="unknown")
    with mallory.acting():
        theirs.chmod(0o777)
    world.slurm([job(mallory, 60, Command=f"{theirs}/script.sbatch")])
    record = (theirs / "run.json").read_text()

    def lay_links() -> None:
        with mallory.acting():
            for draft in theirs.glob(".run.json.*"):
                draft.unlink()
                draft.symlink_to(secret)

    def put_back() -> None:
        for draft in theirs.glob(".run.json.*"):
            draft.unlink()
        (theirs / "run.json").unlink(missing_ok=True)
        mallory.write(theirs / "run.json", record)

    words = ("runs", "settle", theirs)
    for _ in ada.at_each_moment(
        world.scratch, *words, at=".run.json.", before=put_back, by=lay_links, most=6
    ):
        assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("secret\n", 0o600)


def test_settling_mallorys_run_writes_through_no_link(world: World, ada: Person, mallory: Person) -> None:
    theirs = a_run(mallory, world.scratch, job_id=None, state="unknown")
    record = ada.write(ada.home / "private", (theirs / "run.json").read_text())
    with mallory.acting():
        theirs.chmod(0o777)
        (theirs / "run.json").unlink()
        (theirs / "run.json").symlink_to(record)
    before = record.read_text()
    world.slurm([job(mallory, 61, Command=f"{theirs}/script.sbatch")])
    ada.slurmgpu(world.scratch, "runs", "settle", theirs)
    assert record.read_text() == before


def test_what_mallorys_claim_turns_into_is_not_written(world: World, ada: Person, mallory: Person) -> None:
    treasure = ada.write(ada.home / "thesis.tex", "years of work\n")
    theirs = a_run(mallory, world.scratch)
    claim = theirs / "resume.lock"
    with mallory.acting():
        theirs.chmod(0o777)

    def lay_link() -> None:
        with mallory.acting():
            claim.unlink(missing_ok=True)
            claim.symlink_to(treasure)

    words = ("resume", theirs)
    before = lambda: claim.unlink(missing_ok=True)  # noqa: E731
    for _ in ada.at_each_moment(world.scratch, *words, at=claim.name, before=before, by=lay_link, most=4):
        assert treasure.read_text() == "years of work\n"


def test_words_in_mallorys_claim_reach_no_terminal(world: World, ada: Person, mallory: Person) -> None:
    theirs = a_run(mallory, world.scratch)
    with mallory.acting():
        theirs.chmod(0o777)
    mallory.write(theirs / "resume.lock", "\x1b[2J\u202ejob 77 is done\r\nslurmgpu: job 78 on cluster x")
    done = ada.slurmgpu(world.scratch, "resume", theirs)
    assert not {"\x1b", "\u202e", "\r"} & set(done.stderr)
    assert "\nslurmgpu: job 78" not in done.stderr


def test_the_tab_key_offers_no_folder_of_mallorys(world: World, ada: Person, mallory: Person) -> None:
    with mallory.acting():
        (world.lab / "runs").mkdir()
        (world.lab / "runs" / "train-20990101T000000Z-00000000").mkdir()
        (world.lab / "runs" / "$(touch ran)-20990101T000000Z-00000000").mkdir()
    ada.env |= {"_SLURMGPU_COMPLETE": "bash_complete", "COMP_WORDS": "slurmgpu resume ", "COMP_CWORD": "2"}
    done = ada.slurmgpu(world.lab)
    assert "2099" not in done.stdout


# Checkpoints, and Python files where helpers run


PICKLE = """
import os, torch
class Evil:
    def __reduce__(self):
        return os.system, ("touch " + {ran!r},)
torch.save({{"weight": Evil()}}, {part!r})
"""

LOAD = """
import os, sys, torch
from slurmgpu.training import export
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
os.chdir({folder!r})
sys.exit(export.main([{folder!r}, {target!r}, "model"]))
"""


@pytest.mark.chosen
def test_mallorys_pickle_in_a_checkpoint_runs_nothing(world: World, ada: Person, mallory: Person) -> None:
    pytest.importorskip("torch")
    import sys

    step = world.scratch / "step-1"
    mallory.write(step / "model.pt")
    subprocess.run(
        [sys.executable, "-c", PICKLE.format(ran=str(world.ran), part=str(step / "model.pt"))], check=True
    )
    target = str(ada.home / "model.pt")
    code = LOAD.format(uid=ada.uid, folder=str(step), target=target)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 1, done
    assert "cannot load" in done.stderr
    assert not world.ran.exists()


def shadows(mallory: Person, folder: Path, ran: Path) -> None:
    """Python files that leave a trace where anything imports them."""
    for name in (
        "json",
        "torch",
        "os",
        "sitecustomize",
        "usercustomize",
        "encodings",
        "slurmgpu",
        "slurmgpu_training",
        "typing",
    ):
        mallory.write(
            folder / f"{name}.py", f"open({str(ran)!r}, 'a').write(__name__)\nraise SystemExit(0)\n"
        )


def a_checkpoint(one: Person, run: Path) -> None:
    import hashlib

    step = run / "checkpoints" / "step-1"
    one.write(step / "model.pt", "weights")
    part = {"bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}
    manifest = {"schema": "slurmgpu.checkpoint/1", "parts": {"model.pt": part}, "step": 1}
    one.write(step / "manifest.json", json.dumps(manifest))


@pytest.mark.parametrize("where", ["scratch", "run", "checkpoint"])
def test_files_beside_do_not_run_in_an_export(world: World, ada: Person, mallory: Person, where: str) -> None:
    theirs = a_run(mallory, world.scratch)
    a_checkpoint(mallory, theirs)
    cwd = {"scratch": world.scratch, "run": theirs, "checkpoint": theirs / "checkpoints" / "step-1"}[where]
    shadows(mallory, cwd, world.ran)
    done = ada.slurmgpu(
        cwd, "checkpoint", "export", theirs, "-o", ada.home / "w.pt", "--python", ada.tool.python
    )
    assert "has no torch" in done.stderr  # the helper has come that far
    assert not world.ran.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("status",), ("check", "job.sbatch"), ("import", "job.sbatch"), ("submit", "job.sbatch"), RENDER,
        ("cluster", "list"),
    ],
)  # fmt: skip
@pytest.mark.chosen
def test_python_files_in_the_folder_do_not_run(
    world: World, ada: Person, mallory: Person, words: tuple[str, ...]
) -> None:
    shadows(mallory, world.scratch, world.ran)
    ada.write(world.scratch / "job.sbatch", "#!/bin/bash\n#SBATCH -n 1\npython train.py\n")
    ada.slurmgpu_afresh(world.scratch, *words)
    assert not world.ran.exists()


# Batch scripts of mallory's, read by ada


@pytest.mark.parametrize("command", ["check", "import"])
def test_reading_mallorys_job_runs_nothing(world: World, ada: Person, mallory: Person, command: str) -> None:
    touch = f"touch {world.ran}"
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=$({touch})",
        f"#SBATCH --output=`{touch}`",
        f"#SBATCH --wrap='{touch}'",
        f"X=$({touch}) source <({touch})",
        f"cd $({touch}); module load $({touch})",
        f"python $({touch}).py \x1b]0;title\x07 \u202e",
        f"export A=${{B:-$({touch})}}; eval '{touch}'; trap '{touch}' EXIT",
        "{{ ''.__class__.__mro__[1].__subclasses__() }} {% for x in range(9) %}{% endfor %}",
    ]
    script = mallory.write(world.scratch / "job.sbatch", "\n".join(lines) + "\n")
    done = ada.slurmgpu(ada.home, command, script)
    assert "Traceback" not in done.stderr
    assert not world.ran.exists()
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stderr)


# What Slurm says of jobs of mallory's


NAME = "train\x1b[2J\x1b]0;x\x07\u202e\r\n999999\x1f999999\x1f\x1fada\x1fCOMPLETED\n"


@pytest.mark.parametrize(
    "words", [("status", "--all-users"), ("status", "62"), ("logs", "62"), ("cancel", "62")]
)
def test_a_name_of_mallorys_is_neither_a_job_nor_a_word_to_the_terminal(
    world: World, ada: Person, mallory: Person, words: tuple[str, ...]
) -> None:
    fields = {
        "Name": NAME, "JobName": NAME, "StdOut": f"/nowhere/{NAME}", "WorkDir": f"/{NAME}", "Reason": NAME,
    }  # fmt: skip
    world.slurm([job(mallory, 62, **fields)], [job(mallory, 62, **fields)])
    done = ada.slurmgpu(ada.home, *words)
    assert not {"\x1b", "\x07", "\u202e", "\r", "\x1f"} & set(done.stdout + done.stderr)
    assert not any(line.startswith("999999") for line in done.stdout.splitlines())


def test_a_name_of_mallorys_holds_no_job_of_adas(world: World, ada: Person, mallory: Person) -> None:
    from slurmgpu.slurm.squeue import FIELDS

    row = {"JobArrayID": "999999", "JobID": "999999", "UserName": str(ada.uid), "State": "COMPLETED"}
    after = len(FIELDS) - FIELDS.index("Name")
    columns = "\x1f".join(row.get(field, "1") for field in FIELDS)
    name = "mine" + after * "\x1f" + f"\n{columns}\x1f\n7\x1f7\x1f"
    world.slurm([job(mallory, 66, Name=name)])
    shown = json.loads(ada.slurmgpu(ada.home, "status", "--all-users", "--json").stdout)["jobs"]
    assert [one["job_id"] for one in shown] == ["66"]


def test_mallorys_log_has_no_words_to_the_terminal(world: World, ada: Person, mallory: Person) -> None:
    folder = world.scratch / "\x1b[2J\u202e"
    for number in (63, 64):
        mallory.write(folder / f"slurm-{number}.out", "text\n")
    world.slurm(accounting=[job(mallory, number, WorkDir=str(folder)) for number in (63, 64)])
    done = ada.slurmgpu(ada.home, "logs", "63", "64")
    assert done.stdout.count("text") == 2
    assert not {"\x1b", "\u202e"} & set(done.stdout + done.stderr)


@pytest.mark.parametrize("words", [("status", "--all-users"), ("why", "--all-users", "67"), ("logs", "67")])
def test_runs_of_mallorys_that_are_closed_or_hold_pipes_hold_up_no_command_of_adas(
    world: World, ada: Person, mallory: Person, words: tuple[str, ...]
) -> None:
    runs = mallory.home / "runs"
    trap = runs / "train-20260101T000000Z-abcd"
    with mallory.acting():
        (runs / "closed").mkdir(parents=True)
        mallory.home.chmod(0o755)
        (runs / "closed").chmod(0o700)
        trap.mkdir()
        for name in ("run.json", "exit_code.67", "cause.67.json", "plan.json", "metrics.jsonl"):
            os.mkfifo(trap / name)
    fields = {
        "WorkDir": str(mallory.home),
        "State": "FAILED",
        "ExitCode": "1:0",
        "Command": f"{trap}/script.sbatch",
    }
    world.slurm([job(mallory, 67, **fields)], [job(mallory, 67, **fields)])
    done = ada.slurmgpu_afresh(ada.home, *words)
    assert "Permission denied" not in done.stderr
    assert "Traceback" not in done.stderr
    assert words[0] == "logs" or "failed" in everything(done), done


def test_adas_jobs_by_name_are_not_mallorys(world: World, ada: Person, mallory: Person) -> None:
    world.slurm([job(mallory, 64), job(ada, 65)], [job(mallory, 64), job(ada, 65)])
    ada.slurmgpu(ada.home, "cancel", "train")
    assert "64" not in (ada.home / "scancel").read_text()


# Secrets


def can_read(one: Person, folder: Path, word: str) -> list[Path]:
    """The files below a folder in which this user finds a word."""
    with one.acting():
        found = []
        for at, _, names in os.walk(folder):
            for name in names:
                path = Path(at, name)
                try:
                    if stat.S_ISREG(path.lstat().st_mode) and word in path.read_text(errors="replace"):
                        found.append(path)
                except OSError:
                    continue
    return found


JOB = "resources: {gpus: 1}\nsecrets: [HF_TOKEN]\ncommand: [bash, -c, 'echo start; sleep 2']\n"
SECRET = "hf_0123456789"


@pytest.fixture
def project(world: World, ada: Person) -> Path:
    """A folder of ada's in the scratch with a job that has a secret."""
    folder = world.in_scratch()
    ada.write(folder / "job.yaml", JOB)
    return folder


@pytest.mark.parametrize("umask", [0o022, 0o002])
def test_a_secret_of_the_environment_stands_in_no_file(
    world: World, ada: Person, mallory: Person, project: Path, umask: int
) -> None:
    ada.env["HF_TOKEN"] = SECRET
    done = ada.slurmgpu(project, "submit", umask=umask)
    assert done.returncode == 0, done.stderr
    assert can_read(mallory, world.folder, "HF_TOKEN")  # the job is there to be read
    assert not can_read(mallory, world.folder, SECRET)
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.chosen
def test_a_secret_of_a_file_stands_in_no_file_that_mallory_can_read(
    world: World, ada: Person, mallory: Person, project: Path
) -> None:
    ada.write(ada.home / ".config/slurmgpu/secrets/HF_TOKEN", SECRET, 0o600)
    done = ada.slurmgpu(project, "run", "--here", "--cpu", "--processes", "1")
    assert "start" in done.stdout, done
    assert not can_read(mallory, world.folder, SECRET)


@pytest.mark.chosen
def test_ps_shows_no_secret_of_a_job(world: World, ada: Person, mallory: Person, project: Path) -> None:
    ada.env["HF_TOKEN"] = SECRET
    code = "from slurmgpu.cli import main; main()"
    words = ["run", "--here", "--cpu", "--processes", "1"]
    process = ada.start(ada.tool.python, "-c", code, *words, cwd=project)
    assert process.stdout.readline() == "start\n"
    shown = mallory.run("ps", "axeww", "-o", "args", cwd=mallory.home).stdout
    process.communicate()
    assert "sleep 2" in shown
    assert SECRET not in shown


@pytest.mark.parametrize(("mode", "owner"), [(0o644, "ada"), (0o640, "ada"), (0o600, "mallory")])
def test_a_secret_that_mallory_reads_or_wrote_is_refused(
    ada: Person, mallory: Person, project: Path, mode: int, owner: str
) -> None:
    path = ada.write(ada.home / ".config/slurmgpu/secrets/HF_TOKEN", SECRET, mode)
    if owner == "mallory":
        os.chown(path, mallory.uid, mallory.uid)
    done = ada.slurmgpu(project, "submit")
    assert (done.returncode, submitted(ada)) == (1, "")
    assert "HF_TOKEN" in done.stderr
    assert SECRET not in done.stderr


# Folders and files of ada's own


@pytest.mark.parametrize(("umask", "readable"), [(0o022, True), (0o027, False), (0o077, False)])
def test_a_run_directory_is_as_open_as_the_umask_says(
    world: World, ada: Person, mallory: Person, umask: int, readable: bool
) -> None:
    ada.slurmgpu(world.lab, "submit", "--gpus", "1", "--", "true", umask=0o022)
    shutil.rmtree(next((world.lab / "runs").iterdir()))
    ada.slurmgpu(world.lab, "submit", "--gpus", "1", "--", "true", umask=umask)
    (made,) = (world.lab / "runs").iterdir()
    outsider = Person(54004, mallory.home, mallory.tool, groups=())
    assert bool(can_read(outsider, made, "true")) is readable
    modes = {path: path.stat().st_mode & 0o777 for path in (made, *made.rglob("*"))}
    assert not {path: oct(mode) for path, mode in modes.items() if mode & umask}


def test_an_export_is_not_written_through_links(world: World, ada: Person, mallory: Person) -> None:
    pytest.importorskip("torch")
    import sys

    treasure = ada.write(ada.home / "thesis.tex", "years of work\n")
    step = ada.write(world.lab / "step-1" / "x").parent
    code = f"import torch; torch.save({{'w': torch.zeros(1)}}, {str(step / 'model.pt')!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    # Process ids are no secret: mallory lays a link for each that may come next.
    lay = f"""
import os, sys
os.chdir({str(world.lab)!r})
for number in range(os.getpid(), os.getpid() + 400):
    for name in (".w.pt.%d", ".w.pt.%d.tmp"):
        os.symlink({str(treasure)!r}, name % number)
"""
    mallory.run(mallory.tool.python, "-c", lay, cwd=world.lab)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    load = LOAD.format(uid=ada.uid, folder=str(step), target=str(world.lab / "w.pt"))
    load = load.replace("os.setgroups([])", f"os.setgroups({list(ada.groups)})").replace("os.chdir", "str")
    done = subprocess.run([sys.executable, "-c", load], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert treasure.read_text() == "years of work\n"


@pytest.mark.parametrize(
    "words", [("import", "job.sbatch", "--to", "job.yaml"), ("jobs", "copy", "pytorch", "job.yaml")]
)
def test_a_new_file_is_not_written_through_a_link_of_mallorys(
    world: World, ada: Person, mallory: Person, words: tuple[str, ...]
) -> None:
    ada.write(world.lab / "job.sbatch", "#!/bin/bash\n#SBATCH -n 1\ntrue\n")
    with mallory.acting():
        (world.lab / "job.yaml").symlink_to(ada.home / ".bashrc")
    done = ada.slurmgpu(world.lab, *words)
    assert done.returncode == 2, done
    assert not (ada.home / ".bashrc").exists()


# Sandboxes and runs on this machine


def spoilt(path: Path, mallory: Person, ada: Person, up: str) -> None:
    """The folder of sandboxes in a shared place, made by mallory before ada came."""
    with mallory.acting():
        path.mkdir(parents=True)
        path.parent.chmod(0o777)
        path.chmod(0o777)
    if up == "inner":
        os.chown(path, ada.uid, ada.uid)
        path.chmod(0o755)


STATE = {
    "schema_name": "slurmgpu.sandbox/1", "name": "default", "cluster": "sandbox-default", "version": "26.05.0",
    "since": "2026-01-01T00:00:00Z", "accounting": False, "ports": [1], "token": "x", "ready": True,
}  # fmt: skip


def a_state(world: World, pid: int) -> str:
    """A sandbox's state whose supervisor is some process."""
    from slurmgpu.sandbox.configuration import default_shape
    from slurmgpu.sandbox.processes import identify

    process = identify(pid)
    assert process is not None
    shape = default_shape(nodes=1, gpus=1, gpu_type=None, cpus=2, memory_mib=1000).model_dump(mode="json")
    supervisor = {"pid": process.pid, "started": process.started, "boot": process.boot}
    return json.dumps({**STATE, "shape": shape, "supervisor": supervisor})


@pytest.fixture
def theirs(world: World, ada: Person, mallory: Person) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process of ada's, and a sandbox that mallory has laid out for her, with it for a supervisor."""
    ada.env["XDG_STATE_HOME"] = str(world.scratch)
    process = ada.start("sleep", "60", cwd=ada.home)
    folder = world.scratch / "slurmgpu" / "sandbox" / "default"
    mallory.write(folder / "state.json", a_state(world, process.pid))
    mallory.write(folder / "slurm.conf", "ClusterName=mallorys\n")
    try:
        yield process, folder
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("words", [("exec", "--", "env"), ("env",), ("status",), ("logs",)])
@pytest.mark.chosen
def test_a_sandbox_of_mallorys_is_not_talked_to(
    ada: Person, theirs: tuple[subprocess.Popen[str], Path], words: tuple[str, ...]
) -> None:
    done = ada.slurmgpu(ada.home, "sandbox", *words)
    assert done.returncode != 0, done
    assert str(theirs[1]) not in done.stdout
    assert "belongs to user 54002" in done.stderr


def test_mallorys_sandbox_ends_no_process(ada: Person, theirs: tuple[subprocess.Popen[str], Path]) -> None:
    done = ada.slurmgpu(ada.home, "sandbox", "down")
    assert theirs[0].poll() is None
    assert done.returncode != 0


def test_no_sandbox_starts_in_a_folder_of_mallorys(world: World, ada: Person, mallory: Person) -> None:
    ada.env["XDG_STATE_HOME"] = str(world.scratch)
    with mallory.acting():
        (world.scratch / "slurmgpu").mkdir()
        (world.scratch / "slurmgpu").chmod(0o777)
    done = ada.slurmgpu(ada.home, "sandbox", "up", "--nodes", "1", "--no-accounting")
    assert done.returncode != 0
    assert "belongs to user 54002" in done.stderr
    assert not (world.scratch / "slurmgpu" / "sandbox" / "default").exists()


def test_the_port_of_a_stopped_daemon_is_not_mallorys(world: World, ada: Person, mallory: Person) -> None:
    import socket

    from slurmgpu.sandbox.supervisor import Door

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with ada.acting():
        door = Door(port)
    door.close()
    take = f"""
import socket
for kind in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, kind, 1)
    try:
        one.bind(("127.0.0.1", {port})); one.listen(); print("taken")
    except OSError:
        pass
"""
    taken = mallory.run(mallory.tool.python, "-c", take, cwd=mallory.home)
    door.socket.close()
    assert (taken.returncode, taken.stdout) == (0, "")


def test_mallory_reaches_no_stand_in_of_a_local_run(world: World, ada: Person, mallory: Person) -> None:
    tried_it = ada.home / "tried"
    look = f'dirname "$(command -v srun)"; until [ -e {tried_it} ]; do sleep 0.05; done'
    words = ["run", "--here", "--cpu", "--processes", "1", "--gpus", "1", "--", "bash", "-c", look]
    code = "from slurmgpu.cli import main; main()"
    process = ada.start(ada.tool.python, "-c", code, *words, cwd=world.in_scratch())
    folder = process.stdout.readline().strip()
    tried = mallory.run(
        "sh", "-c", f"ls {folder} || touch {folder}/srun || mv {Path(folder).parent} /tmp/x", cwd=mallory.home
    )
    tried_it.touch()
    process.communicate()
    assert folder.endswith("/bin")
    assert tried.stderr.count("ermission") + tried.stderr.count("not permitted") == 3, tried


@pytest.mark.parametrize("made", ["folder", "link", "above"])
def test_a_staging_folder_that_mallory_has_made_is_not_used(
    world: World, ada: Person, mallory: Person, made: str
) -> None:
    script = (ROOT / "tests" / "golden" / "scripts" / "stage-one-node.sbatch").read_text()
    make = script[script.index("    make_stage() {") : script.index("    fill_stage() {")]
    stage, own = world.scratch / "slurmgpu-7", ada.home / "own"
    ada.write(own / "kept", "")
    with mallory.acting():
        if made == "above":
            (world.scratch / "ada").mkdir()
            (world.scratch / "ada").chmod(0o777)
            stage = world.scratch / "ada" / "slurmgpu-7"
        else:
            stage.mkdir(0o777) if made == "folder" else stage.symlink_to(own)
    line = f'SLURMGPU_STAGE={stage} stage={stage}; {make}\nmake_stage && echo "used $stage"'
    done = ada.run("bash", "-c", line, cwd=ada.home)
    assert (done.returncode, done.stdout, "belongs to somebody else" in done.stderr) == (1, "", True)
    assert stat.S_IMODE(own.stat().st_mode) != 0o700


def test_a_module_that_mallory_put_into_the_folder_is_not_imported_to_ask_what_is_there(
    world: World, ada: Person, mallory: Person
) -> None:
    here = world.in_scratch()
    with ada.acting():
        here.chmod(0o777)
    ada.write(ada.home / "mine.py", "import numpy\n")
    mallory.write(here / "difflib.py", f"open({str(ada.home / 'taken')!r}, 'w')\n")
    ada.slurmgpu(
        here, "submit", "--dry-run", "--gpus", "1", "-t", "5", "--", "python3", str(ada.home / "mine.py")
    )
    assert not (ada.home / "taken").exists()
