"""Several steps in one job: what they are, the share of each, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from slurmgpu.doctor.on_nodes import probe_job
from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.data import read_templates
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan, PlannedStep
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.python_script import parse_python_script
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script
from slurmgpu.shell.session import as_session
from tests import ready

NODES = Cluster.model_validate(
    {
        "name": "here",
        "partitions": {
            "gpu": {"nodes": ({"count": 4, "gpus": 4, "gpu_type": "a100", "cpus": 32, "memory": "256G"},)}
        },
    }
)


def plan(steps: dict[str, Any], cluster: Cluster = GENERIC, **job: Any) -> Plan:
    made = Job.model_validate({"steps": steps, **job}, strict=False)
    return make_plan(made, cluster, Surroundings(work_dir="/work"))


def steps_of(*arguments: Any, **job: Any) -> dict[str, PlannedStep]:
    return {step.name: step for step in plan(*arguments, **job).steps}


def script(*arguments: Any, **job: Any) -> str:
    return render_script(plan(*arguments, **job), read_templates())


ONE = {"command": ["./one"]}
WIDE = {**ONE, "nodes": 2, "launch": {"launcher": "srun"}}


# What each has


def test_the_only_step_of_a_job_has_all_of_it() -> None:
    (step,) = plan({"work": ONE}, resources={"gpus_per_node": 4, "cpus_per_task": 8}).steps
    assert (step.gpus_per_node, step.cpus_per_task, step.exact) == (4, 8, False)


def test_a_step_beside_others_has_what_it_says_and_one_cpu_without_a_word() -> None:
    made = steps_of({"a": {**ONE, "gpus": 1}, "b": ONE}, resources={"gpus": 2, "cpus_per_task": 8})
    assert [(one.nodes, one.gpus_per_node, one.cpus_per_task) for one in made.values()] == [
        (1, 1, 3),
        (1, 0, 1),
    ]


@pytest.mark.parametrize(
    ("steps", "asked"),
    [
        ({"work": {**ONE, "launch": {"launcher": "srun"}}}, "--gpus-per-task=1"),
        ({"work": ONE}, "--gpus-per-task=4"),
        ({"work": {**ONE, "gpus": 2}, "b": ONE}, "--gpus-per-task=2"),
        ({"b": {**ONE, "gpus": 4}, "work": {**ONE, "overlap": True}}, "--gres=gpu:4"),
    ],
)
def test_where_the_job_names_no_gpus_each_step_asks_for_its_own(steps: dict[str, Any], asked: str) -> None:
    site = NODES.model_copy(update={"dialect": NODES.dialect.model_copy(update={"gpus": "srun"})})
    made = plan(steps, site, resources={"gpus_per_node": 4})
    assert made.option("gres") is None
    (step,) = [one for one in made.steps if one.name == "work"]
    none = site.model_copy(update={"dialect": site.dialect.model_copy(update={"gpus": "none"})})
    if step.exact:  # beside others; alone it sees all that the node has
        assert plan(steps, none, resources={"gpus_per_node": 4}).steps[0].own_gpus == step.own_gpus
    given = [*step.srun_options, f"--gres={step.gres}"]
    assert [one for one in given if re.match("--gpus|--gres=gpu", one)] == [asked]


def test_cpus_come_with_the_gpus_of_a_step_as_far_as_the_others_leave_them() -> None:
    made = steps_of(
        {"a": {**ONE, "gpus": 3}, "b": {**ONE, "gpus": 1}, "c": {**ONE, "cpus_per_task": 4}},
        resources={"gpus": 4, "cpus_per_task": 32},
    )
    assert [one.cpus_per_task for one in made.values()] == [21, 7, 4]


def test_a_job_that_says_nothing_of_cpus_asks_for_what_its_steps_need() -> None:
    steps = {"a": {**ONE, "cpus_per_task": 6}, "b": {**ONE, "cpus_per_task": 2}}
    made = plan(steps, resources={"memory": "8G"})
    assert made.option("cpus-per-task") == "8"
    assert next(one.why for one in made.options if one.name == "mem") == "as asked"
    assert next(one.why for one in made.options if one.name == "cpus-per-task").startswith(
        "what the steps need"
    )


def test_a_described_cluster_gives_the_gpus_share_of_cpus_to_the_steps() -> None:
    made = steps_of({"a": {**ONE, "gpus": 1}, "b": {**ONE, "gpus": 1}}, NODES, resources={"gpus": 2})
    assert [one.cpus_per_task for one in made.values()] == [8, 8]


def test_memory_is_asked_for_when_every_step_names_its_own() -> None:
    half = {**ONE, "memory": "3G"}
    assert plan({"a": half, "b": half}).option("mem") == "6G"
    assert plan({"a": half, "b": ONE}).option("mem") is None


def test_steps_are_packed_onto_nodes_the_largest_first() -> None:
    made = steps_of(
        {"small": {**ONE, "gpus": 1}, "pair": {**ONE, "gpus": 4}, "wide": {**WIDE, "gpus": 4}},
        resources={"nodes": 3, "gpus_per_node": 4, "cpus_per_task": 16},
    )
    assert {name: one.first_node for name, one in made.items()} == {"wide": 0, "pair": 2, "small": 0}


def test_steps_that_need_little_are_spread_over_the_nodes() -> None:
    made = plan(
        {"server": {**ONE, "cpus_per_task": 2}, "client": {**ONE, "cpus_per_task": 4}}, resources={"nodes": 2}
    )
    assert {one.name: one.first_node for one in made.steps} == {"client": 0, "server": 1}
    assert made.option("cpus-per-task") == "4"


def test_the_only_step_has_an_exact_share_when_it_wants_less_than_all() -> None:
    (step,) = plan({"work": {**ONE, "gpus": 1}}, resources={"gpus": 4, "cpus_per_task": 8}).steps
    assert (step.exact, step.gres) == (True, "gpu:1")


def test_a_python_script_on_several_gpus_is_started_by_torchrun_in_its_own_world() -> None:
    made = steps_of(
        {"train": {"command": ["python", "t.py"], "gpus": 3}, "other": {**ONE, "gpus": 1}},
        resources={"gpus": 4},
    )
    assert (made["train"].launcher, made["train"].processes_per_node) == ("torchrun", 3)


def test_tasks_of_a_step_are_started_by_srun() -> None:
    made = steps_of({"a": {**ONE, "tasks_per_node": 3}, "b": ONE})
    assert (made["a"].launcher, made["a"].tasks_per_node) == ("srun", 3)


def test_a_monitor_that_overlaps_runs_on_each_node_and_takes_nothing_from_the_others() -> None:
    made = steps_of(
        {"watch": {**ONE, "overlap": True, "background": True}, "work": ONE},
        resources={"nodes": 2, "gpus_per_node": 2},
    )
    assert (made["watch"].nodes, made["watch"].tasks_per_node, made["work"].gpus_per_node) == (2, 1, 2)


# What is refused


def test_steps_that_would_wait_for_each_other_are_refused_with_the_sums() -> None:
    asks = {"a": {**ONE, "memory": "7G"}, "b": {**ONE, "memory": "2G"}}
    with pytest.raises(PlanError, match=r"9216 MiB of memory \(a 7168 \+ b 2048\)"):
        plan(asks, resources={"gpus": 4, "cpus_per_task": 8, "memory": "8G"})


def test_steps_that_fit_in_all_but_on_no_nodes_are_refused() -> None:
    three = {**ONE, "gpus": 3}
    with pytest.raises(
        PlanError, match="c needs 1 node with 2 GPUs, 4 CPUs each, and the others leave no such node"
    ):
        plan(
            {"a": three, "b": three, "c": {**ONE, "gpus": 2}},
            resources={"nodes": 2, "gpus_per_node": 4, "cpus_per_task": 8},
        )


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"steps": {"a-b": ONE, "A_b": ONE}}, "both have the variable SLURMGPU_NODE_A_B"),
        (
            {"steps": {"a": {**ONE, "overlap": True, "gpus": 1}}},
            "gpus: 1 and overlap: true exclude each other",
        ),
        ({"steps": {"batch": ONE}}, "'batch' is not a step's name"),
        ({"steps": {"a": ONE}, "train": {"task": "t.py:T"}}, "train and steps are both given"),
        ({"steps": {"a": ONE}, "exact": True}, "exact: true and steps: exclude each other"),
        ({"steps": {"a": ONE}, "launch": {"launcher": "srun"}}, "write launch into each step"),
    ],
)
def test_what_cannot_be_together_is_refused(job: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Job.model_validate(job, strict=False)


@pytest.mark.parametrize("launcher", ["ray", "mpirun", "accelerate"])
def test_launchers_that_need_a_job_of_their_own_are_refused(launcher: str) -> None:
    with pytest.raises(
        (PlanError, InvalidInput), match=rf"steps.a: launch: {launcher} needs a job of its own"
    ):
        plan(
            {"a": {"command": ["python", "t.py"], "launch": {"launcher": launcher}, "gpus": 2}},
            resources={"gpus": 2},
        )


# What is said


def test_gpus_that_no_step_uses_are_told() -> None:
    made = plan({"a": {**ONE, "gpus": 1}, "b": ONE}, resources={"gpus": 4})
    assert "3 of 4 GPUs are for no step; steps.NAME.gpus gives them to one" in made.warnings


def test_a_component_without_a_step_is_told() -> None:
    made = plan({"a": ONE}, components=({"resources": {"gpus": 1}},))
    assert "component 1: no step runs there: it stays idle; give one component: 1" in made.warnings


def test_the_plan_says_what_each_step_has_and_where() -> None:
    made = plan({"a": {**ONE, "gpus": 2}, "b": {**ONE, "background": True}}, resources={"gpus": 2})
    said = {reason.what: reason.value for reason in made.reasons}
    assert said["step a"] == "node 1, 2 GPUs, 1 task x 1 CPU"
    assert said["step b"] == "node 1, 1 task x 1 CPU, in the background"


# The script


def test_each_step_is_an_exact_share_and_a_log_of_its_own() -> None:
    text = script({"a": {**ONE, "gpus": 1, "memory": "2G"}, "b": ONE}, resources={"gpus": "a100:2"})
    assert "--job-name=a --exact --mem=2G --gres=gpu:a100:1" in text
    assert "--job-name=b --exact --mem=0 --gres=none" in text
    assert './one >>"$(log_of a)" 2>&1 & follow a waited-for "$!"' in text


def test_the_only_step_of_its_component_asks_for_no_share() -> None:
    text = script({"a": ONE, "b": {**ONE, "component": 1}}, components=({"resources": {"gpus": 2}},))
    assert "--job-name=b --het-group=1 \\" in text
    assert "--exact" not in text


def test_several_steps_that_save_checkpoints_have_a_folder_each() -> None:
    facts = parse_python_script("t.py", "from slurmgpu.training import Run\n")
    step = {"command": ("python", "t.py")}
    job = Job.model_validate({"steps": {"a": step, "b": step}}, strict=False)
    around = Surroundings(work_dir="/work", scripts={"a": facts, "b": facts})
    text = render_script(make_plan(job, GENERIC, around), read_templates())
    assert 'mkdir -p "$SLURMGPU_RUN_DIR/a"' in text
    assert 'SLURMGPU_RUN_DIR="$SLURMGPU_RUN_DIR/b" srun' in text


def test_steps_that_meet_have_ports_of_their_own() -> None:
    wide = {"command": ["python", "t.py"], "nodes": 2, "gpus": 2, "launch": {"launcher": "srun"}}
    text = script({"a": wide, "b": wide}, resources={"nodes": 2, "gpus_per_node": 2})
    assert 'MASTER_ADDR="$SLURMGPU_NODE_A" MASTER_PORT=$(port_of 0)' in text
    assert 'MASTER_ADDR="$SLURMGPU_NODE_B" MASTER_PORT=$(port_of 1)' in text
    assert "SLURM_JOB_ID * 2 + $1" in text


def test_a_shell_and_the_doctor_get_the_nodes_of_a_job_without_its_steps() -> None:
    job = Job.model_validate({"steps": {"a": ONE}}, strict=False)
    for made in (as_session(job, GENERIC), probe_job(job, "python")):
        assert make_plan(made, GENERIC, Surroundings(work_dir="/work")).steps == ()


# The waiting, in bash itself: srun is a program that runs its command


SRUN = """\
#!/bin/bash
while [[ ${1-} == --* ]]; do shift; done
trap 'kill -TERM "$task"; wait "$task"; exit 143' TERM
"$@" & task=$!
wait "$task"
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run the script of a job with these steps; the exit code and what the batch shell said."""
    bash = shutil.which("bash")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho localhost\n",
        "squeue": "#!/bin/sh\n",
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def started(steps: dict[str, Any]) -> tuple[int, str]:
        made = Job.model_validate({"steps": steps}, strict=False)
        text = render_script(make_plan(made, GENERIC, Surroundings(work_dir=str(tmp_path))), read_templates())
        (tmp_path / "job.sh").write_text(text)
        env = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}
        with (tmp_path / "7.out").open("wb") as log:
            done = subprocess.run(
                [str(bash), str(tmp_path / "job.sh")], env=env, stdout=log, stderr=log, timeout=60
            )
        return done.returncode, (tmp_path / "7.out").read_text()

    return started


def shell(text: str, **step: Any) -> dict[str, Any]:
    return {"command": ["bash", "-c", text], **step}


def test_a_job_ends_well_when_all_its_steps_have(run: Any, tmp_path: Path) -> None:
    code, said = run({"a": shell("echo from a"), "b": shell("sleep 1; echo from b")})
    assert code == 0, said
    assert [(tmp_path / f"7-{name}.out").read_text() for name in "ab"] == ["from a\n", "from b\n"]


def test_the_first_failing_step_gives_the_exit_code_and_ends_the_others(run: Any, tmp_path: Path) -> None:
    code, said = run({"long": shell("sleep 50"), "bad": shell("exit 9"), "worse": shell("sleep 2; exit 5")})
    assert code == 9
    assert said.count("failed") == 1
    assert f"step bad failed (exit code 9), and the others are ended; its log: {tmp_path}/7-bad.out" in said


def test_a_step_in_the_background_is_told_to_end_after_the_others(run: Any, tmp_path: Path) -> None:
    server = shell("trap 'echo told; exit 0' TERM; while :; do sleep 0.1; done", background=True)
    code, said = run({"server": server, "work": shell("sleep 1")})
    assert code == 0, said
    assert (tmp_path / "7-server.out").read_text() == "told\n"


def test_a_failure_in_the_background_is_told_and_ends_nothing(run: Any) -> None:
    code, said = run({"server": shell("exit 4", background=True), "work": shell("sleep 2")})
    assert code == 0
    assert "step server ended early (exit code 4), and the others go on" in said


# On this machine, without Slurm


def test_a_local_run_starts_all_steps_each_with_a_log_in_the_run_directory(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "resources: {gpus: 2}\n"
        "steps:\n"
        "  server: {command: [sleep, 50], background: true}\n"
        "  one: {command: [bash, -c, 'echo $SLURM_PROCID of $SLURM_NTASKS'], gpus: 1}\n"
        "  bad: {command: [bash, -c, 'sleep 1; exit 6'], gpus: 1}\n"
    )
    command = [sys.executable, "-m", "slurmgpu", "run", "--here", "job.yaml"]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "XDG_CONFIG_HOME": str(tmp_path)}
    done = ready.run(command, env, cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    assert "step bad failed (exit code 6), and the others are ended" in done.stderr
    (log,) = tmp_path.glob("runs/*/logs/*-one.out")
    assert log.read_text().splitlines()[-1] == "0 of 1"
