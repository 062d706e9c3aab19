"""One job's details, on a screen of their own or below the list."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import ClassVar, cast

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from slurmgpu.errors import SlurmGpuError
from slurmgpu.jobs.live import ACTS, Detail, said_of
from slurmgpu.jobs.table import Among, key_of
from slurmgpu.jobs.table import lines as lines_of
from slurmgpu.jobs.view import Line
from slurmgpu.models.run import JobState
from slurmgpu.top.app import Top, View
from slurmgpu.top.logs import LogScreen
from slurmgpu.top.text import describe

__all__ = ["DetailScreen", "JobPane"]


_KEYS = "l logs  w why  " + "  ".join(f"{act.key} {act.verb}" for act in ACTS) + "  q back"
_FEW_KEYS = "q back  l logs  w why  " + " ".join(act.key for act in ACTS) + " change"


class JobPane(VerticalScroll):
    """What is known of one job."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.line: Line | None = None
        self._detail: Detail | None = None
        self._told: dict[str, list[str]] = {}

    def compose(self) -> ComposeResult:
        """Text."""
        yield Static(id="text", markup=False)

    @property
    def top(self) -> Top:
        """The application."""
        return cast("Top", self.app)

    def show(self, line: Line | None) -> None:
        """Show this job, with what its files tell once they are read."""
        other = self.line is None or line is None or key_of(line) != key_of(self.line)
        self.line = line
        if other:
            self._detail = None
            self.scroll_home(animate=False)
        self._draw()
        self.read()
        if line is not None and line.job.state.is_final and line.job.state is not JobState.COMPLETED:
            self._find_cause(line)

    def read(self) -> None:
        """Read the job's files, aside; one reading at a time."""
        line = self.line
        if line is None or (self._detail is not None and line.job.state.is_final):
            return

        def done(detail: Detail) -> None:
            if self.line is not None and key_of(self.line) == key_of(line):
                self._detail = detail
                self._draw()
            elif self.line is not None:
                self.read()

        self.top.aside(lambda: self.top.source.detail(line.job), done, once=f"detail {id(self)}")

    def ask_why(self) -> None:
        """Ask Slurm for the figures behind the reason."""
        line = self.line
        if line is None or not line.job.state.is_waiting:
            self.top.say("only a job that waits is explained by Slurm's figures", good=False)
            return

        def ask() -> list[str]:
            try:
                return self.top.source.why(line.job)
            except SlurmGpuError as error:
                return [said_of(error)]

        self._tell(line, ["asking Slurm ..."])
        self.top.aside(ask, lambda told: self._tell(line, told))

    def _find_cause(self, line: Line) -> None:
        if self._key(line) not in self._told:
            self._told[self._key(line)] = []
            self.top.aside(lambda: self.top.source.cause(line.job), lambda told: self._tell(line, told))

    def _tell(self, line: Line, told: list[str]) -> None:
        self._told[self._key(line)] = told
        self._draw()

    @staticmethod
    def _key(line: Line) -> str:
        """Return what is told counts as long as nothing has changed."""
        return f"{key_of(line)} {line.job.state.value} {line.job.restarts} {line.job.reason}"

    def _draw(self) -> None:
        if self.line is None:
            self.query_one("#text", Static).update("")
            return
        width = max(40, self.size.width - 2)
        told = self._told.get(self._key(self.line), [])
        lines = describe(self.line, self._detail, told, datetime.now(timezone.utc), width)
        self.query_one("#text", Static).update(Text("\n").join(lines))


class DetailScreen(View):
    """One job, whole."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape", "app.pop_screen", show=False),
        Binding("l", "logs", show=False),
        Binding("w", "why", show=False),
        Binding("r", "refresh", show=False),
        *(Binding(act.key, f"act({number})", show=False) for number, act in enumerate(ACTS)),
    ]

    def __init__(self, line: Line, *, why: bool = False) -> None:
        super().__init__()
        self.line = line
        self._why = why

    def compose(self) -> ComposeResult:
        """Lines above and below the text."""
        yield Static(id="head", classes="line", markup=False)
        pane = JobPane(id="pane")
        pane.add_class("whole")
        yield pane
        yield Static(_KEYS, id="keys", classes="line", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        """Another width has room for other words."""
        keys = _KEYS if event.size.width >= len(_KEYS) else _FEW_KEYS
        self.query_one("#keys", Static).update(keys)
        self.show()

    @property
    def pane(self) -> JobPane:
        """The text."""
        return self.query_one("#pane", JobPane)

    def on_mount(self) -> None:
        """Begin to read."""
        self.pane.focus()
        self.show()
        if self._why:
            self.pane.ask_why()

    def show(self) -> None:
        """Show the job as it is known now; one that Slurm has forgotten, as it was."""
        self.query_one("#head", Static).update(self.head())
        seen = self.top.seen
        if seen is not None:
            each = not self.line.tasks
            among = Among(seen.report.since)
            now_known = lines_of(seen.report.jobs, each_task=each, among=among)
            known = {key_of(line): line for line in now_known}
            self.line = known.get(key_of(self.line), self.line)
        self.pane.show(self.line)

    def tick(self) -> None:
        """Read its files again."""
        self.pane.read()

    def action_logs(self) -> None:
        """Follow its logs."""
        self.app.push_screen(LogScreen(self.line))

    def action_why(self) -> None:
        """Ask Slurm for figures."""
        self.pane.ask_why()

    def action_refresh(self) -> None:
        """Ask now."""
        self.top.look(anew=True)

    def action_act(self, number: int) -> None:
        """Change the job, after a question."""
        self.top.ask_for(ACTS[number], self.line)
