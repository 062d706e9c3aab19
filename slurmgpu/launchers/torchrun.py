"""torchrun: one agent on each node starts a process per GPU (``python -m torch.distributed.run``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, ClassVar, Literal

from slurmgpu.errors import nearest
from slurmgpu.launchers._base import (
    Counts,
    Launcher,
    Launching,
    Numbers,
    Started,
    entrypoint,
    interpreter,
    runner,
    started_here,
    started_twice,
)
from slurmgpu.lines.command import python_command
from slurmgpu.lines.options import Line, table
from slurmgpu.quoting import shell_word

if TYPE_CHECKING:
    from slurmgpu.models.plan import Plan
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["LAUNCHER", "RENDEZVOUS", "TORCHRUN", "agent", "target", "torchrun_at", "torchrun_processes"]

# By its module: an image or environment that has torch has it, whatever is on PATH.
_MODULE = "-m torch.distributed.run"

RENDEZVOUS = "--rdzv-backend=c10d --rdzv-endpoint=$(scontrol show hostnames | head -n 1):29500"
"""Options by which the nodes of a job meet; scontrol takes the job's nodes from SLURM_JOB_NODELIST."""

_REQUIRED = """
nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval start-method
event-log-handler role log-dir redirects tee local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters
node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle shutdown-timeout
"""
_NONE = "help standalone module no-python run-path virtual-local-rank use-env"
TORCHRUN = table(
    _REQUIRED,
    _NONE,
    {"h": "help", "m": "module", "r": "redirects", "t": "tee"},
    abbreviates=True,
    underscores=True,
)
"""torchrun's options, as torch 2.1 to 2.13 read them; what follows them is the script or module with its arguments."""


class Agent(Launcher):
    """torchrun's agent, whoever configures it; on one node it finds a free port by itself."""

    template = "launcher/torchrun.sh.j2"
    needs_python = True

    def meeting(self, plan: Plan) -> Literal["one", "many"] | None:
        return "many" if plan.nodes > 1 else None


