"""Commands that computing centres document, held against their profiles: by ``slurmgpu check`` and by the planner."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slurmgpu.files.clusters import load_cluster
from slurmgpu.models.cluster import Cluster
from slurmgpu.planning.judging_options import judge_options
from slurmgpu.script.batch_script import Script, parse_batch_script
from slurmgpu.script.check import check_script
from slurmgpu.script.rules import RULES
from slurmgpu.script.rules.base import Facts

# The errors on them, and the warnings of rules that know the cluster, each looked at: by site, page and rule why it is true.
TRUE = {
    (
        "csc-roihu",
        "docs/apps/julia.md",
        "gpus-not-there",
    ): "the site's table of partitions: 4 GPUs a job in gpumedium",
    ("cscs-daint", "sciapps/cp2k.md", "bad-word"): "sbatch has no hint exclusive (seen on 20.11 to 26.05)",
    ("cscs-daint", "sciapps/lammps.md", "bad-word"): "the same",
    ("nesi-mahuika", "COMSOL.md", "bad-memory"): "sbatch has no unit B",
    ("nesi-mahuika", "TUFLOW.md", "bad-gres"): "the type comes before the count",
    ("ulhpc-iris", "compute.md", "cpu-share"): "28 CPUs are all that a node has, for 2 of its 4 GPUs",
    ("ucr-hpcc", "R_for_HPC.md", "over-time"): "the site's queue policies: 2 hours in short",
}


class Command(NamedTuple):
    """One documented command."""

    site: str
    page: str
    text: str


@cache
def commands() -> list[Command]:
    text = (Path(__file__).parent / "data" / "documented_commands.json").read_text(encoding="utf-8")
    sites: dict[str, Any] = json.loads(text)["sites"]
    return [
        Command(site, page, one)
        for site, facts in sites.items()
        for page, those in facts["pages"].items()
        for one in those
    ]


SITES = list(dict.fromkeys(one.site for one in commands()))


@cache
def profile(site: str) -> Cluster:
    return load_cluster(Path(__file__).parent.parent / "examples" / "clusters" / f"{site}.yaml")


def script(command: Command) -> Script:
    options = re.split(r" (?=--[a-z])", command.text)[1:]
    lines = [re.sub(r"=(.*)", r'="\1"', option) for option in options]
    return parse_batch_script(
        "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), "", "./app", ""])
    )


def test_they_are_those_of_30_sites_and_more() -> None:
    assert len(SITES) >= 30
    assert len(commands()) >= 580


@pytest.mark.parametrize("site", SITES)
def test_every_error_on_a_documented_command_is_true(site: str) -> None:
    for command in [one for one in commands() if one.site == site]:
        for found in check_script(script(command), Facts(cluster=profile(site))):
            alarms = found.severity == "error" or (
                RULES[found.rule].needs_cluster and found.severity == "warning"
            )
            true = any(
                found.rule == rule and site == where and command.page.endswith(page)
                for where, page, rule in TRUE
            )
            assert true or not alarms, (command, found)


def test_the_errors_that_were_looked_at_are_still_found() -> None:
    seen = {
        (command.site, page, found.rule)
        for command in commands()
        for site, page, _ in TRUE
        if command.site == site and command.page.endswith(page)
        for found in check_script(script(command), Facts(cluster=profile(site)), least="warning")
    }
    assert set(TRUE) <= seen


@pytest.mark.parametrize("site", SITES)
def test_the_planner_refuses_no_documented_command_that_is_right(site: str) -> None:
    wrong = {(where, page) for where, page, _ in TRUE}
    for command in [one for one in commands() if one.site == site]:
        if (site, next((page for _, page in wrong if command.page.endswith(page)), None)) in wrong:
            continue
        options = {name: one.value for name, one in script(command).effective().items()}
        assert judge_options(profile(site), options) == [], command
