"""Makes the pictures of README.md from what slurmgpu really prints: ``python docs/pictures/make.py [script|status]``.

``status`` starts a throwaway Slurm on this machine, which must have Slurm's packages (.ci/install-slurm).
"""

from __future__ import annotations

import html
import io
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from tests.slurm.throwaway import ThrowawaySlurm  # noqa: E402

CELL = 12.2
"""The width of a character in rich's pictures."""
SLURMGPU = [sys.executable, "-m", "slurmgpu"]


def script() -> None:
    """The script of job.yaml, rendered for a described cluster."""
    command = ["render", "job.yaml", "--cluster", "uva-afton"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*SLURMGPU, *command], cwd=HERE, env=environment, capture_output=True, text=True, check=True
    )
    console = _console(width=max(map(len, done.stdout.splitlines())) + 1)
    console.print(f"[bold green]$[/] slurmgpu {' '.join(command)}")
    console.print(Syntax(done.stdout.rstrip("\n"), "bash", theme="monokai", background_color="default"))
    _save(console, "script.svg")


def status(width: int = 150) -> None:
    """The status of jobs that wait, run and have ended on a throwaway Slurm, as a terminal shows it."""
    with ThrowawaySlurm() as slurm, tempfile.TemporaryDirectory() as folder:
        environment = {**slurm.env, "PYTHONPATH": str(ROOT), "COLUMNS": str(width), "TERM": "xterm-256color"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        digits = str(ROOT / "examples" / "digits" / "job.yaml")
        # The work folder of digits is its own; run directories are to go away with this folder.
        Path(folder, "slurmgpu.yaml").write_text(f"runs: {folder}/runs\n", encoding="utf-8")
        Path(folder, "typo.py").write_text("import trch\n", encoding="utf-8")
        _submit(
            ["-D", folder, "-J", "typo", "--gpus", "1", "--wait", "--", "python", "typo.py"],
            folder,
            environment,
        )
        job = Path(folder, "job.yaml")
        job.write_text(Path(digits).read_text(encoding="utf-8"), encoding="utf-8")
        for name in ("task.py", "prepare.py"):
            Path(folder, name).write_bytes(Path(digits).with_name(name).read_bytes())
        _submit(["job.yaml", "--wait"], folder, environment)
        sleep = ["--", "sleep", "300"]
        first = _submit(
            ["-J", "bert", "-N", "2", "--gpus-per-node", "4", "-t", "8:00:00", *sleep], folder, environment
        )
        _submit(["-J", "resnet", "--gpus", "4", "-t", "2:00:00", *sleep], folder, environment)
        _submit(
            ["-J", "llama", "-N", "4", "--gpus-per-node", "4", "-t", "12:00:00", *sleep], folder, environment
        )
        _submit(["-J", "evaluate", "-d", f"afterok:{first}", "--gpus", "1", *sleep], folder, environment)
        time.sleep(12)
        shown = _in_terminal([*SLURMGPU, "status"], folder, environment)
    console = _console(width)
    console.print("[bold green]$[/] slurmgpu status")
    console.print(Text.from_ansi(shown))
    _save(console, "status.svg")


def _submit(words: list[str], folder: str, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [*SLURMGPU, "submit", *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def _in_terminal(argv: list[str], folder: str, environment: Mapping[str, str]) -> str:
    """What a command prints on a terminal, colours included."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(argv, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not data:
            break
        output += data
    process.wait()
    return output.decode().replace("\r\n", "\n").rstrip("\n")


def _console(width: int) -> Console:
    return Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )


def _words(match: re.Match[str]) -> str:
    """One <text> for each run of words; viewers differ in what they do with blanks."""
    kind, x, y, clip, escaped = match.groups()
    parts: list[str] = []
    for word in re.finditer(r"\S+(?: \S+)*", html.unescape(escaped).replace("\xa0", " ")):
        here, length = float(x) + CELL * word.start(), CELL * len(word[0])
        text = html.escape(word[0], quote=False)
        parts.append(
            f'<text class="{kind}" x="{here:.1f}" {y} textLength="{length:.1f}" {clip}>{text}</text>'
        )
    return "".join(parts)


def without_fonts(svg: str) -> str:
    """The picture with no font from the net: the reader's own monospaced one, so each word is put where it belongs."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "DejaVu Sans Mono")
    return re.sub(
        r'<text class="(\S+)" x="([\d.]+)" (y="[\d.]+") textLength="[\d.]+" ([^>]*)>([^<]*)</text>',
        _words,
        svg,
    )


def _save(console: Console, name: str) -> None:
    svg = without_fonts(console.export_svg(title="", theme=MONOKAI))
    (HERE / name).write_text(svg, encoding="utf-8")
    print(f"wrote {HERE / name}: {len(svg) // 1024} kB")


if __name__ == "__main__":
    for picture in sys.argv[1:] or ["script", "status"]:
        {"script": script, "status": status}[picture]()
