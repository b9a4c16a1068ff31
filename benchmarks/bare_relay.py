"""A relay that only passes bytes: the least that any proxy on asyncio costs.

`python -m benchmarks.bare_relay LISTEN_PORT UPSTREAM_PORT [CERTIFICATE]`. With a certificate, its
clients speak TLS; several such relays may share a port. The relay reads no protocol, so the broker
must advertise the relay's address to clients: `told_by_kafka` gives the broker a listener that does
so.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self, cast

from lab.errors import PartFailed
from lab.process import ServerProcess, free_ports, port_responses

RECEIVE_BYTES = 256 * 1024  # as fetchproxy
_PROJECT = Path(__file__).parents[1]


class Half(asyncio.BufferedProtocol):
    """One side of a connection, `other` the other one. All share one buffer, as in fetchproxy."""

    def __init__(self, upstream_port: int, view: memoryview, other: Half | None = None) -> None:
        self._upstream_port = upstream_port
        self._view = view
        self._dials = other is None
        self.other = other or Half(upstream_port, view, self)
        self.transport: asyncio.Transport | None = None
        self._dialing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._dials:
            self.transport.pause_reading()
            self._dialing = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self) -> None:
        assert self.transport is not None
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self.other, "127.0.0.1", self._upstream_port
            )
        except OSError:
            self.transport.abort()
        else:
            self.transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if self.other.transport is not None:
            self.other.transport.write(bytes(self._view[:nbytes]))

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.other.transport is not None:
            self.other.transport.close()


class BareRelay:
    """`with BareRelay() as relay: …` relays from `port`, for clients, to `upstream_port`.

    `certificate`: for clients that speak TLS; then `processes` may share the port.
    """

    module = "benchmarks.bare_relay"

    def __init__(
        self,
        upstream_port: int | None = None,
        certificate: Path | None = None,
        processes: int = 1,
    ) -> None:
        first = free_ports(2)
        self._certificate, self._count = certificate, processes
        self.port, self.upstream_port = first, upstream_port or first + 1
        self._running = ExitStack()
        self._processes: list[ServerProcess] = []

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.pids[0]

    @property
    def pids(self) -> list[int]:
        if not self._processes:
            raise PartFailed("the bare relay has not been started")
        return [process.pid for process in self._processes]

    def told_by_kafka(self) -> Mapping[str, str]:
        """Properties of a broker that also listens at `upstream_port`, advertised as `port`."""
        prefix = "RELAYED://127.0.0.1:"
        listeners = "PLAINTEXT://127.0.0.1:{port}"
        return {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{{controller_port}},"
            f"{prefix}{self.upstream_port}",
            "advertised.listeners": f"{listeners},{prefix}{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "RELAYED:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            folder = tempfile.TemporaryDirectory(prefix="bare-relay-")
            logs = Path(starting.enter_context(folder))
            command = [sys.executable, "-m", self.module]
            command += [str(self.port), str(self.upstream_port)]
            command += [] if self._certificate is None else [str(self._certificate)]
            for number in range(self._count):
                log = logs / f"log-{number}"
                process = ServerProcess("bare relay", command, log, cwd=_PROJECT)
                self._processes.append(process)
                process.start()
                starting.callback(process.stop)
                process.wait_until(lambda: port_responses(self.port), timeout_s=30.0)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


async def relay(port: int, upstream_port: int, certificate: str | None = None) -> None:
    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)
    view = memoryview(bytearray(RECEIVE_BYTES))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Half(upstream_port, view),
        "127.0.0.1",
        port,
        backlog=1024,
        ssl=tls,
        reuse_port=tls is not None,
    )
    await server.serve_forever()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(relay(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
