"""The doctor's judges: what is said of values as they were measured."""

from __future__ import annotations

import ast
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.clusters.pytorch import cannot_be_tried
from slurmgpu.doctor import gpus, machine, on_nodes, probe, scheduler
from slurmgpu.doctor.lines import CHECKS, THRESHOLDS, Line, counts, ok
from slurmgpu.files.data import read_templates
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.environment import Container, Environment
from slurmgpu.models.job import Array, Job
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Duration, GpuRequest
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script
from tests import ready
from tests.smi import smi_text

GiB = 2**30


def a_folder(**values: Any) -> dict[str, Any]:
    fast = {"open": 1e-5, "stat": 1e-5, "write": 1e-3}
    return {
        "what": "runs", "path": "/runs", "device": 1, "mode": 0o755, "free": 900 * GiB, "total": 1000 * GiB,
        "inodes_free": 10**6, "inodes": 10**7, "seconds": fast, "samples": 50,
    } | values  # fmt: skip


# This machine


def found_here(folder: Path, *arguments: str) -> dict[str, dict[str, str]]:
    """The lines of the doctor on a machine without Slurm."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "slurmgpu", "doctor", "--json", *arguments]
    done = ready.run(command, env, cwd=folder, timeout=300)
    assert done.returncode == 1, done.stderr
    return {line["check"]: line for line in json.loads(done.stdout)["lines"]}


def test_an_interpreter_that_is_not_there_is_named_in_plain_words(tmp_path: Path) -> None:
    found = found_here(tmp_path, "--", "/no/python", "train.py")
    line = found["python.interpreter"]
    assert (line["level"], line["found"]) == ("failure", "the interpreter /no/python is not on this machine")
    assert "correct its path" in line["act"]
    assert found["torch.version"]["level"] == "unknown"
    assert "python.version" not in found


def test_an_image_that_is_none_is_named_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "page.sif").write_text("an error page\n")
    found = found_here(tmp_path, "--set", "environment.container=page.sif", "--", "python", "train.py")
    assert found["software.image"]["level"] == "failure"
    assert found["software.image"]["found"].startswith("'page.sif' is no image that apptainer can enter")
    assert found["torch.version"]["level"] == "unknown"
    gone = found_here(tmp_path, "--set", "environment.container=gone.sif", "--", "python", "train.py")
    assert "'gone.sif' is not there" in gone["software.image"]["found"]


# What is said


def test_a_finding_that_is_not_ok_says_what_to_do() -> None:
    found = [
        scheduler.commands(["sbatch"]),
        scheduler.controller(None, "Connection refused", "try again", None),
        scheduler.clock(-400, 0.5),
        scheduler.account([], "", kept=True, enforced=True, wanted=None),
        machine.torch(None, "", built_for=None, needed=True, gpus=True),
        machine.driver_for_torch("13.0", "550.54.15"),
        machine.space("home", a_folder(free=0)),
    ]
    assert {line.level for line in found} == {"failure"}
    assert all(line.act for line in found)


def test_lines_are_counted_by_their_level() -> None:
    assert counts([ok("net.ports", "fine")]) == {"ok": 1, "warning": 0, "failure": 0, "unknown": 0}


def test_every_threshold_has_its_reason() -> None:
    assert all(one.why and one.beyond in ("warning", "failure") for one in THRESHOLDS.values())


def test_every_check_belongs_to_a_subject() -> None:
    subjects = {name.partition(".")[0] for name in CHECKS}
    assert " ".join(sorted(subjects)) == "cluster disk gpu job net python share slurm software torch"


# Slurm


def judged() -> dict[str, list[tuple[Line | None, str]]]:
    """What is measured, by what it tells of, and the level that it is to have."""
    account, fits = scheduler.account, machine.driver_for_torch
    lab = partial(account, ["lab"], "", kept=True)
    apptainer, charliecloud = (
        Environment(container=Container(runtime=name, image="torch.sif"))
        for name in ("apptainer", "charliecloud")
    )
    torch = partial(machine.torch, gpus=True, needed=True)
    return {
        "the clock of the login node": [
            *((scheduler.clock(offset, 0.5), "ok") for offset in (0.4, -0.4)),
            *((scheduler.clock(offset, 0.5), "warning") for offset in (60, -60)),
            (scheduler.clock(301, 0.5), "failure"),
            (scheduler.clock(None, 0.5), "unknown"),
        ],
        "the partition": [
            *((scheduler.partition(wanted, {"gpu", "cpu"}), "ok") for wanted in ("gpu", "gpu,cpu")),
            *((scheduler.partition(wanted, {"gpu", "cpu"}), "failure") for wanted in ("gpu,big", "nosuch")),
        ],
        "the release": [
            (scheduler.release("24.11.5"), "ok"),
            (scheduler.release("20.02.7"), "warning"),
            (scheduler.release(None), "unknown"),
        ],
        "accounts fail only where Slurm enforces them": [
            (lab(enforced=True, wanted=None), "ok"),
            (lab(enforced=True, wanted="other"), "failure"),
            (lab(enforced=False, wanted="other"), "warning"),
            (account([], "", kept=True, enforced=True, wanted=None), "failure"),
            (account([], "", kept=True, enforced=False, wanted=None), "warning"),
            (account(None, "", kept=True, enforced=True, wanted=None), "unknown"),
            (account(None, "", kept=False, enforced=False, wanted=None), "ok"),
        ],
        "a profile is stale by age, release or partitions, or of another cluster": [
            (scheduler.profile_age(3, ("24.11.5", "24.11.6"), []), "ok"),
            (scheduler.profile_age(400, (None, None), []), "warning"),
            (scheduler.profile_age(3, ("22.05.8", "24.11.5"), []), "warning"),
            (scheduler.profile_age(3, (None, None), ["v100"]), "warning"),
            (scheduler.profile_age(None, (None, None), []), "unknown"),
            (scheduler.profile("a", "", "alpha", "alpha"), "ok"),
            (scheduler.profile("a", "", "alpha", "beta"), "warning"),
            (scheduler.profile("generic", "", None, "beta"), "warning"),
            (scheduler.profile(None, "no such profile", None, "beta"), "failure"),
        ],
        "torch beside the driver": [
            (fits("12.8", "550.54.15"), "ok"),  # minor version compatibility
            (fits("13.0", "550.54.15"), "failure"),
            (fits("13.0", "550.54.15", 4), "ok"),  # a compatibility package: torch sees them
            (fits("12.1", "470.103.01", 0), "failure"),
            (fits("11.8", "470.103.01"), "ok"),
            *((fits(*pair), "unknown") for pair in (("12.1", None), (None, "550.54.15"), ("27.0", "950.1"))),
        ],
        "torch fails only a job that is known to need it, and GPUs": [
            (torch("2.9", "", built_for="cpu"), "failure"),
            (torch("2.9", "", built_for="cpu", gpus=False), "warning"),
            (torch("2.9", "", built_for="12.8"), "ok"),
            (torch(None, "No module", built_for=None), "failure"),
            (torch(None, "No module", built_for=None, needed=False, gpus=False), "warning"),
        ],
        "a runtime that is not here may be on the nodes": [
            (machine.containers(["apptainer"], apptainer), "ok"),
            (machine.containers([], apptainer), "warning"),
            (machine.containers(["ch-run"], charliecloud), "ok"),
        ],
        "Python": [
            *((machine.python(version, "python3"), "ok") for version in ("3.11.4", "3.9.0")),
            (machine.python("3.6.8", "python3"), "warning"),
            (machine.python(None, "python3"), "unknown"),
        ],
        "the GPUs": [
            (gpus.count(2, 2, "why"), "ok"),
            (gpus.count(2, 1, "why"), "failure"),
            (gpus.count(2, 4, "why"), "warning"),
            (gpus.count(2, None, "why"), "unknown"),
            (gpus.models(smi(), 80 * 1024), "ok"),  # 80G cards show a little less
            (gpus.models(smi(), 141 * 1024), "failure"),
            (gpus.processes(smi(busy=True), shared=True), "ok"),
            (gpus.processes(smi(busy=True), shared=False), "failure"),
            (gpus.mig(smi(mig="Enabled")), "failure"),
            (gpus.mig(smi()), "ok"),
            (gpus.xid([13, 31]), "ok"),  # a program's
            (gpus.xid([13, 79]), "warning"),
        ],
        "the share of CPUs and of memory": [
            *((gpus.cpus(usable, 8, 64), "ok") for usable in (8, 64)),
            (gpus.cpus(4, 8, 64), "failure"),
            (gpus.cpus(2, 8, 2), "unknown"),
            (gpus.cpus(None, 8, 64), "unknown"),
            (gpus.memory(None, 8 * GiB, 512 * GiB), "ok"),
            (gpus.memory(8 * GiB, 8 * GiB, 512 * GiB), "ok"),
            (gpus.memory(4 * GiB, 8 * GiB, 512 * GiB), "failure"),
            (gpus.memory(4 * GiB, None, 512 * GiB), "ok"),
            (gpus.memory(None, 900 * GiB, 512 * GiB), "unknown"),
            (gpus.shm({"path": "/dev/shm", "free": GiB * 4, "total": 8 * GiB}), "ok"),
            (gpus.shm({"path": "/dev/shm", "free": GiB // 2, "total": 8 * GiB}), "warning"),
            (gpus.shm({"path": "/dev/shm", "free": GiB // 100, "total": 8 * GiB}), "failure"),
        ],
        "an all-reduce, by its sum and its speed": [
            (machine.reduction(reduced(), "within"), "ok"),
            (machine.reduction(reduced(gigabytes=0.5), "within"), "warning"),
            (
                machine.reduction(reduced("gloo", 0.1), "within"),
                "ok",
            ),  # CPUs: what is fast there is not known
            (machine.reduction(reduced(right=False), "within"), "failure"),
            (machine.reduction({"why": "RuntimeError: Connection refused"}, "within"), "failure"),
        ],
        "clocks of nodes, beyond what is not known": [
            (machine.clock({"n2": (0.001, 0.0005), "the login node": (0.8, 1.0)}), "ok"),
            (machine.clock({"n2": (5, 0.0005)}), "warning"),
            (machine.clock({}), "unknown"),
        ],
        "a folder, by what was measured": [
            (on_disk("disk.space"), "ok"),
            (on_disk("disk.space", free=0), "failure"),
            (on_disk("disk.space", free=5 * GiB), "warning"),
            (on_disk("disk.inodes", inodes_free=3), "failure"),
            (on_disk("disk.inodes", inodes_free=3, inodes=0), "ok"),  # btrfs has no fixed number
            (on_disk("disk.inodes", inodes_free=5000), "warning"),
            (on_disk("disk.latency", seconds={"open": 0.1, "stat": 0.1, "write": 0.1}), "warning"),
            (on_disk("disk.latency", seconds={"open": 1e-5, "stat": 1e-5, "write": 2.0}), "warning"),
            (on_disk("disk.latency", seconds=None), "unknown"),
            (on_disk("disk.writable", why="Permission denied"), "failure"),
            (on_disk("disk.writable", why="Permission denied", what="scratch"), "warning"),
            (on_disk("disk.writable", mode=0o777), "warning"),
            (on_disk("disk.writable", mode=0o1777), "ok"),
            (on_disk("disk.writable", hangs=True), "failure"),
            (on_disk("disk.writable", umask=0o000), "warning"),
            (on_disk("disk.writable", umask=0o022), "ok"),
        ],
    }


def on_disk(check: str, umask: int | None = None, **values: Any) -> Line:
    given = () if umask is None else (umask,)
    return next(line for line in machine.folders([a_folder(**values)], *given) if line.check == check)


def test_each_finding_has_its_level() -> None:
    wrong = [
        (of, line, level)
        for of, lines in judged().items()
        for line, level in lines
        if line is None or line.level != level
    ]
    assert wrong == []


def test_a_finding_says_what_was_found_and_what_fits() -> None:
    assert "60.0 s" in scheduler.clock(-60, 0.5).found
    assert scheduler.partition("gpu,big", {"gpu", "cpu"}).found.endswith("it has cpu, gpu")
    assert "22.05" in scheduler.profile_age(3, ("22.05.8", "24.11.5"), []).found
    assert "partition v100" in scheduler.profile_age(3, (None, None), ["v100"]).found
    assert "(11.x)" in machine.driver_for_torch("12.1", "470.103.01").act
    lines = machine.folders([a_folder(), a_folder(what="home", path="/home/me")])
    assert [line.check for line in lines].count("disk.space") == 1
    assert "runs, home" in next(line.found for line in lines if line.check == "disk.space")


# Software


def test_modules_that_do_not_load_are_a_failure_in_their_own_words() -> None:
    line = machine.modules("lmod", ["pytorch/3"], "module load failed on login1: unknown")
    assert (line.level, line.found) == ("failure", "module load failed on login1: unknown")
    assert "module avail pytorch/3" in line.act
    assert machine.modules("none", ["pytorch/3"], None).level == "warning"
    assert machine.modules("none", [], None).level == "ok"


@pytest.mark.parametrize("name", ["pyxis", "edf", "uenv", "oci-bundle"])
def test_an_image_that_only_srun_enters_is_left_to_a_job(name: str) -> None:
    environment = Environment(container=Container(runtime=name, image="torch"))
    assert machine.containers([], environment).level == "unknown"
    assert cannot_be_tried(environment) == "Slurm itself sets it up"


# Folders


QUOTA = """\
Disk quotas for user me (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
nas:/home       9500000  9000000 10000000         120000       0       0
/dev/sdb1       10000000* 9000000 10000000  6days     100  100000  200000
"""
LFS = "/lustre/me 1048576 0 2097152 - 500000 0 1000000 -\n"


def test_quotas_are_read_as_quota_and_lfs_print_them() -> None:
    home, over, files = probe.read_quota(QUOTA)
    assert (home["used"], home["limit"]) == (9500000 * 1024, 10000000 * 1024)
    assert (over["place"], over["used"] / over["limit"]) == ("/dev/sdb1", 1)
    assert (files["of"], files["limit"]) == ("files", 200000)
    assert [(one["of"], one["used"] / one["limit"]) for one in probe.read_quota(LFS)] == [
        ("space", 0.5),
        ("files", 0.5),
    ]


def test_a_full_quota_fails_and_an_almost_full_one_warns() -> None:
    home, over, files = machine.quota(probe.read_quota(QUOTA))
    assert (home.level, over.level, files.level) == ("warning", "failure", "ok")
    assert machine.quota(None)[0].level == "unknown"


def test_a_folder_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = probe.folder("runs", str(tmp_path), budget=0.05)
    assert found["samples"] >= 1
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert probe.folder("runs", str(tmp_path / "no"))["why"] == "No such file or directory"


# GPUs


def smi(**values: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = probe.read_smi(smi_text(**values))["gpus"]
    return found


OLD = """\
<nvidia_smi_log><driver_version>418.87</driver_version><gpu id="0"><product_name>Tesla V100-SXM2-32GB</product_name>
<uuid>GPU-1</uuid><fb_memory_usage><total>32480 MiB</total><used>0 MiB</used></fb_memory_usage>
<clocks_throttle_reasons><clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown></clocks_throttle_reasons>
<ecc_errors><volatile><double_bit><device_memory>1</device_memory><total>2</total></double_bit></volatile></ecc_errors>
<retired_pages><pending_retirement>Yes</pending_retirement></retired_pages></gpu></nvidia_smi_log>
"""


def test_an_older_driver_is_read_in_its_own_words() -> None:
    (gpu,) = probe.read_smi(OLD)["gpus"]
    assert (gpu["ecc"], gpu["reasons"], gpu["pending"]) == (2, ["hw_slowdown"], ["page retirement"])


def test_what_a_gpu_does_not_tell_is_unknown() -> None:
    bare = "<nvidia_smi_log><gpu><product_name>GeForce</product_name></gpu></nvidia_smi_log>"
    found = probe.read_smi(bare)["gpus"]
    assert [gpus.ecc(found).level, gpus.clocks(found).level, gpus.xid(None).level] == ["unknown"] * 3


def test_only_the_gpus_of_the_job_are_looked_at() -> None:
    found = smi(count=4)
    assert [one["index"] for one in probe.shown(found, "1,3")] == [1, 3]
    assert [one["index"] for one in probe.shown(found, "GPU-20000000")] == [2]
    assert len(probe.shown(found, None)) == 4
    assert probe.shown(found, "") == []


def test_xids_are_read_from_the_kernel_s_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = "[1.5] NVRM: Xid (PCI:0000:81:00): 79, pid=1, GPU has fallen off the bus.\n[2.0] eth0: up\n"
    (tmp_path / "dmesg").write_text(f"#!/bin/sh\necho '{log}'\n")
    (tmp_path / "dmesg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert probe.xids() == [79]


# The share of a node


@pytest.mark.parametrize(
    ("proc", "files", "limit"),
    [
        ("0::/job_1/step_0\n", {"job_1/memory.max": "100", "job_1/step_0/memory.max": "max"}, 100),
        ("0::/job_1/step_0\n", {"job_1/memory.max": "100", "job_1/step_0/memory.max": "50"}, 50),
        ("9:memory:/slurm/job_1\n", {"memory/slurm/job_1/memory.limit_in_bytes": "70"}, 70),
        ("9:memory:/slurm\n", {"memory/slurm/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_the_lowest_limit_counts(tmp_path: Path, proc: str, files: dict[str, str], limit: int | None) -> None:
    written = {"proc/self/cgroup": proc, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert probe.memory_limit(tmp_path) == limit


# The other nodes


def reduced(backend: str = "nccl", gigabytes: float = 100, right: bool = True) -> dict[str, Any]:
    part = {"members": 4, "bytes": 2**28, "seconds": 0.01, "bus_bandwidth": gigabytes * 1e9, "right": right}
    return {"backend": backend, "within": part}


def test_an_all_reduce_says_how_it_was_measured() -> None:
    line = machine.reduction(reduced(), "within")
    assert line.found.startswith(
        "100.00 GB/s measured: 256 MiB of float32 among 4 processes by nccl, median of 5"
    )
    assert machine.reduction(reduced(), "between") is None


# The job of the probe


def test_the_probe_s_job_asks_for_what_the_user_s_job_asks_for() -> None:
    asked = Resources(
        gpus_per_node=GpuRequest.parse(4), nodes=2, tasks_per_node=4, cpus_per_task=8, partition="gpu"
    )
    job = Job(command=("python", "train.py"), resources=asked, array=Array.model_validate("0-9"))
    made = on_nodes.probe_job(job, "python")
    assert made.resources.model_copy(update={"time": None}) == asked.model_copy(
        update={"tasks_per_node": 1, "cpus_per_task": 32}
    )
    assert (made.array, str(made.resources.time), made.launch.launcher) == (None, "00:10:00", "srun")


def test_what_an_exact_job_writes_under_sbatch_is_the_probe_s_own() -> None:
    job = Job(exact=True, command=("x",), sbatch={"time": "1-00:00:00", "output": "x.log", "licenses": "a"})
    made = on_nodes.probe_job(job, "python")
    assert (made.sbatch, str(made.resources.time)) == ({"licenses": "a"}, "00:10:00")


def test_a_shorter_time_limit_of_the_job_is_kept() -> None:
    job = Job(command=("python", "train.py"), resources=Resources(time=Duration.parse("5")))
    assert on_nodes.probe_job(job, "python").resources.time == Duration(300)


def test_a_container_sees_the_probe() -> None:
    image = Environment(container=Container(image="torch.sif"))
    job = on_nodes.probe_job(Job(command=("python", "t.py"), environment=image), "python")
    plan = on_nodes.seeing_the_run(make_plan(job, GENERIC, Surroundings(work_dir="/w")))
    assert '--bind "$SLURMGPU_RUN_DIR" torch.sif' in render_script(plan, read_templates()).replace("\\\n", "")


def test_results_that_no_file_could_hold_are_read_from_the_log(tmp_path: Path) -> None:
    log = 'loading modules\n{"schema": "slurmgpu.probe/1", "node": "n2", "number": 1}\n'
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "n1.json").write_text('{"schema": "slurmgpu.probe/1", "node": "n1", "number": 0}')
    assert [one["node"] for one in on_nodes.read_results(tmp_path, log)] == ["n1", "n2"]


def test_the_probe_is_written_for_python_3_9_and_its_library_alone() -> None:
    tree = ast.parse(Path(probe.__file__).read_text(), feature_version=(3, 9))
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"torch"}
