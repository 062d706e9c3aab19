"""The job files that ship with slurmgpu: listed, copied, and right on several clusters."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import (
    check_shipped_task,
    copy_example,
    data_folder,
    example_named,
    example_names,
    examples,
    read_templates,
)
from slurmgpu.files.jobs import read_user_script
from slurmgpu.files.yaml import read_file, validate
from slurmgpu.models.job import Job
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.runs.request_checks import facts_here
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.check import check_script
from slurmgpu.script.render import render_script
from tests.test_cli import slurmgpu

# Clusters that ask in different ways, each with an account as its users have them.
CLUSTERS = {
    "uva-afton": "mygroup", "jsc-juwels-booster": "mygroup", "drac-narval": "def-pi", "nersc-perlmutter": "mygroup",
    "csc-mahti": "mygroup", "lumi-g": "project_465000000", "surf-snellius": "mygroup",
}  # fmt: skip
# What is filled in where a cluster names it in its own way, or cannot have it.
SLICES = {"csc-mahti": "a100_1g.5gb", "drac-narval": "a100_1g.5gb", "uva-afton": "1g.10gb"}
WITHOUT_CPU_PARTITION = {"uva-afton"}
WITHOUT_16_NODES = {"uva-afton", "csc-mahti"}
OF_ONE_SITE = [name for name in example_names() if name.startswith("uva-")]
NEUTRAL = [name for name in example_names() if name not in OF_ONE_SITE]


def clusters_for(name: str) -> list[str]:
    if name == "mig-slice":
        return list(SLICES)
    lacking = {"pipeline-prepare": WITHOUT_CPU_PARTITION, "gpt2-16-nodes": WITHOUT_16_NODES}.get(name, set())
    return [one for one in CLUSTERS if one not in lacking]


def filled_in(name: str, folder: Path, cluster: str) -> Job:
    job = validate(Job, read_file(folder / f"{name}.yaml"), "job")
    changes: dict[str, str | None] = {"account": CLUSTERS[cluster]}
    if name in OF_ONE_SITE and not cluster.startswith("uva-"):
        changes["partition"] = None  # elsewhere it has another name
    if name == "mig-slice":
        changes["gpu_type"] = SLICES[cluster]
    return job.model_copy(update={"resources": job.resources.model_copy(update=changes)})


@pytest.mark.parametrize("name", example_names())
def test_a_copied_job_is_without_findings_on_at_least_three_clusters(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy_example(example_named(name), tmp_path)
    (tmp_path / "logs").mkdir()  # submit makes it
    scripts = []
    for cluster_name in clusters_for(name):
        cluster = load_cluster(data_folder("clusters") / f"{cluster_name}.yaml")
        job = filled_in(name, tmp_path, cluster_name)
        facts = read_user_script(job, str(tmp_path), tmp_path)
        plan = make_plan(job, cluster, Surroundings(work_dir=str(tmp_path), script=facts))
        path = tmp_path / f"{cluster_name}.sbatch"
        path.write_text(render_script(plan, read_templates()))
        read = parse_batch_script(path.read_text())
        assert check_script(read, facts_here(read, tmp_path, cluster)) == [], cluster_name
        scripts.append(str(path))
    assert len(scripts) >= 3
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "--shell=bash", *scripts], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "")


def test_the_options_of_shipped_tasks_are_theirs_and_the_batch_divides_by_the_gpus() -> None:
    jobs = [validate(Job, read_file(data_folder("jobs") / f"{name}.yaml"), "job") for name in example_names()]
    trained = [(job.name, job.train, job.resources) for job in jobs if job.train is not None]
    shipped = [each for each in trained if each[1].task.startswith("slurmgpu:")]
    assert len(shipped) >= 3
    for name, train, resources in shipped:
        check_shipped_task(train.task, train.config)
        gpus = resources.gpus or resources.gpus_per_node
        assert train.batch_size % (gpus.count * int(resources.nodes or 1)) == 0, name


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_job_to_copy_names_no_site(name: str) -> None:
    job = validate(Job, read_file(data_folder("jobs") / f"{name}.yaml"), "job")
    resources = job.resources
    assert (resources.account, resources.partition, resources.qos, resources.constraint) == (None,) * 4
    assert job.sbatch == {}


def test_each_says_in_its_first_line_what_it_is_for() -> None:
    abouts = [one.about for one in examples()]
    assert len(set(abouts)) == len(abouts) >= 17
    for one in examples():
        assert one.files[0].read_text().splitlines()[0] == f"# {one.about}"
        assert one.about.endswith(".")


def test_the_list_names_each_with_what_it_is_for_in_80_columns(tmp_path: Path) -> None:
    done = slurmgpu(tmp_path, "jobs")
    assert (done.returncode, done.stderr) == (0, "copy one: slurmgpu jobs copy NAME\n")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == example_names()
    assert [line.split(maxsplit=1)[1] for line in lines] == [one.about for one in examples()]
    assert max(map(len, lines)) <= 80
    listed = json.loads(slurmgpu(tmp_path, "jobs", "--json").stdout)["jobs"]
    assert [one["name"] for one in listed] == example_names()


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_copy_has_all_it_starts(name: str, tmp_path: Path) -> None:
    copied = slurmgpu(tmp_path, "jobs", "copy", name, "new folder")
    assert copied.returncode == 0, copied
    folder = tmp_path / "new folder"
    there = {path.name for path in folder.iterdir()}
    assert f"{name}.yaml" in there
    for path in folder.glob("*.yaml"):
        job = validate(Job, read_file(path), "job")
        started = [*(job.command or ()), *(job.train.task.split(":") if job.train else ())]
        started += (job.script or "").split()
        assert {word for word in started if word.endswith(".py")} <= there
    own = {path.stem for path in data_folder("jobs").glob("*.py")}
    for path in folder.glob("*.py"):
        imported = {
            module.split(".")[0] for node in ast.walk(ast.parse(path.read_text())) for module in imports(node)
        }
        assert not imported & own, f"{path.name} imports a file that does not travel with it"


def imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_copying_says_what_to_type_next(tmp_path: Path) -> None:
    said = slurmgpu(tmp_path, "jobs", "copy", "one-node", "mine").stderr.splitlines()
    assert said[0] == "slurmgpu: wrote mine/one-node.yaml, mine/ddp.py"
    assert said[2:] == [
        "  cd mine",
        "  slurmgpu run one-node.yaml --here",
        "  slurmgpu submit one-node.yaml --follow",
    ]
    said = slurmgpu(tmp_path, "jobs", "copy", "pipeline-train").stderr.splitlines()
    assert said[2:] == [
        "  id=$(slurmgpu submit pipeline-prepare.yaml)",
        "  slurmgpu submit pipeline-train.yaml --dependency afterok:$id",
    ]


def test_nothing_is_overwritten_and_nothing_half_copied(tmp_path: Path) -> None:
    (tmp_path / "ddp.py").write_text("mine\n")
    refused = slurmgpu(tmp_path, "jobs", "copy", "one-node")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "ddp.py exists already and is another file; nothing was copied" in refused.stderr
    assert "hint: name another folder: slurmgpu jobs copy one-node FOLDER" in refused.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["ddp.py"]
    assert (tmp_path / "ddp.py").read_text() == "mine\n"


def test_jobs_that_share_a_script_go_into_one_folder(tmp_path: Path) -> None:
    assert slurmgpu(tmp_path, "jobs", "copy", "one-node").returncode == 0
    second = slurmgpu(tmp_path, "jobs", "copy", "two-nodes")
    assert second.stderr.splitlines()[0] == "slurmgpu: wrote two-nodes.yaml"


def test_a_mistyped_name_is_guessed(tmp_path: Path) -> None:
    refused = slurmgpu(tmp_path, "jobs", "copy", "one-nod")
    assert refused.returncode == 2
    assert "did you mean 'one-node'?" in refused.stderr


def test_a_shipped_job_by_its_name_works_in_the_current_folder(tmp_path: Path) -> None:
    script = slurmgpu(tmp_path, "render", "one-gpu").stdout
    assert f"#SBATCH --chdir={tmp_path}\n" in script
    copy_example(example_named("one-gpu"), tmp_path / "copy")
    script = slurmgpu(tmp_path, "render", "copy/one-gpu.yaml").stdout
    assert f"#SBATCH --chdir={tmp_path}/copy\n" in script
