"""How the files below this folder were made: `PYTHONPATH=. python -m tests.slurm.recorded.record RELEASE`.

Starts a throwaway Slurm of that release, brings it into the states that matter, and writes what its commands
answered, one JSON file each: `argv`, `rc`, `stdout`, `stderr`.
"""

from __future__ import annotations

import getpass
import json
import re
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from slurmgpu.slurm import Slurm, sacct, squeue
from slurmgpu.slurm.commands import Answer, submission_env
from slurmgpu.slurm.text import SEPARATOR
from tests.recorded import RECORDED_WITH
from tests.slurm.releases import Root, first_on_path, root_for
from tests.slurm.throwaway import ThrowawaySlurm

SLEEP = "#!/bin/bash\nsleep 600\n"
STUBBORN = "#!/bin/bash\ntrap '' TERM\nfor i in $(seq 600); do sleep 1; done\n"
FAIL = "#!/bin/bash\nexit 3\n"
BUSY = "#!/bin/bash\nsrun -n 2 bash -c 'while :; do :; done'\n"

# name: options of sbatch, refused
REFUSALS = {
    "account": ["--account=nosuch"],
    "partition": ["--partition=nosuch"],
    "qos": ["--qos=nosuch"],
    "gres_type": ["--gres=gpu:h100:1"],
    "gres_name": ["--gres=foo:1"],
    "gres_count": ["--nodes=1", "--gres=gpu:9"],
    "time_text": ["--time=abc"],
    "memory": ["--mem=900G"],
    "memory_option": ["--mem=1.5T"],
    "memory_twice": ["--mem=1G", "--mem-per-cpu=1G"],
    "constraint": ["--constraint=nosuch"],
    "reservation": ["--reservation=nosuch"],
    "dependency": ["--dependency=foo:1"],
    "array_limit": ["--array=0-99999"],
    "node_name": ["--nodelist=nosuch"],
    "number": ["--ntasks-per-node=0"],
    "begin": ["--begin=foo"],
    "license": ["--licenses=foo:1"],
    "signal": ["--signal=FOO"],
    "option": ["--nosuch=1"],
}


