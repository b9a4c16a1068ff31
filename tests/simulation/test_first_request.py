"""The proxy dials a broker at a client's first request: idle clients cost no connection."""

from __future__ import annotations

import asyncio
import struct

from calm_replay import BOOTSTRAP, Replay, run_replay
from client_connection import ClientConnection, metadata_request
from network import NetworkLoop
from test_many_connections import dialed

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.serving import listener
from fetchproxy.serving.gateway.broker_link import BrokerLink
from fetchproxy.serving.gateway.session import GatewaySession
from fetchproxy.serving.limits import ServingLimits

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
METADATA, HALF_FRAME_S = 3, 5
LIMITS = ServingLimits(half_frame_max_ms=HALF_FRAME_S * 1000)


def send(connection: ClientConnection, data: bytes) -> asyncio.Transport:
    transport = connection._transport
    assert transport is not None
    transport.write(data)
    return transport


def to_brokers(replay: Replay) -> int:
    """Open connections to brokers for clients; the proxy has others of its own."""
    protocols = [each.client.get_protocol() for each in replay.cluster.network.connections]
    return sum(isinstance(protocol, BrokerLink) for protocol in protocols)


def run(main) -> None:  # type: ignore[no-untyped-def]
    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1, limits=LIMITS)


def test_who_sends_nothing_or_what_is_not_right_reaches_no_broker() -> None:
    async def main(replay: Replay) -> None:
        idle = await dialed("first")
        slow, tls, tiny = [await dialed("first") for _ in range(3)]
        send(slow, API_VERSIONS[:9])
        send(tls, b"\x16\x03\x01\x02\x00\x01\x00\x01")
        send(tiny, struct.pack(">i", 9))
        await asyncio.sleep(HALF_FRAME_S - 1)
        assert [c.is_open for c in (idle, slow, tls, tiny)] == [True, True, False, False]
        await asyncio.sleep(2 + listener.SWEEP_INTERVAL_S)
        assert [c.is_open for c in (idle, slow)] == [True, False]
        assert not to_brokers(replay)
        await idle.ask(*metadata_request(["weather"]))  # the idle client is served as usual
        assert to_brokers(replay) == 1
        await idle.close()

    run(main)


def test_a_head_is_enough_and_may_come_byte_by_byte() -> None:
    async def main(replay: Replay) -> None:
        connection = await dialed("first")
        head = struct.pack(">ihhih", 200, METADATA, 1, 7, -1)
        for byte in head:
            assert not to_brokers(replay)
            send(connection, bytes([byte]))
            await asyncio.sleep(0.1)
        assert to_brokers(replay) == 1
        assert connection.is_open
        await connection.close()

    run(main)


def test_a_client_that_leaves_early_leaves_no_session_behind() -> None:
    """The client leaves before its first request, within it, or while its broker is dialed."""

    async def main(replay: Replay) -> None:
        for data in (b"", API_VERSIONS[:9], API_VERSIONS, API_VERSIONS * 2):
            connection = await dialed("first")
            transport = send(connection, data)
            await asyncio.sleep(0)
            transport.close()
            await asyncio.sleep(1)
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert not [name for name in names if name.startswith("session-")], data
        assert not to_brokers(replay)

    run(main)


def test_a_client_that_ends_its_sending_before_there_is_a_broker() -> None:
    """A whole request is still answered; the rest of a partial request cannot come any more."""

    class StubTransport(asyncio.Transport):
        closed = False

        def get_extra_info(self, name: str, default: object = None) -> object:
            return ("127.0.0.1", 1) if name == "peername" else default

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            pass

        def is_closing(self) -> bool:
            return self.closed

        def pause_reading(self) -> None:
            pass

        def resume_reading(self) -> None:
            pass

        def close(self) -> None:
            self.closed = True

    async def main(replay: Replay) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetworkLoop)
        factory = loop.network.listeners[BOOTSTRAP].factory
        for data, stays_open in ((b"", False), (API_VERSIONS[:9], False), (API_VERSIONS, True)):
            session = factory()
            assert isinstance(session, GatewaySession)
            session.connection_made(StubTransport())
            session.get_buffer(-1)[: len(data)] = data
            session.buffer_updated(len(data))
            assert bool(session.eof_received()) is stays_open, data
            session.close()
            session.connection_lost(None)

    run(main)
