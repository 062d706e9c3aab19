"""One unchanged job file on every cluster: does it run to its end? On real twins of all shipped profiles.

For each profile that describes partitions, and for the newest and the installed release of Slurm: a Slurm of the same
partitions, limits and kinds of node is started, with nodes that run jobs on pretend GPUs. `slurmgpu submit` gets the same
job file for each, with the account that the twin knows. What counts is what Slurm says became of the job, and that each of
its processes said which GPU it has.

    python benchmarks/one_job.py --releases 22.05 mila
    python benchmarks/one_job.py --write        # all profiles; adds to results/one_job.json, which docs/reference shows
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from portions import RELEASES, Portions, commit, installed, on_release
from twins import MIXED, Twin, described, shipped, with_few_nodes

JOB = """\
name: hello
resources: {gpus: 2, time: 10}
launch: srun
command: [python3, hello.py]
"""
HELLO = """\
import os

rank, of, gpus = os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ.get("CUDA_VISIBLE_DEVICES", "all")
print("rank", rank, "of", of, "has", gpus, flush=True)
"""
NEWEST = max(RELEASES, key=lambda name: tuple(map(int, name.split("."))))


def run(profile: str, release: str) -> dict[str, Any]:
    """What became of the job on one twin."""
    with (
        on_release(release),
        Twin(with_few_nodes(described(profile)), live=True) as twin,
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
    ):
        (Path(folder) / "job.yaml").write_text(JOB)
        (Path(folder) / "hello.py").write_text(HELLO)
        submit = [sys.executable, "-m", "slurmgpu", "submit", "job.yaml"]
        options = ["--cluster", profile, "--account", twin.shape.accounts[0]]
        done = subprocess.run(
            [*submit, *options, "--wait"],
            cwd=folder,
            env=twin.env,
            capture_output=True,
            text=True,
            timeout=240,
        )
        row: dict[str, Any] = {
            "profile": profile, "slurm": release, "version": twin.version, "seed": 0, "requests": 1,
            "commit": commit(), "date": datetime.date.today().isoformat(), "account": options[-1],
        }  # fmt: skip
        number = next(iter(done.stdout.split()), "")
        shown = twin.run("scontrol", "show", "job", number).stdout if number.isdigit() else ""
        about = dict(re.findall(r"(\S+?)=(\S*)", shown))
        said = sorted(
            line
            for log in Path(folder).rglob("*.out")
            for line in log.read_text(errors="replace").splitlines()
            if line.startswith("rank ")
        )
        row |= {"state": about.get("JobState", ""), "partition": about.get("Partition", ""), "said": said}
        ranks = [" ".join(line.split()[:4]) for line in said]
        if row["state"] == "COMPLETED" and ranks == ["rank 0 of 2", "rank 1 of 2"]:
            return row | {"differing": []}
        errors = [line for line in done.stderr.splitlines() if "warning" not in line] or ["nothing was said"]
        said_last = re.sub(r"/\S*/", "", " ".join(" ".join(errors).split()).partition(" hint:")[0])
        return row | {"differing": [{"rc": done.returncode, "because": said_last[-600:]}]}


def show(row: dict[str, Any]) -> str:
    """A line for a twin."""
    why = "".join(str(one["because"]) for one in row["differing"])
    return f"{row['profile']:<20}{row['version']:<10}{row['state'] or 'refused':<12}{', '.join(row['said'])} {why}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profiles", nargs="*", default=[one for one in shipped() if one != MIXED["name"]])
    parser.add_argument("--releases", nargs="*", default=[installed(), NEWEST], metavar="RELEASE")
    parser.add_argument("--write", action="store_true", help="add to results/one_job.json")
    options = parser.parse_args()
    portions = Portions("one_job.json")
    for profile in options.profiles:
        for release in dict.fromkeys(options.releases):
            if options.write and portions.has(profile=profile, slurm=release, seed=0, requests=1):
                continue
            began = time.monotonic()
            try:
                row = run(profile, release)
            except Exception:  # the others still can
                traceback.print_exc()
                continue
            print(show(row), f"{time.monotonic() - began:.0f} s", flush=True)
            if options.write:
                portions.add(row)


if __name__ == "__main__":
    main()
