"""Faults that scripts have: each is caught with its line, what happens and what to do, and its healthy neighbour is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from slurmgpu.files.clusters import load_cluster
from slurmgpu.models.site import SlurmSetup
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.check import check_script
from slurmgpu.script.rules.base import Facts, Finding
from tests.check_examples import CLUSTER, MODULES, PATHS, PYTHON, script

READ = YAML(typ="safe").load(Path(__file__).parent / "data" / "check_faults.yaml")


def found(text: str, rule: str) -> list[Finding]:
    for name, head in READ["heads"].items():
        text = text.replace(f"<{name}>", head)
    facts = Facts("/data", PATHS, PYTHON, modules=MODULES, shells=READ["shells"])
    return [one for one in check_script(parse_batch_script(script(text)), facts) if one.rule == rule]


@pytest.mark.parametrize("name", READ["faults"])
def test_a_fault_is_said_with_its_line_what_happens_and_what_to_do(name: str) -> None:
    fault = READ["faults"][name]
    rule, line, happens, do = fault["said"]
    (one,) = found(fault["faulty"], rule)
    assert one.line == line
    assert happens in one.message
    assert do in one.fix
    assert found(fault["healthy"], rule) == []


def test_what_only_looks_like_a_fault_is_let_be() -> None:
    said = {text: found(text, rule) for rule, texts in READ["healthy"].items() for text in texts}
    assert {text: one for text, one in said.items() if one} == {}


def test_what_may_well_be_meant_is_a_hint() -> None:
    said = {
        text: {one.severity for one in found(text, rule)}
        for rule, texts in READ["hints"].items()
        for text in texts
    }
    assert {text: one for text, one in said.items() if one != {"hint"}} == {}


def on_profile(name: str, options: str, body: str) -> set[str]:
    site = load_cluster(Path(__file__).parent.parent / "examples" / "clusters" / f"{name}.yaml")
    text = "".join(f"#SBATCH {one}\n" for one in options.split())
    return {
        one.rule for one in check_script(parse_batch_script(script(f"{text}\n{body}")), Facts(cluster=site))
    }


def test_images_on_amds_gpus_need_no_option() -> None:
    body = "srun singularity run image.sif python train.py"
    lumi = on_profile("lumi-g", "-Aproject_465000001 -psmall-g --gpus-per-node=1 -c7", body)
    delta = on_profile("ncsa-delta", "-Aa-delta-gpu -pgpuA40x4 --gpus-per-node=1 -c7", body)
    assert ("container-without-gpus" in lumi, "container-without-gpus" in delta) == (False, True)


def test_devices_may_be_named_where_the_job_has_all_of_the_node() -> None:
    body = "export CUDA_VISIBLE_DEVICES={}\npython train.py"
    for gpus, devices, told in ((4, "0,1,2,3", False), (4, "0,1,2,7", True), (2, "0,1", True)):
        found_there = on_profile(
            "jsc-juwels-booster", f"-Ax -pbooster --gres=gpu:{gpus}", body.format(devices)
        )
        assert ("visible-devices" in found_there) is told, devices


def test_an_array_is_held_against_the_cluster_s_own_limit() -> None:
    facts = Facts(cluster=CLUSTER.model_copy(update={"slurm": SlurmSetup(max_array_size=5001)}))
    text = parse_batch_script(script(f"#SBATCH --array=0-{4000}\n#SBATCH --output=%A_%a.out"))
    assert "bad-array" not in {one.rule for one in check_script(text, facts)}
    text = parse_batch_script(script("#SBATCH --array=0-5001\n#SBATCH --output=%A_%a.out"))
    assert [one.severity for one in check_script(text, facts) if one.rule == "bad-array"] == ["error"]


def test_bash_in_a_script_of_dash_is_an_error() -> None:
    assert [one.severity for one in found("#!/bin/dash\n\n[[ -d a ]]\n", "bash-in-sh")] == ["error"]


def test_no_cpus_is_certain_where_slurm_itself_was_asked() -> None:
    text = parse_batch_script(script("#SBATCH --partition=gpu\n#SBATCH --gres=gpu:4\n\nsrun python train.py"))
    given = {"gpu": CLUSTER.partitions["gpu"].model_copy(update={"default_cpus_per_gpu": 8})}
    sure, by_site = CLUSTER, CLUSTER.model_copy(update={"partitions": CLUSTER.partitions | given})
    said = [
        [one.severity for one in check_script(text, Facts(cluster=cluster)) if one.rule == "no-cpus"]
        for cluster in (sure, by_site)
    ]
    assert said == [["warning"], []]
