"""The GPUs that are free, by partition; asked for as long as they are shown."""

from __future__ import annotations

import time
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from slurmgpu.errors import SlurmGpuError
from slurmgpu.jobs.gpus_now import GpusNow, could, kind, notes, place, who
from slurmgpu.jobs.live import error_text
from slurmgpu.printable import printable
from slurmgpu.top.app import View
from slurmgpu.top.text import bar

__all__ = ["GpusScreen", "free_lines"]

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
