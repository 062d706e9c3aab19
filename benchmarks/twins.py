"""Twins for comparisons: a Slurm like a described cluster, in a temporary folder, with or without nodes that run jobs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from slurmgpu.files.clusters import load_cluster
from slurmgpu.files.data import data_folder
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import Cluster, NodeGroup
from slurmgpu.sandbox.configuration import Shape
from slurmgpu.sandbox.programs import slurm_version
from slurmgpu.sandbox.starting import Started, client_env, start
from slurmgpu.sandbox.twin import GPUS, twin_of

__all__ = ["MIXED", "MOST_NODES", "Twin", "described", "shipped", "with_few_nodes"]

MOST_NODES = 3
"""Nodes of a kind where they run jobs: as many as show whether types are mixed."""

# What untyped requests get mixed: two types on a node, whole GPUs beside slices of two sizes, two types side by side.
MIXED: dict[str, Any] = {
    "name": "mixed",
    "partitions": {
        "mixed": {"nodes": [{"count": 3, "gpus": {"a100": 2, "a30": 2}, "cpus": 32, "memory": "100G"}]},
        "sliced": {
            "nodes": [
                {"count": 2, "gpus": {"a100_2g.10gb": 4, "a100_3g.20gb": 4}, "cpus": 32, "memory": "100G"},
                {"count": 2, "gpus": {"a100": 3, "a100_1g.5gb": 7}, "cpus": 32, "memory": "100G"},
                {
                    "count": 2,
                    "gpus": 4,
                    "gpu_type": "a100",
                    "cpus": 32,
                    "memory": "100G",
                    "threads_per_core": 2,
                },
            ]
        },
        "apart": {
            "nodes": [
                {"count": 2, "gpus": 4, "gpu_type": "v100", "cpus": 32, "memory": "100G"},
                {"count": 3, "gpus": 8, "gpu_type": "h100", "cpus": 96, "memory": "1000G"},
            ]
        },
        "shared": {
            "nodes": [
                {"count": 2, "gpus": 4, "gpu_type": "l40s", "shards": 16, "cpus": 32, "memory": "100G"},
                {"count": 1, "gpus": 2, "gpu_type": "a40", "shards": 16, "cpus": 32, "memory": "100G"},
            ]
        },
        "whole": {
            "whole_nodes": True,
            "nodes": [
                {"count": 2, "gpus": 4, "gpu_type": "mi250x", "cpus": 32, "memory": "100G"},
                {"count": 2, "gpus": {"a100": 2, "a30": 2}, "cpus": 32, "memory": "100G"},
            ],
        },
    },
}


def shipped() -> list[str]:
    """The profiles that describe partitions, and the mixed cluster."""
    names = sorted(path.stem for path in data_folder("clusters").glob("*.yaml"))
    return [MIXED["name"], *(name for name in names if described(name).known)]


def described(name: str) -> Cluster:
    """A profile, or the mixed cluster."""
    if name == MIXED["name"]:
        known = {"slurm": {"release": slurm_version()}}
        return validate(Cluster, Layered(MIXED | known, {}), "cluster")
    return load_cluster(data_folder("clusters") / f"{name}.yaml")


def with_few_nodes(cluster: Cluster) -> Cluster:
    """The same with few nodes of each kind."""

    def few(group: NodeGroup) -> NodeGroup:
        gpus = GPUS if group.gpus is None else group.gpus  # as many as the twin assumes
        count = min(group.count or MOST_NODES, MOST_NODES)
        return group.model_copy(update={"count": count, "names": None, "gpus": gpus})

    partitions = {
        key: one.model_copy(update={"nodes": tuple(map(few, one.nodes))})
        for key, one in cluster.partitions.items()
    }
    return cluster.model_copy(update={"partitions": partitions})


class Twin:
    """A Slurm like a described cluster; its nodes run jobs where it is ``live``."""

    def __init__(self, cluster: Cluster, *, live: bool = False) -> None:
        self.shape: Shape = twin_of(cluster)[0].model_copy(update={"live": live})
        self.folder = Path(tempfile.mkdtemp(prefix="twin-", dir="/tmp")).resolve()
        self.env = client_env(self.folder)
        self.started: Started | None = None
        self.version = slurm_version()

    def __enter__(self) -> Twin:
        if self.shape.live:
            self.at_home()
        self.started = start(
            self.folder, name="twin", cluster="twin", shape=self.shape, accounting=True, seconds=300,
            on={"configured": self._configured},
        )  # fmt: skip
        return self

    def at_home(self) -> None:
        """A login shell, which some sites want, begins with a PATH of its own: that of the twin is put back."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / ".bash_profile").write_text(f"export PATH={shlex.quote(self.env['PATH'])}\n")
        self.env["HOME"] = str(home)

    def _configured(self) -> None:
        conf = self.folder / "slurm.conf"
        if self.shape.live:
            # A job that starts in a fresh environment (--export=NONE) would have this machine's own Slurm first, which may
            # be of another release than the twin. Any other has the twin's already, and perhaps more before it.
            path = self.env["PATH"]
            fresh = [f"echo {shlex.quote(f'export {name}={self.env[name]}')}" for name in ("HOME", "PATH")]
            with (self.folder / "task_prolog").open("a") as prolog:
                prolog.write(
                    f'case ":$PATH:" in *{shlex.quote(f":{path}:")}*) ;; *) {"; ".join(fresh)} ;; esac\n'
                )
        # The machine is slow for so many nodes; and no job is to be ended for another.
        conf.write_text(
            re.sub("(?m)^PreemptType=.*$", "PreemptType=preempt/none", conf.read_text())
            .replace("PreemptMode=REQUEUE\n", "PreemptMode=OFF\n")
            .replace("PreemptMode=REQUEUE", "PreemptMode=OFF")
            + "MessageTimeout=60\nBatchStartTimeout=120\nMinJobAge=20\n"
        )
        if self.version.startswith(
            "20.11"
        ):  # a node that wakes for a cancelled job would do so for ever: none wakes
            conf.write_text(re.sub("(?m)^SuspendTime=.*$", "SuspendTime=-1", conf.read_text()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.started is not None:
            self.started.end()

    def run(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """One of Slurm's commands there."""
        return subprocess.run(words, input=text, env=self.env, capture_output=True, text=True, timeout=120)

    def learned(self) -> Cluster:
        """The twin as discovery writes it."""
        path = self.folder / "learned.yaml"
        discover = ["cluster", "discover", "--name", "learned", "--to", str(path)]
        done = subprocess.run(
            [sys.executable, "-m", "slurmgpu", *discover],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(f"slurmgpu {' '.join(discover)}: {done.stderr}")
        return load_cluster(path)
