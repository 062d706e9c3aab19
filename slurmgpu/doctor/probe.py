"""Measurements on a node: one JSON object about the machine, its GPUs, its folders and the way to the other nodes.

It travels into a job alone, as one file, and runs in whatever Python is there: the standard library, 3.9 or newer, and
torch where it is installed. The doctor imports it for what it measures on the login node.

    probe.py ASK.json FOLDER     measures; writes FOLDER/<node>.json, or prints it where that cannot be written
    probe.py --torch             says what torch sees
    probe.py --reduce            one process of the all-reduce; RANK and the rest are set
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree
from pathlib import Path
from typing import Any, Optional

SCHEMA = "slurmgpu.probe/1"
DISK_SECONDS = 0.5
"""Seconds for which the latency of one folder is measured."""
DISK_PATIENCE = 20.0
MEETING_SECONDS = 60.0
"""Seconds for which the nodes look for each other: their tasks do not start at the same moment."""
TORCH_SECONDS = 180.0
Figures = dict[str, Any]
"""Result of one measurement by name, as it is written to JSON."""
REDUCE_BYTES = {"nccl": 256 * 2**20, "gloo": 8 * 2**20}


# Folders


def folder(what: str, path: str, *, budget: float = DISK_SECONDS) -> Figures:
    """Return whether a folder is there and can be written to, and the facts of its file system; bounded in time.

    A file server that is gone never answers: the look at it is given up, and the thread with it.
    """
    found: Figures = {"what": what, "path": path}
    filled: Figures = {}
    look = threading.Thread(target=_look, args=(path, budget, filled), daemon=True)
    look.start()
    look.join(DISK_PATIENCE)
    return {**found, "hangs": True} if look.is_alive() else {**found, **filled}


def _look(path: str, budget: float, found: Figures) -> None:
    try:
        found["mode"] = os.stat(path).st_mode & 0o7777
        found["device"] = os.stat(path).st_dev
        system = os.statvfs(path)
        found["free"], found["total"] = system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize
        found["inodes_free"], found["inodes"] = system.f_favail, system.f_files
        with tempfile.TemporaryDirectory(prefix=".slurmgpu-doctor-", dir=path) as place:
            _time(place, budget, found)
    except OSError as error:
        found["why"] = error.strerror or str(error)


def _time(place: str, budget: float, found: Figures) -> None:
    times: dict[str, list[float]] = {"open": [], "stat": [], "write": []}
    began = time.monotonic()
    for number in range(50):
        name = os.path.join(place, f"f{number}")
        before = time.monotonic()
        file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_EXCL)
        try:
            os.write(file, b"x" * 4096)
            os.fsync(file)
        finally:
            os.close(file)
        times["write"].append(time.monotonic() - before)
        before = time.monotonic()
        os.stat(name)
        times["stat"].append(time.monotonic() - before)
        before = time.monotonic()
        os.close(os.open(name, os.O_RDONLY))
        times["open"].append(time.monotonic() - before)
        found["samples"] = number + 1
        if time.monotonic() - began > budget:
            break
    found["seconds"] = {name: statistics.median(each) for name, each in times.items()}


def quota(place: str) -> Optional[list[Figures]]:
    """Return the user's quotas, by `quota` and, for a Lustre file system, `lfs quota`; None: neither tells anything."""
    texts = [_output(["quota", "-w"], 5.0, codes=(0, 1))]  # 1: something is over its quota
    if shutil.which("lfs"):
        texts.append(_output(["lfs", "quota", "-q", "-u", str(os.getuid()), place], 5.0))
    if all(text is None for text in texts):
        return None
    return [one for text in texts if text is not None for one in read_quota(text)]


def read_quota(text: str) -> list[Figures]:
    """Read rows of `place KiB[*] quota limit [grace] files[*] quota limit [grace]`; a limit of 0 is none."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 7 or not re.fullmatch(r"\d+\*?", words[1]):
            continue
        numbers = [word.rstrip("*") for word in words[1:]]
        files = 3 if numbers[3].isdigit() else 4  # between them stands how long what is too much may stay
        for of, at, unit in (("space", 0, 1024), ("files", files, 1)):
            row = [int(one) for one in numbers[at : at + 3] if one.isdigit()]
            most = (row[2] or row[1]) if len(row) == 3 else 0
            if most:
                found.append({"place": words[0], "of": of, "used": row[0] * unit, "limit": most * unit})
    return found


def _output(argv: list[str], seconds: float, *, codes: tuple[int, ...] = (0,)) -> Optional[str]:
    """Return what a program prints; None where there is none, it fails, or takes too long."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode in codes else None


