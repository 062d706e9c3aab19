"""``slurmgpu checkpoint replay``: a flipped bit is found and dated, and a clean run gives no alarm."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.runs import replay as replaying
from slurmgpu.runs import replay_verdict
from slurmgpu.runs.checkpoints import Checkpoint
from slurmgpu.runs.derived_jobs import as_replay
from slurmgpu.runs.nodes import check_nodes, expand_nodes
from slurmgpu.runs.replay_verdict import Steps, first_difference
from slurmgpu.slurm.present import NodeNow
from slurmgpu.training.formats.metrics import MetricsRow
from tests import ready
from tests.training.conftest import RunFolder, has_fsdp2

ROOT = Path(__file__).resolve().parent.parent
TASK = ROOT / "tests" / "training" / "flipped.py"


def sums(wrong: dict[tuple[int, int], str], steps: int = 4, ranks: int = 2) -> Steps:
    """Checksums of some steps, of which some rank's differs."""
    names = ("losses", "gradients", "weights", "optimizer")
    return Steps(
        {},
        {
            step: {
                rank: {name: "x" if wrong.get((step, rank)) == name else "0" for name in names}
                for rank in range(ranks)
            }
            for step in range(1, steps + 1)
        },
    )


def test_checksums_tell_the_step_and_the_rank() -> None:
    found = first_difference(sums({(3, 1): "losses", (4, 0): "losses"}), sums({}), 0, 4, 2, True)
    assert (found.earliest, found.latest, found.ranks) == (3, 3, [1])
    assert "loss" in found.what


def test_where_all_ranks_differ_at_once_none_is_blamed() -> None:
    found = first_difference(sums({(2, 0): "weights", (2, 1): "weights"}), sums({}), 0, 4, 2, True)
    assert (found.earliest, found.latest, found.ranks) == (2, 2, None)
    assert found.why


def test_lines_alone_bound_it_from_above() -> None:
    run, again = (Steps({10: {"loss": 1.0}, 20: {"loss": each}}, {}) for each in (0.5, 0.6))
    found = first_difference(run, again, 0, 20, 1, True)
    # A bit too small to show in a loss may have flipped before.
    assert (found.earliest, found.latest, found.ranks) == (1, 20, [0])
    only_weights = first_difference(run, run, 0, 20, 2, True)
    assert (only_weights.latest, only_weights.ranks) == (20, None)
    assert first_difference(run, run, 0, 20, 1, False) is None


def test_a_checkpoint_that_differs_where_all_checksums_are_equal_is_dated_within_the_interval() -> None:
    """As of what no checksum is of, such as the average of the weights."""
    found = first_difference(sums({}), sums({}), 0, 4, 2, True)
    assert (found.earliest, found.latest, found.ranks) == (1, 4, None)
    assert "checksums are equal" in str(found.why)


def test_where_processes_share_a_model_only_what_is_a_process_s_own_blames_it() -> None:
    def found(strategy: str, what: str) -> list[int] | None:
        answer = first_difference(sums({(3, 1): what}), sums({}), 0, 4, 2, True, strategy)
        assert (answer.earliest, answer.latest) == (3, 3)
        assert answer.ranks == [1] or "shows first on rank 1" in str(answer.why)
        return answer.ranks

    assert found("ddp", "losses") == [1]
    # A wrong gradient of rank 0 changes the piece that rank 1 has; a wrong first stage shows in the loss of the last.
    assert found("fsdp2", "weights") is None
    assert found("pipeline", "losses") is None
    assert found("pipeline", "weights") == [1]


def test_lines_over_other_steps_are_not_compared() -> None:
    """A run that ended after step 10 and was given more steps has a line there, and the next one has two steps, not four."""
    run = Steps({4: {"loss": 1.0}, 8: {"loss": 2.0}, 10: {"loss": 3.0}, 12: {"loss": 4.0}}, {})
    again = Steps({4: {"loss": 1.0}, 8: {"loss": 2.0}, 12: {"loss": 5.0}}, {})
    assert first_difference(run, again, 0, 12, 1, False) is None
    found = first_difference(run, Steps({**again.lines, 8: {"loss": 2.5}}, {}), 0, 12, 1, False)
    assert found.latest == 8


