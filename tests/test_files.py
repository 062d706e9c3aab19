"""Files are read as YAML 1.2, layers are merged, and every mistake is named with its file, line and field."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import choose_cluster, profiles
from slurmgpu.files.data import TemplateSource, read_templates
from slurmgpu.files.jobs import find_job_file, load_job, read_user_script
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.settings import load_settings, write_user_settings
from slurmgpu.files.yaml import read_file, read_yaml, validate
from slurmgpu.models.job import Job

MISTAKES = YAML(typ="safe").load(Path(__file__).parent / "data" / "job_file_mistakes.yaml")


def job_error(text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        validate(Job, read_yaml(text, "job.yaml"), "job")
    return caught.value.message


def read_job(text: str) -> Job:
    return validate(Job, read_yaml(text, "job.yaml"), "job")


def test_yaml_1_2_keeps_no_and_times_as_they_are() -> None:
    layered = read_yaml("a: no\nb: 12:30:00\nc: 2-12\nd: 60:30\n", "x")
    assert layered.data == {"a": "no", "b": "12:30:00", "c": "2-12", "d": "60:30"}


@pytest.mark.parametrize(("text", "expected"), MISTAKES["each"])
def test_each_mistake_is_named_with_its_place_and_what_is_valid(text: str, expected: str) -> None:
    assert expected in job_error(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("variables: {A: true}", "job.yaml:1: variables.A: true is not text; put it in quotes"),
        ("command: {python: x.py}", "job.yaml:1: command: {'python': 'x.py'}: a list is expected here"),
        ("resources: 3", "job.yaml:1: resources: 3: `key: value` lines are expected here"),
        ("name: x\n\tcomment: y", "job.yaml:2: a tab is where YAML wants spaces"),
        ("name: x\n---\nname: y", "job.yaml:2: a second document begins here"),
        ("command: [a", "a closing ], } or quote is missing"),
        (r'name: "a\ud800"', r"job.yaml:1: name: 'a\ud800' is not UTF-8"),
    ],
)
def test_a_mistake_of_form_says_what_to_write_instead(text: str, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_job(text)
    assert expected in caught.value.message


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(job_error(f"name: [{'x, ' * 10000}]")) < 200


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    assert len(job_error("nam: x\nresources: {gpus: two, time: soon}\n").splitlines()) == 3


# --- layers


def settings_files(tmp_path: Path) -> dict[str, str]:
    for layer in ("site", "xdg/slurmgpu", "lab", "project"):
        (tmp_path / layer).mkdir(parents=True)
    return {"SLURMGPU_SITE": str(tmp_path / "site"), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}


def test_the_later_layer_wins_and_each_value_knows_its_origin(tmp_path: Path) -> None:
    environ = settings_files(tmp_path)
    (tmp_path / "site/config.yaml").write_text(
        f"runs: /scratch/a\nlab: {tmp_path}/lab\njob: {{resources: {{qos: low, time: 10}}}}\n"
    )
    (tmp_path / "lab/config.yaml").write_text("job: {resources: {account: lab-a}}\n")
    (tmp_path / "xdg/slurmgpu/config.yaml").write_text("runs: /scratch/b\n")
    (tmp_path / "project/slurmgpu.yaml").write_text("job:\n  resources:\n    qos: high\n")
    (tmp_path / "project/job.yaml").write_text("command: [python, x.py]\nresources: {gpus: 1}\n")
    options = Layered({}, {})
    options.put(("resources", "time"), "20", Origin("option --time"))
    loaded = load_job(tmp_path / "project/job.yaml", options, cwd=tmp_path, environ=environ)
    resources = loaded.job.resources
    assert (resources.qos, resources.account, str(resources.time)) == ("high", "lab-a", "00:20:00")
    assert loaded.settings.settings.runs == "/scratch/b"
    assert (
        str(loaded.settings.layered.origin(("job", "resources", "qos")))
        == f"{tmp_path}/project/slurmgpu.yaml:3"
    )
    assert str(loaded.settings.layered.origin(("runs",))) == f"{tmp_path}/xdg/slurmgpu/config.yaml:1"


def test_a_mistake_in_an_option_names_the_option(tmp_path: Path) -> None:
    options = Layered({}, {})
    options.put(("resources", "time"), "soon", Origin("option --time"))
    with pytest.raises(InvalidInput, match=r"option --time: resources\.time: 'soon' is not a time"):
        load_job(None, options, cwd=tmp_path, environ=settings_files(tmp_path))


def test_gpus_on_the_command_line_replace_gpus_per_node_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: [x]\nresources: {gpus_per_node: 4}\n")
    options = Layered({}, {})
    options.put(("resources", "gpus"), "2", Origin("option --gpus"))
    job = load_job(path, options, cwd=tmp_path, environ=settings_files(tmp_path)).job
    assert job.resources.gpus_per_node is None
    assert job.resources.gpus is not None


def test_a_command_on_the_command_line_replaces_the_files_training(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("train: {task: 'a.py:A'}\n")
    options = Layered({}, {})
    options.put(("command",), ["python", "x.py"], Origin("the command after --"))
    job = load_job(path, options, cwd=tmp_path, environ=settings_files(tmp_path)).job
    assert job.train is None
    assert job.command == ("python", "x.py")


@pytest.mark.parametrize(
    ("written", "key", "value", "kept"),
    [
        ("launch: srun", ("launch", "srun_options"), ["--label"], "srun"),
        ("profile: nsys", ("profile", "ranks"), "all", "nsys"),
    ],
)
def test_an_option_adds_to_what_the_job_file_says_in_one_word(
    tmp_path: Path, written: str, key: tuple[str, str], value: object, kept: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{written}\ncommand: [python, x.py]\n")
    options = Layered({}, {})
    options.put(key, value, Origin("--set"))
    job = load_job(path, options, cwd=tmp_path, environ=settings_files(tmp_path)).job
    assert kept in (job.launch.launcher, job.profile.with_ if job.profile else None)
    assert job.launch.srun_options == ("--label",) or (job.profile and job.profile.ranks == "all")


def test_a_mistake_in_a_settings_file_names_that_file(tmp_path: Path) -> None:
    environ = settings_files(tmp_path)
    (tmp_path / "xdg/slurmgpu/config.yaml").write_text("cluster: x\nrun: y\n")
    with pytest.raises(
        InvalidInput, match=r"xdg/slurmgpu/config.yaml:2: run: unknown key; did you mean 'runs'"
    ):
        load_settings(tmp_path, environ)


def test_choosing_a_cluster_keeps_the_comments_of_the_settings(tmp_path: Path) -> None:
    environ = settings_files(tmp_path)
    path = tmp_path / "xdg/slurmgpu/config.yaml"
    path.write_text("# mine\nruns: /scratch/me # big\n")
    assert write_user_settings(load_settings(tmp_path, environ), {("cluster",): "uva-afton"}) == path
    assert path.read_text() == "# mine\nruns: /scratch/me # big\ncluster: uva-afton\n"


# --- clusters, jobs, data


def test_the_sites_profile_wins_over_the_shipped_one(tmp_path: Path) -> None:
    environ = settings_files(tmp_path)
    (tmp_path / "site/clusters").mkdir()
    (tmp_path / "site/clusters/uva-afton.yaml").write_text("name: uva-afton\ndescription: the site's own\n")
    cluster, _ = choose_cluster("uva-afton", load_settings(tmp_path, environ), environ)
    assert cluster.description == "the site's own"


def test_the_cluster_comes_from_option_then_variable_then_settings(tmp_path: Path) -> None:
    environ = settings_files(tmp_path)
    (tmp_path / "xdg/slurmgpu/config.yaml").write_text("cluster: uva-afton\n")
    settings = load_settings(tmp_path, environ)
    assert choose_cluster("generic", settings, {"SLURMGPU_CLUSTER": "x"})[0].name == "generic"
    assert choose_cluster(None, settings, {"SLURMGPU_CLUSTER": "generic"})[1] == "SLURMGPU_CLUSTER"
    assert choose_cluster(None, settings, {})[0].name == "uva-afton"
    assert "uva-afton" in profiles(settings)


def test_a_shipped_job_is_found_by_its_name_and_a_missing_one_is_explained() -> None:
    assert find_job_file("uva-pytorch").name == "uva-pytorch.yaml"
    with pytest.raises(InvalidInput, match="python: there is no such job file") as caught:
        find_job_file("python")
    assert "-- python" in (caught.value.hint or "")


def test_a_users_template_replaces_the_main_one_only(tmp_path: Path) -> None:
    mine = tmp_path / "mine.j2"
    mine.write_text("mine")
    templates = read_templates(TemplateSource.named("--template", mine))
    assert templates["script.sh.j2"] == "mine"
    assert templates["steps.sh.j2"] == read_templates()["steps.sh.j2"]


def test_a_script_is_read_with_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from mine import setup\nsetup()\n")
    (tmp_path / "mine.py").write_text(
        "import torch.distributed as dist\n\ndef setup():\n    dist.init_process_group()\n"
    )
    facts = read_user_script(read_job("command: [python, train.py]"), str(tmp_path), tmp_path)
    assert facts.distributed is not None


def test_a_variable_may_be_empty() -> None:
    assert read_job("command: [x]\nvariables: {CUDA_VISIBLE_DEVICES: ''}").variables == {
        "CUDA_VISIBLE_DEVICES": ""
    }


def test_an_image_that_reads_as_an_option_is_refused() -> None:
    assert "would take it for an option" in job_error("environment: {container: {image: -rf}}")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a: " + "[" * 400 + "]" * 400, "nested too deeply"),
        ("a: &a\n  b: c\n  <<: *a", "take out its tags"),
        ("a: !!bool x", "take out its tags"),
        ("a: 0x" + "f" * 5000, "job.yaml:1: the number is larger"),
        (
            "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "\n".join(
                f"{new}: &{new} [{', '.join(['*' + old] * 10)}]"
                for old, new in zip("abcdef", "bcdefg", strict=True)
            ),
            "more than 100000 values",
        ),
    ],
    ids=["deep", "merged into itself", "tag", "number", "many"],
)
def test_yaml_that_would_exhaust_the_machine_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(InvalidInput, match=wrong):
        read_yaml(text, "job.yaml")


def test_merged_keys_and_values_of_a_plain_tag_are_plain_values() -> None:
    read = read_yaml("a: !!seq [!!str 5]\nb: &b {x: 1}\nc:\n  <<: *b\n  y: 2\n", "job.yaml")
    assert read.data == {"a": ["5"], "b": {"x": 1}, "c": {"y": 2, "x": 1}}
    assert read.origins[("c", "x")].line is not None


@pytest.mark.parametrize("command", ["python train.py", "python -m app.main", "python app/main.py"])
def test_distribution_is_seen_in_the_projects_packages_however_deep(tmp_path: Path, command: str) -> None:
    files = {
        "train.py": "from app.sub.trainer import Trainer\n",
        "app/main.py": "from app.sub import trainer\n",
        "app/sub/trainer.py": "from .wrapping import wrap\n",
        "app/sub/wrapping.py": "from torch.nn.parallel import DistributedDataParallel\nDistributedDataParallel(1)\n",
        "app/__init__.py": "",
        "app/sub/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = read_user_script(read_job(f"command: [{command.replace(' ', ', ')}]"), str(tmp_path), tmp_path)
    assert facts.distributed == ("DistributedDataParallel", 0)


def test_a_file_that_is_far_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    with path.open("wb") as file:
        file.truncate(5_000_000_000)  # takes no room on the disk, and would take all of the memory
    with pytest.raises(InvalidInput, match="is larger than 262,144 bytes"):
        read_file(path)


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029"])
def test_a_line_end_that_only_some_readers_know_is_refused_with_its_line(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"name: x\ncommand: [echo, 'a{mark}b']\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=rf"job.yaml:2: holds U\+{ord(mark):04X}"):
        read_file(path)


@pytest.mark.parametrize("name", [b"caf\xe9", b"$HOME", b"a${B}"])
def test_a_folder_whose_name_no_script_can_have_is_refused(tmp_path: Path, name: bytes) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    folder.mkdir()
    options = Layered({"command": ["true"]}, {(): Origin("the test")})
    with pytest.raises(InvalidInput, match="work folder: the name of"):
        load_job(None, options, cwd=folder, environ={"SLURMGPU_SITE": "/nonexistent"})
