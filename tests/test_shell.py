"""``slurmgpu shell`` without Slurm: what is asked for, what a node would run, and what is refused beforehand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmgpu.errors import PlanError, SlurmRefused, SlurmUnreachable
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder, read_templates
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import ShellValues, render_script, render_shell, shell_plan
from slurmgpu.script.variables import SCRIPT_NAME
from slurmgpu.shell.server import read_server
from slurmgpu.shell.session import as_session, left_out, step_of
from slurmgpu.slurm import hear, refusal
from slurmgpu.slurm.requests import allocation_command
from tests import ready

ROOT = Path(__file__).resolve().parent.parent
FULL = """
resources: {gpus: 2, cpus_per_task: 4, memory: 8G, time: "1:00:00"}
environment:
  modules: {load: [cuda/12.4]}
  container: torch.sif
variables: {NCCL_DEBUG: WARN}
secrets: [WANDB_API_KEY]
restart: {on: [preemption]}
output: log.txt
launch: srun
command: [python, train.py]
"""


def job_of(text: str) -> Job:
    return validate(Job, read_yaml(text, "job.yaml"), "job")


def planned(text: str, command: tuple[str, ...] | None = None, cluster: Cluster = GENERIC) -> Plan:
    job = as_session(job_of(text), cluster)
    return shell_plan(make_plan(job, cluster, Surroundings(work_dir="/w")), command)


def script_of(plan: Plan, values: ShellValues | None = None) -> str:
    return render_shell(plan, read_templates(), values or ShellValues())[SCRIPT_NAME]


# What Slurm is asked for


def test_slurm_is_asked_for_what_the_job_would_ask_for_without_what_speaks_of_a_batch_script() -> None:
    job = job_of(FULL)
    plan = make_plan(job, GENERIC, Surroundings(work_dir="/w"))
    words = allocation_command(planned(FULL).options, [])
    asked = words[1 : words.index("srun")]
    assert asked == [str(one) for one in plan.options if one.name not in ("output", "requeue", "open-mode")]
    assert left_out(planned(FULL)) == ["--output=log.txt"]


def test_the_shell_is_one_task_with_all_cpus_that_the_job_has_on_a_node() -> None:
    plan = planned(FULL)
    step = step_of(plan, job_of(FULL), "/r/script.sbatch", terminal=True)
    assert {"--nodes=1", "--ntasks=1", "--cpus-per-task=8", "--pty"} <= set(step)
    assert step[-2:] == ["bash", "/r/script.sbatch"]


def test_gpus_that_a_site_gives_by_the_task_are_all_given_to_the_shell() -> None:
    cluster = GENERIC.model_copy(
        update={"dialect": GENERIC.dialect.model_copy(update={"gpus": "gpus-per-task"})}
    )
    text = "{resources: {gpus_per_node: 4, nodes: 1}, launch: srun, command: [python, train.py]}"
    plan = planned(text, cluster=cluster)
    assert plan.own_gpus == 1
    assert "--gpus-per-task=4" in step_of(plan, job_of(text), "s", terminal=False)


def test_the_shell_is_bound_to_no_part_of_what_it_has() -> None:
    """The job's list, or the profile's, is for a task per GPU: the shell would have the first one's share."""
    own = "cpu_bind: 'map_cpu:0,8,16,24', gpu_bind: 'per_task:1', mem_bind: local"
    lumi = load_cluster(data_folder("clusters") / "lumi-g.yaml")
    for asked, cluster in (
        (f"gpus_per_node: 4, nodes: 1, {own}", GENERIC),
        ("gpus: 8, partition: standard-g, account: project_465000000, time: 60", lumi),
    ):
        text = f"{{resources: {{{asked}}}, launch: srun, command: [python, train.py]}}"
        plan = planned(text, cluster=cluster)
        words = [*map(str, plan.options), *step_of(plan, job_of(text), "s", terminal=True)]
        assert not [word for word in words if "-bind" in word]


def test_without_anything_to_run_a_shell_is_planned_and_an_array_is_one_task() -> None:
    plan = planned("{resources: {gpus: 1}, array: 0-9}")
    assert plan.name == "shell"
    assert plan.option("array") is None


def test_a_cluster_that_demands_a_time_limit_gets_one_hour() -> None:
    dialect = GENERIC.dialect.model_copy(update={"required": ("time",)})
    cluster = GENERIC.model_copy(update={"dialect": dialect})
    assert planned("resources: {gpus: 1}", cluster=cluster).option("time") == "01:00:00"
    given = planned("resources: {gpus: 1, time: 30}", cluster=cluster)
    assert given.option("time") == "00:30:00"


