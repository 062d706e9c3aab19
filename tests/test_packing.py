"""Python environments for the nodes' own disks: packed once for the same files, whole or not at all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.errors import PlanError
from slurmgpu.files.data import read_templates
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.runs import packing
from slurmgpu.runs.images import made_once
from slurmgpu.runs.packing import (
    Contents,
    Packing,
    contents_of,
    pack_environment,
    place_of,
    with_packed_environment,
)
from slurmgpu.script.render import render_script
from tests.test_images import code

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(autouse=True)
def without_zstd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Archives that tarfile reads; and nothing of the user's."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "SLURMGPU_SITE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in [name for name in os.environ if name.startswith(("CONDA", "MAMBA", "SLURMGPU_CLUSTER"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment, made of an interpreter in a shared folder, with one package and two programs."""
    base = tmp_path / "base"
    text(base / "bin" / PYTHON, "an interpreter\n", 0o755)
    for name in ("os.py", "site-packages/others.py", "test/of_its_own.py", "__pycache__/os.pyc"):
        text(base / "lib" / PYTHON / name, "\n")
    text(base / "lib" / f"lib{PYTHON}.so.1.0", "a library\n")
    (base / "lib" / f"lib{PYTHON}.so").symlink_to(f"lib{PYTHON}.so.1.0")
    text(base / "include" / PYTHON / "Python.h", "\n")
    made = tmp_path / "venv"
    text(made / "bin" / "activate", f'VIRTUAL_ENV="{made}"\n')
    text(made / "pyvenv.cfg", f"home = {base}/bin\nversion = {PYTHON.removeprefix('python')}.7\n")
    (made / "bin" / "python3").symlink_to(base / "bin" / PYTHON)
    (made / "bin" / "python").symlink_to("python3")
    text(made / "bin" / "tool", f"#!{made}/bin/python3\nimport tool\n", 0o755)
    text(made / "bin" / "other", "#!/bin/sh\necho\n", 0o755)
    text(packages(made) / "tool" / "__init__.py", "import os\n")
    return made


def packages(venv: Path) -> Path:
    return venv / "lib" / PYTHON / "site-packages"


def text(file: Path, content: str, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(mode)


def contents(venv: Path) -> Contents:
    return contents_of(place_of("venv", venv))


def pack(venv: Path, folder: Path) -> tuple[Path, list[str]]:
    """Pack it, as a submission does; the archive, and what the user is told."""
    said: list[str] = []
    found = contents(venv)
    archive = folder / f"venv-{found.key}.tar"
    pack_environment(Packing(archive, found), said.append)
    return archive, said


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def read(archive: Path, name: str) -> str:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        return file.read().decode()


# The key


def test_the_same_files_have_the_same_key_in_whatever_order_and_folder_they_lie(venv: Path) -> None:
    key = contents(venv).key
    assert contents(venv).key == key
    moved = venv.with_name("moved")
    subprocess.run(["/bin/cp", "-a", str(venv), str(moved)], check=True)
    assert contents(moved).key == key


def changed(path: Path) -> None:
    path.write_text(path.read_text() + "# more\n")


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [changed, touched, Path.unlink], ids=["longer", "newer", "gone"])
@pytest.mark.parametrize("file", ["venv/lib/{}/site-packages/tool/__init__.py", "base/lib/{}/os.py"])
def test_a_file_that_changes_makes_another_key(change: Any, file: str, venv: Path) -> None:
    if (change, file[:4]) == (Path.unlink, "base"):
        text(venv.parent / "base" / "lib" / PYTHON / "gone.py", "\n")
        file = "base/lib/{}/gone.py"
    key = contents(venv).key
    change(venv.parent / file.format(PYTHON))
    assert contents(venv).key != key


def test_what_an_import_compiles_makes_no_other_key_and_is_packed(venv: Path, tmp_path: Path) -> None:
    key = contents(venv).key
    text(packages(venv) / "tool" / "__pycache__" / "tool.pyc", "compiled\n")
    assert contents(venv).key == key
    archive, _ = pack(venv, tmp_path)
    assert f"env/lib/{PYTHON}/site-packages/tool/__pycache__/tool.pyc" in names(archive)


