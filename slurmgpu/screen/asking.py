"""A question before something is done, and the page of help."""

from __future__ import annotations

import re
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from slurmgpu.screen.acting import ACTS
from slurmgpu.screen.view import View

__all__ = ["Confirm", "HelpScreen"]


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
