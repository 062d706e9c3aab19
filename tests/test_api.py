"""submit() from Python and ``--via submitit``: the planned options, and nothing of submitit where it is not used."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import DelayedSubmission

import slurmgpu
from slurmgpu.api import JobSettings
from slurmgpu.errors import InvalidInput, PlanError, SlurmGpuError, SlurmRefused, SlurmUnreachable
from slurmgpu.files.clusters import load_cluster
from slurmgpu.models.job import Job, Resources
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.quoting import directive_value
from slurmgpu.runs.by_submitit import pack_command

ROOT = Path(__file__).resolve().parent.parent
CLUSTERS = Path(__file__).parent / "golden" / "clusters"


def add(first: int, second: int = 0) -> int:
    return first + second


class Site:
    """A machine whose sbatch does what a test says; the current folder is a project on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work = folder / "work"
        self.bin = folder / "bin"
        self.seen = folder / "sbatch-saw"
        for one in (self.work, self.bin):
            one.mkdir()
        for name in ("squeue", "sacct"):
            self.command(name, "exit 0")
        self.command("sbatch", f'env >"{self.seen}"; echo 4711')
        monkeypatch.chdir(self.work)
        monkeypatch.setenv("PATH", f"{self.bin}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "xdg"))
        monkeypatch.setenv("SLURMGPU_SITE", str(folder / "site"))
        monkeypatch.setenv("SLURMGPU_CLUSTER", str(CLUSTERS / "gres.yaml"))

    def command(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    @property
    def runs(self) -> list[Path]:
        return sorted((self.work / "runs").glob("*"))

    def script_options(self) -> list[str]:
        (run,) = self.runs
        lines = (run / "script.sbatch").read_text(encoding="utf-8").splitlines()
        return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def call_of(job: Any) -> DelayedSubmission:
    return DelayedSubmission.load(job.paths.submitted_pickle)


def test_what_cannot_work_is_refused_in_the_words_of_the_call(site: Site) -> None:
    with pytest.raises(PlanError) as caught:
        slurmgpu.submit(add, 1, gpus=1, time="1:00:00", memory=64)
    assert caught.value.message.startswith("memory=64: 64 means 64 megabytes")
    assert "write memory='64G'" in str(caught.value.hint)
    assert "--force" not in str(caught.value.hint)
    assert site.runs == []
    with pytest.warns(UserWarning, match="time=24: 24 means 24 minutes"):
        slurmgpu.submit(add, 1, gpus=1, time=24)


def test_a_function_arrives_with_its_arguments(site: Site) -> None:
    job = slurmgpu.submit(add, 1, kwargs={"second": 2}, gpus=2, time="1:00:00")
    assert job.job_id == "4711"
    assert job.num_tasks == 2
    assert call_of(job).result() == 3
    assert call_of(slurmgpu.submit(functools.partial(add, 1, second=4), gpus=1)).result() == 5


def test_the_run_is_recorded_like_any_other(site: Site) -> None:
    job = slurmgpu.submit(add, 1, gpus=2, time="1:00:00", name="a sum")
    (run,) = site.runs
    assert run.name.startswith("a-sum-")
    assert json.loads((run / "run.json").read_text())["job_id"] == 4711
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["name"], plan["gpus_per_node"], plan["time"]) == ("a sum", 2, "01:00:00")
    assert job.paths.folder == run / "submitit"
    assert job.paths.submission_file.read_text() == (run / "script.sbatch").read_text()


def test_runs_are_kept_where_the_caller_or_the_settings_say(site: Site, tmp_path: Path) -> None:
    (site.work / "slurmgpu.yaml").write_text(f"runs: {tmp_path}/scratch\n")
    slurmgpu.submit(add, 1, gpus=1)
    slurmgpu.submit(add, 1, gpus=1, runs=tmp_path / "mine")
    assert len(list((tmp_path / "scratch").iterdir())) == 1
    assert len(list((tmp_path / "mine").iterdir())) == 1


ASKED: dict[str, dict[str, Any]] = {
    "gres": {"gpus": 2, "gpu_type": "a100", "time": "1:00:00"},
    "constraint": {"gpus": 4, "gpu_memory": "80G", "account": "m1", "qos": "regular"},
    "pernode": {"nodes": 2, "gpus_per_node": 4, "account": "p1"},
    "suffix": {"nodes": 2, "gpus_per_node": 4, "time": 30},
    "totals": {"gpus": 4, "account": "a", "partition": "gpu", "qos": "normal"},
}


@pytest.mark.parametrize("name", sorted(ASKED))
def test_the_script_has_the_plans_options_and_no_other(site: Site, name: str) -> None:
    """submitit's own script always has --wckey, --nodes, --time, --signal and --open-mode."""
    comment = 'it\'s a \\b "c" #d'
    slurmgpu.submit(add, 1, cluster=CLUSTERS / f"{name}.yaml", comment=comment, **ASKED[name])
    wanted = Job(
        name="add",
        resources=Resources.model_validate_json(json.dumps(ASKED[name])),
        launch={"launcher": "srun"},  # type: ignore[arg-type]
        command=("tests.test_api.add",),
        comment=comment,
    )
    plan = make_plan(wanted, load_cluster(CLUSTERS / f"{name}.yaml"), Surroundings(str(site.work)))
    assert site.script_options() == [
        f"--{option.name}" if option.value is None else f"--{option.name}={directive_value(option.value)}"
        for option in plan.options
    ]


class Saving:
    """What submitit calls checkpointable."""

    def __call__(self) -> None:
        pass

    def checkpoint(self) -> DelayedSubmission:
        return DelayedSubmission(self)


def test_only_what_can_be_saved_may_restart_unless_excluded_and_is_signalled(site: Site) -> None:
    slurmgpu.submit(Saving(), gpus=1)
    assert {"--requeue", "--signal=USR2@90"} <= set(site.script_options())
    slurmgpu.submit(Saving(), gpus=1, restart={"on": []}, runs=site.work / "others")
    (run,) = (site.work / "others").iterdir()
    assert "#SBATCH --no-requeue\n" in (run / "script.sbatch").read_text()


def test_submitit_itself_requeues_at_the_time_limit(site: Site) -> None:
    with pytest.raises(InvalidInput, match=r"restart\.on: timeout cannot be had with submitit") as caught:
        slurmgpu.submit(Saving(), gpus=1, restart={"on": ["timeout"]})
    assert "a method checkpoint" in (caught.value.hint or "")


def test_a_surrounding_jobs_variables_reach_no_sbatch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "other")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/here.conf")
    slurmgpu.submit(add, 1, gpus=1)
    seen = site.seen.read_text().splitlines()
    assert "SLURM_CONF=/etc/slurm/here.conf" in seen
    assert not [line for line in seen if line.startswith(("SBATCH_", "SLURM_JOB"))]


