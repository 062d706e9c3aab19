"""Where the output of srun's tasks goes: as it is, into files, or labelled with the task's rank.

Stands in for srun: starts a step's tasks as processes of this machine.

Like srun it sets the variables of each task, ends the other tasks when one fails (``--kill-on-bad-exit``)
or some seconds after the first has ended (``--wait``), passes signals on and returns the highest exit code.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmgpu.lines.slurm import SRUN
from slurmgpu.local.standins.fitting import (
    StepShape,
    fit_agent,
    fit_local_world_size,
    is_pretended_host,
    number,
    shape_step,
)
from slurmgpu.local.standins.folder import PretendedJob, node_names, say, say_once
from slurmgpu.local.standins.processes import Wakeups, become_subreaper, exit_code, kill_all, reap

__all__ = ["Labels", "main", "output_file"]


def output_file(pattern: str, values: Mapping[str, str]) -> str | None:
    """Expand srun's pattern for a file name (``%t``, ``%03t``, ``%%``); None for ``none`` and ``all``.

    ``values`` maps the letters that are known (j, J, s, t, n, N, x, u) to their text for one task.
    """
    if pattern in ("", "all"):
        return None
    if pattern == "none":
        return os.devnull

    def expand(match: re.Match[str]) -> str:
        width, letter = match.groups()
        if letter == "%":
            return "%"
        return values[letter].zfill(int(width or 0)) if letter in values else match.group()

    return re.sub(r"%(\d{0,2})([a-zA-Z%])", expand, pattern)


class Labels:
    """Reads the tasks' output by line and passes it on as ``RANK: line`` (srun --label)."""

    def __init__(self, tasks: int) -> None:
        self._width = len(str(tasks - 1))
        self._open: dict[int, tuple[int, int, bytearray]] = {}

    def add(self, rank: int, target: int) -> int:
        """Return the descriptor that a task writes to; its lines go to descriptor ``target``."""
        read_end, write_end = os.pipe()
        self._open[read_end] = (rank, target, bytearray())
        return write_end

    @property
    def descriptors(self) -> list[int]:
        """Return the file descriptors to wait for."""
        return list(self._open)

    def pass_on(self, read_end: int) -> None:
        """Pass on the lines that are complete, and the rest at the end of the output."""
        rank, target, rest = self._open[read_end]
        data = os.read(read_end, 65536)
        rest += data
        if not data:
            os.close(read_end)
            del self._open[read_end]
        *lines, unfinished = rest.split(b"\n")
        if not data and unfinished:
            lines.append(unfinished)
            unfinished = bytearray()
        rest[:] = unfinished
        stream = sys.stdout if target == 1 else sys.stderr
        for line in lines:
            stream.buffer.write(b"%*d: %s\n" % (self._width, rank, bytes(line)))
        stream.flush()


_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


@dataclass
class _Task:
    rank: int
    node: str
    process: subprocess.Popen[bytes] | None


def step_environment(options: Mapping[str, str | None], shape: StepShape, step_id: int) -> dict[str, str]:
    """Return the variables that all tasks of a step share, on top of the batch script's."""
    names = node_names(shape.nodes)
    nodelist = names[0] if shape.nodes == 1 else f"node[1-{shape.nodes}]"
    each = str(shape.tasks_per_node)
    repeated = each if shape.nodes == 1 else f"{each}(x{shape.nodes})"
    cpus = number(options, "cpus-per-task")
    return {
        **_exported(options.get("export") or ""),
        **({"SLURM_NTASKS_PER_NODE": each} if "ntasks-per-node" in options else {}),
        **({"SLURM_CPUS_PER_TASK": str(cpus)} if cpus else {}),
        "SLURM_NTASKS": str(shape.tasks),
        "SLURM_NPROCS": str(shape.tasks),
        "SLURM_TASKS_PER_NODE": repeated,
        "SLURM_NNODES": str(shape.nodes),
        "SLURM_NODELIST": nodelist,
        "SLURM_DISTRIBUTION": "block",
        "SLURM_STEPID": str(step_id),
        "SLURM_STEP_ID": str(step_id),
        "SLURM_STEP_NODELIST": nodelist,
        "SLURM_STEP_NUM_NODES": str(shape.nodes),
        "SLURM_STEP_NUM_TASKS": str(shape.tasks),
        "SLURM_STEP_TASKS_PER_NODE": repeated,
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
    }


def _exported(export: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in export.split(","))
    return {name: value for name, equals, value in pairs if equals}