def by_band(losses: tuple[float, float, float], weights: float | None, between: float | None) -> str:
    """The verdict on a run's loss and those of two replays, and on the distance of its weights and that of theirs."""
    run, one, other = (Steps({10: {"loss": loss}}, {}) for loss in losses)
    parts = {"model.pt": {"count": 1, "distance": weights}}
    replays = [replay_verdict.Replay(Path(), told, None) for told in (one, other)]
    verdict: str = replay_verdict._judge_by_band(run, *replays, parts, {"model.pt": between})["verdict"]
    return verdict


def test_noise_is_no_alarm_and_what_is_far_beyond_it_is_one() -> None:
    assert by_band((1.0, 1.01, 0.99), 0.1, 0.1) == "within the band"
    assert by_band((1.5, 1.01, 0.99), 10.0, 0.1) == "differs"
    assert by_band((1.1, 1.01, 0.99), 1.0, 0.1) == "unknown"
    # Two losses may be as close as this by chance.
    assert by_band((1.1, 1.0001, 1.0), 0.1, 0.1) == "unknown"
    # None: a number that is not finite.
    assert by_band((1.0, 1.01, 0.99), None, 0.1) == "differs"
    assert by_band((math.nan, 1.01, 0.99), 0.1, 0.1) == "differs"
    assert by_band((1.0, math.nan, 1.0), 0.1, None) == "unknown"


def test_a_run_with_its_own_loop_is_told_so(tmp_path: Path) -> None:
    manifest = json.dumps({"step": 5}).encode()
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-5" / "manifest.json").write_bytes(manifest)
    end = Checkpoint(tmp_path / "step-5", 5, "complete")
    interval = replay_verdict.Interval(tmp_path, None, 5, end)

    def never(*_: object) -> Any:
        raise AssertionError

    with pytest.raises(replay_verdict._Unknown, match="a loop of its own"):
        replay_verdict._judge(interval, never, never)


def manifest(**settings: object) -> dict[str, object]:
    return {"settings": settings, "task_sha256": "0"}


def test_what_changes_no_bit_may_have_changed_within_the_interval() -> None:
    interval = replay_verdict.Interval(Path(), None, 5, None)
    free = {
        "nvtx": True, "profile_after": 3, "profile_steps": 2, "profile_stacks": True, "profile_snapshot": True,
        "fit_head_room": 0.2, "workers": 2, "evaluate_every": 3, "early_stop": None,
    }  # fmt: skip
    replay_verdict._require_one_setting([manifest(lr=0.1), manifest(lr=0.1, **free)], interval)
    for name in ("lr", "strategy"):
        with pytest.raises(replay_verdict._Unknown, match=f"the run has changed: {name}$"):
            replay_verdict._require_one_setting([manifest(), manifest(**{name: 1})], interval)


def test_an_interval_beyond_the_end_of_the_run_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-5" / "manifest.json").write_text(json.dumps({"step": 5, "total_steps": 8}))
    newest = Checkpoint(tmp_path / "step-5", 5, "complete")
    with pytest.raises(InvalidInput, match="--to 9: the run has 8 steps"):
        replay_verdict.find_interval(tmp_path, [newest], 0, 9)


def test_without_a_checkpoint_at_the_end_it_is_said_what_was_compared() -> None:
    document = {"from": 0, "to": 24, "verdict": "equal", "why": None, "difference": None, "parts": None}
    head, what = replay_verdict.replay_in_words(document)
    assert head == "steps 1 to 24: equal"
    assert "no checkpoint of step 24: only what was logged was compared, losses and, if" in what


def started(device: str, *ranks: dict[str, Any]) -> MetricsRow:
    """The line of a start."""
    values = {"device_name": device, "torch": "2.13.0", "world_size": len(ranks), "ranks": list(ranks)}
    return MetricsRow("start", None, 0, 0, values)