# What is packed


def test_the_interpreter_comes_without_its_own_packages_and_tests(venv: Path, tmp_path: Path) -> None:
    archive, _ = pack(venv, tmp_path)
    base = {name for name in names(archive) if not name.startswith("env/")}
    assert base == {
        f"base/bin/{PYTHON}",
        f"base/include/{PYTHON}/Python.h",
        f"base/lib/{PYTHON}/__pycache__/os.pyc",
        f"base/lib/{PYTHON}/os.py",
        f"lib/lib{PYTHON}.so",
        f"lib/lib{PYTHON}.so.1.0",
    }
    with tarfile.open(archive) as tar:
        assert tar.getmember("env/bin/python3").linkname == f"../../base/bin/{PYTHON}"
        assert tar.getmember("env/bin/python").linkname == "python3"
        assert tar.getmember(f"lib/lib{PYTHON}.so").linkname == f"lib{PYTHON}.so.1.0"


def test_its_packages_come_along_where_the_environment_sees_them(venv: Path, tmp_path: Path) -> None:
    config = venv / "pyvenv.cfg"
    config.write_text(config.read_text() + "include-system-site-packages = true\n")
    archive, _ = pack(venv, tmp_path)
    assert f"base/lib/{PYTHON}/site-packages/others.py" in names(archive)


def test_an_interpreter_of_the_system_is_on_every_node_already(venv: Path) -> None:
    (venv / "bin" / "python3").unlink()
    (venv / "bin" / "python3").symlink_to("/usr/bin/env")
    found = contents(venv)
    assert found.place.base is None
    (link,) = [entry.link for entry in found.entries if entry.name == "env/bin/python3"]
    assert link == "/usr/bin/env"