def test_components_are_refused() -> None:
    with pytest.raises(PlanError, match="components"):
        as_session(job_of("{resources: {gpus: 1}, components: [{resources: {nodes: 1}}]}"), GENERIC)


# What the node runs


def test_the_shell_enters_the_environment_as_the_batch_script_does() -> None:
    job = job_of(f"{FULL}sample: false\n")  # a shell is never sampled
    batch = render_script(make_plan(job, GENERIC, Surroundings(work_dir="/w")), read_templates())
    shell = script_of(planned(FULL))
    start = batch.index("\ncd /w")
    end = batch.index("export SRUN_CPUS_PER_TASK=")
    assert batch[start:end].strip() in shell
    assert "#SBATCH" not in shell
    assert "train.py" not in shell
    assert (
        'apptainer exec --nv --bind "$SLURMGPU_RUN_DIR" torch.sif bash "$SLURMGPU_RUN_DIR/enter.sh"' in shell
    )


def test_a_command_runs_once_in_place_of_the_shell() -> None:
    script = script_of(planned(FULL, ("nvidia-smi", "-L")))
    assert "torch.sif nvidia-smi -L || status=$?" in script


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed: apt-get install shellcheck"
)
@pytest.mark.parametrize(
    ("ending", "files", "server"),
    [
        ("interactive", ("enter.sh",), ""),
        ("ssh", ("enter.sh", "session.sh"), "sshd"),
        ("jupyter", (), "jupyterlab"),
    ],
)
def test_a_nodes_scripts_are_clean_by_shellcheck(
    ending: str, files: tuple[str, ...], server: str, tmp_path: Path
) -> None:
    values = ShellValues(ending, files, {"server": server, "python": "python3"})
    for name, text in render_shell(planned(FULL), read_templates(), values).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["shellcheck", "--shell=bash", *map(str, tmp_path.iterdir())], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def environment(home: Path, **more: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(home / "xdg"),
        "SLURMGPU_SITE": str(home / "site"),
        "NO_COLOR": "1",
        **more,
    }