def test_another_host_counts_as_the_same_machine_where_its_cpu_is_of_the_same_model() -> None:
    def on(host: str, cpu: str | None = None, threads: int = 4) -> MetricsRow:
        return started("CPU", {"host": host, "threads": threads, **({"cpu": cpu} if cpu else {})})

    epyc, xeon = "AMD EPYC 9654", "Intel Xeon 8480"
    elsewhere = replay_verdict._elsewhere
    assert elsewhere([on("node3", epyc)], on("node4", epyc)) is None
    assert "Intel Xeon 8480" in str(elsewhere([on("node3", epyc)], on("node4", xeon)))
    assert "2 threads" in str(elsewhere([on("node3", epyc)], on("node4", epyc, 2)))
    # A run of an earlier version has not said it: only the host itself is known to be the same.
    assert "node3" in str(elsewhere([on("node3")], on("node4", epyc)))
    assert elsewhere([on("node3")], on("node3", epyc)) is None
    on_gpu = [started(name, {"host": "node3"}) for name in ("NVIDIA A100", "NVIDIA H100")]
    assert "NVIDIA H100" in str(elsewhere(on_gpu[:1], on_gpu[1]))


def plan(**changes: Any) -> Plan:
    """The plan of a training's job."""
    job = Job.model_validate(
        {"name": "digits", "resources": {"gpus": 1}, "train": {"task": "task.py:Digits"}, **changes}
    )
    return make_plan(job, GENERIC, Surroundings(work_dir="/work"))


def test_a_job_that_trains_again_asks_for_what_the_run_asked_for_and_for_the_nodes() -> None:
    run = plan(
        resources={
            "gpus": 2, "partition": "a100", "account": "lab", "time": "2:00:00", "constraint": "nvlink",
        },
        array="0-3",
        mail={"type": ("END",)},
        notify="SLACK_WEBHOOK",
        secrets=("SLACK_WEBHOOK",),
        restart={"on": ("timeout",)},
        sbatch={"nodelist": "node7", "exclude": "node3", "begin": "now+1hour"},
        environment={"modules": ("cuda/12.4",)},
        output="logs/%x.out",
    )  # fmt: skip
    made = as_replay(run, "node3", 40)
    for name in ("partition", "account", "time", "gres", "gpus-per-node", "cpus-per-task", "constraint"):
        assert made.option(name) == run.option(name)
    assert (made.option("nodelist"), made.option("job-name")) == ("node3", "digits-replay")
    names = [option.name for option in made.options]
    assert len(names) == len(set(names))
    assert not {"array", "exclude", "begin", "mail-type", "requeue", "open-mode"} & set(names)
    assert (made.environment, made.launcher, made.train) == (run.environment, run.launcher, run.train)
    assert (made.notify, made.output, made.restart_limit, made.tended) == (None, None, None, False)
    assert made.variables["SLURMGPU_MAX_STEPS"] == "41"


def test_nodes_are_of_a_partition_that_the_run_s_job_is_for() -> None:
    known = [NodeNow("node1", "IDLE", "", ("cpu",)), NodeNow("node2", "IDLE", "", ("gpu", "big"))]
    check_nodes("node2", ["node2"], "gpu", known)
    check_nodes("node2", ["node2"], "cpu,big", known)
    check_nodes("node[1-2]", ["node1", "node2"], None, known)
    with pytest.raises(InvalidInput, match="for partition gpu, and node1 is in cpu"):
        check_nodes("node1", ["node1"], "gpu", known)
    with pytest.raises(InvalidInput, match="Slurm knows no node node9"):
        check_nodes("node9", ["node9"], "gpu", known)
    with pytest.raises(InvalidInput, match="--on node\\[1-: this is no list of nodes"):
        expand_nodes("--on", "node[1-")


def test_a_drained_node_is_no_reason_to_refuse() -> None:
    known = [NodeNow("node1", "IDLE+DRAIN", "drained", ("gpu",))]
    (remark,) = check_nodes("node1", ["node1"], "gpu", known)
    assert remark.startswith("node1 is drained (IDLE+DRAIN)")


