"""How `scontrol_*.json` and `sacctmgr_*.json` were made, as root:
`PYTHONPATH=. python -m tests.slurm.recorded.record_cluster RELEASE`.

Starts the Slurm of `tests.slurm.declared` in that release and writes what discovery's commands answer: to its
administrator, to another user where PrivateData hides what it can (`*_private_*`), and where accounting fails.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from slurmgpu.slurm import show
from slurmgpu.slurm.commands import reading_env
from tests.slurm.declared import DeclaredSlurm, declared_slurm, reserve
from tests.slurm.releases import first_on_path, root_for

PLAIN_NODES = 4
# Another user, who may still run a release that lies in a private folder.
STRANGER = (
    *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "env"),
)
PRIVATE = "accounts,cloud,jobs,nodes,reservations,usage,users"


def commands(user: str) -> dict[str, list[str]]:
    """What discovery asks."""
    return {
        "config": [*show.CONFIG],
        "partitions": [*show.PARTITIONS],
        "nodes": [*show.NODES],
        "reservations": [*show.RESERVATIONS],
        "licenses": [*show.LICENSES],
        "qos": show.qos_command(),
        "user": show.user_command(user, "declared"),
        "accounts": show.account_command(["mygroup", "other", "third"], "declared"),
    }


def record(slurm: DeclaredSlurm, folder: Path, variant: str, asked: dict[str, list[str]], *who: str) -> None:
    env = reading_env(slurm.env) | {"TZ": "UTC"}
    for name, argv in asked.items():
        done = subprocess.run([*who, *argv], env=env, capture_output=True, text=True, timeout=120)
        content = {"argv": argv, "rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        text = json.dumps(content, indent=1).replace(str(slurm.folder), "/etc/slurm")
        text = re.sub(r"/\S*/slurmgpu-tests/slurm-[^/]*/root", "", text)
        text = re.sub(r"(Port ?= ?|127\.0\.0\.1:|Port {1,30}= )\d+", r"\g<1>6817", text)
        (folder / f"{argv[0]}_{variant}_{name}.json").write_text(text + "\n")


def main(release: str) -> None:
    """Record everything."""
    folder = Path(__file__).parent / release
    year, month = map(int, release.split("."))
    with first_on_path(root_for(release)):
        with declared_slurm((year, month), "root", "root", plain_nodes=PLAIN_NODES) as slurm:
            reserve(slurm, "cpu3")
            record(slurm, folder, "cluster", commands("root"))
            conf = (slurm.folder / "slurm.conf").read_text()
            conf = re.sub(r"(?m)^AccountingStoragePort=.*", "AccountingStoragePort=1", conf)
            (slurm.folder / "slurm.conf").write_text(conf)
            record(slurm, folder, "no_slurmdbd", {"qos": show.qos_command()})
        with declared_slurm((year, month), "root", "root", plain_nodes=PLAIN_NODES, private=PRIVATE) as slurm:
            reserve(slurm, "cpu3")
            slurm.folder.chmod(0o755)
            (slurm.folder / "slurm.conf").chmod(0o644)
            record(slurm, folder, "private", commands("nobody"), *STRANGER)


if __name__ == "__main__":
    main(sys.argv[1])
