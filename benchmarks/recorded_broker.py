"""A broker whose records cost next to nothing: it repeats recorded responses to fetches.

`python -m benchmarks.recorded_broker LISTEN_PORT UPSTREAM_PORT` relays to a real broker. A response
to a fetch that has many records is kept in memory, and the kernel sends it again for each equal
fetch. So a proxy can be measured on a machine that has no core for a broker. All else, such as
metadata and errors, comes from the real broker. `RecordedBroker` runs it as `BareRelay` does.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

from benchmarks.bare_relay import BareRelay

_FETCH = b"\x00\x01"
_RECORDED_BYTES_MIN = 100_000
# By request without its correlation id: a file in memory with the response behind that id.
_recorded: dict[bytes, tuple[int, int]] = {}


class RecordedBroker(BareRelay):
    module = "benchmarks.recorded_broker"


def serve(client: socket.socket, upstream_port: int) -> None:
    """Serves one connection, a request at a time, until either side is gone."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with client, socket.create_connection(("127.0.0.1", upstream_port)) as upstream:
        requests, responses = client.makefile("rb"), upstream.makefile("rb")
        while len(size := requests.read(4)) == 4:
            request = requests.read(int.from_bytes(size))
            key, correlation = request[:4] + request[8:], request[4:8]
            if (recorded := _recorded.get(key)) is not None:
                _repeat(client, correlation, *recorded)
                continue
            upstream.sendall(size + request)
            if len(size := responses.read(4)) < 4:
                return
            response = responses.read(int.from_bytes(size))
            client.sendall(size + response)
            if request[:2] == _FETCH and len(response) > _RECORDED_BYTES_MIN:
                _recorded[key] = _file_of(response[4:]), len(response) - 4


def _repeat(client: socket.socket, correlation: bytes, file: int, length: int) -> None:
    client.send((4 + length).to_bytes(4) + correlation, socket.MSG_MORE)
    sent_bytes = 0
    while sent_bytes < length:
        sent_bytes += os.sendfile(client.fileno(), file, sent_bytes, length - sent_bytes)


def _file_of(content: bytes) -> int:
    file = os.memfd_create("response")
    os.write(file, content)
    return file


def main(port: int, upstream_port: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve_quietly, args=(client, upstream_port)).start()


def _serve_quietly(client: socket.socket, upstream_port: int) -> None:
    """A peer that goes is no error here."""
    try:
        serve(client, upstream_port)
    except OSError as gone:
        print(gone, file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