# GPUs


def gpus() -> Figures:
    """Return what nvidia-smi says of each GPU that it shows; ``why`` it says nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"why": "nvidia-smi is not on PATH", "there": False}
    try:
        done = subprocess.run(
            [program, "-q", "-x"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"why": f"nvidia-smi: {error}", "there": True}
    if done.returncode != 0:
        said = " ".join((done.stdout + done.stderr).split())
        return {"why": f"nvidia-smi: {said[:200] or f'ended with {done.returncode}'}", "there": True}
    try:
        return read_smi(done.stdout)
    except xml.etree.ElementTree.ParseError as error:
        return {"why": f"what nvidia-smi -q -x prints cannot be read: {error}", "there": True}


def read_smi(text: str) -> Figures:
    """Read `nvidia-smi -q -x`; what a driver or a model does not tell is None."""
    root = xml.etree.ElementTree.fromstring(text)
    return {
        "there": True,
        "driver": root.findtext("driver_version"),
        "cuda": root.findtext("cuda_version"),
        "gpus": [_read_gpu(number, one) for number, one in enumerate(root.iter("gpu"))],
    }


def _read_gpu(number: int, gpu: Any) -> Figures:
    # Drivers before 535 call them throttle reasons.
    reasons = gpu.find("clocks_event_reasons")
    reasons = gpu.find("clocks_throttle_reasons") if reasons is None else reasons
    active = [
        re.sub(r"^clocks_(?:event|throttle)_reason_", "", one.tag)
        for one in ([] if reasons is None else reasons)
        if (one.text or "").strip() == "Active"
    ]
    return {
        "index": number,
        "uuid": gpu.findtext("uuid"),
        "model": gpu.findtext("product_name"),
        "memory": _whole(gpu.findtext("fb_memory_usage/total")),
        "used": _whole(gpu.findtext("fb_memory_usage/used")),
        "mig": gpu.findtext("mig_mode/current_mig"),
        "slices": len(gpu.findall("mig_devices/mig_device")),
        "ecc": _uncorrected(gpu.find("ecc_errors/volatile")),
        "pending": [name for name, path in _PENDING.items() if (gpu.findtext(path) or "").strip() == "Yes"],
        "reasons": None if reasons is None else active,
        "processes": [
            {"pid": _whole(one.findtext("pid")), "name": one.findtext("process_name")}
            for one in gpu.iter("process_info")
            if "C" in (one.findtext("type") or "C")
        ],
    }


_PENDING = {
    "page retirement": "retired_pages/pending_retirement",
    "page retirement (older driver)": "retired_pages/pending_blacklist",
    "row remapping": "remapped_rows/remapped_row_pending",
    "failed row remapping": "remapped_rows/remapped_row_failure",
}


def _uncorrected(errors: Any) -> Optional[int]:
    """Uncorrected errors of all memories; older drivers call them double bit and give a total."""
    if errors is None:
        return None
    total = errors.findtext("double_bit/total")
    texts = [one.text for one in errors if "uncorrectable" in one.tag] if total is None else [total]
    numbers = [number for text in texts if (number := _whole(text)) is not None]
    return sum(numbers) if numbers else None


def _whole(text: Optional[str]) -> Optional[int]:
    match = re.match(r"\s*(\d+)", text or "")
    return int(match[1]) if match else None


def shown(found: list[Figures], visible: Optional[str]) -> list[Figures]:
    """Of all GPUs those that CUDA_VISIBLE_DEVICES names.

    Without cgroups nvidia-smi shows a job all of its node's; where cgroups hide the others, the variable's numbers begin
    at 0, as nvidia-smi's do.
    """
    if visible is None:
        return found
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if any(name.startswith("MIG") for name in names):
        return found
    return [
        one
        for one in found
        for name in names
        if name == str(one["index"]) or (name.startswith("GPU-") and (one["uuid"] or "").startswith(name))
    ]


def xids() -> Optional[list[int]]:
    """Return the numbers of the driver's errors in the kernel's log; None where users may not read it."""
    text = _output(["dmesg"], 10.0)
    return (
        None
        if text is None
        else sorted({int(number) for number in re.findall(r"NVRM: Xid [^:]*(?::[^:]*)*?: (\d+),", text)})
    )


# The job's share of the node


def share() -> Figures:
    """CPUs and memory that this process may use, and what Slurm says that it asked for."""
    in_mib = {name: _whole(os.environ.get(name)) for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU")}
    cpus_on_node = _whole(os.environ.get("SLURM_CPUS_ON_NODE"))
    memory = in_mib["SLURM_MEM_PER_NODE"] or (in_mib["SLURM_MEM_PER_CPU"] or 0) * (cpus_on_node or 0)
    numbers = {
        name: _whole(os.environ.get(f"SLURM_{name}"))
        for name in ("CPUS_PER_TASK", "CPUS_PER_GPU", "GPUS_ON_NODE", "STEP_TASKS_PER_NODE")
    }
    of_gpus = (numbers["CPUS_PER_GPU"] or 0) * (numbers["GPUS_ON_NODE"] or 0)
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpus_asked": numbers["CPUS_PER_TASK"] or of_gpus // (numbers["STEP_TASKS_PER_NODE"] or 1) or None,
        "cpus_of_machine": os.cpu_count(),
        "memory_limit": memory_limit(Path("/")),
        "memory_asked": memory * 2**20 or None,
        "memory_of_machine": _physical(),
    }


def _physical() -> Optional[int]:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def memory_limit(root: Path) -> Optional[int]:
    """Return the tightest memory limit of this process's cgroups (v2 or v1), in bytes; None: there is none."""
    try:
        text = (root / "proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return None
    limits = []
    for number, controllers, place in re.findall(r"^(\d+):([^:]*):(.*)$", text, re.MULTILINE):
        if number == "0" and not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        here = top / place.lstrip("/")
        for one in (here, *here.parents):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((one / name).read_text(encoding="utf-8")))
            if one == top:
                break
    return min((one for one in limits if one < 2**60), default=None)  # v1 writes almost 2^63 for none


