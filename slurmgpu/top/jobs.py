"""The list of jobs, and on a tall terminal the details of the one that the cursor is on."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import DataTable, Input, Static

from slurmgpu.amounts import count
from slurmgpu.jobs.live import ACTS
from slurmgpu.jobs.table import MOST, SORTS, How, key_of, shown
from slurmgpu.jobs.view import JobView, Line
from slurmgpu.top.app import HelpScreen, View
from slurmgpu.top.gpus import GpusScreen
from slurmgpu.top.logs import LogScreen
from slurmgpu.top.pane import DetailScreen, JobPane
from slurmgpu.top.text import Rows, rows_of

__all__ = ["JobsScreen"]


_TALL = 34
"""Rows of a terminal from which on details are below the list."""
_PATIENCE = 0.2
"""Seconds from the last letter of a filter until the list follows."""
_KEYS = "enter details  l logs  g GPUs  / filter  s sort  C cancel  ? help  q quit"
_FEW_KEYS = "? help  q quit  enter details  l logs  / filter"


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
        *(Binding(act.key, f"act({number})", show=False) for number, act in enumerate(ACTS)),
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
        told = self._nothing()
        if line is not None:
            doing = JobView(line, datetime.now(timezone.utc)).doing or line.job.state.value
            told = f"{line.job.job_id}: {doing}"
        self.query_one("#why", Static).update(Text(told))
        pane = self.query_one("#pane", JobPane)
        if pane.display:
            pane.show(line)

    def _nothing(self) -> str:
        if self.how.words:
            return "no job has all these words; escape shows all"
        return "no jobs, waiting, running or finished in the last day (--since asks for more)"

    def on_data_table_row_highlighted(self) -> None:
        """Another job."""
        self._about()

    def on_data_table_row_selected(self) -> None:
        """Enter."""
        if self.line is not None:
            self.app.push_screen(DetailScreen(self.line))

    def tick(self) -> None:
        """How old it is, where Slurm is silent; the files of the job below."""
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
        """What is free."""
        self.app.push_screen(GpusScreen())

    def action_help(self) -> None:
        """What the keys do."""
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
            self.top.ask_for(ACTS[number], self.line)
