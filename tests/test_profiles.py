"""The shipped profiles of real clusters: each plans what its site documents, and refuses what its site refuses."""

from __future__ import annotations

import datetime
import math
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from slurmgpu.errors import PlanError
from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder, read_templates
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import Cluster, Limits, NodeGroup, Partition, QosRule
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.site import Source
from slurmgpu.planning.nodes import gpu_type_matches
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.check import check_script
from slurmgpu.script.render import render_script
from slurmgpu.script.rules.base import Facts

ROOT = Path(__file__).resolve().parent.parent
NAMES = sorted(path.stem for path in data_folder("clusters").glob("*.yaml"))


@cache
def profile(name: str) -> Cluster:
    return load_cluster(data_folder("clusters") / f"{name}.yaml")


def plan_on(cluster: Cluster, resources: dict[str, Any], **values: Any) -> Plan:
    values.setdefault("command", ["python", "train.py"])
    job = validate(Job, Layered({"resources": resources, **values}, {}), "job")
    return make_plan(job, cluster, Surroundings(work_dir="/w"))


def asked(cluster: Cluster, partition: str | None = None, **resources: Any) -> dict[str, Any]:
    """Resources with what the site requires of every job, and its profile does not give it."""
    rule = cluster.dialect.account
    given = {"account": (rule.example if rule else None) or "proj"}
    required = {name: given[name] for name in cluster.dialect.required if name in given}
    if partition is not None and cluster.dialect.partition != "never":
        required["partition"] = partition
    if "gpu_type" in cluster.dialect.required and not cluster.gpu_types and resources.get("gpus", 1) != 0:
        required["gpu_type"] = "a100"  # the profile does not know the types
    return {**required, **{name: value for name, value in resources.items() if value is not None}}


def planned(name: str, partition: str | None = None, **resources: Any) -> Plan:
    return plan_on(profile(name), asked(profile(name), partition, **resources))


def refused(name: str, partition: str | None = None, **resources: Any) -> PlanError:
    """The refusal; the warning in its place where the profile only guesses what is against the job."""
    try:
        made = planned(name, partition, **resources)
    except PlanError as error:
        return error
    (doubt,) = [one for one in made.warnings if "that is a guess of the profile" in one]
    assert profile(name).guessed
    said, _, ways = doubt.partition("what would fit by it: ")
    return PlanError(said, hint=f"what would fit: {ways}")


def groups(name: str) -> list[tuple[str, NodeGroup]]:
    """Every kind of node whose number of GPUs is known, with one type of GPU each."""
    parts = profile(name).partitions.items()
    return [(key, group) for key, part in parts for group in part.kinds if group.gpu_count]


def peers(name: str, partition: str, group: NodeGroup) -> list[NodeGroup]:
    """The kinds of node that a request for this group's type could go to."""
    cluster, kind = profile(name), group.gpu_type
    nodes = cluster.partitions[partition].kinds
    return [one for one in nodes if kind is None or gpu_type_matches(cluster, kind, one.gpu_type)]


def open_qos(cluster: Cluster, part: Partition) -> list[QosRule]:
    """The QOS of which the planner may choose one for a job that names none; none: it names none either."""
    if cluster.dialect.qos is not None:
        return [cluster.qos[cluster.dialect.qos]]
    if "qos" not in cluster.dialect.required:
        return []
    legal = {name: rule for name, rule in cluster.qos.items() if not part.qos or name in part.qos}
    return [rule for rule in legal.values() if not rule.by_name and not rule.preemptible]


def most(limits: Limits, what: str, gpu_type: str | None = None) -> float:
    """The most GPUs or nodes of a job under some limits."""
    found = [getattr(limits, f"max_{what}"), getattr(limits.per_user, what), getattr(limits.in_all, what)]
    if what == "gpus" and gpu_type is not None:
        found += [limits.max_gpus_by_type.get(gpu_type), limits.per_user.gpus_by_type.get(gpu_type)]
    return min((value for value in found if value is not None), default=math.inf)


def most_there(name: str, partition: str, what: str, gpu_type: str | None = None) -> float:
    """The most GPUs or nodes of a job in a partition, under its limits and those of any QOS it may have."""
    cluster = profile(name)
    part = cluster.partitions[partition]
    by_qos = [most(rule.limits, what, gpu_type) for rule in open_qos(cluster, part)]
    return min(most(part.limits, what, gpu_type), max(by_qos, default=math.inf))


