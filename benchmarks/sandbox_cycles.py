"""Sandboxes up and down again, many times, two at once, and after everything of one was killed.

    python benchmarks/sandbox_cycles.py [--cycles N] [--pairs N] [--kills N] [--json FILE]

Run it as an ordinary user: nothing here needs root. Each cycle is `sandbox up`, an srun on 2 nodes that shows its
GPUs, and `sandbox down`, as whole processes; after each one it looks for processes, sockets and files left behind.
Ends with 1 when anything failed or was left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurmgpu.sandbox.processes import processes_of  # noqa: E402
from slurmgpu.sandbox.programs import find_program, slurm_version  # noqa: E402
from slurmgpu.sandbox.state import State, read_state  # noqa: E402

STEP = [
    "srun",
    "-N2",
    "--gpus-per-node=2",
    "sh",
    "-c",
    "hostname; echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES",
]
SHOWN = {"node1 0,1", "node2 0,1"}


class Bench:
    """Sandboxes in a home of their own, and what went wrong with them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.failures: list[str] = []
        self.leftovers: list[str] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        self.env = kept | {
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "SLURMGPU_SITE": str(home / "site"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def folder(self, name: str) -> Path:
        """Where a sandbox lives."""
        return self.home / "state" / "slurmgpu" / "sandbox" / name

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a `slurmgpu sandbox` command."""
        command = [sys.executable, "-m", "slurmgpu", "sandbox", *words]
        return subprocess.Popen(
            command, env=self.env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str], what: str) -> str:
        """Wait for a command, and note its failure; what it said."""
        said = process.communicate(timeout=180)[0]
        if process.returncode:
            self.failures.append(f"{what} ended with {process.returncode}: {said.strip()[-3000:]}")
        return said

    def do(self, *words: str) -> str:
        """Start a command and wait for it."""
        return self.finish(self.start(*words), " ".join(words[:4]))

    def step(self, name: str) -> None:
        """A step on two nodes must see its GPUs."""
        shown = set(self.do("exec", "--name", name, "--", *STEP).splitlines())
        if not shown >= SHOWN:
            self.failures.append(f"{name}: the step showed {sorted(shown)}")

    def state(self, name: str) -> State | None:
        """What is written of a sandbox that is up."""
        state = read_state(self.folder(name))
        if state is None:
            self.failures.append(f"{name}: it left no state to read")
        return state

    def look(self, name: str, state: State | None) -> None:
        """Note every process, socket and file that is left of a sandbox that has ended."""
        folder = self.folder(name)
        token = state.token if state else None
        self.leftovers += [f"{name}: process {pid}" for pid in processes_of(folder, token)]
        self.leftovers += [f"{name}: process {pid}" for pid in mentioning(str(folder))]
        sockets = Path("/proc/net/unix").read_text().count(f"{folder}/")
        self.leftovers += [f"{name}: {sockets} Unix sockets"] if sockets else []
        listening = listened_on() & set(state.ports if state else ())
        self.leftovers += [f"{name}: port {port}" for port in sorted(listening)]
        self.leftovers += (
            [f"{name}: file {folder}".replace(str(self.home), "HOME")] if folder.exists() else []
        )

    def look_for_files(self) -> None:
        """Note what stands in the home when no sandbox is left."""
        self.leftovers += [f"file HOME/{path.relative_to(self.home)}" for path in self.home.rglob("*")]


def mentioning(text: str) -> list[int]:
    """The processes whose command line or environment has this text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                seen = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            found += [int(entry.name)] if text.encode() in seen else []
    return found


def listened_on() -> set[int]:
    """The TCP ports that somebody listens on."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        if (table := Path("/proc/net") / name).exists()
        for line in table.read_text().splitlines()[1:]
    ]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def cycle(bench: Bench, name: str) -> dict[str, float]:
    """One up, step and down; its seconds."""
    began = time.monotonic()
    bench.do("up", "--name", name)
    up = time.monotonic()
    bench.step(name)
    done = time.monotonic()
    state = bench.state(name)
    bench.do("down", name)
    ended = time.monotonic()
    bench.look(name, state)
    bench.look_for_files()
    return {"up": up - began, "up_to_finished_srun": done - began, "down": ended - done}


def two_at_once(bench: Bench) -> None:
    """Two sandboxes started together, each used, one ended before the other."""
    both = [
        ("first", bench.start("up", "--name", "first")),
        ("second", bench.start("up", "--name", "second")),
    ]
    for name, process in both:
        bench.finish(process, f"up of {name} beside another")
    states = {name: bench.state(name) for name, _ in both}
    for name, _ in both:
        bench.step(name)
    bench.do("down", "first")
    bench.look("first", states["first"])
    bench.step("second")
    bench.do("down", "second")
    bench.look("second", states["second"])
    bench.look_for_files()


def killed(bench: Bench) -> None:
    """Everything of a sandbox killed while a job runs; `up` again, and down."""
    name = "killed"
    bench.do("up", "--name", name)
    state = bench.state(name)
    batch = ["sbatch", "--output=/dev/null", "--chdir=/", "-N2", "--wrap", "srun sleep 300"]
    bench.do("exec", "--name", name, "--", *batch)
    time.sleep(1)
    pids = processes_of(bench.folder(name), state.token) if state else []
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if not pids:
        bench.failures.append("nothing was found to be killed")
    bench.do("up", "--name", name)
    if state:
        left = [pid for pid in processes_of(bench.folder(name), state.token) if pid in pids]
        bench.leftovers += [f"{name}: process {pid} of the killed one" for pid in left]
    bench.step(name)
    state = bench.state(name)
    bench.do("down", name)
    bench.look(name, state)
    bench.look_for_files()


def figures(values: list[float]) -> dict[str, float]:
    return {"median_seconds": round(statistics.median(values), 2), "max_seconds": round(max(values), 2)}


def measured(bench: Bench, cycles: int, pairs: int, kills: int) -> dict[str, object]:
    times = []
    for number in range(cycles):
        times.append(cycle(bench, "cycle"))
        print(
            f"cycle {number + 1}: " + ", ".join(f"{key} {value:.2f} s" for key, value in times[-1].items()),
            flush=True,
        )
    for _ in range(pairs):
        two_at_once(bench)
    print(f"two at once, {pairs} times: done", flush=True)
    for _ in range(kills):
        killed(bench)
    print(f"up after kill -9 of everything, {kills} times: done")
    results: dict[str, object] = {key: figures([one[key] for one in times]) for key in times[0]}
    return results | {"failures": bench.failures, "leftovers": bench.leftovers}


def main() -> None:
    """Measure, print, and keep the figures when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=10, help="how often two start at once")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    # Short, for the sockets in it.
    home = Path(tempfile.mkdtemp(prefix="sbx-", dir="/tmp"))
    bench = Bench(home)
    try:
        results = measured(bench, chosen.cycles, chosen.pairs, chosen.kills)
    finally:
        bench.do("down", "--all")
        shutil.rmtree(home)
    mariadbd = find_program("mariadbd")
    database = (
        subprocess.run([mariadbd, "--version"], capture_output=True, text=True).stdout if mariadbd else ""
    )
    record = {
        "schema": "slurmgpu.benchmark/1",
        "benchmark": "sandbox_cycles",
        "cycles": chosen.cycles,
        "pairs": chosen.pairs,
        "kills": chosen.kills,
        "ordinary_user": os.getuid() != 0,
        "python": platform.python_version(),
        "slurm": slurm_version(),
        "mariadb": database.partition("Ver ")[2].split(" ")[0] or None,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "results": results,
    }
    print(json.dumps(record, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(record, indent=2) + "\n")
    sys.exit(1 if bench.failures or bench.leftovers else 0)


if __name__ == "__main__":
    main()