def train(run_dir: Path, flip: str = "") -> None:
    run_dir.mkdir()
    settings = {
        "schema": "slurmgpu.train/1", "task": f"{TASK}:Flipped", "batch_size": 10, "max_steps": 12, "log_every": 4,
        "checksum_steps": 1, "checkpoint_steps": 5, "keep": 9, "checkpoint_share": None,
    }  # fmt: skip
    (run_dir / "train.json").write_text(json.dumps(settings))
    environ = {
        **os.environ,
        "SLURMGPU_RUN_DIR": str(run_dir),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(
        [sys.executable, "-m", "slurmgpu.training"], env={**environ, "REPLAY_FLIP": flip}, check=True
    )


def replay(run_dir: Path) -> tuple[int, dict[str, Any]]:
    command = [
        sys.executable, "-m", "slurmgpu", "checkpoint", "replay", str(run_dir), "--from", "0", "--json",
    ]  # fmt: skip
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"REPLAY_FLIP": ""}
    )
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def test_a_task_in_the_run_is_not_compiled_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    run_dir, scratch = tmp_path / "run", tmp_path / "scratch"
    run_dir.mkdir()
    (run_dir / "task.py").write_text("")
    manifest = scratch / "checkpoints" / "step-3" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    # In place of the training: what it does first.
    script = f"import task, pathlib; pathlib.Path({str(manifest)!r}).write_text('')"

    def start(python: str, work_dir: Path, environment: Any, log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [python, "-c", script], cwd=work_dir, env=dict(environment), stderr=log, start_new_session=True
        )

    monkeypatch.setattr(replaying, "_start", start)
    replaying.train_again(sys.executable, scratch, run_dir, 1, 3, os.environ)
    assert [path.name for path in run_dir.iterdir()] == ["task.py"]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.long
def test_a_clean_run_gives_no_alarm_and_is_not_touched(tmp_path: Path) -> None:
    train(tmp_path / "run")
    before = everything(tmp_path / "run")
    code, found = replay(tmp_path / "run")
    assert (code, found["verdict"], found["to"]) == (0, "equal", 12), found
    assert everything(tmp_path / "run") == before


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gradient", "activation"])
def test_a_flipped_bit_is_found_and_dated(tmp_path: Path, kind: str) -> None:
    train(tmp_path / "run", f"{kind}:7:0:3:20")
    code, found = replay(tmp_path / "run")
    assert (code, found["verdict"]) == (1, "differs"), found
    difference = found["difference"]
    assert (difference["earliest"], difference["latest"], difference["ranks"]) == (7, 7, [0])


@pytest.mark.long
@pytest.mark.parametrize(("strategy", "flip"), [("fsdp2", ""), ("pipeline", "activation:7:0:3:20")])
def test_a_run_of_two_processes_that_share_a_model_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, flip: str
) -> None:
    if strategy == "fsdp2" and not has_fsdp2():
        pytest.skip("this torch has no fsdp2 on the CPU")
    run = RunFolder(tmp_path)
    run.write(f"{TASK}:Flipped", strategy=strategy, batch_size=10, max_steps=12, checksum_steps=1, keep=9,
        checkpoint_steps=5, sanity=False)  # fmt: skip
    assert run.ranks(2, REPLAY_FLIP=flip).codes == [0, 0]

    def start(python: str, work_dir: Path, environment: dict[str, str], log: Any) -> Any:
        given = {**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        del given["PYTHONDONTWRITEBYTECODE"]
        return ready.start([python, "-m", "slurmgpu.training"], given, stdout=log, stderr=log)

    monkeypatch.setattr(replaying, "_start", start)
    command = ["checkpoint", "replay", str(tmp_path), "--from", "0", "--json", "--python", sys.executable]
    ended = CliRunner().invoke(cli, command)
    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["verdict"]) == ((1, "differs") if flip else (0, "equal")), found
    if flip:
        difference = found["difference"]
        assert (difference["earliest"], difference["latest"], difference["ranks"]) == (7, 7, None)
        assert "stages" in difference["why"]
