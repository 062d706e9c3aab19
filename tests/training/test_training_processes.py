"""Trainings of several processes, by torchrun and as by srun; signals, errors, and where it runs."""

from __future__ import annotations

import ast
import errno
import importlib
import importlib.metadata
import json
import math
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from slurmgpu.training import __main__ as entrypoint
from slurmgpu.training import evaluation, session
from slurmgpu.training.formats.settings import TRAIN_SCHEMA
from slurmgpu.training.processes.group import Group
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.saving.saver import Saving
from slurmgpu.training.session import Limits, Session
from slurmgpu.training.settings import load
from slurmgpu.training.watching.console import Console
from slurmgpu.training.watching.watch import Duties, Watch
from tests import ready

from .alone import python_with
from .conftest import ROOT, RunFolder, clean_environment, new_run, same

pytestmark = pytest.mark.long

TRAINING = ROOT / "slurmgpu" / "training"
DIGITS = ROOT / "examples" / "digits"


def assert_close(one: RunFolder, other: RunFolder) -> None:
    assert one.losses() == pytest.approx(other.losses(), rel=1e-4)
    mine, others = one.parameters(), other.parameters()
    assert all(torch.allclose(mine[name], others[name], atol=1e-5) for name in mine)


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
@pytest.mark.chosen
def test_two_processes_learn_what_one_learns(tmp_path: Path, launcher: str) -> None:
    """Steps of 32 from 300 samples, counted losses, clipping; the test split of 37 does not divide by two."""
    one, two = new_run(tmp_path, "one"), new_run(tmp_path, "two")
    for each in (one, two):
        each.write("Weighted", epochs=3, batch_size=32, accumulate=2, lr=0.01, clip_norm=0.5, log_every=2)
    one.here()
    ended = two.torchrun(2) if launcher == "torchrun" else two.ranks(2)
    assert set(ended.codes) == {0}, ended.err
    assert ended.out.count("done: 3 epochs, 10 steps") == 1, "only rank 0 speaks"
    assert_close(two, one)
    assert two.metrics("eval")[-1]["values"]["loss"] == pytest.approx(
        one.metrics("eval")[-1]["values"]["loss"], rel=1e-4
    )
    (start,) = two.metrics("start")
    assert start["values"]["launcher"] == launcher
    places = start["values"]["ranks"]
    assert [place["rank"] for place in places] == [0, 1]
    assert len({place["pid"] for place in places}) == 2


def test_data_that_are_longer_on_one_rank_are_refused_at_the_start(run: RunFolder) -> None:
    run.write("Lengths", batch_size=4, config={"train": [20, 18], "test": [9, 9]})
    ended = run.ranks(2)
    assert ended.codes == [1, 1]
    assert (
        "the data set for train has not the same length on every rank: 20 on rank 0, 18 on rank 1"
        in ended.err
    )


def test_fewer_test_samples_than_ranks_are_evaluated(run: RunFolder) -> None:
    """The last of four ranks has none, and neither has the one before."""
    run.write("Lengths", batch_size=4, config={"train": [20] * 4, "test": [2] * 4})
    ended = run.ranks(4)
    assert ended.codes == [0] * 4, ended.err
    assert "step 5/5" in ended.out


def test_a_run_whose_checkpoints_were_taken_over_ends_on_all_ranks(run: RunFolder) -> None:
    run.write("Superseded", epochs=4, batch_size=20, checkpoint_steps=1)
    ended = run.ranks(2)
    assert ended.codes == [1, 1], ended.err
    message = (
        "error: the checkpoints were taken over by job 18, process 7 on elsewhere: nothing more is written"
    )
    lines = [line for line in ended.err.splitlines() if line.endswith(message)]
    assert sorted(line[:7] for line in lines) == ["[rank 0", "[rank 1"], ended.err
    saved = {path.parent.name for path in run.path.glob("checkpoints/step-*/manifest.json")}
    assert saved <= {"step-1", "step-2"}


