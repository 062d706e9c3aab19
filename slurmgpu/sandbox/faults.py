"""Faults on demand, each a real one: a daemon is gone or hangs, a node is lost, a job preempted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import write_atomically
from slurmgpu.sandbox.processes import Keeper, end_processes, is_stopped, tasks_on
from slurmgpu.sandbox.programs import SandboxFailed, program
from slurmgpu.sandbox.starting import CONTROLLER_CONF, client_env, reserved_ports
from slurmgpu.sandbox.state import State, read_state, write_state
from slurmgpu.sandbox.supervisor import listener

__all__ = ["FAULTS", "cause", "heal"]

FAULTS = {
    "controller-down": "slurmctld is ended: nothing answers",
    "controller-hang": "slurmctld is stopped: connections are taken and never answered",
    "database-down": "slurmdbd is ended: sacct and sacctmgr fail, jobs go on",
    "node-down": "NODE: its slurmd and the jobs there are killed, Slurm marks it DOWN",
    "preempt": "JOB: a job of more priority takes its nodes (JOB must be in a preemptible partition)",
    "drop-replies": "the controller does what it is asked, and its replies are lost",
}

NOBODYS_PORT = 1
"""Only root may listen there (ip(7), ip_unprivileged_port_start), so every connection is refused."""


class _Faults:
    def __init__(self, state: State, folder: Path) -> None:
        self.state, self.folder, self.keeper = state, folder, Keeper(folder)

    def ask(self, command: str, *arguments: str, check: bool = True) -> str:
        """Run one of Slurm's commands in the sandbox; SandboxFailed with its own words when it fails."""
        try:
            done = subprocess.run(
                [program(command), *arguments],
                env=client_env(self.folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SandboxFailed(
                f"{command} got no answer in 30 s", hint="slurmgpu sandbox heal mends other faults"
            ) from None
        if check and done.returncode:
            raise SandboxFailed(f"{command} {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def note(self, fault: str, preemptor: str | None = None) -> None:
        """Record a fault for `heal`."""
        state = read_state(self.folder) or self.state
        faults = (*(one for one in state.faults if one != fault), fault)
        preemptors = state.preemptors + ((preemptor,) if preemptor else ())
        write_state(self.folder, state.model_copy(update={"faults": faults, "preemptors": preemptors}))

    def no_node_is(self, *states: str, only: str | None = None) -> bool:
        """Return True if Slurm shows nodes, or the ``only`` one, and none in a state that begins like these."""
        chosen = ("-N", "-n", only) if only else ()
        shown = self.ask("sinfo", "-h", *chosen, "-o", "%t", check=False).split()
        return bool(shown) and not any(state.startswith(states) for state in shown)

    def take_node_down(self, node: str) -> None:
        """End a node's daemon and jobs, and mark it DOWN."""
        if self.state.shape.live:
            self.keeper.stop(f"slurmd-{node}")
            end_processes(tasks_on(self.folder, node))
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=sandbox fault")

        def is_shown() -> bool:
            # Of a node that changed twice in one second sinfo shows old news (24.11), until somebody asks
            # for that node alone.
            self.ask("scontrol", "show", "node", node)
            return self.ask("sinfo", "-h", "-N", "-n", node, "-o", "%t", check=False).startswith("down")

        self.keeper.wait(f"word that {node} is down", is_shown, 30, despite=self.keeper.lost())

    def preempt(self, job: str) -> str:
        """Submit a job that takes the nodes of `job`; return its id."""
        if not re.fullmatch(r"\d+(_\d+)?", job):
            raise InvalidInput(f"JOB {job!r}: write the id of one job, such as 12 or 12_3")
        # Of a job that it does not know squeue says nothing, or that its id is invalid, by age.
        rows = self.ask("squeue", "-h", "-o", "%i|%T|%P|%N").split("\n")
        jobs = (row.split("|") for row in rows if row.startswith(f"{job}|"))
        _, state, partition, nodes = next(jobs, [""] * 4)
        if state != "RUNNING":
            raise SandboxFailed(
                f"JOB {job}: only a running job can be preempted; it is {state or 'not in the queue'}",
                hint="slurmgpu sandbox exec -- squeue shows the jobs",
            )
        modes = {one.name: dict(one.options)["PreemptMode"] for one in self.state.shape.partitions}
        preemptible = [name for name, mode in modes.items() if mode != "OFF"]
        others = [name for name, mode in modes.items() if mode == "OFF"]
        if partition not in preemptible or not others:
            raise SandboxFailed(
                f"JOB {job} is in partition {partition!r}, whose jobs nobody preempts",
                hint=f"submit it to a preemptible partition: -p {' or '.join(preemptible) or '(there is none)'}",
            )
        rows = self.ask("squeue", "-h", "-t", "RUNNING", "-w", nodes, "-o", "%i|%P").split()
        safe = [job_id for job_id, _, where in (row.partition("|") for row in rows) if where in others]
        if safe:
            raise SandboxFailed(
                f"JOB {job}: on its nodes ({nodes}) runs {', '.join(safe)} as well, which nobody preempts",
                hint=f"wait for it or cancel it: slurmgpu cancel {' '.join(safe)}",
            )
        return self.ask(
            "sbatch", "--parsable", f"--partition={others[0]}", f"--nodelist={nodes}", "--exclusive",
            "--job-name=sandbox-fault-preempt", "--output=/dev/null", "--chdir=/", "--time=5", "--no-requeue",
            "--wrap=exec sleep 60",
        ).strip()  # fmt: skip

    def drop_replies(self) -> None:
        """Put a proxy before the controller, and send every later client to it."""
        if "proxy" in self.keeper.running():
            self.keeper.signal("proxy", signal.SIGUSR2)
            self.point_at(self.keeper.daemons()["proxy"]["port"])
            return
        proxy = Path(__file__).with_name("proxy.py")
        log = self.folder / "log" / "proxy.out"
        with reserved_ports(1) as (listen,):
            command = [sys.executable, "-I", "-S", str(proxy), str(listen), str(self.state.ports[0])]
            self.keeper.start("proxy", command, listen)
            self.keeper.wait("the proxy", lambda: log.exists() and "ready" in log.read_text(), 60)
        self.point_at(listen)

    def point_at(self, port: int, of: str = "SlurmctldPort", *, file: str = "slurm.conf") -> None:
        """Write slurm.conf, or its copy ``file``, with another port; running daemons keep the old one."""
        text = (self.folder / "slurm.conf").read_text()
        write_atomically(self.folder / file, re.sub(rf"(?m)^{of}=.*", f"{of}={port}", text))

    def later(self, *names: str) -> list[str]:
        """Return the daemons that have ended except these, because they are started later."""
        return [name for name in self.keeper.lost() if name not in names]

    def restart_where_it_listens(self, name: str, port: int) -> None:
        """Start a daemon again; raise SandboxFailed if another user took its port in the moment it was open."""
        self.keeper.restart(name)
        self.keeper.wait(name, lambda: listener(port) is not None, 120, despite=self.later(name))
        if listener(port) != os.getuid():
            raise SandboxFailed(
                f"port {port} of sandbox {self.state.name!r} has been taken by another user of this machine",
                hint=f"end it, and start it anew: slurmgpu sandbox down {self.state.name}",
            )

    @contextmanager
    def controller_held(self) -> Iterator[None]:
        """Stop the controller meanwhile, so that it sends nothing to another user on the port of a missing daemon."""
        runs = "slurmctld" in self.keeper.running()
        if runs:
            self.keeper.signal("slurmctld", signal.SIGSTOP)
            stopped = partial(is_stopped, self.keeper.daemons()["slurmctld"]["pid"])
            self.keeper.wait("the controller's stop", stopped, 30, despite=self.later())
        yield
        if runs:  # Not where it failed: the port may be another user's.
            self.keeper.signal("slurmctld", signal.SIGCONT)

    def restart_database(self) -> None:
        """Start slurmdbd if it has ended; until it listens, its port is in no configuration."""
        port = self.state.ports[1]
        if "slurmdbd" not in self.keeper.running():
            with self.controller_held():
                self.point_at(NOBODYS_PORT, "AccountingStoragePort")
                self.restart_where_it_listens("slurmdbd", port)
        self.point_at(port, "AccountingStoragePort")
        # slurmctld ends at once when it is started without its database.
        self.keeper.wait(
            "the database",
            lambda: bool(self.ask("sacctmgr", "-n", "show", "cluster", check=False)),
            120,
            despite=self.later(),
        )

    def restart_nodes(self) -> None:
        """Start each slurmd that has ended."""
        nodes, running = self.state.shape.nodes, self.keeper.running()
        daemons = zip((f"slurmd-{node}" for node in nodes), self.state.ports[-len(nodes) :], strict=True)
        ended = [(name, port) for name, port in daemons if name not in running]
        if ended:
            with self.controller_held():
                for name, port in ended:
                    self.restart_where_it_listens(name, port)

    def restart_controller(self) -> None:
        """Start the controller if it has ended; until it listens, clients do not get its port."""
        port = self.state.ports[0]
        later = self.later("slurmctld")
        if "slurmctld" not in self.keeper.running():
            self.point_at(port, file=CONTROLLER_CONF)
            self.point_at(NOBODYS_PORT)
            self.restart_where_it_listens("slurmctld", port)
        self.point_at(port)
        (self.folder / CONTROLLER_CONF).unlink()
        (self.folder / CONTROLLER_CONF).symlink_to("slurm.conf")
        self.keeper.wait(
            "slurmctld", lambda: "is UP" in self.ask("scontrol", "ping", check=False), 120, despite=later
        )


def cause(state: State, folder: Path, fault: str, target: str | None) -> str:
    """Cause a fault and return a sentence about it; raise InvalidInput for an unknown fault or target."""
    faults = _Faults(state, folder)
    if fault not in FAULTS:
        raise InvalidInput(f"FAULT {fault!r}: there is no such fault; there are {', '.join(FAULTS)}")
    wanted = {"node-down": "NODE", "preempt": "JOB"}.get(fault)
    if (wanted is None) != (target is None):
        raise InvalidInput(f"fault {fault} " + (f"needs a {wanted}" if wanted else f"takes no {target!r}"))
    nodes = state.shape.nodes
    if fault == "node-down" and target not in nodes:
        known = ", ".join(nodes) if len(nodes) <= 6 else f"{nodes[0]} to {nodes[-1]}"
        raise InvalidInput(f"NODE {target!r}: no such node; there are {known}")
    if fault == "database-down" and not state.accounting:
        raise SandboxFailed(
            f"sandbox {state.name!r} has no accounting, so no database to lose",
            hint="start it with slurmdbd and mariadbd installed, and without --no-accounting",
        )
    if fault == "controller-hang" and "slurmctld" not in faults.keeper.running():
        raise SandboxFailed("slurmctld is down already", hint="slurmgpu sandbox heal starts it")
    if fault == "preempt":
        assert target is not None
        job = faults.preempt(target)
        faults.note("preempt", preemptor=job)
        return f"job {job} takes the nodes of job {target}; heal cancels it"
    # Noted first: should this be interrupted, heal mends what was done.
    faults.note(f"node-down {target}" if fault == "node-down" else fault)
    if fault == "node-down":
        assert target is not None
        faults.take_node_down(target)
        return f"{target} is down"
    if fault == "drop-replies":
        faults.drop_replies()
    elif fault == "controller-hang":
        faults.keeper.signal("slurmctld", signal.SIGSTOP)
    else:
        faults.keeper.stop("slurmctld" if fault == "controller-down" else "slurmdbd")
    return FAULTS[fault]


def heal(state: State, folder: Path) -> list[str]:
    """Mend every fault and start the daemons that ended by themselves; return a list of both."""
    faults = _Faults(state, folder)
    keeper, lost = faults.keeper, faults.keeper.lost()
    if "controller-hang" in state.faults:
        keeper.signal("slurmctld", signal.SIGCONT)
    for name in ("munged", "mariadbd"):
        if keeper.daemons().get(name, {"ended": None})["ended"] is not None:
            keeper.restart(name)
    if state.accounting:
        faults.restart_database()
    faults.restart_controller()
    if "proxy" in keeper.running():
        keeper.signal("proxy", signal.SIGUSR1)  # who was pointed at it, and runs yet, is served from now on
    if state.shape.live:
        faults.restart_nodes()
        keeper.wait("word of all nodes", lambda: faults.no_node_is("unk"), 60)
    for node in [one.split()[1] for one in state.faults if one.startswith("node-down ")]:
        faults.ask("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        keeper.wait(node, partial(faults.no_node_is, "down", "drain", "drng", "unk", only=node), 60)
    for job in state.preemptors:
        faults.ask("scancel", job, check=False)
    write_state(folder, state.model_copy(update={"faults": (), "preemptors": ()}))
    return [*state.faults, *(f"{name}, which had {how}" for name, how in lost.items())]
