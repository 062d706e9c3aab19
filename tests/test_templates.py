"""Templates as a user meets them: listed, shown, copied, and replaced one by one from the folders of several layers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmgpu.cli.group import run
from slurmgpu.files.data import read_templates
from slurmgpu.script.variables import VARIABLES

Said = tuple[int, str, str]
Slurmgpu = Callable[..., Said]
JOB = ("--gpus", "1", "--", "true")


@pytest.fixture
def slurmgpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Slurmgpu:
    """The command in a project's folder; the user's settings are in user/, the site's in site/."""
    for name in ("project", "site", "user/slurmgpu"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.delenv("SLURMGPU_CLUSTER", raising=False)

    def typed(*words: str) -> Said:
        with pytest.raises(SystemExit) as ended:
            run(list(words))
        assert isinstance(ended.value.code, int)
        return (ended.value.code, *capsys.readouterr())

    return typed


def layer(folder: Path, settings: str = "config.yaml", **templates: str) -> None:
    """Settings that name a folder of templates, and the templates in it."""
    (folder / settings).write_text("templates: mine\n")
    for name, text in templates.items():
        path = folder / "mine" / f"{name.replace('__', '/')}.sh.j2"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def listed(slurmgpu: Slurmgpu) -> dict[str, dict[str, object]]:
    code, out, err = slurmgpu("template", "list", "--json")
    assert code == 0, err
    return {one["name"]: one for one in json.loads(out)["templates"]}


def test_every_template_is_listed_with_what_it_is_for(slurmgpu: Slurmgpu) -> None:
    found = listed(slurmgpu)
    assert list(found) == list(read_templates())
    assert all(one["layer"] == "shipped" and one["about"] for one in found.values())
    assert found["environment/venv.sh.j2"]["about"] == "the Python environment, a venv or a uv project's"
    out = slurmgpu("template", "list")[1]
    assert re.search(r"^restart\.sh\.j2 +the limit of restarts$", out, re.MULTILINE)


@pytest.mark.parametrize("name", read_templates())
def test_the_first_line_of_a_template_says_what_it_is_for_and_does_not_reach_the_script(name: str) -> None:
    first = read_templates()[name].split("\n", 1)[0]
    assert first.startswith("{# ")
    assert first.endswith(" #}")


def test_a_template_is_replaced_by_the_nearest_and_others_stay(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    layer(tmp_path / "site", launcher__start="echo site\n", steps="# site\n", time="# site\n")
    layer(tmp_path / "user" / "slurmgpu", launcher__start="echo user\n", steps="# user\n")
    layer(tmp_path / "project", "slurmgpu.yaml", launcher__start="echo project\n")
    found = listed(slurmgpu)
    assert [found[f"{name}.sh.j2"]["layer"] for name in ("launcher/start", "steps", "time", "run")] == [
        "project",
        "user",
        "site",
        "shipped",
    ]
    assert found["steps.sh.j2"]["file"] == str(tmp_path / "user/slurmgpu/mine/steps.sh.j2")
    script = slurmgpu("render", "--cpus-per-task", "2", *JOB)[1]
    assert "# user\n" in script
    assert script.endswith("echo project\n")
    assert f"user: {tmp_path}/user/slurmgpu/mine/steps.sh.j2" in slurmgpu("template", "list")[1]


def test_the_command_line_lies_on_top_of_the_settings(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    layer(tmp_path / "site", launcher__start="echo site\n", steps="# site\n")
    (tmp_path / "top" / "launcher").mkdir(parents=True)
    (tmp_path / "top" / "launcher" / "start.sh.j2").write_text("echo top\n")
    script = slurmgpu("render", "--template", str(tmp_path / "top"), "--cpus-per-task", "2", *JOB)[1]
    assert "# site\n" in script
    assert script.endswith("echo top\n")


def test_a_file_of_the_settings_replaces_the_main_template_alone(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    (tmp_path / "site" / "config.yaml").write_text("templates: main.j2\n")
    (tmp_path / "site" / "main.j2").write_text("#!/bin/bash\n# of the site\n")
    assert listed(slurmgpu)["script.sh.j2"]["layer"] == "site"
    assert slurmgpu("render", *JOB)[1] == "#!/bin/bash\n# of the site\n"
    code, _, err = slurmgpu("template", "copy", "steps", "--user")
    assert code == 0, err


def test_a_copy_is_the_shipped_text_in_force_and_alters_no_script(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    before = slurmgpu("render", *JOB)[1]
    code, out, err = slurmgpu("template", "copy", "start")
    path = tmp_path / "user" / "slurmgpu" / "templates" / "launcher" / "start.sh.j2"
    assert (code, out) == (0, "")
    assert f"wrote {path}" in err
    first, text = path.read_text().split("\n", 1)
    assert text == read_templates()["launcher/start.sh.j2"]
    assert first.startswith("{# copied from slurmgpu ")
    assert (tmp_path / "user" / "slurmgpu" / "config.yaml").read_text() == "templates: templates\n"
    assert slurmgpu("render", *JOB)[1] == before
    assert listed(slurmgpu)["launcher/start.sh.j2"]["is_same"] is True


def test_a_copy_for_the_project_keeps_what_its_settings_say(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    (tmp_path / "project" / "slurmgpu.yaml").write_text("# ours\ncluster: generic\n")
    assert slurmgpu("template", "copy", "launcher/srun", "--project")[0] == 0
    settings = (tmp_path / "project" / "slurmgpu.yaml").read_text()
    assert settings == "# ours\ncluster: generic\ntemplates: slurmgpu-templates\n"
    assert listed(slurmgpu)["launcher/srun.sh.j2"]["layer"] == "project"


def test_a_folder_that_is_named_and_missing_is_said_with_who_names_it_and_made_by_a_copy(
    slurmgpu: Slurmgpu, tmp_path: Path
) -> None:
    (tmp_path / "user" / "slurmgpu" / "config.yaml").write_text("templates: mine\n")
    code, _, err = slurmgpu("render", *JOB)
    assert code == 2
    assert f"template '{tmp_path}/user/slurmgpu/mine', which the user's settings name: No such file" in err
    assert slurmgpu("template", "copy", "time")[0] == 0
    assert slurmgpu("render", *JOB)[0] == 0


def test_a_copy_goes_into_the_folder_that_the_settings_name(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    layer(tmp_path / "user" / "slurmgpu")
    assert slurmgpu("template", "copy", "time")[0] == 0
    assert listed(slurmgpu)["time.sh.j2"]["file"] == str(tmp_path / "user/slurmgpu/mine/time.sh.j2")


def test_a_copy_elsewhere_says_which_setting_makes_it_count(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    code, _, err = slurmgpu("template", "copy", "time", "--to", "here")
    assert code == 0
    assert f"templates: {tmp_path}/project/here in your settings makes it count" in err
    assert {path.name for path in (tmp_path / "project").iterdir()} == {".git", "here"}


def test_a_copy_under_one_of_a_nearer_layer_says_so(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    layer(tmp_path / "project", "slurmgpu.yaml", time="# ours\n")
    err = slurmgpu("template", "copy", "time")[2]
    assert f"{tmp_path}/project/mine/time.sh.j2 (project) lies on top of it" in err


def test_a_copy_is_overwritten_by_force_alone(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    layer(tmp_path / "user" / "slurmgpu", time="# mine\n")
    path = tmp_path / "user" / "slurmgpu" / "mine" / "time.sh.j2"
    code, _, err = slurmgpu("template", "copy", "time")
    assert (code, path.read_text()) == (2, "# mine\n")
    assert "--force replaces it" in err
    assert slurmgpu("template", "copy", "time", "--force")[0] == 0
    assert "copied from slurmgpu" in path.read_text()


def test_a_changed_copy_is_no_copy_whose_original_changed(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    slurmgpu("template", "copy", "time")
    path = tmp_path / "user" / "slurmgpu" / "templates" / "time.sh.j2"
    path.write_text(path.read_text() + "# mine\n")
    mine = listed(slurmgpu)["time.sh.j2"]
    assert (mine["is_same"], mine["copied_from"]) == (False, None)
    text = path.read_text().split("\n", 1)[1]
    path.write_text("{# copied from slurmgpu 0.0.9, where its text was 0123456789ab #}\n" + text)
    assert listed(slurmgpu)["time.sh.j2"]["copied_from"] == "0.0.9"
    assert "the shipped one has changed since slurmgpu 0.0.9" in slurmgpu("template", "list")[1]


def test_a_template_under_a_name_that_nothing_uses_is_pointed_out(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    layer(tmp_path / "user" / "slurmgpu", modules="# mine\n")
    about = listed(slurmgpu)["modules.sh.j2"]["about"]
    assert str(about).startswith(
        "a shipped one is called environment/modules.sh.j2: used only where another "
    )


@pytest.mark.parametrize("name", ["torchrun.sh.j2", "launcher/torchrn.sh.j2"])
def test_a_job_whose_template_nothing_uses_says_so(slurmgpu: Slurmgpu, tmp_path: Path, name: str) -> None:
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text("echo mine\n")
    mine = str(tmp_path / "mine")
    _, _, err = slurmgpu("render", "--gpus", "2", "--template", mine, "--", "python", "train.py")
    assert f"{file}: nothing uses a template of that name" in err
    assert "call it launcher/torchrun.sh.j2" in err


def test_show_prints_the_one_in_force_or_on_demand_the_shipped(slurmgpu: Slurmgpu, tmp_path: Path) -> None:
    layer(tmp_path / "site", time="# of the site\n")
    code, out, err = slurmgpu("template", "show", "time")
    assert (code, out) == (0, "# of the site\n")
    assert f"time.sh.j2 is replaced by {tmp_path}/site/mine/time.sh.j2 (site)" in err
    assert slurmgpu("template", "show", "time", "--shipped")[1] == read_templates()["time.sh.j2"]


def test_show_prints_what_a_template_becomes_in_a_job(slurmgpu: Slurmgpu) -> None:
    whole = slurmgpu("render", *JOB)[1]
    code, out, err = slurmgpu("template", "show", "start", "--rendered", *JOB)
    assert (code, out.strip()) == (0, whole.splitlines()[-1].strip()), err
    assert slurmgpu("template", "show", "script", "--rendered", *JOB)[1] == whole


def test_the_variables_are_listed_for_those_who_write_templates(slurmgpu: Slurmgpu) -> None:
    out = slurmgpu("template", "variables")[1]
    assert [line.split()[0] for line in out.splitlines()] == list(VARIABLES)


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret.sh.j2"])
def test_an_include_does_not_lead_out_of_the_folder(slurmgpu: Slurmgpu, tmp_path: Path, name: str) -> None:
    layer(tmp_path / "project", "slurmgpu.yaml", launcher__start=f'{{% include "{name}" %}}')
    (tmp_path / "project" / "secret.sh.j2").write_text("secret")
    code, out, err = slurmgpu("render", *JOB)
    assert (code, out) == (2, "")
    assert f"includes '{name}', which is not there" in err