def test_the_shell_has_the_jobs_environment_whatever_the_users_bashrc_does(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("export WHERE=bashrc; alias hi='echo hello'\n")
    plan = planned("{resources: {gpus: 1}, variables: {WHERE: job}}").model_copy(
        update={"work_dir": str(tmp_path)}
    )
    for name, text in render_shell(plan, read_templates(), ShellValues()).items():
        (tmp_path / name).write_text(text)
    env = environment(
        tmp_path,
        SLURM_JOB_ID="7",
        SLURM_JOB_END_TIME=str(int(time.time()) + 3930),
        SLURMGPU_RUN_DIR=str(tmp_path),
    )
    done = subprocess.run(
        ["bash", SCRIPT_NAME],
        cwd=tmp_path,
        env=env,
        input='echo "where=$WHERE"\nhi\necho "prompt=${PS1@P}"\nexit 3\n',
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "where=job" in done.stdout
    assert "hello" in done.stdout
    assert re.search(r"prompt=\(job 7, 6\d min left\) ", done.stdout)
    assert "slurmgpu: job 7 on" in done.stderr


def test_the_end_of_the_allocation_is_announced_in_advance(tmp_path: Path) -> None:
    until = 'until grep -q "job 7 ends in 1 min" said; do sleep 0.05; done'
    plan = planned("resources: {gpus: 1}", ("sh", "-c", until)).model_copy(update={"work_dir": str(tmp_path)})
    (tmp_path / SCRIPT_NAME).write_text(script_of(plan))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "date").write_text("#!/bin/sh\necho 1000000000\n")  # 61 s before the end
    (tmp_path / "bin" / "date").chmod(0o755)
    env = environment(
        tmp_path,
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        SLURM_JOB_ID="7",
        SLURM_JOB_END_TIME="1000000061",
        SLURMGPU_RUN_DIR=str(tmp_path),
    )
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run(["bash", SCRIPT_NAME], cwd=tmp_path, env=env, stderr=said, timeout=120)
    lines = (tmp_path / "said").read_text().split("\n")
    assert (done.returncode, lines.count("slurmgpu: job 7 ends in 1 min: save what you need")) == (0, 1), (
        lines
    )
    assert not any("ends in 5 min" in line for line in lines)


# What Slurm says


def test_the_lines_of_salloc_are_read_and_those_of_others_are_not() -> None:
    waits = hear("salloc: Pending job allocation 12")
    given = hear("salloc: Granted job allocation 12")
    assert (waits.kind, waits.job_id, given.kind, given.job_id) == ("waits", 12, "given", 12)
    assert hear("Granted job allocation 12") is None


def test_a_refusal_is_told_in_slurms_words_with_the_next_act() -> None:
    line = "salloc: error: Job submit/allocate failed: Invalid account or account/partition combination specified"
    error = refusal([line], 1)
    assert isinstance(error, SlurmRefused)
    assert "Invalid account" in error.message
    assert error.hint
    silent = refusal(["salloc: error: Unable to contact slurm controller (connect failure)"], 1)
    assert isinstance(silent, SlurmUnreachable)


def test_a_server_is_reached_by_the_first_of_its_names_that_this_machine_knows() -> None:
    server = read_server("slurmgpu-server 23456 0 no-such-node.invalid localhost\n")
    assert (server.node, server.port, server.until) == ("localhost", 23456, "")
    assert read_server("hello\n") is None


# From the command line, with programs in Slurm's place


SALLOC = """\
#!/bin/bash
{ echo "$@"; env; } >"$HOME/seen"
cp "$SLURMGPU_RUN_DIR"/* "$HOME/copies/" 2>/dev/null
stat -c '%a %n' "$SLURMGPU_RUN_DIR" "$SLURMGPU_RUN_DIR"/* >"$HOME/modes"
echo "salloc: Granted job allocation 7" >&2
export SLURM_JOB_ID=7 SLURMD_NODENAME=localhost
bash "${@: -1}"; code=$?
echo "salloc: Relinquishing job allocation 7" >&2
exit "$code"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, text in (("salloc", SALLOC), ("squeue", "#!/bin/sh\n"), ("scancel", "#!/bin/sh\n")):
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    (tmp_path / "copies").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path


def shell(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = environment(home, PATH=f"{home / 'bin'}:{os.environ['PATH']}", **more)
    return ready.run([sys.executable, "-m", "slurmgpu", "shell", *words], env, cwd=home / "work")


def test_a_commands_output_and_exit_code_are_its_own_and_nothing_is_left(home: Path) -> None:
    done = shell(home, "--gpus", "1", "--", "sh", "-c", "pwd; echo oops >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, f"{home / 'work'}\n")
    assert "oops\n" in done.stderr
    assert "salloc:" not in done.stderr
    assert "job 7 was given back" in done.stderr
    assert list((home / "work").iterdir()) == []


def test_what_the_command_leaves_in_the_run_directory_stays(home: Path) -> None:
    done = shell(home, "--gpus", "1", "--", "sh", "-c", 'touch "$SLURMGPU_RUN_DIR/mine"')
    (run_dir,) = (home / "work" / "runs").iterdir()
    assert [path.name for path in run_dir.iterdir()] == ["mine"]
    assert "something of yours is in it" in done.stderr


def test_the_folder_of_a_session_is_for_its_owner_alone(home: Path) -> None:
    shell(home, "--gpus", "1", "--", "true")
    modes = (home / "modes").read_text().splitlines()
    assert modes[0].startswith("700 ")
    assert any(line.startswith("600 ") and line.endswith("/enter.sh") for line in modes)


def test_why_slurm_took_the_node_back_is_told(home: Path) -> None:
    why = "salloc: Job 7 has exceeded its time limit and its allocation has been revoked."
    salloc = home / "bin" / "salloc"
    salloc.write_text(salloc.read_text().replace("salloc: Relinquishing job allocation 7", why))
    assert why in shell(home, "--gpus", "1", "--", "true").stderr


def test_a_request_that_slurm_refuses_leaves_nothing(home: Path) -> None:
    (home / "bin" / "salloc").write_text(
        "#!/bin/sh\necho 'salloc: error: Job submit/allocate failed: Invalid qos specification' >&2; exit 1\n"
    )
    done = shell(home, "--gpus", "1", "--", "true")
    assert done.returncode == 1
    assert "Slurm refused the request" in done.stderr
    assert list((home / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "more", "says"),
    [
        (("--gpus", "1"), {}, "a shell needs a terminal"),
        (("--gpus", "1"), {"SLURM_JOB_ID": "5"}, "this is the shell of job 5"),
        (("--gpus", "1"), {"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n1"}, "a shell of job 5 already, on n1"),
    ],
)
def test_what_cannot_be_a_shell_is_said_before_slurm_is_asked(
    home: Path, words: tuple[str, ...], more: dict[str, str], says: str
) -> None:
    done = shell(home, *words, **more)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "hint:" in done.stderr
    assert not (home / "seen").exists()
