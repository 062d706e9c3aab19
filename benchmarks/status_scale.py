"""What `slurmgpu status` costs Slurm and this machine: calls, time and memory, by the number of jobs and of those who watch.

    python benchmarks/status_scale.py [--sizes 1000,10000,100000] [--real N] [--watchers N] [--rounds N] [--json FILE]

Recorded: a squeue and a sacct that print rows of that many jobs at once, so that what is measured is slurmgpu; the medians of
whole processes. Real: a Slurm of its own with that many jobs, where beside slurmgpu stand squeue, squeue --json where this
Slurm has it, and what turm (every 2 s, each of them) and reportseff ask. Calls are counted by the programs that are asked.
Watchers: so many `status --watch`, begun at different moments, against one, in the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurmgpu.slurm import sacct, squeue  # noqa: E402
from tests.slurm.throwaway import ThrowawaySlurm  # noqa: E402

STATUS = [sys.executable, "-m", "slurmgpu", "status"]
WATCHED_SECONDS = 75
# fmt: off
TURM = (
    "jobid", "name", "state", "username", "timeused", "tres-alloc", "partition", "nodelist", "stdout", "stderr", "command",
    "statecompact", "reason", "ArrayJobID", "ArrayTaskID", "NodeList", "WorkDir",
)
# fmt: on
REPORTSEFF = "JobIDRaw,JobID,State,Elapsed,TotalCPU,AllocCPUS,REQMEM,NNodes,MaxRSS,Timelimit,AdminComment,NTasks,Partition"
JSON_READER = """
import json, subprocess
for job in json.loads(subprocess.check_output(["squeue", "--me", "--json"]))["jobs"]:
    print(job["job_id"], job["name"], job["job_state"], job["partition"], job["state_reason"])