@pytest.mark.parametrize(
    ("environment", "python"),
    [
        (None, sys.executable),
        ({"modules": {"load": ["cuda"]}}, sys.executable),
        ({"python": {"venv": {"path": "/envs/mine"}}}, "python3"),
        ({"python": {"interpreter": "$HOME/env/bin/python"}}, '"$HOME/env/bin/python"'),
    ],
)
def test_the_environments_python_or_else_this_one_runs_it(site: Site, environment: Any, python: str) -> None:
    slurmgpu.submit(add, 1, gpus=1, environment=environment)
    (run,) = site.runs
    assert f"exec {python} -u -m submitit.core._submit" in (run / "script.sbatch").read_text()


def test_the_planners_warnings_point_to_the_callers_line(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMGPU_CLUSTER")
    with pytest.warns(UserWarning, match="no cluster profile is chosen") as caught:
        slurmgpu.submit(add, 1, gpus=1, cpus_per_gpu=1)
    assert {Path(one.filename) for one in caught} == {Path(__file__)}


def refused_sbatch(site: Site) -> None:
    site.command("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")


def no_sbatch(site: Site) -> None:
    (site.bin / "sbatch").write_text("")
    os.environ["PATH"] = str(site.bin)  # put back by the fixture's monkeypatch
    (site.bin / "sbatch").chmod(0o644)


@pytest.mark.parametrize(
    ("prepare", "arguments", "settings", "kind", "named"),
    [
        (None, (1,), {"lr": 0.1}, InvalidInput, "lr=0.1: no setting of a job"),
        (None, (1,), {"gpus": "two"}, InvalidInput, "keyword gpus"),
        (None, (1,), {"gpus": 2, "time": object()}, InvalidInput, "time"),
        (None, (threading.Lock(),), {"gpus": 1}, InvalidInput, "cannot be pickled"),
        (None, (1,), {"gpus": 9, "nodes": 1, "partition": "gpu8"}, PlanError, "9"),
        (
            None, (1,), {"gpus": 1, "environment": {"container": {"image": "x.sif"}}}, InvalidInput, "container",
        ),
        (None, (1,), {"gpus": 1, "sbatch": {"array": "0-3"}}, InvalidInput, "array"),
        (refused_sbatch, (1,), {"gpus": 1}, SlurmRefused, "Invalid account"),
        (no_sbatch, (1,), {"gpus": 1}, SlurmUnreachable, "sbatch"),
    ],
)  # fmt: skip
def test_what_cannot_be_submitted_is_named_and_leaves_nothing(
    site: Site,
    prepare: Callable[[Site], None] | None,
    arguments: tuple[Any, ...],
    settings: Any,
    kind: type[SlurmGpuError],
    named: str,
) -> None:
    if prepare:
        prepare(site)
    with pytest.raises(kind) as caught:
        slurmgpu.submit(add, *arguments, **settings)
    assert named in caught.value.message
    assert site.runs == []


@pytest.mark.parametrize(("key", "value"), [("array", "0-3"), ("output", "x.log"), ("error", "x.err")])
def test_what_submitit_cannot_carry_is_refused_by_name(site: Site, key: str, value: str) -> None:
    (site.work / "slurmgpu.yaml").write_text(f"job: {{{key}: {value}}}\n")
    with pytest.raises(InvalidInput, match=f"^{key}: '{value}' cannot be had with submitit"):
        slurmgpu.submit(add, 1, gpus=1)


def test_the_keywords_are_the_fields_of_a_job_file() -> None:
    keywords = set(JobSettings.__annotations__)
    assert set(Resources.model_fields) <= keywords
    not_of_functions = {"command", "train", "script", "shebang", "components", "steps", "array", "stage"}
    not_of_functions |= {"output", "error"}
    own = set(Job.model_fields) - {"resources", "launch"} - not_of_functions
    assert keywords - set(Resources.model_fields) - {"srun_options"} == own


def packed_line(**fields: Any) -> tuple[Plan, list[str]]:
    """The plan of a job under submitit, and the words that submitit's task starts."""
    job = Job.model_validate_json(json.dumps(fields))
    packed = pack_command(make_plan(job, load_cluster(CLUSTERS / "gres.yaml"), Surroundings("/project")))
    path = Path.cwd() / "call.pkl"
    path.write_bytes(packed.payload)
    delayed = DelayedSubmission.load(path)
    assert (delayed.function, delayed.kwargs) == (subprocess.run, {"check": True})
    return packed.plan, delayed.args[0]


def test_a_command_keeps_its_launcher_and_its_container(site: Site) -> None:
    plan, words = packed_line(
        command=["python", "train.py", "--name", "it's"],
        resources={"nodes": 2, "gpus_per_node": 2},
        environment={"container": {"image": "$IMAGES/torch.sif"}},
    )
    assert words[:2] == ["bash", "-uc"]
    assert words[2] == (
        'exec apptainer exec --nv "$IMAGES/torch.sif" '
        """sh -c 'exec "$0" -m torch.distributed.run --node-rank="$SLURM_NODEID" "$@"' python """
        '--nnodes=2 --nproc-per-node=2 --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" '
        "train.py --name 'it'\"'\"'s'"
    )
    assert (plan.launcher, plan.tasks_per_node, plan.environment.container) == ("srun", 1, None)


def test_a_command_on_one_gpu_runs_once_and_a_task_runs_the_entrypoint(site: Site) -> None:
    plan, words = packed_line(command=["./simulate", "a b"], resources={"gpus": 1})
    assert (words[2], plan.launcher) == ("exec ./simulate 'a b'", "plain")
    plan, words = packed_line(train={"task": "task.py:Task"}, resources={"gpus": 2})
    assert words[2] == 'entrypoint=slurmgpu_training; exec python3 -m "$entrypoint"'
    assert plan.train is not None


def run_python(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, cwd=path
    )


def test_importing_slurmgpu_imports_neither_submitit_nor_torch(tmp_path: Path) -> None:
    for name in ("torch", "submitit"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    code = "import slurmgpu, slurmgpu.api, slurmgpu.cli.submit, slurmgpu.runs.by_submitit; slurmgpu.submit"
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_submitit_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "submitit.py").write_text("raise ImportError('no submitit here')\n")
    code = (
        "import slurmgpu\n"
        "from slurmgpu.errors import InvalidInput\n"
        "try:\n    slurmgpu.submit(print, gpus=1)\n"
        "except InvalidInput as error:\n    print(error.message, error.hint)\n"
    )
    done = run_python(code, tmp_path)
    assert "pip install 'slurmgpu[submitit]'" in done.stdout, done.stderr
    from_cli = run_python(
        "from slurmgpu.cli import main; main(['submit', '--via', 'submitit', '--gpus', '1', '--', 'true'])",
        tmp_path,
    )
    assert from_cli.returncode == 2
    assert "pip install 'slurmgpu[submitit]'" in from_cli.stderr
    assert not (tmp_path / "runs").exists()


def test_the_command_line_prints_the_id_alone(site: Site) -> None:
    done = run_python(
        "from slurmgpu.cli import main; "
        "main(['submit', '--via', 'submitit', '--gpus', '2', '--launch', 'srun', '--', 'hostname'])",
        site.work,
    )
    assert (done.returncode, done.stdout) == (0, "4711\n"), done.stderr
    (run,) = site.runs
    assert (run / "submitit" / "4711_submitted.pkl").is_file()


def test_a_dry_run_shows_the_script_that_would_be_submitted(site: Site) -> None:
    site.command("sbatch", "echo 'sbatch: Job 9 to start at 0 using 1 processors on nodes n1' >&2")
    done = run_python(
        "from slurmgpu.cli import main; "
        "main(['submit', '--dry-run', '--via', 'submitit', '--gpus', '1', '--', 'hostname'])",
        site.work,
    )
    assert "submitit.core._submit" in done.stdout, done.stderr
    assert site.runs == []
