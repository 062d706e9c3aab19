"""Log files as they grow: one as it is, several line by line under headers, or prefixes, that say whose lines follow."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from slurmgpu.files.regular import open_regular
from slurmgpu.monitoring.log_files import LONGEST_LINE, Log, settled
from slurmgpu.monitoring.log_lines import LineFilter
from slurmgpu.printable import printable

__all__ = ["GrowingLogs", "header", "prefixed"]


def header(log: Log) -> str:
    """The line above a log's text, as tail writes it."""
    return printable(f"==> {log.title}: {log.path} <==")


def prefixed(log: Log, text: str) -> str:
    """Whole lines, each with the part of the job before it that wrote it."""
    stream = "" if log.stream == "both" else log.stream
    label = printable(", ".join(filter(None, (log.job_id if not log.part else log.part, stream))))
    return "".join(f"{label} | {line}" for line in _lines(text))


# So much of what stood before a position is compared with what stands there now.
_MARK = 64


class _GrowingLog:
    """One file that grows, and may not be there yet.

    A requeued job begins its log anew unless it appends: the file is shorter then, or another one, or has other text where
    this process has stopped reading. A file that is shorter at one look and not at the next was a network file system's
    old news.
    """

    def __init__(self, log: Log, path: Path, position: int) -> None:
        self.log = log
        self.begun_anew = False
        """Whether what comes next is the beginning of the file once more."""
        self._path = path
        self._position = position
        self._mark: bytes | None = None
        self._was_short = False
        # A piece may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def new(self, *, whole_lines: bool, last: bool) -> Iterator[str]:
        """What has come since the last call; a line that is not at its end yet waits with ``whole_lines``."""
        for piece in self._read(last):
            text = self._held + self._decoder.decode(piece)
            # A progress bar ends its lines with a carriage return.
            end = max(text.rfind("\n"), text.rfind("\r")) + 1 if whole_lines else len(text)
            end = len(text) if len(text) - end > LONGEST_LINE else end
            self._held = text[end:]
            if end:
                yield text[:end]
        if last and (rest := self._held + self._decoder.decode(b"", True)):
            self._held = ""
            yield rest

    def _read(self, last: bool) -> Iterator[bytes]:
        try:
            file = open_regular(self._path)
        except OSError:
            return
        with file:
            if not self._goes_on(file, last):
                return
            file.seek(self._position)
            while piece := file.read(65536):
                self._position += len(piece)
                self._mark = (self._mark or b"")[-_MARK:] + piece[-_MARK:]
                self._mark = self._mark[-_MARK:]
                yield piece

    def _goes_on(self, file: BinaryIO, last: bool) -> bool:
        """Whether there is something to read now: from the position on, or from the beginning of what has begun anew."""
        size = file.seek(0, 2)
        if size < self._position:
            again, self._was_short = self._was_short, True
            if again or last:
                self._begin_anew()
            return again or last
        self._was_short = False
        mark = self._before(file)
        if self._mark is not None and mark != self._mark:
            self._begin_anew()
        self._mark = mark if self._position else None
        return True

    def _before(self, file: BinaryIO) -> bytes:
        length = min(len(self._mark) if self._mark is not None else _MARK, self._position)
        file.seek(self._position - length)
        return file.read(length)

    def _begin_anew(self) -> None:
        self._position, self._mark, self._held, self._was_short = 0, None, "", False
        self._decoder.reset()
        self.begun_anew = True


class GrowingLogs:
    """The logs that are followed. With ``several``, or once there are, headers come above each one's lines.

    With ``prefixes`` each line says whose it is instead; ``filter_of`` finds what takes out lines of a log.
    """

    def __init__(
        self,
        several: bool = False,
        *,
        prefixes: bool = False,
        filter_of: Callable[[Log], LineFilter | None] = lambda _: None,
    ) -> None:
        self.several = several
        self.prefixes = prefixes
        self.filter_of = filter_of
        self._filters: dict[Path, LineFilter | None] = {}
        self._logs: dict[Path, _GrowingLog] = {}
        self._ending: list[_GrowingLog] = []
        self._done: set[Path] = set()
        self._shown: _GrowingLog | None = None
        self._open_line = False

    @property
    def shown(self) -> bool:
        """Whether there was anything to show."""
        return self._shown is not None

    def filter_for(self, log: Log) -> LineFilter | None:
        """What takes out lines of a log, with what it remembers of those that came before."""
        if log.path is None:
            return None
        if log.path not in self._filters:
            self._filters[log.path] = self.filter_of(log)
        return self._filters[log.path]

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
            lines = self.filter_for(growing.log)
            whole = self.several or self.prefixes or lines is not None
            for text in growing.new(whole_lines=whole, last=ends):
                wanted = "".join(lines.lines(_lines(text))) if lines is not None else text
                if write is not None and wanted:
                    self._write(growing, wanted, write)
        for growing in self._ending:
            if growing.log.path is not None:
                self._logs.pop(growing.log.path, None)
                self._done.add(growing.log.path)
        self._ending.clear()

    def _write(self, growing: _GrowingLog, text: str, write: Callable[[str], None]) -> None:
        head = self.several and growing is not self._shown and not self.prefixes
        if head or growing.begun_anew:
            anew = " (begun anew)" if growing.begun_anew else ""
            write(f"{chr(10) if self._open_line else ''}{header(growing.log)}{anew}\n")
            growing.begun_anew = False
        self._shown = growing
        self._open_line = not text.endswith("\n")
        write(prefixed(growing.log, text) if self.prefixes else text)


def _lines(text: str) -> Iterator[str]:
    """The lines of a text, each with its end, of a progress bar what it shows last."""
    *whole, rest = text.split("\n")
    for line in [*whole, rest] if rest else whole:
        yield settled(line) + "\n"
