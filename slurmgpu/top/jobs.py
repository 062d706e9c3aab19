"""The list of jobs, and one job's details: below the list on a tall terminal, and on a screen of their own."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import ClassVar, cast

from rich.text import Text
from textual import events
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.timer import Timer
from textual.widgets import DataTable, Input, Static

from slurmgpu.amounts import count
from slurmgpu.errors import SlurmGpuError
from slurmgpu.jobs.live import ACTIONS, Detail, error_text
from slurmgpu.jobs.table import MOST, SORTS, How, key_of, lines, shown
from slurmgpu.jobs.view import JobView, Line
from slurmgpu.top.app import HelpScreen, Top, View
from slurmgpu.top.screens import GpusScreen, LogScreen
from slurmgpu.top.text import Rows, describe, rows_of

__all__ = ["DetailScreen", "JobPane", "JobsScreen"]

_TALL = 34
"""Rows of a terminal from which on details are below the list."""
_PATIENCE = 0.2
"""Seconds from the last letter of a filter until the list follows."""
_KEYS = "enter details  l logs  g GPUs  / filter  s sort  C cancel  ? help  q quit"
_FEW_KEYS = "? help  q quit  enter details  l logs  / filter"
_DETAIL_KEYS = "l logs  w why  " + "  ".join(f"{act.key} {act.verb}" for act in ACTIONS) + "  q back"
_FEW_DETAIL_KEYS = "q back  l logs  w why  " + " ".join(act.key for act in ACTIONS) + " change"
_ACTS = [Binding(act.key, f"act({number})", show=False) for number, act in enumerate(ACTIONS)]


class JobPane(VerticalScroll):
    """The details of one job."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.line: Line | None = None
        self._detail: Detail | None = None
        self._answers: dict[str, list[str]] = {}
        """Why it waits or failed, in lines, by the state that they are true of."""

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
        failed = line is not None and JobView(line, datetime.now(timezone.utc)).failed
        if line is not None and failed and self._key(line) not in self._answers:
            self._answers[self._key(line)] = []
            self.top.aside(lambda: self.top.source.cause(line.job), lambda found: self._answer(line, found))

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
                return [error_text(error)]

        self._answer(line, ["asking Slurm ..."])
        self.top.aside(ask, lambda found: self._answer(line, found))

    def _answer(self, line: Line, found: list[str]) -> None:
        self._answers[self._key(line)] = found
        self._draw()

    @staticmethod
    def _key(line: Line) -> str:
        """Return what an answer counts for: as long as nothing has changed."""
        return f"{key_of(line)} {line.job.state.value} {line.job.restarts} {line.job.reason}"

    def _draw(self) -> None:
        if self.line is None:
            self.query_one("#text", Static).update("")
            return
        width = max(40, self.size.width - 2)
        found = self._answers.get(self._key(self.line), [])
        text = Text("\n").join(describe(self.line, self._detail, found, datetime.now(timezone.utc), width))
        self.query_one("#text", Static).update(text)


class DetailScreen(View):
    """One job, whole."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape", "app.pop_screen", show=False),
        Binding("l", "logs", show=False),
        Binding("w", "why", show=False),
        Binding("r", "refresh", show=False),
        *_ACTS,
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
        yield Static(_DETAIL_KEYS, id="keys", classes="line", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        """Another width has room for other words."""
        keys = _DETAIL_KEYS if event.size.width >= len(_DETAIL_KEYS) else _FEW_DETAIL_KEYS
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
            found = lines(seen.report.jobs, each_task=not self.line.tasks, since=seen.report.since)
            self.line = {key_of(line): line for line in found}.get(key_of(self.line), self.line)
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
        self.top.ask_for(ACTIONS[number], self.line)


class _Table(DataTable[Text]):
    """A list: home and end are its first and its last line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]