def test_programs_find_the_interpreter_beside_them_wherever_they_lie(venv: Path, tmp_path: Path) -> None:
    long = f"#!/bin/sh\n'''exec' \"{venv}/bin/python3\" \"$0\" \"$@\"\n' '''\nimport tool\n"
    text(venv / "bin" / "long", long, 0o755)
    archive, _ = pack(venv, tmp_path)
    for name in ("tool", "long"):
        program = read(archive, f"env/bin/{name}")
        assert str(venv) not in program
        assert program.endswith("\n' '''\nimport tool\n")
    assert read(archive, "env/bin/other") == "#!/bin/sh\necho\n"
    place = tmp_path / "a place" / "bin"
    text(place / "tool", read(archive, "env/bin/tool"), 0o755)
    text(place / "python3", '#!/bin/sh\necho "started with $*"\n', 0o755)
    done = subprocess.run(
        [str(place / "tool"), "x y"],
        env={"PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == f"started with {place}/tool x y\n"


def test_packages_that_are_links_into_a_cache_are_packed_themselves(venv: Path, tmp_path: Path) -> None:
    text(tmp_path / "cache" / "linked" / "module.py", "\n")
    text(tmp_path / "cache" / "alone.py", "alone\n")
    for name in ("linked", "alone.py"):
        (packages(venv) / name).symlink_to(tmp_path / "cache" / name)
    (packages(venv) / "again").symlink_to(packages(venv) / "tool")
    archive, _ = pack(venv, tmp_path)
    below = f"env/lib/{PYTHON}/site-packages"
    assert {f"{below}/linked/module.py", f"{below}/alone.py"} <= names(archive)
    assert read(archive, f"{below}/alone.py") == "alone\n"
    with tarfile.open(archive) as tar:
        assert tar.getmember(f"{below}/again").linkname == "tool"


def test_a_conda_environment_is_packed_without_the_others_in_its_folder(tmp_path: Path) -> None:
    for name in (
        "conda-meta/history",
        "bin/python",
        "envs/other/bin/python",
        "pkgs/x/y",
        f"lib/{PYTHON}/os.py",
    ):
        text(tmp_path / "conda" / name, "\n")
    found = contents_of(place_of("conda", tmp_path / "conda"))
    packed = [entry.name for entry in found.entries]
    assert packed == ["env/bin/python", "env/conda-meta/history", f"env/lib/{PYTHON}/os.py"]


def test_what_stays_in_a_folder_of_its_own_is_named(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    about = {"url": f"file://{tmp_path}/src", "dir_info": {"editable": True}}
    text(packages(venv) / "mine-1.0.dist-info" / "direct_url.json", json.dumps(about))
    text(packages(venv) / "more.pth", f"{tmp_path}/src\nimport os\n{tmp_path}/gone\n")
    assert contents(venv).elsewhere == (f"mine ({tmp_path}/src)", f"more.pth ({tmp_path}/src)")


# Once, whole or not at all


def test_an_environment_is_packed_once(venv: Path, tmp_path: Path) -> None:
    archive, said = pack(venv, tmp_path / "packed")
    assert said[0].startswith(f"packing {venv} (")
    before = archive.stat()
    assert pack(venv, tmp_path / "packed") == (archive, [])
    assert archive.stat().st_ino == before.st_ino
    assert list((tmp_path / "packed").iterdir()) == [archive]


TWICE = """
import sys, time
from pathlib import Path
from slurmgpu.runs import packing
from tests.test_packing import pack
write = packing._write
packing._write = lambda *given: (write(*given), time.sleep(1))
print(pack(Path(sys.argv[1]), Path(sys.argv[2]))[1])
"""


def test_two_submissions_at_once_pack_once(venv: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWICE, str(venv), str(tmp_path / "packed")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = "".join(one.communicate()[0] for one in both)
    assert said.count("packing /") == 1, said
    assert len(list((tmp_path / "packed").iterdir())) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_breaks_off_leaves_nothing(
    error: BaseException, venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: Contents, file: Path) -> None:
        file.write_text("half")
        raise error

    monkeypatch.setattr(packing, "_write", breaks)
    with pytest.raises((PlanError, KeyboardInterrupt)) as broken:
        pack(venv, tmp_path / "packed")
    assert list((tmp_path / "packed").iterdir()) == []
    if isinstance(broken.value, PlanError):
        assert "the setting packed: " in broken.value.message
        assert "MiB free" in str(broken.value.hint)


def test_what_a_killed_submission_left_is_removed_by_the_next(tmp_path: Path) -> None:
    dead, alive, other = (
        tmp_path / f".image.{where}-{number}"
        for where, number in (
            (socket.gethostname(), 2**22 + 1),
            (socket.gethostname(), os.getpid()),
            ("other", 2**22 + 1),
        )
    )
    for file in (dead, alive, other):
        file.touch()
    made_once(tmp_path / "image", lambda file: bool(file.write_text("x")), print, "making it")
    assert (dead.exists(), other.exists(), (tmp_path / "image").read_text()) == (False, True, "x")


def test_a_change_meanwhile_is_refused(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_write", lambda _, file: (file.touch(), changed(venv / "pyvenv.cfg")))
    with pytest.raises(PlanError, match="changed meanwhile"):
        pack(venv, tmp_path / "packed")
    assert list((tmp_path / "packed").iterdir()) == []


@pytest.mark.parametrize("does", [Path.unlink, lambda file: os.truncate(file, 1)])
def test_a_file_that_goes_or_shrinks_meanwhile_is_a_change(does: Any, venv: Path, tmp_path: Path) -> None:
    file = venv / "some" / "file"
    file.parent.mkdir()
    file.write_text("text " * 1000)
    contents = contents_of(place_of("venv", venv))
    does(file)
    with pytest.raises(PlanError, match="changed meanwhile"):
        pack_environment(Packing(tmp_path / "packed" / "it.tar", contents), print)
    assert list((tmp_path / "packed").iterdir()) == []


# The plan and its script


def planned(python: dict[str, Any], **more: Any) -> Plan:
    given = {
        "resources": {"gpus": 1, **more.pop("resources", {})},
        "command": ["true"],
        "environment": {"python": {**python, "stage": "node"}},
        **more,
    }
    return make_plan(Job.model_validate_json(json.dumps(given)), GENERIC, Surroundings("/work"))


def test_the_plan_says_what_and_why_and_the_script_has_the_archive(venv: Path, tmp_path: Path) -> None:
    plan, found = with_packed_environment(
        planned({"venv": "venv"}), tmp_path / "packed", tmp_path, os.environ
    )
    assert not found.is_there
    (why,) = [reason.why for reason in plan.reasons if reason.what == "Python"]
    assert str(found.archive) in why
    assert str(venv) in why
    assert plan.warnings == planned({"venv": "venv"}).warnings
    script = render_script(plan, read_templates())
    assert f"archive={found.archive}" in script
    assert f"shared={venv}" in script
    assert "bin/activate" not in script


def test_installed_in_editable_mode_is_warned_of(venv: Path, tmp_path: Path) -> None:
    about = {"url": "file:///home/me/src", "dir_info": {"editable": True}}
    text(packages(venv) / "mine-1.0.dist-info" / "direct_url.json", json.dumps(about))
    plan, _ = with_packed_environment(planned({"venv": "venv"}), tmp_path, tmp_path, os.environ)
    assert any("mine (/home/me/src)" in warning for warning in plan.warnings)


def test_conda_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text(tmp_path / "mamba" / "envs" / "torch" / "conda-meta" / "history", "\n")
    monkeypatch.setenv("MAMBA_ROOT_PREFIX", str(tmp_path / "mamba"))
    plan, _ = with_packed_environment(planned({"conda": "torch"}), tmp_path, tmp_path, os.environ)
    assert (plan.packed.kind, plan.packed.prefix) == ("conda", f"{tmp_path}/mamba/envs/torch")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"resources": {"gpus": 2, "nodes": 2}, "launch": "plain"}, "first of 2 nodes"),
        (
            {
                "command": None,
                "steps": {"a": {"command": ["true"]}, "b": {"command": ["true"]}},
                "resources": {"gpus": 2},
            },
            "node and steps",
        ),
    ],
)
def test_where_processes_would_not_find_it_a_job_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        planned({"venv": "v"}, **more)


# The commands


@pytest.fixture
def desk(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a job that is staged; the settings name a folder for what is packed."""
    work = tmp_path / "work"
    work.mkdir()
    python = f"{{venv: {venv}, stage: node}}"
    (work / "j.yaml").write_text(
        f"resources: {{gpus: 1}}\ncommand: ['true']\nenvironment: {{python: {python}}}\n"
    )
    (work / "slurmgpu.yaml").write_text(f"packed: {tmp_path}/store\n")
    text(tmp_path / "bin" / "sbatch", "#!/bin/sh\necho 7\n", 0o755)
    monkeypatch.chdir(work)
    return work


@pytest.mark.parametrize("command", ["plan", "render", "submit --dry-run"])
def test_commands_that_show_say_what_submit_would_pack_and_pack_nothing(
    command: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code(*command.split(), "j.yaml")
    assert f"to {desk.parent}/store/" in capsys.readouterr().err
    assert not (desk.parent / "store").exists()


def test_submit_packs_and_a_second_one_packs_nothing(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("submit", "j.yaml") == 0
    assert "packing " in capsys.readouterr().err
    (archive,) = (desk.parent / "store").iterdir()
    (script,) = desk.glob("runs/*/script.sbatch")
    assert f"archive={archive} " in script.read_text()
    made = archive.stat().st_mtime_ns
    time.sleep(0.01)
    assert code("submit", "j.yaml") == 0
    assert "packing " not in capsys.readouterr().err
    assert archive.stat().st_mtime_ns == made


def test_nothing_is_packed_for_an_impossible_job(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("submit", "j.yaml", "--set", "secrets=[NOT_SET_HERE]") == 1
    assert "NOT_SET_HERE" in capsys.readouterr().err
    assert not (desk.parent / "store").exists()


def test_a_run_on_this_machine_and_a_shell_use_the_environment_where_it_is(desk: Path) -> None:
    from slurmgpu.files.jobs import load_job
    from slurmgpu.files.layered import Layered
    from slurmgpu.runs.prepared import plan_for_this_machine

    loaded = load_job(desk / "j.yaml", Layered({}, {}), cwd=desk, environ=os.environ)
    plan = plan_for_this_machine(loaded, None).plan
    assert plan.packed is None
    assert f". {desk.parent}/venv/bin/activate" in render_script(plan, read_templates())
