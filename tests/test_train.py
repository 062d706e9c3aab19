"""``slurmgpu train``: a task trained or prepared here, with the settings of ``train:`` as options."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

from slurmgpu.cli.group import cli
from slurmgpu.cli.train import _option, command, layer_of, train_options
from slurmgpu.cli.usage import usage_hint
from slurmgpu.errors import SlurmGpuError
from slurmgpu.launchers import world_size
from slurmgpu.models.train import TrainSettings
from slurmgpu.runs.prepared import Prepared
from tests import ready

ROOT = Path(__file__).resolve().parent.parent
WRONG = ROOT / "tests" / "data" / "wrong_training_options.yaml"
TASK = """
import os
from pathlib import Path
import torch
from torch.utils.data import TensorDataset

class Bare:
    def model(self, cfg):
        return torch.nn.Linear(3, 1)

    def dataset(self, cfg, split):
        x = torch.ones(20, 3)
        return TensorDataset(x, x[:, :1])

    def loss(self, model, batch):
        x, y = batch
        return (model(x) - y).square().mean()

class Line(Bare):
    def prepare(self, cfg):
        group = torch.distributed.is_initialized()
        with Path(cfg.data).open("a") as file:
            print(os.environ.get("MARK", "prepared"), cfg.epochs, "in a group" if group else "alone", file=file)

class Failing(Bare):
    def prepare(self, cfg):
        raise SystemExit("no network here")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a task and a job."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "job.yaml").write_text(
        "name: line\nresources: {nodes: 2, gpus_per_node: 2}\n"
        "train: {task: task.py:Line, strategy: ddp, epochs: 3, batch_size: 40, config: {data: data.txt}}\n"
    )
    return tmp_path


