"""How many calls to a shared file system a job takes to start, and how long, with and without `stage: node`.

    python benchmarks/cold_start.py [--milliseconds MS] [--rounds N] [--json FILE]

On a sandbox of 4 nodes, for a training step of torch in a virtual environment that is copied from this one, with its
interpreter, into a folder that stands for the shared file system:

- Calls: strace on the nodes' daemons and all that they start counts every call that names something below that folder.
  Jobs of three shapes give the calls of a job, of a node and of a process, and with them those of 800 on 100 nodes.
- Time: slow_folder.c lets each call there take longer, and every process says when its first step is done.

It takes a C compiler, strace, zstd, and the programs of Slurm.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distribution, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurmgpu.sandbox.programs import slurm_version  # noqa: E402

NODES, SHAPES, LARGE = 4, ((2, 1), (4, 1), (4, 2)), (100, 800)
STEP = """\
import os, subprocess, time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 64)).sum().backward()
optimizer.step()
print("first step", time.time(), torch.__file__, flush=True)
"""
CALL = re.compile(
    r'^\d+ +(?P<call>\w+)\((?:AT_FDCWD<(?P<cwd>[^>]*)>, )?(?:\d+<(?P<open>/[^>]*)>|"(?P<path>[^"]*)")?'
)
MAPPED = re.compile(r"^\d+ +mmap\(.* \d+<(?P<open>/[^>]*)>")


class Bench:
    """A sandbox, and a folder beside it that stands for the shared file system."""

    def __init__(self, home: Path) -> None:
        self.home, self.shared, self.work = home, home / "shared", home / "shared" / "work"
        self.disk = home / "disk"
        for folder in (self.work, self.disk):
            folder.mkdir(parents=True)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH", "PYTHON"))
        }
        self.env = kept | {
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "SLURMGPU_SITE": str(home / "site"),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.disk),
            "OMP_NUM_THREADS": "1",
        }
        (self.work / "step.py").write_text(STEP)
        (self.work / "slurmgpu.yaml").write_text(f"packed: {self.shared}/packed\n")

    def do(self, *words: str) -> str:
        """A `slurmgpu` command; RuntimeError with what it said when it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "slurmgpu", *words],
            env=self.env,
            cwd=self.work,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def in_sandbox(self, *words: str) -> str:
        """A command on the sandbox."""
        return self.do("sandbox", "exec", "--name", "cold", "--", *words)

    def copy_environment(self) -> None:
        """Torch and what it needs, in a virtual environment of its own, with an interpreter of its own."""
        base, python = self.shared / "python", f"python{sys.version_info[0]}.{sys.version_info[1]}"
        old = Path(sys.base_prefix)
        leave = shutil.ignore_patterns("site-packages", "test", "__pycache__", "config-*")
        shutil.copytree(old / "lib" / python, base / "lib" / python, ignore=leave, symlinks=True)
        shutil.copytree(old / "include" / python, base / "include" / python, symlinks=True)
        for library in (old / "lib").glob(f"lib{python}*.so*"):
            shutil.copy(library, base / "lib", follow_symlinks=False)
        (base / "bin").mkdir()
        shutil.copy(os.path.realpath(sys.executable), base / "bin" / python)
        command = [str(base / "bin" / python), "-m", "venv", "--without-pip", str(self.shared / "venv")]
        subprocess.run(command, env=self.env | {"PYTHONPATH": ""}, check=True)
        packages = self.shared / "venv" / "lib" / python / "site-packages"
        for name in needed("torch", set()):
            copy_distribution(name, packages)
        first = [str(self.shared / "venv" / "bin" / "python"), str(self.work / "step.py")]
        subprocess.run(
            first, env=self.env | {"PYTHONPATH": ""}, check=True, stdout=subprocess.DEVNULL
        )  # compiles

    def job(self, staged: bool, nodes: int, tasks: int, variables: dict[str, str]) -> tuple[str, str]:
        """Run the step in a job; its id and its log."""
        python: dict[str, str] = {"venv": str(self.shared / "venv")} | ({"stage": "node"} if staged else {})
        script = '"$SLURMGPU_STAGE/step.py"' if staged else "step.py"
        job = {
            "resources": {
                "nodes": nodes,
                "gpus_per_node": 0,
                "tasks_per_node": tasks,
                "cpus_per_task": 1,
                "time": 20,
            },
            "environment": {"python": python},
            "variables": variables,
            "command": ["bash", "-c", f"exec python {script}"],
            "launch": "srun",
        } | ({"stage": {"in": ["step.py"]}} if staged else {})
        (self.work / "job.yaml").write_text(json.dumps(job))
        said = self.in_sandbox(sys.executable, "-m", "slurmgpu", "submit", "job.yaml", "--wait", "--json")
        run = json.loads(said[said.index("{") : said.rindex("}") + 1])
        log = (Path(run["run_dir"]) / "logs" / f"{run['job_id']}.out").read_text()
        steps = [line for line in log.splitlines() if line.startswith("first step")]
        here = str(self.disk) if staged else str(self.shared)
        if len(steps) != nodes * tasks or not all(here in line for line in steps):
            raise RuntimeError(f"not all processes took their step: {log}")
        return str(run["job_id"]), log

    def calls(self, staged: bool, nodes: int, tasks: int) -> dict[str, int]:
        """The calls below the shared folder of a whole job, on all its nodes, by what they are for."""
        folder = self.home / "state" / "slurmgpu" / "sandbox" / "cold"
        traces = []
        for number in range(1, NODES + 1):
            file = self.home / f"trace-{number}"
            pid = (folder / f"slurmd-node{number}.pid").read_text().strip()
            wanted = "trace=%file,read,pread64,fstat,getdents64,mmap"
            traces.append(
                subprocess.Popen(["strace", "-f", "-y", "-qq", "-e", wanted, "-p", pid, "-o", str(file)])
            )
        time.sleep(1)
        try:
            self.job(staged, nodes, tasks, {})
            time.sleep(3)
        finally:
            for trace in traces:
                trace.send_signal(signal.SIGINT)
                trace.wait()
        counted = dict.fromkeys(("environment", "archive", "folder of the job", "interpreter's RUNPATH"), 0)
        for number in range(1, NODES + 1):
            with (self.home / f"trace-{number}").open(errors="replace") as lines:
                for line in lines:
                    place = self.place(line)
                    if place is not None:
                        counted[place] += 1
        return counted

    def place(self, line: str) -> str | None:
        """Where below the shared folder a line of strace reaches."""
        found = MAPPED.match(line) if " mmap(" in line else CALL.match(line)
        if found is None:
            return None
        parts = found.groupdict()
        path = parts.get("open") or parts.get("path") or ""
        if not path.startswith("/") and parts.get("cwd"):
            path = os.path.normpath(f"{parts['cwd']}/{path}")
        if path.startswith(f"{sys.base_prefix}/lib/lib"):
            return (
                "interpreter's RUNPATH"  # the copied interpreter looks for libraries where it was installed
            )
        if path != str(self.shared) and not path.startswith(f"{self.shared}/"):
            return None
        top = path[len(str(self.shared)) + 1 :].split("/")[0]
        return {"venv": "environment", "python": "environment", "packed": "archive"}.get(
            top, "folder of the job"
        )

    def seconds(self, staged: bool, milliseconds: float, library: Path) -> float:
        """From the job's start to the last process's first step, with a slow shared folder."""
        slow = {
            "LD_PRELOAD": str(library),
            "SLOW_FOLDERS": str(self.shared),
            "SLOW_US": str(int(milliseconds * 1000)),
        }
        job_id, log = self.job(staged, NODES, 2, slow)
        shown = self.in_sandbox("env", "SLURM_TIME_FORMAT=%s", "scontrol", "show", "job", job_id)
        began = re.search(r"StartTime=(\d+)", shown)
        assert began is not None
        return max(
            float(line.split()[2]) for line in log.splitlines() if line.startswith("first step")
        ) - int(began[1])


