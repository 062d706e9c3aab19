"""What all screens have: a line above, keys below, and the application that asks for them.

A question before something is done, and the page of help.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from slurmgpu.amounts import duration
from slurmgpu.jobs.actions import ACTS
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.top.app import Top

__all__ = ["Confirm", "HelpScreen", "View"]


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


class Confirm(ModalScreen[bool]):
    """A question; only `y` is a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", show=False),
        Binding("n,q,escape,enter", "dismiss(False)", show=False),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        """The question, and the keys that answer it."""
        yield Static(Text(f"{self.question}\n\ny: yes    n: no"), markup=False)


_HELP = """\
Moving
  up down, j k     to a job          enter   its details        escape, q  back
  pgup pgdn home end                 tab     to the list, or the details below

Looking
  l  follow its logs                 g  GPUs that are free, by partition
  /  filter by words in id, name, user, state, partition, account and nodes
  s  sort by another column          t  arrays in one line, or task by task
  a  everybody's jobs, or mine       r  ask Slurm again now
  w  in details: why the job waits, with the figures of this moment

Changing: of your own jobs only, and after a question
{acts}

q  quit

Slurm is asked every 30 s, with two commands; your other slurmgpu processes \
share the answers. GPUs are asked for while they are shown. Progress, samples \
and logs are read from files.
"""
_COLUMNS_FROM = 80


class HelpScreen(View):
    """What the keys do."""

    shows_jobs = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape,question_mark,enter", "app.pop_screen", show=False)
    ]

    def compose(self) -> ComposeResult:
        """The page."""
        acts = "\n".join(f"  {act.key}  {act.verb:<9}{act.then}" for act in ACTS)
        with VerticalScroll():
            text = _HELP.format(acts=acts)
            if self.app.size.width < _COLUMNS_FROM:
                text = re.sub(" {8,}", "\n  ", text)
            yield Static(Text(text), markup=False)