@pytest.mark.chosen
@pytest.mark.parametrize(
    ("task", "strategy", "processes"),
    [("Restless", "ddp", 2), ("Restless", "dp", 1), ("Split", "model_parallel", 1)],
)
def test_a_rank_killed_mid_epoch_ends_all_and_the_run_resumes_exactly(
    tmp_path: Path, task: str, strategy: str, processes: int
) -> None:
    settings = {"epochs": 3, "batch_size": 20, "lr": 0.05, "log_every": 1, "strategy": strategy}
    undisturbed, killed = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "killed")
    undisturbed.write(task, **settings)
    assert set(undisturbed.ranks(processes).codes) == {0}
    killed.write(task, **settings)
    ended = killed.ranks(processes, SMALL_FAULT=f"SIGKILL:8:{processes - 1}")
    assert ended.codes == [1, -9][-processes:]
    assert ("error: lost another rank" in ended.err) == (processes > 1)
    ended = killed.ranks(processes)
    assert set(ended.codes) == {0}, ended.err
    assert same(killed.parameters(), undisturbed.parameters())


def test_an_error_on_one_rank_is_seen_and_ends_all(run: RunFolder) -> None:
    run.write(epochs=3, batch_size=20, workers=1)
    ended = run.ranks(2, SMALL_FAULT="raise:3:1")
    assert ended.codes == [1, 1]
    lines = [line for line in ended.err.splitlines() if line.startswith("[rank 1 on ")]
    assert lines[-1].endswith("ValueError: a mistake in the task")
    assert "small.py" in lines[1], "shown from the task's own code on"
    assert not any("loop.py" in line for line in lines)


def test_a_parameter_without_a_gradient_under_ddp_names_the_setting_for_it(run: RunFolder) -> None:
    run.write("Unused", batch_size=20)
    ended = run.ranks(2)
    assert ended.codes == [1, 1]
    assert "hint: this is a setting: find_unused_parameters: true" in ended.err


def test_a_stop_that_cannot_leave_its_marker_says_that_nobody_starts_the_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_path: Path, _document: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    found = Session(tmp_path, Group(Ranks(), torch.device("cpu")), {}, Console(True), Saving(), Limits())
    monkeypatch.setattr(session, "write_json", full)
    found.stopped(8)
    found.close()
    assert capsys.readouterr().out.splitlines()[-1] == (
        "warning: state/stop.json could not be written (No space left on device): the job is not started again by itself"
    )


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT"])
@pytest.mark.chosen
def test_a_signal_stops_a_run_in_good_order_and_nothing_is_lost(tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 20, "lr": 0.05, "log_every": 1}
    undisturbed, run = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "run")
    undisturbed.write("Restless", **settings)
    undisturbed.here()
    run.write("Restless", workers=1, **settings)
    ended = run.ranks(1, SMALL_FAULT=f"{name}:8:0", SLURM_JOB_ID="17")
    assert ended.codes == [75]
    assert ended.err == ""
    assert ended.out.splitlines()[-1] == (
        f"stopped by {name} at step 8, saved in checkpoints/step-8: start it again to continue"
    )
    marker = run.stop()
    assert (marker["reason"], marker["step"], marker["gained"], marker["job_id"]) == (name, 8, 8, "17")
    assert marker["requeue"] is (name != "SIGINT")
    run.here()
    assert not (run.path / "state" / "stop.json").exists()
    assert run.losses() == undisturbed.losses()
    assert same(run.parameters(), undisturbed.parameters())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