def task_environment(step: Mapping[str, str], shape: StepShape, rank: int) -> dict[str, str]:
    """Return one task's variables: block distribution, as srun's default is."""
    node, local_rank = divmod(rank, shape.tasks_per_node)
    on_node = range(node * shape.tasks_per_node, (node + 1) * shape.tasks_per_node)
    return {
        **step,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
        "SLURM_GTIDS": ",".join(map(str, on_node)),
        "SLURMD_NODENAME": node_names(shape.nodes)[node],
    }


def _fit_variables(folder: str, job: PretendedJob) -> dict[str, str]:
    """Return the variables of the script that cannot work on this machine, with values that can."""
    changes: dict[str, str] = {}
    if is_pretended_host(os.environ.get("MASTER_ADDR", ""), node_names(job.nodes)):
        changes["MASTER_ADDR"] = "127.0.0.1"
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > job.threads:
        changes["OMP_NUM_THREADS"] = str(job.threads)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if job.loopback and os.environ.get(name) not in (None, "", job.loopback):
            changes[name] = job.loopback
    for name, value in changes.items():
        say_once(folder, f"{name}={os.environ[name]} -> {value}, which this machine can do")
    return changes


def _resolve(command: Sequence[str], job: PretendedJob) -> list[str]:
    """Take this machine's Python for the path of one that is only on the cluster."""
    program = command[0]
    absent = "/" in program and not Path(program).exists()
    if absent and Path(program).name.startswith("python"):
        return [job.python, *command[1:]]
    return list(command)


class _Step:
    def __init__(
        self, folder: str, job: PretendedJob, options: Mapping[str, str | None], command: Sequence[str]
    ) -> None:
        self.options = options
        self.job = job
        self.folder = Path(folder)
        self.devices: dict[int, dict[str, str]] = {}
        self.claimed: list[str] = []
        self.shape = shape_step(
            options,
            script_nodes=job.script_nodes,
            script_tasks_per_node=job.script_tasks_per_node,
            nodes=job.nodes,
            processes_per_node=job.processes_per_node,
        )
        words = fit_local_world_size(_resolve(command, job), self.shape.tasks_per_node)
        hosts = node_names(job.nodes)
        self.command, changes = fit_agent(words, self.shape.nodes, job.processes_per_node, hosts)
        self.step_id = _next_step(folder)
        tasks, nodes = self.shape.tasks, self.shape.nodes
        where = f" on {nodes} pretended nodes" if nodes > 1 else ""
        changed = f" ({', '.join(changes)})" if changes else ""
        say_once(folder, f"srun: {tasks} task{'s' if tasks > 1 else ''} on this machine{where}{changed}")
        self.variables = {
            **os.environ,
            "PYTHONPATH": job.with_python_path(os.environ.get("PYTHONPATH", "")),
            **_fit_variables(folder, job),
            **step_environment(options, self.shape, self.step_id),
            **({"SLURM_STEP_GPUS": os.environ["SLURM_JOB_GPUS"]} if "SLURM_JOB_GPUS" in os.environ else {}),
        }
        self.wakeups = Wakeups(_FORWARDED)
        become_subreaper()
        self.labels = Labels(self.shape.tasks)
        self.code = 0
        self.deadline = float("inf")
        self.ending = False
        self.running: dict[int, _Task] = {}

    def start(self) -> None:
        for rank in range(self.shape.tasks):
            environment = task_environment(self.variables, self.shape, rank)
            environment |= self._devices(int(environment["SLURM_NODEID"]))
            node = environment["SLURMD_NODENAME"]
            streams: list[int | None] = []
            try:
                streams += self._streams(rank, environment)
                process = subprocess.Popen(
                    self.command,
                    env=environment,
                    cwd=self.options.get("chdir") or None,
                    stdin=None if rank == 0 else subprocess.DEVNULL,
                    stdout=streams[0],
                    stderr=streams[1],
                    start_new_session=True,  # its process group can be signalled whole
                )
                self.running[process.pid] = _Task(rank, node, process)
            except OSError as error:
                say(f"srun: error: {node}: task {rank}: {error.filename}: {error.strerror}")
                self.ended(_Task(rank, node, None), error.errno or 1)
            finally:
                for stream in streams:
                    if stream is not None:
                        os.close(stream)

    def _devices(self, node: int) -> dict[str, str]:
        """Return the variable that shows a task the GPUs of its step: all of its node, or as many as the step asks for."""
        wanted = self.options.get("gres")
        if wanted is None or node in self.devices:
            return self.devices.get(node) or self.job.shown_devices(node)
        ((variable, names),) = self.job.shown_devices(node).items()
        count = int(wanted.rpartition(":")[2]) if wanted.startswith("gpu:") else 0
        mine: list[str] = []
        for name in names.split(",") if names and count else ():
            with contextlib.suppress(FileExistsError):  # another step that runs beside this one has it
                if len(mine) < count:
                    (self.folder / f"gpu-{name}").mkdir()
                    mine.append(name)
        self.claimed += mine
        self.devices[node] = {variable: ",".join(mine)}
        return self.devices[node]

    def give_back(self) -> None:
        """Leave its GPUs to the steps that come after it."""
        for name in self.claimed:
            with contextlib.suppress(OSError):
                (self.folder / f"gpu-{name}").rmdir()

    def _streams(self, rank: int, environment: Mapping[str, str]) -> list[int | None]:
        values = {
            "j": str(self.job.job_id),
            "J": f"{self.job.job_id}.{self.step_id}",
            "s": str(self.step_id),
            "t": str(rank),
            "n": environment["SLURM_NODEID"],
            "N": environment["SLURMD_NODENAME"],
            "x": self.job.job_name,
            "u": environment.get("USER", ""),
        }
        streams: list[int | None] = []
        for option, descriptor in (("output", 1), ("error", 2)):
            path = output_file(self.options.get(option) or "", values)
            if path is not None:
                streams.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
            elif option == "error" and streams[0] is not None and "output" in self.options:
                streams.append(os.dup(streams[0]))  # srun writes both into one file
            elif "label" in self.options:
                streams.append(self.labels.add(rank, descriptor))
            else:
                streams.append(None)
        return streams

    def to_the_end(self) -> int:
        while self.running or self.labels.descriptors:
            for pid, status in reap():
                task = self.running.pop(pid, None)
                if task is not None and task.process is not None:
                    task.process.returncode = exit_code(status)
                    self.ended(task, task.process.returncode)
            now = time.monotonic()
            if self.running and now >= self.deadline:
                self.kill()
            if not self.running and not self.labels.descriptors:
                break
            # What a task left behind may hold a labelled pipe open: do not wait for it.
            timeout = max(0.0, self.deadline - now) if self.deadline < float("inf") else None
            signals, ready = self.wakeups.wait(timeout if self.running else 0.2, self.labels.descriptors)
            for signum in signals:
                self.signal_tasks(signum)
            for descriptor in ready:
                self.labels.pass_on(descriptor)
            if not self.running and not ready:
                break
        return self.code

    def ended(self, task: _Task, code: int) -> None:
        self.code = max(self.code, code)
        if code and not self.ending:
            say(f"srun: error: {task.node}: task {task.rank}: exited with exit code {code}")
        kill_on_bad_exit = self.options.get("kill-on-bad-exit", "0") != "0"
        if code and kill_on_bad_exit and not self.ending:
            self.end(f"ending the other tasks ({self.job.grace:g} s at most)")
        elif self.deadline == float("inf"):
            seconds = number(self.options, "wait") or 0
            self.deadline = time.monotonic() + seconds if seconds else float("inf")

    def end(self, why: str) -> None:
        self.ending = True
        self.deadline = time.monotonic() + self.job.grace
        if self.running:
            say(f"srun: {why}")
        self.signal_tasks(signal.SIGTERM)

    def kill(self) -> None:
        if self.ending:
            self.signal_tasks(signal.SIGKILL)
            self.deadline = time.monotonic() + 1.0
        else:
            self.end(f"the first task ended {self.options['wait']} s ago: ending the others")

    def signal_tasks(self, signum: int) -> None:
        for pid in self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if signum == signal.SIGKILL:
                    os.killpg(pid, signum)
                else:
                    os.kill(pid, signum)


