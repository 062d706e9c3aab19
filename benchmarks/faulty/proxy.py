"""A proxy in front of the controller's port, which disturbs what one trial's commands ask and hear."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

__all__ = ["FORMS", "NETWORK", "Proxy"]

NETWORK = (
    "refused", "reset", "hang", "reply held", "reply dropped", "reply cut", "request cut", "reply delayed",
)  # fmt: skip
FORMS = ("first", "always")
PATIENCE = 240.0


class Proxy:
    """Listens in front of the controller's port; disturbs what comes while it is armed."""

    def __init__(
        self, target: int, fault: str = "", form: str = "always", skip: int = 0, hits: int = 1
    ) -> None:
        self.target, self.fault, self.form, self.skip, self.hits = target, fault, form, skip, hits
        self.armed, self.mended = threading.Event(), threading.Event()
        self.touched, self.passed = threading.Event(), threading.Event()
        self.disturbed = 0
        # The port stays taken by one that never listens: without the other one, connections are refused.
        self.keeper = self._bound(0)
        self.port: int = self.keeper.getsockname()[1]
        self.lock = threading.Lock()
        self.listener: socket.socket | None = None
        self.listen()

    @staticmethod
    def _bound(port: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("127.0.0.1", port))
        return made

    def listen(self) -> None:
        with self.lock:
            self.listener = self._bound(self.port)
            self.listener.listen(64)
            threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def deafen(self) -> None:
        with self.lock:
            if self.listener is not None:
                with contextlib.suppress(OSError):
                    self.listener.shutdown(socket.SHUT_RDWR)
                self.listener.close()
                self.listener = None

    def arm(self) -> None:
        self.armed.set()
        if self.fault == "refused":
            self.disturbed += 1
            self.deafen()
            if self.form == "first":
                threading.Timer(0.7 * (1 + self.skip), self.mend).start()

    def mend(self) -> None:
        with self.lock:
            first = not self.mended.is_set()
            self.mended.set()
        if first and self.fault == "refused" and self.armed.is_set():
            self.listen()

    def close(self) -> None:
        self.mended.set()
        self.deafen()
        self.keeper.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _fault_now(self) -> str:
        """The fault of a new connection."""
        with self.lock:
            if not self.armed.is_set() or self.mended.is_set():
                return ""
            if self.form == "first":
                self.skip -= 1
                if self.skip >= 0 or self.disturbed >= self.hits:
                    return ""
            self.disturbed += 1
            return self.fault

    def _serve(self, client: socket.socket) -> None:
        self.touched.set()
        fault = self._fault_now()
        with contextlib.suppress(OSError), client:
            if fault == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if fault == "hang":
                self.mended.wait(PATIENCE)
                return
            request = _message(client)
            with socket.create_connection(("127.0.0.1", self.target), 60) as server:
                if fault == "request cut":
                    server.sendall(request[: len(request) // 2])
                    return
                server.sendall(request)
                reply = _message(server)
                if fault == "reply held":
                    self.mended.wait(PATIENCE)
                    return
                if fault == "reply dropped":
                    return
                if fault == "reply delayed":
                    time.sleep(random.uniform(0.3, 1.5))
                client.sendall(reply[: len(reply) // 2] if fault == "reply cut" else reply)
                if reply and fault != "reply cut":
                    self.passed.set()


def _message(sender: socket.socket) -> bytes:
    """One whole message of Slurm's, which begins with its length; what came of it where the sender closes."""
    sender.settimeout(60)
    found = b""
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4], "big"):
        piece = sender.recv(1 << 16)
        if not piece:
            break
        found += piece
    return found
