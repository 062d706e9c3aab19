"""What failed first, by a job's logs: every row of the table has a log, and nothing else wins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from slurmgpu.diagnosis.facts import BY_SLURM, UNKNOWN, Cause, Facts
from slurmgpu.diagnosis.judging import diagnose
from slurmgpu.diagnosis.table import GENERIC, NODE_MATTERS, ROWS
from slurmgpu.models.run import JobState

DATA = Path(__file__).parent / "data" / "failures.yaml"
CASES: list[dict[str, Any]] = YAML(typ="safe").load(DATA.read_text(encoding="utf-8"))


def read(folder: Path, text: str | bytes, **facts: Any) -> Cause | None:
    """What is said of a log of these words."""
    path = folder / "job.out"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return diagnose([str(path)], Facts(**facts))


def said(folder: Path, text: str | bytes, **facts: Any) -> Cause:
    cause = read(folder, text, **{"exit_code": 1, **facts})
    assert cause is not None
    return cause


def facts_of(case: dict[str, Any]) -> dict[str, Any]:
    names = ("exit_code", "signal", "state", "cancelled_by", "processes", "job_id")
    return {name: case[name] for name in names if name in case}


def told(case: dict[str, Any], folder: Path, before: bytes = b"") -> list[object]:
    """What is wrong in what is said of a recorded failure."""
    cause = said(folder, before + case["log"].encode(), **facts_of(case))
    wrong: list[object] = [words for words in case.get("says", ()) if not before and words not in cause.what]
    wrong += [words for words in case.get("shows", ()) if not any(words in line for line in cause.evidence)]
    for name in ("kind", "rank", "host", "certain"):
        expected = case.get(name)
        if expected is not None and not (before and name == "host") and getattr(cause, name) != expected:
            wrong.append((name, cause))
    if ("?" in cause.what.replace("what():", "") and not before) or not cause.evidence:
        wrong.append(cause)
    return wrong


def test_a_recorded_failure_is_named_with_its_rank_host_and_figures(tmp_path: Path) -> None:
    assert {case["name"]: wrong for case in CASES if (wrong := told(case, tmp_path))} == {}


def test_the_same_failure_is_named_among_other_ranks_progress_bars_and_rubbish(tmp_path: Path) -> None:
    bars = b"".join(b"\r%d%%|##   | %d/99 [00:01<00:09, 9.1it/s]" % (n, n) for n in range(99))
    colours = "".join(f"\x1b[3{n % 8}mepoch {n}\x1b[0m loss {1 / (n + 1):.3f}\n" for n in range(50)).encode()
    before = bytes(range(256)) * 20 + b"\n" + b"x" * 300_000 + b"\n" + colours + bars + b"\n"
    mixed = [case for case in CASES if not case.get("alone")]
    assert {case["name"]: wrong for case in mixed if (wrong := told(case, tmp_path, before))} == {}


def test_every_row_has_a_recorded_failure_or_is_only_a_consequence() -> None:
    recorded = {case["kind"] for case in CASES}
    assert {row.id for row in ROWS if row.role != "consequence"} - recorded == set()


def test_there_are_many_rows_and_those_of_nodes_are_among_them() -> None:
    causes = {row.id for row in ROWS if row.role != "consequence"}
    assert len(causes) >= 40
    assert NODE_MATTERS - {row.id for row in ROWS} == {"killed"}
    assert BY_SLURM | {"memory-error"} == {row.id for row in ROWS if row.role == "job"}
    assert all(row.fix and row.what and (row.seen or row.id == GENERIC) for row in ROWS)


@pytest.mark.parametrize("state", JobState)
def test_every_state_of_slurm_is_told_whatever_the_exit_code(state: JobState, tmp_path: Path) -> None:
    kinds = {said(tmp_path, "hello\n", state=state.value, exit_code=code, signal=15).kind for code in (0, 1)}
    ends = {"TIMEOUT": "time-limit", "CANCELLED": "cancelled", "PREEMPTED": "preempted", "NODE_FAIL": "node-failure",
            "BOOT_FAIL": "boot-failure", "DEADLINE": "deadline", "OUT_OF_MEMORY": "host-memory"}  # fmt: skip
    assert kinds <= {ends.get(state.value, UNKNOWN), *(["own-signal"] if state.value == "FAILED" else [])}
    if state == JobState.OUT_OF_MEMORY:
        assert "Ray" not in said(tmp_path, "hello\n", state=state.value, exit_code=0, signal=0).fix


@pytest.mark.parametrize("row", [row for row in ROWS if row.role == "consequence"], ids=lambda row: row.id)
def test_a_consequence_never_is_the_first_cause(row: Any, tmp_path: Path) -> None:
    texts = {
        "nccl-remote": "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "connection-lost": "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.1]:2969",
        "told-to-end": "torch.distributed.elastic.multiprocessing.api.SignalException: Process 13144 got signal: 15",
        "launcher": "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
        "process-failed": "torch.multiprocessing.spawn.ProcessRaisedException: ",
        "interrupted": "KeyboardInterrupt",
        "lost-rank": "[rank 0 on n1] error: lost another rank: it was killed, or its own message says why",
    }
    text = texts[row.id]
    trace = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    x()\n{text}\n'
    lost = text + "\n" if row.id == "lost-rank" else trace
    assert said(tmp_path, lost).kind == UNKNOWN
    own = "".join(f"[rank5]: {line}\n" for line in trace.replace(text, "KeyError: 'labels'").splitlines())
    for both in (lost + own, own + lost):
        cause = said(tmp_path, both)
        assert (cause.kind, cause.rank) == (GENERIC, 5)


def test_of_a_job_that_went_well_nothing_is_said(tmp_path: Path) -> None:
    caught = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    x()\nValueError: x\n'
    )
    assert read(tmp_path, caught, exit_code=0) is None
    assert read(tmp_path, caught, exit_code=0, state="COMPLETED") is None
    healthy = "".join(f"step {n}: loss {1 / (n + 1):.3f}\n" for n in range(1000))
    assert read(tmp_path, healthy) is None
    warnings = "UserWarning: 3 errors were ignored\nretrying after error: timeout\n0 failed\n"
    assert read(tmp_path, warnings + healthy) is None


STEPS = "".join(f"step {n}: loss {1 / (n + 1):.3f}\n" for n in range(100))


@pytest.mark.parametrize(
    "early",
    [
        "slurm_script: line 12: nvidia-smi: command not found\n",
        "CUDA out of memory. Tried to allocate 2.00 GiB. Trying half of the batch\n",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        "cp: cannot create regular file 'cache/a': No space left on device\n",
        "NVRM: Xid (PCI:0000:44:00): 31, pid=7\n",
        "demo.sh: line 3: 4711 Segmentation fault      ./warm-up\n",
        "terminate called after throwing an instance of 'std::runtime_error'\n",
        "error: could not load the optional extension\n",
        "usage: a\ntool.py: error: unrecognized arguments: --x\n",
        "handlers are installed for SIGTERM and SIGSEGV\n",
        'Traceback (most recent call last):\n  File "a.py", line 1, in load\n    x()\nKeyError: 1\nusing the default\n',
        'Exception in thread Thread-1:\nTraceback (most recent call last):\n  File "a.py", line 1\n    x()\nKeyError: 1\n',
    ],
)
def test_what_a_program_got_over_is_not_what_ended_it(early: str, tmp_path: Path) -> None:
    for processes in (1, None):
        assert said(tmp_path, early + STEPS, exit_code=5, processes=processes).kind == UNKNOWN


def test_an_exit_code_that_is_not_pythons_makes_an_exception_less_certain(tmp_path: Path) -> None:
    assert said(tmp_path, trace("KeyError: 'a'"), exit_code=1).certain
    assert not said(tmp_path, trace("KeyError: 'a'"), exit_code=137).certain


def test_what_is_not_known_is_said_with_the_last_30_lines_that_matter(tmp_path: Path) -> None:
    lines = "".join(f"line {n}\n 10%|#  | {n}/99 [00:01<00:09, 9.1it/s]\n" for n in range(100))
    cause = said(tmp_path, lines, exit_code=3)
    assert (cause.kind, cause.certain, cause.known) == (UNKNOWN, False, False)
    assert "exit code 3" in cause.what
    assert cause.evidence == tuple(f"line {n}" for n in range(70, 100))


def trace(text: str, rank: int | None = None) -> str:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    x()", text]
    return "".join((f"[rank{rank}]: " if rank is not None else "") + line + "\n" for line in lines)


def test_an_abort_by_a_watchdog_is_not_what_failed_first(tmp_path: Path) -> None:
    aborted = "job.sh: line 3:  5671 Aborted                 python train.py\n"
    assert said(tmp_path, aborted, exit_code=134).kind == "aborted"
    waited = "RuntimeError: Timed out waiting 4000ms for recv operation to complete"
    assert said(tmp_path, trace(waited, 0) + aborted, exit_code=134).kind == "gloo-timeout"
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.1]:2969"
    assert said(tmp_path, trace(lost, 0) + aborted, exit_code=134).kind == UNKNOWN


def test_a_rank_that_srun_killed_long_after_another_had_ended_is_not_what_failed(tmp_path: Path) -> None:
    log = (
        "srun: error: node1: task 1: Exited with exit code 1\nsrun: First task exited 60s ago\n"
        "srun: StepId=72.0 task 0: running\nsrun: StepId=72.0 task 1: exited abnormally\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=72.0\nsrun: error: node1: task 0: Killed\n"
    )
    cause = said(tmp_path, log, exit_code=137)
    assert (cause.rank, cause.kind) == (1, "exit-code")


def test_the_one_silent_rank_failed_first_though_a_launcher_speaks_of_its_end(tmp_path: Path) -> None:
    lost = "\n".join(
        f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "train.py", line 12, in <module>\n'
        f"[rank{rank}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19600."
        for rank in (0, 1)
    )
    ends = "\n".join(
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-25_10:37:{second}\n  host      : localhost\n"
        f"  rank      : {rank} (local_rank: 0)\n  exitcode  : {code} (pid: 8282)\n"
        for second, rank, code in ((29, 2, 7), (31, 0, 1))
    )
    stopped = (
        "Traceback (most recent call last):\n    raise SignalException(text, sigval=sigval)\n"
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 8019 got signal: 15\n"
    )
    path = tmp_path / "job.out"
    path.write_text(f"{lost}\n{ends}{stopped}")
    found = diagnose([str(path)], Facts(exit_code=1, processes=4))
    assert (found.kind, found.rank) == ("exit-code", 2)


def test_interleaved_tracebacks_are_told_apart_by_their_ranks(tmp_path: Path) -> None:
    one, other = trace("KeyError: 'a'", 6).splitlines(), trace("RuntimeError: Broken pipe", 1).splitlines()
    mixed = "".join(f"{b}\n{a}\n" for a, b in zip(one, other, strict=True))
    cause = said(tmp_path, mixed)
    assert (cause.kind, cause.rank, cause.evidence[1]) == (GENERIC, 6, "KeyError: 'a'")


def test_a_ranks_own_last_traceback_counts_and_not_one_that_it_has_caught(tmp_path: Path) -> None:
    steps = "".join(f"step {n}\n" for n in range(100))
    cause = said(tmp_path, trace("ValueError: retried") + steps + trace("KeyError: 'b'"), processes=1)
    assert "KeyError: 'b'" in cause.what


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def failed(rank: int, code: int = 1) -> str:
    return f"srun: error: node2: task {rank}: Exited with exit code {code}\nsrun: error: node1: tasks 0-1: Terminated\n"


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: unknown option 'CUDA out of memory. Tried to allocate 2.00 GiB'; known: 'Connection reset by peer'",
        "KeyError: 'No space left on device'",
        "AssertionError: negative expected, NCCL error: unhandled system error",
        "TypeError: Timed out waiting 4000ms for recv operation to complete",
    ],
)
def test_words_that_a_python_exception_only_quotes_did_not_fail(error: str, tmp_path: Path) -> None:
    cause = said(tmp_path, trace(error, 2) + trace(LOST, 0) + failed(2), exit_code=143, processes=4)
    assert (cause.kind, cause.rank) == ("assertion" if error.startswith("Assertion") else GENERIC, 2)
    assert error.partition(": ")[2].strip("'") in cause.what


def test_a_line_of_the_users_code_that_quotes_an_error_is_not_that_error(tmp_path: Path) -> None:
    quoting = trace("RuntimeError: gave up").replace(
        "    x()", "    if 'CUDA error: ' in text: raise RuntimeError('gave up')"
    )
    assert said(tmp_path, quoting, processes=1).kind == GENERIC


def test_a_traceback_behind_a_progress_bar_on_the_same_line_is_read(tmp_path: Path) -> None:
    for bar in ("\r\x1b[32m 60%|█████▌   | 6/10 [00:06<00:03, 1.0it/s, loss=漢字]\x1b[0m", "step 6 "):
        cause = said(
            tmp_path, STEPS + bar + trace("KeyError: 'a'", 3) + bar + trace(LOST, 0) + failed(3), processes=4
        )
        assert (cause.kind, cause.rank) == (GENERIC, 3)
        slurmgpus = trace("KeyError: 'a'", 2).replace("[rank2]: ", "[rank 2 on node1] ")
        assert said(tmp_path, bar + slurmgpus, processes=4).rank == 2


def test_what_all_ranks_got_over_is_not_the_cause_if_the_first_failure_is_another(tmp_path: Path) -> None:
    caught = "ERROR:root:going on with half of it\n" + trace(
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB"
    )
    log = caught * 4 + "step 3\n" + trace("ValueError: 3 classes", 3) + trace(LOST, 0) + failed(3)
    cause = said(tmp_path, log, exit_code=143, processes=4)
    assert (cause.kind, cause.rank) == (GENERIC, 3)


def test_a_rank_whose_loaders_worker_is_gone_says_so_unless_something_else_failed(tmp_path: Path) -> None:
    """A worker that is killed while it hands over a batch: no more is seen of it than a connection."""
    worker = trace("ConnectionResetError: [Errno 104] Connection reset by peer", 2).replace(
        "    x()", '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 395, in _recv'
    )
    log = worker + trace(LOST, 0) + failed(2)
    cause = said(tmp_path, log, exit_code=143, processes=4)
    assert (cause.kind, cause.rank) == ("loader-exited", 2)
    assert said(tmp_path, log + trace("KeyError: 'a'", 1), processes=4).kind == GENERIC
    chain = (
        worker
        + "[rank2]: \n[rank2]: The above exception was the direct cause of the following exception:\n[rank2]: \n"
    )
    killed = trace("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", 2)
    assert said(tmp_path, chain + killed + failed(2), processes=4).kind == "loader-killed"


def test_a_group_of_exceptions_is_named_with_the_first_of_them(tmp_path: Path) -> None:
    log = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "train.py", line 45, in <module>\n'
        "  |     fetch()\n"
        "  | ExceptionGroup: several (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "train.py", line 40, in fetch\n'
        "    | ValueError: one\n"
        "    +---------------- 2 ----------------\n"
        "    | KeyError: 'two'\n"
        "    +------------------------------------\n"
    )
    ranked = "".join(f"[rank2]: {line}\n" for line in log.splitlines())
    for text, rank in ((log, None), (ranked + trace(LOST, 0) + failed(2), 2)):
        cause = said(tmp_path, text)
        assert (cause.kind, cause.rank) == (GENERIC, rank)
        assert cause.what.startswith("ValueError: one")


def test_the_words_with_which_a_program_exits_are_shown(tmp_path: Path) -> None:
    log = STEPS + "checkpoint format 3 is too new\n" + trace(LOST, 0) + failed(3)
    cause = said(tmp_path, log, exit_code=143, processes=4)
    assert (cause.kind, cause.rank, cause.evidence[-1]) == ("exit-code", 3, "checkpoint format 3 is too new")


def test_the_first_of_a_chain_that_is_known_is_what_failed(tmp_path: Path) -> None:
    chain = (
        trace("OSError: [Errno 28] No space left on device: 'a.pt'")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + trace("RuntimeError: the checkpoint could not be written")
    )
    cause = said(tmp_path, chain)
    assert cause.kind == "disk-full"
    assert "a.pt" in cause.what
    assert "RuntimeError: the checkpoint could not be written" in cause.evidence


def test_the_logs_of_ranks_in_files_of_their_own_are_read_together(tmp_path: Path) -> None:
    paths = []
    for rank in range(4):
        error = "ValueError: no labels" if rank == 3 else "RuntimeError: Connection reset by peer"
        path = tmp_path / f"71_{rank}_log.err"
        path.write_text(trace(error))
        paths.append(str(path))
    cause = diagnose(paths, Facts(exit_code=1))
    assert (cause.rank, cause.kind) == (3, GENERIC)


def test_a_restarted_job_is_judged_by_its_last_start(tmp_path: Path) -> None:
    before = (
        trace("KeyError: 'old'") + "slurmgpu: stopped by time at step 5; requeueing, restart 1 of at most 3\n"
    )
    cause = said(tmp_path, before + "step 6\n" + trace("KeyError: 'new'"), restarts=1)
    assert "'new'" in cause.what
    cause = said(tmp_path, before + "step 6\n", restarts=1, exit_code=9)
    assert cause.kind == UNKNOWN


def test_a_failure_in_the_middle_of_a_large_log_is_found(tmp_path: Path) -> None:
    noise = "".join(f"step {n}: loss {1 / (n + 1):.5f}\n" for n in range(400_000)).encode()
    error = trace("KeyError: 'labels'", 3) + "srun: error: node1: task 3: Exited with exit code 1\n"
    cause = said(tmp_path, noise + error.encode() + noise)
    assert (cause.rank, cause.host, cause.kind) == (3, "node1", GENERIC)


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").touch()
    paths = [str(tmp_path / name) for name in ("folder", "link", "empty", "absent")]
    cause = diagnose([*paths, "/dev/zero"], Facts(exit_code=127))
    assert cause.kind == "command-missing"
    assert not cause.certain


def test_a_cause_is_written_and_read_back(tmp_path: Path) -> None:
    cause = said(tmp_path, trace("KeyError: 'a'", 2))._replace(
        job_id="7", restart=1, time="2026-01-01T00:00:00+00:00"
    )
    assert Cause.from_json(cause.to_json().encode()) == cause
    for wrong in (b"", b"[]", b"{}", b'{"schema": "slurmgpu.cause/2"}', b"\xff", b"[" * 100_000):
        with pytest.raises((ValueError, RecursionError)):
            Cause.from_json(wrong)
    odd = Cause.from_json(
        b'{"schema": "slurmgpu.cause/1", "rank": true, "host": 3, "evidence": "x", "kind": null}'
    )
    assert odd == Cause(UNKNOWN, "", "")


def test_any_log_can_be_read_by_hand(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text(trace("KeyError: 'a'", 2))
    command = [sys.executable, "-m", "slurmgpu.diagnosis", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    assert done.stdout.startswith("first cause: rank 2: KeyError: 'a' (train.py, line 3)\nfix: ")
    told = json.loads(
        subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=100).stdout
    )
    assert (told["schema"], told["rank"]) == ("slurmgpu.cause/1", 2)
    absent = subprocess.run([*command[:-1], "no.log"], capture_output=True, text=True, timeout=100)
    assert absent.returncode == 2
    assert "no.log: there is no such file" in absent.stderr
