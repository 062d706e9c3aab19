"""Lines of ``metrics.jsonl``: written, flushed, recovered after a kill, and what an interruption has cost."""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Optional, Protocol, Union

from ..errors import SettingsError
from ..files import read_json, write_json
from ..formats.metrics import (
    METRICS_FILE,
    METRICS_SCHEMA,
    MetricsRow,
    intervals_of,
    metrics_line,
    metrics_rows,
)
from ..formats.rows import rows_from_end

__all__ = ["Line", "Metrics", "Tracking", "account", "require"]


_END = 1 << 20  # bytes in which a line is looked for that may have been written
_HELD = 1.0  # seconds for which a line may be held back: many at once cost less
_MODULES = {"tensorboard": ("torch.utils.tensorboard", "SummaryWriter"), "wandb": ("wandb", "init")}
_PATIENCE, _HASTE = 60.0, 5.0  # seconds for what is still on its way, at the end and after an error
Line = tuple[float, str, int, Mapping[str, object]]
"""When, kind, step, values."""
Values = Union[Mapping[str, object], Callable[[], Mapping[str, object]]]
"""Of a line; or what works them out, when it is written."""


class Metrics:
    """Appends lines to the run's metrics; without a path (all ranks but 0) it writes nothing.

    ``time`` is in seconds since 1970 (UTC). Where a step is there twice, the highest ``restart`` counts. ``also`` gets
    the lines that are written.
    """

    def __init__(
        self,
        path: Optional[Path],
        restart: int,
        also: Callable[[Sequence[Line]], None] = lambda _lines: None,
        rank: int = 0,
    ) -> None:
        self._restart, self._also, self._rank = restart, also, rank
        self._failed = False
        self._rest = b""  # of a line that a full disk cut off
        self._lock = threading.Lock()
        self._lines: list[tuple[float, str, int, Values]] = []
        self._holds = False
        self._waiting: list[tuple[float, str, int, Values]] = []
        self._written = 0.0
        self._file: Optional[int] = None
        self._name = "" if path is None else path.name
        if path is not None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # a line that was cut off when an earlier start was killed

    def write(self, kind: str, step: int, values: Values) -> None:
        """Append one line; a number that is not finite becomes null, because JSON has none."""
        if self._file is None:
            return
        if kind == "train" and self._holds:
            self._waiting.append((time.time(), kind, step, values))
            return
        with self._lock:
            self._lines.append((time.time(), kind, step, values))
        if kind != "train":
            self.flush()
        else:
            self.flush_held()

    def hold(self) -> None:
        """Let lines of steps wait for ``release``: until a kill can no longer cost the step."""
        self._holds = True

    def waiting(self) -> list[str]:
        """Return the lines that wait, as they will be written."""
        lines = [
            (when, kind, step, got() if callable(got) else got) for when, kind, step, got in self._waiting
        ]
        return list(map(self._line, lines))

    def release(self) -> None:
        """Write out the lines that have waited."""
        if self._waiting:
            with self._lock:
                self._lines += self._waiting
            self._waiting = []
            self.flush()

    def recover(self, lines: Sequence[str]) -> None:
        """Write lines that an earlier start had no more time to write; those that are there stay as they are."""
        if self._file is None or not lines:
            return
        size = os.fstat(self._file).st_size
        end = os.pread(self._file, _END, max(0, size - _END))
        text = "".join(line for line in lines if line.encode() not in end)
        if text:
            with self._lock:
                self._append(self._file, text.encode())

    def flush_held(self) -> None:
        """Write out what has been held back for a second."""
        if self._lines and time.monotonic() - self._written >= _HELD:
            self.flush()

    def flush(self) -> None:
        """Write out all lines, whole: readers and a kill see each of them whole or hardly at all."""
        with self._lock:
            held, self._lines = self._lines, []
            lines = [(when, kind, step, got() if callable(got) else got) for when, kind, step, got in held]
            text = "".join(map(self._line, lines))
            self._written = time.monotonic()
            if not text or self._file is None:
                return
            self._also(lines)
            self._append(self._file, text.encode())

    def _append(self, file: int, text: bytes) -> None:
        """Write what fits: a full disk costs lines, not the training, and a line that it cut is completed later."""
        text = self._rest + text
        done, reason = 0, "the disk took only a part"
        try:
            done = os.write(file, text)
        except OSError as error:
            reason = error.strerror or str(error)
        if done == len(text):
            self._rest = b""
            return
        inside = text[done - 1 : done] != b"\n" if done else bool(self._rest)
        self._rest = text[done : text.index(b"\n", done) + 1] if inside else b""
        if not self._failed:
            self._failed = True
            with contextlib.suppress(OSError):  # the log may be on the same disk
                print(f"warning: {self._name} cannot be written: {reason}", file=sys.stderr, flush=True)

    def _line(self, held: Line) -> str:
        when, kind, step, values = held
        return metrics_line(MetricsRow(kind, when, self._restart, step, values), self._rank)


