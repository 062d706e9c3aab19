"""A trial: one command under one fault, and what is held against it."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.faulty.commands import PATIENCE, TERMINAL, Client, Job, Said, sbatch_in
from benchmarks.faulty.proxy import NETWORK, Proxy
from slurmgpu.sandbox.programs import program

if TYPE_CHECKING:
    from benchmarks.faulty.bench import Bench, Chaos

__all__ = ["CONTROLLER", "DISKS", "READING", "SIGNALS", "WAITING", "WRITING", "Cell", "Trial"]

CONTROLLER = ("controller restarted", "controller killed")
DISKS = ("disk full", "disk read-only")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGHUP")
WRITING = ("slurmgpu submit", "sbatch, 3 tries", "submitit")
WAITING = ("slurmgpu submit --wait/--follow", "sbatch -W")
READING = ("slurmgpu status", "slurmgpu cancel", "slurmgpu logs")
NO_JOB = re.compile(r"no such job|there is not a job|neither the queue nor accounting knows it")
QUICK = "MessageTimeout=2\nTCPTimeout=2\n"
LOOP = """
for _ in 1 2 3; do
    id=$({sbatch} --parsable -H -J {name} --wrap true) && {{ echo "$id"; exit 0; }}
    sleep 0.5
done
exit 1
"""
_NUMBERS = count(1)


class Cell(NamedTuple):
    """One command under one fault."""

    command: str
    fault: str
    form: str = ""

    @property
    def tool(self) -> str:
        return self.command.split()[0].rstrip(",")


class Trial:
    """One command under one fault; ``flaws`` tells what it said or did against the truth."""

    def __init__(self, bench: Bench, cell: Cell, index: int, chaos: Chaos | None = None) -> None:
        self.bench, self.cell, self.index, self.chaos = bench, cell, index, chaos
        self.dice = random.Random(f"{bench.seed} {cell} {index}")
        number = next(_NUMBERS)
        self.name = f"trial-{number}"
        self.folder = bench.folder / self.name
        self.folder.mkdir()
        fault, form = (cell.fault, cell.form) if cell.fault in NETWORK else ("", "always")
        if cell.fault in SIGNALS and index % 2:
            fault = "reply delayed"  # a wide moment between request and reply
        later = cell.command in WAITING or cell.command == "slurmgpu cancel"  # these ask several times
        # A controller that goes is to be seen as it is, without a proxy between.
        self.proxy = Proxy(
            bench.port, fault, form, self.dice.randrange(3 if later else 1), self.dice.choice((1, 2))
        )
        # Every second pair of trials has no accounting meanwhile, either.
        self.without_accounting = index % 4 >= 2
        self.env = bench.env | {"SLURM_CONF": str(self._conf())}
        self.flaws: list[str] = []
        self.forgotten = False
        self.said = Said(0, "", "")

    def _conf(self) -> Path:
        port = self.bench.port if self.chaos else self.proxy.port
        text = re.sub(r"(?m)^SlurmctldPort=.*$", f"SlurmctldPort={port}", self.bench.conf) + QUICK
        if self.without_accounting:
            text = re.sub(r"(?m)^AccountingStoragePort=.*$", "AccountingStoragePort=1", text)
        path = self.folder / "slurm.conf"
        path.write_text(text)
        return path

    def flaw(self, kind: str, why: str) -> None:
        self.flaws.append(kind)
        if self.cell.tool == "slurmgpu":
            self.bench.complain(self, f"{kind}: {why}")

    def start(self, *argv: str) -> Client:
        if self.chaos:
            self.chaos.come(self.dice)
        return Client(list(argv), self.env, self.folder)

    def run(self) -> Trial:
        try:
            if self.cell.command in WRITING:
                self.write()
            elif self.cell.command in WAITING:
                self.wait()
            else:
                self.read()
        finally:
            self.proxy.close()
            self.bench.forget(self)
        return self

    @property
    def disturbed(self) -> bool:
        if self.cell.fault in SIGNALS:
            return self.said.code in (-9, -15, -1, 3, 137, 143, 129)
        return self.proxy.disturbed > 0 or self.cell.fault not in NETWORK

    def truth(self) -> list[Job]:
        while any(sbatch_in(process, self.folder) for process in Path("/proc").glob("[0-9]*")):
            time.sleep(0.1)
        time.sleep(0.3)
        return self.bench.truth.of(self.name)

    def script(self, text: str) -> None:
        (self.folder / "script.sh").write_text(text)

    def submission(self, *options: str) -> list[str]:
        return [
            "slurmgpu", "submit", "--gpus", "1", "--job-name", self.name, *options, "--", "bash", "script.sh",
        ]  # fmt: skip

    # Commands that submit.

    def write(self) -> None:
        self.script("true\n")
        if self.cell.command == "slurmgpu submit":
            argv = self.submission(*(["--hold"] if self.index % 2 or self.cell.fault in DISKS else []))
        elif self.cell.command == "submitit":
            argv = ["submitit", self.name]
        else:
            argv = ["bash", "-c", LOOP.format(sbatch=program("sbatch"), name=self.name)]
        disk = self.bench.disk(self, "submitit" if argv[0] == "submitit" else "runs")
        if self.cell.form or (self.cell.fault in SIGNALS and self.index % 2):
            self.proxy.arm()
        with disk:
            client = self.start(*argv)
            if self.cell.fault in SIGNALS:
                if self.index % 2 and self.proxy.touched.wait(30):
                    time.sleep(self.dice.uniform(0, 1.6))
                else:
                    time.sleep(self.dice.uniform(0, 1))
                client.signal(getattr(signal, self.cell.fault))
            self.said = client.said()
            self.proxy.mend()
            if self.chaos:
                self.chaos.over.wait(PATIENCE)
            self.judge_submission(self.truth())

    def judge_submission(self, jobs: list[Job]) -> None:
        code, out, err = self.said
        told = int(out.split()[-1]) if out.split() and out.split()[-1].isdigit() else None
        numbers = [job.number for job in jobs]
        if len(jobs) > 1:
            self.flaw("duplicates", f"{numbers}")
        if code == 0 or told is not None:
            if told is None or (told not in numbers and not self.is_forgotten(told)):
                self.flaw("wrong_reports", f"it said job {told}, and there are {numbers}")
            return
        if self.cell.tool != "slurmgpu":
            known = [str(path) for path in self.folder.rglob("*_submitted.pkl")]
            if jobs and not any(str(job.number) in one for job in jobs for one in known):
                self.flaw("lost", f"{numbers}")
            return
        by_signal = self.cell.fault in SIGNALS and code is not None and (code < 0 or code > 128)
        if code not in ({1} if self.cell.fault in DISKS else {3, 4}) and not by_signal and code != 3:
            self.flaw("wrong_reports", f"exit code {code} where Slurm refused nothing")
        if code in (1, 2, 4):
            if jobs:
                self.flaw("lost", f"nothing was submitted, it said, and there are {numbers}")
            return
        folders = re.findall(r"run directory (\S+)", err) or list(map(str, self.folder.glob("runs/*")))
        settled = (
            self.bench.settle(self, folders[0]) if folders and Path(folders[0]).exists() else Said(0, "", "")
        )
        found = [int(number) for number in re.findall(r": job (\d+)", settled.out)]
        if jobs and not set(found) & set(numbers):
            self.flaw("lost", f"there are {numbers}, and `runs settle` said {settled}")
        elif (found and not jobs) or (jobs and NO_JOB.search(settled.out)):
            self.flaw("wrong_reports", f"there are {numbers}, and `runs settle` said {settled}")

    def is_forgotten(self, number: int) -> bool:
        self.forgotten = self.cell.fault in CONTROLLER and self.bench.truth.logged(
            f"submit_batch_job: JobId={number}"
        )
        return self.forgotten

    # Commands that wait: the submission is undisturbed, and the fault begins when the job is known.

    def wait(self) -> None:
        own = 3 * (self.index % 2)
        self.script(f"sleep 2\ntouch ended\nexit {own}\n")
        if self.cell.tool == "slurmgpu":
            argv = self.submission("--follow" if self.index // 2 % 2 else "--wait")
        else:
            argv = ["sbatch", "-W", "-J", self.name, "--parsable", "--wrap", "bash script.sh"]
        truth, mark = self.bench.truth, self.folder / "ended"
        client = Client(argv, self.env, self.folder)
        if not truth.wait(self.name, lambda _: True, 60) or not self.is_known(client):
            client.signal(signal.SIGKILL)
            raise RuntimeError(f"{self.name}: the undisturbed submission failed: {client.said()}")
        if self.chaos:
            self.chaos.come(self.dice)
        if self.cell.fault in SIGNALS:
            time.sleep(self.dice.uniform(0, 4))
            client.signal(getattr(signal, self.cell.fault))
        elif self.cell.form:
            self.proxy.arm()
        until = time.monotonic() + PATIENCE
        while client.code() is None and not mark.exists() and time.monotonic() < until:
            time.sleep(0.05)
        over = mark.exists()
        if over and self.cell.form and client.code() is None:
            time.sleep(3)
        self.proxy.mend()
        # A job that Slurm has forgotten is waited for in vain.
        self.said = client.said(100) if self.chaos else client.said()
        if self.chaos:
            self.chaos.over.wait(PATIENCE)
        ended = truth.wait(self.name, lambda job: job.state in TERMINAL, 10 if self.chaos else 90)
        self.judge_wait(over, ended, own, truth.of(self.name))

    def is_known(self, client: Client) -> bool:
        """Wait until the command itself knows its job's id."""
        until = time.monotonic() + 30
        while time.monotonic() < until and client.code() is None:
            if self.cell.tool == "slurmgpu" and " on cluster " in (self.folder / "said-2").read_text():
                return True
            if self.cell.tool == "sbatch" and (self.proxy.passed.is_set() or self.chaos):
                time.sleep(0.3)
                return True
            time.sleep(0.05)
        return False

    def judge_wait(self, over: bool, ended: bool, own: int, jobs: list[Job]) -> None:
        code, _, err = self.said
        if len(jobs) != 1:
            return self.flaw("duplicates", f"{jobs}")
        if self.cell.fault in SIGNALS and code in (-9, -15, -1, 137, 143, 129):
            expected = 0 - getattr(signal, self.cell.fault)
            if code not in (expected, 128 - expected) or jobs[0].code != own:
                self.flaw("wrong_reports", f"exit code {code}, and the job {jobs[0]}")
            return None
        if not over and ended and self.cell.fault not in CONTROLLER:
            return self.flaw("waits_ended_by_a_read_error", f"exit code {code}, and the job {jobs[0]}")
        unknown = "is not known" in err
        if not ended or (
            self.cell.fault in CONTROLLER and jobs[0].state != ("FAILED" if own else "COMPLETED")
        ):
            self.forgotten = True  # by Slurm, or it ended the job: nothing to hold the code against
            return None if code != 0 else self.flaw("wrong_reports", f"exit code 0, and the job {jobs[0]}")
        if code != jobs[0].code or unknown:
            self.flaw("wrong_reports", f"exit code {code}, and the job {jobs[0]}")
        return None

    # Commands that read or cancel a held job, or one that runs.

    def read(self) -> None:
        held = self.index % 2 == 1
        by_run = self.index // 4 % 2 == 1
        if self.cell.command == "slurmgpu cancel":
            hold = ["-H"] if held else []
            answer = self.bench.slurm.run(
                [
                    "sbatch",
                    "--parsable",
                    "-J",
                    self.name,
                    "-o",
                    "/dev/null",
                    *hold,
                    "--wrap",
                    "exec sleep 600",
                ]
            )
            number, name, state = int(answer.stdout), self.name, "PENDING" if held else "RUNNING"
            self.bench.truth.wait(name, lambda job: job.state == state)
            word = str(number)
        else:
            name, number, run = self.bench.shared[held]
            word = run if by_run else str(number)
        if self.cell.form:
            self.proxy.arm()
        verb = self.cell.command.split()[1]
        self.said = self.start("slurmgpu", verb, word, *(["--json"] if verb == "status" else [])).said()
        self.proxy.mend()
        if self.chaos:
            self.chaos.over.wait(PATIENCE)
        (job,) = self.bench.truth.of(name)[:1] or [Job(number, "GONE", None)]
        if NO_JOB.search(self.said.out + self.said.err):
            self.flaw("no_job_said", f"and the job is {job}")
        judge = {"status": self.judge_status, "cancel": self.judge_cancel, "logs": self.judge_logs}[verb]
        judge(job, held)

    def judge_status(self, job: Job, held: bool) -> None:
        if self.said.code == 0:
            (shown,) = json.loads(self.said.out)["jobs"]
            if (shown["state"], shown["raw_id"]) != (job.state, job.number):
                self.flaw("wrong_reports", f"it said {shown['state']}, and the job is {job}")
        elif self.said.code not in (3, 4):
            self.flaw("wrong_reports", f"exit code {self.said.code}, and the job is {job}")

    def judge_cancel(self, job: Job, held: bool) -> None:
        gone = job.state not in ("PENDING", "RUNNING")
        code, out, err = self.said
        if not gone and self.cell.fault == "controller killed":
            self.forgotten = self.bench.truth.logged(f"REQUEST_KILL_JOB JobId={job.number}")
            gone = self.forgotten and code == 0
        said_so = f"job {job.number} is cancelled" in out or f"job {job.number} is ending" in out
        if code == 0 and not (said_so and gone):
            self.flaw("wrong_reports", f"exit code 0, and the job is {job}")
        elif code == 4 and gone:
            self.flaw("wrong_reports", f"nothing was cancelled, it said, and the job is {job}")
        elif code not in (0, 3, 4) and not (code == 1 and "is not cancelled (it is" in err and not gone):
            self.flaw("wrong_reports", f"exit code {code}, and the job is {job}")

    def judge_logs(self, job: Job, held: bool) -> None:
        code, out, _ = self.said
        if code == 0 and (held or out != "a line\n"):
            self.flaw("wrong_reports", f"of job {job} it showed {out!r}")
        elif code not in ((1, 3, 4) if held else (0, 3, 4)):
            self.flaw("wrong_reports", f"exit code {code}, and the job is {job}")