@pytest.mark.chosen
def test_a_signal_to_torchrun_alone_stops_all_ranks_in_good_order(run: RunFolder, name: str) -> None:
    """As the script starts it; torchrun ends with 1 whatever its ranks say, so the marker is what counts."""
    template = (ROOT / "templates" / "launcher" / "torchrun.sh.j2").read_text()
    (exported,) = re.findall(r"^export (.+)$", template, re.MULTILINE)
    variables = dict(word.split("=", 1) for word in exported.split())
    run.write("Slow", epochs=2, batch_size=20, log_every=1)
    ended = run.torchrun(2, SMALL_FAULT=f"{name}:3:1", SMALL_TARGET="launcher", **variables)
    assert "start it again to continue" in ended.out, ended.err
    marker = run.stop()
    assert (marker["reason"], marker["requeue"]) == (name, True)
    assert 3 <= marker["step"] < 10
    assert run.ranks(2).codes == [0, 0]
    assert [line["step"] for line in run.metrics("train")] == list(range(1, 11)), (
        "no step is lost or repeated"
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_signal_to_one_rank_stops_all_at_one_step(tmp_path: Path, workers: int) -> None:
    """The other rank is told so, and both go on to a common step; nothing is lost."""
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 20, "lr": 0.05, "log_every": 1, "workers": workers}
    undisturbed, run = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "run")
    undisturbed.write("Slow", **settings)
    assert undisturbed.ranks(2).codes == [0, 0]
    run.write("Slow", **settings)
    ended = run.ranks(2, SMALL_FAULT="SIGUSR1:3:1")
    assert ended.codes == [75, 75], ended.err
    assert ended.err == ""
    marker = run.stop()
    assert marker["reason"] == "SIGUSR1"
    assert 3 <= marker["step"] < 10
    ended = run.ranks(2)
    assert ended.codes == [0, 0], ended.err
    assert run.losses() == undisturbed.losses()
    assert same(run.parameters(), undisturbed.parameters())


def test_the_time_limit_stops_a_run_just_before(run: RunFolder) -> None:
    run.write("Slow", epochs=100, batch_size=20)
    ended = run.ranks(2, SLURMGPU_END_TIME=str(int(time.time()) + 12))
    assert ended.codes == [75, 75], ended.err
    assert run.stop()["reason"] == "time"
    assert run.stop()["requeue"] is True


def test_a_signal_before_the_training_ends_it_at_once(run: RunFolder) -> None:
    run.write("Early", batch_size=50)
    ended = run.ranks(1)
    assert ended.codes == [143]
    assert ended.err == ""
    assert (run.stop()["reason"], run.stop()["requeue"]) == ("SIGTERM", False)


@pytest.mark.chosen
def test_a_rank_that_hangs_says_where_and_ends_the_job(run: RunFolder) -> None:
    run.write("Hanging", epochs=2, batch_size=20, hang_timeout=8)
    ended = run.ranks(2)
    assert set(ended.codes) == {1}
    assert re.search(r"no step for \d+ s \(hang_timeout\) after step 3: the job ends here", ended.err), (
        ended.err
    )
    assert run.stop()["reason"] == "hang"
    stacks = (run.path / "state" / "stacks-rank-1.txt").read_text()
    assert 'small.py", line' in stacks
    if hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):  # of gloo's collectives, newer ones tell
        assert sorted(path.name[-6:] for path in (run.path / "debug").iterdir()) == ["rank-0", "rank-1"]


def test_a_hanging_rank_ends_the_job_even_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _text: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def leave(code: int) -> None:
        raise SystemExit(code)

    found = Session(tmp_path, Group(Ranks(), torch.device("cpu")), {}, Console(False), Saving(), Limits())
    monkeypatch.setattr(session, "dump_stacks", lambda _folder, _ranks: "stderr")
    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit) as ended:
        found._hang(9.0)
    assert ended.value.code == 1
    found.close()