class Tracker(Protocol):
    """Where lines go."""

    def write(self, when: float, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a line."""

    def close(self) -> None:
        """Send what is left."""


def require(names: Sequence[str]) -> None:
    """Import what the trackers need, before anything has begun.

    Raises:
        SettingsError: a package is missing.
    """
    for name in names:
        module, attribute = _MODULES[name]
        try:
            # A folder wandb/ with earlier runs imports too, as a package with nothing in it.
            getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise SettingsError(
                f"track names {name}, which is not installed for {sys.executable} ({error}): "
                f"pip install {name}, or leave it out of track"
            ) from None


class Tracking:
    """Hands lines on to the trackers named; a context that starts them, left when the last line is written."""

    def __init__(
        self,
        names: Sequence[str],
        run_dir: Path,
        first_step: int,
        settings: Mapping[str, object],
        say: Callable[[str], None],
    ) -> None:
        self._names, self._run_dir, self._first_step = names, run_dir, first_step
        self._settings, self._say = settings, say
        self._lines: queue.SimpleQueue[Optional[list[Line]]] = queue.SimpleQueue()
        self._trackers: dict[str, Tracker] = {}
        self._thread = threading.Thread(target=self._run, name="track", daemon=True)

    def put(self, lines: Sequence[Line]) -> None:
        """Hand on lines; returns at once."""
        if self._names:
            self._lines.put(list(lines))

    def __enter__(self) -> None:
        for name in self._names:
            try:
                if name == "tensorboard":
                    self._trackers[name] = _TensorBoard(self._run_dir, self._first_step)
                else:
                    self._trackers[name] = _Wandb(self._run_dir, self._settings)
            except Exception as error:
                self._drop(name, error)
        if self._names:
            self._thread.start()

    def __exit__(self, kind: Optional[type[BaseException]], *_rest: object) -> None:
        """Wait until all is handed on, for a minute at most."""
        if not self._names:
            return
        patience = _PATIENCE if kind is None else _HASTE
        self._lines.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            late = ", ".join(self._trackers)
            self._say(
                f"warning: {late} takes more than {patience:g} s at the end; its last points may be missing"
            )

    def _run(self) -> None:
        while (lines := self._lines.get()) is not None:
            for when, kind, step, values in lines:
                numbers = dict(_numbers(values))
                self._each(lambda to, w=when, k=kind, s=step, n=numbers: to.write(w, k, s, n))  # type: ignore[misc]
        self._each(lambda to: to.close())

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except Exception as error:
                del self._trackers[name]
                self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        self._say(f"warning: {name} fails ({first}); the training goes on without it, and with metrics.jsonl")


def _numbers(values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, value


class _TensorBoard:
    """Event files in ``tensorboard/``; what a resumed run takes again replaces what was there."""

    def __init__(self, run_dir: Path, first_step: int) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        folder = run_dir / "tensorboard"
        purge = first_step + 1 if folder.is_dir() else None
        self._writer = module.SummaryWriter(str(folder), purge_step=purge, flush_secs=10)

    def write(self, when: float, kind: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step, walltime=when)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """One run for all starts; its id is kept in ``state/wandb_id``. WANDB_MODE, WANDB_PROJECT and so on hold."""

    def __init__(self, run_dir: Path, settings: Mapping[str, object]) -> None:
        file = run_dir / "state" / "wandb_id"
        name = file.read_text().strip() if file.exists() and settings["resume"] else ""
        if not name:
            name = os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
            file.write_text(name)
        options = {"console": "off"}  # the log is in the run directory
        if "WANDB_NAME" not in os.environ:
            options["run_name"] = run_dir.resolve().name
        self._run = importlib.import_module("wandb").init(
            id=name, resume="allow", dir=str(run_dir), config={"slurmgpu": dict(settings)}, settings=options
        )
        # Not wandb's own count of steps: it refuses those that a resumed run takes again.
        self._run.define_metric("*", step_metric="step")

    def write(self, when: float, kind: str, step: int, values: Mapping[str, float]) -> None:
        named = {f"{kind}/{name}": value for name, value in values.items()}
        self._run.log({"step": step, "time": when, **named})

    def close(self) -> None:
        self._run.finish()


def account(run_dir: Path, restart: int, first_step: int) -> Optional[dict[str, float]]:
    """Return the values of a ``restart`` line, from what earlier starts wrote; None when they never trained.

    Sums over all restarts are kept in ``state/lost.json``. Read from the end of ``metrics.jsonl``, no further back
    than the step from which this start goes on.
    """
    last: Optional[MetricsRow] = None
    trained: list[MetricsRow] = []
    for row in metrics_rows(rows_from_end(run_dir / METRICS_FILE, METRICS_SCHEMA)):
        if row.kind == "start" or row.restart >= restart or row.time is None:
            continue
        last = last or row
        if row.restart != last.restart:
            break  # what that start had lost, the one after it has counted
        if row.kind == "train":
            trained.append(row)
            if row.step <= first_step:
                break
    if last is None or last.time is None:
        return None
    seconds = sum(one.seconds for one in intervals_of(reversed(trained), first_step))
    steps = max([first_step, *(row.step for row in trained)]) - first_step
    down = max(0.0, time.time() - last.time)
    file = run_dir / "state" / "lost.json"
    before = read_json(file)
    lost_seconds = float(before.get("lost_seconds", 0.0)) + down + seconds
    lost_steps = int(before.get("lost_steps", 0)) + steps
    with contextlib.suppress(OSError):  # a full disk costs the sums, not the training
        write_json(file, {"lost_seconds": lost_seconds, "lost_steps": lost_steps})
    return {
        "restarts": restart,
        "down_seconds": down,
        "repeated_steps": steps,
        "repeated_seconds": seconds,
        "lost_seconds": lost_seconds,
        "lost_steps": lost_steps,
    }
