"""Clients that do the TLS handshake and then say nothing, in a process of their own.

`python silent_clients.py PORT AUTHORITY_FILE COUNT` prints a line when all are connected, and keeps
them until its standard input ends. They come from several addresses of this machine, as one has too
few ports.
"""

from __future__ import annotations

import socket
import ssl
import sys

PORTS_OF_ONE_ADDRESS = 10_000


def main(port: int, authority: str, count: int) -> None:
    context = ssl.create_default_context(cafile=authority)
    peers = []
    for number in range(count):
        source = (f"127.0.0.{2 + number // PORTS_OF_ONE_ADDRESS}", 0)
        peer = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=source)
        peers.append(context.wrap_socket(peer, server_hostname="localhost"))
    print(len(peers), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
