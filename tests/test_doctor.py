"""The doctor's judges: what is said of values as they were measured."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.discovery.trying import cannot_be_tried
from slurmgpu.doctor import disks, gpus, network, on_nodes, probe, scheduler, share, software
from slurmgpu.doctor.lines import CHECKS, Line, counts, ok
from slurmgpu.doctor.thresholds import THRESHOLDS
from slurmgpu.files.data import read_templates
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.environment import Container, Environment
from slurmgpu.models.job import Array, Job
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Duration, GpuRequest
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.rendering.render import render_script
from tests import ready
from tests.smi import smi_text

GiB = 2**30


def a_folder(**values: Any) -> dict[str, Any]:
    fast = {"open": 1e-5, "stat": 1e-5, "write": 1e-3}
    return {
        "what": "runs", "path": "/runs", "device": 1, "mode": 0o755, "free": 900 * GiB, "total": 1000 * GiB,
        "inodes_free": 10**6, "inodes": 10**7, "seconds": fast, "samples": 50,
    } | values  # fmt: skip


def levels(lines: list[Line]) -> dict[str, str]:
    return {line.check: line.level for line in lines}


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
    assert (line["level"], line["found"]) == (
        "failure",
        "the interpreter /no/python is not on this machine",
    )
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
        software.torch(None, "", built_for=None, needed=True, gpus=True),
        software.driver_for_torch("13.0", "550.54.15"),
        disks.space("home", a_folder(free=0)),
    ]
    assert {line.level for line in found} == {"failure"}
    assert all(line.act for line in found)


def test_lines_are_counted_by_their_level() -> None:
    assert counts([ok("net.ports", "fine")]) == {"ok": 1, "warning": 0, "failure": 0, "unknown": 0}


def test_every_threshold_has_its_reason() -> None:
    assert all(one.why and one.beyond in ("warning", "failure") for one in THRESHOLDS.values())


def test_every_check_belongs_to_a_subject() -> None:
    subjects = {name.partition(".")[0] for name in CHECKS}
    assert subjects == {
        "slurm",
        "cluster",
        "software",
        "python",
        "torch",
        "disk",
        "gpu",
        "net",
        "share",
        "job",
    }


# Slurm


@pytest.mark.parametrize(
    ("offset", "level"), [(0.4, "ok"), (-0.4, "ok"), (60, "warning"), (-60, "warning"), (301, "failure"), (None, "unknown")]
)  # fmt: skip
def test_a_clock_that_is_off_is_told_by_how_much(offset: float | None, level: str) -> None:
    line = scheduler.clock(offset, 0.5)
    assert line.level == level
    assert offset is None or abs(offset) < 1 or f"{abs(offset):.1f} s" in line.found


@pytest.mark.parametrize(
    ("wanted", "level"), [("gpu", "ok"), ("gpu,cpu", "ok"), ("gpu,big", "failure"), ("nosuch", "failure")]
)
def test_a_partition_that_is_not_there_is_named(wanted: str, level: str) -> None:
    line = scheduler.partition(wanted, {"gpu", "cpu"})
    assert line.level == level
    assert level == "ok" or line.found.endswith("it has cpu, gpu")


@pytest.mark.parametrize(("release", "level"), [("24.11.5", "ok"), ("20.02.7", "warning"), (None, "unknown")])
def test_an_old_release_is_warned_of(release: str | None, level: str) -> None:
    assert scheduler.release(release).level == level


@pytest.mark.parametrize(
    ("accounts", "enforced", "wanted", "level"),
    [
        (["lab"], True, None, "ok"),
        (["lab"], True, "other", "failure"),
        (["lab"], False, "other", "warning"),
        ([], True, None, "failure"),
        ([], False, None, "warning"),
        (None, True, None, "unknown"),
    ],
)
def test_accounts_fail_only_where_slurm_enforces_them(
    accounts: list[str] | None, enforced: bool, wanted: str | None, level: str
) -> None:
    assert scheduler.account(accounts, "", kept=True, enforced=enforced, wanted=wanted).level == level


def test_a_cluster_without_accounting_needs_no_account() -> None:
    assert scheduler.account(None, "", kept=False, enforced=False, wanted=None).level == "ok"


def test_a_profile_is_stale_by_age_release_or_partitions() -> None:
    assert scheduler.profile_age(3, ("24.11.5", "24.11.6"), []).level == "ok"
    assert scheduler.profile_age(400, (None, None), []).level == "warning"
    assert "22.05" in scheduler.profile_age(3, ("22.05.8", "24.11.5"), []).found
    assert "partition v100" in scheduler.profile_age(3, (None, None), ["v100"]).found
    assert scheduler.profile_age(None, (None, None), []).level == "unknown"


def test_a_profile_of_another_cluster_is_warned_of() -> None:
    assert scheduler.profile("a", "", "alpha", "alpha").level == "ok"
    assert scheduler.profile("a", "", "alpha", "beta").level == "warning"
    assert scheduler.profile("generic", "", None, "beta").level == "warning"
    assert scheduler.profile(None, "no such profile", None, "beta").level == "failure"


# Software


@pytest.mark.parametrize(
    ("built_for", "driver", "sees", "level"),
    [
        ("12.8", "550.54.15", None, "ok"),  # minor version compatibility
        ("13.0", "550.54.15", None, "failure"),
        ("13.0", "550.54.15", 4, "ok"),  # a compatibility package: torch sees them
        ("12.1", "470.103.01", 0, "failure"),
        ("11.8", "470.103.01", None, "ok"),
        ("12.1", None, None, "unknown"),
        (None, "550.54.15", None, "unknown"),
        ("27.0", "950.1", None, "unknown"),
    ],
)
def test_torch_is_held_against_the_driver(
    built_for: str | None, driver: str | None, sees: int | None, level: str
) -> None:
    assert software.driver_for_torch(built_for, driver, sees).level == level


def test_an_old_driver_is_told_which_cuda_fits() -> None:
    assert "(11.x)" in software.driver_for_torch("12.1", "470.103.01").act


def test_a_torch_for_cpus_alone_fails_a_job_with_gpus() -> None:
    assert software.torch("2.9", "", built_for="cpu", needed=True, gpus=True).level == "failure"
    assert software.torch("2.9", "", built_for="cpu", needed=True, gpus=False).level == "warning"
    assert software.torch("2.9", "", built_for="12.8", needed=True, gpus=True).level == "ok"


def test_a_missing_torch_fails_only_who_is_known_to_need_it() -> None:
    assert software.torch(None, "No module", built_for=None, needed=True, gpus=True).level == "failure"
    assert software.torch(None, "No module", built_for=None, needed=False, gpus=False).level == "warning"


def test_modules_that_do_not_load_are_a_failure_in_their_own_words() -> None:
    line = software.modules("lmod", ["pytorch/3"], "module load failed on login1: unknown")
    assert (line.level, line.found) == ("failure", "module load failed on login1: unknown")
    assert "module avail pytorch/3" in line.act
    assert software.modules("none", ["pytorch/3"], None).level == "warning"
    assert software.modules("none", [], None).level == "ok"


def test_a_runtime_that_is_not_here_may_be_on_the_nodes() -> None:
    apptainer, charliecloud = (
        Environment(container=Container(runtime=name, image="torch.sif"))
        for name in ("apptainer", "charliecloud")
    )
    assert software.containers(["apptainer"], apptainer).level == "ok"
    assert software.containers([], apptainer).level == "warning"
    assert software.containers(["ch-run"], charliecloud).level == "ok"


@pytest.mark.parametrize("name", ["pyxis", "edf", "uenv", "oci-bundle"])
def test_an_image_that_only_srun_enters_is_left_to_a_job(name: str) -> None:
    environment = Environment(container=Container(runtime=name, image="torch"))
    assert software.containers([], environment).level == "unknown"
    assert cannot_be_tried(environment) == "Slurm itself sets it up"


@pytest.mark.parametrize(
    ("version", "level"), [("3.11.4", "ok"), ("3.9.0", "ok"), ("3.6.8", "warning"), (None, "unknown")]
)
def test_an_old_python_is_warned_of(version: str | None, level: str) -> None:
    assert software.python(version, "python3").level == level


# Folders


@pytest.mark.parametrize(
    ("values", "check", "level"),
    [
        ({"free": 0}, "disk.space", "failure"),
        ({"free": 5 * GiB}, "disk.space", "warning"),
        ({"inodes_free": 3}, "disk.inodes", "failure"),
        ({"inodes_free": 3, "inodes": 0}, "disk.inodes", "ok"),  # btrfs has no fixed number
        ({"inodes_free": 5000}, "disk.inodes", "warning"),
        ({"seconds": {"open": 0.1, "stat": 0.1, "write": 0.1}}, "disk.latency", "warning"),
        ({"seconds": {"open": 1e-5, "stat": 1e-5, "write": 2.0}}, "disk.latency", "warning"),
        ({"seconds": None}, "disk.latency", "unknown"),
        ({"why": "Permission denied"}, "disk.writable", "failure"),
        ({"why": "Permission denied", "what": "scratch"}, "disk.writable", "warning"),
        ({"mode": 0o777}, "disk.writable", "warning"),
        ({"mode": 0o1777}, "disk.writable", "ok"),
        ({"hangs": True}, "disk.writable", "failure"),
        ({}, "disk.space", "ok"),
    ],
)
def test_a_folder_is_judged_by_what_was_measured(values: dict[str, Any], check: str, level: str) -> None:
    assert levels(disks.folders([a_folder(**values)]))[check] == level


def test_folders_on_one_file_system_are_told_once() -> None:
    lines = disks.folders([a_folder(), a_folder(what="home", path="/home/me")])
    assert [line.check for line in lines].count("disk.space") == 1
    assert "runs, home" in next(line.found for line in lines if line.check == "disk.space")


def test_a_umask_that_lets_everybody_write_is_warned_of() -> None:
    assert levels(disks.folders([a_folder()], 0o000))["disk.writable"] == "warning"
    assert levels(disks.folders([a_folder()], 0o022))["disk.writable"] == "ok"


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
    home, over, files = disks.quota(probe.read_quota(QUOTA))
    assert (home.level, over.level, files.level) == ("warning", "failure", "ok")
    assert disks.quota(None)[0].level == "unknown"


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


@pytest.mark.parametrize(
    ("asked", "seen", "level"), [(2, 2, "ok"), (2, 1, "failure"), (2, 4, "warning"), (2, None, "unknown")]
)
def test_gpus_are_counted_against_what_was_asked_for(asked: int, seen: int | None, level: str) -> None:
    assert gpus.count(asked, seen, "why").level == level


def test_a_gpu_with_less_memory_than_asked_for_fails() -> None:
    assert gpus.models(smi(), 80 * 1024).level == "ok"  # 80G cards show a little less
    assert gpus.models(smi(), 141 * 1024).level == "failure"


def test_a_shared_gpu_may_have_other_processes() -> None:
    assert gpus.processes(smi(busy=True), shared=True).level == "ok"
    assert gpus.processes(smi(busy=True), shared=False).level == "failure"


def test_a_gpu_with_mig_and_no_slice_fails() -> None:
    assert gpus.mig(smi(mig="Enabled")).level == "failure"
    assert gpus.mig(smi()).level == "ok"


def test_an_xid_of_the_hardware_is_told_from_a_program_s() -> None:
    assert gpus.xid([13, 31]).level == "ok"
    assert gpus.xid([13, 79]).level == "warning"


def test_xids_are_read_from_the_kernel_s_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = "[1.5] NVRM: Xid (PCI:0000:81:00): 79, pid=1, GPU has fallen off the bus.\n[2.0] eth0: up\n"
    (tmp_path / "dmesg").write_text(f"#!/bin/sh\necho '{log}'\n")
    (tmp_path / "dmesg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert probe.xids() == [79]


# The share of a node


@pytest.mark.parametrize(
    ("usable", "asked", "machine", "level"),
    [
        (8, 8, 64, "ok"),
        (64, 8, 64, "ok"),
        (4, 8, 64, "failure"),
        (2, 8, 2, "unknown"),
        (None, 8, 64, "unknown"),
    ],
)
def test_cpus_are_counted_against_the_share(
    usable: int | None, asked: int | None, machine: int, level: str
) -> None:
    assert share.cpus(usable, asked, machine).level == level


@pytest.mark.parametrize(
    ("bound", "asked", "level"),
    [(None, 8, "ok"), (8, 8, "ok"), (4, 8, "failure"), (4, None, "ok"), (None, 900, "unknown")],
)
def test_the_memory_limit_is_held_against_what_was_asked_for(
    bound: int | None, asked: int | None, level: str
) -> None:
    in_bytes = [None if one is None else one * GiB for one in (bound, asked)]
    assert share.memory(in_bytes[0], in_bytes[1], 512 * GiB).level == level


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
def test_the_tightest_memory_limit_counts(
    tmp_path: Path, proc: str, files: dict[str, str], limit: int | None
) -> None:
    written = {"proc/self/cgroup": proc, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert probe.memory_limit(tmp_path) == limit


@pytest.mark.parametrize(("free", "level"), [(GiB * 4, "ok"), (GiB // 2, "warning"), (GiB // 100, "failure")])
def test_shared_memory_is_judged_by_what_is_free(free: int, level: str) -> None:
    assert share.shm({"path": "/dev/shm", "free": free, "total": 8 * GiB}).level == level


# The other nodes


def reduced(backend: str = "nccl", gigabytes: float = 100, right: bool = True) -> dict[str, Any]:
    part = {"members": 4, "bytes": 2**28, "seconds": 0.01, "bus_bandwidth": gigabytes * 1e9, "right": right}
    return {"backend": backend, "within": part}


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (reduced(), "ok"),
        (reduced(gigabytes=0.5), "warning"),
        (reduced("gloo", 0.1), "ok"),  # CPUs: what is fast there is not known
        (reduced(right=False), "failure"),
        ({"why": "RuntimeError: Connection refused"}, "failure"),
    ],
)
def test_an_all_reduce_is_judged_by_its_sum_and_its_speed(found: dict[str, Any], level: str) -> None:
    line = network.reduction(found, "within")
    assert line is not None
    assert line.level == level


def test_an_all_reduce_says_how_it_was_measured() -> None:
    line = network.reduction(reduced(), "within")
    assert line is not None
    assert line.found.startswith(
        "100.00 GB/s measured: 256 MiB of float32 among 4 processes by nccl, median of 5"
    )
    assert network.reduction(reduced(), "between") is None


def test_a_clock_is_off_only_beyond_what_is_not_known() -> None:
    assert network.clock({"n2": (0.001, 0.0005), "the login node": (0.8, 1.0)}).level == "ok"
    assert network.clock({"n2": (5, 0.0005)}).level == "warning"
    assert network.clock({}).level == "unknown"


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
    assert [one["node"] for one in on_nodes.read(tmp_path, log)] == ["n1", "n2"]


def test_the_probe_is_written_for_python_3_9_and_its_library_alone() -> None:
    tree = ast.parse(Path(probe.__file__).read_text(), feature_version=(3, 9))
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"torch"}