def shm(path: str) -> Figures:
    """Size of shared memory and what is free in it, in bytes."""
    try:
        system = os.statvfs(path)
    except OSError as error:
        return {"path": path, "why": error.strerror or str(error)}
    return {
        "path": path,
        "free": system.f_bavail * system.f_frsize,
        "total": system.f_blocks * system.f_frsize,
    }


# The other nodes


def nodes() -> Optional[list[str]]:
    """Return the names of the job's nodes, in Slurm's order; None: scontrol is not here, in a container for example."""
    named = os.environ.get("SLURM_JOB_NODELIST")
    text = _output(["scontrol", "show", "hostnames", named], 20.0) if named else None
    return None if text is None else text.split()


def addresses(names: list[str]) -> dict[str, Figures]:
    """Of each node an address, and whether its name led to it; one that no name service knows has Slurm's."""
    found: dict[str, Figures] = {}
    for name in names:
        try:
            found[name] = {
                "address": socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0],
                "resolves": True,
            }
        except OSError:
            text = _output(["scontrol", "-o", "show", "node", name], 20.0)
            match = re.search(r"\bNodeAddr=(\S+)", text or "")
            other = match[1] if match and match[1] != name else None
            found[name] = {"address": other, "resolves": False, "silent": text is None}
    return found


def first_port(job_id: str) -> int:
    """Return where the probes of a job listen: one port for each node, below those that Linux gives out by itself."""
    return 20000 + int(job_id or 0) * 37 % 9000