def needed(name: str, known: set[str]) -> set[str]:
    """A distribution and those that it needs."""
    if name not in known:
        known.add(name)
        for one in distribution(name).requires or ():
            if "extra ==" not in one:
                with_others = re.match(r"[\w.-]+", one)
                try:
                    needed(with_others[0] if with_others else one, known)
                except ModuleNotFoundError:
                    continue
    return known


def copy_distribution(name: str, packages: Path) -> None:
    """Its files, links followed."""
    tops = {Path(str(file)).parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}
    for top in tops:
        source = Path(str(distribution(name).locate_file(top)))
        if source.is_dir():
            shutil.copytree(
                source, packages / top, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
        elif source.exists():
            shutil.copy(source, packages / top)


def fitted(counts: dict[tuple[int, int], int]) -> dict[str, int]:
    """Calls of a job, of each node, and of each process, from three shapes; and of a large job."""
    (small, wide, dense) = (counts[shape] for shape in SHAPES)
    process = (dense - wide) / 4
    node = (wide - small) / 2 - process
    job = small - 2 * node - 2 * process
    nodes, processes = LARGE
    return {
        "of_the_job": round(job),
        "of_a_node": round(node),
        "of_a_process": round(process),
        f"of_{processes}_processes_on_{nodes}_nodes": round(job + nodes * node + processes * process),
    }


def measured(bench: Bench, milliseconds: float, rounds: int) -> dict[str, object]:
    library = bench.home / "slow_folder.so"
    source = Path(__file__).with_name("slow_folder.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    results: dict[str, object] = {}
    began = time.monotonic()
    bench.job(True, 1, 1, {})
    archive = next((bench.shared / "packed").iterdir())
    packed = {
        "archive_mib": archive.stat().st_size // 2**20,
        "first_submission_to_end_seconds": round(time.monotonic() - began, 1),
    }
    results["packed"] = packed
    for name, staged in (("shared", False), ("staged", True)):
        found = {shape: bench.calls(staged, *shape) for shape in SHAPES}
        print(name, found, flush=True)
        places = {
            place: {shape: counts[place] for shape, counts in found.items()} for place in found[SHAPES[0]]
        }
        everything = {shape: sum(counts.values()) for shape, counts in found.items()}
        results[name] = {
            "counted": {f"{nodes} nodes x {tasks}": counts for (nodes, tasks), counts in found.items()},
            "fitted": {place: fitted(counts) for place, counts in places.items()}
            | {"all": fitted(everything)},
        }
    times: dict[str, list[float]] = {"shared": [], "staged": []}
    for _ in range(rounds):
        for name, staged in (("shared", False), ("staged", True)):
            times[name].append(round(bench.seconds(staged, milliseconds, library), 1))
            print(name, times[name], flush=True)
    results["seconds_to_first_step"] = {
        name: {"median": statistics.median(values), "all": values} for name, values in times.items()
    }
    return results


def main() -> None:
    """Measure, print, and keep the figures when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--milliseconds", type=float, default=2, help="what a call to the shared folder takes longer"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="cold-", dir="/tmp"))  # short, for the sockets in it
    bench = Bench(home)
    try:
        bench.copy_environment()
        bench.do("sandbox", "up", "--name", "cold", "--nodes", str(NODES), "--cpus", "16", "--no-accounting")
        results = measured(bench, chosen.milliseconds, chosen.rounds)
    finally:
        subprocess.run(
            [sys.executable, "-m", "slurmgpu", "sandbox", "down", "cold"],
            env=bench.env,
            cwd=ROOT,
            check=False,
        )
        shutil.rmtree(home, ignore_errors=True)
    record = {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "cold_start",
        "milliseconds_per_call": chosen.milliseconds,
        "rounds": chosen.rounds,
        "timed_shape": f"{NODES} nodes x 2 processes",
        "python": platform.python_version(),
        "torch": version("torch"),
        "slurm": slurm_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "results": results,
    }
    print(json.dumps(record, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
