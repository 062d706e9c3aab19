"""The screens beside the jobs: the GPUs that are free, by partition, and the logs of a job as they grow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import RichLog, Static

from slurmgpu.errors import SlurmGpuError
from slurmgpu.jobs.gpus_now import GpusNow, could, kind, notes, place, who
from slurmgpu.jobs.live import error_text
from slurmgpu.jobs.log_files import absence, last_lines_from, size_of
from slurmgpu.jobs.logs import GrowingLogs
from slurmgpu.jobs.view import Line
from slurmgpu.printable import Harmless, printable
from slurmgpu.top.app import View
from slurmgpu.top.text import bar

__all__ = ["GpusScreen", "LogScreen", "free_lines"]


_AGAIN, _SOON = 60.0, 15.0
"""Seconds between two questions; where nobody has answered yet, fewer."""
_BAR, _BARS = 16, 76
"""Cells of a bar, and the width of a terminal from which on there are bars."""


class GpusScreen(View):
    """``slurmgpu cluster gpus``, again and again."""

    shows_jobs = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape,g", "app.pop_screen", show=False),
        Binding("r", "refresh", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._told: tuple[GpusNow, float] | None = None
        """The answer, and when it was so, by the clock that nobody sets."""
        self._trouble = ""
        self._asked = 0.0

    def compose(self) -> ComposeResult:
        """Lines above and below the text."""
        yield Static("asking Slurm ...", id="head", classes="line", markup=False)
        with VerticalScroll():
            yield Static(id="text", markup=False)
        yield Static("r refresh  q back", id="keys", classes="line", markup=False)

    def on_mount(self) -> None:
        """Ask."""
        self.action_refresh()

    def tick(self) -> None:
        """Ask again after a while; say how old it is, where nobody answers."""
        if time.monotonic() - self._asked >= (_AGAIN if self._told is not None else _SOON):
            self.action_refresh()
        self._head()

    def action_refresh(self) -> None:
        """Ask now."""
        self._asked = time.monotonic()

        def ask() -> tuple[GpusNow, float] | str:
            try:
                found, age = self.top.source.gpus()
                return found, time.monotonic() - age
            except SlurmGpuError as error:
                return error_text(error)

        self.top.aside(ask, self._answered, once="gpus")

    def _answered(self, answer: tuple[GpusNow, float] | str) -> None:
        if isinstance(answer, str):
            self._trouble = answer
        else:
            self._told, self._trouble = answer, ""
            self._text()
        self._head()

    def on_resize(self) -> None:
        """Another width has room for the bars, or not."""
        self._text()

    def _text(self) -> None:
        if self._told is not None:
            lines = free_lines(self._told[0], bars=self.size.width >= _BARS)
            self.query_one("#text", Static).update(Text("\n").join(lines))

    def _head(self) -> None:
        text = Text("GPUs")
        if self._told is not None:
            age = time.monotonic() - self._told[1]
            text.append(f"  {printable(self._told[0].cluster or 'cluster unknown')}", style="not bold")
            text.append(f"  {age:.0f} s ago" if age >= 5 else "  now", style="not bold")
        elif not self._trouble:
            text.append("  asking Slurm ...", style="not bold")
        if self._trouble:
            text.append(f"  {printable(self._trouble)}", style="red")
        self.query_one("#head", Static).update(text)


def free_lines(found: GpusNow, *, bars: bool = True) -> list[Text]:
    """Return what is free, as lines: the whole cluster by type, then each partition with what a job of mine could get."""
    unknown = found.unknown.items()
    lines = [Text(f"{what}: unknown; {printable(why)}", style="yellow") for what, why in unknown]
    if "nodes" in found.unknown:
        return [*lines, Text("which GPUs there are is not known")]
    if not found.types:
        return [*lines, Text("Slurm lists no GPUs on this cluster")]
    mine = {(one.partition, one.type): one for one in found.mine}
    rows = [*found.types, *found.partitions]
    names, places = [kind(row) for row in rows], [place(row) for row in rows]
    wide, broad = max(map(len, [*names, "GPU"])), max(map(len, [*places, "PARTITION"]))
    taken = f"{'NOT FREE':<{_BAR}}  " if bars else ""
    head = f"{'GPU':<{wide}}  {'PARTITION':<{broad}}  {taken}FREE OF TOTAL  ON ONE NODE  YOURS NOW"
    lines.append(Text(head, style="bold"))
    for name, where, row in zip(names, places, rows, strict=True):
        text = Text(f"{name:<{wide}}  {where:<{broad}}  ")
        if bars:
            text.append(bar(row.total - row.free, row.total, _BAR), style="cyan")
        text.append(f"{'  ' if bars else ''}{row.free:>4} of {row.total:<5} {row.block:>12}  ")
        text.append(could(mine.get((row.partition or "", row.type))), style="green")
        lines.append(text)
    remarks: list[str] = []
    for row in found.types:
        away = ", ".join(f"{count} {why}" for why, count in row.away.items())
        remarks += [f"{printable(row.type)}: not available: {away}"] if away else []
        remarks += notes(row)
    for one in found.mine:
        if one.why != "free":
            remarks.append(f"{printable(one.type)} in {printable(one.partition)}: {printable(one.why)}")
    return [*lines, Text(), *(Text(note) for note in dict.fromkeys(remarks)), Text(who(found), style="dim")]


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
