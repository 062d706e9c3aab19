"""The doctor's probe on this machine, as on a node of a job: a healthy one, and faults that are caused on purpose."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.doctor import on_nodes, probe
from slurmgpu.doctor.lines import Line
from slurmgpu.doctor.machine import names
from tests.smi import an_smi, smi_text

# In place of torch: a build for CUDA that sees as many GPUs as TORCH_SEES says.
TORCH = """\
import os
__version__ = "2.9.1"
class version:
    cuda, hip = os.environ.get("TORCH_CUDA", "12.8"), None
class cuda:
    is_available = staticmethod(lambda: os.environ["TORCH_SEES"] != "0")
    device_count = staticmethod(lambda: int(os.environ["TORCH_SEES"]))
    get_device_name = staticmethod(lambda number: "NVIDIA H100")
"""
# A node that does not answer is given up after MEETING seconds.
RUN = (
    "import os, sys, slurmgpu.doctor.probe as p; p.MEETING_SECONDS = float(os.environ.get('MEETING', 120)); "
    "sys.exit(p.main(sys.argv[1:]))"
)
SCONTROL = """\
#!/bin/sh
case "$*" in
  "show hostnames n[1-2]") printf 'n1.invalid\\nn2.invalid\\n' ;;
  *"show node n"*) for name; do :; done; echo "NodeName=$name NodeAddr=${ADDRESS:-$name} State=IDLE" ;;
  *) exit 1 ;;
