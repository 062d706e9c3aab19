"""The application ``slurmgpu top``: what is asked when, aside from the screen, and what all its screens have."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.notifications import SeverityLevel
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from slurmgpu.amounts import span
from slurmgpu.errors import SlurmGpuError
from slurmgpu.jobs.live import (
    ACTIONS,
    Action,
    Outcome,
    Snapshot,
    Source,
    error_text,
    perform,
    question,
    refusal,
)
from slurmgpu.jobs.view import Line
from slurmgpu.printable import printable

__all__ = ["Confirm", "HelpScreen", "Top", "View"]


class View(Screen[None]):
    """One screen of ``slurmgpu top``."""

    shows_jobs = True
    """True if what Slurm says of jobs is on it."""

    @property
    def top(self) -> Top:
        """The application."""
        assert isinstance(self.app, Top)
        return self.app

    def show(self) -> None:
        """Show what is known now."""

    def tick(self) -> None:
        """Look at the files of what is shown."""

    def head(self) -> Text:
        """Return which cluster, as of when; where Slurm is silent, how old that is."""
        seen = self.top.seen
        if seen is None:
            trouble = printable(self.top.trouble)
            return Text(trouble or "asking Slurm ...", style="red" if trouble else "")
        report = seen.report
        name = printable(report.cluster or "cluster unknown")
        text = Text(f"{name}  as of {report.time.astimezone():%H:%M:%S}")
        if seen.why_old:
            text.append(f"  SLURM DOES NOT ANSWER: this is {span(report.age)} old", style="red reverse")
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
    """Show the keys."""

    shows_jobs = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape,question_mark,enter", "app.pop_screen", show=False)
    ]

    def compose(self) -> ComposeResult:
        """The page."""
        acts = "\n".join(f"  {act.key}  {act.verb:<9}{act.then}" for act in ACTIONS)
        with VerticalScroll():
            text = _HELP.format(acts=acts)
            if self.app.size.width < _COLUMNS_FROM:
                text = re.sub(" {8,}", "\n  ", text)
            yield Static(Text(text), markup=False)


T = TypeVar("T")

TICK = 2.0
"""Seconds between two looks at the files of what is shown."""


class Answer(Message, Generic[T]):
    """An answer for the screen, from a thread that has waited for it."""

    bubble = False

    def __init__(self, then: Callable[[T], None], answer: T, once: str) -> None:
        super().__init__()
        self.then, self.answer, self.once = then, answer, once


class Top(App[None]):
    """``slurmgpu top``."""

    TITLE = "slurmgpu top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    .line { height: 1; width: 100%; }
    #head { text-style: bold; }
    #keys { text-style: dim; }
    #why { height: 2; width: 100%; }
    DataTable, JobPane, RichLog, VerticalScroll { scrollbar-size-vertical: 1; }
    DataTable { height: 1fr; }
    DataTable > .datatable--header { text-style: bold; background: ansi_default; color: ansi_default; }
    DataTable > .datatable--cursor { text-style: reverse; background: ansi_default; color: ansi_default; }
    #filter { border: none; height: 1; padding: 0; display: none; }
    #pane { height: 2fr; border-top: solid ansi_default; display: none; }
    #pane.whole { display: block; border-top: none; }
    #log { height: 1fr; }
    Confirm { align: center middle; }
    Confirm > Static { width: 70; max-width: 100%; height: auto; padding: 0 1; }
    Confirm > Static { background: ansi_default; border: heavy ansi_yellow; }
    Toast { width: 76; max-width: 100%; padding: 0 1; background: ansi_default; }
    Toast { border: solid ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", priority=True, show=False)]

    def __init__(self, source: Source, first: Screen[None]) -> None:
        super().__init__(ansi_color=True)  # the terminal's own colours, and with NO_COLOR none
        self.source = source
        self._first = first
        self.seen: Snapshot | None = None
        self.trouble = ""
        """Why there is nothing to show at all."""
        self._under_way: set[str] = set()
        self._wanted = False

    def on_mount(self) -> None:
        """Show the jobs, ask for them, and go on doing so."""
        self.theme = "ansi-dark"
        self.push_screen(self._first)
        self.look(anew=True)
        self.set_interval(self.source.pace, self._look_again)
        self.set_interval(TICK, self._tick)

    def aside(self, work: Callable[[], T], then: Callable[[T], None], *, once: str = "") -> bool:
        """Do what may take long in a thread, and hand the screen what came of it; False where `once` is under way.

        A daemon's: who leaves does not wait for a Slurm that is silent.
        """
        if once in self._under_way:
            return False
        self._under_way |= {once} if once else set()

        def do() -> None:
            try:
                answer: Answer[Any] = Answer(then, work(), once)
            except Exception as error:  # a file that cannot be read, mostly: said, and the screen goes on
                text = f"{type(error).__name__}: {error}"
                answer = Answer(lambda _: self.say(text, good=False), None, once)
            self.post_message(answer)  # says False where the screen has gone

        threading.Thread(target=do, daemon=True).start()
        return True

    def on_answer(self, message: Answer[object]) -> None:
        """Hand an answer on, in the screen's own thread."""
        self._under_way.discard(message.once)
        message.then(message.answer)

    def look(self, *, anew: bool = False) -> None:
        """Ask for the jobs, unless that is under way: then once more after it, where it has to be anew."""

        def ask() -> Snapshot | str:
            try:
                return self.source.jobs(anew=anew)
            except SlurmGpuError as error:
                return error_text(error)

        def show(answer: Snapshot | str) -> None:
            if isinstance(answer, str):
                self.trouble = answer
            else:
                self.seen, self.trouble = answer, ""
            for screen in self.screen_stack:
                if isinstance(screen, View):
                    screen.show()
            if self._wanted:
                self._wanted = False
                self.look(anew=True)

        if not self.aside(ask, show, once="jobs"):
            self._wanted = self._wanted or anew

    def _look_again(self) -> None:
        """Nobody looks at the jobs while the GPUs or the help are shown."""
        if isinstance(self.screen, View) and self.screen.shows_jobs:
            self.look()

    def _tick(self) -> None:
        if isinstance(self.screen, View):
            self.screen.tick()

    def ask_for(self, act: Action, line: Line) -> None:
        """Ask whether it is to be done, and do it; what may not be done is not asked."""
        if barred := refusal(act, line.job, self.source.user):
            self.say(barred, good=False)
            return

        def done(outcome: Outcome) -> None:
            self.say(outcome.text, good=outcome.good)
            self.look(anew=True)

        def answered(yes: bool | None) -> None:
            if yes:
                self.say(f"asked Slurm to {act.verb} job {line.job.job_id} ...")
                self.aside(lambda: perform(act, line.job, self.source), done)

        self.push_screen(Confirm(question(act, line)), answered)

    def say(self, text: str, *, good: bool = True) -> None:
        """A word to the person, that goes away by itself."""
        severity: SeverityLevel = "information" if good else "error"
        self.notify(printable(text), severity=severity, timeout=6 if good else 15, markup=False)