@pytest.fixture
def planned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What ``train`` would run here: the arguments of ``run_prepared``."""
    asked: dict[str, Any] = {}
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "xdg"))
    monkeypatch.setenv("SLURMGPU_SITE", str(folder / "site"))
    monkeypatch.delenv("SLURMGPU_CLUSTER", raising=False)

    def remember(prepared: Prepared, _: object, **here: object) -> int:
        asked.update(prepared=prepared, train=prepared.plan.train, **here)
        return 0

    monkeypatch.setattr("slurmgpu.runs.here.run_prepared", remember)

    def call(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(cli, ["train", *words, "--here"])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return asked

    return call


def slurmgpu(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return ready.slurmgpu(folder, "train", *words, env=env, without=("SLURM",))


# The options

MAPPINGS = {"config", "pretrained_rename", "best", "early_stop"}  # they have --set


def test_every_setting_that_is_no_mapping_has_an_option_and_no_two_options_share_a_name() -> None:
    flags = [flag for one in command.params if isinstance(one, click.Option) for flag in one.opts]
    assert len(flags) == len(set(flags))
    expected = {f"--{name.replace('_', '-')}" for name in TrainSettings.model_fields}
    expected -= {"--task", *(f"--{name.replace('_', '-')}" for name in MAPPINGS)}
    assert expected <= set(flags)


@pytest.mark.parametrize("name", sorted(MAPPINGS - {"config"}))
def test_a_setting_that_is_a_mapping_says_how_it_is_given_and_that_is_right(
    planned: Callable[..., dict[str, Any]], folder: Path, name: str
) -> None:
    words = ["train", "task.py:Line", f"--{name.replace('_', '-')}", "x"]
    refused = CliRunner().invoke(cli, words, standalone_mode=False).exception
    assert isinstance(refused, click.UsageError)
    (given,) = re.findall(r"several parts: --set '(.*)'", usage_hint(refused))
    assert planned("task.py:Line", "--set", given)["train"][name]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--strategy dp", {"strategy": "dp"}), ("--epochs 3", {"epochs": 3}), ("--max-steps 7", {"max_steps": 7}),
        ("--max-steps none", {"max_steps": None}), ("--lr 1e-2", {"lr": 0.01}), ("--lr 1", {"lr": 1.0}),
        ("--clip-norm 0.5", {"clip_norm": 0.5}), ("--hang-timeout null", {"hang_timeout": None}),
        ("--drop-last", {"drop_last": True}), ("--no-tf32", {"tf32": False}), ("--no-resume", {"resume": False}),
        ("--workers auto", {"workers": "auto"}), ("--workers 0", {"workers": 0}),
        ("--freeze encoder.* --freeze *.bias", {"freeze": ["encoder.*", "*.bias"]}),
        ("--pretrained w.pt --no-pretrained-strict", {"pretrained": "w.pt", "pretrained_strict": False}),
        ("--config channels=16", {"config": {"channels": 16}}),
        ("--config name=no --config rate=1e-3", {"config": {"name": "no", "rate": 0.001}}),
    ],
)  # fmt: skip
def test_an_option_says_what_the_key_in_the_job_file_says(
    planned: Callable[..., dict[str, Any]], words: str, value: dict[str, Any]
) -> None:
    expected = TrainSettings.model_validate({"task": "task.py:Line", **value}).document()
    assert planned("task.py:Line", *words.split())["train"] == expected


DEFAULTS = TrainSettings(task="task.py:Line").model_dump(exclude={"task", *MAPPINGS})


def test_every_default_given_as_an_option_is_read_as_it_is() -> None:
    read: dict[str, Any] = {}

    @click.command()
    @train_options
    def collect(settings: dict[str, Any]) -> None:
        read[name] = layer_of(settings).data["train"]

    for name, value in DEFAULTS.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words = [f"--{flag}" if value else f"--no-{flag}"]
        else:
            words = [f"--{flag}", "none" if value is None else str(value)]
        assert value == [] or CliRunner().invoke(collect, words).exit_code == 0, name
    assert read == {name: {name: value} for name, value in DEFAULTS.items() if value != []}


def test_a_list_of_choices_is_an_option_to_be_repeated() -> None:
    field = FieldInfo(annotation=list[Literal["tensorboard", "wandb"]], default_factory=list)  # type: ignore[arg-type]
    made = click.command()(_option("track", field)(lambda **given: click.echo(given)))
    said = CliRunner().invoke(made, ["--track", "wandb", "--track", "tensorboard"])
    assert said.output == "{'train__track': ('wandb', 'tensorboard')}\n"
    assert CliRunner().invoke(made, ["--track", "neptune"]).exit_code == 2


def test_what_is_not_given_has_the_settings_defaults(planned: Callable[..., dict[str, Any]]) -> None:
    assert planned("task.py:Line")["train"] == TrainSettings(task="task.py:Line").document()
    assert layer_of({}).data == {}


def test_options_are_laid_over_a_job_file(planned: Callable[..., dict[str, Any]]) -> None:
    train = planned("job.yaml", "--epochs", "1", "--config", "width=3")["train"]
    assert (train["epochs"], train["strategy"], train["batch_size"]) == (1, "ddp", 40)
    assert train["config"] == {"data": "data.txt", "width": 3}


def test_a_task_trains_in_as_many_processes_as_asked_for(planned: Callable[..., dict[str, Any]]) -> None:
    assert world_size(planned("task.py:Line")["prepared"].plan) == 1
    asked = planned("task.py:Line", "--processes", "4", "--strategy", "ddp")
    assert (world_size(asked["prepared"].plan), asked["processes"]) == (4, 4)


def test_what_the_cluster_wants_beside_the_environment_does_not_matter_here(
    planned: Callable[..., dict[str, Any]], folder: Path
) -> None:
    (folder / "cluster.yaml").write_text(
        "name: strict\ndialect: {required: [account], login_shell: true}\npartitions: {gpu: {}}\n"
        "environments: {torch: {modules: {load: [torch]}}}\ndefault_environment: torch\n"
    )
    plan = planned("task.py:Line", "--cluster", "./cluster.yaml")["prepared"].plan
    assert plan.environment.modules.load == ("torch",)
    assert (plan.option("account"), plan.login_shell) == (None, True)


@pytest.mark.parametrize(("words", "message"), YAML(typ="safe").load(WRONG.read_text()))
def test_what_is_wrong_is_named_with_its_option(
    planned: Callable[..., dict[str, Any]], folder: Path, words: str, message: str
) -> None:
    (folder / "command.yaml").write_text("resources: {gpus: 1}\ncommand: ['true']\n")
    with pytest.raises(SlurmGpuError) as error:
        planned(*words.split())
    assert message in error.value.message
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_a_strategy_of_one_process_is_why_there_cannot_be_two(folder: Path, strategy: str) -> None:
    done = CliRunner().invoke(command, ["task.py:Line", "--processes", "2", "--strategy", strategy])
    assert isinstance(done.exception, SlurmGpuError)
    assert "ddp, fsdp2 or auto are as many as there are GPUs" in (done.exception.hint or "")


# Training


def test_a_task_trains_here_as_the_options_say(folder: Path) -> None:
    options = "--strategy ddp --processes 2 --precision bf16 --epochs 2 --batch-size 10 --config data=d.txt"
    done = slurmgpu(folder, "task.py:Line", *options.split(), "--here")
    assert done.returncode == 0, done.stderr
    (run_dir,) = (folder / "runs").iterdir()
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    start = next(line["values"] for line in lines if line["kind"] == "start")
    assert (start["world_size"], start["total_steps"]) == (2, 4)
    assert (start["settings"]["strategy"], start["settings"]["precision"]) == ("ddp", "bf16")
    assert (folder / "d.txt").read_text() == "prepared 2 in a group\n"
    assert (run_dir / "job.yaml").exists()


@pytest.mark.long
def test_a_training_that_failed_goes_on_in_its_run_directory(folder: Path) -> None:
    (folder / "task.py").write_text(
        TASK
        + """
