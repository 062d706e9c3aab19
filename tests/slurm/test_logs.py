"""`slurmgpu logs` against the real Slurm: a job's log is found by id, name and run directory, and followed to its end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm


def submit(tool: Tool, script: str, *options: str) -> str:
    done = tool("submit", "--gpus=1", "-t", "5", "-J", "talker", *options, "--", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_finished_jobs_log_is_shown_by_id_name_and_run_directory(tool: Tool) -> None:
    job = submit(tool, "echo one; echo two; echo three", "--wait")
    (run,) = (tool.work / "runs").iterdir()
    for word in (job, "talker", str(run)):
        shown = tool("logs", word)
        assert (shown.returncode, shown.stdout) == (0, "one\ntwo\nthree\n"), shown.stderr
    assert tool("logs", "-n", "1", job).stdout == "three\n"
    assert tool("logs", "--path", job).stdout == f"{run}/logs/{job}.out\n"


def test_a_running_jobs_log_is_followed_until_it_ends(tool: Tool) -> None:
    job = submit(tool, "for i in 1 2 3; do echo line $i; sleep 1; done")
    shown = tool("logs", "--follow", job)
    assert (shown.returncode, shown.stdout) == (0, "line 1\nline 2\nline 3\n"), shown.stderr
    assert "COMPLETED" in tool("status", job).stdout


def test_a_waiting_job_has_no_log_yet_and_says_so(tool: Tool) -> None:
    job = submit(tool, "echo never", "--hold")
    shown = tool("logs", job)
    assert shown.stdout == ""
    assert "the job has not started yet: it is PENDING (JobHeldUser)" in shown.stderr
    assert shown.returncode == 1
    tool("cancel", job)


def test_the_tasks_of_an_array_have_a_log_each(tool: Tool) -> None:
    job = submit(tool, "echo task $SLURM_ARRAY_TASK_ID", "-a", "0-1", "--wait")
    shown = tool("logs", job)
    assert f"==> job {job}_0: " in shown.stdout
    assert "task 0\n" in shown.stdout
    assert "task 1\n" in shown.stdout
    assert tool("logs", f"{job}_1").stdout == "task 1\n"


SPLIT = ("-o", "logs/%x-%j.out", "-e", "logs/%x-%j.err")
CRASH = "import sys; print('step 1', flush=True); sys.exit('Traceback: no such thing')"


def crash(tool: Tool) -> str:
    """A job that fails with its error in a log of its own."""
    tool.file("crash.py", CRASH)
    done = tool("submit", "--gpus=1", "-t", "5", "-J", "crash", *SPLIT, "--wait", "--", "python", "crash.py")
    assert done.returncode == 1, done.stderr
    return done.stdout.strip()


def test_what_a_job_wrote_to_standard_error_is_shown_where_it_has_a_log_of_its_own(tool: Tool) -> None:
    job = crash(tool)
    out, err = (f"{tool.work}/logs/crash-{job}.{end}" for end in ("out", "err"))
    shown = tool("logs", job)
    last = "slurmgpu: first cause: not known (exit code 1): the logs show no failure that slurmgpu knows"
    last += "; the last line is: Traceback: no such thing\n"
    assert shown.stdout == (
        f"==> job {job}, stdout: {out} <==\nstep 1\n"
        f"==> job {job}, stderr: {err} <==\nTraceback: no such thing\n{last}"
    )
    assert tool("logs", "--path", job).stdout == f"{out}\n{err}\n"
    assert tool("logs", "--stderr", job).stdout == f"Traceback: no such thing\n{last}"
    assert tool("logs", "--stdout", job).stdout == "step 1\n"


@pytest.mark.long
def test_both_streams_are_followed_in_the_order_in_which_they_come(tool: Tool) -> None:
    until = "until [ -e %s ]; do sleep 0.1; done"  # it has been shown
    script = f"echo one; {until % 'a'}; echo wrong >&2; {until % 'b'}; echo two"
    words = ("--gpus=1", "-t", "5", "-J", "talker", *SPLIT, "--follow", "--", "bash", "-c", script)
    with subprocess.Popen(
        [sys.executable, "-m", "slurmgpu", "submit", *words],
        cwd=tool.work,
        env=tool.env | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        lines = []
        for line in following.stdout:
            lines.append(line.rstrip("\n"))
            if line == "one\n":
                tool.file("a", "")
            if line == "wrong\n":
                tool.file("b", "")
    assert following.returncode == 0, lines
    job, *lines = lines
    heads = [line.split(":")[0] for line in lines if line.startswith("==>")]
    assert heads == [f"==> job {job}, {stream}" for stream in ("stdout", "stderr", "stdout")]
    assert [line for line in lines if not line.startswith("==>")] == ["one", "wrong", "two"]


def test_all_tasks_of_an_array_are_followed(tool: Tool) -> None:
    shown = tool(
        "submit", "--gpus=1", "-t", "5", "-J", "talker", "-a", "0-2", "--follow", "--",
        "bash", "-c", "echo I am task $SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID",
    )  # fmt: skip
    assert shown.returncode == 2, shown.stderr
    job, *lines = shown.stdout.splitlines()
    (run,) = (tool.work / "runs").iterdir()
    heads = {f"==> job {job}_{task}: {run}/logs/{job}_{task}.out <==": str(task) for task in range(3)}
    said = [(heads[head], line) for head, line in under_heads(lines)]
    # The last line of one that failed may come when another's have come, and then has the header above it once more.
    assert sorted(line for line in said if "first cause" not in line[1]) == [
        (str(task), f"I am task {task}") for task in range(3)
    ], shown.stdout
    assert sorted(task for task, line in said if "first cause: not known" in line) == ["1", "2"], shown.stdout
    again = tool("logs", "--follow", job)
    assert all(f"I am task {task}\n" in again.stdout for task in range(3)), again.stderr


def under_heads(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each line with the header above it. A header comes where the log is another one, and has a line below it."""
    head, last = "", ""
    for line in lines:
        if line.startswith("==> "):
            assert line != head, lines
            assert not last.startswith("==> "), lines
            head = line
        else:
            yield head, line
        last = line
    assert not last.startswith("==> "), lines


