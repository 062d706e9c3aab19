"""Our reading of batch scripts against sbatch's own: the same words, the same options, the same refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmgpu.models.units import Duration
from slurmgpu.scripts.batch_script import Script, parse_batch_script
from tests.check_examples import EXAMPLES, script
from tests.slurm.throwaway import ThrowawaySlurm

pytestmark = pytest.mark.slurm

HEADS = [
    "#SBATCH -J plain",
    "#SBATCH-t 10",
    "#SBATCHX",
    "#SBATCH foo -t 10",
    "#SBATCH -J\n#SBATCH over-the-line",
    "#SBATCH -J # nothing\n#SBATCH next",
    "#SBATCH -t 10 -- -J b\n#SBATCH -J c",
    "#SBATCH -J a -- ",
    '#SBATCH -J a "" -t 10',
    '#SBATCH -J "" -t 10',
    "#SBATCH --job-name= -t 10",
    "#SBATCH : -t 10",
    "#SBATCH -J a : -t 10",
    "#SBATCH -J a: -t 10",
    "#SBATCH --job-name=a#b --nice=5",
    '#SBATCH --job-name="a#b" --nice=5',
    '#SBATCH -J a"#"b --nice=5',
    "#SBATCH -J a\\#b --nice=5",
    "#SBATCH --nice=5 # -J b",
    "#SBATCH -J a\\ b --nice=5",
    "#SBATCH -J a\\\tb --nice=5",
    "#SBATCH -J 'a\\ b' --nice=5",
    "#SBATCH -J 'a\\'b' --nice=5",
    '#SBATCH -J a\\"b --nice=5',
    '#SBATCH -J "a\\"b" --nice=5',
    "#SBATCH -J a\\\\b",
    "#SBATCH -J a\\\\ b",
    "#SBATCH \\-t 10",
    "#SBATCH -J don't",
    '#SBATCH -J "a b',
    "#SBATCH\t-J\ta\t--nice=5",
    "#SBATCH -J\va\f--nice=5",
    "#SBATCH -J a\r--nice=5",
    "#SBATCH -J a\\\n#SBATCH -t 10",
    "#SBATCH -J a \\\n#SBATCH -t 10",
    "#SBATCH -J\u00a0a",
    "#SBATCH\u00a0-J a",
    "#SBATCH \u2013\u2013job-name=a",
    "#SBATCH -J 'it\"s' --comment=\"it's\"",
    '#SBATCH --comment="a  b" -J c"d"e',
    "#SBATCH --comment=$HOME/~/$(id) -J %x%j",
    "  #SBATCH -J a",
    "# SBATCH -J a",
    "##SBATCH -J a",
    "#sbatch -J a",
    "#SBATCh -J a",
    "#BATCH -J a",
    "#SLURM -J a",
    "\n \t\n  # a comment\n#SBATCH -J a\n\n#SBATCH --nice=3",
    "\u00a0\n#SBATCH -J a",
    "#SBATCH -J a\ntrue\n#SBATCH --nice=3",
    "#SBATCH -J a -J b\n#SBATCH --job-name=c",
    "#SBATCH --nice=3 -J a\n#SBATCH --nice",
    "#SBATCH -Jglued --nice 5",
    "#SBATCH -J=a",
    "#SBATCH -job=a",
    "#SBATCH -HJheld",
    "#SBATCH -kJ a",
    "#SBATCH -k -J a",
    "#SBATCH -J -n",
    "#SBATCH --job a --comm b --tim 10",
    "#SBATCH --Job-name=a",
    "#SBATCH --no",
    "#SBATCH --exc=a",
    "#SBATCH --hold=1",
    "#SBATCH --foo=1 -J a",
    "#SBATCH -Z",
    "#SBATCH -J",
    "#SBATCH --job-name",
    "#SBATCH --tasks-per-n 2 -J a",
    "#SBATCH --exclusive user -J a",
    "#SBATCH --exclusive=user -J a",
    "#SBATCH --time = 10",
    "#SBATCH --time=10 ; true",
    "#SBATCH",
    "#SBATCH  ",
    "#SBATCH -t1-2 -J a\n#SBATCH -t 90",
    "#SBATCH --constraint=a100 -C 'a100' -J a",
]
DEFAULT_TIME = "01:00:00"
# Components after the first inherit, and 20.11 reads these lines differently.
HETEROGENEOUS = [
    "#SBATCH -n 2\n#SBATCH hetjob\n#SBATCH -n 4 -c 2",
    "#SBATCH -n 2\n#SBATCH \t packjob -n 3\n#SBATCH -c 2",
    "#SBATCH -n 2 hetjob -c 3\n#SBATCH -N 1",
    "#SBATCH -n 2\n#SBATCHhetjob\n#SBATCH -c 3\n#SBATCH hetjob\n#SBATCH -n 1",
    "#SBATCH -n 2\n#SBATCH --comment='a hetjob' -t 3",
    '#SBATCH -n 2\n#SBATCH -J "hetjob" -t 3',
    "#SBATCH -n 2\n#SBATCH hetjobs -t 3",
    "#SBATCH -n 2\n#SBATCH -J\n#SBATCH hetjob\n#SBATCH a",
]


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
