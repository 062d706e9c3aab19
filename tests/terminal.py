"""A command at a terminal of its own: typed into, and read until it shows something."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

# A process of its own: pty.spawn forks, which a test runner with threads should not.
_SPAWN = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


class Terminal:
    """The command runs as long as the ``with`` block, or until it ends by itself."""

    def __init__(self, argv: list[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self._raw = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SPAWN, *argv],
            cwd=cwd,
            env={**env, "TERM": "vt100"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while piece := self._process.stdout.read1(4096):  # type: ignore[attr-defined]
            self._raw += piece.decode("utf-8", "replace")

    @property
    def shown(self) -> str:
        """All that was shown so far."""
        return re.sub(r"\r+\n", "\n", self._raw)

    def type(self, text: str) -> None:
        """Type; ``\\x03`` is Ctrl-C."""
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def expect(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        """Wait until the pattern is shown."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, f"{pattern!r} was not shown in {seconds:g} s:\n{self.shown}"
            assert self._process.poll() is None or re.search(pattern, self.shown), self.shown
            time.sleep(0.05)
        return found

    def code(self, seconds: float = 120) -> int:
        """Wait for the end; the exit code."""
        code = self._process.wait(seconds)
        self._reader.join(seconds)
        return code

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()  # its terminal goes with it, and who is there is told by HUP
            self._process.wait(60)
        self._reader.join(60)
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()