def test_the_watch_outlives_what_it_does_besides_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    """After two looks that failed it still sees that the time is up."""
    watch, looks = Watch(Ranks(), 5), []

    def found_hanging(_seconds: float) -> NoReturn:
        raise AssertionError("without hang_timeout nobody looks for a hang")

    def fail() -> None:
        looks.append("a look")
        raise ValueError("no such gauge")

    watch.start(Duties(lambda: 0.0 if len(looks) > 1 else math.inf, found_hanging, fail))
    until = time.monotonic() + 100
    while not watch.wanted and time.monotonic() < until:
        time.sleep(0.01)
    watch.close()
    assert watch.reason == "time"
    assert capsys.readouterr().err == (
        "warning: what is done beside the training fails: ValueError: no such gauge\n"
    )


def test_what_a_task_leaves_for_the_exit_is_done(run: RunFolder) -> None:
    """A logging service writes its last lines when the interpreter exits."""
    task = run.path / "parting.py"
    task.write_text("import atexit\nfrom small import Line as Line\natexit.register(print, 'good-bye')\n")
    run.write(f"{task}:Line", batch_size=50)
    ended = run.ranks(1, PYTHONPATH=f"{ROOT}:{Path(__file__).parent}")
    assert ended.codes == [0], ended.err
    assert ended.out.endswith("good-bye\n")


def test_the_first_start_writes_down_every_setting_and_later_ones_change_none(run: RunFolder) -> None:
    """So that a start by another version, which may have other defaults, goes on as this one began."""
    run.write(epochs=1, config={"width": 1})
    assert run.ranks(2).codes == [0, 0]
    file = run.path / "train.json"
    written = json.loads(file.read_text())
    assert written == {"schema": TRAIN_SCHEMA, **load(file).as_dict()}
    assert (written["epochs"], written["config"], written["log_every"]) == (1, {"width": 1}, 10)
    file.write_text(json.dumps({**written, "log_every": 7, "epochs": 2}))
    before = file.read_bytes()
    assert run.ranks(2).codes == [0, 0]
    assert file.read_bytes() == before
    assert run.metrics("start")[-1]["values"]["settings"]["log_every"] == 7


def test_a_file_of_settings_that_lies_elsewhere_stays_as_it_is(run: RunFolder, tmp_path: Path) -> None:
    run.write(epochs=1)
    elsewhere = tmp_path / "mine.json"
    (run.path / "train.json").rename(elsewhere)
    before = elsewhere.read_bytes()
    command = [sys.executable, "-m", "slurmgpu.training", str(elsewhere)]
    assert ready.run(command, clean_environment(run.path)).returncode == 0
    assert (elsewhere.read_bytes(), (run.path / "train.json").exists()) == (before, False)


def test_settings_that_do_not_fit_end_every_rank_with_one_sentence(run: RunFolder) -> None:
    run.write(batch_size=33, strategy="ddp")
    ended = run.ranks(2)
    assert ended.codes == [2, 2]
    assert re.fullmatch(
        r"(\[rank \d on \S+\] error: batch_size 33 does not divide by 2 .*; the nearest .* is 32\n){2}",
        ended.err,
    )


@pytest.mark.parametrize(
    ("arguments", "run_dir", "message"),
    [
        ([], "", "set SLURMGPU_RUN_DIR to the run directory"),
        (["--help"], "", "takes one argument, the path of a train.json; got --help"),
        ([], "gone", "the run directory gone does not exist"),
        ([], "here", "cannot read the settings here/train.json: No such file or directory"),
    ],
)
def test_a_start_without_settings_says_how(
    tmp_path: Path, arguments: list[str], run_dir: str, message: str
) -> None:
    (tmp_path / "here").mkdir()
    environment = clean_environment(tmp_path) | {"SLURMGPU_RUN_DIR": run_dir}
    command = [sys.executable, "-m", "slurmgpu.training", *arguments]
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {message}")
    assert len(ended.stderr.splitlines()) == 1


def torch_alone(folder: Path) -> Path:
    if not importlib.metadata.files("torch"):
        pytest.skip("this torch does not say which files are its own")
    return python_with(folder, "torch")


