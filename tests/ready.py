"""Starts Python with what it will import already imported: that takes longer than most of what the tests start.

Processes beside each pytest import torch, or all of slurmgpu's command line, once, and fork for each start. The fork
takes the environment, the folder, the input and the outputs that a start of its own would have, and runs the module or
script as ``__main__``. Where the environment says something that Python or torch reads earlier than that (``PYTHON...``,
``OMP_...``), the start is an ordinary one. tests/test_cli.py starts every command the ordinary way.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["free_port", "run", "slurmgpu", "start"]

ROOT = Path(__file__).resolve().parent.parent

_WITH_TORCH = ("torch.distributed", "torch._dynamo", "numpy", "slurmgpu.training.trainer")
_READ_EARLY = (
    "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "LD_", "MALLOC_", "LC_", "LANG",
)  # fmt: skip
_NUMBER = struct.Struct("=i")


def start(
    command: Sequence[str], environment: Mapping[str, str], *, stdin: Any = subprocess.DEVNULL, **more: Any
) -> subprocess.Popen[str]:
    """Start a process of this interpreter's, by ``-m`` and a module or by a script.

    ``more`` is for ``subprocess.Popen``.
    """
    assert command[0] == sys.executable
    of_the_command_line = command[1:3] == ["-m", "slurmgpu"]
    server = _server_environment(environment.get("PYTHONPATH", ""))
    is_ready = _early(environment, of_the_command_line) == _early(server, of_the_command_line)
    kind = _Forked if is_ready else subprocess.Popen
    return kind(list(command), env=dict(environment), stdin=stdin, text=True, **more)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout: float = 150,
    input: str | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    """Start a process, wait for its end, and return what it said; ``input`` is what it reads."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    pipe = subprocess.PIPE
    process = start(command, environment, stdin=stdin, stdout=pipe, stderr=pipe, **more)
    try:
        out, err = process.communicate(input, timeout=timeout)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def slurmgpu(
    folder: Path,
    *words: str,
    env: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    timeout: float = 240,
    input: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``slurmgpu`` with these words in a folder, with settings of its own, and return what it said.

    ``env`` is added to the environment, from which the variables go that begin with one of ``without``.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    places = {
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(folder / "xdg"),
        "SLURMGPU_SITE": str(folder / "site"),
    }
    command = [sys.executable, "-m", "slurmgpu", *words]
    return run(command, inherited | places | dict(env or {}), timeout=timeout, cwd=folder, input=input)


def free_port() -> int:
    """Return a port below those that the kernel gives to whoever names none: it must still be free when it is used."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class _Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A child of the server's, which is waited for through a pipe."""

    def _execute_child(self, args: list[str], *how: Any) -> None:
        """As the original, whose arguments these are; called by the constructor."""
        folder, environment, pipes = how[4], how[5], how[9:15]
        outputs = [own if own != -1 else usual for own, usual in ((pipes[3], 1), (pipes[5], 2))]
        request = {
            "arguments": [os.fsdecode(word) for word in args[1:]],
            "folder": str(folder or Path.cwd()),
            "environment": environment,
        }
        self._told, telling = os.pipe()
        reads = pipes[0] if pipes[0] != -1 else os.open(os.devnull, os.O_RDONLY)
        try:
            server = _server(args[1:3] == ["-m", "slurmgpu"], environment.get("PYTHONPATH", ""))
            socket.send_fds(server, [json.dumps(request).encode()], [reads, *outputs, telling])
        finally:
            os.close(telling)
            if pipes[0] == -1:
                os.close(reads)
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = self._number()
        self._child_created = True

    def _number(self) -> int:
        (number,) = _NUMBER.unpack(os.read(self._told, _NUMBER.size))
        return int(number)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if not select.select([self._told], [], [], 0 if wait_flags else None)[0]:
            return 0, 0
        status = self._number()
        os.close(self._told)
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def _early(environment: Mapping[str, str], of_the_command_line: bool) -> dict[str, str]:
    """Return what is read before the fork: nothing of torch by the command line; where bytecode lies decides nothing."""
    names = ("PYTHON", "LD_", "LC_", "LANG") if of_the_command_line else _READ_EARLY
    early = {name: value for name, value in environment.items() if name.startswith(names)}
    early.pop("PYTHONPYCACHEPREFIX", None)
    return {name: value for name, value in early.items() if value}


def _server_environment(path: str) -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@functools.cache
def _server(of_the_command_line: bool, path: str) -> socket.socket:
    """The server, with this PYTHONPATH; it ends when this process does, and is waited for then."""
    imported = ["--command-line"] if of_the_command_line else []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *imported],
            env=_server_environment(path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, until there are no more; returns the request in the process that is to do it."""
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, 1 << 18, 4)
        if not message:
            return None
        if os.fork() == 0:
            requests.close()
            return _become(json.loads(message), *descriptors)
        for each in descriptors:
            os.close(each)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _become(request: dict[str, Any], reads: int, out: int, err: int, telling: int) -> dict[str, Any]:
    """Fork once more, so that this process waits for the new one and tells how it ended."""
    child = os.fork()
    if child:
        for each in (reads, out, err, 2):
            os.close(each)
        os.write(telling, _NUMBER.pack(child))
        os.write(telling, _NUMBER.pack(os.waitpid(child, 0)[1]))
        os._exit(0)
    os.dup2(reads, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for each in (reads, out, err, telling):
        os.close(each)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    return request


def _import(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):  # with other versions there may be no such module
            importlib.import_module(name)


def _of_the_command_line() -> Iterator[str]:
    """All of slurmgpu's modules but those of the training."""
    import slurmgpu

    for module in pkgutil.walk_packages(slurmgpu.__path__, "slurmgpu."):
        if not module.name.startswith("slurmgpu.training") and not module.name.endswith("__main__"):
            yield module.name


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, where modules may have any name
    _import(_of_the_command_line() if "--command-line" in sys.argv else _WITH_TORCH)
    gc.collect()
    gc.freeze()  # pages that the forks' collectors do not write to need not be copied
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        arguments = asked["arguments"]
        if arguments[0] == "-m":
            sys.path.insert(0, str(Path.cwd()))
            sys.argv[:] = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(arguments[0]).parent))
            sys.argv[:] = arguments
            runpy.run_path(arguments[0], run_name="__main__")
