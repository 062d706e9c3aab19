"""What a tired person types: nothing reaches the queue, and each message says what was wrong and what to do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from slurmgpu.cli.group import run

DATA = Path(__file__).parent / "data" / "wrong_inputs.yaml"
WRONG: list[dict[str, Any]] = YAML(typ="safe").load(DATA.read_text(encoding="utf-8"))


def typed(case: dict[str, Any]) -> str:
    files = [*(case[key] for key in ("job", "settings") if key in case), *case.get("templates", {}).values()]
    files += case.get("files", {}).values()
    return " ".join([str(case.get("type", "submit j.yaml")), *(f"[{text}]" for text in files)])


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with a Slurm whose sbatch notes that it was called."""
    work, programs = tmp_path / "work", tmp_path / "bin"
    for folder in (work / "src", work / "net", work / "env" / "bin", programs):
        folder.mkdir(parents=True)
    files = YAML(typ="safe").load(DATA.with_name("wrong_inputs_folder.yaml").read_text(encoding="utf-8"))
    for name, text in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(text.encode())
    for name in ("tool.py", "dos.py", "env/bin/python"):
        (work / name).chmod(0o755)
    for name in ("python", "python3", "bash", "srun", "apptainer"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (programs / "sbatch").write_text(f"#!/bin/sh\necho called >{tmp_path / 'called'}\necho 7\n")
    (programs / "sbatch").chmod(0o755)
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("SLURMGPU_CLUSTER", "MY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return work


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_there_are_enough_mistakes_and_each_is_another_one() -> None:
    assert len({typed(case) for case in WRONG}) == len(WRONG) >= 100


@pytest.mark.parametrize("case", WRONG, ids=typed)
def test_a_mistake_is_refused_with_the_next_act_and_leaves_nothing(
    desk: Path, case: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    if "job" in case:
        (desk / "j.yaml").write_text(case["job"] + "\n", encoding="utf-8")
    if "settings" in case:
        (desk / "slurmgpu.yaml").write_text(case["settings"] + "\n", encoding="utf-8")
    texts = {f"mine/{name}": text for name, text in case.get("templates", {}).items()}
    for name, text in (texts | case.get("files", {})).items():
        path = desk / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(str(text).encode())
        path.chmod(0o755)
    before = everything(desk)
    with pytest.raises(SystemExit) as ended:
        run(shlex.split(case.get("type", "submit j.yaml")))
    out, err = capsys.readouterr()
    assert ended.value.code in (1, 2), err
    assert out == ""
    assert not (desk.parent / "called").exists()
    assert everything(desk) == before
    message, has_hint, hint = err.partition(" hint: ")
    assert has_hint, err
    for part in case["says"]:
        assert str(part) in message, err
    assert case["hint"] in hint, err
    assert message.count("error:") == 1