def test_the_logs_of_submitits_tasks_are_shown_and_followed(tool: Tool) -> None:
    shown = tool(
        "submit", "--gpus=1", "-t", "5", "-J", "talker", "--via", "submitit", "--follow", "--",
        "bash", "-c", "echo said; echo wrong >&2; exit 3",
    )  # fmt: skip
    assert shown.returncode != 0
    job = shown.stdout.splitlines()[0]
    for text in (shown.stdout, tool("logs", job).stdout):
        assert f"==> job {job}, task 0, stdout: " in text
        assert "\nsaid\n" in text
        assert f"==> job {job}, task 0, stderr: " in text
        assert "\nwrong\n" in text
    assert "wrong\n" in tool("logs", "--stderr", job).stdout


def test_a_log_that_was_removed_or_is_empty_is_said_to_be(tool: Tool) -> None:
    job = submit(tool, "true", "--wait")
    (run,) = (tool.work / "runs").iterdir()
    shown = tool("logs", job)
    assert (shown.returncode, shown.stdout) == (0, "")
    assert f"{run}/logs/{job}.out is empty" in shown.stderr
    (run / "logs" / f"{job}.out").unlink()
    shown = tool("logs", job)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert f"there is no {run}/logs/{job}.out: it was removed, is on another machine, or" in shown.stderr


def test_a_job_that_is_not_there_is_an_error(tool: Tool) -> None:
    shown = tool("logs", "999999")
    assert shown.returncode == 1
    assert "999999: Slurm knows no such job of yours" in shown.stderr


def test_a_run_directory_shows_its_log_without_slurm(tool: Tool) -> None:
    job = submit(tool, "echo kept", "--wait")
    (run,) = (tool.work / "runs").iterdir()
    nowhere = tool.work / "nowhere.conf"
    text = (tool.slurm.folder / "slurm.conf").read_text()
    nowhere.write_text(text.replace(f"SlurmctldPort={_port(text)}", "SlurmctldPort=1") + "MessageTimeout=2\n")
    shown = tool("logs", str(run), env={"SLURM_CONF": str(nowhere)})
    assert shown.stdout == "kept\n", (job, shown.stderr)


def _port(text: str) -> str:
    return text.split("SlurmctldPort=")[1].split()[0]


@pytest.mark.long
def test_the_components_of_a_heterogeneous_job_have_one_log(tool: Tool) -> None:
    options = ("-t", "5", "-J", "het", "--gres=gpu:1", "-o", f"{tool.work}/%j.out")
    done = tool.slurm.run(["sbatch", "--parsable", *options, ":", "--gres=gpu:1", "--wrap", "echo one log"])
    job = done.stdout.strip()
    tool.slurm.wait_for(job, complete_row=True)
    for word in (job, f"{job}+1"):
        shown = tool("logs", word)
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, "one log\n", ""), word
