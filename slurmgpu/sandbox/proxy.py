"""A proxy before the controller that hands requests on and loses replies: a network that fails at the worst moment.

``proxy.py LISTEN_PORT CONTROLLER_PORT``; needs nothing but the standard library. USR1 makes it hand replies on, USR2
makes it lose them again: the step daemons of jobs that began meanwhile know no other port for as long as they live.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading

honest = threading.Event()
"""Set: replies are handed on."""


def pass_on(client: socket.socket, controller_port: int) -> None:
    """Hand one client's request on, and the replies to it; where these are to be lost, hang up at the first."""
    with client, socket.create_connection(("127.0.0.1", controller_port), timeout=60) as controller:
        replied = threading.Thread(target=_hand_back, args=(controller, client), daemon=True)
        replied.start()
        try:
            while chunk := client.recv(65536):
                controller.sendall(chunk)
        except OSError:
            return
        replied.join(timeout=60)


def _hand_back(controller: socket.socket, client: socket.socket) -> None:
    try:
        while (chunk := controller.recv(65536)) and honest.is_set():
            client.sendall(chunk)
        client.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def main() -> None:
    """Serve until killed."""
    listen_port, controller_port = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGUSR1, lambda *_: honest.set())
    signal.signal(signal.SIGUSR2, lambda *_: honest.clear())
    with socket.create_server(("127.0.0.1", listen_port), backlog=64) as server:
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            threading.Thread(target=pass_on, args=(client, controller_port), daemon=True).start()


if __name__ == "__main__":
    main()