class Recorder:
    """Runs commands against the throwaway and keeps what they say."""

    def __init__(self, running: ThrowawaySlurm, root: Root, work: Path, folder: Path) -> None:
        self.slurm = Slurm(env=running.env)
        self.root = root
        self.folder = folder
        self.running = running
        self.work = work

    def submit(self, script: str, *options: str, refused_by: str | None = None) -> int:
        path = self.work / "script.sh"
        path.write_text(script)
        answer = self.running.run(["sbatch", "--parsable", *options, str(path)], cwd=self.work)
        assert (answer.returncode != 0) is (self.folder.name == refused_by), answer
        return int(answer.stdout or 0)

    def record(
        self, name: str, argv: list[str], *, submits: bool = False, conf: Path | None = None
    ) -> Answer:
        base = self.running.env | ({"SLURM_CONF": str(conf)} if conf else {})
        env = submission_env(base)
        answer = Slurm(env=base).ask(argv, env=env if submits else None, timeout=120, cwd=self.work)
        clean = [self._clean(text) for text in (answer.stdout, answer.stderr)]
        content = {"argv": list(argv), "rc": answer.rc, "stdout": clean[0], "stderr": clean[1]}
        content["argv"] = [self._clean(word) for word in argv]
        (self.folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
        return answer

    def _clean(self, text: str) -> str:
        """Without the folders, the ports and the separator of this one recording."""
        text = text.replace(SEPARATOR, RECORDED_WITH)
        for here, there in (
            (self.work, "/scratch/ada"),
            (self.running.folder, "/etc/slurm"),
            (self.root.bin, "/usr/bin"),
        ):
            text = text.replace(str(here), there)
        return re.sub(r"(?<=127\.0\.0\.1:)\d+", "6819", text)


def settle(recorder: Recorder, *texts: str, timeout: float = 30) -> None:
    """Wait until squeue shows one of the texts."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        shown = recorder.running.run(["squeue", "-h", "-t", "all", "-o", "%i %T"]).stdout
        if any(text in shown.splitlines() for text in texts):
            return
        time.sleep(0.3)
    raise TimeoutError(" or ".join(texts))


def since() -> datetime:
    """Far enough back for everything here."""
    return datetime.now(timezone.utc) - timedelta(hours=1)


def jobs(recorder: Recorder) -> None:
    """Jobs in every state that comes about quickly, then the queue and accounting."""
    recorder.submit(SLEEP, "--job-name=a|b", "--gres=gpu:2", "--output=logs_%j_%x_%5j_%a.out")
    recorder.submit(SLEEP, "--job-name=two\nlines", "--gpus=2", "--nodes=1")
    recorder.submit(SLEEP, "--job-name=ünï \"q\" 'x'", "--gpus-per-node=a100:1", "--nodes=2")
    array = recorder.submit(SLEEP, "--job-name=arr", "--array=0-5%2", "--output=x_%A_%a.out")
    recorder.submit(SLEEP, "--job-name=het", "-N1", ":", "-N1", "--gres=gpu:1")
    failed = recorder.submit(FAIL, "--job-name=fails")
    nolog = recorder.submit(SLEEP, "--job-name=nolog", "--output=nosuch/x.out")
    busy = recorder.submit(BUSY, "--job-name=busy", "--ntasks=2")
    cancelled = recorder.submit(SLEEP, "--job-name=cancelled")
    stubborn = recorder.submit(STUBBORN, "--job-name=stubborn")
    settle(recorder, f"{stubborn} RUNNING")
    settle(recorder, f"{failed} FAILED")
    # Releases from 24.11 on, if not before, make the folder of the log, and then the job runs.
    settle(recorder, f"{nolog} FAILED", f"{nolog} RUNNING")
    # 24.11 refuses it, and the number is gone all the same; before and after, it waits for ever.
    recorder.submit(SLEEP, "--job-name=toobig", "--nodes=99", refused_by="24.11")
    recorder.submit(SLEEP, "--job-name=waits", "--nodes=4", "--gres=gpu:4")
    recorder.submit(SLEEP, "--job-name=later", "--begin=now+1hour")
    time.sleep(6)  # accounting's sampler runs every 2 s
    recorder.record("sstat", squeue.live_use_command([1, busy]))
    recorder.record("sstat_ended", squeue.live_use_command([failed]))
    recorder.running.run(["scancel", str(cancelled)])
    settle(recorder, f"{cancelled} CANCELLED")
    recorder.running.run(["scancel", str(stubborn)])
    recorder.record("squeue", squeue.queue_command(getpass.getuser()))
    recorder.record("sacct", sacct.accounting_command(user=getpass.getuser(), since=since()))
    recorder.record("sacct_steps", sacct.accounting_command(ids=[busy, array], steps=True))
    recorder.record("sacct_submit_line", sacct.accounting_command(ids=[1, 2, 3], submit_line=True))
    recorder.record("sacct_none", sacct.accounting_command(ids=[99999]))
    recorder.record("scancel_missing", ["scancel", "99999"])
    recorder.record("scancel_finished", ["scancel", str(failed)])
    recorder.record("scancel_ending", ["scancel", str(stubborn)])
    settle(recorder, f"{stubborn} CANCELLED")
    recorder.record("squeue_afterwards", squeue.queue_command(getpass.getuser()))
    recorder.record("sacct_afterwards", sacct.accounting_command(user=getpass.getuser(), since=since()))


def submissions(recorder: Recorder) -> None:
    """Answers of sbatch."""
    script = recorder.work / "script.sh"
    script.write_text(SLEEP)
    recorder.record("sbatch_accepted", ["sbatch", "--parsable", str(script)], submits=True)
    recorder.record(
        "sbatch_test_only", ["sbatch", "--test-only", "--gres=gpu:2", "-N2", str(script)], submits=True
    )
    refused = ["sbatch", "--test-only", "-N1", "--gres=gpu:9", str(script)]
    recorder.record("sbatch_test_only_refused", refused, submits=True)
    for name, options in REFUSALS.items():
        recorder.record(
            f"sbatch_refused_{name}", ["sbatch", "--parsable", *options, str(script)], submits=True
        )
    for name, text in {"shebang": "sleep 1\n", "dos": "#!/bin/bash\r\ntrue\r\n", "empty": ""}.items():
        path = recorder.work / f"{name}.sh"
        path.write_bytes(text.encode())
        recorder.record(f"sbatch_refused_{name}", ["sbatch", "--parsable", str(path)], submits=True)
    recorder.record("sbatch_refused_nofile", ["sbatch", "--parsable", "nosuch.sh"], submits=True)


def faults(recorder: Recorder) -> None:
    """A controller, an accounting daemon that does not answer; a cluster without accounting."""
    text = (recorder.running.folder / "slurm.conf").read_text()
    variants = {
        "no_controller": re.sub(r"(?m)^SlurmctldPort=.*", "SlurmctldPort=1", text),
        "no_slurmdbd": re.sub(r"(?m)^AccountingStoragePort=.*", "AccountingStoragePort=1", text),
        "no_accounting": re.sub(r"(?m)^Accounting.*\n", "", text),
    }
    confs = {}
    for name, content in variants.items():
        confs[name] = recorder.running.folder / f"{name}.conf"
        confs[name].write_text(content)
    script = str(recorder.work / "script.sh")
    sbatch = ["sbatch", "--parsable", script]
    recorder.record("sbatch_no_controller", sbatch, submits=True, conf=confs["no_controller"])
    recorder.record("squeue_no_controller", squeue.queue_command(None), conf=confs["no_controller"])
    recorder.record("sacct_no_slurmdbd", sacct.accounting_command(ids=[1]), conf=confs["no_slurmdbd"])
    recorder.record("sacct_no_accounting", sacct.accounting_command(ids=[1]), conf=confs["no_accounting"])
    recorder.record("squeue_unknown_user", squeue.queue_command("nosuchuser"))
    recorder.record("squeue_unknown_field", ["squeue", "--noheader", "-O", "Nosuch:"])
    recorder.record("sacct_unknown_field", ["sacct", "--noheader", "--format=JobID,Nosuch"])


def main(release: str) -> None:
    """Record everything."""
    folder = Path(__file__).parent / release
    folder.mkdir(exist_ok=True)
    root = root_for(release)
    with tempfile.TemporaryDirectory() as work, first_on_path(root), ThrowawaySlurm() as running:
        recorder = Recorder(running, root, Path(work), folder)
        jobs(recorder)
        submissions(recorder)
        faults(recorder)
        (folder / "version").write_text(f"{root.version}\n")


if __name__ == "__main__":
    main(sys.argv[1])