class Torchrun(Agent):
    """PyTorch's own launcher."""

    programs = ("torchrun",)
    modules = ("torch.distributed.run", "torch.distributed.launch")
    options = TORCHRUN
    figures: ClassVar[Mapping[str, Counts]] = {"nproc-per-node": "on each", "nnodes": "nodes"}
    in_shell = re.compile(r"\btorch\.distributed\.(run|launch)\b|\btorchrun\b")

    def lines(self, plan: Plan) -> list[str]:
        """Return the agent and, behind its options, the script or module."""
        return agent(plan, runner(plan), interpreter(plan), target(plan))

    def suits(self, script: ScriptFacts, processes: int, nodes: int) -> Launching:
        """Any Python script: it finds its rank in the variables of torchrun, or does not need it."""
        if script.framework is not None:
            why = f"{script.at(script.framework)} reads torchrun's variables: one process per GPU"
            return Launching("torchrun", why)
        if script.distributed:
            return Launching("torchrun", f"one process per GPU ({script.at(script.distributed)})")
        why = f"{processes} GPUs and a Python script: one process per GPU"
        return Launching("torchrun", why, (script.same_in_each(processes),))

    def started(self, words: tuple[str, ...], gpus: int, nodes: int) -> Started:
        told = torchrun_processes(words) or "1"
        return started_here(int(told) if told.isdigit() else max(1, gpus), nodes)

    def numbers(self, given: Mapping[str, str | None], nodes: int | None) -> Numbers:
        numbers = super().numbers(given, nodes)
        return numbers._replace(nodes=None) if "standalone" in given else numbers

    def remarks(self, words: tuple[str, ...], script: ScriptFacts | None, gpus: int) -> tuple[str, ...]:
        told = torchrun_processes(words)
        if told not in {None, "1"} and (twice := started_twice(script, "torchrun")):
            return twice
        if (told or "1") == str(gpus) or (told and not told.isdigit()) or gpus == 0:
            return ()
        number = int(told or 1)
        if number > gpus:
            return (
                f"torchrun starts {number} processes on a node where the job has {gpus} GPU{'s' * (gpus > 1)}: a process "
                f"without one of its own fails, or shares; ask for {number} GPUs, or write --nproc-per-node={gpus}",
            )
        if script is not None and script.one_process is not None:
            return ()
        why = "" if told else " (without --nproc-per-node)"
        return (
            f"torchrun starts {number} process{'es' * (number > 1)}{why}, and the job has {gpus} GPUs: the others stay idle; "
            f"write --nproc-per-node={gpus}, or leave torchrun out, and slurmgpu starts one process per GPU",
        )

    def faults(
        self, words: tuple[str, ...], line: Line, start: int, nodes: int, instead: Callable[..., str]
    ) -> Iterator[tuple[str, str, bool]]:
        given = line.given
        script = words[line.end] if line.end < len(words) else ""
        each, of_nodes = given.get("nproc-per-node") or "", given.get("nnodes") or ""
        backends = ("c10d", "etcd", "etcd-v2", "static")
        if not script and "help" not in given:
            said = "torchrun is given no script: an option without its value takes the next word"
            example = instead(*words[: start - 1], "torchrun", "--nproc-per-node=2", "train.py")
            yield said, f"name it last: {example}", True
        elif "nproc-per-node" in given and not re.fullmatch(r"\d+|auto|gpu|cpu|xpu|.*[$`].*", each):
            said = f"torchrun --nproc-per-node={each}: a number is expected there, or gpu, cpu, auto"
            yield said, "write --nproc-per-node=gpu for one process on each GPU", True
        elif of_nodes and not re.fullmatch(r"\d+(?::\d+)?|.*[$`].*", of_nodes):
            said = f"torchrun --nnodes={of_nodes}: a number is expected there, or a range such as 1:4"
            yield (
                said,
                f"write --nnodes={nodes}, the number of the job's nodes; or leave it out on one node",
                True,
            )
        elif (port := given.get("master-port") or "") and not re.fullmatch(r"\d+|.*[$`].*", port):
            said = f"torchrun --master-port={port}: a number is expected there"
            yield said, "leave it out on one node", True
        elif (backend := given.get("rdzv-backend") or "$") not in backends and "$" not in backend:
            near = nearest(backend, backends, cutoff=0.7)
            hint = f"did you mean {near}?" if near else "write --rdzv-backend=c10d"
            yield f"torchrun has no --rdzv-backend {backend}", hint, near is not None
        elif "standalone" in given and re.search(r"(?:\A|:)(?!1\Z)\d+\Z", of_nodes):
            said = f"torchrun --standalone is for one node, and --nnodes={of_nodes} lets it wait for others that never come"
            hint = "leave --nnodes out; for several nodes: --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT in place of --standalone"
            yield said, hint, True
        elif PurePosixPath(script).name.startswith("python") and "no-python" not in given:
            said = f"torchrun starts Python itself, and would read {script!r} as its script"
            yield said, f"write {instead(*words[: line.end], *words[line.end + 1 :])}", True
        elif late := [
            word for word in words[line.end + 1 :] if re.match(r"--(?:nproc|nnodes|rdzv|standalone)", word)
        ]:
            said = f"{late[0]} behind the script is the script's own option, and torchrun does not see it"
            yield said, f"options of torchrun come before {script}", False
        elif "module" in given and script.endswith(".py"):
            options = (word for word in words[start : line.end] if word not in {"-m", "--module"})
            said = f"torchrun -m takes a module's name, and {script!r} is a file's"
            yield said, f"write {instead(*words[:start], *options, *words[line.end :])}", True

    def _spelled(self, name: str) -> str:
        return f"--{name}"


def torchrun_at(words: Sequence[str]) -> int | None:
    """Return the index at which torchrun's own arguments begin; None in a command without torchrun."""
    for index, word in enumerate(words):
        module = word in Torchrun.modules and index and words[index - 1] == "-m"
        if module or word.rsplit("/", 1)[-1] == "torchrun":
            return index + 1
    return None


def torchrun_processes(words: tuple[str, ...]) -> str | None:
    """Return how many processes torchrun is told to start on a node, as written; None where it is not told."""
    at = torchrun_at(words)
    return None if at is None else TORCHRUN.read_unexpanded(words, at)[0].given.get("nproc-per-node")


def agent(plan: Plan, before: str, python: str, started: str) -> list[str]:
    """torchrun by its module: ``before`` it what runs Python, at its end what it starts."""
    size = f"--nnodes={plan.nodes} --nproc-per-node={plan.processes_per_node}"
    if plan.nodes == 1:
        start = f"{before}{python} {_MODULE} --standalone {size}"
        together = f"{start} {started}"
        return [together] if len(together) <= 100 and "\n" not in started else [start, started]
    return [
        f"""{before}sh -c 'exec "$0" {_MODULE} --node-rank="$SLURM_NODEID" "$@"' {python}""",
        f'{size} --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"',
        started,
    ]


def target(plan: Plan, no_python: str = "--no-python") -> str:
    """Return what torchrun is to run: the script or module, without the interpreter where that has no options."""
    if plan.command is None:
        return f"--module {entrypoint(plan)}"
    python = python_command(plan.command)
    assert python is not None
    if set(python.options) - {"-u"}:
        behind = plan.command[len(python.runner) :]
        return f"{no_python} " + " ".join(map(shell_word, behind))
    program = ["--module", python.module] if python.module else [python.script or ""]
    return " ".join(map(shell_word, [*program, *python.arguments]))


LAUNCHER = Torchrun()
