"""Each documented rule of a site, as a job: what fits is planned in the site's dialect, the rest is refused with why.

``tests/data/profile_rules/PROFILE.yaml`` holds them, by what the site says. ``job`` gets a command. It is refused for what
``refused`` names, with ``says`` in the message, or it fits: ``options`` are a part of the plan's sbatch options (null: one
without a value), and none of those under ``without`` is there. Beside a refusal mostly stands the job at its limit.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ruamel.yaml import YAML

from slurmgpu.errors import PlanError
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder, read_templates
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script
from tests.tables import TABLES

# What the message of a refusal matches, by what is refused.
REFUSALS = {
    "time": r"allows at most [\d:-]+|nodes times time",
    "nodes": r"\d+ nodes? (a job|a user|in all)|such nodes|wants at least",
    "gpus": r"\d+ GPUs? (a job|a user|a node|in all|each)|wants at least|GPUs of each",
    "gpu_type": r"has no |takes no type|\w+ GPUs? a (job|user)", "cpus": r"CPUs?\b", "memory": r"memory|GiB|MiB",
    "account": r"resources\.account", "qos": r"QOS|resources\.qos", "partition": r"partition",
    "gres": r"has \d+ \w+ a node", "option": r"refuses jobs with --|refuses a request|gives memory by itself",
}  # fmt: skip


class Rule(NamedTuple):
    """One documented rule of a site as a job."""

    profile: str
    says: str
    told: dict[str, Any]

    def plan(self) -> Plan:
        return planned(self.profile, Layered(self.told["job"], {(): Origin(f"{self.profile}: {self.says}")}))


def planned(profile: str, job: str | Layered, cluster: Cluster | None = None) -> Plan:
    cluster = cluster or load_cluster(data_folder("clusters") / f"{profile}.yaml")
    layered = read_yaml(job, profile) if isinstance(job, str) else job
    layered.data = {"command": ["python", "train.py"], **layered.data}
    return make_plan(validate(Job, layered, "job"), cluster, Surroundings(work_dir="/w"))


_YAML = YAML(typ="safe", pure=True)
RULES = [
    Rule(path.stem, says, told)
    for path in sorted((Path(__file__).parent / "data" / "profile_rules").glob("*.yaml"))
    for says, told in _YAML.load(path).items()
]


def rules(outcome: str | None) -> list[Any]:
    """Those that are refused, those that are doubted because the profile guessed, and (None) the rest."""
    return [
        pytest.param(one, id=f"{one.profile}: {one.says}")
        for one in RULES
        if next((key for key in ("refused", "doubted") if key in one.told), None) == outcome
    ]


@pytest.mark.parametrize("rule", rules(None))
def test_what_a_site_allows_is_planned_in_its_dialect(rule: Rule) -> None:
    options = {option.name: option.value for option in rule.plan().options}
    expected = rule.told.get("options", {})
    assert {name: options.get(name, "(absent)") for name in expected} == expected
    assert options.keys().isdisjoint(rule.told.get("without", ()))


@pytest.mark.parametrize("rule", rules("doubted"))
def test_what_a_site_refuses_by_a_figure_that_is_guessed_is_planned_with_a_warning(rule: Rule) -> None:
    said = "; ".join(rule.plan().warnings)
    assert re.search(REFUSALS[rule.told["doubted"]], said)
    assert rule.told.get("says", "") in said
    assert "guess" in said


@pytest.mark.parametrize("rule", rules("refused"))
def test_what_a_site_refuses_is_refused_with_the_reason_and_a_way_out(rule: Rule) -> None:
    with pytest.raises(PlanError) as caught:
        rule.plan()
    assert re.search(REFUSALS[rule.told["refused"]], caught.value.message)
    assert rule.told.get("says", "") in caught.value.message
    assert caught.value.hint


def test_a_rule_says_nothing_that_is_not_looked_at() -> None:
    for rule in RULES:
        assert rule.told.keys() <= {
            "job",
            *(
                ("refused", "doubted", "says")
                if {"refused", "doubted"} & {*rule.told}
                else ("options", "without")
            ),
        }


@pytest.mark.parametrize(
    ("profile", "resources", "way"),
    TABLES["test_the_first_way_out_is_the_nearest"],
)
def test_the_first_way_out_is_the_nearest(profile: str, resources: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        planned(profile, f"{{resources: {resources}}}")
    assert (caught.value.hint or "").startswith(f"what would fit: {way}")


def test_there_are_rules_of_every_shipped_profile() -> None:
    assert len(RULES) >= 180
    assert {rule.profile for rule in RULES} == {path.stem for path in data_folder("clusters").glob("*.yaml")}


PLUG_INS = [
    ("cscs-daint", "pytorch-uenv", {"uenv": "pytorch/v2.8.0:/user-environment", "view": "default"}),
    ("cscs-clariden", "pytorch-uenv", {"uenv": "pytorch/v2.8.0:/user-environment", "view": "default"}),
]


@pytest.mark.parametrize(("profile", "environment", "options"), PLUG_INS)
def test_a_plug_ins_environment_asks_for_it(profile: str, environment: str, options: dict[str, str]) -> None:
    job = f"{{resources: {{account: a_g, gpus: 1}}, environment: {environment}}}"
    made = {option.name: option.value for option in planned(profile, job).options}
    assert {name: made.get(name) for name in options} == options


def test_shifter_runs_the_command_and_not_only_its_name_among_the_options() -> None:
    job = "{resources: {account: a_g, gpus: 1, qos: debug, time: 5}, environment: pytorch-shifter}"
    text = render_script(planned("nersc-perlmutter", job), read_templates())
    assert re.search(r"shifter --image=docker:nersc/pytorch:25\.06\.01 --module=gpu,nccl-plugin", text)


def test_a_jobs_own_option_goes_before_the_environments() -> None:
    job = "{resources: {account: a, gpus: 1}, environment: pytorch-uenv, sbatch: {view: develop}}"
    options = {option.name: option.value for option in planned("cscs-daint", job).options}
    assert (options["view"], options["uenv"]) == ("develop", "pytorch/v2.8.0:/user-environment")


def test_an_environments_srun_options_stand_on_every_srun() -> None:
    job = (
        "{resources: {account: a, gpus: 4}, launch: {launcher: srun, srun_options: [--label]}, "
        "environment: {srun_options: [--environment=ngc-pytorch]}}"
    )
    assert planned("cscs-clariden", job).srun_options == ("--environment=ngc-pytorch", "--label")


def test_a_type_without_a_price_has_no_charge_rather_than_none_to_pay() -> None:
    job = "{resources: {account: a_g, qos: gpu, gpus: 'nvidia_h100_80gb_pcie_4g.40gb:1', memory: 10G, time: 60}}"
    assert planned("uq-bunya", job).charge == 50
    cluster = load_cluster(data_folder("clusters") / "uq-bunya.yaml")
    part = cluster.partitions["gpu_cuda"]
    part = part.model_copy(update={"billing": part.billing.model_copy(update={"gpu_by_type": {"a100": 50}})})
    assert (
        planned("uq-bunya", job, cluster.model_copy(update={"partitions": {"gpu_cuda": part}})).charge is None
    )


def test_a_job_that_names_no_type_is_not_sent_to_other_cards_because_they_are_cheaper() -> None:
    job = "{resources: {account: abcd-delta-gpu, gpus: 1, time: 60}}"
    assert planned("ncsa-delta", job).partition == "gpuA100x4"


def test_an_account_that_any_type_of_the_partition_would_end_in_is_completed() -> None:
    job = "{resources: {account: abc, gpus: 4, time: 60, partition: gpu_p13}}"
    options = {option.name: option.value for option in planned("idris-jean-zay", job).options}
    assert options["account"] == "abc@v100"


def test_an_account_that_fits_the_sites_pattern_is_left_as_it_is() -> None:
    job = "{resources: {account: six@gpu, gpus: 'v100-16g:1', time: 60}}"
    options = {option.name: option.value for option in planned("idris-jean-zay", job).options}
    assert options["account"] == "six@gpu"