"""
SEPARATOR = "@SEPARATOR@"
SQUEUE = """#!/bin/sh
echo squeue >> {log}
for word; do last=$word; done
separator=${{last##*:}}
exec sed "s/{sep}/$separator/g" {rows}
"""
SACCT = """#!/bin/sh
echo sacct >> {log}
for word; do case $word in --delimiter=*) separator=${{word#--delimiter=}} ;; esac; done
exec sed "s/{sep}/$separator/g" {rows}
"""
PASSED_ON = """#!/bin/sh
echo {name} >> {log}
exec {program} "$@"
"""


def rows(size: int, fields: Sequence[str], of: str) -> Iterator[str]:
    """Rows of so many jobs: a third waits, a third runs, a third has ended; accounting has twice as many."""
    dice = random.Random(size)
    for number in range(1, size + 1):
        state = (
            ("RUNNING", "PENDING", "COMPLETED")[number % 3]
            if of == "squeue" or number <= size // 2
            else "FAILED"
        )
        known = {
            "JobArrayID": f"{number}", "JobID": f"{number}", "JobIDRaw": f"{number}", "Cluster": "recorded",
            "UserName": "root", "User": "root", "Account": "mygroup", "Partition": dice.choice(("gpu", "cpu", "long")),
            "QOS": "normal", "State": state, "Reason": "Priority" if state == "PENDING" else "None", "TimeUsed": "1:02:03",
            "TimeLimit": "1-00:00:00", "TimeLeft": "22:57:57", "SubmitTime": "1795233801", "StartTime": "1795233901",
            "EndTime": "1795243901", "Submit": "1795233801", "Start": "1795233901", "End": "1795243901",
            "ElapsedRaw": "10000", "TimelimitRaw": "1440", "NumNodes": "2", "NNodes": "2", "NumCPUs": "32", "NCPUS": "32",
            "NodeList": f"node[{number % 90 + 10:03}-{number % 90 + 11:03}]",
            "tres-alloc": "cpu=32,mem=128G,node=2,billing=32,gres/gpu=8,gres/gpu:a100=8",
            "AllocTRES": "billing=32,cpu=32,gres/gpu:a100=8,gres/gpu=8,mem=128G,node=2", "RestartCnt": "0",
            "exit_code": "0", "ExitCode": "1:0" if state == "FAILED" else "0:0", "Name": f"train-{number}-é",
            "JobName": f"train-{number}-é", "WorkDir": "/scratch/ada/project", "StdOut": "/scratch/ada/project/logs/%j.out",
            "Command": f"/scratch/ada/project/runs/run-{number}/script.sbatch",
        }  # fmt: skip
        yield "".join(f"{known.get(name, '')}{SEPARATOR}" for name in fields) + "\n"


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def recorded(folder: Path, size: int) -> dict[str, str]:
    """An environment whose Slurm prints rows of so many jobs."""
    place = folder / f"recorded-{size}"
    (place / "bin").mkdir(parents=True)
    for name, fields, text in (("squeue", squeue.FIELDS, SQUEUE), ("sacct", sacct.FIELDS, SACCT)):
        with (place / name).open("w") as file:
            file.writelines(rows(size, fields, name))
        filled = text.format(log=place / "calls", sep=SEPARATOR, rows=place / name)
        program(place / "bin" / name, filled)
    return environment(place, f"{place / 'bin'}:{os.environ['PATH']}")


def environment(place: Path, path: str, given: dict[str, str] | None = None) -> dict[str, str]:
    """No settings of the user's, answers shared with nobody else, modules compiled once."""
    for name in ("config", "site", "session", "work"):
        (place / name).mkdir(exist_ok=True)
    inherited = dict(os.environ if given is None else given)
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    return {
        **inherited,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(place / "config"),
        "SLURMGPU_SITE": str(place / "site"),
        "XDG_RUNTIME_DIR": str(place / "session"),
        "PYTHONPYCACHEPREFIX": str(place.parent / "bytecode"),
    }


def once(argv: Sequence[str], env: dict[str, str], cwd: Path) -> dict[str, float]:
    """Seconds, CPU seconds and MB of one process, with what it started."""
    with (cwd / "said").open("wb") as out:
        began = time.perf_counter()
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "mb": used.ru_maxrss / 1024,
        "exit_code": process.returncode,
        "bytes": (cwd / "said").stat().st_size,
    }


def several(argv: Sequence[str], env: dict[str, str], place: Path, rounds: int) -> dict[str, float]:
    """The medians, and how often Slurm was asked each time: never answered from what was told before."""
    found = []
    calls = place / "calls"
    for _ in range(rounds):
        shutil.rmtree(place / "session" / "slurmgpu", ignore_errors=True)
        calls.write_text("")
        found.append({**once(argv, env, place / "work"), "calls": len(calls.read_text().splitlines())})
    told = {name: round(statistics.median(one[name] for one in found), 3) for name in found[0]}
    return told | {"least_seconds": round(min(one["seconds"] for one in found), 3)}


def of_recorded(folder: Path, sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    libraries = [sys.executable, "-c", "import click, pydantic"]
    for size in sizes:
        env = recorded(folder, size)
        place = folder / f"recorded-{size}"
        once([*STATUS, "--help"], env, place / "work")
        told = {
            "status": several(STATUS, env, place, rounds),
            "status --json": several([*STATUS, "--json"], env, place, rounds),
            "its libraries alone": several(libraries, env, place, rounds),
            "squeue (the same rows, printed)": several(["squeue", f"-O:{SEPARATOR}"], env, place, rounds),
        }
        once(STATUS, env, place / "work")
        told["status, answered by what another was told"] = shared(env, place, rounds)
        found[str(size)] = told
        print(size, json.dumps(told, indent=1), flush=True)
        for name in ("squeue", "sacct"):
            (place / name).unlink()
    return found


def shared(env: dict[str, str], place: Path, rounds: int) -> dict[str, float]:
    """A status within the floor of another."""
    (place / "work" / "slurmgpu.yaml").write_text("poll_floor: 3600\n")
    once(STATUS, env, place / "work")
    (place / "calls").write_text("")
    found = [once(STATUS, env, place / "work") for _ in range(rounds)]
    (place / "work" / "slurmgpu.yaml").unlink()
    told = {name: round(statistics.median(one[name] for one in found), 3) for name in found[0]}
    return told | {"calls": len((place / "calls").read_text().splitlines())}


def of_watchers(env: dict[str, str], place: Path, watchers: int) -> dict[str, int]:
    """How often Slurm is asked in the same time by one who watches, and by many who began at different moments."""
    found = {}
    for number in (1, watchers):
        shutil.rmtree(place / "session" / "slurmgpu", ignore_errors=True)
        (place / "calls").write_text("")
        until = time.monotonic() + WATCHED_SECONDS
        running = []
        for _ in range(number):
            running.append(
                subprocess.Popen([*STATUS, "--watch"], env=env, cwd=place / "work", stdout=subprocess.DEVNULL)
            )
            time.sleep(20 / number)
        time.sleep(max(0.0, until - time.monotonic()))
        found[str(number)] = len((place / "calls").read_text().splitlines())
        for one in running:
            one.terminate()
        for one in running:
            one.wait()
    return found


def submit(env: dict[str, str], work: Path, jobs: int) -> None:
    """So many jobs, array tasks counted: some end well, badly or by cancellation, and a third of all are tasks of arrays.

    One job has all nodes then, and the others wait, some of them held.
    """
    tasks, tenth = jobs // 6, jobs // 10
    quick = "-n 1 --mem=10M -t 5 -o /dev/null"
    script = f"""
        cd {work}
        for i in $(seq {tenth // 2}); do sbatch -Q {quick} -J ended-$i --wrap true; done
        for i in $(seq {tenth // 2}); do sbatch -Q {quick} -J failed-$i --wrap 'exit 3'; done
        sbatch -Q {quick} -J ended-array --array=0-{tenth - 1} --wrap 'exit $((SLURM_ARRAY_TASK_ID % 7 == 0))'
        while [ -n "$(squeue -h)" ]; do sleep 1; done
        sbatch -Q -N 4 --exclusive -J first -o /dev/null --wrap 'exec sleep 100000'
        while [ -z "$(squeue -h -n first -t R)" ]; do sleep 1; done
        sbatch -Q {quick} -J array --array=0-{tasks - 1}%8 --wrap true
        sbatch -Q {quick} -J held-array -H --array=1-{tasks} --wrap true
        for i in $(seq {tenth}); do sbatch -Q {quick} -J held-$i -H --wrap true; done
        for i in $(seq {tenth // 2}); do sbatch -Q {quick} -J cancelled-$i --wrap true; done
        scancel --state=PENDING $(squeue -h -o '%A %j' | sed -n 's/ cancelled-.*//p')
        for i in $(seq {jobs - 2 * tasks - 3 * tenth - tenth // 2}); do sbatch -Q {quick} -J waits-$i --wrap true; done
        sleep 10
    """
    subprocess.run(["bash", "-c", script], env=env, check=True, stdout=subprocess.DEVNULL)


def told_by_slurm(env: dict[str, str]) -> dict[str, str]:
    """The state of each job and task: by squeue, and of those that it does not list by sacct."""
    found: dict[str, str] = {}
    for argv in (
        ["sacct", "-X", "-n", "-P", "-S", "now-1days", "-o", "JobID,State"],
        ["squeue", "-h", "-r", "-t", "all", "-o", "%i|%T"],
    ):
        for line in subprocess.run(
            argv, env=env, check=True, capture_output=True, text=True
        ).stdout.splitlines():
            job_id, _, state = line.partition("|")
            if "[" not in job_id:
                found[job_id] = state.split()[0]
    return found


def states(env: dict[str, str], place: Path) -> dict[str, Any]:
    """What status says of each job and task, held against squeue and sacct before and after it."""
    before = told_by_slurm(env)
    shutil.rmtree(place / "session" / "slurmgpu", ignore_errors=True)
    said = subprocess.run(
        [*STATUS, "--json"], env=env, cwd=place / "work", check=True, capture_output=True, text=True
    )
    after = told_by_slurm(env)
    told: dict[str, str] = {}
    for job in json.loads(said.stdout)["jobs"]:
        for one in tasks_of(job["job_id"]):
            told[one] = job["state"]
    same = [one for one in before.keys() & after.keys() if before[one] == after[one]]
    wrong = [
        f"{one}: {told.get(one)}, by Slurm {before[one]}" for one in same if told.get(one) != before[one]
    ]
    return {
        "compared": len(same), "by_state": dict(Counter(before[one] for one in same)), "misread": len(wrong),
        "examples": wrong[:5], "told_and_unknown_to_slurm": len(told.keys() - before.keys() - after.keys()),
    }  # fmt: skip


def tasks_of(job_id: str) -> list[str]:
    """The tasks that an id such as 12_[0-4,7%2] stands for."""
    number, bracket, rest = job_id.partition("_[")
    if not bracket:
        return [job_id]
    found = []
    for part in rest.rstrip("]").partition("%")[0].split(","):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        found += [f"{number}_{task}" for task in range(int(low), int(high or low) + 1, int(step or 1))]
    return found


def of_real(folder: Path, jobs: int, watchers: int, rounds: int) -> dict[str, Any]:
    with ThrowawaySlurm() as slurm:
        place = folder / "real"
        (place / "bin").mkdir(parents=True)
        for name in ("squeue", "sacct"):
            there = shutil.which(name, path=slurm.env["PATH"])
            program(place / "bin" / name, PASSED_ON.format(name=name, log=place / "calls", program=there))
        env = environment(place, f"{place / 'bin'}:{slurm.env['PATH']}", slurm.env)
        submit(env, place / "work", jobs)
        turm = ",".join(f"{name}:###turm###" for name in TURM)
        asked = {
            "slurmgpu status": STATUS,
            "slurmgpu status --json": [*STATUS, "--json"],
            "squeue --me": ["squeue", "--me"],
            "squeue --me --json": ["squeue", "--me", "--json"],
            "squeue --me --json, read by Python's json": [sys.executable, "-c", JSON_READER],
            "turm's squeue": ["squeue", "--me", "--array", "--noheader", "--Format", turm],
            "reportseff's sacct": [
                "sacct",
                "-P",
                "-n",
                "--delimiter=^|^",
                f"--format={REPORTSEFF}",
                "--user=root",
            ],
        }
        if shutil.which("reportseff"):
            asked["reportseff"] = [str(shutil.which("reportseff")), "--user", "root", "--since", "h=12"]
        found: dict[str, Any] = {name: several(argv, env, place, rounds) for name, argv in asked.items()}
        found["jobs"] = jobs
        found["slurm"] = slurm.version
        found["states"] = states(env, place)
        found[f"calls in {WATCHED_SECONDS} s, by watchers"] = of_watchers(env, place, watchers)
        found[f"calls in {WATCHED_SECONDS} s of as many turms (one squeue every 2 s each)"] = (
            watchers * WATCHED_SECONDS // 2
        )
        print(json.dumps(found, indent=1), flush=True)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--real", type=int, default=1000, help="jobs in a real Slurm; 0: none")
    parser.add_argument("--watchers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        sizes = [int(size) for size in given.sizes.split(",") if size]
        document = {
            "schema": "slurmgpu.benchmark/1",
            "benchmark": "status_scale",
            "rounds": given.rounds,
            "machine": {
                "machine": platform.machine(),
                "cpus": os.cpu_count(),
                "load_before": load,
                "python": platform.python_version(),
            },
            "results": {"recorded": of_recorded(Path(folder), sizes, given.rounds)},
        }
        if given.real:
            document["results"]["real"] = of_real(Path(folder), given.real, given.watchers, given.rounds)
        if given.json:
            given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