class Stumbling(Bare):
    def loss(self, model, batch):
        if os.path.exists("stumble") and os.path.exists(Path(os.environ["SLURMGPU_RUN_DIR"], "checkpoints/step-3")):
            raise SystemExit("stumbled")
        return super().loss(model, batch)
"""
    )
    (folder / "stumble").touch()
    words = (
        "task.py:Stumbling", "--max-steps", "40", "--epochs", "40", "--batch-size", "20", "--checkpoint-steps",
        "1",
    )  # fmt: skip
    words += ("--keep", "9", "--here")
    done = slurmgpu(folder, *words)
    (run_dir,) = (folder / "runs").iterdir()
    assert done.returncode == 1, done.stderr
    assert f"to go on here, the same command with --run-dir {run_dir}" in done.stderr
    other = slurmgpu(folder, *words, "--lr", "0.5", "--run-dir", str(run_dir))
    assert other.returncode == 2
    assert "was made by another job, or with other options" in other.stderr
    (folder / "stumble").unlink()
    done = slurmgpu(folder, *words, "--run-dir", str(run_dir))
    assert done.returncode == 0, done.stderr
    assert "resuming from checkpoints/step-3 " in done.stdout
    assert "to go on here" not in done.stderr
    assert list((folder / "runs").iterdir()) == [run_dir]


def test_a_folder_that_is_no_run_directory_is_not_gone_on_in(folder: Path) -> None:
    done = slurmgpu(folder, "task.py:Bare", "--here", "--run-dir", "nowhere")
    assert done.returncode == 2
    assert "--run-dir nowhere: is not a run directory: it has no script.sbatch" in done.stderr
    assert not (folder / "runs").exists()


def login(folder: Path) -> dict[str, str]:
    """The variables of a machine that looks like a login node."""
    (folder / "bin").mkdir()
    (folder / "bin" / "sbatch").write_text("#!/bin/sh\n")
    (folder / "bin" / "sbatch").chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_CONF": "/etc/slurm/slurm.conf"}


def test_on_a_login_node_it_asks_before_it_trains_but_prepares_at_once(folder: Path) -> None:
    variables = login(folder)
    done = slurmgpu(folder, "job.yaml", **variables)
    assert done.returncode == 1
    assert "looks like a login node" in done.stderr
    assert not (folder / "runs").exists()
    done = slurmgpu(folder, "job.yaml", "--prepare", "--python", sys.executable, **variables)
    assert done.returncode == 0, done.stderr


# Preparing


def test_preparing_runs_once_in_the_jobs_environment_and_leaves_no_run(folder: Path) -> None:
    python = folder / "the job's python"
    python.write_text(f'#!/bin/sh\nMARK=here exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    done = slurmgpu(folder, "job.yaml", "--prepare", "--set", f"environment.python.interpreter={python}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("prepared task.py:Line in ")
    assert done.stdout.endswith(f"with {sys.executable}\n")
    assert (folder / "data.txt").read_text() == "here 3 alone\n"
    assert not (folder / "runs").exists()


def test_preparing_enters_the_jobs_container_without_its_gpus_and_ranks(folder: Path) -> None:
    from slurmgpu.files.data import read_templates
    from slurmgpu.runs.directory import preparation_plan
    from slurmgpu.script.render import render_script
    from tests.test_rendering_golden import golden_plan

    plan = golden_plan("train-in-container")
    assert world_size(plan) == 8
    script = render_script(preparation_plan(plan, None), read_templates())
    (line,) = [line.strip() for line in script.splitlines() if "--prepare" in line]
    assert line.startswith('apptainer exec --bind "$SLURMGPU_RUN_DIR" ')
    assert line.endswith(' python3 -m "$entrypoint" --prepare')
    script = render_script(preparation_plan(plan, Path("/opt/my python")), read_templates())
    assert "apptainer" not in script
    assert '\n    "/opt/my python" -m "$entrypoint" --prepare\n' in script


def test_what_slurm_itself_sets_up_is_said_to_be_missing(folder: Path) -> None:
    words = (
        "--set",
        "environment.sbatch.uenv=pytorch/v2.9",
        "--set",
        "environment.python.interpreter=no-python",
    )
    done = slurmgpu(folder, "job.yaml", "--prepare", *words)
    assert done.returncode == 127
    assert "Slurm itself sets up part of the environment (--uenv), and not here" in done.stderr


def test_a_task_without_prepare_says_so(folder: Path) -> None:
    (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "python").chmod(0o755)
    (folder / "inside").mkdir()
    (folder / "task.py").rename(folder / "inside" / "task.py")
    words = ("--prepare", "--set", "work_dir=inside", "--python", "./python")
    done = slurmgpu(folder, "task.py:Bare", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "task.py:Bare has no prepare(cfg): there is nothing to prepare\n"


def test_a_prepare_that_fails_fails_in_its_own_words(folder: Path) -> None:
    done = slurmgpu(folder, "task.py:Failing", "--prepare", "--python", sys.executable)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: no network here",
        "slurmgpu: preparing ended with exit code 1",
    ]


def test_without_torch_preparing_names_the_python_and_the_way_out(folder: Path) -> None:
    bare = folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    done = slurmgpu(folder, "job.yaml", "--prepare", "--set", f"environment.python.interpreter={bare}")
    assert done.returncode == 1
    assert " has no torch: use the module, container or environment that has it" in done.stderr
    assert "--python PATH takes another Python" in done.stderr


def test_an_environment_that_is_not_here_ends_it(folder: Path) -> None:
    done = slurmgpu(folder, "job.yaml", "--prepare", "--set", "environment.python.venv.path=/no/where")
    assert done.returncode == 1
    assert "/no/where" in done.stderr
    assert not (folder / "data.txt").exists()


def test_the_task_must_be_where_the_job_looks_for_it(folder: Path) -> None:
    done = slurmgpu(folder, "job.yaml", "--prepare", "--set", "work_dir=/no/where")
    assert done.returncode == 2
    assert "work_dir: /no/where is not on this machine" in done.stderr


def test_the_entrypoint_prepares_by_hand_too(folder: Path) -> None:
    settings = {"schema": "slurmgpu.train/1", "task": "task.py:Line", "config": {"data": "data.txt"}}
    (folder / "train.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "slurmgpu.training", "--prepare", "train.json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("prepared task.py:Line in ")
    assert (folder / "data.txt").read_text() == "prepared 1 alone\n"
    assert not (folder / "checkpoints").exists()
