"""One raw connection for any API and version: kafka-python's message classes, and no client logic.

Fields are plain dicts, so that one value can be encoded for two brokers; asking is split into
`send` and `receive`, so that two brokers work at the same time.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

from kafka.protocol import admin, consumer, metadata, producer

TIMEOUT_S = 90.0
_PLACES = (admin, consumer, metadata, producer)


def message_class(name: str) -> Any:
    for place in _PLACES:
        if hasattr(place, name):
            return getattr(place, name)
    raise KeyError(name)


def build(kind: Any, fields: Mapping[str, Any], version: int) -> Any:
    """A message, or a struct in one, from dicts; what is not given has the schema's default."""
    message = kind(version=version)
    by_name = kind._struct.fields
    for name, value in fields.items():
        field = by_name[name]
        if not field.for_version_q(version):
            continue
        if field.is_struct_array() and value is not None:
            value = [build(field.data_class, item, version) for item in value]
        elif field.is_struct() and value is not None:
            value = build(field.data_class, value, version)
        setattr(message, name, value)
        if field._tag is not None:
            message.tags = (message.tags or set()) | {name}
    return message


class WireConnection:
    """`with WireConnection("127.0.0.1:9092") as wire: wire.ask("Fetch", 13, {…})`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(TIMEOUT_S)
        self._correlation = 0
        self._expected: list[tuple[int, Any, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: str, version: int, fields: Mapping[str, Any]) -> Any:
        self.send(api, version, fields)
        return self.receive()

    def send(self, api: str, version: int, fields: Mapping[str, Any]) -> None:
        request = build(message_class(f"{api}Request"), fields, version)
        self._correlation += 1
        request.with_header(correlation_id=self._correlation, client_id="oracle")
        self._expected.append((self._correlation, message_class(f"{api}Response"), version))
        self._socket.sendall(request.encode(header=True, framed=True))

    def receive(self) -> Any:
        correlation, kind, version = self._expected.pop(0)
        size = struct.unpack(">i", self._exactly(4))[0]
        data = self._exactly(size)
        correlation_received = int.from_bytes(data[:4], "big")
        assert correlation_received == correlation, (
            f"{self._bootstrap} answered request {correlation_received} in place of {correlation}, "
            f"{kind.__name__} {version}: {data[:200].hex()}"
        )
        try:
            return kind[version].decode(data, header=True)
        except Exception as error:
            text = f"{kind.__name__} {version} from {self._bootstrap}: {error!r}: {data.hex():.400}"
            raise AssertionError(text) from error

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            received_bytes = self._socket.recv_into(view)
            if not received_bytes:
                raise ConnectionError("closed by the other side")
            view = view[received_bytes:]
        return bytes(data)
