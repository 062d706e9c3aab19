"""What somebody else wrote, or may write, does not run as the user: settings, profiles, templates, job files."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from slurmgpu.files.trust import Trust
from tests.test_cli import slurmgpu


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder where everybody may write, as /tmp is, that everybody can get to."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    for one in tmp_path.parents:
        if one.stat().st_uid == 0 and str(one).startswith("/tmp/"):
            one.chmod(0o755)
    tmp_path.chmod(0o755)
    return folder


def by_bob(path: Path, text: str | None = None) -> Path:
    """Write a file as somebody else."""
    if text is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    os.chown(path, 54321, 54321, follow_symlinks=False)
    return path


def evil_templates(folder: Path, ran: Path) -> Path:
    """Templates that leave a trace in the script."""
    folder.mkdir(exist_ok=True)
    (folder / "script.sh.j2").write_text(f"#!/bin/bash\ntouch {ran}\n")
    return folder


def plan(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return slurmgpu(cwd, "render", "--gpus", "1", *words, "--", "true")


def test_settings_of_somebody_else_above_the_folder_are_not_used_and_named(shared: Path) -> None:
    evil_templates(shared / "templates", shared / "ran")
    by_bob(shared / "slurmgpu.yaml", "templates: templates\njob: {variables: {LD_PRELOAD: /tmp/x.so}}\n")
    mine = shared / "mine"
    mine.mkdir()
    done = plan(mine)
    assert done.returncode == 0, done.stderr
    assert "touch" not in done.stdout
    assert "LD_PRELOAD" not in done.stdout
    assert f"{shared}/slurmgpu.yaml is not used: it belongs to user 54321" in done.stderr
    assert f"slurmgpu config trust {shared}" in done.stderr


def test_broken_settings_of_somebody_else_block_nothing(shared: Path) -> None:
    by_bob(shared / "slurmgpu.yaml", "{{{ broken")
    for command in (["status", "--help"], ["config", "show"], ["cluster", "list"]):
        done = slurmgpu(shared, *command)
        assert done.returncode == 0, done.stderr


def test_a_folder_that_is_trusted_by_name_counts_and_is_still_shown(shared: Path) -> None:
    by_bob(shared / "slurmgpu.yaml", "job: {variables: {GREETING: hello}}\n")
    trusted = slurmgpu(shared, "config", "trust", ".")
    assert trusted.returncode == 0, trusted.stderr
    done = plan(shared)
    assert "export GREETING=hello" in done.stdout
    assert f"{shared}/slurmgpu.yaml is used, and it belongs to user 54321" in done.stderr
    shown = json.loads(slurmgpu(shared, "config", "show", "--json").stdout)["of_others"]
    assert [(one["path"], one["used"]) for one in shown] == [(f"{shared}/slurmgpu.yaml", True)]
    again = slurmgpu(shared, "config", "trust", str(shared))
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("mode", "why"), [(0o666, "can be written by everybody (chmod o-w)"), (0o664, "can be written by group")]
)
def test_ones_own_file_that_others_may_write_is_as_one_of_theirs(shared: Path, mode: int, why: str) -> None:
    path = shared / "slurmgpu.yaml"
    path.write_text("job: {variables: {GREETING: hello}}\n")
    os.chown(path, 0, 54321)
    path.chmod(mode)
    done = plan(shared)
    assert "GREETING" not in done.stdout
    assert why in done.stderr
    path.chmod(0o644)
    assert "GREETING" in plan(shared).stdout


@pytest.mark.parametrize(("entry", "who"), [((2, 6, 54321), "user 54321"), ((8, 6, 54322), "group 54322")])
def test_ones_own_file_that_others_may_write_by_its_acl_is_as_one_of_theirs(
    shared: Path, entry: tuple[int, int, int], who: str
) -> None:
    path = shared / "slurmgpu.yaml"
    path.write_text("job: {variables: {GREETING: hello}}\n")
    path.chmod(0o600)
    none = 0xFFFFFFFF
    entries = [(1, 6, none), *([entry] if entry[0] == 2 else []), (4, 0, none)]
    entries += [*([entry] if entry[0] == 8 else []), (16, 6, none), (32, 0, none)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in entries)
    os.setxattr(path, "system.posix_acl_access", acl)
    done = plan(shared)
    assert "GREETING" not in done.stdout
    assert f"can be written by {who}, as its ACL says (setfacl -b)" in done.stderr
    os.setxattr(
        path,
        "system.posix_acl_access",
        acl.replace(struct.pack("<HH", entry[0], 6), struct.pack("<HH", entry[0], 4)),
    )
    assert "GREETING" in plan(shared).stdout


@pytest.mark.parametrize("way", ["another group", "an ACL", "closed"])
def test_a_folder_lets_others_in_by_another_group_or_an_acl(shared: Path, way: str) -> None:
    path, folder = shared / "slurmgpu.yaml", shared
    path.write_text("job: {variables: {GREETING: hello}}\n")
    os.chown(path, 0, 54321)
    path.chmod(0o664)
    folder.chmod(0o700)
    if way == "another group":
        os.chown(folder, 0, 54322)
        folder.chmod(0o750)
    elif way == "an ACL":
        none = 0xFFFFFFFF
        entries = [(1, 7, none), (2, 1, 54323), (4, 0, none), (16, 1, none), (32, 0, none)]
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in entries)
        os.setxattr(folder, "system.posix_acl_access", acl)
    assert ("GREETING" in plan(shared).stdout) == (way == "closed")


def test_runs_that_are_a_link_of_somebody_else_are_warned_of(shared: Path) -> None:
    (shared / "theirs").mkdir()
    (shared / "runs").symlink_to("theirs")
    by_bob(shared / "runs")
    assert (
        f"{shared}/runs is a link, and it belongs to user 54321: what jobs write lands in {shared}/theirs"
        in plan(shared).stderr
    )


def test_runs_that_a_group_may_change_are_warned_of(shared: Path) -> None:
    (shared / "runs").mkdir()
    assert "runs there" not in plan(shared).stderr
    (shared / "runs").chmod(0o777)
    assert (
        f"{shared}/runs can be written by everybody (chmod o-w): what somebody changes in a run there runs as you"
        in plan(shared).stderr
    )


def test_runs_below_a_variable_that_is_not_set_here_hold_up_no_plan(shared: Path) -> None:
    (shared / "slurmgpu.yaml").write_text("runs: $NOT_SET_ANYWHERE/runs\n")
    assert plan(shared).returncode == 0


def test_a_file_that_others_may_write_in_a_folder_that_is_closed_to_them_is_ones_own(shared: Path) -> None:
    closed = shared / "closed"
    closed.mkdir()
    path = closed / "slurmgpu.yaml"
    path.write_text("job: {variables: {GREETING: hello}}\n")
    path.chmod(0o666)
    closed.chmod(0o700)
    assert "GREETING" in plan(closed).stdout


def test_a_link_that_somebody_else_has_laid_is_theirs_wherever_it_leads(shared: Path) -> None:
    mine = shared / "mine.yaml"
    mine.write_text("job: {variables: {GREETING: hello}}\n")
    (shared / "slurmgpu.yaml").symlink_to(mine)
    by_bob(shared / "slurmgpu.yaml")
    done = plan(shared)
    assert "GREETING" not in done.stdout
    assert "is not used: it belongs to" in done.stderr


def test_a_template_of_somebody_else_in_ones_own_folder_is_refused_by_name(shared: Path) -> None:
    folder = evil_templates(shared / "templates", shared / "ran")
    by_bob(folder / "script.sh.j2")
    (shared / "slurmgpu.yaml").write_text("templates: templates\n")
    done = plan(shared)
    assert (done.returncode, done.stdout) == (2, "")
    assert "script.sh.j2': it belongs to user 54321, and what it says would run as you" in done.stderr
    assert "slurmgpu config trust" in done.stderr
    by_name = plan(shared, "--template", str(folder))
    assert "touch" in by_name.stdout


def test_a_template_is_not_copied_into_a_project_whose_settings_are_somebody_elses(shared: Path) -> None:
    settings = by_bob(shared / "slurmgpu.yaml", "cluster: generic\n")
    done = slurmgpu(shared, "template", "copy", "srun", "--project")
    assert done.returncode == 2
    assert f"{settings} belongs to user 54321, and is not used" in done.stderr
    assert sorted(path.name for path in shared.iterdir() if path.name != "xdg") == ["slurmgpu.yaml"]


def test_a_projects_template_that_somebody_else_wrote_is_refused_in_listings_too(shared: Path) -> None:
    folder = shared / "templates"
    folder.mkdir()
    by_bob(folder / "time.sh.j2", "touch /tmp/ran\n")
    (shared / "slurmgpu.yaml").write_text("templates: templates\n")
    done = slurmgpu(shared, "template", "list")
    assert (done.returncode, done.stdout) == (2, "")
    assert "time.sh.j2': it belongs to user 54321, and what it says would run as you" in done.stderr


def test_a_profile_of_somebody_else_is_not_planned_on(shared: Path) -> None:
    (shared / "slurmgpu.yaml").write_text("cluster: ours\n")
    profile = "name: ours\nsource: {text: made up, date: 2026-01-01}\npartitions: {gpu: {}}\n"
    folder = shared / "clusters"
    folder.mkdir()
    (folder / "ours.yaml").write_text(profile)
    assert plan(shared).returncode == 0, plan(shared).stderr
    by_bob(folder / "ours.yaml")
    done = plan(shared)
    assert done.returncode == 2
    assert "ours.yaml belongs to user 54321" in done.stderr
    assert f"slurmgpu config trust {shared}" in done.stderr


def test_a_job_file_of_somebody_else_is_used_only_when_it_is_named(shared: Path) -> None:
    by_bob(shared / "job.yaml", "resources: {gpus: 1}\ncommand: [echo, hello]\n")
    done = slurmgpu(shared, "render")
    assert (done.returncode, done.stdout) == (2, "")
    assert "job.yaml: it belongs to user 54321, and you did not name it on the command line" in done.stderr
    named = slurmgpu(shared, "render", "job.yaml")
    assert "echo hello" in named.stdout
    assert "job.yaml is used, and it belongs to user 54321" in named.stderr


def test_only_the_user_says_whom_to_trust(shared: Path) -> None:
    (shared / "slurmgpu.yaml").write_text("trusted: [/tmp]\n")
    done = plan(shared)
    assert done.returncode == 2
    assert "slurmgpu.yaml:1: whom to trust is the user's to say" in done.stderr


def test_the_search_ends_at_the_file_systems_border(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurmgpu.files import settings

    inner = tmp_path / "mounted" / "mine"
    inner.mkdir(parents=True)
    (tmp_path / "slurmgpu.yaml").write_text("cluster: generic\n")
    assert settings._project_file(inner) == tmp_path / "slurmgpu.yaml"
    monkeypatch.setattr(settings, "_device", lambda folder: len(folder.parts) > len(tmp_path.parts))
    assert settings._project_file(inner) is None


def test_a_trusted_folder_does_not_vouch_for_what_its_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside.yaml").touch()
    (tmp_path / "inside" / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    trust = Trust.of([tmp_path / "inside"])
    assert trust.covers(tmp_path / "inside" / "any.yaml")
    assert not trust.covers(tmp_path / "inside" / "link.yaml")
    assert not trust.covers(tmp_path / "inside" / ".." / "outside.yaml")


def test_the_shipped_files_count_whoever_installed_them() -> None:
    from slurmgpu.files.data import read_templates

    code = "import os; os.geteuid = lambda: 54321; from slurmgpu.files.data import read_templates as r; r()['script.sh.j2']"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read_templates()["script.sh.j2"]
