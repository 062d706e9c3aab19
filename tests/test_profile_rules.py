"""Each documented rule of a site, as a job: what fits is planned in the site's dialect, the rest is refused with why."""

from __future__ import annotations

import re

import pytest

from slurmgpu.errors import PlanError
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import Surroundings, make_plan
from tests.profile_rules import ABSENT, REFUSALS, RULES, ProfileRule


def planned(rule: ProfileRule) -> Plan:
    cluster = load_cluster(data_folder("clusters") / f"{rule.profile}.yaml")
    layered = read_yaml(rule.job, rule.name)
    layered.data.setdefault("command", ["python", "train.py"])
    return make_plan(validate(Job, layered, "job"), cluster, Surroundings(work_dir="/w"))


@pytest.mark.parametrize("rule", [one for one in RULES if one.expected == "fits"], ids=lambda rule: rule.name)
def test_what_a_site_allows_is_planned_in_its_dialect(rule: ProfileRule) -> None:
    options = {option.name: option.value for option in planned(rule).options}
    assert {name: options.get(name, ABSENT) for name in rule.options} == dict(rule.options)


@pytest.mark.parametrize("rule", [one for one in RULES if one.expected != "fits"], ids=lambda rule: rule.name)
def test_what_a_site_refuses_is_refused_with_the_reason_and_a_way_out(rule: ProfileRule) -> None:
    with pytest.raises(PlanError) as caught:
        planned(rule)
    assert re.search(REFUSALS[rule.expected], caught.value.message)
    assert rule.says in caught.value.message
    assert caught.value.hint


def test_there_are_rules_of_most_profiles_and_none_twice() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names) >= 80
    shipped = {path.stem for path in data_folder("clusters").glob("*.yaml")}
    assert {rule.profile for rule in RULES} == shipped
