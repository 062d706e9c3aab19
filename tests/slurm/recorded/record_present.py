"""How `*_present_*.json` were made: `PYTHONPATH=. python -m tests.slurm.recorded.record_present RELEASE`.

Starts the Slurm of `tests.slurm.situations` in that release, in which jobs wait for every reason that can be provoked, and
writes what `why` and `cluster gpus` ask.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from slurmgpu.slurm import show
from slurmgpu.slurm.book import book_command
from slurmgpu.slurm.commands import reading_env
from slurmgpu.slurm.squeue import partition_queue_command, request_command
from slurmgpu.slurm.text import SEPARATOR
from tests.recorded import RECORDED_WITH
from tests.slurm.releases import first_on_path, root_for
from tests.slurm.situations import SHAPE, Situations, situations


def commands(slurm: Situations) -> dict[str, list[str]]:
    """What is asked, by what it is about."""
    user = slurm.must("id", "-un")
    several = [*request_command(0)]
    several[several.index("--jobs=0")] = f"--jobs={','.join(map(str, slurm.jobs.values()))}"
    return {
        "config": [*show.CONFIG],
        "nodes": [*show.NODES_IN_DETAIL],
        "partitions": [*show.PARTITIONS],
        "reservations": [*show.RESERVATIONS],
        "licenses": [*show.LICENSES],
        "queue": partition_queue_command([one.name for one in SHAPE.partitions]),
        "asked": several,
        "book": ["scontrol", "-o", "show", "assoc_mgr", "flags=users,assoc,qos"],
        "book_of_one": book_command(user, "third", ("usergpu", "normal")),
        "user": show.user_command(user, "waits"),
        "qos": show.qos_command(),
    }


def main(release: str) -> None:
    """Record everything."""
    folder = Path(__file__).parent / release
    with first_on_path(root_for(release)), situations() as slurm:
        slurm.settle()
        for name, argv in commands(slurm).items():
            env = {"env": reading_env(slurm.env) | {"TZ": "UTC"}}
            done = slurm.run(*argv, **env)
            content = {
                "argv": [word.replace(SEPARATOR, RECORDED_WITH) for word in argv],
                "rc": done.returncode,
                "stdout": done.stdout.replace(SEPARATOR, RECORDED_WITH),
                "stderr": done.stderr,
            }
            text = json.dumps(content, indent=1)
            text = text.replace(str(slurm.folder), "/etc/slurm")
            text = re.sub(r"/\S*/slurmgpu-tests/slurm-[^/]*/root", "", text)
            text = re.sub(r"(Port ?= ?|127\.0\.0\.1:|Port {1,30}= )\d+", r"\g<1>6817", text)
            (folder / f"{argv[0]}_present_{name}.json").write_text(text + "\n")
        jobs = json.dumps({"jobs": slurm.jobs, "refused": slurm.refused}, indent=1)
        (folder.parent / "present" / f"{release}.json").write_text(
            jobs.replace(str(slurm.folder), "/etc/slurm") + "\n"
        )


if __name__ == "__main__":
    main(sys.argv[1])
