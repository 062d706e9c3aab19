"""What files and servers of others cannot do: hold a command up, fill the memory, run code, be taken for one's own."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import socket
import sys
import threading
import time
import urllib.request
from http.client import HTTPMessage
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from slurmgpu.cli.group import cli
from slurmgpu.cli.resume import _submission
from slurmgpu.clusters import fetching
from slurmgpu.diagnosis.flight import plain
from slurmgpu.diagnosis.judging import diagnose
from slurmgpu.diagnosis.traces import is_noise
from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.planning.python_script import local_imports, parse_python_script, signs_of
from slurmgpu.runs import checkpoints, replay_verdict, samples
from slurmgpu.runs.bench.memory import Measured, recall, remember
from slurmgpu.runs.resume import _holder
from slurmgpu.shell.server import check_installed
from slurmgpu.training.formats import rows
from slurmgpu.training.verdict import trace
from slurmgpu.web import export


def checkpoint(run_dir: Path, listed: dict[str, Any]) -> Path:
    folder = run_dir / "step-10"
    folder.mkdir()
    manifest = {
        "schema": "slurmgpu.checkpoint/1",
        "step": 10,
        "samples": 40,
        "world_size": 1,
        "parts": listed,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def entry(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_a_checkpoint_of_more_parts_than_there_can_be_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_MOST_PARTS", 3)
    checkpoint(tmp_path, {str(number): entry(b"") for number in range(4)})
    (found,) = checkpoints.checkpoints(tmp_path)
    assert found.state == "damaged"


def test_samples_of_more_gpus_than_a_job_has_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "samples").mkdir()
    row = {"schema": samples.SAMPLE_SCHEMA, "kind": "sample", "time": 1.0, "seconds": 1.0}
    for host in range(3):
        text = json.dumps(row | {"gpus": [{"index": index} for index in range(4)]})
        (tmp_path / "samples" / f"7.0-n{host}.jsonl").write_text(text + "\n")
    assert samples.summary(tmp_path, 7) is not None
    monkeypatch.setattr(samples, "_MOST_GPUS", 11)
    assert samples.summary(tmp_path, 7) is None


def test_tuples_of_a_dump_are_no_keys() -> None:
    """The hash of tuples that hold each other twice takes twice as long for each."""
    assert plain(pickle.dumps({"a": (1, "b"), "c": (), "d": (1,), "e": (1, 2, 3), "f": (1, 2, 3, 4)})) == {
        "a": [1, "b"], "c": [], "d": [1], "e": [1, 2, 3], "f": [1, 2, 3, 4],
    }  # fmt: skip
    with pytest.raises(ValueError, match="unhashable"):
        plain(pickle.dumps({((1, 2), (1, 2)): 3}))


def test_a_pipe_in_place_of_a_file_of_a_run_holds_no_resume_up(tmp_path: Path) -> None:
    for name in ("resume.lock", "script.sbatch"):
        os.mkfifo(tmp_path / name)
    assert _holder(tmp_path / "resume.lock") == "a process that has not written its name, or has just ended"
    with pytest.raises(OSError, match="pipe"):
        _submission(tmp_path, cast("Any", SimpleNamespace(train=None)), {}, hold=False)


def test_what_comes_with_a_redirect_is_not_read() -> None:
    asked, body = urllib.request.Request("https://hpc.example.org/p.yaml"), io.BytesIO(b"without an end")
    moved = "https://hpc.example.org/q.yaml"
    assert fetching._Redirects().redirect_request(asked, body, 302, "", HTTPMessage(), moved) is not None
    assert body.closed


def test_headers_that_come_in_drops_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "LONGEST", 0.5 - fetching.TIMEOUT)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            asker, _ = server.accept()
            with asker:
                asker.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not done.wait(0.02):
                    asker.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(InvalidInput, match="no answer within"):
                fetching.download(f"http://127.0.0.1:{server.getsockname()[1]}/p.yaml")
        finally:
            done.set()
            thread.join()


def test_a_module_in_the_current_folder_is_not_imported_to_look_for_jupyter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "taken"
    (tmp_path / "importlib").mkdir()
    (tmp_path / "importlib" / "__init__.py").write_text(f"open({str(taken)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    python = SimpleNamespace(activated=None, interpreter=sys.executable)
    environment = SimpleNamespace(container=None, modules=None, python=python)
    try:
        check_installed(cast("Any", SimpleNamespace(environment=environment)), tmp_path)
    except SlurmGpuError as error:
        assert "has neither jupyterlab" in error.message  # noqa: PT017 - it may have one
    assert not taken.exists()


def test_what_lies_in_the_folder_of_parts_does_not_run_when_one_is_downloaded(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    (tmp_path / "pip.py").write_text(f"open({str(taken)!r}, 'w')")
    with pytest.raises(SlurmGpuError, match="has failed"):
        export.download(export.Part("x.whl", "", ("pip", "--version")), tmp_path)
    assert not taken.exists()


def test_npm_reads_no_settings_of_the_folder_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, folder = tmp_path / "bin", tmp_path / "parts"
    programs.mkdir()
    npm = programs / "npm"
    npm.write_text("#!/bin/sh\npwd > p.tgz; ls >> p.tgz\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.defpath}")
    export.download(export.Part("p.tgz", "", ("npm", "pack")), folder)
    where, *there = (folder / "p.tgz").read_text().splitlines()
    assert Path(where) not in {tmp_path, folder}
    assert set(there) == {"p.tgz", "package.json"}


@pytest.mark.parametrize("code", ["x = " + "-" * 90_000 + "1\n", "x = 1" + "+1" * 50_000 + "\n"])
def test_a_script_nested_too_deeply_for_the_parser_is_read_as_text(code: str) -> None:
    assert local_imports(code) == ()
    signs_of(code)
    assert parse_python_script("train.py", f"import torch\n{code}").path == "train.py"


def test_many_open_brackets_in_a_script_hold_no_plan_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"import torch\nx = '{'os.environ[' * 60_000}'\n")
    began = time.monotonic()
    words = ["plan", "--gpus", "1", "--time", "5", "--", "python", "train.py"]
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert time.monotonic() - began < 5


def test_a_small_trace_that_stands_for_a_large_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_MOST_GROWTH", 4)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b"{}," * 2_000_000 + b"{}]}"))
    with pytest.raises(trace.Unreadable, match="more than"):
        list(trace.events(path))


def test_a_metrics_file_with_a_hole_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"schema": "slurmgpu.metrics/1", "kind": "start", "restart": 0, "step": 0, "values": {}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert len(replay_verdict.starts(tmp_path)) == 1
    with (tmp_path / "metrics.jsonl").open("r+b") as file:
        file.truncate(1 << 43)
    began = time.monotonic()
    assert replay_verdict.starts(tmp_path) == []
    assert time.monotonic() - began < 5
    assert list(rows.all_rows(tmp_path / "none", "x")) == []


def test_what_somebody_else_measured_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    remember("key", Measured("A100", "2026-01-01", ("train.workers: 64",), "/b"), environ)
    assert len(recall("key", environ)) == 1
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert recall("key", environ) == []


def test_many_hits_in_a_log_are_not_judged_by_its_whole_end_each(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"pyxis: pyxis: {number} " + "x" * 60 for number in range(4000)))
    is_noise.cache_clear()
    diagnose([str(log)])
    assert is_noise.cache_info().hits > 50 * is_noise.cache_info().misses
