"""``slurmgpu profile``: the verdict on a run's profile, and on a trace from elsewhere."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.runs.profiles import of_training
from slurmgpu.training.formats.metrics import METRICS_SCHEMA, metrics_rows
from slurmgpu.training.formats.rows import rows_in

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command in an empty folder, without Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return lambda *words: CliRunner().invoke(cli, ["profile", *words])


def trace(path: Path, waiting: float) -> Path:
    """Two steps of 50 ms, so many of them waiting for data, the rest one product."""
    events: list[dict[str, Any]] = []
    for number in (0, 1):
        start = 50_000 * number
        for kind, name, begin, seconds in (
            ("user_annotation", f"ProfilerStep#{number}", 0, 50_000),
            ("user_annotation", "slurmgpu.data", 0, 1000 * waiting),
            ("cpu_op", "aten::mm", 1000 * waiting, 50_000 - 1000 * waiting),
        ):
            span = {"ph": "X", "cat": kind, "name": name, "ts": start + begin, "dur": seconds}
            events.append({**span, "pid": 1, "tid": 1})
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file)
    return path


def row(kind: str, step: int, restart: int = 0, **values: float) -> str:
    known = {"schema": METRICS_SCHEMA, "kind": kind, "time": 1.5e9, "restart": restart, "step": step}
    return json.dumps({**known, "values": values})


def test_a_verdict_names_the_share_what_shows_it_and_what_to_change(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trace(run / "profile" / "rank-0.trace.json.gz", waiting=40)
    (run / "train.json").write_text(json.dumps({"workers": 3}))
    (run / "metrics.jsonl").write_text(
        "\n".join([row("start", 0), row("train", 10, step_seconds=1.0, checkpoint_seconds=0.25), ""])
    )
    told = call(str(run))
    assert told.exit_code == 0, told.output
    assert " 80.0 %  waiting for data\n" in told.stdout
    assert "of all the time that is logged: evaluating 0.0 %, saving 25.0 %" in told.stdout
    assert (
        "verdict: waiting for data, 80 % of a step\n  evidence: 40 ms of a step of 50 ms; workers: 3\n"
        in told.stdout
    )
    assert "  change: more workers (now 3)" in told.stdout
    assert "also: saving, 25 % of all the time that is logged" in told.stdout
    document = json.loads(call(str(run), "--json").stdout)
    assert document["schema"] == "slurmgpu.profile-verdict/1"
    assert document["path"] == str(run / "profile")
    assert [each["cause"] for each in document["causes"]] == ["data", "saving"]


def test_a_trace_from_elsewhere_is_judged_too(call: Call, tmp_path: Path) -> None:
    path = trace(tmp_path / "worker0.pt.trace.json.gz", waiting=1)
    told = call(str(path))
    assert told.stdout.splitlines()[-1] == "verdict: no clear cause; 98 % of a step is computing"
    path.write_bytes(path.read_bytes()[:40])
    failed = call(str(path))
    assert isinstance(failed.exception, InvalidInput)
    assert "cut off" in failed.exception.message


def test_a_run_without_a_profile_is_told_how_to_get_one(call: Call, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    failed = call(str(tmp_path / "run"))
    assert isinstance(failed.exception, SlurmGpuError)
    assert "there is no profile to read" in failed.exception.message
    assert "profile: true" in (failed.exception.hint or "")


def test_parts_that_another_version_left_are_an_error_and_no_traceback(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "profile").mkdir(parents=True)
    (run / "train.json").write_text("{}")
    (run / "profile" / "rank-0.parts.json").write_text(json.dumps({"schema": "slurmgpu.profile-parts/1"}))
    failed = call(str(run))
    assert isinstance(failed.exception, SlurmGpuError)
    assert "not as this version writes it" in failed.exception.message


def test_shares_of_the_whole_training_count_each_start_and_no_step_twice() -> None:
    text = "\n".join(
        [
            row("train", 40, step_seconds=9.0),  # how many steps it is the mean of is not known
            row("train", 50, step_seconds=1.0, checkpoint_seconds=0.1),
            row("eval", 50, seconds=5.0),
            row("start", 45, restart=1),
            row("train", 50, restart=1, step_seconds=1.0, checkpoint_seconds=0.2),
        ]
    )
    shares = of_training(metrics_rows(rows_in(text.encode(), METRICS_SCHEMA)))
    assert shares == pytest.approx({"evaluating": 5 / 20, "saving": 2 / 20})
    assert of_training([]) == {}