class Meeting:
    """Every node listens on a port of its own, and calls each other node: whoever answers says its name and time."""

    def __init__(self, names: list[str], number: int, port: int) -> None:
        self.names, self.number, self.port = names, number, port
        self.me = names[number]
        self.why: Optional[str] = None
        self._callers: set[str] = set()
        self._heard = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("", port + number))
            self._socket.listen(len(names) + 8)
        except OSError as error:
            self.why = f"port {port + number}: {error.strerror}"
        else:
            threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                caller = connection.recv(300).decode("utf-8", "replace")
                connection.sendall(json.dumps({"node": self.me, "time": time.time()}).encode())
                self._callers.add(caller)
                if self._callers >= set(self.names) - {self.me}:
                    self._heard.set()

    def call_all(self, found: dict[str, Figures], patience: float) -> list[Figures]:
        """Call every other node until it answers; at most ``patience`` in all. What came of each."""
        deadline = time.monotonic() + patience
        calls = []
        for number, name in enumerate(self.names):
            if name != self.me:
                calls.append(self._call(name, found[name]["address"], self.port + number, deadline))
        return calls

    def _call(self, name: str, address: Optional[str], port: int, deadline: float) -> Figures:
        call: Figures = {"from": self.me, "to": name, "address": address, "port": port}
        if address is None:
            return {**call, "why": "its name leads to no address"}
        while True:
            try:
                with socket.create_connection((address, port), timeout=5) as connection:
                    before = time.time()
                    connection.sendall(self.me.encode())
                    said = json.loads(connection.recv(4096))
                    after = time.time()
                return {**call, "offset": said["time"] - (before + after) / 2, "doubt": (after - before) / 2}
            except (OSError, ValueError, KeyError, TypeError) as error:
                if time.monotonic() > deadline:
                    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                    return {**call, "why": why or "no answer"}
                time.sleep(0.3)

    def end(self, patience: float) -> None:
        """Wait until all others have called, or the time is up."""
        self._heard.wait(patience if len(self.names) > 1 else 0)
        self._socket.close()


def controller_offset() -> Optional[float]:
    """slurmctld's clock minus this node's, to about a second; None where scontrol is not here."""
    before = time.time()
    os.environ["SLURM_TIME_FORMAT"] = "%s"
    text = _output(["scontrol", "show", "config"], 20.0) or ""
    match = re.match(r"Configuration data as of (\d+)$", text, re.MULTILINE)
    return int(match[1]) + 0.5 - (before + time.time()) / 2 if match else None


# torch


def see_torch() -> Figures:
    """Import torch and tell what it is and sees; in a process of its own, since it may crash or hang."""
    import torch

    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "version": str(torch.__version__),
        "built_for": torch.version.cuda or (f"ROCm {torch.version.hip}" if torch.version.hip else "cpu"),
        "gpus": visible,
        "models": [torch.cuda.get_device_name(number) for number in range(visible)],
    }