esac
"""


class Node:
    """A place where the probe runs as a task of a job would run it, with two GPUs of a stand-in nvidia-smi."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("work", "results", "python"):
            (folder / name).mkdir()
        (folder / "python" / "torch.py").write_text(TORCH)
        self.bin = an_smi(folder / "bin", smi_text())
        root = str(Path(__file__).parents[1])
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "CUDA"))
        } | {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONPATH": f"{folder / 'python'}:{root}",
            "SLURMD_NODENAME": "n1.invalid", "SLURM_NODEID": "0", "SLURM_JOB_ID": "77",
            "CUDA_VISIBLE_DEVICES": "0,1", "TORCH_SEES": "2", "SLURM_CPUS_PER_TASK": "1",
        }  # fmt: skip
        self.ask: dict[str, Any] = {"folders": {"work": str(folder / "work")}}

    def start(
        self, env: Mapping[str, str] | None = None, before: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """Start the probe."""
        file = self.folder / "ask.json"
        file.write_text(json.dumps(self.ask))
        return subprocess.Popen(
            [*before, sys.executable, "-c", RUN, str(file), str(self.folder / "results")],
            env=self.env | dict(env or {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def lines(self, *running: subprocess.Popen[str], gpus: int = 2) -> dict[str, Line]:
        """What is said of it; of two nodes, the worse line of each check."""
        logs = [one.communicate(timeout=120)[0] for one in running]
        assert all(one.returncode == 0 for one in running), logs
        (self.folder / "results").rename(self.folder / "probe")
        nodes = on_nodes.read_results(self.folder, "".join(logs))
        asked = on_nodes.Expected(gpus, None, pretended=False, needs_torch=True)
        order = ["ok", "unknown", "warning", "failure"]
        found = sorted(on_nodes.lines(asked, nodes, None), key=lambda line: order.index(line.level))
        return {line.check: line for line in found}

    def found(
        self, env: Mapping[str, str] | None = None, before: tuple[str, ...] = (), gpus: int = 2
    ) -> dict[str, Line]:
        """Run it, and what is said."""
        return self.lines(self.start(env, before), gpus=gpus)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What LD_PRELOAD names, for a slow disk and a wrong clock."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler is here")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return str(library)


def in_namespace(kind: str, script: str) -> tuple[str, ...]:
    """Words that run a command in a namespace of its own, after a script of the shell there."""
    user = () if os.getuid() == 0 else ("-r",)
    words = ("unshare", *user, kind, "sh", "-ec", f'{script}\nexec "$@"', "sh")
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=120, check=False)
    except OSError:
        pytest.skip("unshare is not here")
    if tried.returncode:
        pytest.skip(f"no namespace may be made here: {tried.stderr.strip()[:100]}")
    return words


def test_nothing_is_found_on_a_healthy_node(node: Node) -> None:
    found = node.found()
    # Its disk, and the way to the kernel's log, are this machine's own.
    own = {"disk.space", "disk.inodes", "disk.latency", "gpu.xid", "share.shm"}
    assert {line.check: line for line in found.values() if line.level != "ok" and line.check not in own} == {}
    assert "2, as asked for" in found["gpu.count"].found
    assert "H100" in found["gpu.model"].found


# GPUs


@pytest.mark.parametrize(
    ("text", "check", "level", "said"),
    [
        (smi_text(ecc=3), "gpu.ecc", "failure", "GPU 0: 3"),
        (smi_text(slow=True), "gpu.clocks", "failure", "too hot"),
        (smi_text(pending=True), "gpu.rows", "warning", "row remapping"),
        (smi_text(busy=True), "gpu.processes", "failure", "python other.py"),
        (smi_text(used=30000), "gpu.processes", "warning", "30000 MiB"),
        (smi_text(1), "gpu.count", "failure", "1 of the 2"),
    ],
    ids=["ecc", "clocks", "rows", "process", "memory", "fewer"],
)
def test_a_fault_of_a_gpu_is_found(node: Node, text: str, check: str, level: str, said: str) -> None:
    an_smi(node.bin, text)
    line = node.found()[check]
    assert (line.level, said in line.found) == (level, True), line


def test_a_driver_that_does_not_fit_its_library_is_found(node: Node) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    (node.bin / "nvidia-smi").write_text(f"#!/bin/sh\necho '{said}'\nexit 18\n")
    line = node.found({"TORCH_SEES": "0"})["gpu.driver"]
    assert (line.level, said in line.found) == ("failure", True)


def test_a_torch_for_a_newer_cuda_than_the_driver_is_found(node: Node) -> None:
    an_smi(node.bin, smi_text(driver="550.54.15", cuda="12.4"))
    found = node.found({"TORCH_SEES": "0", "TORCH_CUDA": "13.0"})
    assert (found["torch.driver"].level, found["torch.gpus"].level) == ("failure", "failure")
    assert "driver 550.54.15 is too old for torch's CUDA 13.0" in found["torch.driver"].found


def test_a_missing_torch_is_found(node: Node) -> None:
    (node.folder / "python" / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\")\n"
    )
    line = node.found()["torch.version"]
    assert (line.level, "No module named 'torch'" in line.found) == ("failure", True)


def test_a_node_without_the_gpus_that_were_asked_for_is_found(node: Node) -> None:
    (node.bin / "nvidia-smi").unlink()
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a driver of its own")
    line = node.found({"TORCH_SEES": "0"})["gpu.count"]
    assert (line.level, "torch sees none" in line.found) == ("failure", True)


def test_slices_are_counted_as_the_job_names_them(node: Node) -> None:
    an_smi(node.bin, smi_text(1, mig="Enabled"))
    line = node.found({"CUDA_VISIBLE_DEVICES": "MIG-11111111,MIG-22222222"})["gpu.count"]
    assert (line.level, line.found) == ("ok", "2, as asked for")


def test_gpus_that_only_torch_can_tell_are_counted_by_it(node: Node) -> None:
    (node.bin / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    assert node.found({"TORCH_SEES": "1"})["gpu.count"].level == "failure"


# The share of the node, and its folders


def test_fewer_cpus_than_the_share_are_found(node: Node) -> None:
    if len(os.sched_getaffinity(0)) < 2 or shutil.which("taskset") is None:
        pytest.skip("needs taskset and two CPUs")
    first = str(min(os.sched_getaffinity(0)))
    line = node.found({"SLURM_CPUS_PER_TASK": "2"}, ("taskset", "-c", first))["share.cpus"]
    assert (line.level, line.found) == ("failure", "1 of the 2 CPUs that were asked for may be used")


def test_a_full_shared_memory_is_found(node: Node) -> None:
    fill = "mount -t tmpfs -o size=32m doctor /dev/shm; head -c 31m /dev/zero >/dev/shm/left-behind"
    line = node.found(before=in_namespace("-m", fill))["share.shm"]
    assert (line.level, line.found) == ("failure", "/dev/shm: 1 MiB of 32 MiB free")


def test_a_file_system_without_inodes_is_found(node: Node) -> None:
    work = node.folder / "work"
    fill = f"mount -t tmpfs -o size=1g,nr_inodes=20 doctor {work}; for n in $(seq 19); do : >{work}/$n || break; done"
    found = node.found(before=in_namespace("-m", fill))
    assert (found["disk.inodes"].level, found["disk.inodes"].found) == ("failure", "work: 0 of 20 free")
    assert "No space left" in found["disk.writable"].found


def test_a_file_system_without_space_is_found(node: Node) -> None:
    work = node.folder / "work"
    fill = f"mount -t tmpfs -o size=4m doctor {work}; head -c 5m /dev/zero >{work}/full 2>/dev/null || :"
    line = node.found(before=in_namespace("-m", fill))["disk.space"]
    assert (line.level, line.found) == ("failure", "work: 0 B of 4 MiB free")


def test_a_work_folder_that_cannot_be_written_is_found(node: Node) -> None:
    work = node.folder / "work"
    only_read = f"mount --bind {work} {work}; mount -o remount,ro,bind {work}"
    line = node.found(before=in_namespace("-m", only_read))["disk.writable"]
    assert (line.level, line.found) == ("failure", f"work {work}: Read-only file system")


def test_a_slow_disk_is_found(node: Node, faults: str) -> None:
    line = node.found({"LD_PRELOAD": faults, "SLOW_FSYNC": "0.7"})["disk.latency"]
    took = re.search(r"write ([\d.]+) ms", line.found)  # the disk's own time comes on top
    assert line.level == "warning"
    assert took is not None, line
    assert float(took[1]) >= 700, line


# Two nodes


def job_with_free_ports() -> str:
    """The id of a job on whose two ports nobody listens: the nodes meet on ports that follow from the id."""
    while True:
        job = str(secrets.randbelow(10**6))
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for number in range(2):
                held.enter_context(socket.socket()).bind(("", probe.first_port(job) + number))
            return job


@pytest.fixture
def two(node: Node) -> Callable[..., tuple[Mapping[str, str], Mapping[str, str]]]:
    """The environments of two nodes of a job, which Slurm knows by an address."""
    scontrol = node.bin / "scontrol"
    scontrol.write_text(SCONTROL)
    scontrol.chmod(0o755)

    def made(**more: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        both = {
            "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": job_with_free_ports(),
            "ADDRESS": "127.0.0.1",
        } | more  # fmt: skip
        return both, both | {"SLURM_NODEID": "1", "SLURMD_NODENAME": "n2.invalid"}

    return made


def test_two_nodes_that_reach_each_other_are_well(node: Node, two: Any) -> None:
    first, second = two()
    found = node.lines(node.start(first), node.start(second))
    assert {found[check].level for check in ("net.ports", "net.names", "net.clock")} == {"ok"}


@pytest.mark.long
def test_a_dead_port_between_two_nodes_is_named_with_both_ends(node: Node, two: Any) -> None:
    first, second = two(MEETING="4")
    alone = in_namespace("-n", ":")
    found = node.lines(node.start(first), node.start(second, alone))
    port = probe.first_port(first["SLURM_JOB_ID"])
    assert found["net.ports"].level == "failure"
    assert f"n2.invalid -> n1.invalid (127.0.0.1:{port}): " in found["net.ports"].found


def test_a_node_whose_name_leads_nowhere_is_found(node: Node, two: Any) -> None:
    first, second = two(ADDRESS="", MEETING="0.2")
    line = node.lines(node.start(first), node.start(second))["net.names"]
    assert (line.level, "n2.invalid" in line.found) == ("failure", True)
    silent = names({"n2": {"address": None, "resolves": False, "silent": True}})
    assert (silent.level, "Slurm did not answer" in silent.found) == ("unknown", True)


def test_a_clock_that_is_off_between_two_nodes_is_found(node: Node, two: Any, faults: str) -> None:
    first, second = two()
    ahead = {**second, "LD_PRELOAD": faults, "CLOCK_SHIFT": "500"}
    line = node.lines(node.start(first), node.start(ahead))["net.clock"]
    assert (line.level, "500.0 s off" in line.found) == ("failure", True), line