def test_digits_train_where_there_is_nothing_but_torch(tmp_path: Path) -> None:
    """The folder, copied under its other name, beside the task and its data, in a Python with torch alone."""
    pytest.importorskip("sklearn", reason="the digits are made with scikit-learn")
    python = torch_alone(tmp_path / "venv")
    code, work, run = tmp_path / "code", tmp_path / "work", tmp_path / "run"
    shutil.copytree(TRAINING, code / "slurmgpu_training", ignore=shutil.ignore_patterns("__pycache__"))
    work.mkdir()
    run.mkdir()
    subprocess.run([sys.executable, DIGITS / "prepare.py", work / "digits.pt"], check=True, timeout=150)
    for file in ("task.py", "prepare.py"):
        shutil.copy(DIGITS / file, work)
    settings = digits_settings()
    (run / "train.json").write_text(json.dumps({"schema": "slurmgpu.train/1", **settings}))
    environment = clean_environment(run) | {"PYTHONPATH": str(code)}
    names = "slurmgpu", "pydantic", "click", "numpy", "sklearn"
    check = "import importlib.util as u, sys; sys.exit(any(u.find_spec(n) for n in sys.argv[1:]))"
    subprocess.run([python, "-c", check, *names], env=environment, cwd=work, check=True, timeout=150)
    launch = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*launch, "--module", "slurmgpu_training"],
        env=environment,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stderr
    accuracy = re.search(r"^done: .* test accuracy (\d+\.\d) %", ended.stdout, re.MULTILINE)
    assert accuracy
    assert float(accuracy[1]) >= 95


def digits_settings() -> dict[str, object]:
    """The ``train:`` block of the example's job file, as the command line hands it on."""
    from ruamel.yaml import YAML

    from slurmgpu.models.train import TrainSettings

    job = YAML(typ="safe").load(DIGITS / "job.yaml")
    return TrainSettings.model_validate(job["train"]).document()


def test_the_entrypoint_imports_torch_and_the_standard_library_alone() -> None:
    for file in TRAINING.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(), feature_version=(3, 9))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                # What a task that comes along reads, where it reads it.
                optional = {"PIL", "tiktoken"} if file.parent.name == "tasks" and node.col_offset else set()
                assert top in {"torch", *optional, *sys.stdlib_module_names}, f"{file.name} imports {name}"


def test_every_module_of_the_entrypoint_is_imported_by_itself() -> None:
    """Where there is torch alone, this shows what the syntax tree cannot: that each module really starts."""
    names = [each.name for each in pkgutil.walk_packages([str(TRAINING)], "slurmgpu.training.")]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    assert len(names) > 40


def test_the_task_of_the_example_stays_small() -> None:
    assert len((DIGITS / "task.py").read_text().splitlines()) < 60


def test_a_stop_in_an_evaluation_of_two_stops_both_at_that_step(tmp_path: Path) -> None:
    undisturbed, run = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "run")
    for each in (undisturbed, run):
        each.write("Tested", epochs=2, batch_size=20, lr=0.05, log_every=1)
    assert undisturbed.ranks(2).codes == [0, 0]
    ended = run.ranks(2, SMALL_TEST_FAULT="SIGUSR2:2:1")
    assert ended.codes == [75, 75], ended.err
    assert (run.stop()["step"], run.stop()["reason"]) == (5, "SIGUSR2")
    ended = run.ranks(2)
    assert ended.codes == [0, 0], ended.err
    tested = [
        [(line["step"], line["values"]["loss"]) for line in each.metrics("eval")]
        for each in (run, undisturbed)
    ]
    assert tested[0] == tested[1]
    assert same(run.parameters(), undisturbed.parameters())