# What a profile says of itself


@pytest.mark.parametrize(
    ("date", "days"),
    [("2026-11-20", 6), ("2026-10", 26), (2021, 1791), ("2026", 0), ("2025-12", 330), ("unknown", None)],
)
def test_a_sources_age_is_that_of_its_own_date_or_at_least_so_old(date: object, days: int | None) -> None:
    source = Source.model_validate({"text": "a page", "date": date})
    assert source.days_old(datetime.date(2026, 11, 26)) == days


def test_a_date_that_is_none_is_told_with_what_to_write() -> None:
    with pytest.raises(ValidationError, match=r"'last year' is no day .* write unknown where it states none"):
        Source.model_validate({"text": "a page", "date": "last year"})


def broader_types(cluster: Cluster) -> set[str]:
    """Types whose nodes carry a finer name: a100, of either memory."""
    names = set(cluster.gpu_types)
    return {name for name in names if any(other.startswith(f"{name}-") for other in names)}


def named_types(cluster: Cluster) -> Iterator[str]:
    """The types of GPU that limits, charges and account rules name."""
    limits = [part.limits for part in cluster.partitions.values()]
    limits += [rule.limits for rule in cluster.qos.values()]
    for one in limits:
        yield from one.max_gpus_by_type
        yield from one.per_user.gpus_by_type
        yield from one.in_all.gpus_by_type
    for part in cluster.partitions.values():
        yield from part.billing.gpu_by_type if part.billing else ()
    yield from cluster.dialect.account.suffix_by_gpu_type if cluster.dialect.account else ()


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_says_what_it_describes_where_it_was_read_and_when(name: str) -> None:
    cluster = profile(name)
    assert cluster.name == name
    assert cluster.description
    assert cluster.source.text.startswith("typed from ")
    assert cluster.source.read is not None
    assert cluster.source.date != cluster.source.read, "the source's own date counts, not the day of reading"
    assert cluster.covers or not cluster.partitions
    assert "cannot hold" not in (data_folder("clusters") / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_type_qos_and_partition_that_is_named_exists(name: str) -> None:
    cluster = profile(name)
    on_nodes = {group.gpu_type for part in cluster.partitions.values() for group in part.kinds}
    for kind in on_nodes - {None} - set(cluster.gpu_types):
        assert re.fullmatch(r"[a-z0-9_.]+", str(kind)), "neither described nor Slurm's own word"
    broader = {known.gres for known in cluster.gpu_types.values()} | broader_types(cluster)
    assert set(cluster.gpu_types) <= on_nodes | broader, "a type is described that no node has"
    assert set(named_types(cluster)) <= on_nodes, (
        "a limit, a charge or an account names a type that no node has"
    )
    for part in cluster.partitions.values():
        assert set(part.qos) | set(part.denied_qos) <= set(cluster.qos)
    for rule in cluster.qos.values():
        assert set(rule.partitions) <= set(cluster.partitions)
    for kind, known in cluster.gpu_types.items():
        for group in (group for part in cluster.partitions.values() for group in part.nodes):
            if known.constraint and group.gpu_type == kind and group.features:
                assert set(known.constraint.split("&")) <= set(group.features), (
                    "features of another type's nodes"
                )


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_to_be_guessed_exists_and_is_guessed_of_a_kind_of_node_everywhere(name: str) -> None:
    cluster = profile(name)
    for key, why in cluster.guessed.items():
        assert why
        value: Any = cluster
        for part in key.split("."):
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        assert value
    guessed = [part for part in cluster.partitions if f"partitions.{part}.nodes" in cluster.guessed]
    kinds = [group for part in guessed for group in cluster.partitions[part].nodes]
    for part, partition in cluster.partitions.items():
        assert part in guessed or not [group for group in partition.nodes if group in kinds], part


def test_the_account_that_messages_show_is_one_of_the_sites() -> None:
    for rule in filter(None, (profile(name).dialect.account for name in NAMES)):
        assert rule.example is not None
        assert re.fullmatch(rule.pattern or ".+", rule.example), rule
        assert rule.example.endswith((rule.suffix or "", *rule.suffix_by_gpu_type.values())), rule


def test_the_documentation_lists_every_shipped_profile_and_no_other() -> None:
    text = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[`([\w-]+)`\]\(\.\./examples/clusters/\1\.yaml\) \|", text, flags=re.MULTILINE)
    assert sorted(listed) == NAMES


# What fits


def can_be_named(name: str, partition: str, group: NodeGroup) -> bool:
    """Whether the profile has a way to ask for this group's type where the partition has others too."""
    cluster = profile(name)
    known = cluster.gpu_types.get(group.gpu_type or "")
    alone = {one.gpu_type for one in cluster.partitions[partition].kinds if one.gpu_count} == {group.gpu_type}
    unnamed = group.gpu_type is None
    return unnamed or alone or cluster.dialect.gpu_type_by == "request" or bool(known and known.constraint)


def first_for_gpus(name: str) -> str | None:
    """The first partition with GPUs."""
    parts = profile(name).partitions
    return next((key for key, part in parts.items() if any(one.gpu_count != 0 for one in part.kinds)), None)


@pytest.mark.parametrize("name", NAMES)
def test_one_gpu_fits_everywhere_and_no_plan_holds_what_the_site_refuses_or_check_finds(name: str) -> None:
    made = planned(name, first_for_gpus(name), gpus=1)
    assert (made.nodes, made.gpus_per_node, made.processes_per_node) == (1, 1, 1)
    several = (
        {"gpus": 2, "time": "00:30:00"},
        {"nodes": 2, "gpus_per_node": 1},
        {"nodes": 2, "gpus_per_node": 4},
    )
    for resources in ({"gpus": 1}, *several):
        try:
            made = planned(name, first_for_gpus(name), **resources)
        except PlanError:
            continue  # not to be had there
        assert not {option.name for option in made.options} & set(profile(name).dialect.forbidden)
        script = parse_batch_script(render_script(made, read_templates()))
        assert check_script(script, Facts(cluster=profile(name)), least="warning") == [], resources


@pytest.mark.parametrize("name", NAMES)
def test_full_nodes_are_planned_unless_there_are_not_so_many_or_limits_forbid_it(name: str) -> None:
    for partition, group in groups(name):
        for nodes in (1, 2):
            full_nodes(name, partition, group, nodes)


def full_nodes(name: str, partition: str, group: NodeGroup, nodes: int) -> None:
    limits = profile(name).partitions[partition].limits
    gpus, kind = group.gpu_count or 0, group.gpu_type
    resources = {"nodes": nodes, "gpus_per_node": gpus, "gpu_type": kind}
    if not can_be_named(name, partition, group):
        assert "takes no type of GPU in a request" in refused(name, partition, **resources).message
        return
    same = [one for one in peers(name, partition, group) if (one.gpu_count or 0) >= gpus]
    counts = [one.count for one in same]
    enough = None in counts or sum(count or 0 for count in counts) >= nodes
    least = (limits.min_nodes or 0) <= nodes and (limits.min_gpus or 0) <= nodes * gpus
    allowed = most_there(name, partition, "gpus", kind) >= nodes * gpus
    allowed = allowed and most_there(name, partition, "nodes") >= nodes
    if not (enough and least and allowed):
        assert re.search(
            r"at most \d+ |at least \d+ |such nodes", refused(name, partition, **resources).message
        )
        return
    made = planned(name, partition, **resources)
    assert (made.nodes, made.gpus_per_node) == (nodes, gpus)
    if made.cpus_per_task is not None and None not in [one.cpus for one in same]:
        assert any(made.cpus_per_task * made.tasks_per_node <= (one.cpus or 0) for one in same)
    if made.memory is not None and None not in [one.memory for one in same]:
        assert any(one.memory is not None and not made.memory > one.memory for one in same)


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed: apt-get install shellcheck"
)
def test_scripts_for_every_cluster_are_clean_by_shellcheck(tmp_path: Path) -> None:
    templates = read_templates()
    for name in NAMES:
        made = planned(name, first_for_gpus(name), gpus=1)
        (tmp_path / f"{name}-1.sbatch").write_text(render_script(made, templates), encoding="utf-8")
    scripts = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(["shellcheck", "--shell=bash", *scripts], capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0


@pytest.mark.parametrize("name", [name for name in NAMES if profile(name).environments])
def test_the_environments_of_a_profile_render(name: str) -> None:
    for key, environment in profile(name).environments.items():
        made = plan_on(profile(name), asked(profile(name), first_for_gpus(name), gpus=1), environment=key)
        script = render_script(made, read_templates())
        for module in environment.modules.load if environment.modules else ():
            assert f"module load {module}" in script or module in script


# What does not fit


def least(part: Partition) -> dict[str, int]:
    """The smallest job that a partition takes."""
    nodes = part.limits.min_nodes or 1
    if all(kind.gpu_count == 0 for kind in part.kinds) and part.kinds:
        return {"nodes": nodes}
    return {"nodes": nodes, "gpus_per_node": max(1, -(-(part.limits.min_gpus or 1) // nodes))}


def one_too_many(part: Partition) -> Iterator[tuple[dict[str, Any], str]]:
    """Jobs that are over one limit of a partition, and what their refusal says."""
    limits, job = part.limits, least(part)
    gpus = "gpus_per_node" in job
    if limits.max_time is not None and limits.max_time.seconds:
        yield {**job, "time": limits.max_time.seconds // 60 + 1}, f"allows at most {limits.max_time}"
    for row in limits.max_time_by_nodes:
        over = {**job, "nodes": row.nodes, "time": (row.max_time.seconds or 0) // 60 + 1}
        yield over, f"allows at most {row.max_time} on up to {row.nodes:,} nodes"
    if limits.max_node_time is not None and limits.max_nodes != 1:
        minutes = (limits.max_node_time.seconds or 0) // 120 + 1
        yield {**job, "nodes": 2, "time": minutes}, "nodes times time"
    if limits.max_nodes is not None:
        yield {**job, "nodes": limits.max_nodes + 1}, r"nodes? a job|such nodes|\d GPUs? (a|of each)"
    if limits.min_nodes is not None and limits.min_nodes > 1:
        yield {**job, "nodes": limits.min_nodes - 1}, "wants at least"
    if limits.min_gpus is not None and limits.min_gpus > 1:
        yield {"gpus": limits.min_gpus - 1}, "wants at least"
    if limits.max_gpus is not None:
        yield {"gpus": limits.max_gpus + 1}, "GPUs"
    for gpu_type, number in (*limits.max_gpus_by_type.items(), *limits.per_user.gpus_by_type.items()):
        yield (
            {"gpus": number + 1, "gpu_type": gpu_type},
            rf"{number} {re.escape(gpu_type)} GPUs?|{number} GPUs? a",
        )
    for number in (limits.max_cpus, limits.per_user.cpus):
        if number is not None and gpus:
            yield {"gpus": 1, "cpus_per_gpu": number + 1}, "CPUs"
    if limits.per_user.gpus is not None:
        yield {"gpus": limits.per_user.gpus + 1}, "GPUs? a (user|job)|cannot be spread"
    if limits.per_user.nodes is not None:
        yield {**job, "nodes": limits.per_user.nodes + 1}, "nodes? a (user|job)|such nodes"
    for memory in (limits.max_memory, limits.max_memory_in_all, limits.per_user.memory):
        if memory is not None:
            yield {**job, "memory": f"{memory.mib + 1}M"}, "a node|a job|a user|for each GPU"


@pytest.mark.parametrize("name", NAMES)
def test_each_limit_of_each_partition_is_kept(name: str) -> None:
    for partition, part in profile(name).partitions.items():
        for resources, says in one_too_many(part):
            error = refused(name, partition, **resources)
            assert re.search(says, error.message), (partition, resources, error.message)
            assert error.hint, (partition, resources)


@pytest.mark.parametrize(
    ("name", "qos"), [(name, qos) for name in NAMES for qos in profile(name).qos], ids=str
)
def test_each_limit_of_each_qos_is_kept(name: str, qos: str) -> None:
    cluster, rule = profile(name), profile(name).qos[qos]
    legal = [key for key, part in cluster.partitions.items() if not part.qos or qos in part.qos]
    partition = next(iter(rule.partitions or legal))
    base = least(cluster.partitions[partition])
    if rule.limits.max_time is not None and rule.limits.max_time.seconds:
        over = rule.limits.max_time.seconds // 60 + 1
        assert "allows at most" in refused(name, partition, **base, qos=qos, time=over).message
        made = planned(name, partition, **base, qos=qos, time=over - 1)
        assert {option.name: option.value for option in made.options}["qos"] == qos
    if rule.limits.max_nodes is not None:
        resources = {**base, "nodes": rule.limits.max_nodes + 1}
        assert re.search(
            "nodes? a job|such nodes|GPUs", refused(name, partition, **resources, qos=qos).message
        )
    for number in (rule.limits.max_gpus, rule.limits.per_user.gpus):
        if number is not None:
            message = refused(name, partition, gpus=number + 1, qos=qos).message
            assert re.search("GPUs? a|such nodes|nodes? a job", message)
    if rule.partitions and set(rule.partitions) != set(cluster.partitions):
        other = next(key for key in cluster.partitions if key not in rule.partitions)
        message = refused(name, other, **least(cluster.partitions[other]), qos=qos).message
        assert "legal only in" in message or "takes only QOS" in message


@pytest.mark.parametrize("name", NAMES)
def test_more_gpus_cpus_or_memory_than_a_node_or_a_gpu_may_have_are_refused_with_what_fits(name: str) -> None:
    dialect = profile(name).dialect
    for partition, group in groups(name):
        where, kind, same = (partition, group), group.gpu_type, peers(name, partition, group)
        has = max(one.gpu_count or 0 for one in same)
        error = refused(name, partition, gpus_per_node=has + 1, gpu_type=kind)
        assert re.search(rf"{has} GPUs? a node|at most \d+ .*GPUs? a |takes no type", error.message), where
        assert "what would fit: " in (error.hint or ""), where
        if not can_be_named(name, partition, group):
            continue
        caps = [one.max_cpus_per_gpu or one.cpus for one in same]
        if dialect.cpus == "none":
            assert "refuses a request" in refused(name, partition, gpus=1, cpus_per_task=1).message, where
        elif None not in caps:
            cpus = max(cap for cap in caps if cap) + 1
            error = refused(name, partition, gpus=1, gpu_type=kind, cpus_per_gpu=cpus)
            assert "CPUs" in error.message or "at least" in error.message, where
        memories = [one.max_memory_per_gpu or one.memory for one in same]
        if dialect.memory == "none":
            assert "gives memory by itself" in refused(name, partition, gpus=1, memory="1G").message, where
        elif None not in memories:
            mib = max(memory.mib for memory in memories if memory)
            error = refused(name, partition, gpus=1, gpu_type=kind, memory=f"{mib + 1}M")
            assert "are asked for" in error.message, where


def unstated(name: str) -> bool:
    """Whether the type of some GPUs is not stated: they may be of any."""
    groups = [group for partition in profile(name).partitions.values() for group in partition.nodes]
    return any(group.gpus is None and group.gpu_type is None for group in groups)


@pytest.mark.parametrize("name", [name for name in NAMES if profile(name).known and not unstated(name)])
def test_an_unknown_type_is_refused_with_the_known_ones(name: str) -> None:
    error = refused(name, gpus=1, gpu_type="b999")
    assert "has no b999 (its types: " in error.message
    assert "gpu_type: " in (error.hint or "") or "any type of GPU" in (error.hint or "")


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in NAMES for option in profile(name).dialect.required]
)
def test_what_the_site_requires_is_asked_for_or_given_by_the_plan(name: str, option: str) -> None:
    cluster = profile(name)
    resources = {key: value for key, value in asked(cluster, gpus=1).items() if key != option}
    if option == "gpu_type" and not cluster.gpu_types:
        with pytest.raises(PlanError, match="refuses GPUs without a type"):
            plan_on(cluster, resources)
        return
    if option == "account":
        with pytest.raises(PlanError, match=r"resources\.account is missing") as caught:
            plan_on(cluster, resources)
        assert "/--account" in (caught.value.hint or "")
        return
    made = plan_on(cluster, resources)
    options = {one.name: one.value for one in made.options}
    if option == "gpu_type":
        asks = options.get("gres") or options.get("gpus-per-node") or options.get("gpus") or ""
        assert re.search(r"[a-z][\w-]*:1\Z", asks.removeprefix("gpu:"))
    elif option == "qos":
        assert options["qos"] in cluster.qos
    else:
        assert options[option]


# What published scripts of the site ask for


PUBLISHED = YAML(typ="safe").load(ROOT / "tests" / "data" / "published_requests.yaml")

# What the plan says of every job, whether or not a script does.
_ALWAYS = {"job-name", "chdir", "no-requeue"}
_SLURMS_DEFAULTS = {"nodes": "1", "ntasks-per-node": "1"}


@pytest.mark.parametrize("case", PUBLISHED)
def test_the_plan_asks_as_the_sites_published_script_does(case: str) -> None:
    script = PUBLISHED[case]
    made = plan_on(profile(script["cluster"]), script["resources"], **script.get("job", {}))
    options = {option.name: option.value for option in made.options}
    expected = script["options"] | script.get("added", {})
    for name in _ALWAYS - set(expected):
        options.pop(name, None)
    for name, value in _SLURMS_DEFAULTS.items():
        if name not in expected and options.get(name) == value:
            del options[name]
    assert options == expected


def test_where_the_job_names_no_gpus_the_step_asks_for_them_and_torchrun_is_not_the_default() -> None:
    made = planned("olcf-frontier", gpus=16)
    assert made.launcher == "srun"
    assert "advises against torchrun" in next(one.why for one in made.reasons if one.what == "launcher")
    assert "--gpus-per-task=1 --gpu-bind=closest" in render_script(made, read_templates())
    by_name = plan_on(profile("olcf-frontier"), asked(profile("olcf-frontier"), gpus=16), launch="torchrun")
    assert "--gpus-per-task=8" in render_script(by_name, read_templates())
    uneven = {"nodes": 1, "gpus_per_node": 8, "tasks_per_node": 3}
    assert "cannot be split evenly over 3 tasks" in refused("olcf-frontier", **uneven).message


def test_adastras_jobs_ask_for_gpus_by_node() -> None:
    made = planned("cines-adastra", nodes=2, gpus_per_node=8)
    assert (made.option("gpus-per-node"), made.launcher) == ("8", "torchrun")


@pytest.mark.parametrize("name", ["cscs-clariden", "cscs-daint", "cscs-santis"])
def test_cscs_takes_jobs_without_an_account(name: str) -> None:
    assert plan_on(profile(name), {"gpus": 4}).option("account") is None


def test_a_cluster_that_has_ended_is_planned_on_with_a_warning_that_names_its_successor() -> None:
    made = planned("csc-puhti", gpus=1)
    assert made.warnings[0] == (
        "cluster 'csc-puhti' has ended: no job runs there since 2026-07-31 "
        "(CSCfi/csc-user-guide: docs/computing/systems-puhti.md); csc-roihu follows it"
    )
    assert not any("has ended" in one for one in planned("csc-roihu", gpus=1).warnings)


@pytest.mark.parametrize("name", [name for name in NAMES if profile(name).retired])
def test_what_follows_a_cluster_that_has_ended_is_a_profile_that_has_not(name: str) -> None:
    retired = profile(name).retired
    assert retired.successor in NAMES
    assert profile(retired.successor).retired is None


def test_the_login_shell_of_iris_is_in_its_scripts_first_line() -> None:
    script = render_script(planned("ulhpc-iris", gpus=1), read_templates())
    assert script.splitlines()[0] == "#!/bin/bash -l"


def test_a_fresh_environment_at_hortense_still_reaches_the_steps() -> None:
    script = render_script(planned("vsc-hortense", gpus=8), read_templates())
    assert "#SBATCH --export=NONE" in script
    assert "export SLURM_EXPORT_ENV=ALL" in script


# What the profiles ask of the planner


def test_cpus_and_memory_given_per_gpu_are_held_against_the_node() -> None:
    error = refused("lumi-g", gpus=2, cpus_per_gpu=29)
    assert "has 56 CPUs a node, 58 are asked for" in error.message
    assert "fewer CPUs" in (error.hint or "")
    error = refused("lumi-g", gpus=2, memory_per_gpu="241G")
    assert "has 480 GiB of memory a node, 482 GiB are asked for" in error.message
    assert "less memory" in (error.hint or "")


def test_memory_given_per_cpu_is_held_against_the_node() -> None:
    assert "are asked for" in refused("lumi-g", gpus=1, cpus_per_task=7, memory_per_cpu="69G").message
    assert planned("lumi-g", gpus=1, cpus_per_task=7, memory_per_cpu="68G").memory is not None


def test_a_request_without_a_type_gets_whole_gpus_not_slices() -> None:
    made = planned("nhr-grete", gpus=8)
    assert (made.partition, made.nodes, made.gpus_per_node) == ("gpu-a100", 2, 4)
    assert planned("csc-mahti", gpus=1).cpus_per_task == 32
    assert "slices for it, which are given by name" in refused("nhr-grete", gpus_per_node=8).message


def test_a_slice_is_given_to_who_asks_for_it() -> None:
    made = planned("csc-mahti", gpus="a100_1g.5gb:1")
    assert ("gres", "gpu:a100_1g.5gb:1") in [(option.name, option.value) for option in made.options]
    assert planned("nhr-grete", gpus="2g.10gb:8").partition == "gpu-a100:shared:mig"
    assert planned("uva-afton", "gpu-mig", gpus=1).partition == "gpu-mig"


def test_nodes_whose_gpus_are_known_are_preferred() -> None:
    made = planned("ulhpc-iris", gpus=8)
    assert (made.partition, made.nodes, made.gpus_per_node) == ("gpu", 2, 4)


def test_the_share_comes_from_the_nodes_that_are_known() -> None:
    assert planned("psc-bridges2", gpus=1).cpus_per_task == 5


def test_a_partition_where_none_is_named_is_refused_or_passed_on_and_never_dropped() -> None:
    euler, mahuika = profile("ethz-euler"), profile("nesi-mahuika")
    with pytest.raises(PlanError, match="name no partition"):
        plan_on(euler, {**asked(euler, gpus=1), "partition": "gpu"})
    # A profile of some of a site's partitions knows nothing of the others.
    made = plan_on(mahuika, {**asked(mahuika, gpus=1), "partition": "milan"})
    assert made.option("partition") == "milan"
    assert any("'milan' is none of those" in one for one in made.warnings)


def test_what_fits_names_no_partition_where_none_may_be_named() -> None:
    assert "partition" not in (refused("nersc-perlmutter", gpus_per_node=5).hint or "")


def test_where_no_type_is_known_the_way_out_is_to_name_none() -> None:
    assert refused("bsc-mn5", gpus="a100:1").hint == "what would fit: any type of GPU (partition 'acc')"


class Charge(NamedTuple):
    """A job, and what the site's documentation says that it is charged."""

    cluster: str
    partition: str
    resources: dict[str, Any]
    charge: float
    unit: str


CHARGES = [
    Charge("ncsa-delta", "gpuA100x4", {"gpus": 2, "time": "04:00:00"}, 8.0, "service units"),
    Charge("ncsa-delta", "gpuA100x4-interactive", {"gpus": 2, "time": "01:00:00"}, 4.0, "service units"),
    Charge("ncsa-delta", "gpuA40x4-preempt", {"gpus": 4, "time": "01:00:00"}, 1.0, "service units"),
    # Half a node's CPUs are charged as two GPUs' shares of them.
    Charge(
        "ncsa-delta", "gpuA100x4", {"gpus": 1, "cpus_per_task": 32, "time": "01:00:00"}, 2.0, "service units"
    ),
    # The site's own example: 270000 of 360000 MB are three quarters of a node.
    Charge(
        "nrel-kestrel",
        "gpu-h100",
        {"gpus": 2, "cpus_per_task": 32, "memory": "270000M", "time": "01:00:00"},
        75.0,
        "AU",
    ),
    Charge("nhr-grete", "gpu-a100", {"gpus": 4, "time": "02:00:00"}, 1200.0, "core hours"),
    Charge("nhr-grete", "gpu-a100:shared", {"gpus": 1, "time": "02:00:00"}, 300.0, "core hours"),
    Charge("nhr-grete", "gpu-a100:shared:mig", {"gpus": "2g.10gb:1", "time": "01:00:00"}, 47.0, "core hours"),
    Charge("cineca-leonardo", "boost_usr_prod", {"gpus": 4, "time": "01:00:00"}, 32.0, "core hours"),
    Charge("it4i-karolina", "qgpu", {"gpus": 8, "time": "03:00:00"}, 3.0, "node hours"),
    Charge("jhu-dsai", "h100", {"gpus": 2, "cpus_per_gpu": 30, "time": "01:00:00"}, 60.0, "core hours"),
    Charge("uq-bunya", "gpu_sxm", {"gpus": "h100:2", "time": "01:00:00"}, 200.0, "CPU-core hours"),
]


@pytest.mark.parametrize("charge", CHARGES, ids=lambda one: f"{one.cluster}-{one.partition}-{one.charge:g}")
def test_a_job_costs_what_the_site_documents(charge: Charge) -> None:
    made = planned(charge.cluster, charge.partition, **charge.resources)
    assert made.charge == pytest.approx(charge.charge, rel=1e-3)
    assert made.charge_unit == charge.unit
