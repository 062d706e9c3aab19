"""A script is read by people: what they look for stands first and is short; the machinery stands below, in functions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder, read_templates
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import read_file, validate
from slurmgpu.local.site import read_needs
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.train import TrainSettings
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.render import render_script
from tests.test_rendering_golden import CASES, GOLDEN, golden_plan

ROOT = Path(__file__).resolve().parent.parent
DIGITS: dict[str, Any] = dict(read_file(ROOT / "examples" / "digits" / "job.yaml").data)
# Where nodes and partitions fit it, and an account's name is free to choose.
SITES = ["cineca-leonardo", "csc-mahti", "idris-jean-zay", "nersc-perlmutter", "surf-snellius", "uva-afton"]
MACHINERY = "# What follows is slurmgpu's machinery: the functions that are called above, in that order."


def rendered(job: dict[str, Any], cluster: Cluster = GENERIC, own: Mapping[str, str] | None = None) -> str:
    made = validate(Job, Layered(job, {}), "job")
    plan = make_plan(made, cluster, Surroundings(work_dir="/home/me/project"))
    return render_script(plan, ChainMap(dict(own or {}), read_templates()))


def training(**settings: Any) -> dict[str, Any]:
    return {"name": "a", "resources": {"gpus": 1}, "train": {"task": "task.py:T", **settings}}


def digits(site: str) -> list[str]:
    resources = {**DIGITS["resources"], "account": "mygroup"}
    cluster = load_cluster(data_folder("clusters") / f"{site}.yaml")
    return rendered({**DIGITS, "resources": resources}, cluster).splitlines()


def functions(script: str) -> list[str]:
    machinery = re.sub(r"<<'END'\n.*?\nEND\n", "", script.partition(MACHINERY)[2], flags=re.DOTALL)
    return re.findall(r"^(\w+)\(\) \{$", machinery, re.MULTILINE)


# How long it is


@pytest.mark.parametrize("site", SITES)
def test_the_digits_job_has_at_most_130_lines_that_fit_on_a_screen(site: str) -> None:
    lines = digits(site)
    assert len(lines) <= 130
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("site", SITES)
def test_options_environment_settings_and_command_stand_within_the_first_45_lines(site: str) -> None:
    first = "\n".join(digits(site)).partition(MACHINERY)[0]
    assert len(first.splitlines()) <= 45
    looked_for = ["#SBATCH --time=00:10:00", "OMP_NUM_THREADS=", '"epochs": 15', "\n    srun --nodes=2"]
    assert [each for each in [*looked_for, '    python3 -m "$entrypoint"'] if each not in first] == []


def test_a_plain_command_on_two_gpus_has_at_most_20_lines_and_no_machinery() -> None:
    resources = {"gpus": 2, "time": "1:00:00", "account": "mygroup"}
    job = {"name": "a", "command": ["python", "train.py"], "resources": resources}
    script = rendered(job, load_cluster(data_folder("clusters") / "uva-afton.yaml"))
    assert len(script.splitlines()) <= 20
    assert "run_job" not in script


# How it is laid out


@pytest.mark.parametrize("name", CASES)
def test_the_machinery_is_functions_below_the_command_in_the_order_of_their_calls(name: str) -> None:
    script = (GOLDEN / "scripts" / f"{name}.sbatch").read_text(encoding="utf-8")
    open_part, _, machinery = script.partition(MACHINERY)
    if not machinery:
        assert "run_job" not in script
        return
    body = open_part.partition("\nrun_job() {\n")[2]
    assert functions(script) == re.findall(r"^    (\w+)$", body, re.MULTILINE)
    assert machinery.endswith("}\n\nrun_job\n")


@pytest.mark.parametrize("name", CASES)
def test_what_a_script_asks_and_starts_is_read_the_same_inside_a_function(name: str) -> None:
    plan = golden_plan(name)
    script = (GOLDEN / "scripts" / f"{name}.sbatch").read_text(encoding="utf-8")
    assert {option.name for option in plan.options} <= set(parse_batch_script(script).effective())
    started = [words for words in read_needs(script).calls("srun") if "--kill-on-bad-exit=1" in words]
    assert len(started) == script.count("--kill-on-bad-exit=1")


# The settings


def test_a_script_holds_only_the_settings_that_differ_from_the_defaults() -> None:
    script = rendered(training(epochs=3, lr=0.001, config={"width": 8}))
    text = re.search(r"^settings='(.*?^})'$", script, re.MULTILINE | re.DOTALL)
    assert text
    told = {"task": "task.py:T", "epochs": 3, "config": {"width": 8}}
    assert json.loads(text[1]) == {"schema": "slurmgpu.train/1", **told}


def test_settings_arrive_as_they_were_written_whatever_they_hold(tmp_path: Path) -> None:
    config = {
        "words": 'it\'s "$(touch no)" `touch no` \\ ~ # \n é',
        "many": list(range(50)),
        "nested": {"a": None},
    }
    script = rendered(training(config=config))
    only = script[script.index("# What the training is told") : script.index("\nrun_job() {")]
    done = subprocess.run(
        ["bash", "-euc", only + "\nprintf '%s\\n' \"$settings\""],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        check=True,
    )
    settings = json.loads(done.stdout)
    assert (settings["config"], list(tmp_path.iterdir())) == (config, [])
    if shutil.which("shellcheck"):
        (tmp_path / "script").write_text(script, encoding="utf-8")
        subprocess.run(["shellcheck", "--shell=bash", tmp_path / "script"], check=True)


def test_a_setting_that_is_given_as_its_default_is_left_out_and_all_others_are_told() -> None:
    defaults = TrainSettings(task="task.py:T").document()
    given = {name: value for name, value in defaults.items() if name not in ("schema", "task")}
    assert rendered(training(**given)) == rendered(training())


# Templates of one's own


def test_a_here_document_of_a_template_of_ones_own_stays_whole_in_a_function(tmp_path: Path) -> None:
    own = "cat >\"$SLURMGPU_RUN_DIR/train.json\" <<'SETTINGS'\n{{ train.settings }}\nSETTINGS\nentrypoint=mine\n"
    script = rendered(training(), own={"train.sh.j2": own})
    assert '\n{\n  "schema": "slurmgpu.train/1",\n  "task": "task.py:T"\n}\nSETTINGS\n' in script
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_text_over_several_lines_of_a_template_of_ones_own_is_not_indented() -> None:
    script = rendered(training(), own={"launcher/start.sh.j2": "python -c 'import a\na.run()'\n"})
    assert "\npython -c 'import a\na.run()'\n" in script


def test_a_main_template_that_lists_the_sections_itself_has_them_in_the_order_in_which_they_run() -> None:
    main = "{% for section in sections %}{% include section %}{% endfor %}"
    script = rendered(training(), own={"script.sh.j2": main})
    steps = [
        "settings='{", "SLURMGPU_END_TIME", "run_dir=", "entrypoint=", "launched=''", "launched=$!", "wait ",
    ]  # fmt: skip
    assert sorted(steps, key=script.index) == steps
