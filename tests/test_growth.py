"""Twice the input takes about twice the work: files come from others, and assistants hand in any text."""

import sys
from contextlib import suppress
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from slurmgpu.errors import InvalidInput
from slurmgpu.files.yaml import MOST_LINES, read_yaml, refuse_too_many_lines, validate
from slurmgpu.models.job import Job
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.check import check_script
from slurmgpu.script.importing import import_script
from slurmgpu.script.rules.base import Facts

INPUTS = YAML(typ="safe").load(Path(__file__).with_name("data").joinpath("growing.yaml"))


def read(kind: str, text: str) -> None:
    """Read a text as the commands do, whatever is wrong with it."""
    with suppress(InvalidInput):
        if kind == "job files":
            validate(Job, read_yaml(text, "job.yaml"), "job")
        else:
            check_script(parse_batch_script(f"#!/bin/bash\n#SBATCH -N 2\n{text}"), Facts())
            import_script(f"#!/bin/bash\n{text}", "the script")


def work(kind: str, row: dict[str, str], count: int) -> int:
    """Return how many lines of Python run for an input of ``count`` lines."""
    lines = [row["line"].format(i=i, j=i - 1, k=i - 2) for i in range(count)]
    text = "\n".join(filter(None, (row.get("head"), *lines, row.get("tail"), "")))
    ran, before = [0], sys.gettrace()

    def trace(*_: object) -> object:
        ran[0] += 1
        return trace

    sys.settrace(trace)
    try:
        read(kind, text)
    finally:
        sys.settrace(before)
    return ran[0]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in INPUTS for name in INPUTS[kind]])
def test_the_work_grows_as_the_input_does(kind: str, name: str) -> None:
    row = INPUTS[kind][name]
    work(kind, row, 10)  # what is imported and kept at the first time
    few, more = work(kind, row, 150), work(kind, row, 300)
    assert more < 2.5 * few


def test_a_script_of_too_many_lines_is_refused_with_the_bound() -> None:
    assert refuse_too_many_lines("x\n" * MOST_LINES, "job.sh")
    with pytest.raises(InvalidInput, match=r"job\.sh: has 10,001 lines, .* at most 10,000"):
        refuse_too_many_lines("x\n" * (MOST_LINES + 1), "job.sh")


def test_yaml_of_too_many_merges_is_refused_with_the_bound() -> None:
    text = "variables: &v {A: x}\n" + "".join(f"x{n}: {{<<: [*v, *v]}}\n" for n in range(101))
    with pytest.raises(InvalidInput, match="more than 100 merges"):
        read_yaml(text, "job.yaml")
