"""A webhook is told how real jobs end, and its address is nowhere to be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool
from tests.webhook import TOKEN, webhook

pytestmark = pytest.mark.slurm

JOB = """
name: told
resources: {{gpus: 1, cpus_per_gpu: 1, time: 10}}
notify: {{webhook: HOOK, form: {form}, on: [{on}]}}
array: 0-1
command: [python, fail.py]
"""
# The first task fails, the second is done.
FAIL = "import os\nif os.environ['SLURM_ARRAY_TASK_ID'] == '0':\n    {}['labels']\n"


def nowhere_to_be_read(made: Submitted, tool: Tool) -> None:
    for file in made.run_dir.rglob("*"):
        assert file.is_dir() or TOKEN.encode() not in file.read_bytes(), file
    told = tool.slurm.run(["sacct", "-P", "-j", str(made.job_id), "-o", "ALL"]).stdout
    shown = tool.slurm.run(["scontrol", "show", "job", str(made.job_id)]).stdout
    assert str(made.job_id) in told
    assert TOKEN not in told + shown + made.stderr


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    made = Tool(slurm, tmp_path)
    made.file("fail.py", FAIL)
    return made


def test_a_webhook_is_told_of_a_task_that_fails_and_of_one_that_is_done(tool: Tool) -> None:
    tool.file("job.yaml", JOB.format(form="json", on="completed, failed"))
    with webhook() as hook:
        made = tool.submit("job.yaml", "--wait", env={"HOOK": hook.address})
        tool.slurm.wait_for(made.job_id)
        assert len(hook.received) == 2, made
        told = {received.body["event"]: received.body for received in hook.received}
    failed, completed = told["failed"], told["completed"]
    assert (failed["job_id"], completed["job_id"]) == (f"{made.job_id}_0", f"{made.job_id}_1")
    assert (failed["name"], failed["cluster"], failed["exit_code"]) == ("told", completed["cluster"], 1)
    assert failed["first_cause"]["what"] == "KeyError: 'labels' (fail.py, line 3)"
    assert completed["first_cause"] is None
    assert failed["cluster"]
    assert 0 <= completed["seconds"] < 600
    assert Path(failed["logs"][0]).is_file()
    assert "no notification" not in "".join(one.read_text() for one in made.run_dir.glob("logs/*.out"))
    nowhere_to_be_read(made, tool)


def test_a_job_is_refused_whose_secret_is_nowhere_and_resuming_can_name_another(tool: Tool) -> None:
    tool.file("job.yaml", JOB.format(form="slack", on="failed").replace("array: 0-1\n", ""))
    refused = tool.submit_refused("job.yaml")
    assert "notify: HOOK is not set in this environment, and there is no " in refused
    tool.file("fail.py", "import os\n{}['labels']\n")
    with webhook() as hook:
        made = tool.submit("job.yaml", "--set", "notify.on=[completed]", "--wait", env={"HOOK": hook.address})
        tool.slurm.wait_for(made.job_id)
        assert hook.received == []
        again = tool(
            "resume",
            str(made.job_id),
            "--set",
            "notify={webhook: OTHER, on: [failed]}",
            env={"OTHER": hook.address},
        )
        assert again.returncode == 0, again
        tool.slurm.wait_for(again.stdout.strip())
        (received,) = hook.received
    assert "KeyError: 'labels' (fail.py, line 2)" in received.body["text"]
    nowhere_to_be_read(made, tool)