def _next_step(folder: str) -> int:
    """Count the steps of the job: 0, 1, ..."""
    for step_id in range(100_000):
        try:
            Path(folder, f"step-{step_id}").mkdir()
        except FileExistsError:
            continue
        return step_id
    return 0


def main(folder: str, arguments: list[str]) -> int:
    """Run one step to its end; return its exit code."""
    line = SRUN.read(arguments)
    options, command = line.given, arguments[line.end :]
    job = PretendedJob.load(folder)
    if "version" in options:
        print("slurm (stood in for by slurmgpu run)")
        return 0
    for fault in line.faults:
        if fault.why != "unknown-option":  # that one may be a plug-in's
            say(f"srun: error: {fault.text}: {fault.why.replace('-', ' ')}")
            return 1
    if not command:
        say("srun: error: no command given to execute")
        return 1
    if "multi-prog" in options:
        say("srun: error: --multi-prog cannot be stood in for; run this script on a cluster")
        return 1
    if shutil.which(command[0]) is None and "/" not in command[0]:
        say(f"srun: error: {command[0]}: not found on this machine")
        return 2
    step = _Step(folder, job, options, command)
    try:
        step.start()
        return step.to_the_end()
    finally:
        step.give_back()
        kill_all()  # what the tasks left behind, as slurmstepd does at the end of a step
