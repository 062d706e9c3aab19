"""The sampler by itself: what it reads, what it writes, and that nothing that fails around it reaches a job."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurmgpu.runs.directory import sampler_start
from slurmgpu.runs.samples import summary
from slurmgpu.sampling import smi
from slurmgpu.sampling.gpus import Gpus
from slurmgpu.sampling.processes import JobProcesses
from slurmgpu.sampling.readings import Reading, Totals, own, throttled_by
from slurmgpu.sampling.rows import Rows
from slurmgpu.sampling.smi import output_of, read_amd_smi, read_nvidia_smi, read_rocm_smi
from tests.nvml import compiled

PACKAGE = Path(__file__).parents[1] / "slurmgpu" / "sampling"
HERE = Path(__file__).parent
# The very line that a submission writes.
LINE = sampler_start(SimpleNamespace(sample="{{ sample }}", srun_options=(), gpus_per_node="", components=()))  # type: ignore[arg-type]
BURN = "import time\nend = time.time() + 60\nwhile time.time() < end: pass\n"
DEADLINE = 120


def rows_of(path: Path) -> list[dict[str, Any]]:
    whole, _, _ = (
        path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    )  # a line may be on its way
    return [json.loads(line) for line in whole.splitlines()]


def until(what: Any) -> Any:
    end = time.monotonic() + DEADLINE
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found


class Job:
    """A run directory with the sampler in it, as submission makes it, and what a batch script starts."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        shutil.copytree(
            PACKAGE, self.run_dir / "code" / "slurmgpu_sampling", ignore=shutil.ignore_patterns("__pycache__")
        )
        (self.run_dir / "code" / "slurmgpu_sampling" / "python").write_text(f"{sys.executable}\n")
        self.id = secrets.randbelow(10**9)  # others run beside this one
        self.env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": str(self.id), "SLURMD_NODENAME": "node1"}
        self.file = self.run_dir / "samples" / f"{self.id}.0-node1.jsonl"
        self.scripts: list[subprocess.Popen[str]] = []

    def start(
        self, told: str = "0.2 0", then: str = "sleep 60", env: Mapping[str, str] = {}
    ) -> subprocess.Popen[str]:
        """Start a batch script with the very line of the template, and more after it."""
        line = LINE.replace("{{ sample }}", told)
        script = subprocess.Popen(
            ["bash", "-c", f"set -euo pipefail\n{line}{then}\n"],
            env={**self.env, "SLURMGPU_RUN_DIR": str(self.run_dir), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.scripts.append(script)
        return script

    def samples(self, count: int = 1) -> list[dict[str, Any]]:
        """The samples, once there are so many."""

        def enough() -> list[dict[str, Any]]:
            found = [row for row in rows_of(self.file) if row["kind"] == "sample"]
            return found if len(found) >= count else []

        found: list[dict[str, Any]] = until(enough)
        return found

    def samplers(self) -> list[int]:
        """The processes of the sampler that are alive."""
        mark = str(self.run_dir / "code").encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if state != "Z" and words[0] and any(word.startswith(mark) for word in words):
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        for script in self.scripts:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            script.communicate()
        until(lambda: not self.samplers())


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in for NVML."""
    return compiled(tmp_path_factory.mktemp("nvml"))


# What it writes


def test_the_job_is_told_from_other_processes_and_its_totals_grow(job: Job) -> None:
    job.start("1 0", f"{sys.executable} -c '{BURN}'; true")
    other = subprocess.Popen([sys.executable, "-c", BURN], env={"SLURM_JOB_ID": f"{job.id}4"})
    try:
        first, *_, last = job.samples(4)
    finally:
        other.kill()
        other.wait()
    assert last["job"]["processes"] == 2  # the batch shell and its python
    passed, used = (
        last["seconds"] - first["seconds"],
        last["job"]["cpu_seconds"] - first["job"]["cpu_seconds"],
    )
    assert 0 < used <= passed + 0.1
    assert last["job"]["rss"] > 1 << 20
    start = rows_of(job.file)[0]
    assert (start["kind"], start["schema"], start["host"], start["restart"]) == (
        "start",
        "slurmgpu.sample/1",
        "node1",
        0,
    )
    assert start["process_source"] in ("/proc", "cgroup v2", "cgroup v1")


def test_each_start_of_a_requeued_job_has_a_file_of_its_own(job: Job) -> None:
    job.start(env={"SLURM_RESTART_COUNT": "3"})
    until((job.run_dir / "samples" / f"{job.id}.3-node1.jsonl").exists)
    assert not job.file.exists()


def test_nvml_tells_use_memory_power_and_trouble_of_each_gpu(job: Job, nvml: Path) -> None:
    job.start("1 8", env={"LD_LIBRARY_PATH": str(nvml), "NVML_XID": "79"})
    last = job.samples(3)[-1]
    assert [gpu["index"] for gpu in last["gpus"]] == list(range(8))
    gpu = last["gpus"][0]
    assert (gpu["utilisation"], gpu["memory"], gpu["power"], gpu["clock"]) == (
        0.75,
        20 << 30,
        300.0,
        1_980_000_000,
    )
    assert (gpu["temperature"], gpu["throttled"], gpu["ecc_errors"], gpu["xids"]) == (61, ["power"], 0, [79])
    assert last["gpus"][1]["xids"] == []
    assert rows_of(job.file)[0]["gpu_source"] == "NVML 570.1"
    found = summary(job.run_dir, job.id)
    assert found.gpu_utilisation == pytest.approx(0.75, abs=0.01)
    assert found.sm_activity == pytest.approx(0.4, abs=0.01)
    one = found.gpus[0]
    assert (one.name, one.memory_peak, one.memory_total) == ("NVIDIA H100 80GB HBM3", 20 << 30, 80 << 30)
    assert one.power_mean == pytest.approx(300, rel=0.15)  # by the counter of energy
    assert (one.throttled, one.xids, one.ecc_errors) == (("power",), (79,), 0)


def test_an_old_driver_and_a_gpu_off_the_bus_are_not_measured_rather_than_zero(job: Job, nvml: Path) -> None:
    job.start(
        "0.2 2", env={"LD_LIBRARY_PATH": str(nvml), "NVML_GPUS": "2", "NVML_LOST": "1", "NVML_OLD": "1"}
    )
    job.samples(3)
    found = summary(job.run_dir, job.id)
    lost, well = found.gpus
    assert (lost.utilisation_mean, lost.memory_peak, lost.power_mean, lost.energy) == (None, None, None, None)
    assert well.utilisation_mean == pytest.approx(0.75, abs=0.01)
    assert (well.sm_activity_mean, found.sm_activity) == (None, None)  # GPUs before Hopper do not count it
    assert well.power_mean == pytest.approx(300, rel=0.01)  # by power over time
    assert well.memory_peak == 21 << 30  # with the driver's own, which it does not tell apart
    assert found.energy is None  # of all GPUs together, it is not known


def test_only_the_jobs_own_gpus_are_sampled(job: Job, nvml: Path) -> None:
    job.start("0.2 2", env={"LD_LIBRARY_PATH": str(nvml), "CUDA_VISIBLE_DEVICES": "2,5"})
    assert [gpu["index"] for gpu in job.samples()[0]["gpus"]] == [2, 5]


@pytest.mark.parametrize(
    ("named", "expected", "ours"),
    [
        ("0,2", 2, [0, 2]),
        ("", 0, []),
        ("NoDevFiles", 0, []),
        ("GPU-2aaa", 1, [2]),
        ("MIG-0123456789", 1, None),  # a part of a GPU: NVML counts whole ones
        ("MIG-0123456789", 4, [0, 1, 2, 3]),
        ("7", 1, None),
        (None, 4, [0, 1, 2, 3]),
        (None, 2, None),
        (None, None, None),
    ],
)
def test_gpus_of_others_are_left(named: str | None, expected: int | None, ours: list[int] | None) -> None:
    found = [(index, f"GPU-{index}aaaaaaa-bbbb") for index in range(4)]
    assert own(found, named, expected) == ours


# What fails around it


@pytest.mark.long
def test_a_driver_that_hangs_costs_the_gpus_figures_alone(job: Job, nvml: Path) -> None:
    script = job.start("1 8", "sleep 60", env={"LD_LIBRARY_PATH": str(nvml), "NVML_HANGS": "1"})
    assert [row["gpus"] for row in job.samples(2)] == [None, None]
    os.kill(job.samplers()[0], signal.SIGTERM)  # and it ends at once when it is told to
    until(lambda: not job.samplers())
    assert script.poll() is None


def test_a_program_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="does not answer"):
        output_of(["sleep", "60"], patience=0.2)
    until(
        lambda: output_of(["true"]) == "" and not smi._abandoned
    )  # it has been killed, and its end was seen to


def test_a_failing_source_is_asked_less_and_less_often() -> None:
    asked = []

    def find() -> None:
        asked.append(1)

    gpus = Gpus({}, 1, find)
    assert [gpus.read() for _ in range(40)] == [None] * 40
    assert len(asked) == 5  # samples 1, 3, 7, 15 and 31


@pytest.mark.parametrize(
    "fault", ["no folder", "read-only", "a file in its place", "no python", "broken python"]
)
def test_a_sampler_that_cannot_work_leaves_the_job_alone(fault: str, job: Job) -> None:
    told = "1 0"
    if fault == "no folder":
        shutil.rmtree(job.run_dir / "code")
    elif fault == "read-only":
        (job.run_dir / "samples").symlink_to("/proc/1")
    elif fault == "a file in its place":
        (job.run_dir / "samples").write_text("")
    elif fault == "no python":
        (job.run_dir / "code" / "slurmgpu_sampling" / "python").write_text("/nowhere/python\n")
        programs = job.run_dir / "bin"
        programs.mkdir()
        for name in ("bash", "cat", "sleep", "dirname"):
            (programs / name).symlink_to(str(shutil.which(name)))
        (programs / "python3").write_text("#!/bin/sh\nexit 1\n")
        (programs / "python3").chmod(0o755)
        job.env["PATH"] = str(programs)
        start = job.run_dir / "code" / "slurmgpu_sampling" / "start.sh"
        start.write_text(start.read_text().replace("/usr/bin/python3", "/nowhere/python3"))
    else:
        (job.run_dir / "code" / "slurmgpu_sampling" / "sampler.py").write_text("raise SystemExit(7)\n")
    script = job.start(told, "sleep 0.2; echo done; exit 3")
    output, _ = script.communicate(timeout=DEADLINE)
    assert (script.returncode, output) == (3, "done\n")
    until(lambda: not job.samplers())


def test_a_sampler_that_has_ended_before_the_script_lets_go_of_it_leaves_the_job_alone(job: Job) -> None:
    """Bash may have forgotten it by then, and `disown` fails."""
    late = LINE.replace("{{ sample }}", "1 0").replace("disown", "sleep 0.2; disown")
    run = ["bash", "-c", f"set -euo pipefail\n{late}echo goes on; exit 3"]
    env = {**job.env, "SLURMGPU_RUN_DIR": str(job.run_dir / "none")}
    ended = subprocess.run(run, env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "goes on\n", "")


def test_a_sampler_that_is_killed_leaves_the_job_alone(job: Job) -> None:
    os.mkfifo(job.run_dir / "go")
    script = job.start("0.2 0", 'read -r _ <"$SLURMGPU_RUN_DIR/go"; sleep 0; wait; echo done; exit 3')
    job.samples()
    for pid in job.samplers():
        os.kill(pid, signal.SIGKILL)
    (job.run_dir / "go").write_text("now\n")
    output, _ = script.communicate(timeout=DEADLINE)
    assert (script.returncode, output) == (3, "done\n")


def test_it_ends_when_what_started_it_has_gone(job: Job) -> None:
    script = job.start()
    job.samples()
    script.kill()  # its child, the sampler, is not told
    script.wait()
    until(lambda: not job.samplers())
    assert rows_of(job.file)[-1]["kind"] == "end"


def test_it_does_not_begin_when_what_started_it_has_gone_already(job: Job) -> None:
    """Its parent would be process 1, which never goes."""
    start = job.run_dir / "code" / "slurmgpu_sampling" / "start.sh"
    start.write_text(start.read_text().replace('"$gpus" "$PPID"', '"$gpus" 1'))
    script = job.start("0.2 0", 'wait "$!"; echo "$?"')
    output, _ = script.communicate(timeout=DEADLINE)
    assert output == "0\n"
    assert not job.file.exists()


def test_signals_that_ask_a_job_to_save_do_not_end_it(job: Job) -> None:
    job.start()
    before = len(job.samples())
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(job.samplers()[0], number)
    job.samples(before + 2)


def test_its_exit_code_is_0_whatever_ends_it(job: Job) -> None:
    os.mkfifo(job.run_dir / "go")
    script = job.start(
        "0.2 0", 'pid=$!; read -r _ <"$SLURMGPU_RUN_DIR/go"; kill "$pid"; wait "$pid"; echo "$?"'
    )
    job.samples()
    (job.run_dir / "go").write_text("now\n")
    output, _ = script.communicate(timeout=DEADLINE)
    assert output == "0\n"


def test_a_full_disk_costs_rows_but_no_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, real = Rows(tmp_path / "rows"), os.write

    def cut(file: int, text: bytes) -> int:
        return real(file, text[:10])

    def full(file: int, text: bytes) -> int:
        raise OSError(28, "No space left on device")

    rows.write({"row": 1})
    for broken in (cut, full):
        monkeypatch.setattr(os, "write", broken)
        rows.write({"row": 2})
    monkeypatch.setattr(os, "write", real)
    rows.write({"row": 3})
    lines = (tmp_path / "rows").read_text().splitlines()
    assert (json.loads(lines[0]), json.loads(lines[-1])) == ({"row": 1}, {"row": 3})


def test_a_file_stays_small_and_keeps_first_and_last_sample(tmp_path: Path) -> None:
    path, limit = tmp_path / "samples" / "1.0-n.jsonl", 20_000
    rows = Rows(path, limit)
    rows.write({"kind": "start"})
    thinned = 0
    for number in range(3000):
        thinned += rows.write({"kind": "sample", "number": number})
        assert path.stat().st_size <= limit
    kept = rows_of(path)
    assert kept[0] == {"kind": "start"}
    assert (kept[1]["number"], kept[-1]["number"]) == (0, 2999)
    assert thinned >= 2
    numbers = [row["number"] for row in kept[1:]]
    assert numbers == sorted(set(numbers))


# What it reads


def test_totals_weigh_each_reading_by_its_time_and_count_errors_from_the_first_on() -> None:
    totals = Totals()
    totals.take(Reading(0, utilisation=1.0, memory=5, power=100.0, ecc_errors=7), 10.0)
    totals.take(Reading(0, utilisation=0.5, memory=9, power=300.0, ecc_errors=7), 12.0)
    totals.take(Reading(0, memory=4), 13.0)
    last = totals.take(Reading(0, utilisation=1.0, memory=4, power=100.0, ecc_errors=8, xids=(31,)), 14.0)
    assert (last["busy_seconds"], last["busy_of_seconds"]) == (2.0, 3.0)
    assert (last["energy"], last["energy_of_seconds"]) == (400.0, 2.0)
    assert (last["memory_peak"], last["xids"]) == (9, [31])


def test_bits_of_throttling_are_words_and_idling_is_none() -> None:
    assert throttled_by(0x1 | 0x2) == ()
    assert throttled_by(0x4 | 0x20 | 0x40 | 0x8) == ("hardware", "power", "thermal")


def test_what_nvidia_smi_cannot_say_is_not_measured() -> None:
    text = (
        "0, GPU-1, NVIDIA A100-SXM4-40GB, 97, 20480, 40960, 301.25, 1410, 55, 0x0000000000000004, 0\n"
        "1, GPU-2, NVIDIA A100-SXM4-40GB, [N/A], 5, 40960, [Not Supported], [N/A], N/A, [N/A], [N/A]\n"
        "Unable to determine the device handle for GPU 0000:41:00.0: Unknown Error\n"
    )
    one, other = read_nvidia_smi(text)
    assert one == Reading(
        0,
        "GPU-1",
        "NVIDIA A100-SXM4-40GB",
        0.97,
        20480 << 20,
        40960 << 20,
        301.25,
        None,
        1_410_000_000,
        55.0,
        ("power",),
        0,
    )
    assert other[3:] == (None, 5 << 20, 40960 << 20, None, None, None, None, (), None, (), None)


def test_amds_programs_are_read() -> None:
    rocm = {
        "card1": {
            "GPU use (%)": "12", "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "10960896",
            "Average Graphics Package Power (W)": "92.0", "Temperature (Sensor edge) (C)": "38.0",
            "Temperature (Sensor junction) (C)": "41.0", "sclk clock speed:": "(800Mhz)", "Card series": "MI250X",
            "Unique ID": "0x4c9b", "Accumulated Energy (uJ)": "15000000.5",
        },
        "card0": {"GPU use (%)": "N/A"},
        "system": {},
    }  # fmt: skip
    none, some = read_rocm_smi("WARNING: low power\n" + json.dumps(rocm))
    assert none == Reading(0)
    assert some == Reading(
        1, "0x4c9b", "MI250X", 0.12, 10960896, 68702699520, 92.0, 15.0000005, 800_000_000, 41.0
    )
    gpu = {
        "gpu": 0,
        "usage": {"gfx_activity": {"value": 50, "unit": "%"}},
        "power": {"socket_power": {"value": 140, "unit": "W"}},
        "mem_usage": {
            "total_vram": {"value": 196592, "unit": "MB"},
            "used_vram": {"value": 283, "unit": "MB"},
        },
        "temperature": {"hotspot": "N/A"},
        "clock": {"gfx_0": {"clk": {"value": 132, "unit": "MHz"}}},
    }
    for text in (json.dumps([gpu]), json.dumps({"gpu_data": [gpu]})):
        (one,) = read_amd_smi(text)
        assert one == Reading(0, None, None, 0.5, 283 << 20, 196592 << 20, 140.0, None, 132_000_000)
    assert read_amd_smi("no GPU") == read_rocm_smi("{") == []


def a_cgroup(folder: Path, version: int) -> tuple[Path, Path]:
    """/proc and the control groups of a job 7, of either version."""
    proc, groups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    if version == 2:
        place = "system.slice/slurmstepd.scope/job_7"
        (proc / "self" / "cgroup").write_text(f"0::/{place}/step_batch/user/task_0\n")
        files = {
            f"{place}/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
            f"{place}/memory.stat": "anon 1000\nfile 500\nshmem 200\n",
        }
    else:
        place = "slurm/uid_1000/job_7"
        lines = [
            f"{n}:{names}:/{place}/step_batch\n"
            for n, names in ((4, "cpu,cpuacct"), (9, "memory"), (2, "freezer"))
        ]
        (proc / "self" / "cgroup").write_text("".join(lines))
        files = {
            f"cpu,cpuacct/{place}/cpuacct.usage": "2500000000\n",
            f"memory/{place}/memory.stat": "rss 5\ntotal_rss 1000\ntotal_cache 500\ntotal_shmem 200\n",
        }
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    return proc, groups


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_counts_cpu_and_memory_without_page_cache(version: int, tmp_path: Path) -> None:
    job = JobProcesses("7", None, *a_cgroup(tmp_path, version))
    assert job.source == f"cgroup v{version}"
    used = job.read()
    assert (used.cpu_seconds, used.rss, used.rss_peak, used.page_cache) == (2.5, 1200, 1200, 300)


def test_another_jobs_control_group_is_not_this_ones(tmp_path: Path) -> None:
    assert JobProcesses("71", None, *a_cgroup(tmp_path, 2)).source == "/proc"


def a_process(proc: Path, pid: int, parent: int, ticks: Sequence[int], marked: bool = True) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    cells = ["S", parent, 1, 1, 0, -1, 0, 0, 0, 0, 0, *ticks, 20, 0, 1, 0, 100, 9 << 20, 25]
    (folder / "stat").write_text(f"{pid} (a ) b) {' '.join(map(str, cells))}\n")
    (folder / "environ").write_bytes(b"A=1\0SLURM_JOB_ID=7\0" if marked else b"SLURM_JOB_ID=71\0")
    (folder / "status").write_text("VmHWM:     400 kB\n")
    (folder / "io").write_text("rchar: 9\nread_bytes: 10\nwrite_bytes: 20\ncancelled_write_bytes: 0\n")


def test_what_ended_processes_had_used_is_counted_once(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    tick = os.sysconf("SC_CLK_TCK")
    a_process(proc, 10, 1, [tick, 0, 0, 0])  # a shell of the job's
    a_process(proc, 11, 10, [2 * tick, 0, 0, 0], marked=False)  # its child, that has cleaned its environment
    a_process(proc, 12, 1, [3 * tick, 0, 0, 0])  # its parent is none of the job's
    a_process(proc, 13, 1, [50 * tick, 0, 0, 0], marked=False)
    a_process(
        proc, 14, 1, [50 * tick, 0, 0, 0]
    )  # of the same job, on another node of Slurm's on this machine
    (proc / "14" / "environ").write_bytes(b"SLURM_JOB_ID=7\0SLURMD_NODENAME=n2\0")
    job = JobProcesses("7", "n1", proc, tmp_path)
    used = job.read()
    assert (used.cpu_seconds, used.processes, used.read_bytes, used.written_bytes) == (6.0, 3, 30, 60)
    assert used.rss_peak == 400 * 1024  # what one of them once held
    shutil.rmtree(proc / "11")
    shutil.rmtree(proc / "12")
    a_process(proc, 10, 1, [tick, 0, 2 * tick, 0])  # it has waited for its child, whose time is its own now
    used = job.read()
    assert (used.cpu_seconds, used.processes) == (6.0, 1)


def test_start_sh_passes_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here")
    subprocess.run(["shellcheck", PACKAGE / "start.sh"], check=True)
