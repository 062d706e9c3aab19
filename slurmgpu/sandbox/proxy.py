"""Stands before the controller, hands requests on, and loses its replies: a network that fails at the worst moment.

``proxy.py LISTEN_PORT CONTROLLER_PORT``; needs nothing but the standard library.
"""

from __future__ import annotations

import socket
import sys
import threading


def lose_the_reply(client: socket.socket, controller_port: int) -> None:
    """Hand one client's request on; once the controller has replied, hang up on both."""
    with client, socket.create_connection(("127.0.0.1", controller_port), timeout=60) as controller:
        replied = threading.Thread(target=_wait_for_reply, args=(controller, client), daemon=True)
        replied.start()
        try:
            while chunk := client.recv(65536):
                controller.sendall(chunk)
        except OSError:
            return
        replied.join(timeout=60)


def _wait_for_reply(controller: socket.socket, client: socket.socket) -> None:
    try:
        controller.recv(65536)
        client.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def main() -> None:
    """Serve until killed."""
    listen_port, controller_port = int(sys.argv[1]), int(sys.argv[2])
    with socket.create_server(("127.0.0.1", listen_port), backlog=64) as server:
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            threading.Thread(target=lose_the_reply, args=(client, controller_port), daemon=True).start()


if __name__ == "__main__":
    main()