def reduce() -> Figures:
    """One process of the all-reduce: within its node, then between the first processes of all nodes."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    rank, local, world, each = (
        int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    on_gpus = torch.cuda.is_available()
    backend = "nccl" if on_gpus else "gloo"
    if on_gpus:
        torch.cuda.set_device(local)
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    dist.init_process_group(backend, timeout=timedelta(seconds=TORCH_SECONDS - 30))
    found: Figures = {"backend": backend, "rank": rank}
    # Every process has a part in making every group.
    groups = [
        dist.new_group(list(range(first, first + each))) if each > 1 else None
        for first in range(0, world, each)
    ]
    firsts = dist.new_group(list(range(0, world, each))) if world > each else None
    if each > 1:
        found["within"] = _timed(
            groups[rank // each], each, sum(range(rank - local + 1, rank - local + each + 1)), device
        )
    if firsts is not None and local == 0:
        found["between"] = _timed(firsts, world // each, sum(range(1, world + 1, each)), device)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(
        0.2
    )  # a thread of gloo's that still holds tensors would abort the ending process (pytorch#179291)
    return found


def _timed(group: Any, members: int, total: int, device: Any) -> Figures:
    """Return the median of 5 all-reduces of float32, each of rank + 1; bus bandwidth as NVIDIA's nccl-tests define it."""
    import torch
    import torch.distributed as dist

    size = REDUCE_BYTES["nccl" if device.type == "cuda" else "gloo"]
    times = []
    right = True
    for turn in range(7):
        values = torch.full((size // 4,), float(dist.get_rank() + 1), device=device)
        dist.barrier(group=group)
        if device.type == "cuda":
            torch.cuda.synchronize()
        before = time.monotonic()
        dist.all_reduce(values, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if turn >= 2:  # the first ones make the connections
            times.append(time.monotonic() - before)
        right = right and bool((values == total).all())
    seconds = statistics.median(times)
    bandwidth = size / seconds * 2 * (members - 1) / members
    return {"members": members, "bytes": size, "seconds": seconds, "bus_bandwidth": bandwidth, "right": right}


def _ask_torch() -> Figures:
    """``see_torch`` by this file in a process of its own; ``why`` it said nothing."""
    try:
        done = subprocess.run(
            [sys.executable, os.path.abspath(__file__), "--torch"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TORCH_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"why": f"importing torch took more than {TORCH_SECONDS:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        result: Figures = json.loads(lines[-1])
        return result
    words = done.stderr.strip().splitlines()
    return {"why": words[-1][:300] if words else f"importing torch ended with {done.returncode}"}


def _reduce_here(each: int, number: int, count: int) -> Figures:
    """Start this node's processes of the all-reduce and wait for them; what the first of them found."""
    environment = {
        **os.environ,
        "WORLD_SIZE": str(each * count),
        "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": os.environ.get("MASTER_PORT", "29511"),
    }
    command = [sys.executable, os.path.abspath(__file__), "--reduce"]
    processes = []
    outputs = []
    for local in range(each):
        own = {**environment, "RANK": str(number * each + local), "LOCAL_RANK": str(local)}
        output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        outputs.append(output)
        processes.append(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=own)
        )
    deadline = time.monotonic() + TORCH_SECONDS
    try:
        for one in processes:
            one.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return {"why": f"it did not end in {TORCH_SECONDS:g} s"}
    finally:
        for one in processes:
            one.kill()
    texts = []
    for output in outputs:
        output.seek(0)
        texts.append(output.read())
    if any(one.returncode for one in processes):
        failed = next(text for one, text in zip(processes, texts) if one.returncode)
        words = [line for line in failed.strip().splitlines() if re.match(r"\S*(?:Error|Exception)\b", line)]
        return {"why": (words or failed.strip().splitlines() or ["a process ended without a word"])[-1][:300]}
    found: Figures = json.loads(texts[0].splitlines()[-1])
    return found


# All together


def measure(ask: Figures) -> Figures:
    """Measure everything on this node.

    ``ask``: ``folders`` (by what they are for), ``shm``, and ``processes``, as many as take part in the all-reduce on
    each node.
    """
    number, count = int(os.environ.get("SLURM_NODEID", 0)), int(os.environ.get("SLURM_JOB_NUM_NODES", 1))
    me = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    names = nodes() if count > 1 else [me]
    meeting = (
        Meeting(names, number, first_port(os.environ.get("SLURM_JOB_ID", "")))
        if count > 1 and names
        else None
    )
    found: Figures = {"schema": SCHEMA, "node": me, "number": number, "host": socket.gethostname()}
    found["python"] = {"version": ".".join(map(str, sys.version_info[:3])), "program": sys.executable}
    found["modules"] = os.environ.get("LOADEDMODULES", "")
    found["container"] = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    found["gpus"] = gpus()  # before torch is on them
    found["visible"] = next(
        (os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES") if name in os.environ),
        None,
    )
    found["sharing"] = [name for name in os.environ if re.search("SHARDS_ON_NODE|CUDA_MPS", name)]
    found["devices"] = len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])
    found["xids"] = xids()
    found["share"] = share()
    found["shm"] = shm(ask.get("shm", "/dev/shm"))
    # Of two that are one folder the first counts.
    places = {os.path.expandvars(path): what for what, path in reversed(ask.get("folders", {}).items())}
    found["folders"] = [
        folder(what, path) for path, what in reversed(places.items()) if path and "$" not in path
    ]
    if meeting is not None and names is not None:
        found["names"] = addresses(names)
        found["listens"] = {"port": meeting.port + number, "why": meeting.why}
        found["calls"] = meeting.call_all(found["names"], MEETING_SECONDS)
    found["controller_offset"] = controller_offset() if number == 0 else None
    found["torch"] = _ask_torch()
    each = int(ask.get("processes", 1))
    sees = found["torch"].get("gpus") or each
    if "version" in found["torch"] and each * count > 1 and sees >= each:
        found["reduce"] = _reduce_here(each, number, count)
    if meeting is not None:
        meeting.end(MEETING_SECONDS)
    return found


def main(arguments: list[str]) -> int:
    """Run it; 0 also where something is wrong with the node, which the result tells."""
    if arguments == ["--torch"]:
        print(json.dumps(see_torch()))
        return 0
    if arguments == ["--reduce"]:
        print(json.dumps(reduce()), flush=True)
        return 0
    if os.environ.get("SLURM_LOCALID", "0") != "0":
        return 0  # one on each node is enough
    ask_file, results = arguments
    found = measure(json.loads(Path(ask_file).read_text(encoding="utf-8")))
    text = json.dumps(found)
    try:
        place = Path(results, f"{found['node']}.json")
        place.with_suffix(".part").write_text(text, encoding="utf-8")
        os.replace(place.with_suffix(".part"), place)
    except OSError:
        print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
