"""Log files as they grow: one as it is, several line by line under headers that say whose lines follow."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path

from slurmgpu.monitoring.log_files import Log
from slurmgpu.printable import printable

__all__ = ["GrowingLogs", "header"]


def header(log: Log) -> str:
    """The line above a log's text, as tail writes it."""
    return printable(f"==> {log.title}: {log.path} <==")


class _GrowingLog:
    """One file that grows, and may not be there yet."""

    def __init__(self, log: Log, path: Path, position: int) -> None:
        self.log = log
        self._path = path
        self._position = position
        # A piece may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def new(self, *, whole_lines: bool, last: bool) -> Iterator[str]:
        """What has come since the last call; a line that is not at its end yet waits with ``whole_lines``."""
        for piece in self._read():
            text = self._held + self._decoder.decode(piece)
            # A progress bar ends its lines with a carriage return.
            end = max(text.rfind("\n"), text.rfind("\r")) + 1 if whole_lines else len(text)
            self._held = text[end:]
            if end:
                yield text[:end]
        if last and (rest := self._held + self._decoder.decode(b"", True)):
            self._held = ""
            yield rest

    def _read(self) -> Iterator[bytes]:
        try:
            file = self._path.open("rb")
        except OSError:
            return
        with file:
            file.seek(self._position)
            while piece := file.read(65536):
                self._position += len(piece)
                yield piece


class GrowingLogs:
    """The logs that are followed. With ``several``, or once there are, headers come above each one's lines."""

    def __init__(self, several: bool = False) -> None:
        self.several = several
        self._logs: dict[Path, _GrowingLog] = {}
        self._ending: list[_GrowingLog] = []
        self._done: set[Path] = set()
        self._shown: _GrowingLog | None = None
        self._open_line = False

    @property
    def shown(self) -> bool:
        """Whether there was anything to show."""
        return self._shown is not None

    def add(self, log: Log, position: int = 0, *, shown: bool = False) -> None:
        """Follow a log from a position on; one that is known already is left as it is.

        ``shown``: what is before the position is last on the screen.
        """
        if log.path is None or log.path in self._done:
            return
        growing = self._logs.setdefault(log.path, _GrowingLog(log, log.path, position))
        self._shown = growing if shown else self._shown
        self.several = self.several or len(self._logs) > 1

    def end(self, log: Log) -> None:
        """Look at a log once more and no more, for its job has ended."""
        if log.path is not None and log.path in self._logs:
            self._ending.append(self._logs[log.path])

    def pass_on(self, write: Callable[[str], None] | None, *, last: bool = False) -> None:
        """Write what has come since the last call; with ``last`` also what ends in no newline."""
        for growing in list(self._logs.values()):
            ends = last or growing in self._ending
            for text in growing.new(whole_lines=self.several, last=ends):
                if write is not None:
                    self._write(growing, text, write)
        for growing in self._ending:
            if growing.log.path is not None:
                self._logs.pop(growing.log.path, None)
                self._done.add(growing.log.path)
        self._ending.clear()

    def _write(self, growing: _GrowingLog, text: str, write: Callable[[str], None]) -> None:
        if self.several and growing is not self._shown:
            write(f"{chr(10) if self._open_line else ''}{header(growing.log)}\n")
        self._shown = growing
        self._open_line = not text.endswith("\n")
        write(text)