@pytest.mark.parametrize("processes", [1, 2])
def test_a_mistake_in_evaluate_costs_no_step(tmp_path: Path, processes: int) -> None:
    """On one rank of two: the other breaks its evaluation off, and both save."""
    undisturbed, run = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "run")
    for each in (undisturbed, run):
        each.write("Tested", epochs=2, batch_size=20, lr=0.05, log_every=1)
    assert set(undisturbed.ranks(processes).codes) == {0}
    ended = run.ranks(processes, SMALL_TEST_FAULT=f"raise:2:{processes - 1}")
    assert set(ended.codes) == {1}
    assert "ValueError: a mistake in evaluate" in ended.err
    assert (processes == 1) != ("ends because evaluate failed on rank 1" in ended.err)
    assert "the evaluation after step 5 failed, and all steps are saved in checkpoints/step-5" in ended.out
    ended = run.ranks(processes)
    assert set(ended.codes) == {0}, ended.err
    assert run.losses() == undisturbed.losses()
    tested = [
        [(line["step"], line["values"]["loss"]) for line in each.metrics("eval")]
        for each in (run, undisturbed)
    ]
    assert tested[0] == tested[1]
    assert same(run.parameters(), undisturbed.parameters())


def test_losses_that_one_rank_alone_has_still_to_log_are_logged_by_all(tmp_path: Path) -> None:
    """The last step is one sample, which is rank 2's; the resume has only its line and the evaluation to do."""
    undisturbed, run = new_run(tmp_path, "undisturbed"), new_run(tmp_path, "run")
    for each in (undisturbed, run):
        each.write("Tested", epochs=1, batch_size=33, log_every=3)
    assert undisturbed.ranks(3).codes == [0, 0, 0]
    assert run.ranks(3, SMALL_TEST_FAULT="raise:1:1").codes == [1, 1, 1]
    ended = run.ranks(3)
    assert ended.codes == [0, 0, 0], ended.err
    assert [line["step"] for line in run.metrics("train")] == [3, 4]
    assert run.losses() == undisturbed.losses()


@pytest.mark.parametrize("hang_timeout", [None, 0.2])
def test_a_rank_whose_evaluate_failed_does_not_wait_for_ever_for_one_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, hang_timeout: float | None
) -> None:
    """Nor until its own hang watch ends it, and nobody learns why."""
    waiting = threading.Event()

    class Stuck(Group):
        def gather(self, value: Any) -> list[Any]:
            waiting.wait(30)
            return [value]

    if hang_timeout is None:
        monkeypatch.setattr(evaluation, "_PATIENCE", 0.1)
    group = Stuck(Ranks(), torch.device("cpu"))
    with pytest.raises(ValueError, match="a mistake in evaluate"):
        evaluation._gather_in_time(group, 1, ValueError("a mistake in evaluate"), hang_timeout)
    waiting.set()


def test_the_rank_whose_evaluate_failed_has_said_so_before_the_first_rank_leaves(run: RunFolder) -> None:
    """And no rank leaves before all know how the save has ended."""
    run.write("Late", epochs=2, batch_size=20, log_every=1)
    ended = run.ranks(2, kill_on_bad_exit=True, SMALL_TEST_FAULT="raise:2:1")
    assert "ValueError: a mistake in evaluate" in ended.err
    assert re.findall("asks for (save.*)", ended.out) == ["save/1/result"]
    assert run.checkpoints() == ["step-5"]


def test_a_library_is_none_of_the_users_code_wherever_it_stands() -> None:
    library: dict[str, Any] = {}
    exec(
        compile("def call(act): act()", "/apps/torch/lib/python3.11/site-packages/torch/x.py", "exec"),
        library,
    )
    task: dict[str, Any] = {}
    exec(compile("def fail(): 1 / 0", "/home/user/task.py", "exec"), task)
    with pytest.raises(ZeroDivisionError) as caught:
        library["call"](task["fail"])
    shown = entrypoint._from_the_users_code(caught.tb.tb_next)  # without this test's own frame
    assert shown.tb_frame.f_code.co_filename == "/home/user/task.py"
