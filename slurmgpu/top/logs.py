"""A job's logs, as they grow."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import RichLog, Static

from slurmgpu.jobs.log_files import absence, last_lines_from, size_of
from slurmgpu.jobs.logs import GrowingLogs
from slurmgpu.jobs.view import Line
from slurmgpu.printable import Harmless, printable
from slurmgpu.top.app import View

__all__ = ["LogScreen"]

_LAST = 500
"""Lines of each log that are shown of what was there before."""
_MOST_LOGS = 64
_MOST_KEPT = 5000
_LONGEST = 4000
"""Characters of a line; what is beyond is cut off."""


class LogScreen(View):
    """The end of all logs of a job, and what comes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape", "app.pop_screen", show=False),
        Binding("f", "follow", show=False),
        Binding("j", "log('scroll_down')", show=False),
        Binding("k", "log('scroll_up')", show=False),
    ]

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line = line
        self.jobs = [line.job]
        self._growing = GrowingLogs()
        self._known: set[Path] = set()
        self._waits = ""

    def compose(self) -> ComposeResult:
        """Lines above and below the text."""
        yield Static(id="head", classes="line", markup=False)
        yield RichLog(id="log", max_lines=_MOST_KEPT, wrap=True, markup=False, highlight=False, min_width=20)
        yield Static("f follow  up down pgup pgdn home end  q back", id="keys", classes="line", markup=False)

    @property
    def text(self) -> RichLog:
        """The lines."""
        return self.query_one("#log", RichLog)

    def on_mount(self) -> None:
        """Begin at the end of what there is."""
        self.text.focus()
        self.show()
        self.tick()

    def show(self) -> None:
        """Show whose logs these are, and the job's state."""
        seen = self.top.seen
        known = seen.report.jobs if seen else []
        first = self.line.job
        if self.line.tasks:  # an array in one line: the logs of all its tasks
            self.jobs = [job for job in known if job.array_job_id == first.array_job_id] or self.jobs
        else:
            self.jobs = [job for job in known if job.job_id == first.job_id] or self.jobs
        states = ", ".join(dict.fromkeys(job.state.value for job in self.jobs))
        doubt = "?" if seen is not None and seen.why_old else ""
        head = Text(f"job {first.job_id}  {printable(first.name)}  {states}{doubt}")
        head.append(f"  {self._waits}" if self._waits else "", style="not bold")
        self.query_one("#head", Static).update(head)

    def tick(self) -> None:
        """Read what has come, aside: a network file system may take its time."""
        self.top.aside(self._read, self._write, once=f"logs {id(self)}")

    def _read(self) -> tuple[list[str], str]:
        logs = [log for job in self.jobs for log in self.top.source.logs(job)][:_MOST_LOGS]
        self._growing.prefixes = self._growing.prefixes or len(logs) > 1
        for path, log in ((log.path, log) for log in logs if log.path is not None):
            if path not in self._known and path.is_file():
                self._known.add(path)
                self._growing.add(log, last_lines_from(path, _LAST, size_of(path)))
        pieces: list[str] = []
        self._growing.pass_on(pieces.append)
        missing = next((absence(log) for log in logs if log.path is None or not log.path.exists()), "")
        if self._known:
            yet = "" if all(job.state.is_final for job in self.jobs) else " yet"
            missing = "" if self._growing.shown else f"nothing is in its logs{yet}"
        return "".join(pieces).split("\n"), missing

    def _write(self, answer: tuple[list[str], str]) -> None:
        lines, self._waits = answer
        if lines and not lines[-1]:
            lines.pop()
        for line in lines:
            self.text.write(_harmless(line[:_LONGEST]))
        self.show()

    def action_follow(self) -> None:
        """Go to the end, and stay there."""
        self.text.auto_scroll = True
        self.text.scroll_end(animate=False)

    def action_log(self, name: str) -> None:
        """Scroll by a line."""
        {"scroll_down": self.text.scroll_down, "scroll_up": self.text.scroll_up}[name](animate=False)


def _harmless(line: str) -> Text:
    """Return a line in its colours; what else it would do to a terminal is spelled out."""
    harmless = Harmless(redraws=False)
    text = Text.from_ansi(harmless.text(line.expandtabs().rpartition("\r")[2] or line) + harmless.end())
    return Text(printable(text.plain), spans=text.spans if text.plain.isprintable() else None)
