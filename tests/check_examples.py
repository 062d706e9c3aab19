"""For each rule of ``slurmgpu check`` a script that it speaks of, and one, much alike, that it does not.

Everything but the rule's own fault is right; ``head`` and ``body`` are put below the shebang. A script that starts with
``#!`` or otherwise is whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import Cluster
from slurmgpu.planning.checklist import check_training_loop
from slurmgpu.planning.python_script import parse_python_script as read_python


class Example(NamedTuple):
    """One rule's examples."""

    failing: str
    passing: str


def script(text: str) -> str:
    """A whole script from an example: its options, a blank line, its commands."""
    return text if text.startswith(("#!", "# (", "\ufeff")) else f"#!/bin/bash\n{text}\n"


CLUSTER = validate(
    Cluster,
    read_yaml(
        """
name: site
default_partition: standard
partitions:
  standard: {nodes: [{count: 10, names: "c[1-10]", cpus: 40}], limits: {max_time: 7-00:00:00}}
  gpu:
    nodes: [{count: 4, names: "g[1-4]", gpus: 4, gpu_type: a100, cpus: 64, memory: 500G, features: [nvme], gres: {lscratch: 800}}]
    limits: {max_time: 3-00:00:00, max_nodes: 2}
    requires_gpu: true
  old: {nodes: [{count: 2, names: "o[1-2]", cpus: 16, features: [hdd]}], state: drain}
qos: {normal: {}, long: {}}
associations: [{account: mine, qos: [normal]}]
licenses: {matlab: 2}
dialect: {required: [account, time], forbidden: [mincpus], login_shell: true, account: {pattern: "theirs|lab_.+", example: lab_a}}
slurm: {release: 24.11.5, enforces: [associations, limits, qos]}
""",
        "the examples' cluster",
    ),
    "cluster",
)
"""What the rules that know a cluster are tried on."""

CHECKLIST = YAML(typ="safe").load(Path(__file__).parent / "data" / "checklist.yaml")


def loop_with(changes: list[dict[str, str]]) -> str:
    """The checklist's healthy loop with some words replaced."""
    text: str = CHECKLIST["healthy"]
    for one in changes:
        assert text.count(one["out"]) == 1, one["out"]
        text = text.replace(one["out"], one.get("in", ""))
    return text


PYTHON = {
    name: read_python(name, text)._replace(slips=check_training_loop([(name, text)]))
    for name, text in {
        "spawning.py": "import torch.multiprocessing as mp\nmp.spawn(print)\n",
        "ddp.py": "import torch.distributed as dist\ndist.init_process_group()\n",
        "healthy.py": CHECKLIST["healthy"],
        **{f"{name}.py": loop_with(changes) for name, changes in CHECKLIST["faults"].items()},
    }.items()
}
"""Python scripts that the examples start."""

PATHS = {
    "/data": "folder", "/data/there": "folder", "/data/logs": "missing", "/data/gone": "missing",
    "/data/logs/a.log": "missing", "/data/there/a.log": "missing",
}  # fmt: skip
"""What is on disk where the examples are submitted, /data."""

MODULES = frozenset({"cuda", "cuda/12.4", "cuda/11.8", "openmpi", "openmpi/5.0"})
"""What `module avail` lists there."""


EXAMPLES = {
    name: Example(**texts)
    for name, texts in YAML(typ="safe").load(Path(__file__).parent / "data" / "check_examples.yaml").items()
}
