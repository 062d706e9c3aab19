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
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.surroundings import Surroundings
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


@pytest.mark.parametrize(
    ("profile", "resources", "way"),
    [
        (
            "olcf-frontier",
            "{account: a, nodes: 100, gpus_per_node: 8, time: '1-00:00:00'}",
            "nodes: 64, gpus_per_node: 8",
        ),
        ("olcf-frontier", "{account: a, gpus: 80000, time: '1-00:00:00'}", "gpus: 512 "),
        (
            "olcf-frontier",
            "{account: a, nodes: 3, gpus_per_node: 9, time: 60}",
            "nodes: 3, gpus_per_node: 8 ",
        ),
        ("mila", "{account: a, gpus: 999, time: 60}", "gpus: 4 "),
        ("dfki-pegasus", "{gpus: 'a100-40:1', cpus_per_gpu: 300, time: 60}", "fewer CPUs "),
    ],
)
def test_the_first_way_out_is_the_nearest(profile: str, resources: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        planned(ProfileRule(profile, "", f"{{resources: {resources}}}"))
    assert (caught.value.hint or "").startswith(f"what would fit: {way}")


def test_there_are_rules_of_most_profiles_and_none_twice() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names) >= 80
    shipped = {path.stem for path in data_folder("clusters").glob("*.yaml")}
    assert {rule.profile for rule in RULES} == shipped


PLUG_INS = [
    ("cscs-daint", "pytorch-uenv", {"uenv": "pytorch/v2.8.0:/user-environment", "view": "default"}),
    ("cscs-clariden", "pytorch-uenv", {"uenv": "pytorch/v2.8.0:/user-environment", "view": "default"}),
    (
        "nersc-perlmutter",
        "pytorch-shifter",
        {"image": "nersc/pytorch:25.06.01", "module": "gpu,nccl-plugin"},
    ),
]


@pytest.mark.parametrize(("profile", "environment", "options"), PLUG_INS)
def test_an_environment_of_a_plug_in_asks_for_it(
    profile: str, environment: str, options: dict[str, str]
) -> None:
    job = f"{{resources: {{account: a_g, gpus: 1}}, environment: {environment}}}"
    made = {option.name: option.value for option in planned(ProfileRule(profile, environment, job)).options}
    assert {name: made.get(name, ABSENT) for name in options} == options


def test_a_jobs_own_option_goes_before_the_environments() -> None:
    job = "{resources: {account: a, gpus: 1}, environment: pytorch-uenv, sbatch: {view: develop}}"
    options = {option.name: option.value for option in planned(ProfileRule("cscs-daint", "", job)).options}
    assert (options["view"], options["uenv"]) == ("develop", "pytorch/v2.8.0:/user-environment")


def test_an_environments_srun_options_stand_on_every_srun() -> None:
    job = (
        "{resources: {account: a, gpus: 4}, launch: {launcher: srun, srun_options: [--label]}, "
        "environment: {srun_options: [--environment=ngc-pytorch]}}"
    )
    assert planned(ProfileRule("cscs-clariden", "", job)).srun_options == (
        "--environment=ngc-pytorch",
        "--label",
    )


def test_a_type_without_a_price_has_no_charge_rather_than_none_to_pay() -> None:
    job = "{resources: {account: a_g, qos: gpu, gpus: 'nvidia_h100_80gb_pcie_4g.40gb:1', memory: 10G, time: 60}}"
    assert planned(ProfileRule("uq-bunya", "", job)).charge is None


def test_a_job_that_names_no_type_is_not_sent_to_other_cards_because_they_are_cheaper() -> None:
    job = "{resources: {account: abcd-delta-gpu, gpus: 1, time: 60}}"
    assert planned(ProfileRule("ncsa-delta", "", job)).partition == "gpuA100x4"


def test_an_account_that_any_type_of_the_partition_would_end_in_is_completed() -> None:
    job = "{resources: {account: abc, gpus: 4, time: 60, partition: gpu_p13}}"
    options = {
        option.name: option.value for option in planned(ProfileRule("idris-jean-zay", "", job)).options
    }
    assert options["account"] == "abc@v100"


def test_an_account_that_fits_the_sites_pattern_is_left_as_it_is() -> None:
    job = "{resources: {account: six@gpu, gpus: 'v100-16g:1', time: 60}}"
    options = {
        option.name: option.value for option in planned(ProfileRule("idris-jean-zay", "", job)).options
    }
    assert options["account"] == "six@gpu"
