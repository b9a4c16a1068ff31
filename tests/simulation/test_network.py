"""The simulated network acts as a network: bytes in order and whole, bounded window, FIN, RST."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from network import Conditions, NetworkLoop, SimulatedNetwork
from virtual_loop import run_virtual

Main = Callable[[SimulatedNetwork], Awaitable[None]]
ADDRESS = ("server", 1)


class End(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = bytearray()
        self.pieces = 0
        self.lost: list[Exception | None] = []
        self.events: list[str] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces += 1

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def on_network(conditions: Conditions, main: Main, seed: int = 1) -> None:
    loops: list[NetworkLoop] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    async def whole() -> None:
        loops[-1].network = SimulatedNetwork(Random(seed), conditions)
        await main(loops[-1].network)

    run_virtual(whole, new_loop)


async def pair() -> tuple[End, End]:
    loop, served = asyncio.get_running_loop(), []

    def accept() -> End:
        served.append(End())
        return served[-1]

    await loop.create_server(accept, *ADDRESS)
    _, client = await loop.create_connection(End, *ADDRESS)
    await asyncio.sleep(0.1)
    return client, served[0]


@pytest.mark.parametrize("cutting", ["whole", "parts", "bytes"])
@pytest.mark.parametrize("sends_at_once", [True, False])
def test_bytes_arrive_once_in_order_through_a_small_window(
    cutting: str, sends_at_once: bool
) -> None:
    async def main(network: SimulatedNetwork) -> None:
        client, server = await pair()
        data_sent = Random(3).randbytes(50_000)
        view = memoryview(data_sent)
        for at in range(0, len(data_sent), 7_000):
            client.transport.write(view[at : at + 7_000])
            server.transport.write(view[at : at + 7_000])
        await asyncio.sleep(10)
        assert bytes(server.received) == bytes(client.received) == data_sent
        assert server.pieces > (7 if cutting == "whole" else 40)
        client.transport.close()
        await asyncio.sleep(1)
        assert client.lost == server.lost == [None]
        assert not network.connections

    on_network(Conditions(0.001, 0.01, cutting, 2_000, sends_at_once), main)


def test_who_does_not_read_is_felt_by_who_writes() -> None:
    async def main(network: SimulatedNetwork) -> None:
        client, server = await pair()
        client.transport.set_write_buffer_limits(high=1_000)
        server.transport.pause_reading()
        client.transport.write(bytes(10_000))
        await asyncio.sleep(60)
        assert client.events == ["pause"]
        assert client.transport.get_write_buffer_size() == 10_000 - 4_000
        assert not server.received
        server.transport.resume_reading()
        await asyncio.sleep(60)
        assert client.events == ["pause", "resume"]
        assert len(server.received) == 10_000
        client.transport.abort()
        await asyncio.sleep(1)

    on_network(Conditions(window_bytes=4_000), main)


def test_resets_refusals_and_unread_bytes() -> None:
    async def main(network: SimulatedNetwork) -> None:
        client, server = await pair()
        client.transport.write(b"lost")
        network.connections[0].reset()
        await asyncio.sleep(1)
        assert isinstance(client.lost[0], ConnectionResetError)
        assert isinstance(server.lost[0], ConnectionResetError)
        assert not server.received

        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(End, "server", 2)
        network.cut_off(ADDRESS)
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(End, *ADDRESS)

    on_network(Conditions(), main)


def test_closing_with_unread_bytes_resets_the_other_end() -> None:
    async def main(network: SimulatedNetwork) -> None:
        client, server = await pair()
        server.transport.pause_reading()
        client.transport.write(b"unread")
        await asyncio.sleep(1)
        server.transport.close()
        await asyncio.sleep(1)
        assert server.lost == [None]
        assert isinstance(client.lost[0], ConnectionResetError)

    on_network(Conditions(), main)
