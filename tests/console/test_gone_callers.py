"""A caller of the console that has gone: its page of records ends, and the next one is made."""

from __future__ import annotations

import asyncio

from faulty_store import HANG, NO_FAULTS
from prometheus_client import CollectorRegistry
from read_side import batches, read_side
from sample_status import STATUS

from fetchproxy.config.schema import ConsoleConfig
from fetchproxy.config.values import HostPort
from fetchproxy.console.archived_records import ArchivedRecords
from fetchproxy.console.server import ConsoleServer
from fetchproxy.console.status import PartitionQuery, Status

CONFIG = ConsoleConfig(listen="127.0.0.1:0", show_records=True)


async def ask(address: HostPort, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader, writer


async def source(query: PartitionQuery) -> Status:
    return STATUS


async def test_a_page_of_records_ends_with_its_caller_and_the_next_is_made() -> None:
    async with read_side() as side:
        await side.segment(batches(side.rng, 0, 4))
        records = ArchivedRecords(side.rlmm, side.purgatory, lambda topic, partition: side.tp)
        registry = CollectorRegistry()
        async with ConsoleServer(CONFIG, source, registry, lambda: records) as console:
            side.store.faults = HANG
            path = "/api/records?topic=weather"
            _, gone = await ask(console.address, path)
            reader, writer = await ask(console.address, path)
            async with asyncio.timeout(20):
                while not side.store.in_flight:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                side.store.faults = NO_FAULTS
                gone.close()
                assert (await reader.read()).startswith(b"HTTP/1.1 200")
            assert side.store.in_flight == 0
            writer.close()
