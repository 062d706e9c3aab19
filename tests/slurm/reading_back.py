"""Reads back from the real Slurm what arrived of the hostile values that were sent."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from slurmgpu.slurm.text import JobId, expand_pattern
from tests.hostile import VALUES
from tests.slurm.round_trip import RECORD, Sending, Sent, expanded

# squeue's column for a field that comes back as it was sent.
COLUMNS = {
    "wckey": "wckey", "account": "Account", "partition": "Partition", "qos": "QOS", "constraint": "Feature",
    "reservation": "Reservation",
}  # fmt: skip
_QUEUE = ("JobID", "Name", "Comment", *COLUMNS.values(), "TimeLimit", "MinMemory", "Nice", "NodeList")


class ReadingBack:
    """Compares what was sent with what the queue, accounting, the disk and the jobs themselves show."""

    def __init__(self, sending: Sending) -> None:
        self.sending = sending
        self.rows: dict[int, dict[str, str]] = {}
        self.records_of: dict[str, bytes] = {}

    def read(self) -> None:
        """Wait once for all jobs, read everything, and put it into the ledger."""
        self._wait()
        self._read_queue()
        self._read_accounting()
        for sent in self.sending.sent:
            for name in sent.names:
                self._read(name, sent)
        self._read_many()

    def _wait(self) -> None:
        running = {str(sent.job_id) for sent in self.sending.sent if not sent.held}
        deadline = time.monotonic() + 180
        while True:
            rows = self.sending.slurm.run(["squeue", "-h", "-o", "%A"]).stdout.split()
            if not running & set(rows):
                break
            assert time.monotonic() < deadline, running & set(rows)
            time.sleep(0.3)
        records = Path(self.sending.environ["RECORDS"])
        self.records_of = {path.name: path.read_bytes() for path in records.iterdir()}

    def _read_queue(self) -> None:
        ask = ["squeue", "-h", "-t", "all", "--noconvert", "-O"]
        out = self._bytes([*ask, ",".join(f"{name}:\x1f" for name in _QUEUE)])
        for line in filter(None, out.split("\n")):
            parts = line.split("\x1f")[:-1]
            assert len(parts) == len(_QUEUE), line
            self.rows[int(parts[0])] = dict(zip(_QUEUE, parts, strict=True))
        held = [sent for sent in self.sending.sent if sent.held]
        self.sending.slurm.run(["scancel", *(str(sent.job_id) for sent in held)])

    def _read_accounting(self) -> None:
        ran = [sent for sent in self.sending.sent if "name" in sent.names or "comment" in sent.names]
        ask = ["sacct", "-X", "-n", "-P", "--delimiter=\x1f", "-o", "JobIDRaw,Partition,JobName,Comment"]
        ask += ["-j", ",".join(str(sent.job_id) for sent in ran)]
        deadline = time.monotonic() + 180
        while True:
            rows = [line.split("\x1f") for line in self._bytes(ask).split("\n") if line]
            if len(rows) == len(ran) and all(row[1] for row in rows):
                break
            assert time.monotonic() < deadline, rows
            time.sleep(0.5)
        for number, _, name, comment in rows:
            self.rows[int(number)] |= {"sacct name": name, "sacct comment": comment}

    def _bytes(self, argv: list[str]) -> str:
        """Output as it is: reading text would turn a carriage return into a newline."""
        out = self.sending.slurm.run(argv, text=False).stdout
        assert isinstance(out, bytes)
        return out.decode("utf-8", "surrogateescape")

    def recorded(self, job_id: int, what: str) -> list[str] | None:
        """The NUL-ended words that a job wrote down; None when it did not get that far."""
        found = self.records_of.get(f"{job_id}.{what}")
        return None if found is None else found.decode("utf-8", "surrogateescape").split("\0")[:-1]

    def _read(self, name: str, sent: Sent) -> None:
        last = name.rsplit(".", 1)[-1]
        if last in COLUMNS:
            # Slurm keeps accounts in lower case, and so do we.
            expected = sent.value.lower() if last == "account" else sent.value
            found = self.rows[sent.job_id][COLUMNS[last]]
        else:
            expected, found = getattr(self, f"_read_{last}")(sent)
        key = next(key for key, value in VALUES.items() if value == sent.value)
        self.sending.ledger.compare(name, key, expected, found)

    def _read_name(self, sent: Sent) -> tuple[object, object]:
        row = self.rows[sent.job_id]
        inside = (self.recorded(sent.job_id, "ran") or [""])[0]
        return [sent.value] * 3, [row["Name"], row["sacct name"], inside]

    def _read_comment(self, sent: Sent) -> tuple[object, object]:
        row = self.rows[sent.job_id]
        return [sent.value] * 2, [row["Comment"], row["sacct comment"]]

    def _read_user(self, sent: Sent) -> tuple[object, object]:
        shown = self._bytes(["scontrol", "show", "job", str(sent.job_id)])
        found = re.search(r"MailUser=(.*?) MailType=", shown)
        return sent.value, found and found[1]

    def _read_output(self, sent: Sent) -> tuple[object, object]:
        newer = self.sending.slurm.release > (24, 11)
        # %N is the node's own name or the machine's, which here are two.
        host = socket.gethostname().partition(".")[0]
        pattern = expand_pattern(
            sent.value,
            job_id=JobId(sent.job_id),
            raw_id=sent.job_id,
            name=sent.plan.name,
            user=getpass.getuser(),
            node_list=self.rows[sent.job_id]["NodeList"] if newer else host,
        )
        if pattern is None:
            pattern = _named_by_its_release(sent, newer)
        expected = os.path.normpath(sent.folder / pattern)
        files = {str(path): path.read_text() for path in _files(sent.folder.parents[1])}
        # With --output alone both streams go there.
        return {expected: "said\n" * (1 if "error" in sent.names else 2)}, files

    _read_error = _read_output

    def _read_env(self, sent: Sent) -> tuple[object, object]:
        return ["activate", expanded(sent.value, self.sending.environ)], self.recorded(sent.job_id, "conda")

    def _read_work_dir(self, sent: Sent) -> tuple[object, object]:
        expected = os.path.realpath(sent.folder / expanded(sent.value, self.sending.environ))
        return expected, (self.recorded(sent.job_id, "ran") or ["", ""])[1]

    def _read_image(self, sent: Sent) -> tuple[object, object]:
        expected = ["exec", expanded(sent.value, self.sending.environ), *RECORD]
        return expected, self.recorded(sent.job_id, "apptainer")

    def _read_path(self, sent: Sent) -> tuple[object, object]:
        """The environment was activated; one whose name no disk can hold is missed under its whole name."""
        mark = f"activated-{sent.job_id}"
        if (sent.folder / mark).exists():
            return mark, mark
        log = (sent.run_dir / "logs" / f"{sent.job_id}.out").read_text()
        missed = f"no virtual environment at {expanded(sent.value, self.sending.environ)}/bin/activate on "
        return missed, missed if len(sent.value) > 255 and missed in log else log

    def _read_time(self, sent: Sent) -> tuple[object, object]:
        days, minutes = divmod(int(sent.value), 24 * 60)
        expected = f"{days}-{minutes // 60:02}:{minutes % 60:02}:00"
        return expected, self.rows[sent.job_id]["TimeLimit"]

    def _read_memory(self, sent: Sent) -> tuple[object, object]:
        return f"{sent.value}M", self.rows[sent.job_id]["MinMemory"]

    def _read_many(self) -> None:
        shown = {
            name: json.loads((self.sending.many[name].folder / "shown.json").read_text())
            for name in ("plain", "srun", "torchrun")
        }
        for number, (key, value) in enumerate(self.sending.accepted("command").items()):
            self.sending.ledger.compare(
                "command", key, [value] * 3, [argv[number] for argv, _ in shown.values()]
            )
        for key, value in self.sending.accepted("variables").items():
            found = [environ.get(f"HOSTILE_{key}") for _, environ in shown.values()]
            self.sending.ledger.compare("variables", key, [expanded(value, self.sending.environ)] * 3, found)
        for key, value in self.sending.accepted("secrets").items():
            script = (self.sending.many["plain"].run_dir / "script.sbatch").read_text()
            found = [shown["plain"][1].get(value), "se cr et" in script]
            self.sending.ledger.compare("secrets", key, ["se cr et", False], found)
        self._read_lists()

    def _read_lists(self) -> None:
        loaded = self._words("modules", "module.load", [])
        self._compare_list("environment.modules.load", loaded, str)
        used = self._words("module_use", "module.use", [])
        self._compare_list(
            "environment.modules.use", used, lambda value: expanded(value, self.sending.environ)
        )
        argv = self._words("container", "apptainer", ["exec"])
        binds = self.sending.accepted("environment.container.binds")
        pairs, options = argv[: 2 * len(binds)], argv[2 * len(binds) :]
        assert set(pairs[::2]) == {"--bind"}
        assert options[-2:] == ["docker://image", *RECORD]
        self._compare_list(
            "environment.container.binds", pairs[1::2], lambda v: expanded(v, self.sending.environ)
        )
        self._compare_list("environment.container.options", options[:-2], str)
        argv = self._words("stand-in", "srun", [])
        start = argv.index("--kill-on-bad-exit=1") + 1
        assert argv[-2 - len(RECORD) : -len(RECORD)][-1] == "sh"
        options = argv[start : start + len(self.sending.accepted("launch.srun_options"))]
        self._compare_list("launch.srun_options", options, str)

    def _words(self, job: str, what: str, begins: list[str]) -> list[str]:
        words = self.recorded(self.sending.many[job].job_id, what)
        assert words is not None, (self.sending.many[job].run_dir / "logs").iterdir()
        assert words[: len(begins)] == begins
        return words[len(begins) :]

    def _compare_list(self, name: str, found: list[str], meant: Callable[[str], str]) -> None:
        accepted = self.sending.accepted(name)
        assert len(found) == len(accepted), (name, found)
        for (key, value), word in zip(accepted.items(), found, strict=True):
            self.sending.ledger.compare(name, key, meant(value), word)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _named_by_its_release(sent: Sent, newer: bool) -> str:
    """The log of a pattern that releases read in two ways, as up to 24.11 or as in 26.05."""
    number, name = sent.job_id, sent.plan.name
    older_name, newer_name = {
        "100%": ("100%", "100"),
        "a%5": ("a5", "a%5"),
        "a%5%j-%5%": (f"a5{number}-5%", "a%5%j-%5%"),
        "%5j-%12A-%05x-%5q-%J.%s": tuple(
            f"{number:05}-{number:010}-{name}-{rest}-{number}.batch" for rest in ("5q", "%5q")
        ),
    }[sent.value]
    return newer_name if newer else older_name
