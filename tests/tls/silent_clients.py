"""Clients that do the TLS handshake and then say nothing, in a process of their own.

`python silent_clients.py PORT AUTHORITY_FILE COUNT ADDRESS` prints a line when all are connected,
and keeps them until its standard input ends. One process has files, and one address has ports, for
COUNT_MAX of them.
"""

from __future__ import annotations

import socket
import ssl
import sys

COUNT_MAX = 10_000


def main(port: int, authority: str, count: int, address: str) -> None:
    context = ssl.create_default_context(cafile=authority)
    peers = []
    for _ in range(count):
        place = ("127.0.0.1", port)
        peer = socket.create_connection(place, timeout=60, source_address=(address, 0))
        peers.append(context.wrap_socket(peer, server_hostname="localhost"))
    print(len(peers), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