class JobsScreen(View):
    """The first screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.quit", show=False),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
        Binding("l", "logs", show=False),
        Binding("g", "gpus", show=False),
        # Before all others: what is typed right behind them goes where they lead, however busy the machine is.
        Binding("slash", "filter", show=False, priority=True),
        Binding("enter", "filtered", show=False, priority=True),
        Binding("escape", "all", show=False),
        Binding("s", "sort", show=False),
        Binding("t", "tasks", show=False),
        Binding("a", "users", show=False),
        Binding("r", "refresh", show=False),
        Binding("w", "why", show=False),
        Binding("question_mark", "help", show=False),
        *_ACTS,
    ]

    def __init__(self) -> None:
        super().__init__()
        self.how = How()
        self.lines: list[Line] = []
        self._rows: Rows | None = None
        self._typed: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lines above and below a table."""
        yield Static(id="head", classes="line", markup=False)
        yield _Table(id="jobs", cursor_type="row", cell_padding=0, zebra_stripes=False)
        yield Static(id="why", markup=False)
        yield JobPane(id="pane")
        yield Input(id="filter", placeholder="filter: words of id, name, user, state, partition")
        yield Static(_KEYS, id="keys", classes="line", markup=False)

    @property
    def table(self) -> DataTable[Text]:
        """The list."""
        return self.query_one("#jobs", _Table)

    @property
    def line(self) -> Line | None:
        """The job that the cursor is on."""
        row = self.table.cursor_row
        return self.lines[row] if 0 <= row < min(len(self.lines), MOST) else None

    def on_mount(self) -> None:
        """Keys go to the list."""
        self.table.focus()
        self.show()

    def on_resize(self, event: events.Resize) -> None:
        """Another width has room for other columns."""
        self.query_one("#pane").display = event.size.height >= _TALL
        keys = _KEYS if event.size.width >= len(_KEYS) else _FEW_KEYS
        self.query_one("#keys", Static).update(keys)
        self._rows = None
        self.show()

    def show(self) -> None:
        """Show the jobs as they are known; the cursor stays on its job."""
        self.query_one("#head", Static).update(self._head())
        seen = self.top.seen
        if seen is None:
            return
        line = self.line
        now = datetime.now(timezone.utc)
        self.lines = shown(seen.report.jobs, self.how, now, seen.report.since)
        rows = rows_of(self.lines, now, max(40, self.size.width - 1), doubtful=bool(seen.why_old))
        if rows != self._rows:
            self._fill(rows, key_of(line) if line else None)
        self._about()

    def _fill(self, rows: Rows, key: str | None) -> None:
        table, before = self.table, self.table.cursor_row
        top = table.scroll_y
        table.clear(columns=self._rows is None or self._rows.titles != rows.titles)
        if not table.columns:
            for title, width in rows.titles:
                table.add_column(Text(title), width=width)
        for cells in rows.cells:
            table.add_row(*cells)
        self._rows = rows
        keys = [key_of(line) for line in self.lines[:MOST]]
        row = keys.index(key) if key in keys else min(before, len(keys) - 1)
        if row >= 0:
            table.move_cursor(row=row, scroll=False)
            table.scroll_to(y=top, animate=False, force=True)
            table.move_cursor(row=row)

    def _head(self) -> Text:
        text = self.head()
        if self.top.seen is None:
            return text
        number = len(self.lines)
        extra = [count(number, "line") if number <= MOST else f"{MOST} of {number} lines"]
        extra += ["all users"] if self.top.source.all_users else []
        extra += [f"by {self.how.sort}"]
        extra += [f"filter: {self.how.words}"] if self.how.words else []
        return text.append("  " + ", ".join(extra), style="not bold")

    def _about(self) -> None:
        """The whole reason of the job under the cursor, and where there is room its details."""
        self.query_one("#head", Static).update(self._head())
        line = self.line
        text = "no jobs, waiting, running or finished in the last day (--since asks for more)"
        if self.how.words:
            text = "no job has all these words; escape shows all"
        if line is not None:
            doing = JobView(line, datetime.now(timezone.utc)).doing or line.job.state.value
            text = f"{line.job.job_id}: {doing}"
        self.query_one("#why", Static).update(Text(text))
        pane = self.query_one("#pane", JobPane)
        if pane.display:
            pane.show(line)

    def on_data_table_row_highlighted(self) -> None:
        """Another job."""
        self._about()

    def on_data_table_row_selected(self) -> None:
        """Enter."""
        if self.line is not None:
            self.app.push_screen(DetailScreen(self.line))

    def tick(self) -> None:
        """Read the files of the job below again."""
        pane = self.query_one("#pane", JobPane)
        if pane.display:
            pane.read()

    def action_move(self, by: int) -> None:
        """To another job."""
        self.table.move_cursor(row=self.table.cursor_row + by)

    def action_logs(self) -> None:
        """Follow the logs of the job."""
        if self.line is not None:
            self.app.push_screen(LogScreen(self.line))

    def action_gpus(self) -> None:
        """Show the free GPUs."""
        self.app.push_screen(GpusScreen())

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(HelpScreen())

    def action_filter(self) -> None:
        """Type words."""
        field = self.query_one("#filter", Input)
        if self.focused is field:
            raise SkipAction  # a letter of a word
        field.display = True
        self.set_focus(field)

    def action_filtered(self) -> None:
        """Back to the list, which stays filtered."""
        field = self.query_one("#filter", Input)
        if self.focused is not field:
            raise SkipAction
        self.set_focus(self.table)
        field.display = bool(field.value)
        self.show()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The list follows what is typed, with a little patience."""
        self.how = self.how._replace(words=event.value)
        if self._typed is not None:
            self._typed.stop()
        if self.focused is event.input:
            self._typed = self.set_timer(_PATIENCE, self.show)
        else:  # enter has overtaken it
            event.input.display = bool(event.value)
            self.show()

    def action_all(self) -> None:
        """Without a filter."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self.how = self.how._replace(words="")
        self.show()
        self.table.focus()

    def action_sort(self) -> None:
        """By what comes next."""
        self.how = self.how._replace(sort=SORTS[(SORTS.index(self.how.sort) + 1) % len(SORTS)])
        self.show()

    def action_tasks(self) -> None:
        """Arrays opened, or in one line."""
        self.how = self.how._replace(each_task=not self.how.each_task)
        self.show()

    def action_users(self) -> None:
        """Everybody's jobs, or mine."""
        self.top.source.all_users = not self.top.source.all_users
        self.action_refresh()

    def action_refresh(self) -> None:
        """Ask now."""
        self.top.look(anew=True)

    def action_why(self) -> None:
        """Why it waits: in its details."""
        if self.line is not None:
            self.app.push_screen(DetailScreen(self.line, why=True))

    def action_act(self, number: int) -> None:
        """Change the job, after a question."""
        if self.line is not None:
            self.top.ask_for(ACTIONS[number], self.line)
