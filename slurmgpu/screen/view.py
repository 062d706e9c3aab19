"""What all screens have: a line above, keys below, and the application that asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual.screen import Screen

from slurmgpu.monitoring.reporting.wording import duration
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.screen.app import Top

__all__ = ["View"]


class View(Screen[None]):
    """One screen of ``slurmgpu top``."""

    shows_jobs = True
    """Whether what Slurm says of jobs is on it."""

    @property
    def top(self) -> Top:
        """The application."""
        return cast("Top", self.app)

    def show(self) -> None:
        """Show what is known now."""

    def tick(self) -> None:
        """Look at the files of what is shown."""

    def head(self) -> Text:
        """Which cluster, as of when; where Slurm is silent, how old that is."""
        seen = self.top.seen
        if seen is None:
            return Text(
                printable(self.top.trouble) or "asking Slurm ...", style="red" if self.top.trouble else ""
            )
        report = seen.report
        text = Text(
            f"{printable(report.cluster or 'cluster unknown')}  as of {report.time.astimezone():%H:%M:%S}"
        )
        if seen.why_old:
            ago = f"{report.age:.0f} s" if report.age < 100 else duration(int(report.age))
            text.append(f"  SLURM DOES NOT ANSWER: this is {ago} old", style="red reverse")
        elif report.notes:
            more = f" (and {len(report.notes) - 1} more)" if len(report.notes) > 1 else ""
            text.append(f"  note: {printable(report.notes[0])}{more}", style="yellow")
        return text
