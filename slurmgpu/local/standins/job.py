"""The pretended job: what the stand-ins are told, and how they say what they did."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["PretendedJob", "node_names", "say", "say_once"]


@dataclass(frozen=True)
class PretendedJob:
    """The figures of the local run beside those that the script was written for."""

    job_id: int
    job_name: str
    nodes: int
    processes_per_node: int
    cpus_per_task: int
    gpus_per_node: int
    cpus_on_node: int
    partition: str
    submit_dir: str
    bash: str
    script: str
    python: str
    """Path of the Python that stands in for the site's."""
    loopback: str
    """Name of the loopback interface (``lo``, ``lo0``), empty where it is not known."""
    threads: int
    """This machine's CPUs over the processes of the run: the most that OMP_NUM_THREADS may be."""
    script_nodes: int
    script_tasks_per_node: int
    nice: int
    grace: float
    """Seconds between asking the processes to end and killing them."""
    python_path: str = ""
    """What comes first on PYTHONPATH."""
    devices: Sequence[str] = ()
    """The GPUs that are used, as many for each node; empty: the CPU stands in for them."""
    devices_variable: str = ""
    """What shows them to a process."""

    def save(self, folder: str) -> None:
        """Write it as ``job.json`` into the folder of the stand-ins."""
        Path(folder, "job.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, folder: str) -> PretendedJob:
        """Read what :meth:`save` wrote."""
        return cls(**json.loads(Path(folder, "job.json").read_text(encoding="utf-8")))

    def with_python_path(self, others: str) -> str:
        """PYTHONPATH with ours first: a script that sets its own would lose it."""
        rest = [path for path in others.split(os.pathsep) if path not in ("", self.python_path)]
        return os.pathsep.join([self.python_path, *rest])

    def shown_devices(self, node: int) -> dict[str, str]:
        """The variable that shows the processes of a node (0, 1, ...) its GPUs, and no others."""
        each = len(self.devices) // self.nodes
        if not each:
            return {"CUDA_VISIBLE_DEVICES": ""}
        return {self.devices_variable: ",".join(self.devices[node * each : (node + 1) * each])}


def node_names(nodes: int) -> list[str]:
    """Return the names of the pretended nodes: node1, node2, ..."""
    return [f"node{number}" for number in range(1, nodes + 1)]


def say(text: str) -> None:
    """Tell the user on stderr, in one write so that lines of several processes do not mix."""
    with contextlib.suppress(OSError):  # nobody reads; the job goes on
        sys.stderr.write(f"slurmgpu run: {text}\n")
        sys.stderr.flush()


def say_once(folder: str, text: str) -> None:
    """Tell the user the first time only, however many processes of the run say the same."""
    mark = Path(folder, "said-" + hashlib.sha256(text.encode()).hexdigest()[:24])
    try:
        mark.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return
    except OSError:
        pass  # the folder is on its way out: say it rather twice than never
    say(text)
