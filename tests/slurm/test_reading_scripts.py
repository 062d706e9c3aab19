"""Our reading of batch scripts against sbatch's own: the same words, the same options, the same refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from slurmgpu.models.units import Duration
from slurmgpu.script.batch_script import Script, parse_batch_script
from tests.check_examples import EXAMPLES, script
from tests.slurm.throwaway import ThrowawaySlurm

pytestmark = pytest.mark.slurm

READ = YAML(typ="safe").load(Path(__file__).parent.parent / "data" / "sbatch_heads.yaml")
HEADS, HETEROGENEOUS = READ["plain"], READ["heterogeneous"]
DEFAULT_TIME = "01:00:00"


def ids(value: str) -> str:
    return ascii(value)[1:50]


def script_of(head: str, folder: Path) -> tuple[Path, Script, str]:
    text = f"#!/bin/bash\n{head}\ntrue\n"
    path = folder / "script.sbatch"
    path.write_bytes(text.encode())
    return path, parse_batch_script(text), text


def option_names(said: str) -> list[set[str]]:
    """The options that sbatch found, by component; those of its command line left out."""
    blocks = re.findall(r"defined options\n.*?-\n(.*?)sbatch: -+ -+\n", said, flags=re.DOTALL)
    ours = {"verbose", "hold", "output", "chdir"}
    return [set(re.findall(r"^sbatch: ([\w-]+) *: ", block, flags=re.MULTILINE)) - ours for block in blocks]


def shown(job: str) -> dict[str, str]:
    """The fields of `scontrol show job` that a script's options fill with text."""
    fields = {}
    for name in ("JobName", "Comment", "TimeLimit", "Features"):
        found = re.search(rf"(?:^| ){name}=(.*?)(?= DelayBoot=| TimeMin=| ?$)", job, flags=re.MULTILINE)
        fields[name] = found[1] if found else ""
    fields["Nice"] = re.findall(r"Nice=(-?\d+)", job)[0]
    return fields


def expected(script: Script) -> dict[str, str]:
    options = {name: one.value or "" for name, one in script.effective().items()}
    time = options.get("time")
    nice = options.get("nice", "0")
    return {
        "JobName": options.get("job-name", "script.sbatch"),
        "Comment": options.get("comment", ""),
        "TimeLimit": str(Duration.parse(time)) if time else DEFAULT_TIME,
        "Features": options.get("constraint", "(null)"),
        # --nice alone means 100.
        "Nice": nice or "100",
    }


@pytest.mark.parametrize("head", HEADS, ids=ids)
def test_a_script_is_read_as_sbatch_reads_it(slurm: ThrowawaySlurm, tmp_path: Path, head: str) -> None:
    path, _, text = script_of(head, tmp_path)
    script = parse_batch_script(text, slurm.release)
    answer = slurm.run(["sbatch", "-vvv", "--hold", "--output=/dev/null", f"--chdir={tmp_path}", str(path)])
    if script.refusals:
        assert answer.returncode != 0, (answer.stdout, script.refusals)
        assert "Submitted" not in answer.stdout
        return
    assert answer.returncode == 0, answer.stderr
    job_id = answer.stdout.split()[-1]
    job = slurm.run(["scontrol", "show", "job", job_id]).stdout
    slurm.run(["scancel", job_id])
    assert shown(job) == expected(script)
    names = option_names(answer.stderr)[0]
    assert names - {"oversubscribe"} == set(script.effective()) - {"hold"}


@pytest.mark.parametrize("head", HETEROGENEOUS, ids=ids)
def test_components_are_told_apart_as_sbatch_does(slurm: ThrowawaySlurm, tmp_path: Path, head: str) -> None:
    if slurm.release < (21, 8):
        head = HETEROGENEOUS[0]
    path, _, text = script_of(head, tmp_path)
    script = parse_batch_script(text, slurm.release)
    answer = slurm.run(["sbatch", "-vvv", "--hold", "--output=/dev/null", f"--chdir={tmp_path}", str(path)])
    assert (answer.returncode != 0) == bool(script.refusals), (answer.stderr, script.refusals)
    if answer.returncode == 0:
        slurm.run(["scancel", answer.stdout.split()[-1]])
        found = option_names(answer.stderr)
        assert len(found) == script.components
        for component, names in enumerate(found):
            assert names == set(script.effective(component))


REFUSED = [
    *("no-shebang", "crlf", "open-quote", "stray-word", "blank-at-equals", "ambiguous-option", "value-missing"),
    *("unusual-character", "bad-time", "bad-memory", "bad-number", "bad-mail-type", "bad-signal", "bad-array"),
    *("memory-options", "tasks-per-gpu", "cpus-per-gpu-and-task", "gpus-per-task-alone"),
]  # fmt: skip


@pytest.mark.parametrize("rule", REFUSED)
def test_what_a_rule_says_is_refused_is_refused(slurm: ThrowawaySlurm, tmp_path: Path, rule: str) -> None:
    if rule == "cpus-per-gpu-and-task" and slurm.release < (21, 8):
        return  # that release takes both
    path = tmp_path / "script.sbatch"
    for text, code in ((EXAMPLES[rule].failing, 1), (EXAMPLES[rule].passing, 0)):
        path.write_bytes(script(text).encode())
        answer = slurm.run(["sbatch", "--hold", "--output=/dev/null", "--parsable", str(path)])
        slurm.run(["scancel", answer.stdout.strip()] if answer.returncode == 0 else ["true"])
        assert min(answer.returncode, 1) == code, (text, answer.stderr)
